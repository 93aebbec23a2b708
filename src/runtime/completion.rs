//! The completion thread: turns of its engine, the listeners, the dials. It never runs user code
//! and never spins.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use mio::net::TcpListener;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token};

use super::resolver::{Found, Resolver};
use super::shard::WAKE;
use super::tcp::Tcp;
use crate::base::time::Instant;
use crate::engine::completion::{CompletionAction, CompletionEngine, ConnKey, log_line::Line};
use crate::engine::here;
use crate::engine::shared::{HostShared, Life};
use crate::flow::transport::Transport;
use crate::sync::wake::WakeCell;

/// Tokens of listeners: below the waker's, above every connection's.
const LISTENERS: usize = usize::MAX - 4096;

/// The poller of writable lanes: between both.
const WRITES: Token = Token(usize::MAX - 1);

/// How long accepting rests after the system refused a connection for want of a resource.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// A connection on its way, and where to turn to if nobody is there; the next one last.
struct Dialling {
    tcp: Arc<Tcp>,
    rest: Vec<SocketAddr>,
}

/// The completion thread about to run.
pub struct CompletionLoop {
    engine: CompletionEngine,
    shared: Arc<HostShared>,
    poll: Poll,
    /// The same poller's, for leaders, who tell it when to watch a lane.
    registry: Arc<Registry>,
    /// Tells when completion lanes can be written; itself watched by `poll`.
    writes: Poll,
    events: Events,
    wake: Arc<WakeCell>,
    listeners: Vec<TcpListener>,
    accepting: Vec<usize>,
    rest_until: Instant,
    resolver: Resolver,
    dialling: HashMap<ConnKey, Dialling>,
    ready: Vec<(ConnKey, bool, bool, bool)>,
}

impl CompletionLoop {
    /// `poll` already has the waker that `wake` calls.
    pub fn new(
        engine: CompletionEngine,
        shared: Arc<HostShared>,
        poll: Poll,
        wake: Arc<WakeCell>,
        mut listeners: Vec<TcpListener>,
    ) -> io::Result<Self> {
        for (i, listener) in listeners.iter_mut().enumerate() {
            poll.registry().register(listener, Token(LISTENERS + i), Interest::READABLE)?;
        }
        let writes = Poll::new()?;
        poll.registry().register(&mut SourceFd(&writes.as_raw_fd()), WRITES, Interest::READABLE)?;
        Ok(CompletionLoop {
            engine,
            shared,
            registry: Arc::new(poll.registry().try_clone()?),
            writes,
            poll,
            events: Events::with_capacity(256),
            resolver: Resolver::new(wake.clone()),
            wake,
            listeners,
            accepting: Vec::new(),
            rest_until: Instant(0),
            dialling: HashMap::new(),
            ready: Vec::new(),
        })
    }

    /// Runs until the host is over.
    pub fn run(mut self) -> io::Result<()> {
        here::enter_runtime();
        loop {
            let now = self.shared.clock.now();
            self.accept(now);
            // What the engine gave up meanwhile is not dialled.
            self.act();
            while let Some((conn, found)) = self.resolver.answer() {
                self.dial(conn, found);
            }
            let (again, next) = self.engine.turn(now);
            self.act();
            self.log_panics();
            if self.shared.life() == Life::Stopped {
                self.engine.close_all();
                self.act();
                return Ok(());
            }
            if again {
                self.wait(Some(Duration::ZERO))?;
                continue;
            }
            self.wake.prepare_sleep();
            if self.engine.has_work() || self.resolver.has_answer() || !self.wake.sleep_or_abort() {
                self.wake.awake();
                continue;
            }
            let mut next = next.min(self.shared.cells.next_deadline());
            if !self.accepting.is_empty() {
                next = next.min(self.rest_until);
            }
            let timeout = (next != Instant::NEVER).then(|| next.since(self.shared.clock.now()));
            let slept = self.wait(timeout);
            self.wake.awake();
            slept?;
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(&mut self.events, timeout) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(()),
            other => other?,
        }
        let mut writable = false;
        for event in &self.events {
            let token = event.token();
            if token == WAKE {
                continue;
            }
            if token == WRITES {
                writable = true;
                continue;
            }
            if token.0 >= LISTENERS {
                let at = token.0 - LISTENERS;
                if !self.accepting.contains(&at) {
                    self.accepting.push(at);
                }
                continue;
            }
            let ended = event.is_read_closed() || event.is_error();
            self.ready.push((key(token), event.is_readable() || ended, event.is_writable(), ended));
        }
        if writable {
            self.look_for_writable()?;
        }
        for (key, readable, writable, ended) in std::mem::take(&mut self.ready) {
            if let Some(dialling) = self.dialling.get(&key) {
                match dialling.tcp.connected() {
                    None => continue,
                    Some(outcome) => {
                        let Some(Dialling { tcp, rest }) = self.dialling.remove(&key) else { continue };
                        match outcome {
                            Ok(()) => self.engine.handle_connected(key, Ok(tcp)),
                            Err(e) => {
                                tcp.deregister(self.poll.registry());
                                self.dial_rest(key, rest, e);
                            }
                        }
                    }
                }
            } else {
                if ended {
                    self.engine.handle_end(key);
                }
                self.engine.handle_ready(key, readable, writable);
            }
        }
        Ok(())
    }

