//! Bounds on the way back, calls of many stages, members of a channel, and what a stuck shard cannot hold up.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use afflux::{Detail, ErrorKind, Lane, RemoteResponder, Stage};

use crate::rig::*;

/// A server that keeps what it is asked.
fn keeping() -> (afflux::engine::seat::SeatFactory, Arc<Mutex<VecDeque<RemoteResponder>>>) {
    let held: Arc<Mutex<VecDeque<RemoteResponder>>> = Arc::default();
    let keep = held.clone();
    (asked(move |request, _| keep.lock().unwrap().push_back(request.into_parts().0.into_remote())), held)
}

fn small(spec: Spec) -> Spec {
    spec.with(|plan| {
        plan.max_message = 10_000;
        plan.oversize_budget = 40_000;
    })
}

/// A body that finds the hold for untaken replies full is thrown away and says so with the numbers; small ones
/// pass, the lane goes on; what is taken makes room, and what nobody takes by its deadline is given up and counted.
#[test]
fn a_reply_that_finds_the_hold_full_is_refused_by_name() {
    let (seat, held) = keeping();
    let caller = small(Spec::new("caller", 1).connect(1, Some("server"), 1)).with(|plan| plan.reply.hold = 12_000);
    let mut rig = Rig::up(vec![caller, small(Spec::new("server", 1).node_handler(seat))]);
    let server = rig.client(0).node("server");
    let mut asked: Vec<_> = (0..4).map(|_| server.request("", "x").timeout(ms(500)).submit()).collect();
    rig.settle();
    for len in [8000, 8000, 2048, 3000] {
        held.lock().unwrap().pop_front().unwrap().reply(vec![7; len]);
        rig.settle();
    }
    let shared = rig.nodes[0].shared.clone();
    assert_eq!((shared.hold.bytes(), shared.counts.reply_hold_refused.get()), (11_000, 1));
    let error = asked[1].try_take().expect("at once").unwrap_err();
    assert_eq!((error.kind(), error.error().detail()), (ErrorKind::CapacityExceeded, Detail::ReplyHold));
    let figures = error.error().figures();
    assert_eq!((figures.requested, figures.used, figures.limit), (Some(8000), Some(8000), Some(12_000)));
    assert_eq!((figures.lane, figures.target.as_deref()), (Some(Lane::Completion), Some("server")));
    assert_eq!(asked[0].try_take().unwrap().unwrap().len(), 8000);
    assert_eq!(asked[2].try_take().unwrap().unwrap().len(), 2048);
    assert_eq!(shared.hold.bytes(), 3000);
    rig.run(501);
    assert_eq!((shared.hold.bytes(), shared.counts.replies_not_taken.get()), (0, 1));
    let error = asked[3].try_take().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.error().detail()), (ErrorKind::DeadlineExceeded, Detail::NoReply));
    rig.assert_at_rest();
}

