use super::*;

fn gate(limit: u32, shards: u16) -> PermitGate {
    thresholds(limit, shards, 80, 60)
}

fn thresholds(limit: u32, shards: u16, pause: u32, resume: u32) -> PermitGate {
    let pause_at = (limit * pause).div_ceil(100);
    PermitGate::new(GateConfig { limit, shards, pause_at, resume_at: limit * resume / 100 })
}

const S0: ShardId = ShardId(0);
const S1: ShardId = ShardId(1);

fn ms(ms: u64) -> Instant {
    Instant(ms * 1_000_000)
}

fn ticket(gate: &PermitGate, shard: ShardId, at: Instant) -> Ticket {
    match gate.wait(shard, at, at) {
        Waited::Ticket(ticket) => ticket,
        other => panic!("{shard} was to wait: {other:?}"),
    }
}

fn woken(outcome: Outcome) -> Vec<u16> {
    outcome.wake.iter().map(|shard| shard.0).collect()
}

/// The sum of the holdings is what is in use, at any quiet moment.
fn in_use(gate: &PermitGate) -> u32 {
    let shot = gate.snapshot(ms(0));
    assert_eq!(shot.held_by_shard.iter().sum::<u32>(), shot.in_use);
    assert!(shot.in_use <= shot.peak && shot.peak <= shot.limit);
    shot.in_use
}

#[test]
fn one_permit_passes_from_hand_to_hand_without_a_dip() {
    let gate = thresholds(1, 1, 80, 60);
    assert_eq!((gate.acquire(S0, 64, ms(0)), gate.acquire(S0, 1, ms(0))), (1, 0));
    assert_eq!(gate.pressure(), (Pressure::Paused, 1));
    let waiting = ticket(&gate, S0, ms(1));
    let outcome = gate.release(S0, 1, ms(2));
    assert_eq!((woken(outcome), outcome.crossed, in_use(&gate)), (vec![0], None, 1));
    assert_eq!(gate.acquire(S0, 1, ms(2)), 0, "granted is not free");
    assert_eq!((gate.take_grants(S0), gate.take_grants(S0)), (1, 0));
    assert!(gate.redeem(waiting));
    assert_eq!(gate.release(S0, 1, ms(3)).crossed, Some(Pressure::Running));
    assert_eq!((in_use(&gate), gate.pressure(), gate.snapshot(ms(3)).peak), (0, (Pressure::Running, 2), 1));
}

#[test]
fn an_available_permit_needs_no_ticket() {
    let gate = gate(2, 1);
    assert_eq!(gate.wait(S0, ms(0), ms(0)), Waited::Acquired);
    assert_eq!(gate.acquire(S0, 9, ms(0)), 1);
    assert_eq!((gate.snapshot(ms(0)).waits, in_use(&gate)), (0, 2));
}

#[test]
fn with_four_shards_and_one_job_the_order_of_grants_is_the_order_of_tickets() {
    let gate = gate(1, 4);
    assert_eq!(gate.acquire(ShardId(3), 1, ms(0)), 1);
    let order = [2, 0, 3, 2, 1, 0, 3];
    let tickets: Vec<_> = (1..).zip(order).map(|(at, shard)| ticket(&gate, ShardId(shard), ms(at))).collect();
    let mut holder = 3;
    for (next, ticket) in order.into_iter().zip(tickets) {
        assert_eq!(woken(gate.release(ShardId(holder), 1, ms(9))), [next]);
        for fresh in 0..4 {
            assert_eq!(gate.acquire(ShardId(fresh), 1, ms(9)), 0, "overtook");
        }
        assert_eq!(gate.take_grants(ShardId(next)), 1);
        assert!(gate.redeem(ticket));
        holder = next;
    }
    assert_eq!(woken(gate.release(ShardId(holder), 1, ms(9))), []);
    assert_eq!(in_use(&gate), 0);
}

