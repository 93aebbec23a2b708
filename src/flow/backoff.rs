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

    /// Case 089. A thousand peers lose one node in the same moment. In no tenth of a second do more than half of them
    /// come back, at the first attempt and at the ceiling, and nobody comes at once.
    #[test]
    fn a_thousand_do_not_come_back_together() {
        let mut rng = Rng::new(89);
        let mut waits = vec![Backoff::new(100 * MS, 5_000 * MS); 1000];
        for (attempt, most) in [(1, 1000), (2, 1000), (7, 40), (8, 40), (20, 40)] {
            let mut of = std::collections::BTreeMap::new();
            for backoff in &mut waits {
                while backoff.attempts() < attempt - 1 {
                    backoff.next(&mut rng);
                }
                let wait = backoff.next(&mut rng);
                assert!(wait >= 50 * MS, "nobody comes at once");
                *of.entry(wait.as_millis() / 100).or_insert(0) += 1;
            }
            let fullest = *of.values().max().unwrap();
            assert!(fullest <= most && of.len() > 1, "attempt {attempt}: {of:?}");
        }
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
