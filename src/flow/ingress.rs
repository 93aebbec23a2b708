//! From which of a shard's origins the next record is claimed: where jobs are the limit.
//!
//! Owns, per origin: its state, its age (since when it waits for its turn), its ticket at the
//! permit gate if it has one, and the longest time it was ready and not served. The machine never
//! sees the gate: it says how many permits it wants and for whom a ticket is to be filed, and is
//! told what came of it. The ticket type `K` is only carried.
//!
//! ```text
//!            offered                 no permit left: a ticket is filed
//!   Idle ──────────────▶ Ready ───────────────────────────────────────▶ Ticketed
//!    ▲                   │ ▲  ▲                                          │
//!    │ claimed, empty    │ │  └──── claimed, more left: to the tail ◀────┤ claimed with a grant
//!    └───────────────────┘ │                                             │
//!                 ready_again, with its age      not_ready: ticket back  │
//!                          NotReady(reason) ◀────────────────────────────┘ (also from Ready)
//! ```
//!
//! One turn: [`Ingress::begin`] · [`Ingress::granted`] · [`Ingress::want`] permits acquired and told by
//! [`Ingress::acquired`] · [`Ingress::next`] and [`Ingress::claimed`] until `None` · tickets
//! for [`Ingress::to_file`] · [`Ingress::finish`].
//!
//! Invariants: an origin is in the list of its state or in none, and both lists are ordered by age; an origin
//! has at most one ticket; a ready or ticketed origin has a record; permits are spent one per
//! claim; nothing is acquired while a ticket waits, so nobody in this shard overtakes its own.
//! It cannot be full: its table has one entry per attached origin.

use std::time::Duration;

use crate::base::time::Instant;
use crate::policy::fairness::NoProgress;

/// An origin of this shard: its place in the shard's table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct OriginKey(pub u32);

impl OriginKey {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// In which order a shard's waiting origins are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TurnOrder {
    /// Who waits longest comes next, and after one record goes to the tail. With n origins waiting
    /// none is passed over more than n - 1 times.
    #[default]
    OldestFirst,
    /// In turn, up to `quantum` records at a time while permits are at hand (a granted permit is
    /// one record). At most (n - 1) x quantum records of others lie between two turns of an
    /// origin. Larger quanta keep one origin's data in the cache; they serve no bytes-based
    /// fairness: an origin of large records gets more.
    EqualTurns {
        /// Records; at least 1.
        quantum: u32,
    },
}

/// Why an origin that has records may not be claimed from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// The host's bytes of claimed and unfinished records would go above their limit.
    OwnedBytes,
    /// Its peer takes its replies too slowly: more of its requests would make more of them.
    ReplyMark,
    /// Its target has its share of the permits.
    PermitShare,
}

impl Reason {
    /// Every reason, in the order of [`Ingress::not_ready_by_reason`].
    pub const ALL: [Reason; 3] = [Reason::OwnedBytes, Reason::ReplyMark, Reason::PermitShare];
}

/// How the claim that [`Ingress::next`] chose is to be paid for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spend<K> {
    /// With an acquired permit. The origin had a ticket: cancel it.
    Acquired {
        /// To be unlinked at the gate.
        cancel: Option<K>,
    },
    /// With a grant, which retires this ticket.
    Grant {
        /// To be redeemed at the gate.
        redeem: K,
    },
}

/// From whom to claim now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pick<K> {
    /// The origin.
    pub origin: OriginKey,
    /// The permit.
    pub spend: Spend<K>,
    /// How many records may be claimed of it before anybody else's turn comes; at least 1.
    pub run: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State<K> {
    Absent,
    Idle,
    Ready,
    Ticketed(K),
    NotReady(Reason),
}

#[derive(Debug)]
struct Source<K> {
    state: State<K>,
    /// Complete records in its queue.
    queued: u32,
    /// Records of the present turn.
    turn: u32,
    /// Its place among the waiting: smaller is older.
    age: u64,
    since: Instant,
    previous: u32,
    next: u32,
    progress: NoProgress,
}

/// The origins of one shard.
#[derive(Debug)]
pub struct Ingress<K> {
    order: TurnOrder,
    sources: Vec<Source<K>>,
    ready: List,
    ticketed: List,
    not_ready: [u32; Reason::ALL.len()],
    /// Records of origins in `ready`.
    claimable: u64,
    last_age: u64,
    budget: u32,
    acquired: u32,
    granted: u32,
}

