//! Stock ZeroMQ sockets: DEALERs that ask a host over one connection each, as libzmq would. They know nothing
//! of the crate but the bytes of its stock dialect. Some send what is no request, all stop reading now and then;
//! whoever asked gets exactly one answer, or loses its connection.

use std::collections::BTreeMap;
use std::io::{ErrorKind, IoSlice};
use std::sync::Arc;

use afflux::flow::transport::Transport;
use bytes::Bytes;

use super::agenda::Thread;
use super::net::{Net, SimTransport};

const COMMAND: u8 = 4;
const LONG: u8 = 2;
const MORE: u8 = 1;
const GREETING: usize = 64;

/// A frame, and whether it is a command.
type Frame = (bool, Vec<u8>);

/// What a DEALER has heard.
#[derive(Debug)]
pub enum Heard {
    /// The answer to an operation: its payload, or nothing for an error.
    Answer(u32, Option<Bytes>),
    /// The connection is gone, with whatever was asked over it.
    Lost(Vec<u32>),
    /// What no ROUTER says.
    Nonsense(String),
}

/// One DEALER.
pub struct Dealer {
    /// Its number, behind those of the nodes.
    pub at: usize,
    /// The node that it asks.
    pub host: usize,
    connection: Option<Connection>,
    attempts: u32,
    /// Asked and not answered, and whether the answer must be an error.
    pub asked: BTreeMap<u32, bool>,
    /// It reads nothing until then.
    pub rests_until: u64,
    pub redials_at: u64,
}

struct Connection {
    transport: Arc<SimTransport>,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// Greeting and READY of the host were read.
    greeted: bool,
    ready: bool,
    heard_at: u64,
}

impl Dealer {
    pub fn new(at: usize, host: usize) -> Dealer {
        Dealer { at, host, connection: None, attempts: 0, asked: BTreeMap::new(), rests_until: 0, redials_at: 0 }
    }

    /// Its requests go out.
    pub fn is_up(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.ready)
    }

    /// Goes, and does not come back.
    pub fn leave(&mut self, net: &Arc<Net>) {
        self.redials_at = u64::MAX;
        if let Some(connection) = self.connection.take() {
            net.unwatch(connection.transport.end, Thread { node: self.at, life: 0, at: 0 });
        }
    }

    /// Puts a request into its hands: frames behind the delimiter, in the form of a DEALER.
    pub fn ask(&mut self, op: u32, frames: &[&[u8]], is_wrong: bool) {
        let Some(connection) = &mut self.connection else { return };
        self.asked.insert(op, is_wrong);
        let id = op.to_le_bytes();
        let all = [&id[..], &[]].into_iter().chain(frames.iter().copied());
        let last = 1 + frames.len();
        all.enumerate()
            .for_each(|(i, body)| write_frame(&mut connection.outbox, if i < last { MORE } else { 0 }, body));
    }

    /// Dials if it has no connection, writes and reads what goes. `silent`: after how long it gives up a
    /// connection on which nothing comes.
    pub fn step(&mut self, now: u64, silent: u64, net: &Arc<Net>) -> Vec<Heard> {
        let thread = Thread { node: self.at, life: 0, at: 0 };
        let _ready = net.poll(thread);
        let Some(connection) = &mut self.connection else {
            if now >= self.redials_at {
                self.attempts += 1;
                let transport = net.dial(thread, (self.attempts, 0), self.host);
                let (inbox, outbox) = (Vec::new(), hello());
                self.connection =
                    Some(Connection { transport, inbox, outbox, greeted: false, ready: false, heard_at: now });
            }
            return Vec::new();
        };
        let mut heard = Vec::new();
        let well = match net.outcome(connection.transport.end) {
            None => true,
            Some(false) => false,
            Some(true) => {
                let alive = connection.write() && (now < self.rests_until || connection.read(now));
                // What came before the end counts.
                connection.take(&mut heard) && alive
            }
        };
        if !well || now > connection.heard_at.max(self.rests_until) + silent {
            net.unwatch(connection.transport.end, thread);
            self.connection = None;
            let answered = |op: &u32| heard.iter().any(|one| matches!(one, Heard::Answer(of, _) if of == op));
            let lost = self.asked.keys().copied().filter(|op| !answered(op)).collect();
            self.asked.retain(|op, _| answered(op));
            heard.push(Heard::Lost(lost));
            return heard;
        }
        // What was read may want an answer.
        connection.write();
        heard
    }
}

