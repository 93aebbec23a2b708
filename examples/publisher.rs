//! Publishes the lines of its standard input: the first word is the topic, the rest the payload.
//!
//! ```text
//! cargo run --release --example publisher -- --listen tcp://127.0.0.1:7201
//! cargo run --release --example subscriber -- --publisher tcp://127.0.0.1:7201 --topic eur/
//! ```
//!
//! Any ZeroMQ SUB gets them too. Drops are told on the standard error, with their reason.

use std::error::Error;
use std::io::BufRead;
use std::time::Duration;

use afflux::{ByteSize, Host, PublisherOptions, SlowSubscriber};
use clap::{Parser, ValueEnum};

#[derive(Parser)]
struct Args {
    /// Where subscribers connect: tcp://host:port
    #[arg(long, value_name = "ADDR")]
    listen: String,
    /// Mark of each subscriber's queue, KiB
    #[arg(long, default_value_t = 1024)]
    hwm: u64,
    /// What happens at that mark
    #[arg(long, value_enum, default_value = "drop-newest")]
    slow: Slow,
}

#[derive(Clone, Copy, ValueEnum)]
enum Slow {
    DropNewest,
    DropOldest,
    Wait,
    Disconnect,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let slow = match args.slow {
        Slow::DropNewest => SlowSubscriber::DropNewest,
        Slow::DropOldest => SlowSubscriber::DropOldest,
        Slow::Wait => SlowSubscriber::Wait,
        Slow::Disconnect => SlowSubscriber::Disconnect(Duration::from_secs(5)),
    };
    let options = PublisherOptions::new()
        .hwm(ByteSize::kib(args.hwm))
        .slow_subscriber(slow)
        .on_drop(|d| eprintln!("{}: {} dropped, {} bytes: {:?}", d.subscriber, d.records, d.bytes, d.reason));
    let host = Host::builder("publisher").listen(args.listen).publisher(options).start()?;
    println!("listening on tcp://{}", host.addresses()[0]);

    let publisher = host.publisher()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (topic, payload) = line.split_once(' ').unwrap_or((&line, ""));
        // Nobody need be there. Only `--slow wait` can fail for want of room.
        publisher.publish(topic, payload.to_owned()).wait()?;
    }
    println!("{}", host.shutdown(Duration::from_secs(5)));
    Ok(())
}
