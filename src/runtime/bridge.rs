//! A bridge to blocking code: threads that may block, for shards and tasks that may not. The rules are
//! [`BridgePermits`]; here are the threads, the jobs and the results.
//!
//! ```text
//!   permit ─submit─▶ job ─▶ a thread of the bridge ─▶ result ─▶ wait, await or take
//!     └ dropped: given back      └ panics: an error, and the thread goes on with a new worker
//! ```
//!
//! Locking: one plain lock, held for a few instructions, never while a job runs, is dropped, or
//! anybody is woken. Every queue is as long as there are permits, so nothing behind a permit can be
//! full.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::clock::SystemClock;
use crate::base::error::{Detail, Error, ErrorKind, Stage, Violation};
use crate::base::panic::{caught, dropped};
use crate::base::time::Clock;
use crate::engine::here;
use crate::policy::bridge::{
    BRIDGE_JOBS_MAX, BridgeFull, BridgeLimits, BridgePermits, BridgeSnapshot, Cancel, Finished, JobId, JobTimes,
    WaiterId,
};
use crate::policy::ledger::Ledger;
use crate::sync::lock::Lock;
use crate::sync::parker;

/// The most threads of one bridge.
const THREADS_MAX: usize = 1024;

/// Threads for work that blocks: databases, files, compression, old libraries. A permit comes before the
/// submission, and both the jobs and the results are bounded by the permits; see [`BridgeLimits`].
///
/// ```
/// use std::time::Duration;
/// use afflux::Bridge;
/// use afflux::policy::{bridge::BridgeLimits, ledger::Ledger};
///
/// let mut ledger = Ledger::new();
/// let limits = BridgeLimits { jobs: 4, bytes: 1 << 20, waiters: 16 };
/// let squares = Bridge::start("squares", ["squares", "square places"], 1, limits, &mut ledger, |_thread| {
///     |n: u64| n * n
/// })?;
/// let task = squares.permit(8, Duration::from_secs(1))?.submit(12);
/// let (square, times) = task.wait(Duration::from_secs(1))?;
/// assert_eq!(square, 144);
/// assert!(times.service < Duration::from_secs(1));
/// # Ok::<(), afflux::Error>(())
/// ```
///
/// Dropped, it takes no more work; what was submitted is still done, and nobody waits for that. See
/// [`Bridge::shutdown`].
pub struct Bridge<J, R> {
    core: Arc<Core<J, R>>,
    /// Ends when the last thread has.
    ended: Receiver<()>,
}

struct Core<J, R> {
    name: Arc<str>,
    clock: SystemClock,
    state: Lock<State<J, R>>,
}

struct State<J, R> {
    permits: BridgePermits,
    places: Vec<Place<J, R>>,
    /// Who waits for a permit; in the order of their ids.
    wakers: VecDeque<(WaiterId, Waker)>,
    /// One token per submitted job at least; `None`: shut down.
    tokens: Option<Sender<()>>,
}

struct Place<J, R> {
    job: Option<J>,
    result: Option<Result<R, Error>>,
    waker: Option<Waker>,
}

impl<J, R> fmt::Debug for Bridge<J, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bridge").field("name", &self.core.name).field("seen", &self.core.snapshot()).finish()
    }
}

