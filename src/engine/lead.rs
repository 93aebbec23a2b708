//! A caller that waits for its reply and leads the completion lane meanwhile: the socket wakes it, and it
//! reads for all. It decides nothing but the ends of requests; what else it reads it leaves to the
//! completion thread, which also takes over from a leader that does not move.
//!
//! ```text
//!   sit ─▶ begin ─▶ settle ─▶ spin? ─▶ sleep ─▶ read ─┬─ mine has ended ─▶ leave
//!    │       │                          ▲             │
//!    └───────┴─ somebody else sits or   └─────────────┘
//!               leads: follow
//! ```
//!
//! A [keeper](crate::sync::keeper) has one block to read into, made when it first leads; a lane has one seat, made likewise. A shard that
//! looks for work rather than sleep leads too, without a seat: [`IdleLead`].

use std::cell::Cell;
use std::mem::take;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::reading;
use super::shared::HostShared;
use crate::base::id::CellId;
use crate::base::time::Instant;
use crate::flow::target::{Left, Target};
use crate::flow::transport::Stirred;
use crate::meter::latency::Latency;
use crate::plan::Idle;
use crate::sync::baton::{Asked, Released};
use crate::sync::keeper::is_keeper;
use crate::sync::lead::Ticket;
use crate::sync::parker;

/// Leaders that follow each other as closely leave the lane warm: no system call between them.
const CLOSE: Duration = Duration::from_millis(5);

thread_local! {
    /// That of leaders on this thread, while none leads.
    static KIT: Cell<Kit> = const { Cell::new(Kit { block: Vec::new(), wakes: Vec::new() }) };
}

/// What a leader reads into, and whom it wakes.
#[derive(Default)]
struct Kit {
    block: Vec<u8>,
    wakes: Vec<Waker>,
}

impl Kit {
    fn take(shared: &HostShared) -> Kit {
        let mut kit = KIT.take();
        let size = shared.plan.turn.read_block;
        if kit.block.len() < size {
            kit.block.resize(size, 0);
        }
        kit
    }
}

/// The lead of one lane. Dropped, it leaves.
pub struct Leader {
    shared: Arc<HostShared>,
    target: Arc<Target>,
    ticket: Ticket,
    /// The thread's.
    kit: Kit,
    /// The present, when it last looked.
    now: Instant,
    /// A leader read here a moment ago.
    close: bool,
    /// There may be something unread.
    more: bool,
    /// Something was read that lies in the connection still.
    peeked: bool,
    /// Somebody else had the turn to read at the last look.
    kept_out: bool,
    /// The peer's end was seen.
    ended: bool,
    /// The link is over, or the completion thread is behind: nothing for a leader.
    over: bool,
}

impl std::fmt::Debug for Leader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leader").field("target", &self.target.id).field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

/// With more requests of its peer in flight nobody leads: their replies come in runs, and the completion thread reads
/// a run at once while the caller takes what it has.
const LEAD_MAX: u32 = 8;

/// What is owed on a lane: what has to keep the completion thread's poller armed.
fn owed(target: &Target) -> bool {
    target.in_flight.ops() > 0
}

/// Sees to it that whoever waits for something of this lane gets it, whatever becomes of a leader. Called
/// after its slot was entered.
pub fn expect(target: &Target) {
    target.lead.expect(|on| watch(target, on));
}

/// Tells the lane's poller: that of the present connection, even if the one who tells it began on another. The
/// keeper may have turned it off while he led.
pub fn watch(target: &Target, on: bool) {
    let lane = target.lane.lock().clone();
    if let Some(lane) = lane {
        lane.watch(on);
    }
}

impl Leader {
    /// Takes the lead, if nobody has it and the thread may keep a block. The caller's request is in flight and has not ended.
    pub fn begin(shared: &Arc<HostShared>, target: &Arc<Target>, now: Instant) -> Option<Self> {
        if target.in_flight.ops() > LEAD_MAX || !target.left.is_empty() || !is_keeper() {
            return None;
        }
        let alone = || target.in_flight.ops() <= 1 && target.paused_for(now).is_none();
        let ticket = target.lead.begin(alone, |on| watch(target, on))?;
        let mut leader = Leader {
            shared: shared.clone(),
            target: target.clone(),
            ticket,
            kit: Kit::take(shared),
            now,
            close: now.since(Instant(target.led_read_ns.get())) < CLOSE,
            more: false,
            peeked: true,
            kept_out: false,
            ended: false,
            over: false,
        };
        leader.settle();
        Some(leader)
    }

