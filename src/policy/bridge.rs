//! Admission of a bridge: work that blocks, done by threads that may block, for callers that may not.
//!
//! A *permit* is taken before anything is submitted, and it is held until the result is taken or
//! nobody wants it any more. So one number bounds both sides: what waits for a thread, what runs,
//! and the results that nobody has fetched.
//!
//! ```text
//!   ask ─▶ waits ─▶ permit ─submit─▶ queued ─begin─▶ running ─finish─▶ done ─take─▶ over
//!          │           │               │               │                │
//!          ▼ leave     ▼ give back     ▼ cancel        ▼ cancel         ▼ cancel
//!        nothing     unused         withdrawn       abandoned        discarded
//! ```
//!
//! What cancelling means depends on how far the work has come: what is *withdrawn* never runs, what
//! is *abandoned* runs to its end all the same (blocking work cannot be stopped) and keeps its permit
//! until then, what is *discarded* has run.
//!
//! Invariants:
//!
//! ```text
//!   held = permits + queued + running (abandoned included) + done <= limits.jobs
//!   bytes <= limits.bytes   or   held = 1          waiting <= limits.waiters
//!   granted = given back + withdrawn + taken + discarded + abandoned and finished + held
//! ```
//!
//! Full: whoever may wait does, oldest first, nobody overtakes; everybody else is refused with the
//! numbers. The machine allocates when it is made and never again.

use std::collections::VecDeque;
use std::time::Duration;

use crate::base::time::Instant;
use crate::policy::ledger::{Reservation, WhenFull};

/// The bounds of a bridge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BridgeLimits {
    /// Permits: jobs between their grant and the taking of their result; at least 1 and at most
    /// [`BRIDGE_JOBS_MAX`]. More than there are threads keeps them busy, more than twice as many only queues.
    pub jobs: u32,
    /// Bytes of all these jobs; a single larger one passes when nothing else is held.
    pub bytes: u64,
    /// Callers that may wait for a permit at one time; 0: nobody waits, at most [`BRIDGE_JOBS_MAX`].
    pub waiters: u32,
}

/// The most permits and the most waiters of one bridge: both are allocated at the start.
pub const BRIDGE_JOBS_MAX: u32 = 65_536;

/// What one permit takes in tables, here and in the bridge's threads, without the job and its result.
pub const BRIDGE_PLACE_BYTES: u64 = 256;

impl BridgeLimits {
    /// The bounds as they are kept: `jobs` in 1..=[`BRIDGE_JOBS_MAX`], `waiters` at most that.
    pub fn kept(self) -> BridgeLimits {
        let jobs = self.jobs.clamp(1, BRIDGE_JOBS_MAX);
        BridgeLimits { jobs, waiters: self.waiters.min(BRIDGE_JOBS_MAX), ..self }
    }

    /// The two rows of the ledger: the bytes of the jobs under the name `payload`, the tables under `places`.
    /// `each` is what a job and its result take beside their declared bytes.
    pub fn reservations(self, payload: &'static str, places: &'static str, each: u64) -> [Reservation; 2] {
        let limits = self.kept();
        let count = u64::from(limits.jobs) + u64::from(limits.waiters);
        let by = "the taking of the result";
        let full = if limits.waiters > 0 { WhenFull::Wait } else { WhenFull::Refuse };
        [
            Reservation::payload(payload, 1, limits.bytes, by, full),
            Reservation::overhead(places, count, BRIDGE_PLACE_BYTES.saturating_add(each), by, full),
        ]
    }
}

/// One job, from its permit to its end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct JobId {
    index: u32,
    generation: u32,
}

impl JobId {
    /// Its place: below the limit of jobs, and nobody else's as long as the job is held.
    pub fn place(self) -> usize {
        self.index as usize
    }
}

/// One caller that waits for a permit. Later ones are greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WaiterId(u64);

/// Why there is no permit now, in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BridgeFull {
    /// Jobs held.
    pub jobs: u32,
    /// Their limit.
    pub jobs_max: u32,
    /// Bytes held.
    pub bytes: u64,
    /// Their limit.
    pub bytes_max: u64,
    /// Callers that wait.
    pub waiters: u32,
    /// Their limit.
    pub waiters_max: u32,
}

