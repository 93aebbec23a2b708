//! Publishing: who subscribed, what each subscriber gets, and what is dropped for whom.
//!
//! ```text
//!   publish ─▶ table: matching subscribers ─▶ each one's queue ─▶ its lane, by whoever holds the baton
//!              (a walk along the topic)        (its mark, its policy)   its owner mostly
//! ```
//!
//! Everything up to the queues happens on the publishing thread, so that a publication is queued or
//! dropped, and counted, when `publish` returns; no shard is needed for it and none can hold it up. The
//! table is locked for one walk, a queue for one copy. A subscriber gets what is published after its
//! subscription was read, nothing from before.
//!
//! Invariant, per subscriber at any quiet moment: matched = written + dropped (by reason) + queued. Full:
//! a queue does as [`SlowSubscriber`] says; the table refuses, and that subscriber is disconnected.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;

use super::command::CompletionCommand;
use super::here;
use super::shared::{Class, HostShared, Life};
use crate::base::error::{Detail, Error, ErrorKind, Figures, SendError, Stage};
use crate::base::id::TargetId;
use crate::base::panic::caught;
use crate::base::time::{Instant, whole_millis};
use crate::base::unit::{FRAME_OVERHEAD, charge};
use crate::flow::backlog::INLINE_PAYLOAD_MAX;
use crate::flow::publications::{Amount, DropReason, Drops, Publication, Publications, Pushed};
use crate::flow::target::{Dialect, Flushed, Target, Writer};
use crate::pattern::topics::{SubscriberId, Topics};
use crate::plan::{PublisherPlan, SlowSubscriber};
use crate::sync::lock::Lock;
use crate::sync::parker;
use crate::sync::word::Gauge;
use crate::wire::command::Command;
use crate::wire::encode::encode_pair_head;
use crate::wire::frame::head_len;

/// Publications that were dropped for one subscriber.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Dropped {
    /// Whose: the identity that it told, or a number.
    pub subscriber: Arc<str>,
    /// Why.
    pub reason: DropReason,
    /// How many.
    pub records: u64,
    /// Their charged bytes: topic, payload and 96 each.
    pub bytes: u64,
}

/// Who wants to hear of drops.
pub type OnDrop = Arc<dyn Fn(&Dropped) + Send + Sync>;

/// The publishing side of a host.
pub struct Publishing {
    /// Its limits.
    pub plan: PublisherPlan,
    table: Lock<Table>,
    on_drop: Lock<Option<OnDrop>>,
    /// Publications that wait for room somewhere, and until when.
    waiting: Lock<Vec<(Instant, Waker)>>,
    /// When a shutdown no longer waits for subscribers, in nanoseconds.
    linger_until: Gauge,
    /// Publications.
    pub published: Gauge,
    /// Publications x subscribers.
    pub matched: Gauge,
    /// Publications that nobody had subscribed to.
    pub unmatched: Gauge,
    /// What was dropped, for all subscribers that there ever were.
    pub drops: Drops,
}

#[derive(Default)]
struct Table {
    topics: Topics,
    subscribers: Vec<Option<Subscriber>>,
    free: Vec<SubscriberId>,
    by_target: HashMap<TargetId, SubscriberId>,
    cost: u64,
}

struct Subscriber {
    target: Arc<Target>,
    cost: u64,
}

