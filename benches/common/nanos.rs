//! Operations of some nanoseconds: how they are repeated, by one thread and by two at once, and their table.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use serde_json::json;

use super::report::spread;
use super::{Args, Rounds, Sample, machine, median, pin_other};

/// Prints the table and writes the figures. `rows`: row, and the row that it is compared with.
pub fn report(args: &Args, bench: &str, rounds: &Rounds, rows: &[(&str, &str)]) {
    println!("{bench}: {}; two: between two processors", machine(args));
    println!("{:<30} {:>10}  {:<20} against", "", "ns", "ratio (least - most)");
    let mut out = BTreeMap::new();
    for (name, samples) in rounds.rows() {
        let ns = |s: &Sample| s.secs * 1e9 / s.count as f64;
        let median_ns = median(samples.iter().map(ns).collect());
        let against = rows.iter().find(|(row, _)| row == name).map_or("", |(_, against)| against);
        let ratios = rounds.ratios(name, against, ns);
        let ratio = median(ratios.clone());
        let text = spread(&ratios);
        println!("{name:<30} {median_ns:>10.1}  {text:<20} {}", if ratios.is_empty() { "" } else { against });
        out.insert(name, json!({"ns": median_ns, "ratio": (!ratios.is_empty()).then_some(ratio), "ratios": ratios, "against": against}));
    }
    if let Some(path) = &args.json {
        let all = json!({"bench": bench, "machine": machine(args), "rounds": args.rounds, "rows": out});
        let text = serde_json::to_string_pretty(&all).expect("plain values");
        fs::write(path, text + "\n").unwrap_or_else(|e| panic!("--json {}: {e}", path.display()));
    }
}

/// A tenth of the time that the benches of whole hosts take: these repeat within nanoseconds.
pub fn window(args: &Args) -> Duration {
    args.window() / 10
}

/// Repeats `some` operations until the window is over.
pub fn until_over(args: &Args, some: u64, mut work: impl FnMut(u64)) -> Sample {
    work(some);
    let (begin, mut count) = (Instant::now(), 0);
    while begin.elapsed() < window(args) {
        work(some);
        count += some;
    }
    Sample::plain(count, begin.elapsed().as_secs_f64())
}

/// Two threads at one word: time per operation of one of them.
pub fn contend<T: Send + Sync + 'static>(args: &Args, shared: Arc<T>, one: fn(&T, u16)) -> Sample {
    let over = Arc::new(AtomicBool::new(false));
    let (started, go) = mpsc::channel();
    let other = {
        let (args, shared, over) = (args.clone(), shared.clone(), over.clone());
        std::thread::spawn(move || {
            pin_other(&args);
            started.send(()).expect("the other waits");
            while !over.load(Ordering::Relaxed) {
                (0..64).for_each(|_| one(&shared, 1));
            }
        })
    };
    go.recv().expect("the other starts");
    let sample = until_over(args, 1 << 10, |n| (0..n).for_each(|_| one(&shared, 0)));
    over.store(true, Ordering::Relaxed);
    other.join().expect("it only counts");
    sample
}
