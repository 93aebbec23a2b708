//! How long a reply takes on a host that is at rest, and on the same host when everything in it is full:
//! every handler it may start has been started and does not finish, every permit is taken, its receive
//! queue and its peer's send queue are full, a send waits. Also while its only shard is blocked inside a
//! handler for a short and a long while. The reply path must not care, however long the stall is.
//!
//! The serving process keeps requests and answers one each millisecond, with the time in it; the time until
//! the waiting thread has it is what is measured. The clock is the system's, the same for both processes.

mod common;

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use afflux::{
    ByteSize, Context, Detail, ErrorKind, Handler, Host, Hwm, IdlePolicy, Message, RemoteResponder, Request, Responder,
};
use clap::Parser;
use common::{Args, Rounds, Sample, Server, Usage, finish, histogram, hosts, serve_and_report, serving};
use serde_json::json;

/// Longer than any run.
const LONG: Duration = Duration::from_secs(600);
/// Between two replies: each finds the caller asleep.
const PACE: Duration = Duration::from_millis(1);

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    args: Args,
    /// How long a handler blocks its shard, milliseconds, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [10, 1_000, 10_000])]
    stalls: Vec<u64>,
    /// Replies of each measurement
    #[arg(long, default_value_t = 1_000)]
    replies: usize,
}

/// What the handlers of the host under test do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// Nobody calls them.
    None,
    /// They never answer.
    Unanswered,
    /// They block their shard for so long, each time.
    Blocked(Duration),
}

