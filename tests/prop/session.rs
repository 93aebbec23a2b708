//! The life of an end client's session on a virtual clock, against a model that remembers everything and
//! decides from the whole history.

use std::time::Duration;

use afflux::base::time::Instant;
use afflux::flow::session::{Left, SessionEnd, SessionLife, SessionTimes};
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Event {
    Read,
    Waiting(bool),
    Parked,
    Written,
    End(bool),
    Close,
    Lose,
    Pass(u64),
    Poll(Left),
}

fn event() -> impl Strategy<Value = Event> {
    let left = prop_oneof![Just(Left::Work), Just(Left::Bytes), Just(Left::Nothing)];
    prop_oneof![
        3 => Just(Event::Read),
        2 => any::<bool>().prop_map(Event::Waiting),
        1 => Just(Event::Parked),
        2 => Just(Event::Written),
        1 => any::<bool>().prop_map(Event::End),
        1 => Just(Event::Close),
        1 => Just(Event::Lose),
        4 => (0..40_u64).prop_map(Event::Pass),
        6 => left.prop_map(Event::Poll),
    ]
}

const IDLE: u64 = 50;
const ASSEMBLY: u64 = 30;
const LINGER: u64 = 70;

/// What has happened and when, in milliseconds.
#[derive(Default)]
struct Model {
    now: u64,
    moved: u64,
    begun: Option<u64>,
    closing: Option<SessionEnd>,
    /// Since when nothing was left but bytes, without one of them going.
    owing: Option<u64>,
    /// Since when our end is told.
    parting: Option<u64>,
    over: Option<SessionEnd>,
}

impl Model {
    fn on(&mut self, event: Event) {
        if let Event::Pass(ms) = event {
            self.now += ms;
        }
        if self.over.is_some() {
            return;
        }
        let open = self.closing.is_none();
        if let Some(since) = self.parting {
            let ends = match event {
                Event::End(_) | Event::Lose => true,
                Event::Poll(_) => self.now - since >= LINGER,
                _ => false,
            };
            self.over = self.closing.filter(|_| ends);
            return;
        }
        match event {
            Event::Read => (self.moved, self.begun) = (self.now, None),
            Event::Waiting(false) | Event::Parked => self.begun = None,
            Event::Waiting(true) => self.begun = Some(self.begun.unwrap_or(self.now)),
            Event::Written => (self.moved, self.owing) = (self.now, None),
            Event::End(true) => self.over = Some(SessionEnd::Broken),
            Event::End(false) if open => self.closing = Some(SessionEnd::Client),
            Event::Close if open => self.closing = Some(SessionEnd::Closed),
            Event::Lose => self.over = Some(SessionEnd::Panicked),
            Event::Poll(left) if open => {
                if self.begun.is_some_and(|at| self.now - at >= ASSEMBLY) {
                    self.over = Some(SessionEnd::Unfinished);
                } else if self.now - self.moved >= IDLE {
                    if left == Left::Work { self.moved = self.now } else { self.over = Some(SessionEnd::Idle) }
                }
            }
            Event::Poll(Left::Nothing) if self.closing == Some(SessionEnd::Closed) => self.parting = Some(self.now),
            Event::Poll(Left::Nothing) => self.over = self.closing,
            Event::Poll(Left::Work) => self.owing = None,
            Event::Poll(Left::Bytes) => {
                if self.now - *self.owing.get_or_insert(self.now) >= LINGER {
                    self.over = Some(SessionEnd::Untaken);
                }
            }
            Event::End(false) | Event::Close | Event::Pass(_) => {}
        }
    }
}

proptest! {
    #[test]
    fn a_session_ends_as_its_history_says(events in vec(event(), 0..80)) {
        let ms = Duration::from_millis;
        let times = SessionTimes { idle: Some(ms(IDLE)), assembly: ms(ASSEMBLY), linger: ms(LINGER) };
        let (mut life, mut model) = (SessionLife::new(times, Instant(0)), Model::default());
        for event in events {
            let reads = life.is_reading();
            model.on(event);
            let now = Instant(model.now * 1_000_000);
            match event {
                // Nobody reads what is closing.
                Event::Read if reads => life.on_read(now),
                Event::Waiting(within) if reads => life.on_waiting(within, now),
                Event::Parked if reads => life.on_parked(),
                Event::Written => life.on_written(now),
                Event::End(within) => life.on_end(within),
                Event::Close => life.close(SessionEnd::Closed),
                Event::Lose => life.lose(SessionEnd::Panicked),
                Event::Poll(left) => {
                    life.poll(left, now);
                    prop_assert!(life.next() > now, "what is due was done, so nobody comes back for nothing");
                }
                _ => {}
            }
            prop_assert_eq!(life.over(), model.over, "after {:?}", event);
            prop_assert_eq!(life.is_reading(), model.over.is_none() && model.closing.is_none());
        }
    }

    /// Whatever happens before: left alone, a session with an idle time ends, and so does one that closes.
    #[test]
    fn a_session_that_is_left_alone_ends(events in vec(event(), 0..40), owed in any::<bool>()) {
        let ms = Duration::from_millis;
        let times = SessionTimes { idle: Some(ms(IDLE)), assembly: ms(ASSEMBLY), linger: ms(LINGER) };
        let (mut life, mut now) = (SessionLife::new(times, Instant(0)), 0);
        for event in events {
            let at = Instant(now * 1_000_000);
            match event {
                Event::Pass(n) => now += n,
                Event::Read if life.is_reading() => life.on_read(at),
                Event::Waiting(within) if life.is_reading() => life.on_waiting(within, at),
                Event::Written => life.on_written(at),
                Event::Close => life.close(SessionEnd::Closed),
                Event::Poll(left) => life.poll(left, at),
                _ => {}
            }
        }
        let left = if owed { Left::Bytes } else { Left::Nothing };
        for _ in 0..5 {
            life.poll(left, Instant(now * 1_000_000));
            now = life.next().0.div_ceil(1_000_000).min(now + IDLE + LINGER);
        }
        prop_assert!(life.over().is_some(), "{:?}", life);
    }
}
