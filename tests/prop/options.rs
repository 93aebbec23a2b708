//! Random options: either a plan that keeps every inequality and says what was stated, or violations that
//! name the options; never both, never a panic, never a default in place of a wrong value.

use std::time::Duration;

use afflux::base::error::ErrorKind;
use afflux::base::unit::ByteSize;
use afflux::host::options::{HostBuilder, IdlePolicy, Placement};
use afflux::host::resolve::resolve;
use afflux::plan::{Hwm, HwmProfile, JobQueueProfile, Pinning};
use afflux::runtime::machine::{Machine, Quota};
use proptest::prelude::*;

const MAX: u64 = u64::MAX;
const MIB: u64 = 1 << 20;
const TIMEOUT_MAX: u64 = i32::MAX as u64;

/// One call of a setter.
#[derive(Clone, Debug)]
pub enum Op {
    Name(String),
    Listen(u16),
    Connect(u8, u64),
    Shards(Placement),
    Pinning(Pinning),
    Idle(u64),
    Profiles(HwmProfile, JobQueueProfile),
    MemoryLimit(u64),
    Budget(u64),
    SendHwm(u64),
    ReceiveHwm(u64),
    MaxMessage(u64),
    Owned(u64),
    MaxJobs(u64),
    PauseResume(u64, u64),
    TargetShare(u64),
    Started(u64),
    Room(u64, u64),
    Slots(u64),
    ReplyMarks(u64, u64),
    ReplyHold(u64),
    SendTimeout(u64),
    RequestTimeout(u64),
    Rings(u64),
    Peers(u64),
    Heartbeat(u64, u64),
    Reconnect(u64, u64),
}

