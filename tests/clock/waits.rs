//! Operations that wait, and how each ends: one terminal, at its time, under its name, with its payload.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Wake, Waker};
use std::time::Duration;

use afflux::base::rng::Rng;
use afflux::plan::RoomPlan;
use afflux::{Detail, ErrorKind, Lane, Stage};
use bytes::Bytes;

use crate::rig::*;

/// A caller and a server that answers, hears and counts; the caller's queue holds four records of 1,000 bytes.
fn pair() -> (Rig, Arc<Mutex<Vec<u64>>>) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let (asked, told) = (heard.clone(), heard.clone());
    let seat = serving(
        move |request, cx| {
            asked.lock().unwrap().push(as_number(request.payload()));
            let payload = request.payload().clone();
            request.reply(cx, payload);
        },
        move |message, _| told.lock().unwrap().push(as_number(message.payload())),
    );
    let caller = Spec::new("caller", 1).connect(1, Some("server"), 1).marks(4400, 4400);
    let rig = Rig::up(vec![caller, Spec::new("server", 1).node_handler(seat)]);
    (rig, heard)
}

/// The same with nothing on its way out, and a queue that is full of numbers from 1,000 on.
fn full() -> (Rig, Arc<Mutex<Vec<u64>>>, u64) {
    let (mut rig, heard) = pair();
    rig.net.set_capacity(16);
    rig.net.freeze(0, 1, Lane::Application, true);
    let server = rig.client(0).node("server");
    let mut n = 0;
    while server.try_send("", padded(1000 + n, 1000)).is_ok() {
        n += 1;
        rig.settle();
    }
    assert_eq!(n, 4);
    (rig, heard, n)
}

fn flow(rig: &mut Rig) {
    rig.net.set_capacity(64 << 10);
    rig.net.freeze(0, 1, Lane::Application, false);
    rig.settle();
}

/// Cases 056, 067. A request's time covers the wait for room: with a queue that is full for a second it ends at
/// its 100 ms, is counted as one that waited, gives back the very bytes that it was given, and is not sent when
/// there is room. A send, likewise.
#[test]
fn a_timeout_covers_the_wait_for_room_and_gives_the_very_payload_back() {
    let (mut rig, heard, n) = full();
    let server = rig.client(0).node("server");
    let payload = Bytes::from(padded(7, 1000));
    let mut request = server.request("", payload.clone()).timeout(ms(100)).submit();
    let mut send = server.send("", payload.clone()).timeout(ms(100)).submit();
    rig.run(99);
    assert!(request.try_take().is_none() && send.try_take().is_none());
    rig.run(1);
    let shared = rig.nodes[0].shared.clone();
    let error = request.try_take().expect("at its time").unwrap_err();
    assert_eq!((error.kind(), error.error().detail()), (ErrorKind::DeadlineExceeded, Detail::NoRoom));
    let figures = error.error().figures().clone();
    assert_eq!((figures.stage, figures.lane), (Some(Stage::Room), Some(Lane::Application)));
    assert_eq!((figures.waited, figures.limit, figures.requested), (Some(ms(100)), Some(4400), Some(1064)));
    assert_eq!((figures.used, figures.target.as_deref()), (Some(4 * 1064), Some("server")));
    assert_eq!(error.unsent_payload().expect("it was never sent").as_ptr(), payload.as_ptr(), "no copy");
    let back = send.try_take().expect("at its time").unwrap_err().into_payload();
    assert_eq!((back.as_ptr(), back.len()), (payload.as_ptr(), 1000), "no copy");
    assert_eq!((shared.counts.no_room.get(), shared.counts.no_reply.get(), shared.counts.waits.get()), (2, 0, 2));
    rig.run(900);
    flow(&mut rig);
    assert_eq!(*heard.lock().unwrap(), (1000..1000 + n).collect::<Vec<_>>());
    rig.assert_at_rest();
}

