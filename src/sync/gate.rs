//! The host's job limit: a permit is taken before a record is claimed from its origin's queue and
//! returned just before the first instruction of the callback.
//!
//! ```text
//!  acquire --> in hand --> ... --> release --+-- nobody waits: the count goes down
//!     | no                                   '-- the oldest that may have it: the count stays, the
//!     v                                          permit passes to its shard as a grant
//!   wait ----> ticket --- oldest eligible ----> grant --take_grants, redeem--> in hand
//!                 '------ cancel, stop -------> gone, and takes nothing
//! ```
//!
//! Invariants
//! * `sum of holdings = in use <= limit`. What a shard holds are its permits in hand and its grants.
//! * Nobody overtakes. A ticket is *eligible* if its shard may have another permit; while one is,
//!   `in use = limit`: a permit that comes back passes over in one swap and never looks free. So the
//!   one condition `in use < limit` keeps a newcomer from overtaking.
//! * Shares, with `r = max(1, limit / (4 x shards))`: below `r` a shard may have any free permit. At
//!   `r` or more it gets another only if what is missing to `r` in every other shard stays free. A
//!   ticket that may not be granted for this reason keeps its age; others below their share go on
//!   beside it. With `limit >= shards` any number of stuck shards leaves the others their share.
//! * A crossing of the pause or resume threshold is part of the swap that crosses. Crossings happen
//!   under the lock, so each is counted and their order is their order.
//!
//! Taking and returning is one swap of the word and one addition to the shard's own count, unless
//! there are tickets or a threshold is crossed. Holdings are counted so that nobody is ever given
//! too much by a value read in between: a return lowers its shard's count *before* the swap, a
//! taking raises it *after*; whoever works out what others miss sees at most what they hold, and his
//! swap fails if a permit went back while he looked. A grant raises the count before its swap, so
//! that its shard sees at least what it holds; nobody adds up the others then, because of the ticket.
//!
//! `acquire`, `wait`, `release` and `take_grants` for a shard are that shard's own calls: the only
//! order that the counts rely on is the one of its thread.

mod shard_set;
mod tally;
#[cfg(test)]
mod tests;
mod tickets;
mod word;

pub use shard_set::{SHARDS_MAX, ShardSet};
pub use tickets::{Cancelled, Standing, Ticket};

use crate::base::id::ShardId;
use crate::base::time::Instant;
use crate::sync::primitive::{AtomicU32, AtomicU64, Mutex, Ordering};
use crossbeam_utils::CachePadded;
use std::time::Duration;
use tally::Tally;
use tickets::Tickets;
use word::{PAUSED, STOPPED, TICKETS, Word};

impl Seat {
    #[inline]
    fn held(&self, order: Ordering) -> u32 {
        self.own.load(order).wrapping_add(self.given.load(order))
    }

    /// The shard's own thread took permits.
    #[inline]
    fn took(&self, permits: u32) {
        let own = self.own.load(Ordering::Relaxed);
        // Release: pairs with the Acquire in `missing`.
        self.own.store(own.wrapping_add(permits), Ordering::Release);
    }

    /// The shard's own thread returns permits.
    #[inline]
    fn returned(&self, permits: u32) {
        // Relaxed: its own counts, and grants that it knows of because it took them.
        let (own, given) = (self.own.load(Ordering::Relaxed), self.given.load(Ordering::Relaxed));
        let held = own.wrapping_add(given);
        assert!(held >= permits, "released {permits} permits of {held}");
        self.own.store(own.wrapping_sub(permits), Ordering::Relaxed);
    }
}

/// The resolved limits of a gate.
#[derive(Clone, Copy, Debug)]
pub struct GateConfig {
    /// Permits, 1..=2,147,483,647.
    pub limit: u32,
    /// Shards, 1..=[`SHARDS_MAX`].
    pub shards: u16,
    /// Paused from this many permits in use: `ceil(limit * percent / 100)`.
    pub pause_at: u32,
    /// Running again at this many or fewer: `floor(limit * percent / 100)`, below `pause_at`.
    pub resume_at: u32,
}

/// What the permits in use say about new work: peers are asked to hold back, or not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Pressure {
    /// Send on.
    Running,
    /// Hold back.
    Paused,
}

/// The answer to an origin that has to wait.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "an acquired permit must be released"]
pub enum Waited {
    /// No wait: one permit is the shard's.
    Acquired,
    /// A place in the line. When its turn comes, the shard is among those to be woken and finds the
    /// permit in [`PermitGate::take_grants`].
    Ticket(Ticket),
    /// No permit will be given any more.
    Stopped,
}

