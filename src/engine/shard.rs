//! `ShardEngine`: all decisions of one shard. No socket, no thread, no clock: time is passed in,
//! bytes come and go through [`Transport`], so that whole hosts run under a virtual clock.
//!
//! One turn has a fixed order, each phase with a budget from the plan:
//!
//! ```text
//!  1 commands      2 finished operations: continuations, futures     3 rings, waiting operations, pokes
//!  4 timers        5 reads        6 claims: permit or ticket         7 starts, within the started bound
//!  8 writes        9 what is published
//! ```
//!
//! Finishing goes before starting, timers before reads (no admission after a deadline), writes
//! after jobs (batching). A phase that stops on its budget makes the turn say "again".

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::Receiver;

use super::answer::{self, Debt, Party};
use super::call::{Lineage, taken};
use super::command::{Attach, CompletionCommand, ShardCommand, Untold};
use super::core::Core;
use super::lanes::{self, BATCH};
use super::lead::{self, IdleLead};
use super::seat::{Peer, Seat, SeatFactory, Start, refuse};
use super::shared::{Class, HostShared, Outcome, Outgoing, ShardReceiver, TAG_REQUEST, error_record, tag_target};
use crate::base::error::{Detail, ErrorKind};
use crate::base::id::{CellId, ChannelId, ShardId, TargetId};
use crate::base::record::{Kind, Method, Record};
use crate::base::time::Instant;
use crate::flow::backlog::{Backlog, ChunkPool, Head, INLINE_PAYLOAD_MAX, Popped};
use crate::flow::egress::Unbegun;
use crate::flow::ingress::{Ingress, OriginKey, Pick, Reason, Spend, TurnOrder};
use crate::flow::link_clock::clock_ms;
use crate::flow::origin::{Admit, Claimed, Origin};
use crate::flow::target::{Dialect, Flushed, Post, Serves, Target, Writer};
use crate::flow::transport::Transport;
use crate::flow::waiters::Waiters;
use crate::meter::latency::{Latency, LatencySet};
use crate::plan::QUEUE_CHUNKS_KEPT;
use crate::sync::cell::CellState;
use crate::sync::gate::{self, Ticket, Waited};
use crate::sync::ring::{Batch, Consumer};
use crate::sync::task::TaskKey;
use crate::wire::channels::ChannelList;
use crate::wire::command::{Command, Context, write_pong};
use crate::wire::decode::{Decoder, Item, Mode, reread};
use crate::wire::header::Header;
use crate::wire::stock::reread_ours;

mod sessions;
#[cfg(test)]
mod tests;
use sessions::{Client, Sessions};

/// After the loss of a link, how much of what its peer had sent is still read, and for how long: what
/// lies in the kernel's buffers, and one record that is under way.
const LAST_BYTES: usize = 16 << 20;
const LAST_TIME: Duration = Duration::from_secs(1);

/// The most that is read without being taken out of the connection at once.
const PEEK_MAX: usize = 4 << 10;

/// What a queue holds before its link is read on, while its records are being claimed.
const READ_AHEAD: u64 = 64 << 10;

/// Commands that are taken of one link in a row: they need no permit and no room, and what they cost is not their
/// bytes.
const COMMANDS_MAX: u32 = 256;

/// How long what the completion thread's mailbox does not take waits.
const UNTOLD_PAUSE: Duration = Duration::from_millis(1);

/// What the shell has to do with its poller after a turn.
#[derive(Debug)]
pub enum ShardAction {
    /// Watch this connection; report its readiness under this link number.
    Watch {
        /// The number.
        link: LinkKey,
        /// The connection.
        transport: Arc<dyn Transport>,
    },
    /// Watch it no longer.
    Unwatch {
        /// The connection.
        transport: Arc<dyn Transport>,
    },
}

/// A link's place in a shard, with the use count of that place: what readiness is reported under.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LinkKey {
    /// The place.
    pub index: u32,
    /// How often it was used before.
    pub generation: u32,
}

/// What a turn came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// There is more to do: do not sleep.
    pub again: bool,
    /// The turn drained rings: their producers may have more.
    pub moved: bool,
    /// When to come back at the latest.
    pub next: Instant,
}

struct Conn {
    link: u64,
    transport: Arc<dyn Transport>,
    decoder: Decoder,
    /// Bytes read and not decoded: what may not be admitted yet, or half a head.
    carry: Vec<u8>,
    readable: bool,
    /// Local channel number to the peer's, until the writer has it.
    channels: Option<Vec<u16>>,
    decoded: u64,
    last_byte: Instant,
    ending: Option<Ending>,
    /// A peer that we dialled and that only answers: the completion thread reads.
    answers: bool,
    /// One that does not even answer.
    one_way: bool,
    /// The peer's end was seen, and no other event will follow: it is read to that end.
    ended: bool,
    /// A command to be written at the next boundary.
    say: Vec<u8>,
    /// What came last was a small request: the next is likely one too.
    asked: bool,
    /// Bytes that were decoded and still lie in the connection, until the turn has written.
    peeked: usize,
    /// A PING of this read that is to be answered.
    pong: Option<Context>,
    /// The list of channels that came in this read.
    list: Option<ChannelList>,
    list_version: u64,
}

/// The pair is lost; what the peer sent before that is read to its end, within bounds.
#[derive(Clone, Copy)]
struct Ending {
    bytes_left: usize,
    until: Instant,
}

struct Link {
    target: Arc<Target>,
    /// The same, for what stays on this shard.
    peer: Peer,
    generation: u32,
    conn: Option<Conn>,
    /// Of an end client, in place of `conn`.
    client: Option<Box<Client>>,
    /// Accepted, and not in the writer's hands yet. Bounded by the mark.
    outbox: Backlog,
    /// Operations that wait for room here, in order. Bounded by the target's share of the room.
    waiters: Waiters,
    writable: bool,
    dirty: bool,
    /// A detach that found the write baton taken.
    detaching: Option<Detaching>,
    origin: Origin,
    /// Records at the head of the queue that came over links before the present one: their answers have
    /// nowhere to go, for the peer may be another that only has the name.
    stale: usize,
    /// Drawn from the host's oversize budget for the record that is larger than the mark.
    drawn: u64,
    /// Why its head may not be claimed now.
    held: Option<Reason>,
    /// When its origin last took a ticket.
    ticketed_at: Instant,
}

#[derive(Clone, Copy)]
struct Detaching {
    link: u64,
    forget: bool,
    lost_at: Instant,
}

struct Job {
    record: Record,
    peer: Peer,
    terms: JobTerms,
}

/// What is known of a job besides its record.
#[derive(Clone, Copy)]
struct JobTerms {
    /// With what it was owned when it was claimed: a stock peer's route is cut down to its method since.
    charge: u64,
    link: u64,
    deadline: Option<Instant>,
    seat: u16,
}

/// See the module.
pub struct ShardEngine {
    core: Core,
    seats: Vec<Box<dyn Seat>>,
    /// Names of channels, then of what is served to clients, in the order announced: a name's place is its seat.
    names: Vec<Arc<str>>,
    /// How many of them are channels.
    channels: usize,
    node_seat: Option<u16>,
    commands: Receiver<ShardCommand>,
    /// What found the completion thread's mailbox full.
    untold: Untold,
    rings: Vec<Consumer<Outgoing>>,
    links: Vec<Option<Box<Link>>>,
    generations: Vec<u32>,
    by_target: HashMap<TargetId, u32>,
    /// Links with something to write.
    dirty: VecDeque<u32>,
    /// Links that may have bytes to read.
    readable: VecDeque<u32>,
    /// Links of which this turn has read what still lies in their connections.
    peeked: Vec<u32>,
    ingress: Ingress<Ticket>,
    chunks: ChunkPool,
    sessions: Sessions,
    /// Links whose head may not be claimed now, for a reason of its own.
    held: Vec<u32>,
    run_queue: VecDeque<Job>,
    block: Box<[u8]>,
    woken: Vec<TaskKey>,
    /// Started places that were left elsewhere, while they are looked at.
    finished: Vec<u32>,
    actions: VecDeque<ShardAction>,
    latencies: LatencySet,
    assembling: bool,
    /// A baton was let go between two looks: another turn at once.
    retry: bool,
    pressure_epoch: u64,
    /// Records in all origins.
    unclaimed: u64,
    /// Handlers started in this turn.
    delivered: u64,
    /// When records came that left their queues in this turn, and how many whose age is not recorded yet.
    same_age: (Instant, u64),
    /// The target of the record before, which is often that of the next.
    last_target: Option<(TargetId, u32)>,
}

impl std::fmt::Debug for ShardEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardEngine").field("core", &self.core).finish_non_exhaustive()
    }
}

