//! Threads that wait for replies and read the lane meanwhile: what becomes of one is not the others' business.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

use afflux::{Context as Cx, Detail, ErrorKind, Host, IdlePolicy, Lane, Request};
use bytes::Bytes;

use crate::support::proxy::Proxy;
use crate::support::{
    Door, Service, address, as_number, asked, connected, echo, kept, number, server, small, until, until_status, watch,
};

const LONG: Duration = Duration::from_secs(80);

/// What the user's thread does when it is woken: it waits at a door, if it is the thread that it is about.
struct Dawdles {
    thread: ThreadId,
    door: Door,
}

impl Wake for Dawdles {
    fn wake(self: Arc<Self>) {
        if thread::current().id() == self.thread {
            self.door.pass();
        }
    }
}

/// A thread in a wait reads the reply of a future, wakes it, and does not come back from that. Others get their
/// replies all the same, and so does the future.
#[test]
fn a_leader_that_is_stuck_holds_up_nobody() {
    let _dog = watch();
    let (keep, held) = kept();
    // A heartbeat would find it too.
    let silence = Duration::from_secs(100);
    let host = server("server").heartbeat(silence, 3 * silence).channel("keep", keep).channel("echo", asked(echo));
    let host = host.start().unwrap();
    let client = connected(small("client").connect(address(&host)).heartbeat(silence, 3 * silence));
    let door = Door::shut();
    let key = door.key();
    thread::scope(|scope| {
        let slow = client.client().channel("keep");
        let waits = scope.spawn(move || slow.request("", "slow").timeout(LONG).wait());
        let slow = held.recv().unwrap();
        let waker = Waker::from(Arc::new(Dawdles { thread: waits.thread().id(), door: door.clone() }));
        let (keep, echo) = (client.client().channel("keep"), client.client().channel("echo"));
        // Until the waiting thread is the one that reads it.
        while door.came() == 0 {
            let mut asks = pin!(keep.request("", "quick").timeout(LONG));
            assert!(asks.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            let (debt, payload) = held.recv().unwrap();
            let before = client.status().replies;
            debt.reply(payload);
            until(|| client.status().replies > before);
            match asks.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(end) => assert_eq!(end.unwrap(), "quick"),
                Poll::Pending => panic!("it has come"),
            }
        }
        for n in 0..20 {
            assert_eq!(as_number(&echo.request("", number(n)).timeout(LONG).wait().unwrap()), n);
            let futures = echo.request("", number(n)).timeout(LONG).submit();
            assert_eq!(as_number(&crate::support::block_on(futures).unwrap()), n);
        }
        assert!(!waits.is_finished());
        slow.0.reply(slow.1);
        drop(key);
        assert_eq!(waits.join().unwrap().unwrap(), "slow");
    });
}

/// What the user's thread does when it is woken, if it is the thread that it is about: a call of its own.
struct Asks {
    thread: ThreadId,
    echo: afflux::Channel,
    answered: std::sync::mpsc::Sender<Bytes>,
}

impl Wake for Asks {
    fn wake(self: Arc<Self>) {
        if thread::current().id() == self.thread {
            let reply = self.echo.request("", "within").timeout(LONG).wait();
            self.answered.send(reply.unwrap()).unwrap();
        }
    }
}

/// A thread in a wait reads the reply of a future and wakes it, and that waits for a request of its own: on the same
/// thread, which leads already and has to be woken where it sleeps now.
#[test]
fn a_leader_can_be_made_to_wait_for_another_request() {
    let _dog = watch();
    let (keep, held) = kept();
    let host = server("server").channel("keep", keep).channel("echo", asked(echo)).start().unwrap();
    let client = connected(small("client").connect(address(&host)));
    let (answered, answers) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        let slow = client.client().channel("keep");
        let waits = scope.spawn(move || slow.request("", "slow").timeout(LONG).wait());
        let slow = held.recv().unwrap();
        let (keep, echo) = (client.client().channel("keep"), client.client().channel("echo"));
        let waker = Waker::from(Arc::new(Asks { thread: waits.thread().id(), echo, answered }));
        // Until the waiting thread is the one that reads it.
        let within = loop {
            let mut asks = pin!(keep.request("", "quick").timeout(LONG));
            assert!(asks.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            let (debt, payload) = held.recv().unwrap();
            debt.reply(payload);
            let mut end = None;
            until(|| match asks.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(it) => end.replace(it).is_none(),
                Poll::Pending => false,
            });
            assert_eq!(end.unwrap().unwrap(), "quick");
            if let Ok(within) = answers.recv_timeout(Duration::from_millis(20)) {
                break within;
            }
        };
        assert_eq!(within, "within");
        slow.0.reply(slow.1);
        assert_eq!(waits.join().unwrap().unwrap(), "slow");
    });
}

