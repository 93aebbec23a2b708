//! From many readings to one [`Snapshot`], and its Prometheus text.
//!
//! Owned here: the number of the measurement epoch, the counters as they stood at the last reset,
//! and what the threads' histograms have brought since. Invariants of a snapshot: peak >= current;
//! ratio <= 1,000,000; every event is in exactly one epoch. Nothing here can be full: the lengths
//! are those of the tables.

use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::latency::{Latency, LatencySet};
use super::page::Reading;
use super::table::{Kind, Meter, Unit};
use crate::base::time::Instant;

/// The numbers of a host at one moment of one epoch.
#[derive(Debug)]
pub struct Snapshot {
    epoch: u64,
    length: Duration,
    values: Box<[u64]>,
    latency: LatencySet,
}

impl Snapshot {
    /// One number, in the unit of its row.
    pub fn value(&self, meter: Meter) -> u64 {
        self.values[meter.index()]
    }

    /// How long one kind of thing took in this epoch, in nanoseconds. Holds what threads have handed
    /// over, so it lags behind the counters by one interval.
    pub fn latency(&self, what: Latency) -> &Histogram<u64> {
        self.latency.get(what)
    }

    /// All histograms.
    pub fn latencies(&self) -> &LatencySet {
        &self.latency
    }

    /// Number of the measurement epoch, from 1.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How long the epoch had lasted.
    pub fn length(&self) -> Duration {
        self.length
    }
}

/// The running epoch.
#[derive(Debug)]
pub struct Measurement {
    epoch: u64,
    began: Instant,
    base: Box<[u64]>,
    latency: LatencySet,
}

impl Measurement {
    /// Epoch 1, for pages that are all zero.
    pub fn new(now: Instant) -> Self {
        Measurement { epoch: 1, began: now, base: vec![0; Meter::COUNT].into(), latency: LatencySet::new() }
    }

    /// The epoch's number, from 1.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Adds what a thread handed over.
    pub fn absorb(&mut self, set: &LatencySet) {
        self.latency.merge(set);
    }

    /// Adds the readings up: of every page that the last reset read too, and of those that are newer.
    pub fn snapshot(&self, readings: &[Reading], now: Instant) -> Snapshot {
        let mut values = sums(readings);
        for (value, base) in values.iter_mut().zip(&self.base) {
            *value = value.saturating_sub(*base);
        }
        for &meter in Meter::ALL {
            let value = values[meter.index()];
            values[meter.index()] = match meter.row().kind {
                // Pages are not read in one moment: what one has lowered another may not have raised yet.
                Kind::Gauge if value > i64::MAX as u64 => 0,
                // Nor are a page's peak and its gauge.
                Kind::Peak(gauge) => value.max(values[gauge.index()]),
                Kind::Ratio(part, whole) => per_million(values[part.index()], values[whole.index()]),
                Kind::Counter | Kind::Gauge | Kind::Worst => value,
            };
        }
        let mut latency = LatencySet::new();
        latency.merge(&self.latency);
        Snapshot { epoch: self.epoch, length: now.since(self.began), values, latency }
    }

    /// Begins a new epoch: what was counted until the readings is of the old one. Two things are left
    /// to the caller: to ask each page to restart its peaks, and to fetch and throw away what threads
    /// have recorded in their latency sets, or it will be of the new one.
    pub fn reset(&mut self, readings: &[Reading], now: Instant) {
        self.base = sums(readings);
        for &meter in Meter::ALL {
            if meter.row().kind != Kind::Counter {
                self.base[meter.index()] = 0;
            }
        }
        self.epoch += 1;
        self.began = now;
        self.latency.clear();
    }
}

fn sums(readings: &[Reading]) -> Box<[u64]> {
    let add = |meter: Meter| readings.iter().fold(0u64, |sum, r| sum.wrapping_add(r.value(meter)));
    let worst = |meter: Meter| readings.iter().map(|r| r.value(meter)).max().unwrap_or(0);
    let one = |&meter: &Meter| match meter.row().kind {
        Kind::Counter | Kind::Gauge => add(meter),
        Kind::Worst => worst(meter),
        Kind::Peak(gauge) if gauge.row().kind == Kind::Worst => worst(meter),
        Kind::Peak(_) => add(meter),
        Kind::Ratio(..) => 0,
    };
    Meter::ALL.iter().map(one).collect()
}

fn per_million(part: u64, whole: u64) -> u64 {
    // The part may have been read after the whole.
    let ppm = u128::from(part) * 1_000_000 / u128::from(whole.max(1));
    ppm.min(1_000_000) as u64
}

