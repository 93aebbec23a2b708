//! Length-prefixed frames of end clients over plain TCP.
//!
//! ```text
//!  0        2                 6                 6 + h             6 + h + b
//!  | h: u16 | b: u32          | header, h bytes | body, b bytes   |        big endian
//! ```
//!
//! Either part may be empty. The limit is of header and body together: the prefix is not counted. It is
//! looked at when the sixth byte of the prefix is here, before anything is allocated. The decoder owns
//! the begun prefix and the one frame in assembly; everything else stays with the caller:
//!
//! ```text
//!  take_prefix    spends what belongs to the prefix   -> Some(len) once it is whole and within the limit
//!  whole          the frame, if all of it lies in the input
//!  begin          into assembly, once the frame is admitted
//!  take, space, filled                                -> the frame when its last byte is here
//! ```

use super::assembly::Partial;
use super::error::WireError;

/// Bytes in front of a frame's header.
pub const PREFIX_LEN: usize = 6;

/// The most bytes of a frame's header.
pub const STREAM_HEADER_MAX: usize = u16::MAX as usize;

/// What stands in front of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    /// Length of the header.
    pub header: u16,
    /// Length of the body.
    pub body: u32,
}

impl Prefix {
    /// Of a frame with these parts; `None` if a part is longer than the layout can say.
    pub fn of(header: usize, body: usize) -> Option<Prefix> {
        Some(Prefix { header: header.try_into().ok()?, body: body.try_into().ok()? })
    }

    /// As it is written.
    pub fn to_bytes(self) -> [u8; PREFIX_LEN] {
        let (h, b) = (self.header.to_be_bytes(), self.body.to_be_bytes());
        [h[0], h[1], b[0], b[1], b[2], b[3]]
    }

    /// As it was read.
    pub fn from_bytes(bytes: [u8; PREFIX_LEN]) -> Prefix {
        let [h0, h1, b0, b1, b2, b3] = bytes;
        Prefix { header: u16::from_be_bytes([h0, h1]), body: u32::from_be_bytes([b0, b1, b2, b3]) }
    }

    /// Header and body together.
    pub fn frame_len(self) -> u64 {
        u64::from(self.header) + u64::from(self.body)
    }
}

/// Appends prefix and header; a body of `body` bytes must follow. Parts that are longer than the layout
/// can say were refused when the frame was made.
pub fn encode_head(header: &[u8], body: usize, out: &mut Vec<u8>) {
    let prefix = Prefix::of(header.len(), body);
    debug_assert!(prefix.is_some(), "a header of {} and a body of {body} bytes", header.len());
    out.extend_from_slice(&prefix.unwrap_or(Prefix { header: 0, body: 0 }).to_bytes());
    out.extend_from_slice(header);
}

/// A frame that has come, header and body behind each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Whole<B> {
    /// Length of the header.
    pub header: u16,
    /// Header and body.
    pub bytes: B,
}

#[derive(Debug)]
enum State {
    Prefix,
    /// The prefix is whole and within the limit; the frame was not begun, because it may have to wait.
    Announced(Prefix),
    Assembly(Prefix, Partial),
}

/// Reads the frames of one connection, from pieces of any size.
#[derive(Debug)]
pub struct FrameDecoder {
    max: u64,
    state: State,
    prefix: [u8; PREFIX_LEN],
    have: u8,
}

impl FrameDecoder {
    /// At the beginning of a connection whose frames have at most `max` bytes.
    pub fn new(max: u64) -> Self {
        FrameDecoder { max, state: State::Prefix, prefix: [0; PREFIX_LEN], have: 0 }
    }

