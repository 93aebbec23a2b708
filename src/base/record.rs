//! A record: one message as it travels through queues. Native or stock, one-way, request, reply
//! or error: the same value, so that every queue, mark and ledger row speaks of one thing.

use std::fmt;

use bytes::Bytes;

use super::unit::{METHOD_LEN_MAX, charge};

/// Which connection of a pair. The lane decides what may bypass permits and ordinary marks; the
/// content of a record never does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lane {
    /// Messages and requests.
    Application,
    /// Replies, error replies, heartbeats and flow state; nothing else.
    Completion,
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lane::Application => "application",
            Lane::Completion => "completion",
        })
    }
}

/// What a record is. The numbers are those of the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// One-way.
    Message = 1,
    /// Wants exactly one reply or error.
    Request = 2,
    /// The answer to a request.
    Reply = 3,
    /// The refusal or failure of a request.
    Error = 4,
}

impl Kind {
    /// From the wire's number.
    pub fn from_wire(n: u8) -> Option<Kind> {
        Some(match n {
            1 => Kind::Message,
            2 => Kind::Request,
            3 => Kind::Reply,
            4 => Kind::Error,
            _ => return None,
        })
    }

    /// The lane on which this kind travels between native peers.
    pub fn lane(self) -> Lane {
        match self {
            Kind::Message | Kind::Request => Lane::Application,
            Kind::Reply | Kind::Error => Lane::Completion,
        }
    }
}

/// A method name: kept inside the record when it is short, so that a send does not allocate.
#[derive(Clone, Default)]
pub struct Method(Repr);

const INLINE: usize = 22;

#[derive(Clone)]
enum Repr {
    Inline(u8, [u8; INLINE]),
    Shared(std::sync::Arc<str>),
}

impl Default for Repr {
    fn default() -> Self {
        Repr::Inline(0, [0; INLINE])
    }
}

impl Method {
    /// `None` if `name` is longer than 255 bytes.
    pub fn new(name: &str) -> Option<Method> {
        if name.len() <= INLINE {
            let mut buf = [0; INLINE];
            buf[..name.len()].copy_from_slice(name.as_bytes());
            Some(Method(Repr::Inline(name.len() as u8, buf)))
        } else if name.len() <= METHOD_LEN_MAX {
            Some(Method(Repr::Shared(name.into())))
        } else {
            None
        }
    }

    /// From what [`Method::as_bytes`] gave. Bytes that are no name come out as the empty one.
    #[inline]
    pub fn from_bytes(name: &[u8]) -> Method {
        if name.len() <= INLINE {
            let mut buf = [0; INLINE];
            buf[..name.len()].copy_from_slice(name);
            return Method(Repr::Inline(name.len() as u8, buf));
        }
        std::str::from_utf8(name).ok().and_then(Method::new).unwrap_or_default()
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Repr::Inline(len, buf) => std::str::from_utf8(&buf[..*len as usize]).unwrap_or_default(),
            Repr::Shared(s) => s,
        }
    }

    /// The name's bytes, without a second look at their validity.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline(len, buf) => &buf[..*len as usize],
            Repr::Shared(s) => s.as_bytes(),
        }
    }
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// One message.
#[derive(Clone, Debug)]
pub struct Record {
    /// What it is.
    pub kind: Kind,
    /// How many handlers stand above the call; 0 outside handlers.
    pub depth: u8,
    /// Messages and requests going out: the local channel number. Coming in: the channel number of
    /// this link. Errors: the number of the error kind.
    pub channel: u16,
    /// Opaque to the answering side.
    pub correlation: u64,
    /// On the sender's link clock, in milliseconds; 0 = none.
    pub expiry_ms: u32,
    /// What is asked of the channel.
    pub method: Method,
    /// The bytes of the user; of an error: application code and sentence.
    pub payload: Bytes,
    /// The envelope of a stock peer, whole frames as they came in up to and including the
    /// delimiter, to be written in front of the answer. Native records have none.
    pub envelope: Option<Box<[u8]>>,
}

impl Record {
    /// What this record is accounted with, from the moment it is admitted until its queue gives it up.
    pub fn charge(&self) -> u64 {
        charge(self.payload.len(), self.method.as_bytes().len() + self.envelope.as_ref().map_or(0, |e| e.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn method_names_survive_at_the_inline_edge() {
        for len in [0, 1, INLINE - 1, INLINE, INLINE + 1, 255] {
            let name = "m".repeat(len);
            assert_eq!(Method::new(&name).unwrap().as_str(), name);
        }
        assert!(Method::new(&"m".repeat(256)).is_none());
    }

    #[test]
    fn kinds_know_their_lane_and_number() {
        for n in 0..=255 {
            if let Some(kind) = Kind::from_wire(n) {
                assert_eq!(kind as u8, n);
                assert_eq!(kind.lane() == Lane::Completion, n >= 3);
            } else {
                assert!(n == 0 || n > 4);
            }
        }
    }
}
