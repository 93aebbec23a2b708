//! How long things took: one histogram per [`Latency`], one set per thread.
//!
//! A set is allocated once and never grows: 1 ns to one hour in steps of 1 %, 36 KiB per histogram,
//! so that recording neither allocates nor fails. What is longer than an hour is recorded as an hour
//! and counted. A thread hands its full set over when it is asked to, against an empty one that the
//! asker brings, so that nothing is allocated on a shard and an idle thread holds nobody up.

use std::time::Duration;

use hdrhistogram::Histogram;

/// The longest time that is told apart, in nanoseconds: one hour. Readers of histogram files fail
/// on bounds near the end of the number range, so it is also the bound that is written.
pub const LONGEST: u64 = 3_600_000_000_000;

const DIGITS: u8 = 2;

macro_rules! latencies {
    ($($id:ident, $tag:literal, $help:literal;)+) => {
        /// What took long. Nanoseconds everywhere.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Latency {
            $(#[doc = $help] $id,)+
        }

        impl Latency {
            /// Every kind.
            pub const ALL: [Latency; [$($tag),+].len()] = [$(Latency::$id),+];

            /// The tag in histogram logs; the metric is `afflux.latency.` and this.
            pub fn tag(self) -> &'static str {
                match self { $(Latency::$id => $tag,)+ }
            }

            /// One sentence for the person who looks at it.
            pub fn help(self) -> &'static str {
                match self { $(Latency::$id => $help,)+ }
            }
        }
    };
}

latencies! {
    Request, "request", "From the start of a request to its reply; other endings are not in it.";
    SendWait, "send_wait", "Waiting for room, of operations that callers started.";
    HandlerSendWait, "handler_send_wait", "Waiting for room, of operations that handlers started.";
    PermitWait, "permit_wait", "From an origin's ticket to its permit.";
    QueueAge, "queue_age", "From a record's arrival in its receive queue to its claim.";
    Lateness, "lateness", "From a deadline to the moment that it took effect.";
}

/// One thread's histograms. Two sets always have the same bounds, so that they can be added.
pub struct LatencySet {
    histograms: [Histogram<u64>; Latency::ALL.len()],
    beyond: u64,
}

impl LatencySet {
    /// An empty set.
    pub fn new() -> Self {
        LatencySet { histograms: Latency::ALL.map(|_| empty()), beyond: 0 }
    }

    /// Records that `what` took `time`.
    #[inline]
    pub fn record(&mut self, what: Latency, time: Duration) {
        self.record_many(what, time, 1);
    }

    /// Records that `what` took `time`, so many times.
    #[inline]
    pub fn record_many(&mut self, what: Latency, time: Duration, times: u64) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.beyond += if nanos > LONGEST { times } else { 0 };
        self.histograms[what as usize].saturating_record_n(nanos.min(LONGEST), times);
    }

    /// The histogram of one kind, in nanoseconds.
    pub fn get(&self, what: Latency) -> &Histogram<u64> {
        &self.histograms[what as usize]
    }

    /// How many times were longer than [`LONGEST`] and are in the histograms as that.
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    /// Whether nothing has been recorded.
    pub fn is_empty(&self) -> bool {
        self.histograms.iter().all(Histogram::is_empty)
    }

    /// Hands over what was recorded and goes on with `empty`. It is cleared if it is not, since what
    /// it held has been counted elsewhere.
    pub fn swap(&mut self, mut empty: LatencySet) -> LatencySet {
        if !empty.is_empty() {
            empty.clear();
        }
        std::mem::replace(self, empty)
    }

    /// Adds what another set recorded.
    pub fn merge(&mut self, other: &LatencySet) {
        for (mine, theirs) in self.histograms.iter_mut().zip(&other.histograms) {
            mine.add(theirs).expect("every set has the same bounds");
        }
        self.beyond += other.beyond;
    }

    /// Forgets what was recorded and keeps the memory.
    pub fn clear(&mut self) {
        self.histograms.iter_mut().for_each(Histogram::reset);
        self.beyond = 0;
    }

    /// The memory of one set's counters, for the ledger.
    pub fn bytes() -> u64 {
        let one = empty().distinct_values() * size_of::<u64>();
        (one * Latency::ALL.len()) as u64
    }
}

impl Default for LatencySet {
    fn default() -> Self {
        LatencySet::new()
    }
}

impl std::fmt::Debug for LatencySet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counts = Latency::ALL.iter().map(|&what| (what.tag(), self.get(what).len()));
        f.debug_map().entries(counts).finish()
    }
}

/// An empty histogram with the bounds of every histogram here.
pub fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, DIGITS).expect("1 < the longest time, 2 digits are allowed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_costs_what_the_ledger_is_told() {
        let per_histogram = LatencySet::bytes() / Latency::ALL.len() as u64;
        assert_eq!(per_histogram, 36 << 10);
    }

    #[test]
    fn what_is_longer_than_the_bound_is_kept_and_counted() {
        let mut set = LatencySet::new();
        set.record(Latency::QueueAge, Duration::from_nanos(LONGEST));
        assert_eq!(set.beyond(), 0);
        set.record(Latency::QueueAge, Duration::from_nanos(LONGEST + 1));
        set.record(Latency::QueueAge, Duration::MAX);
        set.record(Latency::QueueAge, Duration::ZERO);
        assert_eq!(set.beyond(), 2);
        let service = set.get(Latency::QueueAge);
        assert_eq!(service.len(), 4);
        assert!(service.equivalent(service.max(), LONGEST));
        assert_eq!(service.min(), 0);
    }

    #[test]
    fn a_swap_hands_everything_over_once() {
        let mut set = LatencySet::new();
        set.record(Latency::Request, Duration::from_micros(80));
        set.record(Latency::Request, Duration::MAX);
        let full = set.swap(LatencySet::new());
        assert_eq!((full.get(Latency::Request).len(), full.beyond()), (2, 1));
        assert!(set.is_empty());
        assert_eq!(set.beyond(), 0);

        set.record(Latency::Request, Duration::from_micros(90));
        let second = set.swap(full);
        assert_eq!(second.get(Latency::Request).len(), 1);
        assert!(set.is_empty(), "a set that was brought back full is counted already");
        assert_eq!(set.beyond(), 0);
    }

    #[test]
    fn merging_adds_kind_by_kind() {
        let (mut a, mut b) = (LatencySet::new(), LatencySet::new());
        a.record(Latency::Request, Duration::from_nanos(10));
        b.record(Latency::Request, Duration::from_nanos(30));
        b.record(Latency::Lateness, Duration::MAX);
        a.merge(&b);
        assert_eq!((a.get(Latency::Request).len(), a.get(Latency::Request).max()), (2, 30));
        assert_eq!((a.get(Latency::Lateness).len(), a.get(Latency::QueueAge).len(), a.beyond()), (1, 0, 1));
    }

    #[test]
    fn every_kind_has_a_tag_that_a_log_may_carry() {
        let tags: std::collections::HashSet<_> = Latency::ALL.iter().map(|l| l.tag()).collect();
        assert_eq!(tags.len(), Latency::ALL.len());
        assert!(tags.iter().all(|t| t.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')));
        for (i, what) in Latency::ALL.iter().enumerate() {
            assert_eq!(*what as usize, i);
        }
    }
}
