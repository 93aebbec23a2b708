use std::collections::VecDeque;
use std::sync::Arc;

use afflux::sync::ring::ring;
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Push,
    Pop,
    Drain(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![4 => Just(Op::Push), 2 => Just(Op::Pop), 1 => (0_usize..6).prop_map(Op::Drain)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// A bounded queue; and whichever half goes first, every item is dropped once.
    #[test]
    fn a_ring_is_a_bounded_queue(
        capacity_min in 0_usize..6,
        ops in vec(op(), 0..80),
        consumer_first: bool,
    ) {
        let token = Arc::new(());
        let (mut producer, mut consumer) = ring(capacity_min);
        let capacity = capacity_min.max(1).next_power_of_two();
        let mut oracle = VecDeque::new();
        prop_assert_eq!(producer.capacity(), capacity);

        for (n, op) in ops.into_iter().enumerate() {
            match op {
                Op::Push if oracle.len() < capacity => {
                    prop_assert!(producer.push((n, token.clone())).is_ok());
                    oracle.push_back(n);
                }
                Op::Push => {
                    let refused = producer.push((n, token.clone())).unwrap_err();
                    prop_assert_eq!(refused.0, n);
                }
                Op::Pop => prop_assert_eq!(consumer.pop().map(|(n, _)| n), oracle.pop_front()),
                Op::Drain(limit) => {
                    let mut taken = Vec::new();
                    let count = consumer.drain(limit, |(n, _)| taken.push(n));
                    let expected: Vec<_> = oracle.drain(..limit.min(oracle.len())).collect();
                    prop_assert_eq!(count, taken.len());
                    prop_assert_eq!(taken, expected);
                }
            }
            prop_assert_eq!(producer.free(), capacity - oracle.len());
            prop_assert_eq!((consumer.len(), consumer.is_empty()), (oracle.len(), oracle.is_empty()));
            prop_assert_eq!(Arc::strong_count(&token), 1 + oracle.len());
            prop_assert!(!producer.is_abandoned() && !consumer.is_abandoned());
        }

        if consumer_first {
            drop(consumer);
            prop_assert!(producer.is_abandoned());
            drop(producer);
        } else {
            drop(producer);
            prop_assert_eq!(consumer.is_abandoned(), oracle.is_empty());
            while let Some((n, _)) = consumer.pop() {
                prop_assert_eq!(Some(n), oracle.pop_front());
            }
            prop_assert!(consumer.is_abandoned());
            drop(consumer);
        }
        prop_assert_eq!(Arc::strong_count(&token), 1);
    }
}

/// A taken item is never taken again, even if whoever takes it unwinds.
#[test]
fn a_panic_in_a_batch_loses_one_item() {
    let (mut producer, mut consumer) = ring(4);
    (1..=3).for_each(|n| producer.push(n).unwrap());
    let batch = std::panic::AssertUnwindSafe(|| consumer.drain(3, |n| assert_ne!(n, 2, "planted")));
    std::panic::catch_unwind(batch).unwrap_err();
    assert_eq!(producer.free(), 3);
    assert_eq!(consumer.pop(), Some(3));
    assert_eq!(consumer.pop(), None);
}
