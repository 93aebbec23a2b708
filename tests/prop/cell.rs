//! The cell pool against a list of what each operation is doing.

use afflux::base::id::CellId;
use afflux::base::time::Instant;
use afflux::sync::cell::{CellCounts, CellList, CellPool, CellState, Notify, SELF_TIMED_GRACE, Terms};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const CAPACITY: u32 = 6;

/// The index picks one of all operations that ever were, so most ids are stale.
#[derive(Clone, Debug)]
enum Op {
    Waiting { deadline: u64, list: bool, self_timed: bool },
    Claimed { deadline: u64, list: bool, self_timed: bool },
    Abandon,
    Claim(usize),
    Edit(usize),
    Finish(usize),
    FinishWaiting(usize),
    Reply(usize),
    Take(usize),
    Detach(usize),
    Listen(usize),
    Push(usize),
    PopInbox,
    PopDone,
    Prune,
    Sweep(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let which = 0..24_usize;
    let terms = || (0..60_u64, any::<bool>(), any::<bool>());
    prop_oneof![
        6 => terms().prop_map(|(deadline, list, self_timed)| Op::Waiting { deadline, list, self_timed }),
        4 => terms().prop_map(|(deadline, list, self_timed)| Op::Claimed { deadline, list, self_timed }),
        1 => Just(Op::Abandon),
        4 => which.clone().prop_map(Op::Claim),
        1 => which.clone().prop_map(Op::Edit),
        2 => which.clone().prop_map(Op::Finish),
        2 => which.clone().prop_map(Op::FinishWaiting),
        4 => which.clone().prop_map(Op::Reply),
        6 => which.clone().prop_map(Op::Take),
        2 => which.clone().prop_map(Op::Detach),
        1 => which.clone().prop_map(Op::Listen),
        4 => which.prop_map(Op::Push),
        3 => Just(Op::PopInbox),
        3 => Just(Op::PopDone),
        1 => Just(Op::Prune),
        2 => (0..4_u64).prop_map(Op::Sweep),
    ]
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Waiting,
    Claimed,
    Done,
    Gone,
}

/// The oracle's idea of one operation.
#[derive(Clone, Debug)]
struct Model {
    id: CellId,
    state: State,
    payload: u64,
    outcome: u64,
    held: bool,
    list: bool,
    in_inbox: bool,
    in_done: bool,
    lapsed: bool,
    due: Instant,
    ends: u32,
}

impl Model {
    fn end(&mut self, outcome: u64, done: &mut VecDeque<CellId>) {
        self.ends += 1;
        self.outcome = outcome;
        self.state = if self.held { State::Done } else { State::Gone };
        if self.held && self.list {
            self.in_done = true;
            done.push_back(self.id);
        }
    }

