//! A channel is a name that several nodes serve; each call goes to one of them, by their weights. The calling process
//! may be one of them: it takes its turns, through the same admission and without a socket.
//!
//! ```text
//! cargo run --example channel
//! ```

use afflux::{Context, Error, Handler, Host, HostBuilder, Request};

/// Says where it is.
struct Here(&'static str);

impl Handler for Here {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        request.reply(cx, self.0);
    }
}

fn serving(node: &'static str, weight: u64) -> HostBuilder {
    Host::builder(node).listen("tcp://127.0.0.1:0").channel("thumbnails", move |_shard| Here(node)).weight(weight)
}

fn main() -> Result<(), Error> {
    let far = serving("far", 100).start()?;
    let drained = serving("drained", 0).start()?; // known, and given nothing
    let near = serving("near", 300)
        .connect(format!("tcp://{}", far.addresses()[0]))
        .connect(format!("tcp://{}", drained.addresses()[0]))
        .start()?;
    near.ready(std::time::Duration::from_secs(10))?;

    // One choice per call, when it starts; nothing that happens later makes it another.
    let thumbnails = near.client().channel("thumbnails");
    let turns: Result<Vec<_>, _> = (0..8).map(|_| thumbnails.request("make", "cat.png").wait()).collect();
    for turn in turns? {
        print!("{} ", String::from_utf8_lossy(&turn)); // near three times as often as far
    }
    println!();

    // Nobody has ever served this one, and nobody will be waited for.
    if let Err(error) = near.client().channel("posters").send("make", "cat.png").wait() {
        println!("{error}");
    }
    Ok(())
}
