//! `Handle`: an origin of operations. It has a ring of its own to every shard that it uses, a
//! snapshot of the routes and its place in each rotation. The start of every operation, of whatever
//! kind and from whatever thread, is [`Handle::begin`].
//!
//! ```text
//!   begin ─▶ fix the target ─▶ mark: room, and nobody waits? ─┬─ yes ─▶ own ring to the owner shard: accepted
//!                 │                                           │         (a lone request is written here and now
//!                 │                                           │          if the lane's baton is free)
//!                 │ nobody known yet                          └─ no ──▶ a cell in the waiting room, to the owner
//!                 └──────────────────────────────────────────────────▶ a cell in the waiting room, to the completion thread
//! ```
//!
//! A full ring counts as "no room": the operation waits in a cell. No push ever blocks.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;

use super::command::ShardCommand;
use super::destinations::{Destination, Destinations, Held};
use super::lanes;
use super::lead;
use super::shared::{Class, HostShared, Life, Op, Outcome, Outgoing, TAG_FINDING, TAG_REQUEST};
use crate::base::error::{Detail, Error, ErrorKind};
use crate::base::id::{CellId, ChannelId, ShardId};
use crate::base::record::{Kind, Method, Record};
use crate::base::time::Instant;
use crate::base::unit::charge;
use crate::flow::target::Target;
use crate::pattern::route::{Address, Found, Named, Routes};
use crate::sync::cell::{Notify, Place, Terms};
use crate::sync::lock::Lock;
use crate::sync::parker;
use crate::sync::published::Cached;
use crate::sync::ring::{Producer, ring};

/// How deep calls from handlers to handlers may nest.
pub const CALL_DEPTH_MAX: u8 = 32;

/// A caller whose ring has less than this part of its places free outruns its shard, and gives way once.
const CROWDED: usize = 4;

/// Requests in flight to a peer up to which each is written by its caller.
const ALONE_MAX: u32 = 8;

/// What is asked of a handle.
#[derive(Debug)]
pub struct Order {
    /// One-way or request.
    pub kind: Kind,
    /// The handle's number for the address, held; see [`Handle::slot`].
    pub slot: usize,
    /// What is asked of the channel.
    pub method: Option<Method>,
    /// The bytes.
    pub payload: Bytes,
    /// The ceiling of the operation.
    pub timeout: Duration,
    /// The end of the request that is being handled, if its rest is the upper limit.
    pub inherited: Option<Instant>,
    /// How many handlers stand above.
    pub depth: u8,
}

/// How an operation began.
#[derive(Debug)]
pub enum Begun {
    /// A send that found room: it is over.
    Accepted,
    /// It waits, for room or for its reply.
    Cell {
        /// Where.
        id: CellId,
        /// The cell's tag, for whoever ends it.
        tag: u64,
        /// Fixed already?
        target: Option<Arc<Target>>,
        /// When it ends at the latest.
        deadline: Instant,
        /// When it began.
        since: Instant,
    },
    /// It failed at once; the payload comes back.
    Failed(Error, Bytes),
}

/// Who hears of the end of an operation that waits, and who watches its deadline.
#[derive(Clone, Copy, Debug)]
pub enum Waiter<'a> {
    /// Nobody yet.
    Nobody,
    /// The calling thread, which will sleep and look at the clock itself.
    ThisThread,
    /// A task of some executor.
    Task(&'a Waker),
    /// A continuation on this shard.
    Shard(ShardId),
}

impl Waiter<'_> {
    /// A send that finds room never comes here: a waker is only made for an operation that waits.
    #[inline(always)]
    fn terms(self, since: Instant, deadline: Instant, tag: u64) -> Terms {
        let notify = match self {
            Waiter::Nobody => Notify::None,
            Waiter::ThisThread => Notify::Waker(parker::thread_waker()),
            Waiter::Task(waker) => Notify::Waker(waker.clone()),
            Waiter::Shard(shard) => Notify::List(shard.0),
        };
        Terms { deadline, since, tag, notify, self_timed: matches!(self, Waiter::ThisThread) }
    }
}

