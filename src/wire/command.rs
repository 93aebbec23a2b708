//! Commands: what travels between records and is dealt with at decode, never queued.
//!
//! The body of a command frame is one byte for the name's length, the name, the data. Ours beside
//! ZMTP's own, between native peers:
//!
//! ```text
//!  FLOWSTATE   u8 version (1) | u8 state (0 running, 1 paused) | u64 epoch (never 0)   completion lane
//!  CHANNELS    u64 version | list as in READY, the whole of it                         application lane
//!  PING, PONG  context: u32 link clock in ms | u64 records decoded                     completion lane
//! ```
//!
//! A command of another name, and a FLOWSTATE of another version, is ignored. Commands are at most
//! [`COMMAND_MAX`] bytes and a PONG is a copy of what came in, so an answer never grows.

use bytes::Bytes;

use super::channels::{ChannelList, parse_list, write_list};
use super::error::WireError;
use super::frame::FrameHead;

/// The longest body of a command; READY included.
pub const COMMAND_MAX: u64 = 64 * 1024;

/// The longest context of a PING.
pub const CONTEXT_MAX: usize = 16;

/// A command, as it came in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// The peer wants a sign of life: a PONG with the same context.
    Ping {
        /// After how many tenths of a second of silence the peer's own end may be taken for dead; 0 = not said.
        ttl: u16,
        /// To be sent back.
        context: Context,
    },
    /// The answer to a PING, or, with an empty context, a sign of life that nobody asked for.
    Pong {
        /// What the PING carried.
        context: Context,
    },
    /// Publications whose topic begins with this prefix are wanted. A peer may say so twice and
    /// cancel once: keep a set, not a count.
    Subscribe(Bytes),
    /// They are no longer wanted.
    Cancel(Bytes),
    /// Whether the peer takes records on the application lane.
    FlowState(FlowState),
    /// What the peer serves now.
    Channels {
        /// Grows with every change on a link.
        version: u64,
        /// The whole list.
        list: ChannelList,
    },
    /// The peer gives up this connection and says why.
    Error(Box<str>),
    /// To be ignored.
    Unknown,
}

/// The state of a peer's job queue, told whole each time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowState {
    /// Whether records should be held back.
    pub paused: bool,
    /// Grows with every change; of two states the one with the larger epoch holds. Never 0.
    pub epoch: u64,
}

/// What a PING carries and its PONG brings back: at most 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Context {
    len: u8,
    bytes: [u8; CONTEXT_MAX],
}

impl Context {
    /// `None` if it is longer than [`CONTEXT_MAX`].
    pub fn new(context: &[u8]) -> Option<Context> {
        let mut bytes = [0; CONTEXT_MAX];
        bytes.get_mut(..context.len())?.copy_from_slice(context);
        Some(Context { len: context.len() as u8, bytes })
    }

    /// The context of a native PING: the sender's link clock, and how many records of the
    /// application lane it has decoded on this link.
    pub fn native(clock_ms: u32, decoded: u64) -> Context {
        let mut bytes = [0; CONTEXT_MAX];
        bytes[..4].copy_from_slice(&clock_ms.to_be_bytes());
        bytes[4..12].copy_from_slice(&decoded.to_be_bytes());
        Context { len: 12, bytes }
    }

