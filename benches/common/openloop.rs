//! Load that comes when it comes: every request has a time at which it is meant to start, whatever became of
//! those before it, and is counted from that time. A system that stalls cannot slow the load down, and so
//! cannot hide the stall.
//!
//! One thread sends what is due, takes what has come back and sleeps until either; it is the same for every
//! system. The time between two requests is drawn from an exponential distribution, as it is where callers
//! do not know of each other.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use afflux::{ByteSize, Channel, Context, Handler, Host, IdlePolicy, Pending, Request, RequestError, TwoWay};
use bytes::Bytes;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::common::report::{Report, spread};
use crate::common::{Args, Server, ends, histogram, hosts, load, machine, median, serve_until_released};
use crate::curves::{self, Curve, Point};

/// Bytes of a request and of its answer.
pub const SIZE: usize = 64;
/// Requests outstanding while the capacity is measured.
const FULL: usize = 256;
/// What is sent at most before replies are looked for.
const BATCH: usize = 64;
/// What the time after a burst is divided into.
const BIN: Duration = Duration::from_millis(100);
/// So many good ones in a row, and it is over.
const GOOD_BINS: usize = 3;
/// A bin is good if its p99 is at most twice what it was before the burst, or this.
const GOOD_US: f64 = 1_000.0;

#[derive(clap::Args, Clone)]
pub struct Options {
    /// Offered load, per cent of the capacity, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [10, 25, 50, 70, 80, 90, 100, 125, 150, 200, 300])]
    pub loads: Vec<u32>,
    /// What a request takes at the service, microseconds of its processor
    #[arg(long, default_value_t = 20)]
    pub service_us: u64,
    /// A reply that comes later than this, milliseconds, is of no use to its caller
    #[arg(long, default_value_t = 1_000)]
    pub deadline_ms: u64,
    /// Draw latency against load, goodput, and what follows a burst
    #[arg(long)]
    pub svg: Option<PathBuf>,
}

// ---- the systems

/// Whoever carries requests, for one thread that never waits for one of them.
pub trait Service {
    /// Starts request `number`; refused at once: why.
    fn start(&mut self, number: u64) -> Result<(), String>;

    /// Takes what has ended: number, and why it failed if it did.
    fn take(&mut self, ended: &mut dyn FnMut(u64, Result<(), String>));

    /// Sleeps until something may have ended, at most so long.
    fn wait(&mut self, most: Duration);
}

/// A system under test.
pub struct System<'a> {
    pub name: &'a str,
    /// What its ends do while they have nothing to do.
    pub idle: &'a str,
    /// Starts a server and a client, and gives them to a closed loop.
    pub capacity: &'a dyn Fn() -> f64,
    /// The same, for this load.
    pub run: &'a dyn Fn(&Load) -> Run,
}

/// Keeps its processor for so long.
pub fn work(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

struct Worker(Duration);

impl Handler for Worker {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        work(self.0);
        let payload = request.payload().clone();
        request.reply(cx, payload);
    }
}

/// What the serving process is told: so much work. [`served`] reads it.
pub fn order(service: Duration) -> String {
    format!("openloop {}", service.as_micros())
}

/// The work of an [`order`], and what follows it; `None`: it is another.
pub fn served(what: &str) -> Option<(Duration, &str)> {
    let order = what.strip_prefix("openloop ")?;
    let (us, more) = order.split_once(' ').unwrap_or((order, ""));
    Some((Duration::from_micros(us.parse().ok()?), more))
}

/// A host whose handler works.
pub fn serve(service: Duration) -> ! {
    let builder = hosts::builder("server", IdlePolicy::Park).listen("tcp://127.0.0.1:0");
    let host = builder.channel("echo", move |_| Worker(service)).start().expect("the server starts");
    serve_until_released(host.addresses()[0].port())
}

/// The system that is told how long a queue it wants: as many requests may be outstanding with a peer, and as many
/// wait, as [`FEW_REQUESTS`] says.
pub const FEW: &str = "afflux, 512 per peer";
/// See [`FEW`].
pub const FEW_REQUESTS: u64 = 512;

/// In the measuring process: the [`capacity`] of a host that is served by [`serve`].
pub fn afflux_capacity(args: &Args, service: Duration) -> f64 {
    let server = Server::spawn(args, &order(service));
    let host = hosts::connect(&server, IdlePolicy::Park);
    capacity(args, &server, &mut hosts::Asker::new(&host, SIZE))
}

