//! The host's job limit, from outside: what happens, in order, when handlers do not finish, and that one
//! shard's trouble is not the others'.

use std::collections::VecDeque;
use std::sync::mpsc::channel;
use std::time::Duration;

use afflux::{ByteSize, Detail, ErrorKind, Host, Hwm, IdlePolicy, Lane, Pinning, Placement, Stage};

use crate::support::proxy::Proxy;
use crate::support::{
    Door, address, as_number, asked, block_on, connected, echo, kept, link, number, padded, server, small, until,
    until_status, watch,
};

const LONG: Duration = Duration::from_secs(80);
const SHORT: Duration = Duration::from_millis(100);

/// A peer that sends more than everybody else has its share of the permits and no more: whoever comes beside it
/// is claimed at once, and starts after the few that it may have before him.
#[test]
fn a_hot_target_leaves_permits_to_others() {
    let _dog = watch();
    let (keep, held) = kept();
    let server = server("server")
        .max_jobs(40)
        .target_job_share(5)
        .max_started_handlers(1)
        .channel("keep", keep)
        .start()
        .unwrap();
    let hot = connected(small("hot").connect(address(&server)));
    let mild = connected(small("mild").connect(address(&server)));
    let ask = |host: &Host, n| host.client().channel("keep").request("", number(n)).timeout(LONG).submit();
    let arrived = |n| until_status(&server, |s| s.shards[0].started + s.shards[0].queued + s.shards[0].unclaimed == n);
    let mut pending: Vec<_> = (0..20).map(|n| ask(&hot, n)).collect();
    arrived(20);
    pending.push(ask(&mild, 20));
    arrived(21);
    let status = server.status();
    let mut starts = Vec::new();
    for (debt, payload) in held.iter().take(21) {
        starts.push(as_number(&payload));
        debt.reply(payload);
    }
    assert_eq!(starts[..4], [0, 1, 2, 20], "one started, two in the queue, and then the other's");
    assert_eq!(starts[4..], Vec::from_iter(3..20), "the rest in their order");
    assert_eq!((status.permits.in_use, status.permits.waiters), (3, 0), "who has its share stands in no line");
    pending.into_iter().enumerate().for_each(|(n, p)| assert_eq!(p.wait().unwrap(), number(n as u64)));
}

/// The Guide's stages in their order: handlers do not finish, the started bound is reached, claimed jobs keep
/// their permits up to the limit, pause is told, the receive queue fills, the sender waits, and its wait ends
/// with the numbers that a person needs. Released, everything flows and is counted.
#[test]
fn pressure_reaches_the_sender_and_goes_again() {
    let _dog = watch();
    let (keep, held) = kept();
    let server = server("server")
        .max_jobs(10)
        .max_started_handlers(8)
        .receive_hwm(Hwm::Bytes(ByteSize::kib(4)))
        .socket_buffers(ByteSize::kib(8), ByteSize::kib(8))
        .channel("keep", keep)
        .start()
        .unwrap();
    let proxy = Proxy::before(&server);
    let client = connected(small("client").connect(proxy.address()).send_hwm(Hwm::Bytes(ByteSize::kib(64))));
    let keep = client.client().channel("keep");
    // They are on their way before the pressure can be told.
    proxy.freeze(Lane::Application);
    let mut pending: Vec<_> = (0..200).map(|n| keep.request("", number(n)).timeout(LONG).submit()).collect();
    until(|| link(&client).written == 200);
    assert_eq!(link(&client).waiting, 0);
    let frames = server.status().flow_frames_sent;
    proxy.thaw(Lane::Application);

    let mut debts: Vec<_> = held.iter().take(8).collect();
    until_status(&server, |s| s.permits.in_use == 10 && s.permits.waiters == 1 && s.shards[0].queued == 10);
    let status = server.status();
    assert_eq!((status.shards[0].started, status.shards[0].started_peak), (8, 8), "the started bound");
    assert_eq!((status.permits.peak, status.permits.limit), (10, 10));
    assert!(status.is_paused() && status.permits.pauses == 1, "{:?}", status.permits);
    until(|| server.status().flow_frames_sent > frames);
    until(|| link(&client).paused_for.is_some());

    // The sender waits: the pause is a reason of its own, whatever room there is.
    for by_thread in [true, false] {
        let send = keep.send("", "mine").timeout(SHORT);
        let error = if by_thread { send.wait() } else { block_on(send) }.unwrap_err();
        assert_eq!((error.kind(), error.error().detail()), (ErrorKind::DeadlineExceeded, Detail::NoRoom));
        let figures = error.error().figures().clone();
        assert_eq!(figures.target.as_deref(), Some("server"));
        assert_eq!((figures.lane, figures.stage), (Some(Lane::Application), Some(Stage::Room)));
        assert_eq!(figures.limit, Some(64 << 10));
        assert!(figures.waited.unwrap() >= SHORT && figures.paused_for.is_some(), "{figures:?}");
        assert!(error.to_string().contains("peer paused for"), "{error}");
        assert_eq!(error.into_payload(), "mine");
    }
    assert_eq!(keep.try_send("", "mine").unwrap_err().into_payload(), "mine");
    pending.extend((200..250).map(|n| keep.request("", number(n)).timeout(LONG).submit()));
    until(|| link(&client).waiting == 50);
    assert_eq!(server.status().shards[0].started, 8, "and nothing was started meanwhile");

    for n in 0..250 {
        let (debt, payload) = if debts.is_empty() { held.recv().unwrap() } else { debts.remove(0) };
        assert_eq!(as_number(&payload), n, "in order");
        debt.reply(payload);
    }
    for (n, pending) in pending.into_iter().enumerate() {
        assert_eq!(pending.wait().unwrap(), number(n as u64));
    }
    until_status(&server, |s| s.permits.in_use == 0 && s.shards[0].started == 0 && !s.is_paused());
    until(|| link(&client).paused_for.is_none());
    until_status(&server, |s| s.delivered == 250);
    until_status(&client, |s| s.replies == 250 && s.requests == 0);
    let (server, client) = (server.status(), client.status());
    assert_eq!((server.received, server.delivered), (250, 250));
    assert_eq!((client.replies, client.no_room, client.waiting, client.requests), (250, 2, 0, 0));
    assert!(server.permits.resumes >= 1 && server.permits.peak == 10 && server.shards[0].started_peak == 8);
    assert!(server.permits.waits > 0 && server.owned_bytes == 0);
}