enum Line {
    Unused,
    Own(Producer<Outgoing>),
    Common,
}

struct State {
    routes: Cached<Routes>,
    destinations: Destinations,
    lines: Box<[Line]>,
}

impl State {
    fn follow_routes(&mut self, shared: &HostShared) {
        if shared.routes.refresh(&mut self.routes) {
            self.destinations.forget_routes();
        }
    }
}

/// See the module. Shared between threads it works, one at a time; a clone is a new origin.
pub struct Handle {
    shared: Arc<HostShared>,
    class: Class,
    state: Lock<State>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("class", &self.class).finish_non_exhaustive()
    }
}

impl Handle {
    /// A new origin.
    pub fn new(shared: Arc<HostShared>, class: Class) -> Self {
        let lines = (0..shared.shards.len()).map(|_| Line::Unused).collect();
        let destinations = Destinations::new(shared.plan.places().destinations as usize);
        let state = State { routes: shared.routes.cached(), destinations, lines };
        Handle { shared, class, state: Lock::new(state) }
    }

    #[cfg(afflux_mutation = "wait_keeps_lock")]
    pub(super) fn keep_locked(&self) -> impl std::ops::DerefMut + '_ {
        self.state.lock()
    }

    /// The host.
    pub fn shared(&self) -> &Arc<HostShared> {
        &self.shared
    }

    /// This handle's number for an address, which it keeps for as long as the second is held.
    pub fn slot(&self, named: Named<'_>) -> (usize, Held) {
        self.state.lock().destinations.slot(named, &self.shared)
    }

    /// The path of most sends: one member, one link, room. It touches the handle's ring, the mark, and
    /// nothing else that is shared. Whatever is out of the ordinary comes back, for [`Handle::begin`].
    #[inline]
    pub fn send_now(&self, slot: usize, depth: u8, method: Method, payload: Bytes) -> Option<(Method, Bytes)> {
        let shared = &*self.shared;
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.follow_routes(shared);
        let Destination { rotation, finding, .. } = &mut state.destinations[slot];
        let (Some((target, channel)), true) = (rotation.only(), finding.is_empty()) else {
            return Some((method, payload));
        };
        let Line::Own(producer) = &mut state.lines[target.owner.index()] else { return Some((method, payload)) };
        let ordinary = payload.len() as u64 <= shared.plan.max_message.min(target.max_message.get())
            && depth <= CALL_DEPTH_MAX
            && shared.life() == Life::Serving
            && !target.gone.is_raised();
        let charge = charge(payload.len(), method.as_bytes().len());
        let free = producer.free();
        if !ordinary || free == 0 || target.mark.try_admit(charge).is_err() {
            return Some((method, payload));
        }
        let record = Record {
            kind: Kind::Message,
            depth,
            channel: channel.0,
            correlation: 0,
            expiry_ms: 0,
            method,
            payload,
            envelope: None,
        };
        push(shared, producer, target, record);
        let crowded = free < producer.capacity() / CROWDED;
        drop(guard);
        if crowded && self.class == Class::Caller {
            // Its shard may want this very processor.
            std::thread::yield_now();
        }
        None
    }

    /// Starts an operation: everything that can be decided now is decided now.
    #[inline]
    pub fn begin(&self, order: Order, waiter: Waiter<'_>) -> Begun {
        let mut crowded = false;
        let begun = self.begin_locked(order, waiter, &mut crowded);
        if crowded && self.class == Class::Caller {
            // As in `send_now`.
            std::thread::yield_now();
        }
        begun
    }

    #[inline(never)]
    fn begin_locked(&self, order: Order, waiter: Waiter<'_>, crowded: &mut bool) -> Begun {
        let shared = &self.shared;
        let state = &mut *self.state.lock();
        state.follow_routes(shared);
        let finding = state.destinations[order.slot].is_finding(shared);
        let address = &state.destinations[order.slot].address;
        let refuse = |kind, detail, payload| {
            Begun::Failed(Error::new(kind, detail).with(|n| n.target = Some(address.name().clone())), payload)
        };
        let Some(method) = order.method else {
            return refuse(ErrorKind::Rejected, Detail::MethodTooLong, order.payload);
        };
        if order.depth > CALL_DEPTH_MAX {
            return refuse(ErrorKind::Rejected, Detail::CallDepth, order.payload);
        }
        let sealed = shared.life() != Life::Serving && !cfg!(afflux_mutation = "shutdown_unsealed");
        if sealed && self.class == Class::Caller {
            return refuse(ErrorKind::ShuttingDown, Detail::None, order.payload);
        }
        let Destination { address, rotation, .. } = &mut state.destinations[order.slot];
        let found = match state.routes.value().find(address, rotation) {
            _ if finding => Found::NotYet,
            Ok(found) => found,
            Err(error) => return Begun::Failed(error, order.payload),
        };
        let record = |channel: ChannelId| Record {
            kind: order.kind,
            depth: order.depth,
            channel: channel.0,
            correlation: 0,
            expiry_ms: 0,
            method,
            payload: order.payload,
            envelope: None,
        };
        let (target, record) = match found {
            Found::Target(target, channel) => (target, record(channel)),
            Found::NotYet => {
                let since = shared.clock.now();
                let deadline = deadline(since, order.timeout, order.inherited);
                let mut record = record(ChannelId::NODE);
                if record.kind == Kind::Request {
                    record.expiry_ms = expiry_ms(deadline);
                }
                let destination = &mut state.destinations[order.slot];
                let address = destination.address.clone();
                let op = Op { target: None, address, record, class: self.class, since, link: 0 };
                let begun = wait(shared, op, deadline, waiter);
                if let Begun::Cell { id, .. } = &begun {
                    destination.finding.push(*id);
                }
                return begun;
            }
        };
        let too_large = record.payload.len() as u64 > shared.plan.max_message.min(target.max_message.get())
            && !cfg!(afflux_mutation = "too_large_accepted");
        if too_large || target.gone.is_raised() {
            let error = if too_large {
                Error::new(ErrorKind::Rejected, Detail::MessageTooLarge).with(|n| {
                    n.requested = Some(record.payload.len() as u64);
                    n.limit = Some(shared.plan.max_message.min(target.max_message.get()));
                })
            } else {
                Error::new(ErrorKind::Unavailable, Detail::Detached)
            };
            return Begun::Failed(error.with(|n| n.target = Some(target.label())), record.payload);
        }
        let line = line(shared, &mut state.lines, target.owner);
        match record.kind {
            Kind::Request => {
                let since = shared.clock.now();
                let deadline = deadline(since, order.timeout, order.inherited);
                let address = || state.destinations[order.slot].address.clone();
                begin_request(shared, target, record, address, self.class, line, since, deadline, waiter, crowded)
            }
            _ => {
                let refused = with_producer(shared, line, target.owner, |producer| {
                    if producer.free() == 0 || cfg!(afflux_mutation = "room_unused") {
                        target.mark.add_waiter();
                        return Some(record);
                    }
                    match target.mark.admit_or_wait(record.charge()) {
                        Ok(_) => {
                            push(shared, producer, &target, record);
                            None
                        }
                        Err(_) => Some(record),
                    }
                });
                let Some(record) = refused else { return Begun::Accepted };
                if cfg!(afflux_mutation = "ring_full_refuses")
                    && target.mark.bytes() + record.charge() <= target.mark.limit()
                    && target.mark.waiters() == 1
                {
                    target.mark.forget_waiter();
                    return Begun::Failed(Error::new(ErrorKind::DeadlineExceeded, Detail::NoRoom), record.payload);
                }
                let since = shared.clock.now();
                let op = Op {
                    target: Some(target),
                    address: state.destinations[order.slot].address.clone(),
                    record,
                    class: self.class,
                    since,
                    link: 0,
                };
                wait(shared, op, deadline(since, order.timeout, order.inherited), waiter)
            }
        }
    }

    /// Admits a one-way record now or gives it back. Never overtakes an operation that waits.
    pub fn try_send(&self, order: Order) -> Result<(), (Error, Bytes)> {
        let shared = &self.shared;
        let state = &mut *self.state.lock();
        state.follow_routes(shared);
        let finding = state.destinations[order.slot].is_finding(shared);
        let Destination { address, rotation, .. } = &mut state.destinations[order.slot];
        let fail = |kind, detail, payload| {
            Err((Error::new(kind, detail).with(|n| n.target = Some(address.name().clone())), payload))
        };
        let Some(method) = order.method else {
            return fail(ErrorKind::Rejected, Detail::MethodTooLong, order.payload);
        };
        if shared.life() != Life::Serving && self.class == Class::Caller {
            return fail(ErrorKind::ShuttingDown, Detail::None, order.payload);
        }
        let (target, channel) = match state.routes.value().find(address, rotation) {
            Ok(Found::Target(target, channel)) if !finding => (target, channel),
            Ok(Found::Target(..)) => return fail(ErrorKind::DeadlineExceeded, Detail::NotFoundYet, order.payload),
            Ok(Found::NotYet) => return fail(ErrorKind::Unavailable, Detail::NotConnected, order.payload),
            Err(error) => return Err((error, order.payload)),
        };
        if target.gone.is_raised() {
            return fail(ErrorKind::Unavailable, Detail::Detached, order.payload);
        }
        let limit = shared.plan.max_message.min(target.max_message.get());
        if order.payload.len() as u64 > limit {
            return fail(ErrorKind::Rejected, Detail::MessageTooLarge, order.payload);
        }
        let record = Record {
            kind: Kind::Message,
            depth: order.depth,
            channel: channel.0,
            correlation: 0,
            expiry_ms: 0,
            method,
            payload: order.payload,
            envelope: None,
        };
        let line = line(shared, &mut state.lines, target.owner);
        let charge = record.charge();
        let refused = with_producer(shared, line, target.owner, |producer| {
            if producer.free() == 0 || target.mark.try_admit(charge).is_err() {
                return Some(record);
            }
            push(shared, producer, &target, record);
            None
        });
        let Some(record) = refused else { return Ok(()) };
        let error = Error::new(ErrorKind::DeadlineExceeded, Detail::NoRoom).with(|n| {
            n.target = Some(target.label());
            n.lane = Some(crate::base::record::Lane::Application);
            n.requested = Some(charge);
            n.used = Some(target.mark.bytes());
            n.limit = Some(target.mark.limit());
            n.waited = Some(Duration::ZERO);
            n.paused_for = target.paused_for(shared.clock.now());
        });
        Err((error, record.payload))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let own = self.state.lock().lines.iter().filter(|l| matches!(l, Line::Own(_))).count();
        self.shared.caller_rings.sub(own as u64);
    }
}