impl<K: Copy> Ingress<K> {
    /// No origins.
    pub fn new(order: TurnOrder) -> Self {
        debug_assert_ne!(order, TurnOrder::EqualTurns { quantum: 0 });
        Ingress {
            order,
            sources: Vec::new(),
            ready: List::default(),
            ticketed: List::default(),
            not_ready: [0; Reason::ALL.len()],
            claimable: 0,
            last_age: 0,
            budget: 0,
            acquired: 0,
            granted: 0,
        }
    }

    /// A new origin, idle. Keys are small numbers: the table has room up to the largest.
    pub fn attach(&mut self, origin: OriginKey) {
        while self.sources.len() <= origin.index() {
            self.sources.push(Source {
                state: State::Absent,
                queued: 0,
                turn: 0,
                age: 0,
                since: Instant(0),
                previous: NIL,
                next: NIL,
                progress: NoProgress::default(),
            });
        }
        let source = &mut self.sources[origin.index()];
        debug_assert!(matches!(source.state, State::Absent), "{origin:?} is attached");
        source.state = State::Idle;
        source.progress = NoProgress::default();
    }

    /// The origin is gone, with whatever was in its queue. Its ticket, if any, is to be cancelled.
    pub fn detach(&mut self, origin: OriginKey) -> Option<K> {
        let ticket = self.leave(origin);
        let source = &mut self.sources[origin.index()];
        source.state = State::Absent;
        source.queued = 0;
        ticket
    }

    /// `records` more complete records are in the origin's queue.
    pub fn offered(&mut self, origin: OriginKey, records: u32, now: Instant) {
        let source = &mut self.sources[origin.index()];
        source.queued += records;
        match source.state {
            State::Idle if records > 0 => self.join_tail(origin, now),
            State::Ready => self.claimable += u64::from(records),
            _ => {}
        }
    }

    /// The origin's oldest record may not be claimed now. It waits for nothing while that lasts;
    /// its age is kept. Its ticket, if any, is to be cancelled. A permit that was picked for it
    /// stays in hand for the next.
    pub fn not_ready(&mut self, origin: OriginKey, reason: Reason, now: Instant) -> Option<K> {
        let ticket = self.leave(origin);
        self.not_ready[reason as usize] += 1;
        let source = &mut self.sources[origin.index()];
        debug_assert!(!matches!(source.state, State::Absent));
        source.state = State::NotReady(reason);
        source.progress.not_ready(now);
        ticket
    }

    /// What [`Ingress::not_ready`] said is over. By age it comes back to where it was; in equal
    /// turns it comes back at the tail.
    pub fn ready_again(&mut self, origin: OriginKey, now: Instant) {
        if !matches!(self.sources[origin.index()].state, State::NotReady(_)) {
            return;
        }
        self.leave(origin);
        let source = &mut self.sources[origin.index()];
        source.state = State::Idle;
        if source.queued == 0 {
            return;
        }
        if source.age == 0 || self.order != TurnOrder::OldestFirst {
            return self.join_tail(origin, now);
        }
        source.progress.ready(now);
        self.enter_ready(origin);
    }

    /// A turn begins: at most `budget` records may be claimed in it.
    pub fn begin(&mut self, budget: u32) {
        debug_assert_eq!(self.acquired, 0, "permits of the last turn were not given back");
        self.budget = budget;
    }

    /// Permits were granted to this shard's tickets. What the budget leaves over of them stays in
    /// hand for the next turn, which must follow at once.
    pub fn granted(&mut self, permits: u32) {
        self.granted += permits;
    }

    /// How many permits are worth acquiring now. 0 while tickets or grants of this shard wait.
    pub fn want(&self) -> u32 {
        if self.ticketed.len > 0 || self.granted > 0 {
            return 0;
        }
        u32::try_from(self.claimable).unwrap_or(u32::MAX).min(self.budget).saturating_sub(self.acquired)
    }

    /// This many permits were acquired.
    pub fn acquired(&mut self, permits: u32) {
        self.acquired += permits;
    }

