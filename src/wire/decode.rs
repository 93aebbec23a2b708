//! Bytes to records and commands.
//!
//! The decoder owns at most one record in assembly (and, on a stock lane, one command that came
//! between its frames); everything else stays with the caller. A head is taken only when it is
//! complete and within its limits, so a record that may not be admitted yet is not begun:
//!
//! ```text
//!  peek     what would the next record be charged?      -> admit, or leave the bytes where they are
//!  decode   one record or command, or into assembly     -> consumed <= input
//!  assembly_space, assembly_filled                      -> the rest of a large body, read in place
//!  discard  a record that nobody can take is read and thrown away, whole or half
//! ```
//!
//! A payload of at most 2 KiB is copied into storage of its exact size: a slice of a read block
//! would keep the whole block alive and make the accounting a lie.

use std::borrow::Cow;

use bytes::Bytes;

use crate::base::record::{Kind, Lane, Method, Record};
use crate::base::unit::{FRAME_OVERHEAD, FRAMES_MAX, HEADER_LEN, METHOD_LEN_MAX, RECORD_OVERHEAD, charge};

use super::assembly::{Assembly, PAGE, Partial};
use super::command::{COMMAND_MAX, Command};
use super::error::WireError;
use super::frame::{FrameHead, Frames};
use super::header::{Header, SENTENCE_MAX};
use super::ready::PeerHello;
use super::socket::SocketType;
use super::stock::{self, Malformed, Publication};

/// What comes in on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The application lane of a native peer.
    NativeApplication,
    /// The completion lane of a native peer.
    NativeCompletion,
    /// Requests and one-way messages of a stock DEALER or REQ.
    StockAsking,
    /// One-way messages of a stock PUSH.
    StockPushing,
    /// Answers of a stock ROUTER or REP that we dialled.
    StockAnswering,
    /// Subscriptions of a stock SUB or XSUB, in either form.
    Subscriber,
    /// Publications of a stock PUB or XPUB.
    Publisher,
}

impl Mode {
    /// The mode for a peer whose handshake is done; `dialled`: by us.
    pub fn of(peer: &PeerHello, dialled: bool) -> Mode {
        use SocketType::*;
        match (peer.native.as_ref().map(|n| n.place.lane), peer.socket_type) {
            (Some(Lane::Application), _) => Mode::NativeApplication,
            (Some(Lane::Completion), _) => Mode::NativeCompletion,
            (None, Sub | Xsub) => Mode::Subscriber,
            (None, Pub | Xpub) => Mode::Publisher,
            (None, Push) => Mode::StockPushing,
            (None, _) if dialled => Mode::StockAnswering,
            (None, _) => Mode::StockAsking,
        }
    }

    fn is_native(self) -> bool {
        matches!(self, Mode::NativeApplication | Mode::NativeCompletion)
    }
}

/// What one call of [`Decoder::decode`] made of its input.
#[derive(Debug)]
pub struct Step {
    /// How much of the input is spent. The rest must be offered again, in front of what comes next.
    pub consumed: usize,
    /// What the item is to be accounted with: at most what [`Decoder::peek`] said, 0 for a command and for
    /// whatever a subscriber says.
    /// Not less than [`Record::charge`], and equal to it on native lanes.
    pub charge: u64,
    /// `None`: everything that could be used is used, more bytes are needed.
    pub item: Option<Item>,
}

/// What came out.
#[derive(Debug)]
pub enum Item {
    /// A record. From a stock peer its `channel` is 0 and its `method` the whole route,
    /// `channel/method`.
    Record(Record),
    /// A command.
    Command(Command),
    /// A message of a stock peer that is of no use but must be counted, and perhaps answered.
    Malformed(Malformed),
    /// A publication.
    Publication(Publication),
    /// The end of a record that was thrown away, see [`Decoder::discard`].
    Discarded,
}

/// A native record that lies whole in a block.
#[derive(Clone, Copy, Debug)]
pub struct Whole<'a> {
    /// Its header.
    pub header: Header,
    /// Method and payload, one behind the other.
    pub bytes: &'a [u8],
    /// How much of the input it is.
    pub consumed: usize,
}

impl Whole<'_> {
    /// What it is to be accounted with.
    #[inline]
    pub fn charge(&self) -> u64 {
        charge(self.bytes.len(), 0)
    }
}

impl<'a> Whole<'a> {
    /// What is behind the method.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.bytes.get(self.header.method_len as usize..).unwrap_or_default()
    }
}

/// What is known of a message from the heads of its frames.
#[derive(Clone, Copy, Default, Debug)]
struct Tally {
    frames: usize,
    body: u64,
    more: bool,
}

/// What is known of a stock message that is not begun.
struct Scan {
    tally: Tally,
    /// The head of its last frame is there, so the tally is complete.
    is_last: bool,
    /// Its length, if all of it is there in one piece.
    whole: Option<usize>,
}

#[derive(Default, Debug)]
struct Open {
    partial: Partial,
    tally: Tally,
    /// What was said of it when it began.
    charge: u64,
}

/// The receiving half of one connection. After an error it must not be used again.
#[derive(Debug)]
pub struct Decoder {
    mode: Mode,
    max_message: u64,
    open: Option<Open>,
    command: Option<Partial>,
}

const NEED_MORE: Step = Step { consumed: 0, charge: 0, item: None };

impl Decoder {
    /// A decoder that refuses a payload, or the sum of a stock message's frames, above
    /// `max_message` bytes.
    pub fn new(mode: Mode, max_message: u64) -> Decoder {
        // Far beyond any memory, so that no sum of lengths below can overflow.
        Decoder { mode, max_message: max_message.min(1 << 40).min(usize::MAX as u64 / 4), open: None, command: None }
    }

