//! What an operation costs in things that can be counted, both processes together: system calls, wakes
//! of a sleeping thread by another, context switches; and the threads of a host. Counts hold on a
//! machine with other work on it, where times do not.
//!
//! With `--instructions`, under valgrind, instructions outside the kernel instead. `--record` writes
//! them to the table in [`TABLE`], `--check` fails where they are above it by more than [`TOLERANCE`], and
//! `--parts` tells which part of the code has them.

mod common;
#[path = "common/parts.rs"]
mod parts;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use afflux::IdlePolicy;
use clap::Parser;
use common::counters::{NAMED, Tool, slope, system_calls};
use common::load::{Caller, Sender, ask_exactly, number, tell_exactly};
use common::{Args, Server, Usage, ends, hosts, machine, median, raw, serving, threads};
use serde_json::{Value, json};

/// Bytes of each message.
const SIZE: usize = 64;

/// Row, operations of the long run, and those of the long run under valgrind (0: not counted).
const ROWS: [(&str, u64, u64); 14] = [
    ("raw rtt", 20_000, 0),
    ("afflux rtt", 20_000, 4_000),
    ("raw pipeline 256", 200_000, 0),
    ("afflux pipeline 64", 200_000, 0),
    ("afflux pipeline 256", 200_000, 20_000),
    ("afflux pipeline 1024", 200_000, 0),
    ("raw oneway", 2_000_000, 0),
    ("afflux oneway", 1_000_000, 200_000),
    ("part permit", 0, 80_000),
    ("part permit claimed by 16", 0, 80_000),
    ("part ring item", 0, 80_000),
    ("part timer set and taken back", 0, 80_000),
    ("part encode", 0, 80_000),
    ("part decode", 0, 80_000),
];

/// More instructions than recorded by so much is a regression. Runs of one build differ by up to 3 %.
const TOLERANCE: f64 = 0.05;

/// The table under version control.
const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.json");

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    args: Args,
    /// Instructions, by valgrind's callgrind
    #[arg(long)]
    instructions: bool,
    /// Tell which part of the code has how many of them, in either process
    #[arg(long, requires = "instructions")]
    parts: bool,
    /// Write the instructions of this run to the table
    #[arg(long, requires = "instructions")]
    record: bool,
    /// Compare the instructions with the table
    #[arg(long, requires = "instructions", conflicts_with = "record")]
    check: bool,
}

fn main() {
    let mut options = Options::parse();
    options.args.prepare();
    let args = &options.args;
    match (serving(args).as_deref(), &args.row) {
        (Some("raw echo"), _) => raw::serve(SIZE, Duration::ZERO),
        (Some("raw count"), _) => raw::count(SIZE),
        (Some("afflux"), _) => hosts::serve(IdlePolicy::Park),
        (Some(other), _) => panic!("cannot serve {other}"),
        (None, Some(row)) => println!("{}", run(args, row, args.ops.unwrap_or(0))),
        (None, None) if options.instructions => instructions(&options),
        (None, None) => counts(args),
    }
}

// ---- in the process that is counted

/// Runs so many operations of a row after a warm-up; what the process itself can tell of them.
fn run(args: &Args, row: &str, ops: u64) -> Value {
    let (peer, load) = row.split_once(' ').expect("a row of the table");
    if peer == "part" {
        parts::work(load)(ops);
        return Value::Null;
    }
    let outstanding = load.strip_prefix("pipeline ").and_then(|n| n.parse().ok());
    if peer == "raw" {
        let mut server = Server::spawn(args, if load == "oneway" { "raw count" } else { "raw echo" });
        return match outstanding {
            None if load == "oneway" => {
                let mut stream = raw::Stream::connect(&server, SIZE);
                tell(&mut server, &mut stream, ops)
            }
            _ => ask(&server, &mut raw::Raw::connect(&server, SIZE, Duration::ZERO), outstanding, ops),
        };
    }
    let mut server = Server::spawn(args, "afflux");
    let alone = threads();
    let host = hosts::connect(&server, IdlePolicy::Park);
    let started = threads() - alone;
    let wakes = |server: &mut Server| {
        let (own, other) = (hosts::wakes(&host), server.report());
        [
            number(&own, "wakes"),
            number(&own, "completion_wakes"),
            number(&other, "wakes"),
            number(&other, "completion_wakes"),
        ]
    };
    // The warm-up is over, but for its last wakes, before the counts begin.
    let before = wakes(&mut server);
    let mut report = match outstanding {
        None if load == "oneway" => tell(&mut server, &mut hosts::Teller::new(&host, SIZE), ops),
        _ => ask(&server, &mut hosts::Asker::new(&host, SIZE), outstanding, ops),
    };
    let after = wakes(&mut server);
    let names = ["client shard", "client completion", "server shard", "server completion"];
    let per_op =
        |(i, name): (usize, &&str)| ((*name).to_string(), json!((after[i] - before[i]) as f64 / ops.max(1) as f64));
    report["wakes"] = names.iter().enumerate().map(per_op).collect();
    report["threads"] = json!({"client": started, "server": number(&server.report(), "threads")});
    report
}

