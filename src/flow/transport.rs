//! What a lane moves its bytes through: a socket in the product, a byte pipe in the simulation.
//! The only thing that the machines above know of either.

use std::any::Any;
use std::fmt;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use crate::sync::baton::Held;
use crate::sync::wake::WakeCell;

/// Why a leader's sleep has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stirred {
    /// It was woken, its time is up, or nothing was the matter.
    Otherwise,
    /// There is something to read. `ended`: the peer's end too, and no other event will follow.
    Readable {
        /// The end was seen.
        ended: bool,
    },
}

/// What a leader sleeps on.
pub trait Sleep: Send {
    /// Sleeps until the connection has something new to read, the seat's cell is woken, or `timeout` has
    /// passed. What was reported and not read is not reported again.
    fn sleep(&mut self, timeout: Duration) -> io::Result<Stirred>;
}

/// The place of the one thread that waits for a connection without being its keeper.
pub struct Seat {
    /// Announces its sleep.
    pub wake: Arc<WakeCell>,
    /// Its sleep.
    pub sleep: Box<dyn Sleep>,
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("wake", &self.wake).finish_non_exhaustive()
    }
}

/// A connected, non-blocking byte stream that may be read by one thread while another writes.
pub trait Transport: Send + Sync + fmt::Debug + 'static {
    /// Reads what is there. `Ok(0)` is the end of the stream; `WouldBlock` says that a readiness
    /// event will follow.
    fn read(&self, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes as much of `bufs` as is taken now; `WouldBlock` says that a readiness event will follow.
    fn write(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Ends both directions: whoever reads or writes it, on either side, finds out.
    fn shutdown(&self);

    /// Ends our direction only, after what was written: the peer finds out, and what it sent can still
    /// be read.
    fn finish(&self) {
        self.shutdown();
    }

    /// Reads what is there and leaves it there.
    fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        let _ = buf;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Whether the poller of the thread that keeps it is to tell when there is something to read. What lies
    /// there already counts. From any thread; it is told from the start.
    fn watch(&self, on: bool) {
        let _ = on;
    }

    /// The seat of a leader; `None`: somebody sits there, or there is none.
    fn seat(&self) -> Option<Held<'_, Seat>> {
        None
    }

    /// For the thread that registers it with its poller.
    fn as_any(&self) -> &dyn Any;
}