    /// The charge of the record that begins at the start of `input`, 0 for a command; it is what is
    /// to be admitted before [`Decoder::decode`]. `None`: that cannot be told before more bytes came,
    /// or something is in assembly.
    ///
    /// A stock message tells its charge with the head of its last frame. One that has not done so
    /// within a page may cost as much as any, and the item tells what it did cost. A command may
    /// stand between its frames and come out first, while the message is in assembly: what was
    /// admitted is then still the message's.
    #[inline]
    pub fn peek(&self, input: &[u8]) -> Result<Option<u64>, WireError> {
        if self.open.is_some() || self.command.is_some() {
            return Ok(None);
        }
        let Some(head) = FrameHead::parse(input)? else { return Ok(None) };
        if head.command {
            check_command(&head)?;
            return Ok(Some(0));
        }
        if self.mode.is_native() {
            let mut tally = Tally::default();
            self.check(&mut tally, &head)?;
            return Ok(Some(self.charge(&tally)));
        }
        let scan = self.scan(input)?;
        Ok((scan.is_last || input.len() >= PAGE).then(|| self.foretell(&scan)))
    }

    /// Takes the next record or command out of `input`, or as much of it as there is.
    #[inline]
    pub fn decode(&mut self, input: &[u8]) -> Result<Step, WireError> {
        if self.open.is_some() || self.command.is_some() {
            return self.go_on(input);
        }
        let Some(head) = FrameHead::parse(input)? else { return Ok(NEED_MORE) };
        if head.command || !self.mode.is_native() {
            return self.decode_other(head, input);
        }
        let mut tally = Tally::default();
        self.check(&mut tally, &head)?;
        let Some(body) = input[head.size..].get(..head.len as usize) else {
            return self.begin(input, self.charge(&tally));
        };
        let (header, method, payload) = self.parse_native(body)?;
        Ok(Step {
            consumed: head.size + body.len(),
            charge: self.charge(&tally),
            item: Some(Item::Record(native_record(header, method, Bytes::copy_from_slice(payload)))),
        })
    }

