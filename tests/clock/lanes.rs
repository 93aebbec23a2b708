//! Two lanes and their ends: replies never wait for what is written, a lost peer's operations end at that
//! moment, and what was accepted is neither doubled nor reordered.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use afflux::{Detail, ErrorKind, Lane, Stage};

use crate::rig::*;

fn count() -> (Arc<AtomicU64>, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    (count.clone(), count)
}

/// Case 044. Both sides push and ask with pipes of 4 KiB, for a minute: in every second both get on, and
/// nobody dies of silence. Reading a completion lane never waits for what is to be written.
#[test]
fn two_nodes_that_flood_each_other_get_on_every_second() {
    let ((a, got_a), (b, got_b)) = (count(), count());
    let node = |name: &str, got: Arc<AtomicU64>| {
        let seat = serving(
            |request, cx| {
                let payload = request.payload().clone();
                request.reply(cx, payload);
            },
            move |_, _| {
                got.fetch_add(1, Ordering::SeqCst);
            },
        );
        Spec::new(name, 1).channel(&format!("in-{name}"), seat).marks(32 << 10, 32 << 10)
    };
    let mut rig = Rig::up(vec![node("a", got_a).connect(1, None, 1), node("b", got_b)]);
    rig.net.set_capacity(4 << 10);
    let channels = [rig.channel(0, "in-b"), rig.channel(1, "in-a")];
    let mut pending = [Vec::new(), Vec::new()];
    let mut replies = [0_u64; 2];
    for second in 1..=60 {
        let before = (a.load(Ordering::SeqCst), b.load(Ordering::SeqCst), replies);
        for _ in 0..10 {
            for (channel, pending) in channels.iter().zip(&mut pending) {
                while channel.try_send("", padded(0, 1000)).is_ok() {}
                pending.extend((0..6).map(|_| channel.request("", padded(0, 4 << 10)).submit()));
            }
            rig.run(100);
            for (pending, replies) in pending.iter_mut().zip(&mut replies) {
                pending.retain_mut(|one| match one.try_take() {
                    Some(end) => {
                        assert_eq!(end.unwrap().len(), 4 << 10);
                        *replies += 1;
                        false
                    }
                    None => true,
                });
            }
        }
        let now = (a.load(Ordering::SeqCst), b.load(Ordering::SeqCst), replies);
        assert!(now.0 > before.0 && now.1 > before.1, "second {second}: records arrive both ways");
        assert!((0..2).all(|i| now.2[i] > before.2[i]), "second {second}: replies arrive both ways");
    }
    assert_eq!(rig.nodes[0].shared.counts.links_lost.get(), 0);
    rig.assert_at_rest();
}

/// Cases 049, 044. A peer's consumer stops: its shard is stuck, its queue is full, senders wait. What the same
/// peer answers from elsewhere, and what it asks of us, takes not a millisecond longer.
#[test]
fn a_stopped_consumer_delays_no_reply_of_its_peer() {
    let held = Arc::new(Mutex::new(Vec::new()));
    let keep = held.clone();
    let seat = serving(move |request, _| keep.lock().unwrap().push(request.into_parts().0.into_remote()), |_, _| {});
    let slow = Spec::new("slow", 1).node_handler(seat).marks(4096, 4096);
    let fast = Spec::new("fast", 1).connect(1, Some("slow"), 1).channel("echo", echo()).marks(4096, 4096);
    let mut rig = Rig::up(vec![fast, slow]);
    let slow = rig.client(0).node("slow");
    let mut asked: Vec<_> = (0..200).map(|_| slow.request("", "x").timeout(ms(100_000)).submit()).collect();
    rig.settle();
    let echo = rig.channel(1, "echo");
    let mut echoed: Vec<_> = (0..10).map(|_| echo.request("", "y").submit()).collect();
    rig.net.freeze(0, 1, Lane::Completion, true);
    rig.settle();
    rig.stuck.insert((1, 0));
    rig.net.set_capacity(4096);
    while slow.try_send("", padded(0, 1000)).is_ok() {
        rig.settle();
    }
    let waiting: Vec<_> = (0..20).map(|n| slow.send("", padded(n, 1000)).timeout(ms(100_000)).submit()).collect();
    rig.settle();
    assert_eq!(rig.target(0, "slow").waiting.ops(), 20, "the queue to it is full, and senders wait");
    // Its completion thread reads what it is answered.
    rig.net.freeze(0, 1, Lane::Completion, false);
    rig.settle();
    assert!(echoed.iter_mut().all(|one| one.try_take().expect("at once").is_ok()));
    for one in &mut asked {
        let debt = held.lock().unwrap().remove(0);
        debt.reply("z");
        rig.settle();
        assert_eq!(one.try_take().expect("in the same millisecond").unwrap(), "z");
        rig.run(100);
    }
    assert_eq!(rig.nodes[0].shared.counts.links_lost.get(), 0, "a stuck consumer is not a dead peer");
    waiting.into_iter().for_each(drop);
}

