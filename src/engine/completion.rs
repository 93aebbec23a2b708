//! `CompletionEngine`: all decisions of the completion thread. It listens, dials, does every
//! handshake, pairs the two connections of a link, and alone decides what is up and what is
//! retired. It reads every completion lane that no caller leads, tells peers the pressure, sends heartbeats, and is the
//! timekeeper: it ends operations whose time is up, whoever is stuck. It never runs user code, so
//! all of this works while every shard is stuck.
//!
//! ```text
//!   dialled   Idle ─redial─▶ Dialling ─both lanes READY─▶ Up ─either lane lost─▶ Idle (the queue stays)
//!   accepted  handshake ─▶ waits for its partner ─▶ Up ─either lane lost─▶ gone
//! ```
//!
//! Bounds: connections in their handshake by `handshakes_max`, links by `peers_max`; an accept above
//! either is closed. A handshake and the wait for the partner together have `handshake_timeout`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::Receiver;

use super::answer;
use super::command::{Attach, CompletionCommand, LateCommands, ShardCommand};
use super::lanes;
use super::lead;
use super::publish::Publishing;
use super::reading::{self, Read};
use super::shared::{HostShared, Life, Outcome, TAG_FINDING, TAG_REPLY, TAG_REQUEST, tag_target};
use crate::base::error::{Detail, ErrorKind, Stage};
use crate::base::id::{CellId, ChannelId, LinkId, ShardId, TargetId};
use crate::base::record::{Kind, Lane};
use crate::base::rng::Rng;
use crate::base::time::Instant;
use crate::flow::backoff::Backoff;
use crate::flow::link_clock::{LinkClock, clock_ms};
use crate::flow::liveness::{Action, Liveness, Peer};
use crate::flow::pressure::{Heard, Hearing, Tell, Told};
use crate::flow::reader::Reader;
use crate::flow::target::{Dialect, Post, Serves, Target, TargetSpec};
use crate::flow::transport::Transport;
use crate::flow::wheel::{TimerKey, TimerWheel};
use crate::meter::latency::{Latency, LatencySet};
use crate::pattern::route::{Found, Member, Rotation, Routes};
use crate::plan::{Credentials, Endpoint, SHARDS_MAX};
use crate::sync::baton::{Asked, Released};
use crate::sync::cell::CellState;
use crate::wire::command::{self, Command, Context, FlowState};
use crate::wire::decode::{Decoder, Mode};
use crate::wire::greeting::{Handshake, Security, Side};
use crate::wire::ready::{Hello, Metadata, NativeHello, PeerHello, Place, Role};
use crate::wire::socket::SocketType;

mod census;
mod clients;
mod directory;
mod leads;
mod rivals;
mod servers;
mod stock;
mod subscriptions;
mod ticker;
use census::Census;
use directory::Directory;
use leads::Leads;
use rivals::Contest;
use servers::ServerDial;
use subscriptions::Listening;
use ticker::Ticker;

/// New routes are not made again before so long per entry of theirs has passed: a few at once, and in a host of
/// thousands of peers that come back together not for each of them.
const ROUTES_PAUSE: Duration = Duration::from_micros(2);

/// One connection of the completion thread, with the use count of its place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnKey {
    /// The place.
    pub index: u32,
    /// How often it was used before.
    pub generation: u32,
}

/// What the shell has to do.
#[derive(Debug)]
pub enum CompletionAction {
    /// Connect; report the outcome with [`CompletionEngine::handle_connected`].
    Dial {
        /// Under this key.
        conn: ConnKey,
        /// To this address.
        to: Endpoint,
        /// Attempts that failed before: whichever of a name's addresses they began with, this one begins with
        /// the next.
        failed: usize,
    },
    /// Watch an accepted connection under its key.
    Watch {
        /// The key.
        conn: ConnKey,
        /// The connection.
        transport: Arc<dyn Transport>,
    },
    /// This connection is a completion lane from now on.
    Completion {
        /// Its key.
        conn: ConnKey,
        /// The connection.
        transport: Arc<dyn Transport>,
    },
    /// A dial that has not come out yet is of no interest any more.
    Forget {
        /// Its key.
        conn: ConnKey,
    },
    /// Watch it no longer: a shard does from now on, or it is over.
    Unwatch {
        /// The connection.
        transport: Arc<dyn Transport>,
    },
    /// Something that an operator should read.
    Log(log_line::Line),
}

/// What the shell logs.
pub mod log_line {
    /// A line and how loud it is.
    #[derive(Debug)]
    pub enum Line {
        /// Ordinary life.
        Info(String),
        /// Something that should not be.
        Warn(String),
    }
}
use log_line::Line;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Timer {
    Handshake(ConnKey),
    Redial(u32),
    Beat(TargetId, u64),
    Tell,
    Contest(LinkId),
    Raise,
}

enum Purpose {
    Dialled { dial: u32 },
    Accepted,
}

enum State {
    /// The shell is connecting it.
    Connecting(Side),
    Shaking(Box<Handshake>),
    /// READY both ways; its partner is not here yet.
    Half {
        peer: Box<PeerHello>,
        carry: Vec<u8>,
        /// When its READY came.
        read_at: Instant,
    },
    /// The completion lane of this target's link.
    Lane(TargetId),
}

/// A connection that is READY, as it goes into its pair.
struct Half {
    transport: Arc<dyn Transport>,
    native: NativeHello,
    metadata: Metadata,
    carry: Vec<u8>,
}

struct Conn {
    generation: u32,
    purpose: Purpose,
    transport: Option<Arc<dyn Transport>>,
    state: State,
    out: Vec<u8>,
    /// Bytes that came behind the handshake before it was over.
    carry: Vec<u8>,
    timer: Option<TimerKey>,
    /// It counts among those that shake hands.
    counted: bool,
}

/// A link that we dial.
struct Dial {
    target: Arc<Target>,
    to: Endpoint,
    name: Option<Arc<str>>,
    slot: u16,
    backoff: Backoff,
    failed: usize,
    conns: [Option<ConnKey>; 2],
    had_outcome: bool,
    /// The node that was there when it was last seen.
    seen: Option<Arc<str>>,
    /// A publisher: which of our roles subscribes there, by one connection.
    role: Option<usize>,
    /// A stock PULL socket is there.
    pull: bool,
    /// A server that a role of ours asks.
    server: Option<ServerDial>,
}

/// A link that is up.
struct Up {
    target: Arc<Target>,
    link: u64,
    node: Arc<str>,
    native: bool,
    instance: u128,
    /// The peer's number for the link, if the peer dialled it.
    theirs: Option<u16>,
    completion: Option<ConnKey>,
    application: Arc<dyn Transport>,
    dial: Option<u32>,
    /// When the completion lane last brought a byte.
    heard_at: Instant,
    /// The end of the completion lane was seen.
    ended: bool,
    /// Its next heartbeat.
    beat: Option<TimerKey>,
    /// How many turns its owner had begun at the last one.
    owner_turns: u64,
    channels: Vec<(Arc<str>, u32)>,
    liveness: Liveness,
    clock: LinkClock,
    told: Told,
    heard: Heard,
}