    /// Clock and count of a native PING; `None` if it is not one.
    pub fn as_native(&self) -> Option<(u32, u64)> {
        let (clock, decoded) = self.as_bytes().split_at_checked(4)?;
        Some((u32::from_be_bytes(clock.try_into().ok()?), u64::from_be_bytes(decoded.try_into().ok()?)))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

impl Command {
    /// Reads the body of a command frame. The caller has compared its length with [`COMMAND_MAX`].
    pub fn parse(body: &[u8]) -> Result<Command, WireError> {
        let (name, data) = split(body)?;
        Ok(match name {
            b"PING" => {
                let (ttl, context) = data.split_first_chunk().ok_or(WireError::Command("PING"))?;
                let context = Context::new(context).ok_or(WireError::Command("PING"))?;
                Command::Ping { ttl: u16::from_be_bytes(*ttl), context }
            }
            b"PONG" => Command::Pong { context: Context::new(data).ok_or(WireError::Command("PONG"))? },
            b"SUBSCRIBE" => Command::Subscribe(Bytes::copy_from_slice(data)),
            b"CANCEL" => Command::Cancel(Bytes::copy_from_slice(data)),
            b"FLOWSTATE" => parse_flow_state(data)?,
            b"CHANNELS" => {
                let (version, list) = data.split_first_chunk().ok_or(WireError::Command("CHANNELS"))?;
                let list = parse_list(list).ok_or(WireError::Command("CHANNELS"))?;
                Command::Channels { version: u64::from_be_bytes(*version), list }
            }
            b"ERROR" => Command::Error(error_reason(data)?),
            _ => Command::Unknown,
        })
    }

    /// What a peer of ZMTP 3.0 sends instead of SUBSCRIBE and CANCEL: a message of one frame that
    /// begins with 1 or 0. `None`: neither.
    pub fn parse_subscription(message: &[u8]) -> Option<Command> {
        match message {
            [1, prefix @ ..] => Some(Command::Subscribe(Bytes::copy_from_slice(prefix))),
            [0, prefix @ ..] => Some(Command::Cancel(Bytes::copy_from_slice(prefix))),
            _ => None,
        }
    }
}

fn parse_flow_state(data: &[u8]) -> Result<Command, WireError> {
    match data {
        [1, state @ (0 | 1), epoch @ ..] => {
            let epoch = epoch.try_into().map(u64::from_be_bytes).ok().filter(|epoch| *epoch != 0);
            let epoch = epoch.ok_or(WireError::Command("FLOWSTATE"))?;
            Ok(Command::FlowState(FlowState { paused: *state == 1, epoch }))
        }
        [] | [1, ..] => Err(WireError::Command("FLOWSTATE")),
        _ => Ok(Command::Unknown),
    }
}

/// Name and data of a command's body.
pub(crate) fn split(body: &[u8]) -> Result<(&[u8], &[u8]), WireError> {
    let (len, rest) = body.split_first().ok_or(WireError::Command("nameless"))?;
    if *len == 0 {
        return Err(WireError::Command("nameless"));
    }
    rest.split_at_checked(*len as usize).ok_or(WireError::Command("nameless"))
}

/// The reason of an ERROR command; what is not ASCII text is shown escaped.
pub(crate) fn error_reason(data: &[u8]) -> Result<Box<str>, WireError> {
    let (len, rest) = data.split_first().ok_or(WireError::Command("ERROR"))?;
    let reason = rest.get(..*len as usize).ok_or(WireError::Command("ERROR"))?;
    Ok(reason.escape_ascii().to_string().into())
}

/// Appends a command frame of several pieces of data.
pub(crate) fn write_command(name: &str, data: &[&[u8]], out: &mut Vec<u8>) {
    let len = 1 + name.len() + data.iter().map(|d| d.len()).sum::<usize>();
    debug_assert!(len as u64 <= COMMAND_MAX);
    FrameHead::new(false, true, len as u64).write(out);
    out.push(name.len() as u8);
    out.extend_from_slice(name.as_bytes());
    for piece in data {
        out.extend_from_slice(piece);
    }
}

/// Appends a PING.
pub fn write_ping(ttl: u16, context: &Context, out: &mut Vec<u8>) {
    write_command("PING", &[&ttl.to_be_bytes(), context.as_bytes()], out);
}

/// Appends a PONG. With an empty context it is the sign of life for a stock peer that we do not
/// read at present: any traffic keeps it from taking us for dead.
pub fn write_pong(context: &Context, out: &mut Vec<u8>) {
    write_command("PONG", &[context.as_bytes()], out);
}

/// Appends a FLOWSTATE. The epoch must not be 0.
pub fn write_flow_state(state: FlowState, out: &mut Vec<u8>) {
    debug_assert_ne!(state.epoch, 0);
    write_command("FLOWSTATE", &[&[1, u8::from(state.paused)], &state.epoch.to_be_bytes()], out);
}

/// Appends a CHANNELS with the whole list.
pub fn write_channels(version: u64, list: &[(std::sync::Arc<str>, u32)], out: &mut Vec<u8>) {
    let mut text = Vec::new();
    write_list(list, &mut text);
    write_command("CHANNELS", &[&version.to_be_bytes(), &text], out);
}

/// Appends a subscription in the form of the peer's revision: a command from 3.1 on, a message
/// before.
pub fn write_subscription(minor: u8, subscribe: bool, prefix: &[u8], out: &mut Vec<u8>) {
    if minor == 0 {
        FrameHead::new(false, false, 1 + prefix.len() as u64).write(out);
        out.push(u8::from(subscribe));
        out.extend_from_slice(prefix);
    } else {
        write_command(if subscribe { "SUBSCRIBE" } else { "CANCEL" }, &[prefix], out);
    }
}

/// Appends an ERROR; of the reason, at most 255 bytes.
pub fn write_error(reason: &str, out: &mut Vec<u8>) {
    let reason = super::header::cut(reason, 255);
    write_command("ERROR", &[&[reason.len() as u8], reason.as_bytes()], out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    fn parsed(frame: &[u8]) -> Command {
        let head = FrameHead::parse(frame).unwrap().unwrap();
        assert!(head.command && !head.more);
        assert_eq!(head.len as usize, frame.len() - head.size);
        Command::parse(&frame[head.size..]).unwrap()
    }

    #[test]
    fn golden_bytes() {
        let cases: [(Vec<u8>, &[u8], Command); 9] = [
            (
                written(|o| write_ping(150, &Context::native(0x0102_0304, 9), o)),
                b"\x04\x13\x04PING\x00\x96\x01\x02\x03\x04\0\0\0\0\0\0\0\x09",
                Command::Ping { ttl: 150, context: Context::native(0x0102_0304, 9) },
            ),
            (
                written(|o| write_pong(&Context::new(b"abc").unwrap(), o)),
                b"\x04\x08\x04PONGabc",
                Command::Pong { context: Context::new(b"abc").unwrap() },
            ),
            (
                written(|o| write_pong(&Context::default(), o)),
                &[0x04, 0x05, 0x04, 0x50, 0x4F, 0x4E, 0x47],
                Command::Pong { context: Context::default() },
            ),
            (
                written(|o| write_flow_state(FlowState { paused: true, epoch: 258 }, o)),
                b"\x04\x14\x09FLOWSTATE\x01\x01\0\0\0\0\0\0\x01\x02",
                Command::FlowState(FlowState { paused: true, epoch: 258 }),
            ),
            (
                written(|o| write_channels(2, &[("orders".into(), 100), ("b".into(), 0)], o)),
                b"\x04\x1f\x08CHANNELS\0\0\0\0\0\0\0\x02orders=100,b=0",
                Command::Channels { version: 2, list: vec![("orders".into(), 100), ("b".into(), 0)] },
            ),
            (
                written(|o| write_subscription(1, true, b"eur/", o)),
                b"\x04\x0e\x09SUBSCRIBEeur/",
                Command::Subscribe(Bytes::from_static(b"eur/")),
            ),
            (written(|o| write_subscription(1, false, b"", o)), b"\x04\x07\x06CANCEL", Command::Cancel(Bytes::new())),
            (written(|o| write_error("400", o)), b"\x04\x0a\x05ERROR\x03400", Command::Error("400".into())),
            (written(|o| write_command("JOIN", &[b"x"], o)), b"\x04\x06\x04JOINx", Command::Unknown),
        ];
        for (bytes, golden, command) in cases {
            assert_eq!(bytes, golden, "{command:?}: {}", bytes.escape_ascii());
            assert_eq!(parsed(&bytes), command);
        }
    }

    #[test]
    fn subscriptions_of_3_0_are_messages() {
        assert_eq!(written(|o| write_subscription(0, true, b"ab", o)), b"\0\x03\x01ab");
        assert_eq!(written(|o| write_subscription(0, false, b"", o)), b"\0\x01\0");
        assert_eq!(Command::parse_subscription(b"\x01ab"), Some(Command::Subscribe(Bytes::from_static(b"ab"))));
        assert_eq!(Command::parse_subscription(b"\0"), Some(Command::Cancel(Bytes::new())));
        assert_eq!(Command::parse_subscription(b"\x02"), None);
        assert_eq!(Command::parse_subscription(b""), None);
    }

    #[test]
    fn a_long_topic_makes_a_long_command() {
        let bytes = written(|o| write_subscription(1, true, &[b't'; 300], o));
        assert_eq!(bytes[..9], [6, 0, 0, 0, 0, 0, 0, 0x01, 0x36]);
        assert_eq!(parsed(&bytes), Command::Subscribe(Bytes::from(vec![b't'; 300])));
    }

    #[test]
    fn truncated_and_nonsensical_commands_are_refused() {
        let bad: [&[u8]; 17] = [
            b"",
            b"\0",
            b"\0PING",
            b"\x05PING",
            b"\x04PING",
            b"\x04PING\0",
            b"\x04PING\0\0abcdefghijklmnopq",
            b"\x04PONGabcdefghijklmnopq",
            b"\x09FLOWSTATE",
            b"\x09FLOWSTATE\x01\x02\0\0\0\0\0\0\0\x01",
            b"\x09FLOWSTATE\x01\x01\0\0\0\0\0\0\0\0",
            b"\x09FLOWSTATE\x01\x01\0\0\0\0\0\0\x01",
            b"\x08CHANNELS\0",
            b"\x08CHANNELS\0\0\0\0\0\0\0\x01x",
            b"\x05ERROR",
            b"\x05ERROR\x02a",
            b"\x09FLOWSTATE\x01\x01\0\0\0\0\0\0\0\x01\0",
        ];
        for body in bad {
            assert!(Command::parse(body).is_err(), "{}", body.escape_ascii());
        }
    }

    #[test]
    fn strangers_are_ignored() {
        for body in [&b"\x04ping"[..], b"\x09FLOWSTATE\x02what a later version says", b"\x05READY", b"\x01?"] {
            assert_eq!(Command::parse(body).unwrap(), Command::Unknown, "{}", body.escape_ascii());
        }
    }

    #[test]
    fn only_twelve_bytes_are_a_native_context() {
        assert_eq!(Context::native(7, u64::MAX).as_native(), Some((7, u64::MAX)));
        for len in 0..=CONTEXT_MAX {
            assert_eq!(Context::new(&[0; CONTEXT_MAX][..len]).unwrap().as_native().is_some(), len == 12);
        }
        assert_eq!(Context::new(&[0; CONTEXT_MAX + 1]), None);
    }

    #[test]
    fn reasons_are_harmless_text() {
        assert_eq!(Command::parse(b"\x05ERROR\x03a\n\xff").unwrap(), Command::Error("a\\n\\xff".into()));
        let bytes = written(|o| write_error(&"é".repeat(200), o));
        assert_eq!(bytes[9 + 1 + 5], 254, "cut at a character");
    }
}