/// The bounds of the histogram buckets that Prometheus is told, in nanoseconds.
const BUCKETS: [u64; 16] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    50_000_000,
    100_000_000,
    500_000_000,
    1_000_000_000,
    10_000_000_000,
    60_000_000_000,
];

/// Appends the snapshot in Prometheus' text format, to be served with the content type
/// `text/plain; version=0.0.4; charset=utf-8`: newer scrapers refuse it under any other.
///
/// Counters end in `_total` and start at 0 with every epoch, which a scraper takes for a restart.
pub fn render_prometheus(snapshot: &Snapshot, out: &mut String) {
    let mut family = String::new();
    let mut last = "";
    for &meter in Meter::ALL {
        let row = meter.row();
        if row.name != last {
            last = row.name;
            let counter = row.kind == Kind::Counter;
            family = name(row.name, row.unit);
            if counter {
                family.push_str("_total");
            }
            head(out, &family, row.help, if counter { "counter" } else { "gauge" });
        }
        out.push_str(&family);
        if let Some((key, value)) = row.label {
            let _ = write!(out, "{{{key}=\"{value}\"}}");
        }
        out.push(' ');
        number(out, snapshot.value(meter), row.unit);
        out.push('\n');
    }
    for what in Latency::ALL {
        histogram(out, what, snapshot.latency(what));
    }
    head(out, "afflux_host_epoch", "Number of the measurement epoch; a reset adds one.", "gauge");
    let _ = writeln!(out, "afflux_host_epoch {}", snapshot.epoch());
    let beyond = "afflux_latency_beyond_range_total";
    head(out, beyond, "Times longer than an hour, recorded as an hour.", "counter");
    let _ = writeln!(out, "{beyond} {}", snapshot.latency.beyond());
}

fn histogram(out: &mut String, what: Latency, h: &Histogram<u64>) {
    let family = name("afflux.latency.", Unit::Count) + what.tag() + "_seconds";
    head(out, &family, what.help(), "histogram");
    // One walk: counts below the bounds and the sum, both from the middle of the histogram's steps.
    let mut below = [0u64; BUCKETS.len()];
    let mut sum = 0.0;
    for step in h.iter_recorded() {
        let value = h.median_equivalent(step.value_iterated_to());
        let count = step.count_since_last_iteration();
        sum += value as f64 * count as f64;
        let first = BUCKETS.partition_point(|&bound| bound < value);
        below[first..].iter_mut().for_each(|b| *b += count);
    }
    for (bound, count) in BUCKETS.iter().zip(below) {
        let _ = write!(out, "{family}_bucket{{le=\"");
        number(out, *bound, Unit::Nanos);
        let _ = writeln!(out, "\"}} {count}");
    }
    let _ = writeln!(out, "{family}_bucket{{le=\"+Inf\"}} {}", h.len());
    let _ = writeln!(out, "{family}_sum {:.9}", sum / 1e9);
    let _ = writeln!(out, "{family}_count {}", h.len());
}

fn head(out: &mut String, family: &str, help: &str, kind: &str) {
    let _ = writeln!(out, "# HELP {family} {help}\n# TYPE {family} {kind}");
}

fn name(dotted: &str, unit: Unit) -> String {
    let suffix = match unit {
        Unit::Bytes => "_bytes",
        Unit::Nanos => "_seconds",
        Unit::Count | Unit::Ppm | Unit::Flag => "",
    };
    dotted.replace('.', "_") + suffix
}

fn number(out: &mut String, value: u64, unit: Unit) {
    let (whole, fraction, digits) = match unit {
        Unit::Nanos => (value / 1_000_000_000, value % 1_000_000_000, 9),
        Unit::Ppm => (value / 1_000_000, value % 1_000_000, 6),
        Unit::Count | Unit::Bytes | Unit::Flag => (value, 0, 0),
    };
    let _ = write!(out, "{whole}");
    if fraction != 0 {
        let text = format!("{fraction:0digits$}");
        let _ = write!(out, ".{}", text.trim_end_matches('0'));
    }
}

#[cfg(test)]
mod tests {
    use super::super::page::Page;
    use super::*;

    const T0: Instant = Instant(5_000_000_000);

    fn at(seconds: u64) -> Instant {
        Instant(T0.0 + seconds * 1_000_000_000)
    }

    fn page<const N: usize>(numbers: [(Meter, u64); N]) -> Page {
        let page = Page::new();
        numbers.into_iter().for_each(|(meter, value)| page.set(meter, value));
        page
    }

