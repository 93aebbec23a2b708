//! One waiting operation, one cell, one word: a send that waits for room, or a request from its
//! start to its end.
//!
//! ```text
//!            alloc          publish_waiting            claim                finish, finish_claimed        take
//!  Vacant(g) -----> Private(g) -----------> Waiting(g) -----> Claimed(g) ------------------------> Done(g) ----> Vacant(g+1)
//!      ^              |    |                    |                 ^                                   ^             ^
//!      '--- drop -----'    |                    '- finish, finish_waiting: payload back --------------'             |
//!                          '--- publish_claimed ------------------'                 detach: whoever finishes it --'
//! ```
//!
//! * Whoever wins the swap of the word decides: deadline, cancel, detach, reply, on whatever thread.
//!   An operation has exactly one end; everybody who comes later, or with an old generation, is told
//!   so and changes nothing.
//! * The payload is the cell's from publication until `claim` or the end, which gives it back inside
//!   the outcome.
//! * A thread is *inside* a cell (a flag of the word) for the few instructions in which it moves the
//!   payload or the outcome; others wait for it. Wakers are called and values dropped outside.
//! * Having a cell is having a place in every list, so lists can never be full. A place that still
//!   stands in a list is not used again: its entry is reported exactly once, by
//!   [`CellPool::pop`] or [`CellPool::prune`], even if the operation ended long ago.
//!
//! When the pool is exhausted [`CellPool::alloc`] says `None`, which the caller reports as a full
//! waiting room. Everything is allocated by [`CellPool::new`].

mod list;
mod segment;
#[cfg(test)]
mod tests;
mod word;

pub use list::CellList;

use crate::base::id::CellId;
use crate::base::time::Instant;
use crate::sync::primitive::{AtomicU64, Ordering, UnsafeCell, relax};
use list::{FreeList, Link, Linked, Links};
use segment::Segments;
use std::fmt;
use std::mem;
use std::ptr;
use std::task::Waker;
use std::time::Duration;
use word::{BUSY, HELD, IN_DONE, LAPSED, LINKS, SELF_TIMED, State, Word};

/// How much later than its deadline a sweep looks at a cell whose holder watches the time itself.
pub const SELF_TIMED_GRACE: Duration = Duration::from_millis(10);

/// Whom the end of an operation is told.
#[derive(Clone, Debug, Default)]
pub enum Notify {
    /// Nobody: the holder will look, or registers later.
    #[default]
    None,
    /// A future, or a parked thread.
    Waker(Waker),
    /// The done list with this number: the continuations of a shard.
    List(u16),
}

/// What is known of an operation besides its payload.
#[derive(Debug)]
pub struct Terms {
    /// When a sweep offers it for ending.
    pub deadline: Instant,
    /// When it began.
    pub since: Instant,
    /// Anything by which the caller finds what belongs to it, a target for example.
    pub tag: u64,
    /// Whom its end is told.
    pub notify: Notify,
    /// The holder is a thread that waits and watches the deadline itself; a sweep gives it
    /// [`SELF_TIMED_GRACE`] before it steps in.
    pub self_timed: bool,
}

/// What an id leads to, at the moment of the question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CellState {
    /// Holds its payload.
    Waiting,
    /// The payload is on its way.
    Claimed,
    /// Ended; the outcome was not taken yet.
    Done,
}

/// How many cells are in each of the published states.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CellCounts {
    /// Waiting for room.
    pub waiting: u32,
    /// On the wire, or being written.
    pub claimed: u32,
    /// Ended, the outcome not taken yet.
    pub done: u32,
}

/// A cell that was taken out of a list, with the tag that it had when it was there: the id is stale
/// if the operation has ended and its holder was faster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The operation.
    pub id: CellId,
    /// Its tag.
    pub tag: u64,
}

/// What a reply is measured by.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// As in [`Terms`].
    pub tag: u64,
    /// As in [`Terms`].
    pub deadline: Instant,
    /// As in [`Terms`].
    pub since: Instant,
}

enum Body<P, O> {
    Empty,
    Payload(P),
    Outcome(O),
}