/// Cases 065, 067. A request that is cancelled, dropped or out of time before it left, whether it waits for room
/// or stands in the queue, never reaches the wire; its payload comes back if it waited.
#[test]
fn a_request_that_is_given_up_before_it_left_is_never_sent() {
    let (mut rig, heard) = pair();
    rig.net.set_capacity(16);
    rig.net.freeze(0, 1, Lane::Application, true);
    let server = rig.client(0).node("server");
    let target = rig.target(0, "server");
    let mut first = server.request("", padded(0, 1000)).timeout(ms(60_000)).submit();
    rig.settle();
    let mut queued: Vec<_> = (1..4)
        .map(|n| server.request("", padded(n, 1000)).timeout(ms(if n == 2 { 50 } else { 60_000 })).submit())
        .collect();
    let waiting: Vec<_> = (4..10).map(|n| server.request("", padded(n, 1000)).timeout(ms(60_000)).submit()).collect();
    rig.settle();
    assert_eq!((target.mark.bytes(), target.waiting.ops(), target.in_flight.ops()), (4 * 1064, 6, 4));
    for (n, one) in (4..10).zip(waiting) {
        assert_eq!(as_number(&one.cancel().expect("it waited")), n);
    }
    rig.settle();
    assert_eq!((target.waiting.ops(), target.waiting.bytes(), target.mark.waiters()), (0, 0, 0));
    rig.run(50);
    let error = queued.remove(1).try_take().expect("its time is up").unwrap_err();
    assert_eq!((error.error().detail(), error.unsent_payload()), (Detail::NoReply, None));
    assert_eq!(queued.pop().unwrap().cancel(), None, "it was accepted");
    drop(queued);
    assert_eq!(target.in_flight.ops(), 1, "slots are free at once");
    let mut after = server.send("", padded(20, 1000)).timeout(ms(60_000)).submit();
    flow(&mut rig);
    assert!(first.try_take().expect("answered").is_ok());
    after.try_take().expect("accepted").unwrap();
    assert_eq!(*heard.lock().unwrap(), [0, 20], "the three that stood in the queue were not sent");
    assert_eq!((target.discarded.get(), rig.nodes[1].shared.counts.received.get()), (3, 2));
    rig.assert_at_rest();
}

/// Case 068. There is no receive that could be dropped: records come to handlers. What can be dropped is an
/// operation, at every point of its life: none is lost or doubled by it, and every place comes back.
#[test]
fn twenty_thousand_operations_dropped_anywhere_lose_and_double_nothing() {
    let (mut rig, heard) = pair();
    rig.net.set_capacity(200);
    let server = rig.client(0).node("server");
    let mut rng = Rng::new(68);
    let (mut live, mut accepted, mut answered, mut gone) = (Vec::new(), 0_u64, 0_u64, 0_u64);
    let mut must = Vec::new();
    for n in 0..20_000 {
        let waker = Waker::noop();
        if rng.below(2) == 0 {
            let mut op = Box::pin(server.send("", padded(n, 100 + rng.below(900) as usize)));
            match rng.below(3) {
                // Never started.
                0 => drop(op),
                _ => match op.as_mut().poll(&mut TaskContext::from_waker(waker)) {
                    std::task::Poll::Ready(end) => {
                        end.unwrap();
                        accepted += 1;
                        must.push(n);
                    }
                    // Dropped while it waits for room.
                    std::task::Poll::Pending => gone += 1,
                },
            }
        } else {
            let mut op = Box::pin(server.request("", padded(n, 100 + rng.below(900) as usize)));
            match op.as_mut().poll(&mut TaskContext::from_waker(waker)) {
                std::task::Poll::Ready(end) => panic!("{end:?}"),
                std::task::Poll::Pending => live.push((n, op)),
            }
        }
        for _ in 0..rng.below(3) {
            rig.round();
        }
        while live.len() > 12 {
            let (n, mut op) = live.swap_remove(rng.below(live.len() as u64) as usize);
            match op.as_mut().poll(&mut TaskContext::from_waker(waker)) {
                std::task::Poll::Ready(end) => {
                    assert_eq!(as_number(&end.unwrap()), n, "its own reply and nobody else's");
                    answered += 1;
                    must.push(n);
                }
                std::task::Poll::Pending => gone += 1,
            }
        }
    }
    drop(live);
    rig.run(2);
    let mut heard = heard.lock().unwrap();
    assert!(accepted > 1000 && answered > 1000 && gone > 1000, "{accepted} {answered} {gone}");
    let all = heard.len();
    heard.sort_unstable();
    heard.dedup();
    assert_eq!(heard.len(), all, "nothing twice");
    assert!(must.iter().all(|n| heard.binary_search(n).is_ok()), "and nothing lost that was accepted");
    drop(heard);
    rig.assert_at_rest();
}

