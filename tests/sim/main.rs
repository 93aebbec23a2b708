//! The whole system under a virtual clock: hosts of the product's own engines, connections that
//! tear and freeze, hosts that die and return, callers and handlers with a will of their own, all drawn
//! from one seed.
//!
//! ```text
//!   cargo test --test sim                                  a few seeds
//!   AFFLUX_SEEDS=1000 cargo test --release --test sim      many
//!   AFFLUX_SEED=17 cargo test --test sim -- --nocapture    that one, and what it does
//!   AFFLUX_MINUTES=60 cargo test --release --test sim      seeds that nobody has tried, for an hour
//! ```
//!
//! AFFLUX_OPS=n makes each seed's run so many operations long. The same seed gives the same run. A
//! failure prints its seed, the options drawn from it and the event after which it was found; no seed is
//! begun after it, except in a run for so many minutes.

mod agenda;
mod book;
mod checkers;
mod coverage;
mod interrupt;
mod net;
mod node;
mod script;
mod stage;
mod still;
mod stock;
mod swarm;
mod tap;
mod world;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, Once};
use std::time::Duration;

use coverage::Coverage;
use swarm::Swarm;
use world::{Outcome, World};

/// Operations of callers in one run; nested ones come on top.
const OPS: usize = 5_000;

/// Seeds that are tried without being asked for others.
const SEEDS: u64 = 16;

/// From so many seeds on every state must have been reached.
const COVERED: u64 = 500;

/// Without being asked for seeds, none is begun after this time.
const TIME: Duration = Duration::from_secs(60);

fn simulate(seed: u64, ops: usize) -> (Outcome, Coverage) {
    World::new(seed, Swarm::draw(seed, ops), number("AFFLUX_SEED").is_some()).run()
}

/// Panics that handlers are told to have are no news.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.payload().downcast_ref::<&str>() != Some(&"a planned panic") {
                before(info);
            }
        }));
    });
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")))
}

/// What all seeds came to, together.
#[derive(Default)]
struct Sum {
    coverage: Coverage,
    failed: BTreeSet<u64>,
    tried: u64,
    operations: usize,
    turns: u64,
}

impl Sum {
    fn add(&mut self, seed: u64, ops: usize, (outcome, coverage): (Outcome, Coverage)) {
        self.coverage.merge(&coverage);
        self.tried += 1;
        self.operations += outcome.operations;
        self.turns += outcome.turns;
        if !outcome.faults.is_empty() {
            println!("seed {seed}: {:#?}\n{:?}", outcome.faults, Swarm::draw(seed, ops));
            self.failed.insert(seed);
        }
    }
}

#[test]
fn promises_hold_whatever_happens() {
    quiet_panics();
    let ops = number("AFFLUX_OPS").map_or(OPS, |n| n as usize);
    if let Some(seed) = number("AFFLUX_SEED") {
        println!("{:#?}", Swarm::draw(seed, ops));
        let (outcome, coverage) = simulate(seed, ops);
        coverage.print();
        println!("{outcome:#?}");
        return assert!(outcome.faults.is_empty(), "seed {seed} breaks a promise");
    }
    let minutes = number("AFFLUX_MINUTES").map(|n| Duration::from_secs(60 * n));
    let asked = number("AFFLUX_SEEDS");
    // A long run begins at a number that nobody has begun at: the second that it is.
    let first = minutes.map_or(0, |_| {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs() << 20)
    });
    let end = if minutes.is_some() { u64::MAX } else { asked.unwrap_or(SEEDS) };
    let time = minutes.or(asked.is_none().then_some(TIME));
    let began = std::time::Instant::now();
    let (next, over, sum) = (AtomicU64::new(first), AtomicBool::new(false), Mutex::new(Sum::default()));
    // A world is one thread's; worlds have nothing in common.
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while time.is_none_or(|time| began.elapsed() < time) && !over.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let run = simulate(seed, ops);
                    // A long run goes on to the end of its time.
                    over.fetch_or(minutes.is_none() && !run.0.faults.is_empty(), Ordering::Relaxed);
                    sum.lock().unwrap().add(seed, ops, run);
                }
            });
        }
    });
    let Sum { coverage, failed, tried, operations, turns } = sum.into_inner().unwrap();
    let rate = operations as f64 / began.elapsed().as_secs_f64();
    println!("{tried} seeds, {operations} operations, {turns} turns, {rate:.0} operations per second\nreached:");
    coverage.print();
    if minutes.is_none() && tried < end {
        println!("time is up: {} seeds are left out, and what was reached is not judged", end - tried);
    }
    assert!(failed.is_empty(), "seeds {failed:?} break a promise; AFFLUX_SEED=n replays one");
    if tried >= COVERED {
        let never = coverage.never();
        assert!(never.is_empty(), "nothing is proved about states that were never reached: {never:?}");
    }
}

#[test]
fn a_seed_is_a_run() {
    quiet_panics();
    for seed in [3, 5] {
        let (first, second) = (simulate(seed, 1_000).0, simulate(seed, 1_000).0);
        assert_eq!(first.trace, second.trace, "seed {seed} went two ways");
        assert_ne!(first.trace, simulate(seed + 100, 1_000).0.trace);
    }
}