/// In the measuring process: a load for a host that is served by [`serve`], with the limits that it has by
/// default or [`FEW`].
pub fn afflux(args: &Args, service: Duration, few: bool, load: &Load) -> Run {
    let server = Server::spawn(args, &order(service));
    let mut builder = hosts::builder("client", IdlePolicy::Park);
    if few {
        // One target takes at most a quarter of the waiting room.
        builder = builder.requests_per_peer(FEW_REQUESTS).waiting_room(4 * FEW_REQUESTS, ByteSize::mib(64));
    }
    let host = hosts::connect_by(&server, builder);
    drive(&mut Calls::new(&host, load.deadline), load)
}

/// What a closed loop gets done in a second.
pub fn capacity(args: &Args, server: &Server, caller: &mut dyn load::Caller) -> f64 {
    load::pipeline(args, server, FULL, caller).rate()
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// Calls of an afflux host, with a deadline each.
pub struct Calls {
    echo: Channel,
    payload: Bytes,
    deadline: Duration,
    /// Replies of one link come in order.
    pending: VecDeque<(u64, Pending<TwoWay>)>,
    /// Ended before it was looked for: while it was started, or was to be waited for.
    early: Vec<(u64, Result<Bytes, RequestError>)>,
    waker: Waker,
}

impl Calls {
    pub fn new(host: &Host, deadline: Duration) -> Calls {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let (echo, payload) = (host.client().channel("echo"), Bytes::from(vec![7; SIZE]));
        Calls { echo, payload, deadline, pending: VecDeque::new(), early: Vec::new(), waker }
    }
}

fn why(end: Result<Bytes, RequestError>) -> Result<(), String> {
    end.map(drop).map_err(|e| format!("{:?}({:?})", e.kind(), e.error().detail()))
}

impl Service for Calls {
    fn start(&mut self, number: u64) -> Result<(), String> {
        let mut pending = self.echo.request("", self.payload.clone()).timeout(self.deadline).submit();
        match pending.try_take() {
            None => self.pending.push_back((number, pending)),
            Some(Ok(reply)) => self.early.push((number, Ok(reply))),
            Some(refused) => return why(refused),
        }
        Ok(())
    }

    fn take(&mut self, ended: &mut dyn FnMut(u64, Result<(), String>)) {
        self.early.drain(..).for_each(|(number, end)| ended(number, why(end)));
        while let Some((number, pending)) = self.pending.front_mut()
            && let Some(end) = pending.try_take()
        {
            ended(*number, why(end));
            self.pending.pop_front();
        }
    }

    fn wait(&mut self, most: Duration) {
        if !self.early.is_empty() {
            return;
        }
        if let Some((number, pending)) = self.pending.front_mut()
            && let Poll::Ready(end) = Pin::new(pending).poll(&mut TaskContext::from_waker(&self.waker))
        {
            self.early.push((*number, end));
            self.pending.pop_front();
            return;
        }
        std::thread::park_timeout(most);
    }
}

// ---- the load

/// When requests start.
#[derive(Clone)]
pub struct Load {
    /// So long, so many a second.
    pub phases: Vec<(Duration, f64)>,
    /// Those that start in it are counted.
    pub window: (Duration, Duration),
    pub deadline: Duration,
}

/// The times at which requests are meant to start, in nanoseconds from the beginning.
struct Arrivals<'a> {
    phases: &'a [(Duration, f64)],
    ends: f64,
    at: f64,
    random: u64,
}

impl Iterator for Arrivals<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        loop {
            let (_, rate) = self.phases.first()?;
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            // Never zero, so that its logarithm is one.
            let part = ((self.random >> 11) + 1) as f64 / (1u64 << 53) as f64;
            let at = self.at - part.ln() / rate * 1e9;
            if at < self.ends {
                self.at = at;
                return Some(at as u64);
            }
            // Such times have no memory: the next phase begins where this one ends.
            self.at = self.ends;
            self.phases = &self.phases[1..];
            self.ends += self.phases.first().map_or(0.0, |(time, _)| time.as_nanos() as f64);
        }
    }
}

/// What became of the requests that were meant to start in some time.
#[derive(Clone)]
pub struct Counted {
    pub offered: u64,
    /// From the intended start to the reply, of all that were answered.
    pub times: Histogram<u64>,
    /// Refused, late, or never answered.
    pub failed: BTreeMap<String, u64>,
}

impl Counted {
    fn new() -> Counted {
        Counted { offered: 0, times: histogram(), failed: BTreeMap::new() }
    }

    fn failed(&mut self, why: &str) {
        match self.failed.get_mut(why) {
            Some(n) => *n += 1,
            None => drop(self.failed.insert(why.into(), 1)),
        }
    }

    pub fn quantile_us(&self, q: f64) -> f64 {
        self.times.value_at_quantile(q) as f64 / 1e3
    }
}