impl<J: Send + 'static, R: Send + 'static> Bridge<J, R> {
    /// Starts `threads` threads (1..=1,024) with a worker each: `factory` is called there, with the thread's
    /// number, and again after a worker has panicked. The rows of the ledger are `rows`: the bytes of
    /// the jobs, and the tables; a bridge without rows cannot be made.
    ///
    /// The error names every bound out of its range, or says that the system refuses a thread.
    ///
    /// # Panics
    /// If the ledger has a row of one of these names.
    pub fn start<W: FnMut(J) -> R>(
        name: impl Into<Arc<str>>,
        rows: [&'static str; 2],
        threads: usize,
        limits: BridgeLimits,
        ledger: &mut Ledger,
        factory: impl Fn(usize) -> W + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        check(threads, limits)?;
        let name = name.into();
        let (tokens, submitted) = bounded(limits.jobs as usize);
        let place = || Place { job: None, result: None, waker: None };
        let core = Arc::new(Core {
            name: name.clone(),
            clock: SystemClock::start(),
            state: Lock::new(State {
                permits: BridgePermits::new(limits),
                places: (0..limits.jobs).map(|_| place()).collect(),
                wakers: VecDeque::with_capacity(limits.waiters as usize),
                tokens: Some(tokens),
            }),
        });
        let (alive, ended) = bounded(0);
        let bridge = Bridge { core, ended };
        let factory = Arc::new(factory);
        for n in 0..threads {
            let (core, submitted) = (bridge.core.clone(), submitted.clone());
            let (factory, alive) = (factory.clone(), alive.clone());
            let run = move || {
                core.work(&submitted, n, &*factory);
                // What the factory holds is gone before anybody hears that the thread is.
                drop(factory);
                drop(alive);
            };
            // If this fails, the threads that there are end with the bridge.
            thread::Builder::new().name(format!("{name}-{n}")).spawn(run).map_err(|e| {
                Error::new(ErrorKind::Internal, Detail::None).with_text(format!("the system refuses a thread: {e}"))
            })?;
        }
        let each = (size_of::<J>() + size_of::<R>()) as u64;
        limits.reservations(rows[0], rows[1], each).into_iter().for_each(|row| ledger.add(row));
        Ok(bridge)
    }

    /// A permit for a job of `bytes`, now or not at all: for shards and tasks. The error, of kind
    /// `CapacityExceeded`, has the numbers.
    pub fn try_permit(&self, bytes: u64) -> Result<BridgePermit<J, R>, Error> {
        let mut state = self.core.state.lock();
        if state.tokens.is_none() {
            return Err(self.core.closed());
        }
        let granted = state.permits.try_permit(bytes, self.core.clock.now());
        drop(state);
        match granted {
            Ok(job) => Ok(BridgePermit { core: self.core.clone(), job: Some(job) }),
            Err(full) => Err(self.core.full(full, bytes, Detail::NoRoom)),
        }
    }

    /// A permit for a job of `bytes`; the calling thread sleeps until there is one, behind those who came
    /// before, at most for `timeout`. Ends in `DeadlineExceeded` then, at once in `CapacityExceeded` if as many
    /// wait as may, and in `InvalidOperation` on a thread of the runtime, which may not block.
    pub fn permit(&self, bytes: u64, timeout: Duration) -> Result<BridgePermit<J, R>, Error> {
        if here::is_runtime_thread() {
            return Err(Error::new(ErrorKind::InvalidOperation, Detail::WaitOnShard));
        }
        let core = &self.core;
        let begin = core.clock.now();
        let end = begin.after(timeout);
        let id = {
            let mut state = core.state.lock();
            if state.tokens.is_none() {
                return Err(core.closed());
            }
            let id =
                state.permits.wait(bytes, begin).map_err(|full| core.full(full, bytes, Detail::WaitingRoomFull))?;
            state.wakers.push_back((id, parker::thread_waker()));
            id
        };
        let stands = parker::stand();
        loop {
            let now = core.clock.now();
            {
                let mut state = core.state.lock();
                let closed = state.tokens.is_none();
                let over = closed || now >= end;
                let job = if over { state.permits.leave(id, now) } else { state.permits.fetch(id) };
                if over || job.is_some() {
                    state.forget(id);
                }
                let woken = state.granted();
                drop(state);
                woken.into_iter().for_each(Waker::wake);
                match job {
                    Some(job) => return Ok(BridgePermit { core: core.clone(), job: Some(job) }),
                    None if closed => return Err(core.closed()),
                    None if over => return Err(core.late(Detail::NoRoom, now.since(begin), Stage::Room)),
                    None => {}
                }
            }
            stands.park(end.since(now));
        }
    }

    /// Everything in numbers, without stopping anyone.
    pub fn snapshot(&self) -> BridgeSnapshot {
        self.core.snapshot()
    }

    /// Grants no more permits, ends the waits for them, lets what was submitted be done, and waits for
    /// the threads, at most for `deadline`: work that hangs cannot be ended and keeps its thread. What
    /// is left then is in the snapshot.
    pub fn shutdown(self, deadline: Duration) -> BridgeSnapshot {
        self.core.close();
        // Nothing is ever sent; it ends when the last thread does.
        match self.ended.recv_timeout(deadline) {
            Ok(()) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => self.core.snapshot(),
        }
    }
}

impl<J, R> Drop for Bridge<J, R> {
    fn drop(&mut self) {
        self.core.close();
    }
}

/// Every bound that is out of its range.
fn check(threads: usize, limits: BridgeLimits) -> Result<(), Error> {
    let jobs = u64::from(BRIDGE_JOBS_MAX);
    let rules = [
        ("threads", threads as u64, 1, THREADS_MAX as u64),
        ("jobs", limits.jobs.into(), 1, jobs),
        ("waiters", limits.waiters.into(), 0, jobs),
        ("bytes", limits.bytes, 1, u64::MAX),
    ];
    let broken = rules.into_iter().filter(|(_, value, low, high)| !(low..=high).contains(&value));
    let violations: Vec<Violation> = broken
        .map(|(option, value, low, high)| Violation {
            option,
            value: value.to_string(),
            rule: format!("must be {low}..={high}"),
        })
        .collect();
    if violations.is_empty() { Ok(()) } else { Err(Error::config(violations)) }
}

impl<J, R> State<J, R> {
    fn forget(&mut self, waiter: WaiterId) -> Option<Waker> {
        let at = self.wakers.binary_search_by_key(&waiter, |(id, _)| *id).ok()?;
        self.wakers.remove(at).map(|(_, waker)| waker)
    }

