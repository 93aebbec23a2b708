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
//! ```
//!
//! A payload of at most 2 KiB is copied into storage of its exact size: a slice of a read block
//! would keep the whole block alive and make the accounting a lie.

use std::borrow::Cow;

use bytes::Bytes;

use crate::base::record::{Kind, Lane, Method, Record};
use crate::base::unit::{FRAME_OVERHEAD, FRAMES_MAX, HEADER_LEN, METHOD_LEN_MAX, RECORD_OVERHEAD, charge};

use super::assembly::{Assembly, Partial};
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
    /// What the item is to be accounted with: what [`Decoder::peek`] said of it, 0 for a command and for
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
}

/// What is known of a message from the heads of its frames.
#[derive(Clone, Copy, Default, Debug)]
struct Tally {
    frames: usize,
    body: u64,
    more: bool,
}

#[derive(Default, Debug)]
struct Open {
    partial: Partial,
    tally: Tally,
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

    /// The charge of the record that begins at the start of `input`, if its head is complete and
    /// nothing is in assembly; 0 for a command. Of a stock message that is not whole yet it is the
    /// charge of the frames that have been announced.
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
        let tally = if self.mode.is_native() {
            let mut tally = Tally::default();
            self.check(&mut tally, &head)?;
            tally
        } else {
            self.scan(input)?.0
        };
        Ok(Some(self.charge(&tally)))
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
        let Some(body) = input[head.size..].get(..head.len as usize) else { return self.begin(input) };
        let (header, method, payload_at) = self.parse_native(body)?;
        let payload = Bytes::copy_from_slice(&body[payload_at..]);
        Ok(Step {
            consumed: head.size + body.len(),
            charge: self.charge(&tally),
            item: Some(Item::Record(native_record(header, method, payload))),
        })
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
            charge: self.open.as_ref().map_or(0, |o| self.charge(&o.tally)),
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

    /// The heads of a stock message as far as they are in `input`, and its length if it is whole.
    fn scan(&self, input: &[u8]) -> Result<(Tally, Option<usize>), WireError> {
        let (mut tally, mut at) = (Tally::default(), 0usize);
        loop {
            let Some(head) = FrameHead::parse(&input[at..])?.filter(|head| !head.command) else {
                return Ok((tally, None));
            };
            self.check(&mut tally, &head)?;
            at += head.size + head.len as usize;
            if at > input.len() {
                return Ok((tally, None));
            }
            if !head.more {
                return Ok((tally, Some(at)));
            }
        }
    }

    /// A command, or a message of a stock peer, with nothing in assembly.
    fn decode_other(&mut self, head: FrameHead, input: &[u8]) -> Result<Step, WireError> {
        if head.command {
            return self.begin_command(head, input);
        }
        let (tally, whole) = self.scan(input)?;
        match whole {
            Some(len) => Ok(Step {
                consumed: len,
                charge: self.charge(&tally),
                item: Some(self.message(Cow::Borrowed(&input[..len]))?),
            }),
            None => self.begin(input),
        }
    }

    #[cold]
    fn begin(&mut self, input: &[u8]) -> Result<Step, WireError> {
        self.open = Some(Open::default());
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
                let (header, method, payload_at) = self.parse_native(&raw[body..])?;
                let payload = body + payload_at..raw.len();
                Item::Record(native_record(header, method, stock::cut(raw, payload)))
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

    /// Header, method and where the payload begins.
    #[inline]
    fn parse_native(&self, body: &[u8]) -> Result<(Header, Method, usize), WireError> {
        let (head, rest) = body.split_first_chunk().ok_or(WireError::Header("cut short"))?;
        let header = Header::parse(head)?;
        let Some((method, payload)) = rest.split_at_checked(header.method_len as usize) else {
            return Err(WireError::Header("the method leads past the end"));
        };
        let method = std::str::from_utf8(method).ok().and_then(Method::new);
        let method = method.ok_or(WireError::Header("the method is not UTF-8"))?;
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
        Ok((header, method, body.len() - payload.len()))
    }
}

fn check_command(head: &FrameHead) -> Result<(), WireError> {
    if head.len > COMMAND_MAX {
        return Err(WireError::TooLarge { what: "command", size: head.len, max: COMMAND_MAX });
    }
    Ok(())
}

#[inline]
fn native_record(header: Header, method: Method, payload: Bytes) -> Record {
    Record {
        kind: header.kind,
        depth: header.depth,
        channel: header.channel,
        correlation: header.correlation,
        expiry_ms: header.expiry_ms,
        method,
        payload,
        envelope: None,
    }
}
