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
    threads: Vec<Thread>,
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

/// The life of one thread, and the thread.
type Run = Box<dyn FnOnce() -> io::Result<()> + Send>;
type Thread = JoinHandle<io::Result<()>>;

/// Starts a thread of that name.
type Spawn<'a> = dyn FnMut(&str, Run) -> io::Result<JoinHandle<io::Result<()>>> + 'a;

/// Starts a host.
pub fn boot(
    plan: Arc<HostPlan>,
    channels: Arc<[SeatFactory]>,
    node: Option<SeatFactory>,
    streams: Arc<[SeatFactory]>,
) -> Result<Running, StartError> {
    boot_with(plan, channels, node, streams, &mut spawn)
}

fn boot_with(
    plan: Arc<HostPlan>,
    channels: Arc<[SeatFactory]>,
    node: Option<SeatFactory>,
    streams: Arc<[SeatFactory]>,
    spawn: &mut Spawn<'_>,
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
    let threads = Vec::with_capacity(shards + 1);
    let pinned = vec![false; shards + 1];
    let mut running = Running { shared: shared.clone(), clock, addresses, stream_addresses, pinned, threads };
    for (i, (poll, receiver)) in polls.into_iter().zip(receivers.shards).enumerate() {
        let (shared, channels, node, streams) = (shared.clone(), channels.clone(), node.clone(), streams.clone());
        let (wake, reports, plan) = (wakes[i].clone(), reports.clone(), plan.clone());
        let run = move || {
            let pinned = pin(plan.shard_cpus[i], plan.pinning);
            let go = pinned.is_ok();
            let _ = reports.send((i, pinned));
            if !go {
                return Ok(());
            }
            let engine = ShardEngine::new(shared, ShardId(i as u16), receiver, &channels, node.as_ref());
            let engine = engine.with_streams(&streams);
            ShardLoop::new(engine, poll, wake, plan.idle).run()
        };
        running.add(spawn(&format!("{}-{i}", short(&running.shared.plan.name)), Box::new(run)))?;
    }
    let run = {
        let (shared, wake, plan) = (shared.clone(), wakes[shards].clone(), plan.clone());
        move || {
            let pinned = pin(plan.completion_cpu, plan.pinning);
            let go = pinned.is_ok();
            // Before the start is reported: whoever asks then finds the targets of all connects.
            let engine = CompletionEngine::new(shared.clone(), receivers.completion, u64::from_le_bytes(seed));
            let _ = reports.send((shards, pinned));
            if !go {
                return Ok(());
            }
            CompletionLoop::new(engine, shared, completion_poll, wake, listeners)?.run()
        }
    };
    running.add(spawn(&format!("{}-completion", short(&plan.name)), Box::new(run)))?;
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
    /// One more thread. If the system refuses it, those before it end: nothing is left half started.
    fn add(&mut self, thread: io::Result<Thread>) -> Result<(), StartError> {
        match thread {
            Ok(thread) => self.threads.push(thread),
            Err(e) => {
                if !cfg!(afflux_mutation = "half_started") {
                    self.stop();
                }
                return Err(StartError::System(e));
            }
        }
        Ok(())
    }

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

fn spawn(name: &str, run: Run) -> io::Result<Thread> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Case 136. Whichever thread the system refuses, the start says so, the threads before it have ended and the
    /// address is free; the next start is as any other.
    #[test]
    fn a_start_without_all_its_threads_leaves_nothing_behind() {
        let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = probe.local_addr().unwrap();
        drop(probe);
        let mut plan = HostPlan::defaults("host", 3);
        plan.listen.push(address);
        let plan = Arc::new(plan);
        let nothing = || Arc::from(Vec::new());
        for refused in 0..4 {
            let (running, ended) = bounded::<()>(0);
            let mut asked = 0;
            let mut some = |name: &str, run: Run| {
                asked += 1;
                if asked > refused {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                let running = running.clone();
                let run = move || {
                    let end = run();
                    drop(running);
                    end
                };
                spawn(name, Box::new(run))
            };
            let error = boot_with(plan.clone(), nothing(), None, nothing(), &mut some).unwrap_err();
            assert!(matches!(error, StartError::System(_)), "{error:?}");
            assert_eq!(asked, refused + 1, "nobody asks on");
            drop(running);
            // Nothing is ever sent; it would be empty while any thread runs.
            assert_eq!(ended.try_recv(), Err(crossbeam_channel::TryRecvError::Disconnected), "{refused} had started");
        }
        let mut whole = boot(plan, nothing(), None, nothing()).unwrap();
        assert_eq!(whole.addresses, [address]);
        whole.stop();
    }
}
