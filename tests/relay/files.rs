//! What is written: the same store however it is carried, and logs that say what was printed.

use std::fs;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

use crate::place::{Place, contents, succeeds, watch};

#[test]
fn shards_and_links_make_no_difference_to_the_store() {
    let _watchdog = watch();
    let place = Place::new("same");
    let lines: Vec<String> = (0..1500).map(|i| format!("{} {}", i % 11, "x".repeat(i % 200))).collect();
    let input = place.write("input", lines.join("\n").as_bytes());
    let store = |shards: &str, links: &str| {
        let mut relay = place.relay();
        relay.arg("--input").arg(&input).args(["--shards", shards, "--connections", links, "--repeat", "2"]);
        succeeds(relay);
        place.report().all_well(3000);
        contents(&place.join("out/store"))
    };
    let first = store("1", "1");
    assert_eq!(first.len(), 3000);
    for (shards, links) in [("1", "64"), ("2", "1"), ("2", "64"), ("4", "1"), ("4", "64")] {
        assert!(store(shards, links) == first, "{shards} shards, {links} links");
    }
}

#[test]
fn the_log_says_what_was_printed() {
    let _watchdog = watch();
    let place = Place::new("log");
    let mut relay = place.relay();
    relay.args(["--seconds", "3", "--overload", "2"]);
    succeeds(relay);
    let report = place.report();
    let log = fs::read(place.join("out/relay.hlog")).unwrap();
    let mut request = Histogram::<u64>::new_with_bounds(1, 3_600_000_000_000, 2).unwrap();
    let (mut tags, mut last) = (Vec::new(), 0.0);
    for entry in IntervalLogIterator::new(&log) {
        let LogEntry::Interval(interval) = entry.unwrap() else { continue };
        let tag = interval.tag().unwrap().as_str().to_owned();
        assert!(interval.start_timestamp().as_secs_f64() >= last, "in the order of time");
        last = interval.start_timestamp().as_secs_f64();
        let bytes = base64(interval.encoded_histogram());
        let histogram: Histogram<u64> = Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
        if tag == "request" {
            request.add(&histogram).unwrap();
        }
        tags.push(tag);
    }
    for tag in ["request", "permit_wait", "send_wait", "queue_age", "batch_age", "store_commit"] {
        assert!(tags.iter().any(|t| t == tag), "{tag} in {tags:?}");
        assert!(place.join(&format!("out/relay.{tag}.hgrm")).exists(), "{tag}");
    }
    let samples = report.0["samples"].as_array().unwrap();
    let replies: u64 = samples.iter().map(|sample| sample["replies"].as_u64().unwrap()).sum();
    assert_eq!(request.len(), replies);
    let (logged, printed) = (request.value_at_quantile(0.99), (report.float("p99_us") * 1e3).round() as u64);
    assert!(request.equivalent(logged, printed), "{logged} ns in the log, {printed} printed");
}

/// Standard base64, without a check.
fn base64(text: &str) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let (mut bytes, mut bits, mut n) = (Vec::new(), 0_u32, 0);
    for c in text.bytes().filter(|c| *c != b'=') {
        bits = bits << 6 | u32::from(value(c));
        n += 6;
        if n >= 8 {
            n -= 8;
            bytes.push((bits >> n) as u8);
        }
    }
    bytes
}
