//! Each order against its own stated bound, with sources that come and go: what is served to others
//! between two services of a source that stayed ready.

use std::collections::BTreeMap;

use afflux::base::time::Instant;
use afflux::policy::fairness::{
    DeficitRoundRobin, Fairness, Head, MaxConsecutive, OldestDeadline, RoundRobin, Source, WeightedClasses,
};
use proptest::prelude::*;

const SOURCES: u32 = 6;

#[derive(Clone, Debug)]
enum Op {
    /// So many items, each of this cost and deadline.
    Supply {
        source: Source,
        items: u32,
        head: (u64, u64),
    },
    Leave(Source),
    Serve(u32),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let head = || (1..300u64, 0..1000u64);
    let op = prop_oneof![
        3 => (0..SOURCES, 1..30u32, head()).prop_map(|(source, items, head)| Op::Supply { source, items, head }),
        1 => (0..SOURCES).prop_map(Op::Leave),
        4 => (1..20u32).prop_map(Op::Serve),
    ];
    prop::collection::vec(op, 1..80)
}

#[derive(Clone, Default)]
struct Supply {
    items: u32,
    head: (u64, u64),
    /// Served to each other source since this one was served or became ready: items, cost.
    others: BTreeMap<Source, (u64, u64)>,
    /// It was served at least once in this stretch of being ready.
    running: bool,
}

/// Drives an order; `check` sees, at each service, the source, its cost and what the others got.
fn drive(
    order: &mut impl Fairness,
    ops: Vec<Op>,
    mut check: impl FnMut(&[Supply], Source, bool) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let head = |(cost, deadline): (u64, u64)| Head { cost, deadline: Instant(deadline) };
    let mut supplies = vec![Supply::default(); SOURCES as usize];
    let drain = Op::Serve(u32::MAX);
    for op in ops.into_iter().chain([drain]) {
        match op {
            Op::Supply { source, items, head: h } => {
                let supply = &mut supplies[source as usize];
                if supply.items == 0 {
                    *supply = Supply { items, head: h, ..Supply::default() };
                } else {
                    supply.items += items;
                }
                order.ready(source, head(h));
            }
            Op::Leave(source) => {
                supplies[source as usize] = Supply::default();
                order.leave(source);
            }
            Op::Serve(n) => {
                for _ in 0..n {
                    let Some(source) = order.next() else {
                        prop_assert!(supplies.iter().all(|s| s.items == 0), "somebody is ready and nobody is named");
                        break;
                    };
                    prop_assert!(supplies[source as usize].items > 0, "{} has nothing", source);
                    check(&supplies, source, supplies[source as usize].running)?;
                    let supply = &mut supplies[source as usize];
                    supply.items -= 1;
                    supply.others.clear();
                    supply.running = supply.items > 0;
                    let (cost, more) = (supply.head.0, supply.items > 0);
                    let next = more.then_some(head(supply.head));
                    for (other, supply) in supplies.iter_mut().enumerate() {
                        if other != source as usize && supply.items > 0 {
                            let got = supply.others.entry(source).or_default();
                            *got = (got.0 + 1, got.1 + cost);
                        }
                    }
                    order.served(source, next);
                }
            }
        }
    }
    prop_assert_eq!(order.next(), None);
    Ok(())
}

proptest! {
    #[test]
    fn round_robin_lets_everybody_pass_once(ops in ops()) {
        drive(&mut RoundRobin::default(), ops, |supplies, source, _| {
            for (other, got) in &supplies[source as usize].others {
                prop_assert!(got.0 <= 1, "{} passed {} {} times", other, source, got.0);
            }
            Ok(())
        })?;
    }

    #[test]
    fn deficit_lets_others_have_their_quanta(quantum in 1..400u64, ops in ops()) {
        drive(&mut DeficitRoundRobin::new(quantum), ops, |supplies, source, _| {
            let supply = &supplies[source as usize];
            let visits = supply.head.0.div_ceil(quantum) + 1;
            for (other, got) in &supply.others {
                let bound = visits * quantum + 300;
                prop_assert!(got.1 <= bound, "{} got {} before {}, bound {}", other, got.1, source, bound);
            }
            Ok(())
        })?;
    }

    #[test]
    fn classes_get_their_weight(weights in prop::array::uniform3(1..50u32), ops in ops()) {
        let mut order = WeightedClasses::new(&weights);
        let class_of = |source: Source| source as usize % 3;
        (0..SOURCES).for_each(|source| order.assign(source, class_of(source) as u16));
        drive(&mut order, ops, |supplies, source, running| {
            let supply = &supplies[source as usize];
            let own = class_of(source);
            let siblings = 2;
            let mut by_class = [0; 3];
            for (other, got) in &supply.others {
                by_class[class_of(*other)] += got.0;
            }
            // From becoming ready its class may have a turn of debt.
            let turns = if running { siblings } else { siblings + 1 };
            for class in (0..3).filter(|class| *class != own) {
                let per_turn = u64::from(weights[class]).div_ceil(u64::from(weights[own])) + 1;
                prop_assert!(by_class[class] <= turns * per_turn, "{:?} before {}", by_class, source);
            }
            prop_assert!(by_class[own] <= 1);
            Ok(())
        })?;
    }

    #[test]
    fn no_later_deadline_comes_first(ops in ops()) {
        drive(&mut OldestDeadline::default(), ops, |supplies, source, _| {
            let earliest = supplies.iter().filter(|s| s.items > 0).map(|s| s.head.1).min();
            prop_assert_eq!(Some(supplies[source as usize].head.1), earliest);
            Ok(())
        })?;
    }

    #[test]
    fn runs_are_bounded_in_any_order(max in 1..5u32, ops in ops(), deficit in any::<bool>()) {
        let (mut last, mut run) = (None, 0);
        let check = |supplies: &[Supply], source: Source, _| {
            run = if last == Some(source) { run + 1 } else { 1 };
            last = Some(source);
            let others = supplies.iter().enumerate().any(|(n, s)| n != source as usize && s.items > 0);
            // Who was alone may have had any run; it counts from when another came.
            if !others {
                run = 0;
            }
            prop_assert!(run <= max || !others, "{} in a row", run);
            Ok(())
        };
        if deficit {
            drive(&mut MaxConsecutive::new(DeficitRoundRobin::new(1000), max), ops, check)?;
        } else {
            drive(&mut MaxConsecutive::new(OldestDeadline::default(), max), ops, check)?;
        }
    }
}
