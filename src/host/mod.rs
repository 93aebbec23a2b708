//! Floor 7: what a user of the crate holds.

pub(crate) mod address;
pub mod client;
pub mod dump;
pub mod options;
pub mod pubsub;
pub mod resolve;
pub mod server;
pub mod status;
pub mod stream;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::bounded;

use self::client::Client;
use self::dump::{HistogramLog, write_hgrm_set};
use self::options::{HostBuilder, Served};
use self::status::{Account, HostStatus};
use crate::base::error::{Detail, Error, ErrorKind, Violation};
use crate::base::time::Clock;
use crate::engine::command::{CompletionCommand, ShardCommand};
use crate::engine::handler::{Failure, Handler, LocalClient, Request};
use crate::engine::seat::{AsyncSeat, HandlerSeat, Seat, SeatFactory};
use crate::engine::shared::{HostShared, Life};
use crate::flow::target::{Dialect, Target};
use crate::meter::latency::LatencySet;
use crate::plan::HostPlan;
use crate::policy::ledger;
use crate::runtime::boot::{Running, StartError, boot};
use crate::runtime::machine::Machine;
use crate::sync::parker;

/// What serves the channels of a builder.
#[derive(Default)]
pub(crate) struct Roles {
    channels: Vec<SeatFactory>,
    servers: Vec<SeatFactory>,
    node: Option<SeatFactory>,
    subscribers: Vec<SeatFactory>,
    streams: Vec<SeatFactory>,
}

impl HostBuilder {
    /// Serves a channel: `factory` is called once on each shard, there, with the shard's number.
    /// The factory crosses threads, the handler never does. At most 256 channels; a name is 1 to 64
    /// characters of `A-Z a-z 0-9 . _ -`.
    pub fn channel<H: Handler>(
        mut self,
        name: impl Into<String>,
        factory: impl Fn(usize) -> H + Send + Sync + 'static,
    ) -> Self {
        self.options.channels.push((name.into(), 100));
        self.options.served = Some(Served::ToNodes);
        self.roles.channels.push(handler_seat(factory));
        self
    }

    /// Serves calls to the node itself.
    pub fn node_handler<H: Handler>(mut self, factory: impl Fn(usize) -> H + Send + Sync + 'static) -> Self {
        self.roles.node = Some(handler_seat(factory));
        self
    }

    /// Serves a channel with futures that the shard polls: std's `Future` and `Waker`, no executor.
    /// `factory` makes the closure on each shard. The future's result is the answer. A future runs
    /// on its shard only, and may hold what is not `Send`. One-way messages to such a channel are
    /// counted under `no_handler`.
    pub fn channel_async<C, Fut>(
        mut self,
        name: impl Into<String>,
        factory: impl Fn(usize) -> C + Send + Sync + 'static,
    ) -> Self
    where
        C: FnMut(Request, LocalClient) -> Fut + 'static,
        Fut: Future<Output = Result<Bytes, Failure>> + 'static,
    {
        self.options.channels.push((name.into(), 100));
        self.options.served = Some(Served::ToNodes);
        let factory = Arc::new(factory);
        self.roles.channels.push(Arc::new(move |shard, seat| -> Box<dyn Seat> {
            Box::new(AsyncSeat::new(factory.clone(), shard, seat))
        }));
        self
    }

    /// The plan that `start` would follow on this machine, or every rule that the options break. Binds
    /// and starts nothing, so a program can judge its own options together with the host's. The plan has
    /// no instance number: that is the start's.
    pub fn check(&self) -> Result<HostPlan, Error> {
        resolve::resolve(&self.options, &Machine::detect())
    }

    /// Checks every option, binds, and starts the threads. Nothing is bound if any value breaks its
    /// rule; the error names each of them.
    pub fn start(self) -> Result<Host, Error> {
        let mut plan = self.check()?;
        let mut instance = [0; 16];
        getrandom::fill(&mut instance)
            .map_err(|e| Error::new(ErrorKind::Internal, Detail::None).with_text(format!("no random numbers: {e}")))?;
        plan.instance = u128::from_le_bytes(instance);
        // Seats of channels, of what is served to clients, of subscribers: everybody counts in this order.
        let Roles { channels, servers, subscribers, .. } = self.roles;
        let seats: Vec<SeatFactory> = channels.into_iter().chain(servers).chain(subscribers).collect();
        let running =
            boot(Arc::new(plan), seats.into(), self.roles.node, self.roles.streams.into()).map_err(start_error)?;
        // Nobody can have published yet.
        if let Some(publishing) = &running.shared.publishing
            && let Some(tell) = self.options.publisher.and_then(|options| options.on_drop)
        {
            publishing.set_on_drop(tell);
        }
        Ok(Host { running: Some(running) })
    }
}