/// Case 069, and the kinds of errors: each cause in turn has a kind and a detail of its own, and a sentence
/// with the limit, the peer, the lane, and for how long.
#[test]
fn every_cause_has_its_own_name() {
    let mut names = Vec::new();
    let mut note = |error: &afflux::Error, says: &[&str]| {
        let text = error.to_string();
        assert!(says.iter().all(|part| text.contains(part)), "{text}: {says:?}");
        names.push((error.kind(), error.detail()));
    };
    let (mut rig, _heard, _) = full();
    let server = rig.client(0).node("server");
    let mut send = server.send("", padded(1, 1000)).timeout(ms(40)).submit();
    rig.run(40);
    let error = send.try_take().unwrap().unwrap_err();
    note(
        error.error(),
        &["server (application lane)", "no room within 40 ms", "4,256 of 4,400 bytes used", "1,064 asked"],
    );
    let error = rig.client(0).node("stranger").send("", "x").submit().try_take().unwrap().unwrap_err();
    note(error.error(), &["stranger", "NotFound"]);
    let error = server.send(&"m".repeat(300), "x").submit().try_take().unwrap().unwrap_err();
    note(error.error(), &["server", "MethodTooLong"]);
    let error = server.send("", vec![0; (16 << 20) + 1]).submit().try_take().unwrap().unwrap_err();
    note(error.error(), &["server", "larger than MaxMessageSize", "limit 16,777,216"]);
    let error = server.send("", "x").timeout(Duration::ZERO).submit().try_take().unwrap().unwrap_err();
    note(error.error(), &["timeout = 0ns: must be 1 ms"]);
    let mut waiting = server.send("", padded(1, 1000)).timeout(ms(60_000)).submit();
    rig.shut_down(0);
    note(waiting.try_take().unwrap().unwrap_err().error(), &["ShuttingDown"]);

    // The room for those who wait is full.
    let caller = Spec::new("caller", 1).connect(1, Some("away"), 1).marks(1000, 1000);
    let mut rig = Rig::new(vec![caller.with(|plan| plan.room = RoomPlan::new(8, 128 << 20))]);
    rig.net.swallow(1);
    rig.settle();
    let away = rig.client(0).node("away");
    away.try_send("", padded(0, 900)).unwrap();
    let _two: Vec<_> = (0..2).map(|n| away.send("", padded(n, 900)).timeout(ms(9000)).submit()).collect();
    let error = away.send("", "mine").submit().try_take().expect("at once").unwrap_err();
    note(error.error(), &["away", "room for waiting operations is full", "2 of 2 used"]);
    assert_eq!(error.error().figures().stage, Some(Stage::Room));

    // Nobody is known yet; then known and not connected.
    let mut finding = rig.channel(0, "echo").request("", "x").timeout(ms(30)).submit();
    rig.run(30);
    let error = finding.try_take().expect("at its time").unwrap_err();
    note(error.error(), &["echo", "no member known within 30 ms"]);

    // No reply in time; a remote error; the link lost; the target gone; not connected.
    let held = Arc::new(Mutex::new(Vec::new()));
    let keep = held.clone();
    let seat = asked(move |request, cx| match request.method() {
        "no" => request.fail(cx, 404, "no such order"),
        "forget" => drop(request),
        "panic" => std::panic::resume_unwind(Box::new("on purpose")),
        _ => keep.lock().unwrap().push(request.into_parts().0.into_remote()),
    });
    let server = Spec::new("server", 1).channel("orders", seat).marks(1000, 1000);
    let mut rig = Rig::up(vec![Spec::new("caller", 1).connect(1, None, 1), server]);
    let orders = rig.channel(0, "orders");
    let mut one = orders.request("", "x").timeout(ms(25)).submit();
    let mut lost = orders.request("", "x").timeout(ms(60_000)).submit();
    rig.run(25);
    note(one.try_take().unwrap().unwrap_err().error(), &["server (completion lane)", "no reply within 25 ms"]);
    for (method, says) in [("no", "no such order"), ("forget", "Internal"), ("panic", "Internal")] {
        let mut one = orders.request(method, "x").submit();
        rig.settle();
        note(one.try_take().unwrap().unwrap_err().error(), &["server", says]);
    }
    let back = rig.client(1).node("caller");
    rig.net.freeze(1, 0, Lane::Application, true);
    rig.net.set_capacity(16);
    while back.try_send("", padded(0, 900)).is_ok() {
        rig.settle();
    }
    let mut detached = back.send("", padded(0, 900)).timeout(ms(60_000)).submit();
    rig.net.set_absent(1, true);
    rig.net.cut(0, 1, Lane::Completion);
    rig.run(1);
    note(lost.try_take().unwrap().unwrap_err().error(), &["server", "the link was lost"]);
    note(detached.try_take().unwrap().unwrap_err().error(), &["caller", "the target went away"]);
    let error = orders.send("", "x").submit().try_take().expect("at once").unwrap_err();
    note(error.error(), &["orders", "not connected"]);

    use Detail as D;
    use ErrorKind as K;
    let expected = [
        (K::DeadlineExceeded, D::NoRoom),
        (K::NotFound, D::None),
        (K::Rejected, D::MethodTooLong),
        (K::Rejected, D::MessageTooLarge),
        (K::InvalidOperation, D::None),
        (K::ShuttingDown, D::None),
        (K::DeadlineExceeded, D::WaitingRoomFull),
        (K::DeadlineExceeded, D::NotFoundYet),
        (K::DeadlineExceeded, D::NoReply),
        (K::Remote, D::None),
        (K::Internal, D::None),
        (K::Internal, D::None),
        (K::Unavailable, D::LinkLost),
        (K::Unavailable, D::Detached),
        (K::Unavailable, D::NotConnected),
    ];
    assert_eq!(names, expected);
}

