//! Both sides of a link in one world: a state that swings, a teller that is polled now and then, a
//! wire that may repeat and swap what it carries. What is heard in the end must be the state, and
//! the link was never told twice within a millisecond.

use afflux::base::time::Instant;
use afflux::flow::pressure::{Heard, Hearing, TELL_INTERVAL, Tell, Told};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Swing,
    Advance(u64),
    Poll,
    /// Deliver one of those on the way; true: it stays there and will come again.
    Deliver(prop::sample::Index, bool),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => Just(Op::Swing),
        2 => (0..2_000_000u64).prop_map(Op::Advance),
        3 => Just(Op::Poll),
        2 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(which, again)| Op::Deliver(which, again)),
    ]
}

proptest! {
    #[test]
    fn what_is_heard_in_the_end_is_the_state(ops in prop::collection::vec(op(), 1..200)) {
        let (mut told, mut heard) = (Told::default(), Heard::default());
        let (mut paused, mut epoch, mut now) = (false, 0u64, 0u64);
        let mut wire = Vec::<(bool, u64)>::new();
        let mut told_at = None::<u64>;
        let (mut newest, mut heard_newest, mut stale) = (None::<(bool, u64)>, None::<u64>, 0);
        let settle = [Op::Advance(2_000_000), Op::Poll];
        for op in ops.into_iter().chain(settle) {
            match op {
                Op::Swing => {
                    paused = !paused;
                    epoch += 1;
                }
                Op::Advance(by) => now += by,
                Op::Poll => match told.poll(paused, Instant(now)) {
                    Tell::Now => {
                        let interval = TELL_INTERVAL.as_nanos() as u64;
                        prop_assert!(told_at.is_none_or(|at| now - at >= interval));
                        prop_assert!(newest.is_none_or(|(told, _)| told != paused), "told what was known");
                        told_at = Some(now);
                        newest = Some((paused, epoch));
                        wire.push((paused, epoch));
                    }
                    Tell::At(at) => {
                        prop_assert!(at.0 > now && told_at.is_some_and(|told| at.0 <= told + 1_000_000));
                    }
                    Tell::Nothing => prop_assert_eq!(newest.map(|n| n.0), Some(paused)),
                },
                Op::Deliver(which, again) => {
                    if !wire.is_empty() {
                        let at = which.index(wire.len());
                        let (state, epoch) = if again { wire[at] } else { wire.remove(at) };
                        let hearing = heard.on_told(state, epoch, Instant(now));
                        if heard_newest.is_none_or(|newest| epoch > newest) {
                            prop_assert_ne!(hearing, Hearing::Stale);
                            prop_assert_eq!(heard.paused_since().is_some(), state);
                            heard_newest = Some(epoch);
                        } else {
                            prop_assert_eq!(hearing, Hearing::Stale);
                            stale += 1;
                        }
                        prop_assert_eq!(heard.stale(), stale);
                    }
                }
            }
        }
        prop_assert_eq!(newest.map(|n| n.0), Some(paused), "a poll a little later tells the last state");
        for (state, epoch) in wire {
            heard.on_told(state, epoch, Instant(now));
        }
        prop_assert_eq!(heard.paused_since().is_some(), paused);
    }
}