/// The link of a leader that waits is lost; its request ends, and the next link is led like the first.
#[test]
fn a_cut_under_a_leader_ends_its_request() {
    let _dog = watch();
    for cut in [Lane::Completion, Lane::Application] {
        let (keep, held) = kept();
        let host = server("server").channel("keep", keep).channel("echo", asked(echo)).start().unwrap();
        let proxy = Proxy::before(&host);
        let client = connected(
            small("client").connect(proxy.address()).reconnect(Duration::from_millis(20), Duration::from_millis(100)),
        );
        let ask = |channel: &str| client.client().channel(channel).request("", "x").timeout(LONG).wait();
        for round in 1..=5 {
            thread::scope(|scope| {
                let waits: Vec<_> = (0..3).map(|_| scope.spawn(|| ask("keep"))).collect();
                let debts: Vec<_> = held.iter().take(3).collect();
                proxy.cut(cut);
                for waits in waits {
                    let error = waits.join().unwrap().unwrap_err();
                    assert_eq!((error.kind(), error.error().detail()), (ErrorKind::Unavailable, Detail::LinkLost));
                }
                drop(debts);
            });
            until(|| client.status().links_up == round + 1);
            until(|| ask("echo").is_ok());
        }
    }
}

/// A leader that sleeps for long: its deadline comes, and signs of life pass that it reads itself.
#[test]
fn deadlines_and_heartbeats_pass_under_a_leader() {
    let _dog = watch();
    let (keep, held) = kept();
    let beat = (Duration::from_millis(100), Duration::from_millis(1000));
    let host = server("server").heartbeat(beat.0, beat.1).channel("keep", keep).start().unwrap();
    let proxy = Proxy::before(&host);
    let client = connected(small("client").connect(proxy.address()).heartbeat(beat.0, beat.1));
    let keep = client.client().channel("keep");
    let error = keep.request("", "").timeout(Duration::from_millis(30)).wait().unwrap_err();
    assert_eq!((error.kind(), error.error().detail()), (ErrorKind::DeadlineExceeded, Detail::NoReply));
    drop(held.recv().unwrap());
    thread::scope(|scope| {
        let waits = scope.spawn(|| keep.request("", "long").timeout(LONG).wait());
        let (debt, payload) = held.recv().unwrap();
        for _ in 0..20 {
            let beats = proxy.bytes_back(Lane::Completion);
            until(|| proxy.bytes_back(Lane::Completion) > beats);
        }
        debt.reply(payload);
        assert_eq!(waits.join().unwrap().unwrap(), "long");
    });
    assert_eq!((client.status().links_lost, host.status().links_lost), (0, 0));
}

/// A host is shut down while threads wait at it: their requests end, and nobody hangs.
#[test]
fn a_shutdown_under_a_leader_ends_its_request() {
    let _dog = watch();
    let (keep, held) = kept();
    let host = server("server").channel("keep", keep).start().unwrap();
    for idle in [IdlePolicy::Park, IdlePolicy::SpinThenPark(Duration::from_millis(2))] {
        let client = connected(small("client").connect(address(&host)).idle(idle));
        let keep = client.client().channel("keep");
        thread::scope(|scope| {
            let waits: Vec<_> = (0..2).map(|_| scope.spawn(|| keep.request("", "").timeout(LONG).wait())).collect();
            let debts: Vec<_> = held.iter().take(2).collect();
            client.shutdown(Duration::from_millis(20));
            for waits in waits {
                assert!(matches!(
                    waits.join().unwrap().unwrap_err().kind(),
                    ErrorKind::ShuttingDown | ErrorKind::Unavailable
                ));
            }
            drop(debts);
        });
    }
}

