//! What one lane still has to write, and what becomes of it.
//!
//! Owns, from [`Egress::push`] until the last byte is reported by [`Egress::written`]: each
//! record's bytes, its charge, and what its owner must remember of it besides (`R`). Heads and
//! small payloads are copied into one run of bytes; large payloads are kept and written from where
//! they are.
//!
//! ```text
//!   record      begun                 not begun
//!             |▓▓▓▓▓▓▓░░░░░|░░░░░░░░░░░░░|░░░░░░░░|        ▓ written   ░ pending
//!                     ^    ^
//!               written    the next boundary: waiting commands go here, in front of all that is not begun
//! ```
//!
//! Invariants: `front_written < length of the front record`; at most the front record is begun;
//! neighbours that are alike are one run; commands begun are finished before anything else; pending bytes =
//! staged + large payloads + commands. When full: the queue itself has no limit, its user asks [`Egress::room`] before each
//! push and leaves the record where it is accounted; commands have [`COMMANDS_MAX`], above which a
//! push is refused. Empty, it owns no memory.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

use super::staging::Staging;

/// Payloads up to this size are copied behind their head. One more slice costs the kernel about as
/// much as copying a few KiB, and a copy frees the caller's buffer at once; above, copying costs
/// more than it saves.
pub const COPY_MAX: usize = 8 << 10;

/// The most bytes of commands that may wait: two of the largest. States that are told by commands
/// are told again if they could not be, so a refusal delays and loses nothing.
pub const COMMANDS_MAX: usize = 128 << 10;

/// Every head of a native record fits; a longer one (a stock peer's envelope) makes its chunk grow.
const HEAD_ROOM: usize = 320;

/// How much may be staged at a time. Records beyond it stay in the target's queue, where they are
/// accounted and can still be handed to another link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchLimit {
    /// Records.
    pub items: usize,
    /// Bytes on the wire.
    pub bytes: usize,
}

/// What precedes a payload.
pub trait Preamble {
    /// Appends it.
    fn write(self, out: &mut Vec<u8>);
}

impl<F: FnOnce(&mut Vec<u8>)> Preamble for F {
    #[inline(always)]
    fn write(self, out: &mut Vec<u8>) {
        self(out);
    }
}

/// The send queue of one lane. `R` is what its owner remembers of a record that is not yet written, besides
/// its bytes.
#[derive(Debug)]
pub struct Egress<R> {
    runs: Runs<R>,
    /// Of all runs.
    records: usize,
    /// Bytes of the front record that are out.
    front_written: usize,
    staging: Staging,
    large: VecDeque<Large>,
    /// Staged bytes behind the last large payload.
    trailing: usize,
    /// Bytes of records that are not out.
    pending: usize,
    commands: Vec<u8>,
    commands_written: usize,
}

/// Neighbours of which the same is known. Small records to one channel mostly have one length, so that a full lane
/// is one run and costs nothing by the record.
#[derive(Clone, Copy, Debug)]
struct Run<R> {
    keep: R,
    charge: u64,
    /// Of each: bytes in the staging, then bytes of a large payload.
    staged: usize,
    large: usize,
    /// At least one.
    records: usize,
}

impl<R> Run<R> {
    /// Of each record.
    #[inline(always)]
    fn len(&self) -> usize {
        self.staged + self.large
    }
}

/// Runs in order. The last lies here itself: a lane that sends one record now and then allocates nothing for it.
#[derive(Debug)]
struct Runs<R> {
    earlier: VecDeque<Run<R>>,
    last: Option<Run<R>>,
}

impl<R> Runs<R> {
    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    #[inline(always)]
    fn push(&mut self, run: Run<R>) {
        if let Some(earlier) = self.last.replace(run) {
            self.earlier.push_back(earlier);
        }
    }

    #[inline(always)]
    fn front(&self) -> Option<&Run<R>> {
        self.earlier.front().or(self.last.as_ref())
    }

    #[inline(always)]
    fn front_mut(&mut self) -> Option<&mut Run<R>> {
        self.earlier.front_mut().or(self.last.as_mut())
    }

    #[inline(always)]
    fn pop_front(&mut self) {
        if self.earlier.pop_front().is_none() {
            self.last = None;
        }
    }
}

/// A payload that is written from where it is, and the staged bytes that go out before it.
#[derive(Debug)]
struct Large {
    after: usize,
    bytes: Bytes,
}