#[test]
fn stuck_shards_leave_the_others_their_share() {
    for (limit, share) in [(512, 32), (16, 1), (4, 1)] {
        let gate = gate(limit, 4);
        assert_eq!(gate.share(), share);
        for stuck in 0..3 {
            while gate.acquire(ShardId(stuck), 64, ms(0)) > 0 {}
            let _never_served = ticket(&gate, ShardId(stuck), ms(0));
        }
        for turn in 0..100 {
            assert_eq!(gate.acquire(ShardId(3), 64, ms(turn)), share, "of {limit}");
            assert_eq!(gate.release(ShardId(3), share, ms(turn)).wake, ShardSet::default());
        }
        assert_eq!(in_use(&gate), limit - share);
    }
}

#[test]
fn one_busy_shard_may_have_all_but_the_shares_of_the_others() {
    let gate = gate(128, 4);
    assert_eq!(gate.share(), 8);
    assert_eq!((gate.acquire(S0, 64, ms(0)), gate.acquire(S0, 64, ms(0)), gate.acquire(S0, 1, ms(0))), (64, 40, 0));
    assert_eq!(gate.acquire(S1, 5, ms(0)), 5);
    assert_eq!(gate.acquire(S0, 1, ms(0)), 0, "three of the share of shard 1 are still kept");
    assert_eq!(gate.acquire(S1, 64, ms(0)), 3, "and no more than that");
    assert_eq!(woken(gate.release(S0, 10, ms(0))), []);
    assert_eq!(gate.acquire(S1, 64, ms(0)), 10, "what is free beyond the shares is anybody's");
}

#[test]
fn fewer_permits_than_shards_saturate() {
    let gate = gate(2, 4);
    assert_eq!((gate.acquire(S0, 2, ms(0)), gate.acquire(S1, 2, ms(0)), gate.acquire(ShardId(2), 1, ms(0))), (1, 1, 0));
    let last = ticket(&gate, ShardId(3), ms(1));
    assert_eq!(woken(gate.release(S0, 1, ms(2))), [3]);
    assert!(gate.redeem(last));
}

#[test]
fn a_ticket_beyond_the_share_is_passed_over_and_keeps_its_age() {
    let gate = gate(4, 2);
    assert_eq!(gate.acquire(S0, 4, ms(0)), 3);
    let old = ticket(&gate, S0, ms(1));
    assert_eq!(in_use(&gate), 3, "a permit stays free for shard 1");
    assert_eq!(gate.acquire(S1, 2, ms(2)), 1, "which takes it beside the ticket");
    let young = ticket(&gate, S1, ms(3));
    // Everybody has a share: the older ticket is first.
    assert_eq!(woken(gate.release(S0, 1, ms(4))), [0]);
    assert!(gate.redeem(old));
    let older = ticket(&gate, S0, ms(2));
    // Shard 1 drops below its share: its ticket is the only eligible one, although it is younger.
    assert_eq!(woken(gate.release(S1, 1, ms(5))), [1]);
    assert!(gate.redeem(young));
    // Nobody eligible: the count goes down, the ticket stays.
    assert_eq!(woken(gate.release(S1, 1, ms(6))), []);
    assert_eq!((in_use(&gate), gate.snapshot(ms(6)).waiters), (3, 1));
    // A permit of its own comes back: now it may.
    assert_eq!(woken(gate.release(S0, 1, ms(7))), [0]);
    assert!(gate.redeem(older));
    assert_eq!((gate.take_grants(S0), gate.take_grants(S1)), (2, 1));
}

#[test]
fn an_origin_that_was_not_ready_comes_back_with_its_age() {
    let gate = gate(1, 2);
    assert_eq!(gate.acquire(S0, 1, ms(0)), 1);
    let _young = ticket(&gate, S0, ms(5));
    let Waited::Ticket(_old) = gate.wait(S1, ms(2), ms(6)) else { panic!() };
    assert_eq!(woken(gate.release(S0, 1, ms(7))), [1]);
    assert_eq!(gate.snapshot(ms(7)).wait_duration, Duration::from_millis(1), "waited since 6, not since 2");
}

