//! Publishing and subscribing as a user states it, and what can be seen of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::options::HostBuilder;
use super::{Host, SeatFactory};
use crate::base::error::{Error, Violation};
use crate::base::unit::ByteSize;
use crate::engine::handler::Handler;
use crate::engine::publish::{Dropped, OnDrop, Publisher};
use crate::engine::seat::Seat;
use crate::engine::shared::HostShared;
use crate::engine::subscribe::{Subscriber, SubscriberSeat};
use crate::flow::publications::{Amount, DropReason, Drops};
use crate::plan::SlowSubscriber;

/// How a host publishes, as the user states it: [`HostBuilder::publisher`]. Nothing is judged before
/// `start`.
#[derive(Clone)]
#[must_use = "options do nothing until they are given to HostBuilder::publisher"]
pub struct PublisherOptions {
    pub(crate) hwm: ByteSize,
    pub(crate) slow: SlowSubscriber,
    pub(crate) linger: Duration,
    pub(crate) timeout: Duration,
    pub(crate) table: ByteSize,
    pub(crate) on_drop: Option<OnDrop>,
}

impl Default for PublisherOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for PublisherOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PublisherOptions { hwm, slow, linger, timeout, table, .. } = self;
        let mut out = f.debug_struct("PublisherOptions");
        out.field("hwm", hwm).field("slow", slow).field("linger", linger).field("timeout", timeout);
        out.field("subscription_table", table).finish_non_exhaustive()
    }
}

impl PublisherOptions {
    /// A queue of 1 MiB per subscriber, whose newest publications are dropped when it is full.
    pub fn new() -> Self {
        PublisherOptions {
            hwm: ByteSize::mib(1),
            slow: SlowSubscriber::default(),
            linger: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            table: ByteSize::mib(64),
            on_drop: None,
        }
    }

    /// The mark of each subscriber's queue, charged bytes (topic + payload + 96 per publication),
    /// 1..=32 GiB, default 1 MiB. An empty queue takes one publication larger than its mark. There is no
    /// "unlimited".
    pub fn hwm(mut self, mark: ByteSize) -> Self {
        self.hwm = mark;
        self
    }

    /// What happens at that mark; see [`SlowSubscriber`]. Default: the newest is dropped. A stall of
    /// `Disconnect` is in whole ms, 1..=2,147,483,647 ms.
    pub fn slow_subscriber(mut self, slow: SlowSubscriber) -> Self {
        self.slow = slow;
        self
    }

    /// How long a shutdown waits for subscribers to take what is queued for them, within its own
    /// deadline. Whole ms, default 1 s. What is left then is dropped and counted.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// Ceiling of a publication that waits, which only [`SlowSubscriber::Wait`] makes it do. Rounded up
    /// to ms, 1..=2,147,483,647 ms, default 1 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// What the subscriptions of all subscribers may take of memory, bytes, 4 KiB..=512 GiB, default 64 MiB:
    /// each its prefix and 384. One subscriber has a quarter at most. Whoever wants more is disconnected.
    pub fn subscription_table(mut self, size: ByteSize) -> Self {
        self.table = size;
        self
    }

    /// Is told of every drop, on the thread that finds it: a publishing one, mostly, or one of the
    /// runtime. It must not block. A panic in it is caught and counted with those of handlers.
    pub fn on_drop(mut self, tell: impl Fn(&Dropped) + Send + Sync + 'static) -> Self {
        self.on_drop = Some(Arc::new(tell));
        self
    }
}

/// What a user stated about one role that subscribes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SubscriberOption {
    pub(crate) name: String,
    pub(crate) publishers: Vec<String>,
    pub(crate) accepts: bool,
    pub(crate) topics: Vec<Vec<u8>>,
}

impl HostBuilder {
    /// Publishes to whoever connects to a [`listen`](Self::listen) address and subscribes: afflux
    /// subscribers and every ZeroMQ SUB. Twice is refused: a host has one publisher, and topics tell its
    /// publications apart. Without it subscribers are refused.
    pub fn publisher(mut self, options: PublisherOptions) -> Self {
        if self.options.publisher.replace(options).is_some() {
            self.options.misplaced.push(Violation {
                option: "publisher",
                value: "a second one".into(),
                rule: "one publisher per host; topics tell its publications apart".into(),
            });
        }
        self
    }

    /// Subscribes to publishers elsewhere: [`publisher_at`](Self::publisher_at) and
    /// [`topic`](Self::topic) speak of the subscriber before them. `factory` is called once on each shard,
    /// there, with the shard's number; [`Handler::publication`] gets what comes, by the shard that has the
    /// connection, under the same permits as everything else. A name is as that of a channel, and each
    /// once; at most 256.
    pub fn subscriber<H: Handler>(
        mut self,
        name: impl Into<String>,
        factory: impl Fn(usize) -> H + Send + Sync + 'static,
    ) -> Self {
        let option = SubscriberOption { name: name.into(), publishers: Vec::new(), accepts: false, topics: Vec::new() };
        self.options.subscribers.push(option);
        let factory = Arc::new(factory);
        let seat: SeatFactory = Arc::new(move |shard, seat| -> Box<dyn Seat> {
            Box::new(SubscriberSeat::new(factory.clone(), shard, seat))
        });
        self.roles.subscribers.push(seat);
        self
    }