impl<R: Copy + PartialEq> Default for Egress<R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R: Copy + PartialEq> Egress<R> {
    /// An empty queue; allocates nothing.
    pub fn new() -> Self {
        Egress {
            runs: Runs { earlier: VecDeque::new(), last: None },
            records: 0,
            front_written: 0,
            staging: Staging::default(),
            large: VecDeque::new(),
            trailing: 0,
            pending: 0,
            commands: Vec::new(),
            commands_written: 0,
        }
    }

    /// Queues a record: `head` appends what precedes its payload (at least one byte). `keep` and `charge` are
    /// reported back with it. Ask [`Egress::room`] first: nothing is refused here.
    #[inline(always)]
    pub fn push(&mut self, keep: R, charge: u64, head: impl Preamble, payload: &Bytes) {
        let kept = payload.len() > COPY_MAX;
        let staged = self.stage(head, if kept { &[] } else { payload }, &[]);
        if kept {
            self.enter_kept(keep, charge, staged, payload.clone());
        } else {
            self.enter(keep, charge, staged, 0);
        }
        self.check();
    }

    /// The same of a small payload in two pieces.
    #[inline(always)]
    pub fn push_copied(&mut self, keep: R, charge: u64, head: impl Preamble, first: &[u8], rest: &[u8]) {
        let staged = self.stage(head, first, rest);
        self.enter(keep, charge, staged, 0);
        self.check();
    }

    #[inline(always)]
    fn stage(&mut self, head: impl Preamble, first: &[u8], rest: &[u8]) -> usize {
        let out = self.staging.end(HEAD_ROOM + first.len() + rest.len());
        let before = out.len();
        head.write(out);
        out.extend_from_slice(first);
        if !rest.is_empty() {
            out.extend_from_slice(rest);
        }
        let staged = out.len() - before;
        self.trailing += staged;
        staged
    }

    /// A payload that is not empty and follows what was just staged.
    #[inline(never)]
    fn enter_kept(&mut self, keep: R, charge: u64, staged: usize, payload: Bytes) {
        let large = payload.len();
        self.large.push_back(Large { after: std::mem::take(&mut self.trailing), bytes: payload });
        self.enter(keep, charge, staged, large);
    }

    #[inline(always)]
    fn enter(&mut self, keep: R, charge: u64, staged: usize, large: usize) {
        debug_assert!(staged > 0, "a record without a byte would never be finished");
        self.pending += staged + large;
        self.records += 1;
        match &mut self.runs.last {
            Some(last) if (last.keep, last.charge, last.staged, last.large) == (keep, charge, staged, large) => {
                last.records += 1;
            }
            _ => self.runs.push(Run { keep, charge, staged, large, records: 1 }),
        }
    }

    /// Queues whole command frames. They go out at the next record boundary, in front of records
    /// not begun, carry no charge and are reported to nobody. False: too many wait already, and
    /// nothing was queued.
    #[must_use = "a command that was refused has to be said again later"]
    pub fn push_raw(&mut self, frames: &[u8]) -> bool {
        let waiting = self.commands.len() - self.commands_written;
        if waiting > 0 && waiting + frames.len() > COMMANDS_MAX {
            return false;
        }
        self.commands.extend_from_slice(frames);
        true
    }

    /// What is to be written, if it lies in one piece and nothing has to be gathered.
    #[inline]
    pub fn piece(&self) -> Option<&[u8]> {
        if self.large.is_empty() && self.commands.is_empty() { self.staging.only() } else { None }
    }

