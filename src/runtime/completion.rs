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

use super::resolver::Resolver;
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
    dialling: HashMap<ConnKey, Arc<Tcp>>,
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
            let now = self.shared.clock.now();
            let mut next = next.min(self.shared.cells.next_deadline());
            if !self.accepting.is_empty() {
                next = next.min(self.rest_until);
            }
            let timeout = (next != Instant::NEVER).then(|| next.since(now));
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
            if let Some(tcp) = self.dialling.get(&key) {
                match tcp.connected() {
                    None => continue,
                    Some(outcome) => {
                        let tcp = self.dialling.remove(&key);
                        let outcome = outcome.and(tcp.ok_or_else(|| io::ErrorKind::NotConnected.into()));
                        self.engine.handle_connected(key, outcome.map(|tcp| tcp as Arc<dyn Transport>));
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
                CompletionAction::Dial { conn, to } => {
                    if let Some(found) = self.resolver.look_up(conn, to) {
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
                    if let Some(tcp) = self.dialling.remove(&conn) {
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

    fn dial(&mut self, conn: ConnKey, found: io::Result<SocketAddr>) {
        let dialled = found.and_then(|addr| Tcp::connect(addr, &self.shared.plan)).and_then(|tcp| {
            tcp.register(self.poll.registry(), token(conn))?;
            Ok(Arc::new(tcp))
        });
        match dialled {
            Ok(tcp) => {
                self.dialling.insert(conn, tcp);
            }
            Err(e) => self.engine.handle_connected(conn, Err(e)),
        }
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