impl ShardEngine {
    /// The engine of `shard`. To be called on the thread that will run it: the seats are made here.
    pub fn new(
        shared: Arc<HostShared>,
        shard: ShardId,
        receiver: ShardReceiver,
        channels: &[SeatFactory],
        node: Option<&SeatFactory>,
    ) -> Self {
        let plan = shared.plan.clone();
        let mut seats: Vec<Box<dyn Seat>> =
            channels.iter().enumerate().map(|(i, make)| make(shard.index(), i as u16)).collect();
        let node_seat = node.map(|make| {
            let seat = seats.len() as u16;
            seats.push(make(shard.index(), seat));
            seat
        });
        let local = shared.locals.get(shard.index()).cloned();
        let mut engine = ShardEngine {
            core: Core::new(shared, shard),
            seats,
            names: plan.channels.iter().chain(&plan.servers).map(|(name, _)| name.clone()).collect(),
            channels: plan.channels.len(),
            node_seat,
            commands: receiver.commands,
            untold: Untold::default(),
            rings: vec![receiver.common],
            links: Vec::new(),
            generations: Vec::new(),
            by_target: HashMap::new(),
            dirty: VecDeque::new(),
            readable: VecDeque::new(),
            peeked: Vec::new(),
            ingress: Ingress::new(TurnOrder::OldestFirst),
            chunks: ChunkPool::new(QUEUE_CHUNKS_KEPT as usize),
            sessions: Sessions::new(),
            held: Vec::new(),
            run_queue: VecDeque::new(),
            block: vec![0; plan.turn.read_block].into_boxed_slice(),
            woken: Vec::new(),
            finished: Vec::new(),
            actions: VecDeque::new(),
            latencies: LatencySet::new(),
            assembling: false,
            retry: false,
            pressure_epoch: 0,
            unclaimed: 0,
            delivered: 0,
            same_age: (Instant(0), 0),
            last_target: None,
        };
        if let Some(local) = local {
            engine.adopt(local);
        }
        engine
    }

    /// The host.
    pub fn shared(&self) -> &Arc<HostShared> {
        self.core.shared()
    }

    /// What the shell has to do next; call until it says `None`, after every turn.
    pub fn poll_action(&mut self) -> Option<ShardAction> {
        self.actions.pop_front()
    }

    /// The poller saw something on a link. Spurious and late reports do no harm.
    pub fn handle_ready(&mut self, key: LinkKey, readable: bool, writable: bool) {
        let Some(Some(link)) = self.links.get_mut(key.index as usize) else { return };
        if link.generation != key.generation {
            return;
        }
        if readable
            && let Some(conn) = &mut link.conn
            && !conn.readable
            && !conn.answers
        {
            conn.readable = true;
            self.readable.push_back(key.index);
        }
        // It is told with everything that comes, and mostly nothing is left to be written: a record is on the mark
        // until its last byte is out, and what has no charge is written here.
        let written = || link.target.mark.bytes() == 0 || cfg!(afflux_mutation = "writable_unheeded");
        let idle = link.writable && link.target.dialect == Dialect::Native && written();
        if readable && link.client.is_some() {
            self.client_readable(key.index);
        }
        if writable && !idle {
            let Some(link) = self.link(key.index) else { return };
            link.writable = true;
            if matches!(link.target.dialect, Dialect::Stock | Dialect::Subscriber | Dialect::Publisher(_)) {
                let target = link.target.clone();
                lanes::drive_completion(self.core.shared(), &target);
            }
            self.soil(key.index);
        }
    }

    /// The receive queues of its links, and why the head of one may not be claimed now: for checks.
    pub fn origins(&self) -> impl Iterator<Item = (&Arc<Target>, &Origin, Option<Reason>)> {
        self.links.iter().flatten().map(|link| (&link.target, &link.origin, link.held))
    }

    /// Whether anything was left for this shard since it looked: to be asked after announcing the sleep.
    pub fn has_work(&self) -> bool {
        let shared = self.core.shared();
        let port = shared.port(self.core.shard);
        !self.commands.is_empty()
            || self.rings.iter().any(|ring| !ring.is_empty())
            || !port.inbox.is_empty()
            || !shared.cells.done(self.core.shard.0).is_empty()
            || !port.pokes.is_empty()
            || !port.finished.is_empty()
            || !self.core.tasks.is_empty()
            || port.look_again.is_raised()
            || shared.gate.has_grants(self.core.shard)
    }

    /// For a shell that will look for work rather than sleep: the lead of a lane on which a request of this shard is
    /// owed its reply. To be dropped before the next turn.
    pub fn lead_while_idle(&mut self, now: Instant) -> Option<IdleLead> {
        self.core.lead(now)
    }

    /// For a shell that will sleep, before it announces that: replies to this shard's requests are read by others.
    pub fn expect_reply(&mut self) {
        self.core.expect_reply();
    }

    /// One turn.
    pub fn turn(&mut self, now: Instant) -> Turn {
        self.core.now = now;
        let shared = self.core.shared().clone();
        let port = shared.port(self.core.shard);
        port.turns.add(1);
        let turn = &shared.plan.turn;

        self.take_commands();
        if !self.untold.is_empty() {
            self.untold.send(|command| shared.completion.command(command));
        }
        let mut again = self.finish_operations(&shared, turn.done as usize);
        // What a handle sent before it had to wait lies in its ring: operations that wait are fetched
        // first and admitted last, so that nothing of theirs is overtaken.
        let mut waiting = Vec::new();
        if !port.inbox.is_empty() {
            waiting = self.take_waiting(&shared);
            // The ring of their handle may have come after the commands were taken.
            self.take_commands();
        }
        let moved = self.drain_rings();
        self.admit_all(waiting);
        self.take_pokes();
        let mut next = self.expire_assemblies();
        again |= self.serve_sessions();
        again |= self.read_links();
        again |= self.claim(&shared, turn.claims);
        again |= self.start_jobs(&shared, turn.starts as usize);
        again |= self.write_links(&shared);
        self.discard_peeked();
        again |= self.end_sessions();
        // A continuation whose operation ended as it was started runs in a turn of its own: the next. So
        // does the reading of a link whose queue got room in this one.
        again |= self.core.at_once_len() > 0 || !self.readable.is_empty() || std::mem::take(&mut self.retry);
        next = next.min(self.sessions_due());
        if !self.untold.is_empty() {
            next = next.min(now.after(UNTOLD_PAUSE));
        }
        if again {
            self.core.put_off_lead();
        }
        self.core.publish_owned();
        shared.counts.delivered.add(std::mem::take(&mut self.delivered));
        port.queued.set(self.run_queue.len() as u64);
        port.unclaimed.set(self.unclaimed);
        Turn { again, moved, next }
    }

    // ---- 1 commands

    fn take_commands(&mut self) {
        if self.commands.is_empty() {
            return;
        }
        for _ in 0..self.commands.len() {
            let Ok(command) = self.commands.try_recv() else { return };
            match command {
                ShardCommand::Ring(consumer) => self.rings.push(consumer),
                ShardCommand::Adopt(target) => {
                    self.adopt(target);
                }
                ShardCommand::Attach(attach) => self.attach(*attach),
                ShardCommand::Detach { target, link, forget, lost_at } => {
                    if let Some(&index) = self.by_target.get(&target.id) {
                        self.detach(index, Detaching { link, forget, lost_at });
                    }
                }
                ShardCommand::Client(new) => self.admit_client(*new),
                ShardCommand::Say { target, link, frame } => {
                    if let Some(&index) = self.by_target.get(&target.id)
                        && let Some(conn) = self.link(index).and_then(|l| l.conn.as_mut()).filter(|c| c.link == link)
                    {
                        // Latest wins: signs of life are no history.
                        conn.say = frame;
                        self.soil(index);
                    }
                }
                ShardCommand::Histograms(reply) => {
                    // The asker may have given up waiting.
                    let _ = reply.try_send(self.latencies.swap(LatencySet::new()));
                }
            }
        }
    }

    fn adopt(&mut self, target: Arc<Target>) -> u32 {
        if let Some(&index) = self.by_target.get(&target.id) {
            return index;
        }
        let index = match self.links.iter().position(Option::is_none) {
            Some(free) => free as u32,
            None => {
                self.links.push(None);
                self.generations.push(0);
                self.links.len() as u32 - 1
            }
        };
        let generation = self.generations[index as usize];
        self.by_target.insert(target.id, index);
        // Of a local one the send mark is the bound.
        let local = target.dialect == Dialect::Local;
        let receive_mark = if local { 0 } else { self.core.shared().receive_mark.get() };
        self.links[index as usize] = Some(Box::new(Link {
            origin: Origin::new(receive_mark),
            waiters: Waiters::new(self.core.shared().plan.room.per_target_ops as usize),
            peer: Peer::new(Party {
                shared: self.core.shared().clone(),
                target: target.clone(),
                shard: self.core.shard,
            }),
            target,
            generation,
            conn: None,
            client: None,
            outbox: Backlog::new(),
            writable: true,
            dirty: false,
            detaching: None,
            stale: 0,
            drawn: 0,
            held: None,
            ticketed_at: Instant(0),
        }));
        self.ingress.attach(OriginKey(index));
        index
    }