impl<P, O> Body<P, O> {
    /// Becomes `full`. It was empty: so nothing is dropped, and nothing that large moved about.
    #[inline]
    fn fill(&mut self, full: Body<P, O>) {
        debug_assert!(matches!(self, Body::Empty), "nothing is put where something lies");
        mem::forget(mem::replace(self, full));
    }

    #[inline]
    fn take_payload(&mut self) -> Option<P> {
        self.take(|body| if let Body::Payload(payload) = body { Some(payload) } else { None })
    }

    #[inline]
    fn take_outcome(&mut self) -> Option<O> {
        self.take(|body| if let Body::Outcome(outcome) = body { Some(outcome) } else { None })
    }

    /// The whole content, if `content` says that it is of the right sort: taken from where it lies, because what holds
    /// either is as large as the larger one.
    #[inline(always)]
    fn take<T>(&mut self, content: impl FnOnce(&Self) -> Option<&T>) -> Option<T> {
        let content: *const T = content(self)?;
        // SAFETY: it lies there, and is neither dropped there nor read again: the next line writes over it.
        let taken = unsafe { ptr::read(content) };
        // SAFETY: what lay there has been moved out and is not to be dropped.
        unsafe { ptr::write(self, Body::Empty) };
        Some(taken)
    }
}

/// Starts on a cache line of its own; two lines if payload and outcome are small.
#[repr(align(64))]
struct Cell<P, O> {
    word: AtomicU64,
    deadline: AtomicU64,
    since: AtomicU64,
    tag: AtomicU64,
    links: Links,
    /// Both belong to whoever is inside, or to the private owner.
    body: UnsafeCell<Body<P, O>>,
    notify: UnsafeCell<Notify>,
}

struct Cells<P, O>(Box<[Cell<P, O>]>);

impl<P, O> Linked for Cells<P, O> {
    fn links(&self, index: u32) -> &Links {
        &self.0[index as usize].links
    }
}

impl<P, O> Cells<P, O> {
    fn at(&self, index: u32) -> &Cell<P, O> {
        &self.0[index as usize]
    }
}

/// A fixed number of cells with payloads `P` and outcomes `O`, shared by all threads of a host.
pub struct CellPool<P, O> {
    cells: Cells<P, O>,
    free: FreeList,
    segments: Segments,
    done: Box<[CellList]>,
    wake: Box<dyn Fn(u16) + Send + Sync>,
}

// SAFETY: payloads and outcomes are moved from thread to thread and never looked at by two at a
// time: `body` and `notify` are touched only by the thread that set BUSY in the word, or by the
// owner of the `Place` while the cell is private.
unsafe impl<P: Send, O: Send> Send for CellPool<P, O> {}
// SAFETY: as above; everything else in the pool is atomic or behind a lock.
unsafe impl<P: Send, O: Send> Sync for CellPool<P, O> {}

impl<P, O> fmt::Debug for CellPool<P, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CellPool").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}

impl<P, O> CellPool<P, O> {
    /// A pool of `capacity` cells and `lists` done lists. `wake` is called with the number of a done
    /// list that was empty and is not any more, outside of everything: it must make its owner look.
    pub fn new(capacity: u32, lists: u16, wake: impl Fn(u16) + Send + Sync + 'static) -> Self {
        assert!(capacity < u32::MAX, "the last index marks the end of a list");
        let cell = |_| Cell {
            word: AtomicU64::new(Word::new(0, State::Vacant, 0).0),
            deadline: AtomicU64::new(Instant::NEVER.0),
            since: AtomicU64::new(0),
            tag: AtomicU64::new(0),
            links: Links::new(),
            body: UnsafeCell::new(Body::Empty),
            notify: UnsafeCell::new(Notify::None),
        };
        let cells = Cells((0..capacity).map(cell).collect());
        CellPool {
            free: FreeList::full(&cells, capacity),
            cells,
            segments: Segments::new(capacity as usize),
            done: (0..lists).map(|_| CellList::new(Link::Done)).collect(),
            wake: Box::new(wake),
        }
    }

