//! A small world: some origins, a gate with a limit, tickets in a queue. The oracle knows only who
//! waits since when, and that permits in use never exceed the limit; every claim must go to the
//! one who waits longest.

use std::collections::VecDeque;

use afflux::base::time::Instant;
use afflux::flow::ingress::{Ingress, OriginKey, Reason, Spend, TurnOrder};
use proptest::prelude::*;

const ORIGINS: u32 = 6;

#[derive(Clone, Debug)]
enum Op {
    Offer {
        origin: u32,
        records: u32,
    },
    NotReady(u32),
    ReadyAgain(u32),
    Detach(u32),
    /// Handlers start: this many permits come back.
    Start(u32),
    Turn(u32),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (0..ORIGINS, 1..4u32).prop_map(|(origin, records)| Op::Offer { origin, records }),
        1 => (0..ORIGINS).prop_map(Op::NotReady),
        1 => (0..ORIGINS).prop_map(Op::ReadyAgain),
        1 => (0..ORIGINS).prop_map(Op::Detach),
        3 => (1..5u32).prop_map(Op::Start),
        5 => (1..9u32).prop_map(Op::Turn),
    ]
}

/// The gate in its simplest form: permits, and tickets in order of age.
#[derive(Default)]
struct Gate {
    limit: u32,
    in_use: u32,
    tickets: VecDeque<u64>,
    grants: u32,
    last: u64,
}

impl Gate {
    fn acquire(&mut self, want: u32) -> u32 {
        if !self.tickets.is_empty() {
            return 0;
        }
        let n = want.min(self.limit - self.in_use);
        self.in_use += n;
        n
    }

    fn wait(&mut self) -> Option<u64> {
        if self.acquire(1) == 1 {
            return None;
        }
        self.last += 1;
        self.tickets.push_back(self.last);
        Some(self.last)
    }

    fn release(&mut self, n: u32) {
        for _ in 0..n {
            if self.tickets.len() > self.grants as usize {
                self.grants += 1;
            } else {
                self.in_use -= 1;
            }
        }
    }