    /// A publisher of the subscriber before: the `tcp://host:port` of an afflux host with a publisher, or
    /// of a ZeroMQ PUB or XPUB. Dialled, and dialled again whenever the connection is lost; everything that
    /// is subscribed to is told anew then. Several may be named; each has one connection, and their
    /// publications come in no order among each other. A subscriber without one is refused, unless
    /// [`publishers_connect`](Self::publishers_connect).
    pub fn publisher_at(self, addr: impl Into<String>) -> Self {
        let addr = addr.into();
        self.on_subscriber("publisher_at", addr.clone(), |subscriber| subscriber.publishers.push(addr))
    }

    /// ZeroMQ PUB and XPUB sockets that connect to a [`listen`](Self::listen) address are publishers of the
    /// subscriber before, beside those that it dials. Of one subscriber per host, because a connection does not
    /// say whom it is for; without `listen`: refused. Default: such sockets are refused.
    pub fn publishers_connect(self) -> Self {
        self.on_subscriber("publishers_connect", "stated".into(), |subscriber| subscriber.accepts = true)
    }

    /// Topics that begin with `prefix` are wanted by the subscriber before, from the start; the empty prefix
    /// is every topic. None is right too: [`Subscriber::subscribe`] asks for more at any time. At most 16,384
    /// of 4 KiB each, and 1 MiB together.
    pub fn topic(self, prefix: impl AsRef<[u8]>) -> Self {
        let prefix = prefix.as_ref().to_vec();
        let shown = prefix.escape_ascii().to_string();
        self.on_subscriber("topic", shown, |subscriber| subscriber.topics.push(prefix))
    }

    fn on_subscriber(mut self, option: &'static str, value: String, set: impl FnOnce(&mut SubscriberOption)) -> Self {
        match self.options.subscribers.last_mut() {
            Some(subscriber) => set(subscriber),
            None => self.options.misplaced.push(Violation {
                option,
                value,
                rule: "speaks of the subscriber before it, and there is none".into(),
            }),
        }
        self
    }
}

impl Host {
    /// Publishes to whoever subscribed at this host. `NotConfigured` without
    /// [`HostBuilder::publisher`].
    pub fn publisher(&self) -> Result<Publisher, Error> {
        Publisher::new(self.shared().clone())
    }

    /// The role of that name, to subscribe and unsubscribe at run time. `NotConfigured` if there is no
    /// [`HostBuilder::subscriber`] of that name.
    pub fn subscriber(&self, name: &str) -> Result<Subscriber, Error> {
        Subscriber::new(self.shared().clone(), name)
    }
}

/// What was dropped, by reason: records and charged bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DropCounts {
    /// See [`DropReason::Newest`].
    pub newest: Amount,
    /// See [`DropReason::Oldest`].
    pub oldest: Amount,
    /// See [`DropReason::Disconnected`].
    pub disconnected: Amount,
    /// See [`DropReason::Shutdown`].
    pub shutdown: Amount,
}

impl DropCounts {
    fn of(drops: &Drops) -> Self {
        DropCounts {
            newest: drops.get(DropReason::Newest),
            oldest: drops.get(DropReason::Oldest),
            disconnected: drops.get(DropReason::Disconnected),
            shutdown: drops.get(DropReason::Shutdown),
        }
    }

    /// All reasons together.
    pub fn total(&self) -> Amount {
        [self.newest, self.oldest, self.disconnected, self.shutdown].iter().fold(Amount::default(), |sum, more| {
            Amount { records: sum.records + more.records, bytes: sum.bytes + more.bytes }
        })
    }
}

/// One subscriber that is connected.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SubscriberStatus {
    /// The identity that it told, or a number.
    pub subscriber: Arc<str>,
    /// The shard that owns its connection.
    pub shard: usize,
    /// Prefixes that it asked for.
    pub subscriptions: usize,
    /// Publications that it has not taken: records and charged bytes.
    pub queued: Amount,
    /// Publications written whole.
    pub written: Amount,
    /// Publications that it did not get.
    pub dropped: DropCounts,
}

/// The publishing side of a host. At a quiet moment `matched` is the sum, over all subscribers that there
/// ever were, of what was written, dropped and is queued.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PublisherStatus {
    /// Publications.
    pub published: u64,
    /// Publications times the subscribers that each matched.
    pub matched: u64,
    /// Publications that nobody had subscribed to.
    pub unmatched: u64,
    /// Subscriptions of all subscribers.
    pub subscriptions: u64,
    /// The mark of each queue, bytes.
    pub hwm: u64,
    /// Publications dropped, for subscribers that are gone too.
    pub dropped: DropCounts,
    /// Those connected.
    pub subscribers: Vec<SubscriberStatus>,
}

impl PublisherStatus {
    pub(crate) fn of(shared: &HostShared) -> Option<Self> {
        let publishing = shared.publishing.as_ref()?;
        let targets = shared.targets.lock().clone();
        let subscribers = targets.iter().filter_map(|target| {
            let queue = target.publications.as_ref()?;
            Some(SubscriberStatus {
                subscriber: target.label(),
                shard: target.owner.index(),
                subscriptions: publishing.subscriptions_of(target.id),
                queued: queue.outstanding(),
                written: Amount { records: queue.written.get(), bytes: queue.written_bytes.get() },
                dropped: DropCounts::of(&queue.drops),
            })
        });
        Some(PublisherStatus {
            published: publishing.published.get(),
            matched: publishing.matched.get(),
            unmatched: publishing.unmatched.get(),
            subscriptions: publishing.subscriptions(),
            hwm: publishing.plan.mark,
            dropped: DropCounts::of(&publishing.drops),
            subscribers: subscribers.collect(),
        })
    }
}
