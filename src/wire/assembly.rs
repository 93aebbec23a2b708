//! The record that is not whole yet: the only memory that a link owns between two reads.
//!
//! Invariant, whatever a peer announces: `filled <= capacity <= min(want, filled + max(4 KiB, filled / 8))`.
//! Growing by an eighth keeps the copying of a growing buffer linear where the allocator cannot
//! grow it in place. When the record is whole, the buffer is exactly as large as it.

/// The least that a buffer grows by, and the least that is worth a read of its own.
pub const PAGE: usize = 4096;

/// How far a record in assembly has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Assembly {
    /// Bytes that are here.
    pub have: usize,
    /// Bytes that are needed for what was announced so far. A stock message may announce further
    /// frames when this is reached.
    pub want: usize,
    /// What [`super::decode::Decoder::peek`] said of the record before it began; 0 for a command
    /// and for a record that is thrown away.
    pub charge: u64,
}

/// Bytes of frames that were begun.
#[derive(Default, Debug)]
pub(crate) struct Partial {
    // Bytes from `filled` on are zeros that a read may replace.
    buf: Vec<u8>,
    filled: usize,
    want: usize,
    // The bytes are counted and not kept.
    hollow: bool,
}

impl Partial {
    /// Begins a frame whose body of `len` bytes was found to be within its limit.
    pub(crate) fn begin(&mut self, head: &[u8], len: usize) {
        debug_assert!(self.is_full());
        self.want += head.len();
        self.take(head);
        self.want += len;
    }

    /// Takes of `input` what still belongs to the frames that were begun.
    pub(crate) fn take(&mut self, input: &[u8]) -> usize {
        let n = input.len().min(self.want - self.filled);
        if n > 0 && !self.hollow {
            self.grow(n);
            self.buf.truncate(self.filled);
            self.buf.extend_from_slice(&input[..n]);
        }
        self.filled += n;
        n
    }

    /// Room for a read of at most `max` bytes that leads past no frame's end; `None` if what is
    /// missing is not worth a read of its own.
    pub(crate) fn space(&mut self, max: usize) -> Option<&mut [u8]> {
        let missing = self.want - self.filled;
        if missing < PAGE || max == 0 || self.hollow {
            return None;
        }
        let n = missing.min(max).min(slack(self.filled));
        self.grow(n);
        let end = self.filled + n;
        if self.buf.len() < end {
            self.buf.resize(end, 0);
        }
        Some(&mut self.buf[self.filled..end])
    }

    /// Says that a read filled the first `n` bytes of the room that [`Partial::space`] gave.
    pub(crate) fn advance(&mut self, n: usize) {
        if !self.hollow {
            self.filled = self.filled.saturating_add(n).min(self.want).min(self.buf.len());
        }
    }

    /// Gives the memory back and keeps nothing of what comes.
    pub(crate) fn hollow_out(&mut self) {
        self.buf = Vec::new();
        self.hollow = true;
    }

    pub(crate) fn is_hollow(&self) -> bool {
        self.hollow
    }

    /// Whether all frames that were begun are here to their end.
    pub(crate) fn is_full(&self) -> bool {
        self.filled == self.want
    }

    pub(crate) fn have(&self) -> usize {
        self.filled
    }

    pub(crate) fn want(&self) -> usize {
        self.want
    }

    pub(crate) fn capacity(&self) -> usize {
        self.buf.capacity()
    }

    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        self.buf.truncate(self.filled);
        self.buf
    }

    /// Makes room for `n` more bytes, which have come or are about to be read.
    fn grow(&mut self, n: usize) {
        let need = self.filled + n;
        if self.buf.capacity() < need {
            let target = if cfg!(afflux_mutation = "announced_allocated") {
                self.want
            } else {
                need.max(self.filled + slack(self.filled)).min(self.want)
            };
            self.buf.reserve_exact(target - self.buf.len());
        }
    }
}

/// How much more than `filled` bytes may be allocated.
fn slack(filled: usize) -> usize {
    PAGE.max(filled / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(p: &Partial) {
        assert!(p.capacity() <= p.want().min(p.have() + slack(p.have())), "{} {}", p.capacity(), p.have());
    }

    #[test]
    fn grows_with_what_came_and_ends_exact() {
        for step in [1, 7, 4096, 10_000, 300_000] {
            let body = vec![b'x'; if step == 1 { 20_000 } else { 1_000_000 }];
            let mut p = Partial::default();
            p.begin(b"head", body.len());
            for chunk in body.chunks(step) {
                assert_eq!(p.take(chunk), chunk.len());
                check(&p);
            }
            assert!(p.is_full());
            assert_eq!(p.take(b"next"), 0);
            assert_eq!((p.have(), p.capacity()), (body.len() + 4, body.len() + 4));
            assert_eq!(p.into_bytes()[4..], body);
        }
    }

    #[test]
    fn direct_reads_grow_in_the_same_steps() {
        let mut p = Partial::default();
        p.begin(b"", 1_000_000);
        let mut turn = 0u8;
        while let Some(space) = p.space(64 * 1024) {
            let n = space.len().div_ceil(2);
            space[..n].fill(turn);
            p.advance(n);
            check(&p);
            turn = turn.wrapping_add(1);
        }
        let rest = p.want() - p.have();
        assert!(rest < PAGE);
        assert_eq!(p.take(&vec![9; rest + 1]), rest);
        assert!(p.is_full());
        check(&p);
        assert!(turn > 20, "{turn} reads");
    }

    #[test]
    fn a_read_never_leads_past_the_frame() {
        let mut p = Partial::default();
        p.begin(b"hd", PAGE);
        assert_eq!(p.space(1 << 20).unwrap().len(), PAGE);
        p.advance(usize::MAX);
        assert!(p.is_full());
        assert_eq!(p.space(1 << 20), None);
    }
}
