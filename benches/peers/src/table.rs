//! The table of all workloads, for people and for programs.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::common::{Args, Rounds, Sample, ends, machine, median};

/// What a system is compared with.
const AGAINST: [(&str, [&str; 2]); 5] = [
    ("afflux", ["libzmq", "bare sockets"]),
    ("afflux, spin 50 us", ["libzmq", "bare sockets, spin 50 us"]),
    ("libzmq", ["", "bare sockets"]),
    ("tarpc", ["libzmq", "bare sockets"]),
    ("libzmq client on afflux", ["libzmq client on libzmq", ""]),
];

/// Rows of all workloads.
pub struct Table {
    machine: String,
    lines: Vec<String>,
    rows: Vec<Value>,
    hops: Vec<f64>,
    /// Rows of counts, which people have seen already.
    pub counts: Vec<Value>,
}

impl Table {
    pub fn new(args: &Args) -> Table {
        let (major, minor, patch) = zmq::version();
        let rounds = format!("{} rounds of {} s", args.rounds, args.secs);
        let machine = format!("{}; libzmq {major}.{minor}.{patch}; {rounds}", machine(args));
        Table { machine, lines: Vec::new(), rows: Vec::new(), hops: Vec::new(), counts: Vec::new() }
    }

    /// A workload: what is better of a round trip is a small p50, of everything else a high rate.
    pub fn add(&mut self, load: &str, round_trip: bool, rounds: &Rounds) {
        let speed = |s: &Sample| if round_trip { s.quantile_us(0.5) } else { s.rate() };
        for (name, samples) in rounds.rows() {
            let med = |of: &dyn Fn(&Sample) -> f64| median(samples.iter().map(of).collect());
            self.hops.extend(samples.iter().flat_map(|s| s.hops));
            let p = |q: f64| med(&|s: &Sample| s.quantile_us(q));
            let (rate, cpu, switches) = (med(&Sample::rate), med(&|s| s.cpu_ns), med(&|s| s.switches));
            let timed = samples.iter().all(|s| s.times.is_some());
            let time = |us: f64| if timed { format!("{us:.1}") } else { "-".into() };
            let [peer, ceiling] = AGAINST.iter().find(|(n, _)| n == name).map_or(["", ""], |(_, against)| *against);
            let (of_peer, of_ceiling) = (rounds.ratios(name, peer, speed), rounds.ratios(name, ceiling, speed));
            let p99 = if timed { rounds.ratios(name, peer, |s| s.quantile_us(0.99)) } else { Vec::new() };
            let cpus = rounds.ratios(name, peer, |s| s.cpu_ns);
            self.lines.push(format!(
                "| {load} | {name} | {} | {} | {rate:.0} | {cpu:.0} | {switches:.2} | {} | {} | {} | {} |",
                time(p(0.5)),
                time(p(0.99)),
                spread(&of_peer),
                spread(&p99),
                spread(&cpus),
                spread(&of_ceiling)
            ));
            eprintln!("{}", self.lines.last().expect("just pushed"));
            self.rows.push(json!({
                "workload": load, "system": name, "p50_us": timed.then(|| p(0.5)), "p99_us": timed.then(|| p(0.99)),
                "rate": rate, "cpu_ns": cpu, "switches": switches, "measure": if round_trip { "p50" } else { "rate" },
                "against_peer": peer, "ratios": of_peer, "p99_ratios": p99, "cpu_ratios": cpus,
                "against_ceiling": ceiling, "ceiling_ratios": of_ceiling,
            }));
        }
    }

    /// Prints it, and writes it where it is wanted.
    pub fn write(&self, markdown: Option<&Path>, json_file: Option<&Path>) {
        let hops = if self.hops.is_empty() { (0.0, 0.0) } else { ends(&self.hops) };
        let mut text = format!("{}; hops between the cores {:.0} to {:.0} ns.\n\n", self.machine, hops.0, hops.1);
        text += "Ratios are of p50 for round trips (below 1 is better) and of the rate otherwise (above 1 is better), \
                 median (least - most) of the rounds.\n\n";
        text += "| workload | system | p50 us | p99 us | per second | cpu ns | switches | of libzmq | its p99 | its cpu | of bare sockets |\n";
        text += "|---|---|---:|---:|---:|---:|---:|---|---|---|---|\n";
        text += &self.lines.join("\n");
        text.push('\n');
        if !self.lines.is_empty() {
            println!("{text}");
        }
        let all = json!({"machine": self.machine, "hops_ns": hops, "rows": self.rows, "counts": self.counts});
        let all = serde_json::to_string_pretty(&all).expect("plain values") + "\n";
        for (path, text) in [(markdown, &text), (json_file, &all)] {
            if let Some(path) = path {
                fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            }
        }
    }
}

fn spread(ratios: &[f64]) -> String {
    if ratios.is_empty() {
        return "-".into();
    }
    let (least, most) = ends(ratios);
    format!("{:.2} ({least:.2} - {most:.2})", median(ratios.to_vec()))
}
