//! The book: every operation that was ever begun, what became of it, on which connection it went and
//! which handler saw it. Whatever contradicts a promise is written down at once.

use std::collections::{BTreeMap, BTreeSet};

use afflux::base::error::{Detail, ErrorKind, RequestError, SendError};
use afflux::engine::multicast::Told;
use bytes::Bytes;

use super::agenda::{MS, Trace};
use super::script::SCRIPT_LEN;

/// How late an end may be: one tick of the poller, and the turns that stand between.
pub const LATENESS: u64 = 3 * MS;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Send,
    Request,
    /// A request made by a handler.
    Nested,
    /// One send to every member of a channel.
    Multicast,
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

#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub kind: Kind,
    pub from: usize,
    /// Which life of that node.
    pub life: u32,
    pub to: usize,
    pub origin: u32,
    pub deadline: u64,
    pub end: Option<End>,
    pub parent: Option<u32>,
    pub reply: u32,
    /// Its caller looks when it pleases him: the end may be heard late.
    pub lazy: bool,
    /// Its handler asks somebody else first.
    pub nests: bool,
    /// The connection that took its first byte.
    pub begun: Option<usize>,
    /// A reply to it has gone out.
    pub replied: bool,
    /// Times that a handler saw it.
    pub delivered: u32,
}

#[derive(Default)]
pub struct Book {
    pub ops: Vec<Op>,
    pub faults: Vec<String>,
    pub trace: Trace,
    /// Only where every pair of nodes has one link, an origin's records have one way to a node.
    pub one_way: bool,
    /// How exactly the hosts that skip expired requests know the time at their peers; `None`: none skips.
    pub exact: Option<u64>,
    /// An acceptor's next link is a new origin: what it still has of a lost one may come later.
    unordered: BTreeSet<(usize, usize)>,
    /// What the callers of multicasts were told of their members, and which of these have it.
    told: BTreeMap<(u32, usize), bool>,
    have: BTreeSet<(u32, usize)>,
    live: BTreeSet<(u64, u32)>,
    last: BTreeMap<(u32, usize, usize), u32>,
    /// Records that the handlers of a node saw in one of its lives, by sender.
    pub seen: BTreeMap<(usize, u32, usize), u64>,
}

/// Where a handler runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub node: usize,
    pub life: u32,
    pub shard: usize,
}

/// The byte that belongs at `at` of operation `op`'s payload.
pub fn content(op: u32, at: usize) -> u8 {
    (op as usize).wrapping_mul(31).wrapping_add(at) as u8
}

impl Book {
    pub fn begin(
        &mut self,
        kind: Kind,
        (from, life): (usize, u32),
        to: usize,
        origin: u32,
        now: u64,
        timeout: u64,
    ) -> u32 {
        let op = self.ops.len() as u32;
        let deadline = now + timeout.div_ceil(MS) * MS;
        self.ops.push(Op {
            kind,
            from,
            life,
            to,
            origin,
            deadline,
            end: None,
            parent: None,
            reply: 0,
            lazy: false,
            nests: false,
            begun: None,
            replied: false,
            delivered: 0,
        });
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
        if op.kind != Kind::Nested && !op.lazy && end != End::LetGo && now > op.deadline + LATENESS {
            self.faults
                .push(format!("operation {at} ended {} us after its deadline: {op:?}", (now - op.deadline) / 1000));
        }
        if matches!(end, End::Unsent(_)) && op.delivered > 0 {
            self.faults.push(format!("operation {at} gave its payload back and was delivered: {op:?}"));
        }
    }

    /// A host is over. Those of its operations that have not ended yet.
    pub fn unended(&self, from: usize) -> Vec<u32> {
        self.live.iter().map(|(_, op)| *op).filter(|op| self.ops[*op as usize].from == from).collect()
    }

    /// The links between two nodes were lost.
    pub fn on_loss(&mut self, one: usize, other: usize) {
        self.unordered.insert((one, other));
        self.unordered.insert((other, one));
    }

    /// A connection took the first byte of an operation.
    pub fn on_begun(&mut self, at: u32, connection: usize) {
        let Some(op) = self.ops.get_mut(at as usize) else {
            return self.faults.push(format!("operation {at}, which nobody made, is on connection {connection}"));
        };
        if op.kind == Kind::Multicast {
            return;
        }
        let before = op.begun.replace(connection);
        let op = *op;
        if let Some(before) = before {
            self.faults.push(format!("operation {at} was begun on connection {before} before: {op:?}"));
        }
        if matches!(op.end, Some(End::Unsent(_))) {
            self.faults.push(format!("operation {at} goes out after its payload was given back: {op:?}"));
        }
    }