impl Up {
    /// Whether another node is there, and neither a client nor a server of ours.
    fn is_node(&self) -> bool {
        self.native && self.target.serves == Serves::Node
    }
}

/// See the module.
pub struct CompletionEngine {
    shared: Arc<HostShared>,
    commands: Receiver<CompletionCommand>,
    conns: Vec<Option<Conn>>,
    generations: Vec<u32>,
    free: Vec<u32>,
    /// Accepted connections in their handshake. Those that we dial are as many as we wanted.
    shaking: u32,
    halves: HashMap<LinkId, ConnKey>,
    dials: Vec<Dial>,
    /// In the order of their ids: whoever goes through them does so in the same order every time.
    ups: BTreeMap<TargetId, Up>,
    targets: HashMap<TargetId, Arc<Target>>,
    links_per_shard: Vec<u32>,
    next_target: u64,
    next_link: u64,
    /// Links whose node is known under another instance, until it is clear which of them lives.
    contests: Vec<Contest>,
    ticker: Ticker,
    leads: Leads,
    census: Census,
    directory: Directory,
    /// The routes that were published are not what is known now.
    routes_stale: bool,
    /// When they may be made next.
    routes_at: Instant,
    /// The last turn has set its alarm to that.
    routes_pause: bool,
    finding: Vec<CellId>,
    /// What found each shard's mailbox full.
    late_commands: Vec<LateCommands>,
    wheel: TimerWheel<Timer>,
    told_epoch: u64,
    telling: bool,
    actions: VecDeque<CompletionAction>,
    block: Box<[u8]>,
    /// Whom the replies of one read have ended; kept for its place.
    wakes: Vec<Waker>,
    latencies: LatencySet,
    random: Rng,
    again: Vec<TargetId>,
    /// The application's own properties, as every peer is told them.
    metadata: Metadata,
    /// Publishers that are connected.
    listening: Vec<Listening>,
}

impl std::fmt::Debug for CompletionEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompletionEngine").field("links", &self.ups.len()).finish_non_exhaustive()
    }
}

impl CompletionEngine {
    /// The engine of a host's completion thread. `seed` decides the random numbers: link ids and
    /// the jitter of redialling.
    pub fn new(shared: Arc<HostShared>, commands: Receiver<CompletionCommand>, seed: u64) -> Self {
        let plan = shared.plan.clone();
        let places = plan.places();
        let shards = plan.shards as usize;
        debug_assert!(shards <= SHARDS_MAX as usize);
        let mut engine = CompletionEngine {
            commands,
            conns: Vec::new(),
            generations: Vec::new(),
            free: Vec::new(),
            shaking: 0,
            halves: HashMap::new(),
            dials: Vec::new(),
            ups: BTreeMap::new(),
            targets: HashMap::new(),
            links_per_shard: vec![0; shards],
            next_target: 1,
            next_link: 1,
            contests: Vec::new(),
            ticker: Ticker::default(),
            leads: Leads::default(),
            census: Census::new(&plan),
            directory: Directory::new(&plan.channels),
            routes_stale: false,
            routes_at: Instant(0),
            routes_pause: false,
            finding: Vec::new(),
            late_commands: (0..shards).map(|_| LateCommands::default()).collect(),
            wheel: TimerWheel::new(places.connections.saturating_add(plan.peers_max).saturating_add(16)),
            told_epoch: 0,
            telling: false,
            actions: VecDeque::new(),
            block: vec![0; plan.turn.read_block].into_boxed_slice(),
            wakes: Vec::new(),
            latencies: LatencySet::new(),
            random: Rng::new(if cfg!(afflux_mutation = "chance_unseeded") {
                Arc::as_ptr(&shared) as u64
            } else {
                seed
            }),
            again: Vec::new(),
            metadata: plan.metadata.iter().map(|(n, v)| (n.clone(), Bytes::copy_from_slice(v))).collect(),
            listening: Vec::new(),
            shared,
        };
        for connect in &plan.connects {
            for slot in 0..connect.links {
                engine.add_dial(connect.addr.clone(), connect.name.clone(), slot, connect.pull);
            }
        }
        engine.add_servers();
        engine.add_subscriptions();
        engine.publish_routes();
        engine
    }

    fn add_dial(&mut self, to: Endpoint, name: Option<Arc<str>>, slot: u16, pull: bool) {
        let label = name.clone().unwrap_or_else(|| to.to_string().into());
        let target = self.new_target(true, Dialect::Native, Serves::Node, label);
        let adopt = ShardCommand::Adopt(target.clone());
        self.command(target.owner, adopt);
        let at = self.dials.len() as u32;
        let backoff = Backoff::new(self.shared.plan.reconnect_min, self.shared.plan.reconnect_max);
        self.dials.push(Dial {
            target,
            to,
            name,
            slot,
            backoff,
            failed: 0,
            conns: [None; 2],
            had_outcome: false,
            seen: None,
            role: None,
            pull,
            server: None,
        });
        self.set_timer(Instant(0), Timer::Redial(at));
    }

    fn new_target(&mut self, dialled: bool, dialect: Dialect, serves: Serves, label: Arc<str>) -> Arc<Target> {
        let plan = &self.shared.plan;
        // A shard that does not take its commands gets no more links while there is another.
        let burden = |shard: &usize| (!self.late_commands[*shard].is_empty(), self.links_per_shard[*shard]);
        let owner = (0..self.links_per_shard.len()).min_by_key(burden).unwrap_or(0);
        let owner = if cfg!(afflux_mutation = "links_pile_up") { 0 } else { owner };
        self.links_per_shard[owner] += 1;
        let target = Arc::new(Target::new(TargetSpec {
            id: TargetId(self.next_target),
            owner: ShardId(owner as u16),
            dialled,
            dialect,
            serves,
            label,
            send_mark: self.census.marks.send,
            waiting_ops: plan.room.per_target_ops,
            waiting_bytes: plan.room.per_target_bytes,
            requests: plan.requests_per_peer,
            reply_bytes: plan.reply.per_peer,
            publications: self
                .shared
                .publishing
                .as_ref()
                .filter(|_| dialect == Dialect::Subscriber)
                .map(Publishing::queue),
        }));
        self.next_target += 1;
        self.targets.insert(target.id, target.clone());
        self.shared.targets.lock().push(target.clone());
        self.take_census();
        target
    }

    /// What the shell has to do next; call until it says `None`, after every turn.
    pub fn poll_action(&mut self) -> Option<CompletionAction> {
        self.actions.pop_front()
    }

    /// Whether anything was left for this thread since it looked.
    pub fn has_work(&self) -> bool {
        !self.commands.is_empty()
            || !self.shared.completion.inbox.is_empty()
            || self.shared.gate.pressure().1 != self.told_epoch
            || self.shared.subscribing.changed.is_raised()
            || (self.routes_stale && !self.routes_pause)
            || !self.again.is_empty()
            || self.shared.tick.is_raised() != self.ticker.runs()
            || !self.shared.completion.left.is_empty()
            || !self.shared.completion.unwritten.is_empty()
            || !self.shared.completion.warm.is_empty()
    }

