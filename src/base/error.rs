//! Errors: few kinds, many details, always with numbers. An error says which limit, which peer,
//! which lane, which stage and how long, and gives back the payload of whatever was not accepted
//! (promises 1 and 5).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::record::Lane;
use super::unit::grouped;

/// What went wrong, coarsely: what a program decides by. The numbers are those of the wire and are
/// only ever appended to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[repr(u16)]
pub enum ErrorKind {
    /// No such channel, node, or handler.
    NotFound = 1,
    /// A node of that name is already connected and alive.
    AlreadyExists = 2,
    /// The role that the call needs was not configured.
    NotConfigured = 3,
    /// Refused by a rule that is neither load nor configuration.
    Rejected = 4,
    /// The target exists, but cannot be reached now, or was lost.
    Unavailable = 5,
    /// A bounded resource of this process is full.
    CapacityExceeded = 6,
    /// The operation's time was up; see the [`Detail`] for what it was waiting for.
    DeadlineExceeded = 7,
    /// The host accepts nothing new.
    ShuttingDown = 8,
    /// The peer broke the protocol.
    Protocol = 9,
    /// Not allowed in this place or state.
    InvalidOperation = 10,
    /// The remote handler answered with an error of its own.
    Remote = 11,
    /// Options that cannot be started with; see [`Error::violations`].
    Config = 12,
    /// A fault in afflux or in a handler.
    Internal = 13,
}

impl ErrorKind {
    /// Every kind with the name that stock peers see.
    pub const ALL: [(ErrorKind, &'static str); 13] = [
        (ErrorKind::NotFound, "NotFound"),
        (ErrorKind::AlreadyExists, "AlreadyExists"),
        (ErrorKind::NotConfigured, "NotConfigured"),
        (ErrorKind::Rejected, "Rejected"),
        (ErrorKind::Unavailable, "Unavailable"),
        (ErrorKind::CapacityExceeded, "CapacityExceeded"),
        (ErrorKind::DeadlineExceeded, "DeadlineExceeded"),
        (ErrorKind::ShuttingDown, "ShuttingDown"),
        (ErrorKind::Protocol, "Protocol"),
        (ErrorKind::InvalidOperation, "InvalidOperation"),
        (ErrorKind::Remote, "Remote"),
        (ErrorKind::Config, "Config"),
        (ErrorKind::Internal, "Internal"),
    ];

    /// From the wire's number. A number of a newer peer reads as [`ErrorKind::Remote`].
    pub fn from_wire(n: u16) -> ErrorKind {
        Self::ALL.iter().map(|(kind, _)| *kind).find(|kind| *kind as u16 == n).unwrap_or(ErrorKind::Remote)
    }

    /// The name, as stock peers see it in an error answer.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize - 1].1
    }
}

/// Which limit or event, exactly.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Detail {
    /// Nothing to add to the kind.
    None,
    /// The target's queue had no room before the deadline.
    NoRoom,
    /// Accepted, but no reply came before the deadline.
    NoReply,
    /// Nobody knew yet who serves the channel when the deadline came.
    NotFoundYet,
    /// The space for operations that wait for room was full: the call failed at once.
    WaitingRoomFull,
    /// The request's time was up before its handler started.
    ExpiredInQueue,
    /// The pair of connections was lost while the request was accepted or in flight. Whether the
    /// handler ran is not known.
    LinkLost,
    /// The target was removed, or the peer that had dialled us went away.
    Detached,
    /// The target has no connection now.
    NotConnected,
    /// All members of the channel are draining or have weight 0.
    Draining,
    /// The node is a client of this host, which only answers it.
    OnlyClientStarts,
    /// Calls nested deeper than 32.
    CallDepth,
    /// The reply found the host's hold for untaken replies full and was thrown away.
    ReplyHold,
    /// The lane for replies to this peer had no room within the socket's ceiling.
    ReplyRoom,
    /// Larger than the receiver's `MaxMessageSize`.
    MessageTooLarge,
    /// The method name is longer than 255 bytes.
    MethodTooLong,
    /// The caller cancelled.
    Cancelled,
    /// No handler serves the channel or method.
    NoHandler,
    /// A responder was dropped without an answer.
    NoAnswer,
    /// The handler panicked.
    HandlerPanicked,
    /// The shard had no place to start the work.
    NoSeat,
    /// A thread of the runtime may not block.
    WaitOnShard,
    /// A stock peer's message was not of the agreed shape.
    Malformed,
    /// The peers speak no common version.
    Version,
    /// The right to answer this frame was used before.
    TokenUsed,
}