/// With one job for four shards a returned permit goes to the oldest ticket, whichever shard it is of, and
/// nobody overtakes.
#[test]
fn the_grant_order_is_the_ticket_order() {
    let _dog = watch();
    let (started, starts) = channel();
    let server = Host::builder("server")
        .shards(Placement::Count(4))
        .pinning(Pinning::Off)
        .idle(IdlePolicy::Park)
        .listen("tcp://127.0.0.1:0")
        .max_jobs(1)
        .max_started_handlers(4)
        .channel(
            "keep",
            asked(move |request, cx| {
                let (who, shard) = (request.peer().to_string(), cx.shard());
                started.send((who, shard, request.into_parts().0.into_remote())).unwrap();
            }),
        )
        .start()
        .unwrap();
    let proxies: Vec<_> = (0..4).map(|_| Proxy::before(&server)).collect();
    let clients: Vec<_> = proxies
        .iter()
        .enumerate()
        .map(|(i, p)| connected(small(&format!("client-{i}")).connect(p.address())))
        .collect();
    let ask = |i: usize| clients[i].client().channel("keep").request("", "").timeout(LONG).submit();

    // Each shard has its one started place taken.
    let mut debts = Vec::new();
    let mut firsts = Vec::new();
    for i in 0..4 {
        firsts.push(ask(i));
        let (who, shard, debt) = starts.recv().unwrap();
        assert_eq!(who, format!("client-{i}"));
        debts.push((shard, Some(debt)));
    }
    let mut shards: Vec<_> = debts.iter().map(|(shard, _)| *shard).collect();
    shards.sort();
    assert_eq!(shards, [0, 1, 2, 3], "one client on each shard");
    until_status(&server, |s| s.permits.in_use == 0);

    // Each sends one more; they come to the server in this order, the first takes the permit and keeps it.
    let order = [2, 0, 3, 1];
    order.iter().for_each(|&i| proxies[i].freeze(Lane::Application));
    let seconds: Vec<_> = order.iter().map(|&i| ask(i)).collect();
    until(|| clients.iter().all(|c| link(c).written == 2));
    for (at, &i) in order.iter().enumerate() {
        proxies[i].thaw(Lane::Application);
        until_status(&server, |s| s.permits.in_use == 1 && s.permits.waiters == at as u32);
    }
    let holder = |s: &afflux::HostStatus| s.permits.held_by_shard.iter().position(|n| *n == 1);
    for (at, &i) in order.iter().enumerate() {
        let shard = debts[i].0;
        until_status(&server, |s| holder(s) == Some(shard) && s.permits.waiters == 3 - at as u32);
        assert!(starts.try_recv().is_err(), "its started place is taken");
        debts[i].1.take().unwrap().reply("first");
        let (who, at, debt) = starts.recv().unwrap();
        assert_eq!((who, at), (format!("client-{i}"), shard));
        debt.reply("second");
    }
    firsts.into_iter().for_each(|p| assert_eq!(p.wait().unwrap(), "first"));
    seconds.into_iter().for_each(|p| assert_eq!(p.wait().unwrap(), "second"));
    until_status(&server, |s| s.permits.in_use == 0 && s.permits.waiters == 0);
    assert_eq!(server.status().permits.peak, 1);
}

