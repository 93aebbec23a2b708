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

/// What a PLAIN server of libzmq says in place of ERROR and its length, to this day: the source has it as
/// `"\x05ERROR"`, of which C reads `\x05E` as one character.
const ERROR_OF_LIBZMQ: &[u8] = b"^RROR";

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
            let place = peer.native.as_ref().map(|n| n.place);
            write_metadata("READY", peer.our_type, &self.hello, place, &mut self.outbox);
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
            if let Some(data) = unit[head.size..].strip_prefix(ERROR_OF_LIBZMQ) {
                return Err(WireError::Refused(error_reason(data)?));
            }
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
        // A server that does not say so is believed: libzmq's never does.
        let both_serve = self.side == Side::Accept && bytes[32] != 0;
        if self.security != Security::Null && both_serve {
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
        let (socket, place) = match self.side {
            Side::Dial(place) => (SocketType::Dealer, Some(place)),
            Side::DialAs(socket) => (socket, None),
            Side::Accept => return,
        };
        write_metadata(command, socket, &self.hello, place, &mut self.outbox);
    }
}

fn greeting(mechanism: &str, as_server: bool) -> [u8; GREETING_LEN] {
    let mut out = [0; GREETING_LEN];
    (out[0], out[9], out[10], out[11]) = (0xFF, 0x7F, 3, 1);
    out[12..12 + mechanism.len()].copy_from_slice(mechanism.as_bytes());
    out[32] = u8::from(as_server);
    out
}