/// Case 053. While a dial has no outcome, what goes to others takes no longer than before it.
#[test]
fn a_dial_into_nothing_delays_nobody() {
    let caller = Spec::new("caller", 1).connect(1, None, 1).connect(2, Some("nowhere"), 1);
    let mut rig = Rig::new(vec![caller, Spec::new("server", 1).channel("echo", echo())]);
    rig.net.swallow(2);
    rig.settle();
    let echo = rig.channel(0, "echo");
    let nowhere = rig.client(0).node("nowhere");
    for _ in 0..20 {
        // Queued for whom nobody has seen yet.
        nowhere.try_send("", "x").unwrap();
        for _ in 0..50 {
            let mut one = echo.request("", "y").submit();
            rig.settle();
            assert_eq!(one.try_take().unwrap().unwrap(), "y", "answered in the same millisecond");
        }
        rig.run(500);
    }
    assert!(rig.nodes[0].dials.len() >= 4, "it is dialled again when a handshake's time is up");
    assert_eq!(rig.nodes[0].shared.counts.links_lost.get(), 0);
}

/// Case 055. A peer that had dialled us goes while sends wait for room: each of them ends in that
/// millisecond in `Detached` and not at its deadline, with its payload, and goes to no other member.
#[test]
fn sends_that_wait_for_a_peer_that_goes_end_at_once() {
    let (others, heard) = count();
    let other = told(move |_, _| {
        heard.fetch_add(1, Ordering::SeqCst);
    });
    let guest = Spec::new("guest", 1).channel("news", told(|_, _| {})).connect(0, None, 1).marks(4096, 4096);
    let other = Spec::new("other", 1).channel("news", other).connect(0, None, 1).marks(4096, 4096);
    let mut rig = Rig::up(vec![Spec::new("center", 1).marks(4096, 4096), guest, other]);
    rig.net.set_capacity(1024);
    rig.net.freeze(0, 1, Lane::Application, true);
    let guest = rig.client(0).node("guest");
    while guest.try_send("", padded(0, 1000)).is_ok() {
        rig.settle();
    }
    let mut waiting: Vec<_> = (0..10).map(|n| guest.send("", padded(n, 1000)).timeout(ms(60_000)).submit()).collect();
    let mut request = guest.request("", padded(11, 1000)).timeout(ms(60_000)).submit();
    rig.run(250);
    assert!(waiting.iter_mut().all(|one| one.try_take().is_none()));
    let before = others.load(Ordering::SeqCst);
    rig.net.cut(0, 1, Lane::Completion);
    rig.settle();
    for (n, one) in waiting.iter_mut().enumerate() {
        let error = one.try_take().expect("at once").unwrap_err();
        assert_eq!((error.kind(), error.error().detail()), (ErrorKind::Unavailable, Detail::Detached));
        assert_eq!(error.error().figures().waited, Some(ms(250)));
        assert_eq!(as_number(&error.into_payload()), n as u64);
    }
    let error = request.try_take().expect("at once").unwrap_err();
    assert_eq!(error.error().detail(), Detail::Detached);
    assert_eq!(error.unsent_payload().unwrap().len(), 1000);
    assert_eq!(others.load(Ordering::SeqCst), before, "nobody else gets what was not for him");
    assert_eq!(rig.nodes[0].shared.room.ops(), 0);
}

