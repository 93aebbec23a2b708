//! The longest time that a tenant with a little work sees no progress beside one that floods.
//!
//! First by counts alone: the orders of service of the crate, and a queue that serves in order of arrival,
//! with the same arrivals; what was served to others while the quiet tenant had something. Then two real
//! hosts whose handler takes a while: the quiet tenant on a link of its own, and behind the flood on the same.

mod common;

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::time::{Duration, Instant};

use afflux::policy::fairness::{
    DeficitRoundRobin, Fairness, Head, MaxConsecutive, OldestDeadline, RoundRobin, Source, WeightedClasses,
};
use afflux::{Context, Handler, Host, IdlePolicy, Request};
use common::{Args, Rounds, Sample, Server, Usage, finish, histogram, hosts, machine, serve_until_released, serving};
use serde_json::{Value, json};

/// What the flood has outstanding, in either part.
const BACKLOG: usize = 1_000;
/// The bytes of an item of the quiet tenant; one of the flood's is as large, or much larger.
const SMALL: u64 = 100;
const LARGE: u64 = 10_000;

/// What a request takes at the host.
const SERVICE: Duration = Duration::from_micros(50);

fn main() {
    let args = Args::get();
    if serving(&args).is_some() {
        let host = hosts::builder("server", IdlePolicy::Park).listen("tcp://127.0.0.1:0");
        let host = host.channel("work", |_| Worker).start().expect("the server starts");
        serve_until_released(host.addresses()[0].port());
    }
    let orders = orders(&args);
    let rows: [(&str, &dyn Fn() -> Sample); 2] =
        [("behind the flood", &|| beside_flood(&args, false)), ("a link of its own", &|| beside_flood(&args, true))];
    let rounds = Rounds::run(&args, &rows);
    let longest = |s: &Sample| s.times.as_ref().map_or(0.0, |t| t.max() as f64);
    println!();
    let against = [("a link of its own", "behind the flood")];
    rounds.report(&args, "a quiet tenant's requests, ratio of the longest", &against, longest);
    if let Some(path) = &args.json {
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut all: Value = serde_json::from_str(&text).expect("just written");
        all["orders"] = orders;
        let text = serde_json::to_string_pretty(&all).expect("plain values") + "\n";
        fs::write(path, text).unwrap_or_else(|e| panic!("--json {}: {e}", path.display()));
    }
}

// ---- by counts

/// In order of arrival, whosever it is.
#[derive(Default)]
struct Arrival {
    queue: VecDeque<Source>,
}

const FLOOD: Source = 0;
const QUIET: Source = 1;

/// The flood always has its backlog; the quiet tenant asks again `pause` services after it was served. The
/// most that was served to the flood, in items and bytes, while the quiet tenant waited.
fn by_policy(policy: &mut dyn Fairness, cost: u64, services: u64) -> (u64, u64) {
    let head = |cost, now: u64| Head { cost, deadline: afflux::base::time::Instant(now + 1_000_000) };
    policy.ready(FLOOD, head(cost, 0));
    let (mut waited, mut longest, mut asks_at) = ((0, 0), (0, 0), 10);
    for now in 0..services {
        if now == asks_at {
            policy.ready(QUIET, head(SMALL, now));
            waited = (0, 0);
        }
        match policy.next().expect("the flood is ready") {
            QUIET => {
                longest = (longest.0.max(waited.0), longest.1.max(waited.1));
                policy.served(QUIET, None);
                asks_at = now + 10;
            }
            _ => {
                waited = (waited.0 + 1, waited.1 + cost);
                policy.served(FLOOD, Some(head(cost, now)));
            }
        }
    }
    longest
}

fn by_arrival(cost: u64, services: u64) -> (u64, u64) {
    let mut order = Arrival { queue: vec![FLOOD; BACKLOG].into() };
    let (mut waited, mut longest, mut asks_at) = (0, 0, 10);
    for now in 0..services {
        if now == asks_at {
            order.queue.push_back(QUIET);
            waited = 0;
        }
        if order.queue.pop_front() == Some(QUIET) {
            longest = longest.max(waited);
            asks_at = now + 10;
        } else {
            waited += 1;
            order.queue.push_back(FLOOD);
        }
    }
    (longest, longest * cost)
}

