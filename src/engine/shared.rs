//! `HostShared`: everything that more than one thread of a host touches. Each field is one of the
//! protocols of `sync/`; nothing here is locked for longer than a few instructions.

use std::sync::Arc;
use std::task::Waker;
use std::thread::{self, ThreadId};
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use super::command::{CompletionCommand, ShardCommand};
use super::publish::Publishing;
use super::stream::StreamSocket;
use super::subscribe::Subscribing;
use crate::base::error::{Detail, Error, ErrorKind, Stage};
use crate::base::id::{CellId, ShardId, TargetId};
use crate::base::record::{Kind, Lane, Record};
use crate::base::time::{Clock, Instant};
use crate::flow::target::{Dialect, Serves, Target, TargetSpec};
use crate::meter::latency::LatencySet;
use crate::pattern::route::{Address, Named, Routes};
use crate::plan::HostPlan;
use crate::sync::cell::{CellList, CellPool, CellState};
use crate::sync::gate::{GateConfig, PermitGate};
use crate::sync::line::Line;
use crate::sync::lock::Lock;
use crate::sync::parker;
use crate::sync::published::Published;
use crate::sync::ring::{Consumer, Producer, ring};
use crate::sync::room::Room;
use crate::sync::tray::Tray;
use crate::sync::wake::WakeCell;
use crate::sync::word::{Epoch, Gauge, Latch, Level};
use crate::wire::header::ErrorBody;

/// Who makes an operation: a quarter of the waiting room is kept for handlers, because finishing
/// what was begun goes before beginning more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// A thread of the user's.
    Caller,
    /// A handler or a continuation of one.
    Handler,
}

/// An operation that waits: what its cell holds until it is claimed.
#[derive(Debug)]
pub struct Op {
    /// Where it goes. `None` while nobody knows yet who serves the channel.
    pub target: Option<Arc<Target>>,
    /// What it was addressed to.
    pub address: Address,
    /// The record to be sent.
    pub record: Record,
    /// Whose it is.
    pub class: Class,
    /// When it began to wait.
    pub since: Instant,
    /// Of a reply that waits: the attach on which its request came.
    pub link: u64,
}

/// How an operation ended.
#[derive(Debug)]
pub enum Outcome {
    /// The local runtime took it over.
    Accepted,
    /// The peer answered.
    Reply(Body),
    /// It failed. The payload comes back if it never left.
    Failed {
        /// Why.
        error: Error,
        /// The payload, unless it was sent.
        payload: Option<Bytes>,
    },
}

/// Bodies up to this size are not counted against the hold: there are never more of them than
/// request slots, and the ledger says so.
pub const SMALL_REPLY_MAX: usize = crate::plan::SMALL_REPLY_MAX;

/// The body of a reply that has arrived. A large one takes its part of the host's hold with it
/// until it is taken or dropped.
#[derive(Debug)]
pub struct Body {
    bytes: Bytes,
    hold: Option<Arc<Room>>,
}

impl Body {
    /// A body that the hold does not count.
    pub fn free(bytes: Bytes) -> Self {
        Body { bytes, hold: None }
    }

    /// A body that was entered into `hold` with its length.
    pub fn held(bytes: Bytes, hold: &Arc<Room>) -> Self {
        Body { bytes, hold: Some(hold.clone()) }
    }

    /// Takes it out.
    pub fn take(mut self) -> Bytes {
        self.leave();
        std::mem::take(&mut self.bytes)
    }