/// One run of a load.
pub struct Run {
    pub window: Counted,
    /// Replies that came while the window was open, in time for their callers, a second.
    pub goodput: f64,
    /// Requests that were meant to start in the window, a second.
    pub offered: f64,
    /// How late the thread that sends was.
    pub late: Histogram<u64>,
    /// From the beginning on, by the time of the intended start.
    pub bins: Vec<Counted>,
}

/// Offers a load.
pub fn drive(service: &mut dyn Service, load: &Load) -> Run {
    // A thread that sleeps until the next request is due must not be 50 us late because the system likes to
    // wake several at once. This is the main thread, the only one that the file stands for.
    let _ = fs::write("/proc/self/timerslack_ns", "1");
    let length: Duration = load.phases.iter().map(|(time, _)| *time).sum();
    let first = load.phases.first().map_or(0.0, |(time, _)| time.as_nanos() as f64);
    let mut arrivals =
        Arrivals { phases: &load.phases, ends: first, at: 0.0, random: 0x9E37_79B9_7F4A_7C15 }.peekable();
    let (from, to) = (load.window.0.as_nanos() as u64, load.window.1.as_nanos() as u64);
    let bins = length.as_nanos().div_ceil(BIN.as_nanos()) as usize;
    let mut run =
        Run { window: Counted::new(), goodput: 0.0, offered: 0.0, late: histogram(), bins: vec![Counted::new(); bins] };
    let bin = |intended: u64| (u128::from(intended) / BIN.as_nanos()) as usize;
    // Intended starts of those outstanding, from number `base` on; `None`: has ended.
    let (mut outstanding, mut base, mut good) = (VecDeque::<Option<u64>>::new(), 0u64, 0u64);
    let begin = Instant::now();
    let clock = || begin.elapsed().as_nanos() as u64;
    let give_up = (length + load.deadline + Duration::from_secs(1)).as_nanos() as u64;
    loop {
        for _ in 0..BATCH {
            let now = clock();
            let Some(intended) = arrivals.next_if(|at| *at <= now) else { break };
            let started = service.start(base + outstanding.len() as u64);
            run.bins[bin(intended)].offered += 1;
            if (from..to).contains(&intended) {
                run.window.offered += 1;
                run.late.saturating_record(now - intended);
            }
            match started {
                Ok(()) => outstanding.push_back(Some(intended)),
                Err(why) => {
                    if (from..to).contains(&intended) {
                        run.window.failed(&why);
                    }
                    run.bins[bin(intended)].failed(&why);
                }
            }
        }
        service.take(&mut |number, end| {
            let Some(intended) = outstanding.get_mut((number - base) as usize).and_then(Option::take) else {
                panic!("request {number} has ended twice");
            };
            let now = clock();
            let time = now - intended;
            let in_time = u128::from(time) <= load.deadline.as_nanos();
            let count = |counted: &mut Counted| match &end {
                Ok(()) => {
                    counted.times.saturating_record(time);
                    if !in_time {
                        counted.failed("answered too late");
                    }
                }
                Err(why) => counted.failed(why),
            };
            count(&mut run.bins[bin(intended)]);
            if (from..to).contains(&intended) {
                count(&mut run.window);
            }
            good += u64::from(end.is_ok() && in_time && (from..to).contains(&now));
            while outstanding.front() == Some(&None) {
                outstanding.pop_front();
                base += 1;
            }
        });
        let now = clock();
        match arrivals.peek() {
            Some(due) if *due > now => service.wait(Duration::from_nanos(due - now)),
            Some(_) => {}
            None if outstanding.is_empty() || now > give_up => break,
            None => service.wait(Duration::from_millis(10)),
        }
    }
    for intended in outstanding.into_iter().flatten() {
        run.bins[bin(intended)].failed("never answered");
        if (from..to).contains(&intended) {
            run.window.failed("never answered");
        }
    }
    let secs = (load.window.1 - load.window.0).as_secs_f64();
    run.goodput = good as f64 / secs;
    run.offered = run.window.offered as f64 / secs;
    run
}

// ---- the bench

/// What a system did in one round.
struct Round {
    capacity: f64,
    /// As many as there are loads.
    levels: Vec<Run>,
    burst: Run,
}

/// Half the capacity, three times the capacity, and half again.
fn burst(args: &Args) -> [Duration; 3] {
    let s = Duration::from_secs_f64;
    if !args.bench {
        [s(0.2), s(0.1), s(0.4)]
    } else if args.quick {
        [s(1.0), s(0.2), s(1.5)]
    } else {
        [s(1.5), s(0.5), s(4.0)]
    }
}