    fn attach(&mut self, attach: Attach) {
        let index = self.adopt(attach.target.clone());
        let Some(link) = self.link(index) else { return };
        // A later loss may have been told while this waited in the mailbox.
        if link.target.link.get() != attach.link {
            attach.transport.shutdown();
            return;
        }
        let key = LinkKey { index, generation: link.generation };
        let transport = attach.transport.clone();
        link.writable = true;
        // The connection before this one had its time.
        self.end_connection(index);
        let now = self.core.now;
        let max = self.core.shared().plan.max_message;
        if let Some(link) = self.link(index) {
            link.stale = link.origin.len();
            link.conn = Some(Conn {
                link: attach.link,
                transport: attach.transport,
                decoder: Decoder::new(attach.mode, max),
                carry: attach.carry,
                readable: attach.mode != Mode::StockAnswering,
                channels: Some(attach.channels),
                decoded: 0,
                last_byte: now,
                ending: None,
                answers: attach.mode == Mode::StockAnswering,
                one_way: attach.one_way,
                ended: false,
                say: Vec::new(),
                asked: false,
                peeked: 0,
                pong: None,
                list: None,
                list_version: 0,
            });
        }
        self.actions.push_back(ShardAction::Watch { link: key, transport });
        self.readable.push_back(index);
        self.soil(index);
    }

    fn detach(&mut self, index: u32, detaching: Detaching) {
        let shared = self.core.shared().clone();
        let Some(link) = self.links[index as usize].as_deref_mut() else { return };
        if link.conn.as_ref().is_some_and(|conn| conn.answers && conn.link <= detaching.link) {
            // Nothing of it is read here.
            self.end_connection(index);
        }
        let Some(link) = self.links[index as usize].as_deref_mut() else { return };
        if let Some(conn) = &mut link.conn
            && conn.link <= detaching.link
            && conn.ending.is_none()
        {
            conn.ending = Some(Ending { bytes_left: LAST_BYTES, until: self.core.now.after(LAST_TIME) });
            conn.readable = true;
            self.assembling = true;
            self.readable.push_back(index);
        }
        let Some(mut writer) = link.target.application.try_take() else {
            // Somebody is in the middle of a write, which the shutdown ends. We are told when he lets go; if he has
            // already, we try again at once.
            link.detaching = Some(detaching);
            self.retry |= link.target.application.ask() == crate::sync::baton::Asked::Free;
            self.soil(index);
            return;
        };
        link.detaching = None;
        let target = link.target.clone();
        (writer.transport, writer.link) = (None, 0);
        let stock = std::mem::take(&mut writer.stock);
        let detached = writer.egress.detach();
        let told = target.decoded_by_peer.get();
        target.in_doubt_on_detach.add(writer.written.saturating_sub(told));
        writer.written = 0;
        lanes::let_go(&shared, &target, writer);
        if let Some((_, charge)) = detached.begun {
            let _ = target.mark.release(charge);
            target.lost_on_detach.add(1);
        }
        if !detached.unbegun.is_empty() {
            requeue(&mut self.chunks, &mut link.outbox, detached.unbegun, stock);
        }
        shared.end_requests(&target, Detail::LinkLost, detaching.lost_at);
        if detaching.forget {
            while let Some(popped) = link.outbox.pop(&mut self.chunks) {
                let _ = target.mark.release(popped.charge);
                target.lost_on_detach.add(1);
            }
            for id in link.waiters.drain() {
                target.mark.forget_waiter();
                if !cfg!(afflux_mutation = "detached_waits_on") {
                    shared.fail(id, target.id.0, Some(&target), ErrorKind::Unavailable, Detail::Detached);
                }
            }
        } else {
            // What was begun and lost left room for those who wait.
            if !cfg!(afflux_mutation = "detach_admits_nobody") {
                self.admit_waiters(index);
            }
            self.soil(index);
        }
        self.reap(index);
    }

    /// Gives the place of a forgotten link back once everything it received was claimed.
    fn reap(&mut self, index: u32) {
        let Some(link) = self.links[index as usize].as_deref() else { return };
        let over =
            link.target.gone.is_raised() && link.conn.is_none() && link.detaching.is_none() && link.origin.is_empty();
        if over
            && link.client.is_none()
            && let Some(link) = self.links[index as usize].take()
        {
            if let Some(ticket) = self.ingress.detach(OriginKey(index)) {
                let _ = self.core.shared().gate.cancel(ticket);
            }
            let shared = self.core.shared();
            shared.leave_line(&shared.owned_line, &link.target);
            self.by_target.remove(&link.target.id);
            self.last_target = None;
            self.generations[index as usize] = link.generation.wrapping_add(1);
        }
    }

    // ---- 2 finished operations

    /// True if there is more.
    fn finish_operations(&mut self, shared: &Arc<HostShared>, limit: usize) -> bool {
        let shard = self.core.shard;
        shared.port(shard).finished.swap(&mut self.finished);
        self.finished.drain(..).for_each(|place| self.core.leave_place(place));
        let mut n = 0;
        let _held = cfg!(afflux_mutation = "callback_under_lock").then(|| shared.port(shard).pokes.lock());
        let done = shared.cells.done(shard.0);
        while n < limit && !done.is_empty() {
            let Some(entry) = shared.cells.pop(done) else { break };
            let Some(outcome) = shared.cells.take(entry.id) else { continue };
            // Nobody: the instance that waited was lost to a panic.
            let Some(awaited) = self.core.awaited(entry.id) else { continue };
            let outcome = taken(shared, outcome, awaited.since);
            self.seats[awaited.seat as usize].resume(&mut self.core, awaited.key, outcome);
            n += 1;
        }
        for _ in 0..self.core.at_once_len() {
            let Some((seat, key, outcome)) = self.core.next_at_once() else { break };
            self.seats[seat as usize].resume(&mut self.core, key, outcome);
            n += 1;
        }
        if !self.core.tasks.is_empty() {
            let mut woken = std::mem::take(&mut self.woken);
            self.core.tasks.swap(&mut woken);
            n += woken.len();
            for key in woken.drain(..) {
                self.seats[key.seat as usize].poll(&mut self.core, key);
            }
            self.woken = woken;
        }
        n > 0
    }

    // ---- 3 rings, waiting operations, pokes

    /// Takes what lies in the rings now; what is pushed meanwhile comes next turn. True if anything came.
    fn drain_rings(&mut self) -> bool {
        if self.rings.iter().all(|ring| ring.is_empty() && !ring.is_abandoned()) {
            return false;
        }
        let mut any = false;
        let mut rings = std::mem::take(&mut self.rings);
        rings.retain_mut(|ring| {
            let mut left = ring.len();
            any |= left > 0;
            let mut batch = ring.batch();
            while left > 0
                && let Some(target) = batch.front().map(|outgoing| outgoing.target)
            {
                self.take_run(&mut Run { batch: &mut batch, target, left: &mut left });
            }
            drop(batch);
            !ring.is_abandoned()
        });
        rings.append(&mut self.rings);
        self.rings = rings;
        any
    }

    fn index_of(&mut self, target: TargetId) -> Option<u32> {
        match self.last_target {
            Some((last, index)) if last == target => Some(index),
            _ => {
                let index = match self.by_target.get(&target) {
                    Some(index) => *index,
                    None => self.adopt_early(target)?,
                };
                self.last_target = Some((target, index));
                Some(index)
            }
        }
    }

    /// Routes may tell callers of a target before its attach has come through the mailbox.
    #[cold]
    fn adopt_early(&mut self, target: TargetId) -> Option<u32> {
        let target = self.core.shared().target(target)?;
        let ours = target.owner == self.core.shard && target.dialect != Dialect::Stream && !target.gone.is_raised();
        ours.then(|| self.adopt(target))
    }

    /// Takes a run of records: into the writer's hands, if nothing is in front of them and nobody else
    /// writes; else into the outbox.
    fn take_run(&mut self, run: &mut Run<'_, '_>) {
        let id = run.target;
        let Some(index) = self.index_of(id) else {
            return run.for_each(|record| self.lose_record(id, &record));
        };
        let Some(link) = self.links[index as usize].as_deref_mut() else { return };
        let target = link.target.clone();
        if target.gone.is_raised() {
            // Its queue was counted lost; the link is here only for what it received.
            return run.for_each(|record| {
                let _ = target.mark.release(record.charge());
                self.lose_record(id, &record);
            });
        }
        if target.dialect == Dialect::Local {
            let mut records = 0;
            for record in run {
                let charge = record.charge();
                link.origin.offer(&mut self.chunks, record, charge, self.core.now);
                records += 1;
            }
            return self.offered(index, records);
        }
        let shared = self.core.shared();
        if link.outbox.is_empty()
            && link.writable
            && link.detaching.is_none()
            && let Some(mut writer) = target.application.try_take()
        {
            if writer.transport.is_some() {
                run.take_while(|record| {
                    if !writer.egress.room(BATCH) {
                        return false;
                    }
                    let charge = record.charge();
                    if is_cancelled(shared, record.kind, record.correlation) {
                        discard(&target, charge);
                    } else if !lanes::stage(&mut writer, record, charge) {
                        refuse_unserved(shared, &target, &Head::of(record, charge, 0));
                    }
                    true
                });
            }
            lanes::let_go(shared, &target, writer);
        }
        // Mostly they are small, and copied from where they lie.
        run.take_while(|record| link.outbox.push_small(&mut self.chunks, record, record.charge(), 0));
        for record in run {
            let charge = record.charge();
            link.outbox.push(&mut self.chunks, record, charge, 0);
        }
        self.soil(index);
    }

