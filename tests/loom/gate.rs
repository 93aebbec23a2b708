//! The permit gate.

use super::Arc;
use super::race::{both_orders, race2, race3, six_orders};
use afflux::base::id::ShardId;
use afflux::base::time::Instant;
use afflux::sync::gate::{Cancelled, GateConfig, PermitGate, Pressure, Waited};

const S0: ShardId = ShardId(0);
const S1: ShardId = ShardId(1);
const S2: ShardId = ShardId(2);
const NOW: Instant = Instant(0);

fn gate(limit: u32, shards: u16) -> Arc<PermitGate> {
    Arc::new(PermitGate::new(GateConfig { limit, shards, pause_at: limit, resume_at: 0 }))
}

fn release(gate: &PermitGate, shard: ShardId, permits: u32) {
    let _ = gate.release(shard, permits, NOW);
}

/// What is in use is what shards hold.
fn in_use(gate: &PermitGate) -> u32 {
    let shot = gate.snapshot(NOW);
    assert_eq!(shot.held_by_shard.iter().sum::<u32>(), shot.in_use);
    assert!(shot.in_use <= shot.limit);
    shot.in_use
}

#[test]
fn a_newcomer_does_not_overtake() {
    both_orders(|order| {
        let gate = gate(1, 3);
        assert_eq!(gate.acquire(S0, 1, NOW), 1);
        assert!(matches!(gate.wait(S1, NOW, NOW), Waited::Ticket(_)));
        let (newcomer, ()) = race2(order, &gate, |gate| gate.acquire(S2, 1, NOW), |gate| release(gate, S0, 1));
        assert_eq!((newcomer, gate.take_grants(S1), in_use(&gate)), (0, 1, 1));
    });
}

#[test]
fn a_release_against_one_who_enqueues() {
    both_orders(|order| {
        let gate = gate(1, 2);
        assert_eq!(gate.acquire(S0, 1, NOW), 1);
        let (waited, ()) = race2(order, &gate, |gate| gate.wait(S1, NOW, NOW), |gate| release(gate, S0, 1));
        let granted = match waited {
            Waited::Acquired => 0,
            Waited::Ticket(_) => 1,
            Waited::Stopped => panic!(),
        };
        assert_eq!((gate.take_grants(S1), in_use(&gate)), (granted, 1));
    });
}

#[test]
fn a_release_against_two_who_enqueue() {
    six_orders(|order| {
        let gate = gate(1, 3);
        assert_eq!(gate.acquire(S0, 1, NOW), 1);
        let wait = |shard| move |gate: &PermitGate| matches!(gate.wait(shard, NOW, NOW), Waited::Acquired);
        let (a, b, ()) = race3(order, &gate, wait(S1), wait(S2), |gate| release(gate, S0, 1));
        let granted = gate.take_grants(S1) + gate.take_grants(S2);
        assert_eq!((u32::from(a) + u32::from(b) + granted, in_use(&gate)), (1, 1));
        assert_eq!(gate.snapshot(NOW).waiters, 1);
    });
}

#[test]
fn a_grant_against_the_cancel_of_its_ticket() {
    both_orders(|order| {
        let gate = gate(1, 3);
        assert_eq!(gate.acquire(S0, 1, NOW), 1);
        let Waited::Ticket(first) = gate.wait(S1, NOW, NOW) else { panic!() };
        let Waited::Ticket(_second) = gate.wait(S2, NOW, NOW) else { panic!() };
        let (cancelled, ()) = race2(order, &gate, move |gate| gate.cancel(first), |gate| release(gate, S0, 1));
        match cancelled {
            Cancelled::Unlinked => assert_eq!((gate.take_grants(S1), gate.take_grants(S2)), (0, 1)),
            Cancelled::Granted => {
                assert_eq!((gate.take_grants(S1), gate.take_grants(S2)), (1, 0));
                release(&gate, S1, 1);
                assert_eq!(gate.take_grants(S2), 1);
            }
            Cancelled::Void => panic!(),
        }
        assert_eq!(in_use(&gate), 1);
    });
}

#[test]
fn shares_hold_while_permits_move() {
    both_orders(|order| {
        // Paused from the first permit on: no crossing sends anybody for the lock.
        let gate = Arc::new(PermitGate::new(GateConfig { limit: 4, shards: 3, pause_at: 1, resume_at: 0 }));
        assert_eq!((gate.acquire(S0, 1, NOW), gate.acquire(S1, 1, NOW)), (1, 1));
        let (_, third) = race2(
            order,
            &gate,
            // One or two, as the permits of the others allow; never what one of them has a right to.
            |gate| gate.acquire(S0, 2, NOW),
            // One goes, one comes: the number in use is the same again, its parts are not.
            |gate| {
                release(gate, S1, 1);
                gate.acquire(S2, 1, NOW)
            },
        );
        assert_eq!((third, gate.acquire(S1, 1, NOW)), (1, 1));
        in_use(&gate);
    });
}

#[test]
fn two_batches_do_not_take_more_than_there_is() {
    both_orders(|order| {
        let gate = gate(8, 2);
        let (mine, theirs) = race2(
            order,
            &gate,
            |gate| gate.acquire(S0, 5, NOW),
            |gate| {
                let permits = gate.acquire(S1, 5, NOW);
                release(gate, S1, 1);
                permits - 1
            },
        );
        assert!(mine >= 2 && theirs >= 1);
        assert_eq!(in_use(&gate), mine + theirs);
    });
}

#[test]
fn each_crossing_is_counted() {
    both_orders(|order| {
        let gate = Arc::new(PermitGate::new(GateConfig { limit: 8, shards: 2, pause_at: 2, resume_at: 1 }));
        let turn = |shard| {
            move |gate: &PermitGate| {
                assert_eq!(gate.acquire(shard, 1, NOW), 1);
                let seen = gate.pressure();
                release(gate, shard, 1);
                seen
            }
        };
        let (a, b) = race2(order, &gate, turn(S0), turn(S1));
        let shot = gate.snapshot(NOW);
        assert_eq!((shot.pressure, shot.pauses), (Pressure::Running, shot.resumes));
        assert_eq!((shot.epoch, shot.pauses == 1), (2 * shot.pauses, shot.peak == 2));
        for (seen, epoch) in [a, b] {
            assert_eq!(seen == Pressure::Paused, epoch % 2 == 1);
            assert!(epoch <= shot.epoch);
        }
    });
}

#[test]
fn stop_against_one_who_enqueues_and_a_release() {
    six_orders(|order| {
        let gate = gate(1, 2);
        assert_eq!(gate.acquire(S0, 1, NOW), 1);
        let (waited, (), dismissed) =
            race3(order, &gate, |gate| gate.wait(S1, NOW, NOW), |gate| release(gate, S0, 1), |gate| gate.stop());
        let out = match waited {
            Waited::Stopped => 0,
            Waited::Acquired => 1,
            Waited::Ticket(ticket) => match gate.cancel(ticket) {
                Cancelled::Granted => gate.take_grants(S1),
                Cancelled::Void => {
                    assert!(dismissed.contains(S1));
                    0
                }
                Cancelled::Unlinked => panic!("nobody may wait on"),
            },
        };
        assert_eq!(in_use(&gate), out);
    });
}
