//! The ledger of any host that can be started: sums are sums, expectations stay below maxima, and no
//! limit that is raised makes the sum smaller.

use afflux::host::resolve::resolve;
use afflux::plan::{HostPlan, Hwm};
use afflux::policy::ledger::{self, Row};
use afflux::runtime::machine::Machine;
use proptest::prelude::*;

use crate::options::{build, ops};

fn plan() -> impl Strategy<Value = HostPlan> {
    let machine = Machine { processors: Some(4), memory_physical: Some(8 << 30), ..Machine::default() };
    ops().prop_filter_map("options that start", move |ops| resolve(build(&ops).0.options(), &machine).ok())
}

/// Raises one limit.
fn raise(plan: &mut HostPlan, which: usize) -> &'static str {
    match which {
        0 => plan.room.bytes += 1,
        1 => plan.reply.hold += 1,
        2 => plan.reply.host += 1,
        3 => plan.request_slots += 1,
        4 => plan.max_started += 1,
        5 => plan.oversize_budget += 1,
        6 => plan.peers_max += 1,
        7 => plan.handshakes_max += 1,
        8 => plan.caller_rings += 1,
        9 => plan.max_owned_bytes += 1 << 30,
        10 => plan.turn.read_block += 1,
        11 => plan.turn.write_block += 1,
        _ => plan.ring_slots += 1,
    }
    [
        "waiting room",
        "reply hold",
        "replies going out",
        "small replies",
        "started handlers",
        "oversize budget",
        "link state",
        "handshakes",
        "caller rings",
        "owned records",
        "read carries",
        "unfinished writes",
        "caller rings",
    ][which.min(12)]
}

proptest! {
    #[test]
    fn sums_are_sums_and_expectations_stay_below(plan in plan(), links in 0_u32..5_000) {
        let ledger = ledger::of_links(&plan, links);
        let unlimited = plan.hwm.send == Hwm::Unlimited || plan.hwm.receive == Hwm::Unlimited;
        prop_assert_eq!(ledger.total_maximum().is_none(), unlimited);
        let sum = |row| ledger.rows().iter().filter(|r| r.row == row).filter_map(|r| r.maximum()).sum::<u64>();
        if !unlimited {
            prop_assert_eq!(ledger.maximum(Row::Payload), Some(sum(Row::Payload)));
            prop_assert_eq!(ledger.total_maximum(), Some(sum(Row::Payload) + sum(Row::Overhead)));
        }
        for row in ledger.rows() {
            prop_assert!(row.expected <= row.maximum().unwrap_or(u64::MAX), "{:?}", row);
        }
        let observed: Vec<(&str, u64)> = ledger.rows().iter().map(|r| (r.name, r.maximum().unwrap_or(7))).collect();
        prop_assert!(ledger.compare(observed.iter().copied()).holds());
    }

    #[test]
    fn one_byte_above_a_maximum_is_noticed(plan in plan(), which in any::<prop::sample::Index>()) {
        let ledger = ledger::of_links(&plan, 3);
        let row = which.get(ledger.rows());
        if let Some(maximum) = row.maximum() {
            prop_assert!(!ledger.compare([(row.name, maximum + 1)]).holds());
        }
    }

    #[test]
    fn a_limit_that_is_raised_raises_its_row_and_no_sum_falls(plan in plan(), which in 0_usize..13) {
        prop_assume!(plan.max_started < u32::MAX);
        let before = ledger::of(&plan);
        let mut raised = plan;
        let row = raise(&mut raised, which);
        let after = ledger::of(&raised);
        let maximum = |ledger: &ledger::Ledger| ledger.get(row).unwrap().maximum();
        prop_assert!(maximum(&after) > maximum(&before), "{}", row);
        prop_assert!(after.total_maximum() >= before.total_maximum());
    }

    #[test]
    fn more_links_never_need_less(plan in plan(), links in 1_u32..3_000) {
        let at = |links| ledger::of_links(&plan, links).total_maximum();
        prop_assert!(at(links + 1) >= at(links));
    }
}