    /// From whom to claim next: `None` when the budget, the permits or the waiting origins are
    /// used up. Follow it by [`Ingress::claimed`] for that origin, or by [`Ingress::not_ready`] if
    /// its record may not be claimed.
    pub fn next(&self) -> Option<Pick<K>> {
        if self.budget == 0 {
            return None;
        }
        if self.acquired > 0 {
            let age = |head: u32| self.sources.get(head as usize).map_or(u64::MAX, |s| s.age);
            let (ready, ticketed) = (self.ready.head, self.ticketed.head);
            let head = if age(ticketed) < age(ready) { ticketed } else { ready };
            let cancel = match self.sources.get(head as usize)?.state {
                State::Ticketed(ticket) => Some(ticket),
                _ => None,
            };
            // Who waits alone is passed by nobody, whatever the order.
            let alone = cancel.is_none() && self.ready.len == 1 && self.ticketed.len == 0;
            let queued = self.sources[head as usize].queued;
            let run = if alone { queued.min(self.acquired).min(self.budget) } else { 1 };
            return Some(Pick { origin: OriginKey(head), spend: Spend::Acquired { cancel }, run });
        }
        match self.sources.get(self.ticketed.head as usize)?.state {
            State::Ticketed(redeem) if self.granted > 0 => {
                Some(Pick { origin: OriginKey(self.ticketed.head), spend: Spend::Grant { redeem }, run: 1 })
            }
            _ => None,
        }
    }

    /// `records` were claimed as [`Ingress::next`] said: at least one, and at most its run.
    pub fn claimed(&mut self, pick: Pick<K>, records: u32, now: Instant) {
        debug_assert!((1..=pick.run).contains(&records));
        let origin = pick.origin;
        self.leave(origin);
        self.budget -= records;
        let quantum = match (pick.spend, self.order) {
            (Spend::Grant { .. }, _) => {
                self.granted -= 1;
                1
            }
            (Spend::Acquired { .. }, TurnOrder::OldestFirst) => {
                self.acquired -= records;
                1
            }
            (Spend::Acquired { .. }, TurnOrder::EqualTurns { quantum }) => {
                self.acquired -= records;
                quantum
            }
        };
        let source = &mut self.sources[origin.index()];
        source.state = State::Idle;
        source.queued -= records;
        source.turn += records;
        source.progress.served(now, source.queued > 0);
        if source.queued == 0 {
            source.turn = 0;
            source.age = 0;
        } else if source.turn >= quantum && !cfg!(afflux_mutation = "served_stays_oldest") {
            self.join_tail(origin, now);
        } else {
            self.enter_ready(origin);
        }
    }

    /// For whom a ticket is to be filed, and since when it waits, which is the ticket's age; then
    /// say [`Ingress::ticketed`], or [`Ingress::acquired`] if a permit came instead. Only while permits are
    /// what is missing: not when the budget ended the turn.
    pub fn to_file(&self) -> Option<(OriginKey, Instant)> {
        if self.acquired > 0 || self.budget == 0 {
            return None;
        }
        self.sources.get(self.ready.head as usize).map(|source| (OriginKey(self.ready.head), source.since))
    }

    /// The origin has a ticket at the gate now.
    pub fn ticketed(&mut self, origin: OriginKey, ticket: K) {
        debug_assert!(matches!(self.sources[origin.index()].state, State::Ready));
        self.leave(origin);
        self.sources[origin.index()].state = State::Ticketed(ticket);
        self.ticketed.insert(origin.0, &mut self.sources);
    }

    /// The turn is over. Says how many permits nobody here can use: they go back to the gate now.
    #[must_use = "permits that are not given back are lost to the host"]
    pub fn finish(&mut self) -> u32 {
        let usable = self.granted.min(self.ticketed.len);
        let unused = self.granted - usable + self.acquired;
        self.granted = usable;
        self.acquired = 0;
        if cfg!(afflux_mutation = "unspent_kept") { 0 } else { unused }
    }

    /// Another turn should follow without waiting for anything: grants are in hand, or origins are
    /// ready without a ticket.
    pub fn has_work(&self) -> bool {
        self.granted > 0 || self.ready.len > 0
    }

    /// Origins that wait without and with a ticket.
    pub fn waiting(&self) -> (u32, u32) {
        (self.ready.len, self.ticketed.len)
    }