/// What a release brought about.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[must_use = "the shards in `wake` have grants and may be asleep"]
pub struct Outcome {
    /// Shards that were granted permits; the caller wakes them.
    pub wake: ShardSet,
    /// The state that this release crossed into.
    pub crossed: Option<Pressure>,
}

/// A look at the gate: all numbers of one moment, except `in_use` and the holdings, which move while
/// they are read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GateSnapshot {
    /// Permits there are.
    pub limit: u32,
    /// Permits out: in hand or granted.
    pub in_use: u32,
    /// The most that were out at once in this epoch.
    pub peak: u32,
    /// Permits out, by shard.
    pub held_by_shard: Vec<u32>,
    /// Tickets that wait now.
    pub waiters: u32,
    /// Waits that began in this epoch.
    pub waits: u64,
    /// How long waits took that began and ended with a permit in this epoch.
    pub wait_duration: Duration,
    /// The state of pressure.
    pub pressure: Pressure,
    /// How often the state has changed since the start; a reset leaves it alone.
    pub epoch: u64,
    /// Changes to paused in this epoch.
    pub pauses: u64,
    /// Changes to running in this epoch.
    pub resumes: u64,
    /// Since when the gate is paused, if it is; a reset leaves it alone.
    pub paused_since: Option<Instant>,
    /// Time paused in this epoch, the present pause included.
    pub paused_total: Duration,
}

/// What needs the lock.
#[derive(Debug)]
struct Desk {
    tickets: Tickets,
    tally: Tally,
}

/// The account of one shard. What it holds, in hand or granted, is the sum of `own` and `given`: each is read
/// by itself, and only in the directions that the module's text allows.
#[derive(Debug)]
struct Seat {
    /// What the shard took less what it returned; only its own thread writes it, so it needs no
    /// read-modify-write. Below zero, as a wrapped number, while grants are among what it returned.
    own: AtomicU32,
    /// Grants that the shard was ever given, wrapped; written under the lock.
    given: AtomicU32,
    /// The grants that the shard has not heard of.
    grants: AtomicU32,
}

/// The permits of a host, shared by its shards. See the module's text for the rules.
#[derive(Debug)]
pub struct PermitGate {
    config: GateConfig,
    /// Every shard's share, and the sum of all shares but one.
    share: u32,
    shares_of_others: u32,
    hot: CachePadded<Hot>,
    seats: Box<[CachePadded<Seat>]>,
    /// `epoch << 1 | paused`. Stored under the lock.
    pressure: CachePadded<AtomicU64>,
    desk: Mutex<Desk>,
}

#[derive(Debug)]
struct Hot {
    word: AtomicU64,
    peak: AtomicU32,
}

impl PermitGate {
    /// A gate with all permits in place. The limits were checked when the options were resolved; a
    /// value that makes no sense is a bug and panics.
    pub fn new(config: GateConfig) -> Self {
        let GateConfig { limit, shards, pause_at, resume_at } = config;
        assert!((1..=i32::MAX as u32).contains(&limit) && (1..=SHARDS_MAX).contains(&shards));
        assert!(resume_at < pause_at && pause_at <= limit);
        let share = (limit / (4 * u32::from(shards))).max(1);
        let seat =
            || CachePadded::new(Seat { own: AtomicU32::new(0), given: AtomicU32::new(0), grants: AtomicU32::new(0) });
        PermitGate {
            config,
            share,
            shares_of_others: share * u32::from(shards - 1),
            hot: CachePadded::new(Hot { word: AtomicU64::new(0), peak: AtomicU32::new(0) }),
            seats: (0..shards).map(|_| seat()).collect(),
            pressure: CachePadded::new(AtomicU64::new(0)),
            desk: Mutex::new(Desk { tickets: Tickets::new(shards), tally: Tally::default() }),
        }
    }

    /// How many permits a shard may have whatever the others hold.
    pub fn share(&self) -> u32 {
        self.share
    }

    /// Makes room for the tickets of `origins` origins, all in all. Called when one is attached, so
    /// that waiting never allocates.
    pub fn reserve(&self, origins: usize) {
        self.desk.lock().tickets.reserve(origins);
    }

    /// Up to `want` permits for `shard`, at once: as many as are free and its share allows. Permits
    /// that are not used go back within the turn.
    #[must_use = "what was acquired must be released"]
    pub fn acquire(&self, shard: ShardId, want: u32, now: Instant) -> u32 {
        self.acquire_at(None, shard, want, now).unwrap_or_else(|| self.acquire_locked(shard, want, now))
    }

    #[cold]
    fn acquire_locked(&self, shard: ShardId, want: u32, now: Instant) -> u32 {
        let acquired = self.acquire_at(Some(&mut self.desk.lock()), shard, want, now);
        acquired.expect("whoever has the desk may cross")
    }

