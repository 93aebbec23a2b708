//! For tests: a wait that never ends must fail, and must not be mistaken for a slow machine.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Ends the process if the test that holds it is not over in time.
#[must_use = "it watches as long as it is held"]
pub fn watch() -> mpsc::Sender<()> {
    let name = thread::current().name().unwrap_or("a test").to_owned();
    let (over, ended) = mpsc::channel();
    thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(90)) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("watchdog: {name} is not over");
            std::process::abort();
        }
    });
    over
}