    /// A connection took the first byte of a reply. A pair is dialled at once: the lane of its replies is the
    /// connection after that of its requests.
    pub fn on_replied(&mut self, at: u32, connection: usize) {
        let Some(op) = self.ops.get_mut(at as usize) else {
            return self.faults.push(format!("a reply to operation {at}, which nobody made, is on {connection}"));
        };
        let twice = std::mem::replace(&mut op.replied, true);
        let op = *op;
        if twice {
            self.faults.push(format!("operation {at} is answered twice: {op:?}"));
        }
        if op.begun.map(|asked| asked + 1) != Some(connection) {
            self.faults.push(format!("operation {at} is answered on connection {connection}: {op:?}"));
        }
    }

    /// Whatever has not ended long after its deadline hangs.
    pub fn look_for_hangs(&mut self, now: u64) {
        let hung: Vec<(u64, u32)> = self.live.iter().take_while(|(d, _)| *d + LATENESS < now).copied().collect();
        for (deadline, at) in hung {
            let op = &self.ops[at as usize];
            if op.kind != Kind::Nested && !op.lazy || deadline + 2000 * MS < now {
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

    /// A multicast is over.
    pub fn on_told(&mut self, at: u32, told: &Told, now: u64) {
        for (name, end) in &told.members {
            let Some(node) = name.strip_prefix('n').and_then(|n| n.parse().ok()) else { continue };
            if self.told.insert((at, node), end.is_ok()).is_some() {
                self.faults.push(format!("multicast {at} names node {node} twice"));
            }
            if end.is_err() && self.have.contains(&(at, node)) {
                self.faults.push(format!("multicast {at} gave the payload for node {node} back, which has it"));
            }
        }
        self.end(at, End::Accepted, now);
    }

    /// Members of a multicast for which it was accepted and that do not have it.
    pub fn untold(&self, at: u32) -> usize {
        let accepted = self.told.range((at, 0)..=(at, usize::MAX)).filter(|(_, accepted)| **accepted);
        accepted.filter(|(member, _)| !self.have.contains(member)).count()
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
            Err(e) if self.gave_up_early(at, e, now) => {
                let op = self.ops[at as usize];
                self.faults.push(format!("operation {at} was skipped {} us early: {op:?}", (op.deadline - now) / 1000));
                End::Failed(e.error().detail())
            }
            Err(e) => match e.clone().unsent_payload().is_some() {
                true => End::Unsent(e.error().detail()),
                false => End::Failed(e.error().detail()),
            },
        };
        self.end(at, how, now);
    }

    /// Whether a host said of a request that its time was up, and it was not.
    fn gave_up_early(&self, at: u32, e: &RequestError, now: u64) -> bool {
        let op = &self.ops[at as usize];
        let told = e.error().kind() == ErrorKind::DeadlineExceeded && e.error().detail() == Detail::ExpiredInQueue;
        let slack = self.exact.unwrap_or(0);
        told && op.kind == Kind::Request && !op.nests && now + slack < op.deadline
    }

    /// A continuation was dropped with its handler.
    pub fn on_dropped(&mut self, at: u32, now: u64) {
        if self.ops[at as usize].end.is_none() {
            self.end(at, End::LetGo, now);
        }
    }

    pub fn on_delivered(&mut self, at: u32, place: Place, payload: &Bytes, request: bool, now: u64) {
        let Place { node, life, shard } = place;
        self.trace.note(&[now, u64::from(at), node as u64, shard as u64]);
        let Some(op) = self.ops.get_mut(at as usize) else {
            return self.faults.push(format!("a handler saw operation {at}, which nobody made"));
        };
        op.delivered += 1;
        let op = *op;
        *self.seen.entry((node, life, op.from)).or_default() += 1;
        let mut broken = |what: &str| self.faults.push(format!("operation {at} {what}, at {place:?}: {op:?}"));
        let multicast = op.kind == Kind::Multicast;
        if if multicast { !self.have.insert((at, node)) } else { op.delivered > 1 } {
            broken("was delivered twice");
        }
        if self.told.get(&(at, node)) == Some(&false) {
            broken("was delivered after the payload for this member was given back");
        }
        // Who let go of it may have died, and its host begun anew with another clock.
        if let Some(slack) = self.exact
            && op.kind == Kind::Request
            && op.end != Some(End::LetGo)
            && now > op.deadline + slack
        {
            broken("was started after its time, where such are skipped");
        }
        if request == (multicast || op.kind == Kind::Send) {
            broken("changed its kind");
        }
        if op.to != usize::MAX && op.to != node {
            broken("came to the wrong node");
        }
        if matches!(op.end, Some(End::Unsent(_))) {
            broken("was delivered after its payload was given back");
        }
        if payload[SCRIPT_LEN..].iter().enumerate().any(|(i, b)| *b != content(at, i + SCRIPT_LEN)) {
            broken("arrived with a wrong payload");
        }
        if self.one_way && !self.unordered.contains(&(op.from, node)) {
            // A host is one target per shard to itself.
            let target = if op.from == node { shard + 1 } else { 0 };
            let last = self.last.entry((op.origin, node, target)).or_insert(at);
            if *last > at {
                let successor = self.ops[*last as usize];
                self.faults.push(format!("operation {at} came after its successor {last}: {op:?}, {successor:?}"));
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