    /// Fills `out` with what is to be written next, in order, and says how many slices those are:
    /// 0 if there is nothing. Tell [`Egress::written`] how far the write came before anything else
    /// is queued, or a command may be taken for written in the middle of a record.
    pub fn slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        let mut gather = Gather { out, used: 0, commands: &self.commands[self.commands_written..], before: 0 };
        if self.front_written > 0 {
            gather.before = self.runs.front().map_or(0, |front| front.len() - self.front_written);
        }
        let mut cursor = self.staging.start();
        let runs = self.large.iter().map(|large| (large.after, &large.bytes[..]));
        for (mut staged, payload) in runs.chain([(self.trailing, &[][..])]) {
            while staged > 0 && !gather.is_full() {
                let piece = self.staging.piece(&mut cursor, staged);
                staged -= piece.len();
                gather.add(piece);
            }
            if gather.is_full() {
                return gather.used;
            }
            gather.add(payload);
        }
        gather.add_commands();
        gather.used
    }

    /// The first `n` bytes of what [`Egress::slices`] showed are out. `done` is told of the records whose last byte
    /// was among them, in order: what was kept of each, its charge, and how many in a row are alike.
    #[inline]
    pub fn written(&mut self, n: usize, mut done: impl FnMut(R, u64, usize)) {
        // Mostly that is everything.
        if n == self.pending && self.commands.is_empty() {
            for run in self.runs.earlier.iter().chain(&self.runs.last) {
                done(run.keep, run.charge, run.records);
            }
            (self.records, self.front_written, self.trailing, self.pending) = (0, 0, 0, 0);
            self.rest();
            return self.check();
        }
        let mut left = n;
        let mut of_records = 0;
        while left > 0 {
            if self.front_written == 0 && !self.commands.is_empty() {
                let step = left.min(self.commands.len() - self.commands_written);
                self.commands_written += step;
                left -= step;
                if self.commands_written == self.commands.len() {
                    self.commands = Vec::new();
                    self.commands_written = 0;
                }
                continue;
            }
            let Some(front) = self.runs.front_mut() else {
                debug_assert!(false, "{left} bytes more than there were");
                break;
            };
            // A command goes in front of the next record.
            let most = if self.commands.is_empty() { front.records } else { 1 };
            let (len, reach) = (front.len(), self.front_written + left);
            let whole = if most == 1 { usize::from(reach >= len) } else { most.min(reach / len) };
            let step = if whole == most { whole * len - self.front_written } else { left };
            self.front_written = if whole == most { 0 } else { reach - whole * len };
            of_records += step;
            left -= step;
            if whole > 0 {
                done(front.keep, front.charge, whole);
            }
            front.records -= whole;
            self.records -= whole;
            if front.records == 0 {
                self.runs.pop_front();
            }
        }
        self.consume(of_records);
        if self.runs.is_empty() {
            self.rest();
        }
        self.check();
    }

    fn consume(&mut self, n: usize) {
        self.pending -= n;
        let mut left = n;
        while left > 0 {
            match self.large.front_mut() {
                Some(large) if large.after > 0 => {
                    let step = left.min(large.after);
                    self.staging.skip(step);
                    large.after -= step;
                    left -= step;
                }
                Some(large) => {
                    let step = left.min(large.bytes.len());
                    large.bytes.advance(step);
                    left -= step;
                    if large.bytes.is_empty() {
                        self.large.pop_front();
                    }
                }
                None => {
                    self.staging.skip(left);
                    self.trailing -= left;
                    left = 0;
                }
            }
        }
    }

    /// Gives back the memory of a queue without records.
    fn rest(&mut self) {
        self.runs.last = None;
        give_back(&mut self.runs.earlier);
        give_back(&mut self.large);
        self.staging.rest();
    }

    /// The link is gone: takes everything out. The record that was begun may have reached the peer or
    /// not and must not be sent again; those not begun come back with their bytes, in order. Commands are
    /// forgotten: they were about that link.
    pub fn detach(&mut self) -> Detached<R> {
        let mut gone = std::mem::take(self);
        let mut cursor = gone.staging.start();
        let mut begun = None;
        if gone.front_written > 0
            && !cfg!(afflux_mutation = "egress_resends_begun")
            && let Some(front) = gone.pop_front()
        {
            gone.staging.copy(&mut cursor, front.staged.saturating_sub(gone.front_written));
            if front.large > 0 {
                gone.large.pop_front();
            }
            begun = Some((front.keep, front.charge));
        }
        if cfg!(afflux_mutation = "egress_loses_unbegun")
            && let Some(lost) = gone.pop_front()
        {
            gone.staging.copy(&mut cursor, lost.staged);
        }
        let mut unbegun = Vec::with_capacity(gone.records);
        while let Some(record) = gone.pop_front() {
            let bytes = gone.staging.copy(&mut cursor, record.staged);
            let large = if record.large > 0 { gone.large.pop_front().map(|large| large.bytes) } else { None };
            unbegun.push(Unbegun { keep: record.keep, charge: record.charge, bytes, large });
        }
        Detached { begun, unbegun }
    }

    /// The front record, out of its run; what is written of it is not looked at.
    fn pop_front(&mut self) -> Option<Run<R>> {
        let front = self.runs.front_mut()?;
        let record = Run { records: 1, ..*front };
        front.records -= 1;
        self.records -= 1;
        if front.records == 0 {
            self.runs.pop_front();
        }
        Some(record)
    }

    /// Takes out the records of which nothing was written and that `goes` does not let go on. What was
    /// begun, commands and the order stay. It copies everything that is staged: for when there is a reason.
    #[cold]
    pub fn retain_unbegun(&mut self, mut goes: impl FnMut(&Unbegun<R>) -> bool) {
        let mut old = std::mem::take(self);
        (self.commands, self.commands_written) = (std::mem::take(&mut old.commands), old.commands_written);
        let mut cursor = old.staging.start();
        if old.front_written > 0
            && let Some(front) = old.pop_front()
        {
            let rest = old.staging.copy(&mut cursor, front.staged.saturating_sub(old.front_written));
            self.staging.end(rest.len()).extend_from_slice(&rest);
            self.trailing = rest.len();
            if front.large > 0
                && let Some(large) = old.large.pop_front()
            {
                self.large.push_back(Large { after: std::mem::take(&mut self.trailing), bytes: large.bytes });
            }
            self.front_written = old.front_written;
            self.enter(front.keep, front.charge, front.staged, front.large);
            self.pending -= old.front_written;
        }
        while let Some(record) = old.pop_front() {
            let bytes = old.staging.copy(&mut cursor, record.staged);
            let large = if record.large > 0 { old.large.pop_front().map(|large| large.bytes) } else { None };
            let staged = Unbegun { keep: record.keep, charge: record.charge, bytes, large };
            if goes(&staged) {
                let bytes = self.stage(|_: &mut Vec<u8>| {}, &staged.bytes, &[]);
                match staged.large {
                    Some(large) => self.enter_kept(staged.keep, staged.charge, bytes, large),
                    None => self.enter(staged.keep, staged.charge, bytes, 0),
                }
            }
        }
        self.check();
    }

    /// Nothing to write.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.commands.is_empty()
    }

    /// Bytes to write, commands included.
    pub fn pending_bytes(&self) -> usize {
        self.pending + self.commands.len() - self.commands_written
    }

    /// Records whose last byte is not out.
    pub fn staged_records(&self) -> usize {
        self.records
    }

    /// Bytes of the front record that are out, of how many; `None` between two records.
    pub fn begun(&self) -> Option<(usize, usize)> {
        (self.front_written > 0).then(|| self.runs.front().map(|run| (self.front_written, run.len()))).flatten()
    }

    /// Whether one more record may be staged: both bounds are not yet reached.
    #[inline]
    pub fn room(&self, limit: BatchLimit) -> bool {
        self.records < limit.items && self.pending < limit.bytes
    }

    /// Memory held for copies, for the ledger: 0 while there is nothing to write.
    pub fn staging_capacity(&self) -> usize {
        self.staging.capacity()
    }

    #[inline]
    fn check(&self) {
        debug_assert!(self.runs.front().map_or(self.front_written == 0, |run| self.front_written < run.len()));
        debug_assert_eq!(self.records, self.runs.earlier.iter().chain(&self.runs.last).map(|run| run.records).sum());
        debug_assert!(self.front_written == 0 || self.commands_written == 0);
        debug_assert!(self.commands_written < self.commands.len() || self.commands.is_empty());
        debug_assert_eq!(
            self.pending,
            self.staging.len() + self.large.iter().map(|large| large.bytes.len()).sum::<usize>()
        );
        debug_assert_eq!(self.pending == 0, self.runs.is_empty());
    }
}

