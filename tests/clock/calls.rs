//! Calls that handlers make: more than any queue holds, in circles, from within callbacks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use afflux::{Channel, Detail, ErrorKind, OneWay, Pending, Stage};

use crate::rig::*;

/// Case 045. Each of four shards sends to all and receives from all through rings of one place, a record
/// made for every record that comes: no loop ever waits for a full ring, and it ends.
#[test]
fn an_all_to_all_mesh_over_rings_of_one_place_ends() {
    const FIRST: u64 = 64;
    const HOPS: u64 = 31;
    let seen = Arc::new(AtomicU64::new(0));
    let count = seen.clone();
    let mesh = told(move |message, cx| {
        count.fetch_add(1, Ordering::SeqCst);
        let left = as_number(message.payload());
        if left > 0 {
            cx.channel("mesh").send("", padded(left - 1, 8)).then(cx, |_, end, _| end.unwrap());
        }
    });
    let host = Spec::new("mesh", 4).channel("mesh", mesh).marks(1 << 20, 1 << 20).with(|plan| plan.ring_slots = 1);
    let mut rig = Rig::up(vec![host]);
    let mesh = rig.channel(0, "mesh");
    for round in 1..=30 {
        let started: Vec<_> = (0..FIRST).map(|_| mesh.send("", padded(HOPS, 8)).submit()).collect();
        rig.settle();
        assert_eq!(seen.load(Ordering::SeqCst), round * FIRST * (HOPS + 1));
        for mut one in started {
            one.try_take().expect("accepted").unwrap();
        }
        rig.assert_at_rest();
    }
    assert!(rig.nodes[0].shared.counts.waits.get() > 0, "rings were full");
}

/// Case 046. A handler sends ten thousand records before it returns, to another node and to its own, some with
/// a continuation and some without: none deadlocks, what finds no room waits as an operation, all arrive in
/// order, and the loop runs on.
#[test]
fn a_handler_sends_ten_thousand_before_it_returns() {
    const N: u64 = 10_000;
    for to in ["far", "near"] {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (far, near) = (heard.clone(), heard.clone());
        let ends = Arc::new(AtomicU64::new(0));
        let ended = ends.clone();
        let burst = asked(move |request, cx| {
            for n in 0..N {
                let send = cx.channel(to).send("", padded(n, 100));
                if n % 2 == 0 {
                    let ended = ended.clone();
                    send.then(cx, move |_, end, _| {
                        end.unwrap();
                        ended.fetch_add(1, Ordering::SeqCst);
                    });
                } else {
                    send.detach();
                }
            }
            request.reply(cx, "returned");
        });
        let host = Spec::new("host", 1)
            .channel("burst", burst)
            .channel("echo", echo())
            .channel("near", told(move |m, _| near.lock().unwrap().push(as_number(m.payload()))))
            .connect(1, None, 1)
            .marks(16 << 10, 16 << 10)
            .with(|plan| plan.room = afflux::plan::RoomPlan::new(60_000, 64 << 20));
        let far = told(move |m, _| far.lock().unwrap().push(as_number(m.payload())));
        let mut rig = Rig::up(vec![host, Spec::new("far", 1).channel("far", far)]);
        let mut burst = rig.channel(0, "burst").request("", "").submit();
        for _ in 0..4 {
            rig.round();
        }
        assert_eq!(burst.try_take().expect("it has returned").unwrap(), "returned");
        assert!(rig.nodes[0].shared.counts.waits.get() > 0, "more than the queue holds");
        let mut beside = rig.channel(0, "echo").request("", "beside").submit();
        rig.settle();
        assert_eq!(beside.try_take().unwrap().unwrap(), "beside");
        assert_eq!(ends.load(Ordering::SeqCst), N / 2);
        assert_eq!(*heard.lock().unwrap(), (0..N).collect::<Vec<_>>());
        rig.assert_at_rest();
    }
}

