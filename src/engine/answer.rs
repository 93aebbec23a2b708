//! Answers: every request gets exactly one, whatever becomes of its handler. An answer leaves on
//! the completion lane, outside permits and ordinary marks (promise 3), under marks of its own.
//!
//! ```text
//!   answer ─▶ below the peer's and the host's mark? ─┬─ yes ─▶ the lane: written at once, or by whoever writes now
//!                                                    └─ no ──▶ a cell in the waiting room ─┬─ room ─▶ the lane
//!                                                                                          └─ ceiling ─▶ a small error instead
//! ```

use std::borrow::Borrow;
use std::ops::Deref;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;

use super::lanes;
use super::seat::Peer;
use super::shared::{Body, Class, HostShared, Op, Outcome, SMALL_REPLY_MAX, TAG_REPLY, TAG_REQUEST, error_record};
use crate::base::error::{Detail, Error, ErrorKind};
use crate::base::id::{CellId, ShardId};
use crate::base::record::{Kind, Lane, Record};
use crate::base::time::Instant;
use crate::flow::target::{Dialect, Post, Target};
use crate::pattern::route::Address;
use crate::sync::cell::{CellState, Notify, Terms};
use crate::wire::decode::Whole;
use crate::wire::header::{ErrorBody, Header};

/// Who asks, and the shard that handles it.
#[derive(Clone, Debug)]
pub struct Party {
    /// The host.
    pub shared: Arc<HostShared>,
    /// The link on which the peer's requests come.
    pub target: Arc<Target>,
    /// The shard.
    pub shard: ShardId,
}

impl Deref for Party {
    type Target = Arc<Target>;

    #[inline]
    fn deref(&self) -> &Arc<Target> {
        &self.target
    }
}

/// Where the answer to one request goes. Whoever holds it owes the answer. On its shard it shares the party with
/// the peer's other jobs there.
#[derive(Debug)]
pub struct Debt<P = Peer> {
    /// Who asks.
    pub party: P,
    /// The attach on which it came.
    pub link: u64,
    /// The asking side's name for it.
    pub correlation: u64,
    /// A stock peer's envelope.
    pub envelope: Option<Box<[u8]>>,
    /// Its started place on its shard.
    pub place: u32,
}

impl Debt {
    /// To be paid by any thread.
    pub fn into_remote(self) -> Debt<Party> {
        let Debt { party, link, correlation, envelope, place } = self;
        Debt { party: (*party).clone(), link, correlation, envelope, place }
    }
}

impl<P: Borrow<Party>> Debt<P> {
    /// Pays with a reply.
    pub fn reply(self, payload: Bytes) {
        let record = reply(self.correlation, self.envelope, payload);
        let Party { shared, target, .. } = self.party.borrow();
        answer(shared, target, self.link, record);
    }

    /// The same without writing it. Who asked, if somebody has to come by the lane: the caller sees to that.
    #[inline]
    pub fn leave_reply(self, payload: Bytes) -> Option<P> {
        let Party { shared, target, .. } = self.party.borrow();
        leave(shared, target, self.link, reply(self.correlation, self.envelope, payload)).then_some(self.party)
    }

    /// Pays with an error.
    pub fn fail(self, kind: ErrorKind, code: u16, text: &str) {
        let record = error_record(self.correlation, self.envelope, kind, code, text);
        let Party { shared, target, .. } = self.party.borrow();
        answer(shared, target, self.link, record);
    }
}

#[inline]
fn reply(correlation: u64, envelope: Option<Box<[u8]>>, payload: Bytes) -> Record {
    Record { kind: Kind::Reply, correlation, envelope, payload, ..Record::empty() }
}

/// Sends an answer.
pub fn answer(shared: &Arc<HostShared>, target: &Arc<Target>, link: u64, record: Record) {
    if target.dialect == Dialect::Local {
        end_here(shared, target, record);
    } else if admit(shared, target, link, &record) {
        lanes::answer(shared, target, link, record);
    } else {
        wait(shared, target, link, record);
    }
}

/// Leaves a reply with its lane without writing it; false if there is nothing to be written.
#[inline]
fn leave(shared: &Arc<HostShared>, target: &Arc<Target>, link: u64, mut record: Record) -> bool {
    if target.dialect == Dialect::Local {
        end_here(shared, target, record);
        return false;
    }
    let admitted = admit(shared, target, link, &record);
    if admitted {
        lanes::leave_answer(shared, target, link, &mut record);
    } else {
        wait(shared, target, link, record);
    }
    admitted
}

/// Who asked is in this process: the answer is there when it is made.
fn end_here(shared: &Arc<HostShared>, target: &Arc<Target>, record: Record) {
    let mut wakes = Vec::new();
    if take_reply(shared, target, record.into(), shared.clock.now(), &mut wakes).is_some() {
        shared.leave_slots(target, 1);
    }
    wakes.into_iter().for_each(Waker::wake);
}

