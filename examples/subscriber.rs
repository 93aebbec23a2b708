//! Prints what it subscribed to, one publication a line: topic, a space, payload.
//!
//! ```text
//! cargo run --release --example subscriber -- --publisher tcp://127.0.0.1:7201 --topic eur/
//! ```
//!
//! Lines of its standard input change what it wants: `+log.` subscribes to `log.`, `-log.` no longer. The
//! publishers are afflux publishers or any ZeroMQ PUB or XPUB; those that are away are dialled until they
//! are there, and told everything again.

use std::error::Error;
use std::io::{BufRead, Write};

use afflux::{Context, Handler, Host, Publication};
use clap::Parser;

#[derive(Parser)]
struct Args {
    /// A publisher: tcp://host:port; may be given several times
    #[arg(long, value_name = "ADDR", required_unless_present = "listen")]
    publisher: Vec<String>,
    /// Where publishers may connect: tcp://host:port
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Topics that begin with this; may be given several times, and "" is every topic
    #[arg(long, value_name = "PREFIX")]
    topic: Vec<String>,
}

/// One per shard. A connection's publications come in order, on the shard that owns it.
struct Print;

impl Handler for Print {
    fn publication(&mut self, publication: Publication, _: &mut Context<'_, Self>) {
        let mut out = std::io::stdout().lock();
        // Nobody may read any more what is printed.
        let _ = out.write_all(publication.topic());
        let _ = out.write_all(b" ");
        let _ = out.write_all(&publication.payload());
        let _ = out.write_all(b"\n");
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let mut builder = Host::builder("subscriber").subscriber("lines", |_shard| Print);
    for addr in &args.publisher {
        builder = builder.publisher_at(addr);
    }
    if let Some(addr) = args.listen {
        builder = builder.publishers_connect().listen(addr);
    }
    for prefix in &args.topic {
        builder = builder.topic(prefix);
    }
    let host = builder.start()?;
    for addr in host.addresses() {
        println!("listening on tcp://{addr}");
    }
    let lines = host.subscriber("lines")?;
    for line in std::io::stdin().lock().lines() {
        match line?.split_at_checked(1) {
            Some(("+", prefix)) => drop(lines.subscribe(prefix)?),
            Some(("-", prefix)) => drop(lines.unsubscribe(prefix)?),
            _ => eprintln!("a line is +prefix or -prefix"),
        }
    }
    // Only changes come by the standard input: its end is not the end.
    Ok(host.join()?)
}
