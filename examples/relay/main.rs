//! The relay: lines become requests, a service stores each of them durably, exactly once, and only
//! then answers. Service and load are two hosts that speak over TCP, in one process or in two.
//!
//! ```text
//!   input ─▶ load ═▶ client host ══ TCP ══▶ service host ─▶ handler ─▶ batch ─▶ bridge ─▶ store's thread
//!              ▲     waiting room,          receive queues,                     permits     │ fsync
//!              │     send queues            permits                                         ▼
//!              └──────── the sequence of the commit ◀─────────── answers ◀────────────── result
//! ```
//!
//! ```text
//! cargo run --release --example relay
//! cargo run --release --example relay -- --input access.log --key 1 --seconds 20 --overload 3
//! cargo run --release --example relay -- --listen 0.0.0.0:7101 --store store
//! cargo run --release --example relay -- --connect 10.0.0.7:7101 --overload 3 --seconds 60 --out load
//! cargo run --release --example relay -- --verify load --store store
//! ```
//!
//! Once a second it prints what every stage holds, and everything that can hold something is a row of a
//! ledger that is printed at the start and compared at the end. What the store holds is read back from the
//! closed database before the counts are printed, and an invariant that does not hold makes the exit code 1.
//! Wrong options make it 2, all of them named, before anything is bound.

mod allocator;
mod answers;
mod args;
mod audit;
mod batcher;
mod chart;
mod counts;
mod drill;
mod input;
mod interrupt;
mod load;
mod memory;
mod priority;
mod record;
mod report;
mod run;
mod sample;
mod scratch;
mod served;
mod service;
mod sizes;
mod stages;
mod store;
mod table;
mod tenants;
mod times;
mod watch;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Role, Settings};

fn main() -> ExitCode {
    let settings = match Settings::check(&Args::parse()) {
        Ok(settings) => settings,
        Err(faults) => {
            eprintln!("relay: {} option(s) cannot be started with", faults.len());
            faults.iter().for_each(|fault| eprintln!("  {fault}"));
            return ExitCode::from(2);
        }
    };
    let end = match &settings.role {
        Role::Verify(out) => audit::verify(out, &settings.store),
        _ => run::run(settings),
    };
    match end {
        Ok(broken) if broken.is_empty() => ExitCode::SUCCESS,
        Ok(broken) => {
            broken.iter().for_each(|why| eprintln!("relay: {why}"));
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("relay: {e}");
            ExitCode::FAILURE
        }
    }
}
