//! Every shard is in user code that does not return. Promises 3 and 5: replies still arrive, peers are still
//! accepted, waits still end, because the completion thread runs no user code. Nothing here measures time:
//! what has to happen while the shards are stuck has happened before the door is opened.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::time::Duration;

use afflux::{ByteSize, Detail, ErrorKind, Host, Hwm, IdlePolicy, Pinning, Placement, Stage, reply_all};

use crate::support::{
    Door, address, as_number, asked, block_on, client_of, connected, echo, kept, link, number, server, serving, small,
    told, until, watch,
};

const LONG: Duration = Duration::from_secs(80);
const SHORT: Duration = Duration::from_millis(100);

#[test]
fn replies_peers_and_deadlines_do_not_need_a_shard() {
    let _dog = watch();
    let (tell, heard) = channel();
    let (keep, held) = kept();
    let healthy = server("healthy")
        .channel("keep", keep)
        .channel("news", serving(|_, _| {}, move |m, _| tell.send(m.into_payload()).unwrap()));
    let healthy = healthy.start().unwrap();

    let (door, tell_end) = (Door::shut(), channel());
    let (at_door, ended) = (door.clone(), tell_end.0);
    let stuck: Host = connected(
        Host::builder("stuck")
            .shards(Placement::Count(2))
            .pinning(Pinning::Off)
            .idle(IdlePolicy::Park)
            .listen("tcp://127.0.0.1:0")
            .connect(address(&healthy))
            .send_hwm(Hwm::Bytes(ByteSize::kib(4)))
            .channel(
                "block",
                asked(move |request, cx| {
                    let ended = ended.clone();
                    cx.channel("keep").request("nested", "").timeout(LONG).then(cx, move |_, end, _| {
                        ended.send(end.is_ok()).unwrap();
                    });
                    at_door.pass();
                    request.reply(cx, "out");
                }),
            ),
    );
    let callers = connected(small("callers").connect(address(&stuck)).links(2));
    let key = door.key();

    // Sent before.
    let keep = stuck.client().channel("keep");
    let before = keep.request("", "before").timeout(LONG).submit();
    let before_debt = held.recv().unwrap();

    let block = callers.client().channel("block");
    let inside: Vec<_> = (0..2).map(|_| block.request("", "").timeout(LONG).submit()).collect();
    until(|| door.came() == 2);
    let turns: Vec<_> = stuck.status().shards.iter().map(|s| s.turns).collect();

    // The reply of a request sent before arrives.
    before_debt.0.reply(before_debt.1);
    assert_eq!(before.wait().unwrap(), "before");

    // A peer is accepted and paired.
    let newcomer = client_of(&stuck);
    until(|| stuck.status().links_up == 4);
    let queued = newcomer.client().channel("block").request("", "").timeout(LONG).submit();

    // A request and a whole dialogue with it pass, if the lane is free for the caller.
    let news = stuck.client().channel("news");
    while news.try_send("", vec![1; 500]).is_ok() {}
    while news.try_send("", "1").is_ok() {}

    // A send that waits expires; one with more time does not. Once under the eye of the waiting thread, once
    // under the timekeeper's.
    let patient = news.send("", number(7)).timeout(LONG).submit();
    for by_thread in [true, false] {
        let send = news.send("", "mine").timeout(SHORT);
        let error = if by_thread { send.wait() } else { block_on(send) }.unwrap_err();
        assert_eq!((error.kind(), error.error().detail()), (ErrorKind::DeadlineExceeded, Detail::NoRoom));
        let figures = error.error().figures().clone();
        assert!(figures.waited.unwrap() >= SHORT, "{figures:?}");
        assert_eq!((figures.limit, figures.stage), (Some(4096), Some(Stage::Room)));
        assert_eq!(error.into_payload(), "mine");
        let request = keep.request("", "mine").timeout(SHORT);
        let error = if by_thread { request.wait() } else { block_on(request) }.unwrap_err();
        assert_eq!((error.kind(), error.error().detail()), (ErrorKind::DeadlineExceeded, Detail::NoRoom));
        assert_eq!(error.unsent_payload().unwrap(), "mine");
    }

    // All of that while no shard has moved.
    let now: Vec<_> = stuck.status().shards.iter().map(|s| s.turns).collect();
    assert_eq!((turns, door.came()), (now, 2), "no shard has moved");
    assert!(tell_end.1.try_recv().is_err(), "a continuation runs when its shard's callback returns");

    drop(key);
    for pending in inside {
        assert_eq!(pending.wait().unwrap(), "out");
    }
    assert_eq!(queued.wait().unwrap(), "out");
    patient.wait().unwrap();
    until(|| heard.recv().unwrap().len() == 8);
    for (debt, _) in held.iter().take(3) {
        debt.reply("");
    }
    assert!(tell_end.1.iter().take(3).all(|ok| ok), "the continuations run after all");
}