    /// How many operations there can be at once.
    pub fn capacity(&self) -> u32 {
        self.cells.0.len() as u32
    }

    /// A place for one operation, or `None` if all are in use.
    #[inline]
    pub fn alloc(&self) -> Option<Place<'_, P, O>> {
        let index = self.free.pop(&self.cells)?;
        let word = &self.cells.at(index).word;
        // Relaxed twice: a vacant place is nobody else's, and `publish` is what others see.
        let generation = Word(word.load(Ordering::Relaxed)).generation();
        word.store(Word::new(generation, State::Private, HELD).0, Ordering::Relaxed);
        Some(Place { pool: self, id: CellId { index, generation } })
    }

    /// Waiting to claimed: the payload leaves the cell, and from here on only the outcome of its
    /// journey ends the operation. `None`: the operation has ended, or was claimed before.
    pub fn claim(&self, id: CellId) -> Option<P> {
        let mut inside = self.enter(id, |word| word.is(State::Waiting))?;
        inside.after = inside.after.to(State::Claimed);
        inside.take_payload()
    }

    /// Looks at the payload of a waiting operation and may change it. `None`: it does not wait any
    /// more. Others wait while `look` runs, so it must be short and must not use the pool.
    pub fn with_waiting<R>(&self, id: CellId, look: impl FnOnce(&mut P) -> R) -> Option<R> {
        let mut inside = self.enter(id, |word| word.is(State::Waiting))?;
        inside.body(|body| match body {
            Body::Payload(payload) => Some(look(payload)),
            Body::Empty | Body::Outcome(_) => None,
        })
    }

    /// Gives a waiting or claimed operation another tag and puts it last in an inbox, in one step. `None`, and
    /// nothing done: it has ended. Otherwise its entry is reported whatever becomes of it, even if its end is
    /// taken before it lies there; true as for [`CellPool::push`].
    pub fn hand_over(&self, inbox: &CellList, id: CellId, tag: u64) -> Option<bool> {
        let inside = self.enter(id, is_live)?;
        let cell = inside.cell;
        // Release: pairs with the Acquire in `read`.
        cell.tag.store(tag, Ordering::Release);
        if cfg!(afflux_mutation = "handed_over_unlinked") {
            drop(inside);
            return Some(self.push(inbox, id));
        }
        // Linked while we are inside, so that the place outlives a holder who is faster than our push. Relaxed: as
        // in `push`.
        let flag = inbox.link().flag();
        let stood = Word(cell.word.fetch_or(flag, Ordering::Relaxed)).has(flag);
        drop(inside);
        Some(!stood && inbox.push(&self.cells, id.index))
    }

    /// Ends the operation, waiting or claimed, with what `make` returns; it is given the payload if
    /// the operation was waiting. False, and `make` is not called: somebody else ended it. `make`
    /// must be short and must not use the pool; if it panics, the operation ends without an outcome.
    pub fn finish(&self, id: CellId, make: impl FnOnce(Option<P>) -> O) -> bool {
        self.finish_if(id, is_live, make).is_ok()
    }

    /// As [`CellPool::finish`], but only a waiting operation: what a cancel, or an owner that has no
    /// more room to give, may end without taking back what is already on its way.
    pub fn finish_waiting(&self, id: CellId, make: impl FnOnce(P) -> O) -> bool {
        let make = |payload: Option<P>| make(payload.expect("a waiting cell holds its payload"));
        self.finish_if(id, |word| word.is(State::Waiting), make).is_ok()
    }

    /// Ends a claimed operation. `Err` gives the outcome back: a late or a foreign reply.
    pub fn finish_claimed(&self, id: CellId, outcome: O) -> Result<(), O> {
        let mut outcome = Some(outcome);
        let make = |_| outcome.take().expect("called once");
        let ended = self.finish_if(id, |word| word.is(State::Claimed), make).is_ok();
        match outcome {
            Some(outcome) if !ended => Err(outcome),
            _ => Ok(()),
        }
    }

    /// As [`CellPool::finish_claimed`]; a task or thread that waits is not woken but put into `wakes`: whoever ends
    /// many operations wakes when all have ended, or the first who wakes finds the others still under way.
    pub fn finish_claimed_later(&self, id: CellId, outcome: O, wakes: &mut Vec<Waker>) -> Result<(), O> {
        let Some(mut inside) = self.enter(id, |word| word.is(State::Claimed)) else { return Err(outcome) };
        inside.after = inside.after.to(State::Done);
        inside.put_outcome(outcome);
        let waker = inside.notify(|notify| match notify {
            Notify::Waker(_) => mem::take(notify),
            _ => Notify::None,
        });
        drop(inside);
        if let Notify::Waker(waker) = waker
            && !wakes.last().is_some_and(|last| last.will_wake(&waker))
        {
            wakes.push(waker);
        }
        Ok(())
    }

    fn finish_if(&self, id: CellId, may: impl Fn(Word) -> bool, make: impl FnOnce(Option<P>) -> O) -> Result<(), ()> {
        let mut inside = self.enter(id, may).ok_or(())?;
        inside.after = inside.after.to(State::Done);
        let payload = inside.take_payload();
        let outcome = make(payload);
        inside.put_outcome(outcome);
        Ok(())
    }

    /// The outcome, once: the place is free after it. For the holder. `None`: not ended yet, or no
    /// such operation.
    pub fn take(&self, id: CellId) -> Option<O> {
        let mut inside = self.enter(id, |word| word.is(State::Done) && word.has(HELD))?;
        inside.after = inside.after.to(State::Spent);
        inside.take_outcome()
    }

    /// The holder goes. An operation that has ended is forgotten with its outcome; one that has not
    /// runs on, and whoever ends it frees the place. False: no such operation.
    pub fn detach(&self, id: CellId) -> bool {
        let Some(mut inside) = self.enter(id, is_held) else { return false };
        inside.after = inside.after.without(HELD);
        let _nobody = inside.notify(mem::take);
        drop(inside);
        true
    }

    /// Whom the end is told, from now on. If the operation has ended already, it is told at once.
    /// For the holder; a cell may be told to several wakers in turn, but to one done list only.
    /// False: no such operation, nobody will be told.
    pub fn set_notify(&self, id: CellId, notify: Notify) -> bool {
        let Some(mut inside) = self.enter(id, is_held) else { return false };
        let _old = if inside.before.is(State::Done) && !cfg!(afflux_mutation = "cell_forgets_waker") {
            mem::replace(&mut inside.tell, notify)
        } else {
            inside.notify(|place| mem::replace(place, notify))
        };
        drop(inside);
        true
    }

    /// Whether its end wakes somebody: a thread that sleeps for it, or a future that was polled.
    pub fn is_awaited(&self, id: CellId) -> bool {
        let Some(mut inside) = self.enter(id, is_held) else { return false };
        inside.notify(|place| matches!(place, Notify::Waker(_)))
    }

    /// Cuts the outcome of an operation down that has ended and that nobody has taken in time: a
    /// reply's payload is released, an error stays. The cell is not offered to a sweep again.
    /// False: taken, detached or cut down before.
    pub fn lapse(&self, id: CellId, cut: impl FnOnce(O) -> O) -> bool {
        let Some(mut inside) = self.enter(id, |word| is_held(word) && word.is(State::Done) && !word.has(LAPSED)) else {
            return false;
        };
        inside.after = inside.after.with(LAPSED);
        if let Some(outcome) = inside.take_outcome() {
            inside.put_outcome(cut(outcome));
        }
        true
    }

    /// What `id` leads to now; `None` if it is stale.
    #[inline]
    pub fn state(&self, id: CellId) -> Option<CellState> {
        // Acquire: pairs with the Release in `publish`.
        let word = Word(self.cells.0.get(id.index as usize)?.word.load(Ordering::Acquire));
        published(word).filter(|_| word.generation() == id.generation)
    }

    /// True while the operation is waiting or claimed.
    pub fn is_live(&self, id: CellId) -> bool {
        matches!(self.state(id), Some(CellState::Waiting | CellState::Claimed))
    }

    /// The deadline; `None` if `id` is stale. Whoever ends an operation compares it first: a reply
    /// after it is late, even if the cell is still live.
    pub fn deadline(&self, id: CellId) -> Option<Instant> {
        // Acquire: pairs with the Release in `publish`; see `read`.
        self.read(id, |cell| Instant(cell.deadline.load(Ordering::Acquire))).map(|(_, deadline)| deadline)
    }

    /// When the operation began; `None` if `id` is stale.
    pub fn since(&self, id: CellId) -> Option<Instant> {
        // Acquire: pairs with the Release in `publish`; see `read`.
        self.read(id, |cell| Instant(cell.since.load(Ordering::Acquire))).map(|(_, since)| since)
    }

    /// Tag and times at once; `None` if `id` is stale.
    #[inline]
    pub fn times(&self, id: CellId) -> Option<Times> {
        // Acquire, all three: as above.
        let times = |cell: &Cell<P, O>| Times {
            tag: cell.tag.load(Ordering::Acquire),
            deadline: Instant(cell.deadline.load(Ordering::Acquire)),
            since: Instant(cell.since.load(Ordering::Acquire)),
        };
        self.read(id, times).map(|(_, times)| times)
    }

    /// The tag; `None` if `id` is stale.
    pub fn tag(&self, id: CellId) -> Option<u64> {
        // Acquire: pairs with the Release in `publish` and `hand_over`; see `read`.
        self.read(id, |cell| cell.tag.load(Ordering::Acquire)).map(|(_, tag)| tag)
    }

    /// Calls `look` for every operation that is published and not taken. One that is published or
    /// taken meanwhile may or may not be among them.
    pub fn scan(&self, mut look: impl FnMut(CellId, CellState, u64)) {
        for (index, cell) in (0..).zip(&self.cells.0) {
            // Acquire: pairs with the Release in `publish`.
            let generation = Word(cell.word.load(Ordering::Acquire)).generation();
            let id = CellId { index, generation };
            if let Some((state, tag)) = self.read(id, |cell| cell.tag.load(Ordering::Acquire)) {
                look(id, state, tag);
            }
        }
    }

    /// How many operations are in which state, at about the same moment. Walks over all cells.
    pub fn counts(&self) -> CellCounts {
        let mut counts = CellCounts::default();
        self.scan(|_, state, _| match state {
            CellState::Waiting => counts.waiting += 1,
            CellState::Claimed => counts.claimed += 1,
            CellState::Done => counts.done += 1,
        });
        counts
    }

    /// No sweep before this has anything to do: a lower bound of all deadlines.
    pub fn next_deadline(&self) -> Instant {
        self.segments.earliest()
    }

    /// Calls `due` for every operation whose deadline is not after `now`. It must end a live one
    /// ([`CellPool::finish`]) and cut down one that is done ([`CellPool::lapse`]); what it leaves
    /// alone is offered again by the next sweep, at once. Meant for the one thread that sleeps until
    /// [`CellPool::next_deadline`]: that value is too late while another thread sweeps, who must
    /// therefore wake it afterwards.
    pub fn sweep(&self, now: Instant, mut due: impl FnMut(CellId, CellState, u64)) {
        self.segments.sweep(now, |range| {
            let mut rest = Instant::NEVER;
            for index in range.start..range.end.min(self.cells.0.len()) {
                let Some((id, state, when)) = self.due(index as u32) else { continue };
                if when <= now {
                    due(id, state, self.cells.at(id.index).tag.load(Ordering::Relaxed));
                }
                // Asked again in either case: what is over by now needs no bound.
                rest = rest.min(self.due(index as u32).map_or(Instant::NEVER, |(_, _, when)| when));
            }
            rest
        });
    }

    /// When a sweep must look at the place, if at all.
    fn due(&self, index: u32) -> Option<(CellId, CellState, Instant)> {
        let cell = self.cells.at(index);
        // Acquire: pairs with the Release in `publish`.
        let word = Word(cell.word.load(Ordering::Acquire));
        let state = published(word)?;
        if state == CellState::Done && word.has(LAPSED) {
            return None;
        }
        // If the place is used anew meanwhile this is the later deadline or the earlier one; its
        // publisher has lowered the bound itself, and an old id does no harm.
        let deadline = Instant(cell.deadline.load(Ordering::Relaxed));
        let grace = if word.has(SELF_TIMED) { SELF_TIMED_GRACE } else { Duration::ZERO };
        Some((CellId { index, generation: word.generation() }, state, deadline.after(grace)))
    }

    /// Puts a published operation last in an inbox. True: nothing pushed lay there, so its owner may
    /// be asleep and must be woken. An operation stands in one inbox at a time; a second push, or one
    /// with a stale id, does nothing.
    pub fn push(&self, inbox: &CellList, id: CellId) -> bool {
        let Some(cell) = self.cells.0.get(id.index as usize) else { return false };
        let flag = inbox.link().flag();
        let mut word = Word(cell.word.load(Ordering::Relaxed));
        loop {
            if word.generation() != id.generation || published(word).is_none() || word.has(flag) {
                return false;
            }
            // Relaxed: the flag holds the place back; what others read comes with the list's Release.
            match cell.word.compare_exchange_weak(word.0, word.with(flag).0, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return inbox.push(&self.cells, id.index),
                Err(now) => word = Word(now),
            }
        }
    }

    /// Takes the oldest entry out of a list.
    #[inline]
    pub fn pop(&self, list: &CellList) -> Option<Entry> {
        let index = list.pop(&self.cells)?;
        Some(self.unlink(index, list.link()))
    }

    /// [`CellPool::pop`] until the list is empty; what is pushed meanwhile included.
    pub fn drain<'a>(&'a self, list: &'a CellList) -> impl Iterator<Item = Entry> + 'a {
        std::iter::from_fn(move || self.pop(list))
    }

    /// The done list with number `list`; its owner pops it.
    pub fn done(&self, list: u16) -> &CellList {
        &self.done[list as usize]
    }

    /// Takes those entries out of a list whose operations are over and taken, and frees their
    /// places; the others keep their order. For whoever looks after the lists of a stuck owner, whose
    /// callers' timed-out operations would otherwise hold places until it is back. `gone` must not
    /// use this list.
    pub fn prune(&self, list: &CellList, mut gone: impl FnMut(Entry)) {
        list.remove_if(&self.cells, |index| {
            // Acquire: pairs with the Release of the one who took the outcome.
            let word = Word(self.cells.at(index).word.load(Ordering::Acquire));
            let over = word.is(State::Spent) && !word.has(BUSY);
            if over {
                gone(self.unlink(index, list.link()));
            }
            over
        });
    }

    /// The place was taken out of a list: clears the link, and frees the place if that was the last
    /// reason to keep it.
    fn unlink(&self, index: u32, link: Link) -> Entry {
        let cell = self.cells.at(index);
        // Relaxed: the list's Acquire brought everything that came before the push, and the place
        // is not used anew before the link is cleared.
        let tag = cell.tag.load(Ordering::Relaxed);
        let mut word = Word(cell.word.load(Ordering::Relaxed));
        loop {
            let new = Word(word.0 & !link.flag()).settled();
            // AcqRel: the last to leave a place hands it on with what all others did in it.
            match cell.word.compare_exchange_weak(word.0, new.0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    if new.is(State::Vacant) {
                        self.free.push(&self.cells, index);
                    }
                    return Entry { id: CellId { index, generation: word.generation() }, tag };
                }
                Err(now) => word = Word(now),
            }
        }
    }

    /// Reads something that belongs to a published operation, and reads the word again after it: if
    /// the generation is the same, so was the operation.
    fn read<R>(&self, id: CellId, part: impl FnOnce(&Cell<P, O>) -> R) -> Option<(CellState, R)> {
        let cell = self.cells.0.get(id.index as usize)?;
        // Acquire: pairs with the Release in `publish`.
        let word = Word(cell.word.load(Ordering::Acquire));
        let state = published(word).filter(|_| word.generation() == id.generation)?;
        // `part` reads with Acquire: if it sees a later user's value, it also sees his generation.
        let part = part(cell);
        let again = Word(cell.word.load(Ordering::Relaxed));
        (again.generation() == id.generation).then_some((state, part))
    }

    /// Goes inside the cell if it is this operation's and `may` agrees; waits for whoever is inside.
    fn enter(&self, id: CellId, may: impl Fn(Word) -> bool) -> Option<Inside<'_, P, O>> {
        let cell = self.cells.0.get(id.index as usize)?;
        let mut word = Word(cell.word.load(Ordering::Relaxed));
        let mut round = 0;
        loop {
            if word.generation() != id.generation && !cfg!(afflux_mutation = "cell_ignores_generation") {
                return None;
            }
            if word.has(BUSY) {
                relax(round);
                round += 1;
                word = Word(cell.word.load(Ordering::Relaxed));
                continue;
            }
            if !may(word) {
                return None;
            }
            // Acquire: pairs with the Release of `publish` and of the last one to be inside.
            match cell.word.compare_exchange_weak(word.0, word.with(BUSY).0, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    let (index, tell) = (id.index, Notify::None);
                    return Some(Inside { pool: self, cell, index, before: word, after: word, tell });
                }
                Err(now) => word = Word(now),
            }
        }
    }
}

