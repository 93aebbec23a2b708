//! Nothing stands still that could go on. In the world a thread sleeps until it is woken, its poller has
//! something or its time has come; a step of a thread is whole. So between two steps, of a thread that
//! sleeps, these hold at every moment:
//!
//! * nothing was left for it: what was pushed, granted, ended or crossed came with a wake;
//! * an operation that waits for room at its targets does not fit, or one before it does not;
//! * a mark counts no waiters when none waits: those who are over hold nobody up;
//! * a record that was received has a ticket, or a reason to be held that still holds; a claimed one
//!   waits for nothing but the started bound; a link is parked only by a queue that is full;
//! * while a ticket waits, no permit is free for whoever has it;
//! * a reply that waits for room on its lane has others before it there;
//! * nobody is paused by a peer that is gone.

use std::collections::BTreeMap;

use afflux::base::id::{CellId, TargetId};
use afflux::base::record::Kind;
use afflux::engine::shard::ShardEngine;
use afflux::engine::shared::{HostShared, TAG_REPLY, tag_target};
use afflux::flow::ingress::Reason;
use afflux::flow::target::{Dialect, Target};
use afflux::plan::{HostPlan, Hwm};
use afflux::policy::budget::link_marks;
use afflux::sync::cell::CellState;

use super::book::{Book, LATENESS};
use super::coverage::Coverage;
use super::node::Node;

/// Checks a host between two steps.
pub fn check_still(node: &Node, book: &mut Book, coverage: &mut Coverage) {
    let shared = &node.shared;
    let mut broken = |text: String| book.fault(format!("node {}: {text}", node.at));
    if let Some(at) = node.overslept() {
        broken(format!("thread {at} of {} sleeps and has work", node.threads()));
    }
    check_permits(shared, &mut broken);
    for (at, shard) in node.shards().enumerate().filter(|(at, _)| node.sleeps(*at)) {
        check_queues(shared, at, shard, &mut broken, coverage);
    }
    let mut waiting: Option<BTreeMap<TargetId, Vec<CellId>>> = None;
    for known in node.living.iter().map(|at| &node.targets[*at]) {
        let target = &known.target;
        if !target.is_up() && target.mark.is_blocked() {
            broken(format!("the link to {} is down, and what its peer told still holds", target.label()));
        }
        if !node.sleeps(target.owner.index()) {
            continue;
        }
        check_replies(shared, target, coverage, &mut broken);
        if target.mark.waiters() == 0 {
            continue;
        }
        let waiting = waiting.get_or_insert_with(|| all_waiting(shared));
        let here = waiting.get(&target.id).map_or(&[][..], |ids| ids);
        if here.is_empty() && target.gone.is_raised() {
            // Nobody will be told to wait behind those that it still counts.
            continue;
        }
        if here.is_empty() {
            let (counted, label) = (target.mark.waiters(), target.label());
            broken(format!("{counted} waiters are counted at {label}, none waits, and its shard sleeps"));
        } else if here.iter().all(|id| fits(shared, target, *id, coverage)) {
            let n = here.len();
            broken(format!("{n} operations wait for {}, all of them fit, and its shard sleeps", target.label()));
        }
    }
}

/// Operations that wait for room, by target. Replies wait elsewhere.
fn all_waiting(shared: &HostShared) -> BTreeMap<TargetId, Vec<CellId>> {
    let mut waiting: BTreeMap<TargetId, Vec<CellId>> = BTreeMap::new();
    shared.cells.scan(|id, state, tag| {
        if state == CellState::Waiting && tag & TAG_REPLY == 0 {
            waiting.entry(tag_target(tag)).or_default().push(id);
        }
    });
    waiting
}

/// Whether an operation that waits would be admitted if it were the first.
fn fits(shared: &HostShared, target: &Target, id: CellId, coverage: &mut Coverage) -> bool {
    let op = shared.cells.with_waiting(id, |op| (op.record.charge(), op.record.kind == Kind::Request));
    let Some((charge, request)) = op else { return true };
    if request && target.in_flight.ops() >= target.in_flight.ops_max() {
        coverage.see("waits for a request slot of its peer", true);
        return false;
    }
    if request && shared.slots.ops() >= shared.slots.ops_max() {
        coverage.see("waits for a request slot of the host", true);
        return false;
    }
    let (bytes, limit) = (target.mark.bytes(), target.mark.limit());
    !target.mark.is_blocked() && (bytes == 0 || limit == 0 || bytes + charge <= limit)
}

