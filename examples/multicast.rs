//! Logical multicast: one ordinary send to every member of a channel that can be reached, each under a ceiling of its
//! own, so that a slow one holds nobody else. The result tells who was told. For fan-out that may lose, see the
//! publisher example.
//!
//! ```text
//! cargo run --example multicast
//! ```

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use afflux::{Context, Error, Handler, Host, HostBuilder, Message};

struct Room {
    node: &'static str,
    heard: Sender<String>,
}

impl Handler for Room {
    fn message(&mut self, message: Message, cx: &mut Context<'_, Self>) {
        let said = String::from_utf8_lossy(message.payload()).into_owned();
        // Nobody listens any more once the example is over.
        let _ = self.heard.send(format!("{} heard {} say: {said}", self.node, cx.peer()));
    }
}

fn room(node: &'static str, heard: &Sender<String>) -> HostBuilder {
    let heard = heard.clone();
    Host::builder(node)
        .listen("tcp://127.0.0.1:0")
        .channel("room-events", move |_shard| Room { node, heard: heard.clone() })
}

fn main() -> Result<(), Error> {
    let (tell, heard) = channel();
    let (a, b) = (room("a", &tell).start()?, room("b", &tell).start()?);
    // This host serves the channel too, and hears itself.
    let c = room("c", &tell)
        .connect(format!("tcp://{}", a.addresses()[0]))
        .connect(format!("tcp://{}", b.addresses()[0]))
        .start()?;
    c.ready(Duration::from_secs(10))?;

    let events = c.client().channel("room-events");
    let told = events.multicast("said", "good morning").timeout(Duration::from_millis(500)).wait();
    println!("{told}");
    for (node, end) in &told.members {
        if let Err(error) = end {
            println!("{node} was not told, and its copy is still here: {error}");
        }
    }
    for line in heard.iter().take(told.accepted()) {
        println!("{line}");
    }
    // Nobody at all is a success: there was nobody to tell.
    println!("{}", c.client().channel("empty").multicast("said", "hello?").wait());
    Ok(())
}