fn main() {
    let mut options = Options::parse();
    options.args.prepare();
    if !options.args.bench {
        (options.replies, options.stalls) = (20, vec![10]);
    } else if options.args.quick {
        options.replies = options.replies.min(400);
    }
    let args = &options.args;
    if serving(args).is_some() {
        serve();
    }
    let mut rows = vec![("idle".to_string(), Trouble::None), ("full, nobody answers".to_string(), Trouble::Unanswered)];
    let blocked = |ms: &u64| (format!("full, blocked {ms} ms"), Trouble::Blocked(Duration::from_millis(*ms)));
    rows.extend(options.stalls.iter().map(blocked));
    let measures: Vec<_> = rows.iter().map(|(name, trouble)| (name.as_str(), || measure(&options, *trouble))).collect();
    let measures: Vec<_> = measures.iter().map(|(name, run)| (*name, run as &dyn Fn() -> Sample)).collect();
    let rounds = Rounds::run(args, &measures);
    let ceilings: Vec<_> = rows[1..].iter().map(|(name, _)| (name.as_str(), "idle")).collect();
    rounds.report(args, "reply after it was given, ratio of p50", &ceilings, |s| s.quantile_us(0.5));
    for (name, _) in ceilings.iter().filter(|(name, _)| args.wants(name)) {
        let ratios = rounds.ratios(name, "idle", |s| s.quantile_us(0.99));
        if !ratios.is_empty() {
            println!("{name:<28} p99 {:.2} of idle", common::median(ratios));
        }
    }
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

// ---- the host under test

/// Set when the measurement is over: what is blocked need not be waited for.
type Over = Arc<(Mutex<bool>, Condvar)>;

struct Troubled {
    trouble: Trouble,
    over: Over,
    kept: Vec<Responder>,
}

impl Handler for Troubled {
    fn request(&mut self, request: Request, _: &mut Context<'_, Self>) {
        match self.trouble {
            Trouble::None => {}
            // The bound on started handlers bounds this.
            Trouble::Unanswered => self.kept.push(request.into_parts().0),
            Trouble::Blocked(time) => {
                let over = self.over.0.lock().expect("nobody panics");
                drop(self.over.1.wait_timeout_while(over, time, |over| !*over));
            }
        }
    }
}

fn measure(options: &Options, trouble: Trouble) -> Sample {
    let mut server = Server::spawn(&options.args, "keeper");
    let over = Over::default();
    let ends = over.clone();
    let host = hosts::builder("full", IdlePolicy::Park)
        .listen("tcp://127.0.0.1:0")
        .connect(hosts::url(&server))
        .receive_hwm(Hwm::Bytes(ByteSize::kib(64)))
        .max_jobs(64)
        .max_started_handlers(64)
        .channel("trouble", move |_| Troubled { trouble, over: ends.clone(), kept: Vec::new() })
        .start()
        .expect("the host starts");
    host.ready(Duration::from_secs(60)).expect("the server is there");
    let keep = host.client().channel("keep");
    let pending: Vec<_> = (0..options.replies).map(|_| keep.request("", "").timeout(LONG).submit()).collect();
    let wait_for = |server: &mut Server, what: &str, n: u64| {
        while server.tell(what).as_u64() < Some(n) {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait_for(&mut server, "kept", options.replies as u64);
    if trouble != Trouble::None {
        server.tell(&format!("flood tcp://{}", host.addresses()[0]));
        // A send of the flood waits: everything before it is full.
        wait_for(&mut server, "waiting", 1);
    }
    if trouble == Trouble::Unanswered {
        while host.status().permits.in_use < 64 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let before = (Usage::own(), server.usage());
    let begin = std::time::Instant::now();
    server.tell("answer");
    let mut times = histogram();
    for pending in pending {
        let reply = pending.wait().expect("an answer");
        let given = u64::from_le_bytes(reply[..].try_into().expect("eight bytes"));
        times.saturating_record(now_ns().saturating_sub(given));
    }
    let sample = finish(times.len(), begin.elapsed().as_secs_f64(), Some(times), before, &server);
    *over.0.lock().expect("nobody panics") = true;
    over.1.notify_all();
    sample
}

// ---- the process that keeps requests and floods

struct Keeper {
    keep: std::sync::mpsc::Sender<RemoteResponder>,
    kept: Arc<Mutex<u64>>,
}

impl Handler for Keeper {
    fn request(&mut self, request: Request, _: &mut Context<'_, Self>) {
        self.keep.send(request.into_parts().0.into_remote()).expect("held by main");
        *self.kept.lock().expect("nobody panics") += 1;
    }

    fn message(&mut self, _: Message, _: &mut Context<'_, Self>) {}
}

fn answer(held: &Receiver<RemoteResponder>) {
    while let Ok(responder) = held.try_recv() {
        std::thread::sleep(PACE);
        responder.reply(now_ns().to_le_bytes().to_vec());
    }
}

fn flood(url: String) -> Host {
    let host = hosts::builder("flood", IdlePolicy::Park)
        .connect(url)
        .send_hwm(Hwm::Bytes(ByteSize::kib(64)))
        .start()
        .expect("the flood starts");
    host.ready(Duration::from_secs(60)).expect("the full host listens");
    let trouble = host.client().channel("trouble");
    std::thread::spawn(move || {
        // Also when the waiting room is full: what the sockets have taken since must be made up for.
        loop {
            let mut pending = trouble.request("", vec![7; 1024]).timeout(LONG).submit();
            match pending.try_take() {
                Some(Err(e)) if e.kind() == ErrorKind::ShuttingDown => return,
                Some(Err(e)) if e.error().detail() == Detail::WaitingRoomFull => std::thread::sleep(PACE),
                _ => pending.detach(),
            }
        }
    });
    host
}

fn serve() -> ! {
    let (keep, held) = channel();
    let kept = Arc::new(Mutex::new(0));
    let counted = kept.clone();
    let host = hosts::builder("keeper", IdlePolicy::Park)
        .listen("tcp://127.0.0.1:0")
        .channel("keep", move |_| Keeper { keep: keep.clone(), kept: counted.clone() })
        .start()
        .expect("the keeper starts");
    let held = Arc::new(Mutex::new(held));
    let flooding: Mutex<Option<Host>> = Mutex::new(None);
    serve_and_report(host.addresses()[0].port(), move |order| {
        let mut flooding = flooding.lock().expect("nobody panics");
        match order.split_once(' ').unwrap_or((order, "")) {
            ("kept", _) => json!(*kept.lock().expect("nobody panics")),
            ("waiting", _) => json!(flooding.as_ref().map_or(0, |host| host.status().waiting)),
            ("flood", url) => {
                *flooding = Some(flood(url.to_string()));
                json!(null)
            }
            ("answer", _) => {
                let held = held.clone();
                std::thread::spawn(move || answer(&held.lock().expect("nobody panics")));
                json!(null)
            }
            _ => json!(null),
        }
    })
}