/// Whether an answer may be given to its lane now; else it waits for room.
#[inline]
fn admit(shared: &HostShared, target: &Target, link: u64, record: &Record) -> bool {
    let charge = record.charge();
    // Errors are small and bounded by the requests that were started: always admitted.
    if record.kind == Kind::Error {
        target.replies.force(charge);
        shared.replies.force(charge);
        return true;
    }
    enter_replies(shared, target, link, charge)
}

fn enter_replies(shared: &HostShared, target: &Target, link: u64, charge: u64) -> bool {
    // What answers a link that is gone waits for nothing: whoever writes next drops it.
    if (link == 0 || target.link.get() != link) && !cfg!(afflux_mutation = "gone_reply_waits") {
        target.replies.force(charge);
        shared.replies.force(charge);
        return true;
    }
    if target.replies.enter(charge).is_err()
        || (cfg!(afflux_mutation = "pause_holds_replies") && target.mark.is_blocked())
    {
        return false;
    }
    if shared.replies.enter(charge).is_err() {
        // A peer below its part of the host's mark is never refused because of the others.
        let fair_part = shared.plan.reply.host / u64::from(shared.plan.peers_max).max(1);
        if target.replies.bytes() <= fair_part {
            shared.replies.force(charge);
            return true;
        }
        // Its own lane may be empty: it is told when others have made room.
        shared.short.raise();
        if shared.replies.enter(charge).is_err() {
            target.replies.leave(charge);
            return false;
        }
    }
    true
}

/// Lets a reply wait for room, under the socket's own ceiling; never under the caller's deadline.
fn wait(shared: &Arc<HostShared>, target: &Arc<Target>, link: u64, record: Record) {
    let since = shared.clock.now();
    let (correlation, charge) = (record.correlation, record.charge());
    let envelope = record.envelope.clone();
    let refuse = || {
        shared.counts.reply_room_refused.add(1);
        let text = "no room for the reply on its lane";
        answer(shared, target, link, error_record(correlation, envelope, ErrorKind::CapacityExceeded, 0, text));
    };
    if shared.enter_room(Some(target), Class::Handler, charge).is_err() {
        return refuse();
    }
    let op = Op {
        target: Some(target.clone()),
        address: Address::Node(target.label()),
        record,
        class: Class::Handler,
        since,
        link,
    };
    let Some(place) = shared.cells.alloc() else {
        shared.leave_room(&op);
        return refuse();
    };
    let id = place.id();
    shared.counts.waits.add(1);
    let deadline = since.after(shared.plan.send_timeout);
    let tag = TAG_REPLY | target.id.0;
    let terms = Terms { deadline, since, tag, notify: Notify::None, self_timed: false };
    // Published before it stands in line: whoever makes room takes what is not waiting for over.
    if place.publish_waiting(op, terms) {
        shared.completion.wake.wake();
    }
    target.reply_waiters.lock().push_back(id);
    if shared.cells.state(id) != Some(CellState::Waiting) {
        target.reply_waiters.lock().retain(|waiter| *waiter != id);
    }
    shared.cells.detach(id);
    // Room may have come between the refusal and now.
    admit_waiting(shared, target);
    lanes::drive_completion(shared, target);
}

/// Admits replies that wait at the mark of `target`, oldest first. Called by whoever made room.
pub fn admit_waiting(shared: &Arc<HostShared>, target: &Arc<Target>) {
    loop {
        let Some(id) = target.reply_waiters.lock().front().copied() else { return };
        let terms = shared.cells.with_waiting(id, |op| (op.record.charge(), op.link));
        let fits = terms.is_none_or(|(charge, link)| enter_replies(shared, target, link, charge));
        let charge = terms.map(|(charge, _)| charge);
        if !fits {
            return;
        }
        let taken = {
            let mut waiters = target.reply_waiters.lock();
            (waiters.front() == Some(&id)).then(|| waiters.pop_front()).is_some()
        };
        if !taken {
            if let Some(charge) = charge {
                target.replies.leave(charge);
                shared.replies.leave(charge);
            }
            continue;
        }
        match (charge, shared.cells.claim(id)) {
            (Some(_), Some(op)) => {
                shared.leave_room(&op);
                shared.cells.finish(id, |_| Outcome::Accepted);
                // Within a write this leaves it to the writer, who is the caller; elsewhere the
                // caller drives the lane next.
                drop(target.completion.post(Post::Reply { link: op.link, record: op.record }));
            }
            (Some(charge), None) => {
                target.replies.leave(charge);
                shared.replies.leave(charge);
            }
            (None, _) => {}
        }
    }
}