fn ask(server: &Server, caller: &mut dyn Caller, outstanding: Option<usize>, ops: u64) -> Value {
    let before = (Usage::own(), server.usage());
    ask_exactly(caller, outstanding, ops);
    switches(before, server, ops)
}

fn tell(server: &mut Server, sender: &mut dyn Sender, ops: u64) -> Value {
    let before = (Usage::own(), server.usage());
    tell_exactly(server, sender, ops);
    switches(before, server, ops)
}

fn switches(before: (Usage, Usage), server: &Server, ops: u64) -> Value {
    let after = (Usage::own().since(before.0), server.usage().since(before.1));
    json!({"switches": (after.0.switches + after.1.switches) as f64 / ops.max(1) as f64})
}

// ---- in the process that reports

/// Runs of a row: short and long.
fn runs(args: &Args, long: u64) -> (u64, u64) {
    let long = if !args.bench {
        300
    } else if args.quick {
        long / 4
    } else {
        long
    };
    (long / 4, long)
}

/// Counts per operation by name, and what the process itself told.
type Found = (BTreeMap<String, f64>, Value);

fn counts(args: &Args) {
    let tool = system_calls();
    println!("counts per operation, {SIZE} B, both processes; {}", machine(args));
    println!(
        "system calls by {}",
        tool.map_or("nothing: neither perf nor strace works here".into(), |t| format!("{t:?}"))
    );
    let mut rows: BTreeMap<&str, Vec<Found>> = BTreeMap::new();
    for round in 0..args.rounds {
        for (row, ops, _) in ROWS.iter().filter(|(row, ops, _)| *ops > 0 && args.wants(row)) {
            eprintln!("round {} of {}: {row}", round + 1, args.rounds);
            let (short, long) = runs(args, *ops);
            let found = match tool {
                Some(tool) => slope(tool, row, (short, long)).unwrap_or_else(|e| panic!("{row}: {e}")),
                None => (BTreeMap::new(), run(args, row, long)),
            };
            rows.entry(row).or_default().push(found);
        }
    }
    println!("{:<22} {:>24} {:>9} {:>9}  threads; calls by name", "", "calls (least - most)", "switches", "wakes");
    let mut out = BTreeMap::new();
    for (row, ..) in ROWS {
        let Some(found) = rows.get(row) else { continue };
        let of =
            |name: &str| found.iter().map(|(counts, _)| counts.get(name).copied().unwrap_or(0.0)).collect::<Vec<_>>();
        let said = |path: &str| median(found.iter().filter_map(|(_, said)| said.pointer(path)?.as_f64()).collect());
        let (all, (least, most), switches) = (median(of("all")), ends(&of("all")), said("/switches"));
        let names = NAMED.iter().map(|name| (*name, median(of(name)))).filter(|(_, n)| *n >= 0.005);
        let named: BTreeMap<&str, f64> = names.collect();
        let mut line = format!("{row:<22} {:>24} {switches:>9.3}", format!("{all:.3} ({least:.3} - {most:.3})"));
        let mut figures = json!({"calls": all, "calls_by_round": of("all"), "by_name": named, "switches": switches});
        let last = &found[found.len() - 1].1;
        if let Some(by_thread) = last["wakes"].as_object() {
            let by_thread: BTreeMap<&str, f64> =
                by_thread.keys().map(|name| (name.as_str(), said(&format!("/wakes/{name}")))).collect();
            let wakes: f64 = by_thread.values().sum();
            line += &format!(" {wakes:>9.4}  {} + {};", last["threads"]["client"], last["threads"]["server"]);
            figures["wakes"] = json!(wakes);
            figures["wakes_by_thread"] = json!(by_thread);
            figures["threads"] = last["threads"].clone();
        } else {
            line += &format!(" {:>9}  ", "");
        }
        let named: Vec<String> = named.iter().map(|(name, n)| format!("{name} {n:.3}")).collect();
        println!("{line} {}", named.join(", "));
        out.insert(row, figures);
    }
    write(
        args,
        json!({"bench": "counts", "machine": machine(args), "tool": tool.map(|t| format!("{t:?}")), "rows": out}),
    );
}

fn write(args: &Args, all: Value) {
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&all).expect("plain values");
        fs::write(path, text + "\n").unwrap_or_else(|e| panic!("--json {}: {e}", path.display()));
    }
}

