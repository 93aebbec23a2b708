//! Times that are kept by a host that is busy, late or wrong about the time of others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afflux::base::rng::Rng;
use afflux::engine::command::CompletionCommand;
use afflux::{Detail, Lane, Latency, RemoteResponder};

use crate::rig::*;

/// Case 057. Both loops of a host have something to do on every turn: records come, replies come, more than a
/// turn takes. A deadline of 50 ms on the same host is kept to the millisecond.
#[test]
fn a_source_that_is_always_ready_keeps_no_deadline_waiting() {
    let sink = || told(|_, _| {});
    let host = Spec::new("host", 1).connect(1, Some("source"), 1).connect(2, Some("away"), 1).channel("sink", sink());
    let host = host.marks(1 << 20, 1 << 20).with(|plan| plan.turn.read_bytes_per_link = 4096);
    let source = Spec::new("source", 1).node_handler(asked(|request, cx| request.reply(cx, vec![0; 4000])));
    let mut rig = Rig::new(vec![host, source]);
    rig.net.swallow(2);
    rig.settle();
    let (source, away) = (rig.client(0).node("source"), rig.client(0).node("away"));
    let back = rig.channel(1, "sink");
    while away.try_send("", padded(0, 60_000)).is_ok() {}
    let mut asked: Vec<_> = (0..20).map(|_| source.request("", "").timeout(ms(5000)).submit()).collect();
    for round in 0..3 {
        let mut send = away.send("", padded(0, 60_000)).timeout(ms(50)).submit();
        let began = rig.now();
        loop {
            // Two turns of each loop, and they never run out of work.
            for _ in 0..2 {
                for one in &mut asked {
                    if one.try_take().is_some() {
                        *one = source.request("", "").timeout(ms(5000)).submit();
                    }
                }
                while back.try_send("", padded(0, 500)).is_ok() {}
                assert!(rig.round(), "there is always more to do");
            }
            if let Some(end) = send.try_take() {
                assert_eq!(end.unwrap_err().error().detail(), Detail::NoRoom);
                break;
            }
            assert!(rig.now() - began < 50, "round {round}: late");
            rig.clock.advance(ms(1));
        }
        assert_eq!(rig.now() - began, 50);
    }
}

fn lateness(rig: &mut Rig) -> (u64, Duration) {
    let (tell, heard) = crossbeam_channel::bounded(1);
    rig.nodes[0].shared.completion.command(CompletionCommand::Histograms(tell)).unwrap();
    rig.settle();
    let set = heard.recv().unwrap();
    let histogram = set.get(Latency::Lateness);
    (histogram.len(), Duration::from_nanos(histogram.max()))
}

/// Case 058. A thousand deadlines on a host of which each turn takes 5 ms: none is later than one turn and one
/// tick, and the histogram of lateness says so.
#[test]
fn a_thousand_deadlines_of_a_busy_host_are_late_by_a_turn_at_most() {
    let mut rig = Rig::new(vec![Spec::new("host", 1).connect(1, Some("away"), 1).marks(1000, 1000)]);
    rig.net.swallow(1);
    rig.settle();
    let away = rig.client(0).node("away");
    away.try_send("", padded(0, 900)).unwrap();
    let mut rng = Rng::new(58);
    let mut live: Vec<_> = (0..1000)
        .map(|_| {
            let time = 1 + rng.below(3000);
            (rig.now() + time, away.send("", padded(0, 500)).timeout(ms(time)).submit())
        })
        .collect();
    lateness(&mut rig);
    while !live.is_empty() {
        rig.clock.advance(ms(5));
        rig.round();
        let now = rig.now();
        live.retain_mut(|(due, one)| match one.try_take() {
            Some(end) => {
                assert_eq!(end.unwrap_err().error().detail(), Detail::NoRoom);
                assert!(now >= *due && now <= *due + 6, "due at {due}, ended at {now}");
                false
            }
            None => true,
        });
    }
    let (ended, latest) = lateness(&mut rig);
    // A few are found out of time by their shard, as it looks for whom there is room; those are not in it.
    assert!((950..=1000).contains(&ended), "{ended}");
    assert!(latest > Duration::ZERO && latest <= ms(6), "{latest:?}");
}