impl fmt::Debug for Publishing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publishing").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Publishing {
    /// Nobody subscribed yet.
    pub fn new(plan: PublisherPlan) -> Self {
        Publishing {
            plan,
            table: Lock::default(),
            on_drop: Lock::default(),
            waiting: Lock::default(),
            linger_until: Gauge::new(u64::MAX),
            published: Gauge::default(),
            matched: Gauge::default(),
            unmatched: Gauge::default(),
            drops: Drops::default(),
        }
    }

    /// The queue of a subscriber that has just connected.
    pub fn queue(&self) -> Box<Publications> {
        Box::new(Publications::new(self.plan.mark, self.plan.slow))
    }

    /// Who is to be told of drops.
    pub fn set_on_drop(&self, tell: OnDrop) {
        *self.on_drop.lock() = Some(tell);
    }

    /// A subscriber is up, with no subscription yet.
    pub fn join(&self, target: &Arc<Target>) {
        let table = &mut *self.table.lock();
        let who = table.free.pop().unwrap_or_else(|| {
            table.subscribers.push(None);
            table.subscribers.len() as SubscriberId - 1
        });
        table.subscribers[who as usize] = Some(Subscriber { target: target.clone(), cost: 0 });
        table.by_target.insert(target.id, who);
    }

    /// A subscriber is lost: nothing matches it any more.
    pub fn leave(&self, target: TargetId) {
        let table = &mut *self.table.lock();
        if let Some(who) = table.by_target.remove(&target) {
            table.topics.leave(who);
            table.cost -= table.subscribers[who as usize].take().map_or(0, |s| s.cost);
            table.free.push(who);
        }
    }

    /// A subscriber said what it wants. `Err`: it wants more than it may, and has to go.
    pub fn hear(&self, target: TargetId, command: &Command) -> Result<(), String> {
        let table = &mut *self.table.lock();
        // Read after its loss was noticed: of no interest.
        let Some(who) = table.by_target.get(&target).copied() else { return Ok(()) };
        let Some(subscriber) = table.subscribers[who as usize].as_mut() else { return Ok(()) };
        match command {
            Command::Subscribe(prefix) => {
                let cost = Topics::cost(prefix);
                let (own, all) = (self.plan.table / 4, self.plan.table);
                let too_much = subscriber.cost + cost > own || table.cost + cost > all;
                if too_much && !table.topics.contains(who, prefix) {
                    return Err(format!(
                        "its subscriptions take {} of {own} bytes, those of all {} of {all}",
                        subscriber.cost, table.cost
                    ));
                }
                if table.topics.subscribe(who, prefix) {
                    subscriber.cost += cost;
                    table.cost += cost;
                }
            }
            Command::Cancel(prefix) if table.topics.cancel(who, prefix) => {
                subscriber.cost -= Topics::cost(prefix);
                table.cost -= Topics::cost(prefix);
            }
            _ => {}
        }
        Ok(())
    }

    /// Prefixes of a subscriber.
    pub fn subscriptions_of(&self, target: TargetId) -> usize {
        let table = self.table.lock();
        table.by_target.get(&target).map_or(0, |who| table.topics.len_of(*who))
    }

    /// Prefixes of all.
    pub fn subscriptions(&self) -> u64 {
        self.table.lock().topics.len()
    }

    fn matching(&self, topic: &[u8]) -> Vec<Arc<Target>> {
        let mut found = Vec::new();
        let Table { topics, subscribers, .. } = &mut *self.table.lock();
        topics.matches(topic, |who| found.extend(subscribers[who as usize].as_ref().map(|s| s.target.clone())));
        found
    }

    /// Counts a drop and tells it. Runs the program's callback: hold nothing.
    pub fn drop_for(&self, shared: &HostShared, target: &Target, reason: DropReason, amount: Amount) {
        if amount.records == 0 {
            return;
        }
        self.drops.add(reason, amount);
        if let Some(queue) = &target.publications {
            queue.drops.add(reason, amount);
        }
        let Some(tell) = self.on_drop.lock().clone() else { return };
        let Amount { records, bytes } = amount;
        let dropped = Dropped { subscriber: target.label(), reason, records, bytes };
        if caught(|| tell(&dropped)).is_err() {
            shared.counts.handler_panics.add(1);
        }
    }

    /// A subscriber has taken something.
    pub fn note_written(&self, queue: &Publications, amount: Amount) {
        queue.note_written(amount);
        if self.plan.slow == SlowSubscriber::Wait && amount.records > 0 {
            self.wake_waiting();
        }
    }

    /// Wakes `waker` when there is room again somewhere, and at `end` at the latest.
    fn wait_for_room(&self, end: Instant, waker: &Waker) {
        let mut waiting = self.waiting.lock();
        if !waiting.iter().any(|(other, w)| *other == end && w.will_wake(waker)) {
            waiting.push((end, waker.clone()));
        }
    }

    /// Those who wait for room look again.
    pub fn wake_waiting(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Wakes those whose time is up, and says when to come back.
    pub fn expire(&self, now: Instant) -> Instant {
        let mut waiting = self.waiting.lock();
        let due = waiting.extract_if(.., |(end, _)| *end <= now).collect::<Vec<_>>();
        let next = waiting.iter().map(|(end, _)| *end).min().unwrap_or(Instant::NEVER);
        drop(waiting);
        due.into_iter().for_each(|(_, waker)| waker.wake());
        next
    }

    /// The host shuts down: subscribers have so long to take what is queued.
    pub fn linger(&self, now: Instant) {
        self.linger_until.set(now.after(self.plan.linger).0);
    }

    /// Whether a shutdown waits for this subscriber no longer.
    pub fn is_quiet(&self, target: &Target, now: Instant) -> bool {
        let empty = target.publications.as_ref().is_none_or(|queue| queue.outstanding().records == 0);
        empty || now.0 >= self.linger_until.get()
    }
}