#[test]
fn a_cancelled_ticket_takes_nothing_and_does_not_disturb_the_others() {
    let gate = gate(1, 3);
    assert_eq!(gate.acquire(S0, 1, ms(0)), 1);
    let first = ticket(&gate, S0, ms(1));
    let second = ticket(&gate, S1, ms(2));
    let third = ticket(&gate, ShardId(2), ms(3));
    assert_eq!(gate.cancel(second), Cancelled::Unlinked);
    assert_eq!(gate.snapshot(ms(3)).waiters, 2);
    assert_eq!(woken(gate.release(S0, 1, ms(4))), [0]);
    assert_eq!(gate.cancel(first), Cancelled::Granted);
    assert_eq!(woken(gate.release(S0, gate.take_grants(S0), ms(5))), [2]);
    assert_eq!(gate.cancel(third), Cancelled::Granted);
    assert_eq!(gate.take_grants(ShardId(2)), 1);
    assert_eq!(woken(gate.release(ShardId(2), 1, ms(6))), []);
    assert_eq!((in_use(&gate), gate.take_grants(S1)), (0, 0));
}

#[test]
fn stop_ends_every_wait_once_and_permits_that_are_out_still_come_back() {
    let gate = gate(2, 3);
    assert_eq!((gate.acquire(S0, 1, ms(0)), gate.acquire(S1, 1, ms(0))), (1, 1));
    let granted = ticket(&gate, S1, ms(1));
    let waiting = ticket(&gate, ShardId(2), ms(2));
    assert_eq!(woken(gate.release(S1, 1, ms(3))), [1]);
    let stopped: Vec<_> = gate.stop().iter().map(|shard| shard.0).collect();
    assert_eq!(stopped, [2]);
    assert!(gate.stop().is_empty());
    assert_eq!(gate.cancel(waiting), Cancelled::Void);
    assert_eq!((gate.acquire(ShardId(2), 1, ms(4)), gate.wait(ShardId(2), ms(4), ms(4))), (0, Waited::Stopped));
    assert!(gate.redeem(granted));
    assert_eq!(gate.take_grants(S1), 1);
    assert_eq!(woken(gate.release(S1, 1, ms(5))), []);
    assert_eq!(woken(gate.release(S0, 1, ms(5))), []);
    assert_eq!((in_use(&gate), gate.acquire(S0, 1, ms(6))), (0, 0), "all are there, and nobody gets one");
}

#[test]
#[should_panic(expected = "released 2 permits of 1")]
fn a_permit_is_returned_once() {
    let gate = gate(4, 1);
    assert_eq!(gate.acquire(S0, 1, ms(0)), 1);
    let _ = gate.release(S0, 2, ms(0));
}

#[test]
fn thresholds_are_crossed_once_each_way() {
    for (limit, pause, resume) in [(1, 1, 0), (7, 6, 4), (17, 14, 10)] {
        let gate = gate(limit, 1);
        let mut states = Vec::new();
        for taken in 1..=limit {
            assert_eq!(gate.acquire(S0, 1, ms(0)), 1);
            states.push((taken, gate.pressure()));
        }
        for left in (0..limit).rev() {
            let _ = gate.release(S0, 1, ms(0));
            states.push((left, gate.pressure()));
        }
        let changes: Vec<_> = states.chunk_by(|a, b| a.1 == b.1).map(|same| same[0]).collect();
        let paused = (pause, (Pressure::Paused, 1));
        let running = (resume, (Pressure::Running, 2));
        match limit {
            1 => assert_eq!(changes, [paused, running]),
            _ => assert_eq!(changes, [(1, (Pressure::Running, 0)), paused, running]),
        }
        let shot = gate.snapshot(ms(0));
        assert_eq!((shot.pauses, shot.resumes), (1, 1));
    }
}

#[test]
fn a_pause_that_spans_a_reset_is_counted_from_the_reset() {
    let gate = thresholds(5, 1, 80, 40);
    for second in 0..4 {
        assert_eq!(gate.pressure(), (Pressure::Running, 0), "at {second}");
        assert_eq!(gate.acquire(S0, 1, ms(0)), 1);
    }
    assert_eq!(gate.pressure(), (Pressure::Paused, 1));
    let shot = gate.snapshot(ms(2_000));
    assert_eq!((shot.paused_since, shot.paused_total, shot.pauses), (Some(ms(0)), Duration::from_secs(2), 1));
    gate.reset(ms(2_000));
    let shot = gate.snapshot(ms(2_000));
    assert_eq!((shot.pressure, shot.epoch, shot.paused_since), (Pressure::Paused, 1, Some(ms(0))));
    assert_eq!((shot.paused_total, shot.pauses, shot.peak), (Duration::ZERO, 0, 4));
    assert_eq!(gate.release(S0, 1, ms(3_000)).crossed, None);
    assert_eq!(gate.release(S0, 1, ms(3_000)).crossed, Some(Pressure::Running));
    assert_eq!(gate.pressure(), (Pressure::Running, 2));
    let shot = gate.snapshot(ms(9_000));
    assert_eq!((shot.paused_since, shot.paused_total), (None, Duration::from_secs(1)));
    assert_eq!((shot.pauses, shot.resumes, shot.peak, shot.in_use), (0, 1, 4, 2));
}

