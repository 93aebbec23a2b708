//! Client and server: only the client starts, and the server answers. A role has a ceiling of its own for its sends,
//! and several servers share its calls. A stock ZeroMQ DEALER or REQ is such a client too.
//!
//! ```text
//! cargo run --example client_server
//! ```

use std::time::Duration;

use afflux::{Context, Error, ErrorKind, Handler, Host, Request};

struct Till {
    server: &'static str,
}

impl Handler for Till {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        // What the client told of itself in its handshake; its own word, checked by nobody.
        let shop = cx.metadata("X-Shop").unwrap_or_default();
        let answer = format!("{}: paid at {}", self.server, String::from_utf8_lossy(&shop));
        request.reply(cx, answer);
    }
}

fn serve(server: &'static str) -> Result<Host, Error> {
    Host::builder(server).listen("tcp://127.0.0.1:0").server("till", move |_shard| Till { server }).start()
}

fn main() -> Result<(), Error> {
    let servers = [serve("till-1")?, serve("till-2")?];
    let client = Host::builder("shop")
        .metadata("X-Shop", "Harbour Street")
        .client_of("till")
        .server_at(format!("tcp://{}", servers[0].addresses()[0]))
        .server_at(format!("tcp://{}", servers[1].addresses()[0]))
        .client_send_timeout(Duration::from_millis(200)) // node and channel keep theirs
        .start()?;
    client.ready(Duration::from_secs(10))?;

    let till = client.client().server("till")?;
    for _ in 0..2 {
        println!("{}", String::from_utf8_lossy(&till.request("pay", "2 x tea").wait()?));
    }

    // The server starts nothing: it is told so, and gets its payload back.
    if let Err(error) = servers[0].client().node("shop").request("hello", "anybody?").wait() {
        assert_eq!(error.kind(), ErrorKind::InvalidOperation);
        println!("{error}");
    }
    // A role that was not configured is no role.
    if let Err(error) = client.client().server("stock") {
        println!("{error}");
    }
    Ok(())
}
