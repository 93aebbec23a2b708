//! A call to one node and no other, by its name. It may be made before the node was ever seen, and while it is away:
//! what is sent waits in the node's queue.
//!
//! ```text
//! cargo run --example node
//! ```

use std::time::Duration;

use afflux::{Context, Error, Handler, Host, Message, Placement, Request};

/// What a node answers that is called by its name.
struct Gauges {
    notes: u64,
}

impl Handler for Gauges {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        let answer = format!("{} notes, and you are {}", self.notes, cx.peer());
        request.reply(cx, answer);
    }

    fn message(&mut self, _: Message, _: &mut Context<'_, Self>) {
        self.notes += 1;
    }
}

fn main() -> Result<(), Error> {
    // Only to have a port that is free: nobody is there yet when the first note is sent.
    let at = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let desk = Host::builder("desk").connect(format!("tcp://{at}")).named("plant-7").start()?;
    let plant = desk.client().node("plant-7");
    // Accepted by this host's runtime: it lies in the queue for plant-7.
    plant.send("note", "before you were there").wait()?;

    let _plant = Host::builder("plant-7")
        .shards(Placement::Count(1)) // one handler, one count
        .listen(format!("tcp://{at}"))
        .node_handler(|_shard| Gauges { notes: 0 })
        .start()?;
    plant.send("note", "and now").wait()?;
    // One handle, one order: both notes are there before the question.
    let answer = plant.request("how many", "").timeout(Duration::from_secs(10)).wait()?;
    println!("{}", String::from_utf8_lossy(&answer));

    // Another name is another node, and nobody else answers for it.
    if let Err(error) = desk.client().node("plant-8").request("how many", "").wait() {
        println!("{error}");
    }
    Ok(())
}
