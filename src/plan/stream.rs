//! The sockets for end clients: one entry per address.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::base::unit::charge;

/// What is resolved for one socket that end clients connect to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamPlan {
    /// Where to listen; port 0: the system chooses.
    pub addr: SocketAddr,
    /// The address as it was stated, which is the socket's name.
    pub name: Arc<str>,
    /// Clients connected at one time, 1..=1,000,000; more are closed as they come. Default 4,096.
    pub sessions: u32,
    /// Mark of a client's send queue, bytes; 0 = unlimited.
    pub send_mark: u64,
    /// Mark of a client's receive queue, bytes; 0 = unlimited.
    pub receive_mark: u64,
    /// The most bytes of a frame from a client, header and body, without its prefix.
    pub max_frame: u64,
    /// The most bytes of a frame to a client: what its queue takes beside nothing else.
    pub max_frame_out: u64,
    /// Ceiling of a send and of a reply, whole ms in 1..=i32::MAX. Default 1 s.
    pub send_timeout: Duration,
    /// Silence in both directions after which a client is closed; `None`: never. Default `None`.
    pub idle: Option<Duration>,
}

impl StreamPlan {
    /// The least that a mark of a client must be: one frame of any allowed size, so that no client ever
    /// needs room from outside its own queue.
    pub fn mark_min(max_frame: u64) -> u64 {
        charge(usize::try_from(max_frame).unwrap_or(usize::MAX), 0)
    }
}

/// The machines of one session, without a byte of frames: queue heads, baton, life, tables.
pub const SESSION_STATE_BYTES: u64 = 4096;

/// The most sockets for end clients of one host.
pub const STREAMS_MAX: usize = 256;
