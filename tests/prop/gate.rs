//! The permit gate against the rules as they are written: holdings, a list of tickets, and a look at
//! all of it for every answer.

use afflux::base::id::ShardId;
use afflux::base::time::Instant;
use afflux::sync::gate::{Cancelled, GateConfig, PermitGate, Pressure, Ticket, Waited};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Acquire(u16, u32),
    /// The age of the ticket lies this far back.
    Wait(u16, u64),
    Release(u16, u32),
    Cancel(usize),
    TakeGrants(u16),
    Redeem(usize),
    Reset,
    Stop,
}

fn op() -> impl Strategy<Value = Op> {
    let shard = 0..4_u16;
    prop_oneof![
        20 => (shard.clone(), 1..12_u32).prop_map(|(shard, want)| Op::Acquire(shard, want)),
        20 => (shard.clone(), prop_oneof![3 => Just(0), 1 => 0..5_u64]).prop_map(|(shard, age)| Op::Wait(shard, age)),
        30 => (shard.clone(), 1..6_u32).prop_map(|(shard, permits)| Op::Release(shard, permits)),
        6 => (0..16_usize).prop_map(Op::Cancel),
        10 => shard.prop_map(Op::TakeGrants),
        10 => (0..16_usize).prop_map(Op::Redeem),
        1 => Just(Op::Reset),
        1 => Just(Op::Stop),
    ]
}

/// One waiting origin.
#[derive(Debug)]
struct Origin {
    ticket: Ticket,
    shard: u16,
    /// When it was granted, by a count.
    granted: Option<u64>,
    /// Age and arrival.
    place: (u64, u64),
    began: u64,
}

#[derive(Debug)]
struct Oracle {
    limit: u32,
    share: u32,
    held: Vec<u32>,
    grants: Vec<u32>,
    origins: Vec<Origin>,
    stopped: bool,
    paused: bool,
    changes: u64,
    waits: u64,
    waited: u64,
    reset_at: u64,
}

impl Oracle {
    fn in_use(&self) -> u32 {
        self.held.iter().sum()
    }

    /// The rule: below its share any free permit; from there on only what the others do not miss.
    fn may_have_another(&self, shard: u16) -> bool {
        let free = self.limit - self.in_use();
        let missing =
            |other: usize| if other == shard as usize { 0 } else { self.share.saturating_sub(self.held[other]) };
        let kept: u32 = (0..self.held.len()).map(missing).sum();
        if self.held[shard as usize] < self.share { free > 0 } else { free > kept }
    }

    fn eligible(&self) -> Option<usize> {
        let waiting = (0..self.origins.len()).filter(|i| self.origins[*i].granted.is_none() && !self.stopped);
        waiting.filter(|i| self.may_have_another(self.origins[*i].shard)).min_by_key(|i| self.origins[*i].place)
    }

    fn waiting(&self) -> usize {
        self.origins.iter().filter(|origin| origin.granted.is_none()).count()
    }

    fn note_pressure(&mut self, pause_at: u32, resume_at: u32) -> Option<Pressure> {
        let now = if self.paused { self.in_use() > resume_at } else { self.in_use() >= pause_at };
        let changed = now != self.paused;
        self.paused = now;
        self.changes += u64::from(changed);
        changed.then_some(if now { Pressure::Paused } else { Pressure::Running })
    }
}