/// With the default jobs one stuck shard, then three, do not stop the rest.
#[test]
fn stuck_shards_do_not_stop_the_rest() {
    let _dog = watch();
    let door = Door::shut();
    let at_door = door.clone();
    let server = Host::builder("server")
        .shards(Placement::Count(4))
        .pinning(Pinning::Off)
        .idle(IdlePolicy::Park)
        .listen("tcp://127.0.0.1:0")
        .channel(
            "work",
            asked(move |request, cx| match request.method() {
                "block" => {
                    at_door.pass();
                    request.reply(cx, "out");
                }
                _ => {
                    let shard = cx.shard() as u64;
                    request.reply(cx, number(shard));
                }
            }),
        )
        .start()
        .unwrap();
    let client = connected(small("client").connect(address(&server)).links(4));
    let _key = door.key();
    // One handle takes the four links in turn.
    let work = client.client().channel("work");
    let round = |methods: [&str; 4]| methods.map(|m| work.request(m, "").timeout(LONG).submit());
    // The routes follow the links.
    let mut rounds = 0;
    until(|| {
        rounds += 1;
        let mut shards = round([""; 4]).map(|p| as_number(&p.wait().unwrap()));
        shards.sort();
        shards == [0, 1, 2, 3]
    });

    let mut stuck = Vec::new();
    for (blocks, free) in [(["block", "", "", ""], 1), (["", "block", "block", ""], 3)] {
        let first = stuck.len();
        for (at, pending) in round(blocks).into_iter().enumerate() {
            if at < free { stuck.push(pending) } else { drop(pending.wait().unwrap()) }
        }
        assert!(stuck.len() > first);
        until(|| door.came() == free as u64);
        for _ in 0..300 {
            for (at, pending) in round([""; 4]).into_iter().enumerate() {
                if at < free { stuck.push(pending) } else { drop(pending.wait().unwrap()) }
            }
        }
        assert_eq!(door.came(), free as u64, "they are stuck all the while");
    }
    door.open();
    assert_eq!(stuck.len(), 4 + 300 + 900);
    rounds += 2 + 600;
    for pending in stuck {
        pending.wait().unwrap();
    }
    until_status(&server, |s| s.permits.in_use == 0 && s.shards.iter().all(|s| s.started == 0));
    until_status(&server, |s| (s.received, s.delivered) == (4 * rounds, 4 * rounds));
}

/// The smallest host: one shard, one job, one started handler.
#[test]
fn one_job_and_one_started_handler_are_enough() {
    let _dog = watch();
    let server = server("server").max_jobs(1).max_started_handlers(1).channel("echo", asked(echo)).start().unwrap();
    let client = connected(small("client").connect(address(&server)));
    let echo = client.client().channel("echo");
    let mut pending: Vec<_> = (0..500).map(|n| echo.request("", number(n)).timeout(LONG).submit()).collect();
    for (n, pending) in pending.drain(..).enumerate() {
        assert_eq!(pending.wait().unwrap(), number(n as u64));
    }
    until_status(&server, |s| s.delivered == 500);
    let status = server.status();
    assert_eq!((status.permits.peak, status.shards[0].started_peak), (1, 1));
}

/// Where records may own only so many bytes, small ones find their place whenever one of them finishes. A large one
/// that needs most of it at once is not passed by them for ever: what it lacks is kept free until it has it.
#[test]
fn a_large_record_is_not_passed_by_small_ones_for_ever() {
    let _dog = watch();
    let (keep, held) = kept();
    let server = server("server").max_owned_bytes(ByteSize::kib(64)).channel("keep", keep).start().unwrap();
    let crowd = connected(small("crowd").connect(address(&server)));
    let lone = connected(small("lone").connect(address(&server)));
    let small = crowd.client().channel("keep");
    let ask = || small.request("", padded(0, 1000)).timeout(LONG).submit();
    // Always more of them than may be owned.
    let mut asked: VecDeque<_> = (0..400).map(|_| ask()).collect();
    until_status(&server, |s| s.owned_bytes > 60 << 10 && s.received == 400);
    let large = lone.client().channel("keep").request("", padded(1, 48 << 10)).timeout(LONG).submit();
    until_status(&server, |s| s.received == 401);
    let mut passed = 0;
    loop {
        let (responder, payload) = held.recv().unwrap();
        responder.reply("");
        if as_number(&payload) == 1 {
            break;
        }
        asked.pop_front().unwrap().wait().unwrap();
        asked.push_back(ask());
        passed += 1;
        assert!(passed < 5_000, "small ones go on passing it");
    }
    large.wait().unwrap();
}
