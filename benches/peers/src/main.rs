//! afflux beside libzmq and bare sockets: the same workloads, two pinned processes, interleaved rounds, and
//! ratios of neighbours of the same round. Prints a Markdown table; `--markdown FILE` and `--json FILE`
//! write it down.

#[path = "../../common/mod.rs"]
mod common;
#[path = "../../common/curves.rs"]
mod curves;
mod libzmq;
mod load_curve;
#[path = "../../common/openloop.rs"]
mod openloop;
#[path = "../../common/parts.rs"]
mod parts;
mod permits;
#[cfg(feature = "tarpc")]
mod rpc;
mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use afflux::{Host, IdlePolicy};
use clap::Parser;
use common::counters::{Tool, slope, system_calls};
use common::load::{self, Caller, Sender};
use common::raw::{Raw, Stream};
use common::{Args, Rounds, Sample, Server, Usage, finish, hosts, raw, serving, subscribers, timed};
use libzmq::{Dealer, Push, Shape};
use serde_json::{Value, json};
use table::Table;

#[derive(Parser)]
#[command(about = "afflux, libzmq, tarpc and bare sockets, the same work in turn; a table of ratios")]
#[group(skip)] // `open` is a group of that name already.
struct Options {
    #[command(flatten)]
    args: Args,
    /// Write the table here
    #[arg(long)]
    markdown: Option<PathBuf>,
    /// Count system calls, context switches and instructions per operation instead of measuring times
    #[arg(long)]
    counts: bool,
    /// Offer 10 to 300 % of the capacity instead, each request at its own time
    #[arg(long)]
    openloop: bool,
    /// Compare taking and returning a permit with a semaphore of tokio instead
    #[arg(long)]
    permits: bool,
    #[command(flatten)]
    open: openloop::Options,
}

/// Who is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum System {
    /// Bare sockets: the ceiling.
    Raw,
    /// The same, looking for bytes for a while before it sleeps.
    RawSpin,
    Libzmq,
    Afflux,
    AffluxSpin,
    #[cfg(feature = "tarpc")]
    Tarpc,
    /// A stock client on a ROUTER, and on an afflux host.
    StockOnLibzmq,
    StockOnAfflux,
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Load {
    Rtt,
    Pipeline(usize),
    OneWay,
    /// Publications to so many subscribers.
    FanOut(usize),
}

impl System {
    fn name(self) -> &'static str {
        match self {
            System::Raw => "bare sockets",
            System::RawSpin => "bare sockets, spin 50 us",
            System::Libzmq => "libzmq",
            System::Afflux => "afflux",
            System::AffluxSpin => "afflux, spin 50 us",
            #[cfg(feature = "tarpc")]
            System::Tarpc => "tarpc",
            System::StockOnLibzmq => "libzmq client on libzmq",
            System::StockOnAfflux => "libzmq client on afflux",
        }
    }

    /// What its server is told, see [`serve`].
    fn server(self, load: Load, size: usize) -> String {
        let oneway = load == Load::OneWay;
        match self {
            System::Raw | System::RawSpin if oneway => format!("raw-count {size}"),
            System::Raw => format!("raw {size}"),
            System::RawSpin => format!("raw-spin {size}"),
            System::Libzmq if oneway => "zmq-count 0".into(),
            System::Libzmq => "zmq 0".into(),
            System::StockOnLibzmq => "zmq-call 0".into(),
            System::Afflux | System::StockOnAfflux => "afflux 0".into(),
            System::AffluxSpin => "afflux-spin 0".into(),
            #[cfg(feature = "tarpc")]
            System::Tarpc => "tarpc 0".into(),
        }
    }
}

fn serve(what: &str) -> ! {
    let (what, size) = what.split_once(' ').expect("written by System::server");
    let size = size.parse().expect("written by System::server");
    match what {
        "raw" => raw::serve(size, Duration::ZERO),
        "raw-spin" => raw::serve(size, hosts::SPIN),
        "raw-count" => raw::count(size),
        "zmq" => libzmq::serve(Shape::Bare),
        "zmq-call" => libzmq::serve(Shape::Call),
        "zmq-count" => libzmq::count(),
        #[cfg(feature = "tarpc")]
        "tarpc" => rpc::serve(),
        "afflux" => hosts::serve(IdlePolicy::Park),
        "afflux-spin" => hosts::serve(IdlePolicy::SpinThenPark(hosts::SPIN)),
        other => panic!("cannot serve {other}"),
    }
}