    /// Unlinks a ticket; a grant that it no longer covers is in the shard's hands to give back.
    fn cancel(&mut self, ticket: u64) {
        self.tickets.retain(|t| *t != ticket);
        if self.grants as usize > self.tickets.len() {
            self.grants -= 1;
            self.release(1);
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Source {
    attached: bool,
    queued: u32,
    blocked: bool,
    /// When it began to wait, in a count of its own; 0: it does not.
    age: u64,
    ticket: Option<u64>,
}

proptest! {
    #[test]
    fn the_oldest_is_served_and_no_permit_is_lost(limit in 1..8u32, ops in prop::collection::vec(op(), 1..250)) {
        let mut ingress = Ingress::<u64>::new(TurnOrder::OldestFirst);
        let mut gate = Gate { limit, ..Gate::default() };
        let mut model = [Source::default(); ORIGINS as usize];
        let mut clock = 0;
        // Claimed and not started: each holds one permit. Grants taken and not spent hold theirs.
        let (mut jobs, mut in_hand) = (0, 0);
        for n in 0..ORIGINS {
            ingress.attach(OriginKey(n));
            model[n as usize].attached = true;
        }
        for op in ops {
            clock += 1;
            let now = Instant(clock);
            match op {
                Op::Offer { origin, records } => {
                    let source = &mut model[origin as usize];
                    if !source.attached {
                        ingress.attach(OriginKey(origin));
                        source.attached = true;
                    }
                    source.queued += records;
                    if source.age == 0 && !source.blocked {
                        source.age = clock;
                    }
                    ingress.offered(OriginKey(origin), records, now);
                }
                Op::NotReady(origin) => {
                    let source = &mut model[origin as usize];
                    if source.attached {
                        let ticket = ingress.not_ready(OriginKey(origin), Reason::OwnedBytes, now);
                        prop_assert_eq!(ticket, source.ticket.take());
                        ticket.into_iter().for_each(|ticket| gate.cancel(ticket));
                        source.blocked = true;
                    }
                }
                Op::ReadyAgain(origin) => {
                    let source = &mut model[origin as usize];
                    if source.attached {
                        ingress.ready_again(OriginKey(origin), now);
                        if std::mem::take(&mut source.blocked) && source.queued > 0 && source.age == 0 {
                            source.age = clock;
                        }
                    }
                }
                Op::Detach(origin) => {
                    let source = std::mem::take(&mut model[origin as usize]);
                    if source.attached {
                        let ticket = ingress.detach(OriginKey(origin));
                        prop_assert_eq!(ticket, source.ticket);
                        ticket.into_iter().for_each(|ticket| gate.cancel(ticket));
                    }
                }
                Op::Start(n) => {
                    let n = n.min(jobs);
                    jobs -= n;
                    gate.release(n);
                }
                Op::Turn(budget) => {
                    ingress.begin(budget);
                    let grants = std::mem::take(&mut gate.grants);
                    in_hand += grants;
                    ingress.granted(grants);
                    let ticketed = model.iter().any(|s| s.ticket.is_some());
                    let want = ingress.want();
                    if ticketed {
                        prop_assert_eq!(want, 0);
                    } else if in_hand == 0 {
                        let claimable: u32 = model.iter().filter(|s| !s.blocked).map(|s| s.queued).sum();
                        prop_assert_eq!(want, claimable.min(budget));
                    }
                    let mut acquired = gate.acquire(want);
                    ingress.acquired(acquired);
                    let mut claims = 0;
                    loop {
                        while let Some(pick) = ingress.next() {
                            let waiting = |s: &&Source| s.queued > 0 && !s.blocked;
                            let source = model[pick.origin.0 as usize];
                            // A run ends where the claimer likes; nobody else may be waiting for it.
                            let alone = model.iter().filter(waiting).count() == 1;
                            prop_assert!(pick.run == 1 || alone && pick.run <= source.queued.min(budget - claims));
                            let records = 1 + (clock as u32) % pick.run;
                            match pick.spend {
                                Spend::Grant { redeem } => {
                                    prop_assert_eq!(Some(redeem), source.ticket);
                                    let oldest = model.iter().filter(waiting).filter(|s| s.ticket.is_some());
                                    prop_assert_eq!(oldest.map(|s| s.age).min(), Some(source.age));
                                    prop_assert!(in_hand > 0);
                                    in_hand -= 1;
                                    gate.tickets.retain(|t| *t != redeem);
                                }
                                Spend::Acquired { cancel } => {
                                    prop_assert_eq!(cancel, source.ticket);
                                    let oldest = model.iter().filter(waiting).map(|s| s.age).min();
                                    prop_assert_eq!(oldest, Some(source.age));
                                    prop_assert!(acquired >= pick.run);
                                    acquired -= records;
                                    cancel.into_iter().for_each(|ticket| gate.cancel(ticket));
                                }
                            }
                            clock += 1;
                            ingress.claimed(pick, records, Instant(clock));
                            let source = &mut model[pick.origin.0 as usize];
                            prop_assert!(!source.blocked);
                            source.ticket = None;
                            source.queued -= records;
                            source.age = if source.queued > 0 { clock } else { 0 };
                            claims += records;
                            jobs += records;
                        }
                        let Some((origin, since)) = ingress.to_file() else { break };
                        let source = &mut model[origin.0 as usize];
                        prop_assert_eq!(since, Instant(source.age));
                        prop_assert_eq!(source.ticket, None);
                        match gate.wait() {
                            Some(ticket) => {
                                ingress.ticketed(origin, ticket);
                                source.ticket = Some(ticket);
                            }
                            None => {
                                acquired += 1;
                                ingress.acquired(1);
                            }
                        }
                    }
                    prop_assert!(claims <= budget);
                    let waiting = |s: &&Source| s.queued > 0 && !s.blocked;
                    let idle = acquired > 0 && model.iter().filter(waiting).count() > 0;
                    prop_assert!(claims == budget || !idle, "a permit in hand and somebody waiting");
                    let unused = ingress.finish();
                    prop_assert!(unused <= acquired + in_hand);
                    in_hand = in_hand + acquired - unused;
                    gate.release(unused);
                    let tickets = model.iter().filter(|s| s.ticket.is_some()).count();
                    prop_assert!(in_hand as usize <= tickets, "a permit is held for nobody");
                }
            }
            prop_assert_eq!(gate.in_use, jobs + in_hand + gate.grants);
            prop_assert!(gate.in_use <= limit);
            let ticketed = model.iter().filter(|s| s.ticket.is_some()).count();
            let ready = model.iter().filter(|s| s.queued > 0 && !s.blocked && s.ticket.is_none()).count();
            prop_assert_eq!(ingress.waiting(), (ready as u32, ticketed as u32));
        }
    }
}