/// How long one job was where. The sum is its whole life.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct JobTimes {
    /// From asking to the permit.
    pub permit_wait: Duration,
    /// From the submission to the thread that took it.
    pub queue_wait: Duration,
    /// In the thread.
    pub service: Duration,
    /// From the end of the work to the taking of its result.
    pub result_wait: Duration,
}

/// The five times that one number cannot stand for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BridgeTime {
    /// Waiting for a permit: the bridge is too narrow, or the work too slow.
    PermitWait,
    /// Permit in hand, waiting for a thread: more permits than threads can serve.
    QueueWait,
    /// The work itself.
    Service,
    /// Done, and nobody has fetched the result: the asking side is slow.
    ResultWait,
    /// Work that went on after its caller had gone: capacity spent for nobody.
    Abandoned,
}

impl BridgeTime {
    /// Every time, in the order of a job's life.
    pub const ALL: [BridgeTime; 5] = [
        BridgeTime::PermitWait,
        BridgeTime::QueueWait,
        BridgeTime::Service,
        BridgeTime::ResultWait,
        BridgeTime::Abandoned,
    ];

    /// Its name in tables and files.
    pub fn name(self) -> &'static str {
        ["permit_wait", "queue_wait", "service", "result_wait", "abandoned"][self as usize]
    }
}

/// How often something took time, and how much.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Spent {
    /// How often.
    pub count: u64,
    /// Altogether.
    pub total: Duration,
    /// The longest.
    pub longest: Duration,
}

impl Spent {
    fn add(&mut self, time: Duration) {
        self.count += 1;
        self.total = self.total.saturating_add(time);
        self.longest = self.longest.max(time);
    }

    /// The average; zero if it never happened.
    pub fn mean(&self) -> Duration {
        self.total.checked_div(u32::try_from(self.count).unwrap_or(u32::MAX)).unwrap_or_default()
    }
}

/// A bridge in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BridgeSnapshot {
    /// The bounds.
    pub limits: BridgeLimits,
    /// Permits that nothing was submitted for yet.
    pub permits: u32,
    /// Jobs that wait for a thread.
    pub queued: u32,
    /// Jobs in a thread, abandoned ones included.
    pub running: u32,
    /// Jobs in a thread that nobody waits for any more.
    pub abandoned: u32,
    /// Results that nobody has taken yet.
    pub done: u32,
    /// Callers that wait for a permit.
    pub waiting: u32,
    /// Bytes of everything held.
    pub bytes: u64,
    /// The most jobs held at once.
    pub jobs_peak: u32,
    /// The most bytes held at once.
    pub bytes_peak: u64,
    /// For how long the oldest caller has waited for a permit.
    pub oldest_waiting: Duration,
    /// For how long the oldest job has waited for a thread.
    pub oldest_queued: Duration,
    /// Permits granted so far.
    pub granted: u64,
    /// Permits given back unused.
    pub given_back: u64,
    /// Jobs cancelled before they began.
    pub withdrawn: u64,
    /// Results taken.
    pub taken: u64,
    /// Results that nobody wanted any more.
    pub discarded: u64,
    /// Jobs that ended after they had been abandoned.
    pub abandoned_finished: u64,
    /// Callers refused at once.
    pub refused: u64,
    /// Callers that stopped waiting without a permit.
    pub left: u64,
    /// The five times, in the order of [`BridgeTime::ALL`].
    pub times: [Spent; 5],
}

impl BridgeSnapshot {
    /// One of the five times.
    pub fn time(&self, which: BridgeTime) -> Spent {
        self.times[which as usize]
    }

    /// Jobs held, in whatever state.
    pub fn held(&self) -> u32 {
        self.permits + self.queued + self.running + self.done
    }
}

/// Whether somebody still wants the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finished {
    /// It is kept until it is taken.
    Kept,
    /// Nobody does: the permit is free again.
    Unwanted,
}

/// What cancelling a job came to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cancel {
    /// Nothing had been submitted: the permit is free again.
    Unused,
    /// It had not begun and never will; the permit is free again.
    Withdrawn,
    /// It runs on, for nobody; the permit is free when it ends.
    Abandoned,
    /// It was done; its result is thrown away, the permit is free again.
    Discarded,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Permit,
    Queued,
    Running,
    Abandoned,
    Done,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    state: State,
    bytes: u64,
    /// When it came into its state.
    since: Instant,
    times: JobTimes,
}

