//! What a host publishes and what it subscribes to.

use std::sync::Arc;
use std::time::Duration;

use super::Endpoint;

/// What becomes of a publication whose subscriber's queue is at its mark. Each subscription has a queue
/// of its own: whatever happens to one, the others notice nothing, [`SlowSubscriber::Wait`] excepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum SlowSubscriber {
    /// The publication is dropped for that subscriber: what it gets is old and without gaps at its start.
    #[default]
    DropNewest,
    /// The oldest that wait for that subscriber are dropped: what it gets is new.
    DropOldest,
    /// The publication waits until every subscriber that it matches has room, under the publisher's
    /// timeout, and is then queued for all of them or for none. The slowest sets the pace.
    Wait,
    /// As `DropNewest`; a subscriber that has taken no byte for this long while publications were
    /// dropped for it is disconnected.
    Disconnect(Duration),
}

/// How a host publishes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PublisherPlan {
    /// Mark of each subscription's queue, charged bytes; never 0. Default 1 MiB.
    pub mark: u64,
    /// At that mark.
    pub slow: SlowSubscriber,
    /// How long a shutdown waits for subscribers to take what is queued. Default 1 s.
    pub linger: Duration,
    /// Ceiling of a publication that waits. Default 1 s.
    pub timeout: Duration,
    /// What all subscriptions may take of memory together, [`SUBSCRIPTION_BYTES`](super::SUBSCRIPTION_BYTES)
    /// and its prefix each. One subscriber has a quarter at most. Default 64 MiB.
    pub table: u64,
}

/// One role that subscribes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubscriberPlan {
    /// What the program calls it.
    pub name: Arc<str>,
    /// Whom to dial: one connection to each.
    pub publishers: Vec<Endpoint>,
    /// Publishers that dial us are this role's; one role of a host at most.
    pub accepts: bool,
    /// Prefixes from the start.
    pub topics: Vec<Arc<[u8]>>,
}