    // ---- connections

    fn open(&mut self, purpose: Purpose, transport: Option<Arc<dyn Transport>>, state: State) -> ConnKey {
        let index = self.free.pop().unwrap_or_else(|| {
            self.conns.push(None);
            self.generations.push(0);
            self.conns.len() as u32 - 1
        });
        let generation = self.generations[index as usize];
        let counted = matches!(purpose, Purpose::Accepted);
        self.shaking += u32::from(counted);
        let (out, carry, timer) = (Vec::new(), Vec::new(), None);
        self.conns[index as usize] = Some(Conn { generation, purpose, transport, state, out, carry, timer, counted });
        let key = ConnKey { index, generation };
        let due = self.shared.clock.now().after(self.shared.plan.handshake_timeout);
        let timer = self.wheel.insert(due, Timer::Handshake(key)).ok();
        if let Some(conn) = self.conn(key) {
            conn.timer = timer;
        }
        key
    }

    fn conn(&mut self, key: ConnKey) -> Option<&mut Conn> {
        self.conns.get_mut(key.index as usize)?.as_mut().filter(|c| c.generation == key.generation)
    }

    /// Ends the handshake phase of a connection: its timer and its place among those.
    fn settled(&mut self, key: ConnKey) {
        let Some(conn) = self.conn(key) else { return };
        let (timer, counted) = (conn.timer.take(), std::mem::take(&mut conn.counted));
        self.shaking -= u32::from(counted);
        if let Some(timer) = timer {
            self.wheel.cancel(timer);
        }
    }

    /// Takes a connection out of the table. It is neither watched nor shut down by this.
    fn remove(&mut self, key: ConnKey) -> Option<Conn> {
        self.settled(key);
        let slot = self.conns.get_mut(key.index as usize)?;
        if slot.as_ref()?.generation != key.generation {
            return None;
        }
        let conn = slot.take()?;
        self.generations[key.index as usize] = (key.generation + 1) & 0x7FFF_FFFF;
        self.free.push(key.index);
        if let State::Half { peer, .. } = &conn.state
            && let Some(native) = &peer.native
            && self.halves.get(&native.place.link) == Some(&key)
        {
            self.halves.remove(&native.place.link);
        }
        Some(conn)
    }

    /// Gives up a connection that is not up, and its attempt with it.
    fn close(&mut self, key: ConnKey, why: &str) {
        let Some(conn) = self.remove(key) else { return };
        self.shared.counts.handshakes_failed.add(1);
        match conn.transport {
            Some(transport) => {
                transport.shutdown();
                self.actions.push_back(CompletionAction::Unwatch { transport });
            }
            None => self.actions.push_back(CompletionAction::Forget { conn: key }),
        }
        if let Purpose::Dialled { dial } = conn.purpose {
            self.attempt_failed(dial, why);
        }
    }

    fn attempt_failed(&mut self, at: u32, why: &str) {
        let dial = &mut self.dials[at as usize];
        let others = std::mem::take(&mut dial.conns);
        let wait = dial.backoff.next(&mut self.random);
        dial.failed = dial.failed.wrapping_add(1);
        let first = !std::mem::replace(&mut dial.had_outcome, true);
        let attempts = dial.backoff.attempts();
        let line = format!("no link to {}: {why}", dial.target.label());
        for other in others.into_iter().flatten() {
            let Some(conn) = self.remove(other) else { continue };
            match conn.transport {
                Some(transport) => {
                    transport.shutdown();
                    self.actions.push_back(CompletionAction::Unwatch { transport });
                }
                None => self.actions.push_back(CompletionAction::Forget { conn: other }),
            }
        }
        if first || attempts.is_power_of_two() {
            self.actions.push_back(CompletionAction::Log(Line::Warn(line)));
        }
        self.set_timer(self.shared.clock.now().after(wait), Timer::Redial(at));
        self.routes_stale |= first;
    }

    fn liveness(&self, peer: Peer, now: Instant) -> Liveness {
        Liveness::new(peer, self.shared.plan.heartbeat, self.shared.plan.dead_after, now)
    }

    fn set_timer(&mut self, at: Instant, timer: Timer) -> Option<TimerKey> {
        let key = self.wheel.insert(at, timer).ok();
        if key.is_none() {
            self.actions.push_back(CompletionAction::Log(Line::Warn("the timer wheel is full".into())));
        }
        key
    }

    fn security(&self) -> Security {
        match &self.shared.plan.credentials {
            Some(Credentials { user, password }) => Security::Plain { user: user.clone(), password: password.clone() },
            None => Security::Null,
        }
    }

    fn hello(&self) -> Hello {
        let plan = &self.shared.plan;
        Hello {
            node: plan.name.clone(),
            instance: plan.instance,
            max_message: plan.max_message,
            clock_ms: clock_ms(self.shared.clock.now()),
            channels: plan.channels.clone(),
            servers: plan.servers.clone(),
            metadata: self.metadata.clone(),
        }
    }

    /// Somebody connected. Closed at once if too many are shaking hands or linked already.
    pub fn handle_accepted(&mut self, transport: Arc<dyn Transport>) {
        let plan = &self.shared.plan;
        // Nor is there room for one where every shard is stuck and has not even heard of those before.
        let full = self.shaking >= plan.handshakes_max
            || self.ups.len() as u32 >= plan.peers_max
            || self.late_commands.iter().all(|late| !late.is_empty());
        if full || self.shared.life() != Life::Serving {
            self.shared.counts.handshakes_failed.add(1);
            transport.shutdown();
            return;
        }
        let handshake = Handshake::new(Side::Accept, self.hello(), self.security());
        let key = self.open(Purpose::Accepted, Some(transport.clone()), State::Shaking(Box::new(handshake)));
        self.actions.push_back(CompletionAction::Watch { conn: key, transport });
        self.shake(key);
    }

    /// What became of a dial.
    pub fn handle_connected(&mut self, key: ConnKey, outcome: io::Result<Arc<dyn Transport>>) {
        let (hello, security) = (self.hello(), self.security());
        let Some(conn) = self.conn(key) else {
            if let Ok(transport) = outcome {
                transport.shutdown();
            }
            return;
        };
        match outcome {
            Ok(transport) => {
                let State::Connecting(side) = conn.state else { return };
                conn.state = State::Shaking(Box::new(Handshake::new(side, hello, security)));
                conn.transport = Some(transport);
                self.shake(key);
            }
            Err(e) => self.close(key, &e.to_string()),
        }
    }

    /// The poller saw something on a connection.
    pub fn handle_ready(&mut self, key: ConnKey, readable: bool, writable: bool) {
        let Some(conn) = self.conn(key) else { return };
        match conn.state {
            State::Connecting(_) => {}
            State::Shaking(_) => self.shake(key),
            State::Half { .. } => {
                // Nothing is due on it before its partner is here; an end of the stream is.
                if readable {
                    self.watch_half(key);
                }
            }
            State::Lane(target) => {
                if writable && let Some(up) = self.ups.get(&target) {
                    lanes::drive_completion(&self.shared, &up.target);
                }
                if readable {
                    self.lane_readable(target);
                }
            }
        }
    }