/// What became of a publication when it was published.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Published {
    /// Subscribers for which it is queued.
    pub queued: u32,
    /// Subscribers for which it was dropped, because their queues were full.
    pub dropped: u32,
}

/// Publishes to whoever subscribed. Cheap to clone, for any thread; see [`Publisher::publish`].
#[derive(Clone, Debug)]
pub struct Publisher {
    shared: Arc<HostShared>,
}

impl Publisher {
    /// Of a host that publishes; else `NotConfigured`.
    pub(crate) fn new(shared: Arc<HostShared>) -> Result<Self, Error> {
        match shared.publishing {
            Some(_) => Ok(Publisher { shared }),
            None if cfg!(afflux_mutation = "role_unnamed") => Err(Error::new(ErrorKind::NotFound, Detail::None)),
            None => Err(Error::new(ErrorKind::NotConfigured, Detail::None)
                .with_text("this host has no publisher: HostBuilder::publisher makes it one")),
        }
    }

    /// A publication: each subscriber with a prefix of `topic` gets it once, however many of its
    /// prefixes fit. Nothing happens before [`Publish::wait`] or the first poll. Success says for how
    /// many subscribers it was queued, and with how many it was dropped; no subscriber at all is a
    /// success. Only with [`SlowSubscriber::Wait`] can it wait. It fails, with the payload given back
    /// and nothing queued, if topic and payload together are larger than `max_message_size`
    /// (`Rejected`), while the host shuts down, or if it waited in vain.
    ///
    /// One thread's publications reach a subscriber in their order.
    pub fn publish(&self, topic: impl AsRef<[u8]>, payload: impl Into<Bytes>) -> Publish {
        let (topic, payload) = (topic.as_ref(), payload.into());
        let heads = head_len(topic.len() as u64) + head_len(payload.len() as u64);
        let small = heads + topic.len() + payload.len() <= INLINE_PAYLOAD_MAX;
        let mut head = Vec::with_capacity(heads + topic.len() + if small { payload.len() } else { 0 });
        encode_pair_head(topic, payload.len(), &mut head);
        if small {
            head.extend_from_slice(&payload);
        }
        let charge = charge(payload.len(), topic.len()) + FRAME_OVERHEAD;
        let carried = if small { Bytes::new() } else { payload.clone() };
        Publish {
            shared: self.shared.clone(),
            topic: head_len(topic.len() as u64)..head_len(topic.len() as u64) + topic.len(),
            payload,
            publication: Publication { head: head.into(), payload: carried, charge },
            timeout: None,
            waiting: None,
        }
    }
}

/// A publication that is not started. Dropped before its end nothing of it is published.
#[must_use = "nothing is published before wait() or await"]
pub struct Publish {
    shared: Arc<HostShared>,
    /// Where it lies in the head.
    topic: Range<usize>,
    payload: Bytes,
    publication: Publication,
    timeout: Option<Duration>,
    waiting: Option<Waiting>,
}

/// It found no room somewhere, with [`SlowSubscriber::Wait`].
struct Waiting {
    since: Instant,
    end: Instant,
    class: Class,
    /// In the order of their ids, so that of several publications that wait one can always go on.
    targets: Vec<Arc<Target>>,
    /// In so many of them room is reserved.
    reserved: usize,
}

impl fmt::Debug for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topic = self.topic().escape_ascii().to_string();
        f.debug_struct("Publish").field("topic", &topic).field("waits", &self.waiting.is_some()).finish_non_exhaustive()
    }
}

type End = Result<Published, SendError>;

impl Publish {
    /// A ceiling of its own, with [`SlowSubscriber::Wait`]: the smaller of it and the publisher's holds.
    /// Rounded up to ms, 1..=2,147,483,647 ms; another value ends the publication in `InvalidOperation`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Publishes from this thread. On a thread of a runtime it never blocks: without room, with
    /// [`SlowSubscriber::Wait`], it ends at once in `InvalidOperation`; await it there.
    pub fn wait(mut self) -> Result<Published, SendError> {
        let may_block = !here::is_runtime_thread();
        let stands = parker::stand();
        loop {
            match self.step(&parker::thread_waker(), may_block) {
                Poll::Ready(end) => return end,
                Poll::Pending => {
                    let now = self.shared.clock.now();
                    stands.park(self.waiting.as_ref().map_or(Duration::ZERO, |w| w.end.since(now)));
                }
            }
        }
    }

