use afflux::sync::baton::{Asked, Baton, Held, PostBaton, PostHeld, Released};
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Take,
    Ask,
    Release,
    Drop,
    Retire,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => Just(Op::Take),
        3 => Just(Op::Ask),
        4 => Just(Op::Release),
        1 => Just(Op::Drop),
        1 => Just(Op::Retire),
    ]
}

#[derive(Clone, Debug)]
enum PostOp {
    Take,
    Post,
    Drain,
    Release,
    Drop,
}

fn post_op() -> impl Strategy<Value = PostOp> {
    prop_oneof![
        4 => Just(PostOp::Take),
        4 => Just(PostOp::Post),
        2 => Just(PostOp::Drain),
        4 => Just(PostOp::Release),
        1 => Just(PostOp::Drop),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// One holder, one note. The note is set only while it is held and taken down only by a
    /// release; a holder that is dropped leaves it up.
    #[test]
    fn a_baton_has_one_holder_and_one_note(ops in vec(op(), 0..80)) {
        let baton = Baton::new(0_u32);
        let mut held: Option<Held<u32>> = None;
        let (mut takes, mut note, mut retired) = (0, false, false);

        for op in ops {
            match op {
                Op::Take => {
                    let taken = baton.try_take();
                    prop_assert_eq!(taken.is_some(), held.is_none());
                    if let Some(mut taken) = taken {
                        *taken += 1;
                        takes += 1;
                        prop_assert_eq!(*taken, takes);
                        held = Some(taken);
                    }
                }
                Op::Ask | Op::Retire => {
                    retired |= matches!(op, Op::Retire);
                    let asked = if matches!(op, Op::Ask) { baton.ask() } else { baton.retire() };
                    prop_assert_eq!(asked, if held.is_some() { Asked::Busy } else { Asked::Free });
                    note |= held.is_some();
                }
                Op::Release => {
                    if let Some(held) = held.take() {
                        let expected = if note { Released::MoreWork } else { Released::Clean };
                        prop_assert_eq!(held.release(), expected);
                        note = false;
                    }
                }
                Op::Drop => held = None,
            }
            prop_assert_eq!(baton.is_retired(), retired);
        }
    }

    /// Records come out in the order in which they were posted, and while the baton is free
    /// (unless a holder was dropped) nothing lies in the inbox.
    #[test]
    fn an_inbox_is_empty_whenever_nobody_holds(ops in vec(post_op(), 0..80)) {
        let baton = PostBaton::new(Vec::new());
        let mut held: Option<PostHeld<Vec<usize>, usize>> = None;
        // Since the last look of a release: whether one was posted to a holder.
        let (mut left, mut written, mut asked) = (Vec::new(), Vec::new(), false);

        for (n, op) in ops.into_iter().enumerate() {
            match op {
                PostOp::Take => {
                    let taken = baton.try_take();
                    prop_assert_eq!(taken.is_some(), held.is_none());
                    held = held.or(taken);
                }
                PostOp::Post => {
                    left.push(n);
                    let taken = baton.post(n);
                    prop_assert_eq!(taken.is_some(), held.is_none());
                    asked |= held.is_some();
                    held = held.or(taken);
                }
                PostOp::Drain => {
                    if let Some(held) = &mut held {
                        prop_assert_eq!(held.drain_posts(Vec::push), left.len());
                        written.append(&mut left);
                    }
                }
                PostOp::Release => {
                    if let Some(mut last) = held.take() {
                        last.drain_posts(Vec::push);
                        written.append(&mut left);
                        held = last.release();
                        prop_assert_eq!(held.is_some(), asked, "goes on holding iff one was posted meanwhile");
                        asked = false;
                    }
                }
                PostOp::Drop => held = None,
            }
            if let Some(held) = &held {
                prop_assert_eq!(&**held, &written);
            }
        }
    }
}