#[test]
fn a_wait_counts_when_it_begins_and_lasts_when_it_ends() {
    let gate = gate(1, 1);
    assert_eq!(gate.acquire(S0, 1, ms(0)), 1);
    let _first = ticket(&gate, S0, ms(0));
    let second = ticket(&gate, S0, ms(0));
    assert_eq!(woken(gate.release(S0, 1, ms(250))), [0]);
    let shot = gate.snapshot(ms(400));
    assert_eq!((shot.waits, shot.wait_duration, shot.waiters, shot.in_use), (2, Duration::from_millis(250), 1, 1));
    assert_eq!(gate.cancel(second), Cancelled::Unlinked);
    let shot = gate.snapshot(ms(500));
    assert_eq!((shot.waits, shot.wait_duration, shot.waiters), (2, Duration::from_millis(250), 0));
}

#[test]
fn a_wait_that_spans_a_reset_is_not_the_new_epochs() {
    let gate = gate(1, 1);
    assert_eq!(gate.acquire(S0, 1, ms(0)), 1);
    let _ticket = ticket(&gate, S0, ms(0));
    gate.reset(ms(100));
    assert_eq!(woken(gate.release(S0, 1, ms(250))), [0]);
    let shot = gate.snapshot(ms(250));
    assert_eq!((shot.waits, shot.wait_duration, shot.waiters), (0, Duration::ZERO, 0));
}

#[test]
fn several_returned_at_once_go_to_several() {
    let gate = gate(8, 2);
    assert_eq!((gate.acquire(S0, 8, ms(0)), gate.acquire(S1, 8, ms(0))), (7, 1));
    let _tickets: Vec<_> = (1..=3).map(|at| ticket(&gate, ShardId(at % 2), ms(at.into()))).collect();
    let outcome = gate.release(S0, 5, ms(9));
    assert_eq!((woken(outcome), gate.take_grants(S0), gate.take_grants(S1)), (vec![0, 1], 1, 2));
    assert_eq!((in_use(&gate), gate.snapshot(ms(9)).waiters), (6, 0));
}

#[test]
fn under_real_threads_every_job_is_done_and_every_permit_comes_back() {
    for (limit, batch) in [(1, 1), (2, 2), (5, 3), (64, 16)] {
        let gate = thresholds(limit, 3, 80, 40);
        std::thread::scope(|scope| {
            for shard in (0..3).map(ShardId) {
                let gate = &gate;
                scope.spawn(move || {
                    let (mut jobs, mut waiting) = (3_000_u32, None);
                    while jobs > 0 {
                        let mut permits = gate.take_grants(shard);
                        if let Some(ticket) = waiting.take_if(|_| permits > 0) {
                            assert!(gate.redeem(ticket));
                        }
                        if waiting.is_none() {
                            permits += gate.acquire(shard, batch.min(jobs).saturating_sub(permits), ms(0));
                        }
                        if permits == 0 && waiting.is_none() {
                            match gate.wait(shard, ms(0), ms(0)) {
                                Waited::Acquired => permits = 1,
                                Waited::Ticket(ticket) => waiting = Some(ticket),
                                Waited::Stopped => unreachable!(),
                            }
                        }
                        for _ in 0..permits {
                            let _ = gate.release(shard, 1, ms(0));
                            jobs = jobs.saturating_sub(1);
                        }
                        if permits == 0 {
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
        let shot = gate.snapshot(ms(0));
        assert_eq!((in_use(&gate), shot.waiters, shot.pressure, shot.epoch % 2), (0, 0, Pressure::Running, 0));
        assert_eq!((shot.pauses, shot.epoch), (shot.resumes, 2 * shot.pauses));
    }
}
