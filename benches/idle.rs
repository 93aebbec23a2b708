//! A host at rest: how often its threads wake up, and what processor time that takes, with no link, one, and
//! many. Parked threads wake for heartbeats alone; a thread that looked for work by itself would stand
//! out here.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use afflux::{Host, IdlePolicy};
use clap::Parser;
use common::{Args, Server, hosts, machine, serve_and_report, serving};
use serde_json::{Value, json};

/// Links of one dial; the server listens as often as more are needed.
const LINKS: u64 = 64;

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    args: Args,
    /// Numbers of links, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1, LINKS, 1024])]
    links: Vec<u64>,
    /// Seconds between heartbeats
    #[arg(long, default_value_t = 5)]
    heartbeat: u64,
}

fn main() {
    let mut options = Options::parse();
    options.args.prepare();
    match serving(&options.args) {
        Some(order) => {
            let (links, heartbeat) = order.split_once(' ').expect("written below");
            serve(links.parse().expect("written below"), heartbeat.parse().expect("written below"))
        }
        None => table(&options),
    }
}

fn beat(builder: afflux::HostBuilder, secs: u64) -> afflux::HostBuilder {
    builder.heartbeat(Duration::from_secs(secs), Duration::from_secs(3 * secs))
}

/// The other end: everything dials it. Reports its addresses.
fn serve(links: u64, heartbeat: u64) -> ! {
    let mut builder = beat(hosts::builder("server", IdlePolicy::Park), heartbeat);
    for _ in 0..links.div_ceil(LINKS).max(1) {
        builder = builder.listen("tcp://127.0.0.1:0");
    }
    let host = builder.handshakes(LINKS * 4, Duration::from_secs(60)).start().expect("the server starts");
    let addresses: Vec<String> = host.addresses().iter().map(|a| format!("tcp://{a}")).collect();
    serve_and_report(host.addresses()[0].port(), move |_| json!(addresses))
}

/// What each thread of this process has used so far: name to wake-ups and nanoseconds.
fn threads() -> BTreeMap<String, (u64, u64)> {
    let read = |task: &fs::DirEntry, file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks
        .map(|task| {
            let status = read(&task, "status");
            let switches = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
            let ns = read(&task, "schedstat").split(' ').next().and_then(|n| n.parse().ok());
            let used = (switches.and_then(|n| n.trim().parse().ok()).unwrap_or(0), ns.unwrap_or(0));
            (read(&task, "comm").trim().to_string(), used)
        })
        .collect()
}

fn measure(options: &Options, links: u64) -> Value {
    let args = &options.args;
    let mut server = Server::spawn(args, &format!("{links} {}", options.heartbeat));
    let mut builder = beat(hosts::builder("client", IdlePolicy::Park), options.heartbeat);
    let addresses: Vec<String> = serde_json::from_value(server.report()).expect("its addresses");
    let mut left = links;
    for address in addresses {
        if left > 0 {
            builder = builder.connect(address).links(left.min(LINKS));
            left -= left.min(LINKS);
        }
    }
    let host: Host = builder.start().expect("the client starts");
    host.ready(Duration::from_secs(120)).unwrap_or_else(|e| panic!("{links} links: {e}"));
    // A few heartbeats at least, or a rate says nothing.
    let span = Duration::from_secs(if args.bench { (if args.quick { 2 } else { 4 }) * options.heartbeat } else { 0 });
    std::thread::sleep(span / 4);
    let (before, begin) = (threads(), Instant::now());
    std::thread::sleep(span);
    let (after, secs) = (threads(), begin.elapsed().as_secs_f64());
    let used = after.iter().filter(|(name, _)| name.starts_with("cli-")).map(|(name, (switches, ns))| {
        let (s, n) = before.get(name).copied().unwrap_or_default();
        let figures =
            json!({"wakes_per_second": (switches - s) as f64 / secs, "core_percent": (ns - n) as f64 / secs / 1e7});
        (name.clone(), figures)
    });
    json!({"links": links, "seconds": secs, "threads": used.collect::<serde_json::Map<_, _>>()})
}

fn print(row: &Value) {
    for (name, figures) in row["threads"].as_object().into_iter().flatten() {
        let figure = |what: &str| figures[what].as_f64().unwrap_or(0.0);
        println!(
            "{:>6}  {name:<16} {:>14.2} {:>14.4}",
            row["links"],
            figure("wakes_per_second"),
            figure("core_percent")
        );
    }
}

fn table(options: &Options) {
    println!("idle, parked, a heartbeat every {} s: {}", options.heartbeat, machine(&options.args));
    println!("{:>6}  {:<16} {:>14} {:>14}", "links", "thread", "wakes/s", "% of a core");
    let rows: Vec<Value> = options
        .links
        .iter()
        .filter(|n| options.args.bench || **n <= LINKS)
        .map(|links| {
            let row = measure(options, *links);
            print(&row);
            row
        })
        .collect();
    if let Some(path) = &options.args.json {
        let all =
            json!({"bench": "idle", "machine": machine(&options.args), "heartbeat_s": options.heartbeat, "rows": rows});
        let text = serde_json::to_string_pretty(&all).expect("plain values");
        fs::write(path, text + "\n").unwrap_or_else(|e| panic!("--json {}: {e}", path.display()));
    }
}