    fn leave(&mut self) {
        if let Some(hold) = self.hold.take() {
            hold.leave(self.bytes.len() as u64);
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A record that was accepted on a caller's thread, on its way to the shard that owns the target.
#[derive(Debug)]
pub struct Outgoing {
    /// Where it goes.
    pub target: TargetId,
    /// What goes.
    pub record: Record,
}

/// What other threads may do to a shard.
pub struct ShardPort {
    /// Wakes it if it sleeps.
    pub wake: Arc<WakeCell>,
    /// Operations that wait for room at one of its targets.
    pub inbox: CellList,
    /// Targets that it should look at: woken waiters, retried writes.
    pub pokes: Tray<Arc<Target>>,
    /// Started places whose request was answered by another thread; never more than are started.
    pub finished: Tray<u32>,
    /// Peers whose replies were left for the end of a run of jobs.
    pub left: Lock<Vec<Arc<Target>>>,
    /// How often the completion thread has taken that list.
    pub left_taken: Gauge,
    /// How often such replies were written: moves while there are any.
    pub batches: Gauge,
    /// Raised when a host-wide bound that somebody ran into has room again.
    pub look_again: Latch,
    /// The ring for handles beyond `max_caller_rings`.
    pub common_ring: Lock<Producer<Outgoing>>,
    commands: Sender<ShardCommand>,
    /// Turns that it has begun: stands still while it is in user code.
    pub turns: Gauge,
    /// Handlers started and not finished.
    pub started: Gauge,
    /// The most that were ever started at once.
    pub started_peak: Gauge,
    /// Records received and not claimed.
    pub unclaimed: Gauge,
    /// Claimed jobs that have not started.
    pub queued: Gauge,
    /// Links attached to it.
    pub links: Gauge,
    /// Sessions of end clients that are its.
    pub sessions: Gauge,
}

impl std::fmt::Debug for ShardPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardPort").field("turns", &self.turns.get()).finish_non_exhaustive()
    }
}

impl ShardPort {
    /// Hands over a command; gives it back if the shard has too many unread.
    pub fn command(&self, command: ShardCommand) -> Result<(), ShardCommand> {
        hand_over(&self.commands, &self.wake, command)
    }

    /// Makes the shard look at `target` in its next turn.
    pub fn poke(&self, target: &Arc<Target>) {
        if target.poked.raise() {
            self.pokes.leave(target.clone());
            self.wake.wake();
        }
    }
}

/// What other threads may do to the completion thread.
pub struct CompletionPort {
    /// Wakes it if it sleeps.
    pub wake: Arc<WakeCell>,
    /// Operations for which nobody is known yet.
    pub inbox: CellList,
    /// Links of which a leader has left something to be dealt with.
    pub left: Tray<Arc<Target>>,
    /// Lanes that were left warm: it comes by after a while.
    pub warm: Tray<Arc<Target>>,
    /// Lanes to which others left more for as long as somebody wrote; each once.
    pub unwritten: Tray<Arc<Target>>,
    commands: Sender<CompletionCommand>,
}

impl std::fmt::Debug for CompletionPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompletionPort").finish_non_exhaustive()
    }
}

impl CompletionPort {
    /// Hands over a command; gives it back if too many are unread.
    pub fn command(&self, command: CompletionCommand) -> Result<(), CompletionCommand> {
        hand_over(&self.commands, &self.wake, command)
    }

    /// Leaves the writing of a lane to it.
    pub fn leave_unwritten(&self, target: &Arc<Target>) {
        self.unwritten.leave_unless(target.clone(), Arc::ptr_eq);
        self.wake.wake();
    }
}

fn hand_over<T>(commands: &Sender<T>, wake: &WakeCell, command: T) -> Result<(), T> {
    match commands.try_send(command) {
        Ok(()) => {
            wake.wake();
            Ok(())
        }
        Err(TrySendError::Full(command) | TrySendError::Disconnected(command)) => Err(command),
    }
}

/// The life of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Life {
    /// Accepts operations.
    Serving = 0,
    /// Accepts nothing new; what was accepted goes out.
    Draining = 1,
    /// Over.
    Stopped = 2,
}