    /// Spends what `input` has of the next prefix. Says how much that was, and the length of the
    /// frame (header and body) if its prefix is whole; asked again before [`FrameDecoder::begin`] it
    /// spends nothing and says the same. An error ends the connection.
    pub fn take_prefix(&mut self, input: &[u8]) -> Result<(usize, Option<u64>), WireError> {
        match &self.state {
            State::Announced(prefix) => return Ok((0, Some(prefix.frame_len()))),
            State::Assembly(..) => return Ok((0, None)),
            State::Prefix => {}
        }
        let have = usize::from(self.have);
        let n = input.len().min(PREFIX_LEN - have);
        self.prefix[have..have + n].copy_from_slice(&input[..n]);
        self.have += n as u8;
        if usize::from(self.have) < PREFIX_LEN {
            return Ok((n, None));
        }
        let prefix = Prefix::from_bytes(self.prefix);
        let size = prefix.frame_len();
        if size > self.max && !cfg!(afflux_mutation = "stream_limit_ignored") {
            return Err(WireError::TooLarge { what: "a frame", size, max: self.max });
        }
        self.have = 0;
        self.state = State::Announced(prefix);
        Ok((n, Some(size)))
    }

    /// The announced frame, if all of it is at the head of `input`; it is spent then. Nothing is copied.
    pub fn whole<'a>(&mut self, input: &'a [u8]) -> Option<Whole<&'a [u8]>> {
        let State::Announced(prefix) = self.state else { return None };
        let len = usize::try_from(prefix.frame_len()).ok()?;
        let bytes = input.get(..len)?;
        self.state = State::Prefix;
        Some(Whole { header: prefix.header, bytes })
    }

    /// Begins the announced frame: its bytes will come in pieces.
    pub fn begin(&mut self) {
        if let State::Announced(prefix) = self.state {
            let mut partial = Partial::default();
            partial.begin(&[], prefix.frame_len() as usize);
            self.state = State::Assembly(prefix, partial);
        }
    }

    /// Takes what `input` has of the frame in assembly: how much that was.
    pub fn take(&mut self, input: &[u8]) -> usize {
        match &mut self.state {
            State::Assembly(_, partial) => partial.take(input),
            _ => 0,
        }
    }

    /// Room for reading at most `max` bytes of the frame in assembly where they will stay; `None` if what is
    /// missing is not worth a read of its own.
    pub fn space(&mut self, max: usize) -> Option<&mut [u8]> {
        match &mut self.state {
            State::Assembly(_, partial) => partial.space(max),
            _ => None,
        }
    }

    /// So many bytes were read into [`FrameDecoder::space`].
    pub fn filled(&mut self, n: usize) {
        if let State::Assembly(_, partial) = &mut self.state {
            partial.advance(n);
        }
    }

    /// The frame in assembly, if its last byte is here.
    pub fn finish(&mut self) -> Option<Whole<Vec<u8>>> {
        match std::mem::replace(&mut self.state, State::Prefix) {
            State::Assembly(prefix, partial) if partial.is_full() => {
                Some(Whole { header: prefix.header, bytes: partial.into_bytes() })
            }
            other => {
                self.state = other;
                None
            }
        }
    }

    /// A frame is in assembly.
    pub fn is_assembling(&self) -> bool {
        matches!(self.state, State::Assembly(..))
    }

    /// The connection is in the middle of a frame or of its prefix: an end here cuts it off.
    pub fn is_within(&self) -> bool {
        self.have > 0 || !matches!(self.state, State::Prefix)
    }

    /// Memory that it owns: what came of the frame in assembly and one step of growth.
    pub fn capacity(&self) -> usize {
        match &self.state {
            State::Assembly(_, partial) => partial.capacity(),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::assembly::PAGE;
    use super::*;

    fn frame(header: &[u8], body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode_head(header, body.len(), &mut out);
        out.extend_from_slice(body);
        out
    }

    /// Feeds chunks as a connection does.
    fn feed(decoder: &mut FrameDecoder, input: &[u8], out: &mut Vec<Whole<Vec<u8>>>) -> Result<(), WireError> {
        let mut rest = input;
        loop {
            if decoder.is_assembling() {
                rest = &rest[decoder.take(rest)..];
                match decoder.finish() {
                    Some(whole) => out.push(whole),
                    None => return Ok(()),
                }
                continue;
            }
            let (n, len) = decoder.take_prefix(rest)?;
            rest = &rest[n..];
            if len.is_none() {
                return Ok(());
            }
            match decoder.whole(rest) {
                Some(Whole { header, bytes }) => {
                    rest = &rest[bytes.len()..];
                    out.push(Whole { header, bytes: bytes.to_vec() });
                }
                None => decoder.begin(),
            }
        }
    }

    #[test]
    fn the_layout_byte_for_byte() {
        assert_eq!(frame(b"", b""), [0, 0, 0, 0, 0, 0]);
        assert_eq!(frame(b"\x07", b"hi"), [0, 1, 0, 0, 0, 2, 7, b'h', b'i']);
        let long = frame(&[9; 0x0102], &[8; 0x01_02_03]);
        assert_eq!(long[..PREFIX_LEN], [0x01, 0x02, 0x00, 0x01, 0x02, 0x03]);
        assert_eq!(long.len(), PREFIX_LEN + 0x0102 + 0x01_02_03);
        assert_eq!(Prefix::of(STREAM_HEADER_MAX, 0).map(Prefix::frame_len), Some(65_535));
        assert_eq!(Prefix::of(STREAM_HEADER_MAX + 1, 0), None);
        let most = Prefix { header: u16::MAX, body: u32::MAX };
        assert_eq!(Prefix::from_bytes(most.to_bytes()), most);
        assert_eq!(most.frame_len(), 4_295_032_830);
    }

    #[test]
    fn every_cut_in_two_gives_the_same_frames() {
        let frames: [(&[u8], &[u8]); 5] = [(b"", b""), (b"h", b""), (b"", b"body"), (b"header", b"b"), (b"", b"")];
        let bytes: Vec<u8> = frames.iter().flat_map(|(h, b)| frame(h, b)).collect();
        let expected: Vec<_> =
            frames.iter().map(|(h, b)| Whole { header: h.len() as u16, bytes: [*h, *b].concat() }).collect();
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let (mut decoder, mut out) = (FrameDecoder::new(100), Vec::new());
                for part in [&bytes[..first], &bytes[first..second], &bytes[second..]] {
                    feed(&mut decoder, part, &mut out).unwrap();
                }
                assert_eq!(out, expected, "cut at {first} and {second}");
                assert!(!decoder.is_within());
            }
        }
    }

    #[test]
    fn the_limit_is_looked_at_before_the_first_byte_behind_the_prefix() {
        for (header, body, good) in [(0, 100, true), (40, 60, true), (40, 61, false), (101, 0, false)] {
            let mut decoder = FrameDecoder::new(100);
            let prefix = Prefix { header, body }.to_bytes();
            let taken = decoder.take_prefix(&prefix);
            let size = u64::from(header) + u64::from(body);
            if good {
                assert_eq!(taken, Ok((PREFIX_LEN, Some(size))));
            } else {
                assert_eq!(taken, Err(WireError::TooLarge { what: "a frame", size, max: 100 }));
            }
            assert_eq!(decoder.capacity(), 0);
        }
        let mut decoder = FrameDecoder::new(u64::MAX);
        assert!(decoder.take_prefix(b"GET / HTTP/1.1").is_ok(), "without a limit ASCII is a length like any other");
        assert!(FrameDecoder::new(1 << 16).take_prefix(b"GET / HTTP/1.1").is_err());
    }

    #[test]
    fn an_announced_frame_waits_without_memory_and_grows_with_what_came() {
        let mut decoder = FrameDecoder::new(1 << 20);
        let body = vec![b'x'; 500_000];
        let bytes = frame(b"", &body);
        let (n, len) = decoder.take_prefix(&bytes).unwrap();
        assert_eq!((n, len, decoder.take_prefix(&bytes[n..])), (6, Some(500_000), Ok((0, Some(500_000)))));
        assert_eq!((decoder.whole(&bytes[n..1000]), decoder.capacity()), (None, 0));
        decoder.begin();
        let mut came = decoder.take(&bytes[n..1000]);
        while came < 400_000 {
            let space = decoder.space(64 << 10).unwrap();
            let k = space.len();
            space.fill(b'x');
            decoder.filled(k);
            came += k;
            assert!(decoder.capacity() <= came + PAGE.max(came / 8));
        }
        assert!(decoder.finish().is_none() && decoder.is_within());
        assert_eq!(decoder.take(&body[came..]), body.len() - came);
        assert_eq!(decoder.finish(), Some(Whole { header: 0, bytes: body }));
    }
}
