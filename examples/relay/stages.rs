//! The stages of the relay as they are at one moment, from the load's waiting room to the replies: what each
//! holds, how much it may hold, how many bytes that is and how old its oldest.

use std::fmt;
use std::time::Duration;

use afflux::base::unit::{RECORD_OVERHEAD, grouped};
use afflux::plan::HostPlan;
use afflux::policy::bridge::BridgeSnapshot;
use afflux::{HostStatus, LinkStatus, ShardStatus};

use crate::served::Served;
use crate::sizes::{BATCH, BRIDGE};
use crate::times::{Set, Time};

/// One stage.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub held: u64,
    /// How much it may hold; 0: only bytes are bounded.
    pub capacity: u64,
    /// Bytes of it.
    pub bytes: u64,
    /// How many bytes it may hold; 0: bounded by another stage.
    pub bytes_max: u64,
    /// How old its oldest is, or for how long the oldest that left in the last second had been there.
    pub oldest: Duration,
}

/// The stages of the load's side. `times`: of the last second.
pub fn of_load(status: &HostStatus, plan: &HostPlan, times: &Set) -> Vec<Stage> {
    let queued = status.links.iter().map(|link| link.queued_bytes).sum();
    let mark = status.links.iter().map(|link| link.send_mark).sum();
    vec![
        Stage {
            name: "waiting room",
            held: status.waiting.into(),
            capacity: plan.room.ops.into(),
            bytes: status.waiting_bytes,
            bytes_max: plan.room.bytes,
            oldest: longest(times, Time::SendWait),
        },
        Stage { name: "send queues", held: 0, capacity: 0, bytes: queued, bytes_max: mark, oldest: Duration::ZERO },
        Stage {
            name: "requests in flight",
            held: status.requests.into(),
            capacity: plan.request_slots.into(),
            bytes: 0,
            bytes_max: 0,
            oldest: longest(times, Time::Request),
        },
        Stage {
            name: "reply hold",
            held: 0,
            capacity: 0,
            bytes: status.reply_hold_bytes,
            bytes_max: plan.reply.hold,
            oldest: Duration::ZERO,
        },
    ]
}

/// The stages of the service's side. What a receive queue holds is known in records; its bytes are those
/// times the average record so far.
pub fn of_service(
    status: &HostStatus,
    plan: &HostPlan,
    served: &Served,
    bridge: &BridgeSnapshot,
    times: &Set,
) -> Vec<Stage> {
    let started: u64 = status.shards.iter().map(|shard| shard.started).sum();
    let queued: u64 = status.shards.iter().map(|shard| shard.queued).sum();
    let unclaimed: u64 = status.shards.iter().map(|shard| shard.unclaimed).sum();
    let links = status.links.iter().filter(|link| link.up).count() as u64;
    let in_use = u64::from(status.permits.in_use);
    let since = served.batch.since.map_or(Duration::ZERO, |since| since.elapsed());
    vec![
        Stage {
            name: "receive queues",
            held: unclaimed,
            capacity: 0,
            bytes: unclaimed * average(served),
            bytes_max: links * plan.receive_mark,
            oldest: longest(times, Time::QueueAge),
        },
        Stage {
            name: "permits, reserved",
            held: in_use.saturating_sub(queued),
            capacity: plan.jobs.limit.into(),
            bytes: 0,
            bytes_max: 0,
            oldest: longest(times, Time::PermitWait),
        },
        Stage {
            name: "permits, queued",
            held: queued,
            capacity: plan.jobs.limit.into(),
            bytes: 0,
            bytes_max: 0,
            oldest: Duration::ZERO,
        },
        Stage {
            name: "started handlers",
            held: started,
            capacity: plan.max_started.into(),
            bytes: status.owned_bytes,
            bytes_max: plan.max_owned_bytes,
            oldest: Duration::ZERO,
        },
        Stage {
            name: "batch",
            held: served.batch.items,
            capacity: BATCH.items as u64,
            bytes: served.batch.bytes,
            bytes_max: BATCH.bytes,
            oldest: since,
        },
        Stage {
            name: "bridge",
            held: bridge.held().into(),
            capacity: BRIDGE.jobs.into(),
            bytes: bridge.bytes,
            bytes_max: BRIDGE.bytes,
            oldest: bridge.oldest_waiting.max(bridge.oldest_queued),
        },
        Stage {
            name: "replies",
            held: 0,
            capacity: 0,
            bytes: status.reply_bytes,
            bytes_max: plan.reply.host,
            oldest: Duration::ZERO,
        },
    ]
}

/// How full the fullest send queue is, in percent of its mark.
pub fn send_mark(status: &HostStatus) -> f64 {
    let of = |link: &LinkStatus| percent(link.queued_bytes, link.send_mark);
    status.links.iter().map(of).fold(0.0, f64::max)
}

/// How full the receive queues of the fullest shard are together, in percent of their marks. Estimated, as
/// their bytes are.
pub fn receive_mark(status: &HostStatus, plan: &HostPlan, served: &Served) -> f64 {
    let of = |(i, shard): (usize, &ShardStatus)| {
        let links = status.links.iter().filter(|link| link.up && link.shard == i).count() as u64;
        percent(shard.unclaimed * average(served), links * plan.receive_mark)
    };
    status.shards.iter().enumerate().map(of).fold(0.0, f64::max)
}

fn percent(bytes: u64, mark: u64) -> f64 {
    100.0 * bytes as f64 / mark.max(1) as f64
}

/// What the average record so far takes of a mark.
fn average(served: &Served) -> u64 {
    served.bytes / served.received.max(1) + RECORD_OVERHEAD
}

fn longest(times: &Set, time: Time) -> Duration {
    Duration::from_nanos(times.get(time).max())
}

/// The head of the table.
pub fn head() -> String {
    format!("  {:<18} {:>19} {:>23} {:>10}", "stage", "held / capacity", "bytes / most", "oldest ms")
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |n: u64, most: u64| match (n, most) {
            (0, 0) => "-".to_owned(),
            (n, 0) => grouped(n),
            (n, most) => format!("{} / {}", grouped(n), grouped(most)),
        };
        let oldest = self.oldest.as_secs_f64() * 1e3;
        let (held, bytes) = (of(self.held, self.capacity), of(self.bytes, self.bytes_max));
        write!(f, "  {:<18} {held:>19} {bytes:>23} {oldest:>10.1}", self.name)
    }
}
