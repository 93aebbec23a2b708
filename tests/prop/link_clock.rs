//! Two clocks with any distance, messages with any delay: the estimate is off by no more than half
//! the smallest round trip, plus the rounding to milliseconds.

use afflux::base::time::Instant;
use afflux::flow::link_clock::{LinkClock, clock_ms};
use proptest::prelude::*;

proptest! {
    #[test]
    fn off_by_half_a_round_trip_at_most(
        offset in any::<u32>(),
        start in 0..u64::MAX / 4,
        trips in prop::collection::vec((0..400_000_000u64, 0..400_000_000u64), 1..30),
    ) {
        let peer = |now: u64| clock_ms(Instant(now)).wrapping_add(offset);
        let mut now = start;
        let mut clock = None::<LinkClock>;
        let mut there_min = Vec::new();
        let mut round_min = Vec::new();
        for (there, back) in trips {
            now += 5_000_000_000;
            // The peer's PING arrives after `there`; our own PING and its echo take `back` and `there`.
            let reading = peer(now);
            let clock = match &mut clock {
                Some(clock) => {
                    clock.on_reading(reading, Instant(now + there));
                    clock
                }
                None => clock.insert(LinkClock::new(reading, Instant(now + there))),
            };
            clock.on_echo(clock_ms(Instant(now)), Instant(now + back + there));
            there_min.push(there / 1_000_000);
            round_min.push((back + there) / 1_000_000);
            let last8 = |v: &[u64]| v.iter().rev().take(8).min().copied().unwrap_or(0) as i64;
            let at = now + back + there;
            let error = clock.peer_ms(Instant(at)).wrapping_sub(peer(at)) as i32 as i64;
            // Behind by what the fastest reading travelled, ahead by the half that is added for it.
            let half = last8(&round_min) / 2;
            prop_assert!(error >= half - last8(&there_min) - 3, "{} behind", error);
            prop_assert!(error <= half + 3, "{} ahead of half a round trip {}", error, half);
        }
    }
}
