//! Publications from a calling thread to 1, 10, 100 and 1,000 subscribers, counted where they arrive, between two
//! processes on loopback TCP; and what finding the subscribers costs among 10, 1,000 and 100,000 subscriptions.
//!
//! Rows: one thread that writes the same bytes to as many sockets, 64 KiB at a time (the ceiling), and afflux, with
//! the policy that drops nothing. The receiver is the same in both: a poll loop that counts bytes.

mod common;

use std::hint::black_box;
use std::time::{Duration, Instant};

use afflux::pattern::topics::Topics;
use common::subscribers::{publish, serve, write_all};
use common::{Args, Rounds, Sample, serving};

const SUBSCRIBERS: [usize; 4] = [1, 10, 100, 1000];

type Measure = Box<dyn Fn() -> Sample>;

fn main() {
    let args = Args::get();
    if let Some(what) = serving(&args) {
        serve(&what);
    }
    let size = args.size.unwrap_or(64);
    let few = if args.bench { &SUBSCRIBERS[..] } else { &SUBSCRIBERS[..2] };
    let names: Vec<_> = few.iter().map(|n| (format!("raw x {n}"), format!("afflux x {n}"), *n)).collect();
    let mut measures: Vec<(&str, Measure)> = Vec::new();
    for (raw, afflux, n) in &names {
        let (own, n) = (args.clone(), *n);
        measures.push((raw, Box::new(move || write_all(&own, size, n))));
        let own = args.clone();
        measures.push((afflux, Box::new(move || publish(&own, size, n))));
    }
    let rows: Vec<_> = measures.iter().map(|(name, run)| (*name, &**run)).collect();
    let ceilings: Vec<_> = names.iter().map(|(raw, afflux, _)| (&**afflux, &**raw)).collect();
    let rounds = Rounds::run(&args, &rows);
    rounds.report(&args, &format!("fan-out of {size} B, per delivery"), &ceilings, Sample::rate);

    let mut args = args;
    args.json = args.json.map(|path| path.with_extension("topics.json"));
    let finding = |n| {
        let window = args.window() / 4;
        move || find(window, n)
    };
    let rounds = Rounds::run(
        &args,
        &[
            ("find among 10", &finding(10)),
            ("find among 1000", &finding(1000)),
            ("find among 100000", &finding(100_000)),
            ("look at 1000", &|| look(args.window() / 4, 1000)),
        ],
    );
    let against = [
        ("find among 1000", "find among 10"),
        ("find among 100000", "find among 10"),
        ("look at 1000", "find among 1000"),
    ];
    rounds.report(&args, "subscribers of a topic", &against, |s| s.secs / s.count as f64);
}

// ---- finding

/// The n-th of many topics: some hundred venues, the rest instruments.
fn topic(n: u32) -> String {
    format!("prices/{:03}/{:08x}/", n % 300, n.wrapping_mul(0x9E37_79B9))
}

/// Topics in an order that no cache knows before.
fn asked(n: u32) -> Vec<String> {
    let mut order = 0u32;
    let next = |_| {
        order = order.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        format!("{}bid", topic((order >> 8) % n))
    };
    (0..4096).map(next).collect()
}

/// Each subscription is somebody else's, and each topic has one subscriber.
fn find(window: Duration, n: u32) -> Sample {
    let mut topics = Topics::new();
    for who in 0..n {
        topics.subscribe(who, topic(who).as_bytes());
    }
    let asked = asked(n);
    let (begin, mut found, mut walks) = (Instant::now(), 0u64, 0u64);
    while begin.elapsed() < window {
        for topic in &asked {
            topics.matches(topic.as_bytes(), |who| found += u64::from(black_box(who) < n));
        }
        walks += asked.len() as u64;
    }
    assert_eq!(found, walks);
    Sample::plain(walks, begin.elapsed().as_secs_f64())
}

/// What it would be to compare with each prefix.
fn look(window: Duration, n: u32) -> Sample {
    let prefixes: Vec<String> = (0..n).map(topic).collect();
    let asked = asked(n);
    let (begin, mut found, mut looks) = (Instant::now(), 0u64, 0u64);
    while begin.elapsed() < window {
        for topic in &asked[..64] {
            found += black_box(&prefixes).iter().filter(|prefix| topic.starts_with(prefix.as_str())).count() as u64;
        }
        looks += 64;
    }
    assert_eq!(found, looks);
    Sample::plain(looks, begin.elapsed().as_secs_f64())
}