    #[test]
    fn pages_add_up_and_the_worst_age_counts() {
        let a = page([(Meter::Sent, 3), (Meter::Links, 2), (Meter::OldestToSend, 50)]).read();
        let b = page([(Meter::Sent, 4), (Meter::Links, 1), (Meter::OldestToSend, 20)]).read();
        let gate = Reading::of([(Meter::JobsLimit, 64)]);
        let s = Measurement::new(T0).snapshot(&[a, b, gate], at(2));
        let values = [Meter::Sent, Meter::Links, Meter::OldestToSend, Meter::JobsLimit].map(|m| s.value(m));
        assert_eq!(values, [7, 3, 50, 64]);
        assert_eq!((s.epoch(), s.length()), (1, Duration::from_secs(2)));
    }

    #[test]
    fn what_one_thread_raises_another_may_lower() {
        let (a, b) = (Page::new(), Page::new());
        a.add(Meter::RequestsPending, 5);
        b.sub(Meter::RequestsPending, 2);
        let m = Measurement::new(T0);
        assert_eq!(m.snapshot(&[a.read(), b.read()], T0).value(Meter::RequestsPending), 3);
        assert_eq!(m.snapshot(&[b.read()], T0).value(Meter::RequestsPending), 0, "read before it was raised");
    }

    #[test]
    fn a_reset_keeps_gauges_and_clears_counters_durations_and_histograms() {
        let page = page([(Meter::JobWaits, 9), (Meter::JobWaitTime, 900), (Meter::JobsInUse, 4)]);
        let mut m = Measurement::new(T0);
        let mut set = LatencySet::new();
        set.record(Latency::Request, Duration::from_micros(3));
        m.absorb(&set);
        assert_eq!(m.snapshot(&[page.read()], at(1)).latency(Latency::Request).len(), 1);

        m.reset(&[page.read()], at(10));
        let s = m.snapshot(&[page.read()], at(10));
        let values = [Meter::JobWaits, Meter::JobWaitTime, Meter::JobsInUse].map(|m| s.value(m));
        assert_eq!((values, s.epoch()), ([0, 0, 4], 2));
        assert!(s.latencies().is_empty());

        page.add(Meter::JobWaits, 2);
        let s = m.snapshot(&[page.read()], at(13));
        assert_eq!((s.value(Meter::JobWaits), s.length()), (2, Duration::from_secs(3)));
    }

    #[test]
    fn peaks_become_current_at_a_reset_even_before_their_writer_knows() {
        let page = page([(Meter::OwnedAccounted, 80), (Meter::OwnedAccounted, 10)]);
        let mut m = Measurement::new(T0);
        let peak = |m: &Measurement| m.snapshot(&[page.read()], T0).value(Meter::OwnedAccountedPeak);
        assert_eq!(peak(&m), 80);
        m.reset(&[page.read()], T0);
        page.ask_reset();
        assert_eq!(peak(&m), 10);
        page.follow_reset();
        assert_eq!(peak(&m), 10);
        page.set(Meter::OwnedAccounted, 40);
        page.set(Meter::OwnedAccounted, 30);
        assert_eq!(peak(&m), 40);
    }

    #[test]
    fn a_peak_is_never_below_its_gauge() {
        let torn = Reading::of([(Meter::JobsInUse, 12), (Meter::JobsPeak, 11)]);
        assert_eq!(Measurement::new(T0).snapshot(&[torn], T0).value(Meter::JobsPeak), 12);
    }

    #[test]
    fn the_worst_peak_of_several_threads_is_the_peak() {
        let pages = [page([(Meter::NoProgress, 7)]).read(), page([(Meter::NoProgress, 9)]).read()];
        assert_eq!(Measurement::new(T0).snapshot(&pages, T0).value(Meter::NoProgressPeak), 9);
    }

    #[test]
    fn the_blocked_ratio_is_of_the_epoch() {
        let page = page([(Meter::HwmAttempts, 1000), (Meter::HwmBlocked, 1000)]);
        let mut m = Measurement::new(T0);
        let ratio = |m: &Measurement| m.snapshot(&[page.read()], T0).value(Meter::HwmBlockedRatio);
        assert_eq!(ratio(&m), 1_000_000);
        m.reset(&[page.read()], T0);
        assert_eq!(ratio(&m), 0, "no attempts, no ratio");
        page.add(Meter::HwmAttempts, 3);
        page.add(Meter::HwmBlocked, 1);
        assert_eq!(ratio(&m), 333_333, "rounded down");
    }