proptest! {
    #[test]
    fn every_answer_is_the_oracles(
        limit in prop_oneof![1..6_u32, 6..40_u32, Just(128)],
        shards in 1..=4_u16,
        ops in prop::collection::vec(op(), 1..150),
    ) {
        let (pause_at, resume_at) = ((limit * 80).div_ceil(100), limit * 60 / 100);
        let gate = PermitGate::new(GateConfig { limit, shards, pause_at, resume_at });
        let share = (limit / (4 * u32::from(shards))).max(1);
        prop_assert_eq!(gate.share(), share);
        let mut oracle = Oracle {
            limit, share, held: vec![0; shards.into()], grants: vec![0; shards.into()], origins: Vec::new(),
            stopped: false, paused: false, changes: 0, waits: 0, waited: 0, reset_at: 0,
        };

        let mut grants = 0;

        for (now, op) in (100..).zip(ops) {
            let at = Instant(now);
            match op {
                Op::Acquire(shard, want) => {
                    let shard = shard % shards;
                    let mut expected = 0;
                    while expected < want && !oracle.stopped && oracle.may_have_another(shard) {
                        oracle.held[shard as usize] += 1;
                        expected += 1;
                    }
                    prop_assert_eq!(gate.acquire(ShardId(shard), want, at), expected);
                    oracle.note_pressure(pause_at, resume_at);
                }
                Op::Wait(shard, age) => {
                    let shard = shard % shards;
                    let since = now - age;
                    match gate.wait(ShardId(shard), Instant(since), at) {
                        Waited::Stopped => prop_assert!(oracle.stopped),
                        Waited::Acquired => {
                            prop_assert!(!oracle.stopped && oracle.may_have_another(shard));
                            oracle.held[shard as usize] += 1;
                            oracle.note_pressure(pause_at, resume_at);
                        }
                        Waited::Ticket(ticket) => {
                            prop_assert!(!oracle.stopped && !oracle.may_have_another(shard));
                            oracle.waits += 1;
                            oracle.origins.push(Origin { ticket, shard, granted: None, place: (since, now), began: now });
                        }
                    }
                }
                Op::Release(shard, permits) => {
                    let shard = shard % shards;
                    let in_hand = oracle.held[shard as usize] - oracle.grants[shard as usize];
                    let permits = permits.min(in_hand);
                    let outcome = gate.release(ShardId(shard), permits, at);
                    oracle.held[shard as usize] -= permits;
                    let mut woken = vec![false; shards.into()];
                    while let Some(i) = oracle.eligible() {
                        let origin = &mut oracle.origins[i];
                        origin.granted = Some(grants);
                        grants += 1;
                        if origin.began >= oracle.reset_at {
                            oracle.waited += now - origin.began;
                        }
                        let to = origin.shard as usize;
                        oracle.held[to] += 1;
                        oracle.grants[to] += 1;
                        woken[to] = true;
                    }
                    let got: Vec<_> = (0..shards).map(|shard| outcome.wake.contains(ShardId(shard))).collect();
                    prop_assert_eq!(got, woken);
                    prop_assert_eq!(outcome.crossed, oracle.note_pressure(pause_at, resume_at));
                }
                Op::Cancel(i) if !oracle.origins.is_empty() => {
                    let Origin { ticket, granted, .. } = oracle.origins.remove(i % oracle.origins.len());
                    let expected = match granted {
                        Some(_) => Cancelled::Granted,
                        None if oracle.stopped => Cancelled::Void,
                        None => Cancelled::Unlinked,
                    };
                    prop_assert_eq!(gate.cancel(ticket), expected);
                }
                Op::TakeGrants(shard) => {
                    let shard = shard % shards;
                    prop_assert_eq!(gate.take_grants(ShardId(shard)), oracle.grants[shard as usize]);
                    oracle.grants[shard as usize] = 0;
                }
                Op::Redeem(i) if !oracle.origins.is_empty() => {
                    let Origin { ticket, shard, granted, place, began } =
                        oracle.origins.remove(i % oracle.origins.len());
                    prop_assert_eq!(gate.redeem(ticket), granted.is_some() || !oracle.stopped);
                    // Another origin of the shard, the first that was granted, waits in this one's place now.
                    if granted.is_none() && !oracle.stopped {
                        let others = oracle.origins.iter_mut().filter(|o| o.shard == shard && o.granted.is_some());
                        if let Some(other) = others.min_by_key(|o| o.granted) {
                            (other.granted, other.place, other.began) = (None, place, began);
                        }
                    }
                }
                Op::Reset => {
                    gate.reset(at);
                    (oracle.waits, oracle.waited, oracle.reset_at) = (0, 0, now + 1);
                    prop_assert_eq!(gate.snapshot(at).peak, oracle.in_use());
                }
                Op::Stop => {
                    let woken = gate.stop();
                    for shard in 0..shards {
                        let waits = |o: &Origin| o.shard == shard && o.granted.is_none();
                        let expected = !oracle.stopped && oracle.origins.iter().any(waits);
                        prop_assert_eq!(woken.contains(ShardId(shard)), expected);
                    }
                    oracle.stopped = true;
                }
                Op::Cancel(_) | Op::Redeem(_) => {}
            }

            let shot = gate.snapshot(at);
            prop_assert_eq!(&shot.held_by_shard, &oracle.held);
            prop_assert!(shot.in_use <= shot.peak && shot.peak <= limit);
            prop_assert_eq!(shot.in_use, oracle.in_use());
            prop_assert_eq!(shot.waiters as usize, if oracle.stopped { 0 } else { oracle.waiting() });
            prop_assert_eq!((shot.waits, shot.wait_duration.as_nanos() as u64), (oracle.waits, oracle.waited));
            let pressure = if oracle.paused { Pressure::Paused } else { Pressure::Running };
            prop_assert_eq!((shot.pressure, shot.epoch), (pressure, oracle.changes));
            // A ticket that may be granted waits only while there is nothing to grant.
            prop_assert!(oracle.eligible().is_none());
            // Whoever is below his share has a right to a permit, if there is one for everybody.
            if limit >= u32::from(shards) {
                let kept: u32 = oracle.held.iter().map(|held| share.saturating_sub(*held)).sum();
                prop_assert!(limit - oracle.in_use() >= kept);
            }
        }

        // Everything comes back: nothing was lost, and nobody waits on.
        let nobody = |gate: &PermitGate| gate.snapshot(Instant(0)).in_use == 0;
        while !nobody(&gate) {
            for (shard, held) in (0..).zip(gate.snapshot(Instant(0)).held_by_shard) {
                let _ = gate.take_grants(ShardId(shard));
                let _ = gate.release(ShardId(shard), held, Instant(999));
            }
        }
        prop_assert_eq!(gate.snapshot(Instant(0)).waiters, 0);
    }
}
