//! The promises as oracles. The book knows every operation that was ever begun, what became of it,
//! and which handler saw it; whatever contradicts a promise is written down at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use afflux::base::error::{Detail, RequestError, SendError};
use afflux::engine::shared::HostShared;
use afflux::flow::target::Target;
use bytes::Bytes;

use super::node::Node;
use super::workload::SCRIPT_LEN;
use super::world::{MS, Trace};

/// How late an end may be: one tick of the poller, and the turns that stand between.
pub const LATENESS: u64 = 3 * MS;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Send,
    Request,
    /// A request made by a handler.
    Nested,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// A send was accepted.
    Accepted,
    /// A request was answered.
    Reply,
    /// Failed; the payload came back, so it never left.
    Unsent(Detail),
    /// Failed after it had left.
    Failed(Detail),
    /// Its user let go of it: it may or may not arrive.
    LetGo,
}

#[derive(Debug)]
pub struct Op {
    pub kind: Kind,
    pub from: usize,
    pub to: usize,
    pub origin: u32,
    pub deadline: u64,
    pub end: Option<End>,
    pub parent: Option<u32>,
    pub reply: u32,
    /// Times that a handler saw it.
    pub delivered: u32,
}

#[derive(Default)]
pub struct Book {
    pub ops: Vec<Op>,
    pub faults: Vec<String>,
    pub trace: Trace,
    /// Only where every pair of nodes has one link, an origin's records have one way to a node.
    pub ordered: bool,
    live: BTreeSet<(u64, u32)>,
    last: BTreeMap<(u32, usize), u32>,
    /// Records that handlers of a node saw, by sender.
    pub seen: BTreeMap<(usize, usize), u64>,
}

/// The byte that belongs at `at` of operation `op`'s payload.
pub fn content(op: u32, at: usize) -> u8 {
    (op as usize).wrapping_mul(31).wrapping_add(at) as u8
}

impl Book {
    pub fn begin(&mut self, kind: Kind, from: usize, to: usize, origin: u32, now: u64, timeout: u64) -> u32 {
        let op = self.ops.len() as u32;
        let deadline = now + timeout.div_ceil(MS) * MS;
        self.ops.push(Op { kind, from, to, origin, deadline, end: None, parent: None, reply: 0, delivered: 0 });
        self.live.insert((deadline, op));
        op
    }

    pub fn outstanding(&self) -> usize {
        self.live.len()
    }

    pub fn some_outstanding(&self) -> Vec<(u32, &Op)> {
        self.live.iter().take(5).map(|(_, op)| (*op, &self.ops[*op as usize])).collect()
    }

    pub fn fault(&mut self, text: String) {
        self.faults.push(text);
    }

    pub fn end(&mut self, at: u32, end: End, now: u64) {
        let op = &mut self.ops[at as usize];
        self.trace.note(&[now, u64::from(at), end_number(end)]);
        if let Some(before) = op.end.replace(end) {
            self.faults.push(format!("operation {at} has two ends: {before:?} and {end:?}"));
        }
        self.live.remove(&(op.deadline, at));
        // A continuation runs when its shard is back: its end may be heard late.
        if op.kind != Kind::Nested && end != End::LetGo && now > op.deadline + LATENESS {
            self.faults
                .push(format!("operation {at} ended {} us after its deadline: {op:?}", (now - op.deadline) / 1000));
        }
        if matches!(end, End::Unsent(_)) && op.delivered > 0 {
            self.faults.push(format!("operation {at} gave its payload back and was delivered: {op:?}"));
        }
    }

    /// Whatever has not ended long after its deadline hangs.
    pub fn look_for_hangs(&mut self, now: u64) {
        let hung: Vec<(u64, u32)> = self.live.iter().take_while(|(d, _)| *d + LATENESS < now).copied().collect();
        for (deadline, at) in hung {
            if self.ops[at as usize].kind != Kind::Nested || deadline + 2000 * MS < now {
                self.live.remove(&(deadline, at));
                self.faults.push(format!("operation {at} hangs: {:?}", self.ops[at as usize]));
            }
        }
    }

    pub fn on_send(&mut self, at: u32, end: &Result<(), SendError>, now: u64) {
        let end = match end {
            Ok(()) => End::Accepted,
            Err(e) => End::Unsent(e.error().detail()),
        };
        self.end(at, end, now);
    }

