//! Starting and ending the threads of a host: what is needed from the system is asked for first,
//! so that a start either succeeds whole or leaves nothing behind. A host without one of its threads would
//! leave its callers waiting, so it is over as soon as one is gone.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use mio::{Poll, Waker};

use super::clock::SystemClock;
use super::completion::CompletionLoop;
use super::shard::{ShardLoop, WAKE};
use super::tcp;
use crate::base::error::ErrorKind;
use crate::base::id::ShardId;
use crate::base::panic::caught;
use crate::engine::completion::CompletionEngine;
use crate::engine::seat::SeatFactory;
use crate::engine::shard::ShardEngine;
use crate::engine::shared::HostShared;
use crate::plan::{HostPlan, Pinning};
use crate::sync::parker;
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

/// How often operations are ended that began while their host broke down.
const STRAGGLERS: Duration = Duration::from_millis(50);

/// The life of one thread.
type Run = Box<dyn FnOnce() -> io::Result<()> + Send>;

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
    let mut running =
        Running { shared, clock, addresses, stream_addresses, pinned: vec![false; shards + 1], threads: Vec::new() };
    let shared = &running.shared;
    let (reports, report) = bounded::<Report>(shards + 1);
    let mut lives: Vec<(String, Run)> = Vec::new();
    for (i, (poll, receiver)) in polls.into_iter().zip(receivers.shards).enumerate() {
        let (channels, node, streams) = (channels.clone(), node.clone(), streams.clone());
        let (wake, plan, of_engine) = (wakes[i].clone(), plan.clone(), shared.clone());
        let make = move || {
            let pinned = pin(plan.shard_cpus[i], plan.pinning)?;
            let engine = ShardEngine::new(of_engine, ShardId(i as u16), receiver, &channels, node.as_ref());
            let shard = ShardLoop::new(engine.with_streams(&streams), poll, wake, plan.idle);
            Ok((pinned, move || shard.run()))
        };
        let (shared, reports) = (shared.clone(), reports.clone());
        lives.push((i.to_string(), Box::new(move || live(i, &shared, &reports, make))));
    }
    let make = {
        let (wake, plan, shared) = (wakes[shards].clone(), plan.clone(), shared.clone());
        move || {
            let pinned = pin(plan.completion_cpu, plan.pinning)?;
            // Before the start is reported: whoever asks then finds the targets of all connects.
            let engine = CompletionEngine::new(shared.clone(), receivers.completion, u64::from_le_bytes(seed));
            let completion = CompletionLoop::new(engine, shared, completion_poll, wake, listeners);
            let completion = completion.map_err(StartError::System)?;
            Ok((pinned, move || completion.run()))
        }
    };
    let of_completion = shared.clone();
    lives.push(("completion".into(), Box::new(move || live(shards, &of_completion, &reports, make))));

    let started = run_all(&mut running, lives, &report, spawn);
    if started.is_err() && !cfg!(afflux_mutation = "half_started") {
        running.stop();
    }
    started.map(|()| running)
}

/// Starts the threads and hears from each; on an error some of them may run.
fn run_all(
    running: &mut Running,
    lives: Vec<(String, Run)>,
    report: &Receiver<Report>,
    spawn: &mut Spawn<'_>,
) -> Result<(), StartError> {
    let threads = lives.len();
    for (name, life) in lives {
        let name = format!("{}-{name}", short(&running.shared.plan.name));
        running.threads.push(spawn(&name, life).map_err(StartError::System)?);
    }
    for (i, outcome) in report.iter().take(threads) {
        running.pinned[i] = outcome?;
    }
    Ok(())
}

/// The life of thread `i`: what it runs is made there, the outcome is told, and it runs. If that ends before the host
/// does, the host is over with it: what waits ends in an error, and so does what was about to begin, which this
/// thread sees to until the host is stopped.
fn live<R: FnOnce() -> io::Result<()>>(
    i: usize,
    shared: &HostShared,
    reports: &Sender<Report>,
    make: impl FnOnce() -> Result<(bool, R), StartError>,
) -> io::Result<()> {
    let broken = |panic: String| io::Error::other(format!("it panicked, which is a fault in afflux: {panic}"));
    let made = caught(make).unwrap_or_else(|panic| Err(StartError::System(broken(panic))));
    let (run, pinned) = match made {
        Ok((pinned, run)) => (Some(run), Ok(pinned)),
        Err(e) => (None, Err(e)),
    };
    // Nobody listens any more if another thread could not start.
    let _ = reports.try_send((i, pinned));
    let Some(run) = run else { return Ok(()) };
    let end = caught(run).unwrap_or_else(|panic| Err(broken(panic)));
    if let Err(e) = &end {
        let name = thread::current().name().unwrap_or_default().to_owned();
        shared.break_down(format!("thread {name} is gone: {e}"));
        let stands = parker::stand();
        while !shared.stopping.is_raised() {
            shared.end_all(ErrorKind::Internal);
            stands.park(STRAGGLERS);
        }
    }
    end
}

impl Running {
    /// Ends the threads and waits for them. A shard that is stuck in user code is waited for.
    pub fn stop(&mut self) {
        self.shared.stopping.raise();
        self.shared.stop_threads();
        for thread in self.threads.drain(..) {
            let name = thread.thread().name().unwrap_or_default().to_string();
            // One that outlived its work sleeps.
            thread.thread().unpark();
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

fn spawn(name: &str, run: Run) -> io::Result<JoinHandle<io::Result<()>>> {
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
    use crate::engine::seat::Seat;
    use crate::runtime::watchdog::watch;

    /// A thread that fails while it makes what it will run has not started, and nobody waits for it.
    #[test]
    fn a_thread_that_cannot_make_its_engine_fails_the_start() {
        let _watchdog = watch();
        let mut plan = HostPlan { pinning: Pinning::Off, ..HostPlan::defaults("here", 2) };
        plan.channels.push(("any".into(), 100));
        let broken: SeatFactory = Arc::new(|shard, _| -> Box<dyn Seat> { panic!("no seat on shard {shard}") });
        let outcome = boot(Arc::new(plan), Arc::new([broken]), None, Arc::new([]));
        assert!(matches!(outcome, Err(StartError::System(e)) if e.to_string().contains("no seat on shard")));
    }

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
