//! The thread of a shard: turns of its engine, and the sleep between them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use mio::{Events, Poll, Token};

use super::spin::Spin;
use super::tcp::Tcp;
use crate::base::time::Instant;
use crate::engine::here;
use crate::engine::lead::IdleLead;
use crate::engine::shard::{LinkKey, ShardAction, ShardEngine};
use crate::engine::shared::{HostShared, Life};
use crate::flow::transport::Transport;
use crate::plan::Idle;
use crate::sync::wake::WakeCell;

/// The token of the poller's waker.
pub const WAKE: Token = Token(usize::MAX);

/// How long a busy shard works without looking for new readiness: some hundred times what a look costs.
const LOOK_EVERY: Duration = Duration::from_micros(20);

/// How long a shard leads without a turn: whoever judges it counts those.
const LEAD_TIME: Duration = Duration::from_millis(1);

/// A shard about to run. Built on the thread that will run it.
pub struct ShardLoop {
    engine: ShardEngine,
    poll: Poll,
    events: Events,
    wake: Arc<WakeCell>,
    idle: Idle,
}

impl ShardLoop {
    /// `poll` already has the waker that `wake` calls.
    pub fn new(engine: ShardEngine, poll: Poll, wake: Arc<WakeCell>, idle: Idle) -> Self {
        ShardLoop { engine, poll, events: Events::with_capacity(256), wake, idle }
    }

    /// Runs until the host is over.
    pub fn run(mut self) -> io::Result<()> {
        here::enter_runtime();
        let shared: Arc<HostShared> = self.engine.shared().clone();
        let mut spin = Spin::default();
        let mut stirred = false;
        let mut polled = Instant(0);
        loop {
            let now = shared.clock.now();
            let turn = self.engine.turn(now);
            self.act()?;
            if shared.life() == Life::Stopped {
                self.engine.stop();
                return Ok(());
            }
            if turn.again || turn.moved || stirred {
                spin.found(self.idle, now);
            }
            stirred = false;
            if turn.again {
                // Turns that follow each other at once are short: not each of them pays for a look.
                if now.since(polled) >= LOOK_EVERY {
                    polled = now;
                    stirred = self.poll(Some(Duration::ZERO))?;
                }
                continue;
            }
            if spin.goes_on(self.idle, now) {
                stirred = match self.engine.lead_while_idle(now) {
                    Some(lead) => self.lead(lead, &spin, now, turn.next)?,
                    None => self.poll(Some(Duration::ZERO))?,
                };
                std::hint::spin_loop();
                continue;
            }
            self.engine.expect_reply();
            if turn.moved {
                // Who filled the rings may share this processor and have more: let him, once.
                std::thread::yield_now();
                if self.engine.has_work() {
                    continue;
                }
            }
            self.wake.prepare_sleep();
            if self.engine.has_work() || !self.wake.sleep_or_abort() {
                self.wake.awake();
                continue;
            }
            let timeout = (turn.next != Instant::NEVER).then(|| turn.next.since(shared.clock.now()));
            let slept = self.poll(timeout);
            self.wake.awake();
            slept?;
        }
    }

    /// Reads the lane that it leads and looks at the sockets, until there is something to do, by `next` at the latest;
    /// true if there was anything at the sockets.
    fn lead(&mut self, mut lead: IdleLead, spin: &Spin, since: Instant, next: Instant) -> io::Result<bool> {
        let until = next.min(since.after(LEAD_TIME));
        loop {
            let now = self.engine.shared().clock.now();
            let waits = lead.read(now);
            if !waits || self.engine.has_work() {
                return Ok(false);
            }
            if lead.is_kept_out() {
                std::thread::yield_now();
            }
            if self.poll(Some(Duration::ZERO))? {
                return Ok(true);
            }
            if now >= until || !spin.lasts(self.idle, now) {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
    }

    /// Looks at the sockets; true if there was anything.
    fn poll(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        match self.poll.poll(&mut self.events, timeout) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(false),
            other => other?,
        }
        for event in &self.events {
            if event.token() != WAKE {
                let key = key(event.token());
                // An error or a hang-up is found by reading.
                let ended = event.is_read_closed() || event.is_error();
                self.engine.handle_ready(key, event.is_readable() || ended, event.is_writable());
                if ended {
                    self.engine.handle_end(key);
                }
            }
        }
        Ok(!self.events.is_empty())
    }

    fn act(&mut self) -> io::Result<()> {
        while let Some(action) = self.engine.poll_action() {
            match action {
                ShardAction::Watch { link, transport } => {
                    if let Some(tcp) = tcp(&transport)
                        && let Err(e) = tcp.register(self.poll.registry(), token(link))
                    {
                        log::warn!("a connection cannot be watched and is ended: {e}");
                        transport.shutdown();
                    }
                }
                ShardAction::Unwatch { transport } => {
                    if let Some(tcp) = tcp(&transport) {
                        tcp.deregister(self.poll.registry());
                    }
                }
            }
        }
        Ok(())
    }
}

fn tcp(transport: &Arc<dyn Transport>) -> Option<&Tcp> {
    transport.as_any().downcast_ref()
}

/// Index and generation in one token: a late event of a place that was used again is recognised.
fn token(key: LinkKey) -> Token {
    Token((key.generation as usize) << 32 | key.index as usize)
}

fn key(token: Token) -> LinkKey {
    LinkKey { index: token.0 as u32, generation: (token.0 >> 32) as u32 }
}
