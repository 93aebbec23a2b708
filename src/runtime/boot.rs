//! Starting and ending the threads of a host: what is needed from the system is asked for first,
//! so that a start either succeeds whole or leaves nothing behind.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crossbeam_channel::bounded;
use mio::{Poll, Waker};

use super::clock::SystemClock;
use super::completion::CompletionLoop;
use super::shard::{ShardLoop, WAKE};
use super::tcp;
use crate::base::id::ShardId;
use crate::engine::completion::CompletionEngine;
use crate::engine::seat::SeatFactory;
use crate::engine::shard::ShardEngine;
use crate::engine::shared::{HostShared, Life};
use crate::plan::{HostPlan, Pinning};
use crate::sync::wake::WakeCell;

/// The running threads of a host.
#[derive(Debug)]
pub struct Running {
    /// What they share.
    pub shared: Arc<HostShared>,
    /// The clock that they read.
    pub clock: Arc<SystemClock>,
    /// Where the host listens, with the ports that the system chose.
    pub addresses: Vec<SocketAddr>,
    /// Where it listens for end clients, likewise.
    pub stream_addresses: Vec<SocketAddr>,
    /// Which threads are pinned, in the order of shards; the completion thread last.
    pub pinned: Vec<bool>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

/// What a failed start was about.
#[derive(Debug)]
pub enum StartError {
    /// An address cannot be listened on.
    Listen(SocketAddr, io::Error),
    /// A thread or a poller cannot be had.
    System(io::Error),
    /// A thread cannot be pinned, and the plan requires it.
    Pin(usize),
}

/// What one thread reports before it runs.
type Report = (usize, Result<bool, StartError>);

/// Starts a host.
pub fn boot(
    plan: Arc<HostPlan>,
    channels: Arc<[SeatFactory]>,
    node: Option<SeatFactory>,
    streams: Arc<[SeatFactory]>,
) -> Result<Running, StartError> {
    let mut listeners = Vec::new();
    let mut addresses = Vec::new();
    // Those of nodes first, then those of end clients.
    for addr in plan.listen.iter().chain(plan.streams.iter().map(|stream| &stream.addr)) {
        let listener = tcp::listen(*addr).map_err(|e| StartError::Listen(*addr, e))?;
        addresses.push(listener.local_addr().map_err(|e| StartError::Listen(*addr, e))?);
        listeners.push(listener);
    }
    let stream_addresses = addresses.split_off(plan.listen.len());
    let shards = plan.shards as usize;
    let mut polls = Vec::new();
    let mut wakes = Vec::new();
    for _ in 0..=shards {
        let poll = Poll::new().map_err(StartError::System)?;
        let waker = Waker::new(poll.registry(), WAKE).map_err(StartError::System)?;
        wakes.push(Arc::new(WakeCell::new(move || {
            if let Err(e) = waker.wake() {
                log::error!("a thread cannot be woken: {e}");
            }
        })));
        polls.push(poll);
    }
    let clock = Arc::new(SystemClock::start());
    let (shared, receivers) = HostShared::new(plan.clone(), clock.clone(), wakes.clone());
    let completion_poll = polls.pop().ok_or_else(|| StartError::System(io::ErrorKind::Other.into()))?;

    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(|e| StartError::System(io::Error::other(e.to_string())))?;
    let (reports, report) = bounded::<Report>(shards + 1);
    let mut threads = Vec::new();
    for (i, (poll, receiver)) in polls.into_iter().zip(receivers.shards).enumerate() {
        let (shared, channels, node, streams) = (shared.clone(), channels.clone(), node.clone(), streams.clone());
        let (wake, reports, plan) = (wakes[i].clone(), reports.clone(), plan.clone());
        let thread = spawn(&format!("{}-{i}", short(&plan.name)), move || {
            let pinned = pin(plan.shard_cpus[i], plan.pinning);
            let go = pinned.is_ok();
            let _ = reports.send((i, pinned));
            if !go {
                return Ok(());
            }
            let engine = ShardEngine::new(shared, ShardId(i as u16), receiver, &channels, node.as_ref());
            let engine = engine.with_streams(&streams);
            ShardLoop::new(engine, poll, wake, plan.idle).run()
        });
        threads.push(thread.map_err(StartError::System)?);
    }
    let completion = {
        let (shared, wake, plan) = (shared.clone(), wakes[shards].clone(), plan.clone());
        spawn(&format!("{}-completion", short(&plan.name)), move || {
            let pinned = pin(plan.completion_cpu, plan.pinning);
            let go = pinned.is_ok();
            // Before the start is reported: whoever asks then finds the targets of all connects.
            let engine = CompletionEngine::new(shared.clone(), receivers.completion, u64::from_le_bytes(seed));
            let _ = reports.send((shards, pinned));
            if !go {
                return Ok(());
            }
            CompletionLoop::new(engine, shared, completion_poll, wake, listeners)?.run()
        })
    };
    threads.push(completion.map_err(StartError::System)?);
    let mut running = Running { shared, clock, addresses, stream_addresses, pinned: vec![false; shards + 1], threads };
    for (i, outcome) in report.iter().take(shards + 1) {
        match outcome {
            Ok(pinned) => running.pinned[i] = pinned,
            Err(e) => {
                running.stop();
                return Err(e);
            }
        }
    }
    Ok(running)
}

impl Running {
    /// Ends the threads and waits for them. A shard that is stuck in user code is waited for.
    pub fn stop(&mut self) {
        self.shared.life.set(Life::Stopped as u64);
        for port in &self.shared.shards {
            port.wake.wake();
        }
        self.shared.completion.wake.wake();
        for thread in self.threads.drain(..) {
            let name = thread.thread().name().unwrap_or_default().to_string();
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(e)) => log::error!("thread {name} ended early: {e}"),
                Err(_) => log::error!("thread {name} panicked: this is a fault in afflux"),
            }
        }
    }
}

/// Thread names are cut by the system at 15 bytes; the end says which thread it is.
fn short(name: &str) -> &str {
    let end = (0..=name.len().min(3)).rev().find(|i| name.is_char_boundary(*i)).unwrap_or(0);
    &name[..end]
}

fn spawn(name: &str, run: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<JoinHandle<io::Result<()>>> {
    thread::Builder::new().name(name.to_string()).spawn(run)
}

/// Whether the calling thread is pinned now.
fn pin(cpu: Option<usize>, pinning: Pinning) -> Result<bool, StartError> {
    let Some(id) = cpu else { return Ok(false) };
    match (pinning, core_affinity::set_for_current(core_affinity::CoreId { id })) {
        (Pinning::Required, false) => Err(StartError::Pin(id)),
        (_, pinned) => {
            if !pinned {
                log::warn!("a thread could not be pinned to processor {id}");
            }
            Ok(pinned)
        }
    }
}
