//! The permit gate.

use super::{Arc, model, thread};
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
    model(|| {
        let gate = gate(1, 3);
        assert_eq!(gate.acquire(S0, 1, NOW), 1);
        assert!(matches!(gate.wait(S1, NOW, NOW), Waited::Ticket(_)));
        let newcomer = {
            let gate = gate.clone();
            thread::spawn(move || gate.acquire(S2, 1, NOW))
        };
        release(&gate, S0, 1);
        assert_eq!(newcomer.join().unwrap(), 0);
        assert_eq!((gate.take_grants(S1), in_use(&gate)), (1, 1));
    });
}

#[test]
fn a_release_against_one_who_enqueues() {
    model(|| {
        let gate = gate(1, 2);
        assert_eq!(gate.acquire(S0, 1, NOW), 1);
        let waiter = {
            let gate = gate.clone();
            thread::spawn(move || gate.wait(S1, NOW, NOW))
        };
        release(&gate, S0, 1);
        let expected = match waiter.join().unwrap() {
            Waited::Acquired => 0,
            Waited::Ticket(_) => 1,
            Waited::Stopped => panic!(),
        };
        assert_eq!((gate.take_grants(S1), in_use(&gate)), (expected, 1));
    });
}

#[test]
fn a_grant_against_the_cancel_of_its_ticket() {
    model(|| {
        let gate = gate(1, 3);
        assert_eq!(gate.acquire(S0, 1, NOW), 1);
        let Waited::Ticket(first) = gate.wait(S1, NOW, NOW) else { panic!() };
        let Waited::Ticket(_second) = gate.wait(S2, NOW, NOW) else { panic!() };
        let canceller = {
            let gate = gate.clone();
            thread::spawn(move || gate.cancel(first))
        };
        release(&gate, S0, 1);
        match canceller.join().unwrap() {
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
    model(|| {
        let gate = gate(4, 3);
        assert_eq!((gate.acquire(S0, 1, NOW), gate.acquire(S1, 1, NOW)), (1, 1));
        let returning = {
            let gate = gate.clone();
            thread::spawn(move || release(&gate, S1, 1))
        };
        let third = {
            let gate = gate.clone();
            thread::spawn(move || assert_eq!(gate.acquire(S2, 1, NOW), 1))
        };
        // One or two, as the permits of the others allow; never what one of them has a right to.
        let _ = gate.acquire(S0, 2, NOW);
        returning.join().unwrap();
        third.join().unwrap();
        assert_eq!(gate.acquire(S1, 1, NOW), 1);
        in_use(&gate);
    });
}

#[test]
fn two_batches_do_not_take_more_than_there_is() {
    model(|| {
        let gate = gate(8, 2);
        let other = {
            let gate = gate.clone();
            thread::spawn(move || {
                let permits = gate.acquire(S1, 5, NOW);
                release(&gate, S1, 1);
                permits - 1
            })
        };
        let mine = gate.acquire(S0, 5, NOW);
        let theirs = other.join().unwrap();
        assert!(mine >= 2 && theirs >= 1);
        assert_eq!(in_use(&gate), mine + theirs);
    });
}

#[test]
fn each_crossing_is_counted() {
    model(|| {
        let gate = Arc::new(PermitGate::new(GateConfig { limit: 8, shards: 2, pause_at: 2, resume_at: 1 }));
        let other = {
            let gate = gate.clone();
            thread::spawn(move || {
                assert_eq!(gate.acquire(S1, 1, NOW), 1);
                release(&gate, S1, 1);
            })
        };
        assert_eq!(gate.acquire(S0, 1, NOW), 1);
        let (seen, _) = gate.pressure();
        release(&gate, S0, 1);
        other.join().unwrap();
        let shot = gate.snapshot(NOW);
        assert_eq!((shot.pressure, shot.pauses), (Pressure::Running, shot.resumes));
        assert_eq!((shot.epoch, shot.pauses == 1), (2 * shot.pauses, shot.peak == 2));
        assert!(seen == Pressure::Running || shot.pauses == 1);
    });
}

#[test]
fn stop_against_one_who_enqueues_and_a_release() {
    model(|| {
        let gate = gate(1, 2);
        assert_eq!(gate.acquire(S0, 1, NOW), 1);
        let waiter = {
            let gate = gate.clone();
            thread::spawn(move || gate.wait(S1, NOW, NOW))
        };
        let returning = {
            let gate = gate.clone();
            thread::spawn(move || release(&gate, S0, 1))
        };
        let dismissed = gate.stop();
        returning.join().unwrap();
        let out = match waiter.join().unwrap() {
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