    fn topic(&self) -> &[u8] {
        &self.publication.head[self.topic.clone()]
    }

    /// As far as it comes now. `may_wait`: somebody comes back when `waker` is woken.
    fn step(&mut self, waker: &Waker, may_wait: bool) -> Poll<End> {
        let shared = self.shared.clone();
        let Some(publishing) = &shared.publishing else {
            return self.fail(ErrorKind::NotConfigured, Detail::None, |_| {});
        };
        if shared.life() != Life::Serving {
            return self.fail(ErrorKind::ShuttingDown, Detail::None, |_| {});
        }
        let now = shared.clock.now();
        if self.waiting.is_none() {
            let size = (self.topic.len() + self.payload.len()) as u64;
            if size > shared.plan.max_message {
                return self.fail(ErrorKind::Rejected, Detail::MessageTooLarge, |n| {
                    (n.requested, n.limit) = (Some(size), Some(shared.plan.max_message));
                });
            }
            let ceiling = publishing.plan.timeout;
            let Some(timeout) = self.timeout.map_or(Some(ceiling), whole_millis) else {
                return self.fail(ErrorKind::InvalidOperation, Detail::None, |_| {});
            };
            let mut targets = publishing.matching(self.topic());
            if publishing.plan.slow != SlowSubscriber::Wait {
                return Poll::Ready(Ok(self.deliver(publishing, &targets, now)));
            }
            targets.sort_unstable_by_key(|target| target.id);
            let reserved = self.reserve(&targets, 0);
            if reserved == targets.len() {
                return Poll::Ready(Ok(self.deliver(publishing, &targets, now)));
            }
            let charge = self.publication.charge;
            if !may_wait {
                unreserve(&targets[..reserved], charge);
                return self.fail(ErrorKind::InvalidOperation, Detail::WaitOnShard, |_| {});
            }
            let class = if here::is_runtime_thread() { Class::Handler } else { Class::Caller };
            if let Err(error) = shared.enter_room(None, class, charge) {
                unreserve(&targets[..reserved], charge);
                return Poll::Ready(Err(SendError::new(error, std::mem::take(&mut self.payload))));
            }
            shared.counts.waits.add(1);
            let end = now.after(timeout.min(ceiling));
            self.waiting = Some(Waiting { since: now, end, class, targets, reserved });
        }
        let Some(mut waiting) = self.waiting.take() else { return Poll::Pending };
        // First in the list, then the look: room that comes in between is told.
        publishing.wait_for_room(waiting.end, waker);
        shared.completion.wake.wake();
        waiting.reserved = self.reserve(&waiting.targets, waiting.reserved);
        if waiting.reserved == waiting.targets.len() {
            leave_room(&shared, &waiting, self.publication.charge);
            return Poll::Ready(Ok(self.deliver(publishing, &waiting.targets, now)));
        }
        let slowest = waiting.targets[waiting.reserved].clone();
        let (since, end) = (waiting.since, waiting.end);
        self.waiting = Some(waiting);
        if now < end {
            return Poll::Pending;
        }
        shared.counts.no_room.add(1);
        let requested = self.publication.charge;
        self.fail(ErrorKind::DeadlineExceeded, Detail::NoRoom, |n| {
            n.target = Some(slowest.label());
            n.stage = Some(Stage::Room);
            n.requested = Some(requested);
            n.used = slowest.publications.as_ref().map(|queue| queue.outstanding().bytes);
            n.limit = Some(publishing.plan.mark);
            n.waited = Some(now.since(since));
        })
    }

    /// Takes room in `targets` from the one at `from` on; says which one has none.
    fn reserve(&self, targets: &[Arc<Target>], from: usize) -> usize {
        let charge = self.publication.charge;
        let full = |target: &Arc<Target>| target.publications.as_ref().is_some_and(|queue| !queue.reserve(charge));
        targets[from..].iter().position(full).map_or(targets.len(), |at| from + at)
    }

    /// Into the queues of all, and to work.
    fn deliver(&self, publishing: &Publishing, targets: &[Arc<Target>], now: Instant) -> Published {
        let shared = &self.shared;
        publishing.published.add(1);
        publishing.matched.add(targets.len() as u64);
        publishing.unmatched.add(u64::from(targets.is_empty()));
        let mut published = Published::default();
        let alone = Amount { records: 1, bytes: self.publication.charge };
        for target in targets {
            let Some(queue) = &target.publications else { continue };
            match queue.push(&self.publication, now) {
                Pushed::Queued { first, oldest } => {
                    published.queued += 1;
                    // Else somebody is about to write, or waits until the connection takes more. Never this
                    // thread: a shard writes many publications at once.
                    if first {
                        shared.port(target.owner).poke(target);
                    }
                    publishing.drop_for(shared, target, DropReason::Oldest, oldest);
                }
                Pushed::Dropped { stalled } => {
                    published.dropped += 1;
                    publishing.drop_for(shared, target, DropReason::Newest, alone);
                    if stalled {
                        disconnect(shared, target, queue);
                    }
                }
                Pushed::Closed => {
                    published.dropped += 1;
                    publishing.drop_for(shared, target, DropReason::Disconnected, alone);
                }
            }
        }
        published
    }

