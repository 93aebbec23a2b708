//! What must hold of a host after every step, when nothing is under way any more, and in its account at
//! the end.

use std::collections::{BTreeMap, BTreeSet};

use afflux::base::id::ShardId;
use afflux::engine::shared::HostShared;
use afflux::flow::target::Target;

use super::book::{Book, End, Kind};
use super::coverage::Coverage;
use super::node::Node;

/// What must hold after every step of a node.
pub fn check_node(node: &Node, book: &mut Book, coverage: &mut Coverage) {
    let shared = &node.shared;
    let plan = &shared.plan;
    let gate = shared.gate.snapshot(shared.clock.now());
    let mut broken = |text: String| book.fault(format!("node {}: {text}", node.at));
    if gate.in_use > gate.limit || gate.peak > gate.limit {
        broken(format!("{} permits in use, {} at the peak, of {}", gate.in_use, gate.peak, gate.limit));
    }
    if gate.held_by_shard.iter().sum::<u32>() > gate.in_use {
        broken(format!("shards hold {:?} of {} permits", gate.held_by_shard, gate.in_use));
    }
    for (name, room) in [("waiting room", &shared.room), ("callers' part of the waiting room", &shared.callers_room)] {
        if room.ops() > room.ops_max() || (room.ops() > 1 && room.bytes() > room.bytes_max()) {
            broken(format!("the {name} holds {} operations, {} bytes", room.ops(), room.bytes()));
        }
    }
    if shared.slots.ops() > plan.request_slots {
        broken(format!("{} request slots of {}", shared.slots.ops(), plan.request_slots));
    }
    if shared.hold.bytes() > plan.reply.hold {
        broken(format!("{} bytes of replies are held", shared.hold.bytes()));
    }
    for (i, port) in shared.shards.iter().enumerate() {
        if port.started.get() > u64::from(plan.started_per_shard[i]) {
            broken(format!("shard {i} has started {}", port.started.get()));
        }
    }
    let queued: u64 = shared.shards.iter().map(|p| p.queued.get()).sum();
    if queued > u64::from(gate.limit) {
        broken(format!("{queued} jobs are queued with {} permits", gate.limit));
    }
    let largest = plan.record_max();
    let (mut jobs, mut capped) = (0, 0);
    for known in node.living.iter().map(|at| &node.targets[*at]) {
        let target = &known.target;
        let (bytes, limit) = (target.mark.bytes(), target.mark.limit());
        // What a mark that fell found above itself goes, and nothing comes to it.
        if limit != 0 && bytes > limit.max(largest).max(known.admitted) {
            broken(format!("{bytes} bytes are outstanding to {}, its mark is {limit}", target.label()));
        }
        coverage.see("send mark below what is held", limit != 0 && bytes > limit.max(largest));
        jobs += target.jobs.get();
        if plan.jobs.caps_targets() {
            let most = u64::from(plan.jobs.per_target);
            if target.jobs.get() > most {
                broken(format!("{} jobs are those of {}", target.jobs.get(), target.label()));
            }
            capped += u64::from(target.jobs.get() == most);
        }
        if target.waiting.ops() > plan.room.per_target_ops {
            broken(format!("{} operations wait for {}", target.waiting.ops(), target.label()));
        }
        if target.in_flight.ops() > plan.requests_per_peer {
            broken(format!("{} requests are in flight to {}", target.in_flight.ops(), target.label()));
        }
        if target.waiting.ops() > 1 && target.waiting.bytes() > plan.room.per_target_bytes {
            broken(format!("{} bytes wait for {}", target.waiting.bytes(), target.label()));
        }
        coverage.see("operation waits for room", target.mark.waiters() > 0);
        coverage.see("link down with records in its queue", !target.is_up() && target.mark.bytes() > 0);
        coverage.see("one record above the send mark", limit != 0 && bytes > limit);
        coverage.see("reply waits for room", !target.reply_waiters.lock().is_empty());
        coverage.see("a target's part of the room is full", target.waiting.ops() == plan.room.per_target_ops);
    }
    if jobs != queued {
        broken(format!("{queued} jobs are queued, {jobs} of them counted at their targets"));
    }
    coverage.see("others have jobs beside a hot target", capped > 0 && jobs > capped * u64::from(plan.jobs.per_target));
    let (room, callers) = (&shared.room, &shared.callers_room);
    coverage.see("waiting room full", room.ops() == room.ops_max());
    coverage.see("callers' part of the room full, handlers' not", {
        callers.ops() == callers.ops_max() && room.ops() < room.ops_max()
    });
    coverage.see("request slots all taken", shared.slots.ops() == plan.request_slots);
    coverage.see("every permit taken", gate.in_use == gate.limit);
    coverage.see("ticket waits", gate.waiters > 0);
    coverage.see("ticket granted", (0..plan.shards).any(|i| shared.gate.has_grants(ShardId(i))));
    coverage.see("gate paused", gate.paused_since.is_some());
    coverage.see("somebody ran into a host-wide bound", shared.short.is_raised());
    coverage.see("jobs queued behind the started bound", queued > 0);
    coverage.see("reply held until it is taken", shared.hold.bytes() > 0);
    coverage.see("rings of handles are out", shared.caller_rings.get() >= u64::from(plan.caller_rings));
}