    pub fn on_reply(&mut self, at: u32, end: &Result<Bytes, RequestError>, now: u64) {
        let how = match end {
            Ok(reply) => {
                let want = self.ops[at as usize].reply as usize;
                let right = |i: usize, b: u8| if i < 4 { b == at.to_le_bytes()[i] } else { b == content(!at, i) };
                let whole = want == 0 || reply.len() == want;
                if !whole || reply.len() < 4 || !reply.iter().enumerate().all(|(i, b)| right(i, *b)) {
                    let of = reply.first_chunk().map(|b| u32::from_le_bytes(*b));
                    let other = of.and_then(|of| self.ops.get(of as usize));
                    let own = &self.ops[at as usize];
                    self.faults.push(format!(
                        "operation {at} ({own:?}) got a reply of {} bytes that is {of:?}'s ({other:?})",
                        reply.len()
                    ));
                }
                End::Reply
            }
            Err(e) => match e.clone().unsent_payload().is_some() {
                true => End::Unsent(e.error().detail()),
                false => End::Failed(e.error().detail()),
            },
        };
        self.end(at, how, now);
    }

    /// A continuation was dropped with its handler.
    pub fn on_dropped(&mut self, at: u32, now: u64) {
        if self.ops[at as usize].end.is_none() {
            self.end(at, End::LetGo, now);
        }
    }

    pub fn on_delivered(&mut self, at: u32, node: usize, shard: usize, payload: &Bytes, request: bool, now: u64) {
        self.trace.note(&[now, u64::from(at), node as u64, shard as u64]);
        let Some(op) = self.ops.get_mut(at as usize) else {
            return self.faults.push(format!("a handler saw operation {at}, which nobody made"));
        };
        op.delivered += 1;
        *self.seen.entry((op.from, node)).or_default() += 1;
        let text = format!("{op:?}");
        if op.delivered > 1 {
            self.faults.push(format!("operation {at} was delivered twice: {text}"));
        }
        if request == (op.kind == Kind::Send) {
            self.faults.push(format!("operation {at} changed its kind: {text}"));
        }
        if op.to != usize::MAX && op.to != node {
            self.faults.push(format!("operation {at} came to node {node}: {text}"));
        }
        if matches!(op.end, Some(End::Unsent(_))) {
            self.faults.push(format!("operation {at} was delivered after its payload was given back: {text}"));
        }
        if payload[SCRIPT_LEN..].iter().enumerate().any(|(i, b)| *b != content(at, i + SCRIPT_LEN)) {
            self.faults.push(format!("operation {at} arrived with a wrong payload"));
        }
        if self.ordered {
            let last = self.last.entry((op.origin, node)).or_insert(at);
            if *last > at {
                let text = format!("operation {at} of origin {} came after its successor {last}: {text}", op.origin);
                self.faults.push(format!("{text}, {:?}", self.ops[*last as usize]));
            }
            *last = at;
        }
    }
}

fn end_number(end: End) -> u64 {
    match end {
        End::Accepted => 1,
        End::Reply => 2,
        End::Unsent(detail) => 1000 + detail as u64,
        End::Failed(detail) => 2000 + detail as u64,
        End::LetGo => 3,
    }
}

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
    for target in &node.targets {
        let (bytes, limit) = (target.mark.bytes(), target.mark.limit());
        if limit != 0 && bytes > limit.max(largest) {
            broken(format!("{bytes} bytes are outstanding to {}, its mark is {limit}", target.label()));
        }
        if target.waiting.ops() > plan.room.per_target_ops {
            broken(format!("{} operations wait for {}", target.waiting.ops(), target.label()));
        }
        if target.in_flight.ops() > plan.requests_per_peer {
            broken(format!("{} requests are in flight to {}", target.in_flight.ops(), target.label()));
        }
        coverage.see("link parked", target.parked.is_raised());
        coverage.see("target blocked by its peer's pause", target.mark.is_blocked());
        coverage.see("operation waits for room", target.mark.waiters() > 0);
        coverage.see("link down with records in its queue", !target.is_up() && target.mark.bytes() > 0);
        coverage.see("reply waits for room", !target.reply_waiters.lock().is_empty());
        coverage.see("origin held by its peer's replies", target.held.is_raised());
    }
    coverage.see("every permit taken", gate.in_use == gate.limit);
    coverage.see("ticket waits", gate.waiters > 0);
    coverage.see("gate paused", gate.paused_since.is_some());
    coverage.see("somebody ran into a host-wide bound", shared.short.is_raised());
    coverage.see("oversize budget drawn", shared.oversize.ops() > 0);
    coverage.see("jobs queued behind the started bound", queued > 0);
    coverage
        .see("caller's own ring refused, common one used", shared.caller_rings.get() >= u64::from(plan.caller_rings));
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
    }
    for target in shared.targets.lock().iter() {
        left.push(("bytes under a mark", target.mark.bytes()));
        left.push(("waiters at a mark", target.mark.waiters().into()));
        left.push(("blocked marks", target.mark.is_blocked().into()));
        left.push(("operations that wait for a target", target.waiting.ops().into()));
        left.push(("requests in flight", target.in_flight.ops().into()));
        left.push(("replies to a target", target.replies.ops().into()));
        left.push(("parked links", target.parked.is_raised().into()));
        left.push(("replies that wait", target.reply_waiters.lock().len() as u64));
        left.push(("links that are down", u64::from(!target.is_up())));
    }
    left.push(("links that were never dialled successfully", u64::from(!node.all_up())));
    left.push(("threads that do not sleep", node.awake().into()));
    left.retain(|(_, n)| *n != 0);
    left.into_iter().map(|(what, n)| format!("node {}: {what}: {n}", node.at)).collect()
}