/// Host-wide counts that any thread may add to. None of them is touched on the path of an
/// operation that finds room.
#[derive(Debug, Default)]
pub struct Counts {
    /// Operations that had to wait for room.
    pub waits: Gauge,
    /// Operations that found the waiting room full.
    pub waiting_room_full: Gauge,
    /// Operations whose time was up while they waited for room.
    pub no_room: Gauge,
    /// Requests whose time was up without a reply.
    pub no_reply: Gauge,
    /// Records accepted for a link that was gone when they came to its shard.
    pub lost_with_target: Gauge,
    /// Requests ended by the loss of their link.
    pub link_lost: Gauge,
    /// Replies whose request had ended.
    pub late_replies: Gauge,
    /// Replies thrown away because the hold was full.
    pub reply_hold_refused: Gauge,
    /// Replies that nobody took by their operation's deadline.
    pub replies_not_taken: Gauge,
    /// Replies for a link that had gone.
    pub replies_undeliverable: Gauge,
    /// Replies that got no room on their lane in time.
    pub reply_room_refused: Gauge,
    /// Replies arrived.
    pub replies: Gauge,
    /// Records received on application lanes.
    pub received: Gauge,
    /// Records whose handler was started.
    pub delivered: Gauge,
    /// Requests answered with an error because their time was up before their handler could start.
    pub expired_in_queue: Gauge,
    /// Records for which there was no handler.
    pub no_handler: Gauge,
    /// Records that made no sense.
    pub malformed: Gauge,
    /// Handlers that panicked.
    pub handler_panics: Gauge,
    /// Flow-state commands sent.
    pub flow_frames_sent: Gauge,
    /// Flow-state commands that came too late to be believed.
    pub flow_state_stale: Gauge,
    /// Connections refused or closed before they were up.
    pub handshakes_failed: Gauge,
    /// Pairs that came up.
    pub links_up: Gauge,
    /// Pairs that were lost.
    pub links_lost: Gauge,
}

/// Threads that are woken whenever what is reachable may have changed. Each is in here once, for as long as it
/// waits.
#[derive(Debug, Default)]
pub struct Watchers(Lock<Vec<(ThreadId, Waker)>>);

impl Watchers {
    /// The calling thread among them, until the value is dropped. It looks again whenever it is woken.
    pub fn watch(&self) -> Watch<'_> {
        let thread = thread::current().id();
        self.0.lock().push((thread, parker::thread_waker()));
        Watch(self, thread)
    }

    /// Wakes them all; they stay.
    pub fn wake(&self) {
        let all = self.0.lock().clone();
        all.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// See [`Watchers::watch`].
#[derive(Debug)]
pub struct Watch<'a>(&'a Watchers, ThreadId);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.0.0.lock().retain(|(thread, _)| *thread != self.1);
    }
}

/// See the module.
#[derive(Debug)]
pub struct HostShared {
    /// All limits, resolved.
    pub plan: Arc<HostPlan>,
    /// Where `now` comes from.
    pub clock: Arc<dyn Clock>,
    /// The host's job limit.
    pub gate: PermitGate,
    /// Waiting operations and awaited replies.
    pub cells: CellPool<Op, Outcome>,
    /// Operations that wait, all together.
    pub room: Room,
    /// The same, of callers: three quarters.
    pub callers_room: Room,
    /// Requests sent and not ended.
    pub slots: Room,
    /// Replies arrived and not taken.
    pub hold: Arc<Room>,
    /// Beyond the hold, replies that somebody waits for now, who takes them at once: as much as the largest one.
    pub awaited: Arc<Room>,
    /// Charges of records claimed and not finished, as of each shard's last turn.
    pub owned: Level,
    /// What receive queues hold above their marks to take one larger record each.
    pub oversize: Room,
    /// Links whose record is too large for what is left of it, oldest first.
    pub oversize_line: Line,
    /// Links whose record is too large for what is left of the owned bytes, oldest first.
    pub owned_line: Line,
    /// The mark of receive queues that have none of their own, as of the last census; 0 = unlimited.
    pub receive_mark: Gauge,
    /// What the marks of the present links are a division of, in bytes.
    pub budget: Gauge,
    /// The least marks of the present links need more than the budget.
    pub insufficient: Latch,
    /// Replies to all peers that they have not taken.
    pub replies: Room,
    /// What names stand for.
    pub routes: Published<Routes>,
    /// One per shard.
    pub shards: Vec<ShardPort>,
    /// The completion thread's.
    pub completion: CompletionPort,
    /// How long requests took whose replies leaders read.
    pub led: Lock<LatencySet>,
    /// See [`Life`].
    pub life: Epoch,
    /// Somebody waits for the threads to end.
    pub stopping: Latch,
    /// Why the host is over though nobody stopped it.
    failure: Lock<Option<Arc<str>>>,
    /// See [`Counts`].
    pub counts: Counts,
    /// Somebody waits for a host-wide bound: request slots, owned bytes, the oversize budget, the mark of replies.
    pub short: Latch,
    /// Replies are being left for the end of a run: the completion thread looks after them.
    pub tick: Latch,
    /// Rings of handles in use.
    pub caller_rings: Gauge,
    /// Threads that wait until every configured connection is up, or until the host is over.
    pub watchers: Watchers,
    /// Panics of handlers that were not logged yet.
    pub panics: Lock<Vec<(ShardId, String)>>,
    /// All links that are not gone, for status.
    pub targets: Lock<Vec<Arc<Target>>>,
    /// What this host publishes; `None`: it does not.
    pub publishing: Option<Publishing>,
    /// What this host subscribes to.
    pub subscribing: Subscribing,
    /// What end clients connect to, in the order of the plan.
    pub streams: Vec<Arc<StreamSocket>>,
    /// This host as a target of its own calls, one per shard; none if it serves no channel.
    pub locals: Vec<Arc<Target>>,
}

