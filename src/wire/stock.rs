//! What stock ZeroMQ peers say, and what is said to them.
//!
//! ```text
//!  asking us    [envelope .. empty] route payload      request      the envelope is kept and echoed
//!               route payload                          one-way      (from PUSH, whatever the frames are)
//!  our answer   [envelope .. empty] "ok" payload
//!               [envelope .. empty] "error" kind sentence
//!  we ask       correlation(8) empty route payload     of a ROUTER that we dialled; it answers likewise
//!  publication  topic payload..
//! ```
//!
//! The delimiter is the first empty frame that is not the last one. Whatever has one gets exactly
//! one answer, or a REQ would hang; so a message of the wrong shape comes out as [`Malformed`] with
//! the envelope to be answered to, and is no reason to end the connection.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;

use crate::base::error::ErrorKind;
use crate::base::record::{Kind, Method, Record};

use super::decode::Item;
use super::frame::{FrameHead, Frames, write_frame};
use super::header::ErrorBody;

/// Payloads up to this size are copied into storage of exactly their size, whatever they came in.
pub const COPY_MAX: usize = 2048;

pub(crate) const OK: &[u8] = b"ok";
pub(crate) const ERROR: &[u8] = b"error";

/// A request or message of ours to a stock peer, as it was encoded: `bytes` are its frames, but for a payload
/// that lies apart.
pub fn reread_ours(bytes: &[u8], payload: Option<Bytes>) -> Option<Record> {
    // The last frame's body is missing if it lies apart; its head is there.
    let mut frames = Vec::new();
    let mut at = 0;
    while let Some(head) = FrameHead::parse(bytes.get(at..)?).ok()? {
        let body = bytes.get(at + head.size..at + head.size + head.len as usize).unwrap_or_default();
        frames.push(body);
        at += head.size + head.len as usize;
        if !head.more {
            break;
        }
    }
    let (kind, correlation, route, small) = match frames[..] {
        [id, [], route, small] => (Kind::Request, u64::from_be_bytes(id.try_into().ok()?), route, small),
        [route, small] => (Kind::Message, 0, route, small),
        _ => return None,
    };
    let payload = payload.unwrap_or_else(|| Bytes::copy_from_slice(small));
    let method = Method::new(std::str::from_utf8(route).ok()?)?;
    Some(Record { kind, correlation, method, payload, ..Record::empty() })
}

/// A message of a stock peer that is not of the agreed shape. To be counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Malformed {
    /// The envelope of an asking peer: exactly one error answer is due.
    pub reply_to: Option<Box<[u8]>>,
    /// The request of ours that was answered like this: it has no better answer to wait for.
    pub correlation: Option<u64>,
    /// What is wrong with it, for the answer and the log.
    pub reason: &'static str,
}

/// One publication: the topic frame and the frames after it, in one piece of memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Publication {
    frames: Bytes,
    topic: Range<usize>,
}

impl Publication {
    /// From whole frames, the first of which is the topic; `None` if there is not one.
    pub(crate) fn of(frames: Bytes) -> Option<Publication> {
        let first = Frames::new(&frames).next()?;
        Some(Publication { topic: first.start..first.end, frames })
    }

    /// What it was published under: what prefixes are compared with. Need not be text.
    pub fn topic(&self) -> &[u8] {
        &self.frames[self.topic.clone()]
    }

    /// The frames after the topic: one from an afflux publisher, any number from another.
    pub fn parts(&self) -> impl Iterator<Item = Bytes> + '_ {
        Frames::new(&self.frames).skip(1).map(|f| self.frames.slice(f.start..f.end))
    }

    /// The payload: the second frame. Empty if there is none; see [`Publication::parts`] for a
    /// publisher that sends more than two frames.
    pub fn payload(&self) -> Bytes {
        self.parts().next().unwrap_or_default()
    }

    /// As a record: its payload is all of the frames.
    pub(crate) fn into_record(self) -> Record {
        Record { payload: self.frames, ..Record::empty() }
    }
}

/// Cuts a payload out of the frames of a whole message. Copies what is small, and what would keep
/// much more than itself alive.
#[inline]
pub(crate) fn cut(raw: Cow<'_, [u8]>, range: Range<usize>) -> Bytes {
    match raw {
        Cow::Owned(buf) if range.len() > COPY_MAX && buf.capacity() - range.len() <= range.len() / 8 => {
            Bytes::from(buf).slice(range)
        }
        raw => Bytes::copy_from_slice(&raw[range]),
    }
}

