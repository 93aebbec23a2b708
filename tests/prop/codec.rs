//! The codec against an oracle that is written from the drawing alone, with arbitrary records,
//! frames, cuts and garbage.

use afflux::base::record::{Kind, Lane, Method, Record};
use afflux::base::unit::FRAMES_MAX;
use afflux::wire::decode::{Decoder, Item, Mode};
use afflux::wire::encode::{encode, wire_len};
use afflux::wire::error::WireError;
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use super::fuzz_bodies::{self, MAX_MESSAGE, MODES, cut, feed};

/// A frame as the drawing says, in the short form where it may be.
fn frame(flags: u8, body: &[u8], long: bool) -> Vec<u8> {
    let mut out = Vec::new();
    if long || body.len() > 255 {
        out.push(flags | 2);
        out.extend((body.len() as u64).to_be_bytes());
    } else {
        out.extend([flags, body.len() as u8]);
    }
    out.extend(body);
    out
}

/// A native record as the drawing says.
fn native(r: &Record) -> Vec<u8> {
    let mut body = vec![r.kind as u8, 0, r.method.as_str().len() as u8, r.depth];
    body.extend(r.channel.to_be_bytes());
    body.extend([0, 0]);
    body.extend(r.correlation.to_be_bytes());
    body.extend(r.expiry_ms.to_be_bytes());
    body.extend([0; 4]);
    body.extend(r.method.as_str().as_bytes());
    body.extend(&r.payload[..]);
    frame(0, &body, false)
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => vec(any::<u8>(), 0..300),
        1 => (2000usize..20_000, any::<u8>()).prop_map(|(n, b)| (0..n).map(|i| b.wrapping_add(i as u8)).collect()),
    ]
}

fn method() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-z/]{1,30}", "\\PC{0,63}", "[a-z]{200,255}"]
}

prop_compose! {
    fn record(lane: Lane)(
        first in any::<bool>(),
        depth in any::<u8>(),
        channel in any::<u16>(),
        correlation in any::<u64>(),
        expiry_ms in any::<u32>(),
        method in method(),
        mut payload in payload(),
    ) -> Record {
        let kind = match (lane, first) {
            (Lane::Application, true) => Kind::Message,
            (Lane::Application, false) => Kind::Request,
            (Lane::Completion, true) => Kind::Reply,
            (Lane::Completion, false) => Kind::Error,
        };
        if kind == Kind::Error {
            payload.resize(payload.len().clamp(2, 1026), b'.');
        }
        let method = Method::new(&method).expect("at most 255 bytes");
        Record { kind, depth, channel, correlation, expiry_ms, method, payload: payload.into(), envelope: None }
    }
}

/// Frames of a stock message, many of them empty, some in the long form without need.
fn message() -> impl Strategy<Value = Vec<(Vec<u8>, bool)>> {
    let body = prop_oneof![
        3 => Just(Vec::new()),
        3 => vec(any::<u8>(), 1..12),
        1 => "[a-z/]{1,260}".prop_map(String::into_bytes),
        1 => payload(),
    ];
    vec((body, any::<bool>()), 1..7)
}

fn written(message: &[(Vec<u8>, bool)]) -> Vec<u8> {
    let last = message.len() - 1;
    message.iter().enumerate().flat_map(|(i, (body, long))| frame(u8::from(i < last), body, *long)).collect()
}

/// What wire.md, section 4, says of a message of an asking or pushing peer.
fn stock_oracle(message: &[(Vec<u8>, bool)], asking: bool) -> String {
    let last = message.len() - 1;
    let delimiter = message[..last].iter().position(|(body, _)| asking && body.is_empty());
    let rest = &message[delimiter.map_or(0, |d| d + 1)..];
    let envelope = delimiter
        .map(|d| message[..=d].iter().flat_map(|(body, long)| frame(1, body, *long)).collect::<Vec<u8>>().into());
    match rest {
        [(route, _), (payload, _)] if route.len() <= 255 && std::str::from_utf8(route).is_ok() => {
            let method = Method::new(std::str::from_utf8(route).unwrap()).unwrap();
            let kind = if delimiter.is_some() { Kind::Request } else { Kind::Message };
            let payload = Bytes::copy_from_slice(payload);
            format!(
                "{:?}",
                Record { kind, depth: 0, channel: 0, correlation: 0, expiry_ms: 0, method, payload, envelope }
            )
        }
        _ => format!("malformed {envelope:?}"),
    }
}