/// Case 085. The connections are cut a thousand times under load, in turn on either lane. What arrives is in
/// order and there once; what does not arrive was counted, and nothing else is missing.
#[test]
fn a_thousand_cuts_double_nothing_and_lose_nothing_uncounted() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hear = heard.clone();
    let server = told(move |message, _| hear.lock().unwrap().push(as_number(message.payload())));
    let sender = Spec::new("sender", 1).connect(1, Some("server"), 1).marks(16 << 10, 16 << 10).with(|plan| {
        (plan.reconnect_min, plan.reconnect_max) = (ms(2), ms(4));
        plan.request_slots = 64;
    });
    let mut rig = Rig::up(vec![sender, Spec::new("server", 1).node_handler(server).marks(4096, 4096)]);
    rig.net.set_capacity(1500);
    let server = rig.client(0).node("server");
    let (mut sent, mut cuts) = (0, 0);
    while cuts < 1000 {
        while server.try_send("", padded(sent, 300 + (sent % 400) as usize)).is_ok() {
            sent += 1;
        }
        // Cut within the flow, at another place every time.
        for _ in 0..cuts % 7 {
            rig.round();
        }
        rig.net.cut(0, 1, if cuts % 2 == 0 { Lane::Application } else { Lane::Completion });
        cuts += 1;
        rig.until(100, |rig| rig.nodes[0].completion.all_up());
    }
    rig.run(10);
    let heard = heard.lock().unwrap();
    assert!(heard.windows(2).all(|two| two[0] < two[1]), "in order, and nothing twice");
    let target = rig.target(0, "server");
    let missing = sent - heard.len() as u64;
    let counted = target.lost_on_detach.get() + target.in_doubt_on_detach.get();
    assert!(missing <= counted, "{missing} of {sent} are missing, {counted} are counted");
    assert!(heard.len() as u64 > sent / 2 && target.lost_on_detach.get() > 0, "{} of {sent}", heard.len());
    assert_eq!(target.mark.bytes(), 0);
}

/// Case 086. A client is saturated and killed; its next instance, under the same name, is served within a
/// second. One that dies without a word is asked for a second whether it lives, and replaced then.
#[test]
fn the_next_instance_of_a_saturated_client_is_served() {
    for (silent, limit) in [(false, 1000), (true, 3000)] {
        let client = || Spec::new("client", 1).channel("news", told(|_, _| {})).connect(0, None, 1);
        let server = Spec::new("server", 1).channel("echo", echo()).marks(4096, 4096).jobs(2, 2);
        let mut rig = Rig::up(vec![server, client()]);
        rig.net.set_capacity(1024);
        rig.net.freeze(0, 1, Lane::Application, true);
        rig.net.freeze(0, 1, Lane::Completion, true);
        let (news, echo) = (rig.client(0).node("client"), rig.channel(1, "echo"));
        let asked: Vec<_> = (0..50).map(|n| echo.request("", padded(n, 900)).timeout(ms(60_000)).submit()).collect();
        let told: Vec<_> = (0..50).map(|n| news.send("", padded(n, 900)).timeout(ms(60_000)).submit()).collect();
        rig.run(20);
        assert!(rig.nodes[0].shared.room.ops() > 20, "the server is saturated towards it");
        asked.into_iter().for_each(|one| one.detach());
        if !silent {
            rig.net.cut(0, 1, Lane::Application);
            rig.net.cut(0, 1, Lane::Completion);
        }
        rig.replace(1, 77, client());
        rig.run(limit);
        let mut one = rig.channel(1, "echo").request("", "again").submit();
        let mut back = rig.client(0).node("client").send("", "you too").submit();
        rig.settle();
        assert_eq!(one.try_take().expect("in time").unwrap(), "again");
        back.try_take().expect("in time").unwrap();
        // Those who waited for the one that died were told.
        for mut one in told {
            let error = one.try_take().expect("ended").err();
            assert!(error.is_none_or(|e| e.error().detail() == Detail::Detached));
        }
        rig.assert_at_rest();
    }
}