fn orders(args: &Args) -> Value {
    println!("fairness: {}", machine(args));
    println!(
        "the most that a flood with {BACKLOG} items gets while a quiet tenant waits: items (bytes), part of FIFO\n"
    );
    println!("{:<28} {:>26} {:>26}", "", format!("items of {SMALL} B"), format!("items of {LARGE} B"));
    let services = if args.bench { 200_000 } else { 5_000 };
    let fifo = [SMALL, LARGE].map(|cost| by_arrival(cost, services));
    let mut out = BTreeMap::new();
    let mut print = |name: &str, found: [(u64, u64); 2]| {
        let parts = [0, 1].map(|i| found[i].1 as f64 / fifo[i].1.max(1) as f64);
        let cell = |i: usize| format!("{} ({}), {:.4}", found[i].0, found[i].1, parts[i]);
        println!("{name:<28} {:>26} {:>26}", cell(0), cell(1));
        out.insert(
            name.to_string(),
            json!({"items": found.map(|f| f.0), "bytes": found.map(|f| f.1), "of_fifo": parts}),
        );
    };
    print("order of arrival (FIFO)", fifo);
    type Make = fn() -> Box<dyn Fairness>;
    let policies: [(&str, Make); 5] = [
        ("round robin", || Box::new(RoundRobin::default())),
        ("deficit round robin", || Box::new(DeficitRoundRobin::new(SMALL))),
        ("weighted classes", || {
            // The flood has four turns to the quiet tenant's one.
            let mut classes = WeightedClasses::new(&[4, 1]);
            classes.assign(QUIET, 1);
            Box::new(classes)
        }),
        ("oldest deadline", || Box::new(OldestDeadline::default())),
        ("oldest deadline, 8 in a row", || Box::new(MaxConsecutive::new(OldestDeadline::default(), 8))),
    ];
    for (name, make) in policies {
        print(name, [SMALL, LARGE].map(|cost| by_policy(&mut *make(), cost, services)));
    }
    json!(out)
}

// ---- two hosts

struct Worker;

impl Handler for Worker {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        let begin = Instant::now();
        while begin.elapsed() < SERVICE {
            std::hint::spin_loop();
        }
        request.reply(cx, "");
    }
}

fn client(server: &Server, name: &str) -> Host {
    let host = hosts::builder(name, IdlePolicy::Park).connect(hosts::url(server)).start().expect("the client starts");
    host.ready(Duration::from_secs(60)).expect("the server is there");
    host
}

/// A window of the quiet tenant's requests, a few milliseconds apart, while the flood keeps its backlog.
fn beside_flood(args: &Args, own_link: bool) -> Sample {
    let server = Server::spawn(args, "work");
    let flooding = client(&server, "flood");
    let own = own_link.then(|| client(&server, "quiet"));
    let quiet = own.as_ref().unwrap_or(&flooding).client().channel("work");
    let flood = flooding.client().channel("work");
    let over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let ends = over.clone();
    let long = Duration::from_secs(60);
    let flooder = std::thread::spawn(move || {
        let mut pending: VecDeque<_> = (0..BACKLOG).map(|_| flood.request("", "").timeout(long).submit()).collect();
        while let Some(oldest) = pending.pop_front() {
            oldest.wait().expect("an answer");
            if !ends.load(std::sync::atomic::Ordering::Relaxed) {
                pending.push_back(flood.request("", "").timeout(long).submit());
            }
        }
    });
    let ask = || {
        let begin = Instant::now();
        quiet.request("", "").timeout(long).wait().expect("an answer");
        begin.elapsed()
    };
    ask();
    let mut times = histogram();
    let before = (Usage::own(), server.usage());
    let begin = Instant::now();
    while times.is_empty() || begin.elapsed() < args.window() {
        times.saturating_record(ask().as_nanos() as u64);
        std::thread::sleep(Duration::from_millis(2));
    }
    let sample = finish(times.len(), begin.elapsed().as_secs_f64(), Some(times), before, &server);
    over.store(true, std::sync::atomic::Ordering::Relaxed);
    flooder.join().expect("it only asks");
    sample
}
