//! The lazy operation, and the started one. One call, one operation, one terminal.
//!
//! ```text
//!   Op ── wait() ───▶ this thread sleeps until the end
//!      ── .await ───▶ started at the first poll; any executor
//!      ── then(cx) ─▶ on a shard: a continuation, in a turn of its own
//!      ── submit() ─▶ Pending: wait, await or take it later
//!      ── detach() ─▶ started; nobody hears of the end
//!   dropped before one of these: nothing has happened
//! ```

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;

use super::destinations::Held;
use super::handle::{Begun, Handle, Order, Waiter};
use super::here;
use super::lead;
use super::session::SessionOrder;
use super::shared::{HostShared, Outcome};
use crate::base::error::{Detail, Error, ErrorKind, RequestError, SendError};
use crate::base::id::CellId;
use crate::base::record::{Kind, Method};
use crate::base::time::{Instant, TIMEOUT_MS_MAX, is_timeout, whole_millis};
use crate::flow::target::Target;
use crate::sync::cell::{CellState, Notify};
use crate::sync::parker;

/// How an operation reports its end.
pub trait Terminal: sealed::Sealed {
    /// On success.
    type Ok: Send + 'static;
    /// On failure.
    type Err: fmt::Debug + Send + 'static;
    #[doc(hidden)]
    const KIND: Kind;
    #[doc(hidden)]
    fn fail(error: Error, payload: Option<Bytes>) -> Self::Err;
    #[doc(hidden)]
    fn end(outcome: Outcome) -> Result<Self::Ok, Self::Err>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::OneWay {}
    impl Sealed for super::TwoWay {}
}

/// A send: its end is that the local runtime accepted it, and nothing more.
#[derive(Debug)]
pub enum OneWay {}

/// A request: its end is the reply.
#[derive(Debug)]
pub enum TwoWay {}

impl Terminal for OneWay {
    type Ok = ();
    type Err = SendError;
    const KIND: Kind = Kind::Message;

    fn fail(error: Error, payload: Option<Bytes>) -> SendError {
        SendError::new(error, payload.unwrap_or_default())
    }

    fn end(outcome: Outcome) -> Result<(), SendError> {
        match outcome {
            Outcome::Accepted | Outcome::Reply(_) => Ok(()),
            Outcome::Failed { error, payload } => Err(Self::fail(error, payload)),
        }
    }
}

impl Terminal for TwoWay {
    type Ok = Bytes;
    type Err = RequestError;
    const KIND: Kind = Kind::Request;

    fn fail(error: Error, payload: Option<Bytes>) -> RequestError {
        RequestError::new(error, payload)
    }

    fn end(outcome: Outcome) -> Result<Bytes, RequestError> {
        match outcome {
            Outcome::Reply(body) => Ok(body.take()),
            Outcome::Accepted => Err(Self::fail(Error::new(ErrorKind::Internal, Detail::None), None)),
            Outcome::Failed { error, payload } => Err(Self::fail(error, payload)),
        }
    }
}

/// Whose handle an operation goes through.
#[derive(Clone, Debug)]
pub(crate) enum Origin<'a> {
    Borrowed(&'a Handle),
    Owned {
        handle: Arc<Handle>,
        _held: Held,
    },
    /// An end client's session, whose sends have a way of their own.
    Session(Box<SessionOrder>),
}

impl Origin<'_> {
    #[inline]
    fn handle(&self) -> Option<&Handle> {
        match self {
            Origin::Borrowed(handle) => Some(handle),
            Origin::Owned { handle, .. } => Some(handle),
            Origin::Session(_) => None,
        }
    }

    fn shared(&self) -> &Arc<HostShared> {
        match self {
            Origin::Borrowed(handle) => handle.shared(),
            Origin::Owned { handle, .. } => handle.shared(),
            Origin::Session(order) => &order.session().shared,
        }
    }

    #[inline(always)]
    fn begin(&self, order: Order, waiter: Waiter<'_>) -> Begun {
        match self {
            Origin::Borrowed(handle) => handle.begin(order, waiter),
            Origin::Owned { handle, .. } => handle.begin(order, waiter),
            Origin::Session(session) => session.begin(order.payload, order.timeout, waiter),
        }
    }
}

/// What the operation inherits from the request that is being handled while it is made.
#[derive(Clone, Copy, Default, Debug)]
pub struct Lineage {
    /// How many handlers stand above.
    pub depth: u8,
    /// The end of the request being handled.
    pub deadline: Option<Instant>,
}