    /// A record for a link that is gone: its caller fixed the target before he could know.
    fn lose_record(&self, target: TargetId, record: &Record) {
        let shared = self.core.shared();
        shared.counts.lost_with_target.add(1);
        if record.kind == Kind::Request {
            let id = CellId::from_correlation(record.correlation);
            shared.fail(id, TAG_REQUEST | target.0, None, ErrorKind::Unavailable, Detail::Detached);
        }
    }

    /// Fetches operations that wait; returns the links that they wait at.
    fn take_waiting(&mut self, shared: &Arc<HostShared>) -> Vec<u32> {
        let mut links = Vec::new();
        while let Some(entry) = shared.cells.pop(&shared.port(self.core.shard).inbox) {
            match self.index_of(tag_target(entry.tag)) {
                Some(index) => {
                    let Some(link) = self.links[index as usize].as_deref_mut() else { continue };
                    if link.target.gone.is_raised() {
                        link.target.mark.forget_waiter();
                        let (kind, detail) = (ErrorKind::Unavailable, Detail::Detached);
                        shared.fail(entry.id, entry.tag, Some(&link.target), kind, detail);
                        continue;
                    }
                    let pruned = Pruned::new(shared);
                    let pushed = link.waiters.push(entry.id, |id| pruned.is_waiting(id));
                    pruned.forget(&link.target);
                    if pushed.is_err() {
                        // More wait than the target's share of the room holds: this cannot be, and if
                        // it is, nobody waits without an end.
                        link.target.mark.forget_waiter();
                        let (kind, detail) = (ErrorKind::DeadlineExceeded, Detail::WaitingRoomFull);
                        shared.fail(entry.id, entry.tag, Some(&link.target), kind, detail);
                    }
                    links.push(index);
                }
                None => {
                    shared.fail(entry.id, entry.tag, None, ErrorKind::Unavailable, Detail::Detached);
                }
            }
        }
        links
    }

    fn admit_all(&mut self, links: Vec<u32>) {
        for index in links {
            self.admit_waiters(index);
        }
        let look_again = &self.core.shared().port(self.core.shard).look_again;
        if look_again.is_raised() && look_again.lower() {
            let receive_mark = self.core.shared().receive_mark.get();
            for index in 0..self.links.len() as u32 {
                self.admit_waiters(index);
                if let Some(link) = self.link(index)
                    && !matches!(link.target.dialect, Dialect::Local | Dialect::Stream)
                    && link.origin.mark() != receive_mark
                    && !cfg!(afflux_mutation = "mark_moves_unseen")
                {
                    // Whoever is parked is looked at below, whichever way it moved.
                    let _ = link.origin.set_mark(receive_mark);
                }
                self.unpark(index);
                self.admit_replies(index);
            }
        }
    }

    /// Replies that waited for room under the host's mark.
    fn admit_replies(&mut self, index: u32) {
        let Some(target) = self.link(index).map(|link| link.target.clone()) else { return };
        if !target.reply_waiters.lock().is_empty() {
            let shared = self.core.shared();
            answer::admit_waiting(shared, &target);
            lanes::drive_completion(shared, &target);
        }
    }

    fn take_pokes(&mut self) {
        if self.core.shared().port(self.core.shard).pokes.is_empty() {
            return;
        }
        for target in self.core.shared().port(self.core.shard).pokes.take() {
            target.poked.lower();
            let Some(&index) = self.by_target.get(&target.id) else { continue };
            if let Some(detaching) = self.link(index).and_then(|l| l.detaching) {
                self.detach(index, detaching);
            }
            self.admit_waiters(index);
            self.soil(index);
            self.look_at_session(index);
        }
    }

    /// Admits operations that wait, oldest first, while they fit; nobody overtakes the head.
    fn admit_waiters(&mut self, index: u32) {
        let shared = self.core.shared().clone();
        let Some(link) = self.links[index as usize].as_deref_mut() else { return };
        let target = link.target.clone();
        let local = target.dialect == Dialect::Local;
        let mut admitted = 0;
        loop {
            // Those whose time was up, or that were cancelled, are waiters no more.
            let pruned = Pruned::new(&shared);
            let front = link.waiters.front(|id| pruned.is_waiting(id));
            pruned.forget(&target);
            let Some(id) = front else { break };
            let Some((charge, request)) =
                shared.cells.with_waiting(id, |op| (op.record.charge(), op.record.kind == Kind::Request))
            else {
                continue;
            };
            // The deadline goes first, whoever is quicker: nobody is told of room after it.
            if let Some(deadline) = shared.cells.deadline(id).filter(|deadline| self.core.now > *deadline)
                && !cfg!(afflux_mutation = "late_admission")
            {
                if shared.expire(id, target.id.0, Some(&target), self.core.now) {
                    self.latencies.record(Latency::Lateness, self.core.now.since(deadline));
                }
                continue;
            }
            // A slot that is taken in vain holds up others, who look again when it comes back: a look at the mark
            // first.
            if request && (!target.mark.has_room(charge) || !shared.enter_slot(&target)) {
                break;
            }
            if target.mark.admit_waiter(charge).is_err() && !cfg!(afflux_mutation = "waiters_unmeasured") {
                if request {
                    shared.leave_slot_quietly(&target);
                }
                break;
            }
            link.waiters.pop();
            if request {
                lead::expect(&target);
            }
            // A send has ended with this; a request goes on in its cell.
            let op = if request {
                shared.cells.claim(id)
            } else {
                let mut op = None;
                shared.cells.finish_waiting(id, |waiting| {
                    op = Some(waiting);
                    Outcome::Accepted
                });
                op
            };
            match op {
                Some(mut op) => {
                    shared.leave_room(&op);
                    let kind = match op.class {
                        Class::Caller => Latency::SendWait,
                        Class::Handler => Latency::HandlerSendWait,
                    };
                    self.latencies.record(kind, self.core.now.since(op.since));
                    if request {
                        op.record.correlation = id.correlation();
                    }
                    if local {
                        link.origin.offer(&mut self.chunks, op.record, charge, self.core.now);
                    } else {
                        link.outbox.push(&mut self.chunks, op.record, charge, 0);
                    }
                    admitted += 1;
                }
                None => {
                    let _ = target.mark.release(charge);
                    if request {
                        shared.leave_slot_quietly(&target);
                    }
                }
            }
        }
        if local {
            self.offered(index, admitted);
        } else if admitted > 0 {
            self.soil(index);
        }
    }

    // ---- 4 timers

    /// Ends connections whose record in assembly gets no byte while we read, and those of lost links whose
    /// time is up. Returns when to look next.
    fn expire_assemblies(&mut self) -> Instant {
        let mut next = Instant::NEVER;
        if !self.assembling {
            return next;
        }
        self.assembling = false;
        let limit = self.core.shared().plan.assembly_timeout;
        for index in 0..self.links.len() {
            let Some(link) = self.links[index].as_deref() else { continue };
            let Some(conn) = &link.conn else { continue };
            let due = match conn.ending {
                Some(ending) => ending.until,
                None if conn.decoder.assembly().is_none() => continue,
                // What came while this shard was busy is read first: the time is the peer's, not ours.
                None if conn.readable && !cfg!(afflux_mutation = "assembly_unread") => Instant::NEVER,
                None => conn.last_byte.after(limit),
            };
            self.assembling = true;
            if self.core.now >= due {
                self.lose(index as u32, "a record in assembly got no byte in time".into());
            } else {
                next = next.min(due);
            }
        }
        next
    }

    // ---- 5 reads

    /// True if a link stopped on its budget.
    fn read_links(&mut self) -> bool {
        let mut again = false;
        for _ in 0..self.readable.len() {
            let Some(index) = self.readable.pop_front() else { break };
            if self.has_read_enough(index) || self.read_link(index) {
                self.readable.push_back(index);
                again = true;
            }
        }
        again
    }

    /// Whether a link's queue holds enough to go on with and its records can be claimed now. Reading on
    /// would only carry bytes from the kernel's memory to ours, and out of the cache.
    fn has_read_enough(&self, index: u32) -> bool {
        let Some(link) = self.links.get(index as usize).and_then(Option::as_deref) else { return false };
        link.origin.outstanding() >= READ_AHEAD
            && link.held.is_none()
            && link.conn.as_ref().is_some_and(|conn| conn.ending.is_none() && conn.decoder.assembly().is_none())
            && self.ingress.waiting().1 == 0
            && self.run_queue.is_empty()
    }

    /// Reads and decodes one link within its budget. True if it goes on in the next turn.
    fn read_link(&mut self, index: u32) -> bool {
        if self.link(index).is_some_and(|link| link.client.is_some()) {
            return self.read_client(index);
        }
        let mut block = std::mem::take(&mut self.block);
        let mut offered = 0;
        let outcome = self.read_into(index, &mut block, &mut offered);
        self.block = block;
        // Whatever ended the reading: what came before it is whole, and is claimed.
        self.offered(index, offered);
        match outcome {
            Ok(more) => more,
            Err(reason) => {
                self.lose(index, reason);
                false
            }
        }
    }

    /// So many records came into a link's queue.
    fn offered(&mut self, index: u32, records: u32) {
        if records > 0 {
            self.core.shared().counts.received.add(u64::from(records));
            self.unclaimed += u64::from(records);
            self.core.shared().port(self.core.shard).unclaimed.set(self.unclaimed);
            self.ingress.offered(OriginKey(index), records, self.core.now);
        }
    }

