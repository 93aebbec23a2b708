//! What a leader sleeps on: a poller of the lane's own, made when it is first led. Two descriptors per lane
//! that was ever led by a caller; both go with the connection.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};

use crate::flow::transport::{Seat, Sleep, Stirred};
use crate::sync::wake::WakeCell;

const LANE: Token = Token(0);
const BELL: Token = Token(1);

struct LanePoll {
    poll: Poll,
    events: Events,
}

/// A seat in front of the connection with this descriptor. The seat must not outlive it.
pub fn watch(lane: RawFd) -> io::Result<Seat> {
    let poll = Poll::new()?;
    poll.registry().register(&mut SourceFd(&lane), LANE, Interest::READABLE)?;
    let bell = Waker::new(poll.registry(), BELL)?;
    let wake = Arc::new(WakeCell::new(move || {
        if let Err(e) = bell.wake() {
            log::error!("a leader cannot be woken: {e}");
        }
    }));
    Ok(Seat { wake, sleep: Box::new(LanePoll { poll, events: Events::with_capacity(4) }) })
}

impl Sleep for LanePoll {
    fn sleep(&mut self, timeout: Duration) -> io::Result<Stirred> {
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(Stirred::Otherwise),
            other => other?,
        }
        let mut stirred = Stirred::Otherwise;
        for event in self.events.iter().filter(|event| event.token() == LANE) {
            stirred = Stirred::Readable { ended: event.is_read_closed() || event.is_error() };
        }
        Ok(stirred)
    }
}
