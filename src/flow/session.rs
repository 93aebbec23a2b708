//! One connection of an end client, from its first turn to its last: when it is read, what ends it,
//! and how long it may take. Pure: time and what was seen are passed in.
//!
//! ```text
//!   Open ── the client's end, close() ──▶ Closing ── everything handled and written ──▶ Over
//!     │                                      │        or the time for it is up          ▲ ▲
//!     │                                      └─ by close(): our end is told ─▶ Parting ─┘ │
//!     └── silence, a broken connection, a frame that cannot be taken, a panic, shutdown ──┘
//! ```
//!
//! Parting waits for the client's end and throws away what still comes: a connection that is closed with
//! bytes unread is reset, and the client may lose what it was sent last.
//!
//! Closing reads nothing more; what was read is handled, what was accepted is written. Its time runs
//! while nothing is left to be handled: waiting for a permit is this host's doing, not the client's.
//!
//! Invariants: the first reason stays; nothing comes after Over; there is no state without an end but
//! Open, and Open has one if a frame was begun or the socket has an idle time.

use std::time::Duration;

use crate::base::time::Instant;

/// Why the connection to an end client ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SessionEnd {
    /// The client ended its direction; what it had sent was handled and answered.
    Client,
    /// This side closed it.
    Closed,
    /// The connection broke, or the client ended it in the middle of a frame.
    Broken,
    /// The client sent a frame that is larger than the limit.
    Oversize,
    /// A frame was begun and got no byte for the assembly timeout.
    Unfinished,
    /// No byte in either direction for the socket's idle time.
    Idle,
    /// The client ended its direction or was closed, and did not take what was left for it in time.
    Untaken,
    /// A callback of the session panicked.
    Panicked,
    /// The host shut down.
    Shutdown,
}

impl SessionEnd {
    /// Every reason, in the order in which they are counted.
    pub const ALL: [SessionEnd; 9] = [
        SessionEnd::Client,
        SessionEnd::Closed,
        SessionEnd::Broken,
        SessionEnd::Oversize,
        SessionEnd::Unfinished,
        SessionEnd::Idle,
        SessionEnd::Untaken,
        SessionEnd::Panicked,
        SessionEnd::Shutdown,
    ];

    /// Its name, as a label.
    pub fn name(self) -> &'static str {
        match self {
            SessionEnd::Client => "client",
            SessionEnd::Closed => "closed",
            SessionEnd::Broken => "broken",
            SessionEnd::Oversize => "oversize",
            SessionEnd::Unfinished => "unfinished",
            SessionEnd::Idle => "idle",
            SessionEnd::Untaken => "untaken",
            SessionEnd::Panicked => "panicked",
            SessionEnd::Shutdown => "shutdown",
        }
    }
}

/// The times of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionTimes {
    /// Without a byte in either direction; `None`: as long as the client likes.
    pub idle: Option<Duration>,
    /// Without a byte of a frame that was begun, while it is read.
    pub assembly: Duration,
    /// From the moment at which nothing is left to handle until everything is written.
    pub linger: Duration,
}

/// What of a closing session is still to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// Frames of it wait or are being handled here.
    Work,
    /// It has not taken what was accepted for it, or somebody holds the right to answer.
    Bytes,
    /// Nothing.
    Nothing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Open,
    Closing { why: SessionEnd, until: Option<Instant> },
    Parting { why: SessionEnd, until: Instant },
    Over(SessionEnd),
}

/// See the module.
#[derive(Debug)]
pub struct SessionLife {
    state: State,
    times: SessionTimes,
    /// When a byte last came or went.
    moved: Instant,
    /// When a byte last came, while a frame is in assembly and is being read.
    begun: Option<Instant>,
}

impl SessionLife {
    /// Open since `now`.
    pub fn new(times: SessionTimes, now: Instant) -> Self {
        SessionLife { state: State::Open, times, moved: now, begun: None }
    }

    /// Whether more is read.
    pub fn is_reading(&self) -> bool {
        self.state == State::Open
    }

    /// Whether it is on its way to its end.
    pub fn is_closing(&self) -> bool {
        matches!(self.state, State::Closing { .. })
    }

    /// Whether our end was told and the client's is awaited.
    pub fn is_parting(&self) -> bool {
        matches!(self.state, State::Parting { .. })
    }

    /// Why it is over, once it is.
    pub fn over(&self) -> Option<SessionEnd> {
        match self.state {
            State::Over(why) => Some(why),
            _ => None,
        }
    }

    /// Bytes came.
    pub fn on_read(&mut self, now: Instant) {
        self.moved = now;
        self.begun = None;
    }

    /// There is no more to read now. `within`: what came ended in the middle of a frame, whose time begins
    /// unless it has begun.
    pub fn on_waiting(&mut self, within: bool, now: Instant) {
        self.begun = within.then(|| self.begun.unwrap_or(now));
    }

    /// It is not read now, because its queue is full: no frame can be late.
    pub fn on_parked(&mut self) {
        self.begun = None;
    }

    /// Bytes went.
    pub fn on_written(&mut self, now: Instant) {
        self.moved = now;
        if let State::Closing { until, .. } = &mut self.state {
            // A client that takes something is given time for the rest.
            *until = None;
        }
    }

    /// The client ended its direction. `within`: in the middle of a frame, which will never be whole.
    pub fn on_end(&mut self, within: bool) {
        match self.state {
            State::Parting { why, .. } => self.state = State::Over(why),
            _ if within => self.lose(SessionEnd::Broken),
            _ => self.close(SessionEnd::Client),
        }
    }

    /// Nothing more is read; it is over when everything is handled and written.
    pub fn close(&mut self, why: SessionEnd) {
        if self.state == State::Open {
            self.begun = None;
            self.state = State::Closing { why, until: None };
        }
    }

