//! Single parts of the crate, and what they are compared with: each a function that does so many
//! operations on the calling thread.

use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use afflux::base::id::ShardId;
use afflux::base::record::{Kind, Method, Record};
use afflux::base::time::Instant;
use afflux::flow::ingress::{Ingress, OriginKey, TurnOrder};
use afflux::flow::wheel::TimerWheel;
use afflux::sync::gate::{GateConfig, PermitGate};
use afflux::sync::mark::Mark;
use afflux::sync::ring::ring;
use afflux::sync::room::Room;
use afflux::sync::wake::WakeCell;
use afflux::wire::decode::{Decoder, Item, Mode};
use afflux::wire::encode::encode;
use bytes::Bytes;
use mio::{Poll, Token, Waker};

/// Does so many operations.
pub type Work = Box<dyn FnMut(u64)>;

/// Records of a turn: what is pushed before it is popped, and what one read holds.
pub const TURN: u64 = 64;
/// Permits of one claim.
const CLAIM: u32 = 16;

/// A gate that nobody has to wait at.
pub fn gate(shards: u16) -> PermitGate {
    let limit = 1 << 20;
    PermitGate::new(GateConfig { limit, shards, pause_at: limit - 1, resume_at: limit / 2 })
}

/// Takes a permit and returns it.
pub fn permit(gate: &PermitGate, shard: u16) {
    assert_eq!(gate.acquire(ShardId(shard), 1, Instant(0)), 1);
    let _ = gate.release(ShardId(shard), 1, Instant(0));
}

/// The least that a shared count with a limit can cost: a compare-and-swap up, and one down.
pub fn cas_pair(word: &AtomicU64) {
    for up in [true, false] {
        let change = |n: u64| if up { (n < 1 << 20).then_some(n + 1) } else { n.checked_sub(1) };
        black_box(word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, change)).expect("within the limit");
    }
}

/// The same under a lock.
pub fn lock_pair(word: &Mutex<u64>) {
    for step in [1, u64::MAX] {
        let mut count = word.lock().expect("nobody panics");
        *count = black_box(count.wrapping_add(step));
    }
}

/// Asks for room in a queue's mark and gives it back.
pub fn mark_pair(mark: &Mark) {
    mark.try_admit(black_box(128)).expect("room");
    let _ = mark.release(128);
}

/// Records that `origins` have are claimed, so many in a turn, with permits in hand: who is next, and what that
/// changes.
fn claims(origins: u32) -> Work {
    let mut ingress: Ingress<u32> = Ingress::new(TurnOrder::OldestFirst);
    (0..origins).for_each(|origin| ingress.attach(OriginKey(origin)));
    let mut now = Instant(0);
    Box::new(move |n| {
        for _ in 0..turns(n) {
            now = now.after(Duration::from_micros(1));
            (0..origins).for_each(|origin| ingress.offered(OriginKey(origin), TURN as u32 / origins, now));
            ingress.begin(TURN as u32);
            ingress.acquired(ingress.want());
            let mut claimed = 0;
            while let Some(pick) = black_box(ingress.next()) {
                claimed += pick.run;
                ingress.claimed(pick, pick.run, now);
            }
            assert_eq!((u64::from(claimed), ingress.finish()), (TURN, 0));
        }
    })
}

fn repeat(mut one: impl FnMut() + 'static) -> Work {
    Box::new(move |n| (0..n).for_each(|_| one()))
}

/// A record of 64 bytes.
pub fn record() -> Record {
    Record {
        kind: Kind::Request,
        depth: 0,
        channel: 3,
        correlation: 0x0102_0304_0506_0708,
        expiry_ms: 30_000,
        method: Method::new("place").expect("short"),
        payload: Bytes::from(vec![7; 64]),
        envelope: None,
    }
}

/// Whole turns, or it would do more than it is asked for.
fn turns(n: u64) -> u64 {
    n / TURN
}

