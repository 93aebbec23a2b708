//! What the parts of the hot path cost, in nanoseconds per operation, beside the best known of their kind in
//! the same run: ring, permit gate, admission (mark, waiting room, claim), timer wheel, codec, wake. Ratios are of
//! neighbours of one round. (A semaphore of an async runtime is in `benches/peers`, `-- --permits`.)

mod common;
#[path = "common/parts.rs"]
mod parts;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use afflux::sync::mark::Mark;
use afflux::sync::ring::ring;
use afflux::sync::wake::WakeCell;
use common::nanos::{self, contend, until_over, window};
use common::{Args, Rounds, Sample, pin_other, serving};
use mio::{Events, Poll, Token, Waker};

/// On one thread: row, and the row that it is compared with.
const ALONE: [(&str, &str); 20] = [
    ("CAS pair", ""),
    ("permit", "CAS pair"),
    ("permit claimed by 16", "CAS pair"),
    ("mutex pair", "CAS pair"),
    ("mark", "CAS pair"),
    ("room", "CAS pair"),
    ("VecDeque item", ""),
    ("claim of 1 origin", "VecDeque item"),
    ("claim of 16 origins", "VecDeque item"),
    ("mio waker, awake", ""),
    ("wake cell, awake", "mio waker, awake"),
    ("rtrb item", ""),
    ("ring item", "rtrb item"),
    ("crossbeam-channel item", "rtrb item"),
    ("BTreeMap set and taken back", ""),
    ("timer set and taken back", "BTreeMap set and taken back"),
    ("copy of the bytes", ""),
    ("encode", "copy of the bytes"),
    ("copy of the payload", ""),
    ("decode", "copy of the payload"),
];

/// Between two processors.
const TWO: [(&str, &str); 12] = [
    ("two: CAS pair", ""),
    ("two: permit", "two: CAS pair"),
    ("two: mutex pair", "two: CAS pair"),
    ("two: mark", "two: CAS pair"),
    ("two: rtrb item", ""),
    ("two: ring item", "two: rtrb item"),
    ("two: crossbeam-channel item", "two: rtrb item"),
    ("two: rtrb hop", ""),
    ("two: ring hop", "two: rtrb hop"),
    ("two: crossbeam-channel hop", "two: rtrb hop"),
    ("two: mio waker parked", ""),
    ("two: wake cell parked", "two: mio waker parked"),
];

fn main() {
    let args = Args::get();
    assert!(serving(&args).is_none(), "this bench has one process");
    let rows: Vec<(&str, &str)> = ALONE.iter().chain(&TWO).copied().collect();
    let measures: Vec<_> = rows.iter().map(|(name, _)| (*name, || measure(&args, name))).collect();
    let measures: Vec<_> = measures.iter().map(|(name, run)| (*name, run as &dyn Fn() -> Sample)).collect();
    let rounds = Rounds::run(&args, &measures);
    nanos::report(&args, "micro", &rounds, &rows);
}

fn measure(args: &Args, name: &str) -> Sample {
    match name.strip_prefix("two: ") {
        None => until_over(args, 1 << 12, parts::work(name)),
        Some("CAS pair") => contend(args, Arc::new(AtomicU64::new(0)), |word, _| parts::cas_pair(word)),
        Some("mutex pair") => contend(args, Arc::new(Mutex::new(0)), |word, _| parts::lock_pair(word)),
        Some("mark") => contend(args, Arc::new(Mark::new(1 << 20)), |mark, _| parts::mark_pair(mark)),
        Some("permit") => contend(args, Arc::new(parts::gate(2)), parts::permit),
        Some(pair) if pair.ends_with("parked") => parked(args, pair.starts_with("wake")),
        Some(pair) => {
            let (kind, what) = pair.split_once(' ').expect("written above");
            let hop = what == "hop";
            match kind {
                "ring" => {
                    let (there, back) = (ring::<u64>(1024), ring::<u64>(1024));
                    let (mut tx, mut rx, mut from, mut to) = (there.0, back.1, there.1, back.0);
                    let other = (move || from.pop(), move |n| to.push(n).is_ok());
                    between(args, hop, (move |n| tx.push(n).is_ok(), move || rx.pop()), other)
                }
                "rtrb" => {
                    let (there, back) = (rtrb::RingBuffer::<u64>::new(1024), rtrb::RingBuffer::<u64>::new(1024));
                    let (mut tx, mut rx, mut from, mut to) = (there.0, back.1, there.1, back.0);
                    let other = (move || from.pop().ok(), move |n| to.push(n).is_ok());
                    between(args, hop, (move |n| tx.push(n).is_ok(), move || rx.pop().ok()), other)
                }
                _ => {
                    let (there, back) = (crossbeam_channel::bounded(1024), crossbeam_channel::bounded(1024));
                    let (tx, rx, from, to) = (there.0, back.1, there.1, back.0);
                    let other = (move || from.try_recv().ok(), move |n: u64| to.try_send(n).is_ok());
                    between(args, hop, (move |n| tx.try_send(n).is_ok(), move || rx.try_recv().ok()), other)
                }
            }
        }
    }
}

