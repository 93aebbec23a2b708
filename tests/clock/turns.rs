//! Whose turn it is: a slow peer holds nobody up, one that floods leaves the others theirs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afflux::base::rng::Rng;
use afflux::{Lane, RemoteResponder};

use crate::rig::*;

/// Case 072. One peer takes nothing any more; another gets as much in the same time as when it is alone, to the
/// record.
#[test]
fn a_stopped_peer_costs_another_nothing() {
    let run = |stopped: bool| {
        let heard = Arc::new(AtomicU64::new(0));
        let hear = heard.clone();
        let sink = |hear: Arc<AtomicU64>| {
            told(move |_, _| {
                hear.fetch_add(1, Ordering::SeqCst);
            })
        };
        let host = Spec::new("host", 1).connect(1, Some("slow"), 1).connect(2, Some("fast"), 1).marks(8192, 8192);
        let slow = Spec::new("slow", 1).node_handler(sink(Arc::default()));
        let mut rig = Rig::up(vec![host, slow, Spec::new("fast", 1).node_handler(sink(hear))]);
        rig.net.set_capacity(2000);
        let (slow, fast) = (rig.client(0).node("slow"), rig.client(0).node("fast"));
        if stopped {
            rig.net.freeze(0, 1, Lane::Application, true);
        }
        let mut waiting = Vec::new();
        for _ in 0..2000 {
            if stopped {
                while slow.try_send("", padded(0, 500)).is_ok() {}
                waiting.push(slow.send("", padded(0, 500)).timeout(ms(50)).submit());
            }
            while fast.try_send("", padded(0, 500)).is_ok() {}
            rig.round();
            rig.clock.advance(ms(1));
        }
        heard.load(Ordering::SeqCst)
    };
    let (alone, beside) = (run(false), run(true));
    assert!(alone > 2000 && beside == alone, "{beside} beside a stopped peer, {alone} alone");
}

/// Cases 074, 075, 079. One origin has always more; nine others send now and then, and one peer comes anew. With
/// handlers that take 10 us each, a record of the nine is started within a turn's jobs after it came, and the new
/// peer is connected and served within 100 ms.
#[test]
fn one_that_floods_leaves_everybody_else_a_turn() {
    const TURN: u64 = 16;
    let hand: Arc<Mutex<Option<Arc<Hand>>>> = Arc::default();
    let clock = hand.clone();
    let (starts, came) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(BTreeMap::new())));
    let (count, note) = (starts.clone(), came.clone());
    let seat = told(move |message, _| {
        let n = count.fetch_add(1, Ordering::SeqCst);
        if let Some(clock) = &*clock.lock().unwrap() {
            clock.advance(Duration::from_micros(10));
        }
        let id = as_number(message.payload());
        if id > 0 {
            note.lock().unwrap().insert(id, n);
        }
    });
    let server = Spec::new("server", 1).channel("in", seat).jobs(2 * TURN as u32, 64);
    let origin = |i: usize| Spec::new(&format!("origin-{i}"), 1).connect(0, Some("server"), 1);
    let mut rig = Rig::new(std::iter::once(server).chain((1..=11).map(origin)).collect());
    rig.dead.insert(11);
    rig.settle();
    *hand.lock().unwrap() = Some(rig.clock.clone());
    let channels: Vec<_> = (1..=11).map(|i| rig.client(i).node("server")).collect();
    let channel = |i: usize| rig.channel(i, "in");
    let ins: Vec<_> = (1..=11).map(channel).collect();
    let mut rng = Rng::new(75);
    let (mut id, mut sent) = (0_u64, BTreeMap::new());
    let (mut longest, mut joined) = (0, None);
    for step in 0..6000 {
        while ins[0].try_send("", padded(0, 100)).is_ok() {}
        if rng.below(8) == 0 {
            id += 1;
            let who = 1 + rng.below(9) as usize;
            ins[who].try_send("", padded(id, 100)).unwrap();
            sent.insert(id, starts.load(Ordering::SeqCst));
        }
        if step == 3000 {
            rig.dead.remove(&11);
            joined = Some((rig.clock.ns(), None));
        }
        if let Some((_, served @ None)) = &mut joined
            && id < 1_000_000
            && channels[10].try_send("", "x").is_ok()
            && ins[10].try_send("", padded(9_999_999, 8)).is_ok()
        {
            *served = Some(());
        }
        assert!(rig.round());
        for (id, at) in &mut *came.lock().unwrap() {
            if let Some(from) = sent.remove(id) {
                longest = longest.max(*at - from);
            }
        }
        if let Some((began, _)) = joined
            && came.lock().unwrap().contains_key(&9_999_999)
        {
            let took = rig.clock.ns() - began;
            assert!(took <= 100 * MS, "the new peer was served after {took} ns");
            joined = None;
        }
    }
    assert!(joined.is_none(), "the new peer was served");
    assert!(id > 500 && sent.len() < 20, "{} of {id} are not served yet", sent.len());
    // What was claimed before it came, and one record of everybody else who waits, in the turns that it is under way.
    assert!(longest <= 6 * TURN, "{longest} records of others were started between its sending and its start");
}

