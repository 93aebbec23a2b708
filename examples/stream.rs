//! End clients over plain TCP: a small chat room, and a client for it that knows nothing of afflux.
//!
//! ```text
//! cargo run --release --example stream -- --listen tcp://127.0.0.1:7201
//! cargo run --release --example stream -- --client 127.0.0.1:7201 --name ada
//! ```
//!
//! A frame is `header length: u16 | body length: u32 | header | body`, lengths big endian. A client says
//! something with an empty header and everybody in the room gets it, with the speaker as the header. A frame
//! with the header `who` is a question: its answer carries that header too.

use std::collections::HashMap;
use std::error::Error;
use std::io::{self, BufRead, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use afflux::{Context, Frame, Host, Session, SessionEnd, SessionHandle};
use clap::Parser;

/// A chat room for plain TCP clients, or such a client.
#[derive(Parser)]
struct Args {
    /// Serve: tcp://host:port
    #[arg(long, value_name = "ADDR", required_unless_present = "client", conflicts_with = "client")]
    listen: Option<String>,
    /// Join: host:port
    #[arg(long, value_name = "ADDR")]
    client: Option<String>,
    /// What the client calls itself
    #[arg(long, default_value = "somebody")]
    name: String,
}

/// Who is there. Sessions live on different shards, so what they share is shared as usual.
type Room = Arc<Mutex<HashMap<SocketAddr, SessionHandle>>>;

/// One client, made on the shard that has its connection for life.
struct Guest {
    room: Room,
    this: Option<SessionHandle>,
    said: u64,
}

impl Session for Guest {
    fn opened(&mut self, session: SessionHandle, _: &mut Context<'_, Self>) {
        self.room.lock().unwrap().insert(session.peer(), session.clone());
        self.this = Some(session);
    }

    fn frame(&mut self, frame: Frame, _: &mut Context<'_, Self>) {
        if frame.header().as_ref() == b"who" {
            let count = self.room.lock().unwrap().len();
            // A reply waits at most for the socket's ceiling; what comes of it is nobody's business here.
            return frame.reply(format!("{count} in the room, {} said by you", self.said)).detach();
        }
        self.said += 1;
        let speaker = frame.session().peer().to_string();
        for guest in self.room.lock().unwrap().values() {
            // A guest who does not listen misses what does not fit his queue, and nobody waits for him.
            let _ = guest.try_send(speaker.clone(), frame.body().clone());
        }
    }

    fn closed(&mut self, why: SessionEnd, _: &mut Context<'_, Self>) {
        if let Some(this) = &self.this {
            self.room.lock().unwrap().remove(&this.peer());
            println!("{} is gone: {}", this.peer(), why.name());
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    match (&args.listen, &args.client) {
        (Some(addr), _) => serve(addr),
        (None, Some(addr)) => join(addr, &args.name),
        (None, None) => unreachable!("the parser wants one of them"),
    }
}

fn serve(addr: &str) -> Result<(), Box<dyn Error>> {
    let room = Room::default();
    let host = Host::builder("room")
        .stream(addr, move |_shard| Guest { room: room.clone(), this: None, said: 0 })
        .stream_sessions(1000)
        .stream_idle(Duration::from_secs(600))
        .start()?;
    for addr in host.stream_addresses() {
        println!("listening on tcp://{addr}");
    }
    Ok(host.join()?)
}

/// Lines of the terminal become frames; frames become lines.
fn join(addr: &str, name: &str) -> Result<(), Box<dyn Error>> {
    let mut stream = TcpStream::connect(addr)?;
    let mut incoming = stream.try_clone()?;
    let reader = thread::spawn(move || {
        while let Ok((header, body)) = read(&mut incoming) {
            println!("[{}] {}", String::from_utf8_lossy(&header), String::from_utf8_lossy(&body));
        }
    });
    for line in io::stdin().lock().lines() {
        match line?.as_str() {
            "who" => write(&mut stream, b"who", b"")?,
            text => write(&mut stream, b"", format!("{name}: {text}").as_bytes())?,
        }
    }
    // What was said is answered before the service ends its side.
    stream.shutdown(std::net::Shutdown::Write)?;
    reader.join().map_err(|_| "the reader panicked")?;
    Ok(())
}

fn write(stream: &mut TcpStream, header: &[u8], body: &[u8]) -> io::Result<()> {
    let mut frame = (header.len() as u16).to_be_bytes().to_vec();
    frame.extend((body.len() as u32).to_be_bytes());
    frame.extend(header);
    frame.extend(body);
    stream.write_all(&frame)
}

fn read(stream: &mut TcpStream) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let mut prefix = [0; 6];
    stream.read_exact(&mut prefix)?;
    let header = usize::from(u16::from_be_bytes([prefix[0], prefix[1]]));
    let body = u32::from_be_bytes([prefix[2], prefix[3], prefix[4], prefix[5]]) as usize;
    let mut bytes = vec![0; header + body];
    stream.read_exact(&mut bytes)?;
    let body = bytes.split_off(header);
    Ok((bytes, body))
}
