//! What a run leaves behind: tables for people, figures as JSON, latencies as an HdrHistogram interval log.

use std::collections::BTreeMap;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use afflux::host::dump::HistogramLog;
use serde_json::{Value, json};

use super::{Args, Rounds, Sample, ends, machine, median};

/// The tables of one run, which share their files.
pub struct Report<'a> {
    args: &'a Args,
    tables: Vec<Value>,
    log: Option<HistogramLog>,
    /// Intervals so far. Each has a second of its own, because readers want them one after the other.
    intervals: u32,
}

impl<'a> Report<'a> {
    pub fn new(args: &'a Args) -> Report<'a> {
        let log = args.hlog.as_ref().map(|path| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
            HistogramLog::create(path, now).unwrap_or_else(|e| panic!("--hlog: {e}"))
        });
        Report { args, tables: Vec::new(), log, intervals: 0 }
    }

    /// Prints a table. `ceilings`: row to the row that it is compared with; `of` is what is compared, and
    /// the ratio is of the same round.
    pub fn add(&mut self, bench: &str, rounds: &Rounds, ceilings: &[(&str, &str)], of: fn(&Sample) -> f64) {
        let args = self.args;
        let hop = median(rounds.hops());
        let machine = machine(args);
        println!("{bench}: {machine}; hop between the cores {hop:.0} ns (about 26: near, about 170: far)");
        println!(
            "{:<28} {:>10} {:>10} {:>12} {:>9} {:>9} {:>24} {:>10}",
            "", "p50 us", "p99 us", "per second", "cpu ns", "switches", "ratio (least - most)", "p99 ratio"
        );
        let mut out = BTreeMap::new();
        for (name, samples) in rounds.rows() {
            let med = |f: &dyn Fn(&Sample) -> f64| median(samples.iter().map(f).collect());
            let against = ceilings.iter().find(|(row, _)| row == name).map_or("", |(_, ceiling)| ceiling);
            let pairs = rounds.pairs(name, against, of);
            let ratios: Vec<f64> = pairs.iter().map(|(own, against)| own / against).collect();
            let (p50, p99) = (med(&|s| s.quantile_us(0.5)), med(&|s| s.quantile_us(0.99)));
            let (rate, cpu, switches) = (med(&Sample::rate), med(&|s| s.cpu_ns), med(&|s| s.switches));
            let ratio = spread(&ratios);
            let timed = samples.iter().any(|s| s.times.is_some());
            let (p50, p99) = (timed.then_some(p50), timed.then_some(p99));
            let [own, tail] = [p50, p99].map(|time| time.map_or("-".into(), |us| format!("{us:.1}")));
            let tails = if timed { rounds.ratios(name, against, |s| s.quantile_us(0.99)) } else { Vec::new() };
            let tail_ratio = if tails.is_empty() { String::new() } else { format!("{:.2}", median(tails.clone())) };
            let figures = format!("{rate:>12.0} {cpu:>9.0} {switches:>9.2} {ratio:>24} {tail_ratio:>10}");
            println!("{}", format!("{name:<28} {own:>10} {tail:>10} {figures}").trim_end());
            let mut row = json!({"p50_us": p50, "p99_us": p99, "rate": rate, "cpu_ns": cpu, "switches": switches,
                                 "ratio": (!ratios.is_empty()).then(|| median(ratios.clone())), "ratios": ratios});
            if !pairs.is_empty() {
                row["against"] = json!(against);
                row["spread"] = json!(ends(&ratios));
                row["p99_ratios"] = json!(tails);
                row["pairs"] = pairs
                    .iter()
                    .map(|(own, against)| json!({"own": own, "against": against, "ratio": own / against}))
                    .collect();
            }
            out.insert(name.clone(), row);
        }
        self.tables.push(json!({"bench": bench, "machine": machine, "hop_ns": hop, "rounds": args.rounds,
                                "secs": args.secs, "one_core": args.one_core, "rows": out}));
        for round in 0..args.rounds {
            for (name, sample) in rounds.rows().iter().filter_map(|(name, all)| Some((name, all.get(round)?))) {
                if let Some(times) = &sample.times {
                    self.interval(&format!("{bench} {name}"), sample.secs, times);
                }
            }
        }
    }

    /// The latencies of `secs` seconds, for the log.
    pub fn interval(&mut self, tag: &str, secs: f64, times: &hdrhistogram::Histogram<u64>) {
        if let Some(log) = &mut self.log {
            let tag = tag.replace([' ', ','], "_");
            let written = log.interval(&tag, f64::from(self.intervals), secs, times);
            written.unwrap_or_else(|e| panic!("--hlog: {e}"));
            self.intervals += 1;
        }
    }

    /// A table that was printed otherwise.
    pub fn push(&mut self, table: Value) {
        self.tables.push(table);
    }

    /// Writes the files: a table alone as it is, several as a list `tables`.
    pub fn write(mut self) {
        if let Some(path) = &self.args.json {
            let all = if self.tables.len() == 1 { self.tables.remove(0) } else { json!({"tables": self.tables}) };
            let text = serde_json::to_string_pretty(&all).expect("plain values") + "\n";
            fs::write(path, text).unwrap_or_else(|e| panic!("--json {}: {e}", path.display()));
        }
        if let Some(log) = self.log {
            log.sync().unwrap_or_else(|e| panic!("--hlog: {e}"));
        }
    }
}

impl Rounds {
    /// A run of one table: see [`Report::add`] and [`Report::write`].
    pub fn report(&self, args: &Args, bench: &str, ceilings: &[(&str, &str)], of: fn(&Sample) -> f64) {
        let mut report = Report::new(args);
        report.add(bench, self, ceilings, of);
        report.write();
    }
}

/// Median and ends, for a table; empty if there is nothing.
pub fn spread(values: &[f64]) -> String {
    if values.is_empty() {
        return String::new();
    }
    let (least, most) = ends(values);
    format!("{:.2} ({least:.2} - {most:.2})", median(values.to_vec()))
}