fn is_live(word: Word) -> bool {
    matches!(word.state(), State::Waiting | State::Claimed)
        || cfg!(afflux_mutation = "cell_double_terminal") && word.is(State::Done)
}

fn is_held(word: Word) -> bool {
    word.has(HELD) && published(word).is_some()
}

fn published(word: Word) -> Option<CellState> {
    match word.state() {
        State::Waiting => Some(CellState::Waiting),
        State::Claimed => Some(CellState::Claimed),
        State::Done => Some(CellState::Done),
        State::Vacant | State::Private | State::Spent => None,
    }
}

/// A cell that its caller has to itself: nobody else knows it yet. Publishing it starts the
/// operation; dropped, the place is free again.
#[must_use = "dropping it gives the place back"]
pub struct Place<'a, P, O> {
    pool: &'a CellPool<P, O>,
    id: CellId,
}

impl<P, O> fmt::Debug for Place<'_, P, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Place").field(&self.id).finish()
    }
}

impl<P, O> Place<'_, P, O> {
    /// The operation's name once it is published; until then it leads nowhere.
    pub fn id(&self) -> CellId {
        self.id
    }

    /// The operation waits for room with its payload. True: nothing else is due as early, so whoever
    /// sleeps until [`CellPool::next_deadline`] must be woken.
    pub fn publish_waiting(self, payload: P, terms: Terms) -> bool {
        let cell = self.pool.cells.at(self.id.index);
        // SAFETY: the cell is private and this is its only `Place`; nobody goes inside a private cell.
        cell.body.with_mut(|body| unsafe { (*body).fill(Body::Payload(payload)) });
        self.publish(State::Waiting, terms)
    }

    /// The operation's payload leaves at once and it waits for its outcome. To be called before the
    /// record can reach anybody who might answer. True: as for [`Place::publish_waiting`].
    pub fn publish_claimed(self, terms: Terms) -> bool {
        self.publish(State::Claimed, terms)
    }

    #[inline]
    fn publish(self, state: State, terms: Terms) -> bool {
        let (pool, CellId { index, generation }) = (self.pool, self.id);
        mem::forget(self);
        let cell = pool.cells.at(index);
        // SAFETY: the cell is private and this was its only `Place`; nobody goes inside a private cell.
        cell.notify.with_mut(|place| unsafe { *place = terms.notify });
        // Release, all three: pairs with the Acquire in `read` of somebody with an older id.
        cell.deadline.store(terms.deadline.0, Ordering::Release);
        cell.since.store(terms.since.0, Ordering::Release);
        cell.tag.store(terms.tag, Ordering::Release);
        let (flags, grace) =
            if terms.self_timed { (HELD | SELF_TIMED, SELF_TIMED_GRACE) } else { (HELD, Duration::ZERO) };
        let due = terms.deadline.after(grace);
        if cfg!(afflux_mutation = "cell_bound_first") {
            let first = pool.segments.lower(index, due);
            cell.word.store(Word::new(generation, state, flags).0, Ordering::Release);
            return first;
        }
        // Release: pairs with the Acquire of everybody who comes with the id.
        cell.word.store(Word::new(generation, state, flags).0, Ordering::Release);
        pool.segments.lower(index, due)
    }
}