/// The end of the numbers.
const LAST: u64 = u64::MAX;

/// Numbers to a thread on the other processor, as fast as they are taken; or one at a time and back, of
/// which each way is a hop.
fn between(
    args: &Args,
    hop: bool,
    (mut push, mut pop): (impl FnMut(u64) -> bool, impl FnMut() -> Option<u64>),
    (mut take, mut give): (impl FnMut() -> Option<u64> + Send + 'static, impl FnMut(u64) -> bool + Send + 'static),
) -> Sample {
    let args_there = args.clone();
    let other = std::thread::spawn(move || {
        pin_other(&args_there);
        let mut expected = 0;
        loop {
            match take() {
                None => std::hint::spin_loop(),
                Some(LAST) => break,
                Some(n) => {
                    assert_eq!(n, expected, "in order");
                    expected += 1;
                    while hop && !give(n) {}
                }
            }
        }
        while !give(expected) {}
    });
    let mut next = 0;
    let mut send = |n: u64| {
        while !push(n) {
            std::hint::spin_loop();
        }
    };
    let mut sample = until_over(args, if hop { 1 << 7 } else { 1 << 12 }, |n| {
        for _ in 0..n {
            send(next);
            if hop {
                let back = loop {
                    match pop() {
                        Some(back) => break back,
                        None => std::hint::spin_loop(),
                    }
                };
                assert_eq!(back, next);
            }
            next += 1;
        }
    });
    send(LAST);
    while pop().is_none() {
        std::hint::spin_loop();
    }
    other.join().expect("it only counts");
    sample.count *= if hop { 2 } else { 1 };
    sample
}

/// From waking a thread that sleeps in its poller on the other processor until it says so.
fn parked(args: &Args, with_cell: bool) -> Sample {
    let mut poll = Poll::new().expect("a poller");
    let waker = Arc::new(Waker::new(poll.registry(), Token(0)).expect("a waker"));
    let by_cell = waker.clone();
    let cell = Arc::new(WakeCell::new(move || by_cell.wake().expect("an eventfd")));
    // Even: the sleeper is on its way to sleep. Odd: it was woken and is to say so.
    let turn = Arc::new(AtomicU64::new(0));
    let (args_there, cell_there, turn_there) = (args.clone(), cell.clone(), turn.clone());
    let other = std::thread::spawn(move || {
        pin_other(&args_there);
        let mut events = Events::with_capacity(4);
        loop {
            cell_there.prepare_sleep();
            let now = turn_there.load(Ordering::SeqCst);
            if now == LAST {
                return;
            }
            if now % 2 == 1 {
                cell_there.awake();
                turn_there.store(now + 1, Ordering::SeqCst);
                continue;
            }
            if cell_there.sleep_or_abort() {
                poll.poll(&mut events, None).expect("a poller");
                cell_there.awake();
            }
        }
    });
    let (mut slept, mut count, begin) = (Duration::ZERO, 0, Instant::now());
    let wake = || {
        if with_cell {
            cell.wake();
        } else {
            waker.wake().expect("an eventfd");
        }
    };
    while begin.elapsed() < 2 * window(args) {
        // Long enough to be asleep; not counted.
        let rest = Instant::now();
        while rest.elapsed() < Duration::from_micros(60) {
            std::hint::spin_loop();
        }
        let at = Instant::now();
        let next = 2 * count + 1;
        turn.store(next, Ordering::SeqCst);
        wake();
        while turn.load(Ordering::SeqCst) == next {
            std::hint::spin_loop();
        }
        slept += at.elapsed();
        count += 1;
    }
    turn.store(LAST, Ordering::SeqCst);
    waker.wake().expect("an eventfd");
    other.join().expect("it only sleeps");
    Sample::plain(count, slept.as_secs_f64())
}
