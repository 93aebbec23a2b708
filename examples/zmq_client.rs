//! Talks to stock ZeroMQ sockets that listen: asks a ROUTER (or REP), tells a PULL.
//!
//! ```text
//! cargo run --release --example zmq_client -- --ask tcp://127.0.0.1:7201 --tell tcp://127.0.0.1:7202 -n 1000
//! ```
//!
//! A request goes out as `id, empty, route, payload` and is answered by `id, empty, "ok", payload` or
//! `id, empty, "error", kind, sentence`; a message is `route, payload`. Each payload is a number and
//! padding; the answers must be the same bytes.

use std::collections::VecDeque;
use std::error::Error;
use std::time::Duration;

use afflux::Host;
use bytes::Bytes;
use clap::Parser;

const LONG: Duration = Duration::from_secs(20);

/// Asks a stock ROUTER and tells a stock PULL.
#[derive(Parser)]
struct Args {
    /// Where the ROUTER or REP listens: tcp://host:port
    #[arg(long, value_name = "ADDR", required_unless_present = "tell")]
    ask: Option<String>,
    /// Where the PULL listens
    #[arg(long, value_name = "ADDR")]
    tell: Option<String>,
    /// Requests and messages to make
    #[arg(short, default_value_t = 1_000)]
    n: u64,
    /// Bytes of the largest; sizes go up to it in turn
    #[arg(long, default_value_t = 1_000)]
    size: usize,
    /// Requests outstanding at a time
    #[arg(long, default_value_t = 16)]
    outstanding: usize,
    /// For PLAIN: user:password
    #[arg(long)]
    plain: Option<String>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let mut host = Host::builder("zmq-client");
    if let Some(addr) = &args.ask {
        host = host.connect(addr).named("router");
    }
    if let Some(addr) = &args.tell {
        host = host.connect(addr).named("pull").pull();
    }
    if let Some((user, password)) = args.plain.as_deref().and_then(|plain| plain.split_once(':')) {
        host = host.plain(user, password);
    }
    let host = host.start()?;
    host.ready(LONG)?;

    let payload = |n: u64| {
        let size = (n as usize * 37) % (args.size + 1);
        let mut bytes = n.to_be_bytes().to_vec();
        bytes.resize(size.max(8), n as u8);
        Bytes::from(bytes)
    };
    if args.ask.is_some() {
        // A stock peer announces no channels: it is called by its name, and the method is the route.
        let router = host.client().node("router");
        let mut outstanding = VecDeque::new();
        let mut answered = 0;
        for n in 0..args.n + args.outstanding as u64 {
            if n < args.n {
                outstanding.push_back((n, router.request("echo", payload(n)).timeout(LONG).submit()));
            }
            if outstanding.len() == args.outstanding || n >= args.n {
                let Some((n, pending)) = outstanding.pop_front() else { break };
                let reply = pending.wait()?;
                if reply != payload(n) {
                    return Err(format!("the answer to {n} is another: {} bytes", reply.len()).into());
                }
                answered += 1;
            }
        }
        println!("{answered} answered");
        match router.request("fail", "").timeout(LONG).wait() {
            Err(error) => println!("refused: {error}"),
            Ok(reply) => println!("not refused: {} bytes", reply.len()),
        }
    }
    if args.tell.is_some() {
        let pull = host.client().node("pull");
        for n in 0..args.n {
            pull.send("orders/tell", payload(n)).timeout(LONG).wait()?;
        }
        println!("{} told", args.n);
        match pull.request("orders/ask", "").timeout(LONG).wait() {
            Err(error) => println!("refused: {error}"),
            Ok(_) => println!("a PULL has answered"),
        }
    }
    let account = host.shutdown(LONG);
    println!("{account}");
    if account.is_clean() { Ok(()) } else { Err("not everything went out".into()) }
}
