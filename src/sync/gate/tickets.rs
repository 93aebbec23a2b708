//! The waiting origins of all shards, oldest first per shard. Plain data behind the gate's lock.
//!
//! ```text
//!  (none) --insert--> Waiting --grant--> Granted --redeem, cancel--> (none)
//!                        '------ cancel, stop, redeem ---------------> (none)
//! ```
//!
//! A grant belongs to the shard, which may spend it on any of its waiting origins. So redeeming a
//! ticket that still waits lets a granted one take its place in the line: the shard has used up
//! the age that won the grant, and waits on with the others.
//!
//! One origin has at most one ticket, so there are never more tickets than origins; the table is
//! sized by [`Tickets::reserve`] when an origin is attached and grows at no other time.

use crate::base::id::ShardId;
use crate::base::time::Instant;

const NIL: u32 = u32::MAX;

/// A waiting origin's place in the line, until it is cancelled or redeemed; after that it is void, and
/// recognised as such.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a ticket that is lost waits for ever"]
pub struct Ticket {
    index: u32,
    generation: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Vacant,
    Waiting,
    Granted,
}

/// What a place in the line is worth, apart from who stands there.
#[derive(Clone, Copy, Debug)]
struct Stand {
    since: Instant,
    sequence: u64,
    /// When this wait began, and in which measurement epoch.
    began: Began,
}

/// The start of a wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Began {
    pub(super) at: Instant,
    pub(super) era: u32,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    state: State,
    shard: ShardId,
    stand: Stand,
    before: u32,
    after: u32,
}

#[derive(Clone, Debug)]
struct Line {
    first: u32,
    last: u32,
}

impl Line {
    const EMPTY: Line = Line { first: NIL, last: NIL };
}

/// What became of a ticket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cancelled {
    /// It waited and waits no more; the others' order is as it was.
    Unlinked,
    /// It had been granted: its permit is among the shard's grants, now one more than it has origins
    /// for. The shard spends it on another or releases it.
    Granted,
    /// It was no ticket any more: the gate was stopped.
    Void,
}

/// A ticket as others may see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Which one: a place in the table and how often it was used before.
    pub ticket: (u32, u32),
    /// Whose origin waits.
    pub shard: ShardId,
    /// Its age, and which of several of one age came first: the smaller is served first.
    pub rank: (Instant, u64),
    /// Granted, and not redeemed yet.
    pub granted: bool,
}

#[derive(Debug)]
pub(super) struct Tickets {
    entries: Vec<Entry>,
    vacant: u32,
    waiting: Vec<Line>,
    granted: Vec<Line>,
    count: u32,
    sequence: u64,
}

impl Tickets {
    pub(super) fn new(shards: u16) -> Self {
        let lines = vec![Line::EMPTY; shards as usize];
        Tickets { entries: Vec::new(), vacant: NIL, waiting: lines.clone(), granted: lines, count: 0, sequence: 0 }
    }

    pub(super) fn reserve(&mut self, origins: usize) {
        self.entries.reserve(origins.saturating_sub(self.entries.len()));
    }

    /// How many wait.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// All of them.
    pub(super) fn standing(&self) -> impl Iterator<Item = Standing> {
        let taken = (0..).zip(&self.entries).filter(|(_, entry)| entry.state != State::Vacant);
        taken.map(|(index, entry)| Standing {
            ticket: (index, entry.generation),
            shard: entry.shard,
            rank: (entry.stand.since, entry.stand.sequence),
            granted: entry.state == State::Granted,
        })
    }

