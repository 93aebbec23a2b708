//! TCP connections: the options they get, and how they are registered with a poller. Together
//! with `reactor.rs` all that knows of sockets.

use std::any::Any;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::flow::transport::Transport;
use crate::plan::HostPlan;

/// How long the completion lane may hold bytes that the peer does not acknowledge. Not set on the
/// application lane: it would end a parked one, whose zero-window probes are answered.
const USER_TIMEOUT: Duration = Duration::from_secs(15);

/// How long an end client is silent before the kernel asks whether it is there; then four times as often.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A connected, non-blocking TCP stream. The socket is closed when the last owner lets go; what
/// ends the connection is [`Transport::shutdown`].
#[derive(Debug)]
pub struct Tcp(TcpStream);

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
        Ok(Tcp(stream))
    }

    /// Says that this connection is a completion lane.
    pub fn mark_completion(&self) {
        #[cfg(target_os = "linux")]
        // A kernel that does not know the option has slower failure detection, and heartbeats.
        let _ = SockRef::from(&self.0).set_tcp_user_timeout(Some(USER_TIMEOUT));
    }

    /// Says that this connection is an end client's, which has no heartbeat: the kernel asks a silent one
    /// whether it is still there.
    pub fn mark_client(&self) {
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 4);
        // Without it a client that vanished stays until something is sent to it, or for the idle time.
        let _ = SockRef::from(&self.0).set_tcp_keepalive(&keepalive);
    }

    /// Starts a connection; it is up when the socket becomes writable without an error.
    pub fn connect(to: SocketAddr, plan: &HostPlan) -> io::Result<Tcp> {
        let started = mio::net::TcpStream::connect(to)?;
        Tcp::new(started.into(), plan)
    }

    /// How a connection that was started has come out; `None`: not yet.
    pub fn connected(&self) -> Option<io::Result<()>> {
        match self.0.take_error() {
            Ok(Some(e)) | Err(e) => return Some(Err(e)),
            Ok(None) => {}
        }
        match self.0.peer_addr() {
            Ok(_) => Some(Ok(())),
            Err(e) if e.kind() == io::ErrorKind::NotConnected => None,
            Err(e) => Some(Err(e)),
        }
    }

    /// Watches both directions, edge by edge.
    pub fn register(&self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut SourceFd(&self.0.as_raw_fd()), token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Watches it no longer.
    pub fn deregister(&self, registry: &Registry) {
        // It may never have been registered here; then there is nothing to undo.
        let _ = registry.deregister(&mut SourceFd(&self.0.as_raw_fd()));
    }
}

impl Transport for Tcp {
    #[inline]
    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(buf)
    }

    #[inline]
    fn write(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match bufs {
            [one] => (&self.0).write(one),
            many => (&self.0).write_vectored(many),
        }
    }

    fn shutdown(&self) {
        // It may have ended already.
        let _ = self.0.shutdown(Shutdown::Both);
    }

    fn finish(&self) {
        // As above.
        let _ = self.0.shutdown(Shutdown::Write);
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
