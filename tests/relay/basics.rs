//! Load and service in one process: lines, records that come again, options.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use redb::{Database, ReadableDatabase};

use crate::place::{Place, TENANTS, relay, sorted, stored, succeeds};

/// Every name that a program may rely on.
const NAMES: [&str; 35] = [
    "sent",
    "accepted",
    "committed",
    "errors",
    "replies",
    "lost",
    "duplicated",
    "permits_limit",
    "permits_peak",
    "permit_waits",
    "waits",
    "pauses",
    "flow_frames_sent",
    "ledger_bytes",
    "rss_before_bytes",
    "rss_peak_bytes",
    "p50_us",
    "p99_us",
    "p999_us",
    "max_us",
    "seconds",
    "recognised",
    "held",
    "submitted",
    "retries",
    "commits",
    "stages",
    "tenants",
    "ledger",
    "rss_after_bytes",
    "batch_closed_by",
    "bridge",
    "samples",
    "error_details",
    "loop",
];

#[test]
fn every_line_is_stored_once_as_it_was() {
    let place = Place::new("lines");
    let mut lines: Vec<Vec<u8>> = (0..2000).map(|i| format!("tenant-{} line {i}", i % 7).into_bytes()).collect();
    lines[3] = Vec::new();
    lines[4] = Vec::new();
    lines[5] = b"with a carriage return\r".to_vec();
    lines[6] = vec![0xff; 300];
    // Longer than a read, and more of them than a queue's mark holds: each ends a little further on in
    // its last page, where reading changes its way.
    for i in 0..24 {
        lines[100 + i] = vec![b'a' + i as u8; 150_000 + i * 173];
    }
    // Without a newline at its end: the last line is a line all the same.
    let input = place.write("input", &lines.join(&b'\n'));
    let mut relay = place.relay();
    relay.arg("--input").arg(&input).args(["--key", "1", "--connections", "3", "--outstanding", "64"]);
    succeeds(relay);

    let report = place.report();
    report.all_well(lines.len() as u64);
    for name in NAMES {
        assert!(!report.0[name].is_null(), "{name} in {:#}", report.0);
    }
    let store = place.join("out/store");
    assert_eq!(sorted(stored(&store)), sorted(lines));
    let db = Database::open(store.join("relay.redb")).unwrap();
    let tenants = db.begin_read().unwrap().open_table(TENANTS).unwrap();
    let of = |tenant: &[u8]| tenants.get(tenant).unwrap().map(|n| n.value());
    assert_eq!(of(b"tenant-0"), Some(2000_u64.div_ceil(7) - lines_of_tenant_replaced(0)));
    assert_eq!(of(b""), Some(2), "the empty lines");

    // The numbers are those of the files.
    let table = fs::read_to_string(place.join("out/relay.request.hgrm")).unwrap();
    let max = table.lines().find_map(|line| line.strip_prefix("#[Max     =")).unwrap();
    let max: Vec<f64> = max.split([',', '=', ']']).filter_map(|n| n.trim().parse().ok()).collect();
    assert_eq!(max[1], 2000.0);
    assert!((max[0] - report.float("max_us")).abs() < 0.01, "{max:?} {}", report.float("max_us"));
    let median = table.lines().find_map(|line| {
        let mut row = line.split_whitespace().map(|n| n.parse::<f64>());
        Some((row.next()?.ok()?, row.next()?.ok()?)).filter(|(_, quantile)| *quantile >= 0.5)
    });
    assert!((median.unwrap().0 - report.float("p50_us")).abs() < 0.01, "{median:?} {}", report.float("p50_us"));
    assert!(report.float("p50_us") <= report.float("p99_us") && report.float("p999_us") <= report.float("max_us"));
    let log = fs::read_to_string(place.join("out/relay.hlog")).unwrap();
    assert!(log.lines().any(|line| line.starts_with("Tag=request,")));
}

/// Lines of that tenant whose place another line took: 0..=6 but for 3 to 6, and 100 to 123.
fn lines_of_tenant_replaced(tenant: usize) -> u64 {
    (3..=6).chain(100..124).filter(|i| i % 7 == tenant).count() as u64
}

#[test]
fn a_store_that_is_kept_recognises_what_it_has() {
    let place = Place::new("kept");
    let input = place.write("input", b"one\ntwo\nthree\n");
    let run = |repeat: &str| {
        let mut relay = place.relay();
        relay.arg("--input").arg(&input).arg("--store").arg(place.join("store")).args(["--repeat", repeat]);
        succeeds(relay);
        place.report()
    };
    let first = run("1");
    first.all_well(3);
    assert_eq!(first.number("recognised"), 0);
    let again = run("2");
    again.all_well(6);
    assert_eq!([again.number("recognised"), again.number("held")], [3, 6]);

    // Other lines under the old name are other records.
    fs::write(&input, "four\nfive\n").unwrap();
    let changed = run("1");
    changed.all_well(2);
    assert_eq!([changed.number("recognised"), changed.number("held")], [0, 8]);
    let lines: HashSet<Vec<u8>> = stored(&place.join("store")).into_iter().collect();
    assert_eq!(lines.len(), 5);
}