    /// Asks the other poller until it has no more: it is reported to this one edge by edge.
    fn look_for_writable(&mut self) -> io::Result<()> {
        loop {
            match self.writes.poll(&mut self.events, Some(Duration::ZERO)) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            let before = self.ready.len();
            self.ready.extend(self.events.iter().map(|event| (key(event.token()), false, true, false)));
            if self.ready.len() - before < self.events.capacity() {
                return Ok(());
            }
        }
    }

    /// Accepts a bounded number per turn; a listener that may have more stays in the list.
    fn accept(&mut self, now: Instant) {
        if now < self.rest_until {
            return;
        }
        let budget = self.shared.plan.turn.accepts;
        for at in std::mem::take(&mut self.accepting) {
            let mut n = 0;
            loop {
                if n == budget {
                    self.accepting.push(at);
                    // More are waiting: come back at once.
                    self.rest_until = now;
                    break;
                }
                match self.listeners[at].accept() {
                    Ok((stream, peer)) => {
                        n += 1;
                        let nodes = self.shared.plan.listen.len();
                        match Tcp::new(std::net::TcpStream::from(stream), &self.shared.plan) {
                            Ok(tcp) if at >= nodes => {
                                tcp.mark_client();
                                self.engine.handle_client((at - nodes) as u16, Arc::new(tcp), peer);
                            }
                            Ok(tcp) => self.engine.handle_accepted(Arc::new(tcp)),
                            Err(e) => log::debug!("an accepted connection was gone at once: {e}"),
                        }
                    }
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(e) => {
                        log::warn!("accepting rests for {ACCEPT_REST:?}: {e}");
                        self.accepting.push(at);
                        self.rest_until = now.after(ACCEPT_REST);
                        break;
                    }
                }
            }
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            match action {
                CompletionAction::Dial { conn, to, failed } => {
                    if let Some(found) = self.resolver.look_up(conn, to, failed) {
                        self.dial(conn, found);
                    }
                }
                CompletionAction::Watch { conn, transport } => {
                    if let Some(tcp) = tcp_of(&transport)
                        && let Err(e) = tcp.register(self.poll.registry(), token(conn))
                    {
                        log::warn!("a connection cannot be watched and is ended: {e}");
                        transport.shutdown();
                    }
                }
                CompletionAction::Completion { conn, transport } => {
                    if let Some(tcp) = tcp_of(&transport)
                        && let Err(e) = tcp.mark_completion(&self.registry, self.writes.registry(), token(conn))
                    {
                        log::warn!("a lane cannot be watched and is ended: {e}");
                        transport.shutdown();
                    }
                }
                CompletionAction::Forget { conn } => {
                    self.resolver.forget(conn);
                    if let Some(Dialling { tcp, .. }) = self.dialling.remove(&conn) {
                        tcp.deregister(self.poll.registry());
                    }
                }
                CompletionAction::Unwatch { transport } => {
                    if let Some(tcp) = tcp_of(&transport) {
                        tcp.deregister(self.poll.registry());
                        tcp.deregister(self.writes.registry());
                    }
                }
                CompletionAction::Log(Line::Info(text)) => log::info!("{text}"),
                CompletionAction::Log(Line::Warn(text)) => log::warn!("{text}"),
            }
        }
    }

