//! `Core`: the part of a shard that handlers reach through their context: started places,
//! continuations that wait, the shard's own handle.
//!
//! A record is *started* from its callback's first instruction until its callback, continuations
//! and future are finished and, for a request, it is answered. Each of these is a part of its
//! place; the place is free when the last part has left. Places are bounded by the shard's share of
//! `max_started_handlers`; a job that finds none keeps its permit and waits in the run queue.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::answer::Debt;
use super::handle::Handle;
use super::lanes;
use super::lead::{self, IdleLead};
use super::shared::{Class, HostShared, Outcome};
use crate::base::id::{CellId, ShardId};
use crate::base::time::Instant;
use crate::flow::target::Target;
use crate::sync::cell::CellState;
use crate::sync::task::TaskList;

/// A continuation of one seat. A panic drops continuations whose operations go on: the generation
/// keeps their ends from whoever uses the place next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContinuationKey {
    /// The place.
    pub slot: u32,
    /// How often it was used before.
    pub generation: u32,
}

/// Where a continuation is: the seat of its handler, its number there, and when its operation began.
#[derive(Clone, Copy, Debug)]
pub struct Awaited {
    cell: CellId,
    /// The seat.
    pub seat: u16,
    /// The continuation's number on that seat.
    pub key: ContinuationKey,
    /// The start of the operation.
    pub since: Instant,
}

/// The last request that was made here of a lane on which hardly anything else was owed.
#[derive(Debug)]
struct Asked {
    target: Arc<Target>,
    cell: CellId,
    /// A turn has gone by since.
    put_off: bool,
    /// Somebody else sees to the reply while this shard does not lead.
    expected: bool,
}

impl Asked {
    fn expect(&mut self) {
        if !std::mem::replace(&mut self.expected, true) && !cfg!(afflux_mutation = "shard_unexpected") {
            lead::expect(&self.target);
        }
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct Place {
    parts: u32,
    charge: u64,
    generation: u32,
}

/// See the module.
pub struct Core {
    shared: Arc<HostShared>,
    /// Which shard.
    pub shard: ShardId,
    /// The present, read once a turn.
    pub now: Instant,
    /// The origin of calls made here.
    pub handle: Arc<Handle>,
    /// Futures that were woken.
    pub tasks: Arc<TaskList>,
    places: Vec<Place>,
    free: Vec<u32>,
    /// Claimed and finished since the last publication, in charged bytes.
    owned: u64,
    disowned: u64,
    started: u32,
    started_peak: u32,
    started_max: u32,
    awaited: HashMap<u32, Awaited>,
    asked: Option<Asked>,
    at_once: VecDeque<(u16, ContinuationKey, Outcome)>,
    /// Replies of this run of jobs are left for its end.
    batching: bool,
    /// How many were left, and for whom.
    left: u32,
    left_for: Vec<Arc<Target>>,
    /// How often the completion thread had come by when that was last looked at.
    left_taken: u64,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("shard", &self.shard).field("started", &self.started).finish_non_exhaustive()
    }
}

/// What a shard owns at most without the others' knowing: added to `max_owned_bytes` by each shard
/// that is in the middle of a turn.
const OWNED_UNTOLD: u64 = 64 << 10;

/// Jobs of a run from which on its replies are written together.
const BATCH_FROM: usize = 4;

/// The most replies that are left at a time.
const BATCH_MAX: u32 = 32;

impl Core {
    /// The core of `shard`, with nothing started.
    pub fn new(shared: Arc<HostShared>, shard: ShardId) -> Self {
        Core {
            shard,
            now: Instant(0),
            handle: Arc::new(Handle::new(shared.clone(), Class::Handler)),
            tasks: TaskList::new(shared.port(shard).wake.clone()),
            places: Vec::new(),
            free: Vec::new(),
            owned: 0,
            disowned: 0,
            started: 0,
            started_peak: 0,
            started_max: shared.plan.started_per_shard[shard.index()],
            awaited: HashMap::new(),
            asked: None,
            at_once: VecDeque::new(),
            batching: false,
            left: 0,
            left_for: Vec::new(),
            left_taken: 0,
            shared,
        }
    }

    /// The host.
    pub fn shared(&self) -> &Arc<HostShared> {
        &self.shared
    }

    /// A record was claimed: its bytes are this host's until it is finished. Many of them are told at
    /// once: the turn may end in a handler that does not return.
    #[inline]
    pub fn own(&mut self, charge: u64) {
        self.owned += charge;
        if self.owned >= OWNED_UNTOLD {
            self.publish_owned();
        }
    }

    /// A record is finished.
    #[inline]
    pub fn disown(&mut self, charge: u64) {
        self.disowned += charge;
    }