/// How far an operation had come when it ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stage {
    /// Looking for a member that serves the channel.
    Finding,
    /// Waiting for room in the target's queue.
    Room,
    /// Accepted; waiting for the reply.
    Reply,
}

/// One rule that an option's value breaks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The option, as it is spelled in the builder.
    pub option: &'static str,
    /// The value that was given.
    pub value: String,
    /// The rule.
    pub rule: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}: {}", self.option, self.value, self.rule)
    }
}

/// What ended an operation, in numbers. Every field that is known is set.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Figures {
    /// The peer or channel.
    pub target: Option<Arc<str>>,
    /// The lane on which it waited.
    pub lane: Option<Lane>,
    /// How far it had come.
    pub stage: Option<Stage>,
    /// The limit that was hit; bytes, or operations for a waiting room.
    pub limit: Option<u64>,
    /// What was asked for, in the unit of `limit`.
    pub requested: Option<u64>,
    /// What was taken of the limit at that moment.
    pub used: Option<u64>,
    /// How long the operation had waited.
    pub waited: Option<Duration>,
    /// For how long the peer had been telling us to pause.
    pub paused_for: Option<Duration>,
}

/// One word for all that can go wrong, for use in a `Result`.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    detail: Detail,
    figures: Figures,
    text: Option<String>,
    code: u16,
    violations: Vec<Violation>,
}

impl Error {
    /// An error with no figures yet.
    pub fn new(kind: ErrorKind, detail: Detail) -> Self {
        Error(Box::new(Inner {
            kind,
            detail,
            figures: Figures::default(),
            text: None,
            code: 0,
            violations: Vec::new(),
        }))
    }

    /// The error for options that break rules; never empty.
    pub fn config(violations: Vec<Violation>) -> Self {
        debug_assert!(!violations.is_empty());
        let mut e = Error::new(ErrorKind::Config, Detail::None);
        e.0.violations = violations;
        e
    }

    /// An error that a remote handler sent: its kind, its own number and its sentence.
    pub fn remote(kind: ErrorKind, code: u16, text: impl Into<String>) -> Self {
        let mut e = Error::new(kind, Detail::None);
        e.0.code = code;
        e.with_text(text)
    }

    /// Adds a sentence.
    pub fn with_text(mut self, text: impl Into<String>) -> Self {
        self.0.text = Some(text.into());
        self
    }

    /// Adds numbers.
    pub fn with(mut self, fill: impl FnOnce(&mut Figures)) -> Self {
        fill(&mut self.0.figures);
        self
    }

    /// What a program decides by.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Which limit or event.
    pub fn detail(&self) -> Detail {
        self.0.detail
    }

    /// The numbers that are known.
    pub fn figures(&self) -> &Figures {
        &self.0.figures
    }

    /// The sentence that came with it, from a remote handler for example.
    pub fn text(&self) -> Option<&str> {
        self.0.text.as_deref()
    }

    /// The number that the remote handler chose; 0 otherwise.
    pub fn code(&self) -> u16 {
        self.0.code
    }

    /// All rules that the options break; empty unless the kind is [`ErrorKind::Config`].
    pub fn violations(&self) -> &[Violation] {
        &self.0.violations
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, detail, figures: n, text, violations, .. } = &*self.0;
        if !violations.is_empty() {
            write!(f, "{} option(s) cannot be started with", violations.len())?;
            for v in violations {
                write!(f, "; {v}")?;
            }
            return Ok(());
        }
        if let Some(target) = &n.target {
            write!(f, "{target}")?;
            if let Some(lane) = n.lane {
                write!(f, " ({lane} lane)")?;
            }
            f.write_str(": ")?;
        }
        let waited = n.waited.map(|w| w.as_millis());
        match (detail, waited) {
            (Detail::NoRoom, Some(ms)) => write!(f, "no room within {ms} ms")?,
            (Detail::NoReply, Some(ms)) => write!(f, "no reply within {ms} ms")?,
            (Detail::NotFoundYet, Some(ms)) => write!(f, "no member known within {ms} ms")?,
            (Detail::WaitingRoomFull, _) => f.write_str("the room for waiting operations is full")?,
            (Detail::LinkLost, _) => f.write_str("the link was lost; whether the request ran is not known")?,
            (Detail::Detached, _) => f.write_str("the target went away")?,
            (Detail::NotConnected, _) => f.write_str("not connected")?,
            (Detail::Draining, _) => f.write_str("every member is draining or has weight 0")?,
            (Detail::OnlyClientStarts, _) => f.write_str("it is a client of this host, which only answers it")?,
            (Detail::MessageTooLarge, _) => f.write_str("the record is larger than MaxMessageSize")?,
            (Detail::WaitOnShard, _) => f.write_str("a thread of the runtime may not block; use then() or await")?,
            (Detail::TokenUsed, _) => f.write_str("this frame was answered before; a reply token works once")?,
            (Detail::None, _) => write!(f, "{}", kind.name())?,
            (d, Some(ms)) => write!(f, "{} ({d:?}) after {ms} ms", kind.name())?,
            (d, None) => write!(f, "{} ({d:?})", kind.name())?,
        }
        let unit = if *detail == Detail::WaitingRoomFull { "" } else { " bytes" };
        if let (Some(used), Some(limit)) = (n.used, n.limit) {
            write!(f, "; {} of {}{unit} used", grouped(used), grouped(limit))?;
        } else if let Some(limit) = n.limit {
            write!(f, "; limit {}{unit}", grouped(limit))?;
        }
        if let Some(requested) = n.requested {
            write!(f, ", {} asked for", grouped(requested))?;
        }
        if let Some(paused) = n.paused_for {
            write!(f, "; peer paused for {:.1} s: look at its job queue and handler times", paused.as_secs_f64())?;
        }
        if let Some(text) = text {
            write!(f, ": {text}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}/{:?}: {self})", self.0.kind, self.0.detail)
    }
}