/// The receiving ends of one shard's port.
#[derive(Debug)]
pub struct ShardReceiver {
    /// From the completion thread and from new handles.
    pub commands: Receiver<ShardCommand>,
    /// The ring of handles beyond `max_caller_rings`.
    pub common: Consumer<Outgoing>,
}

/// The receiving ends of a host's ports, each to be moved into its engine.
#[derive(Debug)]
pub struct Receivers {
    /// One per shard.
    pub shards: Vec<ShardReceiver>,
    /// The completion thread's.
    pub completion: Receiver<CompletionCommand>,
}

/// Set in a cell's tag beside the target's id: the cell is a request, and holds a slot from the
/// moment it is claimed.
pub const TAG_REQUEST: u64 = 1 << 63;

/// Set in a cell's tag beside the target's id: the operation is a reply that waits for room on its
/// lane.
pub const TAG_REPLY: u64 = 1 << 62;

/// In place of the target's id: nobody knows yet who serves the channel.
pub const TAG_FINDING: u64 = (1 << 62) - 1;

/// From here on, by shard: the ids of the targets that stand for this host itself.
const LOCAL_IDS: u64 = 1 << 61;

/// The target of a cell's tag.
pub fn tag_target(tag: u64) -> TargetId {
    TargetId(tag & !(TAG_REQUEST | TAG_REPLY))
}

impl HostShared {
    /// Builds all shared memory from the plan. `wakes`: one per shard, then the completion
    /// thread's.
    pub fn new(plan: Arc<HostPlan>, clock: Arc<dyn Clock>, mut wakes: Vec<Arc<WakeCell>>) -> (Arc<Self>, Receivers) {
        let shards = plan.shards as usize;
        assert_eq!(wakes.len(), shards + 1, "one wake cell per shard and one for the completion thread");
        let completion_wake = wakes.pop().expect("counted above");
        let done_wakes = wakes.clone();
        let cells = CellPool::new(plan.places().cells, plan.shards, move |shard| {
            done_wakes[shard as usize].wake();
        });
        let mut receivers = Vec::new();
        let ports = wakes
            .into_iter()
            .map(|wake| {
                let (commands, receiver) = bounded(plan.places().commands as usize);
                let (producer, common) = ring(plan.ring_slots as usize);
                receivers.push(ShardReceiver { commands: receiver, common });
                ShardPort {
                    wake,
                    inbox: CellList::inbox(),
                    pokes: Tray::default(),
                    finished: Tray::default(),
                    left: Lock::new(Vec::new()),
                    left_taken: Gauge::default(),
                    batches: Gauge::default(),
                    look_again: Latch::new(),
                    common_ring: Lock::new(producer),
                    commands,
                    turns: Gauge::default(),
                    started: Gauge::default(),
                    started_peak: Gauge::default(),
                    unclaimed: Gauge::default(),
                    queued: Gauge::default(),
                    links: Gauge::default(),
                    sessions: Gauge::default(),
                }
            })
            .collect();
        let (commands, completion_receiver) = bounded(plan.places().commands as usize);
        let room = &plan.room;
        let serving = if plan.channels.is_empty() { 0 } else { plan.shards };
        let shared = HostShared {
            locals: (0..serving).map(|shard| Arc::new(local(&plan, ShardId(shard)))).collect(),
            gate: PermitGate::new(GateConfig {
                limit: plan.jobs.limit,
                shards: plan.shards,
                pause_at: plan.jobs.pause_at,
                resume_at: plan.jobs.resume_at,
            }),
            cells,
            room: Room::new(room.ops, room.bytes),
            callers_room: Room::new(room.ops - room.handler_ops, room.bytes - room.handler_bytes),
            slots: Room::new(plan.request_slots, u64::MAX),
            hold: Arc::new(Room::new(u32::MAX, plan.reply.hold)),
            awaited: Arc::new(Room::new(u32::MAX, plan.max_message)),
            owned: Level::default(),
            receive_mark: Gauge::new(plan.receive_mark),
            budget: Gauge::new(plan.hwm.budget),
            insufficient: Latch::new(),
            replies: Room::new(u32::MAX, plan.reply.host),
            routes: Published::new(Arc::new(Routes::default())),
            shards: ports,
            completion: CompletionPort {
                wake: completion_wake,
                inbox: CellList::inbox(),
                left: Tray::default(),
                warm: Tray::default(),
                unwritten: Tray::default(),
                commands,
            },
            led: Lock::new(LatencySet::new()),
            life: Epoch::new(Life::Serving as u64),
            stopping: Latch::new(),
            failure: Lock::new(None),
            counts: Counts::default(),
            short: Latch::new(),
            tick: Latch::new(),
            oversize: Room::new(u32::MAX, plan.oversize_budget),
            oversize_line: Line::default(),
            owned_line: Line::default(),
            caller_rings: Gauge::default(),
            watchers: Watchers::default(),
            panics: Lock::new(Vec::new()),
            targets: Lock::new(Vec::new()),
            publishing: plan.publisher.map(Publishing::new),
            subscribing: Subscribing::new(&plan.subscribers),
            streams: (0..).zip(&plan.streams).map(|(i, s)| Arc::new(StreamSocket::new(s.clone(), i))).collect(),
            plan,
            clock,
        };
        (Arc::new(shared), Receivers { shards: receivers, completion: completion_receiver })
    }