    /// Bytes that the host owns, with what this shard has not published.
    #[inline]
    pub fn owned(&self) -> u64 {
        (self.shared.owned.get() + self.owned).saturating_sub(self.disowned)
    }

    /// Tells the others, once a turn: what was claimed and finished within it concerns nobody.
    pub fn publish_owned(&mut self) {
        let (more, less) = (std::mem::take(&mut self.owned), std::mem::take(&mut self.disowned));
        match more.cmp(&less) {
            std::cmp::Ordering::Greater => self.shared.owned.add(more - less),
            std::cmp::Ordering::Less => {
                self.shared.owned.take(less - more);
                self.shared.relieve();
            }
            std::cmp::Ordering::Equal => {}
        }
    }

    /// A run of jobs begins, with so many more to come. Replies of a long one leave together, for they cost a
    /// system call each; the completion thread looks after them every millisecond, lest a job that gets
    /// stuck holds those of the jobs before it.
    pub fn begin_run(&mut self, jobs: usize) {
        self.batching = jobs >= BATCH_FROM;
    }

    /// It is over: what was left is written.
    #[inline]
    pub fn end_run(&mut self) {
        self.batching = false;
        if !self.left_for.is_empty() {
            self.write_left();
        }
    }

    /// Pays a debt, at once or with others of its run.
    pub fn reply(&mut self, debt: Debt, payload: Bytes) {
        if !self.batching {
            return debt.reply(payload);
        }
        let Some(peer) = debt.leave_reply(payload) else { return };
        let port = self.shared.port(self.shard);
        // Read after the reply was left: the completion thread counts its coming by before it writes, so either it
        // took this reply along or its count is seen here.
        let taken = port.left_taken.get();
        let known = self.left_for.iter().any(|known| Arc::ptr_eq(known, &peer));
        if !known {
            self.left_for.push(peer.target.clone());
        }
        if !known || taken != self.left_taken {
            self.left_taken = taken;
            port.left.lock().clone_from(&self.left_for);
            // After it was left: whoever lowers the flag looks at what was left once more.
            if !self.shared.tick.is_raised() && self.shared.tick.raise() {
                self.shared.completion.wake.wake();
            }
        }
        self.left += 1;
        if self.left >= BATCH_MAX {
            self.write_left();
        }
    }

    fn write_left(&mut self) {
        self.left = 0;
        self.shared.port(self.shard).left.lock().clear();
        self.shared.port(self.shard).batches.add(1);
        for target in self.left_for.drain(..) {
            lanes::drive_completion(&self.shared, &target);
        }
    }

    /// Whether one more job may start.
    pub fn may_start(&self) -> bool {
        self.started < self.started_max
    }

    /// Handlers started and not finished.
    pub fn started(&self) -> u32 {
        self.started
    }

    /// Takes a place with so many parts: the callback, and the answer that is owed. Its charge counts as owned until
    /// it is free.
    #[inline]
    pub fn start_place(&mut self, charge: u64, parts: u32) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        (place.parts, place.charge) = (parts, charge);
        self.started += 1;
        let port = self.shared.port(self.shard);
        port.started.set(u64::from(self.started));
        if self.started > self.started_peak {
            self.started_peak = self.started;
            port.started_peak.set(u64::from(self.started));
        }
        index
    }

    /// One more part: a continuation, a future.
    pub fn join_place(&mut self, index: u32) {
        self.places[index as usize].parts += 1;
    }

    /// A part is finished.
    #[inline]
    pub fn leave_place(&mut self, index: u32) {
        let place = &mut self.places[index as usize];
        debug_assert!(place.parts > 0, "a part left a free place");
        place.parts -= 1;
        if place.parts == 0 {
            place.generation = place.generation.wrapping_add(1);
            let charge = place.charge;
            self.disown(charge);
            self.free.push(index);
            self.started -= 1;
            self.shared.port(self.shard).started.set(u64::from(self.started));
        }
    }

    /// How often the place was used before.
    pub fn generation(&self, index: u32) -> u32 {
        self.places[index as usize].generation
    }

    /// A continuation waits for the end of `cell`.
    pub fn await_cell(&mut self, cell: CellId, seat: u16, key: ContinuationKey, since: Instant) {
        self.awaited.insert(cell.index, Awaited { cell, seat, key, since });
    }

    /// A continuation waits for the answer to a request. Where the shard may lead the lane of its reply, nobody was
    /// told to expect that yet: it is put off until the shard has nothing else to do, for one turn at most.
    pub fn asked(&mut self, target: Arc<Target>, cell: CellId) {
        // An operation that waits for room is seen to by whoever ends its wait.
        if !lead::is_for_shards(&self.shared) || self.shared.cells.state(cell) != Some(CellState::Claimed) {
            return;
        }
        if !lead::is_nearly_alone(&target) {
            return lead::expect(&target);
        }
        self.expect_reply();
        self.asked = Some(Asked { target, cell, put_off: false, expected: false });
    }