/// The work of that name.
pub fn work(name: &str) -> Work {
    match name {
        "permit" => {
            let gate = gate(2);
            repeat(move || permit(&gate, 0))
        }
        "permit claimed by 16" => {
            let gate = gate(2);
            Box::new(move |n| {
                for _ in 0..n / u64::from(CLAIM) {
                    assert_eq!(gate.acquire(ShardId(0), CLAIM, Instant(0)), CLAIM);
                    for _ in 0..CLAIM {
                        let _ = gate.release(ShardId(0), 1, Instant(0));
                    }
                }
            })
        }
        "CAS pair" => {
            let word = AtomicU64::new(0);
            repeat(move || cas_pair(&word))
        }
        "mutex pair" => {
            let word = Mutex::new(0);
            repeat(move || lock_pair(&word))
        }
        "mark" => {
            let mark = Mark::new(1 << 20);
            repeat(move || mark_pair(&mark))
        }
        "room" => {
            let room = Room::new(4096, 64 << 20);
            repeat(move || {
                room.enter(black_box(128)).expect("room");
                room.leave(128);
            })
        }
        "claim of 1 origin" => claims(1),
        "claim of 16 origins" => claims(16),
        // Who is next, where nobody's age counts.
        "VecDeque item" => {
            let mut queue = VecDeque::with_capacity(TURN as usize);
            Box::new(move |n| {
                for _ in 0..turns(n) {
                    (0..TURN).for_each(|i| queue.push_back(black_box(i)));
                    (0..TURN).for_each(|i| assert_eq!(queue.pop_front(), Some(i)));
                }
            })
        }
        // Its target is awake and will look by itself.
        "wake cell, awake" => {
            let poll = Poll::new().expect("a poller");
            let waker = Waker::new(poll.registry(), Token(0)).expect("a waker");
            let cell = WakeCell::new(move || waker.wake().expect("an eventfd"));
            Box::new(move |n| {
                let _poll = &poll;
                (0..n).for_each(|_| assert!(!black_box(&cell).wake()));
                assert_eq!(cell.wakes(), 0, "it was called for a target that is awake");
            })
        }
        "mio waker, awake" => {
            let poll = Poll::new().expect("a poller");
            let waker = Waker::new(poll.registry(), Token(0)).expect("a waker");
            Box::new(move |n| {
                let _poll = &poll;
                (0..n).for_each(|_| waker.wake().expect("an eventfd"));
            })
        }
        "ring item" => {
            let (mut tx, mut rx) = ring::<u64>(2 * TURN as usize);
            Box::new(move |n| {
                for _ in 0..turns(n) {
                    (0..TURN).for_each(|i| tx.push(i).expect("room"));
                    (0..TURN).for_each(|i| assert_eq!(rx.pop(), Some(i)));
                }
            })
        }
        "rtrb item" => {
            let (mut tx, mut rx) = rtrb::RingBuffer::<u64>::new(2 * TURN as usize);
            Box::new(move |n| {
                for _ in 0..turns(n) {
                    (0..TURN).for_each(|i| tx.push(i).expect("room"));
                    (0..TURN).for_each(|i| assert_eq!(rx.pop(), Ok(i)));
                }
            })
        }
        "crossbeam-channel item" => {
            let (tx, rx) = crossbeam_channel::bounded::<u64>(2 * TURN as usize);
            Box::new(move |n| {
                for _ in 0..turns(n) {
                    (0..TURN).for_each(|i| tx.try_send(i).expect("room"));
                    (0..TURN).for_each(|i| assert_eq!(rx.try_recv(), Ok(i)));
                }
            })
        }
        "timer set and taken back" => {
            let mut wheel = TimerWheel::new(4096);
            let mut now = Instant(0);
            // The deadlines of others.
            for i in 0..1000 {
                wheel.insert(now.after(Duration::from_millis(40_000 + i)), i).expect("room");
            }
            repeat(move || {
                now = now.after(Duration::from_nanos(500));
                let key = wheel.insert(now.after(Duration::from_secs(30)), 1).expect("room");
                black_box(wheel.cancel(key)).expect("it is set");
            })
        }
        "BTreeMap set and taken back" => {
            let mut timers: BTreeMap<(u64, u64), u64> = BTreeMap::new();
            let mut now = 0;
            for i in 0..1000 {
                timers.insert((40_000_000_000 + i * 1_000_000, i), i);
            }
            repeat(move || {
                now += 500;
                let key = (now + 30_000_000_000, now);
                timers.insert(key, 1);
                black_box(timers.remove(&key)).expect("it is set");
            })
        }
        "encode" => {
            let (record, mut out) = (record(), Vec::with_capacity(1 << 16));
            Box::new(move |n| {
                for _ in 0..turns(n) {
                    out.clear();
                    (0..TURN).for_each(|_| encode(black_box(&record), 3, &mut out));
                    black_box(&out);
                }
            })
        }
        "decode" => {
            let mut input = Vec::new();
            (0..TURN).for_each(|_| encode(&record(), 3, &mut input));
            let mut decoder = Decoder::new(Mode::NativeApplication, 1 << 20);
            Box::new(move |n| {
                for _ in 0..turns(n) {
                    let mut at = 0;
                    for _ in 0..TURN {
                        let step = decoder.decode(black_box(&input[at..])).expect("as encoded");
                        at += step.consumed;
                        assert!(matches!(step.item, Some(Item::Record(_))));
                    }
                    assert_eq!(at, input.len());
                }
            })
        }
        // What a decoder cannot do without: a payload of its own.
        "copy of the payload" => {
            let input = vec![7u8; 64];
            repeat(move || drop(black_box(Bytes::copy_from_slice(black_box(&input)))))
        }
        "copy of the bytes" => {
            let (input, mut out) = (vec![7u8; 95], Vec::with_capacity(1 << 16));
            Box::new(move |n| {
                for _ in 0..turns(n) {
                    out.clear();
                    (0..TURN).for_each(|_| out.extend_from_slice(black_box(&input)));
                    black_box(&out);
                }
            })
        }
        other => panic!("no work is called {other}"),
    }
}
