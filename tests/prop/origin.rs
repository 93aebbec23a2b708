//! The oracle is a list of (id, charge) and the admission rule as a sentence.

use std::collections::VecDeque;

use afflux::base::record::{Kind, Method, Record};
use afflux::base::time::Instant;
use afflux::flow::backlog::{CHUNK, ChunkPool};
use afflux::flow::origin::{Admit, Origin};
use bytes::Bytes;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    /// A record in one piece, if admitted; else the source parks.
    Offer(u32),
    /// A record in pieces: begun if admitted.
    Begin(u32),
    Grow(u32),
    Finish,
    Claim,
    Mark(u64),
    /// The connection is lost in the middle of a record.
    Abandon,
    Drain,
}

fn op() -> impl Strategy<Value = Op> {
    let payload = || prop_oneof![4 => 0..300u32, 1 => 300..3_000u32];
    prop_oneof![
        6 => payload().prop_map(Op::Offer),
        2 => payload().prop_map(Op::Begin),
        2 => (1..800u32).prop_map(Op::Grow),
        2 => Just(Op::Finish),
        6 => Just(Op::Claim),
        1 => prop_oneof![Just(0), 1..2_000u64].prop_map(Op::Mark),
        1 => Just(Op::Abandon),
        1 => Just(Op::Drain),
    ]
}

fn record(id: u64, payload: u32) -> Record {
    Record {
        kind: Kind::Request,
        depth: 0,
        channel: 0,
        correlation: id,
        expiry_ms: 0,
        method: Method::new("m").unwrap(),
        payload: Bytes::from(vec![0; payload as usize]),
        envelope: None,
    }
}

/// Section 2 of the rules, for a queue with the given complete charges and assembly.
fn rule(mark: u64, complete: u64, count: usize, assembly: Option<(u64, bool)>, charge: u64) -> Admit {
    let outstanding = complete + assembly.map_or(0, |a| a.0);
    if mark == 0 || outstanding + charge <= mark {
        Admit::Yes
    } else if count == 0 && charge > mark && !assembly.is_some_and(|(_, oversize)| oversize) {
        Admit::Oversize
    } else {
        Admit::No
    }
}

proptest! {
    #[test]
    fn accounts_like_a_list(mark in prop_oneof![Just(0u64), 64..1_500u64], ops in prop::collection::vec(op(), 1..250)) {
        let mut pool = ChunkPool::new(1);
        let mut origin = Origin::new(mark);
        let mut mark = mark;
        let mut queue = VecDeque::<(u64, u64)>::new();
        // (id, payload, charge, larger than the mark)
        let mut assembly = None::<(u64, u32, u64, bool)>;
        let mut drawn = 0;
        let mut parked = false;
        let mut id = 0;
        for op in ops {
            id += 1;
            let complete: u64 = queue.iter().map(|r| r.1).sum();
            let assembling = assembly.map(|(_, _, charge, oversize)| (charge, oversize));
            match op {
                Op::Offer(payload) | Op::Begin(payload) if assembly.is_none() => {
                    let charge = u64::from(payload) + 1 + 64;
                    let admit = origin.admits(charge);
                    prop_assert_eq!(admit, rule(mark, complete, queue.len(), assembling, charge));
                    match (admit, matches!(op, Op::Begin(_))) {
                        (Admit::No, _) => {
                            prop_assert!(origin.park(), "no admission, yet nothing that could wake it");
                            parked = true;
                        }
                        (_, true) => {
                            origin.reserve(charge);
                            assembly = Some((id, payload, charge, admit == Admit::Oversize));
                        }
                        (_, false) => {
                            if admit == Admit::Oversize {
                                drawn += origin.excess(charge);
                            }
                            let record = record(id, payload);
                            let charge = record.charge();
                            origin.offer(&mut pool, record, charge, Instant(id));
                            queue.push_back((id, charge));
                        }
                    }
                }
                Op::Grow(bytes) if assembly.is_some() => {
                    let expected = origin.draw(u64::from(bytes));
                    prop_assert!(expected == 0 || assembly.is_some_and(|a| a.3));
                    prop_assert_eq!(origin.grow(u64::from(bytes)), expected);
                    drawn += expected;
                }
                Op::Finish => {
                    if let Some((id, payload, charge, _)) = assembly.take() {
                        origin.offer(&mut pool, record(id, payload), charge, Instant(id));
                        queue.push_back((id, charge));
                    }
                }
                Op::Claim => {
                    let expected = queue.pop_front();
                    let claimed = origin.claim(&mut pool);
                    prop_assert_eq!(claimed.as_ref().map(|c| (c.popped.record.correlation, c.popped.charge)), expected);
                    if let (Some(claimed), Some((id, charge))) = (claimed, expected) {
                        prop_assert_eq!(claimed.popped.stamp, id);
                        drawn -= claimed.drawn;
                        let left = complete - charge + assembling.map_or(0, |a| a.0);
                        let resume = parked && (queue.is_empty() || left <= mark.div_ceil(2));
                        prop_assert_eq!(claimed.resume, resume);
                        parked &= !resume;
                    }
                }
                Op::Mark(new) => {
                    let raised = new == 0 || (mark != 0 && new > mark);
                    prop_assert_eq!(origin.set_mark(new), parked && raised);
                    parked &= !raised;
                    mark = new;
                }
                Op::Abandon => {
                    let in_queue = drawn;
                    drawn -= origin.abandon();
                    prop_assert!(assembly.is_some() || drawn == in_queue);
                    prop_assert!(drawn == 0 || origin.holds_oversize());
                    assembly = None;
                }
                Op::Drain => {
                    let gone = origin.drain(&mut pool, |_| ());
                    prop_assert_eq!((gone.records, gone.bytes), (queue.len() as u64, complete));
                    drawn -= gone.drawn;
                    prop_assert_eq!(drawn, 0);
                    queue.clear();
                    assembly = None;
                    parked = false;
                }
                _ => {}
            }
            let complete: u64 = queue.iter().map(|r| r.1).sum();
            prop_assert_eq!(origin.outstanding(), complete + assembly.map_or(0, |a| a.2));
            prop_assert_eq!(origin.len(), queue.len());
            prop_assert_eq!(origin.is_parked(), parked);
            prop_assert_eq!(origin.oldest(), queue.front().map(|r| Instant(r.0)));
            prop_assert!(!parked || !queue.is_empty(), "parked with nothing that could wake it");
            prop_assert!(origin.peak() >= origin.outstanding());
            // What is charged is what is held, up to a chunk begun and a chunk not used up.
            prop_assert!(pool.in_use() as u64 <= complete.div_ceil(CHUNK as u64 - 64) + 2);
            if queue.is_empty() {
                prop_assert_eq!(pool.in_use(), 0);
                prop_assert!(assembly.is_some() || drawn == 0);
            }
        }
    }
}