    /// Sees to it that somebody else reads the reply to what was asked here, if it has not come. Before the shard
    /// sleeps.
    pub fn expect_reply(&mut self) {
        if let Some(asked) = &mut self.asked {
            if self.shared.cells.is_live(asked.cell) {
                asked.expect();
            } else {
                self.asked = None;
            }
        }
    }

    /// Another turn follows at once. Of several in a row nobody knows when they end.
    pub fn put_off_lead(&mut self) {
        if let Some(asked) = &mut self.asked
            && std::mem::replace(&mut asked.put_off, true)
        {
            self.expect_reply();
        }
    }

    /// The lead of the lane of that reply, for a shard that has nothing to do. If it does not get it, somebody else
    /// reads.
    pub fn lead(&mut self, now: Instant) -> Option<IdleLead> {
        let asked = self.asked.as_mut()?;
        let lead = IdleLead::begin(&self.shared, &asked.target, asked.cell, now);
        if lead.is_some() {
            // It sees to that when it leaves.
            asked.expected = true;
        } else {
            self.expect_reply();
        }
        lead
    }

    /// Who waits for the end of `cell`.
    pub fn awaited(&mut self, cell: CellId) -> Option<Awaited> {
        if self.awaited.get(&cell.index).is_some_and(|a| a.cell == cell) {
            self.awaited.remove(&cell.index)
        } else {
            None
        }
    }

    /// An operation has ended as it was started; its continuation runs in a turn of its own.
    pub fn end_at_once(&mut self, seat: u16, key: ContinuationKey, outcome: Outcome) {
        self.at_once.push_back((seat, key, outcome));
    }

    /// The next continuation whose operation ended at once.
    pub fn next_at_once(&mut self) -> Option<(u16, ContinuationKey, Outcome)> {
        self.at_once.pop_front()
    }

    /// How many of those there are.
    pub fn at_once_len(&self) -> usize {
        self.at_once.len()
    }
}

#[cfg(test)]
mod tests {

    use std::time::Duration;

    use super::*;
    use crate::engine::rig::{self, Pipe};

    use crate::flow::target::TargetSpec;

    use crate::plan::{HostPlan, Idle};
    use crate::sync::cell::{Notify, Terms};

    fn core(idle: Idle) -> Core {
        Core::new(rig::host(HostPlan { idle, ..HostPlan::defaults("here", 1) }).0, ShardId(0))
    }

    /// A target whose lane was led and left warm: its poller watches nothing.
    fn warm(id: u64) -> (Arc<Target>, Arc<Pipe>) {
        let target = Arc::new(Target::new(TargetSpec::peer(id)));
        let lane = Arc::new(Pipe::default());
        *target.lane.lock() = Some(lane.clone());
        let ticket = target.lead.begin(|| true, |_| ()).expect("nobody leads");
        assert!(target.lead.leave(ticket, true, || false, |_| ()));
        (target, lane)
    }

    /// A request of the shard is accepted there.
    fn ask(core: &mut Core, target: &Arc<Target>) {
        assert!(core.shared.enter_slot(target));
        let place = core.shared.cells.alloc().expect("the first");
        let id = place.id();
        let (since, deadline) = (Instant(1), Instant(1 << 40));
        place.publish_claimed(Terms { deadline, since, tag: 0, notify: Notify::List(0), self_timed: false });
        core.asked(target.clone(), id);
    }

    const SPINS: Idle = Idle::SpinThenPark(Duration::from_micros(50));

    #[test]
    fn a_reply_that_the_shard_does_not_read_is_expected_by_others() {
        let watched = |lane: &Pipe| lane.0.lock().watched;
        let run = |then: fn(&mut Core)| {
            let (mut core, (target, lane)) = (core(SPINS), warm(1));
            ask(&mut core, &target);
            assert!(!watched(&lane), "it is put off");
            then(&mut core);
            watched(&lane)
        };
        assert!(run(Core::expect_reply), "it sleeps");
        assert!(!run(Core::put_off_lead), "one turn follows");
        assert!(
            run(|core| {
                core.put_off_lead();
                core.put_off_lead();
            }),
            "turns follow each other"
        );
        assert!(!run(|core| std::mem::forget(core.lead(Instant(1)).expect("nobody leads"))), "it leads");
        assert!(run(|core| drop(core.lead(Instant(1)))), "it leads no more");
        assert!(run(|core| ask(core, &warm(2).0)), "it asks elsewhere");
    }

    #[test]
    fn who_is_not_alone_does_not_lead() {
        let (mut core, (target, lane)) = (core(SPINS), warm(1));
        (0..3).for_each(|_| ask(&mut core, &target));
        assert!(lane.0.lock().watched && core.lead(Instant(1)).is_none());
    }
}
