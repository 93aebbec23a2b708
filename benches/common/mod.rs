//! What the benches share: options, pinned processes, the probe that tells near cores from far
//! ones, rounds with paired ratios, tables and JSON. Not every bench uses all of it.
#![allow(dead_code)]

pub mod callers;
pub mod counters;
pub mod hosts;
pub mod load;
pub mod nanos;
pub mod on_shard;
pub mod raw;
pub mod report;
pub mod subscribers;
pub mod tasks;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use hdrhistogram::Histogram;
use serde_json::Value;

/// Set in the process that serves: what to serve.
const SERVE: &str = "AFFLUX_BENCH_SERVE";

/// Options of every bench.
#[derive(Parser, Clone)]
pub struct Args {
    /// A run of some seconds: fewer rounds, shorter ones
    #[arg(long)]
    pub quick: bool,
    /// Interleaved rounds
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 2.0)]
    pub secs: f64,
    /// Bytes of each message
    #[arg(long)]
    pub size: Option<usize>,
    /// Both processes on one processor
    #[arg(long)]
    pub one_core: bool,
    /// Only rows whose name contains one of these, separated by commas
    #[arg(long)]
    pub only: Option<String>,
    /// Write the figures here
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Write an HdrHistogram interval log here, where latency is measured
    #[arg(long)]
    pub hlog: Option<PathBuf>,
    /// Passed by cargo
    #[arg(long, hide = true)]
    pub bench: bool,
    /// In a process that is counted: the only row, and how many operations of it
    #[arg(long, hide = true, requires = "ops")]
    pub row: Option<String>,
    #[arg(long, hide = true)]
    pub ops: Option<u64>,
    /// Read before anything is pinned, because a pinned thread sees one processor only
    #[arg(skip)]
    cpus: Vec<usize>,
}

impl Args {
    /// From the command line. Without cargo's `--bench` this is `cargo test --benches`: one tiny round.
    pub fn get() -> Args {
        let mut args = Args::parse();
        args.prepare();
        args
    }

    /// Once, after they were parsed as a part of a bench's own options.
    pub fn prepare(&mut self) {
        self.cpus = core_affinity::get_core_ids().unwrap_or_default().iter().map(|c| c.id).collect();
        if !self.bench {
            (self.rounds, self.secs) = (1, 0.05);
        } else if self.quick {
            (self.rounds, self.secs) = (self.rounds.min(3), self.secs.min(0.4));
        }
    }

    pub fn wants(&self, row: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.split(',').any(|part| row.contains(part)))
    }

    pub fn window(&self) -> Duration {
        Duration::from_secs_f64(self.secs)
    }

    pub fn warm_up(&self) -> Duration {
        Duration::from_secs_f64((self.secs / 5.0).min(0.3))
    }

    fn cores(&self) -> (usize, usize) {
        match self.cpus[..] {
            [] => (0, 0),
            [only] => (only, only),
            [first, ..] if self.one_core => (first, first),
            [first, second, ..] => (first, second),
        }
    }
}

/// Puts the calling thread where the serving process would be.
pub fn pin_other(args: &Args) {
    pin(args.cores().1);
}

fn pin(cpu: usize) -> bool {
    core_affinity::set_for_current(core_affinity::CoreId { id: cpu })
}

/// The process that serves. It prints its port, answers each line of its input with what it has to
/// report, and ends when its input does.
pub struct Server {
    child: Child,
    lines: BufReader<ChildStdout>,
    pub port: u16,
}

impl Server {
    pub fn spawn(args: &Args, what: &str) -> Server {
        let mut child = Command::new(std::env::current_exe().expect("a bench knows its own path"))
            .env(SERVE, format!("{}:{what}", args.cores().1))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a second process can be started");
        let mut line = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        lines.read_line(&mut line).expect("the server prints its port");
        let port = line.trim().parse().unwrap_or_else(|_| panic!("the server said {line:?} instead of its port"));
        Server { child, lines, port }
    }

    /// What the server reports now, see [`serve_and_report`].
    pub fn report(&mut self) -> Value {
        self.tell("")
    }