impl<P, O> Drop for Place<'_, P, O> {
    fn drop(&mut self) {
        let word = Word::new(self.id.generation, State::Spent, 0).settled();
        // Relaxed: handed on by the Release of the free list.
        self.pool.cells.at(self.id.index).word.store(word.0, Ordering::Relaxed);
        self.pool.free.push(&self.pool.cells, self.id.index);
    }
}

/// Exclusive access to one cell. Dropping it leaves the cell as `after` says and does what follows
/// from it: the end is told, a place that nobody holds is freed.
struct Inside<'a, P, O> {
    pool: &'a CellPool<P, O>,
    cell: &'a Cell<P, O>,
    index: u32,
    before: Word,
    after: Word,
    tell: Notify,
}

impl<P, O> Inside<'_, P, O> {
    fn body<R>(&mut self, change: impl FnOnce(&mut Body<P, O>) -> R) -> R {
        // SAFETY: BUSY is ours until this value is dropped, and `&mut self` rules out a second
        // reference from it.
        self.cell.body.with_mut(|body| change(unsafe { &mut *body }))
    }

    fn notify<R>(&mut self, change: impl FnOnce(&mut Notify) -> R) -> R {
        // SAFETY: as in `body`.
        self.cell.notify.with_mut(|notify| change(unsafe { &mut *notify }))
    }

    fn take_payload(&mut self) -> Option<P> {
        self.body(Body::take_payload)
    }

    fn take_outcome(&mut self) -> Option<O> {
        self.body(Body::take_outcome)
    }

    fn put_outcome(&mut self, outcome: O) {
        self.body(|body| body.fill(Body::Outcome(outcome)));
    }
}

