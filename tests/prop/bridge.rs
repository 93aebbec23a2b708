//! The oracle keeps every job and every waiter by name. Permits never exceed their bounds, whoever waits is
//! served in order, every permit ends in exactly one way, and the times add up to each job's life.

use std::collections::VecDeque;
use std::time::Duration;

use afflux::base::time::Instant;
use afflux::policy::bridge::{BridgeLimits, BridgePermits, BridgeTime, Cancel, Finished, JobId, WaiterId};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Op {
    Try(u64),
    Wait(u64),
    Fetch(usize),
    Leave(usize),
    Submit(usize),
    Begin,
    Finish(usize),
    Take(usize),
    Cancel(usize),
    Advance(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let bytes = || prop_oneof![6 => 0..30u64, 1 => 30..200u64];
    prop_oneof![
        4 => bytes().prop_map(Op::Try),
        3 => bytes().prop_map(Op::Wait),
        4 => any::<usize>().prop_map(Op::Fetch),
        1 => any::<usize>().prop_map(Op::Leave),
        5 => any::<usize>().prop_map(Op::Submit),
        4 => Just(Op::Begin),
        4 => any::<usize>().prop_map(Op::Finish),
        4 => any::<usize>().prop_map(Op::Take),
        2 => any::<usize>().prop_map(Op::Cancel),
        3 => (0..50u64).prop_map(Op::Advance),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Permit,
    Queued,
    Running,
    Abandoned,
    Done,
}

#[derive(Clone, Debug)]
struct Job {
    id: JobId,
    bytes: u64,
    stage: Stage,
    asked: u64,
}

#[derive(Clone, Debug)]
struct Waiter {
    id: WaiterId,
    bytes: u64,
    since: u64,
}

#[derive(Default)]
struct Oracle {
    jobs: Vec<Job>,
    queue: VecDeque<JobId>,
    waiting: VecDeque<Waiter>,
    /// Granted and not fetched: which waiter, and its place in `jobs` is found when it fetches.
    granted: Vec<Waiter>,
    over: u64,
    grants: u64,
}

impl Oracle {
    fn held(&self) -> usize {
        self.jobs.len() + self.granted.len()
    }

    fn bytes(&self) -> u64 {
        self.jobs.iter().map(|j| j.bytes).chain(self.granted.iter().map(|w| w.bytes)).sum()
    }

    fn fits(&self, limits: BridgeLimits, bytes: u64) -> bool {
        self.held() == 0 || self.held() < limits.jobs as usize && self.bytes() + bytes <= limits.bytes
    }

    fn admit(&mut self, limits: BridgeLimits) {
        while let Some(first) = self.waiting.front() {
            if !self.fits(limits, first.bytes) {
                return;
            }
            let first = self.waiting.pop_front().unwrap();
            self.granted.push(first);
            self.grants += 1;
        }
    }

    fn pick(&self, n: usize, stages: &[Stage]) -> Option<usize> {
        let of: Vec<usize> = (0..self.jobs.len()).filter(|i| stages.contains(&self.jobs[*i].stage)).collect();
        (!of.is_empty()).then(|| of[n % of.len()])
    }
}

proptest! {
    #[test]
    fn every_permit_ends_once_and_nobody_overtakes(
        jobs in 1..5u32, bytes in 1..100u64, waiters in 0..4u32,
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let limits = BridgeLimits { jobs, bytes, waiters };
        let mut machine = BridgePermits::new(limits);
        let mut oracle = Oracle::default();
        let mut now = 0;
        for op in ops {
            let at = Instant(now);
            match op {
                Op::Advance(by) => now += by,
                Op::Try(bytes) => {
                    let may = oracle.waiting.is_empty() && oracle.fits(limits, bytes);
                    let got = machine.try_permit(bytes, at);
                    prop_assert_eq!(got.is_ok(), may);
                    if let Ok(id) = got {
                        oracle.grants += 1;
                        oracle.jobs.push(Job { id, bytes, stage: Stage::Permit, asked: now });
                    }
                }
                Op::Wait(bytes) => {
                    let free = oracle.waiting.is_empty() && oracle.fits(limits, bytes);
                    let got = machine.wait(bytes, at);
                    prop_assert_eq!(got.is_ok(), free || oracle.waiting.len() < waiters as usize);
                    if let Ok(id) = got {
                        oracle.waiting.push_back(Waiter { id, bytes, since: now });
                        oracle.admit(limits);
                    }
                }
                Op::Fetch(n) => {
                    if !oracle.waiting.is_empty() {
                        prop_assert_eq!(machine.fetch(oracle.waiting[n % oracle.waiting.len()].id), None);
                    }
                    if !oracle.granted.is_empty() {
                        let i = n % oracle.granted.len();
                        let Waiter { id, bytes, since } = oracle.granted.remove(i);
                        let job = machine.fetch(id);
                        prop_assert!(job.is_some(), "it was granted");
                        oracle.jobs.push(Job { id: job.unwrap(), bytes, stage: Stage::Permit, asked: since });
                    }
                }
                Op::Leave(n) => {
                    let all: Vec<Waiter> = oracle.granted.iter().chain(&oracle.waiting).cloned().collect();
                    if all.is_empty() { continue }
                    let Waiter { id, bytes, since } = all[n % all.len()].clone();
                    let was = oracle.granted.iter().any(|w| w.id == id);
                    let job = machine.leave(id, at);
                    prop_assert_eq!(job.is_some(), was);
                    oracle.granted.retain(|w| w.id != id);
                    oracle.waiting.retain(|w| w.id != id);
                    if let Some(id) = job {
                        oracle.jobs.push(Job { id, bytes, stage: Stage::Permit, asked: since });
                    }
                    oracle.admit(limits);
                    prop_assert_eq!(machine.leave(id, at), None, "gone");
                }
                Op::Submit(n) => {
                    if let Some(i) = oracle.pick(n, &[Stage::Permit]) {
                        prop_assert!(machine.submit(oracle.jobs[i].id, at));
                        prop_assert!(!machine.submit(oracle.jobs[i].id, at), "twice");
                        oracle.jobs[i].stage = Stage::Queued;
                        oracle.queue.push_back(oracle.jobs[i].id);
                    }
                }
                Op::Begin => {
                    let begun = machine.begin(at);
                    prop_assert_eq!(begun, oracle.queue.pop_front());
                    if let Some(job) = oracle.jobs.iter_mut().find(|j| Some(j.id) == begun) {
                        job.stage = Stage::Running;
                    }
                }
                Op::Finish(n) => {
                    if let Some(i) = oracle.pick(n, &[Stage::Running, Stage::Abandoned]) {
                        let wanted = oracle.jobs[i].stage == Stage::Running;
                        let finished = machine.finish(oracle.jobs[i].id, at);
                        prop_assert_eq!(finished == Finished::Kept, wanted);
                        if wanted {
                            oracle.jobs[i].stage = Stage::Done;
                        } else {
                            oracle.jobs.remove(i);
                            oracle.over += 1;
                            oracle.admit(limits);
                        }
                    }
                }
                Op::Take(n) => {
                    if let Some(i) = oracle.pick(n, &[Stage::Queued, Stage::Running, Stage::Abandoned]) {
                        prop_assert_eq!(machine.take(oracle.jobs[i].id, at), None, "not done");
                    }
                    if let Some(i) = oracle.pick(n, &[Stage::Done]) {
                        let job = oracle.jobs.remove(i);
                        let times = machine.take(job.id, at).unwrap();
                        let sum = times.permit_wait + times.queue_wait + times.service + times.result_wait;
                        // Between the permit and the submission nobody waits for the bridge.
                        prop_assert!(sum <= Duration::from_nanos(now - job.asked));
                        oracle.over += 1;
                        oracle.admit(limits);
                    }
                }
                Op::Cancel(n) => {
                    let all = [Stage::Permit, Stage::Queued, Stage::Running, Stage::Done];
                    if let Some(i) = oracle.pick(n, &all) {
                        let Job { id, stage, .. } = oracle.jobs[i].clone();
                        let how = machine.cancel(id, at);
                        let expected = match stage {
                            Stage::Permit => Cancel::Unused,
                            Stage::Queued => Cancel::Withdrawn,
                            Stage::Running | Stage::Abandoned => Cancel::Abandoned,
                            Stage::Done => Cancel::Discarded,
                        };
                        prop_assert_eq!(how, Some(expected));
                        if expected == Cancel::Abandoned {
                            oracle.jobs[i].stage = Stage::Abandoned;
                        } else {
                            oracle.jobs.remove(i);
                            oracle.queue.retain(|other| *other != id);
                            oracle.over += 1;
                            oracle.admit(limits);
                        }
                        prop_assert_eq!(machine.cancel(id, at), None, "once");
                    }
                }
            }
            let seen = machine.snapshot(Instant(now));
            let count = |stage| oracle.jobs.iter().filter(|j| j.stage == stage).count();
            prop_assert_eq!(seen.permits as usize, count(Stage::Permit) + oracle.granted.len());
            prop_assert_eq!(seen.queued as usize, count(Stage::Queued));
            prop_assert_eq!(seen.running as usize, count(Stage::Running) + count(Stage::Abandoned));
            prop_assert_eq!(seen.abandoned as usize, count(Stage::Abandoned));
            prop_assert_eq!(seen.done as usize, count(Stage::Done));
            prop_assert_eq!(seen.waiting as usize, oracle.waiting.len());
            prop_assert_eq!(seen.bytes, oracle.bytes());
            prop_assert!(seen.held() <= jobs && seen.jobs_peak <= jobs);
            prop_assert!(seen.bytes <= bytes || seen.held() == 1);
            let ended =
                seen.given_back + seen.withdrawn + seen.taken + seen.discarded + seen.abandoned_finished;
            prop_assert_eq!(ended, oracle.over);
            prop_assert_eq!(seen.granted, ended + u64::from(seen.held()));
            prop_assert_eq!(seen.granted, oracle.grants);
            prop_assert_eq!(seen.time(BridgeTime::ResultWait).count, seen.taken);
            let granted: Vec<WaiterId> = machine.granted().collect();
            prop_assert_eq!(granted, oracle.granted.iter().map(|w| w.id).collect::<Vec<_>>());
        }
    }
}