    /// Whether it goes on leading.
    pub fn leads(&self) -> bool {
        !self.over && self.target.lead.is_led_by(self.ticket)
    }

    fn look(&mut self) {
        self.now = self.shared.clock.now();
    }

    /// Whether it has to read on before it may sleep.
    pub fn has_more(&self) -> bool {
        self.more
    }

    /// Takes out of the connection what was only looked at. Before every sleep.
    pub fn settle(&mut self) {
        if !take(&mut self.peeked) {
            return;
        }
        // Whoever has the turn to read does so first.
        let Some(mut reading) = self.target.reading.try_take() else { return };
        if let Some(reader) = reading.as_mut()
            && reader.has_peeked()
        {
            // A fault is found by the next read.
            let _ = reader.discard(&mut self.kit.block);
        }
        // Whoever asked for the turn relies on the look that he was promised.
        if reading.release() == Released::MoreWork {
            self.look();
            self.read_within(false);
        }
    }

    /// Reads what is there. `ended`: the peer's end was seen.
    pub fn read(&mut self, now: Instant, ended: bool) {
        self.ended |= ended;
        self.now = now;
        let late = self.close && self.target.in_flight.ops() <= 1;
        self.read_within(late);
    }

    /// `late`: see [`Reader::read`](crate::flow::reader::Reader::read).
    fn read_within(&mut self, late: bool) {
        let Leader { shared, target, kit, now, .. } = self;
        target.lead.renew();
        (self.more, self.kept_out) = (false, false);
        loop {
            let Some(mut reading) = target.reading.try_take() else {
                match target.reading.ask() {
                    // The holder looks once more before it lets go; of the end it does not know.
                    Asked::Busy => {
                        (self.more, self.kept_out) = (self.ended, true);
                        return;
                    }
                    Asked::Free => continue,
                }
            };
            if let Some(reader) = reading.as_mut() {
                reader.ended |= self.ended;
                let took = |time| shared.led.lock().record(Latency::Request, time);
                let Kit { block, wakes } = kit;
                let read = reading::read(shared, target, reader, block, (*now, late), wakes, took);
                self.peeked = reader.has_peeked();
                self.more = read.more;
                if read.bytes > 0 {
                    // Of leaders one reads at a time.
                    target.led_read_ns.set(now.0);
                }
                if read.over.is_some() || !read.commands.is_empty() {
                    self.over |= leave_word(shared, target, reader.link, read);
                }
            }
            let released = reading.release();
            // The user's code; nothing is held.
            kit.wakes.drain(..).for_each(Waker::wake);
            if released == Released::Clean {
                return;
            }
        }
    }

    /// Reads until `until`, without sleeping, or until the request has ended. False: in vain.
    fn spin(&mut self, id: CellId, until: Instant) -> bool {
        while self.leads() && self.shared.cells.is_live(id) {
            self.look();
            if self.now >= until {
                return false;
            }
            self.read(self.now, false);
            std::hint::spin_loop();
        }
        true
    }

    fn leave(&mut self) {
        if self.more || owed(&self.target) || !self.close {
            self.settle();
        }
        let target = &self.target;
        let more = self.more || self.over;
        let owed = || more || owed(target) || target.paused_for(self.now).is_some();
        let warm = target.lead.leave(self.ticket, self.close, owed, |on| watch(target, on));
        if warm && !target.warmed.is_raised() && target.warmed.raise() {
            self.shared.completion.warm.leave(target.clone());
            self.shared.completion.wake.wake();
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.leave();
        KIT.set(take(&mut self.kit));
    }
}

/// Whether shards lead: those that park are not there while a reply is on its way.
pub fn is_for_shards(shared: &HostShared) -> bool {
    shared.plan.idle != Idle::Park
}

/// Whether next to nothing is owed on a lane but one request. The slot of the one before may not be given back yet:
/// its reply woke the shard in the middle of the completion thread's read, and if they share a processor that does
/// not go on before the shard gives way. Who would not lead then never would again.
pub fn is_nearly_alone(target: &Target) -> bool {
    target.in_flight.ops() <= 2
}

/// The lead of a shard that has nothing to do and looks for work, among others for the reply to a request of its own.
/// No turn runs while it lasts: it is never held across the user's code, and what it reads ends in the next turn.
/// Dropped, it leaves.
#[derive(Debug)]
pub struct IdleLead {
    leader: Leader,
    cell: CellId,
}

impl IdleLead {
    /// Takes the lead for the sake of a shard's request, if hardly anything else is owed on the lane and it is likely
    /// to pay.
    pub fn begin(shared: &Arc<HostShared>, target: &Arc<Target>, cell: CellId, now: Instant) -> Option<Self> {
        let may = is_nearly_alone(target)
            && shared.cells.is_live(cell)
            && target.lane.lock().is_some()
            && target.spins.is_worth_it()
            && !cfg!(afflux_mutation = "spinning_shard_reads_nothing");
        let leader = may.then(|| Leader::begin(shared, target, now)).flatten()?;
        Some(IdleLead { leader, cell })
    }