/// Bins after a burst until three in a row are good, and what good is, in microseconds of p99.
fn recovery(run: &Run, phases: &[Duration; 3]) -> (Option<usize>, f64) {
    let bins = |time: Duration| (time.as_nanos() / BIN.as_nanos()) as usize;
    let (begin, end) = (bins(phases[0]), bins(phases[0] + phases[1]));
    // The first half of the time before is a warm-up.
    let before = run.bins[begin / 2..begin].iter().map(|b| b.quantile_us(0.99)).collect();
    let limit = (2.0 * median(before)).max(GOOD_US);
    let is_good = |b: &Counted| b.failed.is_empty() && b.quantile_us(0.99) <= limit;
    let after = run.bins[end..].windows(GOOD_BINS).position(|bins| bins.iter().all(is_good));
    (after, limit)
}

/// Runs all systems in turn, prints their tables and writes the files.
pub fn bench(args: &Args, options: &Options, systems: &[System<'_>]) {
    let mut loads = options.loads.clone();
    if !args.bench {
        loads = vec![50, 200];
    } else if args.quick {
        loads.retain(|percent| ![10, 70, 90, 125].contains(percent));
    }
    let systems: Vec<&System<'_>> = systems.iter().filter(|system| args.wants(system.name)).collect();
    let deadline = Duration::from_millis(options.deadline_ms);
    let phases = burst(args);
    let mut rounds: Vec<Vec<Round>> = systems.iter().map(|_| Vec::new()).collect();
    for round in 0..args.rounds {
        for (system, done) in systems.iter().zip(&mut rounds) {
            let say = |what: &str| eprintln!("round {} of {}: {}, {what}", round + 1, args.rounds, system.name);
            say("capacity");
            let capacity = (system.capacity)();
            let level = |percent: &u32| {
                say(&format!("{percent} % of {capacity:.0}/s"));
                let (warm, rate) = (args.warm_up(), capacity * f64::from(*percent) / 100.0);
                let load =
                    Load { phases: vec![(warm + args.window(), rate)], window: (warm, warm + args.window()), deadline };
                (system.run)(&load)
            };
            let levels = loads.iter().map(level).collect();
            say("a burst");
            let rates = [0.5, 3.0, 0.5].map(|part| part * capacity);
            let window = (Duration::ZERO, phases.iter().sum());
            let load = Load { phases: phases.into_iter().zip(rates).collect(), window, deadline };
            done.push(Round { capacity, levels, burst: (system.run)(&load) });
        }
    }
    let mut report = Report::new(args);
    let mut tables = Vec::new();
    println!(
        "openloop, {SIZE} B, {} us of service, a reply is of use for {} ms; {}; {} rounds of {} s",
        options.service_us,
        options.deadline_ms,
        machine(args),
        args.rounds,
        args.secs
    );
    println!("times from the intended start to the reply, medians of the rounds (least - most)");
    for (system, rounds) in systems.iter().zip(&rounds) {
        tables.push(table(system, rounds, &loads, &phases));
        for round in rounds {
            for (percent, run) in loads.iter().zip(&round.levels) {
                let tag = format!("{} {percent}%", system.name);
                report.interval(&tag, args.secs, &run.window.times);
            }
        }
    }
    if let Some(path) = &options.svg {
        let curves: Vec<Curve> = systems.iter().zip(&rounds).map(|(s, r)| curve(s.name, r, &phases)).collect();
        let title = format!(
            "Latency against load: {SIZE} B requests of {} us, {} rounds of {} s on {}",
            options.service_us,
            args.rounds,
            args.secs,
            machine(args).split(',').next().unwrap_or_default()
        );
        curves::draw(path, &title, &curves).unwrap_or_else(|e| panic!("--svg {}: {e}", path.display()));
    }
    report.push(json!({
        "bench": "openloop", "machine": machine(args), "rounds": args.rounds, "secs": args.secs, "size": SIZE,
        "service_us": options.service_us, "deadline_ms": options.deadline_ms, "systems": tables,
    }));
    report.write();
}

fn table(system: &System<'_>, rounds: &[Round], loads: &[u32], phases: &[Duration; 3]) -> Value {
    let capacities: Vec<f64> = rounds.iter().map(|r| r.capacity).collect();
    let (least, most) = ends(&capacities);
    println!(
        "\n{} ({}): capacity {:.0} ({least:.0} - {most:.0}) a second",
        system.name,
        system.idle,
        median(capacities.clone())
    );
    println!(
        "{:>6} {:>10} {:>10} {:>24} {:>10} {:>26} {:>10} {:>9}  per cent of the offered that failed",
        "load", "offered/s", "goodput/s", "of that at 100 %", "p50 us", "p99 us", "p99.9 us", "sent late"
    );
    let full = loads.iter().position(|percent| *percent == 100);
    let mut levels = Vec::new();
    for (at, percent) in loads.iter().enumerate() {
        let runs: Vec<&Run> = rounds.iter().map(|r| &r.levels[at]).collect();
        let all = |of: &dyn Fn(&Run) -> f64| runs.iter().map(|run| of(run)).collect::<Vec<f64>>();
        let of_full = full.map(|full| rounds.iter().map(|r| r.levels[at].goodput / r.levels[full].goodput).collect());
        let of_full: Vec<f64> = of_full.unwrap_or_default();
        let (offered, goodput) = (all(&|r| r.offered), all(&|r| r.goodput));
        let p = |q: f64| all(&|r| r.window.quantile_us(q));
        let late = all(&|r| r.late.value_at_quantile(0.99) as f64 / 1e3);
        let mut failed: BTreeMap<&str, f64> = BTreeMap::new();
        for (why, n) in runs.iter().flat_map(|run| &run.window.failed) {
            *failed.entry(why).or_default() += *n as f64;
        }
        let offered_in_all: u64 = runs.iter().map(|run| run.window.offered).sum();
        failed.values_mut().for_each(|n| *n *= 100.0 / offered_in_all.max(1) as f64);
        let list: Vec<String> = failed.iter().map(|(why, part)| format!("{why} {part:.2}")).collect();
        let (low, high) = ends(&p(0.99));
        println!(
            "{percent:>5}% {:>10.0} {:>10.0} {:>24} {:>10.0} {:>26} {:>10.0} {:>9.0}  {}",
            median(offered.clone()),
            median(goodput.clone()),
            spread(&of_full),
            median(p(0.5)),
            format!("{:.0} ({low:.0} - {high:.0})", median(p(0.99))),
            median(p(0.999)),
            median(late.clone()),
            list.join(", ")
        );
        levels.push(json!({
            "percent": percent, "offered": offered, "goodput": goodput, "goodput_of_100": of_full,
            "p50_us": p(0.5), "p99_us": p(0.99), "p999_us": p(0.999), "sent_late_p99_us": late,
            "failed_percent": failed,
        }));
    }
    let recovered: Vec<(Option<usize>, f64)> = rounds.iter().map(|r| recovery(&r.burst, phases)).collect();
    let text: Vec<String> =
        recovered.iter().map(|(n, _)| n.map_or("not in that time".into(), |n| format!("{n}"))).collect();
    println!(
        "after {} ms of 300 % at 50 %, over {} s: bins of 100 ms until three in a row have nothing failed and a p99 of \
         at most {:.1} ms: {}",
        phases[1].as_millis(),
        phases[2].as_secs_f64(),
        median(recovered.iter().map(|(_, limit)| *limit).collect()) / 1e3,
        text.join(", ")
    );
    json!({
        "system": system.name, "idle": system.idle, "capacity": capacities, "levels": levels,
        "burst": {"phases_s": phases.map(|p| p.as_secs_f64()), "recovery_bins": recovered.iter().map(|(n, _)| *n).collect::<Vec<_>>(),
                  "good_p99_us": recovered.iter().map(|(_, limit)| *limit).collect::<Vec<_>>()},
    })
}

fn curve(name: &str, rounds: &[Round], phases: &[Duration; 3]) -> Curve {
    let levels = rounds.first().map_or(0, |round| round.levels.len());
    let point = |at: usize| {
        let med = |of: &dyn Fn(&Run) -> f64| median(rounds.iter().map(|r| of(&r.levels[at])).collect());
        Point {
            offered: med(&|r| r.offered),
            goodput: med(&|r| r.goodput),
            p50: med(&|r| r.window.quantile_us(0.5)),
            p99: med(&|r| r.window.quantile_us(0.99)),
        }
    };
    let bins = rounds.first().map_or(0, |round| round.burst.bins.len());
    let bin = |at: usize| {
        let answered = rounds.iter().map(|r| &r.burst.bins[at]).filter(|bin| !bin.times.is_empty());
        (at as f64 * BIN.as_secs_f64(), median(answered.map(|bin| bin.quantile_us(0.99)).collect()))
    };
    let (from, to) = (phases[0].as_secs_f64(), (phases[0] + phases[1]).as_secs_f64());
    let bins = (0..bins).map(bin).filter(|(_, p99)| *p99 > 0.0).collect();
    Curve { name: name.into(), points: (0..levels).map(point).collect(), bins, burst: (from, to) }
}