#[derive(Debug)]
struct Waiter {
    id: WaiterId,
    bytes: u64,
    since: Instant,
    granted: Option<JobId>,
}

/// The permits of one bridge and the jobs that have them, in numbers: jobs and results stay with the owner.
#[derive(Debug)]
pub struct BridgePermits {
    limits: BridgeLimits,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Submitted and not begun.
    queue: VecDeque<u32>,
    /// In the order of their ids. Those that were granted a permit and have not fetched it stand first.
    waiters: VecDeque<Waiter>,
    next_waiter: u64,
    /// Waiters with a grant, which count as permits and no longer as waiters.
    unfetched: u32,
    seen: BridgeSnapshot,
}

impl BridgePermits {
    /// All permits free. Bounds out of their range are cut to it: see [`BridgeLimits::kept`].
    pub fn new(limits: BridgeLimits) -> Self {
        let limits = limits.kept();
        let slot =
            || Slot { generation: 0, state: State::Free, bytes: 0, since: Instant(0), times: JobTimes::default() };
        BridgePermits {
            limits,
            slots: (0..limits.jobs).map(|_| slot()).collect(),
            free: (0..limits.jobs).rev().collect(),
            queue: VecDeque::with_capacity(limits.jobs as usize),
            waiters: VecDeque::with_capacity(limits.waiters as usize + limits.jobs as usize),
            next_waiter: 0,
            unfetched: 0,
            seen: BridgeSnapshot {
                limits,
                permits: 0,
                queued: 0,
                running: 0,
                abandoned: 0,
                done: 0,
                waiting: 0,
                bytes: 0,
                jobs_peak: 0,
                bytes_peak: 0,
                oldest_waiting: Duration::ZERO,
                oldest_queued: Duration::ZERO,
                granted: 0,
                given_back: 0,
                withdrawn: 0,
                taken: 0,
                discarded: 0,
                abandoned_finished: 0,
                refused: 0,
                left: 0,
                times: [Spent::default(); 5],
            },
        }
    }

    /// A permit for a job of `bytes`, at once. Refused while others wait: nobody overtakes.
    pub fn try_permit(&mut self, bytes: u64, now: Instant) -> Result<JobId, BridgeFull> {
        if self.waiting() > 0 || !self.fits(bytes) {
            return Err(self.refuse());
        }
        Ok(self.grant(bytes, now, now))
    }

    /// A permit when there is one: a place in the line, which ends with [`BridgePermits::fetch`] (at once
    /// if the permit was free) or [`BridgePermits::leave`]. Refused if the line is full.
    pub fn wait(&mut self, bytes: u64, now: Instant) -> Result<WaiterId, BridgeFull> {
        let free = self.waiting() == 0 && self.fits(bytes);
        if !free && self.waiting() >= self.limits.waiters {
            return Err(self.refuse());
        }
        let id = WaiterId(self.next_waiter);
        self.next_waiter += 1;
        self.waiters.push_back(Waiter { id, bytes, since: now, granted: None });
        self.admit(now);
        Ok(id)
    }

    /// The permit of a waiter, once it has been granted; the waiter is gone then.
    pub fn fetch(&mut self, waiter: WaiterId) -> Option<JobId> {
        let at = self.position(waiter)?;
        let job = self.waiters[at].granted?;
        self.waiters.remove(at);
        self.unfetched -= 1;
        Some(job)
    }

    /// A waiter gives up. If its permit had come meanwhile, this is it: to be used or given back.
    pub fn leave(&mut self, waiter: WaiterId, now: Instant) -> Option<JobId> {
        let at = self.position(waiter)?;
        let gone = self.waiters.remove(at)?;
        if gone.granted.is_some() {
            self.unfetched -= 1;
            return gone.granted;
        }
        self.seen.left += 1;
        self.seen.times[BridgeTime::PermitWait as usize].add(now.since(gone.since));
        // The next one may be smaller.
        self.admit(now);
        None
    }

    /// The permit's job is in the queue. False: no such permit.
    pub fn submit(&mut self, job: JobId, now: Instant) -> bool {
        if self.state(job) != Some(State::Permit) {
            return false;
        }
        self.enter(job.index, State::Queued, now);
        self.queue.push_back(job.index);
        true
    }