/// Case 070. A request's time is up; its place is another's when the reply to it comes, also after that place
/// had many others: the reply is dropped and counted, its bytes are given back, the other is untouched.
#[test]
fn a_late_reply_is_nobody_else_s() {
    for between in [0, 1, 5000] {
        let held = Arc::new(Mutex::new(Vec::new()));
        let keep = held.clone();
        let seat = asked(move |request, cx| match request.method() {
            "keep" => keep.lock().unwrap().push(request.into_parts().0.into_remote()),
            _ => request.reply(cx, ""),
        });
        let caller = Spec::new("caller", 1).connect(1, Some("server"), 1).with(|plan| plan.request_slots = 1);
        let mut rig = Rig::up(vec![caller, Spec::new("server", 1).node_handler(seat)]);
        let server = rig.client(0).node("server");
        let mut late = server.request("keep", "a").timeout(ms(10)).submit();
        rig.run(10);
        assert_eq!(late.try_take().unwrap().unwrap_err().error().detail(), Detail::NoReply);
        for _ in 0..between {
            let mut one = server.request("", "").submit();
            rig.settle();
            one.try_take().unwrap().unwrap();
        }
        let mut other = server.request("keep", "b").timeout(ms(1000)).submit();
        rig.settle();
        held.lock().unwrap().remove(0).reply(vec![1; 100_000]);
        rig.settle();
        assert!(other.try_take().is_none(), "untouched");
        let shared = &rig.nodes[0].shared;
        assert_eq!((shared.counts.late_replies.get(), shared.hold.bytes()), (1, 0));
        held.lock().unwrap().remove(0).reply("its own");
        rig.settle();
        assert_eq!(other.try_take().unwrap().unwrap(), "its own");
        rig.assert_at_rest();
    }
}

/// Case 082. Overload ends and leaves nothing behind: the next send is accepted, whatever the ones before it
/// ended in. A peer that had us paused says that it goes on.
#[test]
fn no_error_outlives_its_cause() {
    let (mut rig, heard, _) = full();
    let server = rig.client(0).node("server");
    for round in 0..50 {
        let mut failed: Vec<_> = (0..30).map(|n| server.send("", padded(n, 1000)).timeout(ms(5)).submit()).collect();
        assert!(server.try_send("", padded(1, 1000)).is_err());
        rig.run(5);
        assert!(failed.iter_mut().all(|one| one.try_take().expect("at its time").is_err()));
        flow(&mut rig);
        heard.lock().unwrap().clear();
        server.try_send("", padded(round, 1000)).unwrap();
        rig.settle();
        assert_eq!(*heard.lock().unwrap(), [round], "the first after the overload");
        rig.assert_at_rest();
        rig.net.set_capacity(16);
        rig.net.freeze(0, 1, Lane::Application, true);
        while server.try_send("", padded(1, 1000)).is_ok() {
            rig.settle();
        }
    }
}