    /// What a scraper holds against a text: the first rule that it breaks.
    fn broken_rule(text: &str) -> Option<String> {
        let mut families = std::collections::HashMap::new();
        let mut series = std::collections::HashSet::new();
        let (mut family, mut helped) = (String::new(), String::new());
        if !text.ends_with('\n') || text.contains('\r') {
            return Some("lines end in \\n, the last one too".into());
        }
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                helped = rest.split(' ').next()?.to_owned();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ')?;
                if name != helped || families.insert(name.to_owned(), kind.to_owned()).is_some() {
                    return Some(format!("one HELP and TYPE per family: {line}"));
                }
                family = name.to_owned();
            } else {
                let (key, value) = line.rsplit_once(' ')?;
                let name = key.split('{').next()?;
                let kind = families.get(&family).cloned().unwrap_or_default();
                let mut plain = name;
                for suffix in ["_bucket", "_sum", "_count"].iter().filter(|_| kind == "histogram") {
                    plain = plain.strip_suffix(suffix).unwrap_or(plain);
                }
                if plain != family || (kind == "counter") != name.ends_with("_total") {
                    return Some(format!("a series stands under its family: {line}"));
                }
                if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') || value.parse::<f64>().is_err() {
                    return Some(format!("name and value: {line}"));
                }
                if !series.insert(key.to_owned()) {
                    return Some(format!("a series stands once: {line}"));
                }
            }
        }
        None
    }

    #[test]
    fn a_scraper_can_read_it() {
        let page = page([
            (Meter::JobWaitTime, 250_000_000),
            (Meter::HwmAttempts, 3),
            (Meter::HwmBlocked, 1),
            (Meter::BytesSentApplication, 1 << 20),
            (Meter::DroppedNoHandler, 2),
        ]);
        let mut m = Measurement::new(T0);
        let mut set = LatencySet::new();
        for micros in [5, 20, 20, 2_000, 120_000_000] {
            set.record(Latency::Request, Duration::from_micros(micros));
        }
        m.absorb(&set);
        let mut text = String::new();
        render_prometheus(&m.snapshot(&[page.read()], T0), &mut text);
        assert_eq!(broken_rule(&text), None);
        for line in [
            "# TYPE afflux_host_job_queue_jobs gauge",
            "afflux_host_epoch 1",
            "afflux_host_job_queue_jobs{state=\"in_use\"} 0",
            "afflux_host_job_queue_capacity_wait_duration_seconds_total 0.25",
            "afflux_host_hwm_blocked_ratio 0.333333",
            "afflux_peer_sent_bytes_total{lane=\"application\"} 1048576",
            "afflux_peer_messages_dropped_total{reason=\"no_handler\"} 2",
            "afflux_latency_request_seconds_bucket{le=\"0.00001\"} 1",
            "afflux_latency_request_seconds_bucket{le=\"0.000025\"} 3",
            "afflux_latency_request_seconds_bucket{le=\"60\"} 4",
            "afflux_latency_request_seconds_bucket{le=\"+Inf\"} 5",
            "afflux_latency_request_seconds_count 5",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn buckets_grow_to_the_count_and_the_sum_is_close() {
        let mut set = LatencySet::new();
        let micros = (0..1000u64).map(|i| i * i);
        micros.clone().for_each(|us| set.record(Latency::SendWait, Duration::from_micros(us)));
        let mut text = String::new();
        histogram(&mut text, Latency::SendWait, set.get(Latency::SendWait));
        let value = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap();
        let buckets: Vec<f64> = text.lines().filter(|l| l.contains("_bucket")).map(value).collect();
        assert_eq!(buckets.len(), BUCKETS.len() + 1);
        assert!(buckets.is_sorted());
        assert_eq!(*buckets.last().unwrap(), 1000.0);
        let sum = text.lines().find(|l| l.contains("_sum")).map(value).unwrap();
        let expected = micros.sum::<u64>() as f64 / 1e6;
        assert!((sum - expected).abs() < expected * 0.01, "{sum} for {expected}");
    }

    #[test]
    fn the_format_check_can_fail() {
        for text in [
            "x 1",
            "# HELP x X.\n# TYPE x gauge\nx 1\nx 1\n",
            "# HELP x X.\n# TYPE x counter\nx 1\n",
            "# HELP x X.\n# TYPE x gauge\ny 1\n",
            "# HELP x X.\n# TYPE x gauge\nx one\n",
            "# HELP x X.\n# TYPE x gauge\n# HELP x X.\n# TYPE x gauge\nx 1\n",
        ] {
            assert!(broken_rule(text).is_some(), "{text}");
        }
    }
}