    /// Origins that may not be claimed from, by [`Reason::ALL`].
    pub fn not_ready_by_reason(&self) -> [u32; Reason::ALL.len()] {
        self.not_ready
    }

    /// The longest time that the origin was ready and not served, the present wait included.
    pub fn longest_no_progress(&self, origin: OriginKey, now: Instant) -> Duration {
        self.sources.get(origin.index()).map_or(Duration::ZERO, |source| source.progress.longest(now))
    }

    /// Forgets the longest times so far.
    pub fn reset_progress(&mut self, now: Instant) {
        for source in &mut self.sources {
            source.progress.reset(now);
        }
    }

    /// Out of the list and the counts of its state, which the caller sets anew.
    fn leave(&mut self, origin: OriginKey) -> Option<K> {
        let source = &self.sources[origin.index()];
        match source.state {
            State::Absent | State::Idle => None,
            State::NotReady(reason) => {
                self.not_ready[reason as usize] -= 1;
                None
            }
            State::Ready => {
                self.claimable -= u64::from(source.queued);
                self.ready.remove(origin.0, &mut self.sources);
                None
            }
            State::Ticketed(ticket) => {
                self.ticketed.remove(origin.0, &mut self.sources);
                Some(ticket)
            }
        }
    }

    fn join_tail(&mut self, origin: OriginKey, now: Instant) {
        self.last_age += 1;
        let source = &mut self.sources[origin.index()];
        source.age = self.last_age;
        source.since = now;
        source.turn = 0;
        source.progress.ready(now);
        self.enter_ready(origin);
    }

    fn enter_ready(&mut self, origin: OriginKey) {
        let source = &mut self.sources[origin.index()];
        source.state = State::Ready;
        self.claimable += u64::from(source.queued);
        self.ready.insert(origin.0, &mut self.sources);
    }
}

const NIL: u32 = u32::MAX;

/// Waiting origins, oldest first, linked through their table entries.
#[derive(Debug)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl Default for List {
    fn default() -> Self {
        List { head: NIL, tail: NIL, len: 0 }
    }
}

impl List {
    /// Behind everybody older. Nearly always that is the tail; who comes back with an old age
    /// belongs near the head.
    fn insert<K>(&mut self, at: u32, sources: &mut [Source<K>]) {
        let age = sources[at as usize].age;
        let mut before = NIL;
        if self.tail != NIL && sources[self.tail as usize].age > age {
            before = self.head;
            while sources[before as usize].age < age {
                before = sources[before as usize].next;
            }
        }
        let previous = if before == NIL { self.tail } else { sources[before as usize].previous };
        let source = &mut sources[at as usize];
        source.previous = previous;
        source.next = before;
        match previous {
            NIL => self.head = at,
            previous => sources[previous as usize].next = at,
        }
        match before {
            NIL => self.tail = at,
            before => sources[before as usize].previous = at,
        }
        self.len += 1;
    }

