//! Load and service as processes of their own: one stands still, one is killed, strangers come by.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::place::{Place, Running, relay, sums, verified, watch};

/// A service with its files in `place`.
fn service(place: &Place, listen: &str) -> Command {
    let mut service = relay();
    service.args(["--listen", listen]).arg("--store").arg(place.join("store")).arg("--out").arg(place.join("service"));
    service.arg("--json").arg(place.join("service.json"));
    service
}

/// A load for it.
fn load(place: &Place, address: &str) -> Command {
    let mut load = place.relay();
    load.args(["--connect", address]);
    load
}

fn service_report(place: &Place) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(place.join("service.json")).unwrap()).unwrap()
}

/// Lets the processes run: what they do meanwhile is what the test is about.
fn meanwhile(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::thread::park_timeout(end - Instant::now());
    }
}

#[test]
fn two_processes_agree_and_strangers_cost_nothing() {
    let _watchdog = watch();
    let place = Place::new("two");
    let (running, address) = Running::service(service(&place, "127.0.0.1:0"));
    let input = place.write("input", "a line of somebody\nanother\n\n".repeat(500).as_bytes());
    let mut command = load(&place, &address);
    command.arg("--input").arg(&input).args(["--repeat", "3", "--key", "1"]);
    let loading = Running::start(command);
    for words in [&b"GET / HTTP/1.1\r\nHost: relay\r\n\r\n"[..], &[0xa5; 700], &[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 9]]
    {
        let mut stranger = TcpStream::connect(&address).unwrap();
        stranger.write_all(words).unwrap();
        // It is told something or nothing, but it is shown out.
        let _ = stranger.shutdown(std::net::Shutdown::Write);
        let _ = stranger.read_to_end(&mut Vec::new());
    }
    let said = loading.succeeds();
    sums(&said);
    place.report().all_well_without_store(4500);
    let tenants = place.report().0["tenants"].clone();
    assert_eq!(tenants[0]["served"], 1500, "{tenants:#}");
    running.signal("INT");
    sums(&running.succeeds());
    let report = service_report(&place);
    assert_eq!((report["stored"].as_u64(), report["held"].as_u64()), (Some(4500), Some(4500)), "{report:#}");
    assert!(report["handshakes_failed"].as_u64().unwrap() >= 3, "{report:#}");
    let verdict = verified(&place.join("out"), &place.join("store"));
    assert!(verdict.contains("4,500 answers compared: lost 0, duplicated 0"), "{verdict}");
}

#[test]
fn a_service_that_stands_still_costs_time_and_nothing_else() {
    let _watchdog = watch();
    let place = Place::new("stopped");
    let (running, address) = Running::service(service(&place, "127.0.0.1:0"));
    let mut command = load(&place, &address);
    // One link: what its queues hold is served well within the time of a request.
    command.args(["--seconds", "5", "--overload", "1", "--timeout", "1", "--connections", "1"]);
    let loading = Running::start(command);
    loading.until_it_says("   1 s  offered");
    running.signal("STOP");
    meanwhile(Duration::from_millis(1800));
    running.signal("CONT");
    let said = loading.succeeds();
    sums(&said);
    let report = place.report();
    let details = report.0["error_details"].as_object().unwrap();
    for (detail, of) in details {
        assert!(detail.starts_with("DeadlineExceeded/"), "{detail}: {of}");
    }
    let late = details["DeadlineExceeded/NoReply"]["first"].as_str().unwrap();
    assert!(late.contains("relay") && late.contains("within 1"), "whom it asked and how long: {late}");
    assert_eq!(report.number("load_links_lost"), 0, "standing still is not being dead");
    // The last seconds: it flows again.
    let samples = report.0["samples"].as_array().unwrap();
    assert!(samples.iter().rev().take(2).any(|sample| sample["replies"].as_u64().unwrap() > 0), "{said}");
    running.signal("INT");
    running.succeeds();
    verified(&place.join("out"), &place.join("store"));
}

#[test]
fn a_service_that_is_killed_has_everything_that_it_answered() {
    let _watchdog = watch();
    let place = Place::new("killed");
    let kills = std::env::var("AFFLUX_RELAY_KILLS").map_or(4, |n| n.parse::<u32>().unwrap());
    let (mut running, address) = Running::service(service(&place, "127.0.0.1:0"));
    let mut command = load(&place, &address);
    command.args(["--outstanding", "300", "--repeat", "1000"]);
    let mut loading = Running::start(command);
    loading.until_it_says("closed loop");
    let mut x = 0x9e37_79b9_u32;
    for _ in 0..kills {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        meanwhile(Duration::from_millis(300 + u64::from(x >> 22)));
        running.signal("KILL");
        running.end();
        assert!(loading.runs(), "the load waits for the service to come back");
        running = Running::service(service(&place, &address)).0;
    }
    meanwhile(Duration::from_millis(500));
    loading.signal("INT");
    let said = loading.succeeds();
    sums(&said);
    let report = place.report();
    assert!(report.number("replies") > 0 && report.number("retries") > 0, "{said}");
    assert_eq!(report.0["errors"], serde_json::json!({}), "asked again until it was there: {said}");
    running.signal("INT");
    running.succeeds();
    let verdict = verified(&place.join("out"), &place.join("store"));
    assert!(verdict.contains("lost 0, duplicated 0"), "{verdict}");
}

#[test]
fn a_verdict_can_be_bad() {
    let _watchdog = watch();
    let place = Place::new("verdict");
    let input = place.write("input", b"one\ntwo\n");
    let mut command = place.relay();
    command.arg("--input").arg(&input).arg("--store").arg(place.join("store"));
    Running::start(command).succeeds();
    verified(&place.join("out"), &place.join("store"));
    // An answer that nobody gave: another sequence.
    let answers = place.join("out/relay.answers");
    let mut bytes = std::fs::read(&answers).unwrap();
    bytes[7] ^= 0x40;
    std::fs::write(&answers, bytes).unwrap();
    let mut verify = relay();
    verify.arg("--verify").arg(place.join("out")).arg("--store").arg(place.join("store"));
    let output = verify.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("lost = 1"));
}
