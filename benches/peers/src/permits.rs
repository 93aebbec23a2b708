//! A permit of a host beside one of tokio's semaphore, taken and returned by one thread and by two at once.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::sync::Semaphore;

use crate::common::nanos::{self, contend, until_over};
use crate::common::{Args, Rounds, Sample, serving};
use crate::parts;

const ROWS: [(&str, &str); 6] = [
    ("CAS pair", ""),
    ("tokio Semaphore", "CAS pair"),
    ("permit", "tokio Semaphore"),
    ("two: CAS pair", ""),
    ("two: tokio Semaphore", "two: CAS pair"),
    ("two: permit", "two: tokio Semaphore"),
];

fn semaphore() -> Semaphore {
    Semaphore::new(1 << 20)
}

fn pair(semaphore: &Semaphore) {
    drop(semaphore.try_acquire().expect("nobody has that many"));
}

pub fn bench(args: &Args) {
    assert!(serving(args).is_none(), "this bench has one process");
    let measure = |name: &str| match name {
        "tokio Semaphore" => {
            let semaphore = semaphore();
            until_over(args, 1 << 12, |n| (0..n).for_each(|_| pair(&semaphore)))
        }
        "two: CAS pair" => contend(args, Arc::new(AtomicU64::new(0)), |word, _| parts::cas_pair(word)),
        "two: tokio Semaphore" => contend(args, Arc::new(semaphore()), |semaphore, _| pair(semaphore)),
        "two: permit" => contend(args, Arc::new(parts::gate(2)), parts::permit),
        name => until_over(args, 1 << 12, parts::work(name)),
    };
    let runs: Vec<_> = ROWS.iter().map(|(name, _)| (*name, || measure(name))).collect();
    let rows: Vec<_> = runs.iter().map(|(name, run)| (*name, run as &dyn Fn() -> Sample)).collect();
    nanos::report(args, "permits", &Rounds::run(args, &rows), &ROWS);
}
