//! A record: one message as it travels through queues. Native or stock, one-way, request, reply
//! or error: the same value, so that every queue, mark and ledger row speaks of one thing.

use std::fmt;
use std::sync::Arc;

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
pub struct Method {
    len: u8,
    short: [u8; SHORT],
    /// The name, if it is longer.
    long: Option<Arc<Box<str>>>,
}

const SHORT: usize = 23;

impl Method {
    /// `None` if `name` is longer than 255 bytes.
    #[inline]
    pub fn new(name: &str) -> Option<Method> {
        let mut method = Method::default();
        if name.len() <= SHORT {
            method.len = name.len() as u8;
            method.short[..name.len()].copy_from_slice(name.as_bytes());
        } else if name.len() <= METHOD_LEN_MAX {
            method.long = Some(Arc::new(name.into()));
        } else {
            return None;
        }
        Some(method)
    }

    /// Becomes what [`Method::as_bytes`] gave, in place: the first `len` of `bytes`. Bytes that are no name make it
    /// the empty one.
    #[inline]
    pub fn set_bytes(&mut self, bytes: &[u8], len: usize) {
        match bytes.first_chunk() {
            // Of one size, whatever follows the name: a copy without a call.
            Some(short) if len <= SHORT && self.long.is_none() => {
                self.len = len as u8;
                self.short = *short;
            }
            _ => *self = std::str::from_utf8(&bytes[..len]).ok().and_then(Method::new).unwrap_or_default(),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// The name's bytes, without a second look at their validity.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.long {
            None => &self.short[..self.len as usize],
            Some(long) => long.as_bytes(),
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
    /// Without a byte: a place for one to be filled in.
    pub fn empty() -> Record {
        Record {
            kind: Kind::Message,
            depth: 0,
            channel: 0,
            correlation: 0,
            expiry_ms: 0,
            method: Method::default(),
            payload: Bytes::new(),
            envelope: None,
        }
    }

    /// Moves what it owns out; what stays is empty.
    pub fn take(&mut self) -> Record {
        Record {
            method: std::mem::take(&mut self.method),
            payload: std::mem::take(&mut self.payload),
            envelope: self.envelope.take(),
            ..*self
        }
    }

    /// What this record is accounted with, from the moment it is admitted until its queue gives it up.
    #[inline(always)]
    pub fn charge(&self) -> u64 {
        charge(self.payload.len(), self.method.as_bytes().len() + self.envelope.as_ref().map_or(0, |e| e.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn method_names_survive_at_the_inline_edge() {
        for len in [0, 1, SHORT - 1, SHORT, SHORT + 1, 255] {
            let name = "m".repeat(len);
            assert_eq!(Method::new(&name).unwrap().as_str(), name);
            for before in ["", "another name", &"n".repeat(100)] {
                let mut method = Method::new(before).unwrap();
                for behind in ["", &"p".repeat(40)] {
                    method.set_bytes(&[name.as_bytes(), behind.as_bytes()].concat(), len);
                    assert_eq!(method.as_str(), name);
                }
            }
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