/// A pair is two connections: when either ends, requests in flight end in that millisecond in `LinkLost`, and
/// what had not begun goes out, in order, over the next pair of the same target.
#[test]
fn either_lane_ends_the_pair_and_the_queue_goes_on() {
    for lane in [Lane::Application, Lane::Completion] {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (hear, held) = (heard.clone(), Arc::new(Mutex::new(Vec::new())));
        let keep = held.clone();
        let seat = serving(
            move |request, _| keep.lock().unwrap().push(request.into_parts().0.into_remote()),
            move |message, _| hear.lock().unwrap().push(as_number(message.payload())),
        );
        let sender = Spec::new("sender", 1).connect(1, Some("server"), 1).marks(8 << 10, 8 << 10);
        let mut rig = Rig::up(vec![sender, Spec::new("server", 1).node_handler(seat)]);
        let server = rig.client(0).node("server");
        let mut asked = server.request("", "x").timeout(ms(60_000)).submit();
        rig.settle();
        rig.net.set_capacity(700);
        rig.net.freeze(0, 1, Lane::Application, true);
        let mut sent = 0;
        while server.try_send("", padded(sent, 500)).is_ok() {
            sent += 1;
            rig.settle();
        }
        let mut waits = server.send("", padded(sent, 500)).timeout(ms(60_000)).submit();
        rig.net.cut(0, 1, lane);
        rig.settle();
        let error = asked.try_take().expect("at once").unwrap_err();
        assert_eq!((error.kind(), error.error().detail()), (ErrorKind::Unavailable, Detail::LinkLost));
        assert_eq!(error.error().figures().stage, Some(Stage::Reply));
        assert_eq!(rig.net.open(), 0, "the other lane was ended too");
        rig.until(1000, |rig| rig.nodes[0].completion.all_up());
        rig.run(1);
        waits.try_take().expect("it waited on").unwrap();
        let heard = heard.lock().unwrap();
        let target = rig.target(0, "server");
        let lost = target.lost_on_detach.get() + target.in_doubt_on_detach.get();
        assert!(heard.windows(2).all(|two| two[0] < two[1]), "{heard:?}");
        assert_eq!(heard.last(), Some(&sent));
        assert!(sent + 1 - heard.len() as u64 <= lost && lost <= 3, "{heard:?} of {sent}, {lost} counted");
    }
}

/// A peer of which both lanes are silent is dead at the time that was stated, although it has us paused; a
/// paused peer that beats is not dead however long the pause lasts.
#[test]
fn a_paused_peer_is_alive_and_a_dead_one_is_noticed_while_paused() {
    let held = Arc::new(Mutex::new(Vec::new()));
    let kept = held.clone();
    let seat = asked(move |request, _| kept.lock().unwrap().push(request.into_parts().0.into_remote()));
    let server = Spec::new("server", 1).channel("keep", seat).jobs(2, 1);
    let mut rig = Rig::up(vec![Spec::new("caller", 1).connect(1, Some("server"), 1), server]);
    let keep = rig.channel(0, "keep");
    let asked: Vec<_> = (0..8).map(|_| keep.request("", "x").timeout(ms(500_000)).submit()).collect();
    rig.run(2);
    let target = rig.target(0, "server");
    assert!(target.mark.is_blocked(), "two jobs of two are queued: it told us to pause");
    rig.run(60_000);
    assert!(target.mark.is_blocked() && target.is_up(), "four times the silence that means death, and it beats");
    rig.dead.insert(1);
    let began = rig.now();
    rig.until(20_000, |rig| rig.nodes[0].shared.counts.links_lost.get() == 1);
    let silent = rig.now() - began;
    assert!((10_000..=15_000).contains(&silent), "dead 15 s after its last byte, which was {silent} ms ago");
    assert!(!target.mark.is_blocked(), "what it told is forgotten with its link");
    asked.into_iter().for_each(|one| one.detach());
    drop(held);
}