/// Case 047. In the continuations of a send, of a reply and of a lost link the user sends, asks, cancels,
/// drops the last handles, looks at everything: nothing is locked that any of these need. What a thread of the
/// runtime may not do there is refused by name.
#[test]
fn callbacks_may_do_everything_that_does_not_block() {
    type Kept = Arc<Mutex<Option<(Channel, Vec<Pending<OneWay>>)>>>;
    let kept: Kept = Arc::new(Mutex::new(None));
    let ended = Arc::new(Mutex::new(Vec::new()));
    let (hand, ends) = (kept.clone(), ended.clone());
    let play = asked(move |request, cx| {
        let what = request.method().to_owned();
        let note = |what: &str, ends: &Arc<Mutex<Vec<String>>>| ends.lock().unwrap().push(what.to_owned());
        let (hand, ends) = (hand.clone(), ends.clone());
        let reenter = move |what: &str, cx: &mut afflux::Context<'_, Play>| {
            cx.channel("sink").send("", padded(1, 8)).detach();
            cx.channel("echo").request("", "again").then(cx, |_, end, _| drop(end));
            drop(cx.channel("echo").request("", "given up").submit());
            if let Some((channel, waiting)) = hand.lock().unwrap().take() {
                // Operations that wait at our own shard are cancelled and dropped, the last handle with them.
                assert_eq!(channel.try_send("", padded(9, 2000)).unwrap_err().error().detail(), Detail::NoRoom);
                for (n, one) in waiting.into_iter().enumerate() {
                    if n % 2 == 0 { drop(one) } else { assert!(one.cancel().is_some()) }
                }
                drop(channel);
            }
            note(what, &ends);
        };
        let (responder, _) = request.into_parts();
        let then = what.clone();
        match &*what {
            "send" => cx.channel("sink").send("", padded(0, 8)).then(cx, move |_, end, cx| {
                end.unwrap();
                reenter(&then, cx);
                responder.reply(cx, "");
            }),
            _ => cx.channel(&what).request("", "").then(cx, move |_, end, cx| {
                assert_eq!(end.is_err(), then == "keep");
                reenter(&then, cx);
                responder.reply(cx, "");
            }),
        }
    });
    let held = Arc::new(Mutex::new(Vec::new()));
    let keep = held.clone();
    let host = Spec::new("host", 1).channel("play", play).connect(1, None, 1).connect(2, Some("away"), 1);
    let peer = Spec::new("peer", 1)
        .channel("echo", echo())
        .channel("sink", told(|_, _| {}))
        .channel("keep", asked(move |request, _| keep.lock().unwrap().push(request.into_parts().0.into_remote())));
    let mut rig = Rig::new(vec![host.marks(4096, 4096), peer.marks(4096, 4096)]);
    rig.net.swallow(2);
    rig.settle();
    for what in ["send", "echo", "keep"] {
        let away = rig.client(0).node("away");
        while away.try_send("", padded(0, 1000)).is_ok() {}
        let waiting = (0..6).map(|n| away.send("", padded(n, 1000)).timeout(ms(90_000)).submit()).collect();
        *kept.lock().unwrap() = Some((away, waiting));
        let mut one = rig.channel(0, "play").request(what, "").submit();
        rig.run(10);
        if what == "keep" {
            // The reply's link is lost: the continuation hears of it, and is in the middle of things as well.
            rig.net.cut(0, 1, afflux::Lane::Completion);
            rig.run(10);
        }
        assert!(one.try_take().expect("answered").is_ok(), "{what}");
        assert!(kept.lock().unwrap().is_none());
        assert_eq!(rig.nodes[0].shared.room.ops(), 0, "{what}: those that waited are gone from the room");
    }
    assert_eq!(*ended.lock().unwrap(), ["send", "echo", "keep"]);
}

fn circle(started: u32) -> Rig {
    // Each asks the other until the number is 0.
    let node = |name: &str, other: &'static str| {
        let seat = asked(move |request, cx| {
            let left = as_number(request.payload());
            if left == 0 {
                return request.reply(cx, "bottom");
            }
            let (responder, _) = request.into_parts();
            cx.channel(other)
                .request("", padded(left - 1, 8))
                .timeout(ms(3_600_000))
                .then(cx, move |_, end, cx| responder.reply_with(cx, end));
        });
        Spec::new(name, 1).channel(name, seat).jobs(1, started)
    };
    Rig::up(vec![node("a", "b").connect(1, None, 1), node("b", "a"), Spec::new("caller", 1).connect(0, None, 1)])
}

