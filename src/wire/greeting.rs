//! The handshake: 64 bytes of greeting each way, then READY each way; under PLAIN user name and
//! password before.
//!
//! ```text
//!  dialling    Greeting ── NULL ──────────────────── READY> ── Ready ─────────── <READY ── Done
//!                  └────── PLAIN ── HELLO> ── Welcome ── <WELCOME, INITIATE> ── Ready ──┘
//!
//!  accepting   Greeting ── NULL ──────────────────────────── Ready ── <READY ── Answer ── READY> ── Done
//!                  └────── PLAIN ── Login ── <HELLO, WELCOME> ── Ready ── <INITIATE ──┘
//! ```
//!
//! All 64 bytes are sent at once: libzmq sends 10 and waits for ours, and two that wait for each
//! other wait for ever. An accepting side reads the peer's READY before it says anything of itself:
//! it answers with the type that fits, and [`Handshake::peer`] lets the caller decide, before the
//! next [`Handshake::poll_transmit`], whether it wants that peer at all.
//!
//! What is not a command of the fixed order ends it; commands that nobody knows are ignored, a few.
//! Memory: one greeting or command, at most 64 KiB, growing with what came. The time limit is the
//! caller's.

use super::command::{COMMAND_MAX, error_reason, split, write_command, write_error};
use super::error::{MechanismName, WireError};
use super::frame::{FrameHead, HEAD_MAX};
use super::ready::{Hello, PeerHello, Place, Reader, parse_properties, write_properties};
use super::socket::SocketType;

/// The length of a greeting.
pub const GREETING_LEN: usize = 64;

/// How many commands of unknown names are ignored in one handshake.
const STRANGERS_MAX: u8 = 8;

/// What this end of the connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Dials for one lane of a native pair. A stock ROUTER may be found there instead.
    Dial(Place),
    /// Dials as a classic socket: SUB, PUB, ... .
    DialAs(SocketType),
    /// Accepts whoever may talk to us.
    Accept,
}

/// How a peer is recognised. Both ends must be set up for the same.
#[derive(Clone, PartialEq, Eq, Default)]
pub enum Security {
    /// Not at all.
    #[default]
    Null,
    /// By user name and password, in clear text: for loopback and tunnels only. Each at most 255
    /// bytes.
    Plain {
        /// What the dialling side shows and the accepting side wants to see.
        user: Box<[u8]>,
        /// Likewise.
        password: Box<[u8]>,
    },
}

impl Security {
    fn mechanism(&self) -> &'static str {
        match self {
            Security::Null => "NULL",
            Security::Plain { .. } => "PLAIN",
        }
    }
}

impl std::fmt::Debug for Security {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.mechanism())
    }
}

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The peer's greeting.
    Greeting,
    /// HELLO of PLAIN, accepting.
    Login,
    /// WELCOME of PLAIN, dialling.
    Welcome,
    /// The peer's READY (from a PLAIN client: INITIATE).
    Ready,
    /// Accepting: that the caller fetches our READY, or refuses.
    Answer,
    /// Nothing.
    Done,
    /// Nothing: there was an error.
    Failed,
}

/// One end of a handshake.
#[derive(Debug)]
pub struct Handshake {
    side: Side,
    hello: Hello,
    security: Security,
    state: State,
    /// The greeting or command that is not whole yet.
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    minor: u8,
    strangers: u8,
    peer: Option<PeerHello>,
    error: Option<WireError>,
}

impl Handshake {
    /// Begins, with the whole greeting ready to be sent.
    pub fn new(side: Side, hello: Hello, security: Security) -> Handshake {
        let as_server = side == Side::Accept && security != Security::Null;
        let outbox = greeting(security.mechanism(), as_server).to_vec();
        Handshake {
            side,
            hello,
            security,
            state: State::Greeting,
            inbox: Vec::new(),
            outbox,
            minor: 1,
            strangers: 0,
            peer: None,
            error: None,
        }
    }

    /// Takes bytes of the peer; returns how many. Never more than belong to the handshake: what is
    /// left is for the decoder. After an error, what [`Handshake::poll_transmit`] still gives is to
    /// be sent before the connection is closed.
    pub fn handle_bytes(&mut self, input: &[u8]) -> Result<usize, WireError> {
        if let Some(e) = &self.error {
            return Err(e.clone());
        }
        let mut used = 0;
        while !matches!(self.state, State::Answer | State::Done) {
            let n = self.unit_len().map_err(|e| self.fail(e))? - self.inbox.len();
            let n = n.min(input.len() - used);
            if n == 0 {
                break;
            }
            self.inbox.extend_from_slice(&input[used..used + n]);
            used += n;
            self.look().map_err(|e| self.fail(e))?;
        }
        Ok(used)
    }

