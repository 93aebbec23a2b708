//! Owns what tests of engines stand on in place of the world: a clock that is moved by hand, a host without threads,
//! and a connection of which the test holds the other end.

use std::any::Any;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;

use super::shared::{HostShared, Receivers};
use crate::base::time::{Clock, Instant};
use crate::flow::transport::Transport;
use crate::plan::HostPlan;
use crate::sync::lock::Lock;
use crate::sync::wake::WakeCell;
use crate::sync::word::Epoch;

#[derive(Debug, Default)]
pub struct Hand(pub Epoch);

impl Clock for Hand {
    fn now(&self) -> Instant {
        Instant(self.0.get())
    }
}

/// What the threads of a host of one shard share, and none of these threads.
pub fn host(plan: HostPlan) -> (Arc<HostShared>, Arc<Hand>, Receivers) {
    let clock = Arc::new(Hand::default());
    let wakes = (0..2).map(|_| Arc::new(WakeCell::new(|| {}))).collect();
    let (shared, receivers) = HostShared::new(Arc::new(plan), clock.clone(), wakes);
    (shared, clock, receivers)
}

#[derive(Debug, Default)]
pub struct Ends {
    pub input: VecDeque<u8>,
    pub ended: bool,
    pub output: Vec<u8>,
    /// How much the client takes.
    pub takes: usize,
    pub finished: bool,
    pub shut: bool,
    /// Whether a poller watches it.
    pub watched: bool,
}

#[derive(Debug, Default)]
pub struct Pipe(pub Lock<Ends>);

impl Transport for Pipe {
    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mut ends = self.0.lock();
        let n = buf.len().min(ends.input.len());
        if n == 0 && !ends.ended {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        for (to, from) in buf.iter_mut().zip(ends.input.drain(..n)) {
            *to = from;
        }
        Ok(n)
    }

    fn write(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut ends = self.0.lock();
        let all: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).take(ends.takes).collect();
        if all.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        ends.takes -= all.len();
        ends.output.extend(&all);
        Ok(all.len())
    }

    fn shutdown(&self) {
        self.0.lock().shut = true;
    }

    fn finish(&self) {
        self.0.lock().finished = true;
    }

    fn watch(&self, on: bool) {
        self.0.lock().watched = on;
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