/// The memory of an empty queue; mostly it has none.
#[inline(always)]
fn give_back<T>(queue: &mut VecDeque<T>) {
    if queue.capacity() > 0 {
        *queue = VecDeque::new();
    }
}

/// Collects slices, with the commands at the boundary that lies `before` bytes ahead.
struct Gather<'a, 'o> {
    out: &'o mut [IoSlice<'a>],
    used: usize,
    commands: &'a [u8],
    before: usize,
}

impl<'a> Gather<'a, '_> {
    fn is_full(&self) -> bool {
        self.used == self.out.len()
    }

    fn put(&mut self, slice: &'a [u8]) {
        if !slice.is_empty() && !self.is_full() {
            self.out[self.used] = IoSlice::new(slice);
            self.used += 1;
        }
    }

    fn add_commands(&mut self) {
        let commands = std::mem::take(&mut self.commands);
        self.put(commands);
    }

    fn add(&mut self, slice: &'a [u8]) {
        if self.commands.is_empty() || slice.len() < self.before {
            self.before = self.before.saturating_sub(slice.len());
            return self.put(slice);
        }
        let (first, rest) = slice.split_at(self.before);
        self.before = 0;
        self.put(first);
        self.add_commands();
        self.put(rest);
    }
}

/// What was in an [`Egress`] when its link was lost.
#[derive(Debug)]
pub struct Detached<R> {
    /// The record of which a part was written: lost on detach, never sent twice.
    pub begun: Option<(R, u64)>,
    /// Records of which nothing was written, oldest first.
    pub unbegun: Vec<Unbegun<R>>,
}

