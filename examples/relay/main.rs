//! The relay: lines become requests, a service stores each of them durably, exactly once, and only
//! then answers. Service and load are two hosts in one process that speak over loopback TCP.
//!
//! ```text
//!   input ─▶ load ═▶ client host ══ TCP ══▶ service host ─▶ handler ─▶ bounded hand-over ─▶ store thread
//!              ▲                                                                              │ fsync
//!              └──────────── the sequence of the commit ◀── remote responder ◀────────────────┘
//! ```
//!
//! ```text
//! cargo run --release --example relay
//! cargo run --release --example relay -- --input access.log --key 1 --json report.json
//! ```
//!
//! The handler never blocks its shard: it hands the record over and is done. What the store holds is
//! read back from the closed database before the counts are printed, and an invariant that does not
//! hold makes the exit code 1. Wrong options make it 2, all of them named, before anything is bound.

mod args;
mod audit;
mod input;
mod interrupt;
mod load;
mod memory;
mod progress;
mod record;
mod report;
mod scratch;
mod service;
mod store;
mod tally;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use afflux::Host;
use clap::Parser;
use crossbeam_channel::bounded;

use args::{Args, Settings};
use audit::audit;
use load::Load;
use progress::Progress;
use report::{Report, Seen};
use store::Store;
use tally::Tally;

/// How long the client may take to find the service: it is in the same process.
const CONNECT: Duration = Duration::from_secs(10);
/// What is left to do after the load has ended, at most for so long: nothing is, unless something hangs.
const SHUTDOWN: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let settings = match Settings::check(&Args::parse()) {
        Ok(settings) => settings,
        Err(faults) => {
            eprintln!("relay: {} option(s) cannot be started with", faults.len());
            faults.iter().for_each(|fault| eprintln!("  {fault}"));
            return ExitCode::from(2);
        }
    };
    match run(settings) {
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

/// Runs to the end; what does not hold then, in words.
fn run(settings: Settings) -> Result<Vec<String>, Box<dyn Error>> {
    let Settings { sources, key, rounds, seconds, sizes, store, fresh, out, json } = settings;
    let stop = Arc::new(AtomicBool::new(false));
    interrupt::listen(stop.clone())?;
    std::fs::create_dir_all(&out)?;
    let store = Store::open(&store, fresh, key)?;
    let inputs = store.number(sources.iter().map(|source| source.identity()))?;
    let (path, before) = (store.path().to_owned(), store.last());
    let rss_before = memory::resident();

    let tally = Arc::new(Tally::default());
    let started = sizes.started()?;
    let (hand_over, jobs) = bounded(started as usize);
    let storing = store::spawn(store, jobs, tally.clone(), stop.clone())?;
    let service = service::start(&sizes, started, hand_over)?;
    let client = sizes.client().connect(format!("tcp://{}", service.addresses()[0])).links(sizes.links()).start()?;
    client.ready(CONNECT)?;

    let feed = input::feed(sources, inputs, rounds, client.plan().max_message as usize, &out)?;
    let progress = Progress::start(tally.clone())?;
    let mut load = Load::new(client.client().channel(service::CHANNEL), sizes.outstanding, tally.clone(), &out)?;
    let interrupted = load.run(&feed, seconds, &stop);
    progress.end();

    let seen = Seen {
        seconds: load.seconds(),
        latencies: client.dump(out.join("relay"))?,
        service: service.status(),
        client: client.status(),
        ledger: service::ledger_bytes(&service, &client, started, sizes.links() as u32),
        rss_before,
        rss_peak: memory::peak(),
    };
    service.dump(out.join("relay-service"))?;
    let left = end(client).into_iter().chain(end(service));
    let mut broken: Vec<String> = left.collect();
    broken.extend(interrupted.err().map(|e| e.to_string()));
    match storing.join() {
        Ok(Ok(())) => {}
        Ok(Err(e)) => broken.push(format!("the store: {e}")),
        Err(_) => broken.push("the store's thread panicked".into()),
    }

    let audit = audit(&path, before, load.answers()?)?;
    let report = Report::new(&tally, load.errors(), &audit, &seen);
    print!("{report}");
    println!("store {}, histograms {}.hlog and .hgrm", path.display(), out.join("relay").display());
    if let Some(json) = json {
        std::fs::write(&json, report.json()).map_err(|e| format!("--json {}: {e}", json.display()))?;
    }
    broken.extend(report.broken());
    Ok(broken)
}

/// Shuts a host down; what it could not deliver, in words.
fn end(host: Host) -> Option<String> {
    let name = host.plan().name.clone();
    let account = host.shutdown(SHUTDOWN);
    (!account.is_clean()).then(|| format!("{name} ended with work left: {account}"))
}
