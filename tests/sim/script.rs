//! What an operation is told to do, in the first bytes of every payload: handlers do what the record says.

use bytes::Bytes;

use super::book::content;

/// How large operations are, and what their handlers do: in the first bytes of every payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Script {
    pub op: u32,
    pub act: Act,
    pub reply: u32,
    pub hold_us: u32,
    /// Where a nested request goes.
    pub next: u8,
}

/// What the handler of a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Act {
    /// Answers in its callback.
    Inline,
    /// Keeps the responder; another thread answers later.
    Keep,
    /// Asks another node first.
    Nest,
    /// Forgets it.
    Drop,
    /// Says no.
    Fail,
    /// Panics.
    Panic,
}

pub const ACTS: [Act; 6] = [Act::Inline, Act::Keep, Act::Nest, Act::Drop, Act::Fail, Act::Panic];

/// The shortest payload.
pub const SCRIPT_LEN: usize = 16;

impl Script {
    pub fn encode(self, len: usize) -> Bytes {
        let mut out = Vec::with_capacity(len.max(SCRIPT_LEN));
        out.extend(self.op.to_le_bytes());
        out.extend(self.reply.to_le_bytes());
        out.extend(self.hold_us.to_le_bytes());
        out.extend([self.act as u8, self.next, 0, 0]);
        out.extend((SCRIPT_LEN..len).map(|i| content(self.op, i)));
        out.into()
    }

    pub fn decode(payload: &[u8]) -> Script {
        let word = |at: usize| u32::from_le_bytes(payload[at..at + 4].try_into().unwrap());
        Script { op: word(0), reply: word(4), hold_us: word(8), act: ACTS[payload[12] as usize], next: payload[13] }
    }
}

/// The reply to an operation.
pub fn reply_of(script: Script) -> Bytes {
    let mut out = Vec::with_capacity(script.reply as usize);
    out.extend(script.op.to_le_bytes());
    out.extend((4..script.reply as usize).map(|i| content(!script.op, i)));
    out.into()
}
