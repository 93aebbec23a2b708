//! Seats: where a shard keeps one channel's handler, its continuations or its futures, behind one
//! erased trait. A panic is caught here, in a callback and wherever something of the program's is dropped:
//! it ends the instance, never the shard.

use std::future::Future;
use std::mem::take;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use bytes::Bytes;

use super::answer::{Debt, Party};
use super::call::Lineage;
use super::core::{ContinuationKey, Core};
use super::handler::{Context, Continuation, Failure, Handler, LocalClient, Message, Request, Responder};
use super::shared::Outcome;
use super::stream::SessionShared;
use crate::base::error::ErrorKind;
use crate::base::id::TargetId;
use crate::base::panic::{caught, dropped};
use crate::base::record::{Kind, Record};
use crate::base::time::Instant;
use crate::flow::session::SessionEnd;
use crate::sync::task::{TaskKey, TaskWaker};

/// How long a seat whose factory panicked stays empty before the factory is asked again.
const FACTORY_RETRY: Duration = Duration::from_secs(1);

/// A peer, as a shard's jobs share it among themselves: many come and go in one turn, and none of them
/// leaves the shard.
pub type Peer = Rc<Party>;

/// A job whose permit was returned: the next instruction is the user's.
pub struct Start<'a> {
    /// What is asked; the seat takes out what it needs.
    pub record: &'a mut Record,
    /// Who sent it.
    pub peer: &'a Peer,
    /// The attach on which it came.
    pub link: u64,
    /// Its started place, with one part for the callback and, of a request, one for the debt.
    pub place: u32,
    /// What calls made by it inherit.
    pub lineage: Lineage,
}

impl Start<'_> {
    /// Whether an answer is owed; a one-way message owes none.
    #[inline]
    fn is_request(&self) -> bool {
        self.record.kind == Kind::Request
    }

    /// The answer that is owed.
    #[inline]
    fn responder(&mut self) -> Responder {
        Responder::new(Debt {
            party: self.peer.clone(),
            link: self.link,
            correlation: self.record.correlation,
            envelope: self.record.envelope.take(),
            place: self.place,
        })
    }
}

/// One channel on one shard.
pub trait Seat {
    /// Runs a handler's callback.
    fn start(&mut self, core: &mut Core, start: Start<'_>);
    /// Runs a continuation.
    fn resume(&mut self, core: &mut Core, key: ContinuationKey, outcome: Outcome);
    /// Polls a future that was woken.
    fn poll(&mut self, core: &mut Core, key: TaskKey);

    /// Makes the session of an end client; false if that panicked. Only the seats of stream sockets have
    /// sessions.
    fn open(&mut self, core: &mut Core, session: Arc<SessionShared>, peer: Peer) -> bool {
        let _ = (core, session, peer);
        false
    }

    /// Ends the session of an end client, with its last callback.
    fn close(&mut self, core: &mut Core, why: SessionEnd, peer: Peer) {
        let _ = (core, why, peer);
    }
}

/// Makes a shard's seat; called on that shard, with the seat's number.
pub type SeatFactory = Arc<dyn Fn(usize, u16) -> Box<dyn Seat> + Send + Sync>;

/// Continuations of one seat.
pub struct Continuations<H: 'static> {
    slots: Vec<Slot<H>>,
    free: Vec<u32>,
}

struct Slot<H: 'static> {
    generation: u32,
    waiting: Option<Waiting<H>>,
}

/// A continuation, and what its context is made of.
pub struct Waiting<H: 'static> {
    /// The started place that it is a part of.
    pub place: u32,
    /// What calls made by it inherit.
    pub lineage: Lineage,
    /// Whose record led to it.
    pub peer: Peer,
    /// What runs.
    pub run: Continuation<H>,
}