    /// Where the host is in its life.
    pub fn life(&self) -> Life {
        match self.life.get() {
            0 => Life::Serving,
            1 => Life::Draining,
            _ => Life::Stopped,
        }
    }

    /// Lets every thread of the host end.
    pub fn stop_threads(&self) {
        self.life.set(Life::Stopped as u64);
        for port in &self.shards {
            port.wake.wake();
        }
        self.completion.wake.wake();
    }

    /// One of the host's threads is gone, and the host is over with it. Whoever waits for anything but an operation
    /// hears of it; those are the caller's to end, with [`HostShared::end_all`]. The first reason is kept.
    pub fn break_down(&self, why: String) {
        self.failure.lock().get_or_insert_with(|| why.into());
        self.stop_threads();
        if let Some(publishing) = &self.publishing {
            publishing.wake_waiting();
        }
        self.watchers.wake();
    }

    /// Why the host is over though nobody stopped it.
    pub fn failure(&self) -> Option<Arc<str>> {
        self.failure.lock().clone()
    }

    /// A target of this host, by its id.
    pub fn target(&self, id: TargetId) -> Option<Arc<Target>> {
        match id.0.checked_sub(LOCAL_IDS) {
            Some(shard) => self.locals.get(shard as usize).cloned(),
            None => self.targets.lock().iter().find(|target| target.id == id).cloned(),
        }
    }

    /// The address of the servers of one of this host's roles as a client; `NotConfigured` if it has no such role.
    pub fn server(&self, name: &str) -> Result<Address, Error> {
        match self.plan.client(name) {
            Some(client) => Ok(Address::Server(client.name.clone())),
            None => {
                let error = Error::new(ErrorKind::NotConfigured, Detail::None).with(|n| n.target = Some(name.into()));
                Err(error.with_text("this host is no client of it: client_of() makes it one"))
            }
        }
    }

    /// Ceiling of a send to `address`: that of the socket it goes out by.
    pub fn send_ceiling(&self, address: Named<'_>) -> Duration {
        let client = match address {
            Named::Server(name) => self.plan.client(name),
            _ => None,
        };
        client.map_or(self.plan.send_timeout, |client| client.send_timeout)
    }

    /// The port of `shard`.
    pub fn port(&self, shard: ShardId) -> &ShardPort {
        &self.shards[shard.index()]
    }