    fn read_into(&mut self, index: u32, block: &mut [u8], offered: &mut u32) -> Result<bool, String> {
        let plan = &self.core.shared().plan;
        let Some(link) = self.links.get_mut(index as usize).and_then(Option::as_deref_mut) else { return Ok(false) };
        let mut budget = plan.turn.read_bytes_per_link;
        // What is left from before comes first.
        let mut have = 0;
        // What asks to be answered is taken out of the connection when the turn has written: a connection that is
        // only read acknowledges at once when it is read empty, and the answer is not to wait for that.
        let mut late = false;
        if let Some(conn) = &mut link.conn {
            if conn.peeked > 0 {
                take_out(conn, block)?;
            }
            late = conn.asked && conn.ending.is_none() && !conn.ended;
            if !conn.carry.is_empty() {
                have = conn.carry.len();
                block[..have].copy_from_slice(&conn.carry);
                conn.carry = Vec::new();
            }
        }
        let mut filled = false;
        let more = loop {
            let mut used = Used { consumed: 0, parked: false, commands: 0 };
            if have > 0 || filled {
                used = decode(&self.core, &mut self.chunks, link, &block[..have], offered)?;
                filled = false;
            }
            let Some(conn) = &mut link.conn else { break false };
            if used.consumed < have {
                block.copy_within(used.consumed..have, 0);
            }
            have -= used.consumed;
            let many = used.commands == COMMANDS_MAX;
            if used.parked || budget == 0 || !conn.readable || many {
                if have > 0 {
                    conn.carry.extend_from_slice(&block[..have]);
                }
                break many || (!used.parked && conn.readable);
            }
            // A large body is read where it will stay; everything else goes through the block.
            let space = if have == 0 { conn.decoder.assembly_space(budget) } else { None };
            let in_place = space.is_some();
            let space = space.unwrap_or_else(|| {
                let room = room_to_read(&link.origin, plan.turn.read_min).min(block.len() - have);
                let room = if late { room.min(PEEK_MAX) } else { room };
                &mut block[have..have + room]
            });
            late &= !in_place;
            let asked = space.len();
            match if late { conn.transport.peek(space) } else { conn.transport.read(space) } {
                Ok(0) => return Err("the peer closed the connection".into()),
                Ok(n) => {
                    if late {
                        late = false;
                        conn.peeked = n;
                        if n == asked {
                            take_out(conn, &mut block[have..])?;
                        } else {
                            self.peeked.push(index);
                        }
                    }
                    if in_place {
                        conn.decoder.assembly_filled(n);
                        filled = true;
                    } else {
                        have += n;
                    }
                    budget = budget.saturating_sub(n);
                    if let Some(ending) = &mut conn.ending {
                        ending.bytes_left = ending.bytes_left.saturating_sub(n);
                        if ending.bytes_left == 0 {
                            return Err("the peer goes on sending after the link was lost".into());
                        }
                    }
                    conn.last_byte = self.core.now;
                    link.target.last_read_ns.set(self.core.now.0);
                    // A short read: the socket is empty, and what comes next will be told, but for the end.
                    conn.readable = n == asked || conn.ended;
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => conn.readable = false,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) if late && e.kind() == std::io::ErrorKind::Unsupported => late = false,
                Err(e) => return Err(e.to_string()),
            }
        };
        if let Some(conn) = &mut link.conn {
            self.assembling |= conn.decoder.assembly().is_some();
            let at = conn.link;
            if let Some(context) = conn.pong.take() {
                let mut frame = Vec::new();
                write_pong(&context, &mut frame);
                lanes::post(self.core.shared(), &link.target, Post::Command { link: at, frame: frame.into() });
            }
            if let Some(list) = conn.list.take() {
                self.untold.push(CompletionCommand::Channels { target: link.target.clone(), link: at, list });
                self.untold.send(|command| self.core.shared().completion.command(command));
            }
        }
        Ok(more)
    }

    /// Takes out of connections what was only looked at, after the turn's writes and before the sleep.
    fn discard_peeked(&mut self) {
        while let Some(index) = self.peeked.pop() {
            let Some(conn) = self.links[index as usize].as_deref_mut().and_then(|link| link.conn.as_mut()) else {
                continue;
            };
            if let Err(reason) = take_out(conn, &mut self.block) {
                self.lose(index, reason);
            }
        }
    }

    /// The application connection is of no use any more: the completion thread retires the pair, unless
    /// that is how it began.
    fn lose(&mut self, index: u32, reason: String) {
        let Some(conn) = self.end_connection(index) else { return };
        if conn.ending.is_none()
            && let Some(link) = self.links[index as usize].as_deref()
        {
            self.untold.push(CompletionCommand::Lost { target: link.target.clone(), link: conn.link, reason });
            self.untold.send(|command| self.core.shared().completion.command(command));
        }
        self.reap(index);
    }

    fn end_connection(&mut self, index: u32) -> Option<Conn> {
        let link = self.links[index as usize].as_deref_mut()?;
        let conn = link.conn.take()?;
        conn.transport.shutdown();
        link.target.parked.lower();
        forget_assembly(self.core.shared(), link);
        self.actions.push_back(ShardAction::Unwatch { transport: conn.transport.clone() });
        Some(conn)
    }

    // ---- 6 claims

    /// Claims from ready links: permit first, record second. True if there is more to claim now.
    fn claim(&mut self, shared: &Arc<HostShared>, budget: u32) -> bool {
        let (shard, now) = (self.core.shard, self.core.now);
        self.release_held();
        self.ingress.begin(budget);
        let granted = shared.gate.take_grants(shard);
        self.ingress.granted(granted);
        let want = self.ingress.want();
        if want > 0 {
            let acquired = shared.gate.acquire(shard, want, now);
            self.ingress.acquired(acquired);
            self.core.begin_run(acquired as usize);
        } else {
            self.core.begin_run(granted as usize);
        }
        loop {
            while let Some(pick) = self.ingress.next() {
                self.claim_run(shared, pick);
            }
            let Some((origin, since)) = self.ingress.to_file() else { break };
            match shared.gate.wait(shard, since, now) {
                Waited::Acquired => self.ingress.acquired(1),
                Waited::Ticket(ticket) => {
                    self.ingress.ticketed(origin, ticket);
                    if let Some(link) = self.link(origin.0) {
                        link.ticketed_at = now;
                    }
                }
                Waited::Stopped => break,
            }
        }
        self.core.end_run();
        let unspent = self.ingress.finish();
        self.give_back(unspent);
        self.record_ages();
        self.tell_pressure();
        self.ingress.has_work()
    }

    /// Claims from the origin that ingress picked, or takes the origin out of the turn.
    fn claim_run(&mut self, shared: &Arc<HostShared>, pick: Pick<Ticket>) {
        let now = self.core.now;
        let index = pick.origin.0;
        let Some(link) = self.links[index as usize].as_deref_mut() else { return };
        if let Some(reason) = hold_reason(&self.core, link) {
            link.held = Some(reason);
            if let Some(ticket) = self.ingress.not_ready(pick.origin, reason, now) {
                // If it was granted already, the permit is among the grants and goes to another.
                let _ = shared.gate.cancel(ticket);
            }
            self.held.push(index);
            return;
        }
        match pick.spend {
            Spend::Grant { redeem } => {
                self.latencies.record(Latency::PermitWait, now.since(link.ticketed_at));
                shared.gate.redeem(redeem);
            }
            Spend::Acquired { cancel: Some(ticket) } => {
                let _ = shared.gate.cancel(ticket);
            }
            Spend::Acquired { cancel: None } => {}
        }
        let local = link.target.dialect == Dialect::Local;
        // A handler reaches no link: it lies at hand for the run.
        let Some(mut link) = self.links[index as usize].take() else { return };
        let (records, resume) = self.claim_from(shared, &mut link, pick.run);
        let waiters = local && link.target.mark.waiters() > 0;
        let gone = link.target.gone.is_raised();
        self.links[index as usize] = Some(link);
        if records == 0 {
            return self.give_back(1);
        }
        self.unclaimed -= u64::from(records);
        self.ingress.claimed(pick, records, now);
        if resume {
            self.unpark(index);
        }
        if waiters && !cfg!(afflux_mutation = "room_unoffered") {
            self.admit_waiters(index);
        }
        if gone {
            self.reap(index);
        }
    }

