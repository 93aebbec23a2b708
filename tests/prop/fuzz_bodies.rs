//! What the fuzz targets of `tests/fuzz` do with their input, so that `cargo test` does the same
//! with the inputs in `corpus/`. A panic or a failed assertion is a find.

use afflux::base::id::LinkId;
use afflux::base::record::Lane;
use afflux::wire::assembly::PAGE;
use afflux::wire::decode::{Decoder, Item, Mode};
use afflux::wire::error::WireError;
use afflux::wire::greeting::{Handshake, Security, Side};
use afflux::wire::ready::{Hello, PeerHello, Place, Role};
use afflux::wire::socket::SocketType;
use afflux::wire::stream::{FrameDecoder, Whole};

pub const MODES: [Mode; 7] = [
    Mode::NativeApplication,
    Mode::NativeCompletion,
    Mode::StockAsking,
    Mode::StockPushing,
    Mode::StockAnswering,
    Mode::Subscriber,
    Mode::Publisher,
];

/// The largest message that the decoders of the fuzz targets take.
pub const MAX_MESSAGE: u64 = 100_000;

/// What came of a stream: the items, the error that ended it, or what was left over.
#[derive(Debug)]
pub struct Fed {
    pub items: Vec<Item>,
    pub error: Option<WireError>,
    pub rest: Vec<u8>,
}

impl Fed {
    /// A form that two ways of feeding must agree on.
    pub fn summary(&self) -> String {
        format!("{:?} {:?} {:?}", self.items, self.error, self.rest)
    }
}

/// Feeds chunks as a link does: what was not taken is offered again in front of the next chunk.
/// Large bodies are read in place if `direct`.
pub fn feed<'a>(mode: Mode, max_message: u64, chunks: impl IntoIterator<Item = &'a [u8]>, direct: bool) -> Fed {
    let mut decoder = Decoder::new(mode, max_message);
    let mut fed = Fed { items: Vec::new(), error: None, rest: Vec::new() };
    let (mut received, mut admitted) = (0, 0);
    for mut chunk in chunks {
        if direct && fed.rest.is_empty() {
            while let Some(space) = decoder.assembly_space(chunk.len()) {
                let n = space.len().min(chunk.len());
                space[..n].copy_from_slice(&chunk[..n]);
                decoder.assembly_filled(n);
                (received, chunk) = (received + n, &chunk[n..]);
            }
        }
        fed.rest.extend_from_slice(chunk);
        received += chunk.len();
        loop {
            let begins = decoder.assembly().is_none();
            let step = match decoder.peek(&fed.rest) {
                Ok(None) if begins => break,
                Ok(peeked) => decoder.decode(&fed.rest).inspect(|_| admitted = peeked.unwrap_or(admitted)),
                Err(e) => Err(e),
            };
            let step = match step {
                Ok(step) => step,
                Err(e) => {
                    // What lies behind an error depends on how far the cuts had come.
                    fed.rest.clear();
                    fed.error = Some(e);
                    return fed;
                }
            };
            assert!(step.consumed <= fed.rest.len());
            fed.rest.drain(..step.consumed);
            let held = decoder.assembly().map_or(0, |a| a.have);
            assert!(decoder.capacity() <= held + PAGE.max(held / 8), "more memory than came");
            assert!(held <= received);
            match step.item {
                Some(item) => {
                    assert!(step.consumed > 0 || direct, "an item out of nothing");
                    if let Item::Record(r) = &item {
                        assert!(r.charge() <= step.charge && step.charge <= admitted);
                        assert!(r.payload.len() as u64 <= max_message);
                    }
                    fed.items.push(item);
                }
                None => break,
            }
        }
    }
    assert!(fed.rest.len() < PAGE, "only what tells its charge late stays with the caller");
    fed
}

/// Cuts `bytes` at places that follow from `seed`.
pub fn cut(bytes: &[u8], seed: u8) -> Vec<&[u8]> {
    let (mut rest, mut state, mut out) = (bytes, u32::from(seed) + 1, Vec::new());
    while !rest.is_empty() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let longest = if state & 1 == 0 { 16 } else { 9000 };
        let n = ((state >> 8) as usize % longest + 1).min(rest.len());
        let (chunk, tail) = rest.split_at(n);
        out.push(chunk);
        rest = tail;
    }
    out
}

/// One byte for the mode, one for the cuts, then the stream.
pub fn decode(data: &[u8]) {
    let [mode, seed, stream @ ..] = data else { return };
    let mode = MODES[*mode as usize % MODES.len()];
    let whole = feed(mode, MAX_MESSAGE, [stream], false).summary();
    assert_eq!(feed(mode, MAX_MESSAGE, cut(stream, *seed), false).summary(), whole);
    assert_eq!(feed(mode, MAX_MESSAGE, cut(stream, *seed), true).summary(), whole);
}