/// A lazy operation: nothing has happened yet. See the module for the ways to start it.
#[must_use = "nothing was sent yet: wait(), await, then() or submit() starts it"]
pub struct Op<'a, K: Terminal> {
    origin: Origin<'a>,
    slot: usize,
    method: Method,
    /// The method is short enough.
    named: bool,
    payload: Bytes,
    timeout: Duration,
    lineage: Lineage,
    /// Boxed: only a future that waits has one, and every operation is moved about.
    started: Option<Box<Pending<K>>>,
}

/// A one-way send that was not started yet.
pub type SendOp<'a> = Op<'a, OneWay>;
/// A request that was not started yet.
pub type RequestOp<'a> = Op<'a, TwoWay>;

impl<K: Terminal> fmt::Debug for Op<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Op").field("kind", &K::KIND).field("method", &self.method).finish_non_exhaustive()
    }
}

/// How a start went.
pub(crate) enum Started<K: Terminal> {
    Ended(Outcome),
    Waits(Pending<K>),
}

impl<'a, K: Terminal> Op<'a, K> {
    #[inline]
    pub(crate) fn new(
        origin: Origin<'a>,
        slot: usize,
        method: &str,
        payload: Bytes,
        timeout: Duration,
        lineage: Lineage,
    ) -> Self {
        let (named, method) = match Method::new(method) {
            Some(method) => (true, method),
            None => (false, Method::default()),
        };
        Op { origin, slot, method, named, payload, timeout, lineage, started: None }
    }

    /// The longest that this operation may take, in place of its path's ceiling: for a send the
    /// wait for room, for a request finding, room and reply together. Rounded up to milliseconds,
    /// 1 ms..=`i32::MAX` ms; anything else ends the operation in `InvalidOperation` when it is
    /// started. A request made from a handler never gets more than what is left of the request
    /// being handled, unless [`Op::own_deadline`] says so.
    #[inline]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        if !cfg!(afflux_mutation = "timeout_ignored") {
            self.timeout = timeout;
        }
        self
    }

    /// Does not inherit the end of the request that is being handled.
    pub fn own_deadline(mut self) -> Self {
        self.lineage.deadline = None;
        self
    }

    #[inline]
    pub(crate) fn start(self, waiter: Waiter<'_>) -> Started<K> {
        match self.send_now(true) {
            None => Started::Ended(Outcome::Accepted),
            Some(op) => op.start_slowly(waiter),
        }
    }

    /// A send that finds room is over at once, if it may; whatever is not comes back as it was. In its parts: as a
    /// whole it would be moved from here to there, and mostly for nothing.
    #[inline(always)]
    fn send_now(self, may: bool) -> Option<Self> {
        let Op { origin, slot, method, named, payload, timeout, lineage, started } = self;
        let may = may && matches!(K::KIND, Kind::Message) && named && is_timeout(timeout);
        let (method, payload) = match origin.handle() {
            Some(handle) if may => handle.send_now(slot, lineage.depth, method, payload)?,
            _ => (method, payload),
        };
        Some(Op { origin, slot, method, named, payload, timeout, lineage, started })
    }

    #[inline(never)]
    fn start_slowly(self, waiter: Waiter<'_>) -> Started<K> {
        let Some(timeout) = whole_millis(self.timeout) else {
            let error = Error::new(ErrorKind::InvalidOperation, Detail::None)
                .with_text(format!("timeout = {:?}: must be 1 ms..={TIMEOUT_MS_MAX} ms", self.timeout));
            return Started::Ended(Outcome::Failed { error, payload: Some(self.payload) });
        };
        let order = Order {
            kind: K::KIND,
            slot: self.slot,
            method: self.named.then_some(self.method),
            payload: self.payload,
            timeout,
            inherited: self.lineage.deadline,
            depth: self.lineage.depth,
        };
        match self.origin.begin(order, waiter) {
            Begun::Accepted => Started::Ended(Outcome::Accepted),
            Begun::Failed(error, payload) => Started::Ended(Outcome::Failed { error, payload: Some(payload) }),
            Begun::Cell { id, tag, target, deadline, since } => {
                let shared = self.origin.shared().clone();
                Started::Waits(Pending::new(Progress::Runs(Running { shared, id, tag, target, deadline, since })))
            }
        }
    }

    /// Starts it and sleeps until it has ended. On a thread of the runtime it ends at once in
    /// `InvalidOperation`: a shard that waits for itself would wait for ever (promise 5).
    #[inline]
    pub fn wait(self) -> Result<K::Ok, K::Err> {
        let on_shard = here::is_runtime_thread();
        match self.send_now(!on_shard) {
            None => K::end(Outcome::Accepted),
            Some(op) => op.wait_slowly(on_shard),
        }
    }

    #[inline(never)]
    fn wait_slowly(self, on_shard: bool) -> Result<K::Ok, K::Err> {
        if on_shard {
            return Err(K::fail(Error::new(ErrorKind::InvalidOperation, Detail::WaitOnShard), Some(self.payload)));
        }
        #[cfg(afflux_mutation = "wait_keeps_lock")]
        let origin = self.origin.clone();
        match self.start_slowly(Waiter::ThisThread) {
            Started::Ended(outcome) => K::end(outcome),
            Started::Waits(pending) => {
                #[cfg(afflux_mutation = "wait_keeps_lock")]
                let _held = origin.handle().map(Handle::keep_locked);
                pending.sleep()
            }
        }
    }

    /// Starts it; its end can be waited for, polled or taken later. One thread can have as many
    /// outstanding as the host has places; beyond that they end at once with their payload.
    pub fn submit(self) -> Pending<K> {
        match self.start(Waiter::Nobody) {
            Started::Waits(pending) => pending,
            Started::Ended(outcome) => Pending::new(Progress::Ended(Some(outcome))),
        }
    }

    /// Starts it and lets it run; nobody hears of its end.
    pub fn detach(self) {
        if let Started::Waits(pending) = self.start(Waiter::Nobody) {
            pending.detach();
        }
    }
}