/// What must hold when nothing is under way: names what does not.
pub fn not_at_rest(node: &Node) -> Vec<String> {
    let shared = &node.shared;
    let gate = shared.gate.snapshot(shared.clock.now());
    let cells = shared.cells.counts();
    let mut left = vec![
        ("permits in use", u64::from(gate.in_use)),
        ("tickets", u64::from(gate.waiters)),
        ("cells", u64::from(cells.waiting) + u64::from(cells.claimed) + u64::from(cells.done)),
        ("bytes of the oversize budget", shared.oversize.bytes()),
        ("waiting room operations", shared.room.ops().into()),
        ("waiting room bytes", shared.room.bytes()),
        ("callers' room", shared.callers_room.ops().into()),
        ("request slots", shared.slots.ops().into()),
        ("reply hold", shared.hold.bytes()),
        ("owned bytes", shared.owned.get()),
        ("oversize draws", shared.oversize.ops().into()),
        ("replies not taken", shared.replies.ops().into()),
        ("reply bytes not taken", shared.replies.bytes()),
    ];
    for port in &shared.shards {
        left.push(("started handlers", port.started.get()));
        left.push(("queued jobs", port.queued.get()));
        left.push(("records received and not claimed", port.unclaimed.get()));
    }
    for target in shared.targets.lock().iter() {
        left.push(("bytes under a mark", target.mark.bytes()));
        left.push(("jobs of a target", target.jobs.get()));
        left.push(("waiters at a mark", target.mark.waiters().into()));
        left.push(("blocked marks", target.mark.is_blocked().into()));
        left.push(("operations that wait for a target", target.waiting.ops().into()));
        left.push(("requests in flight", target.in_flight.ops().into()));
        left.push(("replies to a target", target.replies.ops().into()));
        left.push(("bytes of operations that wait for a target", target.waiting.bytes()));
        left.push(("parked links", target.parked.is_raised().into()));
        left.push(("replies that wait", target.reply_waiters.lock().len() as u64));
        left.push(("links that are down", u64::from(!target.is_up())));
    }
    left.push(("links that were never dialled successfully", u64::from(!node.all_up())));
    left.push(("threads that do not sleep", node.awake().into()));
    left.retain(|(_, n)| *n != 0);
    left.into_iter().map(|(what, n)| format!("node {}: {what}: {n}", node.at)).collect()
}

/// A sum over the targets of some hosts.
pub fn sum(nodes: &[&Node], of: impl Fn(&Node, usize) -> u64) -> u64 {
    nodes.iter().flat_map(|node| (0..node.targets.len()).map(|at| of(node, at)).collect::<Vec<_>>()).sum()
}

/// What the account needs to know of the world.
pub struct Circumstances<'a> {
    /// Every host that there ever was.
    pub nodes: Vec<&'a Node>,
    /// Nodes of which a life ended without a word, or in which something was left behind.
    pub died: BTreeSet<usize>,
    /// Nodes without a handler of their own.
    pub deaf: &'a [bool],
    /// Links were lost.
    pub faulty: bool,
}