impl<H: 'static> Continuations<H> {
    pub(super) fn new() -> Self {
        Continuations { slots: Vec::new(), free: Vec::new() }
    }

    /// Keeps a continuation; its place is free again when it is taken.
    pub fn insert(&mut self, place: u32, lineage: Lineage, peer: Peer, run: Continuation<H>) -> ContinuationKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, waiting: None });
            self.slots.len() as u32 - 1
        });
        let at = &mut self.slots[slot as usize];
        at.waiting = Some(Waiting { place, lineage, peer, run });
        ContinuationKey { slot, generation: at.generation }
    }

    /// Takes one out; `None` if it was dropped meanwhile.
    pub fn take(&mut self, key: ContinuationKey) -> Option<Waiting<H>> {
        let at = self.slots.get_mut(key.slot as usize).filter(|at| at.generation == key.generation)?;
        let waiting = at.waiting.take()?;
        at.generation = at.generation.wrapping_add(1);
        self.free.push(key.slot);
        Some(waiting)
    }

    /// Takes every one that waits.
    pub fn take_all(&mut self) -> Vec<Waiting<H>> {
        self.take_where(|_| true)
    }

    /// Takes those that a record of this peer led to.
    pub fn take_of(&mut self, peer: TargetId) -> Vec<Waiting<H>> {
        self.take_where(|waiting| waiting.peer.id == peer)
    }

    fn take_where(&mut self, of: impl Fn(&Waiting<H>) -> bool) -> Vec<Waiting<H>> {
        let keys: Vec<ContinuationKey> = (0..)
            .zip(&self.slots)
            .filter(|(_, at)| at.waiting.as_ref().is_some_and(&of))
            .map(|(slot, at)| ContinuationKey { slot, generation: at.generation })
            .collect();
        keys.into_iter().filter_map(|key| self.take(key)).collect()
    }
}

/// An instance that can be lost to a panic and made anew.
struct Instance<T> {
    value: Option<T>,
    retry_at: Instant,
}

impl<T> Instance<T> {
    fn empty() -> Self {
        Instance { value: None, retry_at: Instant(0) }
    }

    /// The instance, made if need be; `None` while its factory has just panicked.
    #[inline]
    fn get(&mut self, core: &Core, make: impl FnOnce() -> T) -> Option<&mut T> {
        if self.value.is_none() {
            self.make(core, make);
        }
        self.value.as_mut()
    }

    #[cold]
    fn make(&mut self, core: &Core, make: impl FnOnce() -> T) {
        if core.now < self.retry_at {
            return;
        }
        match caught(make) {
            Ok(made) => self.value = Some(made),
            Err(panic) => {
                count_panic(core, panic);
                self.retry_at = core.now.after(FACTORY_RETRY);
            }
        }
    }
}

/// Counts a panic of user code and keeps its text for the log.
pub fn count_panic(core: &Core, text: String) {
    let shared = core.shared();
    shared.counts.handler_panics.add(1);
    shared.note_panic(core.shard, text);
}

/// Drops something of the program's on its shard. A panic of its last word is counted, and ends nothing.
pub fn discard<T>(core: &Core, value: T) {
    if let Err(panic) = dropped(value) {
        count_panic(core, panic);
    }
}

/// The seat of a [`Handler`].
pub struct HandlerSeat<H: Handler, F> {
    factory: Arc<F>,
    shard: usize,
    seat: u16,
    handler: Instance<H>,
    continuations: Continuations<H>,
}

impl<H: Handler, F: Fn(usize) -> H> HandlerSeat<H, F> {
    /// An empty seat: the instance is made at its first job.
    pub fn new(factory: Arc<F>, shard: usize, seat: u16) -> Self {
        HandlerSeat { factory, shard, seat, handler: Instance::empty(), continuations: Continuations::new() }
    }

    /// Whether there is an instance now; it is made if need be.
    #[inline]
    fn stands(&mut self, core: &Core) -> bool {
        self.handler.get(core, || (self.factory)(self.shard)).is_some()
    }