    fn remove<K>(&mut self, at: u32, sources: &mut [Source<K>]) {
        let Source { previous, next, .. } = sources[at as usize];
        match previous {
            NIL => self.head = next,
            previous => sources[previous as usize].next = next,
        }
        match next {
            NIL => self.tail = previous,
            next => sources[next as usize].previous = previous,
        }
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(0);

    fn ingress(order: TurnOrder, origins: u32) -> Ingress<u32> {
        let mut ingress = Ingress::new(order);
        (0..origins).for_each(|n| ingress.attach(OriginKey(n)));
        ingress
    }

    /// Claims while it may; the origins in order.
    fn claims(ingress: &mut Ingress<u32>, now: Instant) -> Vec<u32> {
        let mut out = Vec::new();
        while let Some(pick) = ingress.next() {
            ingress.claimed(pick, 1, now);
            out.push(pick.origin.0);
        }
        out
    }

    /// Files every ticket that is due; the ticket's number is the origin's plus 100.
    fn file(ingress: &mut Ingress<u32>) -> Vec<u32> {
        let mut out = Vec::new();
        while let Some((origin, _)) = ingress.to_file() {
            ingress.ticketed(origin, origin.0 + 100);
            out.push(origin.0);
        }
        out
    }

    #[test]
    fn wants_no_more_than_it_can_use() {
        let mut ingress = ingress(TurnOrder::OldestFirst, 2);
        ingress.begin(10);
        assert_eq!(ingress.want(), 0);
        ingress.offered(OriginKey(0), 3, NOW);
        ingress.offered(OriginKey(1), 4, NOW);
        assert_eq!(ingress.want(), 7);
        ingress.begin(5);
        assert_eq!(ingress.want(), 5);
        ingress.acquired(5);
        assert_eq!(ingress.want(), 0);
        assert_eq!(claims(&mut ingress, NOW), [0, 1, 0, 1, 0]);
        assert_eq!(ingress.finish(), 0);
        assert!(ingress.has_work());
    }

    #[test]
    fn equal_turns_take_their_quantum_and_go_to_the_tail() {
        let mut ingress = ingress(TurnOrder::EqualTurns { quantum: 2 }, 3);
        for origin in 0..3 {
            ingress.offered(OriginKey(origin), 3, NOW);
        }
        ingress.begin(20);
        ingress.acquired(20);
        assert_eq!(claims(&mut ingress, NOW), [0, 0, 1, 1, 2, 2, 0, 1, 2]);
        assert_eq!(ingress.finish(), 11, "what nobody can use goes back");
        assert!(!ingress.has_work());
    }

    #[test]
    fn without_permits_everybody_files_one_ticket_and_acquires_nothing() {
        let mut ingress = ingress(TurnOrder::OldestFirst, 3);
        ingress.offered(OriginKey(2), 5, Instant(1));
        ingress.offered(OriginKey(0), 5, Instant(2));
        ingress.begin(64);
        assert_eq!(ingress.to_file(), Some((OriginKey(2), Instant(1))));
        assert_eq!(file(&mut ingress), [2, 0]);
        assert_eq!(ingress.want(), 0);
        assert_eq!(ingress.finish(), 0);
        assert!(!ingress.has_work(), "it waits for the gate");
        ingress.offered(OriginKey(1), 1, Instant(3));
        ingress.begin(64);
        assert_eq!(ingress.want(), 0, "free permits belong to tickets first");
        assert_eq!(file(&mut ingress), [1]);

        ingress.granted(2);
        let pick = ingress.next().unwrap();
        assert_eq!(pick, Pick { origin: OriginKey(2), spend: Spend::Grant { redeem: 102 }, run: 1 });
        assert_eq!(claims(&mut ingress, Instant(4)), [2, 0]);
        assert_eq!(file(&mut ingress), [2, 0], "one grant is one record; back to the tail");
        ingress.granted(3);
        assert_eq!(claims(&mut ingress, Instant(5)), [1, 2, 0]);
    }

    #[test]
    fn a_permit_that_comes_instead_of_a_ticket_is_spent_on_the_oldest() {
        let mut ingress = ingress(TurnOrder::OldestFirst, 2);
        ingress.offered(OriginKey(0), 1, NOW);
        ingress.offered(OriginKey(1), 1, NOW);
        ingress.begin(64);
        ingress.ticketed(OriginKey(0), 100);
        ingress.acquired(1);
        assert_eq!(ingress.to_file(), None, "first spend it");
        let pick = ingress.next().unwrap();
        assert_eq!(pick, Pick { origin: OriginKey(0), spend: Spend::Acquired { cancel: Some(100) }, run: 1 });
        ingress.claimed(pick, 1, NOW);
        assert_eq!(ingress.waiting(), (1, 0));
        ingress.granted(1);
        assert_eq!(ingress.next(), None, "the cancelled ticket was granted all the same: nobody can redeem it");
        assert_eq!(ingress.finish(), 1);
    }

    #[test]
    fn who_waits_alone_is_claimed_from_in_one_run_and_nobody_else() {
        let mut ingress = ingress(TurnOrder::OldestFirst, 2);
        let run = |ingress: &Ingress<u32>| ingress.next().map(|pick| pick.run);
        ingress.offered(OriginKey(0), 10, NOW);
        ingress.begin(6);
        ingress.acquired(20);
        assert_eq!(run(&ingress), Some(6), "the budget");
        ingress.claimed(ingress.next().unwrap(), 6, NOW);
        assert_eq!(ingress.finish(), 14);
        ingress.begin(64);
        ingress.acquired(3);
        assert_eq!(run(&ingress), Some(3), "the permits");
        ingress.offered(OriginKey(1), 1, NOW);
        assert_eq!(run(&ingress), Some(1), "somebody waits behind it");
        assert_eq!(claims(&mut ingress, NOW), [0, 1, 0]);
        ingress.acquired(64);
        assert_eq!(run(&ingress), Some(2), "what it has");
        ingress.claimed(ingress.next().unwrap(), 1, NOW);
        assert_eq!(run(&ingress), Some(1));
    }

    #[test]
    fn grants_beyond_the_budget_wait_for_the_next_turn() {
        let mut ingress = ingress(TurnOrder::OldestFirst, 3);
        (0..3).for_each(|n| ingress.offered(OriginKey(n), 2, NOW));
        ingress.begin(1);
        file(&mut ingress);
        ingress.granted(3);
        assert_eq!(claims(&mut ingress, NOW), [0]);
        assert_eq!(ingress.finish(), 0);
        assert!(ingress.has_work());
        ingress.begin(64);
        assert_eq!(claims(&mut ingress, NOW), [1, 2]);
    }

    #[test]
    fn who_may_not_be_claimed_from_gives_its_ticket_back_and_keeps_its_age() {
        let mut ingress = ingress(TurnOrder::OldestFirst, 3);
        (0..3).for_each(|n| ingress.offered(OriginKey(n), 9, Instant(u64::from(n))));
        ingress.begin(64);
        file(&mut ingress);
        ingress.granted(1);
        assert_eq!(ingress.not_ready(OriginKey(0), Reason::ReplyMark, Instant(5)), Some(100));
        assert_eq!(ingress.not_ready_by_reason(), [0, 1, 0]);
        assert_eq!(claims(&mut ingress, Instant(6)), [1], "the grant goes to the next at once");
        ingress.offered(OriginKey(0), 1, Instant(7));
        assert_eq!(ingress.waiting(), (1, 1));
        ingress.ready_again(OriginKey(0), Instant(8));
        ingress.ready_again(OriginKey(0), Instant(8));
        assert_eq!(ingress.not_ready_by_reason(), [0, 0, 0]);
        assert_eq!(ingress.to_file(), Some((OriginKey(0), Instant(0))));
        assert_eq!(file(&mut ingress), [0, 1]);
        ingress.granted(3);
        assert_eq!(claims(&mut ingress, Instant(9)), [0, 2, 1]);
    }

    #[test]
    fn detach_in_every_state() {
        let mut ingress = ingress(TurnOrder::OldestFirst, 4);
        (1..4).for_each(|n| ingress.offered(OriginKey(n), 1, NOW));
        ingress.begin(64);
        ingress.ticketed(OriginKey(2), 102);
        assert_eq!(ingress.not_ready(OriginKey(3), Reason::OwnedBytes, NOW), None);
        assert_eq!(ingress.detach(OriginKey(0)), None);
        assert_eq!(ingress.detach(OriginKey(1)), None);
        assert_eq!(ingress.detach(OriginKey(2)), Some(102));
        assert_eq!(ingress.detach(OriginKey(3)), None);
        assert_eq!((ingress.waiting(), ingress.not_ready_by_reason()), ((0, 0), [0; 3]));
        assert_eq!((ingress.want(), ingress.next(), ingress.to_file()), (0, None, None));
        ingress.attach(OriginKey(2));
        ingress.offered(OriginKey(2), 1, NOW);
        assert_eq!(ingress.want(), 1, "nothing of the predecessor is left");
    }

    #[test]
    fn the_longest_wait_of_a_ready_origin_is_known() {
        let mut ingress = ingress(TurnOrder::OldestFirst, 2);
        ingress.offered(OriginKey(0), 2, Instant(100));
        let ns = Duration::from_nanos;
        assert_eq!(ingress.longest_no_progress(OriginKey(0), Instant(130)), ns(30));
        ingress.begin(64);
        ingress.acquired(2);
        assert_eq!(claims(&mut ingress, Instant(150)), [0, 0]);
        assert_eq!(ingress.longest_no_progress(OriginKey(0), Instant(900)), ns(50));
        assert_eq!(ingress.longest_no_progress(OriginKey(1), Instant(900)), ns(0));
        ingress.reset_progress(Instant(900));
        assert_eq!(ingress.longest_no_progress(OriginKey(0), Instant(900)), ns(0));
    }
}