    /// The record at the start of `input`, if it is a native one, wholly there and in order, and nothing is in
    /// assembly: what [`Decoder::decode`] would make of it, without making it. `None`: ask [`Decoder::peek`].
    #[inline(always)]
    pub fn whole<'a>(&self, input: &'a [u8]) -> Option<Whole<'a>> {
        if self.open.is_some() || self.command.is_some() || !self.mode.is_native() {
            return None;
        }
        let head = FrameHead::parse(input).ok()??;
        let body = input[head.size..].get(..head.len as usize)?;
        if head.command || head.more {
            return None;
        }
        let (header, _, _) = self.parse_native(body).ok()?;
        Some(Whole { header, bytes: &body[HEADER_LEN..], consumed: head.size + body.len() })
    }

    /// The correlation of the record that begins at the start of `input`, if so much of it is there:
    /// whom it is for, before it is decided whether it is taken.
    pub fn peek_correlation(&self, input: &[u8]) -> Option<u64> {
        if self.open.is_some() || self.command.is_some() {
            return None;
        }
        let head = FrameHead::parse(input).ok()?.filter(|head| !head.command)?;
        let body = &input[head.size..];
        match self.mode {
            Mode::NativeApplication | Mode::NativeCompletion => {
                Header::parse(body.first_chunk()?).ok().map(|header| header.correlation)
            }
            Mode::StockAnswering if head.len == 8 => body.first_chunk().map(|id| u64::from_be_bytes(*id)),
            _ => None,
        }
    }

    /// Throws away the record in assembly, or else the one that begins at the start of `input`.
    /// [`Decoder::decode`] goes on with that, in no memory, until [`Item::Discarded`] tells its end.
    pub fn discard(&mut self, input: &[u8]) -> Result<Step, WireError> {
        if self.open.is_none() && self.command.is_none() && FrameHead::parse(input)?.is_some_and(|h| !h.command) {
            self.open = Some(Open::default());
        }
        match &mut self.open {
            Some(open) => {
                open.partial.hollow_out();
                open.charge = 0;
                self.go_on(input)
            }
            None => self.decode(input),
        }
    }

    /// How far the record in assembly has come; `None`: nothing is.
    pub fn assembly(&self) -> Option<Assembly> {
        if self.open.is_none() && self.command.is_none() {
            return None;
        }
        let partials = || self.open.iter().map(|o| &o.partial).chain(&self.command);
        Some(Assembly {
            have: partials().map(Partial::have).sum(),
            want: partials().map(Partial::want).sum(),
            charge: self.open.as_ref().map_or(0, |o| o.charge),
        })
    }

    /// The memory that is held for what is in assembly; see [`super::assembly`] for its bound.
    pub fn capacity(&self) -> usize {
        self.open.iter().map(|o| &o.partial).chain(&self.command).map(Partial::capacity).sum()
    }

    /// Room for reading on in the body in assembly, at most `max` bytes and never past its end.
    /// `None`: so little is missing, or nothing is, that the caller does better to read into its
    /// own block and [`Decoder::decode`] that.
    pub fn assembly_space(&mut self, max: usize) -> Option<&mut [u8]> {
        if self.command.is_some() {
            return None;
        }
        self.open.as_mut()?.partial.space(max)
    }

    /// Says that a read filled the first `n` bytes of the room. `decode(&[])` then gives the item,
    /// if it is whole.
    pub fn assembly_filled(&mut self, n: usize) {
        if let Some(open) = &mut self.open {
            open.partial.advance(n);
        }
    }

    /// Compares a message frame's head with the limits, before its body has a place.
    #[inline]
    fn check(&self, tally: &mut Tally, head: &FrameHead) -> Result<(), WireError> {
        if self.mode.is_native() {
            if head.more {
                return Err(WireError::NativeMore);
            }
            if head.len < HEADER_LEN as u64 {
                return Err(WireError::Header("cut short"));
            }
        } else if tally.frames == FRAMES_MAX {
            return Err(WireError::TooManyFrames);
        }
        let max = match self.mode {
            // The exact limit of the payload follows when the method's length is known.
            Mode::NativeApplication | Mode::NativeCompletion => self.max_message + (HEADER_LEN + METHOD_LEN_MAX) as u64,
            Mode::Subscriber => self.max_message.min(COMMAND_MAX),
            _ => self.max_message,
        };
        let size = tally.body.saturating_add(head.len);
        let unchecked = cfg!(afflux_mutation = "long_length_unchecked") && head.size > 2;
        if size > max && !unchecked {
            return Err(WireError::TooLarge { what: "message", size, max });
        }
        *tally = Tally { frames: tally.frames + 1, body: size, more: head.more };
        Ok(())
    }

    #[inline]
    fn charge(&self, tally: &Tally) -> u64 {
        match self.mode {
            Mode::NativeApplication | Mode::NativeCompletion => charge(tally.body as usize - HEADER_LEN, 0),
            Mode::Subscriber => 0,
            _ => tally.body + RECORD_OVERHEAD + FRAME_OVERHEAD * (tally.frames as u64).saturating_sub(1),
        }
    }

    /// The charge of a stock message, or the largest there is, if not all of its heads are there.
    fn foretell(&self, scan: &Scan) -> u64 {
        let dearest = Tally { frames: FRAMES_MAX, body: self.max_message, more: true };
        self.charge(if scan.is_last { &scan.tally } else { &dearest })
    }

    /// The heads of a stock message as far as they are in `input`.
    fn scan(&self, input: &[u8]) -> Result<Scan, WireError> {
        let mut scan = Scan { tally: Tally::default(), is_last: false, whole: None };
        let (mut at, mut interrupted) = (0, false);
        while let Some(rest) = input.get(at..)
            && let Some(head) = FrameHead::parse(rest)?
        {
            if head.command {
                check_command(&head)?;
                interrupted = true;
            } else {
                self.check(&mut scan.tally, &head)?;
            }
            at += head.size + head.len as usize;
            if !head.command && !head.more {
                scan.is_last = true;
                scan.whole = (at <= input.len() && !interrupted).then_some(at);
                break;
            }
        }
        Ok(scan)
    }

    /// A command, or a message of a stock peer, with nothing in assembly.
    fn decode_other(&mut self, head: FrameHead, input: &[u8]) -> Result<Step, WireError> {
        if head.command {
            return self.begin_command(head, input);
        }
        let scan = self.scan(input)?;
        match scan.whole {
            Some(len) => Ok(Step {
                consumed: len,
                charge: self.charge(&scan.tally),
                item: Some(self.message(Cow::Borrowed(&input[..len]))?),
            }),
            None => self.begin(input, self.foretell(&scan)),
        }
    }

    #[cold]
    fn begin(&mut self, input: &[u8], charge: u64) -> Result<Step, WireError> {
        self.open = Some(Open { charge, ..Open::default() });
        self.go_on(input)
    }

    fn begin_command(&mut self, head: FrameHead, input: &[u8]) -> Result<Step, WireError> {
        check_command(&head)?;
        let len = head.len as usize;
        if let Some(body) = input[head.size..].get(..len) {
            let item = Some(Item::Command(Command::parse(body)?));
            return Ok(Step { consumed: head.size + len, charge: 0, item });
        }
        let mut partial = Partial::default();
        partial.begin(&[], len);
        let consumed = head.size + partial.take(&input[head.size..]);
        self.command = Some(partial);
        Ok(Step { consumed, charge: 0, item: None })
    }

    /// Feeds what is in assembly.
    #[cold]
    fn go_on(&mut self, input: &[u8]) -> Result<Step, WireError> {
        if let Some(mut partial) = self.command.take() {
            let consumed = partial.take(input);
            let item = if partial.is_full() {
                Some(Item::Command(Command::parse(&partial.into_bytes())?))
            } else {
                self.command = Some(partial);
                None
            };
            return Ok(Step { consumed, charge: 0, item });
        }
        let Some(mut open) = self.open.take() else { return Ok(NEED_MORE) };
        let mut used = 0;
        let step = loop {
            used += open.partial.take(&input[used..]);
            if !open.partial.is_full() {
                break Step { consumed: used, charge: 0, item: None };
            }
            if open.tally.frames > 0 && !open.tally.more {
                if open.partial.is_hollow() {
                    return Ok(Step { consumed: used, charge: 0, item: Some(Item::Discarded) });
                }
                let charge = self.charge(&open.tally);
                let item = self.message(Cow::Owned(open.partial.into_bytes()))?;
                return Ok(Step { consumed: used, charge, item: Some(item) });
            }
            let Some(head) = FrameHead::parse(&input[used..])? else {
                break Step { consumed: used, charge: 0, item: None };
            };
            if head.command {
                // A peer's heartbeat does not wait for the end of a message of several frames.
                let step = self.begin_command(head, &input[used..])?;
                break Step { consumed: used + step.consumed, ..step };
            }
            self.check(&mut open.tally, &head)?;
            open.partial.begin(&input[used..used + head.size], head.len as usize);
            used += head.size;
        };
        self.open = Some(open);
        Ok(step)
    }

    /// The item of a whole message: its frames as they came.
    fn message(&self, raw: Cow<'_, [u8]>) -> Result<Item, WireError> {
        Ok(match self.mode {
            Mode::NativeApplication | Mode::NativeCompletion => {
                let body = Frames::new(&raw).next().map_or(0, |f| f.start);
                let (header, method, payload) = self.parse_native(&raw[body..])?;
                let mut record = native_record(header, method, Bytes::new());
                let payload = raw.len() - payload.len()..raw.len();
                record.payload = stock::cut(raw, payload);
                Item::Record(record)
            }
            Mode::StockAsking => stock::asked(raw, true),
            Mode::StockPushing => stock::asked(raw, false),
            Mode::StockAnswering => stock::answered(raw),
            Mode::Publisher => stock::published(raw),
            Mode::Subscriber => {
                let first = Frames::new(&raw).next().filter(|f| !f.more);
                match first.and_then(|f| Command::parse_subscription(&raw[f.start..f.end])) {
                    Some(command) => Item::Command(command),
                    None => Item::Malformed(Malformed {
                        reply_to: None,
                        correlation: None,
                        reason: "a subscriber may only subscribe and cancel",
                    }),
                }
            }
        })
    }

    /// Header, method and payload of a native record.
    #[inline]
    fn parse_native<'a>(&self, body: &'a [u8]) -> Result<(Header, &'a str, &'a [u8]), WireError> {
        let (head, rest) = body.split_first_chunk().ok_or(WireError::Header("cut short"))?;
        let header = Header::parse(head)?;
        let Some((method, payload)) = rest.split_at_checked(header.method_len as usize) else {
            return Err(WireError::Header("the method leads past the end"));
        };
        // Most have none, and the look is a call.
        let method = if method.is_empty() { Ok("") } else { std::str::from_utf8(method) };
        let method = method.map_err(|_| WireError::Header("the method is not UTF-8"))?;
        if self.mode == Mode::NativeCompletion && header.kind.lane() != Lane::Completion {
            return Err(WireError::WrongLane(header.kind));
        }
        let size = payload.len() as u64;
        if size > self.max_message {
            return Err(WireError::TooLarge { what: "message", size, max: self.max_message });
        }
        if header.kind == Kind::Error && !(2..=2 + SENTENCE_MAX).contains(&payload.len()) {
            return Err(WireError::Header("an error without code, or of too many words"));
        }
        Ok((header, method, payload))
    }
}