fn deadline(since: Instant, timeout: Duration, inherited: Option<Instant>) -> Instant {
    let own = since.after(timeout);
    let inherited = inherited.filter(|_| !cfg!(afflux_mutation = "nested_deadline_own"));
    inherited.map_or(own, |i| own.min(i))
}

/// This handle's way to `shard`, made at its first use: a ring of its own while there are any left,
/// the shard's common one otherwise.
#[inline(always)]
fn line<'a>(shared: &HostShared, lines: &'a mut [Line], shard: ShardId) -> &'a mut Line {
    let line = &mut lines[shard.index()];
    if matches!(line, Line::Unused) {
        *line = new_line(shared, shard);
    }
    line
}

#[cold]
fn new_line(shared: &HostShared, shard: ShardId) -> Line {
    if shared.caller_rings.add(1) < u64::from(shared.plan.caller_rings) {
        let (producer, consumer) = ring(shared.plan.ring_slots as usize);
        // The mailbox has a place for every ring that may exist; should it be full all the
        // same, the common ring serves.
        if shared.port(shard).command(ShardCommand::Ring(consumer)).is_ok() {
            return Line::Own(producer);
        }
    }
    shared.caller_rings.sub(1);
    Line::Common
}

/// Runs `f` with the producing end of `line`; a common one is locked meanwhile, so that a free
/// place that `f` saw is still free when it pushes.
fn with_producer<R>(
    shared: &HostShared,
    line: &mut Line,
    shard: ShardId,
    f: impl FnOnce(&mut Producer<Outgoing>) -> R,
) -> R {
    match line {
        Line::Own(producer) => f(producer),
        _ => f(&mut shared.port(shard).common_ring.lock()),
    }
}