    /// Whom to wake, because a permit is there for them; each once.
    fn granted(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        for i in 0.. {
            let Some(id) = self.permits.granted().nth(i) else { break };
            woken.extend(self.forget(id));
        }
        woken
    }
}

impl<J, R> Core<J, R> {
    fn snapshot(&self) -> BridgeSnapshot {
        let state = self.state.lock();
        state.permits.snapshot(self.clock.now())
    }

    fn close(&self) {
        let wakers = {
            let mut state = self.state.lock();
            state.tokens = None;
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// A thread's life: one job after the other, until the bridge is closed and its queue empty.
    fn work<W: FnMut(J) -> R>(&self, submitted: &Receiver<()>, n: usize, factory: &dyn Fn(usize) -> W) {
        let mut worker = None;
        // A token may stand for a job that was withdrawn.
        for () in submitted {
            let Some((id, job)) = self.begin() else { continue };
            let result = caught(|| worker.get_or_insert_with(|| factory(n))(job)).map_err(|panic| {
                // What it left behind is not to be trusted. Whatever its last word is, the job has had its end.
                let _ = dropped(worker.take());
                self.panicked(panic)
            });
            self.finish(id, result);
        }
        let _ = dropped(worker);
    }

    fn begin(&self) -> Option<(JobId, J)> {
        let mut state = self.state.lock();
        let id = state.permits.begin(self.clock.now())?;
        let job = state.places[id.place()].job.take()?;
        Some((id, job))
    }

    fn finish(&self, id: JobId, result: Result<R, Error>) {
        let mut state = self.state.lock();
        let finished = state.permits.finish(id, self.clock.now());
        let place = &mut state.places[id.place()];
        let waker = place.waker.take();
        let unwanted = match finished {
            Finished::Kept => place.result.replace(result),
            Finished::Unwanted => Some(result),
        };
        let woken = state.granted();
        drop(state);
        waker.into_iter().chain(woken).for_each(Waker::wake);
        // Nobody would hear of a last word.
        let _ = dropped(unwanted);
    }

    /// The result of a job, if it is done.
    fn take(&self, id: JobId) -> Option<Result<(R, JobTimes), Error>> {
        let mut state = self.state.lock();
        let times = state.permits.take(id, self.clock.now())?;
        let result = state.places[id.place()].result.take();
        let woken = state.granted();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        result.map(|result| result.map(|result| (result, times)))
    }

    /// Ends a job that nobody wants; the job itself, if no thread had it.
    fn cancel(&self, id: JobId) -> (Option<Cancel>, Option<J>) {
        let mut state = self.state.lock();
        let how = state.permits.cancel(id, self.clock.now());
        let (mut job, mut result, mut waker) = (None, None, None);
        if how.is_some() {
            let place = &mut state.places[id.place()];
            (job, result, waker) = (place.job.take(), place.result.take(), place.waker.take());
        }
        let woken = state.granted();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        drop((result, waker));
        (how, job)
    }

    fn full(&self, full: BridgeFull, bytes: u64, detail: Detail) -> Error {
        let BridgeFull { jobs, jobs_max, waiters, waiters_max, .. } = full;
        let text = format!("{jobs} of {jobs_max} permits taken, {waiters} of {waiters_max} callers waiting");
        Error::new(ErrorKind::CapacityExceeded, detail).with_text(text).with(|n| {
            n.target = Some(self.name.clone());
            n.stage = Some(Stage::Room);
            if detail == Detail::WaitingRoomFull {
                (n.limit, n.used) = (Some(waiters_max.into()), Some(waiters.into()));
            } else {
                (n.limit, n.used, n.requested) = (Some(full.bytes_max), Some(full.bytes), Some(bytes));
            }
        })
    }

    fn late(&self, detail: Detail, waited: Duration, stage: Stage) -> Error {
        let seen = self.snapshot();
        let text = format!("{} of {} permits taken", seen.held(), seen.limits.jobs);
        Error::new(ErrorKind::DeadlineExceeded, detail).with_text(text).with(|n| {
            n.target = Some(self.name.clone());
            n.stage = Some(stage);
            (n.limit, n.used, n.waited) = (Some(seen.limits.bytes), Some(seen.bytes), Some(waited));
        })
    }

    fn closed(&self) -> Error {
        Error::new(ErrorKind::ShuttingDown, Detail::None).with(|n| n.target = Some(self.name.clone()))
    }

    fn panicked(&self, text: String) -> Error {
        let error = Error::new(ErrorKind::Internal, Detail::HandlerPanicked).with_text(text);
        error.with(|n| n.target = Some(self.name.clone()))
    }
}

/// The right to submit one job. Dropped, it is given back.
pub struct BridgePermit<J, R> {
    core: Arc<Core<J, R>>,
    job: Option<JobId>,
}

impl<J, R> fmt::Debug for BridgePermit<J, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BridgePermit").field("bridge", &self.core.name).finish_non_exhaustive()
    }
}

impl<J, R> BridgePermit<J, R> {
    /// Hands the job to the threads. Never blocks and is never refused, except that after a shutdown
    /// nothing runs any more: the task ends in `ShuttingDown` then.
    pub fn submit(mut self, job: J) -> BridgeTask<J, R> {
        let core = self.core.clone();
        let id = self.job.take();
        let mut state = core.state.lock();
        if let Some(id) = id
            && let Some(tokens) = state.tokens.clone()
            && state.permits.submit(id, core.clock.now())
        {
            state.places[id.place()].job = Some(job);
            drop(state);
            // Full: as many tokens as there can be jobs are in there already.
            let _ = tokens.try_send(());
            return BridgeTask { core, job: Some(id), early: None };
        }
        drop(state);
        // The permit goes back with `self`.
        self.job = id;
        let early = Some(core.closed());
        BridgeTask { core, job: None, early }
    }
}

impl<J, R> Drop for BridgePermit<J, R> {
    fn drop(&mut self) {
        if let Some(job) = self.job {
            self.core.cancel(job);
        }
    }
}

/// A submitted job. Wait for its result, await it, or take it later; dropped, it is abandoned: what
/// runs runs on and keeps its permit until it ends, what has not begun never runs.
#[must_use = "dropping it abandons the work"]
pub struct BridgeTask<J, R> {
    core: Arc<Core<J, R>>,
    job: Option<JobId>,
    early: Option<Error>,
}

impl<J, R> fmt::Debug for BridgeTask<J, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BridgeTask").field("bridge", &self.core.name).finish_non_exhaustive()
    }
}

