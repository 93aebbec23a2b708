//! Files for other programs. Writes histogram logs, percentile tables and a Prometheus text of
//! known values and reads them back; `run.sh` then gives the same files to the standard readers,
//! which must find what stands in `expected.txt`.
//!
//! The files go to `$AFFLUX_INTEROP_DIR`, or to a scratch directory of the build.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use afflux::base::time::Instant;
use afflux::host::dump::{HistogramLog, MICROS, write_hgrm};
use afflux::meter::{Latency, LatencySet, Measurement, Meter, Reading, latency, render_prometheus};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

const BASE: f64 = 1_796_035_240.026;

fn directory() -> PathBuf {
    let dir = std::env::var_os("AFFLUX_INTEROP_DIR").map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Known values with a long tail; another `seed`, other values.
fn values(seed: u64, interval: u64) -> impl Iterator<Item = u64> {
    (1..=10_000u64).map(move |i| {
        let body = 20_000 + (i * (seed + interval + 7919)) % 80_000;
        if i % 500 == 0 { body * (20 + i / 100) } else { body }
    })
}

fn expected(out: &mut String, tag: &str, h: &Histogram<u64>) {
    let quantiles = [0.5, 0.99, 0.999].map(|q| h.value_at_quantile(q));
    let [p50, p99, p999] = quantiles;
    writeln!(out, "{tag} {} {} {p50} {p99} {p999}", h.len(), h.max()).unwrap();
}

#[test]
fn a_log_of_two_tags_and_their_tables() {
    let dir = directory();
    let path = dir.join("known.hlog");
    let mut log = HistogramLog::create(&path, BASE).unwrap();
    let tags = ["request", "send_wait"];
    let mut sums = [latency::empty(), latency::empty()];
    for interval in 0..3u64 {
        for (i, tag) in tags.into_iter().enumerate() {
            let mut h = latency::empty();
            values(i as u64, interval).for_each(|v| h.saturating_record(v));
            // The ends of the range: nothing, and an hour.
            h.saturating_record(0);
            h.saturating_record(latency::LONGEST);
            log.interval(tag, interval as f64, 1.0, &h).unwrap();
            sums[i].add(&h).unwrap();
        }
    }
    let mut text = String::new();
    for (tag, sum) in tags.iter().zip(&sums) {
        write_hgrm(dir.join(format!("known.{tag}.hgrm")), sum, MICROS).unwrap();
        expected(&mut text, tag, sum);
    }
    std::fs::write(dir.join("expected.txt"), text).unwrap();

    let written = std::fs::read(&path).unwrap();
    let mut seen = [latency::empty(), latency::empty()];
    let mut starts = Vec::new();
    for entry in IntervalLogIterator::new(&written) {
        match entry.unwrap() {
            LogEntry::Interval(i) => {
                let bytes = base64(i.encoded_histogram());
                let h: Histogram<u64> = Deserializer::new().deserialize(&mut bytes.as_slice()).unwrap();
                let tag = tags.iter().position(|t| *t == i.tag().unwrap().as_str()).unwrap();
                seen[tag].add(&h).unwrap();
                starts.push(i.start_timestamp().as_millis());
                assert_eq!(i.duration(), Duration::from_secs(1));
            }
            LogEntry::StartTime(t) | LogEntry::BaseTime(t) => assert_eq!(t.as_millis(), 1_796_035_240_026),
        }
    }
    assert_eq!(starts, [0, 0, 1000, 1000, 2000, 2000]);
    assert!(seen == sums);
}

#[test]
fn a_text_for_scrapers() {
    let page = Reading::of(Meter::ALL.iter().map(|&meter| (meter, meter.index() as u64)));
    let mut set = LatencySet::new();
    values(0, 0).for_each(|v| set.record(Latency::Request, Duration::from_nanos(v)));
    let mut measurement = Measurement::new(Instant(0));
    measurement.absorb(&set);
    let mut text = String::new();
    render_prometheus(&measurement.snapshot(&[page], Instant(1)), &mut text);
    assert!(text.ends_with('\n'));
    std::fs::write(directory().join("metrics.txt"), text).unwrap();
}

/// The inverse of the log's text form.
fn base64(text: &str) -> Vec<u8> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        other => panic!("{other} in base64"),
    };
    let mut out = Vec::new();
    let (mut bits, mut held) = (0u32, 0);
    for c in text.bytes().filter(|&c| c != b'=') {
        bits = bits << 6 | u32::from(digit(c));
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    out
}