/// Case 079. All permits are one flooding origin's when nine others ask: each of their requests is claimed within
/// as many grants as there are origins that wait.
#[test]
fn a_waiting_origin_is_granted_within_the_number_of_waiting_origins() {
    let held: Arc<Mutex<Vec<(String, RemoteResponder)>>> = Arc::default();
    let keep = held.clone();
    let seat = asked(move |request, _| {
        let who = request.peer().to_string();
        keep.lock().unwrap().push((who, request.into_parts().0.into_remote()));
    });
    let server = Spec::new("server", 1).node_handler(seat).jobs(16, 16);
    let origin = |i: usize| Spec::new(&format!("origin-{i}"), 1).connect(0, Some("server"), 1);
    let mut rig = Rig::up(std::iter::once(server).chain((1..=10).map(origin)).collect());
    let channels: Vec<_> = (1..=10).map(|i| rig.client(i).node("server")).collect();
    let ask = |i: usize| channels[i - 1].request("", "x").timeout(ms(1_000_000)).detach();
    (0..200).for_each(|_| ask(1));
    rig.settle();
    // 16 are started and 16 hold a permit each.
    assert_eq!(held.lock().unwrap().len(), 16);
    for _ in 0..10 {
        (2..=10).for_each(ask);
        rig.settle();
        let mut order = Vec::new();
        for _ in 0..16 + 10 {
            let (who, debt) = held.lock().unwrap().remove(0);
            order.push(who);
            debt.reply("");
            rig.settle();
        }
        // The 16 that were started, the 16 that were claimed; then everybody once before anybody twice.
        while held.lock().unwrap().len() < 16 || held.lock().unwrap().iter().any(|(who, _)| who != "origin-1") {
            let (who, debt) = held.lock().unwrap().remove(0);
            order.push(who);
            debt.reply("");
            rig.settle();
        }
        let last = order.iter().rposition(|who| who != "origin-1").unwrap();
        assert!(last < 16 + 16 + 10, "{order:?}");
        assert_eq!(order.iter().filter(|who| *who != "origin-1").count(), 9);
        (0..order.len()).for_each(|_| ask(1));
        rig.settle();
    }
}

/// Case 080. Links go to the shard with the fewest: 64 and 10,000 over eight shards differ by one at most, those
/// that are dialled and those that are accepted, and each shard shows how many it has.
#[test]
fn links_are_spread_evenly() {
    for links in [64_u32, 10_000] {
        let mut host = Spec::new("host", 8);
        for n in 0..links.div_ceil(64) {
            host = host.connect(1, Some(&format!("node-{n}")), (links - n * 64).min(64) as u16);
        }
        let rig = Rig::new(vec![host]);
        let mut of = [0_u32; 8];
        for target in rig.nodes[0].shared.targets.lock().iter() {
            of[target.owner.index()] += 1;
        }
        assert_eq!((of.iter().sum::<u32>(), of.iter().max().unwrap() - of.iter().min().unwrap()), (links, 0), "{of:?}");
    }
    let dialler = |i: u16| Spec::new(&format!("dialler-{i}"), 1).connect(0, Some("center"), 4 * i);
    let rig = Rig::up(vec![Spec::new("center", 8), dialler(1), dialler(2), dialler(3)]);
    let of: Vec<_> = rig.nodes[0].shared.shards.iter().map(|port| port.links.get()).collect();
    assert_eq!(of, [3; 8], "24 links that came");
}

/// Case 081. A server is saturated and drained again and again; in some cycles the link is lost while it has its
/// peer paused. In the end nobody is paused, each time, and the time in pause stands still.
#[test]
fn pressure_goes_each_time_it_came() {
    let held: Arc<Mutex<Vec<RemoteResponder>>> = Arc::default();
    let keep = held.clone();
    let seat = asked(move |request, _| keep.lock().unwrap().push(request.into_parts().0.into_remote()));
    let server = Spec::new("server", 1).node_handler(seat).jobs(4, 2);
    let caller = Spec::new("caller", 1).connect(1, Some("server"), 1);
    let caller = caller.with(|plan| (plan.reconnect_min, plan.reconnect_max) = (ms(1), ms(2)));
    let mut rig = Rig::up(vec![caller, server]);
    let (server, target) = (rig.client(0).node("server"), rig.target(0, "server"));
    let mut rng = Rng::new(81);
    for cycle in 0..500 {
        let n = 6 + rng.below(10);
        let asked: Vec<_> = (0..n).map(|_| server.request("", "x").timeout(ms(600_000)).submit()).collect();
        rig.run(2);
        assert!(target.mark.is_blocked(), "cycle {cycle}: the server told that it is full");
        assert!(rig.nodes[1].shared.gate.snapshot(rig.nodes[1].shared.clock.now()).paused_since.is_some());
        if rng.below(5) == 0 {
            rig.net.cut(0, 1, if rng.below(2) == 0 { Lane::Completion } else { Lane::Application });
            rig.settle();
            assert!(!target.mark.is_blocked(), "cycle {cycle}: what a lost peer said holds no more");
        }
        // In part, and then all of it.
        let mut left = rng.below(n + 1);
        loop {
            let debts: Vec<_> = std::mem::take(&mut *held.lock().unwrap());
            if debts.is_empty() && left == 0 && rig.nodes[0].completion.all_up() {
                break;
            }
            left = left.saturating_sub(debts.len() as u64);
            debts.into_iter().for_each(|debt| debt.reply(""));
            rig.run(1);
        }
        drop(asked);
        rig.run(2);
        assert!(!target.mark.is_blocked(), "cycle {cycle}");
        let shared = &rig.nodes[1].shared;
        let gate = shared.gate.snapshot(shared.clock.now());
        assert!(gate.paused_since.is_none() && gate.pauses == gate.resumes, "cycle {cycle}: {gate:?}");
    }
    let shared = rig.nodes[1].shared.clone();
    let before = shared.gate.snapshot(shared.clock.now());
    rig.run(5000);
    assert_eq!(
        shared.gate.snapshot(shared.clock.now()).paused_total,
        before.paused_total,
        "time in pause stands still"
    );
    rig.assert_at_rest();
}