    /// The poller saw the peer's end of a connection, or an error on it, and no other event will follow.
    pub fn handle_end(&mut self, key: ConnKey) {
        let Some(&mut Conn { state: State::Lane(id), .. }) = self.conn(key) else { return };
        if let Some(up) = self.ups.get_mut(&id) {
            up.ended = true;
        }
    }

    /// Keeps what a half connection sends already, within the size of one read.
    fn watch_half(&mut self, key: ConnKey) {
        let limit = self.block.len();
        let Some(Conn { transport: Some(transport), state: State::Half { carry, .. }, .. }) = self.conn(key) else {
            return;
        };
        if carry.len() >= limit {
            return;
        }
        let mut part = vec![0; limit - carry.len()];
        match transport.read(&mut part) {
            Ok(0) => self.close(key, "the peer closed one of the two connections"),
            Ok(n) => carry.extend_from_slice(&part[..n]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock || e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => self.close(key, &e.to_string()),
        }
    }

    /// Moves a handshake on as far as bytes allow.
    fn shake(&mut self, key: ConnKey) {
        let mut block = std::mem::take(&mut self.block);
        let outcome = self.shake_with(key, &mut block);
        self.block = block;
        match outcome {
            Ok(Some(carry)) => self.established(key, carry),
            Ok(None) => {}
            Err(why) => self.close(key, &why),
        }
    }

    /// `Ok(Some(rest))`: READY both ways, with bytes that came behind it.
    fn shake_with(&mut self, key: ConnKey, block: &mut [u8]) -> Result<Option<Vec<u8>>, String> {
        let Some(conn) = self.conn(key) else { return Ok(None) };
        let Conn { state: State::Shaking(handshake), transport: Some(transport), out, carry, .. } = conn else {
            return Ok(None);
        };
        // Small steps: a handshake is some hundred bytes, and a stranger may send for ever.
        for _ in 0..8 {
            handshake.poll_transmit(out);
            while !out.is_empty() {
                match transport.write(&[IoSlice::new(out)]) {
                    Ok(n) => drop(out.drain(..n)),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e.to_string()),
                }
            }
            if handshake.outcome().is_some() {
                // Nothing more is read before ours is out: what comes behind the handshake is as much as one read.
                return Ok(out.is_empty().then(|| std::mem::take(carry)));
            }
            match transport.read(block) {
                Ok(0) => return Err("the peer closed the connection during the handshake".into()),
                Ok(n) => {
                    let fed = feed(handshake, &block[..n]);
                    match fed {
                        Ok(used) => carry.extend_from_slice(&block[used..n]),
                        Err(e) => {
                            // What the peer is to be told goes out if it can; the connection ends.
                            let mut last = Vec::new();
                            handshake.poll_transmit(&mut last);
                            let _ = transport.write(&[IoSlice::new(&last)]);
                            return Err(e.to_string());
                        }
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    // An acceptor answers once it has seen the peer's READY.
                    handshake.poll_transmit(out);
                    if out.is_empty() {
                        return Ok(None);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.to_string()),
            }
        }
        Ok(None)
    }

    fn established(&mut self, key: ConnKey, carry: Vec<u8>) {
        let Some(conn) = self.conn(key) else { return };
        let State::Shaking(handshake) = std::mem::replace(&mut conn.state, State::Connecting(Side::Accept)) else {
            return;
        };
        let Some(peer) = handshake.into_outcome() else { return };
        let dialled = match conn.purpose {
            Purpose::Dialled { dial } => Some(dial),
            Purpose::Accepted => None,
        };
        match (&peer.native, dialled) {
            (Some(native), Some(at)) => {
                let place = native.place;
                let dial = &self.dials[at as usize];
                if let Some(name) = &dial.name
                    && *name != native.node
                {
                    let why = format!("{} is there, {name} was expected", native.node);
                    return self.close(key, &why);
                }
                if native.node == self.shared.plan.name && native.instance == self.shared.plan.instance {
                    return self.close(key, "this is the host itself");
                }
                self.dials[at as usize].seen = Some(native.node.clone());
                self.set_half(key, peer, carry);
                let lane = usize::from(place.lane == Lane::Completion);
                let partner = self.dials[at as usize].conns[1 - lane];
                if let Some(partner) = partner
                    && matches!(self.conn(partner).map(|c| &c.state), Some(State::Half { .. }))
                {
                    let (application, completion) = if lane == 0 { (key, partner) } else { (partner, key) };
                    self.admit(application, completion, Some(at));
                }
            }
            (Some(native), None) => {
                let place = native.place;
                let partner = self.halves.get(&place.link).copied();
                self.set_half(key, peer, carry);
                match partner {
                    None => {
                        self.halves.insert(place.link, key);
                    }
                    Some(partner) => {
                        let lane_of = |engine: &mut Self, key| match engine.conn(key).map(|c| &c.state) {
                            Some(State::Half { peer, .. }) => {
                                peer.native.as_ref().map(|n| (n.place.lane, (n.node.clone(), n.instance, n.place.role)))
                            }
                            _ => None,
                        };
                        match (lane_of(self, key), lane_of(self, partner)) {
                            (Some((a, who_a)), Some((b, who_b))) if a != b && who_a == who_b => {
                                let (application, completion) =
                                    if a == Lane::Application { (key, partner) } else { (partner, key) };
                                self.admit(application, completion, None);
                            }
                            _ => {
                                self.close(partner, "two connections of one link do not fit together");
                                self.close(key, "two connections of one link do not fit together");
                            }
                        }
                    }
                }
            }
            (None, None) => match Mode::of(&peer, false) {
                mode @ (Mode::StockAsking | Mode::StockPushing) => self.stock_up(key, peer, mode, carry),
                Mode::Subscriber if self.shared.publishing.is_some() => self.subscriber_up(key, peer, carry),
                Mode::Subscriber => self.close(key, "it subscribes, and this host has no publisher"),
                Mode::Publisher => self.publisher_came(key, peer, carry),
                _ => self.close(key, "this kind of socket is not served here"),
            },
            (None, Some(at)) => match (self.dials[at as usize].role, Mode::of(&peer, true)) {
                (Some(role), Mode::Publisher) => self.publisher_up(key, at, role, peer, carry),
                (Some(_), _) => self.close(key, "the peer is no publisher"),
                (None, _) if self.dials[at as usize].server.is_some() => {
                    self.close(key, "a stock socket is no server of this role; connect() dials those");
                }
                (None, _) => self.stock_dialled(key, at, &peer, carry),
            },
        }
    }

    fn set_half(&mut self, key: ConnKey, peer: PeerHello, carry: Vec<u8>) {
        let read_at = self.shared.clock.now();
        if let Some(conn) = self.conn(key) {
            conn.state = State::Half { peer: Box::new(peer), carry, read_at };
        }
    }

    /// Both connections of a link are READY: it is up.
    fn pair(&mut self, application: ConnKey, completion: ConnKey, dial: Option<u32>, accepted: bool) {
        let (Some(app), Some(comp)) = (self.remove_half(application), self.take_half(completion)) else { return };
        let Half { transport: app_transport, native, metadata, carry: app_carry } = app;
        let Half { transport: comp_transport, carry: comp_carry, .. } = comp;
        let now = self.shared.clock.now();
        let target = match dial {
            Some(at) => {
                let dial = &mut self.dials[at as usize];
                dial.backoff.reset();
                dial.had_outcome = true;
                dial.conns = [None; 2];
                dial.target.clone()
            }
            None => {
                let serves = if native.place.role == Role::Client { Serves::Client } else { Serves::Node };
                self.new_target(false, Dialect::Native, serves, native.node.clone())
            }
        };
        target.set_label(native.node.clone());
        target.set_metadata(metadata);
        let link = self.attach_number(&target, native.max_message);
        target.clock_ahead_ms.set(u64::from(native.clock_ms.wrapping_sub(clock_ms(now))));
        if let Some(conn) = self.conn(completion) {
            conn.state = State::Lane(target.id);
        }
        self.settled(completion);
        self.actions.push_back(CompletionAction::Unwatch { transport: app_transport.clone() });

        let decoder = Decoder::new(Mode::NativeCompletion, self.shared.plan.max_message);
        let reader = Reader::new(comp_transport.clone(), decoder, comp_carry, link);
        self.set_reader(&target, Some(reader));
        target.lead.attach();
        *target.lane.lock() = Some(comp_transport.clone());
        self.actions.push_back(CompletionAction::Completion { conn: completion, transport: comp_transport.clone() });
        lanes::post(&self.shared, &target, Post::Attach { link, transport: comp_transport });
        let channels = self.hear_channels(&target, &native.node, &native.channels);
        self.ups.insert(
            target.id,
            Up {
                target: target.clone(),
                link,
                node: native.node.clone(),
                native: true,
                instance: native.instance,
                theirs: accepted.then_some(native.place.slot),
                completion: Some(completion),
                application: app_transport.clone(),
                dial,
                heard_at: now,
                ended: false,
                beat: None,
                owner_turns: 0,
                channels: native.channels.clone(),
                liveness: self.liveness(Peer::Native, now),
                clock: LinkClock::new(native.clock_ms, now),
                told: Told::default(),
                heard: Heard::default(),
            },
        );
        // A new link hears of the pressure before it is of use to anybody.
        if !cfg!(afflux_mutation = "attach_untold") {
            self.tell_one(target.id, now);
        }
        // What a READY shows of a clock is as old as the handshake was long: the first sign of life corrects it now,
        // and not with the next heartbeat.
        let mut frame = Vec::new();
        command::write_ping(self.ping_ttl(), &Context::native(clock_ms(now), 0), &mut frame);
        self.say(&target, link, frame);
        target.link.set(link);
        self.command(
            target.owner,
            ShardCommand::Attach(Box::new(Attach {
                target: target.clone(),
                link,
                transport: app_transport,
                carry: app_carry,
                channels,
                mode: Mode::NativeApplication,
                one_way: false,
            })),
        );
        self.came_up(&target, link, now);
        self.read_lane(target.id);
    }

    fn attach_number(&mut self, target: &Target, max_message: u64) -> u64 {
        let link = self.next_link;
        self.next_link += 1;
        target.decoded.set(0);
        target.decoded_by_peer.set(0);
        target.max_message.set(max_message);
        target.last_read_ns.set(self.shared.clock.now().0);
        link
    }

    fn came_up(&mut self, target: &Arc<Target>, link: u64, now: Instant) {
        self.shared.counts.links_up.add(1);
        self.shared.port(target.owner).links.add(1);
        let beat = self.set_timer(now.after(self.shared.plan.heartbeat), Timer::Beat(target.id, link));
        if let Some(up) = self.ups.get_mut(&target.id) {
            up.beat = beat;
        }
        self.actions.push_back(CompletionAction::Log(Line::Info(format!("link to {} is up", target.label()))));
        self.routes_stale = true;
    }

    fn remove_half(&mut self, key: ConnKey) -> Option<Half> {
        let half = self.take_half(key);
        self.remove(key);
        half
    }

    fn take_half(&mut self, key: ConnKey) -> Option<Half> {
        let now = self.shared.clock.now();
        let conn = self.conn(key)?;
        let transport = conn.transport.clone()?;
        let State::Half { peer, carry, read_at } = &mut conn.state else { return None };
        let (mut native, metadata, carry) = (peer.native.clone()?, peer.metadata.clone(), std::mem::take(carry));
        // A newcomer may have waited for its partner, or for what becomes of the link before it; meanwhile the
        // peer's clock went on.
        if !cfg!(afflux_mutation = "waited_clock_stands") {
            native.clock_ms = native.clock_ms.wrapping_add(clock_ms(now).wrapping_sub(clock_ms(*read_at)));
        }
        self.halves.remove(&native.place.link);
        Some(Half { transport, native, metadata, carry })
    }

    /// A peer announces what it serves; what that is by our numbers. Only of nodes it is kept: a server's names are its
    /// role's, and a client serves nothing.
    fn hear_channels(&mut self, target: &Target, node: &Arc<str>, list: &[(Arc<str>, u32)]) -> Vec<u16> {
        let up = |name: &str| self.ups.values().any(|up| up.is_node() && &*up.node == name);
        if target.serves == Serves::Node
            && let Some(name) = self.directory.hear(node, list, up)
        {
            let line = format!("too many names of channels: {name} at {node} is served to nobody");
            self.actions.push_back(CompletionAction::Log(Line::Warn(line)));
        }
        self.directory.table(list)
    }

    /// Puts the read half into its baton. Only this thread and leading waiters take it, briefly.
    fn set_reader(&self, target: &Target, reader: Option<Reader>) {
        loop {
            if let Some(mut held) = target.reading.try_take() {
                *held = reader;
                let _ = held.release();
                return;
            }
            // A leader may have been interrupted there.
            std::thread::yield_now();
        }
    }

    /// A link is lost: both its connections end, and so does what was in flight on it.
    fn retire(&mut self, id: TargetId, link: u64, why: &str) {
        if self.ups.get(&id).is_none_or(|up| up.link != link) {
            return;
        }
        let Some(up) = self.ups.remove(&id) else { return };
        if let Some(beat) = up.beat {
            self.wheel.cancel(beat);
        }
        let target = up.target.clone();
        target.link.set(0);
        self.unsubscribe(id);
        // Its owner reads what the peer sent before the end, and then ends it.
        up.application.finish();
        if let Some(conn) = up.completion.and_then(|key| self.remove(key))
            && let Some(transport) = conn.transport
        {
            transport.shutdown();
            self.actions.push_back(CompletionAction::Unwatch { transport });
        }
        *target.lane.lock() = None;
        self.set_reader(&target, None);
        lanes::post(&self.shared, &target, Post::Retire { link });
        let forget = up.dial.is_none();
        if forget {
            target.gone.raise();
            self.targets.remove(&id);
            self.shared.targets.lock().retain(|t| t.id != id);
            self.links_per_shard[target.owner.index()] -= 1;
            self.take_census();
        }
        // What the peer told of itself went with it: a new link starts afresh.
        if !cfg!(afflux_mutation = "pause_outlives_link") && target.set_paused(false, self.shared.clock.now()) {
            self.shared.port(target.owner).poke(&target);
        }
        let lost_at = self.shared.clock.now();
        self.command(target.owner, ShardCommand::Detach { target: target.clone(), link, forget, lost_at });
        self.shared.end_requests(&target, Detail::LinkLost, lost_at);
        self.shared.counts.links_lost.add(1);
        self.shared.port(target.owner).links.sub(1);
        let line = format!("link to {} is lost: {why}", target.label());
        self.actions.push_back(CompletionAction::Log(Line::Info(line)));
        if let Some(at) = up.dial {
            let wait = self.dials[at as usize].backoff.next(&mut self.random);
            self.set_timer(self.shared.clock.now().after(wait), Timer::Redial(at));
        }
        self.routes_stale = true;
        self.settle_contests(&up.node);
    }

    fn redial(&mut self, at: u32) {
        let dial = &self.dials[at as usize];
        // Under way already, or up by a link that the peer dialled.
        let busy = dial.conns.iter().any(Option::is_some) || self.ups.contains_key(&dial.target.id);
        if self.shared.life() != Life::Serving || busy {
            return;
        }
        let link = LinkId((u128::from(self.random.bits()) << 64) | u128::from(self.random.bits()));
        let Dial { slot, ref to, pull, role, failed, ref server, .. } = self.dials[at as usize];
        let to = to.clone();
        let as_role = if server.is_some() { Role::Client } else { Role::Node };
        let classic = if pull { Some(SocketType::Push) } else { role.map(|_| SocketType::Sub) };
        if let Some(socket) = classic {
            let side = Side::DialAs(socket);
            let conn = self.open(Purpose::Dialled { dial: at }, None, State::Connecting(side));
            self.dials[at as usize].conns[0] = Some(conn);
            return self.actions.push_back(CompletionAction::Dial { conn, to, failed });
        }
        for (i, lane) in [Lane::Application, Lane::Completion].into_iter().enumerate() {
            let side = Side::Dial(Place { link, slot, lane, role: as_role });
            let conn = self.open(Purpose::Dialled { dial: at }, None, State::Connecting(side));
            self.dials[at as usize].conns[i] = Some(conn);
            self.actions.push_back(CompletionAction::Dial { conn, to: to.clone(), failed });
        }
    }

    /// Tells a shard; what finds its mailbox full is told again next turn, in order.
    fn command(&mut self, shard: ShardId, command: ShardCommand) {
        let late = &mut self.late_commands[shard.index()];
        late.push(command);
        late.send(&self.shared, shard);
    }

    // ---- routes

    /// Publishes new routes if it is time; when to come back for them.
    fn routes_due(&mut self, now: Instant) -> Instant {
        self.routes_pause = self.routes_stale && now < self.routes_at;
        if self.routes_pause {
            return self.routes_at;
        }
        if !self.routes_stale {
            return Instant::NEVER;
        }
        self.publish_routes();
        let entries = (self.directory.len() + self.ups.len()) as u32;
        self.routes_at = now.after(ROUTES_PAUSE.saturating_mul(entries));
        Instant::NEVER
    }

    fn publish_routes(&mut self) {
        self.routes_stale = false;
        let servers = self.server_routes();
        let others = || self.ups.values().filter(|up| up.target.serves == Serves::Node);
        let links = others().map(|up| (&up.node, &up.target, &up.channels[..]));
        let mut routes = Routes {
            channels: self.directory.channels(links),
            servers,
            clients: self.clients(),
            up: self.ups.keys().copied().collect(),
            ..Routes::default()
        };
        let own = &self.shared.plan;
        for (name, weight) in &own.channels {
            let Some(channel) = self.directory.channel(&mut routes.channels, name) else { continue };
            let links = self.shared.locals.clone();
            channel.members.push(Member { node: own.name.clone(), weight: *weight, links });
        }
        if !self.shared.locals.is_empty() {
            routes.nodes.insert(own.name.clone(), self.shared.locals.clone());
        }
        for up in others() {
            // A publisher that we subscribe to is nobody to be called.
            if up.native || (up.dial.is_some() && up.target.dialect == Dialect::Native) {
                routes.nodes.entry(up.node.clone()).or_default().push(up.target.clone());
            }
        }
        for dial in &self.dials {
            if let Some(name) = &dial.name {
                let links = routes.nodes.entry(name.clone()).or_default();
                if !links.iter().any(|t| t.id == dial.target.id) {
                    links.push(dial.target.clone());
                }
            } else if let Some(seen) = dial.seen.as_ref().filter(|_| dial.server.is_none()) {
                // Known, even while it is away.
                routes.nodes.entry(seen.clone()).or_default();
            }
        }
        routes.settled = self.dials.iter().all(|d| d.had_outcome || d.role.is_some() || d.server.is_some());
        self.shared.routes.store(Arc::new(routes));
        self.shared.watchers.wake();
        self.find_again();
    }

    /// Looks again for operations that nobody was known for.
    fn find_again(&mut self) {
        let routes = self.shared.routes.load();
        let now = self.shared.clock.now();
        for id in std::mem::take(&mut self.finding) {
            let Some(address) = self.shared.cells.with_waiting(id, |op| op.address.clone()) else { continue };
            match routes.find(&address, &mut Rotation::default()) {
                Ok(Found::NotYet) => self.finding.push(id),
                Ok(Found::Target(target, channel)) => self.found(id, target, channel),
                Err(error) => {
                    self.shared.cells.finish_waiting(id, |op| {
                        self.shared.leave_room(&op);
                        let error = error.with(|n| {
                            n.stage = Some(Stage::Finding);
                            n.waited = Some(now.since(op.since));
                        });
                        Outcome::Failed { error, payload: Some(op.record.payload) }
                    });
                }
            }
        }
    }

    /// An operation's target is known now, for good: it goes on waiting there for room.
    fn found(&mut self, id: CellId, target: Arc<Target>, channel: ChannelId) {
        let request = self.shared.cells.with_waiting(id, |op| {
            // Its place in the waiting room moves to the target's share, which it may not exceed.
            let bytes = op.record.charge();
            if target.waiting.enter(bytes).is_err() {
                return None;
            }
            op.target = Some(target.clone());
            op.record.channel = channel.0;
            Some(op.record.kind == Kind::Request)
        });
        match request {
            None => {}
            Some(None) => {
                let tag = TAG_FINDING;
                self.shared.fail(id, tag, None, ErrorKind::DeadlineExceeded, Detail::WaitingRoomFull);
            }
            Some(Some(request)) => {
                let tag = target.id.0 | if request { TAG_REQUEST } else { 0 };
                target.mark.add_waiter();
                let port = self.shared.port(target.owner);
                match self.shared.cells.hand_over(&port.inbox, id, tag) {
                    Some(true) => {
                        port.wake.wake();
                    }
                    Some(false) => {}
                    // It ended meanwhile, and waits for nothing.
                    None => target.mark.forget_waiter(),
                }
            }
        }
    }

    // ---- reading

    /// True: something came.
    fn read_lane(&mut self, id: TargetId) -> bool {
        let Some(up) = self.ups.get(&id) else { return false };
        let (target, link, ended) = (up.target.clone(), up.link, up.ended);
        if cfg!(afflux_mutation = "lane_gated") {
            // Until everything that is to be written to anybody is.
            let dialling = self.conns.iter().flatten().any(|c| matches!(c.state, State::Connecting(_)));
            if dialling || target.mark.waiters() > 0 || target.replies.bytes() > 0 {
                return false;
            }
        }
        let Some(mut reading) = target.reading.try_take() else {
            // Whoever reads now looks once more before letting go.
            if target.reading.ask() == Asked::Free {
                self.again.push(id);
            }
            return false;
        };
        let now = self.shared.clock.now();
        let mut read = Read::default();
        if let Some(reader) = reading.as_mut() {
            reader.ended |= ended;
            let (shared, latencies) = (&self.shared, &mut self.latencies);
            let took = |time| latencies.record(Latency::Request, time);
            read = reading::read(shared, &target, reader, &mut self.block, (now, false), &mut self.wakes, took);
        }
        let left = target.left.take();
        if reading.release() == Released::MoreWork {
            self.again.push(id);
        }
        let mut wakes = std::mem::take(&mut self.wakes);
        wakes.drain(..).for_each(Waker::wake);
        self.wakes = wakes;
        let came = read.bytes > 0;
        if came
            && !(cfg!(afflux_mutation = "paused_counts_silent") && target.mark.is_blocked())
            && let Some(up) = self.ups.get_mut(&id)
        {
            up.liveness.on_bytes(Lane::Completion, now);
            up.heard_at = now;
        }
        self.take_left(id, link, left, now);
        read.over = read.over.or(self.hear_all(id, read.commands, now));
        match read.over {
            Some(why) => self.retire(id, link, &why),
            None if read.more => self.again.push(id),
            None => {}
        }
        came
    }

    /// The commands of one read of a completion lane. `Some`: the link has to end. Of many PINGs the last is answered:
    /// one PONG is pending per link, and the latest wins.
    fn hear_all(&mut self, id: TargetId, commands: Vec<Command>, now: Instant) -> Option<String> {
        let mut pong = None;
        for command in commands {
            if let Command::Ping { context, .. } = &command {
                pong = Some(*context);
            }
            if let Some(why) = self.heard(id, command, now) {
                return Some(why);
            }
        }
        if let Some(context) = pong
            && let Some(up) = self.ups.get(&id)
        {
            let mut frame = Vec::new();
            command::write_pong(&context, &mut frame);
            let (target, link) = (up.target.clone(), up.link);
            self.say(&target, link, frame);
        }
        None
    }

    /// A command on a completion lane. `Some`: the link has to end.
    fn heard(&mut self, id: TargetId, command: Command, now: Instant) -> Option<String> {
        let up = self.ups.get_mut(&id)?;
        match command {
            Command::Ping { context, .. } => {
                if let Some((clock, decoded)) = context.as_native() {
                    up.target.decoded_by_peer.raise(decoded);
                    up.clock.on_reading(clock, now);
                    publish_clock(up, now);
                }
            }
            Command::Pong { context } => {
                if let Some((own, _)) = context.as_native() {
                    up.clock.on_echo(own, now);
                    publish_clock(up, now);
                }
            }
            Command::FlowState(state) => match up.heard.on_told(state.paused, state.epoch, now) {
                Hearing::Stale => {
                    self.shared.counts.flow_state_stale.add(1);
                }
                Hearing::Unchanged => {}
                Hearing::Paused | Hearing::Resumed => {
                    if up.target.set_paused(state.paused, now) {
                        self.shared.port(up.target.owner).poke(&up.target);
                    }
                }
            },
            Command::Error(reason) => return Some(format!("the peer gave up: {reason}")),
            _ => {}
        }
        None
    }

    // ---- telling

    /// Tells the pressure to links whose last told state differs, each at most once per millisecond.
    fn tell(&mut self, now: Instant) {
        let (_, epoch) = self.shared.gate.pressure();
        if epoch == self.told_epoch {
            return;
        }
        self.told_epoch = epoch;
        let ids: Vec<TargetId> = self.ups.keys().copied().collect();
        for id in ids {
            self.tell_one(id, now);
        }
    }

    fn tell_one(&mut self, id: TargetId, now: Instant) {
        let (pressure, epoch) = self.shared.gate.pressure();
        let paused = pressure == crate::sync::gate::Pressure::Paused;
        let Some(up) = self.ups.get_mut(&id) else { return };
        if !up.native && !cfg!(afflux_mutation = "stock_told") {
            return;
        }
        match up.told.poll(paused, now) {
            Tell::Nothing => {}
            Tell::At(at) => {
                if !std::mem::replace(&mut self.telling, true) {
                    self.set_timer(at, Timer::Tell);
                }
            }
            Tell::Now => {
                let mut frame = Vec::new();
                // Epochs on the wire begin at 1.
                command::write_flow_state(FlowState { paused, epoch: epoch + 1 }, &mut frame);
                let (target, link) = (up.target.clone(), up.link);
                lanes::post(&self.shared, &target, Post::Command { link, frame: frame.into() });
                self.shared.counts.flow_frames_sent.add(1);
            }
        }
    }

    /// After how much silence the peer may take us for dead, as PING tells it.
    fn ping_ttl(&self) -> u16 {
        (self.shared.plan.dead_after.as_millis() / 100).min(u128::from(u16::MAX)) as u16
    }

    /// Heartbeat of one link: a PING, or the end of it.
    fn beat(&mut self, id: TargetId, link: u64, now: Instant) {
        // What has come is read before its absence is judged: this thread may be the one that is late.
        if !cfg!(afflux_mutation = "late_judges_first") {
            self.read_lane(id);
        }
        let ttl = self.ping_ttl();
        let Some(up) = self.ups.get_mut(&id).filter(|up| up.link == link) else { return };
        let target = up.target.clone();
        up.liveness.on_bytes(Lane::Application, Instant(target.last_read_ns.get()));
        up.liveness.on_bytes(Lane::Completion, Instant(target.led_read_ns.get()));
        // Whoever leads and is stuck does not keep signs of life from being seen.
        lead::expect(&target);
        // Its owner may be stuck in user code: awake, and in the same turn as a heartbeat ago.
        let port = self.shared.port(target.owner);
        let turns = std::mem::replace(&mut up.owner_turns, port.turns.get());
        let stuck = up.owner_turns == turns && !port.wake.is_asleep();
        up.liveness.set_reading(!target.parked.is_raised() && !stuck, now);
        let mut frame = Vec::new();
        let mut dead = false;
        while let Some(action) = up.liveness.poll(now) {
            match action {
                Action::SendPing => {
                    command::write_ping(ttl, &Context::native(clock_ms(now), target.decoded.get()), &mut frame);
                }
                Action::SendPong => command::write_pong(&Context::default(), &mut frame),
                Action::Dead => dead = true,
            }
        }
        let next = up.liveness.next();
        if dead {
            return self.retire(id, link, "no byte on either lane in time: the peer is dead");
        }
        if !frame.is_empty() {
            self.say(&target, link, frame);
        }
        let beat = self.set_timer(next, Timer::Beat(id, link));
        if let Some(up) = self.ups.get_mut(&id) {
            up.beat = beat;
        }
    }

    // ---- the turn

    /// One turn; returns when to come back at the latest, and whether there is more to do now.
    pub fn turn(&mut self, now: Instant) -> (bool, Instant) {
        for shard in 0..self.late_commands.len() {
            self.late_commands[shard].send(&self.shared, ShardId(shard as u16));
        }
        // Those that are there now: peers can have them sent without an end.
        for _ in 0..self.commands.len() {
            let Ok(command) = self.commands.try_recv() else { break };
            match command {
                CompletionCommand::Lost { target, link, reason } => self.retire(target.id, link, &reason),
                CompletionCommand::Channels { target, link, list } => self.channels(&target, link, list),
                CompletionCommand::Histograms(reply) => {
                    // The asker may have given up waiting.
                    let mut full = self.latencies.swap(LatencySet::new());
                    let led = &mut *self.shared.led.lock();
                    full.merge(led);
                    led.clear();
                    let _ = reply.try_send(full);
                }
            }
        }
        let mut came = false;
        while let Some(entry) = self.shared.cells.pop(&self.shared.completion.inbox) {
            self.finding.push(entry.id);
            came = true;
        }
        if came {
            self.find_again();
        }
        let mut due = Vec::new();
        let mut more = self.wheel.poll(now, self.shared.plan.turn.timers as usize, |timer| due.push(timer));
        for timer in due {
            match timer {
                Timer::Handshake(key) => {
                    if let Some(conn) = self.conn(key) {
                        conn.timer = None;
                        self.close(key, "the handshake took too long");
                    }
                }
                Timer::Redial(at) => self.redial(at),
                Timer::Beat(id, link) => self.beat(id, link, now),
                Timer::Contest(link) => self.decide(link),
                Timer::Raise => self.raise_marks(now),
                Timer::Tell => {
                    self.telling = false;
                    self.told_epoch = u64::MAX;
                }
            }
        }
        self.tell(now);
        self.tell_changes();
        self.take_all_left(now);
        for target in self.shared.completion.unwritten.take() {
            lanes::drive_completion(&self.shared, &target);
        }
        for id in std::mem::take(&mut self.again) {
            self.read_lane(id);
        }
        let lead = self.see_to_leads(now);
        more |= !self.again.is_empty();
        if !(cfg!(afflux_mutation = "expiry_starves") && self.ups.values().any(|up| up.heard_at >= now)) {
            self.expire(now);
        }
        let mut next = self.shared.cells.next_deadline();
        if let Some(timer) = self.wheel.next() {
            next = next.min(timer);
        }
        if let Some(publishing) = &self.shared.publishing {
            next = next.min(publishing.expire(now));
        }
        if self.late_commands.iter().any(|late| !late.is_empty()) {
            next = next.min(now.after(Duration::from_millis(1)));
        }
        next = next.min(self.routes_due(now));
        next = next.min(self.tick(now)).min(lead);
        (more, next)
    }

    /// Ends operations whose time is up: for the whole host, on time, even while shards are stuck.
    fn expire(&mut self, now: Instant) {
        if self.shared.cells.next_deadline() > now {
            return;
        }
        let (shared, targets, latencies) = (&self.shared, &self.targets, &mut self.latencies);
        shared.cells.sweep(now, |id, state, tag| {
            if state == CellState::Done {
                // It ended in time and nobody took it in time: the reply is not kept any longer.
                shared.cells.lapse(id, |outcome| shared.lapsed(outcome));
                return;
            }
            if cfg!(afflux_mutation = "backstop_waits_for_shard") && shared.shards.iter().any(|p| !p.inbox.is_empty()) {
                return;
            }
            if let Some(deadline) = shared.cells.deadline(id) {
                latencies.record(Latency::Lateness, now.since(deadline));
            }
            if tag & TAG_REPLY != 0 {
                answer::expired(shared, id, now);
            } else {
                let id_of = tag_target(tag);
                let local = || shared.target(id_of);
                shared.expire(id, tag, targets.get(&id_of).cloned().or_else(local).as_ref(), now);
            }
        });
    }

    /// A peer changed what it serves. Positions are numbers on the link: the list only grows.
    fn channels(&mut self, target: &Arc<Target>, link: u64, list: Vec<(Arc<str>, u32)>) {
        // Who is no node of ours serves nothing.
        let Some(up) = self.ups.get(&target.id).filter(|up| up.link == link && up.native) else { return };
        let grows = list.len() >= up.channels.len() && up.channels.iter().zip(&list).all(|((a, _), (b, _))| a == b);
        if !grows {
            return self.retire(target.id, link, "the peer took names out of its list of channels");
        }
        let node = up.node.clone();
        let table = self.hear_channels(target, &node, &list);
        // Before anybody can select a channel that is new.
        target.announce(link, table);
        if let Some(up) = self.ups.get_mut(&target.id) {
            up.channels = list;
        }
        self.routes_stale = true;
    }

    /// Whether every configured link is up.
    pub fn all_up(&self) -> bool {
        self.dials.iter().all(|d| self.ups.contains_key(&d.target.id))
    }

    /// Ends everything: the host is over.
    pub fn close_all(&mut self) {
        let ids: Vec<(TargetId, u64)> = self.ups.iter().map(|(id, up)| (*id, up.link)).collect();
        for (id, link) in ids {
            self.retire(id, link, "this host shut down");
        }
        for index in 0..self.conns.len() as u32 {
            let key = ConnKey { index, generation: self.generations[index as usize] };
            if let Some(conn) = self.remove(key)
                && let Some(transport) = conn.transport
            {
                transport.shutdown();
            }
        }
    }
}

/// Feeds a handshake with what came; says how much of it the handshake took.
fn feed(handshake: &mut Handshake, input: &[u8]) -> Result<usize, crate::wire::error::WireError> {
    let mut used = 0;
    while used < input.len() {
        let n = handshake.handle_bytes(&input[used..])?;
        used += n;
        if n == 0 {
            break;
        }
    }
    Ok(used)
}

/// What the owner shard needs to know of the peer's clock.
fn publish_clock(up: &Up, now: Instant) {
    up.target.clock_ahead_ms.set(u64::from(up.clock.peer_ms(now).wrapping_sub(clock_ms(now))));
}