#[test]
fn a_pipe_starts_again_at_its_end_while_there_is_time() {
    let place = Place::new("pipe");
    let mut relay = place.relay();
    relay.args(["--input", "-", "--seconds", "1", "--jobs", "1", "--shards", "2"]);
    let mut relay = relay.stdin(Stdio::piped()).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    relay.stdin.take().unwrap().write_all(b"a\n\nb").unwrap();
    assert!(relay.wait().unwrap().success());
    let report = place.report();
    assert!(report.number("sent") > 3, "{:#}", report.0);
    report.all_well(report.number("sent"));
    assert_eq!(report.number("permits_peak"), 1);
}

#[test]
fn a_record_above_the_limit_is_refused_and_the_next_one_is_not() {
    let place = Place::new("large");
    let limit = 1 << 20;
    let lines = [vec![b'x'; limit], vec![b'y'; limit + 1], vec![b'z'; limit + 100_000], b"end".to_vec()];
    let input = place.write("input", &lines.join(&b'\n'));
    let mut relay = place.relay();
    relay.arg("--input").arg(&input);
    succeeds(relay);
    let report = place.report();
    assert_eq!(["sent", "accepted", "replies", "committed"].map(|name| report.number(name)), [4, 2, 2, 2]);
    assert_eq!(report.0["errors"], serde_json::json!({ "Rejected": 2 }));
    assert!(stored(&place.join("out/store")).contains(&lines[0]));
}

#[cfg(unix)]
#[test]
fn ctrl_c_drains_and_reports() {
    let place = Place::new("interrupted");
    let mut relay = place.relay();
    let mut relay = relay.args(["--seconds", "600"]).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // It says how far it is: then it is in the middle.
    let mut stderr = BufReader::new(relay.stderr.take().unwrap());
    let mut progress = String::new();
    while !progress.contains("submitted") {
        progress.clear();
        assert!(stderr.read_line(&mut progress).unwrap() > 0, "it has ended");
    }
    let kill = Command::new("kill").args(["-INT", &relay.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let drain = std::thread::spawn(move || stderr.lines().for_each(drop));
    let output = relay.wait_with_output().unwrap();
    drain.join().unwrap();
    assert!(output.status.success(), "{}", output.status);
    assert!(String::from_utf8_lossy(&output.stdout).contains("lost 0"));
    let report = place.report();
    report.all_well(report.number("sent"));
    assert!(report.number("sent") > 0);
}

#[test]
fn everything_that_is_wrong_is_said_at_once_and_nothing_is_written() {
    let place = Place::new("wrong");
    let read_only = place.join("read-only");
    fs::create_dir(&read_only).unwrap();
    let mut permissions = read_only.metadata().unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&read_only, permissions).unwrap();
    let missing = place.join("missing");
    let mut relay = place.relay();
    relay.arg("--input").arg(&place.0).arg("--input").arg(&missing).arg("--store").arg(&read_only);
    relay.args(["--jobs", "0", "--connections", "0", "--key", "0", "--repeat", "none", "--seconds", "-1"]);
    relay.args(["--shards", "-3", "--outstanding", "65537"]);
    let output = relay.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    let (here, read_only, missing) = (place.0.display(), read_only.display(), missing.display());
    for fault in [
        format!("--input = {here}: must be a file or -"),
        format!("--input = {missing}: must be a file"),
        format!("--store = {read_only}: must be a directory that can be written to"),
        "--jobs = 0: must be 1..=2,147,483,647".into(),
        "--connections = 0: must be 1..=64".into(),
        "--shards = -3: must be 1..=256".into(),
        "--key = 0: must be 1..=65,535".into(),
        "--repeat = none: must be 1..=4,294,967,295".into(),
        "--seconds = -1: must be".into(),
        "--outstanding = 65537: must be 1..=65,536".into(),
    ] {
        assert!(said.contains(&fault), "{fault}\n{said}");
    }
    assert!(said.contains("10 option(s)"), "{said}");
    assert!(!place.join("out").exists() && !place.join("report.json").exists());
}

#[test]
fn one_wrong_value_is_enough() {
    let place = Place::new("one-wrong");
    for (option, value, rule) in [
        ("--jobs", "2147483648", "1..=2,147,483,647"),
        ("--connections", "65", "1..=64"),
        ("--seconds", "nan", "above 0"),
        ("--json", "/", "a file that can be written"),
    ] {
        let output = relay().arg("--out").arg(place.join("out")).args([option, value]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{option} {value}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(&format!("{option} = {value}: ")) && said.contains(rule), "{said}");
        assert!(!place.join("out").exists());
    }
}