    /// Claims at most `run` records, and says how many, and whether the source is to be told to go on. The first may
    /// be claimed.
    #[inline(never)]
    fn claim_from(&mut self, shared: &Arc<HostShared>, link: &mut Link, run: u32) -> (u32, bool) {
        let at = link.conn.as_ref().map_or(0, |c| c.link);
        let (mut records, mut resume) = (0, false);
        let mut claimed = Claimed::default();
        while records < run && (records == 0 || hold_reason(&self.core, link).is_none()) {
            if !link.origin.claim_into(&mut self.chunks, &mut claimed) {
                debug_assert!(false, "ingress knows of a record that its origin does not have");
                break;
            }
            if claimed.drawn > 0 {
                shared.oversize.leave(std::mem::take(&mut link.drawn));
                shared.relieve();
            }
            let at = if link.stale > 0 && !cfg!(afflux_mutation = "reply_crosses_links") { 0 } else { at };
            link.stale = link.stale.saturating_sub(1);
            records += 1;
            resume |= claimed.resume;
            let Popped { record, stamp, charge } = &mut claimed.popped;
            if link.target.dialect == Dialect::Local {
                // Its send queue was its receive queue.
                let _ = link.target.mark.release(*charge);
            }
            self.core.own(*charge);
            shared.leave_line(&shared.owned_line, &link.target);
            self.claimed_of(Instant(*stamp));
            self.dispatch(shared, &link.peer, at, record, *charge);
        }
        (records, resume)
    }

    /// The link of a queue that has room again is read again.
    fn unpark(&mut self, index: u32) {
        let Some(link) = self.links.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
        let reads = link.conn.is_some() || link.client.as_ref().is_some_and(|client| client.is_reading());
        if link.target.parked.lower() && reads && !cfg!(afflux_mutation = "unparked_unread") {
            self.readable.push_back(index);
        }
    }

    /// Origins that were held for a reason of their own are ready again when it is over.
    fn release_held(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let mut held = std::mem::take(&mut self.held);
        held.retain(|index| {
            let Some(link) = self.links[*index as usize].as_deref_mut() else { return false };
            if let Some(reason) = hold_reason(&self.core, link) {
                link.held = Some(reason);
                return true;
            }
            link.held = None;
            self.ingress.ready_again(OriginKey(*index), self.core.now);
            false
        });
        self.held = held;
    }

    /// A record that came at this instant left its queue. The ages of those that came together are recorded together.
    #[inline]
    fn claimed_of(&mut self, came: Instant) {
        if self.same_age.0 != came {
            self.record_ages();
            self.same_age.0 = came;
        }
        self.same_age.1 += 1;
    }

    fn record_ages(&mut self) {
        let records = std::mem::take(&mut self.same_age.1);
        if records > 0 {
            self.latencies.record_many(Latency::QueueAge, self.core.now.since(self.same_age.0), records);
        }
    }

    fn give_back(&mut self, permits: u32) {
        if permits > 0 {
            release_permits(self.core.shared(), self.core.shard, permits, self.core.now);
        }
    }

    /// A crossing is told to the peers by the completion thread.
    fn tell_pressure(&mut self) {
        let epoch = self.core.shared().gate.pressure().1;
        if epoch != self.pressure_epoch {
            self.pressure_epoch = epoch;
            self.core.shared().completion.wake.wake();
        }
    }

    /// Makes a job of a claimed record, or returns its permit at once.
    #[inline]
    fn dispatch(&mut self, shared: &Arc<HostShared>, peer: &Peer, link: u64, record: &mut Record, charge: u64) {
        let target: &Arc<Target> = peer;
        let seat = match (record.kind, target.dialect) {
            (Kind::Reply | Kind::Error, _) => {
                shared.counts.malformed.add(1);
                // A stock peer's malformed question is still owed its one answer.
                if let Some(envelope) = record.envelope.take() {
                    let text = String::from_utf8_lossy(&record.payload).into_owned();
                    answer::answer(
                        shared,
                        target,
                        link,
                        error_record(0, Some(envelope), ErrorKind::Protocol, 0, &text),
                    );
                }
                None
            }
            (kind, Dialect::Local) if is_cancelled(shared, kind, record.correlation) => {
                target.discarded.add(1);
                None
            }
            (_, Dialect::Native | Dialect::Local) => match self.seat_of(target.serves, record.channel) {
                Ok(seat) => Some(seat),
                Err(why) => {
                    self.no_handler(peer, link, record, why);
                    None
                }
            },
            // The seat of its socket.
            (_, Dialect::Stream) => Some(record.channel),
            (_, Dialect::Publisher(seat)) => Some(seat),
            (_, Dialect::Stock | Dialect::Subscriber) => {
                let route = record.method.as_str();
                let (channel, method) = route.split_once('/').unwrap_or((route, ""));
                match self.names.iter().position(|name| &**name == channel) {
                    Some(at) => {
                        record.method = Method::new(method).unwrap_or_default();
                        Some(at as u16)
                    }
                    None => {
                        self.no_handler(peer, link, record, "nobody here serves this channel");
                        None
                    }
                }
            }
        };
        match seat {
            Some(seat) => {
                let deadline = (record.kind == Kind::Request && record.expiry_ms != 0)
                    .then(|| local_deadline(record.expiry_ms, target.clock_ahead_ms.get() as u32, self.core.now));
                let terms = JobTerms { charge, link, deadline, seat };
                // Nobody is before it: it need not lie in the queue.
                if self.run_queue.is_empty() && self.core.may_start() {
                    self.start(shared, record, peer, terms);
                } else {
                    target.jobs.add(1);
                    self.run_queue.push_back(Job { record: record.take(), peer: peer.clone(), terms });
                    if cfg!(afflux_mutation = "permit_returned_twice") {
                        self.give_back(1);
                    }
                }
            }
            None => {
                self.core.disown(charge);
                if !cfg!(afflux_mutation = "permit_kept_unhandled") {
                    self.give_back(1);
                }
            }
        }
    }

    /// Which seat a native peer means by the number of a channel.
    fn seat_of(&self, serves: Serves, channel: u16) -> Result<u16, &'static str> {
        let (own, clients) = (self.channels as u16, (self.names.len() - self.channels) as u16);
        match serves {
            Serves::Node if channel == ChannelId::NODE.0 => self.node_seat.ok_or("this node has no handler of its own"),
            Serves::Node if channel < own => Ok(channel),
            Serves::Client if channel < clients => Ok(own + channel),
            Serves::Client if channel == ChannelId::NODE.0 => Err("a client calls what is served to clients"),
            Serves::Node | Serves::Client => Err("unknown channel number"),
            Serves::Nothing => Err("this host is a client here: only it starts"),
        }
    }

    #[cold]
    fn no_handler(&mut self, peer: &Peer, link: u64, record: &mut Record, what: &str) {
        let debt = (record.kind == Kind::Request).then(|| debt_of_none(peer, link, record));
        refuse(&self.core, debt, what);
    }

    /// A request whose time was up before its turn came: its caller is told, its handler is spared.
    #[cold]
    fn skip_expired(&mut self, record: &mut Record, charge: u64, peer: &Peer, link: u64) {
        let shared = self.core.shared().clone();
        self.core.disown(charge);
        self.give_back(1);
        shared.counts.expired_in_queue.add(1);
        let debt = debt_of_none(peer, link, record);
        debt.fail(ErrorKind::DeadlineExceeded, 0, "the request's time was up before its handler could start");
    }

    // ---- 7 starts

    /// Starts jobs that were claimed and not started at once. True if there is more to do now.
    fn start_jobs(&mut self, shared: &Arc<HostShared>, limit: usize) -> bool {
        let mut n = 0;
        if !self.run_queue.is_empty() {
            self.core.begin_run(self.run_queue.len().min(limit));
            while n < limit && self.core.may_start() {
                let Some(Job { mut record, peer, terms }) = self.run_queue.pop_front() else { break };
                n += 1;
                if !cfg!(afflux_mutation = "target_capped_for_good") {
                    peer.jobs.sub(1);
                }
                self.start(shared, &mut record, &peer, terms);
            }
            self.core.end_run();
        }
        // A job that ended may have made room for the head of an origin that was held.
        let more = n == limit && !self.run_queue.is_empty();
        more || ((self.delivered > 0 || n > 0) && !self.held.is_empty())
    }

    #[inline(always)]
    fn start(&mut self, shared: &Arc<HostShared>, record: &mut Record, peer: &Peer, terms: JobTerms) {
        let JobTerms { charge, link, deadline, seat } = terms;
        // The jobs before it in this turn took time of their own.
        let skips = shared.plan.skip_expired_requests && !cfg!(afflux_mutation = "expired_run");
        if skips && deadline.is_some_and(|end| shared.clock.now() >= end) {
            return self.skip_expired(record, charge, peer, link);
        }
        let charge = if cfg!(afflux_mutation = "owned_charged_anew") { record.charge() } else { charge };
        let place = self.core.start_place(charge, if record.kind == Kind::Request { 2 } else { 1 });
        let lineage = Lineage { depth: record.depth.saturating_add(1), deadline };
        self.delivered += 1;
        let seat = &mut self.seats[seat as usize];
        // The permit goes back here, and the next instruction is the user's.
        if !cfg!(afflux_mutation = "permit_after_callback") {
            release_permits(shared, self.core.shard, 1, self.core.now);
        }
        seat.start(&mut self.core, Start { record, peer, link, place, lineage });
        if cfg!(afflux_mutation = "permit_after_callback") {
            release_permits(shared, self.core.shard, 1, self.core.now);
        }
    }

    // ---- 8 writes

    fn soil(&mut self, index: u32) {
        if let Some(link) = self.links.get_mut(index as usize).and_then(Option::as_deref_mut)
            && !link.dirty
        {
            link.dirty = true;
            self.dirty.push_back(index);
        }
    }

    /// True if a link stopped on its budget.
    fn write_links(&mut self, shared: &Arc<HostShared>) -> bool {
        let mut again = false;
        for _ in 0..self.dirty.len() {
            let Some(index) = self.dirty.pop_front() else { break };
            if let Some(link) = self.links[index as usize].as_deref_mut() {
                link.dirty = false;
                again |= self.write_link(shared, index);
            }
            if cfg!(afflux_mutation = "blocked_stops_writing") && self.link(index).is_some_and(|link| !link.writable) {
                self.dirty.push_front(index);
                break;
            }
        }
        again
    }

    fn write_link(&mut self, shared: &Arc<HostShared>, index: u32) -> bool {
        let Some(link) = self.links[index as usize].as_deref_mut() else { return false };
        if let Some(detaching) = link.detaching {
            self.detach(index, detaching);
            return false;
        }
        if !link.writable {
            return false;
        }
        let target = link.target.clone();
        if target.dialect == Dialect::Subscriber {
            lanes::drive_completion(shared, &target);
            return false;
        }
        let mut writer = match target.application.try_take() {
            Some(writer) => writer,
            None => {
                // The holder pokes us when he lets go; if he has already, we try again at once.
                if target.application.ask() == crate::sync::baton::Asked::Free {
                    self.soil(index);
                    return true;
                }
                return false;
            }
        };
        if let Some(conn) = &mut link.conn
            && conn.ending.is_none()
            && target.dialect == Dialect::Native
        {
            if let Some(channels) = conn.channels.take() {
                writer.transport = Some(conn.transport.clone());
                (writer.link, writer.channels, writer.written) = (conn.link, channels, 0);
                (writer.stock, writer.one_way) = (conn.answers, conn.one_way);
            }
            if !conn.say.is_empty() {
                // Refused: too many wait, and the next sign of life will do.
                let _said = writer.egress.push_raw(&std::mem::take(&mut conn.say));
            }
        }
        if writer.transport.is_none() {
            lanes::let_go(shared, &target, writer);
            return false;
        }
        let given_up = target.given_up.get();
        if std::mem::replace(&mut writer.given_up, given_up) != given_up {
            discard_given_up(shared, &target, &mut writer);
        }
        let mut budget = shared.plan.turn.write_bytes_per_link;
        let flushed = loop {
            while writer.egress.room(BATCH) {
                let staged = link.outbox.take(&mut self.chunks, |head, taken| {
                    if is_cancelled(shared, head.kind, head.correlation) {
                        discard(&target, head.charge);
                    } else if !lanes::stage_taken(&mut writer, head, taken) {
                        refuse_unserved(shared, &target, head);
                    }
                });
                if staged.is_none() {
                    break;
                }
            }
            let before = writer.egress.pending_bytes();
            let flushed = lanes::flush_application(&target, &mut writer);
            budget = budget.saturating_sub(before - writer.egress.pending_bytes());
            if flushed != Flushed::Empty || link.outbox.is_empty() || budget == 0 {
                break flushed;
            }
        };
        link.writable = flushed != Flushed::Blocked;
        let more = flushed == Flushed::Empty && !link.outbox.is_empty();
        lanes::let_go(shared, &target, writer);
        if target.dialect == Dialect::Stream {
            let moved = budget < shared.plan.turn.write_bytes_per_link;
            self.client_flushed(index, moved, flushed == Flushed::Broken);
        }
        if target.mark.waiters() > 0 && !cfg!(afflux_mutation = "room_unoffered") {
            self.admit_waiters(index);
        }
        let more = more || self.links[index as usize].as_deref().is_some_and(|l| l.dirty && l.writable);
        if more {
            self.soil(index);
        }
        more
    }

    fn link(&mut self, index: u32) -> Option<&mut Link> {
        self.links.get_mut(index as usize)?.as_deref_mut()
    }
}