    /// Puts an origin of `shard` into the line: behind all of its shard that are as old as `since`.
    pub(super) fn insert(&mut self, shard: ShardId, since: Instant, began: Began) -> Ticket {
        let stand = Stand { since, sequence: self.sequence, began };
        self.sequence += 1;
        let entry = Entry { generation: 0, state: State::Waiting, shard, stand, before: NIL, after: NIL };
        let index = match self.vacant {
            NIL => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
            index => {
                let old = &self.entries[index as usize];
                self.vacant = old.after;
                self.entries[index as usize] = Entry { generation: old.generation, ..entry };
                index
            }
        };
        // Almost always the last: an older one is an origin that was not ready for a while.
        let mut before = self.waiting[shard.index()].last;
        while before != NIL && self.entries[before as usize].stand.since > since {
            before = self.entries[before as usize].before;
        }
        self.link(index, before);
        self.count += 1;
        Ticket { index, generation: self.entries[index as usize].generation }
    }

    /// The shard of the oldest waiting ticket among those that `may` be granted one.
    pub(super) fn oldest(&self, may: impl Fn(ShardId) -> bool) -> Option<ShardId> {
        let heads = (0..).map(ShardId).zip(&self.waiting).filter(|(_, line)| line.first != NIL);
        heads
            .filter(|(shard, _)| may(*shard))
            .min_by_key(|(_, line)| {
                let stand = &self.entries[line.first as usize].stand;
                if cfg!(afflux_mutation = "gate_ignores_age") {
                    (Instant(0), 0)
                } else if cfg!(afflux_mutation = "gate_newest_first") {
                    (Instant(0), u64::MAX - self.entries[line.last as usize].stand.sequence)
                } else {
                    (stand.since, stand.sequence)
                }
            })
            .map(|(shard, _)| shard)
    }

    /// Grants the oldest ticket of `shard`, which must have one.
    pub(super) fn grant(&mut self, shard: ShardId) -> Began {
        let index = self.waiting[shard.index()].first;
        self.unlink(index);
        self.count -= 1;
        self.entries[index as usize].state = State::Granted;
        self.link(index, self.granted[shard.index()].last);
        self.entries[index as usize].stand.began
    }

    /// Its origin gets one of the shard's grants. False: it is no ticket any more.
    pub(super) fn redeem(&mut self, ticket: Ticket) -> bool {
        match self.state(&ticket) {
            State::Vacant => return false,
            State::Granted => self.unlink(ticket.index),
            State::Waiting => {
                let Entry { shard, before, stand, .. } = self.entries[ticket.index as usize];
                self.unlink(ticket.index);
                match self.granted[shard.index()].first {
                    // A grant that was left over when its own origin went away.
                    NIL => self.count -= 1,
                    other => {
                        self.unlink(other);
                        let entry = &mut self.entries[other as usize];
                        (entry.state, entry.stand) = (State::Waiting, stand);
                        self.link(other, before);
                    }
                }
            }
        }
        self.vacate(ticket.index);
        true
    }

    pub(super) fn cancel(&mut self, ticket: Ticket) -> Cancelled {
        let (told, waiting) = match self.state(&ticket) {
            State::Vacant => return Cancelled::Void,
            State::Granted => (Cancelled::Granted, 0),
            State::Waiting => (Cancelled::Unlinked, u32::from(!cfg!(afflux_mutation = "cancelled_still_counted"))),
        };
        self.unlink(ticket.index);
        self.count -= waiting;
        self.vacate(ticket.index);
        told
    }

    /// Ends the wait of the oldest of `shard`. False: none waits.
    pub(super) fn dismiss(&mut self, shard: ShardId) -> bool {
        let index = self.waiting[shard.index()].first;
        if index == NIL {
            return false;
        }
        self.unlink(index);
        self.count -= 1;
        self.vacate(index);
        true
    }

    fn state(&self, ticket: &Ticket) -> State {
        let entry = self.entries.get(ticket.index as usize).filter(|entry| entry.generation == ticket.generation);
        entry.map_or(State::Vacant, |entry| entry.state)
    }

    fn line(&mut self, index: u32) -> &mut Line {
        let Entry { shard, state, .. } = self.entries[index as usize];
        let lines = if state == State::Granted { &mut self.granted } else { &mut self.waiting };
        &mut lines[shard.index()]
    }