    /// Appends what is to be sent now. The accepting side's READY is written by this call, and with
    /// it the handshake is done.
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>) {
        if let (State::Answer, Some(peer)) = (self.state, &self.peer) {
            let native = peer.native.as_ref().map(|n| (&self.hello, n.place));
            write_metadata("READY", peer.our_type, native, &mut self.outbox);
            self.state = State::Done;
        }
        out.append(&mut self.outbox);
    }

    /// What the peer said of itself, as soon as its READY was read.
    pub fn peer(&self) -> Option<&PeerHello> {
        self.peer.as_ref()
    }

    /// What the peer said of itself, once nothing is left to be read or written.
    pub fn outcome(&self) -> Option<&PeerHello> {
        self.peer.as_ref().filter(|_| self.state == State::Done && self.outbox.is_empty())
    }

    /// The owned form of [`Handshake::outcome`].
    pub fn into_outcome(self) -> Option<PeerHello> {
        self.outcome().is_some().then_some(self.peer).flatten()
    }

    /// Sends the peer away with a reason, instead of an answer to its READY. To libzmq peers this is
    /// final, and to native ones a reason to wait before they try again.
    pub fn refuse(&mut self, reason: &str) {
        if self.error.is_none() {
            self.fail(WireError::Declined(reason.into()));
        }
    }

    /// Sets what our READY will say of the clock and the channels: both may have changed since the
    /// beginning. Without effect once READY is written.
    pub fn hello_mut(&mut self) -> &mut Hello {
        &mut self.hello
    }

    /// Bytes that are held for the greeting or command that is not whole.
    pub fn capacity(&self) -> usize {
        self.inbox.capacity()
    }

    fn fail(&mut self, e: WireError) -> WireError {
        if let Some(reason) = e.tell() {
            write_error(reason, &mut self.outbox);
        }
        self.state = State::Failed;
        self.peer = None;
        self.inbox = Vec::new();
        self.error = Some(e.clone());
        e
    }

    /// How long the greeting or command that begins the inbox is, as far as can be told.
    fn unit_len(&self) -> Result<usize, WireError> {
        if self.state == State::Greeting {
            return Ok(GREETING_LEN);
        }
        match FrameHead::parse(&self.inbox)? {
            None if self.inbox.is_empty() => Ok(1),
            None if self.inbox[0] & super::frame::LONG != 0 => Ok(HEAD_MAX),
            None => Ok(2),
            Some(head) if !head.command => Err(WireError::HandshakeOrder),
            Some(head) if head.len > COMMAND_MAX => {
                Err(WireError::TooLarge { what: "command", size: head.len, max: COMMAND_MAX })
            }
            Some(head) => Ok(head.size + head.len as usize),
        }
    }

    /// Looks at the inbox after bytes were added.
    fn look(&mut self) -> Result<(), WireError> {
        if self.state == State::Greeting {
            self.look_at_greeting()?;
        } else if self.inbox.len() == self.unit_len()? {
            let unit = std::mem::take(&mut self.inbox);
            let head = FrameHead::parse(&unit)?.ok_or(WireError::HandshakeOrder)?;
            let (name, data) = split(&unit[head.size..])?;
            self.handle_command(name, data)?;
        }
        Ok(())
    }

    /// Judges every field of a greeting as soon as it is there, so that a stranger is sent away by
    /// its first byte.
    fn look_at_greeting(&mut self) -> Result<(), WireError> {
        let bytes = &self.inbox;
        if bytes.first() != Some(&0xFF) || bytes.get(9).is_some_and(|b| *b != 0x7F) {
            return Err(WireError::NotZmtp);
        }
        if let Some(&major) = bytes.get(10).filter(|major| **major < 3) {
            return Err(WireError::Revision(major));
        }
        let Some(bytes) = bytes.first_chunk::<GREETING_LEN>() else { return Ok(()) };
        self.minor = if bytes[10] == 3 { bytes[11].min(1) } else { 1 };
        let mut name = [0; 20];
        name.copy_from_slice(&bytes[12..32]);
        let ours = self.security.mechanism();
        if name[..ours.len()] != *ours.as_bytes() || name[ours.len()..].iter().any(|b| *b != 0) {
            return Err(WireError::Mechanism { ours, theirs: MechanismName(name) });
        }
        let they_serve = bytes[32] != 0;
        if self.security != Security::Null && they_serve == (self.side == Side::Accept) {
            return Err(WireError::MechanismSide);
        }
        self.inbox = Vec::new();
        self.state = match (&self.security, self.side) {
            (Security::Null, Side::Accept) => State::Ready,
            (Security::Plain { .. }, Side::Accept) => State::Login,
            (Security::Null, _) => {
                self.write_own_metadata("READY");
                State::Ready
            }
            (Security::Plain { user, password }, _) => {
                let lens = [[user.len() as u8], [password.len() as u8]];
                write_command("HELLO", &[&lens[0], user, &lens[1], password], &mut self.outbox);
                State::Welcome
            }
        };
        Ok(())
    }

    fn handle_command(&mut self, name: &[u8], data: &[u8]) -> Result<(), WireError> {
        let plain_server = self.side == Side::Accept && self.security != Security::Null;
        match (self.state, name) {
            (_, b"ERROR") => return Err(WireError::Refused(error_reason(data)?)),
            (State::Login, b"HELLO") => {
                self.check_login(data)?;
                write_command("WELCOME", &[], &mut self.outbox);
                self.state = State::Ready;
            }
            (State::Welcome, b"WELCOME") => {
                self.write_own_metadata("INITIATE");
                self.state = State::Ready;
            }
            (State::Ready, b"READY") if !plain_server => self.handle_ready(data)?,
            (State::Ready, b"INITIATE") if plain_server => self.handle_ready(data)?,
            (_, b"HELLO" | b"WELCOME" | b"INITIATE" | b"READY") => return Err(WireError::HandshakeOrder),
            _ => {
                self.strangers += 1;
                if self.strangers > STRANGERS_MAX {
                    return Err(WireError::HandshakeOrder);
                }
            }
        }
        Ok(())
    }

    fn handle_ready(&mut self, data: &[u8]) -> Result<(), WireError> {
        let (reader, next) = match self.side {
            Side::Accept => (Reader::Accepting, State::Answer),
            Side::Dial(place) => (Reader::Dialling(SocketType::Dealer, Some(place)), State::Done),
            Side::DialAs(socket) => (Reader::Dialling(socket, None), State::Done),
        };
        self.peer = Some(parse_properties(data, reader, self.minor)?);
        self.state = next;
        Ok(())
    }

    fn check_login(&self, data: &[u8]) -> Result<(), WireError> {
        let Security::Plain { user, password } = &self.security else { return Err(WireError::HandshakeOrder) };
        let field = |data| split_field(data).ok_or(WireError::Command("HELLO"));
        let (their_user, rest) = field(data)?;
        let (their_password, rest) = field(rest)?;
        if !rest.is_empty() {
            return Err(WireError::Command("HELLO"));
        }
        // Both are compared whatever the first says, so that the time tells nothing.
        if !(same(their_user, user) & same(their_password, password)) {
            return Err(WireError::Credentials);
        }
        Ok(())
    }

    /// Our side of READY or INITIATE, dialling.
    fn write_own_metadata(&mut self, command: &str) {
        match self.side {
            Side::Dial(place) => {
                write_metadata(command, SocketType::Dealer, Some((&self.hello, place)), &mut self.outbox);
            }
            Side::DialAs(socket) => write_metadata(command, socket, None, &mut self.outbox),
            Side::Accept => {}
        }
    }
}

fn greeting(mechanism: &str, as_server: bool) -> [u8; GREETING_LEN] {
    let mut out = [0; GREETING_LEN];
    (out[0], out[9], out[10], out[11]) = (0xFF, 0x7F, 3, 1);
    out[12..12 + mechanism.len()].copy_from_slice(mechanism.as_bytes());
    out[32] = u8::from(as_server);
    out
}

fn write_metadata(command: &str, our_type: SocketType, native: Option<(&Hello, Place)>, out: &mut Vec<u8>) {
    let mut properties = Vec::new();
    write_properties(our_type, native, &mut properties);
    write_command(command, &[&properties], out);
}

fn split_field(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = data.split_first()?;
    rest.split_at_checked(*len as usize)
}

/// Equality whose time depends on the lengths alone.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |diff, (a, b)| diff | (a ^ b)) == 0
}