impl<K: Terminal> Unpin for Op<'_, K> {}

impl<K: Terminal> Future for Op<'_, K> {
    type Output = Result<K::Ok, K::Err>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        if self.started.is_none() {
            let op = Op::<K> {
                origin: self.origin.clone(),
                slot: self.slot,
                method: mem::take(&mut self.method),
                named: self.named,
                payload: mem::take(&mut self.payload),
                timeout: self.timeout,
                lineage: self.lineage,
                started: None,
            };
            match op.start(Waiter::Task(cx.waker())) {
                Started::Ended(outcome) => return Poll::Ready(K::end(outcome)),
                Started::Waits(pending) => self.started = Some(Box::new(pending)),
            }
        }
        match &mut self.started {
            Some(pending) => Pin::new(&mut **pending).poll(cx),
            None => Poll::Pending,
        }
    }
}

/// A started operation. Dropped, it is cancelled: a send or request that still waits for room is
/// never sent; a request that was sent is given up, and its reply, if it comes, counts as late.
/// Neither stops a remote handler.
#[must_use = "dropping a started operation cancels it; detach() lets it run"]
pub struct Pending<K: Terminal> {
    progress: Progress,
    kind: PhantomData<fn() -> K>,
}

/// How far a started operation has come.
enum Progress {
    /// Waits in its cell, or its end lies there.
    Runs(Running),
    /// Had ended as it was started; nothing, if its end was taken.
    Ended(Option<Outcome>),
}

struct Running {
    shared: Arc<HostShared>,
    id: CellId,
    tag: u64,
    target: Option<Arc<Target>>,
    deadline: Instant,
    since: Instant,
}

impl Running {
    fn fail(&self, detail: Detail) {
        self.shared.fail(self.id, self.tag, self.target.as_ref(), ErrorKind::InvalidOperation, detail);
    }

    fn tell(&self, waker: Waker) {
        self.shared.cells.set_notify(self.id, Notify::Waker(waker));
    }

    fn is_live(&self) -> bool {
        self.shared.cells.is_live(self.id)
    }
}

impl<K: Terminal> Unpin for Pending<K> {}

impl<K: Terminal> fmt::Debug for Pending<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell = self.running().map(|running| running.id);
        f.debug_struct("Pending").field("cell", &cell).finish_non_exhaustive()
    }
}

impl<K: Terminal> Pending<K> {
    fn new(progress: Progress) -> Self {
        Pending { progress, kind: PhantomData }
    }

    fn running(&self) -> Option<&Running> {
        match &self.progress {
            Progress::Runs(running) => Some(running),
            _ => None,
        }
    }

    /// Leaves it to itself: this value has nothing to do with it any more.
    fn let_go(&mut self) -> Option<Running> {
        match mem::replace(&mut self.progress, Progress::Ended(None)) {
            Progress::Runs(running) => Some(running),
            _ => None,
        }
    }

    /// The cell and who is asked, for a shard that keeps the continuation itself; the operation is its own now.
    pub(crate) fn into_cell(mut self) -> Option<(CellId, Option<Arc<Target>>)> {
        self.let_go().map(|running| (running.id, running.target))
    }