/// Case 058. A host whose threads did not run for a while looks at what its peers have sent before it calls them
/// dead: being late is its own affair.
#[test]
fn whoever_overslept_does_not_call_others_dead() {
    // The peer is patient: it would call the late one dead, and be right.
    let peer = Spec::new("peer", 1).with(|plan| plan.dead_after = ms(60_000));
    let mut rig = Rig::up(vec![Spec::new("late", 1).connect(1, None, 1), peer]);
    for time in [11_000, 14_000, 40_000] {
        rig.run(4_999);
        rig.oversleep(0, time);
        rig.run(20_000);
        let lost = |at: usize| rig.nodes[at].shared.counts.links_lost.get();
        assert_eq!((lost(0), lost(1)), (0, 0), "after {time} ms: {:?} {:?}", rig.nodes[0].log, rig.nodes[1].log);
    }
}

/// Case 064. Half as much again is offered as one server can do, each request with a deadline, for a minute. If
/// what is out of time is skipped, at least four fifths of what the server can do is of use to somebody, and each
/// skip is answered and counted. If it is not, most of its work is for nobody, and the late replies say so.
#[test]
fn skipping_the_expired_keeps_an_overloaded_server_useful() {
    const CAPACITY: u64 = 20_000;
    let run = |skip: bool| {
        let hand: Arc<Mutex<Option<Arc<Hand>>>> = Arc::default();
        let clock = hand.clone();
        let served = Arc::new(AtomicU64::new(0));
        let count = served.clone();
        let times = Mutex::new(Rng::new(64));
        // Each request takes its time of the server's shard: a millisecond on average.
        let seat = asked(move |request, cx| {
            count.fetch_add(1, Ordering::SeqCst);
            let time = Duration::from_micros(500 + times.lock().unwrap().below(1000));
            clock.lock().unwrap().as_ref().unwrap().advance(time);
            request.reply(cx, "");
        });
        let server = Spec::new("server", 1).node_handler(seat).jobs(4, 1).marks(1 << 20, 1 << 20);
        let server = server.with(|plan| plan.skip_expired_requests = skip);
        let mut rig =
            Rig::up(vec![Spec::new("caller", 1).connect(1, Some("server"), 1).marks(1 << 20, 1 << 20), server]);
        *hand.lock().unwrap() = Some(rig.clock.clone());
        let server = rig.client(0).node("server");
        let mut arrivals = Rng::new(46);
        let (began, mut next) = (rig.clock.ns(), rig.clock.ns());
        let (mut live, mut useful) = (Vec::new(), 0_u64);
        while rig.clock.ns() - began < CAPACITY * MS {
            while next <= rig.clock.ns() {
                let time = ms(20 + arrivals.below(380));
                live.push(server.request("", padded(0, 100)).timeout(time).submit());
                next += arrivals.below(4 * MS / 3);
            }
            let before = rig.clock.ns();
            rig.round();
            if rig.clock.ns() == before {
                rig.clock.advance(Duration::from_micros(50));
            }
            live.retain_mut(|one| match one.try_take() {
                Some(end) => {
                    useful += u64::from(end.is_ok());
                    false
                }
                None => true,
            });
        }
        let late = rig.nodes[0].shared.counts.late_replies.get();
        let skips = rig.nodes[1].shared.counts.expired_in_queue.get();
        (useful, late, skips, served.load(Ordering::SeqCst))
    };
    let (useful, _, skips, served) = run(true);
    assert!(useful * 5 >= CAPACITY * 4, "{useful} of {CAPACITY} were of use to somebody");
    assert!(skips > CAPACITY / 4 && served - useful < CAPACITY / 10, "{skips} skips, {served} served");
    let (useful, late, skips, served) = run(false);
    assert_eq!(skips, 0);
    assert!(useful * 2 < CAPACITY && late * 2 > served, "without it {late} of {served} were answered too late");
}