impl Connection {
    /// False: the connection is gone.
    fn write(&mut self) -> bool {
        while !self.outbox.is_empty() {
            match self.transport.write(&[IoSlice::new(&self.outbox)]) {
                Ok(n) => drop(self.outbox.drain(..n)),
                Err(e) => return e.kind() == ErrorKind::WouldBlock,
            }
        }
        true
    }

    fn read(&mut self, now: u64) -> bool {
        let mut block = [0; 4096];
        loop {
            match self.transport.read(&mut block) {
                Ok(0) => return false,
                Ok(n) => {
                    self.inbox.extend_from_slice(&block[..n]);
                    self.heard_at = now;
                }
                Err(e) => return e.kind() == ErrorKind::WouldBlock,
            }
        }
    }

    /// Takes whole messages apart. False: the host is no ROUTER.
    fn take(&mut self, heard: &mut Vec<Heard>) -> bool {
        if !self.greeted {
            if self.inbox.len() < GREETING {
                return true;
            }
            self.inbox.drain(..GREETING);
            self.greeted = true;
        }
        while let Some((used, frames)) = message(&self.inbox) {
            self.inbox.drain(..used);
            match &frames[..] {
                [(true, command)] => self.take_command(command),
                [(false, id), (false, empty), (false, word), (false, payload)] if empty.is_empty() && word == b"ok" => {
                    heard.push(answer(id, Some(Bytes::copy_from_slice(payload))));
                }
                [(false, id), (false, empty), (false, word), (false, _kind), (false, _sentence)]
                    if empty.is_empty() && word == b"error" =>
                {
                    heard.push(answer(id, None));
                }
                other => heard.push(Heard::Nonsense(format!("{other:?}"))),
            }
        }
        true
    }

    fn take_command(&mut self, command: &[u8]) {
        if command.starts_with(b"\x05READY") {
            self.ready = true;
        }
        // A PING is its time to live and a context that comes back.
        if let Some(rest) = command.strip_prefix(b"\x04PING") {
            let context = rest.get(2..).unwrap_or_default();
            write_frame(&mut self.outbox, COMMAND, &[b"\x04PONG", context].concat());
        }
    }
}

fn answer(id: &[u8], payload: Option<Bytes>) -> Heard {
    match id.try_into() {
        Ok(id) => Heard::Answer(u32::from_le_bytes(id), payload),
        Err(_) => Heard::Nonsense(format!("an answer to {id:?}")),
    }
}

/// Greeting and READY of a DEALER, all at once.
fn hello() -> Vec<u8> {
    let mut out = vec![0; GREETING];
    (out[0], out[9], out[10], out[11]) = (0xFF, 0x7F, 3, 1);
    out[12..16].copy_from_slice(b"NULL");
    let mut ready = b"\x05READY".to_vec();
    for (name, value) in [("Socket-Type", "DEALER"), ("Identity", "")] {
        ready.push(name.len() as u8);
        ready.extend(name.bytes());
        ready.extend((value.len() as u32).to_be_bytes());
        ready.extend(value.bytes());
    }
    write_frame(&mut out, COMMAND, &ready);
    out
}

fn write_frame(out: &mut Vec<u8>, flags: u8, body: &[u8]) {
    if body.len() < 256 {
        out.extend([flags, body.len() as u8]);
    } else {
        out.push(flags | LONG);
        out.extend((body.len() as u64).to_be_bytes());
    }
    out.extend_from_slice(body);
}

/// The first message, if it is whole: its length, and its frames with whether they are commands.
fn message(bytes: &[u8]) -> Option<(usize, Vec<Frame>)> {
    let (mut at, mut frames) = (0, Vec::new());
    loop {
        let flags = *bytes.get(at)?;
        let (head, len) = match flags & LONG {
            0 => (2, usize::from(*bytes.get(at + 1)?)),
            _ => (9, u64::from_be_bytes(bytes.get(at + 1..at + 9)?.try_into().unwrap()) as usize),
        };
        frames.push((flags & COMMAND != 0, bytes.get(at + head..at + head + len)?.to_vec()));
        at += head + len;
        if flags & MORE == 0 {
            return Some((at, frames));
        }
    }
}