/// Who sends, over what connects him.
enum Client {
    Caller(Box<dyn Caller>),
    Sender(Box<dyn Sender>),
}

fn connect(server: &Server, system: System, load: Load, size: usize) -> (Option<Host>, Client) {
    let host = match system {
        System::Afflux => Some(hosts::connect(server, IdlePolicy::Park)),
        System::AffluxSpin => Some(hosts::connect(server, IdlePolicy::SpinThenPark(hosts::SPIN))),
        _ => None,
    };
    let client = if load == Load::OneWay {
        Client::Sender(match (system, &host) {
            (_, Some(host)) => Box::new(hosts::Teller::new(host, size)),
            (System::Libzmq, _) => Box::new(Push::connect(server, size)),
            _ => Box::new(Stream::connect(server, size)),
        })
    } else {
        let spin = if system == System::RawSpin { hosts::SPIN } else { Duration::ZERO };
        Client::Caller(match (system, &host) {
            (_, Some(host)) => Box::new(hosts::Asker::new(host, size)),
            #[cfg(feature = "tarpc")]
            (System::Tarpc, _) => Box::new(rpc::Calls::connect(server, size)),
            (System::Libzmq, _) => Box::new(Dealer::connect(server, size, Shape::Bare)),
            (System::StockOnLibzmq | System::StockOnAfflux, _) => Box::new(Dealer::connect(server, size, Shape::Call)),
            _ => Box::new(Raw::connect(server, size, spin)),
        })
    };
    (host, client)
}

/// One window.
fn measure(args: &Args, system: System, load: Load, size: usize) -> Sample {
    if let Load::FanOut(n) = load {
        return match system {
            System::Libzmq => libzmq::publish(args, size, n),
            System::Raw => subscribers::write_all(args, size, n),
            _ => subscribers::publish(args, size, n),
        };
    }
    let mut server = Server::spawn(args, &system.server(load, size));
    let (_host, client) = connect(&server, system, load, size);
    match (client, load) {
        (Client::Sender(mut sender), _) => load::oneway(args, &mut server, size, &mut *sender),
        (Client::Caller(mut caller), Load::Pipeline(n)) => load::pipeline(args, &server, n, &mut *caller),
        (Client::Caller(mut caller), _) => timed(args, &server, || caller.ask()),
    }
}

/// So many operations, for a tool that counts; what the process itself can tell.
fn run(args: &Args, system: System, load: Load, size: usize, ops: u64) -> Value {
    let mut server = Server::spawn(args, &system.server(load, size));
    let (_host, client) = connect(&server, system, load, size);
    let before = (Usage::own(), server.usage());
    match (client, load) {
        (Client::Sender(mut sender), _) => load::tell_exactly(&mut server, &mut *sender, ops),
        (Client::Caller(mut caller), Load::Pipeline(n)) => load::ask_exactly(&mut *caller, Some(n), ops),
        (Client::Caller(mut caller), _) => load::ask_exactly(&mut *caller, None, ops),
    }
    let sample = finish(ops, 1.0, None, before, &server);
    json!({"switches": sample.switches})
}

/// System calls, context switches and instructions per operation, both processes together.
fn counts(args: &Args, plan: &[Workload]) -> Vec<Value> {
    let calls = system_calls();
    let instructions = Tool::Callgrind.works().then_some(Tool::Callgrind);
    println!("\n| workload | system | system calls | context switches | instructions outside the kernel |");
    println!("|---|---|---:|---:|---:|");
    let mut rows = Vec::new();
    for Workload { name, load, systems, .. } in plan.iter().filter(|w| w.size <= 64 && args.wants(w.name)) {
        for system in systems.iter().filter(|s| !matches!(s, System::AffluxSpin | System::RawSpin)) {
            let ops = match load {
                Load::Rtt => 8_000,
                Load::Pipeline(_) => 80_000,
                Load::OneWay => 400_000,
                Load::FanOut(_) => continue,
            };
            let row = format!("{name}/{}", system.name());
            let count = |tool: Option<Tool>, ops: u64| {
                let found = tool.map(|tool| slope(tool, &row, (ops / 4, ops)));
                found.map(|found| found.unwrap_or_else(|e| panic!("{row}: {e}")))
            };
            eprintln!("{row}");
            let (by_kernel, by_callgrind) = (count(calls, ops), count(instructions, ops / 4));
            let all = |found: &Option<(BTreeMap<String, f64>, Value)>| {
                found.as_ref().and_then(|(c, _)| c.get("all").copied())
            };
            let switches = by_kernel.as_ref().and_then(|(_, said)| said["switches"].as_f64());
            let cell = |n: Option<f64>, digits: usize| n.map_or("-".into(), |n| format!("{n:.digits$}"));
            let (calls, instructions) = (all(&by_kernel), all(&by_callgrind));
            println!(
                "| {name} | {} | {} | {} | {} |",
                system.name(),
                cell(calls, 3),
                cell(switches, 3),
                cell(instructions, 0)
            );
            rows.push(json!({"workload": name, "system": system.name(), "calls": calls, "switches": switches,
                             "instructions": instructions}));
        }
    }
    rows
}

