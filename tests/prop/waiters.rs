//! The oracle is a list that forgets an operation in the instant in which it is over.

use std::collections::HashSet;

use afflux::base::id::CellId;
use afflux::flow::waiters::Waiters;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Push,
    /// An operation that waits is over: deadline or cancel.
    End(prop::sample::Index),
    Front,
    Pop,
    Drain,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => Just(Op::Push),
        6 => any::<prop::sample::Index>().prop_map(Op::End),
        3 => Just(Op::Front),
        1 => Just(Op::Pop),
        1 => prop_oneof![9 => Just(Op::Front), 1 => Just(Op::Drain)],
    ]
}

proptest! {
    #[test]
    fn waits_like_a_list(live_max in 1..40usize, ops in prop::collection::vec(op(), 1..600)) {
        let mut waiters = Waiters::new(live_max);
        let mut model = Vec::<CellId>::new();
        let mut live = HashSet::<CellId>::new();
        let mut next = 0;
        for op in ops {
            match op {
                Op::Push => {
                    // The room lets no more in than that.
                    if model.len() < live_max {
                        // Few places, used again and again under new generations.
                        let id = CellId { index: next % 7, generation: next };
                        next += 1;
                        live.insert(id);
                        prop_assert_eq!(waiters.push(id, |id| live.contains(&id)), Ok(()));
                        model.push(id);
                    }
                }
                Op::End(which) => {
                    if !model.is_empty() {
                        let id = model.remove(which.index(model.len()));
                        live.remove(&id);
                    }
                }
                Op::Front => {
                    prop_assert_eq!(waiters.front(|id| live.contains(&id)), model.first().copied());
                }
                Op::Pop => {
                    if let Some(front) = waiters.front(|id| live.contains(&id)) {
                        prop_assert_eq!(waiters.pop(), Some(front));
                        prop_assert_eq!(model.remove(0), front);
                        live.remove(&front);
                    }
                }
                Op::Drain => {
                    let all: Vec<_> = waiters.drain().filter(|id| live.contains(id)).collect();
                    prop_assert_eq!(&all, &model);
                    model.clear();
                    live.clear();
                }
            }
            prop_assert!(waiters.len() >= model.len());
            prop_assert!(waiters.len() <= 2 * live_max);
        }
    }
}