    /// Over at once.
    pub fn lose(&mut self, why: SessionEnd) {
        self.state = match self.state {
            // A client that was told our end owes us nothing.
            State::Over(first) | State::Parting { why: first, .. } => State::Over(first),
            _ => State::Over(why),
        };
    }

    /// Ends what is due; to be called when [`SessionLife::next`] has come or something has changed.
    pub fn poll(&mut self, left: Left, now: Instant) {
        match &mut self.state {
            State::Over(_) => {}
            State::Parting { why, until } => {
                if now >= *until {
                    self.state = State::Over(*why);
                }
            }
            State::Open => {
                if self.begun.is_some_and(|at| now >= at.after(self.times.assembly)) {
                    self.state = State::Over(SessionEnd::Unfinished);
                } else if self.times.idle.is_some_and(|idle| now >= self.moved.after(idle)) {
                    // A client that waits for its answer is silent for our sake.
                    match left {
                        Left::Work => self.moved = now,
                        Left::Bytes | Left::Nothing => self.state = State::Over(SessionEnd::Idle),
                    }
                }
            }
            State::Closing { why, until } => match left {
                Left::Nothing if *why == SessionEnd::Closed => {
                    self.state = State::Parting { why: *why, until: now.after(self.times.linger) };
                }
                Left::Nothing => self.state = State::Over(*why),
                Left::Work => *until = None,
                Left::Bytes => {
                    let end = *until.get_or_insert(now.after(self.times.linger));
                    if now >= end {
                        self.state = State::Over(SessionEnd::Untaken);
                    }
                }
            },
        }
    }

    /// When [`SessionLife::poll`] is due if nothing else happens.
    pub fn next(&self) -> Instant {
        match self.state {
            State::Over(_) => Instant::NEVER,
            State::Closing { until, .. } => until.unwrap_or(Instant::NEVER),
            State::Parting { until, .. } => until,
            State::Open => {
                let idle = self.times.idle.map_or(Instant::NEVER, |idle| self.moved.after(idle));
                self.begun.map_or(idle, |at| idle.min(at.after(self.times.assembly)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    fn life(idle: Option<u64>) -> SessionLife {
        let ms = Duration::from_millis;
        SessionLife::new(SessionTimes { idle: idle.map(ms), assembly: ms(30), linger: ms(50) }, at(0))
    }

    #[test]
    fn an_open_session_without_an_idle_time_stays() {
        let mut life = life(None);
        assert_eq!(life.next(), Instant::NEVER);
        life.poll(Left::Nothing, at(1_000_000));
        assert!(life.is_reading());
    }

    #[test]
    fn silence_in_both_directions_ends_it_at_its_time_and_not_before() {
        let mut life = life(Some(100));
        life.on_read(at(10));
        life.on_waiting(false, at(10));
        life.on_written(at(20));
        assert_eq!(life.next(), at(120));
        life.poll(Left::Nothing, at(119));
        assert_eq!(life.over(), None);
        life.poll(Left::Work, at(120));
        assert_eq!((life.over(), life.next()), (None, at(220)), "its answer is being made");
        life.poll(Left::Bytes, at(220));
        assert_eq!(life.over(), Some(SessionEnd::Idle), "it takes nothing either");
    }

    #[test]
    fn a_frame_that_was_begun_has_its_time_only_while_it_is_read() {
        let mut life = life(None);
        life.on_read(at(5));
        life.on_waiting(true, at(5));
        life.on_waiting(true, at(9));
        assert_eq!(life.next(), at(35));
        life.on_parked();
        life.poll(Left::Nothing, at(1000));
        assert_eq!((life.over(), life.next()), (None, Instant::NEVER));
        life.on_waiting(true, at(1000));
        life.poll(Left::Nothing, at(1029));
        assert_eq!(life.over(), None);
        life.poll(Left::Nothing, at(1030));
        assert_eq!(life.over(), Some(SessionEnd::Unfinished));
    }

    #[test]
    fn the_client_s_end_waits_for_what_is_handled_and_written() {
        let mut life = life(Some(10));
        life.on_end(false);
        assert!(!life.is_reading() && life.is_closing());
        life.poll(Left::Work, at(1000));
        assert_eq!((life.over(), life.next()), (None, Instant::NEVER), "waiting for a permit is not its fault");
        life.poll(Left::Bytes, at(1000));
        assert_eq!(life.next(), at(1050));
        life.on_written(at(1040));
        life.poll(Left::Bytes, at(1045));
        assert_eq!(life.next(), at(1095), "it takes something");
        life.poll(Left::Nothing, at(1046));
        assert_eq!(life.over(), Some(SessionEnd::Client));
    }

    #[test]
    fn what_is_not_taken_in_time_is_given_up() {
        let mut life = life(None);
        life.close(SessionEnd::Closed);
        life.poll(Left::Bytes, at(7));
        life.poll(Left::Bytes, at(56));
        assert_eq!(life.over(), None);
        life.poll(Left::Bytes, at(57));
        assert_eq!(life.over(), Some(SessionEnd::Untaken));
    }

    #[test]
    fn the_first_reason_stays() {
        let mut first = life(None);
        first.on_end(true);
        assert_eq!(first.over(), Some(SessionEnd::Broken));
        first.lose(SessionEnd::Panicked);
        first.close(SessionEnd::Closed);
        assert_eq!(first.over(), Some(SessionEnd::Broken));
        let mut second = life(None);
        second.close(SessionEnd::Closed);
        second.on_end(false);
        second.poll(Left::Nothing, at(1));
        assert_eq!((second.over(), second.is_parting(), second.next()), (None, true, at(51)));
        second.on_end(true);
        assert_eq!(second.over(), Some(SessionEnd::Closed));
    }
}
