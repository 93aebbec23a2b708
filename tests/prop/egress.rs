//! The oracle is a list of byte strings: what goes out must be those, whole and in order, with
//! commands only between two of them, whatever the write sizes and slice counts were.

use std::collections::VecDeque;
use std::io::IoSlice;

use afflux::flow::egress::{COPY_MAX, Egress, Unbegun};
use bytes::Bytes;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    /// So many that are alike.
    Push {
        times: usize,
        head: usize,
        payload: usize,
    },
    Command(usize),
    Write {
        slices: usize,
        bytes: usize,
    },
    /// Records not begun whose number this divides are taken out.
    Drop(u32),
    Detach,
}

fn op() -> impl Strategy<Value = Op> {
    let payload = prop_oneof![6 => 0..200usize, 1 => COPY_MAX - 1..COPY_MAX + 2, 1 => 20_000..70_000usize];
    let bytes = prop_oneof![3 => 1..50usize, 3 => 50..5_000usize, 1 => 5_000..200_000usize];
    prop_oneof![
        5 => (1..5usize, 1..400usize, payload).prop_map(|(times, head, payload)| Op::Push { times, head, payload }),
        1 => (1..60usize).prop_map(Op::Command),
        4 => (1..6usize, bytes).prop_map(|(slices, bytes)| Op::Write { slices, bytes }),
        1 => (1..4u32).prop_map(Op::Drop),
        1 => Just(Op::Detach),
    ]
}

struct Model {
    /// (id, its bytes) not finished; the front may be begun.
    records: VecDeque<(u32, Vec<u8>)>,
    begun: usize,
    commands: VecDeque<u8>,
}

impl Model {
    /// The byte that has to go out next, and the record that it finishes.
    fn step(&mut self) -> (u8, Option<u32>) {
        if self.begun == 0
            && let Some(byte) = self.commands.pop_front()
        {
            return (byte, None);
        }
        let (id, bytes) = self.records.front().expect("the machine showed a byte that is not there");
        let (id, byte, len) = (*id, bytes[self.begun], bytes.len());
        self.begun += 1;
        if self.begun < len {
            return (byte, None);
        }
        self.begun = 0;
        self.records.pop_front();
        (byte, Some(id))
    }
}

proptest! {
    #[test]
    fn what_goes_out_is_what_was_queued(ops in prop::collection::vec(op(), 1..120)) {
        let mut egress = Egress::<u32>::new();
        let mut model = Model { records: VecDeque::new(), begun: 0, commands: VecDeque::new() };
        let mut next_id = 0u32;
        for op in ops {
            match op {
                Op::Push { times, head, payload } => {
                    next_id += 1;
                    let head: Vec<u8> = (0..head).map(|i| (i as u32 * 7 + next_id) as u8).collect();
                    let payload: Vec<u8> = (0..payload).map(|i| (i as u32 * 13 + next_id) as u8).collect();
                    let payload = Bytes::from(payload);
                    for _ in 0..times {
                        model.records.push_back((next_id, [&head[..], &payload[..]].concat()));
                        let charge = u64::from(next_id) + 1;
                        let head = |out: &mut Vec<u8>| out.extend_from_slice(&head);
                        if payload.len() <= COPY_MAX && next_id.is_multiple_of(2) {
                            let (first, rest) = payload.split_at(payload.len() / 3);
                            egress.push_copied(next_id, charge, head, first, rest);
                        } else {
                            egress.push(next_id, charge, head, &payload);
                        }
                    }
                }
                Op::Command(len) => {
                    prop_assert!(egress.push_raw(&vec![0xC0; len]));
                    model.commands.extend(std::iter::repeat_n(0xC0, len));
                }
                Op::Write { slices, bytes } => {
                    let mut out = vec![IoSlice::new(&[]); slices];
                    let used = egress.slices(&mut out);
                    prop_assert_eq!(used == 0, egress.is_empty());
                    let shown: Vec<u8> = out[..used].iter().flat_map(|s| s.iter().copied()).take(bytes).collect();
                    let mut finished = Vec::new();
                    for (i, byte) in shown.iter().enumerate() {
                        let (expected, id) = model.step();
                        prop_assert_eq!(*byte, expected, "byte {} of {}", i, shown.len());
                        finished.extend(id);
                    }
                    let mut reported = Vec::new();
                    egress.written(shown.len(), |record, charge, records| {
                        reported.extend(std::iter::repeat_n((record, charge), records));
                    });
                    let finished: Vec<_> = finished.into_iter().map(|id| (id, u64::from(id) + 1)).collect();
                    prop_assert_eq!(reported, finished);
                }
                Op::Drop(by) => {
                    let from = usize::from(model.begun > 0);
                    let mut shown = Vec::new();
                    egress.retain_unbegun(|r| {
                        let bytes = [&r.bytes[..], r.large.as_deref().unwrap_or_default()].concat();
                        shown.push((r.keep, r.charge, bytes));
                        r.keep % by > 0
                    });
                    let expected = model.records.iter().skip(from);
                    let expected: Vec<_> = expected.map(|(id, bytes)| (*id, u64::from(*id) + 1, bytes.clone())).collect();
                    prop_assert_eq!(shown, expected);
                    let behind = model.records.split_off(from.min(model.records.len()));
                    model.records.extend(behind.into_iter().filter(|(id, _)| id % by > 0));
                }
                Op::Detach => {
                    let gone = egress.detach();
                    let begun = if model.begun > 0 { model.records.pop_front().map(|r| r.0) } else { None };
                    prop_assert_eq!(gone.begun.map(|(record, _)| record), begun);
                    let whole = |r: Unbegun<u32>| (r.keep, r.charge, [&r.bytes[..], r.large.as_deref().unwrap_or_default()].concat());
                    let unbegun: Vec<_> = gone.unbegun.into_iter().map(whole).collect();
                    let expected = model.records.drain(..).map(|(id, bytes)| (id, u64::from(id) + 1, bytes));
                    let expected: Vec<_> = expected.collect();
                    prop_assert_eq!(unbegun, expected);
                    model.begun = 0;
                    model.commands.clear();
                }
            }
            let expected: usize = model.records.iter().map(|r| r.1.len()).sum::<usize>() - model.begun;
            prop_assert_eq!(egress.pending_bytes(), expected + model.commands.len());
            prop_assert_eq!(egress.staged_records(), model.records.len());
            prop_assert_eq!(egress.is_empty(), expected + model.commands.len() == 0);
            if model.records.is_empty() {
                prop_assert_eq!(egress.staging_capacity(), 0);
            }
        }
    }
}