/// Replies that nobody takes do not cost the one of somebody who waits: a body for a future that was polled passes the
/// full hold, within a bound of its own.
#[test]
fn who_waits_for_a_reply_gets_it_whatever_others_leave_untaken() {
    let (seat, held) = keeping();
    let caller = small(Spec::new("caller", 1).connect(1, Some("server"), 1)).with(|plan| plan.reply.hold = 10_400);
    let mut rig = Rig::up(vec![caller, small(Spec::new("server", 1).node_handler(seat))]);
    let server = rig.client(0).node("server");
    let mut asked: Vec<_> = (0..4).map(|_| server.request("", "x").timeout(ms(500)).submit()).collect();
    for waiting in &mut asked[1..3] {
        assert!(Pin::new(waiting).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    rig.settle();
    let shared = rig.nodes[0].shared.clone();
    for _ in 0..4 {
        held.lock().unwrap().pop_front().unwrap().reply(vec![7; 8000]);
        rig.settle();
    }
    assert_eq!((shared.hold.bytes(), shared.awaited.bytes(), shared.counts.reply_hold_refused.get()), (8000, 8000, 2));
    assert_eq!(asked[1].try_take().unwrap().unwrap().len(), 8000, "who waits");
    let refused = asked[2].try_take().unwrap().unwrap_err();
    assert_eq!(refused.error().detail(), Detail::ReplyHold, "a second one before the first was taken");
    assert_eq!(asked[3].try_take().unwrap().unwrap_err().error().detail(), Detail::ReplyHold, "nobody waits");
    assert_eq!(asked[0].try_take().unwrap().unwrap().len(), 8000);
    assert_eq!((shared.hold.bytes(), shared.awaited.bytes()), (0, 0));
    rig.assert_at_rest();
}

/// A reply that finds no room on its lane waits under the server's own ceiling, and its caller gets a small error in
/// its place; while the peer is above its mark no more of its requests are claimed.
#[test]
fn a_reply_without_room_ends_at_the_servers_ceiling() {
    let (seat, held) = keeping();
    let server = small(Spec::new("server", 1).node_handler(seat));
    let server = server.with(|plan| (plan.reply.per_peer, plan.send_timeout) = (4000, ms(200)));
    let mut rig = Rig::up(vec![small(Spec::new("caller", 1).connect(1, Some("server"), 1)), server]);
    let server = rig.client(0).node("server");
    let mut asked: Vec<_> = (0..3).map(|_| server.request("", "x").timeout(ms(60_000)).submit()).collect();
    rig.settle();
    rig.net.set_capacity(100);
    rig.net.freeze(1, 0, Lane::Completion, true);
    for _ in 0..3 {
        held.lock().unwrap().pop_front().unwrap().reply(vec![7; 3950]);
        rig.settle();
    }
    let mut late = server.request("", "y").timeout(ms(60_000)).submit();
    rig.run(199);
    assert_eq!(rig.nodes[1].shared.counts.reply_room_refused.get(), 0);
    assert!(held.lock().unwrap().is_empty(), "no more of its requests are claimed");
    rig.run(1);
    assert_eq!(rig.nodes[1].shared.counts.reply_room_refused.get(), 2);
    rig.net.set_capacity(64 << 10);
    rig.net.freeze(1, 0, Lane::Completion, false);
    rig.settle();
    assert_eq!(asked[0].try_take().unwrap().unwrap().len(), 3950);
    for one in &mut asked[1..] {
        let error = one.try_take().expect("told").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
        assert!(error.to_string().contains("ReplyRoom") && error.to_string().contains("200 ms"), "{error}");
    }
    held.lock().unwrap().pop_front().expect("it is claimed now").reply("z");
    rig.settle();
    assert_eq!(late.try_take().unwrap().unwrap(), "z");
    rig.assert_at_rest();
}

/// The completion thread is the backstop: what waits at a stuck shard, and what it was asked, ends at its own time.
#[test]
fn a_stuck_shard_keeps_no_operation_past_its_time() {
    let (seat, _held) = keeping();
    let caller = Spec::new("caller", 1).connect(1, Some("server"), 1).marks(2200, 2200);
    let mut rig = Rig::up(vec![caller, Spec::new("server", 1).node_handler(seat)]);
    let server = rig.client(0).node("server");
    let mut request = server.request("", padded(0, 1000)).timeout(ms(70)).submit();
    rig.settle();
    rig.stuck.insert((0, 0));
    server.try_send("", padded(1, 1000)).unwrap();
    server.try_send("", padded(2, 1000)).unwrap();
    let mut send = server.send("", padded(3, 1000)).timeout(ms(50)).submit();
    let mut cancelled = server.send("", padded(4, 1000)).timeout(ms(5000)).submit();
    rig.run(49);
    assert!(send.try_take().is_none());
    rig.run(1);
    let error = send.try_take().expect("at its time").unwrap_err();
    assert_eq!((error.error().detail(), error.error().figures().waited), (Detail::NoRoom, Some(ms(50))));
    rig.run(20);
    let error = request.try_take().expect("at its time").unwrap_err();
    assert_eq!((error.error().detail(), error.error().figures().stage), (Detail::NoReply, Some(Stage::Reply)));
    assert!(cancelled.try_take().is_none());
    assert_eq!(as_number(&cancelled.cancel().unwrap()), 4);
    assert_eq!((rig.nodes[0].shared.room.ops(), rig.nodes[0].shared.cells.counts().waiting), (0, 0));
    rig.stuck.clear();
    rig.settle();
    assert_eq!(rig.target(0, "server").mark.waiters(), 0);
}

/// Calls nest 32 deep and no deeper; the error of the one too many goes all the way back.
#[test]
fn calls_nest_thirty_two_deep() {
    let seat = asked(|request, cx| {
        let left = as_number(request.payload());
        if left == 0 {
            return request.reply(cx, "bottom");
        }
        let (responder, _) = request.into_parts();
        cx.channel("down").request("", padded(left - 1, 8)).then(cx, |_, end, cx| responder.reply_with(cx, end));
    });
    let mut rig = Rig::up(vec![Spec::new("host", 1).channel("down", seat)]);
    for (depth, fits) in [(32, true), (33, false)] {
        let mut one = rig.channel(0, "down").request("", padded(depth, 8)).submit();
        rig.settle();
        let end = one.try_take().expect("ended");
        assert_eq!(end.as_ref().ok().map(|b| &b[..]), fits.then_some(&b"bottom"[..]));
        assert_eq!(end.err().map(|e| e.kind()), (!fits).then_some(ErrorKind::Rejected));
    }
    rig.assert_at_rest();
}

/// Case 078 for channels: members of the weights 5, 1 and 1 are chosen in the published smooth order by each handle,
/// from its first operation on; a member of weight 0 never, and a channel of such members is `Draining`.
#[test]
fn members_are_chosen_by_their_weights_exactly() {
    let said = |what: &'static str| asked(move |request, cx| request.reply(cx, what));
    let member = |name: &'static str, weight: u32, to: Option<usize>| {
        let spec = Spec::new(name, 1).channel("who", said(name)).with(|plan| plan.channels[0].1 = weight);
        to.into_iter().fold(spec, |spec, to| spec.connect(to, None, 1))
    };
    let caller = (1..=4).fold(Spec::new("caller", 1), |spec, to| spec.connect(to, None, 1));
    let members = [member("a", 500, None), member("b", 100, None), member("c", 100, None), member("d", 0, None)];
    let mut rig = Rig::up(std::iter::once(caller).chain(members).collect());
    for _ in 0..2 {
        let who = rig.channel(0, "who");
        let mut turns = String::new();
        for _ in 0..21 {
            let mut one = who.request("", "").submit();
            rig.settle();
            turns.push_str(std::str::from_utf8(&one.try_take().unwrap().unwrap()).unwrap());
        }
        let order: Vec<char> = turns.chars().collect();
        assert!(order.chunks(7).all(|seven| seven == &order[..7]), "{turns}");
        assert_eq!(order[..7].iter().filter(|c| **c == 'a').count(), 5);
        // Smooth: the five are spread, not in a row.
        assert!(!turns.contains("aaaaa") && turns.contains('b') && turns.contains('c') && !turns.contains('d'));
    }
    let mut rig = Rig::up(vec![Spec::new("caller", 1).connect(1, None, 1), member("d", 0, None)]);
    let mut one = rig.channel(0, "who").send("", "mine").submit();
    rig.settle();
    let error = one.try_take().expect("at once").unwrap_err();
    assert_eq!((error.kind(), error.error().detail()), (ErrorKind::Unavailable, Detail::Draining));
    assert_eq!(error.into_payload(), "mine");
}

/// Case 093. A client goes in the middle of its requests: their handlers run on (a lost caller stops none), their
/// answers are dropped and counted, every place comes back. A responder that is dropped is an answer.
#[test]
fn a_client_that_goes_leaves_no_entry() {
    let (seat, held) = keeping();
    let client = Spec::new("client", 1).connect(0, Some("server"), 1).with(|p| p.reconnect_min = ms(1000));
    let mut rig = Rig::up(vec![Spec::new("server", 1).node_handler(seat), client]);
    let server = rig.client(1).node("server");
    let mut asked: Vec<_> = (0..20).map(|_| server.request("", "x").timeout(ms(60_000)).submit()).collect();
    rig.settle();
    for _ in 0..5 {
        drop(held.lock().unwrap().pop_front());
    }
    rig.settle();
    for one in asked.drain(..5) {
        let mut one = one;
        let error = one.try_take().expect("answered").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
    }
    rig.net.set_absent(0, true);
    rig.net.cut(0, 1, Lane::Completion);
    rig.settle();
    for mut one in asked {
        assert_eq!(one.try_take().expect("at once").unwrap_err().error().detail(), Detail::LinkLost);
    }
    let shared = rig.nodes[0].shared.clone();
    assert_eq!(shared.shards[0].started.get(), 15, "their handlers are not stopped");
    let debts: Vec<_> = held.lock().unwrap().drain(..).collect();
    for (n, debt) in debts.into_iter().enumerate() {
        if n % 2 == 0 { debt.reply(vec![1; 5000]) } else { drop(debt) }
    }
    rig.run(1500);
    assert_eq!(shared.counts.replies_undeliverable.get(), 15);
    assert_eq!(shared.targets.lock().iter().filter(|t| !t.gone.is_raised()).count(), 0);
    rig.assert_at_rest();
}
