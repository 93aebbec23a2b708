//! The oracle keeps the items themselves. Every batch obeys all three bounds, no item is lost, and
//! nothing waits beyond its age or into its reserve.

use std::time::Duration;

use afflux::base::time::Instant;
use afflux::policy::batch::{Batch, BatchLimits, ClosedBy, Joined};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Bytes, and how long from now the deadline is; `None`: never.
    Offer(u64, Option<u64>),
    Advance(u64),
    Poll,
    Flush,
}

fn op() -> impl Strategy<Value = Op> {
    let bytes = prop_oneof![4 => 0..40u64, 1 => 40..200u64];
    prop_oneof![
        6 => (bytes, prop::option::of(0..200u64)).prop_map(|(bytes, deadline)| Op::Offer(bytes, deadline)),
        2 => (0..60u64).prop_map(Op::Advance),
        2 => Just(Op::Poll),
        1 => Just(Op::Flush),
    ]
}

#[derive(Clone, Copy)]
struct Item {
    bytes: u64,
    came: u64,
    deadline: u64,
}

proptest! {
    #[test]
    fn every_batch_obeys_every_bound(
        items in 1..8usize, bytes in 1..120u64, age in 0..80u64, reserve in 0..40u64,
        ops in prop::collection::vec(op(), 1..150),
    ) {
        let ns = Duration::from_nanos;
        let mut batch = Batch::new(BatchLimits { items, bytes, age: ns(age), reserve: ns(reserve) });
        let mut filling = Vec::<Item>::new();
        let mut now = 0;
        let due = |filling: &[Item]| {
            let age = filling.first().map(|item| item.came + age);
            let dated = filling.iter().filter(|item| item.deadline < u64::MAX);
            age.into_iter().chain(dated.map(|item| item.deadline.saturating_sub(reserve))).min()
        };
        for op in ops {
            let closed = match op {
                Op::Advance(by) => {
                    now += by;
                    None
                }
                Op::Poll => batch.poll(Instant(now)),
                Op::Flush => batch.flush(),
                Op::Offer(size, deadline) => {
                    let deadline = deadline.map_or(u64::MAX, |d| now + d);
                    let item = Item { bytes: size, came: now, deadline };
                    let mut joined = batch.offer(size, Instant(deadline), Instant(now));
                    if let Joined::Refused(by) = joined {
                        let sum = filling.iter().map(|item| item.bytes).sum::<u64>() + size;
                        prop_assert!(!filling.is_empty(), "an empty batch refuses nothing");
                        match by {
                            ClosedBy::Bytes => prop_assert!(sum > bytes),
                            _ => prop_assert!(due(&filling).is_some_and(|due| due <= now)),
                        }
                        filling.clear();
                        joined = batch.offer(size, Instant(deadline), Instant(now));
                    }
                    filling.push(item);
                    prop_assert!(filling.len() <= items);
                    let sum: u64 = filling.iter().map(|item| item.bytes).sum();
                    prop_assert!(sum <= bytes || filling.len() == 1, "{} bytes in {} items", sum, filling.len());
                    match joined {
                        Joined::Open => None,
                        Joined::Closed(by) => Some(by),
                        Joined::Refused(_) => return Err(TestCaseError::fail("refused by an empty batch")),
                    }
                }
            };
            if let Some(by) = closed {
                let sum: u64 = filling.iter().map(|item| item.bytes).sum();
                match by {
                    ClosedBy::Items => prop_assert_eq!(filling.len(), items),
                    ClosedBy::Bytes => prop_assert!(sum >= bytes),
                    ClosedBy::Age => prop_assert!(filling[0].came + age <= now),
                    ClosedBy::Deadline => prop_assert!(due(&filling).is_some_and(|due| due <= now)),
                    ClosedBy::Flush => prop_assert!(!filling.is_empty()),
                }
                filling.clear();
            } else if matches!(op, Op::Poll) {
                prop_assert!(due(&filling).is_none_or(|due| due > now), "it should have been closed");
            }
            prop_assert_eq!(batch.items(), filling.len());
            prop_assert_eq!(batch.due().map(|due| due.0), due(&filling));
        }
    }
}