    /// `None`: a threshold would be crossed, and for that the desk is needed.
    #[inline(always)]
    fn acquire_at(&self, mut desk: Option<&mut Desk>, shard: ShardId, want: u32, now: Instant) -> Option<u32> {
        let mut word = self.word();
        loop {
            let permits = self.allowed(word, shard, want);
            if permits == 0 {
                return Some(0);
            }
            let new = word.with_in_use(word.in_use() + permits);
            let crossed = self.crossing(new);
            if crossed.is_some() && desk.is_none() {
                return None;
            }
            match self.swap(word, PermitGate::crossed(new, crossed)) {
                Ok(()) => {
                    // Only after the swap; see the module's text.
                    self.seats[shard.index()].took(permits);
                    self.raise_peak(new);
                    if let (Some(desk), Some(crossed)) = (&mut desk, crossed) {
                        self.note(&mut desk.tally, crossed, now);
                    }
                    return Some(permits);
                }
                Err(now) => word = now,
            }
        }
    }

    /// How much of `want` the rules allow, as of `word`.
    fn allowed(&self, word: Word, shard: ShardId, want: u32) -> u32 {
        if word.has(STOPPED) && !cfg!(afflux_mutation = "gate_grants_when_stopped") {
            return 0;
        }
        let free = self.config.limit - word.in_use();
        // Relaxed: the shard's own count; grants to it were published before the word that we have.
        let held = self.seats[shard.index()].held(Ordering::Relaxed);
        let own = self.share.saturating_sub(held).min(free);
        if want <= own || word.has(TICKETS) {
            // With tickets, beyond the share stand others who were here before.
            return want.min(own);
        }
        let plenty = free.saturating_sub(self.shares_of_others);
        if want <= plenty {
            return want;
        }
        want.min(own.max(free.saturating_sub(self.missing(shard))))
    }

    /// What the shards other than `shard` lack to their shares.
    fn missing(&self, shard: ShardId) -> u32 {
        let others = self.seats.iter().enumerate().filter(|(i, _)| *i != shard.index());
        // Acquire: pairs with the Release of a taking: if we see it, our swap fails or knows of it.
        others.map(|(_, seat)| self.share.saturating_sub(seat.held(Ordering::Acquire))).sum()
    }

    /// For an origin with input when [`PermitGate::acquire`] gave nothing. Looks once more under the
    /// lock; then the origin stands in the line, with the age `since` (now, or earlier if it had input
    /// but was not ready to be served). One ticket per origin.
    pub fn wait(&self, shard: ShardId, since: Instant, now: Instant) -> Waited {
        let mut desk = self.desk.lock();
        loop {
            let word = self.word();
            if word.has(STOPPED) {
                return Waited::Stopped;
            }
            if cfg!(afflux_mutation = "gate_lost_release") {
                self.hot.word.fetch_or(TICKETS, Ordering::Relaxed);
                break;
            }
            if self.allowed(word, shard, 1) == 1 {
                let new = word.with_in_use(word.in_use() + 1);
                let crossed = self.crossing(new);
                if self.swap(word, PermitGate::crossed(new, crossed)).is_ok() {
                    // As in `acquire`.
                    self.seats[shard.index()].took(1);
                    self.raise_peak(new);
                    if let Some(crossed) = crossed {
                        self.note(&mut desk.tally, crossed, now);
                    }
                    return Waited::Acquired;
                }
            } else if word.has(TICKETS) || self.swap(word, word.with(TICKETS, true)).is_ok() {
                // From here on every return comes for the lock, and finds the ticket.
                break;
            }
        }
        let Desk { tickets, tally } = &mut *desk;
        Waited::Ticket(tickets.insert(shard, since, tally.wait_begins(now)))
    }

    /// Takes an origin out of the line, at once.
    pub fn cancel(&self, ticket: Ticket) -> Cancelled {
        let mut desk = self.desk.lock();
        let cancelled = desk.tickets.cancel(ticket);
        self.after_leaving(&desk.tickets);
        cancelled
    }

    /// The shard spends one of its grants on the origin with this ticket, granted or still waiting:
    /// it may serve its origins in any order. False: the gate was stopped and the ticket is void; the
    /// grant remains.
    pub fn redeem(&self, ticket: Ticket) -> bool {
        let mut desk = self.desk.lock();
        let redeemed = desk.tickets.redeem(ticket);
        self.after_leaving(&desk.tickets);
        redeemed
    }

