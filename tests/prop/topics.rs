use std::collections::BTreeSet;

use afflux::pattern::topics::Topics;
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Subscribe(u32, Vec<u8>),
    Cancel(u32, Vec<u8>),
    /// Of something that is subscribed to.
    CancelKnown(prop::sample::Index),
    Leave(u32),
    Match(Vec<u8>),
    /// Of a topic that goes on where a known prefix ends.
    MatchKnown(prop::sample::Index, Vec<u8>),
}

/// Few letters, so that prefixes have prefixes; and long ones, around a multiple of eight bytes.
fn topic() -> impl Strategy<Value = Vec<u8>> {
    let letter = || prop_oneof![4 => Just(b'a'), 3 => Just(b'b'), 1 => Just(0), 1 => Just(255)];
    prop_oneof![5 => vec(letter(), 0..7), 1 => vec(letter(), 7..26)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0_u32..5, topic()).prop_map(|(who, t)| Op::Subscribe(who, t)),
        1 => (0_u32..5, topic()).prop_map(|(who, t)| Op::Cancel(who, t)),
        4 => any::<prop::sample::Index>().prop_map(Op::CancelKnown),
        1 => (0_u32..5).prop_map(Op::Leave),
        2 => topic().prop_map(Op::Match),
        4 => (any::<prop::sample::Index>(), topic()).prop_map(|(which, rest)| Op::MatchKnown(which, rest)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// The oracle goes through all prefixes of all subscribers. With a hash of few bits many prefixes share one.
    #[test]
    fn a_walk_finds_what_a_look_at_everything_finds(
        ops in vec(op(), 0..120),
        bits in prop_oneof![Just(u64::MAX), Just(7), Just(0)],
    ) {
        let mut topics = Topics::with_hash_bits(bits);
        let mut all: BTreeSet<(u32, Vec<u8>)> = BTreeSet::new();
        for op in ops {
            let op = match op {
                Op::MatchKnown(which, rest) if !all.is_empty() => {
                    let known = &all.iter().nth(which.index(all.len())).unwrap().1;
                    Op::Match([&known[..], &rest[..]].concat())
                }
                Op::MatchKnown(_, rest) => Op::Match(rest),
                other => other,
            };
            match op {
                Op::MatchKnown(..) => unreachable!("made a plain one above"),
                Op::Subscribe(who, prefix) => {
                    prop_assert_eq!(topics.contains(who, &prefix), all.contains(&(who, prefix.clone())));
                    prop_assert_eq!(topics.subscribe(who, &prefix), all.insert((who, prefix)));
                }
                Op::Cancel(who, prefix) => {
                    prop_assert_eq!(topics.cancel(who, &prefix), all.remove(&(who, prefix)));
                }
                Op::CancelKnown(which) if !all.is_empty() => {
                    let known = all.iter().nth(which.index(all.len())).cloned().unwrap();
                    prop_assert!(topics.cancel(known.0, &known.1));
                    all.remove(&known);
                }
                Op::CancelKnown(_) => {}
                Op::Leave(who) => {
                    topics.leave(who);
                    all.retain(|(other, _)| *other != who);
                }
                Op::Match(topic) => {
                    let mut found = Vec::new();
                    topics.matches(&topic, |who| found.push(who));
                    found.sort_unstable();
                    let fit = all.iter().filter(|(_, prefix)| topic.starts_with(prefix)).map(|(who, _)| *who);
                    let expected: BTreeSet<u32> = fit.collect();
                    prop_assert!(found.iter().copied().eq(expected), "each once: {:?}", found);
                }
            }
            prop_assert_eq!(topics.len(), all.len() as u64);
            for who in 0..5 {
                prop_assert_eq!(topics.len_of(who), all.iter().filter(|(other, _)| *other == who).count());
            }
            let prefixes: BTreeSet<&[u8]> = all.iter().map(|(_, prefix)| &prefix[..]).collect();
            prop_assert_eq!(topics.prefixes(), prefixes.len());
        }
    }
}