impl<J, R> Unpin for BridgeTask<J, R> {}

impl<J, R> BridgeTask<J, R> {
    /// The result with its times, if it has come. `None` also after it was taken. A worker that panicked
    /// gives an error of kind `Internal`.
    pub fn try_take(&mut self) -> Option<Result<(R, JobTimes), Error>> {
        if let Some(error) = self.early.take() {
            return Some(Err(error));
        }
        let result = self.core.take(self.job?)?;
        self.job = None;
        Some(result)
    }

    /// Sleeps until the result has come, at most for `timeout`; then the job is abandoned and the end is
    /// `DeadlineExceeded`. On a thread of the runtime, which may not block, a result that has not come is
    /// abandoned at once, and the end is `InvalidOperation`.
    pub fn wait(mut self, timeout: Duration) -> Result<(R, JobTimes), Error> {
        if here::is_runtime_thread() {
            let refused = || Error::new(ErrorKind::InvalidOperation, Detail::WaitOnShard);
            return self.try_take().unwrap_or_else(|| Err(refused()));
        }
        let begin = self.core.clock.now();
        let end = begin.after(timeout);
        self.notify(&parker::thread_waker());
        let stands = parker::stand();
        loop {
            if let Some(result) = self.try_take() {
                return result;
            }
            let now = self.core.clock.now();
            if self.job.is_none() || now >= end {
                return Err(self.core.late(Detail::NoReply, now.since(begin), Stage::Reply));
            }
            stands.park(end.since(now));
        }
    }