/// What came of a handshake.
#[derive(PartialEq, Debug)]
struct Shaken {
    sent: Vec<u8>,
    result: Result<usize, WireError>,
    peer: Option<PeerHello>,
}

fn shake<'a>(side: Side, security: Security, chunks: impl IntoIterator<Item = &'a [u8]>) -> Shaken {
    let hello = Hello {
        node: "fuzz".into(),
        instance: 1,
        max_message: MAX_MESSAGE,
        clock_ms: 1,
        channels: vec![("orders".into(), 100)],
        servers: Vec::new(),
        metadata: Default::default(),
    };
    let mut handshake = Handshake::new(side, hello, security);
    let (mut sent, mut used, mut came) = (Vec::new(), 0, 0);
    for chunk in chunks {
        came += chunk.len();
        match handshake.handle_bytes(chunk) {
            Ok(n) => {
                assert!(n <= chunk.len());
                used += n;
                assert!(handshake.capacity() <= 2 * came.max(64), "more memory than came");
                if n < chunk.len() {
                    break;
                }
            }
            Err(e) => {
                handshake.poll_transmit(&mut sent);
                return Shaken { sent, result: Err(e), peer: None };
            }
        }
    }
    handshake.poll_transmit(&mut sent);
    Shaken { sent, result: Ok(used), peer: handshake.into_outcome() }
}

/// One byte for side and security, one for the cuts, then what the peer says.
pub fn handshake(data: &[u8]) {
    let [choice, seed, stream @ ..] = data else { return };
    let place = Place { link: LinkId(7), slot: 0, lane: Lane::Application, role: Role::Node };
    let side = [Side::Accept, Side::Dial(place), Side::DialAs(SocketType::Sub)][*choice as usize % 3];
    let security = || match choice & 0x80 {
        0 => Security::Null,
        _ => Security::Plain { user: b"u".as_slice().into(), password: b"p".as_slice().into() },
    };
    let whole = shake(side, security(), [stream]);
    assert_eq!(shake(side, security(), cut(stream, *seed)), whole);
}

/// What came of an end client's bytes.
#[derive(PartialEq, Debug)]
pub struct Framed {
    pub frames: Vec<Whole<Vec<u8>>>,
    pub error: Option<WireError>,
    /// The bytes end within a frame or its prefix.
    pub within: bool,
}

/// Feeds chunks as an end client's connection does. Large bodies are read in place if `direct`.
pub fn feed_frames<'a>(max: u64, chunks: impl IntoIterator<Item = &'a [u8]>, direct: bool) -> Framed {
    let mut decoder = FrameDecoder::new(max);
    let mut framed = Framed { frames: Vec::new(), error: None, within: false };
    let mut came = 0;
    for mut rest in chunks {
        came += rest.len();
        loop {
            if direct {
                while let Some(space) = decoder.space(rest.len()) {
                    let n = space.len().min(rest.len());
                    space[..n].copy_from_slice(&rest[..n]);
                    decoder.filled(n);
                    rest = &rest[n..];
                }
            }
            if decoder.is_assembling() {
                rest = &rest[decoder.take(rest)..];
                assert!(decoder.capacity() <= came + PAGE.max(came / 8), "more memory than came");
                match decoder.finish() {
                    Some(whole) => framed.frames.push(whole),
                    None => break,
                }
                continue;
            }
            let (n, len) = match decoder.take_prefix(rest) {
                Ok(taken) => taken,
                Err(e) => {
                    assert_eq!(decoder.capacity(), 0);
                    framed.error = Some(e);
                    return framed;
                }
            };
            rest = &rest[n..];
            let Some(len) = len else { break };
            assert!(len <= max, "above the limit");
            match decoder.whole(rest) {
                Some(Whole { header, bytes }) => {
                    assert_eq!(bytes.len() as u64, len);
                    rest = &rest[bytes.len()..];
                    framed.frames.push(Whole { header, bytes: bytes.to_vec() });
                }
                None => decoder.begin(),
            }
        }
    }
    framed.within = decoder.is_within();
    framed
}

/// One byte for the cuts, then what an end client says.
pub fn frames(data: &[u8]) {
    let [seed, stream @ ..] = data else { return };
    let whole = feed_frames(MAX_MESSAGE, [stream], false);
    assert_eq!(feed_frames(MAX_MESSAGE, cut(stream, *seed), false), whole);
    assert_eq!(feed_frames(MAX_MESSAGE, cut(stream, *seed), true), whole);
}