/// A record of which nothing was written.
#[derive(Debug)]
pub struct Unbegun<R> {
    /// What its owner remembers.
    pub keep: R,
    /// Its charge.
    pub charge: u64,
    /// Head and small payload, as they would have been written.
    pub bytes: Vec<u8>,
    /// A large payload.
    pub large: Option<Bytes>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(egress: &mut Egress<u32>, id: u32, head: &[u8], payload: Bytes) {
        egress.push(id, u64::from(id) * 10, |out: &mut Vec<u8>| out.extend_from_slice(head), &payload);
    }

    fn next_bytes<R: Copy + PartialEq>(egress: &Egress<R>, slices: usize) -> Vec<u8> {
        let mut out = vec![IoSlice::new(&[]); slices];
        let n = egress.slices(&mut out);
        out[..n].iter().flat_map(|s| s.to_vec()).collect()
    }

    fn done(egress: &mut Egress<u32>, n: usize) -> Vec<(u32, u64)> {
        let mut out = Vec::new();
        egress.written(n, |id, charge, records| out.extend(std::iter::repeat_n((id, charge), records)));
        out
    }

    #[test]
    fn small_records_leave_in_one_slice_and_are_reported_at_their_last_byte() {
        let mut egress = Egress::new();
        push(&mut egress, 1, b"<1>", Bytes::from_static(b"one"));
        push(&mut egress, 2, b"<2>", Bytes::new());
        let mut out = [IoSlice::new(&[]); 8];
        assert_eq!(egress.slices(&mut out), 1);
        assert_eq!(&*out[0], b"<1>one<2>");
        assert_eq!(done(&mut egress, 5), []);
        assert_eq!(egress.begun(), Some((5, 6)));
        assert_eq!(done(&mut egress, 1), [(1, 10)]);
        assert_eq!(egress.begun(), None);
        assert_eq!(done(&mut egress, 3), [(2, 20)]);
        assert!(egress.is_empty());
    }

    #[test]
    fn large_payloads_are_not_copied() {
        let mut egress = Egress::new();
        let payload = Bytes::from(vec![7; COPY_MAX + 1]);
        let at = payload.as_ptr();
        push(&mut egress, 1, b"<1>", payload);
        push(&mut egress, 2, b"<2>", Bytes::from(vec![8; COPY_MAX]));
        let mut out = [IoSlice::new(&[]); 8];
        assert_eq!(egress.slices(&mut out), 3);
        assert_eq!(out[1].as_ptr(), at);
        assert_eq!((out[0].len(), out[1].len(), out[2].len()), (3, COPY_MAX + 1, 3 + COPY_MAX));
    }

    #[test]
    fn a_command_waits_for_the_boundary_and_no_longer() {
        let mut egress = Egress::new();
        push(&mut egress, 1, b"<1>", Bytes::from_static(b"one"));
        push(&mut egress, 2, b"<2>", Bytes::from_static(b"two"));
        assert_eq!(done(&mut egress, 4), []);
        assert!(egress.push_raw(b"PING"));
        assert_eq!(next_bytes(&egress, 8), b"nePING<2>two");
        assert_eq!(next_bytes(&egress, 1), b"ne", "too few slices never reorder");
        assert_eq!(done(&mut egress, 4), [(1, 10)]);
        assert_eq!(next_bytes(&egress, 8), b"NG<2>two");
        assert!(egress.push_raw(b"PONG"));
        assert_eq!(next_bytes(&egress, 8), b"NGPONG<2>two");
        assert_eq!(egress.pending_bytes(), 12);
        assert_eq!(done(&mut egress, 12), [(2, 20)]);
        assert!(egress.is_empty());
    }

    #[test]
    fn commands_go_out_alone_and_have_a_bound() {
        let mut egress = Egress::<u32>::new();
        assert!(egress.push_raw(&[0; COMMANDS_MAX + 1]), "one of any size passes");
        assert!(!egress.push_raw(b"x"));
        assert!(!egress.is_empty());
        assert_eq!(done(&mut egress, COMMANDS_MAX), []);
        assert!(egress.push_raw(b"x"));
        assert_eq!(egress.pending_bytes(), 2);
        assert_eq!(done(&mut egress, 2), []);
        assert!(egress.is_empty());
    }