/// Where the parts of a message are: the envelope ends at `envelope` (0: there is none), the first
/// three frames after it are `parts`, and there are `count` of them.
struct Shape {
    envelope: usize,
    parts: [Range<usize>; 3],
    count: usize,
}

fn shape(raw: &[u8], delimited: bool) -> Shape {
    let mut s = Shape { envelope: 0, parts: [0..0, 0..0, 0..0], count: 0 };
    for frame in Frames::new(raw) {
        if delimited && s.envelope == 0 && frame.more && frame.start == frame.end {
            (s.envelope, s.count) = (frame.end, 0);
            continue;
        }
        if let Some(part) = s.parts.get_mut(s.count) {
            *part = frame.start..frame.end;
        }
        s.count += 1;
    }
    s
}

/// A whole message of a peer that asks of us (`delimited`: DEALER or REQ) or pushes.
pub(crate) fn asked(raw: Cow<'_, [u8]>, delimited: bool) -> Item {
    let shape = shape(&raw, delimited);
    let envelope = (shape.envelope > 0).then(|| Box::from(&raw[..shape.envelope]));
    let malformed = |reply_to, reason| Item::Malformed(Malformed { reply_to, correlation: None, reason });
    if shape.count != 2 {
        return malformed(envelope, "exactly a route and a payload are expected");
    }
    let [route, payload, _] = shape.parts;
    let Ok(route) = std::str::from_utf8(&raw[route]) else {
        return malformed(envelope, "the route is not UTF-8");
    };
    let Some(method) = Method::new(route) else {
        return malformed(envelope, "the route is longer than 255 bytes");
    };
    Item::Record(Record {
        kind: if envelope.is_some() { Kind::Request } else { Kind::Message },
        depth: 0,
        channel: 0,
        correlation: 0,
        expiry_ms: 0,
        method,
        payload: cut(raw, payload),
        envelope,
    })
}

/// A whole message of a ROUTER or REP that we dialled and asked.
pub(crate) fn answered(raw: Cow<'_, [u8]>) -> Item {
    let shape = shape(&raw, true);
    // One frame, the correlation, and the delimiter: no other hop stands between.
    let mut hops = Frames::new(&raw[..shape.envelope]);
    let correlation = match (hops.next(), hops.next(), hops.next()) {
        (Some(id), Some(_), None) => raw[id.start..id.end].try_into().ok().map(u64::from_be_bytes),
        _ => None,
    };
    let malformed = |reason| Item::Malformed(Malformed { reply_to: None, correlation, reason });
    let Some(id) = correlation else { return malformed("no correlation of ours") };
    let [status, second, third] = shape.parts;
    let (kind, channel, payload) = match (&raw[status], shape.count) {
        (OK, 2) => (Kind::Reply, 0, cut(raw, second)),
        (ERROR, 3) => {
            let name = &raw[second];
            let kind = ErrorKind::ALL.iter().find(|(_, n)| n.as_bytes() == name).map_or(ErrorKind::Remote, |k| k.0);
            let sentence = String::from_utf8_lossy(&raw[third]);
            (Kind::Error, kind as u16, ErrorBody::encode(0, &sentence))
        }
        _ => return malformed("the answer is neither `ok` nor `error`"),
    };
    Item::Record(Record {
        kind,
        depth: 0,
        channel,
        correlation: id,
        expiry_ms: 0,
        method: Method::default(),
        payload,
        envelope: None,
    })
}

/// A whole message of a publisher.
pub(crate) fn published(raw: Cow<'_, [u8]>) -> Item {
    let raw = match raw {
        Cow::Owned(buf) => Bytes::from(buf),
        Cow::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
    };
    match Publication::of(raw) {
        Some(publication) => Item::Publication(publication),
        None => Item::Malformed(Malformed { reply_to: None, correlation: None, reason: "no frame" }),
    }
}

/// Appends everything of an `error` answer.
pub(crate) fn write_error_answer(envelope: &[u8], kind: ErrorKind, sentence: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(envelope);
    write_frame(true, ERROR, out);
    write_frame(true, kind.name().as_bytes(), out);
    write_frame(false, super::header::cut(sentence, super::header::SENTENCE_MAX).as_bytes(), out);
}