/// A native record of whole bytes that this host encoded: `bytes` is its frame, but for a payload that lies
/// apart.
pub fn reread(bytes: &[u8], payload: Option<Bytes>) -> Option<Record> {
    let head = FrameHead::parse(bytes).ok()??;
    let (header, rest) = bytes.get(head.size..)?.split_first_chunk()?;
    let header = Header::parse(header).ok()?;
    let (method, small) = rest.split_at_checked(header.method_len as usize)?;
    let payload = payload.unwrap_or_else(|| Bytes::copy_from_slice(small));
    Some(native_record(header, std::str::from_utf8(method).ok()?, payload))
}

fn check_command(head: &FrameHead) -> Result<(), WireError> {
    if head.len > COMMAND_MAX {
        return Err(WireError::TooLarge { what: "command", size: head.len, max: COMMAND_MAX });
    }
    Ok(())
}

#[inline]
fn native_record(header: Header, method: &str, payload: Bytes) -> Record {
    Record {
        kind: header.kind,
        depth: header.depth,
        channel: header.channel,
        correlation: header.correlation,
        expiry_ms: header.expiry_ms,
        // Its length was one byte: it fits.
        method: Method::new(method).unwrap_or_default(),
        payload,
        envelope: None,
    }
}

#[cfg(test)]
mod tests {
    use crate::base::error::ErrorKind;
    use crate::wire::command::{self, Context, FlowState};
    use crate::wire::encode::{encode, encode_pair_head, encode_stock_answer, encode_stock_request};
    use crate::wire::frame::write_frame;
    use crate::wire::header::ErrorBody;

    use super::*;

    const MAX: u64 = 1 << 20;

    fn record(kind: Kind, method: &str, payload: &[u8]) -> Record {
        Record {
            kind,
            depth: 1,
            channel: 0x0102,
            correlation: 0x1112_1314_1516_1718,
            expiry_ms: 0xA1A2_A3A4,
            method: Method::new(method).unwrap(),
            payload: Bytes::copy_from_slice(payload),
            envelope: None,
        }
    }

