//! A host at rest. Its threads sleep until somebody has something for them: no timer of their own wakes
//! them, but for heartbeats. The system's own count of each thread's sleeps is laid against the heartbeats
//! that were due in the time that really went by, so a slow machine changes nothing.

#![cfg(target_os = "linux")]

use std::fs;
use std::time::{Duration, Instant};

use afflux::{Context, Host, IdlePolicy, Responder};

use crate::support::{Service, address, asked, connected, echo, server, small, until, watch};

/// Long enough that threads which look for work every 10 ms stand out by far.
const SPAN: Duration = Duration::from_secs(3);
const BEAT: Duration = Duration::from_millis(500);
/// Sleeps of the completion thread for each heartbeat: the timer moves down two levels of the wheel before it
/// is due; its PING leaves, the PONG comes, the peer's PING comes. One to spare.
const PER_BEAT: u64 = 6;
/// Sleeps at the begin and the end of the time: what was being done when it was looked at.
const SPARE: u64 = 4;

/// How often each thread of a host has gone to sleep. The system keeps three letters of the host's name.
fn sleeps(name: &str) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for task in fs::read_dir("/proc/self/task").unwrap().flatten() {
        // A thread of another test may be gone by now.
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let comm = read("comm").trim().to_owned();
        if comm.starts_with(&format!("{name}-")) {
            let status = read("status");
            let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:")).unwrap();
            found.push((comm, line.trim().parse().unwrap()));
        }
    }
    found.sort();
    found
}

/// How often the shard and the completion thread of each host went to sleep in `SPAN` or a bit more, and how
/// long that was.
fn at_rest<const N: usize>(names: [&str; N]) -> ([[u64; 2]; N], Duration) {
    let before = names.map(sleeps);
    let begin = Instant::now();
    until(|| begin.elapsed() >= SPAN);
    let after = names.map(sleeps);
    let slept = std::array::from_fn(|i| {
        let threads: Vec<&str> = after[i].iter().map(|(thread, _)| &thread[3..]).collect();
        assert_eq!(threads, ["-0", "-completion"], "one shard and the completion thread");
        std::array::from_fn(|t| after[i][t].1 - before[i][t].1)
    });
    (slept, begin.elapsed())
}

#[test]
fn a_host_without_peers_sleeps() {
    let _dog = watch();
    let _host: Host = small("idn").listen("tcp://127.0.0.1:0").start().unwrap();
    let ([slept], span) = at_rest(["idn"]);
    assert!(slept.iter().all(|n| *n <= SPARE), "{slept:?} sleeps in {span:?}");
}

#[test]
fn only_heartbeats_wake_hosts_that_have_nothing_to_say() {
    let _dog = watch();
    let beating = |name| small(name).heartbeat(BEAT, 10 * BEAT);
    let server = beating("ids").listen("tcp://127.0.0.1:0").start().unwrap();
    let client = connected(beating("idc").connect(address(&server)));
    until(|| server.status().links_up == 1);
    let ([server_slept, client_slept], span) = at_rest(["ids", "idc"]);
    let beats = (span.as_millis() / BEAT.as_millis()) as u64 + 1;
    for [shard, completion] in [server_slept, client_slept] {
        assert!(shard <= SPARE, "a shard slept {shard} times in {span:?}, and has no heartbeats");
        assert!(completion <= SPARE + PER_BEAT * beats, "{completion} sleeps for {beats} heartbeats");
        assert!(completion >= beats / 2, "{completion} sleeps: the count sees the {beats} heartbeats");
    }
    assert_eq!((client.status().links_lost, server.status().links_lost), (0, 0));
}

/// Asks so many times, one after the other, then answers.
fn ask(left: u64, responder: Responder, cx: &mut Context<'_, Service>) {
    cx.channel("echo").request("", "x").own_deadline().then(cx, move |_, end, cx| match (end, left) {
        (Ok(_), 1) => responder.reply(cx, "all"),
        (Ok(_), _) => ask(left - 1, responder, cx),
        (Err(error), _) => responder.fail(cx, 1, &error.to_string()),
    });
}

/// A shard that looks for work reads the reply that it waits for: its host's completion thread hears of few.
#[test]
fn a_spinning_shard_reads_its_own_replies() {
    const ROUNDS: u64 = 2000;
    let _dog = watch();
    let server = server("sps").channel("echo", asked(echo)).start().unwrap();
    let builder = small("spc").connect(address(&server)).idle(IdlePolicy::Spin);
    let client = connected(builder.channel("ask", asked(|request, cx| ask(ROUNDS, request.into_parts().0, cx))));
    let slept = || sleeps("spc").into_iter().find(|(thread, _)| thread.ends_with("-completion")).unwrap().1;
    let before = slept();
    let end = client.client().channel("ask").request("", "").timeout(Duration::from_secs(80)).wait();
    assert_eq!(end.unwrap(), "all");
    let slept = slept() - before;
    assert!(slept < ROUNDS / 4, "the completion thread was woken {slept} times");
}