/// Replies wait in line for a lane that is full; whoever makes room on it admits them. An empty lane takes
/// any one reply that the host's mark takes.
fn check_replies(shared: &HostShared, target: &Target, coverage: &mut Coverage, broken: &mut impl FnMut(String)) {
    let Some(first) = target.reply_waiters.lock().front().copied() else { return };
    let charge = shared.cells.with_waiting(first, |op| op.record.charge()).unwrap_or(0);
    let late = shared.cells.deadline(first).map_or(0, |deadline| shared.clock.now().0.saturating_sub(deadline.0));
    if late > LATENESS {
        broken(format!("a reply to {} has waited {} us longer than its ceiling", target.label(), late / 1000));
    }
    let all = &shared.replies;
    let fits = all.bytes() == 0 || all.bytes() + charge <= all.bytes_max();
    coverage.see("reply waits for the host's mark alone", target.replies.bytes() == 0 && !fits);
    if target.replies.bytes() == 0 && fits {
        broken(format!("a reply waits for room on the lane to {}, which is empty", target.label()));
    }
}

/// A permit that is free although somebody waits is one that nobody who waits may have.
fn check_permits(shared: &HostShared, broken: &mut impl FnMut(String)) {
    let gate = shared.gate.snapshot(shared.clock.now());
    let missing: u32 = gate.held_by_shard.iter().map(|held| shared.gate.share().saturating_sub(*held)).sum();
    let free = gate.limit.saturating_sub(gate.in_use);
    if gate.waiters > 0 && free > missing {
        let waiters = gate.waiters;
        broken(format!("{waiters} tickets wait with {free} permits free, {missing} of them kept for others"));
    }
}

/// The highest that the mark of a receive queue ever is.
fn highest_receive_mark(plan: &HostPlan) -> u64 {
    match plan.hwm.receive {
        Hwm::Auto => link_marks(&plan.hwm, 1).receive,
        _ => plan.receive_mark,
    }
}

/// The queues of a shard that sleeps.
fn check_queues(
    shared: &HostShared,
    at: usize,
    shard: &ShardEngine,
    broken: &mut impl FnMut(String),
    coverage: &mut Coverage,
) {
    let (plan, port) = (&shared.plan, &shared.shards[at]);
    if port.queued.get() > 0 && port.started.get() < u64::from(plan.started_per_shard[at]) {
        broken(format!("{} jobs are queued on shard {at}, which may start one and sleeps", port.queued.get()));
    }
    let mut ready = false;
    for (target, origin, held) in shard.origins() {
        let label = || target.label();
        if let Some(head) = origin.head() {
            let owned = shared.owned.get();
            let holds = match held {
                None => true,
                Some(Reason::ReplyMark) => target.replies.bytes() >= plan.reply.per_peer,
                Some(Reason::OwnedBytes) => {
                    let free = shared.owned_line.kept_from(target.id.0);
                    owned + free > 0 && owned + head.charge + free > plan.max_owned_bytes
                }
                Some(Reason::PermitShare) => {
                    plan.jobs.caps_targets() && target.jobs.get() >= u64::from(plan.jobs.per_target)
                }
            };
            ready |= held.is_none();
            coverage.see("origin held by its peer's replies", held == Some(Reason::ReplyMark));
            coverage.see("origin held by owned bytes", held == Some(Reason::OwnedBytes));
            coverage.see("origin held by its share of the jobs", held == Some(Reason::PermitShare));
            if !holds {
                let label = label();
                broken(format!("a record of {label} is held by {held:?}, which is over, and shard {at} sleeps"));
            }
        }
        coverage.see("record in assembly between turns", origin.in_assembly() > 0);
        coverage.see("queue holds one record above its mark", origin.holds_oversize());
        let (outstanding, mark) = (origin.outstanding(), origin.mark());
        let alone = origin.len() <= 1 && outstanding <= plan.record_max();
        // A mark that fell evicts nothing. What is above it was admitted under one of before.
        let before = highest_receive_mark(plan);
        coverage.see("receive mark below what is held", mark != 0 && outstanding > mark && !alone);
        if mark != 0 && outstanding > mark.max(before) && !alone {
            broken(format!("{outstanding} bytes are outstanding from {}, the mark is {mark}", label()));
        }
        let told = shared.receive_mark.get();
        if mark != told && !matches!(target.dialect, Dialect::Local | Dialect::Stream) {
            broken(format!("the mark of what comes from {} is {mark}, and shard {at} was told {told}", label()));
        }
        if target.parked.is_raised() && target.is_up() {
            let in_line = shared.oversize_line.kept_from(target.id.0) > 0;
            let full = if origin.is_parked() { !origin.is_empty() } else { shared.oversize.ops() > 0 || in_line };
            coverage.see("parked for want of oversize budget", !origin.is_parked());
            if !full {
                broken(format!("the link to {} is parked with {} records queued", label(), origin.len()));
            }
        }
    }
    if ready && shared.gate.snapshot(shared.clock.now()).waiters == 0 {
        broken(format!("shard {at} has records to claim and no ticket, and sleeps"));
    }
}