fn handler_seat<H: Handler>(factory: impl Fn(usize) -> H + Send + Sync + 'static) -> SeatFactory {
    let factory = Arc::new(factory);
    Arc::new(move |shard, seat| -> Box<dyn Seat> { Box::new(HandlerSeat::new(factory.clone(), shard, seat)) })
}

fn start_error(e: StartError) -> Error {
    match e {
        StartError::Listen(addr, e) => Error::config(vec![Violation {
            option: "listen",
            value: addr.to_string(),
            rule: format!("must be an address of this machine that nobody uses: {e}"),
        }]),
        StartError::Pin(cpu) => Error::config(vec![Violation {
            option: "pinning",
            value: "Required".into(),
            rule: format!("no thread can be pinned to processor {cpu}"),
        }]),
        StartError::System(e) => {
            Error::new(ErrorKind::Internal, Detail::None).with_text(format!("the system refuses a thread: {e}"))
        }
    }
}

/// A running host. Dropping it is a shutdown of one second. Several hosts in one process are
/// normal: nothing is global.
#[derive(Debug)]
pub struct Host {
    running: Option<Running>,
}

impl Host {
    /// Options of a node of that name.
    pub fn builder(name: impl Into<String>) -> HostBuilder {
        HostBuilder::new(name)
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("taken by shutdown alone, which consumes the host")
    }

    fn shared(&self) -> &Arc<HostShared> {
        &self.running().shared
    }

    /// Handles for calling.
    pub fn client(&self) -> Client {
        Client::new(self.shared().clone())
    }

    /// Where the host listens, in the order of the options, with the ports that the system chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.running().addresses
    }

    /// Waits until every configured connection is up, at most for `timeout`. Never needed: a call made
    /// before that waits under its own deadline. The error names who is missing.
    pub fn ready(&self, timeout: Duration) -> Result<(), Error> {
        let shared = self.shared();
        let end = shared.clock.now().after(timeout);
        let _watch = shared.watchers.watch();
        let stands = parker::stand();
        loop {
            // By the routes, so that whoever calls next is routed.
            let routes = shared.routes.load();
            let away = |target: &&Arc<Target>| target.dialled && !routes.up.contains(&target.id);
            let missing: Vec<Arc<str>> = shared.targets.lock().iter().filter(away).map(|t| t.label()).collect();
            if missing.is_empty() {
                return Ok(());
            }
            if shared.life() != Life::Serving {
                return Err(over(shared));
            }
            let now = shared.clock.now();
            if now >= end {
                return Err(Error::new(ErrorKind::DeadlineExceeded, Detail::NotConnected).with(|n| {
                    n.target = Some(missing.join(", ").into());
                    n.waited = Some(timeout);
                }));
            }
            stands.park(end.since(now));
        }
    }

    /// What was resolved from the options, with the ledger of everything that can hold a message.
    pub fn plan(&self) -> &Arc<HostPlan> {
        &self.shared().plan
    }

    /// The plan and its ledger as a table for people.
    pub fn plan_report(&self) -> String {
        let links = self.shared().targets.lock().iter().filter(|t| t.dialect != Dialect::Stream).count();
        ledger::report(self.plan(), links as u32)
    }

    /// A snapshot of everything that is counted, without stopping anyone.
    pub fn status(&self) -> HostStatus {
        HostStatus::of(self.running())
    }

    /// Writes what the histograms have collected since the last dump: `<prefix>.hlog` and one
    /// `.hgrm` per histogram. Waits at most a second for each thread; a shard that is stuck in user
    /// code is left out this time.
    pub fn dump(&self, prefix: impl AsRef<Path>) -> Result<LatencySet, Error> {
        let set = self.take_latencies();
        let fail = |e: std::io::Error| Error::new(ErrorKind::Internal, Detail::None).with_text(e.to_string());
        let prefix = prefix.as_ref();
        let end = self.running().clock.now().0 as f64 / 1e9;
        let mut log =
            HistogramLog::create(prefix.with_extension("hlog"), self.running().clock.started_at()).map_err(fail)?;
        log.set(0.0, end, &set).map_err(fail)?;
        log.sync().map_err(fail)?;
        write_hgrm_set(prefix, &set).map_err(fail)?;
        Ok(set)
    }

    /// The histograms of all threads since the last time, merged.
    pub fn take_latencies(&self) -> LatencySet {
        let shared = self.shared();
        let (sender, receiver) = bounded(shared.shards.len() + 1);
        let mut asked = 0;
        for port in &shared.shards {
            asked += usize::from(port.command(ShardCommand::Histograms(sender.clone())).is_ok());
        }
        asked += usize::from(shared.completion.command(CompletionCommand::Histograms(sender)).is_ok());
        let mut all = LatencySet::new();
        for _ in 0..asked {
            match receiver.recv_timeout(Duration::from_secs(1)) {
                Ok(set) => all.merge(&set),
                Err(_) => break,
            }
        }
        all
    }

    /// Blocks until the host is shut down by the end of the process: for a `main` that only serves. It returns only
    /// if the host breaks down; see [`HostStatus::failure`].
    pub fn join(self) -> Result<(), Error> {
        let shared = self.shared();
        let _watch = shared.watchers.watch();
        let stands = parker::stand();
        while shared.life() == Life::Serving {
            stands.park(Duration::from_secs(3600));
        }
        Err(over(shared))
    }

    /// Accepts nothing new, lets what was accepted go out, at most for `deadline`, and ends. What still
    /// waits then ends in `ShuttingDown`. The account says per peer what was not written. A handler
    /// that never returns is waited for beyond the deadline: its thread cannot be ended.
    pub fn shutdown(mut self, deadline: Duration) -> Account {
        match self.running.take() {
            Some(running) => drain(running, deadline),
            None => Account::default(),
        }
    }
}