#[derive(Default)]
struct Bell(AtomicU64);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Case 094. A hundred senders wait for one peer and there is room for one: one is woken, the oldest, and it has
/// been admitted when it wakes. The others sleep, and so do the loops.
#[test]
fn of_a_hundred_who_wait_one_is_woken_by_room_for_one() {
    let (mut rig, _heard, _) = full();
    let server = rig.client(0).node("server");
    let bells: Vec<_> = (0..100).map(|_| Arc::new(Bell::default())).collect();
    let mut ops: Vec<_> = (0..100).map(|n| Box::pin(server.send("", padded(n, 1000)).timeout(ms(60_000)))).collect();
    let poll = |op: &mut std::pin::Pin<Box<afflux::SendOp<'_>>>, bell: &Arc<Bell>| {
        let waker = Waker::from(bell.clone());
        op.as_mut().poll(&mut TaskContext::from_waker(&waker))
    };
    assert!(ops.iter_mut().zip(&bells).all(|(op, bell)| poll(op, bell).is_pending()));
    rig.settle();
    let turns = rig.nodes[0].turns;
    rig.run(1);
    let idle = rig.nodes[0].turns - turns;
    for woken in 0..5 {
        // The peer takes one record's bytes.
        let before = rig.target(0, "server").written.get();
        rig.net.set_capacity(64 << 10);
        let turns = rig.nodes[0].turns;
        rig.net.freeze(0, 1, Lane::Application, false);
        rig.net.set_capacity(16);
        while rig.target(0, "server").written.get() == before {
            rig.round();
        }
        rig.net.freeze(0, 1, Lane::Application, true);
        rig.settle();
        let rung: Vec<_> = bells.iter().map(|bell| bell.0.load(Ordering::SeqCst)).collect();
        assert_eq!(rung, (0..100).map(|n| u64::from(n <= woken)).collect::<Vec<_>>());
        assert!(poll(&mut ops[woken], &bells[woken]).is_ready());
        assert!(rig.nodes[0].turns - turns < 1000, "no loop runs in vain");
    }
    assert!(idle <= 8, "{idle} turns in a millisecond in which nothing happened");
}

/// Case 139. A ring that is full, a queue's next chunk, the first use of a handle: none of them is an error or a
/// refusal that a caller sees while there is room under the mark. What is refused says which limit it was.
#[test]
fn housekeeping_is_never_refusal() {
    let caller = Spec::new("caller", 1).connect(1, Some("server"), 1).marks(1 << 20, 1 << 20);
    let caller = caller.with(|plan| (plan.ring_slots, plan.caller_rings) = (4, 2));
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hear = heard.clone();
    let seat = told(move |message, _| hear.lock().unwrap().push(as_number(message.payload())));
    let mut rig = Rig::up(vec![caller, Spec::new("server", 1).node_handler(seat)]);
    let handles: Vec<_> = (0..6).map(|_| rig.client(0).node("server")).collect();
    rig.stuck.insert((0, 0));
    let mut sent = Vec::new();
    for n in 0..120 {
        for (h, handle) in handles.iter().enumerate() {
            sent.push(handle.send("", padded(n * 10 + h as u64, 200)).timeout(ms(1000)).submit());
        }
    }
    rig.settle();
    assert!(rig.nodes[0].shared.room.ops() > 0, "more than the rings hold: they wait, and nobody is told anything");
    assert_eq!(rig.nodes[0].shared.counts.waiting_room_full.get(), 0);
    rig.stuck.clear();
    rig.settle();
    for one in sent {
        one.wait().unwrap();
    }
    let heard = heard.lock().unwrap();
    for h in 0..6 {
        let of: Vec<_> = heard.iter().filter(|n| **n % 10 == h).map(|n| n / 10).collect();
        assert_eq!(of, (0..120).collect::<Vec<_>>(), "handle {h}");
    }
}