/// The time of a request is looked at when its handler could start, not when the turn began: jobs before it in
/// the same turn take time.
#[test]
fn a_request_that_expires_within_a_turn_is_skipped() {
    let hand: Arc<Mutex<Option<Arc<Hand>>>> = Arc::default();
    let (clock, runs) = (hand.clone(), Arc::new(AtomicU64::new(0)));
    let count = runs.clone();
    let seat = asked(move |request, cx| {
        count.fetch_add(1, Ordering::SeqCst);
        clock.lock().unwrap().as_ref().unwrap().advance(ms(30));
        request.reply(cx, "");
    });
    let server = Spec::new("server", 1).node_handler(seat).with(|plan| plan.skip_expired_requests = true);
    let mut rig = Rig::up(vec![Spec::new("caller", 1).connect(1, Some("server"), 1), server]);
    *hand.lock().unwrap() = Some(rig.clock.clone());
    let server = rig.client(0).node("server");
    rig.net.freeze(0, 1, Lane::Application, true);
    (0..10).for_each(|_| server.request("", "x").timeout(ms(100)).detach());
    rig.settle();
    rig.net.freeze(0, 1, Lane::Application, false);
    rig.settle();
    // They begin at 0, 30, 60 and 90 ms.
    assert_eq!((runs.load(Ordering::SeqCst), rig.nodes[1].shared.counts.expired_in_queue.get()), (4, 6));
}

/// Expiry travels on the sender's clock: a request that lay in the kernel's buffers runs one millisecond before
/// its time is up and is skipped one after, whatever the receiver's clock shows. A one-way record never is.
#[test]
fn skipping_is_exact_to_the_millisecond_whatever_the_clocks_show() {
    for (here, there) in [(0, 0), (0, 12_345), (98_765, 3), (4_294_960_000, 0)] {
        let runs = Arc::new(AtomicU64::new(0));
        let (asked, heard) = (runs.clone(), Arc::new(AtomicU64::new(0)));
        let hear = heard.clone();
        let seat = serving(
            move |request, cx| {
                asked.fetch_add(1, Ordering::SeqCst);
                request.reply(cx, "");
            },
            move |_, _| {
                hear.fetch_add(1, Ordering::SeqCst);
            },
        );
        let server = Spec::new("server", 1).node_handler(seat).ahead(there).with(|p| p.skip_expired_requests = true);
        let mut rig = Rig::up(vec![Spec::new("caller", 1).connect(1, Some("server"), 1).ahead(here), server]);
        let server = rig.client(0).node("server");
        for heartbeats in [0, 3] {
            rig.run(heartbeats * 5000);
            for (delay, skipped) in [(1, 0), (98, 0), (99, 0), (100, 1), (101, 1), (900, 1)] {
                let before = (runs.load(Ordering::SeqCst), rig.nodes[1].shared.counts.expired_in_queue.get());
                rig.net.freeze(0, 1, Lane::Application, true);
                server.request("", "x").timeout(ms(100)).detach();
                server.send("", "never skipped").submit().wait().unwrap();
                rig.settle();
                rig.run(delay);
                rig.net.freeze(0, 1, Lane::Application, false);
                rig.settle();
                let now = (runs.load(Ordering::SeqCst), rig.nodes[1].shared.counts.expired_in_queue.get());
                assert_eq!((now.0 - before.0, now.1 - before.1), (1 - skipped, skipped), "{delay} ms in the buffers");
            }
        }
        assert_eq!(heard.load(Ordering::SeqCst), 12);
    }
}

/// Case 138. The most requests that there may be are held, and answered at once: every place, slot and byte comes
/// back in that moment, and as many again are taken.
#[test]
fn the_most_that_may_be_held_comes_back_at_once() {
    let held: Arc<Mutex<Vec<RemoteResponder>>> = Arc::default();
    let keep = held.clone();
    let seat = asked(move |request, _| keep.lock().unwrap().push(request.into_parts().0.into_remote()));
    let server = Spec::new("server", 1).node_handler(seat).jobs(64, 256);
    let caller = Spec::new("caller", 1).connect(1, Some("server"), 1);
    let mut rig = Rig::up(vec![caller.with(|plan| plan.request_slots = 256), server]);
    let server = rig.client(0).node("server");
    for _ in 0..20 {
        let mut asked: Vec<_> = (0..256).map(|n| server.request("", padded(n, 64)).submit()).collect();
        rig.settle();
        let debts = std::mem::take(&mut *held.lock().unwrap());
        assert_eq!((debts.len(), rig.nodes[1].shared.shards[0].started.get()), (256, 256));
        assert_eq!(rig.nodes[0].shared.slots.ops(), 256);
        afflux::reply_all(debts.into_iter().map(|debt| (debt, "".into())));
        rig.settle();
        assert!(asked.iter_mut().all(|one| one.try_take().expect("answered").is_ok()));
        rig.assert_at_rest();
    }
}