/// Why there is no host any more.
fn over(shared: &HostShared) -> Error {
    match shared.failure() {
        Some(why) => Error::new(ErrorKind::Internal, Detail::None).with_text(why.to_string()),
        None => Error::new(ErrorKind::ShuttingDown, Detail::None),
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            drain(running, Duration::from_secs(1));
        }
    }
}

/// How often a host that drains is looked at.
const DRAIN_LOOK: Duration = Duration::from_millis(1);

fn drain(mut running: Running, deadline: Duration) -> Account {
    let shared = running.shared.clone();
    if shared.failure().is_some() {
        // Nobody is there who could let anything go out.
        let account = Account::of(&shared);
        running.stop();
        return account;
    }
    shared.life.set(Life::Draining as u64);
    if let Some(publishing) = &shared.publishing {
        publishing.linger(shared.clock.now());
        publishing.wake_waiting();
    }
    let end = shared.clock.now().after(deadline);
    let end = if cfg!(afflux_mutation = "drain_without_end") { crate::base::time::Instant::NEVER } else { end };
    // Quiet at two looks with a turn of every shard between them, in which nothing came: what had
    // arrived when the shutdown began is received by then.
    let mut before = None;
    let stands = parker::stand();
    while shared.clock.now() < end {
        let quiet = shared.is_quiet();
        let seen = (shared.counts.received.get(), shared.shards.iter().map(|p| p.turns.get()).collect::<Vec<_>>());
        if quiet
            && let Some((received, turns)) = &before
            && *received == seen.0
            && seen.1.iter().zip(turns).all(|(now, then): (&u64, &u64)| now > then)
        {
            break;
        }
        if !quiet || before.as_ref().is_none_or(|(received, _)| *received != seen.0) {
            before = quiet.then_some(seen);
        }
        for port in &shared.shards {
            port.wake.wake();
        }
        stands.park(DRAIN_LOOK);
    }
    let account = Account::of(&shared);
    shared.end_all(ErrorKind::ShuttingDown);
    running.stop();
    // What was accepted for a queue that no thread serves any more ends too.
    shared.end_all(ErrorKind::ShuttingDown);
    account
}
