//! The header of a native record, 24 bytes, big-endian:
//!
//! ```text
//!  0      1      2            3      4          6        8              16            20       24
//!  kind   flags  method len   depth  channel id zero     correlation    expiry ms     zero
//!  u8     0      u8           u8     u16        u16      u64            u32           u32
//! ```
//!
//! then the method, then the payload. For an error the channel id is the number of the error kind
//! and the payload is a u16 of the application and a sentence (see [`ErrorBody`]). A reserved field
//! that is not zero is refused, so that it can be given a meaning later.

use std::borrow::Cow;

use bytes::Bytes;

use crate::base::record::{Kind, Record};
use crate::base::unit::HEADER_LEN;

use super::error::WireError;

/// The longest sentence of an error.
pub const SENTENCE_MAX: usize = 1024;

/// The fields of a native header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What the record is.
    pub kind: Kind,
    /// How many bytes of method follow the header.
    pub method_len: u8,
    /// How many handlers stand above the call.
    pub depth: u8,
    /// The channel's number on this link; of an error, the number of its kind.
    pub channel: u16,
    /// Opaque to the answering side.
    pub correlation: u64,
    /// On the sender's link clock; 0 = none.
    pub expiry_ms: u32,
}

impl Header {
    /// The header of `record` as it goes out, with the channel's number on that link.
    #[inline]
    pub fn of(record: &Record, wire_channel: u16) -> Header {
        Header {
            kind: record.kind,
            method_len: record.method.as_bytes().len() as u8,
            depth: record.depth,
            channel: wire_channel,
            correlation: record.correlation,
            expiry_ms: record.expiry_ms,
        }
    }

    /// As it stands on the wire.
    #[inline]
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[0] = self.kind as u8;
        out[2] = self.method_len;
        out[3] = self.depth;
        out[4..6].copy_from_slice(&self.channel.to_be_bytes());
        out[8..16].copy_from_slice(&self.correlation.to_be_bytes());
        out[16..20].copy_from_slice(&self.expiry_ms.to_be_bytes());
        out
    }

    /// Reads a header.
    #[inline]
    pub fn parse(h: &[u8; HEADER_LEN]) -> Result<Header, WireError> {
        let kind = Kind::from_wire(h[0]).ok_or(WireError::Header("unknown kind"))?;
        if h[1] != 0 || h[6..8] != [0; 2] || h[20..24] != [0; 4] {
            return Err(WireError::Header("a reserved field is not zero"));
        }
        Ok(Header {
            kind,
            method_len: h[2],
            depth: h[3],
            channel: u16::from_be_bytes([h[4], h[5]]),
            correlation: u64::from_be_bytes([h[8], h[9], h[10], h[11], h[12], h[13], h[14], h[15]]),
            expiry_ms: u32::from_be_bytes([h[16], h[17], h[18], h[19]]),
        })
    }
}

/// The payload of an error record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ErrorBody<'a> {
    /// The application's own number; 0 if it has none.
    pub code: u16,
    /// What to show to a person.
    pub sentence: Cow<'a, str>,
}

impl ErrorBody<'_> {
    /// The payload for an error record. A longer sentence is cut at a character.
    pub fn encode(code: u16, sentence: &str) -> Bytes {
        let sentence = cut(sentence, SENTENCE_MAX);
        let mut out = Vec::with_capacity(2 + sentence.len());
        out.extend_from_slice(&code.to_be_bytes());
        out.extend_from_slice(sentence.as_bytes());
        Bytes::from(out)
    }

    /// Reads an error record's payload. A sentence that is not UTF-8 is shown as far as it is.
    pub fn parse(payload: &[u8]) -> ErrorBody<'_> {
        match payload {
            [a, b, sentence @ ..] => {
                ErrorBody { code: u16::from_be_bytes([*a, *b]), sentence: String::from_utf8_lossy(sentence) }
            }
            _ => ErrorBody { code: 0, sentence: Cow::Borrowed("") },
        }
    }
}

/// The largest cut of `text` that is at most `max` bytes long and ends at a character.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: [u8; HEADER_LEN] = [
        2, 0, 6, 1, 0x01, 0x02, 0, 0, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0xA1, 0xA2, 0xA3, 0xA4, 0, 0, 0,
        0,
    ];

    fn golden() -> Header {
        Header {
            kind: Kind::Request,
            method_len: 6,
            depth: 1,
            channel: 0x0102,
            correlation: 0x1112_1314_1516_1718,
            expiry_ms: 0xA1A2_A3A4,
        }
    }

    #[test]
    fn golden_bytes() {
        assert_eq!(golden().to_bytes(), GOLDEN);
        assert_eq!(Header::parse(&GOLDEN).unwrap(), golden());
    }

    #[test]
    fn each_bit_of_a_header_means_something_or_is_refused() {
        for bit in 0..HEADER_LEN * 8 {
            let mut bytes = GOLDEN;
            bytes[bit / 8] ^= 1 << (bit % 8);
            let reserved = matches!(bit / 8, 1 | 6 | 7 | 20..);
            match Header::parse(&bytes) {
                Ok(header) => {
                    assert!(!reserved, "bit {bit}");
                    assert_ne!(header, golden(), "bit {bit}");
                    assert_eq!(header.to_bytes(), bytes, "bit {bit}");
                }
                Err(_) => assert!(reserved || bit / 8 == 0, "bit {bit}"),
            }
        }
    }

    #[test]
    fn sentences_are_cut_at_a_character() {
        let body = ErrorBody::encode(7, &"é".repeat(600));
        assert_eq!(body.len(), 2 + SENTENCE_MAX);
        assert_eq!(ErrorBody::parse(&body), ErrorBody { code: 7, sentence: "é".repeat(512).into() });
        let body = ErrorBody::encode(7, &format!("x{}", "é".repeat(600)));
        assert_eq!(body.len(), 2 + SENTENCE_MAX - 1);
        assert_eq!(ErrorBody::parse(b"\0"), ErrorBody { code: 0, sentence: "".into() });
        assert_eq!(ErrorBody::parse(b"\x01\x02a\xff").sentence, "a\u{fffd}");
    }
}