/// The oldest records of a ring that go to one target, at most `left`.
struct Run<'a, 'r> {
    batch: &'a mut Batch<'r, Outgoing>,
    target: TargetId,
    left: &'a mut usize,
}

impl Run<'_, '_> {
    /// Takes as long as `take` says so.
    #[inline(always)]
    fn take_while(&mut self, mut take: impl FnMut(&Record) -> bool) {
        let target = self.target;
        *self.left -= self.batch.take_while(*self.left, |outgoing| outgoing.target == target && take(&outgoing.record));
    }
}

impl Iterator for Run<'_, '_> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        if *self.left == 0 || self.batch.front().is_none_or(|outgoing| outgoing.target != self.target) {
            return None;
        }
        *self.left -= 1;
        self.batch.next().map(|outgoing| outgoing.record)
    }
}

/// The answer that is owed to a request which no handler gets.
fn debt_of_none(peer: &Peer, link: u64, record: &mut Record) -> Debt {
    let (correlation, envelope) = (record.correlation, record.envelope.take());
    Debt { party: peer.clone(), link, correlation, envelope, place: u32::MAX }
}

/// What was cancelled before it left is never sent.
#[inline]
fn is_cancelled(shared: &HostShared, kind: Kind, correlation: u64) -> bool {
    kind == Kind::Request
        && !shared.cells.is_live(CellId::from_correlation(correlation))
        && !cfg!(afflux_mutation = "cancelled_sent")
}

/// A record that is not sent after all.
fn discard(target: &Target, charge: u64) {
    // Who waits for the room is looked at after each flush.
    let _ = target.mark.release(charge);
    target.discarded.add(1);
}

/// Takes out what was staged and is cancelled since: nothing of it has left.
#[cold]
fn discard_given_up(shared: &HostShared, target: &Target, writer: &mut Writer<u16>) {
    let reread = if writer.stock { reread_ours } else { reread };
    writer.egress.retain_unbegun(|staged| {
        let record = reread(&staged.bytes, staged.large.clone());
        let over = record.is_some_and(|record| is_cancelled(shared, record.kind, record.correlation));
        if over {
            discard(target, staged.charge);
        }
        !over
    });
}

/// A record for a channel that the peer does not serve on this link.
#[cold]
fn refuse_unserved(shared: &HostShared, target: &Arc<Target>, head: &Head) {
    discard(target, head.charge);
    if head.kind == Kind::Request {
        let id = CellId::from_correlation(head.correlation);
        shared.fail(id, TAG_REQUEST | target.id.0, Some(target), ErrorKind::NotFound, Detail::NoHandler);
    }
}

/// Puts records of which nothing was written in front of those that waited behind them.
fn requeue(chunks: &mut ChunkPool, outbox: &mut Backlog, unbegun: Vec<Unbegun<u16>>, stock: bool) {
    let mut behind = std::mem::take(outbox);
    for staged in unbegun {
        let reread = if stock { reread_ours } else { reread };
        if let Some(mut record) = reread(&staged.bytes, staged.large) {
            record.channel = staged.keep;
            outbox.push(chunks, record, staged.charge, 0);
        } else {
            debug_assert!(false, "what was staged here is a record");
        }
    }
    while let Some(popped) = behind.pop(chunks) {
        outbox.push(chunks, popped.record, popped.charge, popped.stamp);
    }
}

/// How far decoding came.
struct Used {
    consumed: usize,
    /// The next record may not be admitted now.
    parked: bool,
    /// Commands among it; at [`COMMANDS_MAX`] there may be more.
    commands: u32,
}

/// Takes out of the connection what was only looked at, into the beginning of `block`. Where it lies already, it is
/// read over itself and stays what it is.
fn take_out(conn: &mut Conn, block: &mut [u8]) -> Result<(), String> {
    let mut at = 0;
    while conn.peeked > 0 {
        match conn.transport.read(&mut block[at..at + conn.peeked]) {
            Ok(0) => return Err("the peer closed the connection".into()),
            Ok(n) => (at, conn.peeked) = (at + n, conn.peeked - n),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.to_string()),
        }
    }
    Ok(())
}

