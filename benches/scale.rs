//! What idle links cost those that are not: a round trip and a one-way message to a host that has ever more
//! links on which nothing happens, and the memory that each of these takes there.

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use afflux::{HostBuilder, IdlePolicy};
use clap::Parser;
use common::load::{self, Caller, number};
use common::{Args, Rounds, Sample, Server, hosts, median, serving, timed};
use serde_json::{Value, json};

/// Bytes of each message.
const SIZE: usize = 64;
/// Links of one dial; the server listens as often as more are needed.
const LINKS: u64 = 64;

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    args: Args,
    /// Numbers of idle links, separated by commas. Each takes two open files in either process.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1_000, 4_000])]
    links: Vec<u64>,
}

fn main() {
    let mut options = Options::parse();
    options.args.prepare();
    let args = &options.args;
    if let Some(listens) = serving(args) {
        let listens: u64 = listens.parse().expect("written below");
        let builder = quiet(hosts::builder("server", IdlePolicy::Park)).handshakes(256, Duration::from_secs(60));
        hosts::serve_by((0..listens).fold(builder, |builder, _| builder.listen("tcp://127.0.0.1:0")));
    }
    let links: Vec<u64> = match (args.bench, args.quick) {
        (true, false) => options.links.clone(),
        (true, true) => options.links.iter().copied().filter(|n| *n <= 1_000).collect(),
        (false, _) => vec![2, 4],
    };
    let memory: RefCell<BTreeMap<u64, Vec<f64>>> = RefCell::default();
    let name = |what: &str, links: u64| format!("{what}, {links} idle links");
    let kinds = ["round trip", "one way"];
    let plan: Vec<_> = kinds.iter().flat_map(|kind| links.iter().map(move |n| (*kind, *n, name(kind, *n)))).collect();
    let measures: Vec<_> =
        plan.iter().map(|(kind, links, _)| || measure(args, *links, *kind == "one way", &memory)).collect();
    let rows: Vec<_> =
        plan.iter().zip(&measures).map(|((.., name), run)| (&name[..], run as &dyn Fn() -> Sample)).collect();
    let rounds = Rounds::run(args, &rows);
    let firsts = kinds.map(|kind| name(kind, links[0]));
    let against: Vec<(&str, &str)> = plan
        .iter()
        .filter(|(_, n, _)| *n != links[0])
        .map(|(kind, _, name)| (&name[..], &firsts[usize::from(*kind == "one way")][..]))
        .collect();
    rounds.report(args, &format!("scale {SIZE} B, ratio of processor time"), &against, |s| s.cpu_ns);
    let memory: BTreeMap<u64, f64> = memory.into_inner().into_iter().map(|(links, all)| (links, median(all))).collect();
    for (links, bytes) in &memory {
        println!("{links:>6} idle links: {bytes:.0} bytes of memory for each, where they were accepted");
    }
    if let Some(path) = &args.json {
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut all: Value = serde_json::from_str(&text).expect("just written");
        all["bytes_per_link"] = json!(memory);
        let text = serde_json::to_string_pretty(&all).expect("plain values") + "\n";
        fs::write(path, text).unwrap_or_else(|e| panic!("--json {}: {e}", path.display()));
    }
}

/// No heartbeat in the time of a measurement: what they cost is told by the bench of idle hosts.
fn quiet(builder: HostBuilder) -> HostBuilder {
    builder.heartbeat(Duration::from_secs(300), Duration::from_secs(900))
}

fn measure(args: &Args, links: u64, oneway: bool, memory: &RefCell<BTreeMap<u64, Vec<f64>>>) -> Sample {
    let mut server = Server::spawn(args, &links.div_ceil(LINKS).to_string());
    let before = server.report();
    let addresses: Vec<String> = serde_json::from_value(before["addresses"].clone()).expect("its addresses");
    let mut crowd = quiet(hosts::builder("crowd", IdlePolicy::Park)).handshakes(256, Duration::from_secs(60));
    for (at, address) in addresses.into_iter().enumerate() {
        crowd = crowd.connect(address).links((links - at as u64 * LINKS).min(LINKS));
    }
    let crowd = crowd.start().expect("the crowd starts");
    crowd.ready(Duration::from_secs(300)).unwrap_or_else(|e| panic!("{links} links: {e}"));
    let taken = number(&server.report(), "memory").saturating_sub(number(&before, "memory"));
    memory.borrow_mut().entry(links).or_default().push(taken as f64 / links as f64);

    let host = quiet(hosts::builder("client", IdlePolicy::Park)).connect(hosts::url(&server));
    let host = host.start().expect("the client starts");
    host.ready(Duration::from_secs(60)).expect("the server is there");
    if oneway {
        load::oneway(args, &mut server, SIZE, &mut hosts::Teller::new(&host, SIZE))
    } else {
        let mut asker = hosts::Asker::new(&host, SIZE);
        timed(args, &server, || asker.ask())
    }
}