    /// A thread takes the oldest job.
    pub fn begin(&mut self, now: Instant) -> Option<JobId> {
        let index = self.queue.pop_front()?;
        let waited = self.enter(index, State::Running, now);
        self.slots[index as usize].times.queue_wait = waited;
        self.seen.times[BridgeTime::QueueWait as usize].add(waited);
        Some(JobId { index, generation: self.slots[index as usize].generation })
    }

    /// A thread has ended its work on a job.
    pub fn finish(&mut self, job: JobId, now: Instant) -> Finished {
        match self.state(job) {
            Some(State::Running) => {
                let service = self.enter(job.index, State::Done, now);
                self.slots[job.place()].times.service = service;
                self.seen.times[BridgeTime::Service as usize].add(service);
                Finished::Kept
            }
            Some(State::Abandoned) => {
                let wasted = self.release(job.index, now);
                self.seen.abandoned_finished += 1;
                self.seen.times[BridgeTime::Abandoned as usize].add(wasted);
                Finished::Unwanted
            }
            _ => Finished::Unwanted,
        }
    }

    /// The result of a job is taken, and its permit free again; `None` while it is not done.
    pub fn take(&mut self, job: JobId, now: Instant) -> Option<JobTimes> {
        if self.state(job) != Some(State::Done) {
            return None;
        }
        let mut times = self.slots[job.place()].times;
        times.result_wait = self.release(job.index, now);
        self.seen.taken += 1;
        self.seen.times[BridgeTime::ResultWait as usize].add(times.result_wait);
        Some(times)
    }

    /// Nobody wants the result any more. `None`: the job is over already.
    pub fn cancel(&mut self, job: JobId, now: Instant) -> Option<Cancel> {
        match self.state(job)? {
            State::Permit => {
                self.release(job.index, now);
                self.seen.given_back += 1;
                Some(Cancel::Unused)
            }
            State::Queued => {
                self.queue.retain(|other| *other != job.index);
                self.release(job.index, now);
                self.seen.withdrawn += 1;
                Some(Cancel::Withdrawn)
            }
            State::Running => {
                self.enter(job.index, State::Abandoned, now);
                Some(Cancel::Abandoned)
            }
            State::Done => {
                self.release(job.index, now);
                self.seen.discarded += 1;
                Some(Cancel::Discarded)
            }
            State::Free | State::Abandoned => None,
        }
    }