/// Decodes what is admitted of `input` into the link's origin.
fn decode(
    core: &Core,
    chunks: &mut ChunkPool,
    link: &mut Link,
    input: &[u8],
    offered: &mut u32,
) -> Result<Used, String> {
    let shared = core.shared();
    let (mut consumed, mut commands) = (0, 0);
    loop {
        let Some(conn) = &mut link.conn else { return Ok(Used { consumed, parked: false, commands }) };
        if commands == COMMANDS_MAX {
            return Ok(Used { consumed, parked: false, commands });
        }
        let rest = &input[consumed..];
        if consumed > 0 && rest.is_empty() {
            return Ok(Used { consumed, parked: false, commands });
        }
        if let Some(whole) = conn.decoder.whole(rest)
            && whole.bytes.len() <= INLINE_PAYLOAD_MAX
        {
            let charge = whole.charge();
            conn.asked = whole.header.kind == Kind::Request;
            if !admit(shared, link, charge) {
                return Ok(Used { consumed, parked: true, commands });
            }
            let Header { kind, method_len, depth, channel, correlation, expiry_ms } = whole.header;
            let head = Head { kind, depth, channel, correlation, expiry_ms, charge, stamp: core.now.0 };
            link.origin.offer_bytes(chunks, &head, method_len, whole.bytes);
            note_decoded(link);
            *offered += 1;
            consumed += whole.consumed;
            continue;
        }
        let mut admitted = 0;
        if conn.decoder.assembly().is_none() {
            match conn.decoder.peek(rest).map_err(|e| e.to_string())? {
                None => return Ok(Used { consumed, parked: false, commands }),
                Some(charge) => {
                    if charge > 0 && !admit(shared, link, charge) {
                        return Ok(Used { consumed, parked: true, commands });
                    }
                    admitted = charge;
                }
            }
        }
        let Some(conn) = &mut link.conn else { return Ok(Used { consumed, parked: false, commands }) };
        let step = conn.decoder.decode(rest).map_err(|e| e.to_string())?;
        consumed += step.consumed;
        let Some(item) = step.item else {
            // Outstanding is what was admitted: of a stock message that is the most that it can become.
            // A command in pieces was admitted with nothing and is nobody's record.
            if admitted > 0 && conn.decoder.assembly().is_some() {
                link.origin.reserve(admitted);
                link.origin.grow(admitted);
            }
            return Ok(Used { consumed, parked: false, commands });
        };
        if matches!(item, Item::Command(_)) {
            commands += 1;
        }
        match item {
            Item::Record(record) => {
                note_decoded(link);
                link.origin.offer(chunks, record, step.charge, core.now);
                settle(shared, link);
                *offered += 1;
            }
            // What a subscriber says takes no room and is no record.
            Item::Malformed(_) if step.charge == 0 => {
                shared.counts.malformed.add(1);
            }
            Item::Malformed(malformed) => {
                // It is a record all the same: it takes a permit, is classified, and gives it back. An
                // asking peer is owed its one answer.
                note_decoded(link);
                let mut record = error_record(0, malformed.reply_to, ErrorKind::Protocol, 0, "");
                record.payload = Bytes::from_static(malformed.reason.as_bytes());
                link.origin.offer(chunks, record, step.charge, core.now);
                settle(shared, link);
                *offered += 1;
            }
            // Latest wins: of many in one read one is answered.
            Item::Command(Command::Ping { context, .. }) => conn.pong = Some(context),
            Item::Command(Command::Channels { version, list }) => {
                if version > conn.list_version {
                    conn.list_version = version;
                    conn.list = Some(list);
                }
            }
            Item::Command(Command::Error(reason)) => return Err(format!("the peer gave up: {reason}")),
            Item::Command(command @ (Command::Subscribe(_) | Command::Cancel(_))) => {
                if let Some(publishing) = &shared.publishing {
                    publishing.hear(link.target.id, &command)?;
                }
            }
            Item::Command(_) | Item::Discarded => {}
            Item::Publication(publication) => {
                note_decoded(link);
                link.origin.offer(chunks, publication.into_record(), step.charge, core.now);
                settle(shared, link);
                *offered += 1;
            }
        }
    }
}

/// One more record of this attach was decoded; the peer is told how many with the next heartbeat.
#[inline]
fn note_decoded(link: &mut Link) {
    if let Some(conn) = &mut link.conn {
        conn.decoded += 1;
        // After the loss it is told to nobody, and the next link may have begun to count.
        if conn.ending.is_none() {
            link.target.decoded.set(conn.decoded);
        }
    }
}

/// Whether a record of this charge may be taken in now. If not, the link is parked.
#[inline(always)]
fn admit(shared: &HostShared, link: &mut Link, charge: u64) -> bool {
    settle(shared, link);
    match link.origin.admits(charge) {
        Admit::Yes => return true,
        Admit::Oversize => {
            let excess = link.origin.excess(charge);
            if draw(shared, link, excess) {
                return true;
            }
            // Told when anybody gives back; one always completes, because what the first in line lacks is left
            // free by all others.
            link.target.parked.raise();
            shared.oversize_line.stand(link.target.id.0, excess);
            shared.short.raise();
            if draw(shared, link, excess) {
                link.target.parked.lower();
                return true;
            }
        }
        Admit::No => {
            let parked = link.origin.park();
            debug_assert!(parked, "an empty queue takes any one record");
            link.target.parked.raise();
        }
    }
    false
}

/// Takes what a record has above its link's mark from the host's budget.
fn draw(shared: &HostShared, link: &mut Link, excess: u64) -> bool {
    let free = shared.oversize_line.kept_from(link.target.id.0);
    let drawn = shared.oversize.enter_leaving(excess, free).is_ok();
    if drawn {
        link.drawn = excess;
        shared.leave_line(&shared.oversize_line, &link.target);
    }
    drawn
}

/// The record in assembly goes with its connection.
fn forget_assembly(shared: &HostShared, link: &mut Link) {
    shared.leave_line(&shared.oversize_line, &link.target);
    link.origin.abandon();
    if !cfg!(afflux_mutation = "abandoned_draw_kept") {
        settle(shared, link);
    }
}

/// Gives back what was drawn for a record that turned out smaller, or never came.
fn settle(shared: &HostShared, link: &mut Link) {
    if link.drawn > 0 && link.origin.in_assembly() == 0 && !link.origin.holds_oversize() {
        shared.oversize.leave(std::mem::take(&mut link.drawn));
        shared.relieve();
    }
}

/// How much one read may ask for: the room left, and at least the minimum.
fn room_to_read(origin: &Origin, least: usize) -> usize {
    let room = if origin.mark() == 0 { u64::MAX } else { origin.mark().saturating_sub(origin.outstanding()) };
    usize::try_from(room).unwrap_or(usize::MAX).max(least)
}

/// Why the head of a link's queue may not be claimed now, other than for want of a permit: it has its share of
/// the permits, its peer does not take its replies, or the host owns as much as it may.
#[inline(always)]
fn hold_reason(core: &Core, link: &Link) -> Option<Reason> {
    let shared = core.shared();
    let head = link.origin.head()?;
    let jobs = &shared.plan.jobs;
    if jobs.caps_targets()
        && link.target.jobs.get() >= u64::from(jobs.per_target)
        && !cfg!(afflux_mutation = "target_uncapped")
    {
        return Some(Reason::PermitShare);
    }
    let replies = || link.target.replies.bytes() >= shared.plan.reply.per_peer;
    if head.kind == Kind::Request && replies() {
        link.target.held.raise();
        // The lane may have been emptied between the look and the flag.
        if replies() {
            return Some(held_by_replies(shared, link));
        }
    }
    // A client that does not take its answers gets no more of its frames handled. Whoever ends a wait for
    // its room has this shard look.
    if link.client.is_some() && link.target.mark.waiters() > 0 && !cfg!(afflux_mutation = "client_unheld") {
        return Some(held_by_replies(shared, link));
    }
    let owned = || {
        let (owned, free) = (core.owned(), shared.owned_line.kept_from(link.target.id.0));
        owned + free > 0 && owned.saturating_add(head.charge).saturating_add(free) > shared.plan.max_owned_bytes
    };
    if owned() {
        shared.owned_line.stand(link.target.id.0, head.charge);
        shared.short.raise();
        if owned() {
            return Some(Reason::OwnedBytes);
        }
    }
    None
}

/// Its peer takes no replies: it holds up nobody else meanwhile.
#[cold]
fn held_by_replies(shared: &HostShared, link: &Link) -> Reason {
    shared.leave_line(&shared.owned_line, &link.target);
    Reason::ReplyMark
}

/// Counts waiters that were found to be over, so that the mark can forget them.
struct Pruned<'a> {
    shared: &'a HostShared,
    over: Cell<u32>,
}

impl<'a> Pruned<'a> {
    fn new(shared: &'a HostShared) -> Self {
        Pruned { shared, over: Cell::new(0) }
    }

    fn is_waiting(&self, id: CellId) -> bool {
        let waiting = self.shared.cells.state(id) == Some(CellState::Waiting);
        if !waiting {
            self.over.set(self.over.get() + 1);
        }
        waiting
    }

    fn forget(&self, target: &Target) {
        let over = if cfg!(afflux_mutation = "ended_waiter_counts") { 0 } else { self.over.get() };
        for _ in 0..over {
            target.mark.forget_waiter();
        }
    }
}

/// Returns permits, wakes shards whose tickets were granted, and has a crossing told to the peers.
#[inline(always)]
fn release_permits(shared: &HostShared, shard: ShardId, n: u32, now: Instant) {
    shared.gate.release_and_tell(shard, n, now, |outcome| tell(shared, outcome));
}

#[cold]
fn tell(shared: &HostShared, outcome: gate::Outcome) {
    for shard in outcome.wake.iter().filter(|_| !cfg!(afflux_mutation = "grant_unwoken")) {
        shared.port(shard).wake.wake();
    }
    if outcome.crossed.is_some() && !cfg!(afflux_mutation = "crossing_untold") {
        shared.completion.wake.wake();
    }
}

/// The end of a request on this host's clock, given how far the peer's link clock is ahead of ours.
fn local_deadline(expiry_ms: u32, ahead_ms: u32, now: Instant) -> Instant {
    let ahead_ms = if cfg!(afflux_mutation = "expiry_on_own_clock") { 0 } else { ahead_ms };
    let left = expiry_ms.wrapping_sub(clock_ms(now).wrapping_add(ahead_ms)) as i32;
    now.after(Duration::from_millis(left.max(0) as u64))
}