    /// Gives the job back if it never began. Otherwise says what became of it.
    pub fn cancel(mut self) -> Result<J, Cancel> {
        match self.job.take().map(|job| self.core.cancel(job)) {
            Some((_, Some(job))) => Ok(job),
            Some((Some(how), None)) => Err(how),
            _ => Err(Cancel::Unused),
        }
    }

    fn notify(&self, waker: &Waker) {
        let Some(id) = self.job else { return };
        let mut state = self.core.state.lock();
        let before = state.places[id.place()].waker.replace(waker.clone());
        drop(state);
        drop(before);
    }
}

impl<J, R> Future for BridgeTask<J, R> {
    type Output = Result<(R, JobTimes), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(result) = self.try_take() {
            return Poll::Ready(result);
        }
        self.notify(cx.waker());
        // The result may have come between the look and the registration.
        self.try_take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl<J, R> Drop for BridgeTask<J, R> {
    fn drop(&mut self) {
        if let Some(job) = self.job.take() {
            self.core.cancel(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::policy::bridge::BridgeTime;
    use crate::runtime::watchdog::watch;

    /// Longer than the watchdog lets any test be: a wait that only its deadline ends must fail.
    const LONG: Duration = Duration::from_secs(3600);

    fn limits(jobs: u32, waiters: u32) -> BridgeLimits {
        BridgeLimits { jobs, bytes: 1 << 20, waiters }
    }

    /// A bridge of one thread whose work is to wait for a word, and the giver of the words.
    fn stuck(jobs: u32, waiters: u32) -> (Bridge<u32, u32>, mpsc::Sender<()>) {
        let (go, wait) = mpsc::channel();
        let wait = Arc::new(Lock::new(wait));
        let work = move |_| {
            let wait = wait.clone();
            move |n: u32| {
                wait.lock().recv().unwrap();
                assert_ne!(n, 13, "thirteen");
                n + 1
            }
        };
        let ledger = &mut Ledger::new();
        (Bridge::start("stuck", ["jobs", "places"], 1, limits(jobs, waiters), ledger, work).unwrap(), go)
    }

    fn until(what: impl Fn() -> bool) {
        while !what() {
            thread::yield_now();
        }
    }

    #[test]
    fn results_come_back_and_the_numbers_add_up() {
        let _watchdog = watch();
        let mut ledger = Ledger::new();
        let bridge = Bridge::start("sum", ["jobs", "places"], 3, limits(8, 64), &mut ledger, |_| |n: u64| n * 2);
        let bridge = bridge.unwrap();
        assert!(ledger.get("jobs").is_some() && ledger.get("places").is_some());
        thread::scope(|scope| {
            for t in 0..8 {
                let bridge = &bridge;
                scope.spawn(move || {
                    for n in 0..200 {
                        let task = bridge.permit(100, LONG).unwrap().submit(t * 1000 + n);
                        assert_eq!(task.wait(LONG).unwrap().0, 2 * (t * 1000 + n));
                    }
                });
            }
        });
        let seen = bridge.shutdown(LONG);
        assert_eq!((seen.granted, seen.taken, seen.held(), seen.bytes), (1600, 1600, 0, 0));
        assert!(seen.jobs_peak <= 8 && seen.refused == 0);
        assert_eq!(seen.time(BridgeTime::Service).count, 1600);
    }

    #[test]
    fn a_panic_is_an_error_and_the_next_job_runs() {
        let _watchdog = watch();
        let (bridge, go) = stuck(2, 0);
        let bad = bridge.try_permit(1).unwrap().submit(13);
        go.send(()).unwrap();
        let error = bad.wait(LONG).unwrap_err();
        assert_eq!((error.kind(), error.detail()), (ErrorKind::Internal, Detail::HandlerPanicked));
        assert!(error.to_string().contains("thirteen") && error.to_string().contains("stuck"), "{error}");
        let good = bridge.try_permit(1).unwrap().submit(1);
        go.send(()).unwrap();
        assert_eq!(good.wait(LONG).unwrap().0, 2);
    }

    /// Panics where it is dropped, unless its thread is panicking already.
    struct LastWord;

    impl Drop for LastWord {
        fn drop(&mut self) {
            assert!(thread::panicking(), "a last word");
        }
    }

    #[test]
    fn a_worker_whose_drop_panics_costs_its_own_job_alone() {
        let _watchdog = watch();
        let make = |_| {
            let of_worker = LastWord;
            move |n: u32| {
                let _of_worker = &of_worker;
                assert_ne!(n, 13, "thirteen");
                n + 1
            }
        };
        let bridge = Bridge::start("last", ["a", "b"], 1, limits(1, 0), &mut Ledger::new(), make).unwrap();
        for _ in 0..2 {
            let bad = bridge.try_permit(1).unwrap().submit(13).wait(LONG).unwrap_err();
            assert!(bad.to_string().contains("thirteen"), "{bad}");
            assert_eq!(bridge.try_permit(1).unwrap().submit(1).wait(LONG).unwrap().0, 2);
        }
        assert_eq!(bridge.shutdown(LONG).held(), 0);
    }

    #[test]
    fn a_result_that_nobody_wants_may_panic_where_it_is_dropped() {
        let _watchdog = watch();
        let (go, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Lock::new(wait));
        let make = move |_| {
            let wait = wait.clone();
            move |()| {
                wait.lock().recv().unwrap();
                Some(LastWord)
            }
        };
        let bridge = Bridge::start("last", ["a", "b"], 1, limits(1, 0), &mut Ledger::new(), make).unwrap();
        for _ in 0..2 {
            let task = bridge.try_permit(1).unwrap().submit(());
            until(|| bridge.snapshot().running == 1);
            drop(task);
            go.send(()).unwrap();
            until(|| bridge.snapshot().held() == 0);
        }
    }

    #[test]
    fn full_is_refused_with_the_numbers_and_a_wait_ends() {
        let _watchdog = watch();
        let (bridge, go) = stuck(1, 1);
        let task = bridge.try_permit(700).unwrap().submit(1);
        let refused = bridge.try_permit(5).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::CapacityExceeded);
        assert!(refused.to_string().contains("1 of 1 permits taken"), "{refused}");
        let late = bridge.permit(5, Duration::from_millis(1)).unwrap_err();
        assert_eq!((late.kind(), late.detail()), (ErrorKind::DeadlineExceeded, Detail::NoRoom));
        assert!(late.figures().waited.is_some());
        thread::scope(|scope| {
            let waiting = scope.spawn(|| bridge.permit(5, LONG).unwrap().submit(2).wait(LONG).unwrap().0);
            until(|| bridge.snapshot().waiting == 1);
            assert_eq!(bridge.permit(5, LONG).unwrap_err().detail(), Detail::WaitingRoomFull);
            go.send(()).unwrap();
            assert_eq!(task.wait(LONG).unwrap().0, 2);
            go.send(()).unwrap();
            assert_eq!(waiting.join().unwrap(), 3);
        });
        assert_eq!((bridge.snapshot().refused, bridge.snapshot().left), (2, 1));
    }

    #[test]
    fn cancelling_says_how_far_it_had_come() {
        let _watchdog = watch();
        let (bridge, go) = stuck(3, 0);
        let running = bridge.try_permit(1).unwrap().submit(1);
        let queued = bridge.try_permit(1).unwrap().submit(2);
        drop(bridge.try_permit(1).unwrap());
        until(|| bridge.snapshot().running == 1);
        assert_eq!(queued.cancel(), Ok(2));
        assert_eq!(running.cancel(), Err(Cancel::Abandoned));
        assert_eq!((bridge.snapshot().running, bridge.snapshot().abandoned), (1, 1));
        go.send(()).unwrap();
        until(|| bridge.snapshot().held() == 0);
        let done = bridge.try_permit(1).unwrap().submit(3);
        go.send(()).unwrap();
        until(|| bridge.snapshot().done == 1);
        assert_eq!(done.cancel(), Err(Cancel::Discarded));
        let seen = bridge.snapshot();
        assert_eq!((seen.given_back, seen.withdrawn, seen.abandoned_finished, seen.discarded), (1, 1, 1, 1));
    }

    #[test]
    fn a_shutdown_finishes_what_was_submitted_and_ends_the_waits() {
        let _watchdog = watch();
        let (bridge, go) = stuck(2, 1);
        let task = bridge.try_permit(1).unwrap().submit(1);
        let permit = bridge.try_permit(1).unwrap();
        let core = bridge.core.clone();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| bridge.permit(1, LONG).unwrap_err().kind());
            until(|| core.snapshot().waiting == 1);
            core.close();
            assert_eq!(waiting.join().unwrap(), ErrorKind::ShuttingDown);
        });
        assert_eq!(permit.submit(5).wait(LONG).unwrap_err().kind(), ErrorKind::ShuttingDown);
        assert_eq!(bridge.try_permit(1).unwrap_err().kind(), ErrorKind::ShuttingDown);
        let left = bridge.shutdown(Duration::from_millis(1));
        assert_eq!(left.running + left.queued, 1, "it hangs, and the shutdown says so");
        go.send(()).unwrap();
        assert_eq!(task.wait(LONG).unwrap().0, 2);
    }