/// Hands an admitted record over; there is a free place.
#[inline(always)]
pub(super) fn push(shared: &HostShared, producer: &mut Producer<Outgoing>, target: &Target, record: Record) {
    let pushed = producer.push(Outgoing { target: target.id, record });
    assert!(pushed.is_ok(), "a free place was seen, and nobody else pushes to this ring");
    if !cfg!(afflux_mutation = "ring_unwoken") {
        shared.port(target.owner).wake.wake();
    }
}

/// Puts an operation into the waiting room and on its way to whoever can end its wait. Its target's
/// mark has counted it as a waiter.
pub(super) fn wait(shared: &Arc<HostShared>, op: Op, deadline: Instant, waiter: Waiter<'_>) -> Begun {
    let (since, charge, target) = (op.since, op.record.charge(), op.target.clone());
    let forget = || {
        if let Some(t) = &target {
            t.mark.forget_waiter();
        }
    };
    if let Err(error) = shared.enter_room(target.as_deref(), op.class, charge) {
        forget();
        return Begun::Failed(error.with(|n| n.target = Some(op.address.name().clone())), op.record.payload);
    }
    let Some(place) = shared.cells.alloc() else {
        shared.leave_room(&op);
        forget();
        let error = Error::new(ErrorKind::DeadlineExceeded, Detail::WaitingRoomFull);
        return Begun::Failed(error.with(|n| n.target = Some(op.address.name().clone())), op.record.payload);
    };
    shared.counts.waits.add(1);
    let request = if op.record.kind == Kind::Request { TAG_REQUEST } else { 0 };
    let tag = request | target.as_ref().map_or(TAG_FINDING, |t| t.id.0);
    let id = place.id();
    if place.publish_waiting(op, waiter.terms(since, deadline, tag)) {
        shared.completion.wake.wake();
    }
    match &target {
        Some(t) => {
            let port = shared.port(t.owner);
            shared.cells.push(&port.inbox, id);
            port.wake.wake();
        }
        None => {
            shared.cells.push(&shared.completion.inbox, id);
            shared.completion.wake.wake();
        }
    }
    Begun::Cell { id, tag, target, deadline, since }
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn begin_request(
    shared: &Arc<HostShared>,
    target: Arc<Target>,
    mut record: Record,
    address: impl Fn() -> Address,
    class: Class,
    line: &mut Line,
    since: Instant,
    deadline: Instant,
    waiter: Waiter<'_>,
    crowded: &mut bool,
) -> Begun {
    record.expiry_ms = expiry_ms(deadline);
    let charge = record.charge();
    let mut common = None;
    let producer = match line {
        Line::Own(producer) => producer,
        _ => &mut **common.insert(shared.port(target.owner).common_ring.lock()),
    };
    // A free slot, a free cell, a free place in the ring and room under the mark: then it is accepted.
    let Some((place, alone)) = admit_request(shared, &target, producer, charge) else {
        drop(common);
        let op = Op { target: Some(target), address: address(), record, class, since, link: 0 };
        return wait(shared, op, deadline, waiter);
    };
    let (id, tag) = (place.id(), TAG_REQUEST | target.id.0);
    record.correlation = id.correlation();
    if place.publish_claimed(waiter.terms(since, deadline, tag)) {
        shared.completion.wake.wake();
    }
    // Who leads does the same when it cannot.
    let leads = match waiter {
        Waiter::ThisThread => true,
        Waiter::Shard(_) => lead::is_for_shards(shared),
        Waiter::Nobody | Waiter::Task(_) => false,
    };
    if !leads {
        lead::expect(&target);
    }
    // Nothing stands before it: written on this thread, without a hop, if the baton is free. One of many goes
    // with the others: its write would cost more than its wait.
    let lone = alone && target.in_flight.ops() <= ALONE_MAX;
    if !lone || !lanes::write_alone(shared, &target, &record) {
        push(shared, producer, &target, record);
        *crowded = producer.free() < producer.capacity() / CROWDED;
    }
    Begun::Cell { id, tag, target: Some(target), deadline, since }
}

/// A place for a request of this charge, and whether nothing stands before it; `None` if it has to wait: then it
/// counts as a waiter.
#[inline(always)]
fn admit_request<'a>(
    shared: &'a HostShared,
    target: &Arc<Target>,
    producer: &mut Producer<Outgoing>,
    charge: u64,
) -> Option<(Place<'a, Op, Outcome>, bool)> {
    if producer.free() == 0 || target.mark.waiters() > 0 || !shared.enter_slot(target) {
        target.mark.add_waiter();
        return None;
    }
    let Some(place) = shared.cells.alloc() else {
        shared.leave_slot(target);
        target.mark.add_waiter();
        return None;
    };
    match target.mark.admit_or_wait(charge) {
        Ok(admitted) => Some((place, admitted.alone)),
        Err(_) => {
            shared.leave_slot(target);
            None
        }
    }
}