fn write_metadata(command: &str, our_type: SocketType, hello: &Hello, place: Option<Place>, out: &mut Vec<u8>) {
    let mut properties = Vec::new();
    write_properties(our_type, hello, place, &mut properties);
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

#[cfg(test)]
mod tests {
    use crate::base::id::LinkId;
    use crate::base::record::Lane;

    use super::super::ready::{METADATA_MAX, Metadata, PROPERTIES_MAX, Role};
    use super::*;

    fn hello(node: &str) -> Hello {
        Hello {
            node: node.into(),
            instance: 0xABC,
            max_message: 1 << 24,
            clock_ms: 1234,
            channels: vec![("orders".into(), 100), ("stock".into(), 0)],
            servers: vec![("desk".into(), 300)],
            metadata: Metadata::default(),
        }
    }

    fn place(lane: Lane) -> Place {
        Place { link: LinkId(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff), slot: 3, lane, role: Role::Node }
    }

    fn plain(password: &str) -> Security {
        Security::Plain { user: b"ann".as_slice().into(), password: password.as_bytes().into() }
    }

    fn new(side: Side, security: Security) -> Handshake {
        Handshake::new(side, hello(if side == Side::Accept { "b" } else { "a" }), security)
    }

    fn sent(h: &mut Handshake) -> Vec<u8> {
        let mut out = Vec::new();
        h.poll_transmit(&mut out);
        out
    }

    /// Lets both talk, `step` bytes at a time, until neither has anything to say.
    fn talk(a: &mut Handshake, b: &mut Handshake, step: usize) -> Result<(), WireError> {
        loop {
            let (from_a, from_b) = (sent(a), sent(b));
            if from_a.is_empty() && from_b.is_empty() {
                return Ok(());
            }
            for (bytes, to) in [(from_a, &mut *b), (from_b, &mut *a)] {
                for chunk in bytes.chunks(step) {
                    assert_eq!(to.handle_bytes(chunk)?, chunk.len());
                }
            }
        }
    }

    /// An accepting side that has our greeting, and of which the first READY is next.
    fn greeted(side: Side, security: Security) -> Handshake {
        let as_server = side != Side::Accept && security != Security::Null;
        let bytes = greeting(security.mechanism(), as_server);
        let mut h = new(side, security);
        assert_eq!(h.handle_bytes(&bytes), Ok(GREETING_LEN));
        sent(&mut h);
        h
    }

    fn command(name: &str, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_command(name, &[data], &mut out);
        out
    }

    fn properties(list: &[(&str, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, value) in list {
            out.push(name.len() as u8);
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(&(value.len() as u32).to_be_bytes());
            out.extend_from_slice(value);
        }
        out
    }

    /// What an accepting side makes of a READY with these properties.
    fn accepted(list: &[(&str, &[u8])]) -> Result<PeerHello, WireError> {
        let mut h = greeted(Side::Accept, Security::Null);
        h.handle_bytes(&command("READY", &properties(list)))?;
        Ok(h.peer().expect("READY was read").clone())
    }

    const GREETING: &[u8; 64] = b"\xff\0\0\0\0\0\0\0\0\x7f\x03\x01NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
        \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

    const READY_OF_DIALLER: &[u8] = b"\x06\0\0\0\0\0\0\x01\x4f\x05READY\
        \x0bSocket-Type\0\0\0\x06DEALER\
        \x10X-Afflux-Version\0\0\0\x011\
        \x0cX-Afflux-Min\0\0\0\x011\
        \x0dX-Afflux-Node\0\0\0\x01a\
        \x11X-Afflux-Instance\0\0\0\x2000000000000000000000000000000abc\
        \x0dX-Afflux-Link\0\0\0\x2000112233445566778899aabbccddeeff\
        \x0dX-Afflux-Slot\0\0\0\x013\
        \x0dX-Afflux-Lane\0\0\0\x0bapplication\
        \x14X-Afflux-Max-Message\0\0\0\x0816777216\
        \x0eX-Afflux-Clock\0\0\0\x041234\
        \x11X-Afflux-Channels\0\0\0\x12orders=100,stock=0";

    #[test]
    fn golden_bytes_of_a_native_pair() {
        let mut dialler = new(Side::Dial(place(Lane::Application)), Security::Null);
        assert_eq!(sent(&mut dialler), GREETING);
        dialler.handle_bytes(GREETING).unwrap();
        let ready = sent(&mut dialler);
        assert_eq!(ready, READY_OF_DIALLER, "{}", ready.escape_ascii());

        let mut acceptor = new(Side::Accept, Security::Null);
        assert_eq!(sent(&mut acceptor), GREETING);
        acceptor.handle_bytes(GREETING).unwrap();
        assert_eq!(sent(&mut acceptor), b"", "the accepting side waits for the peer's READY");
        acceptor.handle_bytes(&ready).unwrap();
        let mut expected = READY_OF_DIALLER.to_vec();
        let at = expected.windows(6).position(|w| w == b"DEALER").unwrap();
        expected[at..at + 6].copy_from_slice(b"ROUTER");
        let at = expected.windows(4).position(|w| w == b"\0\0\x01a").expect("the node's name");
        expected[at + 3] = b'b';
        assert_eq!(sent(&mut acceptor), expected);
    }

    #[test]
    fn the_completion_lane_says_nothing_of_channels() {
        let mut dialler = new(Side::Dial(place(Lane::Completion)), Security::Null);
        let mut acceptor = greeted(Side::Accept, Security::Null);
        dialler.handle_bytes(GREETING).unwrap();
        let ready = sent(&mut dialler).split_off(GREETING_LEN);
        assert!(!ready.windows(8).any(|w| w == b"Channels"));
        acceptor.handle_bytes(&ready).unwrap();
        let native = acceptor.peer().unwrap().native.clone().unwrap();
        assert_eq!((native.place, native.channels), (place(Lane::Completion), vec![]));
    }

    /// A client says what it is and serves nothing; it is told what is for clients, and nothing of what is for nodes.
    #[test]
    fn a_client_is_told_what_is_served_to_clients() {
        for lane in [Lane::Application, Lane::Completion] {
            let as_client = Place { role: Role::Client, ..place(lane) };
            let mut a = new(Side::Dial(as_client), Security::Null);
            let mut b = new(Side::Accept, Security::Null);
            talk(&mut a, &mut b, 1000).unwrap();
            let (a, b) = (a.into_outcome().unwrap().native.unwrap(), b.into_outcome().unwrap().native.unwrap());
            assert_eq!((a.place, b.place), (as_client, as_client));
            assert_eq!(b.channels, []);
            let told = if lane == Lane::Application { hello("b").servers } else { vec![] };
            assert_eq!(a.channels, told);
        }
        // Who does not say it after the client knows nothing of roles.
        let mut a = new(Side::Dial(Place { role: Role::Client, ..place(Lane::Application) }), Security::Null);
        let mut b = new(Side::Accept, Security::Null);
        b.handle_bytes(GREETING).unwrap();
        b.handle_bytes(READY_OF_DIALLER).unwrap();
        assert_eq!(a.handle_bytes(&sent(&mut b)), Err(WireError::Property("X-Afflux-Role")));
    }

    /// The application's own properties go both ways, in every role and with every mechanism.
    #[test]
    fn metadata_is_told_to_everybody() {
        let own = |node: &str| Hello {
            metadata: [("X-Node".into(), bytes::Bytes::copy_from_slice(node.as_bytes()))].into(),
            ..hello(node)
        };
        for security in [Security::Null, plain("secret")] {
            for side in [Side::Dial(place(Lane::Application)), Side::DialAs(SocketType::Push)] {
                let mut a = Handshake::new(side, own("a"), security.clone());
                let mut b = Handshake::new(Side::Accept, own("b"), security.clone());
                talk(&mut a, &mut b, 1000).unwrap();
                let (a, b) = (a.into_outcome().unwrap(), b.into_outcome().unwrap());
                assert_eq!((&*a.metadata, &*b.metadata), (&*own("b").metadata, &*own("a").metadata));
            }
        }
    }

    #[test]
    fn metadata_has_a_bound() {
        let take = |len: usize| {
            let mut h = greeted(Side::Accept, Security::Null);
            let list = properties(&[("Socket-Type", b"DEALER"), ("X-Much", &vec![b'x'; len])]);
            h.handle_bytes(&command("READY", &list))
        };
        assert!(take(METADATA_MAX - 6).is_ok());
        assert_eq!(take(METADATA_MAX - 5), Err(WireError::Property("X- (more than 2 KiB of them)")));
    }

    #[test]
    fn native_pairs_agree_in_pieces_of_every_size() {
        for security in [Security::Null, plain("secret")] {
            for step in (1..80).chain([10_000]) {
                let mut a = new(Side::Dial(place(Lane::Application)), security.clone());
                let mut b = new(Side::Accept, security.clone());
                talk(&mut a, &mut b, step).unwrap();
                let (a, b) = (a.into_outcome().unwrap(), b.into_outcome().unwrap());
                assert_eq!((a.our_type, a.socket_type), (SocketType::Dealer, SocketType::Router));
                assert_eq!((b.our_type, b.socket_type), (SocketType::Router, SocketType::Dealer));
                let (a, b) = (a.native.unwrap(), b.native.unwrap());
                assert_eq!((&*a.node, &*b.node), ("b", "a"));
                assert_eq!((a.place, b.place), (place(Lane::Application), place(Lane::Application)));
                assert_eq!((a.version, a.instance, a.max_message, a.clock_ms), (1, 0xABC, 1 << 24, 1234));
                assert_eq!(a.channels, hello("b").channels);
            }
        }
    }

    #[test]
    fn nothing_behind_the_handshake_is_read() {
        let mut input = GREETING.to_vec();
        input.extend(READY_OF_DIALLER);
        let len = input.len();
        input.extend(b"\0\x05first");
        for split in 0..=input.len() {
            let mut h = new(Side::Accept, Security::Null);
            let mut used = h.handle_bytes(&input[..split]).unwrap();
            used += h.handle_bytes(&input[used..]).unwrap();
            assert_eq!(used, len, "split at {split}");
            assert_eq!(h.outcome(), None, "our READY is not written yet");
            sent(&mut h);
            assert_eq!(h.handle_bytes(&input[used..]), Ok(0));
            assert!(h.outcome().unwrap().native.is_some());
        }
    }

    #[test]
    fn a_stranger_is_sent_away_by_its_first_wrong_byte() {
        let cases: [(&[u8], usize, WireError); 5] = [
            (b"GET / HTTP/1.1", 1, WireError::NotZmtp),
            (b"\xff\0\0\0\0\0\0\0\0\0", 10, WireError::NotZmtp),
            (b"\xff\0\0\0\0\0\0\0\0\x7e", 10, WireError::NotZmtp),
            (b"\xff\0\0\0\0\0\0\0\x01\x7f\x01", 11, WireError::Revision(1)),
            (b"\xff\0\0\0\0\0\0\0\x01\x7f\x02", 11, WireError::Revision(2)),
        ];
        for (bytes, at, error) in cases {
            let mut h = new(Side::Accept, Security::Null);
            for byte in &bytes[..at - 1] {
                assert_eq!(h.handle_bytes(&[*byte]), Ok(1));
            }
            assert_eq!(h.handle_bytes(&bytes[at - 1..at]), Err(error.clone()));
            assert_eq!(h.handle_bytes(b"x"), Err(error), "it stays failed");
            assert_eq!(sent(&mut h), GREETING, "no ERROR before a handshake");
        }
    }

    #[test]
    fn greetings_of_other_revisions_and_libzmq_s_padding_are_taken() {
        for (major, minor, spoken) in [(3, 0, 0), (3, 1, 1), (3, 9, 1), (4, 0, 1)] {
            let mut bytes = *GREETING;
            (bytes[8], bytes[10], bytes[11]) = (7, major, minor);
            bytes[40] = 9;
            let mut h = new(Side::Accept, Security::Null);
            h.handle_bytes(&bytes).unwrap();
            h.handle_bytes(&command("READY", &properties(&[("Socket-Type", b"SUB")]))).unwrap();
            assert_eq!(h.peer().unwrap().minor, spoken);
        }
    }

    #[test]
    fn mechanisms_must_be_the_same_and_the_sides_different() {
        let take = |security: Security, mechanism: &str, as_server| {
            new(Side::Accept, security).handle_bytes(&greeting(mechanism, as_server))
        };
        assert!(matches!(take(Security::Null, "PLAIN", false), Err(WireError::Mechanism { ours: "NULL", .. })));
        assert!(matches!(take(Security::Null, "NULLX", false), Err(WireError::Mechanism { .. })));
        assert!(matches!(take(plain("x"), "NULL", false), Err(WireError::Mechanism { ours: "PLAIN", .. })));
        assert_eq!(take(plain("x"), "PLAIN", true), Err(WireError::MechanismSide));
        assert_eq!(take(Security::Null, "NULL", true), Ok(64), "NULL has no sides");
        let dial = Side::Dial(place(Lane::Application));
        for says_so in [false, true] {
            let mut dialler = new(dial, plain("x"));
            assert_eq!(dialler.handle_bytes(&greeting("PLAIN", says_so)), Ok(64), "libzmq's server does not say so");
            assert_eq!(dialler.state, State::Welcome);
        }
        assert_eq!(new(Side::Accept, plain("x")).outbox[32], 1);
        assert_eq!(new(dial, plain("x")).outbox[32], 0);
    }

    #[test]
    fn wrong_credentials_are_told_in_libzmq_s_way() {
        for (theirs, ours) in [("secret", "Secret"), ("secret", "secre"), ("", "secret")] {
            let mut a = new(Side::Dial(place(Lane::Application)), plain(theirs));
            let mut b = new(Side::Accept, plain(ours));
            assert_eq!(talk(&mut a, &mut b, 1000), Err(WireError::Credentials));
            let last = sent(&mut b);
            assert_eq!(last, b"\x04\x0a\x05ERROR\x03400");
            assert_eq!(a.handle_bytes(&last), Err(WireError::Refused("400".into())));
            assert_eq!(sent(&mut a), b"", "an ERROR has no answer");
        }
    }

    /// As recorded from libzmq 4.3.5.
    #[test]
    fn libzmq_s_misspelt_refusal_is_understood() {
        let mut h = greeted(Side::Dial(place(Lane::Application)), plain("wrong"));
        sent(&mut h);
        assert_eq!(h.handle_bytes(b"\x04\x09^RROR\x03400"), Err(WireError::Refused("400".into())));
        assert_eq!(sent(&mut h), b"", "an ERROR has no answer");
    }

    #[test]
    fn plain_speaks_as_libzmq_does() {
        let mut h = greeted(Side::Accept, plain("pw"));
        h.handle_bytes(b"\x04\x0d\x05HELLO\x03ann\x02pw").unwrap();
        assert_eq!(sent(&mut h), b"\x04\x08\x07WELCOME");
        h.handle_bytes(&command("INITIATE", &properties(&[("Socket-Type", b"REQ"), ("Identity", b"")]))).unwrap();
        assert_eq!(sent(&mut h), b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06ROUTER");
        let peer = h.into_outcome().unwrap();
        assert_eq!((peer.our_type, peer.socket_type), (SocketType::Router, SocketType::Req));
        assert_eq!(peer.native, None);

        let mut h = new(Side::Dial(place(Lane::Completion)), plain("pw"));
        h.handle_bytes(&greeting("PLAIN", true)).unwrap();
        assert_eq!(sent(&mut h)[64..], *b"\x04\x0d\x05HELLO\x03ann\x02pw");
        h.handle_bytes(b"\x04\x08\x07WELCOME").unwrap();
        assert_eq!(sent(&mut h)[9..18], *b"\x08INITIATE");
    }

    /// Each state against each input: what has no arrow in the drawing ends the handshake.
    #[test]
    fn the_table_of_states_and_inputs() {
        #[derive(PartialEq, Debug)]
        enum Then {
            Goes(State),
            Ends(WireError),
        }
        use Then::*;

        let app = place(Lane::Application);
        let ready = properties(&[("Socket-Type", b"ROUTER")]);
        let asks = properties(&[("Socket-Type", b"DEALER")]);
        let login = b"\x03ann\x02pw";
        // State, and the command that leads on with where it leads.
        type Row<'a> = (State, fn(Place) -> Handshake, &'a str, &'a [u8], State);
        let rows: [Row; 5] = [
            (State::Ready, |p| greeted(Side::Dial(p), Security::Null), "READY", &ready, State::Done),
            (State::Ready, |_| greeted(Side::Accept, Security::Null), "READY", &asks, State::Answer),
            (State::Welcome, |p| greeted(Side::Dial(p), plain("pw")), "WELCOME", b"", State::Ready),
            (State::Login, |_| greeted(Side::Accept, plain("pw")), "HELLO", login, State::Ready),
            (
                State::Ready,
                |_| {
                    let mut h = greeted(Side::Accept, plain("pw"));
                    h.handle_bytes(b"\x04\x0d\x05HELLO\x03ann\x02pw").unwrap();
                    h
                },
                "INITIATE",
                &asks,
                State::Answer,
            ),
        ];
        for (state, make, leads, data, to) in rows {
            let inputs: [(&str, Vec<u8>, Then); 10] = [
                ("leads", command(leads, data), Goes(to)),
                ("HELLO", command("HELLO", login), Ends(WireError::HandshakeOrder)),
                ("WELCOME", command("WELCOME", b""), Ends(WireError::HandshakeOrder)),
                ("INITIATE", command("INITIATE", &asks), Ends(WireError::HandshakeOrder)),
                ("READY", command("READY", &ready), Ends(WireError::HandshakeOrder)),
                ("ERROR", command("ERROR", b"\x03400"), Ends(WireError::Refused("400".into()))),
                ("PING", command("PING", b"\0\0"), Goes(state)),
                ("unknown", command("LATER", b"something"), Goes(state)),
                ("message", b"\0\x01x".to_vec(), Ends(WireError::HandshakeOrder)),
                ("nameless", b"\x04\0".to_vec(), Ends(WireError::Command("nameless"))),
            ];
            for (name, bytes, then) in inputs {
                if name == leads {
                    continue;
                }
                for step in [1, bytes.len()] {
                    let mut h = make(app);
                    assert_eq!(h.state, state);
                    let result = bytes.chunks(step).try_for_each(|c| h.handle_bytes(c).map(drop));
                    let found = result.map_or_else(Ends, |()| Goes(h.state));
                    assert_eq!(found, then, "{state:?} (leads on: {leads}) x {name}");
                }
            }
        }
    }

    #[test]
    fn strangers_are_ignored_but_not_for_ever() {
        let mut h = greeted(Side::Accept, Security::Null);
        for _ in 0..STRANGERS_MAX {
            h.handle_bytes(&command("LATER", b"")).unwrap();
        }
        assert_eq!(h.handle_bytes(&command("LATER", b"")), Err(WireError::HandshakeOrder));
    }

    #[test]
    fn a_peer_may_be_refused_before_it_is_answered() {
        let mut a = new(Side::Dial(place(Lane::Application)), Security::Null);
        let mut b = new(Side::Accept, Security::Null);
        b.handle_bytes(&sent(&mut a)).unwrap();
        a.handle_bytes(&sent(&mut b)).unwrap();
        b.handle_bytes(&sent(&mut a)).unwrap();
        assert_eq!(&*b.peer().unwrap().native.as_ref().unwrap().node, "a");
        b.refuse("AlreadyExists");
        assert!(b.handle_bytes(b"").is_err());
        let error = a.handle_bytes(&sent(&mut b)).unwrap_err();
        assert_eq!(error, WireError::Refused("AlreadyExists".into()));
        assert!(error.is_lasting());
        assert_eq!(b.into_outcome(), None);
    }

    #[test]
    fn the_accepting_side_mirrors() {
        for (theirs, ours) in [
            ("DEALER", Some(SocketType::Router)),
            ("REQ", Some(SocketType::Router)),
            ("SUB", Some(SocketType::Xpub)),
            ("XSUB", Some(SocketType::Xpub)),
            ("PUSH", Some(SocketType::Pull)),
            ("PUB", Some(SocketType::Xsub)),
            ("REP", None),
            ("ROUTER", None),
            ("PULL", None),
            ("PAIR", None),
        ] {
            let found = accepted(&[("Socket-Type", theirs.as_bytes())]);
            match ours {
                Some(ours) => assert_eq!(found.unwrap().our_type, ours),
                None => {
                    let theirs = SocketType::parse(theirs.as_bytes()).unwrap();
                    assert_eq!(found, Err(WireError::SocketPair { ours: None, theirs }));
                }
            }
        }
        assert_eq!(accepted(&[("Socket-Type", b"RADIO")]), Err(WireError::Property("Socket-Type")));
        assert_eq!(accepted(&[]), Err(WireError::Property("Socket-Type")));
    }

    #[test]
    fn a_dialler_takes_only_types_that_fit() {
        for (side, theirs, fits) in [
            (Side::DialAs(SocketType::Sub), "XPUB", true),
            (Side::DialAs(SocketType::Sub), "PUB", true),
            (Side::DialAs(SocketType::Sub), "ROUTER", false),
            (Side::Dial(place(Lane::Application)), "REP", true),
            (Side::Dial(place(Lane::Application)), "PULL", false),
        ] {
            let mut h = greeted(side, Security::Null);
            let result = h.handle_bytes(&command("READY", &properties(&[("Socket-Type", theirs.as_bytes())])));
            assert_eq!(result.is_ok(), fits, "{side:?} {theirs}: {result:?}");
            assert!(h.peer().is_none_or(|p| p.native.is_none()));
        }
    }

    fn native_list() -> Vec<(&'static str, &'static [u8])> {
        vec![
            ("socket-type", b"DEALER"),
            ("IDENTITY", b"id"),
            ("x-afflux-version", b"1"),
            ("X-AFFLUX-MIN", b"1"),
            ("X-Afflux-Node", b"a"),
            ("X-Afflux-Instance", b"0000000000000000000000000000000F"),
            ("X-Afflux-Link", b"000000000000000000000000000000ff"),
            ("X-Afflux-Slot", b"0"),
            ("X-Afflux-Lane", b"application"),
            ("X-Afflux-Max-Message", b"18446744073709551615"),
            ("X-Afflux-Clock", b"4294967295"),
            ("X-Afflux-Channels", b""),
            ("X-Afflux-Later", b"a property of a later version"),
            ("X-Team", b"blue"),
            ("Resource", b"/"),
        ]
    }

    #[test]
    fn names_are_matched_in_any_case_and_strangers_ignored() {
        let peer = accepted(&native_list()).unwrap();
        assert_eq!(&peer.identity[..], b"id");
        assert_eq!(*peer.metadata, [("X-Team".into(), bytes::Bytes::from_static(b"blue"))]);
        let native = peer.native.unwrap();
        assert_eq!((native.instance, native.place.link, native.place.slot), (15, LinkId(255), 0));
        assert_eq!((native.max_message, native.clock_ms), (u64::MAX, u32::MAX));
    }

    #[test]
    fn each_native_property_is_needed_once_and_well_formed() {
        let list = native_list();
        for i in 0..list.len() {
            let known = (3..=11).contains(&i);
            let mut without = list.clone();
            without.remove(i);
            match accepted(&without) {
                Ok(peer) => {
                    assert!(!(known || i == 0) || i == 8, "{} missing", list[i].0);
                    assert_eq!(peer.native.is_none(), i == 2 || i == 8, "{} missing", list[i].0);
                }
                Err(e) => assert!(matches!(e, WireError::Property(p) if p.eq_ignore_ascii_case(list[i].0)), "{e}"),
            }
            let mut twice = list.clone();
            twice.push(list[i]);
            assert_eq!(accepted(&twice).is_err(), i <= 11, "{} twice", list[i].0);
            let mut bad = list.clone();
            bad[i].1 = b"\xff!";
            assert_eq!(accepted(&bad).is_err(), i <= 11 && i != 1, "{} malformed", list[i].0);
        }
        for (i, value) in [(2, "+1"), (2, ""), (2, "65536"), (7, "-1"), (10, "4294967296"), (5, "f"), (4, "a b")] {
            let mut bad = list.clone();
            bad[i].1 = value.as_bytes();
            assert!(accepted(&bad).is_err(), "{} = {value}", list[i].0);
        }
    }

    #[test]
    fn versions_meet_at_the_smaller_of_the_two_highest() {
        for (max, min, agreed) in [("1", "1", true), ("7", "1", true), ("7", "2", false), ("0", "0", false)] {
            let mut list = native_list();
            (list[2].1, list[3].1) = (max.as_bytes(), min.as_bytes());
            match accepted(&list) {
                Ok(peer) => {
                    assert!(agreed);
                    assert_eq!(peer.native.unwrap().version, 1);
                }
                Err(e) => {
                    assert!(!agreed, "{e}");
                    assert_eq!(e.tell(), Some("version"));
                }
            }
        }
    }

    #[test]
    fn an_acceptor_must_answer_in_our_place() {
        let answer = |link: &[u8], slot: &[u8], lane: &[u8]| {
            let mut list = native_list();
            (list[0].1, list[6].1, list[7].1, list[8].1) = (b"ROUTER", b"", b"", b"");
            let list: Vec<(&str, &[u8])> = list
                .iter()
                .enumerate()
                .map(|(i, (n, v))| (*n, [link, slot, lane].get(i.wrapping_sub(6)).copied().unwrap_or(v)))
                .collect();
            let mut h = greeted(Side::Dial(place(Lane::Application)), Security::Null);
            h.handle_bytes(&command("READY", &properties(&list))).map(drop)
        };
        let link = b"00112233445566778899aabbccddeeff";
        assert_eq!(answer(link, b"3", b"application"), Ok(()));
        assert_eq!(answer(link, b"4", b"application"), Err(WireError::Property("X-Afflux-Slot")));
        assert_eq!(answer(link, b"3", b"completion"), Err(WireError::Property("X-Afflux-Lane")));
        let other = b"00000000000000000000000000000000";
        assert_eq!(answer(other, b"3", b"application"), Err(WireError::Property("X-Afflux-Link")));
    }

    #[test]
    fn identities_and_lists_have_limits() {
        let with = |identity: &[u8]| accepted(&[("Socket-Type", b"DEALER"), ("Identity", identity)]);
        assert!(with(&[b'i'; 255]).is_ok());
        assert_eq!(with(&[b'i'; 256]), Err(WireError::Property("Identity")));
        assert_eq!(with(b"\0abc"), Err(WireError::Property("Identity")));
        let names: Vec<String> = (0..PROPERTIES_MAX).map(|i| format!("X-{i}")).collect();
        let mut list: Vec<(&str, &[u8])> = vec![("Socket-Type", b"DEALER")];
        list.extend(names.iter().map(|n| (&**n, &b""[..])));
        assert_eq!(accepted(&list), Err(WireError::Property("count")));
        list.pop();
        assert_eq!(accepted(&list).unwrap().metadata.len(), PROPERTIES_MAX - 1);
        let mut cut = properties(&[("Socket-Type", b"DEALER")]);
        cut.pop();
        for bad in
            [&cut[..], b"\0\0\0\0\0", b"\x01", b"\x01a\xff\xff\xff\xff", b"\x02\xff\xff\0\0\0\0", b"\x01 \0\0\0\0"]
        {
            let mut h = greeted(Side::Accept, Security::Null);
            let result = h.handle_bytes(&command("READY", bad));
            assert_eq!(result, Err(WireError::Property("list")), "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn a_command_s_length_is_judged_before_its_body_comes() {
        let mut h = greeted(Side::Accept, Security::Null);
        let size = COMMAND_MAX + 1;
        let head = FrameHead::new(false, true, size).to_bytes();
        assert_eq!(h.handle_bytes(&head), Err(WireError::TooLarge { what: "command", size, max: COMMAND_MAX }));

        let mut h = greeted(Side::Accept, Security::Null);
        h.handle_bytes(&FrameHead::new(false, true, COMMAND_MAX).to_bytes()).unwrap();
        assert!(h.capacity() < 100, "announced, not come");
    }
}
