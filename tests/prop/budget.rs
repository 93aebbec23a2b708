//! The division of the budget against one that hands out single bytes, and the re-planning against a
//! list of what happened.

use afflux::base::time::Instant;
use afflux::base::unit::ByteSize;
use afflux::plan::{Hwm, HwmPlan, HwmProfile, LimitSource, QueueBounds};
use afflux::policy::budget::{Queue, RAISE_AFTER, Replan, divide, effective, link_marks, link_queues, share};
use proptest::prelude::*;

fn hwm() -> impl Strategy<Value = Hwm> {
    prop_oneof![6 => Just(Hwm::Auto), 1 => Just(Hwm::Unlimited), 2 => (1_u64..400).prop_map(|n| Hwm::Bytes(ByteSize::bytes(n)))]
}

fn census() -> impl Strategy<Value = Vec<Queue>> {
    let queue = (0_u64..60, 0_u64..300, hwm(), any::<u32>());
    prop::collection::vec(queue, 0..12).prop_map(|queues| {
        let of = |(i, (min, more, hwm, id)): (usize, (u64, u64, Hwm, u32))| Queue {
            id: u64::from(id) << 8 | i as u64,
            bounds: QueueBounds { min, max: min + more },
            hwm,
        };
        queues.into_iter().enumerate().map(of).collect()
    })
}

/// Everybody at his minimum, then byte by byte to those below their maximum, in the order of ids.
fn byte_by_byte(budget: u64, queues: &[Queue]) -> Vec<u64> {
    let mut marks: Vec<u64> = queues
        .iter()
        .map(|q| match q.hwm {
            Hwm::Auto => q.bounds.min,
            Hwm::Bytes(n) => n.get(),
            Hwm::Unlimited => 0,
        })
        .collect();
    let reserved: u64 =
        queues.iter().zip(&marks).map(|(q, m)| if q.hwm == Hwm::Unlimited { q.bounds.max } else { *m }).sum();
    let mut left = budget.saturating_sub(reserved);
    let mut order: Vec<usize> = (0..queues.len()).filter(|i| queues[*i].hwm == Hwm::Auto).collect();
    order.sort_by_key(|i| queues[*i].id);
    loop {
        let before = left;
        for &i in &order {
            if left > 0 && marks[i] < queues[i].bounds.max {
                marks[i] += 1;
                left -= 1;
            }
        }
        if left == before {
            return marks;
        }
    }
}

proptest! {
    #[test]
    fn a_division_is_what_single_bytes_give(budget in 0_u64..4000, queues in census()) {
        let division = divide(budget, &queues);
        prop_assert_eq!(&division.marks, &byte_by_byte(budget, &queues));
        prop_assert_eq!(division.bounded, queues.iter().all(|q| q.hwm != Hwm::Unlimited));
        prop_assert!(division.insufficient || division.planned <= budget, "{:?}", division);
        prop_assert!(division.manual <= division.planned);
        if division.bounded {
            prop_assert_eq!(division.planned, division.marks.iter().sum::<u64>());
        }
    }

    #[test]
    fn huge_numbers_neither_overflow_nor_loop(budget in any::<u64>(), bounds in any::<[u64; 6]>()) {
        let queues: Vec<Queue> = bounds
            .chunks(2)
            .enumerate()
            .map(|(i, b)| Queue { id: i as u64, bounds: QueueBounds { min: b[0].min(b[1]), max: b[0].max(b[1]) }, hwm: Hwm::Auto })
            .collect();
        for (mark, queue) in divide(budget, &queues).marks.iter().zip(&queues) {
            prop_assert!((queue.bounds.min..=queue.bounds.max).contains(mark));
        }
    }

    #[test]
    fn equal_links_get_what_the_table_gives_less_the_left_over(
        links in 1_u32..300,
        budget in 0_u64..(1 << 30),
        profile in prop::sample::select(&HwmProfile::ALL[..]),
        manual in prop::sample::select(vec![Hwm::Auto, Hwm::Unlimited, Hwm::Bytes(ByteSize::kib(300))]),
    ) {
        let hwm = HwmPlan { profile, source: LimitSource::Budget, limit: budget, send: manual, ..HwmPlan::default() };
        let marks = link_marks(&hwm, links);
        let table = divide(marks.budget, &link_queues(&hwm, links));
        prop_assert_eq!(marks.insufficient, table.insufficient);
        for (i, mark) in table.marks.iter().enumerate() {
            let of_link = if i % 2 == 0 { marks.send } else { marks.receive };
            prop_assert!(*mark == of_link || *mark == of_link + 1, "{} of {:?}", mark, marks);
        }
    }

    #[test]
    fn a_computed_budget_is_a_share_with_a_cap_that_gives_way(limit in any::<u64>(), queues in 0_u64..(1 << 40)) {
        for profile in HwmProfile::ALL {
            let budget = effective(profile, LimitSource::Hard, limit, queues);
            let minima = queues * profile.general().min;
            prop_assert!(budget <= share(limit, profile.percent()));
            prop_assert!(budget == share(limit, profile.percent()) || budget == profile.cap().max(minima));
            prop_assert!(budget <= effective(profile, LimitSource::Hard, limit, queues + 1));
        }
    }

    /// The marks in force were always computed for at least as many queues as there are, and once nothing
    /// has happened for long enough, for exactly as many.
    #[test]
    fn marks_in_force_never_assume_too_few_queues(steps in prop::collection::vec((0_u64..5000, 0_u64..9), 1..60)) {
        let (mut replan, mut now, mut present, mut in_force) = (Replan::new(4), Instant(0), 4, 4);
        let mut changed = now;
        for (ms, queues) in steps {
            let next = Instant(now.0 + ms * 1_000_000);
            let due = replan.poll_timeout();
            if due <= next && replan.handle_timeout(due) {
                prop_assert_eq!(due, changed.after(RAISE_AFTER));
                in_force = present;
            }
            prop_assert!(in_force == present || next < changed.after(RAISE_AFTER));
            now = next;
            present = queues;
            changed = now;
            if replan.on_census(queues, now) {
                in_force = queues;
            }
            prop_assert!(in_force >= present);
        }
    }
}