/// The end of a reply's wait without room: the caller gets a small error in its place.
pub fn expired(shared: &Arc<HostShared>, id: CellId, now: Instant) {
    let mut late = None;
    shared.cells.finish(id, |op| {
        late = op;
        Outcome::Accepted
    });
    let Some(op) = late else { return };
    shared.leave_room(&op);
    shared.counts.reply_room_refused.add(1);
    if let Some(target) = &op.target {
        // A peer that takes nothing must not make the list grow by those whose time was up.
        target.reply_waiters.lock().retain(|waiter| *waiter != id);
        let error = shared.waiting_error(ErrorKind::DeadlineExceeded, Detail::ReplyRoom, &op, now);
        let record = op.record;
        let text = error.to_string();
        answer(shared, target, op.link, error_record(record.correlation, record.envelope, error.kind(), 0, &text));
    }
}

/// A reply or error as it arrives.
#[derive(Debug)]
pub struct Arrived<'a> {
    kind: Kind,
    /// Of an error, the number of its kind.
    channel: u16,
    correlation: u64,
    payload: Payload<'a>,
}

/// Copied only if its request seems to live.
#[derive(Debug)]
enum Payload<'a> {
    Made(Bytes),
    InBlock(&'a [u8]),
}

impl<'a> Arrived<'a> {
    /// One that lies whole in a block.
    #[inline]
    pub fn of(whole: Whole<'a>) -> Self {
        let Header { kind, channel, correlation, .. } = whole.header;
        Arrived { kind, channel, correlation, payload: Payload::InBlock(whole.payload()) }
    }
}

impl From<Record> for Arrived<'_> {
    fn from(record: Record) -> Self {
        let Record { kind, channel, correlation, payload, .. } = record;
        Arrived { kind, channel, correlation, payload: Payload::Made(payload) }
    }
}

impl Deref for Payload<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Payload::Made(bytes) => bytes,
            Payload::InBlock(bytes) => bytes,
        }
    }
}

impl Payload<'_> {
    #[inline]
    fn into_bytes(self) -> Bytes {
        match self {
            Payload::Made(bytes) => bytes,
            Payload::InBlock(bytes) => Bytes::copy_from_slice(bytes),
        }
    }
}

/// A reply or error has arrived: it ends its request, if that has not ended, and says how long it took.
/// Whoever waits for it is put into `wakes`. If it says so, the caller gives the request's slot back
/// ([`HostShared::leave_slots`]), with those of others.
pub fn take_reply(
    shared: &HostShared,
    target: &Arc<Target>,
    arrived: Arrived<'_>,
    now: Instant,
    wakes: &mut Vec<Waker>,
) -> Option<Duration> {
    let Arrived { kind, channel, correlation, payload } = arrived;
    let id = CellId::from_correlation(correlation);
    let tag = TAG_REQUEST | target.id.0;
    if cfg!(afflux_mutation = "reply_needs_permit") && shared.gate.snapshot(now).in_use == shared.plan.jobs.limit {
        return None;
    }
    let Some(times) = shared.cells.times(id).filter(|times| times.tag == tag) else {
        shared.counts.late_replies.add(1);
        return None;
    };
    // The deadline goes first, whoever is quicker.
    if now > times.deadline {
        shared.counts.late_replies.add(1);
        shared.expire(id, tag, Some(target), now);
        return None;
    }
    let outcome = match kind {
        Kind::Error => {
            let body = ErrorBody::parse(&payload);
            let kind = ErrorKind::from_wire(channel);
            let error = Error::remote(kind, body.code, body.sentence).with(|n| n.target = Some(target.label()));
            Outcome::Failed { error, payload: None }
        }
        _ if payload.len() <= SMALL_REPLY_MAX => Outcome::Reply(Body::free(payload.into_bytes())),
        _ => match shared.hold.enter(payload.len() as u64) {
            Ok(()) => Outcome::Reply(Body::held(payload.into_bytes(), &shared.hold)),
            Err(_) if cfg!(afflux_mutation = "hold_unbounded") => Outcome::Reply(Body::free(payload.into_bytes())),
            // Those whom nobody takes do not cost the reply of somebody who waits for it.
            Err(_)
                if shared.cells.is_awaited(id)
                    && !cfg!(afflux_mutation = "awaited_refused")
                    && shared.awaited.enter(payload.len() as u64).is_ok() =>
            {
                Outcome::Reply(Body::held(payload.into_bytes(), &shared.awaited))
            }
            Err(full) => {
                shared.counts.reply_hold_refused.add(1);
                let error = Error::new(ErrorKind::CapacityExceeded, Detail::ReplyHold).with(|n| {
                    n.target = Some(target.label());
                    n.lane = Some(Lane::Completion);
                    (n.requested, n.used, n.limit) =
                        (Some(payload.len() as u64), Some(full.bytes), Some(full.bytes_max));
                });
                Outcome::Failed { error, payload: None }
            }
        },
    };
    if shared.cells.finish_claimed_later(id, outcome, wakes).is_err() {
        shared.counts.late_replies.add(1);
        return None;
    }
    Some(now.since(times.since))
}
