//! The oracle knows the whole history at once: when bytes came, when the lane was read.

use std::time::Duration;

use afflux::base::record::Lane;
use afflux::base::time::Instant;
use afflux::flow::liveness::{Action, Liveness, Peer};
use proptest::prelude::*;

const S: u64 = 1_000_000_000;
const INTERVAL: u64 = 5 * S;
const DEAD_AFTER: u64 = 15 * S;

#[derive(Clone, Debug)]
enum Event {
    Bytes(bool),
    Reading(bool),
}

/// Events with the nanoseconds since the one before.
fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let gap = prop_oneof![3 => 0..6 * S, 2 => 0..14 * S, 1 => 14 * S..16 * S];
    let event = prop_oneof![4 => any::<bool>().prop_map(Event::Bytes), 1 => any::<bool>().prop_map(Event::Reading)];
    prop::collection::vec((gap, event), 0..40)
}

fn peer() -> impl Strategy<Value = Peer> {
    prop_oneof![Just(Peer::Native), any::<bool>().prop_map(|pings| Peer::Stock { pings })]
}

proptest! {
    #[test]
    fn dead_exactly_when_silence_counted_long_enough(peer in peer(), events in events()) {
        let interval = Duration::from_nanos(INTERVAL);
        let mut liveness = Liveness::new(peer, interval, Duration::from_nanos(DEAD_AFTER), Instant(0));
        let mut actions = Vec::new();
        let (mut now, mut silent_since, mut reading) = (0, 0, true);
        let mut death = None;
        let counts = |reading: bool| match peer {
            Peer::Native => true,
            Peer::Stock { pings } => pings && reading,
        };
        let end = events.iter().map(|e| e.0).sum::<u64>() + 100 * S;
        let last = (end, Event::Reading(true));
        for (gap, event) in events.into_iter().chain([last]) {
            let until = now + gap;
            // Polled at every point that it asks for before the next event, and only then.
            let mut polls = 0;
            while liveness.next().0 < until {
                let at = liveness.next();
                prop_assert!(at.0 >= now || polls == 0);
                while let Some(action) = liveness.poll(at) {
                    actions.push((at.0, action));
                }
                polls += 1;
                prop_assert!(polls < 1000, "it asks for the same point again and again");
            }
            if death.is_none() && counts(reading) && silent_since + DEAD_AFTER < until {
                death = Some(silent_since + DEAD_AFTER);
            }
            now = until;
            match event {
                Event::Bytes(application) => {
                    let lane = if application { Lane::Application } else { Lane::Completion };
                    liveness.on_bytes(lane, Instant(now));
                    silent_since = now;
                }
                Event::Reading(on) => {
                    liveness.set_reading(on, Instant(now));
                    if on && !reading && peer != Peer::Native {
                        silent_since = now;
                    }
                    reading = on;
                }
            }
        }
        let told: Vec<_> = actions.iter().filter(|(_, a)| *a == Action::Dead).map(|(at, _)| *at).collect();
        prop_assert_eq!(told, Vec::from_iter(death));
        prop_assert!(actions.windows(2).all(|w| w[0].1 != Action::Dead), "nothing follows death");
        let beats: Vec<_> = actions.iter().filter(|(_, a)| *a != Action::Dead).map(|(at, _)| *at).collect();
        prop_assert!(beats.windows(2).all(|w| w[1] - w[0] >= INTERVAL));
        if peer == Peer::Native {
            let alive = death.unwrap_or(now);
            prop_assert!(beats.len() as u64 >= alive.saturating_sub(1) / INTERVAL, "a beat is missing");
            prop_assert!(actions.iter().all(|(_, a)| *a != Action::SendPong));
        }
    }
}