    fn fail(&mut self, kind: ErrorKind, detail: Detail, fill: impl FnOnce(&mut Figures)) -> Poll<End> {
        self.give_up();
        let payload = std::mem::take(&mut self.payload);
        Poll::Ready(Err(SendError::new(Error::new(kind, detail).with(fill), payload)))
    }

    /// Gives back what it holds while it waits.
    fn give_up(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            unreserve(&waiting.targets[..waiting.reserved], self.publication.charge);
            leave_room(&self.shared, &waiting, self.publication.charge);
            if let Some(publishing) = &self.shared.publishing {
                publishing.wake_waiting();
            }
        }
    }
}

impl Future for Publish {
    type Output = Result<Published, SendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        self.step(cx.waker(), true)
    }
}

impl Drop for Publish {
    fn drop(&mut self) {
        self.give_up();
    }
}

fn unreserve(targets: &[Arc<Target>], charge: u64) {
    for queue in targets.iter().filter_map(|target| target.publications.as_ref()) {
        queue.unreserve(charge);
    }
}

fn leave_room(shared: &HostShared, waiting: &Waiting, charge: u64) {
    if waiting.class == Class::Caller {
        shared.callers_room.leave(charge);
    }
    shared.room.leave(charge);
}

/// Has a subscriber disconnected that has not moved for too long.
fn disconnect(shared: &HostShared, target: &Arc<Target>, queue: &Publications) {
    if queue.ousted.raise() {
        let reason = "it takes no publications".to_string();
        let lost = CompletionCommand::Lost { target: target.clone(), link: target.link.get(), reason };
        if shared.completion.command(lost).is_err() {
            // Told with the next drop.
            queue.ousted.lower();
        }
    }
}

/// The write half of a subscriber's lane in the hands of whoever holds it.
pub(super) struct Subscribed<'a> {
    shared: &'a Arc<HostShared>,
    publishing: &'a Publishing,
    target: &'a Arc<Target>,
    queue: &'a Publications,
    /// Bytes that this holder still writes: what publishers add meanwhile must not keep it here.
    budget: u64,
    more: bool,
    left: Option<Amount>,
}

impl<'a> Subscribed<'a> {
    /// `None`: the target is no subscriber.
    pub(super) fn new(shared: &'a Arc<HostShared>, target: &'a Arc<Target>) -> Option<Self> {
        if target.dialect != Dialect::Subscriber {
            return None;
        }
        let (publishing, queue) = (shared.publishing.as_ref()?, target.publications.as_ref()?);
        let budget = shared.plan.turn.write_bytes_per_link as u64;
        Some(Subscribed { shared, publishing, target, queue, budget, more: false, left: None })
    }

    /// Writes what is staged and what is queued.
    pub(super) fn write(&mut self, writer: &mut Writer<()>) {
        loop {
            let mut written = Amount::default();
            let flushed = writer.flush(|records, charges| {
                written.records += records;
                written.bytes += charges;
            });
            // Before the look at the queue: who publishes later finds nothing outstanding and drives.
            self.publishing.note_written(self.queue, written);
            self.budget = self.budget.saturating_sub(written.bytes);
            if flushed != Flushed::Empty {
                return;
            }
            if self.budget == 0 {
                self.more = true;
                return;
            }
            if !self.queue.stage(&mut writer.egress) {
                return;
            }
        }
    }

    /// The connection has ended.
    pub(super) fn close(&mut self) {
        self.left = Some(self.queue.close());
    }

    /// The write half was let go: tells what was lost, and who goes on.
    pub(super) fn end(self) {
        if let Some(left) = self.left {
            let reason =
                if self.shared.life() == Life::Serving { DropReason::Disconnected } else { DropReason::Shutdown };
            self.publishing.drop_for(self.shared, self.target, reason, left);
            self.publishing.wake_waiting();
        } else if self.more {
            self.shared.port(self.target.owner).poke(self.target);
        }
    }
}
