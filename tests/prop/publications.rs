use std::collections::VecDeque;
use std::io::IoSlice;

use afflux::base::time::Instant;
use afflux::flow::egress::Egress;
use afflux::flow::publications::{Amount, Publication, Publications, Pushed};
use afflux::plan::SlowSubscriber;
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Publish(usize),
    Stage,
    /// The subscriber takes so many bytes.
    Take(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => prop_oneof![0_usize..300, 1_900_usize..2_200, 8_000_usize..9_000].prop_map(Op::Publish),
        2 => Just(Op::Stage),
        2 => prop_oneof![1_usize..200, 1_usize..20_000].prop_map(Op::Take),
    ]
}

const MARK: u64 = 8_000;
const HEAD: usize = 8;

/// A numbered publication of `len` bytes behind its head.
fn publication(n: u64, len: usize) -> Publication {
    let mut head = n.to_be_bytes().to_vec();
    let small = HEAD + len <= 2_048;
    let payload = Bytes::from(vec![n as u8; len]);
    if small {
        head.extend_from_slice(&payload);
    }
    Publication { head: head.into(), payload: if small { Bytes::new() } else { payload }, charge: len as u64 + 96 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Against a plain list: what is queued, what is dropped, what arrives, and that nothing is in two places.
    #[test]
    fn everything_published_is_taken_dropped_or_there(ops in vec(op(), 0..150), oldest in any::<bool>()) {
        let slow = if oldest { SlowSubscriber::DropOldest } else { SlowSubscriber::DropNewest };
        let queue = Publications::new(MARK, slow);
        let mut egress = Egress::new();
        // Number, length: not staged, and staged.
        let (mut waiting, mut staged) = (VecDeque::new(), VecDeque::new());
        let (mut dropped, mut written) = (Amount::default(), Amount::default());
        let (mut stream, mut expected) = (Vec::new(), Vec::new());
        let charge = |len: usize| len as u64 + 96;
        let mut number = 0;
        for op in ops {
            match op {
                Op::Publish(len) => {
                    let sum = |list: &VecDeque<(u64, usize)>| list.iter().map(|(_, len)| charge(*len)).sum::<u64>();
                    let pushed = queue.push(&publication(number, len), Instant(0));
                    let nothing = waiting.is_empty() && staged.is_empty();
                    let mut lost = Amount::default();
                    if oldest {
                        while sum(&waiting) + sum(&staged) + charge(len) > MARK && let Some((_, old)) = waiting.pop_front() {
                            lost.add(charge(old));
                        }
                    } else if !nothing && sum(&waiting) + sum(&staged) + charge(len) > MARK {
                        prop_assert_eq!(pushed, Pushed::Dropped { stalled: false });
                        dropped.add(charge(len));
                        number += 1;
                        continue;
                    }
                    prop_assert_eq!(pushed, Pushed::Queued { first: nothing, oldest: lost });
                    dropped.records += lost.records;
                    dropped.bytes += lost.bytes;
                    waiting.push_back((number, len));
                    number += 1;
                    // One that found nothing else may be larger than the mark; with the oldest dropped, beside
                    // what is staged.
                    let most = MARK.max(charge(len) + if oldest { sum(&staged) } else { 0 });
                    prop_assert!(queue.outstanding().bytes <= most);
                }
                Op::Stage => {
                    let before = egress.staged_records();
                    queue.stage(&mut egress);
                    for _ in before..egress.staged_records() {
                        let (number, len) = waiting.pop_front().unwrap();
                        expected.extend_from_slice(&number.to_be_bytes());
                        expected.extend(std::iter::repeat_n(number as u8, len));
                        staged.push_back((number, len));
                    }
                }
                Op::Take(n) => {
                    let mut slices = [IoSlice::new(&[]); 64];
                    let used = egress.slices(&mut slices);
                    let bytes: Vec<u8> = slices[..used].iter().flat_map(|s| s.iter().copied()).take(n).collect();
                    stream.extend_from_slice(&bytes);
                    let mut amount = Amount::default();
                    egress.written(bytes.len(), |(), charge, records| (0..records).for_each(|_| amount.add(charge)));
                    for _ in 0..amount.records {
                        written.add(charge(staged.pop_front().unwrap().1));
                    }
                    queue.note_written(amount);
                }
            }
            let there = queue.outstanding();
            let bytes: u64 = waiting.iter().chain(&staged).map(|(_, len)| charge(*len)).sum();
            prop_assert_eq!(there, Amount { records: (waiting.len() + staged.len()) as u64, bytes });
            prop_assert_eq!(written.records + dropped.records + there.records, number);
        }
        prop_assert!(expected.starts_with(&stream), "in order, whole, each once");
        let there = queue.outstanding();
        prop_assert_eq!(queue.close(), there);
        prop_assert_eq!(queue.outstanding(), Amount::default());
    }
}
