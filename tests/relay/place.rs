//! What the tests of the relay share: the built program, a directory of a test's own, the report, the store as
//! it is on the disk, processes that end with the test, and a watchdog.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde_json::Value;

/// Sequence → 20 bytes of id, line.
pub const RECORDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("records");
pub const TENANTS: TableDefinition<'_, &[u8], u64> = TableDefinition::new("tenants");

/// The program, which is built along with the tests; made if only this test was asked for.
pub fn relay() -> Command {
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let program = profile.join("examples").join(format!("relay{}", std::env::consts::EXE_SUFFIX));
    if !program.exists() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--example", "relay", "--target-dir"]).arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
    }
    Command::new(program)
}

/// A directory of one test, gone when it has passed.
pub struct Place(pub PathBuf);

impl Place {
    pub fn new(name: &str) -> Place {
        let dir = std::env::temp_dir().join(format!("afflux-relay-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Place(dir)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        fs::write(self.join(name), content).unwrap();
        self.join(name)
    }

    /// The program, with its output in here.
    pub fn relay(&self) -> Command {
        let mut relay = relay();
        relay.arg("--out").arg(self.join("out")).arg("--json").arg(self.join("report.json"));
        relay
    }

    pub fn report(&self) -> Report {
        Report(serde_json::from_slice(&fs::read(self.join("report.json")).unwrap()).unwrap())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }
}

pub struct Report(pub Value);

impl Report {
    #[track_caller]
    pub fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_else(|| panic!("{name} in {:#}", self.0))
    }

    #[track_caller]
    pub fn float(&self, name: &str) -> f64 {
        self.0[name].as_f64().unwrap_or_else(|| panic!("{name} in {:#}", self.0))
    }

    /// Everything was answered with success; the store is another process's.
    #[track_caller]
    pub fn all_well_without_store(&self, n: u64) {
        let counts = ["sent", "accepted", "replies"].map(|name| self.number(name));
        assert_eq!(counts, [n; 3], "{:#}", self.0);
        assert_eq!(self.0["errors"], Value::Object(Default::default()));
    }

    /// Everything was answered with success, and `n` records are in the store.
    #[track_caller]
    pub fn all_well(&self, n: u64) {
        let counts = ["sent", "accepted", "committed", "replies"].map(|name| self.number(name));
        assert_eq!(counts, [n; 4], "{:#}", self.0);
        assert_eq!([self.number("lost"), self.number("duplicated")], [0, 0]);
        assert_eq!(self.0["errors"], Value::Object(Default::default()));
        assert!(self.number("permits_peak") <= self.number("permits_limit"));
    }
}

#[track_caller]
pub fn succeeds(mut command: Command) -> Output {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    output
}

/// The lines in a store, in the order of their commits.
pub fn stored(dir: &Path) -> Vec<Vec<u8>> {
    let db = Database::open(dir.join("relay.redb")).unwrap();
    let records = db.begin_read().unwrap().open_table(RECORDS).unwrap();
    records.iter().unwrap().map(|entry| entry.unwrap().1.value()[20..].to_vec()).collect()
}

pub fn sorted(mut lines: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    lines.sort();
    lines
}

/// Ids and lines in a store.
pub fn contents(dir: &Path) -> Vec<Vec<u8>> {
    let db = Database::open(dir.join("relay.redb")).unwrap();
    let records = db.begin_read().unwrap().open_table(RECORDS).unwrap();
    sorted(records.iter().unwrap().map(|entry| entry.unwrap().1.value().to_vec()).collect())
}

/// Ends the whole process, with a message, if a test is not over in time: a wait that never ends must fail.
#[must_use = "it watches as long as it is held"]
pub struct Watchdog(#[allow(dead_code)] Sender<()>);

/// Watches the test that calls it.
pub fn watch() -> Watchdog {
    let name = thread::current().name().unwrap_or("a test").to_owned();
    let (over, ended) = channel::<()>();
    thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(120)) == Err(RecvTimeoutError::Timeout) {
            eprintln!("watchdog: {name} is not over");
            std::process::abort();
        }
    });
    Watchdog(over)
}

/// A relay that runs beside the test, and does not outlive it.
pub struct Running {
    child: Child,
    /// Everything that it has said on its error output so far, and who collects it.
    said: Arc<(Mutex<String>, Condvar)>,
    collector: Option<JoinHandle<()>>,
    /// What it says on its standard output.
    pub told: BufReader<std::process::ChildStdout>,
}

impl Running {
    /// Starts it.
    pub fn start(mut command: Command) -> Running {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let said = Arc::new((Mutex::new(String::new()), Condvar::new()));
        let collected = said.clone();
        let collector = thread::spawn(move || {
            for line in stderr.lines() {
                let mut text = collected.0.lock().unwrap();
                text.push_str(&line.unwrap());
                text.push('\n');
                collected.1.notify_all();
            }
        });
        let told = BufReader::new(child.stdout.take().unwrap());
        Running { child, said, collector: Some(collector), told }
    }

    /// A service, and where it listens.
    pub fn service(command: Command) -> (Running, String) {
        let mut service = Running::start(command);
        let mut line = String::new();
        while !line.starts_with("serving at ") {
            line.clear();
            if service.told.read_line(&mut line).unwrap() == 0 {
                panic!("it has ended: {}", service.end().1);
            }
        }
        let address = line.trim().strip_prefix("serving at tcp://").unwrap().to_owned();
        (service, address)
    }

    /// Sends a signal, by its name.
    pub fn signal(&self, name: &str) {
        let kill = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(kill.unwrap().success(), "{name}");
    }

    /// Waits until it has said that; the watchdog ends what never comes.
    pub fn until_it_says(&self, words: &str) {
        let text = self.said.0.lock().unwrap();
        drop(self.said.1.wait_while(text, |text| !text.contains(words)).unwrap());
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end; how it was, and what it said.
    pub fn end(mut self) -> (ExitStatus, String) {
        let mut told = String::new();
        self.told.read_to_string(&mut told).unwrap();
        self.collector.take().unwrap().join().unwrap();
        let said = self.said.0.lock().unwrap().clone();
        (self.child.wait().unwrap(), said + &told)
    }

    /// Waits for its end, which must be a good one.
    #[track_caller]
    pub fn succeeds(self) -> String {
        let (status, said) = self.end();
        assert!(status.success(), "{status}\n{said}");
        said
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Gone already: that is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `--verify`: what was answered is in the store, each once.
#[track_caller]
pub fn verified(out: &Path, store: &Path) -> String {
    let mut verify = relay();
    verify.arg("--verify").arg(out).arg("--store").arg(store);
    String::from_utf8(succeeds(verify).stdout).unwrap()
}

/// Every line that says where records are adds up: `a = b + c + ..`. How many there were.
#[track_caller]
pub fn sums(text: &str) -> usize {
    let numbers = |part: &str| -> u64 {
        let last = part.split_whitespace().next_back().unwrap_or_default();
        last.replace(',', "").parse().unwrap_or_else(|_| panic!("{part}"))
    };
    let of_records =
        |line: &&str| line.trim_start().starts_with("submitted ") || line.trim_start().starts_with("received ");
    let lines: Vec<&str> = text.lines().filter(of_records).collect();
    for line in &lines {
        let (all, ends) = line.split_once(" = ").unwrap_or_else(|| panic!("{line}"));
        assert_eq!(numbers(all), ends.split(" + ").map(numbers).sum::<u64>(), "{line}");
    }
    lines.len()
}