fn instructions(options: &Options) {
    let args = &options.args;
    if !Tool::Callgrind.works() {
        println!("valgrind does not work here: install it to count instructions");
        std::process::exit(2);
    }
    let table: Value = match fs::read_to_string(TABLE) {
        Ok(text) => serde_json::from_str(&text).unwrap_or_else(|e| panic!("{TABLE}: {e}")),
        Err(_) => json!({}),
    };
    let is_worse = |row: &str, n: f64| table["rows"][row].as_f64().is_none_or(|r| n > r * (1.0 + TOLERANCE));
    let rounds = if args.quick { 1 } else { args.rounds.min(3) };
    let mut found: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut parts = BTreeMap::new();
    for round in 0..rounds {
        for (row, _, ops) in ROWS.iter().filter(|(row, _, ops)| *ops > 0 && args.wants(row)) {
            // Threads that meet differently do more, rarely less: what passed once is not run again.
            if options.check && found.get(row).is_some_and(|all| !is_worse(row, ends(all).0)) {
                continue;
            }
            eprintln!("round {} of {rounds}: {row}", round + 1);
            let runs = (ops / 4, *ops);
            let (counts, _) = slope(Tool::Callgrind, row, runs).unwrap_or_else(|e| panic!("{row}: {e}"));
            found.entry(row).or_default().push(counts.get("all").copied().unwrap_or(0.0));
            parts.insert(row, counts);
        }
    }
    let one = |all: Vec<f64>| if options.check { ends(&all).0 } else { median(all) };
    let found: BTreeMap<&str, u64> = found.into_iter().map(|(row, all)| (row, one(all).round() as u64)).collect();
    println!("instructions outside the kernel per operation, {SIZE} B; both processes, or a part alone");
    println!("{:<30} {:>8} {:>9} {:>8}", "", "now", "recorded", "change");
    let mut worse = Vec::new();
    for (row, n) in &found {
        let recorded = table["rows"][row].as_f64();
        let change = recorded.map(|r| *n as f64 / r - 1.0);
        let cell = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let (then, by) =
            (cell(recorded.map(|r| format!("{r:.0}"))), cell(change.map(|c| format!("{:+.1} %", 100.0 * c))));
        println!("{row:<30} {n:>8} {then:>9} {by:>8}");
        if is_worse(row, *n as f64) {
            worse.push(*row);
        }
    }
    if options.parts {
        parts.iter().filter(|(row, _)| !row.starts_with("part ")).for_each(|(row, counts)| print_parts(row, counts));
    }
    write(args, json!({"bench": "instructions", "machine": machine(args), "rows": found, "parts": parts}));
    if options.record {
        let text = serde_json::to_string_pretty(&json!({"compiler": compiler(), "rows": found})).expect("plain values");
        fs::write(TABLE, text + "\n").unwrap_or_else(|e| panic!("{TABLE}: {e}"));
    } else if options.check && !worse.is_empty() {
        println!("recorded with {}; this is {}", table["compiler"], compiler());
        println!("above the table by more than {:.0} %: {}", 100.0 * TOLERANCE, worse.join(", "));
        println!("if that is meant: cargo bench --bench counts -- --instructions --record");
        std::process::exit(1);
    }
}

/// Parts of the code with at least a hundredth of a row's instructions, most first.
fn print_parts(row: &str, counts: &BTreeMap<String, f64>) {
    let of = |side: &str, part: &str| counts.get(&format!("{side}: {part}")).copied().unwrap_or(0.0);
    let names: BTreeSet<&str> = counts.keys().filter_map(|key| key.split_once(": ")).map(|(_, part)| part).collect();
    let mut parts: Vec<_> = names.into_iter().map(|part| (part, of("client", part), of("server", part))).collect();
    parts.sort_by(|a, b| (b.1 + b.2).total_cmp(&(a.1 + a.2)));
    let all: f64 = parts.iter().map(|(_, client, server)| client + server).sum();
    let (shown, rest): (Vec<_>, Vec<_>) = parts.into_iter().partition(|(_, c, s)| c + s >= all / 100.0);
    let rest = rest.iter().fold(("all others", 0.0, 0.0), |(name, c, s), of| (name, c + of.1, s + of.2));
    println!("\n{row:<30} {:>8} {:>8} {:>8}", "client", "server", "both");
    for (part, client, server) in shown.into_iter().chain([rest]) {
        println!("  {part:<28} {client:>8.0} {server:>8.0} {:>8.0}", client + server);
    }
}

fn compiler() -> String {
    let said = std::process::Command::new("rustc").arg("--version").output().map(|o| o.stdout).unwrap_or_default();
    String::from_utf8_lossy(&said).trim().to_string()
}