    /// Runs `call` on the instance, or nothing if there is none. After a panic nothing of it is left.
    #[inline]
    pub(super) fn call(
        &mut self,
        core: &mut Core,
        place: u32,
        lineage: Lineage,
        peer: Peer,
        call: impl FnOnce(&mut H, &mut Context<'_, H>),
    ) {
        let Some(handler) = self.handler.get(core, || (self.factory)(self.shard)) else {
            return discard(core, call);
        };
        let mut cx = Context { core, continuations: &mut self.continuations, seat: self.seat, place, lineage, peer };
        if let Err(panic) = caught(|| call(handler, &mut cx)) {
            count_panic(core, panic);
            discard(core, self.handler.value.take());
            for waiting in self.continuations.take_all() {
                // What it captured answers for itself: a responder sends an error.
                discard(core, waiting.run);
                if !cfg!(afflux_mutation = "panic_keeps_places") {
                    core.leave_place(waiting.place);
                }
            }
        }
    }
}

impl<H: Handler, F: Fn(usize) -> H> Seat for HandlerSeat<H, F> {
    fn start(&mut self, core: &mut Core, mut start: Start<'_>) {
        let (place, lineage, peer) = (start.place, start.lineage, start.peer.clone());
        let (method, payload) = (take(&mut start.record.method), take(&mut start.record.payload));
        if !start.is_request() {
            let message = Message { method, payload };
            self.call(core, place, lineage, peer, |handler, cx| handler.message(message, cx));
        } else if self.stands(core) {
            let request = Request { method, payload, responder: start.responder(), peer: peer.clone() };
            self.call(core, place, lineage, peer, |handler, cx| handler.request(request, cx));
        } else {
            start.responder().settle(Err(Failure::panicked()));
        }
        core.leave_place(place);
    }

    fn resume(&mut self, core: &mut Core, key: ContinuationKey, outcome: Outcome) {
        let Some(Waiting { place, lineage, peer, run }) = self.continuations.take(key) else { return };
        self.call(core, place, lineage, peer, |handler, cx| run(handler, outcome, cx));
        core.leave_place(place);
    }