/// Threads and futures ask in turn and at once, on lanes that are led, warm and nobody's: each has its own
/// reply, large ones included.
#[test]
fn whoever_asks_and_however_has_his_own_reply() {
    let _dog = watch();
    let host = server("server").channel("echo", asked(echo)).start().unwrap();
    for idle in [IdlePolicy::Park, IdlePolicy::SpinThenPark(Duration::from_micros(50))] {
        let client: Host = connected(small("client").connect(address(&host)).idle(idle));
        thread::scope(|scope| {
            for caller in 0..4_u64 {
                let client = &client;
                scope.spawn(move || {
                    let echo = client.client().channel("echo");
                    for n in 0..300_u64 {
                        let len = if n % 50 == 7 { 100_000 } else { 8 + (n % 90) as usize };
                        let mut payload = vec![n as u8; len];
                        payload[..8].copy_from_slice(&(caller << 32 | n).to_le_bytes());
                        let asks = echo.request("", Bytes::from(payload.clone())).timeout(LONG);
                        let reply = match (caller + n / 20) % 4 {
                            0 | 1 => asks.wait(),
                            2 => asks.submit().wait(),
                            _ => crate::support::block_on(asks),
                        };
                        assert_eq!(reply.unwrap(), payload);
                        if n % 60 == 59 {
                            // Long enough for a warm lane to cool.
                            thread::park_timeout(Duration::from_millis(50));
                        }
                    }
                });
            }
        });
        until_status(&client, |s| s.replies == 1200);
    }
}

/// A handler that asks "keep" and answers with the end of that.
fn relay(request: Request, cx: &mut Cx<'_, Service>) {
    let (responder, payload) = request.into_parts();
    let asks = cx.channel("keep").request("", payload);
    asks.then(cx, |_, end, cx| responder.reply_with(cx, end));
}

const SPINNING: [IdlePolicy; 2] = [IdlePolicy::Spin, IdlePolicy::SpinThenPark(Duration::from_millis(2))];

/// A shard spins for a reply that is long in coming, and reads those of threads and futures meanwhile: each gets
/// its own, and so does the shard.
#[test]
fn a_shard_that_leads_reads_for_all() {
    let _dog = watch();
    let (keep, held) = kept();
    let host = server("server").channel("keep", keep).channel("echo", asked(echo)).start().unwrap();
    for idle in SPINNING {
        let client = connected(small("client").connect(address(&host)).idle(idle).channel("relay", asked(relay)));
        let relays = client.client().channel("relay").request("", "long").timeout(LONG).submit();
        let (debt, payload) = held.recv().unwrap();
        thread::scope(|scope| {
            for caller in 0..3_u64 {
                let echo = client.client().channel("echo");
                scope.spawn(move || {
                    for n in 0..200 {
                        let asks = echo.request("", number(caller << 32 | n)).timeout(LONG);
                        let reply = match caller {
                            0 => asks.wait(),
                            1 => asks.submit().wait(),
                            _ => crate::support::block_on(asks),
                        };
                        assert_eq!(as_number(&reply.unwrap()), caller << 32 | n);
                    }
                });
            }
        });
        debt.reply(payload);
        assert_eq!(relays.wait().unwrap(), "long");
    }
}

/// The link is lost under a shard that leads, and a host ends under one: its request ends, and the next link is
/// led like the first.
#[test]
fn a_cut_under_a_shard_that_leads_ends_its_request() {
    let _dog = watch();
    for (idle, cut) in SPINNING.into_iter().zip([Lane::Completion, Lane::Application]) {
        let (keep, held) = kept();
        let host = server("server").channel("keep", keep).start().unwrap();
        let proxy = Proxy::before(&host);
        let builder = small("client").idle(idle).channel("relay", asked(relay));
        let builder = builder.reconnect(Duration::from_millis(20), Duration::from_millis(100));
        let client = connected(builder.connect(proxy.address()));
        let relay = client.client().channel("relay");
        for round in 1..=5 {
            let lost = relay.request("", "lost").timeout(LONG).submit();
            let debt = held.recv().unwrap();
            proxy.cut(cut);
            assert_eq!(lost.wait().unwrap_err().kind(), ErrorKind::Unavailable);
            drop(debt);
            until(|| client.status().links_up == round + 1);
            // The link is up before the routes say so.
            client.ready(LONG).unwrap();
            let kept = relay.request("", "kept").timeout(LONG).submit();
            let (debt, payload) = held.recv().unwrap();
            debt.reply(payload);
            assert_eq!(kept.wait().unwrap(), "kept");
        }
        let last = relay.request("", "last").timeout(LONG).submit();
        let debt = held.recv().unwrap();
        client.shutdown(Duration::from_millis(20));
        assert!(matches!(last.wait().unwrap_err().kind(), ErrorKind::ShuttingDown | ErrorKind::Unavailable));
        drop(debt);
    }
}