    /// Takes a place in the waiting room: the target's share first, then the class's, then the
    /// host's.
    pub fn enter_room(&self, target: Option<&Target>, class: Class, bytes: u64) -> Result<(), Error> {
        let full = |full: crate::sync::room::RoomFull, target: Option<&Target>| {
            self.counts.waiting_room_full.add(1);
            let named = !cfg!(afflux_mutation = "room_full_unnamed");
            let detail = if named { Detail::WaitingRoomFull } else { Detail::NoRoom };
            Error::new(ErrorKind::DeadlineExceeded, detail).with(|n| {
                n.target = target.map(Target::label);
                n.stage = Some(Stage::Room);
                n.lane = target.and_then(Target::lane);
                n.waited = Some(std::time::Duration::ZERO);
                (n.used, n.limit) = if full.ops >= full.ops_max {
                    (Some(full.ops.into()), Some(full.ops_max.into()))
                } else {
                    (Some(full.bytes), Some(full.bytes_max))
                };
            })
        };
        if let Some(t) = target {
            t.waiting.enter(bytes).map_err(|f| full(f, target))?;
        }
        if class == Class::Caller
            && let Err(f) = self.callers_room.enter(bytes)
        {
            if let Some(t) = target {
                t.waiting.leave(bytes);
            }
            return Err(full(f, target));
        }
        if let Err(f) = self.room.enter(bytes) {
            if class == Class::Caller {
                self.callers_room.leave(bytes);
            }
            if let Some(t) = target {
                t.waiting.leave(bytes);
            }
            return Err(full(f, target));
        }
        Ok(())
    }

    /// Gives the place back. Whoever takes an operation out of Waiting calls it, once.
    pub fn leave_room(&self, op: &Op) {
        let bytes = op.record.charge();
        if let Some(t) = &op.target {
            t.waiting.leave(bytes);
        }
        if op.class == Class::Caller {
            self.callers_room.leave(bytes);
        }
        self.room.leave(bytes);
    }

    /// Takes a slot for a request to `target`; false if either bound is reached.
    #[inline]
    pub fn enter_slot(&self, target: &Target) -> bool {
        if target.in_flight.enter(0).is_err() {
            return false;
        }
        if self.slots.enter(0).is_err() {
            self.short.raise();
            // One may have been given back between the look and the flag.
            if self.slots.enter(0).is_err() {
                target.in_flight.leave(0);
                return false;
            }
        }
        true
    }

    /// Gives a slot back, and lets whoever waits for one know.
    pub fn leave_slot(&self, target: &Arc<Target>) {
        self.free_slots(target, 1);
    }

    /// Gives the slots of requests back that were answered.
    pub fn leave_slots(&self, target: &Arc<Target>, answered: u32) {
        self.counts.replies.add(u64::from(answered));
        self.free_slots(target, answered);
    }

    /// Whether fewer than `n` requests could be made of `target` now, or somebody waits until one can.
    #[inline]
    pub fn slots_are_short(&self, target: &Target, n: u32) -> bool {
        let few = |room: &Room| room.ops() + n > room.ops_max();
        few(&target.in_flight) || few(&self.slots) || target.mark.waiters() > 0
    }

    fn free_slots(&self, target: &Arc<Target>, n: u32) {
        target.in_flight.leave_many(n, 0);
        self.slots.leave_many(n, 0);
        if target.mark.waiters() > 0 {
            self.port(target.owner).poke(target);
        }
        if !cfg!(afflux_mutation = "slot_unrelieved") {
            self.relieve();
        }
    }

    /// Lets every shard look again, if anybody ran into a host-wide bound. Called by whoever made room.
    #[inline]
    pub fn relieve(&self) {
        if self.short.is_raised() && self.short.lower() {
            for port in &self.shards {
                port.look_again.raise();
                port.wake.wake();
            }
        }
    }

    /// `target` stands in no line any more. Whom it held up looks again.
    #[inline]
    pub fn leave_line(&self, line: &Line, target: &Target) {
        if line.leave(target.id.0) {
            self.relieve();
        }
    }

    /// Gives a slot back that was taken a moment ago and not used.
    pub fn leave_slot_quietly(&self, target: &Target) {
        target.in_flight.leave(0);
        self.slots.leave(0);
        // Somebody else may have found it taken.
        self.relieve();
    }