    /// Links an entry into the line of its state, behind `before` (`NIL`: first).
    fn link(&mut self, index: u32, before: u32) {
        let after = match before {
            NIL => self.line(index).first,
            before => self.entries[before as usize].after,
        };
        self.join(index, before, index);
        self.join(index, index, after);
    }

    fn unlink(&mut self, index: u32) {
        let Entry { before, after, .. } = self.entries[index as usize];
        self.join(index, before, after);
    }

    /// Makes `left` and `right` neighbours in the line in which `index` belongs.
    fn join(&mut self, index: u32, left: u32, right: u32) {
        match left {
            NIL => self.line(index).first = right,
            left => self.entries[left as usize].after = right,
        }
        match right {
            NIL => self.line(index).last = left,
            right => self.entries[right as usize].before = left,
        }
    }

    fn vacate(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        entry.state = State::Vacant;
        entry.generation = entry.generation.wrapping_add(1);
        entry.after = self.vacant;
        self.vacant = index;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(tickets: &mut Tickets, shard: u16, since: u64) -> Ticket {
        tickets.insert(ShardId(shard), Instant(since), Began { at: Instant(since), era: 0 })
    }

    fn grant_all(tickets: &mut Tickets) -> Vec<(u16, u64)> {
        let mut order = Vec::new();
        while let Some(shard) = tickets.oldest(|_| true) {
            order.push((shard.0, tickets.grant(shard).at.0));
        }
        order
    }

    #[test]
    fn the_oldest_of_all_shards_comes_first_and_ties_go_by_arrival() {
        let mut tickets = Tickets::new(3);
        for (shard, since) in [(2, 5), (0, 5), (1, 3), (0, 9), (2, 4), (1, 9)] {
            let _ = insert(&mut tickets, shard, since);
        }
        assert_eq!(tickets.count(), 6);
        assert_eq!(tickets.oldest(|shard| shard.0 != 1), Some(ShardId(2)));
        assert_eq!(grant_all(&mut tickets), [(1, 3), (2, 4), (2, 5), (0, 5), (0, 9), (1, 9)]);
        assert_eq!(tickets.count(), 0);
    }

    #[test]
    fn spending_a_grant_on_another_origin_leaves_the_granted_one_in_its_place() {
        let mut tickets = Tickets::new(2);
        let old = insert(&mut tickets, 0, 1);
        let _other = insert(&mut tickets, 1, 2);
        let young = insert(&mut tickets, 0, 3);
        let _last = insert(&mut tickets, 0, 4);
        assert_eq!(tickets.grant(ShardId(0)).at, Instant(1));
        assert!(tickets.redeem(young));
        assert_eq!(tickets.count(), 3);
        assert_eq!(grant_all(&mut tickets), [(1, 2), (0, 3), (0, 4)], "the age of 1 is used up");
        assert!(tickets.redeem(old));
        assert_eq!(tickets.cancel(Ticket { index: 0, generation: 0 }), Cancelled::Void);
    }

    #[test]
    fn a_left_over_grant_ends_another_wait() {
        let mut tickets = Tickets::new(1);
        let gone = insert(&mut tickets, 0, 1);
        let other = insert(&mut tickets, 0, 2);
        tickets.grant(ShardId(0));
        assert_eq!(tickets.cancel(gone), Cancelled::Granted);
        assert!(tickets.redeem(other));
        assert_eq!((tickets.count(), tickets.oldest(|_| true)), (0, None));
    }

    #[test]
    fn places_are_used_again_under_another_generation() {
        let mut tickets = Tickets::new(1);
        let first = insert(&mut tickets, 0, 1);
        let stale = Ticket { index: first.index, generation: first.generation };
        assert_eq!(tickets.cancel(first), Cancelled::Unlinked);
        let second = insert(&mut tickets, 0, 2);
        assert_eq!(second.index, stale.index);
        assert_eq!(tickets.cancel(stale), Cancelled::Void);
        assert!(tickets.dismiss(ShardId(0)) && !tickets.dismiss(ShardId(0)));
        assert!(!tickets.redeem(second));
        assert_eq!(tickets.entries.len(), 1);
    }
}