impl std::error::Error for Error {}

/// A one-way send that was not accepted. The payload is always given back.
#[derive(Clone, Debug)]
pub struct SendError {
    error: Error,
    payload: Bytes,
}

impl SendError {
    /// Joins an error with the payload it refuses.
    pub fn new(error: Error, payload: Bytes) -> Self {
        SendError { error, payload }
    }

    /// What a program decides by.
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// The error without the payload.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// The payload, to be kept, sent elsewhere or dropped. Sending it again at once only piles it
    /// back onto a queue that has not drained.
    pub fn into_payload(self) -> Bytes {
        self.payload
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "send to {}", self.error)
    }
}

impl std::error::Error for SendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<SendError> for Error {
    fn from(e: SendError) -> Error {
        e.error
    }
}

/// A request that ended without a reply.
#[derive(Clone, Debug)]
pub struct RequestError {
    error: Error,
    unsent: Option<Bytes>,
}

impl RequestError {
    /// Joins an error with the payload, if the request never left this host.
    pub fn new(error: Error, unsent: Option<Bytes>) -> Self {
        RequestError { error, unsent }
    }

    /// What a program decides by.
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// The error without the payload.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// The payload, if the request was never sent. `None` says that the remote handler may have
    /// run, or may still run: a request that was sent is never taken back.
    pub fn unsent_payload(self) -> Option<Bytes> {
        self.unsent
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request to {}", self.error)
    }
}

impl std::error::Error for RequestError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<RequestError> for Error {
    fn from(e: RequestError) -> Error {
        e.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_number_and_name() {
        for (i, (kind, name)) in ErrorKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, i + 1);
            assert_eq!(ErrorKind::from_wire(i as u16 + 1), *kind);
            assert_eq!(kind.name(), *name);
        }
        assert_eq!(ErrorKind::from_wire(0), ErrorKind::Remote);
        assert_eq!(ErrorKind::from_wire(999), ErrorKind::Remote);
    }

    #[test]
    fn a_person_on_call_can_act_on_the_sentence() {
        let e = Error::new(ErrorKind::DeadlineExceeded, Detail::NoRoom).with(|n| {
            n.target = Some("orders-2".into());
            n.lane = Some(Lane::Application);
            n.limit = Some(524_288);
            n.used = Some(524_288);
            n.waited = Some(Duration::from_millis(1000));
            n.paused_for = Some(Duration::from_millis(3200));
        });
        assert_eq!(
            SendError::new(e, Bytes::new()).to_string(),
            "send to orders-2 (application lane): no room within 1000 ms; 524,288 of 524,288 bytes used; \
             peer paused for 3.2 s: look at its job queue and handler times"
        );
    }

    #[test]
    fn all_violations_are_named() {
        let v = |option, value: &str, rule: &str| Violation { option, value: value.into(), rule: rule.into() };
        let e = Error::config(vec![v("jobs", "0", "1..=2147483647"), v("links", "65", "1..=64")]);
        assert_eq!(e.to_string(), "2 option(s) cannot be started with; jobs = 0: 1..=2147483647; links = 65: 1..=64");
    }
}