    /// Feeds `chunks` as a link does: what was not taken is offered again in front of the next
    /// chunk. Checks on the way what holds for every step.
    fn feed<'a>(mode: Mode, chunks: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<String>, WireError> {
        let mut decoder = Decoder::new(mode, MAX);
        let (mut carry, mut items) = (Vec::new(), Vec::new());
        let (mut received, mut admitted) = (0, 0);
        for chunk in chunks {
            carry.extend_from_slice(chunk);
            received += chunk.len();
            loop {
                let whole = decoder.whole(&carry).map(|w| (w.charge(), w.consumed, w.header.correlation));
                if decoder.assembly().is_none() {
                    match decoder.peek(&carry)? {
                        Some(charge) => admitted = charge,
                        None => break,
                    }
                }
                let step = decoder.decode(&carry)?;
                match (&step.item, whole) {
                    (Some(Item::Record(r)), Some(whole)) => {
                        assert_eq!(whole, (step.charge, step.consumed, r.correlation));
                    }
                    (_, whole) => assert_eq!(whole, None),
                }
                carry.drain(..step.consumed);
                assert!(decoder.capacity() <= received + PAGE.max(received / 8));
                assert!(step.consumed > 0 || step.item.is_none(), "an item out of nothing would come for ever");
                let Some(item) = step.item else {
                    let assembly = decoder.assembly().expect("what was admitted is begun");
                    assert_eq!(assembly.charge, admitted);
                    break;
                };
                if !matches!(item, Item::Command(_)) {
                    assert!(step.charge == admitted || admitted > MAX && step.charge < admitted, "{item:?}");
                }
                if let Item::Record(r) = &item {
                    assert!(step.charge >= r.charge());
                    assert_eq!(step.charge == r.charge(), r.envelope.is_none() && mode.is_native(), "{r:?}");
                }
                items.push(format!("{item:?}"));
            }
        }
        assert!(carry.is_empty() && decoder.assembly().is_none());
        assert_eq!(decoder.capacity(), 0, "a link at rest owns no buffer");
        Ok(items)
    }

    /// The whole at once, cut in two at every byte, in pieces of several sizes, and byte by byte:
    /// always the same items.
    fn every_split(mode: Mode, bytes: &[u8]) -> Vec<String> {
        let whole = feed(mode, [bytes]).unwrap();
        for at in 0..=bytes.len() {
            assert_eq!(feed(mode, [&bytes[..at], &bytes[at..]]).unwrap(), whole, "split at {at}");
        }
        for size in [1, 2, 3, 5, 7, 64, 1000] {
            assert_eq!(feed(mode, bytes.chunks(size)).unwrap(), whole, "pieces of {size}");
        }
        whole
    }

    fn one(mode: Mode, bytes: &[u8]) -> Result<Item, WireError> {
        let step = Decoder::new(mode, MAX).decode(bytes)?;
        assert_eq!(step.consumed, bytes.len());
        Ok(step.item.expect("it is whole"))
    }

    fn frames(bodies: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        for (i, body) in bodies.iter().enumerate() {
            write_frame(i + 1 < bodies.len(), body, &mut out);
        }
        out
    }

    #[test]
    fn golden_bytes_of_native_records() {
        let mut error = record(Kind::Error, "", &ErrorBody::encode(7, "no"));
        (error.channel, error.expiry_ms, error.depth) = (ErrorKind::Remote as u16, 0, 0);
        let mut reply = record(Kind::Reply, "", b"yes");
        (reply.channel, reply.expiry_ms, reply.depth) = (0, 0, 0);
        let cases: [(Record, &[u8]); 4] = [
            (
                record(Kind::Message, "", b""),
                b"\0\x18\x01\0\0\x01\x01\x02\0\0\x11\x12\x13\x14\x15\x16\x17\x18\xa1\xa2\xa3\xa4\0\0\0\0",
            ),
            (
                record(Kind::Request, "place", b"pay"),
                b"\0\x20\x02\0\x05\x01\x01\x02\0\0\x11\x12\x13\x14\x15\x16\x17\x18\xa1\xa2\xa3\xa4\0\0\0\0placepay",
            ),
            (reply, b"\0\x1b\x03\0\0\0\0\0\0\0\x11\x12\x13\x14\x15\x16\x17\x18\0\0\0\0\0\0\0\0yes"),
            (error, b"\0\x1c\x04\0\0\0\0\x0b\0\0\x11\x12\x13\x14\x15\x16\x17\x18\0\0\0\0\0\0\0\0\0\x07no"),
        ];
        for (record, golden) in cases {
            let mut bytes = Vec::new();
            encode(&record, record.channel, &mut bytes);
            assert_eq!(bytes, golden, "{}", bytes.escape_ascii());
            let lanes = match record.kind.lane() {
                Lane::Application => &[Mode::NativeApplication][..],
                Lane::Completion => &[Mode::NativeCompletion, Mode::NativeApplication],
            };
            for &mode in lanes {
                let Item::Record(found) = one(mode, golden).unwrap() else { panic!("a record") };
                assert_eq!(format!("{found:?}"), format!("{record:?}"));
            }
        }
    }

    #[test]
    fn messages_and_requests_do_not_belong_on_the_completion_lane() {
        for kind in [Kind::Message, Kind::Request] {
            let mut bytes = Vec::new();
            encode(&record(kind, "m", b"p"), 0, &mut bytes);
            let error = Decoder::new(Mode::NativeCompletion, MAX).decode(&bytes).unwrap_err();
            assert_eq!(error, WireError::WrongLane(kind));
        }
    }

    #[test]
    fn native_streams_survive_every_split() {
        let mut bytes = Vec::new();
        for (method, payload) in [("", 0), ("place", 64), ("m", 230), ("m", 231), (&*"l".repeat(255), 10), ("", 3000)] {
            encode(&record(Kind::Request, method, &vec![b'p'; payload]), 7, &mut bytes);
            command::write_ping(5, &Context::native(1, 2), &mut bytes);
        }
        command::write_channels(1, &vec![("c".into(), 1); 1], &mut bytes);
        command::write_subscription(1, true, &[b't'; 300], &mut bytes);
        encode(&record(Kind::Message, "last", b""), 7, &mut bytes);
        assert_eq!(every_split(Mode::NativeApplication, &bytes).len(), 15);

        let mut bytes = Vec::new();
        command::write_flow_state(FlowState { paused: false, epoch: 1 }, &mut bytes);
        encode(&record(Kind::Reply, "", &[b'r'; 2500]), 0, &mut bytes);
        encode(&record(Kind::Error, "", &ErrorBody::encode(1, "why")), 3, &mut bytes);
        command::write_pong(&Context::default(), &mut bytes);
        assert_eq!(every_split(Mode::NativeCompletion, &bytes).len(), 4);
    }

    #[test]
    fn stock_streams_survive_every_split() {
        let mut bytes = frames(&[b"req-17", b"", b"echo", b"payload"]);
        bytes.extend(frames(&[b"", b"orders/place", &[b'p'; 2500]]));
        // A heartbeat between the frames of a message, as libzmq may send it.
        let message = frames(&[b"hop", b"", b"echo", b"x"]);
        for at in [5, 7, 13] {
            bytes.extend(&message[..at]);
            command::write_ping(0, &Context::new(b"abc").unwrap(), &mut bytes);
            bytes.extend(&message[at..]);
        }
        bytes.extend(frames(&[b"orders/cancel", b""]));
        bytes.extend(frames(&[b"only"]));
        bytes.extend(frames(&[b"id", b"", b"only"]));
        bytes.extend([2, 0, 0, 0, 0, 0, 0, 0, 1, b'x']);
        let items = every_split(Mode::StockAsking, &bytes);
        assert_eq!(items.len(), 2 + 6 + 4, "{items:#?}");

        let mut bytes = Vec::new();
        encode_stock_answer(&frames(&[&7u64.to_be_bytes(), b"", b"x"])[..12], Ok(3), &mut bytes);
        bytes.extend(b"yes");
        encode_stock_answer(
            &frames(&[&8u64.to_be_bytes(), b"", b"x"])[..12],
            Err((ErrorKind::NotFound, "no")),
            &mut bytes,
        );
        bytes.extend(frames(&[&9u64.to_be_bytes(), b"", b"what"]));
        bytes.extend(frames(&[b"short", b"", b"ok", b"x"]));
        assert_eq!(every_split(Mode::StockAnswering, &bytes).len(), 4);

        let mut bytes = Vec::new();
        command::write_subscription(0, true, b"eur/", &mut bytes);
        command::write_subscription(1, true, b"usd/", &mut bytes);
        command::write_subscription(0, false, b"eur/", &mut bytes);
        bytes.extend(frames(&[b"\x01a", b"b"]));
        assert_eq!(every_split(Mode::Subscriber, &bytes).len(), 4);

        let mut bytes = frames(&[b"eur/usd", &[b'p'; 300], b"more"]);
        bytes.extend(frames(&[b""]));
        assert_eq!(every_split(Mode::Publisher, &bytes).len(), 2);
    }

    #[test]
    fn golden_bytes_of_a_stock_request_and_its_answers() {
        // As pyzmq's DEALER writes send_multipart([b"req-17", b"", b"echo", b"hi"]).
        let bytes = b"\x01\x06req-17\x01\0\x01\x04echo\0\x02hi";
        let Item::Record(request) = one(Mode::StockAsking, bytes).unwrap() else { panic!("a record") };
        assert_eq!((request.kind, request.method.as_str(), &request.payload[..]), (Kind::Request, "echo", &b"hi"[..]));
        assert_eq!(request.expiry_ms, 0, "stock requests carry none");
        let envelope = request.envelope.unwrap();
        assert_eq!(envelope[..], *b"\x01\x06req-17\x01\0");
        let mut answer = Vec::new();
        encode_stock_answer(&envelope, Ok(2), &mut answer);
        answer.extend(b"hi");
        assert_eq!(answer, b"\x01\x06req-17\x01\0\x01\x02ok\0\x02hi");
        answer.clear();
        encode_stock_answer(&envelope, Err((ErrorKind::NotFound, "no such channel")), &mut answer);
        assert_eq!(answer, b"\x01\x06req-17\x01\0\x01\x05error\x01\x08NotFound\0\x0fno such channel");

        let mut ours = Vec::new();
        encode_stock_request(0x0102_0304_0506_0708, "echo", 2, &mut ours);
        ours.extend(b"hi");
        assert_eq!(ours, b"\x01\x08\x01\x02\x03\x04\x05\x06\x07\x08\x01\0\x01\x04echo\0\x02hi");
        let mut push = Vec::new();
        encode_pair_head(b"orders/cancel", 300, &mut push);
        assert_eq!(push, b"\x01\x0dorders/cancel\x02\0\0\0\0\0\0\x01\x2c");
    }

    /// What each sequence of frames is, from each kind of asking peer.
    #[test]
    fn shapes_of_stock_messages() {
        let long = "r".repeat(256);
        // Frames, what a DEALER or REQ means by them, what a PUSH means by them.
        let table: [(&[&[u8]], &str, &str); 14] = [
            (&[b"id", b"", b"echo", b"p"], "request to echo behind 6", "malformed"),
            (&[b"", b"echo", b"p"], "request to echo behind 2", "malformed"),
            (&[b"", b"echo", b""], "request to echo behind 2", "malformed"),
            (&[b"a", b"b", b"", b"echo", b"p"], "request to echo behind 8", "malformed"),
            (&[b"", b"", b"p"], "request to  behind 2", "malformed"),
            (&[b"echo", b"p"], "message to echo", "message to echo"),
            (&[b"echo", b""], "message to echo", "message to echo"),
            (&[b"", b"p"], "malformed behind 2", "message to "),
            (&[b"", b""], "malformed behind 2", "message to "),
            (&[b"echo", b"", b""], "malformed behind 8", "malformed"),
            (&[b""], "malformed", "malformed"),
            (&[b"echo", b"p", b"q"], "malformed", "malformed"),
            (&[b"", b"\xff", b"p"], "malformed behind 2", "malformed"),
            (&[b"", long.as_bytes(), b"p"], "malformed behind 2", "malformed"),
        ];
        for (bodies, asking, pushing) in table {
            for (mode, expected) in [(Mode::StockAsking, asking), (Mode::StockPushing, pushing)] {
                let behind = |envelope: Option<Box<[u8]>>| match envelope {
                    Some(e) => format!(" behind {}", e.len()),
                    None => String::new(),
                };
                let found = match one(mode, &frames(bodies)).unwrap() {
                    Item::Record(r) => {
                        assert_eq!(r.kind == Kind::Request, r.envelope.is_some());
                        assert_eq!(r.payload, bodies[bodies.len() - 1]);
                        format!("{:?} to {}{}", r.kind, r.method.as_str(), behind(r.envelope)).to_lowercase()
                    }
                    Item::Malformed(m) => format!("malformed{}", behind(m.reply_to)),
                    other => format!("{other:?}"),
                };
                assert_eq!(found, expected, "{bodies:?} from {mode:?}");
            }
        }
    }

    #[test]
    fn answers_of_a_dialled_router() {
        let id = &0x0A0Bu64.to_be_bytes()[..];
        let found = |bodies: &[&[u8]]| match one(Mode::StockAnswering, &frames(bodies)).unwrap() {
            Item::Record(r) => format!("{:?} {} {} {:?}", r.kind, r.correlation, r.channel, r.payload),
            Item::Malformed(m) => format!("malformed {:?}", m.correlation),
            other => format!("{other:?}"),
        };
        assert_eq!(found(&[id, b"", b"ok", b"p"]), "Reply 2571 0 b\"p\"");
        assert_eq!(found(&[id, b"", b"ok", b""]), "Reply 2571 0 b\"\"");
        assert_eq!(found(&[id, b"", b"error", b"NotFound", b"no"]), "Error 2571 1 b\"\\0\\0no\"");
        assert_eq!(found(&[id, b"", b"error", b"Whatever", b"no"]), "Error 2571 11 b\"\\0\\0no\"");
        assert_eq!(found(&[id, b"", b"error", b"no"]), "malformed Some(2571)");
        assert_eq!(found(&[id, b"", b"fine", b"p"]), "malformed Some(2571)");
        assert_eq!(found(&[id, b"x", b"", b"ok", b"p"]), "malformed None");
        assert_eq!(found(&[b"", b"ok", b"p"]), "malformed None");
        assert_eq!(found(&[b"ok", b"p"]), "malformed None");
        assert_eq!(found(&[&id[1..], b"", b"ok", b"p"]), "malformed None");
    }

    #[test]
    fn publications_keep_their_frames() {
        let found = |bodies: &[&[u8]]| match one(Mode::Publisher, &frames(bodies)).unwrap() {
            Item::Publication(p) => p,
            other => panic!("{other:?}"),
        };
        let p = found(&[b"eur/usd", b"1.1"]);
        assert_eq!((p.topic(), &p.payload()[..], p.parts().count()), (&b"eur/usd"[..], &b"1.1"[..], 1));
        let p = found(&[b"t", b"a", &[b'b'; 300], b""]);
        let parts: Vec<usize> = p.parts().map(|b| b.len()).collect();
        assert_eq!(parts, [1, 300, 0]);
        let p = found(&[b""]);
        assert_eq!((p.topic().len(), p.payload().len(), p.parts().count()), (0, 0, 0));
    }

    #[test]
    fn a_subscriber_in_either_form() {
        let found = |bytes: &[u8]| format!("{:?}", one(Mode::Subscriber, bytes).unwrap());
        assert_eq!(found(&frames(&[b"\x01ab"])), "Command(Subscribe(b\"ab\"))");
        assert_eq!(found(&frames(&[b"\0ab"])), "Command(Cancel(b\"ab\"))");
        assert!(found(&frames(&[b"\x02ab"])).starts_with("Malformed"));
        assert!(found(&frames(&[b""])).starts_with("Malformed"));
        let decoder = Decoder::new(Mode::Subscriber, u64::MAX);
        let head = FrameHead::new(false, false, COMMAND_MAX + 1).to_bytes();
        assert!(decoder.peek(&head).is_err(), "a prefix is bounded like a command");
    }

    /// A limit is held by the head alone, in both lengths' forms, before a byte of the body came.
    #[test]
    fn limits_are_looked_at_before_anything_is_kept() {
        let native_max = MAX + (HEADER_LEN + METHOD_LEN_MAX) as u64;
        for (mode, max) in [
            (Mode::NativeApplication, native_max),
            (Mode::NativeCompletion, native_max),
            (Mode::StockAsking, MAX),
            (Mode::StockPushing, MAX),
            (Mode::StockAnswering, MAX),
            (Mode::Publisher, MAX),
            (Mode::Subscriber, COMMAND_MAX),
        ] {
            for len in [max + 1, u64::from(u32::MAX), i64::MAX as u64, u64::MAX] {
                let head = FrameHead::new(false, false, len).to_bytes();
                let mut decoder = Decoder::new(mode, MAX);
                let error = WireError::TooLarge { what: "message", size: len, max };
                assert_eq!(decoder.peek(&head).unwrap_err(), error, "{mode:?}");
                assert_eq!(decoder.decode(&head).unwrap_err(), error, "{mode:?}");
                assert_eq!(decoder.capacity(), 0);
            }
            let mut decoder = Decoder::new(mode, MAX);
            let head = FrameHead::new(false, false, max).to_bytes();
            assert_eq!(decoder.decode(&head).unwrap().consumed, 9);
            assert!(decoder.capacity() <= 9 + PAGE, "{}", decoder.capacity());

            let head = FrameHead::new(false, true, COMMAND_MAX + 1).to_bytes();
            let error = WireError::TooLarge { what: "command", size: COMMAND_MAX + 1, max: COMMAND_MAX };
            let mut decoder = Decoder::new(mode, MAX);
            assert_eq!(decoder.peek(&head).unwrap_err(), error);
            assert_eq!(decoder.decode(&head).unwrap_err(), error);
        }
    }

    #[test]
    fn the_payload_s_own_limit_is_exact() {
        for (payload, method, ok) in [(MAX, 255, true), (MAX + 1, 0, false), (MAX + 1, 254, false)] {
            let mut bytes = Vec::new();
            let method = "m".repeat(method);
            encode(&record(Kind::Message, &method, &vec![0; payload as usize]), 0, &mut bytes);
            for cut in [bytes.len(), 100] {
                let found = feed(Mode::NativeApplication, [&bytes[..cut], &bytes[cut..]]);
                assert_eq!(found.is_ok(), ok, "{payload}");
            }
        }
    }

    #[test]
    fn a_stock_message_is_measured_as_a_whole() {
        let half = vec![b'p'; MAX as usize / 2];
        let fits = frames(&[&half, &half]);
        assert_eq!(feed(Mode::StockAsking, fits.chunks(70_000)).unwrap().len(), 1);
        let large = frames(&[&half, b"x", &half]);
        assert!(matches!(feed(Mode::StockAsking, [&large[..]]), Err(WireError::TooLarge { .. })));
        assert!(matches!(feed(Mode::StockAsking, large.chunks(70_000)), Err(WireError::TooLarge { .. })));
        let many = |n: usize| frames(&vec![&b""[..]; n]);
        assert_eq!(feed(Mode::StockAsking, [&many(FRAMES_MAX)[..]]).unwrap().len(), 1);
        for size in [1, 1000] {
            let found = feed(Mode::StockAsking, many(FRAMES_MAX + 1).chunks(size));
            assert_eq!(found, Err(WireError::TooManyFrames));
        }
    }

    #[test]
    fn frames_cost_what_is_agreed() {
        let bytes = frames(&[b"id", b"", b"echo", b"payload"]);
        let decoder = Decoder::new(Mode::StockAsking, MAX);
        assert_eq!(decoder.peek(&bytes).unwrap(), Some(2 + 4 + 7 + RECORD_OVERHEAD + 3 * FRAME_OVERHEAD));
        // From the last frame's head on; before, only if it takes long, and then the most.
        let last_head = bytes.len() - 7;
        assert_eq!(decoder.peek(&bytes[..last_head]).unwrap(), decoder.peek(&bytes).unwrap());
        assert_eq!(decoder.peek(&bytes[..last_head - 1]).unwrap(), None);
        let long = frames(&[&[b'e'; PAGE], b"", b"echo", b"p"]);
        assert_eq!(decoder.peek(&long[..PAGE - 1]).unwrap(), None);
        assert_eq!(decoder.peek(&long[..PAGE]).unwrap(), Some(MAX + RECORD_OVERHEAD + 63 * FRAME_OVERHEAD));
        // A heartbeat between the frames costs nothing and hides nothing.
        let mut parted = bytes[..4].to_vec();
        command::write_ping(0, &Context::default(), &mut parted);
        parted.extend(&bytes[4..]);
        assert_eq!(decoder.peek(&parted).unwrap(), decoder.peek(&bytes).unwrap());
        let mut bytes = Vec::new();
        encode(&record(Kind::Message, "abc", b"payload"), 0, &mut bytes);
        let decoder = Decoder::new(Mode::NativeApplication, MAX);
        assert_eq!(decoder.peek(&bytes[..2]).unwrap(), Some(10 + RECORD_OVERHEAD));
    }

    #[test]
    fn native_frames_stand_alone_and_have_a_header() {
        let decode = |bytes: &[u8]| Decoder::new(Mode::NativeApplication, MAX).decode(bytes).unwrap_err();
        assert_eq!(decode(&[1, 24]), WireError::NativeMore);
        assert_eq!(decode(&[0, 23]), WireError::Header("cut short"));
        assert_eq!(decode(&[8, 24]), WireError::Flags(8));
        assert_eq!(decode(&[5, 24]), WireError::Flags(5));
        let mut bytes = Vec::new();
        encode(&record(Kind::Message, "abc", b""), 0, &mut bytes);
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            decode(&bytes)
        };
        assert_eq!(with(2, 5), WireError::Header("unknown kind"));
        assert_eq!(with(4, 4), WireError::Header("the method leads past the end"));
        assert_eq!(with(27, 0xFF), WireError::Header("the method is not UTF-8"));
        for (len, ok) in [(0, false), (1, false), (2, true), (1026, true), (1027, false)] {
            let mut bytes = Vec::new();
            encode(&record(Kind::Error, "", &vec![b'e'; len]), 0, &mut bytes);
            assert_eq!(one(Mode::NativeCompletion, &bytes).is_ok(), ok, "{len}");
        }
    }

    #[test]
    fn a_large_body_is_read_in_place() {
        let payload: Vec<u8> = (0..MAX as usize).map(|i| (i * 7 % 251) as u8).collect();
        let mut bytes = Vec::new();
        encode(&record(Kind::Request, "m", &payload), 0, &mut bytes);
        encode(&record(Kind::Request, "next", b""), 0, &mut bytes);
        let mut decoder = Decoder::new(Mode::NativeApplication, MAX);
        let mut at = decoder.decode(&bytes[..5000]).unwrap().consumed;
        assert_eq!(at, 5000);
        let assembly = decoder.assembly().unwrap();
        assert_eq!((assembly.have, assembly.want, assembly.charge), (5000, 9 + 25 + payload.len(), MAX + 1 + 64));
        while let Some(space) = decoder.assembly_space(64 * 1024) {
            let n = space.len().min(bytes.len() - at);
            space[..n].copy_from_slice(&bytes[at..at + n]);
            decoder.assembly_filled(n);
            at += n;
            assert!(decoder.capacity() <= at + PAGE.max(at / 8));
        }
        let step = decoder.decode(&bytes[at..]).unwrap();
        let Some(Item::Record(r)) = step.item else { panic!("a record") };
        assert!(r.payload == payload);
        assert_eq!(step.charge, r.charge());
        let step = decoder.decode(&bytes[at + step.consumed..]).unwrap();
        assert!(matches!(step.item, Some(Item::Record(r)) if r.method.as_str() == "next"));
        assert!(decoder.assembly_space(1000).is_none());
    }

    #[test]
    fn what_nobody_takes_is_thrown_away_wherever_it_is_cut() {
        let mut native = Vec::new();
        encode(&record(Kind::Reply, "", &[b'r'; 9000]), 0, &mut native);
        let mut stock = Vec::new();
        encode_stock_request(0x1112_1314_1516_1718, "ok", 9000, &mut stock);
        stock.extend([b'r'; 9000]);
        for (mode, mut bytes) in [(Mode::NativeCompletion, native), (Mode::StockAnswering, stock)] {
            let len = bytes.len();
            bytes.extend_from_within(..);
            // Thrown away from its head on, or when `begun` bytes of it are in assembly already.
            for begun in [0, 11, 500, len - 1] {
                let mut decoder = Decoder::new(mode, MAX);
                assert_eq!(decoder.peek_correlation(&bytes[..9]), None);
                assert_eq!(decoder.peek_correlation(&bytes[..40]), Some(0x1112_1314_1516_1718));
                let mut at = decoder.decode(&bytes[..begun]).unwrap().consumed;
                at += decoder.discard(&bytes[at..begun.max(11)]).unwrap().consumed;
                let mut item = None;
                for end in (at..len).step_by(977).chain([len + 30]) {
                    assert_eq!((item.is_none(), decoder.capacity()), (true, 0));
                    assert!(decoder.assembly_space(1 << 20).is_none());
                    let step = decoder.decode(&bytes[at..end]).unwrap();
                    (at, item) = (at + step.consumed, step.item);
                }
                assert!(matches!(item, Some(Item::Discarded)), "{item:?}");
                assert_eq!((at, decoder.assembly()), (len, None));
                let step = decoder.decode(&bytes[at..]).unwrap();
                assert!(matches!(step.item, Some(Item::Record(r)) if r.payload.len() == 9000));
            }
        }
        let mut ping = Vec::new();
        command::write_ping(0, &Context::default(), &mut ping);
        let step = Decoder::new(Mode::NativeCompletion, MAX).discard(&ping).unwrap();
        assert!(matches!(step.item, Some(Item::Command(_))), "a command is not a record");
    }

    #[test]
    fn what_is_retained_is_what_is_charged() {
        // A small payload behind a large envelope does not keep the envelope's buffer alive.
        let envelope = vec![b'e'; 100_000];
        let bytes = frames(&[&envelope, b"", b"echo", &[b'p'; 3000]]);
        let mut decoder = Decoder::new(Mode::StockAsking, MAX);
        decoder.decode(&bytes[..10]).unwrap();
        let Some(Item::Record(r)) = decoder.decode(&bytes[10..]).unwrap().item else { panic!("a record") };
        let mut payload = r.payload.try_into_mut().expect("it is the only owner");
        assert!(!payload.try_reclaim(50_000), "the envelope's bytes are still there");
    }

    #[test]
    fn the_mode_follows_from_the_peer() {
        let peer = |socket_type: SocketType| PeerHello {
            socket_type,
            our_type: SocketType::Router,
            minor: 1,
            identity: Bytes::new(),
            native: None,
            metadata: Default::default(),
        };
        assert_eq!(Mode::of(&peer(SocketType::Dealer), false), Mode::StockAsking);
        assert_eq!(Mode::of(&peer(SocketType::Req), false), Mode::StockAsking);
        assert_eq!(Mode::of(&peer(SocketType::Router), true), Mode::StockAnswering);
        assert_eq!(Mode::of(&peer(SocketType::Push), false), Mode::StockPushing);
        assert_eq!(Mode::of(&peer(SocketType::Sub), false), Mode::Subscriber);
        assert_eq!(Mode::of(&peer(SocketType::Pub), true), Mode::Publisher);
    }
}