    fn after_leaving(&self, tickets: &Tickets) {
        if tickets.count() == 0 {
            // Relaxed: only a hint to come for the lock, whose holder we are.
            self.hot.word.fetch_and(!TICKETS, Ordering::Relaxed);
        }
    }

    /// Grants that `shard` has not taken yet: permits in hand from now on, each to be spent on one of
    /// its tickets ([`PermitGate::redeem`]) or released.
    #[must_use = "what was granted must be released"]
    pub fn take_grants(&self, shard: ShardId) -> u32 {
        let grants = &self.seats[shard.index()].grants;
        // The look before is for the turn that finds nothing. Acquire: pairs with the Release of the
        // one who granted, after his change of `given`.
        if grants.load(Ordering::Relaxed) == 0 { 0 } else { grants.swap(0, Ordering::Acquire) }
    }

    /// Whether [`PermitGate::take_grants`] would give any: for the last look before a sleep.
    pub fn has_grants(&self, shard: ShardId) -> bool {
        // Relaxed: the fences of sleep and wake order it after the granter's wake.
        self.seats[shard.index()].grants.load(Ordering::Relaxed) > 0
    }

    /// Permits out, by shard; they move while they are read.
    pub fn held_by_shard(&self) -> Vec<u32> {
        self.seats.iter().map(|seat| seat.held(Ordering::Relaxed)).collect()
    }

    /// All tickets that wait or were granted and not redeemed: for checks.
    pub fn standing(&self) -> Vec<Standing> {
        self.desk.lock().tickets.standing().collect()
    }

    /// Returns `permits` of `shard`: immediately before the first instruction of a callback, or when
    /// it turns out that there is nothing to call. Each goes to the oldest eligible ticket, if any.
    pub fn release(&self, shard: ShardId, permits: u32, now: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        self.release_and_tell(shard, permits, now, |told| outcome = told);
        outcome
    }

    /// As [`PermitGate::release`]; what it brought about is told if it is anything, which it seldom is.
    #[inline(always)]
    pub fn release_and_tell(&self, shard: ShardId, permits: u32, now: Instant, tell: impl FnOnce(Outcome)) {
        if permits == 0 {
            return;
        }
        // Only before the swap; see the module's text. The swap's Release publishes it.
        self.seats[shard.index()].returned(permits);
        let mut word = self.word();
        loop {
            let new = word.with_in_use(word.in_use() - permits).changed();
            if word.has(TICKETS) || self.crossing(new).is_some() {
                return tell(self.hand_over(permits, now));
            }
            match self.swap(word, new) {
                Ok(()) => return,
                Err(now) => word = now,
            }
        }
    }

    /// Gives permits that came back to those who wait, and what is left over back to the count. The
    /// count still includes the `returned` ones, so that nobody sees them free meanwhile.
    #[cold]
    fn hand_over(&self, mut returned: u32, now: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        let mut desk = self.desk.lock();
        let Desk { tickets, tally } = &mut *desk;
        loop {
            let word = self.word();
            let in_use = word.in_use() - returned;
            let to = tickets.oldest(|shard| self.may_have(shard, self.config.limit - in_use));
            if to.is_none() && returned == 0 {
                return outcome;
            }
            if cfg!(afflux_mutation = "gate_overtake") && returned > 0 {
                if self.swap(word, word.with_in_use(in_use).changed()).is_ok() {
                    returned = 0;
                }
                continue;
            }
            // One of the returned, or one that was free but not for this shard.
            let (left, in_use) = match to {
                Some(_) if returned > 0 => (returned - 1, word.in_use()),
                Some(_) => (0, word.in_use() + 1),
                None => (0, in_use),
            };
            let more = tickets.count() > u32::from(to.is_some());
            let new = word.with_in_use(in_use).with(TICKETS, more).changed();
            let crossed = self.crossing(new);
            if let Some(to) = to {
                // Before the swap; see the module's text. The swap's Release publishes it.
                self.seats[to.index()].given.fetch_add(1, Ordering::Relaxed);
            }
            if self.swap(word, PermitGate::crossed(new, crossed)).is_err() {
                if let Some(to) = to {
                    self.seats[to.index()].given.fetch_sub(1, Ordering::Relaxed);
                }
                continue;
            }
            returned = left;
            self.raise_peak(new);
            if let Some(crossed) = crossed {
                self.note(tally, crossed, now);
                outcome.crossed = Some(crossed);
            }
            if let Some(to) = to {
                tally.wait_ends(tickets.grant(to), now);
                // Release: pairs with `take_grants`.
                self.seats[to.index()].grants.fetch_add(1, Ordering::Release);
                outcome.wake.insert(to);
            }
        }
    }