/// Mostly right, often at an edge, sometimes wrong.
fn number(low: u64, high: u64) -> impl Strategy<Value = u64> + Clone {
    prop_oneof![
        8 => low..=high,
        1 => Just(low),
        1 => Just(high),
        1 => prop::sample::select(vec![0, low.saturating_sub(1), high.saturating_add(1), MAX]),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let pinning = prop::sample::select(vec![Pinning::Required, Pinning::BestEffort, Pinning::Off]);
    let profiles = (prop::sample::select(&HwmProfile::ALL[..]), prop::sample::select(&JobQueueProfile::ALL[..]));
    let placement = prop_oneof![
        Just(Placement::Auto),
        number(1, 256).prop_map(|n| Placement::Count(n as usize)),
        prop::collection::vec(0_usize..6, 0..4).prop_map(Placement::Cpus),
    ];
    let size = || prop_oneof![4 => number(1, 512 << 30), 4 => 0..(256 * MIB)];
    prop_oneof![
        prop_oneof![Just("web-1".to_owned()), "[a-z ./]{0,4}", Just("n".repeat(65))].prop_map(Op::Name),
        any::<u16>().prop_map(Op::Listen),
        (0_u8..9, number(1, 64)).prop_map(|(host, links)| Op::Connect(host, links)),
        placement.prop_map(Op::Shards),
        pinning.prop_map(Op::Pinning),
        number(1, 1000).prop_map(Op::Idle),
        profiles.prop_map(|(hwm, jobs)| Op::Profiles(hwm, jobs)),
        number(1, 8 << 30).prop_map(Op::MemoryLimit),
        number(1, 8 << 30).prop_map(Op::Budget),
        number(1, 32 << 30).prop_map(Op::SendHwm),
        prop_oneof![number(1, 32 << 30), 0..MIB].prop_map(Op::ReceiveHwm),
        prop_oneof![number(1, 1 << 30), 0..MIB].prop_map(Op::MaxMessage),
        size().prop_map(Op::Owned),
        number(1, TIMEOUT_MAX).prop_map(Op::MaxJobs),
        (number(1, 100), number(0, 99)).prop_map(|(p, r)| Op::PauseResume(p, r)),
        number(1, 100).prop_map(Op::TargetShare),
        number(1, u64::from(u32::MAX)).prop_map(Op::Started),
        (number(1, 1_048_574), size()).prop_map(|(ops, bytes)| Op::Room(ops, bytes)),
        number(1, 1_048_574).prop_map(Op::Slots),
        (size(), size()).prop_map(|(peer, host)| Op::ReplyMarks(peer, host)),
        size().prop_map(Op::ReplyHold),
        number(1, TIMEOUT_MAX).prop_map(Op::SendTimeout),
        number(1, TIMEOUT_MAX).prop_map(Op::RequestTimeout),
        number(1, 65_536).prop_map(Op::Rings),
        number(1, 1_000_000).prop_map(Op::Peers),
        (number(1, TIMEOUT_MAX), number(1, TIMEOUT_MAX)).prop_map(|(i, d)| Op::Heartbeat(i, d)),
        (number(1, TIMEOUT_MAX), number(1, TIMEOUT_MAX)).prop_map(|(a, b)| Op::Reconnect(a, b)),
    ]
}

fn machine() -> impl Strategy<Value = Machine> {
    let quota =
        prop::option::of((1_u64..2_000_000, 1_u64..200_000).prop_map(|(micros, period)| Quota { micros, period }));
    let memory = || prop::option::of(MIB..(1 << 40));
    (0_usize..6, prop::option::of(1_usize..600), quota, memory(), memory()).prop_map(
        |(cpus, processors, quota, memory_hard, memory_physical)| Machine {
            cpus: (0..cpus).collect(),
            processors,
            quota,
            memory_hard,
            memory_physical,
        },
    )
}

/// Calls the setter. The second value is the option's name if the value is wrong whatever the others are.
fn set(builder: HostBuilder, op: &Op) -> (HostBuilder, Option<&'static str>) {
    let b = ByteSize::bytes;
    let ms = Duration::from_millis;
    let wrong = |out: bool, option: &'static str| out.then_some(option);
    let outside = |n: u64, low: u64, high: u64, option| wrong(!(low..=high).contains(&n), option);
    let time = |n: u64, option| outside(n, 1, TIMEOUT_MAX, option);
    match op.clone() {
        Op::Name(_) => (builder, None),
        Op::Listen(port) => (builder.listen(format!("tcp://:{port}")), None),
        Op::Connect(host, links) => {
            (builder.connect(format!("tcp://10.0.0.{host}:7")).links(links), outside(links, 1, 64, "links"))
        }
        Op::Shards(placement) => {
            let wrong = match &placement {
                Placement::Count(n) => outside(*n as u64, 1, 256, "shards"),
                Placement::Cpus(cpus) => outside(cpus.len() as u64, 1, 256, "shards"),
                _ => None,
            };
            (builder.shards(placement), wrong)
        }
        Op::Pinning(pinning) => (builder.pinning(pinning), None),
        Op::Idle(n) => (builder.idle(IdlePolicy::SpinThenPark(ms(n))), outside(n, 1, 1000, "idle")),
        Op::Profiles(hwm, jobs) => (builder.hwm(hwm).jobs(jobs), None),
        Op::MemoryLimit(n) => (builder.memory_limit(b(n)), wrong(n == 0, "memory_limit")),
        Op::Budget(n) => (builder.hwm_budget(b(n)), wrong(n == 0, "hwm_budget")),
        Op::SendHwm(n) => (builder.send_hwm(Hwm::Bytes(b(n))), outside(n, 1, 32 << 30, "send_hwm")),
        Op::ReceiveHwm(n) => (builder.receive_hwm(Hwm::Bytes(b(n))), outside(n, 1, 32 << 30, "receive_hwm")),
        Op::MaxMessage(n) => (builder.max_message_size(b(n)), outside(n, 1, 1 << 30, "max_message_size")),
        Op::Owned(n) => (builder.max_owned_bytes(b(n)), outside(n, 1, 512 << 30, "max_owned_bytes")),
        Op::MaxJobs(n) => (builder.max_jobs(n), outside(n, 1, TIMEOUT_MAX, "max_jobs")),
        Op::PauseResume(p, r) => {
            let bad = !(1..=100).contains(&p) || r > 99 || r >= p;
            (builder.pause_resume(p, r), wrong(bad, "pause_resume"))
        }
        Op::TargetShare(n) => (builder.target_job_share(n), outside(n, 1, 100, "target_job_share")),
        Op::Started(n) => (builder.max_started_handlers(n), outside(n, 1, u64::from(u32::MAX), "max_started_handlers")),
        Op::Room(ops, bytes) => {
            let bad = !(1..=1_048_574).contains(&ops) || !(1..=512 << 30).contains(&bytes);
            (builder.waiting_room(ops, b(bytes)), wrong(bad, "waiting_room"))
        }
        Op::Slots(n) => (builder.request_slots(n), outside(n, 1, 1_048_574, "request_slots")),
        Op::ReplyMarks(peer, host) => {
            let bad = !(1..=512 << 30).contains(&peer) || !(1..=512 << 30).contains(&host) || peer > host;
            (builder.reply_marks(b(peer), b(host)), wrong(bad, "reply_marks"))
        }
        Op::ReplyHold(n) => (builder.reply_hold(b(n)), outside(n, 1, 512 << 30, "reply_hold")),
        Op::SendTimeout(n) => (builder.send_timeout(ms(n)), time(n, "send_timeout")),
        Op::RequestTimeout(n) => (builder.request_timeout(ms(n)), time(n, "request_timeout")),
        Op::Rings(n) => (builder.max_caller_rings(n), outside(n, 1, 65_536, "max_caller_rings")),
        Op::Peers(n) => (builder.max_peers(n), outside(n, 1, 1_000_000, "max_peers")),
        Op::Heartbeat(i, d) => {
            let bad = time(i, "heartbeat").or(time(d, "heartbeat")).is_some() || d <= i;
            (builder.heartbeat(ms(i), ms(d)), wrong(bad, "heartbeat"))
        }
        Op::Reconnect(first, longest) => {
            let bad = time(first, "reconnect").or(time(longest, "reconnect")).is_some() || first > longest;
            (builder.reconnect(ms(first), ms(longest)), wrong(bad, "reconnect"))
        }
    }
}

/// Later calls of a setter replace earlier ones, except those that add.
fn adds(op: &Op) -> bool {
    matches!(op, Op::Listen(_) | Op::Connect(..))
}

pub fn build(ops: &[Op]) -> (HostBuilder, Vec<Op>, Vec<&'static str>) {
    let same = |a: &Op, b: &Op| std::mem::discriminant(a) == std::mem::discriminant(b);
    let last: Vec<Op> = ops
        .iter()
        .enumerate()
        .filter(|(i, op)| adds(op) || !ops[i + 1..].iter().any(|later| same(op, later)))
        .map(|(_, op)| op.clone())
        .collect();
    let name = last.iter().find_map(|op| if let Op::Name(name) = op { Some(name.clone()) } else { None });
    let mut builder = HostBuilder::new(name.unwrap_or("web-1".into()));
    let mut wrong = Vec::new();
    for op in &last {
        let (next, bad) = set(builder, op);
        builder = next;
        wrong.extend(bad);
    }
    (builder, last, wrong)
}

pub fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 0..7)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_plan_or_violations_that_name_the_options(ops in ops(), machine in machine()) {
        let (builder, ops, wrong) = build(&ops);
        match resolve(builder.options(), &machine) {
            Err(error) => {
                prop_assert_eq!(error.kind(), ErrorKind::Config, "{}", error);
                prop_assert!(!error.violations().is_empty());
                for option in wrong {
                    prop_assert!(error.violations().iter().any(|v| v.option == option), "{} is not in {}", option, error);
                }
                for violation in error.violations() {
                    prop_assert!(!violation.value.is_empty() && !violation.rule.is_empty());
                }
            }
            Ok(plan) => {
                prop_assert!(wrong.is_empty(), "{:?} were let through", wrong);
                prop_assert_eq!(plan.check(), Ok(()));
                prop_assert!(plan.places().cells < 1 << 20);
                prop_assert!(plan.send_mark < 1 << 36 && plan.receive_mark < 1 << 36);
                for op in ops {
                    match op {
                        Op::MaxJobs(n) => prop_assert_eq!(u64::from(plan.jobs.limit), n),
                        Op::SendHwm(n) => prop_assert_eq!(plan.send_mark, n),
                        Op::ReceiveHwm(n) => prop_assert_eq!(plan.receive_mark, n),
                        Op::Budget(n) => prop_assert_eq!(plan.hwm.budget, n),
                        Op::MaxMessage(n) => prop_assert_eq!(plan.max_message, n),
                        Op::Owned(n) => prop_assert_eq!(plan.max_owned_bytes, n),
                        Op::TargetShare(n) => {
                            let each = (u64::from(plan.jobs.limit) * n / 100).max(1);
                            prop_assert_eq!((u64::from(plan.jobs.per_target), plan.jobs.caps_targets()), (each, each < u64::from(plan.jobs.limit)));
                        }
                        Op::Started(n) => prop_assert_eq!(u64::from(plan.max_started), n),
                        Op::Room(ops, bytes) => {
                            prop_assert_eq!((u64::from(plan.room.ops), plan.room.bytes), (ops, bytes));
                        }
                        Op::SendTimeout(n) => prop_assert_eq!(plan.send_timeout, Duration::from_millis(n)),
                        Op::Shards(Placement::Count(n)) => prop_assert_eq!(usize::from(plan.shards), n),
                        Op::Shards(Placement::Cpus(cpus)) => prop_assert_eq!(usize::from(plan.shards), cpus.len()),
                        _ => {}
                    }
                }
            }
        }
    }

    #[test]
    fn threads_get_processors_that_exist_and_nobody_shares_one(ops in ops(), machine in machine()) {
        let (builder, _, _) = build(&ops);
        if let Ok(plan) = resolve(builder.options(), &machine) {
            let mut cpus: Vec<usize> = plan.shard_cpus.iter().copied().chain([plan.completion_cpu]).flatten().collect();
            let all = cpus.len();
            cpus.sort_unstable();
            cpus.dedup();
            prop_assert_eq!(cpus.len(), all);
            if plan.pinning == Pinning::Required {
                prop_assert!(plan.shard_cpus.iter().all(|cpu| cpu.is_some_and(|cpu| machine.cpus.contains(&cpu))));
            }
            if plan.pinning == Pinning::Off {
                prop_assert!(cpus.is_empty());
            }
        }
    }
}