/// A line of the plan.
struct Workload {
    name: &'static str,
    load: Load,
    size: usize,
    systems: &'static [System],
}

const ALL: &[System] = &[
    System::Afflux,
    System::Libzmq,
    System::Raw,
    System::AffluxSpin,
    System::RawSpin,
    #[cfg(feature = "tarpc")]
    System::Tarpc,
];
const PARKED: [System; 3] = [System::Afflux, System::Libzmq, System::Raw];
const STOCK: [System; 2] = [System::StockOnAfflux, System::StockOnLibzmq];

fn plan(args: &Args) -> [Workload; 12] {
    let requests: &[System] = if args.quick { &PARKED } else { ALL };
    let line = |name, load, size, systems| Workload { name, load, size, systems };
    [
        line("round trip 64 B", Load::Rtt, 64, requests),
        line("64 outstanding 64 B", Load::Pipeline(64), 64, requests),
        line("256 outstanding 64 B", Load::Pipeline(256), 64, requests),
        line("1024 outstanding 64 B", Load::Pipeline(1024), 64, requests),
        line("one way 64 B", Load::OneWay, 64, &PARKED),
        line("one way 1 KiB", Load::OneWay, 1024, &PARKED),
        line("one way 64 KiB", Load::OneWay, 64 << 10, &PARKED),
        line("published to 1 of 64 B", Load::FanOut(1), 64, &PARKED),
        line("published to 10 of 64 B", Load::FanOut(10), 64, &PARKED),
        line("published to 100 of 64 B", Load::FanOut(100), 64, &PARKED),
        line("stock round trip 64 B", Load::Rtt, 64, &STOCK),
        line("stock 256 outstanding 64 B", Load::Pipeline(256), 64, &STOCK),
    ]
}

fn main() {
    let mut options = Options::parse();
    // Not started by cargo's bench: every run is a real one.
    options.args.bench = true;
    options.args.prepare();
    if options.args.quick {
        options.args.rounds = options.args.rounds.min(2);
    }
    let args = &options.args;
    if let Some(what) = serving(args) {
        if let Some((service, mark)) = openloop::served(&what) {
            load_curve::serve(service, mark);
        }
        subscribers::serve(&what);
        serve(&what);
    }
    if options.permits {
        return permits::bench(args);
    }
    if options.openloop {
        return load_curve::bench(args, &options.open);
    }
    let plan = plan(args);
    if let (Some(row), Some(ops)) = (&args.row, args.ops) {
        let (name, system) = row.split_once('/').expect("written by counts");
        let line = plan.iter().find(|w| w.name == name).expect("written by counts");
        let system = line.systems.iter().find(|s| s.name() == system).expect("written by counts");
        return println!("{}", run(args, *system, line.load, line.size, ops));
    }
    let mut table = Table::new(args);
    if options.counts {
        table.counts = counts(args, &plan);
    } else {
        for Workload { name, load, size, systems } in plan.iter().filter(|w| args.wants(w.name)) {
            eprintln!("{name}");
            let run = |s: &System| (s.name(), measure_of(args, *s, *load, *size));
            let measures: Vec<_> = systems.iter().map(run).collect();
            let rows: Vec<_> = measures.iter().map(|(name, run)| (*name, run as &dyn Fn() -> Sample)).collect();
            table.add(name, *load == Load::Rtt, &Rounds::run_all(args, &rows));
        }
    }
    table.write(options.markdown.as_deref(), args.json.as_deref());
}

fn measure_of(args: &Args, system: System, load: Load, size: usize) -> impl Fn() -> Sample {
    move || measure(args, system, load, size)
}