/// Case 048. A asks B, whose handler asks A, and so on. With one job per host and free places for started
/// handlers the circle completes: a permit is free when its handler starts, replies have their own lane. With
/// one place it cannot, and ends everywhere when the time of the first request is over; the error names where
/// and after how long, and the next call is served.
#[test]
fn a_circle_of_calls_completes_or_ends_by_the_first_deadline() {
    let mut rig = circle(8);
    let mut one = rig.channel(2, "a").request("", padded(9, 8)).timeout(ms(100)).submit();
    rig.settle();
    assert_eq!(one.try_take().expect("in the same millisecond").unwrap(), "bottom");
    rig.assert_at_rest();

    let mut rig = circle(1);
    let mut one = rig.channel(2, "a").request("", padded(9, 8)).timeout(ms(100)).submit();
    rig.run(99);
    assert!(one.try_take().is_none());
    rig.run(1);
    let error = one.try_take().expect("at its time").unwrap_err();
    assert_eq!((error.kind(), error.error().detail()), (ErrorKind::DeadlineExceeded, Detail::NoReply));
    let figures = error.error().figures();
    assert_eq!((figures.target.as_deref(), figures.stage), (Some("a"), Some(Stage::Reply)));
    assert_eq!(figures.waited, Some(ms(100)));
    // The nested ones ended by it too, though each was given an hour.
    rig.run(2);
    let mut next = rig.channel(2, "a").request("", padded(0, 8)).timeout(ms(100)).submit();
    rig.settle();
    assert_eq!(next.try_take().expect("the next is served").unwrap(), "bottom");
    rig.assert_at_rest();
}

/// Case 052. One origin uses up the job limit. Two others wait for permits and for nothing else: each of their
/// records is served at its turn, and what all three ask of others is answered meanwhile.
#[test]
fn a_used_up_job_limit_delays_others_by_their_turn_alone() {
    let order = Arc::new(Mutex::new(Vec::new()));
    let held = Arc::new(Mutex::new(Vec::new()));
    let (note, keep) = (order.clone(), held.clone());
    let seat = asked(move |request, _| {
        note.lock().unwrap().push(request.peer().to_string());
        keep.lock().unwrap().push(request.into_parts().0.into_remote());
    });
    let server = Spec::new("server", 1).channel("keep", seat).jobs(1, 1);
    let caller = |name: &str| Spec::new(name, 1).connect(0, Some("server"), 1).node_handler(echo());
    let mut rig = Rig::up(vec![server, caller("a"), caller("b"), caller("c")]);
    let ask = |rig: &mut Rig, at: usize, n: usize| {
        let keep = rig.channel(at, "keep");
        (0..n).for_each(|_| keep.request("", "x").timeout(ms(100_000)).detach());
        rig.settle();
    };
    ask(&mut rig, 1, 40);
    ask(&mut rig, 2, 1);
    ask(&mut rig, 3, 1);
    rig.run(5000);
    assert_eq!(order.lock().unwrap().len(), 1, "one is started, one is claimed, all others wait");
    for at in 1..=3 {
        // Their completion lanes flow.
        let mut one = rig.client(0).node(["", "a", "b", "c"][at]).request("", "x").submit();
        rig.settle();
        assert_eq!(one.try_take().expect("at once").unwrap(), "x");
    }
    for _ in 0..42 {
        let debt = held.lock().unwrap().remove(0);
        debt.reply("");
        rig.settle();
    }
    let order = order.lock().unwrap();
    // Two of `a` were before them; then each waits for one record of each other origin at the most.
    let first = |who: &str| order.iter().position(|peer| peer == who).unwrap();
    assert!(first("b") <= 4 && first("c") <= 5 && first("b") < first("c"), "{:?}", &order[..8]);
    assert_eq!(order.len(), 42);
    drop(order);
    rig.assert_at_rest();
}
