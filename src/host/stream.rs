//! Sockets for end clients: how they are stated, and what is seen of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Host;
use super::options::{HostBuilder, StreamOption};
use crate::base::error::Violation;
use crate::engine::seat::Seat;
use crate::engine::session::Session;
use crate::engine::session_seat::SessionSeat;
use crate::engine::stream::StreamSocket;
use crate::flow::session::SessionEnd;
use crate::plan::Hwm;

/// Sessions of one socket unless stated.
const SESSIONS: u64 = 4096;

impl HostBuilder {
    /// Listens on `tcp://host:port` for end clients, which send and get length-prefixed frames over plain
    /// TCP; may be called several times, at most 256. `factory` makes one [`Session`] per connection, on the
    /// shard that has it for life, with the shard's number; the factory crosses threads, the session
    /// never does. The address is written as for [`HostBuilder::listen`]. The setters whose names begin
    /// with `stream_`, but for the largest frame, speak of the stream before them.
    pub fn stream<S: Session>(
        mut self,
        addr: impl Into<String>,
        factory: impl Fn(usize) -> S + Send + Sync + 'static,
    ) -> Self {
        self.options.streams.push(StreamOption {
            addr: addr.into(),
            sessions: SESSIONS,
            send_hwm: Hwm::Auto,
            receive_hwm: Hwm::Auto,
            send_timeout: Duration::from_secs(1),
            idle: None,
        });
        let factory = Arc::new(factory);
        self.roles.streams.push(Arc::new(move |shard, seat| -> Box<dyn Seat> {
            Box::new(SessionSeat::new(factory.clone(), shard, seat))
        }));
        self
    }

    /// Clients of the stream before that are connected at one time, 1..=1,000,000, default 4,096. One more
    /// is closed as it comes, and counted. Each costs its two marks.
    pub fn stream_sessions(self, n: u64) -> Self {
        self.on_stream("stream_sessions", &n, |stream| stream.sessions = n)
    }

    /// Marks of each client's queues on the stream before, in bytes of header, body and 64 per frame. At
    /// least one frame of the largest allowed size; the send mark also bounds how large a frame to a client may
    /// be. Default `Auto`: an equal part of the budget for each of the socket's clients within the profile's
    /// bounds (`Balanced`: 64 to 128 KiB), and at least one frame.
    pub fn stream_hwm(self, send: Hwm, receive: Hwm) -> Self {
        let value = format!("({send:?}, {receive:?})");
        self.on_stream("stream_hwm", &value, |stream| (stream.send_hwm, stream.receive_hwm) = (send, receive))
    }

    /// The ceiling of sends and of replies on the stream before, rounded up to ms, 1..=`i32::MAX` ms,
    /// default 1 s. A call may shorten a send and never a reply. 0, negative and infinite are refused.
    pub fn stream_send_timeout(self, timeout: Duration) -> Self {
        self.on_stream("stream_send_timeout", &format!("{timeout:?}"), |stream| stream.send_timeout = timeout)
    }

    /// A client of the stream before that neither sent nor took a byte for so long is closed; rounded up to
    /// ms, 1..=`i32::MAX` ms. Default: never. Clients of strangers should have one: without it, connections
    /// that never say a word keep their places, up to the limit of sessions.
    pub fn stream_idle(self, idle: Duration) -> Self {
        self.on_stream("stream_idle", &format!("{idle:?}"), |stream| stream.idle = Some(idle))
    }

    fn on_stream(
        mut self,
        option: &'static str,
        value: &dyn std::fmt::Display,
        set: impl FnOnce(&mut StreamOption),
    ) -> Self {
        match self.options.streams.last_mut() {
            Some(stream) => set(stream),
            None => self.options.misplaced.push(Violation {
                option,
                value: value.to_string(),
                rule: "speaks of the stream before it".into(),
            }),
        }
        self
    }
}

impl Host {
    /// Where the host listens for end clients, in the order of the options, with the ports that the system
    /// chose.
    pub fn stream_addresses(&self) -> &[SocketAddr] {
        &self.running().stream_addresses
    }
}

/// One socket for end clients.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StreamStatus {
    /// Its address as it was stated.
    pub socket: Arc<str>,
    /// Clients that are connected, and the most that were at once.
    pub sessions: u32,
    /// See `sessions`.
    pub sessions_peak: u32,
    /// The limit of `sessions`.
    pub sessions_max: u32,
    /// Sessions that began.
    pub opened: u64,
    /// Clients closed as they came, because the socket was full or the host at its end.
    pub refused: u64,
    /// Sessions that ended, by reason.
    pub ended: Vec<(SessionEnd, u64)>,
    /// Whole frames that came.
    pub frames_in: u64,
    /// Bytes that came, prefixes included.
    pub bytes_in: u64,
    /// Frames written whole.
    pub frames_out: u64,
    /// Headers and bodies of those.
    pub bytes_out: u64,
    /// Sends and replies that had to wait for room.
    pub waits: u64,
    /// Frames accepted for a client that was gone before they were written.
    pub lost: u64,
}

impl StreamStatus {
    pub(super) fn of(socket: &StreamSocket) -> Self {
        StreamStatus {
            socket: socket.plan.name.clone(),
            sessions: socket.sessions.ops(),
            sessions_peak: socket.sessions.ops_peak(),
            sessions_max: socket.sessions.ops_max(),
            opened: socket.opened.get(),
            refused: socket.refused.get(),
            ended: SessionEnd::ALL.into_iter().zip(&socket.ended).map(|(why, n)| (why, n.get())).collect(),
            frames_in: socket.frames_in.get(),
            bytes_in: socket.bytes_in.get(),
            frames_out: socket.frames_out.get(),
            bytes_out: socket.bytes_out.get(),
            waits: socket.waits.get(),
            lost: socket.lost.get(),
        }
    }

    /// Sessions that ended for this reason.
    pub fn ended(&self, why: SessionEnd) -> u64 {
        self.ended.iter().filter(|(reason, _)| *reason == why).map(|(_, n)| n).sum()
    }
}
