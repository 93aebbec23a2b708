//! One port for every stock ZeroMQ socket that may come: DEALER and REQ ask, PUSH tells, PUB publishes, SUB hears.
//!
//! ```text
//! cargo run --release --example one_port -- --listen tcp://127.0.0.1:7101
//! ```
//!
//! | socket | sends | comes of it |
//! |---|---|---|
//! | DEALER, REQ | `echo`, payload | `ok`, payload |
//! | | `who`, empty | `ok`, the identity and the X-Name of whoever asks |
//! | | `count`, empty | `ok`, how many messages were taken so far |
//! | PUSH, DEALER | `say/topic`, payload | whoever subscribed to the topic hears it |
//! | PUB | topic, payload | likewise |
//!
//! On its standard input, `stop` keeps the next message in its handler, so that those behind it wait, and in the end
//! their senders with them; `go` lets them go on.

use std::error::Error;
use std::io::BufRead;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use afflux::{
    ByteSize, Context, Handler, Host, Hwm, Message, Placement, Publication, PublisherOptions, Request, SlowSubscriber,
};
use bytes::Bytes;
use clap::Parser;

#[derive(Parser)]
struct Args {
    /// Where everybody connects: tcp://host:port
    #[arg(long, value_name = "ADDR")]
    listen: String,
    /// Every connection is asked for user:password (ZMTP PLAIN)
    #[arg(long)]
    plain: Option<String>,
    /// Time between two signs of life, ms; whoever gives none for three times that is dead
    #[arg(long, default_value_t = 5000)]
    heartbeat: u64,
}

struct Echo;

impl Handler for Echo {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        let payload = request.payload().clone();
        request.reply(cx, payload);
    }
}

struct Who;

impl Handler for Who {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        // The identity of a stock socket is a label, and its X- properties are its own word.
        let name = cx.metadata("X-Name").unwrap_or_default();
        let answer = format!("{} {}", cx.peer(), String::from_utf8_lossy(&name));
        request.reply(cx, answer);
    }
}

/// Shared by all handlers: how many messages were taken, and whether the next one is to wait.
#[derive(Default)]
struct Desk {
    taken: AtomicU64,
    stopped: Mutex<bool>,
    moved: Condvar,
}

impl Desk {
    fn stop(&self, stop: bool) {
        *self.stopped.lock().expect("nobody panics with it") = stop;
        self.moved.notify_all();
    }

    /// Blocks the shard: what a handler that hangs would do.
    fn take(&self) {
        let stopped = self.stopped.lock().expect("nobody panics with it");
        drop(self.moved.wait_while(stopped, |stopped| *stopped).expect("nobody panics with it"));
        self.taken.fetch_add(1, Ordering::Relaxed);
    }
}

struct Count(Arc<Desk>);

impl Handler for Count {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        request.reply(cx, self.0.taken.load(Ordering::Relaxed).to_string());
    }
}

/// Publishes what PUSH sockets say and PUB sockets publish.
struct Relay(Arc<Desk>);

impl Relay {
    fn relay(&self, topic: &[u8], payload: Bytes, cx: &mut Context<'_, Self>) {
        self.0.take();
        let published = cx.publisher().expect("this host has one").publish(topic, payload).wait();
        if let Err(error) = published {
            eprintln!("not published: {error}");
        }
    }
}

impl Handler for Relay {
    fn message(&mut self, message: Message, cx: &mut Context<'_, Self>) {
        let topic = message.method().to_owned();
        self.relay(topic.as_bytes(), message.into_payload(), cx);
    }

    fn publication(&mut self, publication: Publication, cx: &mut Context<'_, Self>) {
        self.relay(publication.topic(), publication.payload(), cx);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let desk = Arc::new(Desk::default());
    let (count, says, hears) = (desk.clone(), desk.clone(), desk.clone());
    // Who does not take what is published loses the newest of it, and is told so here.
    let options = PublisherOptions::new()
        .hwm(ByteSize::mib(256))
        .slow_subscriber(SlowSubscriber::DropNewest)
        .on_drop(|d| eprintln!("{}: {} dropped: {:?}", d.subscriber, d.records, d.reason));
    let mut host = Host::builder("one-port")
        .shards(Placement::Count(1)) // one order of everything that is said
        .listen(&args.listen)
        .metadata("X-Service", "one-port")
        .heartbeat(Duration::from_millis(args.heartbeat), Duration::from_millis(3 * args.heartbeat))
        // What a sender may be ahead of a handler that stops.
        .receive_hwm(Hwm::Bytes(ByteSize::kib(256)))
        .socket_buffers(ByteSize::kib(256), ByteSize::kib(256))
        .channel("echo", |_shard| Echo)
        .channel("who", |_shard| Who)
        .channel("count", move |_shard| Count(count.clone()))
        .channel("say", move |_shard| Relay(says.clone()))
        .publisher(options)
        .subscriber("published-here", move |_shard| Relay(hears.clone()))
        .publishers_connect()
        .topic("");
    if let Some((user, password)) = args.plain.as_deref().and_then(|plain| plain.split_once(':')) {
        host = host.plain(user, password);
    }
    let host = host.start()?;
    println!("listening on tcp://{}", host.addresses()[0]);
    for line in std::io::stdin().lock().lines() {
        match line?.as_str() {
            "stop" => desk.stop(true),
            "go" => desk.stop(false),
            other => eprintln!("{other:?} is neither stop nor go"),
        }
    }
    desk.stop(false);
    println!("{}", host.shutdown(Duration::from_secs(5)));
    Ok(())
}