    fn dial(&mut self, conn: ConnKey, found: Found) {
        match found {
            Ok(rest) => self.dial_rest(conn, rest, io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
            Err(e) => self.engine.handle_connected(conn, Err(e)),
        }
    }

    /// Tries the addresses from the last on; the attempt ends with `last`, or what the last of them says, if none
    /// is left.
    fn dial_rest(&mut self, conn: ConnKey, mut rest: Vec<SocketAddr>, mut last: io::Error) {
        while let Some(addr) = rest.pop() {
            let tcp = Tcp::connect(addr, &self.shared.plan).and_then(|tcp| {
                tcp.register(self.poll.registry(), token(conn))?;
                Ok(Arc::new(tcp))
            });
            match tcp {
                Ok(tcp) => {
                    self.dialling.insert(conn, Dialling { tcp, rest });
                    return;
                }
                Err(e) => last = e,
            }
        }
        self.engine.handle_connected(conn, Err(last));
    }

    fn log_panics(&self) {
        let panics = std::mem::take(&mut *self.shared.panics.lock());
        for (shard, text) in panics {
            log::error!("a handler on {shard} panicked and is made anew: {text}");
        }
    }
}

fn tcp_of(transport: &Arc<dyn Transport>) -> Option<&Tcp> {
    transport.as_any().downcast_ref()
}

fn token(key: ConnKey) -> Token {
    // 31 bits of generation keep connections below the listeners' tokens.
    Token(((key.generation & 0x7FFF_FFFF) as usize) << 32 | key.index as usize)
}

fn key(token: Token) -> ConnKey {
    ConnKey { index: token.0 as u32, generation: (token.0 >> 32) as u32 }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener as Listener;
    use std::thread;

    use mio::Waker;

    use super::*;
    use crate::engine::shared::Receivers;
    use crate::plan::{ConnectPlan, Endpoint, HostPlan};
    use crate::runtime::clock::SystemClock;
    use crate::runtime::watchdog::watch;

    fn connect(host: &str, port: u16) -> ConnectPlan {
        ConnectPlan { addr: Endpoint::Name(host.into(), port), name: None, links: 1, pull: false }
    }

    /// A completion thread that dials `connects` and finds names with `find`, and what ends it.
    fn start(
        connects: Vec<ConnectPlan>,
        find: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> impl FnOnce() {
        let poll = Poll::new().unwrap();
        let waker = Waker::new(poll.registry(), WAKE).unwrap();
        let wake = Arc::new(WakeCell::new(move || waker.wake().unwrap()));
        let plan = Arc::new(HostPlan { connects, ..HostPlan::defaults("here", 1) });
        let wakes = vec![Arc::new(WakeCell::new(|| {})), wake.clone()];
        let (shared, Receivers { completion, .. }) = HostShared::new(plan, Arc::new(SystemClock::start()), wakes);
        let of_thread = shared.clone();
        let running = thread::spawn(move || {
            let engine = CompletionEngine::new(of_thread.clone(), completion, 1);
            let mut completion = CompletionLoop::new(engine, of_thread, poll, wake.clone(), Vec::new()).unwrap();
            completion.resolver = Resolver::with(wake, find);
            completion.run().unwrap();
        });
        move || {
            shared.stop_threads();
            running.join().unwrap();
        }
    }

    /// Both lanes of a link come to the address of a name where somebody listens, in the first attempt, whatever
    /// stands before it.
    #[test]
    fn every_address_of_a_name_is_tried() {
        let _watchdog = watch();
        let there = Listener::bind("127.0.0.1:0").unwrap();
        let addr = there.local_addr().unwrap();
        // The same port of another address, where nobody is.
        let dead = SocketAddr::from(([127, 0, 0, 2], addr.port()));
        let stop = start(vec![connect("both", addr.port())], move |_, _| Ok(vec![dead, addr]));
        let lanes = [there.accept().unwrap(), there.accept().unwrap()];
        stop();
        drop(lanes);
    }

    /// Names whose lookup does not come back hold nobody else.
    #[test]
    fn a_dead_name_holds_no_other() {
        let _watchdog = watch();
        let there = Listener::bind("127.0.0.1:0").unwrap();
        let addr = there.local_addr().unwrap();
        let ((hold, held), (begin, begun)) = (crossbeam_channel::bounded::<()>(0), crossbeam_channel::bounded(1));
        let stop = start(vec![connect("dead", 1), connect("live", addr.port())], move |host, _| {
            // In this order, whichever is asked for first; that of the dead one ends when the test does.
            if host == "dead" {
                let _ = (begin.try_send(()), held.recv());
            } else {
                begun.recv().unwrap();
            }
            Ok(vec![addr])
        });
        let lanes = [there.accept().unwrap(), there.accept().unwrap()];
        stop();
        drop((hold, lanes));
    }
}
