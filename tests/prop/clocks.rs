//! Case 062. A clock that goes back, jumps and stands still: no machine panics, no duration is negative or longer
//! than all the time there was, nothing fires twice, early or out of its order. (Who waits for room stands in a list: no clock orders it.)

use std::time::Duration;

use afflux::Lane;
use afflux::base::id::ShardId;
use afflux::base::time::Instant;
use afflux::flow::link_clock::LinkClock;
use afflux::flow::liveness::{Action, Liveness, Peer};
use afflux::flow::pressure::{Heard, Told};
use afflux::flow::wheel::TimerWheel;
use afflux::policy::batch::{Batch, BatchLimits};
use afflux::policy::fairness::NoProgress;
use afflux::sync::gate::{GateConfig, PermitGate, Waited};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const HOUR: i64 = 3_600_000;

#[derive(Clone, Debug)]
enum Op {
    /// The clock moves by so many milliseconds.
    By(i64),
    /// A timer so many milliseconds ahead.
    Timer(u64),
    Turn,
}

fn op() -> impl Strategy<Value = Op> {
    let by = prop_oneof![Just(0), Just(-5), Just(HOUR), -HOUR..HOUR, 1..10i64];
    let ahead = prop_oneof![Just(0), Just(50), 0..200u64, 0..100_000_000u64];
    prop_oneof![3 => by.prop_map(Op::By), 3 => ahead.prop_map(Op::Timer), 4 => Just(Op::Turn)]
}

proptest! {
    #[test]
    fn whatever_a_clock_does_nothing_panics_or_wraps(ops in prop::collection::vec(op(), 1..150)) {
        let mut now = 10 * HOUR as u64 * MS;
        let (mut first, mut last) = (now, now);
        let mut wheel = TimerWheel::new(200);
        let mut timers: Vec<(u64, usize)> = Vec::new();
        let gate = PermitGate::new(GateConfig { limit: 1, shards: 1, pause_at: 1, resume_at: 0 });
        let (mut liveness, mut clock) = (
            Liveness::new(Peer::Native, Duration::from_secs(5), Duration::from_secs(15), Instant(now)),
            LinkClock::new(7, Instant(now)),
        );
        let (mut told, mut heard) = (Told::default(), Heard::default());
        let mut progress = NoProgress::default();
        let mut batch = Batch::new(BatchLimits { items: 4, bytes: 1000, age: Duration::from_millis(20), reserve: Duration::from_millis(1) });
        let mut deaths = 0;
        for (n, op) in ops.into_iter().enumerate() {
            match op {
                Op::By(by) => now = now.saturating_add_signed(by * MS as i64),
                Op::Timer(ahead) => {
                    let at = now + ahead * MS;
                    wheel.insert(Instant(at), n).unwrap();
                    // What was due when the clock showed more already is due with what is due then.
                    timers.push((at.max(last), n));
                }
                Op::Turn => {}
            }
            (first, last) = (first.min(now), last.max(now));
            let (at, span) = (Instant(now), Duration::from_nanos(last - first));

            let mut fired = Vec::new();
            wheel.poll(at, 1000, |n| fired.push(n));
            let due: Vec<_> = fired.iter().map(|n| *timers.iter().find(|(_, t)| t == n).expect("once")).collect();
            prop_assert!(due.iter().all(|(due, _)| *due <= now || now < last), "early: {:?} at {}", due, now);
            prop_assert!(due.windows(2).all(|two| {
                let tick = |t: u64| t.div_ceil(MS);
                two[0].0 <= two[1].0 || tick(two[0].0) == tick(two[1].0)
            }), "{:?}", due);
            timers.retain(|(_, n)| !fired.contains(n));
            // Nothing that is due stays behind once the clock shows again what it has shown before.
            prop_assert!(now < last || timers.iter().all(|(due, _)| due.div_ceil(MS) > now / MS), "stuck: {:?} at {}", timers, now);

            if n % 3 == 0 {
                liveness.on_bytes(Lane::Completion, at);
                clock.on_reading((now / MS) as u32, at);
                progress.ready(at);
            }
            while let Some(action) = liveness.poll(at) {
                deaths += u32::from(action == Action::Dead);
            }
            let _ = (told.poll(n % 2 == 0, at), heard.on_told(n % 2 == 0, n as u64 + 1, at), clock.peer_ms(at));
            prop_assert!(heard.paused_total(at) <= span * n as u32 + span, "{:?} of {span:?}", heard.paused_total(at));
            let _ = (batch.offer(10, at.after(Duration::from_millis(5)), at), batch.poll(at), batch.flush());
            if n % 5 == 4 {
                progress.served(at, n % 2 == 0);
            }
            prop_assert!(progress.longest(at) <= span && progress.current(at) <= span, "{:?}", progress);
            if gate.acquire(ShardId(0), 1, at) == 1 {
                if let Waited::Ticket(ticket) = gate.wait(ShardId(0), at, at) {
                    now = now.saturating_sub(5 * MS);
                    let _ = gate.cancel(ticket);
                }
                let _ = gate.release(ShardId(0), 1, Instant(now));
            }
            let seen = gate.snapshot(Instant(now));
            prop_assert!(seen.paused_total <= span * (n as u32 + 1) && seen.wait_duration <= span * (n as u32 + 1), "{:?}", seen);
            prop_assert_eq!(seen.in_use, 0);
        }
        prop_assert!(deaths <= 1);
    }
}