    /// Ends every request that was accepted for `target` until `at` and has no reply yet.
    pub fn end_requests(&self, target: &Arc<Target>, detail: Detail, at: Instant) {
        if target.in_flight.ops() == 0 {
            return;
        }
        let tag = TAG_REQUEST | target.id.0;
        let mut ids = Vec::new();
        self.cells.scan(|id, state, of| {
            if of == tag && state == CellState::Claimed {
                ids.push(id);
            }
        });
        ids.retain(|id| self.cells.since(*id).is_none_or(|since| since <= at));
        for id in ids {
            if self.fail(id, tag, Some(target), ErrorKind::Unavailable, detail) {
                self.counts.link_lost.add(1);
            }
        }
    }

    /// Whether nothing that was accepted is still on its way or being worked on.
    pub fn is_quiet(&self) -> bool {
        let idle = self.shards.iter().all(|p| p.unclaimed.get() + p.queued.get() + p.started.get() == 0);
        let targets = self.targets.lock();
        let idle = idle && !(cfg!(afflux_mutation = "idle_holds_drain") && targets.iter().any(|t| t.is_up()));
        idle && self.slots.ops() == 0
            && self.room.ops() == 0
            && targets.iter().chain(&self.locals).all(|t| !t.is_up() || (t.mark.bytes() == 0 && t.replies.bytes() == 0))
            && self.publishing.as_ref().is_none_or(|p| {
                let now = self.clock.now();
                targets.iter().all(|t| p.is_quiet(t, now))
            })
    }

    /// Ends every operation that has not ended.
    pub fn end_all(&self, kind: ErrorKind) {
        let mut live = Vec::new();
        self.cells.scan(|id, state, tag| {
            if state != CellState::Done {
                live.push((id, tag));
            }
        });
        for (id, tag) in live {
            let target = self.target(tag_target(tag));
            self.fail(id, tag, target.as_ref(), kind, Detail::None);
        }
    }

    /// Unlinks operations from a shard's inbox that are over and taken. The shard does so itself as soon as
    /// it looks; while it is stuck, their places would be missing to everybody else.
    fn prune_inbox(&self, port: &ShardPort) {
        if port.inbox.is_empty() {
            return;
        }
        self.cells.prune(&port.inbox, |entry| {
            if let Some(target) = self.target(tag_target(entry.tag)) {
                target.mark.forget_waiter();
            }
        });
    }