    /// May `shard` be granted one of `free` permits?
    fn may_have(&self, shard: ShardId, free: u32) -> bool {
        let held = self.seats[shard.index()].held(Ordering::Acquire);
        if held < self.share { free > 0 } else { free > self.missing(shard) }
    }

    /// The state of pressure and how often it has changed. Whoever finds another count than last time
    /// tells its own peers, and wakes the other shards if its own call may have been the cause.
    pub fn pressure(&self) -> (Pressure, u64) {
        // Acquire: pairs with the Release in `note`.
        let value = self.pressure.load(Ordering::Acquire);
        (if value & 1 == 1 { Pressure::Paused } else { Pressure::Running }, value >> 1)
    }

    /// Ends all waits, without a permit, and gives no more; permits that are out are still returned.
    /// The shards that had tickets, to be woken; nobody the second time.
    pub fn stop(&self) -> ShardSet {
        let mut wake = ShardSet::default();
        let mut desk = self.desk.lock();
        // AcqRel, as every change of the word: see `swap`.
        self.hot.word.fetch_or(STOPPED, Ordering::AcqRel);
        for shard in (0..self.config.shards).map(ShardId) {
            while desk.tickets.dismiss(shard) {
                wake.insert(shard);
            }
        }
        self.after_leaving(&desk.tickets);
        wake
    }

    /// The numbers as they are.
    pub fn snapshot(&self, now: Instant) -> GateSnapshot {
        let desk = self.desk.lock();
        let in_use = self.word().in_use();
        let (pressure, epoch) = self.pressure();
        GateSnapshot {
            limit: self.config.limit,
            in_use,
            // A taking that has swapped but not raised the peak yet counts.
            peak: self.hot.peak.load(Ordering::Relaxed).max(in_use),
            held_by_shard: self.seats.iter().map(|seat| seat.held(Ordering::Relaxed)).collect(),
            waiters: desk.tickets.count(),
            waits: desk.tally.waits,
            wait_duration: desk.tally.wait_duration,
            pressure,
            epoch,
            pauses: desk.tally.pauses,
            resumes: desk.tally.resumes,
            paused_since: desk.tally.paused_since,
            paused_total: desk.tally.paused_total(now),
        }
    }

    /// Begins a measurement epoch: the peak becomes what is in use, counters and durations go to
    /// zero, state and limits stay. A taking at the same moment may be the old epoch's.
    pub fn reset(&self, now: Instant) {
        let mut desk = self.desk.lock();
        desk.tally.reset(now);
        self.hot.peak.store(self.word().in_use(), Ordering::Relaxed);
    }

    fn word(&self) -> Word {
        // Acquire: pairs with the Release of every swap: holdings lowered before it are seen low.
        Word(self.hot.word.load(Ordering::Acquire))
    }

    fn swap(&self, old: Word, new: Word) -> Result<(), Word> {
        // AcqRel, Acquire: as in `word`; each swap hands the next one what it was worked out from.
        let swap = self.hot.word.compare_exchange_weak(old.0, new.0, Ordering::AcqRel, Ordering::Acquire);
        swap.map(|_| ()).map_err(Word)
    }

    /// The state that `new` crosses into, if it does.
    fn crossing(&self, new: Word) -> Option<Pressure> {
        match new.has(PAUSED) {
            false if new.in_use() >= self.config.pause_at => Some(Pressure::Paused),
            true if new.in_use() <= self.config.resume_at => Some(Pressure::Running),
            true if cfg!(afflux_mutation = "no_hysteresis") && new.in_use() < self.config.pause_at => {
                Some(Pressure::Running)
            }
            _ => None,
        }
    }

    fn crossed(new: Word, crossed: Option<Pressure>) -> Word {
        crossed.map_or(new, |pressure| new.with(PAUSED, pressure == Pressure::Paused))
    }

    /// Counts and publishes a crossing. Its swap was made under the lock that `tally` comes from.
    fn note(&self, tally: &mut Tally, crossed: Pressure, now: Instant) {
        match crossed {
            Pressure::Paused => tally.pause(now),
            Pressure::Running => tally.resume(now),
        }
        let epoch = (self.pressure.load(Ordering::Relaxed) >> 1) + 1;
        // Release: pairs with `pressure`.
        self.pressure.store(epoch << 1 | u64::from(crossed == Pressure::Paused), Ordering::Release);
    }

    fn raise_peak(&self, new: Word) {
        // Relaxed: a number for show. It shares the word's line, which is ours at this moment.
        if self.hot.peak.load(Ordering::Relaxed) < new.in_use() {
            self.hot.peak.fetch_max(new.in_use(), Ordering::Relaxed);
        }
    }
}