    /// The waiters that have a permit to fetch, oldest first: to be woken.
    pub fn granted(&self) -> impl Iterator<Item = WaiterId> + '_ {
        self.waiters.iter().take(self.unfetched as usize).map(|waiter| waiter.id)
    }

    /// Everything in numbers.
    pub fn snapshot(&self, now: Instant) -> BridgeSnapshot {
        let oldest_waiting = self.waiters.iter().find(|w| w.granted.is_none());
        let oldest_queued = self.queue.front().map(|index| self.slots[*index as usize].since);
        BridgeSnapshot {
            waiting: self.waiting(),
            oldest_waiting: oldest_waiting.map_or(Duration::ZERO, |w| now.since(w.since)),
            oldest_queued: oldest_queued.map_or(Duration::ZERO, |since| now.since(since)),
            ..self.seen
        }
    }

    fn waiting(&self) -> u32 {
        self.waiters.len() as u32 - self.unfetched
    }

    fn position(&self, waiter: WaiterId) -> Option<usize> {
        self.waiters.binary_search_by_key(&waiter, |w| w.id).ok()
    }

    fn state(&self, job: JobId) -> Option<State> {
        let slot = self.slots.get(job.place())?;
        (slot.generation == job.generation && slot.state != State::Free).then_some(slot.state)
    }

    fn fits(&self, bytes: u64) -> bool {
        let held = self.seen.held();
        held == 0 || (held < self.limits.jobs && self.seen.bytes.saturating_add(bytes) <= self.limits.bytes)
    }

    fn refuse(&mut self) -> BridgeFull {
        self.seen.refused += 1;
        BridgeFull {
            jobs: self.seen.held(),
            jobs_max: self.limits.jobs,
            bytes: self.seen.bytes,
            bytes_max: self.limits.bytes,
            waiters: self.waiting(),
            waiters_max: self.limits.waiters,
        }
    }

    /// Grants permits to waiters as long as the oldest one's job fits.
    fn admit(&mut self, now: Instant) {
        while let Some(waiter) = self.waiters.get(self.unfetched as usize) {
            if !self.fits(waiter.bytes) {
                return;
            }
            let (bytes, since) = (waiter.bytes, waiter.since);
            let job = self.grant(bytes, since, now);
            self.waiters[self.unfetched as usize].granted = Some(job);
            self.unfetched += 1;
        }
    }

    fn grant(&mut self, bytes: u64, since: Instant, now: Instant) -> JobId {
        let index = self.free.pop().expect("held < jobs, so a slot is free");
        let waited = now.since(since);
        let slot = &mut self.slots[index as usize];
        slot.bytes = bytes;
        slot.times = JobTimes { permit_wait: waited, ..JobTimes::default() };
        let job = JobId { index, generation: slot.generation };
        self.enter(index, State::Permit, now);
        self.seen.times[BridgeTime::PermitWait as usize].add(waited);
        self.seen.granted += 1;
        self.seen.bytes = self.seen.bytes.saturating_add(bytes);
        self.seen.jobs_peak = self.seen.jobs_peak.max(self.seen.held());
        self.seen.bytes_peak = self.seen.bytes_peak.max(self.seen.bytes);
        job
    }

    /// Frees a slot, and grants to whoever waits; how long it was in its last state.
    fn release(&mut self, index: u32, now: Instant) -> Duration {
        let lasted = self.enter(index, State::Free, now);
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        // Saturating, because the sum is: nonsense sizes must not become a panic.
        let bytes = std::mem::take(&mut slot.bytes);
        self.seen.bytes = self.seen.bytes.saturating_sub(if cfg!(afflux_mutation = "cost_kept") { 0 } else { bytes });
        self.free.push(index);
        self.admit(now);
        lasted
    }

    /// Moves a slot to another state; how long it was in the one before.
    fn enter(&mut self, index: u32, state: State, now: Instant) -> Duration {
        let slot = &mut self.slots[index as usize];
        let before = std::mem::replace(&mut slot.state, state);
        let lasted = now.since(std::mem::replace(&mut slot.since, now));
        self.count(before, u32::wrapping_sub);
        self.count(state, u32::wrapping_add);
        lasted
    }

    fn count(&mut self, state: State, change: fn(u32, u32) -> u32) {
        let seen = &mut self.seen;
        match state {
            State::Free => {}
            State::Permit => seen.permits = change(seen.permits, 1),
            State::Queued => seen.queued = change(seen.queued, 1),
            State::Running => seen.running = change(seen.running, 1),
            State::Abandoned => {
                seen.running = change(seen.running, 1);
                seen.abandoned = change(seen.abandoned, 1);
            }
            State::Done => seen.done = change(seen.done, 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(jobs: u32, waiters: u32) -> BridgePermits {
        BridgePermits::new(BridgeLimits { jobs, bytes: 100, waiters })
    }

    fn ns(n: u64) -> Duration {
        Duration::from_nanos(n)
    }

    #[test]
    fn the_five_times_are_kept_apart() {
        let mut p = permits(1, 1);
        let a = p.try_permit(1, Instant(0)).unwrap();
        assert!(p.submit(a, Instant(5)));
        let waiter = p.wait(1, Instant(6)).unwrap();
        assert_eq!(p.begin(Instant(17)), Some(a));
        assert_eq!(p.finish(a, Instant(40)), Finished::Kept);
        let (queue_wait, service, result_wait) = (ns(12), ns(23), ns(7));
        let times = JobTimes { permit_wait: ns(0), queue_wait, service, result_wait };
        assert_eq!(p.take(a, Instant(47)), Some(times));
        assert_eq!(p.take(a, Instant(48)), None, "once");

        let b = p.fetch(waiter).unwrap();
        assert!(p.submit(b, Instant(50)));
        assert_eq!(p.begin(Instant(50)), Some(b));
        assert_eq!(p.cancel(b, Instant(60)), Some(Cancel::Abandoned));
        assert_eq!(p.cancel(b, Instant(61)), None, "twice");
        assert_eq!((p.snapshot(Instant(61)).running, p.snapshot(Instant(61)).abandoned), (1, 1));
        assert_eq!(p.finish(b, Instant(90)), Finished::Unwanted);
        let seen = p.snapshot(Instant(90));
        let totals = seen.times.map(|spent| spent.total);
        assert_eq!(totals, [ns(41), ns(12), ns(23), ns(7), ns(30)]);
        assert_eq!(seen.times.map(|spent| spent.count), [2, 2, 1, 1, 1]);
        assert_eq!((seen.held(), seen.bytes, seen.jobs_peak, seen.abandoned_finished), (0, 0, 1, 1));
    }

    #[test]
    fn abandoned_work_keeps_its_permit_and_what_has_not_begun_never_runs() {
        let mut p = permits(2, 0);
        let a = p.try_permit(1, Instant(0)).unwrap();
        let b = p.try_permit(1, Instant(0)).unwrap();
        p.submit(a, Instant(0));
        p.submit(b, Instant(0));
        assert_eq!(p.begin(Instant(1)), Some(a));
        p.cancel(a, Instant(2));
        assert!(p.try_permit(1, Instant(3)).is_err(), "the thread is still at it");
        assert_eq!(p.cancel(b, Instant(3)), Some(Cancel::Withdrawn));
        assert_eq!(p.begin(Instant(4)), None);
        let c = p.try_permit(1, Instant(5)).unwrap();
        assert_ne!(c, b, "another life of the same place");
        assert!(!p.submit(b, Instant(5)) && p.cancel(b, Instant(5)).is_none());
        assert_eq!(p.cancel(c, Instant(6)), Some(Cancel::Unused));
        assert_eq!(p.snapshot(Instant(6)).given_back, 1);
    }

    #[test]
    fn whoever_waits_is_served_in_order_and_nobody_overtakes() {
        let mut p = permits(4, 2);
        let big = p.try_permit(1000, Instant(0)).unwrap();
        let first = p.wait(90, Instant(1)).unwrap();
        let second = p.wait(5, Instant(2)).unwrap();
        let full = p.wait(5, Instant(3)).unwrap_err();
        assert_eq!((full.waiters, full.waiters_max, full.jobs, full.bytes), (2, 2, 1, 1000));
        assert_eq!(p.fetch(first), None);
        p.cancel(big, Instant(10));
        assert_eq!(p.granted().collect::<Vec<_>>(), [first, second]);
        assert!(p.fetch(second).is_some() && p.fetch(first).is_some());
        let third = p.wait(6, Instant(11)).unwrap();
        assert!(p.try_permit(1, Instant(12)).is_err(), "it would fit, but somebody was here before");
        assert_eq!(p.snapshot(Instant(20)).oldest_waiting, ns(9));
        assert_eq!(p.leave(third, Instant(20)), None);
        assert!(p.try_permit(1, Instant(21)).is_ok());
    }

    #[test]
    fn a_grant_that_comes_too_late_is_not_lost() {
        let mut p = permits(1, 2);
        let a = p.try_permit(1, Instant(0)).unwrap();
        let late = p.wait(1, Instant(0)).unwrap();
        p.cancel(a, Instant(1));
        let job = p.leave(late, Instant(2)).expect("it had been granted");
        assert!(p.submit(job, Instant(3)));
        assert_eq!(p.snapshot(Instant(3)).left, 0);
    }

    #[test]
    fn bounds_are_kept_in_their_range_and_are_rows() {
        let limits = BridgeLimits { jobs: 0, bytes: 10, waiters: u32::MAX };
        assert_eq!(limits.kept(), BridgeLimits { jobs: 1, bytes: 10, waiters: BRIDGE_JOBS_MAX });
        let [payload, places] = BridgeLimits { jobs: 4, bytes: 1000, waiters: 2 }.reservations("jobs", "places", 44);
        assert_eq!((payload.maximum(), places.maximum()), (Some(1000), Some(6 * 300)));
        assert_eq!(payload.when_full, WhenFull::Wait);
        let strict = BridgeLimits { waiters: 0, ..limits }.reservations("jobs", "places", 0);
        assert_eq!(strict[0].when_full, WhenFull::Refuse);
    }
}
