//! The smallest service and its caller.
//!
//! ```text
//! cargo run --release --example echo -- --listen tcp://127.0.0.1:7101
//! cargo run --release --example echo -- --client tcp://127.0.0.1:7101 -n 100000 --size 64
//! ```

use std::collections::VecDeque;
use std::error::Error;
use std::time::{Duration, Instant};

use afflux::{Context, Handler, Host, HostBuilder, Message, Request};
use bytes::Bytes;
use clap::Parser;
use hdrhistogram::Histogram;

/// Answers every request on the channel `echo` with its payload, or asks such a service.
#[derive(Parser)]
struct Args {
    /// Serve: tcp://host:port
    #[arg(long, value_name = "ADDR", required_unless_present = "client", conflicts_with = "client")]
    listen: Option<String>,
    /// Ask: tcp://host:port
    #[arg(long, value_name = "ADDR")]
    client: Option<String>,
    /// Requests to make
    #[arg(short, default_value_t = 100_000)]
    n: u64,
    /// Bytes of each
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// Requests outstanding at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    outstanding: u32,
    /// Every connection shows, and is asked for, user:password (ZMTP PLAIN)
    #[arg(long)]
    plain: Option<String>,
}

impl Args {
    fn host(&self, name: &str) -> HostBuilder {
        let host = Host::builder(name);
        match self.plain.as_deref().and_then(|plain| plain.split_once(':')) {
            Some((user, password)) => host.plain(user, password),
            None => host,
        }
    }
}

struct Echo;

impl Handler for Echo {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        let payload = request.payload().clone();
        request.reply(cx, payload);
    }

    fn message(&mut self, message: Message, _: &mut Context<'_, Self>) {
        drop(message);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    match (&args.listen, &args.client) {
        (Some(addr), _) => serve(addr, &args),
        (None, Some(addr)) => ask(addr, &args),
        (None, None) => unreachable!("the parser wants one of them"),
    }
}

fn serve(addr: &str, args: &Args) -> Result<(), Box<dyn Error>> {
    let host = args.host("echo").listen(addr).channel("echo", |_shard| Echo).start()?;
    for addr in host.addresses() {
        println!("listening on tcp://{addr}");
    }
    Ok(host.join()?)
}

fn ask(addr: &str, args: &Args) -> Result<(), Box<dyn Error>> {
    let host = args.host("echo-client").connect(addr).start()?;
    host.ready(Duration::from_secs(5))?;
    let echo = host.client().channel("echo");
    let payload = Bytes::from(vec![b'x'; args.size]);
    let mut times = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
    let mut outstanding = VecDeque::new();
    let begin = Instant::now();
    for _ in 0..args.n {
        if args.outstanding == 1 {
            let start = Instant::now();
            echo.request("", payload.clone()).wait()?;
            times.saturating_record(start.elapsed().as_nanos() as u64);
            continue;
        }
        if outstanding.len() == args.outstanding as usize {
            take(&mut outstanding, &mut times)?;
        }
        outstanding.push_back((Instant::now(), echo.request("", payload.clone()).submit()));
    }
    while !outstanding.is_empty() {
        take(&mut outstanding, &mut times)?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{} requests of {} B, {} outstanding, in {seconds:.3} s: {:.0}/s",
        args.n,
        args.size,
        args.outstanding,
        args.n as f64 / seconds
    );
    for (name, q) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)] {
        println!("{name:>6} {:>10.1} us", times.value_at_quantile(q) as f64 / 1e3);
    }
    println!("{}", host.shutdown(Duration::from_secs(1)));
    Ok(())
}

type Outstanding = VecDeque<(Instant, afflux::Pending<afflux::TwoWay>)>;

fn take(outstanding: &mut Outstanding, times: &mut Histogram<u64>) -> Result<(), Box<dyn Error>> {
    if let Some((start, pending)) = outstanding.pop_front() {
        pending.wait()?;
        times.saturating_record(start.elapsed().as_nanos() as u64);
    }
    Ok(())
}