    /// The end, if it has come. `None` also after it was taken.
    pub fn try_take(&mut self) -> Option<Result<K::Ok, K::Err>> {
        let outcome = match &mut self.progress {
            Progress::Runs(running) => {
                let outcome = running.shared.cells.take(running.id)?;
                taken(&running.shared, outcome, running.since)
            }
            Progress::Ended(outcome) => return outcome.take().map(K::end),
        };
        self.progress = Progress::Ended(None);
        Some(K::end(outcome))
    }

    /// Sleeps until it has ended. On a thread of the runtime it never sleeps: if it has not ended, it is
    /// cancelled and ends in `InvalidOperation`; the payload comes back if it never left.
    pub fn wait(mut self) -> Result<K::Ok, K::Err> {
        if here::is_runtime_thread() {
            if let Some(running) = self.running() {
                running.fail(Detail::WaitOnShard);
            }
            // Ended by us, or before us by somebody else: then that is its end.
            let refused = || K::fail(Error::new(ErrorKind::InvalidOperation, Detail::WaitOnShard), None);
            return self.try_take().unwrap_or_else(|| Err(refused()));
        }
        // Of many that are under way the oldest has mostly ended.
        if let Some(end) = self.try_take() {
            return end;
        }
        if let Some(running) = self.running() {
            running.tell(parker::thread_waker());
        }
        self.sleep()
    }

    #[inline(never)]
    fn sleep(mut self) -> Result<K::Ok, K::Err> {
        let mut asked = None;
        if let Some(running) = self.running()
            && let Some(target) = running.target.as_ref().filter(|_| matches!(K::KIND, Kind::Request))
        {
            let sent = running.shared.cells.state(running.id) == Some(CellState::Claimed);
            if sent {
                lead::wait(&running.shared, target, running.id, running.deadline);
            }
            if running.is_live() {
                if sent {
                    running.tell(parker::thread_waker());
                }
                asked = Some(target.clone());
            }
        }
        // Whoever called may lead another lane: a reply that it reads wakes tasks of the user's.
        let stands = parker::stand();
        let _follows = asked.as_ref().map(lead::follow);
        loop {
            if let Some(end) = self.try_take() {
                return end;
            }
            let Some(running) = self.running() else {
                return Err(K::fail(Error::new(ErrorKind::InvalidOperation, Detail::None), None));
            };
            let now = running.shared.clock.now();
            if now >= running.deadline {
                running.shared.expire(running.id, running.tag, running.target.as_ref(), now);
                continue;
            }
            stands.park(running.deadline.since(now));
        }
    }

    /// Lets it run to its end without this value.
    pub fn detach(mut self) {
        if let Some(running) = self.let_go() {
            running.shared.cells.detach(running.id);
        }
    }

    /// Ends it now, if it has not ended; the payload comes back if it never left.
    pub fn cancel(mut self) -> Option<Bytes> {
        let running = self.let_go()?;
        running.fail(Detail::Cancelled);
        match running.shared.cells.take(running.id) {
            Some(Outcome::Failed { payload, .. }) => payload,
            Some(_) => None,
            None => {
                running.shared.cells.detach(running.id);
                None
            }
        }
    }
}

impl<K: Terminal> Future for Pending<K> {
    type Output = Result<K::Ok, K::Err>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        if let Some(end) = self.try_take() {
            return Poll::Ready(end);
        }
        let Some(running) = self.running() else { return Poll::Pending };
        running.tell(cx.waker().clone());
        // The end may have come between the look and the registration.
        match self.try_take() {
            Some(end) => Poll::Ready(end),
            None => Poll::Pending,
        }
    }
}

impl<K: Terminal> Drop for Pending<K> {
    fn drop(&mut self) {
        if let Progress::Runs(running) = &self.progress {
            if !cfg!(afflux_mutation = "drop_lets_run") {
                running.fail(Detail::Cancelled);
            }
            // Ended by us or by somebody quicker: its outcome is of no use to anybody now.
            running.shared.cells.detach(running.id);
        }
    }
}

/// What the taker knows and the one who ended it did not: how long it took in all.
#[inline]
pub(crate) fn taken(shared: &HostShared, outcome: Outcome, since: Instant) -> Outcome {
    if matches!(outcome, Outcome::Failed { .. }) { failed(shared, outcome, since) } else { outcome }
}

#[cold]
fn failed(shared: &HostShared, outcome: Outcome, since: Instant) -> Outcome {
    match outcome {
        Outcome::Failed { error, payload } if error.figures().waited.is_none() => {
            let waited = shared.clock.now().since(since);
            Outcome::Failed { error: error.with(|n| n.waited = Some(waited)), payload }
        }
        other => other,
    }
}
