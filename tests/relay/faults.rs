//! Faults of the store and of the input: each is a clear error or a counted refusal, the service lives, and
//! nothing that was answered is lost.

use std::process::Command;

use crate::place::{Place, Running, relay, sums, verified, watch};

#[test]
fn a_store_that_hangs_is_waited_for() {
    let _watchdog = watch();
    let place = Place::new("hang");
    let input = place.write("input", "a line\n".repeat(3000).as_bytes());
    let mut command = place.relay();
    command.arg("--input").arg(&input).args(["--drill", "hang=1.5@4"]);
    let said = Running::start(command).succeeds();
    sums(&said);
    let report = place.report();
    report.all_well(3000);
    assert!(report.0["bridge"]["service"]["max_ms"].as_f64().unwrap() >= 1500.0);
}

#[test]
fn a_store_thread_that_panics_costs_its_batch_an_error() {
    let _watchdog = watch();
    let place = Place::new("panic");
    let input = place.write("input", "a line\n".repeat(3000).as_bytes());
    let mut command = place.relay();
    command.arg("--input").arg(&input).args(["--drill", "panic@4", "--outstanding", "32", "--key", "1"]);
    let said = Running::start(command).succeeds();
    sums(&said);
    let report = place.report();
    let failed = report.number("failed");
    assert!((1..=32).contains(&failed), "{said}");
    assert_eq!(report.0["errors"], serde_json::json!({ "Remote": failed }));
    assert!(report.0["error_details"].to_string().contains("told to panic"), "{said}");
    assert_eq!(
        [report.number("replies"), report.number("stored"), report.number("lost")],
        [3000 - failed, 3000 - failed, 0]
    );
}

/// A limit of file sizes stands for a full disk: the write fails in the same place, and no mount is needed.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_a_refusal_and_the_service_lives() {
    let _watchdog = watch();
    let place = Place::new("full");
    let program = relay();
    let mut limited = Command::new("sh");
    // In blocks of 512 bytes.
    limited.args(["-c", "ulimit -f 4096 && exec \"$0\" \"$@\""]).arg(program.get_program());
    limited.args(["--listen", "127.0.0.1:0"]).arg("--store").arg(place.join("store"));
    limited.arg("--out").arg(place.join("service")).arg("--json").arg(place.join("service.json"));
    let (mut running, address) = Running::service(limited);
    let input = place.write("input", "a line that is a little longer than others\n".repeat(20_000).as_bytes());
    let load = || {
        let mut load = place.relay();
        load.args(["--connect", &address, "--outstanding", "2000"]).arg("--input").arg(&input);
        Running::start(load).succeeds()
    };
    let said = load();
    sums(&said);
    let report = place.report();
    assert!(report.number("replies") > 0, "before it was full: {said}");
    let refused = report.0["errors"]["Remote"].as_u64().unwrap();
    assert_eq!(report.number("replies") + refused, 20_000);
    let why = report.0["error_details"].to_string();
    assert!(why.contains("the commit failed: "), "{why}");
    assert!(running.runs());
    // What is there is recognised, whatever else is refused: it still answers.
    verify_later(&place);
    let again = load();
    sums(&again);
    assert!(running.runs());
    running.signal("INT");
    // Whether it can read its store again on a disk that is still full is not for it to promise.
    sums(&running.end().1);
    verified(&place.join("first"), &place.join("store"));
    verified(&place.join("out"), &place.join("store"));
}

/// Keeps the answers of a load for when the store is closed.
#[cfg(target_os = "linux")]
fn verify_later(place: &Place) {
    std::fs::create_dir(place.join("first")).unwrap();
    std::fs::copy(place.join("out/relay.answers"), place.join("first/relay.answers")).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn an_input_that_cannot_be_read_is_named() {
    let _watchdog = watch();
    let place = Place::new("input");
    let good = place.write("good", "a line\n".repeat(2000).as_bytes());
    let mut command = place.relay();
    // A file whose first byte can never be read.
    command.arg("--input").arg(good).args(["--input", "/proc/self/mem"]);
    let (status, said) = Running::start(command).end();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("relay: --input /proc/self/mem: "), "{said}");
    assert!(said.contains("lost 0, duplicated 0"), "{said}");
    // What was sent before is answered and counted all the same.
    sums(&said);
    let report = place.report();
    assert!(report.number("sent") > 0 && report.number("sent") == report.number("replies"), "{said}");
}
