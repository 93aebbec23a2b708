//! Requests with many outstanding, between two processes on loopback TCP: the rate, and the time of each.
//!
//! Rows as in the bench of round trips, for each size and number outstanding: bare sockets, which may put as
//! many messages in a write as they have to send (the ceilings), and afflux, called from a thread that
//! submits, from as many tasks that await, and from a shard.

mod common;

use clap::Parser;
use common::callers::{self, By, Idle, Row};
use common::raw::Std;
use common::report::Report;
use common::{Args, Rounds, Sample, serving};

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    args: Args,
    /// Numbers of requests outstanding, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64, 256, 1024])]
    outstanding: Vec<usize>,
}

fn main() {
    let mut options = Options::parse();
    options.args.prepare();
    let args = &options.args;
    if let Some(what) = serving(args) {
        callers::serve(&what);
    }
    let (mut sizes, mut outstanding, mut idles) = (vec![64, 1024, 64 << 10], options.outstanding, &Idle::ALL[..]);
    if !args.bench {
        (sizes, outstanding) = (vec![64, 64 << 10], vec![64]);
    } else if args.quick {
        (sizes, idles) = (vec![64], &Idle::ALL[..2]);
        outstanding.retain(|n| *n > 1);
    }
    if let Some(size) = args.size {
        sizes = vec![size];
    }
    let mut report = Report::new(args);
    for (size, n) in sizes.iter().flat_map(|size| outstanding.iter().map(move |n| (*size, *n))) {
        let mut plan = callers::plan(idles, &By::ALL);
        // One thread with blocking calls cannot have more on its way than the sockets hold.
        plan.retain(|row| *row != Row::Std || size * n <= Std::MOST);
        let runs: Vec<_> =
            plan.iter().map(|row| (row.name(), || callers::measure(args, *row, size, Some(n)))).collect();
        let rows: Vec<_> = runs.iter().map(|(name, run)| (&name[..], run as &dyn Fn() -> Sample)).collect();
        eprintln!("{size} B, {n} outstanding");
        let rounds = Rounds::run(args, &rows);
        let ceilings: Vec<_> = plan.iter().map(|row| (row.name(), row.ceiling())).collect();
        let ceilings: Vec<_> = ceilings.iter().map(|(row, ceiling)| (&row[..], &ceiling[..])).collect();
        report.add(&format!("pipeline {size} B, {n} outstanding"), &rounds, &ceilings, Sample::rate);
    }
    report.write();
}
