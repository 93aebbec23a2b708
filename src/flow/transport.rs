//! What a lane moves its bytes through: a socket in the product, a byte pipe in the simulation.
//! The only thing that the machines above know of either.

use std::any::Any;
use std::fmt;
use std::io::{self, IoSlice};

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

    /// For the thread that registers it with its poller.
    fn as_any(&self) -> &dyn Any;
}