    /// Tells the server something, one line, and hears what it has to say to that.
    pub fn tell(&mut self, what: &str) -> Value {
        let input = self.child.stdin.as_mut().expect("piped");
        writeln!(input, "{what}").expect("the server reads");
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("the server answers");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("the server said {line:?} instead of its report"))
    }

    pub fn usage(&self) -> Usage {
        Usage::of(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// In the serving process: pins it and says what to serve. `None`: this is the measuring process, which
/// is pinned now.
pub fn serving(args: &Args) -> Option<String> {
    match std::env::var(SERVE) {
        Ok(what) => {
            let (cpu, what) = what.split_once(':').expect("written by spawn");
            pin(cpu.parse().expect("written by spawn"));
            Some(what.to_string())
        }
        Err(_) => {
            pin(args.cores().0);
            None
        }
    }
}

/// Tells the port and lives until the parent lets go.
pub fn serve_until_released(port: u16) -> ! {
    serve_and_report(port, |_| Value::Null)
}

/// As [`serve_until_released`], and answers each line that the parent tells.
pub fn serve_and_report(port: u16, answer: impl Fn(&str) -> Value) -> ! {
    println!("{port}");
    std::io::stdout().flush().expect("the parent reads");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        println!("{}", answer(&line));
        std::io::stdout().flush().expect("the parent reads");
    }
    std::process::exit(0)
}

/// Bytes of this process that are in memory.
pub fn memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Threads of this process.
pub fn threads() -> usize {
    fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Processor time and context switches of all threads of a process.
#[derive(Clone, Copy, Default)]
pub struct Usage {
    pub cpu_ns: u64,
    pub switches: u64,
}

impl Usage {
    pub fn own() -> Usage {
        Usage::of(std::process::id())
    }

    fn of(pid: u32) -> Usage {
        let mut usage = Usage::default();
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            if let Ok(stat) = fs::read_to_string(task.path().join("schedstat")) {
                usage.cpu_ns += stat.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
            }
            if let Ok(status) = fs::read_to_string(task.path().join("status")) {
                for line in status.lines().filter(|l| l.contains("ctxt_switches")) {
                    usage.switches += line.split_whitespace().last().and_then(|n| n.parse().ok()).unwrap_or(0u64);
                }
            }
        }
        usage
    }

    pub fn since(self, before: Usage) -> Usage {
        Usage {
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            switches: self.switches.saturating_sub(before.switches),
        }
    }
}

/// Nanoseconds that a cache line takes from the first processor to the second: about 26 where the host
/// put them close together, about 170 where it did not. Runs of different kinds do not compare.
pub fn hop_ns(args: &Args) -> f64 {
    let (a, b) = args.cores();
    if a == b {
        return 0.0;
    }
    let line = Arc::new(AtomicU64::new(0));
    let other = {
        let line = line.clone();
        std::thread::spawn(move || {
            pin(b);
            loop {
                let seen = line.load(Ordering::Acquire);
                if seen == u64::MAX {
                    return;
                }
                if seen % 2 == 1 {
                    line.store(seen + 1, Ordering::Release);
                }
                std::hint::spin_loop();
            }
        })
    };
    // The best of many short looks: whoever else runs on these cores makes most of them longer.
    const TURNS: u64 = 100;
    let (mut best, begin, mut turn) = (Duration::MAX, Instant::now(), 0u64);
    while begin.elapsed() < Duration::from_millis(20) {
        let look = Instant::now();
        for _ in 0..TURNS {
            line.store(2 * turn + 1, Ordering::Release);
            while line.load(Ordering::Acquire) != 2 * turn + 2 {
                std::hint::spin_loop();
            }
            turn += 1;
        }
        best = best.min(look.elapsed());
    }
    let ns = best.as_nanos() as f64 / (2 * TURNS) as f64;
    line.store(u64::MAX, Ordering::Release);
    let _ = other.join();
    ns
}

/// What one measurement gave.
pub struct Sample {
    pub count: u64,
    pub secs: f64,
    pub times: Option<Histogram<u64>>,
    pub cpu_ns: f64,
    pub switches: f64,
    /// The probes before and after; see [`hop_ns`].
    pub hops: [f64; 2],
}

impl Sample {
    /// So many operations in so long.
    pub fn plain(count: u64, secs: f64) -> Sample {
        Sample { count, secs, times: None, cpu_ns: 0.0, switches: 0.0, hops: [0.0; 2] }
    }

    pub fn rate(&self) -> f64 {
        self.count as f64 / self.secs
    }

    pub fn quantile_us(&self, q: f64) -> f64 {
        self.times.as_ref().map_or(0.0, |t| t.value_at_quantile(q) as f64 / 1e3)
    }
}

/// One window of a closed loop: `call` is timed after a warm-up.
pub fn timed(args: &Args, server: &Server, mut call: impl FnMut()) -> Sample {
    let warm = Instant::now();
    while warm.elapsed() < args.warm_up() {
        call();
    }
    let mut times = histogram();
    let before = (Usage::own(), server.usage());
    let begin = Instant::now();
    let mut last = begin;
    while last - begin < args.window() {
        call();
        let now = Instant::now();
        times.saturating_record((now - last).as_nanos() as u64);
        last = now;
    }
    finish(times.len(), (last - begin).as_secs_f64(), Some(times), before, server)
}

/// Closes a window that the caller timed himself.
pub fn finish(count: u64, secs: f64, times: Option<Histogram<u64>>, before: (Usage, Usage), server: &Server) -> Sample {
    let (own, other) = (Usage::own().since(before.0), server.usage().since(before.1));
    let n = count.max(1) as f64;
    Sample {
        count,
        secs,
        times,
        cpu_ns: (own.cpu_ns + other.cpu_ns) as f64 / n,
        switches: (own.switches + other.switches) as f64 / n,
        hops: [0.0; 2],
    }
}

pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("these bounds are allowed")
}