/// Records of a sender that were accepted and that no handler saw must have been counted lost.
pub fn check_losses(world: &Circumstances, book: &mut Book) {
    let mut missing: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let newest = |node: usize| world.nodes.iter().filter(|n| n.at == node).map(|n| n.life).max();
    for (i, op) in book.ops.iter().enumerate() {
        // What was accepted in a life that is over went with it.
        let lost_with_life = Some(op.life) != newest(op.from);
        let heard = op.to == usize::MAX || !world.deaf[op.to] || op.kind != Kind::Send;
        if op.end == Some(End::Accepted) && op.delivered == 0 && heard && !lost_with_life {
            missing.entry(op.from).or_default().push(i);
        }
        if op.end == Some(End::Reply) && op.delivered == 0 {
            book.faults.push(format!("operation {i} was answered by nobody: {op:?}"));
        }
    }
    let of_target = |of: fn(&Target) -> u64| move |node: &Node, at: usize| of(&node.targets[at].target);
    let names: BTreeSet<usize> = world.nodes.iter().map(|n| n.at).collect();
    for at in names {
        let lives: Vec<&Node> = world.nodes.iter().copied().filter(|n| n.at == at).collect();
        // The world knows what the sender cannot: how much of what it wrote was decoded.
        let written = sum(&lives, of_target(|t| t.written.get()));
        let label = lives[0].shared.plan.name.clone();
        let decoded = |node: &Node, i: usize| {
            let known = &node.targets[i];
            if *known.target.label() == *label { known.decoded_before + known.decoded } else { 0 }
        };
        let at_peers = sum(&world.nodes, decoded);
        // What a peer had received and not handled when it was over went with it.
        let died_there: u64 = world
            .nodes
            .iter()
            .filter(|n| n.is_over())
            .map(|peer| {
                let seen = book.seen.get(&(peer.at, peer.life, at)).copied().unwrap_or(0);
                sum(&[peer], decoded).saturating_sub(seen)
            })
            .sum();
        let under_way = written.saturating_sub(at_peers);
        let begun_lost = sum(&lives, of_target(|t| t.lost_on_detach.get()));
        let in_doubt = sum(&lives, of_target(|t| t.in_doubt_on_detach.get()));
        let with_target: u64 = lives.iter().map(|n| n.shared.counts.lost_with_target.get()).sum();
        let gone = missing.get(&at).map_or(&[][..], |ops| ops);
        if gone.len() as u64 > begun_lost + under_way + with_target + died_there || (!world.faulty && !gone.is_empty())
        {
            book.faults.push(format!(
                "node {at}: {} accepted records never arrived ({:?} ..); {begun_lost} lost on detach, {under_way} lost \
                 under way, {with_target} lost with their target, {died_there} with their peer",
                gone.len(),
                &gone[..gone.len().min(8)]
            ));
        }
        if under_way > in_doubt && !world.died.contains(&at) {
            book.faults.push(format!("node {at}: {under_way} records lost under way, {in_doubt} in doubt"));
        }
        if !world.faulty && begun_lost + in_doubt + with_target > 0 {
            book.faults.push(format!("node {at}: losses were counted and no link was lost"));
        }
    }
    // What a host received came to a handler of it, unless the host was over first.
    for node in &world.nodes {
        let came = node.shared.counts.received.get();
        let seen = book
            .seen
            .iter()
            .filter(|((at, life, _), _)| (*at, *life) == (node.at, node.life))
            .map(|(_, n)| n)
            .sum::<u64>();
        let shared: &HostShared = &node.shared;
        let counts = &shared.counts;
        // A local caller may give up what lies in a receive queue already.
        let given_up: u64 = shared.locals.iter().map(|local| local.discarded.get()).sum();
        let nobody = counts.no_handler.get() + counts.malformed.get() + counts.expired_in_queue.get() + given_up;
        let over = node.is_over();
        if came < seen + nobody || (!over && came != seen + nobody) {
            let (at, life) = (node.at, node.life);
            let text = format!("{came} records received, {seen} seen by handlers, {nobody} by nobody");
            book.faults.push(format!("node {at} in life {life}: {text}"));
        }
    }
}