    #[test]
    fn a_thread_that_may_not_block_gets_what_there_is() {
        let _watchdog = watch();
        let (bridge, go) = stuck(2, 0);
        let done = bridge.try_permit(1).unwrap().submit(1);
        go.send(()).unwrap();
        until(|| bridge.snapshot().done == 1);
        let not_yet = bridge.try_permit(1).unwrap().submit(2);
        here::enter_runtime();
        assert_eq!(done.wait(LONG).unwrap().0, 2);
        assert_eq!(not_yet.wait(LONG).unwrap_err().detail(), Detail::WaitOnShard);
        go.send(()).unwrap();
        until(|| bridge.snapshot().held() == 0);
    }

    #[test]
    fn after_a_shutdown_nobody_holds_what_the_work_needed() {
        let _watchdog = watch();
        let held = Arc::new(());
        let of_factory = held.clone();
        let make = move |_| {
            let of_worker = of_factory.clone();
            move |n: usize| n + Arc::strong_count(&of_worker)
        };
        let bridge = Bridge::start("held", ["a", "b"], 2, limits(2, 0), &mut Ledger::new(), make).unwrap();
        assert!(bridge.try_permit(1).unwrap().submit(0).wait(LONG).unwrap().0 >= 3);
        bridge.shutdown(LONG);
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[test]
    fn every_bound_out_of_its_range_is_named() {
        let _watchdog = watch();
        let limits = BridgeLimits { jobs: 0, bytes: 0, waiters: 65_537 };
        let made = Bridge::start("no", ["a", "b"], 0, limits, &mut Ledger::new(), |_| |n: u8| n);
        let named: Vec<&str> = made.unwrap_err().violations().iter().map(|v| v.option).collect();
        assert_eq!(named, ["threads", "jobs", "waiters", "bytes"]);
    }
}
