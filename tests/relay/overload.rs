//! At several times the load that it can carry: bounded, correct, and every number adds up.

use std::fs;

use crate::place::{Place, Running, Watchdog, sums, watch};

/// A log of a site whose visitors are a few busy ones and a long tail.
fn skewed(lines: usize) -> Vec<u8> {
    let mut log = Vec::new();
    let mut x = 0x2545_f491_4f6c_dd1d_u64;
    for i in 0..lines {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        // Half of the rest goes to each next one, so the first has half of all.
        let who = (x | 1 << 20).trailing_zeros();
        let path = "/archive/".repeat((x >> 40) as usize % 12);
        log.extend(format!("10.0.0.{who} - [{i}] \"GET {path}{} HTTP/1.1\" 200 {}\n", x % 997, x % 9973).bytes());
    }
    log
}

fn watched() -> Watchdog {
    watch()
}

#[test]
fn three_times_the_load_is_carried_within_every_bound() {
    let _watchdog = watched();
    let place = Place::new("overload");
    let input = place.write("access.log", &skewed(20_000));
    let mut relay = place.relay();
    relay.arg("--input").arg(&input).args(["--seconds", "4", "--overload", "3", "--key", "1"]);
    let said = Running::start(relay).succeeds();
    let report = place.report();
    let number = |name: &str| report.number(name);

    assert_eq!([number("lost"), number("duplicated")], [0, 0]);
    assert_eq!(number("permits_peak"), number("permits_limit"), "{said}");
    assert!(number("permit_waits") > 0 && number("pauses") > 0 && number("waits") > 0, "{:#}", report.0);
    let details = report.0["error_details"].as_object().unwrap();
    assert!(!details.is_empty(), "three times the load must be too much");
    for (detail, of) in details {
        let allowed = ["NoRoom", "WaitingRoomFull", "NoReply"].map(|d| format!("DeadlineExceeded/{d}"));
        assert!(allowed.contains(detail), "{detail}: {of}");
        assert!(of["first"].as_str().unwrap().contains("relay"), "whom it asked: {of}");
    }
    // Each second's lines, and those of the report.
    assert!(sums(&said) >= 2 * 4, "{said}");
    let samples = report.0["samples"].as_array().unwrap();
    let sum = |name: &str| samples.iter().map(|sample| sample[name].as_u64().unwrap()).sum::<u64>();
    assert!(sum("offered") >= sum("submitted") && sum("submitted") > sum("replies"));
    // What was measured first is not in the samples.
    assert!(sum("replies") < number("replies") && sum("replies") > 0);

    // Every place holds, and the allocator gave out no more than the ledger says.
    for row in report.0["ledger"].as_array().unwrap() {
        assert!(row["peak_held"].as_u64().unwrap_or(0) <= row["maximum"].as_u64().unwrap(), "{row:#}");
    }
    let grown = number("allocated_peak_bytes") - number("allocated_before_bytes");
    assert!(grown < number("ledger_bytes"), "{grown}");
    let full = |name: &str| {
        let stages = report.0["stages"].as_array().unwrap();
        let stage = stages.iter().find(|stage| stage["name"] == name).unwrap();
        (stage["held_peak"].as_u64().unwrap(), stage["capacity"].as_u64().unwrap())
    };
    let (held, capacity) = full("started handlers");
    assert_eq!(held, capacity, "the stages behind the permits are full");
    assert!(full("permits, queued").0 > 0 && full("waiting room").0 > 0);

    // The tenants are those of the lines, the busiest first, and nobody was forgotten.
    let tenants = report.0["tenants"].as_array().unwrap();
    assert_eq!(tenants[0]["name"], "10.0.0.0");
    let served = |tenant: &serde_json::Value| tenant["served"].as_u64().unwrap();
    assert_eq!(tenants.iter().map(served).sum::<u64>(), number("stored") + number("recognised"));
    assert!(tenants.iter().all(|tenant| tenant["waiting"] == 0 && tenant["no_progress_ms_max"].is_number()));

    // What closed the batches, and where their time went.
    let closed = report.0["batch_closed_by"].as_object().unwrap();
    assert_eq!(closed.values().map(|n| n.as_u64().unwrap()).sum::<u64>(), number("batches"));
    assert!(closed["items"].as_u64().unwrap() > 0, "{closed:?}");
    let times = ["permit_wait", "queue_wait", "service", "result_wait"];
    assert!(times.iter().all(|time| report.0["bridge"][time]["count"].as_u64().unwrap() > 0));

    let svg = fs::read_to_string(place.join("out/relay.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for word in ["offered", "committed", "p99", "waits per second", "peers paused", "open loop"] {
        assert!(svg.contains(word), "{word}");
    }
}

#[test]
fn a_closed_loop_is_labelled_so_and_offers_no_more_than_it_may() {
    let _watchdog = watched();
    let place = Place::new("closed");
    let mut relay = place.relay();
    relay.args(["--outstanding", "7", "--seconds", "1"]);
    let said = Running::start(relay).succeeds();
    assert!(said.contains("closed loop, 7 outstanding"), "{said}");
    sums(&said);
    let report = place.report();
    report.all_well(report.number("sent"));
    let stages = report.0["stages"].as_array().unwrap();
    let flight = stages.iter().find(|stage| stage["name"] == "requests in flight").unwrap();
    assert!(flight["held_peak"].as_u64().unwrap() <= 7);
}