fn stock_found(item: &Item) -> String {
    match item {
        Item::Record(r) => format!("{r:?}"),
        Item::Malformed(m) => format!("malformed {:?}", m.reply_to),
        other => format!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn native_records_are_written_as_drawn_and_come_back(
        records in vec(record(Lane::Application), 1..8),
        replies in vec(record(Lane::Completion), 1..8),
        seed in any::<u8>(),
        direct in any::<bool>(),
    ) {
        for (mode, records) in [(Mode::NativeApplication, records), (Mode::NativeCompletion, replies)] {
            let mut bytes = Vec::new();
            for r in &records {
                let before = bytes.len();
                encode(r, r.channel, &mut bytes);
                prop_assert_eq!(&bytes[before..], &native(r)[..]);
                prop_assert_eq!(bytes.len() - before, wire_len(r));
            }
            let fed = feed(mode, MAX_MESSAGE, cut(&bytes, seed), direct);
            prop_assert_eq!(fed.error, None);
            prop_assert_eq!(fed.items.len(), records.len());
            for (item, r) in fed.items.iter().zip(&records) {
                prop_assert_eq!(format!("{item:?}"), format!("Record({r:?})"));
            }
        }
    }

    #[test]
    fn records_that_are_thrown_away_leave_the_others_alone(
        replies in vec((record(Lane::Completion), any::<bool>()), 1..8),
        seed in any::<u8>(),
    ) {
        let bytes: Vec<u8> = replies.iter().flat_map(|(r, _)| native(r)).collect();
        let mut decoder = Decoder::new(Mode::NativeCompletion, MAX_MESSAGE);
        let (mut carry, mut at, mut chunks) = (Vec::new(), 0, cut(&bytes, seed).into_iter());
        while at < replies.len() {
            let (reply, keep) = &replies[at];
            let step = match decoder.peek_correlation(&carry) {
                Some(id) => {
                    prop_assert_eq!(id, reply.correlation);
                    if *keep { decoder.decode(&carry) } else { decoder.discard(&carry) }
                }
                // Not enough is here to decide by, or it was decided before.
                None if decoder.assembly().is_some() => decoder.decode(&carry),
                None => {
                    carry.extend_from_slice(chunks.next().expect("more is to come"));
                    continue;
                }
            }
            .unwrap();
            carry.drain(..step.consumed);
            prop_assert!(*keep || decoder.capacity() == 0);
            match step.item {
                Some(Item::Record(r)) => prop_assert_eq!(format!("{r:?}"), format!("{reply:?}")),
                Some(Item::Discarded) => prop_assert!(!keep),
                Some(other) => prop_assert!(false, "{:?}", other),
                None => {
                    carry.extend_from_slice(chunks.next().expect("more is to come"));
                    continue;
                }
            }
            at += 1;
        }
        prop_assert!(carry.is_empty() && chunks.next().is_none());
    }

    #[test]
    fn stock_messages_mean_what_the_oracle_says(messages in vec(message(), 1..5), seed in any::<u8>()) {
        for (mode, asking) in [(Mode::StockAsking, true), (Mode::StockPushing, false)] {
            let bytes: Vec<u8> = messages.iter().flat_map(|m| written(m)).collect();
            let fed = feed(mode, MAX_MESSAGE, cut(&bytes, seed), seed % 2 == 0);
            prop_assert_eq!(fed.error, None);
            let found: Vec<String> = fed.items.iter().map(stock_found).collect();
            let expected: Vec<String> = messages.iter().map(|m| stock_oracle(m, asking)).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn limits_hold_for_every_cut(messages in vec(message(), 1..4), max in 1u64..3000, seed in any::<u8>()) {
        let bytes: Vec<u8> = messages.iter().flat_map(|m| written(m)).collect();
        let size = |m: &Vec<(Vec<u8>, bool)>| m.iter().map(|(body, _)| body.len() as u64).sum::<u64>();
        let fitting = messages.iter().take_while(|m| size(m) <= max).count();
        for chunks in [vec![&bytes[..]], cut(&bytes, seed)] {
            let fed = feed(Mode::StockAsking, max, chunks, false);
            prop_assert_eq!(fed.items.len(), fitting);
            prop_assert_eq!(fed.error.is_some(), fitting < messages.len());
        }
    }

    #[test]
    fn garbage_is_an_error_or_an_item_and_nothing_else(data in vec(any::<u8>(), 0..400)) {
        for mode in 0..MODES.len() as u8 {
            let mut input = vec![mode, data.first().copied().unwrap_or(0)];
            input.extend(&data);
            fuzz_bodies::decode(&input);
            // Behind a greeting that is in order, garbage reaches the commands.
            let mut input = vec![mode | mode << 7, 3];
            input.extend(*b"\xff\0\0\0\0\0\0\0\0\x7f\x03\x01NULL");
            input.resize(2 + 64, 0);
            input.extend(&data);
            fuzz_bodies::handshake(&input);
        }
    }

    #[test]
    fn a_damaged_stream_is_no_worse_than_garbage(
        records in vec(record(Lane::Application), 1..6),
        messages in vec(message(), 1..4),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        seed in any::<u8>(),
    ) {
        let mut native: Vec<u8> = records.iter().flat_map(native).collect();
        let mut stock: Vec<u8> = messages.iter().flat_map(|m| written(m)).collect();
        for (at, byte) in damage {
            let (i, j) = (at.index(native.len()), at.index(stock.len()));
            native[i] ^= byte;
            stock[j] ^= byte;
        }
        for mode in 0..MODES.len() as u8 {
            for stream in [&native, &stock] {
                let mut input = vec![mode, seed];
                input.extend(stream);
                fuzz_bodies::decode(&input);
            }
        }
    }

    #[test]
    fn a_length_above_the_limit_is_refused_by_its_head(over in 1u64.., command in any::<bool>()) {
        for mode in MODES {
            // No limit of any mode is above this.
            let len = (MAX_MESSAGE + 300).saturating_add(over);
            let mut head = vec![if command { 6 } else { 2 }];
            head.extend(len.to_be_bytes());
            let mut decoder = Decoder::new(mode, MAX_MESSAGE);
            let refused = matches!(decoder.decode(&head), Err(WireError::TooLarge { size, .. }) if size == len);
            prop_assert!(refused);
            prop_assert_eq!(decoder.capacity(), 0);
        }
    }
}

#[test]
fn the_most_frames_pass_and_one_more_does_not() {
    for (count, ok) in [(FRAMES_MAX, true), (FRAMES_MAX + 1, false)] {
        let bytes = written(&vec![(Vec::new(), false); count]);
        let fed = feed(Mode::StockAsking, MAX_MESSAGE, bytes.chunks(5), false);
        assert_eq!(fed.error.is_none(), ok);
    }
}

/// The inputs that are kept, each once: what the fuzz targets found, and a start for them.
#[test]
fn the_corpus_is_clean() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/prop/corpus");
    type Body = fn(&[u8]);
    for (name, body) in [
        ("decode", fuzz_bodies::decode as Body),
        ("handshake", fuzz_bodies::handshake),
        ("frames", fuzz_bodies::frames),
    ] {
        let mut count = 0;
        for entry in std::fs::read_dir(corpus.join(name)).expect("the corpus is checked in") {
            let path = entry.expect("a readable folder").path();
            println!("{}", path.display());
            body(&std::fs::read(path).expect("a readable file"));
            count += 1;
        }
        assert!(count >= 8, "{count} inputs for {name}");
    }
}
