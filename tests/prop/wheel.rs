//! The oracle is a sorted map from tick to values. Time jumps from nanoseconds to months.

use std::collections::{BTreeMap, HashMap, HashSet};

use afflux::base::time::Instant;
use afflux::flow::wheel::{TimerKey, TimerWheel};
use proptest::prelude::*;

const TICK: u64 = 1_000_000;
const CAPACITY: u32 = 60;

#[derive(Clone, Debug)]
enum Op {
    /// Nanoseconds from now; negative: in the past.
    Insert(i64),
    /// One of the keys ever made.
    Cancel(prop::sample::Index),
    Advance(u64),
    /// To exactly what the wheel asks for.
    AdvanceToNext,
    Poll(usize),
}

fn distance() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..3 * TICK,
        (0..200u64).prop_map(|ms| ms * TICK),
        0..10_000 * TICK,
        0..100_000_000 * TICK,
        Just(i32::MAX as u64 * TICK),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => distance().prop_map(|d| Op::Insert(d as i64)),
        1 => (0..5 * TICK as i64).prop_map(|d| Op::Insert(-d)),
        3 => any::<prop::sample::Index>().prop_map(Op::Cancel),
        1 => distance().prop_map(Op::Advance),
        2 => Just(Op::AdvanceToNext),
        4 => prop_oneof![1..4usize, Just(1000)].prop_map(Op::Poll),
    ]
}

proptest! {
    #[test]
    fn fires_what_the_sorted_map_fires(ops in prop::collection::vec(op(), 1..200)) {
        let mut wheel = TimerWheel::new(CAPACITY);
        let mut oracle = BTreeMap::<(u64, u32), ()>::new();
        let mut ticks = HashMap::<u32, u64>::new();
        let mut keys = Vec::<(TimerKey, u32)>::new();
        let mut now = Instant(0);
        // Set for a time that had already come: due at once, in no order among the others.
        let mut overdue = HashSet::<u32>::new();
        let mut id = 0;
        for op in ops {
            match op {
                Op::Insert(distance) => {
                    let at = now.0.saturating_add_signed(distance);
                    id += 1;
                    match wheel.insert(Instant(at), id) {
                        Ok(key) => {
                            keys.push((key, id));
                            let tick = at.div_ceil(TICK);
                            if tick <= now.0 / TICK {
                                overdue.insert(id);
                            }
                            oracle.insert((tick, id), ());
                            ticks.insert(id, tick);
                        }
                        Err(value) => {
                            prop_assert_eq!(value, id);
                            prop_assert_eq!(oracle.len(), CAPACITY as usize);
                        }
                    }
                }
                Op::Cancel(which) => {
                    if !keys.is_empty() {
                        let (key, id) = keys[which.index(keys.len())];
                        let live = oracle.remove(&(ticks[&id], id)).map(|()| id);
                        prop_assert_eq!(wheel.cancel(key), live);
                    }
                }
                Op::Advance(by) => now = Instant(now.0 + by),
                Op::AdvanceToNext => now = wheel.next().map_or(now, |next| next.max(now)),
                Op::Poll(limit) => {
                    let mut fired = Vec::new();
                    let more = wheel.poll(now, limit, |id| fired.push(id));
                    prop_assert!(fired.len() <= limit);
                    let mut last = 0;
                    for id in &fired {
                        let tick = ticks[id];
                        prop_assert!(tick * TICK <= now.0, "fired early");
                        prop_assert!(oracle.remove(&(tick, *id)).is_some(), "fired twice or after its cancel");
                        if !overdue.contains(id) {
                            prop_assert!(tick >= last, "a later tick fired first");
                            last = tick;
                        }
                    }
                    let due = oracle.keys().next().is_some_and(|(tick, _)| tick * TICK <= now.0);
                    prop_assert!(more || !due, "the wheel says that nothing is left");
                    prop_assert!(!more || wheel.next().is_some_and(|next| next <= now));
                    if let Some((first, _)) = oracle.keys().find(|(_, id)| !overdue.contains(id)) {
                        prop_assert!(*first >= last, "an earlier tick was left behind");
                    }
                }
            }
            prop_assert_eq!(wheel.len(), oracle.len());
            match (wheel.next(), oracle.keys().next()) {
                (None, None) => (),
                (Some(next), Some((tick, _))) => {
                    let due = (tick * TICK).max(now.0);
                    prop_assert!(next.0 <= due, "{:?} is later than {}", next, due);
                }
                (next, first) => prop_assert!(false, "{:?} against {:?}", next, first),
            }
        }
        // Following `next` alone fires everything at its very tick, in few polls.
        let budget = oracle.len() * 9;
        let mut polls = 0;
        while let Some(next) = wheel.next() {
            now = now.max(next);
            polls += 1;
            prop_assert!(polls <= budget, "{} polls", polls);
            let mut fired = Vec::new();
            prop_assert!(!wheel.poll(now, 10_000, |id| fired.push(id)));
            for id in fired {
                prop_assert!(oracle.remove(&(ticks[&id], id)).is_some());
                prop_assert!(ticks[&id] * TICK <= now.0);
            }
            prop_assert!(oracle.keys().all(|(tick, _)| tick * TICK > now.0));
        }
        prop_assert!(oracle.is_empty());
    }
}