/// The end of a request on this host's link clock, as it travels; 0 means none, so it is never 0.
fn expiry_ms(deadline: Instant) -> u32 {
    ((deadline.0 / 1_000_000) as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::rig;

    use crate::engine::shared::TAG_REPLY;
    use crate::flow::target::TargetSpec;
    use crate::pattern::route::{Channel, Member};
    use crate::plan::HostPlan;
    use crate::sync::cell::CellState;

    fn order(slot: usize) -> Order {
        Order {
            kind: Kind::Message,
            slot,
            method: Method::new(""),
            payload: Bytes::new(),
            timeout: Duration::from_secs(1),
            inherited: None,
            depth: 0,
        }
    }

    fn target() -> Arc<Target> {
        Arc::new(Target::new(TargetSpec::peer(7)))
    }

    /// Routes that serve "news" at `target`.
    fn routes(target: &Arc<Target>) -> Arc<Routes> {
        let member = Member { node: "peer".into(), weight: 100, links: vec![target.clone()] };
        let mut routes = Routes { settled: true, ..Routes::default() };
        routes.channels.insert("news".into(), Channel { id: ChannelId(0), members: vec![member] });
        Arc::new(routes)
    }

    fn tag(begun: &Begun) -> Option<u64> {
        match begun {
            Begun::Cell { tag, .. } => Some(tag & !(TAG_REQUEST | TAG_REPLY)),
            _ => None,
        }
    }

    /// Routes come between two sends: the first is still on its way to its target, so the second goes
    /// after it; once the first has ended, the way is free.
    #[test]
    fn nobody_overtakes_an_operation_that_looks_for_its_target() {
        let (shared, _clock, _receivers) = rig::host(HostPlan::defaults("here", 1));
        let handle = Handle::new(shared.clone(), Class::Caller);
        let (slot, _held) = handle.slot(Named::Channel("news"));
        let first = handle.begin(order(slot), Waiter::Nobody);
        let second = handle.begin(order(slot), Waiter::Nobody);
        assert_eq!((tag(&first), tag(&second)), (Some(TAG_FINDING), Some(TAG_FINDING)));

        shared.routes.store(routes(&target()));
        assert_eq!(tag(&handle.begin(order(slot), Waiter::Nobody)), Some(TAG_FINDING), "the first goes before it");
        let (error, _) = handle.try_send(order(slot)).unwrap_err();
        assert_eq!(error.detail(), Detail::NotFoundYet);

        let live = [&first, &second].map(|begun| match begun {
            Begun::Cell { id, .. } => *id,
            _ => unreachable!("both wait"),
        });
        shared.end_all(ErrorKind::ShuttingDown);
        assert!(live.iter().all(|id| shared.cells.state(*id) == Some(CellState::Done)));
        assert!(matches!(handle.begin(order(slot), Waiter::Nobody), Begun::Accepted));
    }
}