/// The samples of a bench, row by row and round by round.
#[derive(Default)]
pub struct Rounds {
    rows: Vec<(String, Vec<Sample>)>,
}

impl Rounds {
    /// Runs every row that is wanted once per round, in turn, so that what the machine does meanwhile hits
    /// all alike.
    pub fn run(args: &Args, rows: &[(&str, &dyn Fn() -> Sample)]) -> Rounds {
        let wanted: Vec<_> = rows.iter().filter(|(name, _)| args.wants(name)).copied().collect();
        Rounds::run_all(args, &wanted)
    }

    /// As [`Rounds::run`], whatever is wanted.
    pub fn run_all(args: &Args, rows: &[(&str, &dyn Fn() -> Sample)]) -> Rounds {
        let mut rounds = Rounds { rows: rows.iter().map(|(name, _)| (name.to_string(), Vec::new())).collect() };
        for round in 0..args.rounds {
            for ((name, measure), (_, samples)) in rows.iter().zip(&mut rounds.rows) {
                let before = hop_ns(args);
                let mut sample = measure();
                sample.hops = [before, hop_ns(args)];
                eprintln!("round {} of {}: {name}", round + 1, args.rounds);
                samples.push(sample);
            }
        }
        rounds
    }

    /// Names and samples.
    pub fn rows(&self) -> &[(String, Vec<Sample>)] {
        &self.rows
    }

    fn samples(&self, name: &str) -> Option<&[Sample]> {
        self.rows.iter().find(|(row, _)| row == name).map(|(_, samples)| &samples[..])
    }

    /// Where the host moved the cores apart for a sample, it says nothing beside one where they were close.
    fn is_far(&self, sample: &Sample) -> bool {
        let nearest = self.hops().into_iter().fold(f64::MAX, f64::min);
        sample.hops.iter().any(|hop| *hop > 2.0 * nearest)
    }

    fn hops(&self) -> Vec<f64> {
        self.rows.iter().flat_map(|(_, samples)| samples).flat_map(|s| s.hops).collect()
    }

    /// `of` one row and `of` another, of each round in which both had the same cores. Empty if there is no
    /// such row.
    pub fn pairs(&self, row: &str, against: &str, of: impl Fn(&Sample) -> f64) -> Vec<(f64, f64)> {
        let (Some(samples), Some(against)) = (self.samples(row), self.samples(against)) else { return Vec::new() };
        let pairs = samples.iter().zip(against).filter(|(s, a)| self.is_far(s) == self.is_far(a));
        pairs.map(|(s, a)| (of(s), of(a))).collect()
    }

    /// The first divided by the second of each of [`Rounds::pairs`].
    pub fn ratios(&self, row: &str, against: &str, of: impl Fn(&Sample) -> f64) -> Vec<f64> {
        self.pairs(row, against, of).into_iter().map(|(own, other)| own / other).collect()
    }
}

/// The machine, for the head of a table.
pub fn machine(args: &Args) -> String {
    let cores = args.cpus.len();
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model =
        cpu.lines().find_map(|l| l.strip_prefix("model name")).map_or("", |l| l.trim_start_matches([' ', '\t', ':']));
    format!("{cores} x {model}, Linux {}, {}", read("/proc/sys/kernel/osrelease").trim(), pinned(args))
}

/// What became of the pinning: both threads that would serve and measure are asked where they may run.
fn pinned(args: &Args) -> String {
    let (client, server) = args.cores();
    let holds = |cpu: usize| {
        let look =
            move || pin(cpu) && core_affinity::get_core_ids().is_some_and(|all| all.len() == 1 && all[0].id == cpu);
        std::thread::spawn(look).join().unwrap_or(false)
    };
    match (holds(client), holds(server)) {
        (true, true) => format!("pinned to processors {client} and {server}"),
        _ => "not pinned".into(),
    }
}

pub fn median(mut values: Vec<f64>) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub fn ends(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::MAX, f64::MIN), |(least, most), v| (least.min(*v), most.max(*v)))
}