    fn uses_a_place(&self) -> bool {
        self.state != State::Gone || self.in_inbox || self.in_done
    }
}

proptest! {
    #[test]
    fn every_answer_is_the_oracles(ops in prop::collection::vec(op(), 1..120)) {
        let wakes = Arc::new(AtomicU32::new(0));
        let count = wakes.clone();
        let pool: CellPool<u64, u64> = CellPool::new(CAPACITY, 1, move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let inbox = CellList::inbox();
        let mut all: Vec<Model> = Vec::new();
        let (mut inbound, mut done) = (VecDeque::new(), VecDeque::new());
        let mut now = 0;
        let mut serial = 0;

        for op in ops {
            serial += 10;
            let pick = |i: usize| if all.is_empty() { None } else { Some(i % all.len()) };
            match op {
                Op::Waiting { deadline, list, self_timed } | Op::Claimed { deadline, list, self_timed } => {
                    let place = pool.alloc();
                    let used = all.iter().filter(|m| m.uses_a_place()).count();
                    prop_assert_eq!(place.is_some(), used < CAPACITY as usize);
                    let Some(place) = place else { continue };
                    let id = place.id();
                    prop_assert!(all.iter().all(|m| m.id != id), "an id was used twice");
                    prop_assert!(all.iter().all(|m| m.id.index != id.index || !m.uses_a_place()));
                    let deadline = Instant((now + deadline) * 1_000_000);
                    let due = if self_timed { deadline.after(SELF_TIMED_GRACE) } else { deadline };
                    let earliest = pool.next_deadline();
                    let notify = if list { Notify::List(0) } else { Notify::None };
                    let terms = Terms { deadline, since: Instant(now), tag: serial, notify, self_timed };
                    let waits = matches!(op, Op::Waiting { .. });
                    let lowered =
                        if waits { place.publish_waiting(serial, terms) } else { place.publish_claimed(terms) };
                    prop_assert_eq!(lowered, due < earliest);
                    prop_assert_eq!((pool.deadline(id), pool.tag(id)), (Some(deadline), Some(serial)));
                    let state = if waits { State::Waiting } else { State::Claimed };
                    all.push(Model {
                        id, state, payload: serial, outcome: 0, held: true, list, in_inbox: false, in_done: false,
                        lapsed: false, due, ends: 0,
                    });
                }
                Op::Abandon => drop(pool.alloc()),
                Op::Claim(i) => {
                    let Some(m) = pick(i).map(|i| &mut all[i]) else { continue };
                    let expected = (m.state == State::Waiting).then_some(m.payload);
                    prop_assert_eq!(pool.claim(m.id), expected);
                    if expected.is_some() {
                        m.state = State::Claimed;
                    }
                }
                Op::Edit(i) => {
                    let Some(m) = pick(i).map(|i| &mut all[i]) else { continue };
                    let edited = pool.with_waiting(m.id, |payload| { *payload += 1; *payload });
                    if m.state == State::Waiting {
                        m.payload += 1;
                    }
                    prop_assert_eq!(edited, (m.state == State::Waiting).then_some(m.payload));
                }
                Op::Finish(i) => {
                    let Some(m) = pick(i).map(|i| &mut all[i]) else { continue };
                    let mut back = None;
                    let won = pool.finish(m.id, |payload| { back = payload; serial });
                    prop_assert_eq!(won, matches!(m.state, State::Waiting | State::Claimed));
                    prop_assert_eq!(back, (m.state == State::Waiting).then_some(m.payload));
                    if won {
                        m.end(serial, &mut done);
                    }
                }
                Op::FinishWaiting(i) => {
                    let Some(m) = pick(i).map(|i| &mut all[i]) else { continue };
                    let won = pool.finish_waiting(m.id, |payload| payload);
                    prop_assert_eq!(won, m.state == State::Waiting);
                    if won {
                        m.end(m.payload, &mut done);
                    }
                }
                Op::Reply(i) => {
                    let Some(m) = pick(i).map(|i| &mut all[i]) else { continue };
                    let reply = pool.finish_claimed(m.id, serial);
                    prop_assert_eq!(reply, if m.state == State::Claimed { Ok(()) } else { Err(serial) });
                    if reply.is_ok() {
                        m.end(serial, &mut done);
                    }
                }
                Op::Take(i) => {
                    let Some(m) = pick(i).map(|i| &mut all[i]) else { continue };
                    let expected = (m.state == State::Done).then_some(m.outcome);
                    prop_assert_eq!(pool.take(m.id), expected);
                    if expected.is_some() {
                        m.state = State::Gone;
                    }
                }
                Op::Detach(i) => {
                    let Some(m) = pick(i).map(|i| &mut all[i]) else { continue };
                    prop_assert_eq!(pool.detach(m.id), m.held && m.state != State::Gone);
                    m.held = false;
                    if m.state == State::Done {
                        m.state = State::Gone;
                    }
                }
                Op::Listen(i) => {
                    let Some(m) = pick(i).map(|i| &mut all[i]) else { continue };
                    let known = m.held && m.state != State::Gone;
                    prop_assert_eq!(pool.set_notify(m.id, Notify::List(0)), known);
                    if known && m.state != State::Done {
                        m.list = true;
                    } else if known && !m.in_done {
                        m.in_done = true;
                        done.push_back(m.id);
                    }
                }
                Op::Push(i) => {
                    let Some(m) = pick(i).map(|i| &mut all[i]) else { continue };
                    let links = m.state != State::Gone && !m.in_inbox;
                    let first = pool.push(&inbox, m.id);
                    prop_assert!(links || !first);
                    if links {
                        m.in_inbox = true;
                        inbound.push_back(m.id);
                    }
                }
                Op::PopInbox | Op::PopDone => {
                    let (list, expected) =
                        if matches!(op, Op::PopInbox) { (&inbox, &mut inbound) } else { (pool.done(0), &mut done) };
                    let id = expected.pop_front();
                    let entry = pool.pop(list);
                    prop_assert_eq!(entry.map(|entry| entry.id), id);
                    if let Some(m) = all.iter_mut().find(|m| Some(m.id) == id) {
                        if matches!(op, Op::PopInbox) { m.in_inbox = false } else { m.in_done = false }
                    }
                }
                Op::Prune => {
                    let mut pruned = Vec::new();
                    pool.prune(&inbox, |entry| pruned.push(entry.id));
                    let gone = |id: &CellId| all.iter().any(|m| m.id == *id && m.state == State::Gone);
                    let expected: Vec<_> = inbound.iter().copied().filter(gone).collect();
                    prop_assert_eq!(&pruned, &expected);
                    inbound.retain(|id| !expected.contains(id));
                    all.iter_mut().filter(|m| pruned.contains(&m.id)).for_each(|m| m.in_inbox = false);
                }
                Op::Sweep(later) => {
                    now += 10 * later;
                    let at = Instant(now * 1_000_000);
                    let mut offered = Vec::new();
                    pool.sweep(at, |id, state, _| {
                        offered.push(id);
                        match state {
                            CellState::Done => assert!(pool.lapse(id, |outcome| outcome + 1)),
                            _ => assert!(pool.finish(id, |_| 1)),
                        }
                    });
                    let mut expected = Vec::new();
                    for m in &mut all {
                        if m.state == State::Gone || m.lapsed || m.due > at {
                            continue;
                        }
                        expected.push(m.id);
                        match m.state {
                            State::Done => (m.lapsed, m.outcome) = (true, m.outcome + 1),
                            _ => m.end(1, &mut done),
                        }
                    }
                    // In the order of places, not of age.
                    offered.sort_by_key(|id| (id.index, id.generation));
                    expected.sort_by_key(|id| (id.index, id.generation));
                    prop_assert_eq!(&offered, &expected);
                    // The order in which one sweep tells of several ends is its own.
                    let told: Vec<_> = std::iter::from_fn(|| pool.pop(pool.done(0))).map(|entry| entry.id).collect();
                    prop_assert_eq!(told.len(), done.len());
                    for id in told {
                        prop_assert!(done.contains(&id));
                        all.iter_mut().filter(|m| m.id == id).for_each(|m| m.in_done = false);
                    }
                    done.clear();
                }
            }
            let of = |state| all.iter().filter(|m| m.state == state).count() as u32;
            prop_assert_eq!(
                pool.counts(),
                CellCounts { waiting: of(State::Waiting), claimed: of(State::Claimed), done: of(State::Done) }
            );
            prop_assert!(all.iter().all(|m| m.ends <= 1));
            let due = all.iter().filter(|m| m.state != State::Gone && !m.lapsed).map(|m| m.due).min();
            prop_assert!(pool.next_deadline() <= due.unwrap_or(Instant::NEVER));
        }

        // Everything is ended, taken and unlinked: nothing has leaked.
        for m in &mut all {
            let ended = pool.finish(m.id, |_| 0);
            prop_assert_eq!(m.ends + u32::from(ended), if m.state == State::Gone { m.ends } else { 1 });
            pool.take(m.id);
        }
        pool.drain(&inbox).for_each(drop);
        pool.drain(pool.done(0)).for_each(drop);
        prop_assert_eq!(pool.counts(), CellCounts::default());
        let places: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
        prop_assert_eq!(places.len(), CAPACITY as usize);
    }
}
