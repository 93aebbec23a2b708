//! When to dial again: the wait doubles from attempt to attempt up to a ceiling, and is spread by
//! half in either direction from the first one on, so that the peers of a node that came back do
//! not all arrive in the same instant.

use std::time::Duration;

use crate::base::rng::Rng;

/// The waits between the attempts to reach one peer.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    ceiling: Duration,
    attempts: u32,
}

impl Backoff {
    /// Waits of `first`, doubled after every failure, never above `ceiling`; each before its jitter.
    pub fn new(first: Duration, ceiling: Duration) -> Self {
        Backoff { first, ceiling, attempts: 0 }
    }

    /// An attempt failed, or a link was lost: how long to wait before the next attempt.
    pub fn next(&mut self, rng: &mut Rng) -> Duration {
        let doubled = self.first.saturating_mul(1 << self.attempts.min(31));
        self.attempts = self.attempts.saturating_add(1);
        if cfg!(afflux_mutation = "jitter_below_cap") {
            return doubled.mul_f64(0.5 + rng.unit()).min(self.ceiling);
        }
        doubled.min(self.ceiling).mul_f64(0.5 + rng.unit())
    }

    /// The peer was reached: the next wait is short again. Say it when the pair is up, not when a
    /// connection opened, or a peer that accepts and closes is dialled without a pause.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }

    /// Failures since the last success.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn doubles_to_the_ceiling_with_jitter_from_the_first() {
        let mut rng = Rng::new(1);
        let mut first = Vec::new();
        for _ in 0..200 {
            let mut backoff = Backoff::new(100 * MS, 5_000 * MS);
            for nominal in [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000] {
                let wait = backoff.next(&mut rng);
                assert!(wait >= nominal * MS / 2 && wait < nominal * MS * 3 / 2, "{wait:?} for {nominal} ms");
                if nominal == 100 {
                    first.push(wait);
                }
            }
        }
        assert!(first.iter().min() < Some(&(60 * MS)) && first.iter().max() > Some(&(140 * MS)));
    }

    #[test]
    fn success_begins_anew_and_no_count_overflows() {
        let mut rng = Rng::new(2);
        let mut backoff = Backoff::new(100 * MS, 5_000 * MS);
        for _ in 0..100 {
            backoff.next(&mut rng);
        }
        assert_eq!(backoff.attempts(), 100);
        backoff.reset();
        assert!(backoff.next(&mut rng) < 150 * MS);
    }
}
