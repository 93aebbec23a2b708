//! TCP connections: the options they get, and how they are registered with a poller. Together
//! with `reactor.rs` all that knows of sockets.

use std::any::Any;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::seat;
use crate::flow::transport::{Seat, Transport};
use crate::plan::HostPlan;
use crate::sync::baton::{Baton, Held};

/// How long the completion lane may hold bytes that the peer does not acknowledge. Not set on the
/// application lane: it would end a parked one, whose zero-window probes are answered.
const USER_TIMEOUT: Duration = Duration::from_secs(15);

/// How long an end client is silent before the kernel asks whether it is there; then four times as often.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A connected, non-blocking TCP stream. The socket is closed when the last owner lets go; what
/// ends the connection is [`Transport::shutdown`].
#[derive(Debug)]
pub struct Tcp {
    stream: TcpStream,
    /// Of a completion lane: the poller of its keeper.
    keeper: OnceLock<Keeper>,
    /// Of a lane that was led: the leaders' seat, unless the system had none.
    seat: OnceLock<Option<Baton<Seat>>>,
}

/// Where a completion lane is watched.
#[derive(Debug)]
struct Keeper {
    registry: Arc<Registry>,
    token: Token,
}

impl Tcp {
    /// Sets what every connection of a host gets.
    pub fn new(stream: TcpStream, plan: &HostPlan) -> io::Result<Tcp> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        if let Some(bytes) = plan.socket_send_buffer {
            socket.set_send_buffer_size(bytes as usize)?;
        }
        if let Some(bytes) = plan.socket_receive_buffer {
            socket.set_recv_buffer_size(bytes as usize)?;
        }
        Ok(Tcp { stream, keeper: OnceLock::new(), seat: OnceLock::new() })
    }

    /// Says that this connection is a completion lane, whose readability is told by `reads` from now on, and its
    /// writability by `writes`: so the one can be turned off without asking for the other.
    pub fn mark_completion(&self, reads: &Arc<Registry>, writes: &Registry, token: Token) -> io::Result<()> {
        writes.register(&mut SourceFd(&self.fd()), token, Interest::WRITABLE)?;
        reads.reregister(&mut SourceFd(&self.fd()), token, Interest::READABLE)?;
        let _first = self.keeper.set(Keeper { registry: reads.clone(), token });
        #[cfg(target_os = "linux")]
        // A kernel that does not know the option has slower failure detection, and heartbeats.
        let _ = SockRef::from(&self.stream).set_tcp_user_timeout(Some(USER_TIMEOUT));
        Ok(())
    }

    /// Says that this connection is an end client's, which has no heartbeat: the kernel asks a silent one
    /// whether it is still there.
    pub fn mark_client(&self) {
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 4);
        // Without it a client that vanished stays until something is sent to it, or for the idle time.
        let _ = SockRef::from(&self.stream).set_tcp_keepalive(&keepalive);
    }

    /// Starts a connection; it is up when the socket becomes writable without an error.
    pub fn connect(to: SocketAddr, plan: &HostPlan) -> io::Result<Tcp> {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        match socket.connect(&to.into()) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            #[cfg(unix)]
            Err(e) if e.raw_os_error() == Some(IN_PROGRESS) => {}
            Err(e) => return Err(e),
        }
        Tcp::new(socket.into(), plan)
    }

    /// How a connection that was started has come out; `None`: not yet.
    pub fn connected(&self) -> Option<io::Result<()>> {
        match self.stream.take_error() {
            Ok(Some(e)) | Err(e) => return Some(Err(e)),
            Ok(None) => {}
        }
        match self.stream.peer_addr() {
            Ok(_) => Some(Ok(())),
            Err(e) if e.kind() == io::ErrorKind::NotConnected => None,
            Err(e) => Some(Err(e)),
        }
    }

    /// The number that the system has for it, as long as this value lives.
    fn fd(&self) -> std::os::fd::RawFd {
        self.stream.as_raw_fd()
    }

    /// Watches both directions, edge by edge.
    pub fn register(&self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut SourceFd(&self.fd()), token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Watches it no longer.
    pub fn deregister(&self, registry: &Registry) {
        // It may never have been registered here; then there is nothing to undo.
        let _ = registry.deregister(&mut SourceFd(&self.fd()));
    }
}

/// `EINPROGRESS` of Linux; elsewhere std maps it to `WouldBlock` or the number differs and the
/// dial is tried again.
#[cfg(unix)]
const IN_PROGRESS: i32 = 115;

impl Transport for Tcp {
    #[inline]
    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        (&self.stream).read(buf)
    }

    #[inline]
    fn write(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match bufs {
            [one] => (&self.stream).write(one),
            many => (&self.stream).write_vectored(many),
        }
    }

    fn shutdown(&self) {
        // It may have ended already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn finish(&self) {
        // As above.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    #[inline]
    fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.stream.peek(buf)
    }

    fn watch(&self, on: bool) {
        let Some(Keeper { registry, token }) = self.keeper.get() else { return };
        let source = &mut SourceFd(&self.fd());
        // Out of the poller altogether: whatever else it was told to look for, every byte would wake its thread.
        // It fails if the poller was told already, or the lane was given up: both are as well.
        let _ = if on { registry.register(source, *token, Interest::READABLE) } else { registry.deregister(source) };
    }

    fn seat(&self) -> Option<Held<'_, Seat>> {
        let make = || match seat::watch(self.fd()) {
            Ok(seat) => Some(Baton::new(seat)),
            Err(e) => {
                log::warn!("callers of a link cannot lead its lane: {e}");
                None
            }
        };
        self.seat.get_or_init(make).as_ref()?.try_take()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A listening socket.
pub fn listen(addr: SocketAddr) -> io::Result<mio::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())?;
    socket.listen(1024)?;
    socket.set_nonblocking(true)?;
    Ok(mio::net::TcpListener::from_std(socket.into()))
}
