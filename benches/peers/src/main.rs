//! afflux beside libzmq and bare sockets: the same workloads, two pinned processes, interleaved rounds, and
//! ratios of neighbours of the same round. Prints a Markdown table; `--markdown FILE` and `--json FILE`
//! write it down.

#[path = "../../common/mod.rs"]
mod common;
mod libzmq;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use afflux::IdlePolicy;
use clap::Parser;
use common::load::{self, Caller, Sender};
use common::raw::{Raw, Stream};
use common::{Args, Rounds, Sample, Server, hosts, raw, serving, timed};
use libzmq::{Dealer, Push, Shape};
use table::Table;

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    args: Args,
    /// Write the table here
    #[arg(long)]
    markdown: Option<PathBuf>,
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
}

impl System {
    fn name(self) -> &'static str {
        match self {
            System::Raw => "bare sockets",
            System::RawSpin => "bare sockets, spin 50 us",
            System::Libzmq => "libzmq",
            System::Afflux => "afflux",
            System::AffluxSpin => "afflux, spin 50 us",
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
        "afflux" => hosts::serve(IdlePolicy::Park),
        "afflux-spin" => hosts::serve(IdlePolicy::SpinThenPark(hosts::SPIN)),
        other => panic!("cannot serve {other}"),
    }
}

/// One window.
fn measure(args: &Args, system: System, load: Load, size: usize) -> Sample {
    let mut server = Server::spawn(args, &system.server(load, size));
    let host = match system {
        System::Afflux => Some(hosts::connect(&server, IdlePolicy::Park)),
        System::AffluxSpin => Some(hosts::connect(&server, IdlePolicy::SpinThenPark(hosts::SPIN))),
        _ => None,
    };
    if load == Load::OneWay {
        let mut sender: Box<dyn Sender> = match (system, &host) {
            (_, Some(host)) => Box::new(hosts::Teller::new(host, size)),
            (System::Libzmq, _) => Box::new(Push::connect(&server, size)),
            _ => Box::new(Stream::connect(&server, size)),
        };
        return load::oneway(args, &mut server, size, &mut *sender);
    }
    let spin = if system == System::RawSpin { hosts::SPIN } else { Duration::ZERO };
    let mut caller: Box<dyn Caller> = match (system, &host) {
        (_, Some(host)) => Box::new(hosts::Asker::new(host, size)),
        (System::Libzmq, _) => Box::new(Dealer::connect(&server, size, Shape::Bare)),
        (System::StockOnLibzmq | System::StockOnAfflux, _) => Box::new(Dealer::connect(&server, size, Shape::Call)),
        _ => Box::new(Raw::connect(&server, size, spin)),
    };
    match load {
        Load::Pipeline(outstanding) => load::pipeline(args, &server, outstanding, &mut *caller),
        _ => timed(args, &server, || caller.ask()),
    }
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
        serve(&what);
    }
    let all = [System::Afflux, System::Libzmq, System::Raw, System::AffluxSpin, System::RawSpin];
    let (parked, oneway) = (&all[..3], &all[..3]);
    let requests = if args.quick { parked } else { &all[..] };
    let stock = &[System::StockOnAfflux, System::StockOnLibzmq][..];
    let plan: [(&str, Load, usize, &[System]); 9] = [
        ("round trip 64 B", Load::Rtt, 64, requests),
        ("64 outstanding 64 B", Load::Pipeline(64), 64, requests),
        ("256 outstanding 64 B", Load::Pipeline(256), 64, requests),
        ("1024 outstanding 64 B", Load::Pipeline(1024), 64, requests),
        ("one way 64 B", Load::OneWay, 64, oneway),
        ("one way 1 KiB", Load::OneWay, 1024, oneway),
        ("one way 64 KiB", Load::OneWay, 64 << 10, oneway),
        ("stock round trip 64 B", Load::Rtt, 64, stock),
        ("stock 256 outstanding 64 B", Load::Pipeline(256), 64, stock),
    ];
    let mut table = Table::new(args);
    for (name, load, size, systems) in plan.iter().filter(|(name, ..)| args.wants(name)) {
        eprintln!("{name}");
        let measures: Vec<_> = systems.iter().map(|s| (s.name(), move || measure(args, *s, *load, *size))).collect();
        let rows: Vec<_> = measures.iter().map(|(name, run)| (*name, run as &dyn Fn() -> Sample)).collect();
        table.add(name, *load == Load::Rtt, &Rounds::run_all(args, &rows));
    }
    table.write(options.markdown.as_deref(), args.json.as_deref());
}