impl<P, O> Drop for Inside<'_, P, O> {
    #[inline]
    fn drop(&mut self) {
        if self.after == self.before && matches!(self.tell, Notify::None) {
            // As it was found but for its insides. AcqRel: as in `leave`.
            self.cell.word.fetch_and(!BUSY, Ordering::AcqRel);
        } else {
            self.leave();
        }
    }
}

impl<P, O> Inside<'_, P, O> {
    fn leave(&mut self) {
        let mut _forgotten = None;
        if self.after.is(State::Done) {
            if !self.before.is(State::Done) {
                self.tell = self.notify(mem::take);
            }
            if !self.after.has(HELD) {
                self.after = self.after.to(State::Spent);
                self.tell = Notify::None;
                _forgotten = self.take_outcome();
            }
        }
        let mut word = Word(self.cell.word.load(Ordering::Relaxed));
        let (new, list) = loop {
            // Linked here and now, so that the place outlives a holder who is faster than our push.
            let list = match self.tell {
                Notify::List(list) if !word.has(IN_DONE) => Some(list),
                _ => None,
            };
            let links = word.0 & LINKS | if list.is_some() { IN_DONE } else { 0 };
            let links =
                if cfg!(afflux_mutation = "cell_reuse_linked") && self.after.is(State::Spent) { 0 } else { links };
            let new = self.after.without(LINKS).with(links).settled();
            // AcqRel: Release hands the insides to the next one who enters, or to the next user by
            // way of the free list; Acquire takes what those did who cleared a link.
            match self.cell.word.compare_exchange_weak(word.0, new.0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break (new, list),
                Err(now) => word = Word(now),
            }
        };
        if new.is(State::Vacant) {
            self.pool.free.push(&self.pool.cells, self.index);
        }
        match (mem::take(&mut self.tell), list) {
            (Notify::Waker(waker), _) => waker.wake(),
            (_, Some(list)) => {
                if self.pool.done(list).push(&self.pool.cells, self.index) {
                    (self.pool.wake)(list);
                }
            }
            (Notify::None | Notify::List(_), None) => {}
        }
    }
}