    /// What is left of an outcome that was not taken by its operation's deadline.
    pub fn lapsed(&self, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Reply(body) => {
                self.counts.replies_not_taken.add(1);
                drop(body);
                let error = Error::new(ErrorKind::DeadlineExceeded, Detail::NoReply)
                    .with_text("the reply came in time and was not taken in time");
                Outcome::Failed { error, payload: None }
            }
            other => other,
        }
    }

    /// Keeps the text of a handler's panic until the shell logs it; the newest 64.
    pub fn note_panic(&self, shard: ShardId, text: String) {
        let mut panics = self.panics.lock();
        if panics.len() < 64 {
            panics.push((shard, text));
        }
    }

    /// The error of an operation whose time was up while it waited.
    pub fn timed_out_waiting(&self, op: Op, now: Instant) -> Outcome {
        self.counts.no_room.add(1);
        let finding = op.target.is_none();
        let detail = if finding { Detail::NotFoundYet } else { Detail::NoRoom };
        let error = self.waiting_error(ErrorKind::DeadlineExceeded, detail, &op, now);
        let payload = Some(op.record.payload).filter(|_| !cfg!(afflux_mutation = "payload_swallowed"));
        Outcome::Failed { error, payload }
    }

    /// An error with everything that is known of a waiting operation.
    pub fn waiting_error(&self, kind: ErrorKind, detail: Detail, op: &Op, now: Instant) -> Error {
        Error::new(kind, detail).with(|n| {
            n.waited = Some(now.since(op.since));
            n.stage = Some(Stage::Finding);
            n.target = Some(op.address.name().clone());
            if let Some(target) = &op.target {
                n.stage = Some(Stage::Room);
                n.target = Some(target.label());
                n.lane = target.lane();
                n.requested = Some(op.record.charge());
                n.used = Some(target.mark.bytes());
                n.limit = Some(target.mark.limit());
                n.paused_for = target.paused_for(now);
            }
        })
    }

    /// Ends a cell whose time is up, whatever it waits for. `target` is that of its tag, if it is
    /// still known. True if this call ended it.
    pub fn expire(&self, id: CellId, tag: u64, target: Option<&Arc<Target>>, now: Instant) -> bool {
        let mut was_waiting = false;
        let mut whose = (tag, target.cloned());
        let ended = self.cells.finish(id, |op| match op {
            Some(op) => {
                was_waiting = true;
                whose.1 = op.target.clone();
                self.leave_room(&op);
                self.timed_out_waiting(op, now)
            }
            None => {
                self.complete(id, &mut whose);
                self.counts.no_reply.add(1);
                let error = Error::new(ErrorKind::DeadlineExceeded, Detail::NoReply).with(|n| {
                    n.target = whose.1.as_ref().map(|t| t.label());
                    n.stage = Some(Stage::Reply);
                    n.lane = Some(Lane::Completion);
                });
                Outcome::Failed { error, payload: None }
            }
        });
        if ended {
            self.after_end(whose.0, whose.1.as_ref(), was_waiting);
        }
        ended
    }

    /// Ends a cell early, with an error of the given kind.
    pub fn fail(&self, id: CellId, tag: u64, target: Option<&Arc<Target>>, kind: ErrorKind, detail: Detail) -> bool {
        let now = self.clock.now();
        let mut was_waiting = false;
        let mut whose = (tag, target.cloned());
        let ended = self.cells.finish(id, |op| match op {
            Some(op) => {
                was_waiting = true;
                whose.1 = op.target.clone();
                self.leave_room(&op);
                let error = self.waiting_error(kind, detail, &op, now);
                Outcome::Failed { error, payload: Some(op.record.payload) }
            }
            None => {
                self.complete(id, &mut whose);
                let error = Error::new(kind, detail).with(|n| {
                    n.target = whose.1.as_ref().map(|t| t.label());
                    n.stage = Some(Stage::Reply);
                });
                Outcome::Failed { error, payload: None }
            }
        });
        if ended {
            self.after_end(whose.0, whose.1.as_ref(), was_waiting);
        }
        ended
    }

    /// An operation that began before its target was known: whoever started it has a tag from before.
    fn complete(&self, id: CellId, whose: &mut (u64, Option<Arc<Target>>)) {
        if whose.1.is_none()
            && let Some(tag) = self.cells.tag(id)
        {
            *whose = (tag, self.target(tag_target(tag)));
        }
    }

    /// What every end of a cell owes: a claimed request gives its slot back; the owner of a target
    /// hears of a waiter that is no more, because it may have been the head.
    fn after_end(&self, tag: u64, target: Option<&Arc<Target>>, was_waiting: bool) {
        let Some(target) = target else {
            if !was_waiting && tag & TAG_REQUEST != 0 {
                // Its target is gone; the slot is the host's all the same, and somebody may wait for it.
                self.slots.leave(0);
                self.relieve();
            }
            return;
        };
        if was_waiting {
            let port = self.port(target.owner);
            self.prune_inbox(port);
            if !cfg!(afflux_mutation = "waiter_end_untold") {
                port.poke(target);
            }
        } else if tag & TAG_REQUEST != 0 {
            target.given_up.add(1);
            self.leave_slot(target);
        }
    }
}

/// This host as a target whose queue is kept by `shard`.
fn local(plan: &HostPlan, shard: ShardId) -> Target {
    let target = Target::new(TargetSpec {
        id: TargetId(LOCAL_IDS + u64::from(shard.0)),
        owner: shard,
        dialled: false,
        dialect: Dialect::Local,
        serves: Serves::Node,
        label: plan.name.clone(),
        send_mark: plan.send_mark,
        waiting_ops: plan.room.per_target_ops,
        waiting_bytes: plan.room.per_target_bytes,
        requests: plan.requests_per_peer,
        reply_bytes: plan.reply.per_peer,
        publications: None,
    });
    target.link.set(1);
    target
}

/// An error record: small, so that it can always be admitted.
pub fn error_record(correlation: u64, envelope: Option<Box<[u8]>>, kind: ErrorKind, code: u16, text: &str) -> Record {
    Record {
        kind: Kind::Error,
        depth: 0,
        channel: kind as u16,
        correlation,
        expiry_ms: 0,
        method: Default::default(),
        payload: ErrorBody::encode(code, text),
        envelope,
    }
}