    /// Reads what is there, for whomever it is. True: the shard's own has not come, and may still come here.
    pub fn read(&mut self, now: Instant) -> bool {
        self.leader.read(now, false);
        self.leader.leads() && self.waits()
    }

    /// Somebody else was in the middle of a read. He may share the processor: let him finish.
    pub fn is_kept_out(&self) -> bool {
        self.leader.kept_out
    }

    fn waits(&self) -> bool {
        self.leader.shared.cells.is_live(self.cell)
    }
}

impl Drop for IdleLead {
    fn drop(&mut self) {
        self.leader.target.spins.note(!self.waits());
    }
}

/// Leaves what a leader does not deal with. Called within the turn to read, so it is in order. True: the
/// completion thread shall read itself.
#[cold]
fn leave_word(shared: &HostShared, target: &Arc<Target>, link: u64, read: reading::Read) -> bool {
    // It has not come since, or the link is over.
    let over = !target.left.is_empty() || read.over.is_some();
    target.left.leave(Left { link, commands: read.commands, over: read.over });
    shared.completion.left.leave(target.clone());
    shared.completion.wake.wake();
    over
}

/// A thread that waits without leading, for as long as this lives.
#[derive(Debug)]
pub struct Follower<'a>(&'a Target);

/// Says that the caller waits for something of this lane and does not lead it.
pub fn follow(target: &Arc<Target>) -> Follower<'_> {
    target.followers.add(1);
    Follower(target)
}

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        self.0.followers.sub(1);
    }
}

/// Waits for the end of a request as the leader of its lane: until it has ended, or somebody else leads, or
/// its time is up. Its end is told to the thread's waker. The caller waits on in its own way if it has not ended.
pub fn wait(shared: &Arc<HostShared>, target: &Arc<Target>, id: CellId, deadline: Instant) {
    let lane = target.lane.lock().clone();
    let Some(lane) = lane else { return };
    // Threads that take the lead in turn would have the completion thread's poller armed between one and the next,
    // and it woken beside each: one thread that reads for all of them is quicker.
    if target.followers.get() > 0 {
        return expect(target);
    }
    let Some(mut seat) = lane.seat() else { return expect(target) };
    let now = shared.clock.now();
    let Some(mut leader) = Leader::begin(shared, target, now) else { return expect(target) };
    let _sits = parker::sit(&seat.wake);
    match shared.plan.idle {
        Idle::Park => {}
        Idle::Spin => {
            leader.spin(id, deadline);
        }
        Idle::SpinThenPark(time) if target.spins.is_worth_it() => {
            let paid = leader.spin(id, deadline.min(now.after(time)));
            target.spins.note(paid);
        }
        Idle::SpinThenPark(_) => {}
    }
    while leader.leads() && shared.cells.is_live(id) && leader.now < deadline {
        if leader.has_more() {
            leader.look();
            leader.read(leader.now, false);
            continue;
        }
        leader.settle();
        seat.wake.prepare_sleep();
        if !shared.cells.is_live(id) || leader.has_more() || !seat.wake.sleep_or_abort() {
            seat.wake.awake();
            leader.look();
            continue;
        }
        let stirred = seat.sleep.sleep(deadline.since(leader.now));
        seat.wake.awake();
        leader.look();
        match stirred {
            Ok(Stirred::Readable { ended }) => leader.read(leader.now, ended),
            Ok(Stirred::Otherwise) => {}
            Err(_) => break,
        }
    }
}