    fn poll(&mut self, _: &mut Core, _: TaskKey) {}
}

impl<H: Handler, F> Drop for HandlerSeat<H, F> {
    /// One by one: a last word that panics must not meet another that does.
    fn drop(&mut self) {
        // The shard is over, and so is its count.
        let _ = dropped(self.handler.value.take());
        for waiting in self.continuations.take_all() {
            let _ = dropped(waiting.run);
        }
    }
}

struct Task<Fut> {
    future: Pin<Box<Fut>>,
    waker: Arc<TaskWaker>,
    generation: u32,
    responder: Option<Responder>,
}

/// The seat of a closure whose futures the shard polls.
pub struct AsyncSeat<M, C, Fut> {
    factory: Arc<M>,
    shard: usize,
    seat: u16,
    closure: Instance<C>,
    tasks: Vec<Option<Task<Fut>>>,
}

impl<M, C, Fut> AsyncSeat<M, C, Fut>
where
    M: Fn(usize) -> C,
    C: FnMut(Request, LocalClient) -> Fut,
    Fut: Future<Output = Result<Bytes, Failure>>,
{
    /// An empty seat: the closure is made at its first job.
    pub fn new(factory: Arc<M>, shard: usize, seat: u16) -> Self {
        AsyncSeat { factory, shard, seat, closure: Instance::empty(), tasks: Vec::new() }
    }

    fn run(&mut self, core: &mut Core, place: u32) {
        let Some(task) = self.tasks.get_mut(place as usize).and_then(Option::as_mut) else { return };
        task.waker.rearm();
        let waker = task.waker.waker();
        let polled = caught(|| task.future.as_mut().poll(&mut TaskContext::from_waker(&waker)));
        let end = match polled {
            Ok(Poll::Pending) => return,
            Ok(Poll::Ready(end)) => end,
            Err(panic) => {
                count_panic(core, panic);
                Err(Failure::panicked())
            }
        };
        if let Some(task) = self.tasks[place as usize].take() {
            let Task { future, responder, .. } = task;
            discard(core, future);
            if let Some(responder) = responder {
                responder.settle(end);
            }
        }
        core.leave_place(place);
    }
}

impl<M, C, Fut> Seat for AsyncSeat<M, C, Fut>
where
    M: Fn(usize) -> C,
    C: FnMut(Request, LocalClient) -> Fut,
    Fut: Future<Output = Result<Bytes, Failure>>,
{
    fn start(&mut self, core: &mut Core, mut start: Start<'_>) {
        let (place, lineage) = (start.place, start.lineage);
        if !start.is_request() {
            // A future that nobody waits for could only be lost: async channels take requests.
            core.shared().counts.no_handler.add(1);
            return core.leave_place(place);
        }
        let responder = start.responder();
        let Start { record, peer, .. } = start;
        let (method, payload) = (take(&mut record.method), take(&mut record.payload));
        let client = LocalClient { handle: core.handle.clone(), lineage, shard: std::marker::PhantomData };
        let request = Request { method, payload, responder: Responder::none(), peer: peer.clone() };
        let (factory, shard) = (self.factory.clone(), self.shard);
        let made = match self.closure.get(core, || factory(shard)) {
            Some(closure) => caught(|| closure(request, client)),
            None => {
                responder.settle(Err(Failure::panicked()));
                return core.leave_place(place);
            }
        };
        match made {
            Ok(future) => {
                let generation = core.generation(place);
                let key = TaskKey { seat: self.seat, place, generation };
                if self.tasks.len() <= place as usize {
                    self.tasks.resize_with(place as usize + 1, || None);
                }
                self.tasks[place as usize] = Some(Task {
                    future: Box::pin(future),
                    waker: TaskWaker::new(core.tasks.clone(), key),
                    generation,
                    responder: Some(responder),
                });
                self.run(core, place);
            }
            Err(panic) => {
                count_panic(core, panic);
                discard(core, self.closure.value.take());
                responder.settle(Err(Failure::panicked()));
                core.leave_place(place);
            }
        }
    }

    fn resume(&mut self, _: &mut Core, _: ContinuationKey, _: Outcome) {}

    fn poll(&mut self, core: &mut Core, key: TaskKey) {
        let alive = self.tasks.get(key.place as usize).and_then(Option::as_ref);
        if alive.is_some_and(|task| task.generation == key.generation) {
            self.run(core, key.place);
        }
    }
}

impl<M, C, Fut> Drop for AsyncSeat<M, C, Fut> {
    /// As that of a [`HandlerSeat`].
    fn drop(&mut self) {
        let _ = dropped(self.closure.value.take());
        for task in self.tasks.drain(..).flatten() {
            let _ = dropped(task.future);
        }
    }
}

/// The seat of a channel that nobody serves: answers for it.
pub fn refuse(core: &Core, debt: Option<Debt>, what: &str) {
    core.shared().counts.no_handler.add(1);
    if let Some(debt) = debt {
        debt.fail(ErrorKind::NotFound, 0, what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct LastWord;

    impl Drop for LastWord {
        fn drop(&mut self) {
            panic!("a last word");
        }
    }

    impl Handler for LastWord {}

    /// Two panics at once would end the process.
    #[test]
    fn a_seat_ends_whatever_its_last_words_are() {
        let mut seat = HandlerSeat::new(Arc::new(|_| LastWord), 0, 0);
        seat.handler.value = Some(LastWord);
        drop(seat);

        let made = |_: usize| {
            let captured = LastWord;
            move |_: Request, _: LocalClient| {
                let _captured = &captured;
                std::future::ready(Ok(Bytes::new()))
            }
        };
        let mut seat = AsyncSeat::new(Arc::new(made), 0, 0);
        seat.closure.value = Some(made(0));
        drop(seat);
    }
}
