//! Round trip of one request at a time, between two processes on loopback TCP.
//!
//! Rows: bare sockets on one connection, by calls that block (std) and over a poller (mio) that blocks, spins
//! 50 us before it blocks, or spins (the ceilings); and afflux under the same idle policies, called from a
//! thread, awaited, and from a shard.

mod common;

use common::callers::{self, By, Idle};
use common::report::Report;
use common::{Args, Rounds, Sample, serving};

fn main() {
    let args = Args::get();
    if let Some(what) = serving(&args) {
        callers::serve(&what);
    }
    let sizes = match args.size {
        Some(size) => vec![size],
        None if args.quick || !args.bench => vec![64],
        None => vec![64, 1024, 64 << 10],
    };
    let mut report = Report::new(&args);
    for size in sizes {
        let plan = callers::plan(&Idle::ALL, &By::ALL);
        let runs: Vec<_> = plan.iter().map(|row| (row.name(), || callers::measure(&args, *row, size, None))).collect();
        let rows: Vec<_> = runs.iter().map(|(name, run)| (&name[..], run as &dyn Fn() -> Sample)).collect();
        let rounds = Rounds::run(&args, &rows);
        let ceilings: Vec<_> = plan.iter().map(|row| (row.name(), row.ceiling())).collect();
        let ceilings: Vec<_> = ceilings.iter().map(|(row, ceiling)| (&row[..], &ceiling[..])).collect();
        report.add(&format!("rtt {size} B"), &rounds, &ceilings, |s| s.quantile_us(0.5));
    }
    report.write();
}
