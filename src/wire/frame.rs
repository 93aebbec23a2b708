//! The frame: one flags byte, the length in one byte or in eight, the body.
//!
//! ```text
//!  bit   7 6 5 4 3     2         1       0
//!        must be 0   COMMAND   LONG    MORE     then u8 length, or u64 big-endian if LONG
//! ```
//!
//! LONG before a short body is accepted, because libzmq does so too; reserved bits and MORE on a
//! command are refused. Nothing here allocates: a head is looked at before its body has a place.

use super::error::WireError;

pub(crate) const MORE: u8 = 1;
pub(crate) const LONG: u8 = 2;
pub(crate) const COMMAND: u8 = 4;

/// The longest head of a frame.
pub const HEAD_MAX: usize = 9;

/// What stands in front of a frame's body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHead {
    /// Another frame of the same message follows.
    pub more: bool,
    /// A command, not a message.
    pub command: bool,
    /// How long the head itself is: 2 or 9.
    pub size: usize,
    /// The announced length of the body; not yet compared with any limit.
    pub len: u64,
}

impl FrameHead {
    /// Reads the head at the start of `input`; `None` while it is not complete. Flags are judged
    /// as soon as they are there.
    #[inline]
    pub fn parse(input: &[u8]) -> Result<Option<FrameHead>, WireError> {
        let Some(&flags) = input.first() else { return Ok(None) };
        if flags > (COMMAND | LONG | MORE) || flags & (COMMAND | MORE) == COMMAND | MORE {
            return Err(WireError::Flags(flags));
        }
        let (more, command) = (flags & MORE != 0, flags & COMMAND != 0);
        if flags & LONG == 0 {
            return Ok(input.get(1).map(|&len| FrameHead { more, command, size: 2, len: u64::from(len) }));
        }
        let Some(len) = input.get(1..9) else { return Ok(None) };
        let len = u64::from_be_bytes(len.try_into().expect("eight bytes"));
        Ok(Some(FrameHead { more, command, size: 9, len }))
    }

    /// The shortest head for a body of `len` bytes.
    #[inline]
    pub fn new(more: bool, command: bool, len: u64) -> FrameHead {
        FrameHead { more, command, size: head_len(len), len }
    }

    /// The head as bytes; the first [`FrameHead::size`] of them count.
    #[inline]
    pub fn to_bytes(self) -> [u8; HEAD_MAX] {
        let flags = if self.more { MORE } else { 0 } | if self.command { COMMAND } else { 0 };
        let mut out = [0; HEAD_MAX];
        if self.size == 2 {
            out[0] = flags;
            out[1] = self.len as u8;
        } else {
            out[0] = flags | LONG;
            out[1..].copy_from_slice(&self.len.to_be_bytes());
        }
        out
    }

    /// Appends the head.
    #[inline]
    pub fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_bytes()[..self.size]);
    }
}

/// The longest body whose length fits into one byte.
pub const SHORT_MAX: usize = 255;

/// How long the shortest head of a body of `len` bytes is.
#[inline]
pub fn head_len(len: u64) -> usize {
    if len <= SHORT_MAX as u64 { 2 } else { HEAD_MAX }
}

/// Appends a whole frame of a message.
#[inline]
pub fn write_frame(more: bool, body: &[u8], out: &mut Vec<u8>) {
    FrameHead::new(more, false, body.len() as u64).write(out);
    out.extend_from_slice(body);
}

/// The frames of a message that is known to be whole and valid: each body with its place.
#[derive(Clone, Debug)]
pub(crate) struct Frames<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// One frame of a whole message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FramePlace {
    /// Where the body begins.
    pub start: usize,
    /// Where the frame ends.
    pub end: usize,
    /// Whether another follows.
    pub more: bool,
}

impl<'a> Frames<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Frames { bytes, at: 0 }
    }
}

impl Iterator for Frames<'_> {
    type Item = FramePlace;

    #[inline]
    fn next(&mut self) -> Option<FramePlace> {
        let head = FrameHead::parse(&self.bytes[self.at..]).ok().flatten()?;
        let start = self.at + head.size;
        let end = usize::try_from(head.len).ok().and_then(|len| start.checked_add(len))?;
        if end > self.bytes.len() {
            return None;
        }
        self.at = end;
        Some(FramePlace { start, end, more: head.more })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flags_byte_is_judged_alone() {
        for flags in 0..=255u8 {
            let ok = matches!(flags, 0..=4 | 6);
            assert_eq!(FrameHead::parse(&[flags]).is_ok(), ok, "{flags:#x}");
            assert_eq!(FrameHead::parse(&[flags, 1, 0, 0, 0, 0, 0, 0, 0]).is_ok(), ok, "{flags:#x}");
        }
    }

    #[test]
    fn heads_round_trip_at_the_edges() {
        for len in [0, 1, 254, 255, 256, 65_535, 1 << 32, u64::MAX] {
            for (more, command) in [(false, false), (true, false), (false, true)] {
                let head = FrameHead::new(more, command, len);
                let bytes = head.to_bytes();
                assert_eq!(head.size, if len < 256 { 2 } else { 9 });
                assert_eq!(FrameHead::parse(&bytes[..head.size]).unwrap(), Some(head));
                for cut in 0..head.size {
                    assert_eq!(FrameHead::parse(&bytes[..cut]).unwrap(), None);
                }
            }
        }
    }

    #[test]
    fn long_form_of_a_short_body_is_accepted() {
        let head = FrameHead::parse(&[LONG, 0, 0, 0, 0, 0, 0, 0, 5]).unwrap().unwrap();
        assert_eq!((head.size, head.len, head.more, head.command), (9, 5, false, false));
    }

    #[test]
    fn frames_of_a_cut_message_end_early() {
        let mut bytes = Vec::new();
        write_frame(true, b"ab", &mut bytes);
        write_frame(false, b"", &mut bytes);
        let places: Vec<_> = Frames::new(&bytes).map(|f| (f.start, f.end, f.more)).collect();
        assert_eq!(places, [(2, 4, true), (6, 6, false)]);
        assert_eq!(Frames::new(&bytes[..5]).count(), 1);
        assert_eq!(Frames::new(&bytes[..3]).count(), 0);
    }
}