/// Records of a sender that were accepted and that no handler saw must have been counted lost.
pub fn check_losses(nodes: &[Node], decoded: &BTreeMap<(usize, usize, u64), u64>, faulty: bool, book: &mut Book) {
    let mut missing: BTreeMap<usize, u64> = BTreeMap::new();
    let mut examples: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for (i, op) in book.ops.iter().enumerate() {
        let must = op.end == Some(End::Accepted) || op.end == Some(End::Reply);
        if must && op.delivered == 0 {
            *missing.entry(op.from).or_default() += 1;
            examples.entry(op.from).or_default().push(i as u32);
        }
        if op.end == Some(End::Reply) && op.delivered == 0 {
            book.faults.push(format!("operation {i} was answered by nobody"));
        }
    }
    let sum = |node: &Node, of: fn(&Target) -> u64| -> u64 { node.targets.iter().map(|t| of(t)).sum() };
    for node in nodes {
        let shared: &Arc<HostShared> = &node.shared;
        let begun_lost = sum(node, |t| t.lost_on_detach.get());
        let in_doubt = sum(node, |t| t.in_doubt_on_detach.get());
        let with_target = shared.counts.lost_with_target.get();
        let missing = missing.get(&node.at).copied().unwrap_or(0);
        let counted = begun_lost + in_doubt + with_target;
        if missing > counted || (!faulty && missing > 0) {
            let some = examples.get(&node.at).map(|v| &v[..v.len().min(8)]);
            book.faults.push(format!(
                "node {}: {missing} accepted records never arrived ({some:?} ..); {begun_lost} lost on detach, {in_doubt} in doubt, \
                 {with_target} lost with their target",
                node.at
            ));
        }
        if !faulty && counted > 0 {
            book.faults.push(format!("node {}: {counted} losses were counted and no link was lost", node.at));
        }
    }
    // What was decoded on any link of a node came to a handler of that node.
    for node in nodes {
        let came: u64 = decoded.iter().filter(|((n, ..), _)| *n == node.at).map(|(_, d)| d).sum();
        let seen: u64 = book.seen.iter().filter(|((_, to), _)| *to == node.at).map(|(_, n)| n).sum();
        let nobody = node.shared.counts.no_handler.get() + node.shared.counts.malformed.get();
        if came != seen + nobody {
            book.faults
                .push(format!("node {}: {came} records decoded, {seen} seen by handlers, {nobody} by nobody", node.at));
        }
    }
}

/// Which states were reached, and how often a step found them.
#[derive(Clone, Default)]
pub struct Coverage(BTreeMap<&'static str, u64>);

impl Coverage {
    pub fn see(&mut self, what: &'static str, seen: bool) {
        *self.0.entry(what).or_default() += u64::from(seen);
    }

    pub fn add(&mut self, what: &'static str, n: u64) {
        *self.0.entry(what).or_default() += n;
    }

    pub fn merge(&mut self, other: &Coverage) {
        for (what, n) in &other.0 {
            self.add(what, *n);
        }
    }

    pub fn print(&self) {
        for (what, n) in &self.0 {
            let mark = if *n == 0 { "NEVER" } else { "" };
            println!("  {what:<48} {n:>12}  {mark}");
        }
    }
}