    #[test]
    fn detach_tells_the_begun_record_from_those_not_begun() {
        let mut egress = Egress::new();
        for id in 1..=3 {
            push(&mut egress, id, b"head", Bytes::from_static(b"payload"));
        }
        let large = vec![9; COPY_MAX + 1];
        push(&mut egress, 4, b"head", large.clone().into());
        assert!(egress.push_raw(b"PING"));
        assert_eq!(done(&mut egress, 4 + 11 + 1), [(1, 10)]);
        let Detached { begun, unbegun } = egress.detach();
        assert_eq!(begun, Some((2, 20)));
        assert_eq!(unbegun.len(), 2);
        assert_eq!((unbegun[0].keep, unbegun[0].charge, &unbegun[0].bytes[..]), (3, 30, &b"headpayload"[..]));
        assert_eq!(
            (unbegun[1].keep, &unbegun[1].bytes[..], unbegun[1].large.as_deref()),
            (4, &b"head"[..], Some(&large[..]))
        );
        assert!(egress.is_empty());
        assert_eq!((egress.pending_bytes(), egress.staging_capacity()), (0, 0));
    }

    #[test]
    fn a_record_behind_a_begun_command_is_not_begun() {
        let mut egress = Egress::new();
        push(&mut egress, 1, b"head", Bytes::from_static(b"payload"));
        assert!(egress.push_raw(b"PING"));
        assert_eq!(done(&mut egress, 2), []);
        let gone = egress.detach();
        assert!(gone.begun.is_none());
        assert_eq!(gone.unbegun.len(), 1);
    }

    #[test]
    fn records_that_are_alike_are_one_run_and_are_reported_one_by_one() {
        let mut egress = Egress::new();
        for id in [7, 7, 7, 8, 7] {
            push(&mut egress, id, b"<>", Bytes::from_static(b"1234"));
        }
        assert_eq!((egress.runs.earlier.len(), egress.staged_records()), (2, 5));
        assert_eq!(done(&mut egress, 6 + 1), [(7, 70)]);
        assert_eq!(egress.begun(), Some((1, 6)));
        // Within a run too a command goes in front of the next record.
        assert!(egress.push_raw(b"PING"));
        assert_eq!(next_bytes(&egress, 8), b">1234PING<>1234<>1234<>1234");
        assert_eq!(done(&mut egress, 5 + 4 + 6), [(7, 70), (7, 70)]);
        assert_eq!(done(&mut egress, 1), []);
        let Detached { begun, unbegun } = egress.detach();
        assert_eq!(begun, Some((8, 80)));
        assert_eq!(
            unbegun.iter().map(|record| (record.keep, &record.bytes[..])).collect::<Vec<_>>(),
            [(7, &b"<>1234"[..])]
        );
    }

    #[test]
    fn at_rest_it_owns_no_memory() {
        let mut egress = Egress::new();
        for id in 0..5000 {
            push(&mut egress, id, b"head", Bytes::from_static(&[1; 60]));
        }
        assert!(egress.staging_capacity() >= 5000 * 64);
        done(&mut egress, 5000 * 64 - 1);
        assert!(egress.staging_capacity() > 0);
        done(&mut egress, 1);
        assert_eq!((egress.staging_capacity(), egress.runs.earlier.capacity(), egress.large.capacity()), (0, 0, 0));
    }

    #[test]
    fn room_is_closed_by_whichever_bound_comes_first() {
        let mut egress = Egress::new();
        let limit = BatchLimit { items: 2, bytes: 100 };
        assert!(egress.room(limit));
        push(&mut egress, 1, b"h", Bytes::from_static(&[0; 98]));
        assert!(egress.room(limit));
        push(&mut egress, 2, b"h", Bytes::new());
        assert!(!egress.room(limit));
        assert!(egress.room(BatchLimit { items: 3, bytes: 101 }));
        assert!(!egress.room(BatchLimit { items: 3, bytes: 100 }));
    }

    #[test]
    fn an_envelope_longer_than_a_chunk_is_written_whole() {
        let mut egress = Egress::new();
        let head = vec![3; 100_000];
        push(&mut egress, 1, &head, Bytes::from_static(b"end"));
        assert_eq!(next_bytes(&egress, 8), [&head[..], b"end"].concat());
    }
}