/// A stock peer's only connection is read by its shard. While that is stuck, the peer's silence says nothing, and it is
/// given a sign of life in place of the answers to its own heartbeats; when the shard is back, silence counts again.
#[test]
fn a_stock_peer_outlives_a_stuck_shard() {
    let _dog = watch();
    let door = Door::shut();
    let at_door = door.clone();
    let (tell, heard) = channel();
    let host = server("host")
        .heartbeat(Duration::from_millis(40), Duration::from_millis(120))
        .channel(
            "door",
            told(move |message, _| {
                at_door.pass();
                tell.send(message.into_payload()).unwrap();
            }),
        )
        .start()
        .unwrap();
    let key = door.key();
    let mut peer = TcpStream::connect(host.addresses()[0]).unwrap();
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xFF, 0x7F, 3, 1);
    greeting[12..16].copy_from_slice(b"NULL");
    peer.write_all(&greeting).unwrap();
    peer.write_all(b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH").unwrap();
    peer.write_all(b"\x01\x04door\x00\x01x").unwrap();
    until(|| door.came() == 1);
    // Its answers to what it is asked are written and not read. Ten times its death, by signs of life.
    let mut came = Vec::new();
    let signs = |came: &[u8]| came.windows(5).filter(|w| w[0] == 4 && w[1..].starts_with(b"PON")).count();
    until(|| {
        let mut part = [0; 256];
        let n = peer.read(&mut part).unwrap();
        assert!(n > 0, "it was given up");
        came.extend_from_slice(&part[..n]);
        signs(&came) == 30
    });
    drop(key);
    assert_eq!(heard.recv().unwrap(), "x");
    // It answers nothing that it is asked from here on.
    until(|| host.status().links_lost == 1);
}

/// Replies of a run of jobs are written together at its end; one of the jobs that gets stuck holds none of
/// those before it.
#[test]
fn a_stuck_job_holds_no_reply_of_the_jobs_before_it() {
    let _dog = watch();
    for stuck_at in [20_u64, 3, 1] {
        let (door, gate) = (Door::shut(), Door::shut());
        let (at_door, at_gate) = (door.clone(), gate.clone());
        // A heartbeat would take them along.
        let silence = Duration::from_secs(100);
        let host = server("server")
            .heartbeat(silence, 3 * silence)
            .channel(
                "work",
                asked(move |request, cx| {
                    match as_number(request.payload()) {
                        // Holds the shard until all have come: the others are claimed in runs.
                        u64::MAX => at_gate.pass(),
                        n if n == stuck_at => at_door.pass(),
                        // Long enough that some replies go out in the middle of the run.
                        n if n % 4 == 1 => std::thread::sleep(Duration::from_millis(3)),
                        _ => {}
                    }
                    echo(request, cx);
                }),
            )
            .start()
            .unwrap();
        let client = connected(small("client").connect(address(&host)).heartbeat(silence, 3 * silence));
        let (key, gate_key) = (door.key(), gate.key());
        let work = client.client().channel("work");
        let first = work.request("", number(u64::MAX)).timeout(LONG).submit();
        until(|| gate.came() == 1);
        let mut pending: Vec<_> = (0..40).map(|n| work.request("", number(n)).timeout(LONG).submit()).collect();
        until(|| link(&client).queued_bytes == 0);
        drop(gate_key);
        first.wait().unwrap();
        let after = pending.split_off(stuck_at as usize);
        for (n, pending) in pending.into_iter().enumerate() {
            assert_eq!(as_number(&pending.wait().unwrap()), n as u64);
        }
        assert_eq!(door.came(), 1, "and all that while it is stuck");
        drop(key);
        for (n, pending) in after.into_iter().enumerate() {
            assert_eq!(as_number(&pending.wait().unwrap()), stuck_at + n as u64);
        }
    }
}

/// Answers given at once from another thread: each request has its own, whoever asked.
#[test]
fn many_answers_at_once_reach_whom_they_are_for() {
    let _dog = watch();
    let (keep, held) = kept();
    let host = server("server").channel("keep", keep).start().unwrap();
    let callers = ["a", "b"].map(|name| connected(small(name).connect(address(&host))));
    let channels = callers.each_ref().map(|caller| caller.client().channel("keep"));
    let pending: Vec<_> =
        (0..100_u64).map(|n| channels[n as usize % 2].request("", number(n)).timeout(LONG).submit()).collect();
    let debts: Vec<_> = held.iter().take(100).collect();
    reply_all(debts);
    for (n, pending) in pending.into_iter().enumerate() {
        assert_eq!(as_number(&pending.wait().unwrap()), n as u64);
    }
    until(|| host.status().owned_bytes == 0);
}
