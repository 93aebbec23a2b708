//! The waiting room: many want to send what cannot be sent now.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use afflux::{ByteSize, Detail, ErrorKind, Hwm};

use crate::support::proxy::Proxy;
use crate::support::{
    address, as_number, asked, echo, number, padded, server, small, until, until_status, watch, watch_for,
};

const LONG: Duration = Duration::from_secs(80);
const THREADS: u64 = 8;
/// A million in all, where the compiler helps.
const EACH: u64 = if cfg!(debug_assertions) { 5_000 } else { 125_000 };

/// One target that cannot be reached takes at most a quarter of the waiting room, however many want to send
/// to it; the rest are told at once and get their payload back; sends to others go on as if nothing were.
#[test]
fn an_unreachable_target_takes_a_quarter_of_the_room() {
    let _dog = watch();
    let healthy = server("healthy").channel("echo", asked(echo)).start().unwrap();
    let nobody = Proxy::to_nobody();
    let client = small("client")
        .connect(address(&healthy))
        .connect(nobody.address())
        .named("away")
        .send_hwm(Hwm::Bytes(ByteSize::kib(64)))
        .start()
        .unwrap();
    client.client().channel("echo").request("", "").timeout(LONG).wait().unwrap();
    let waited = client.status().waits;
    let over = AtomicBool::new(false);
    let (client, over) = (&client, &over);
    let (accepted, kept) = thread::scope(|scope| {
        let beside = scope.spawn(move || {
            let echo = client.client().channel("echo");
            let mut n = 0_u64;
            while !over.load(Ordering::SeqCst) || n < 100 {
                echo.try_send("", number(n)).unwrap();
                assert_eq!(echo.request("", number(n)).timeout(LONG).wait().unwrap(), number(n));
                n += 1;
            }
        });
        let hammers: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let away = client.client().node("away");
                    let (mut accepted, mut kept) = (0_u64, Vec::new());
                    for n in 0..EACH {
                        let id = thread * EACH + n;
                        let mut pending = away.send("", number(id)).timeout(LONG).submit();
                        match pending.try_take() {
                            None => kept.push(pending),
                            Some(Ok(())) => accepted += 1,
                            Some(Err(error)) => {
                                assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
                                assert_eq!(error.error().detail(), Detail::WaitingRoomFull, "{error}");
                                assert_eq!(error.error().figures().limit, Some(1024));
                                assert_eq!(as_number(&error.into_payload()), id, "the payload comes back");
                            }
                        }
                    }
                    (accepted, kept)
                })
            })
            .collect();
        let (mut accepted, mut kept) = (0, Vec::new());
        for hammer in hammers {
            let (a, k) = hammer.join().unwrap();
            accepted += a;
            kept.extend(k);
        }
        over.store(true, Ordering::SeqCst);
        beside.join().unwrap();
        (accepted, kept)
    });
    let status = client.status();
    let away = status.links.iter().find(|l| &*l.peer == "away").unwrap();
    assert_eq!(kept.len(), 1024, "a quarter, and not one more or less");
    assert_eq!((away.waiting, status.waiting, status.waiting_peak), (1024, 1024, 1024));
    assert!(away.queued_bytes <= 64 << 10, "{away:?}");
    assert_eq!(away.queued_bytes, accepted * (8 + 64), "what was accepted lies in the queue");
    assert_eq!(status.waiting_room_full, THREADS * EACH - accepted - 1024);
    assert_eq!(status.waits, waited + 1024, "nobody waited for the healthy one");
    drop(kept);
    until_status(client, |s| s.waiting == 0 && s.waiting_bytes == 0);
}

/// The shares in bytes hold too; callers leave a quarter of the room to handlers; cancelled operations leave
/// the room at once, and their payload comes back.
#[test]
fn callers_leave_a_quarter_to_handlers() {
    let _dog = watch();
    let nobody: Vec<_> = (0..4).map(|_| Proxy::to_nobody()).collect();
    let mut builder = small("client")
        .waiting_room(16, ByteSize::mib(32))
        .send_hwm(Hwm::Bytes(ByteSize::bytes(1)))
        .max_message_size(ByteSize::mib(1));
    for (i, proxy) in nobody.iter().enumerate() {
        builder = builder.connect(proxy.address()).named(format!("away-{i}"));
    }
    let client = builder.start().unwrap();
    let mut kept = Vec::new();
    for (i, expected) in [4, 4, 4, 0].into_iter().enumerate() {
        let away = client.client().node(&format!("away-{i}"));
        // An empty queue takes one record larger than its mark.
        away.send("", "first").wait().unwrap();
        let mut waiting = 0;
        for n in 0..10 {
            let mut pending = away.send("", number(n)).timeout(LONG).submit();
            match pending.try_take() {
                None => {
                    waiting += 1;
                    kept.push((n, pending));
                }
                Some(end) => assert_eq!(end.unwrap_err().error().detail(), Detail::WaitingRoomFull),
            }
        }
        assert_eq!(waiting, expected, "away-{i}");
    }
    for (n, pending) in kept {
        assert_eq!(as_number(&pending.cancel().unwrap()), n);
    }
    until(|| client.status().waiting == 0);
    // Bytes: a quarter of 32 MiB is 8 MiB.
    let away = client.client().node("away-0");
    let mut kept = Vec::new();
    let large = padded(1, (1 << 20) - 64);
    for _ in 0..10 {
        let mut pending = away.send("", large.clone()).timeout(LONG).submit();
        if pending.try_take().is_none() {
            kept.push(pending);
        }
    }
    assert_eq!(kept.len(), 4, "operations are the tighter bound here");
    assert_eq!(client.status().waiting_bytes, 4 << 20);
}

/// A share that holds nothing takes one record of any allowed size.
#[test]
fn an_empty_share_takes_one_record_of_any_size() {
    let _dog = watch();
    let nobody = Proxy::to_nobody();
    let client = small("client")
        .waiting_room(64, ByteSize::mib(2))
        .max_message_size(ByteSize::mib(1))
        .connect(nobody.address())
        .named("away")
        .send_hwm(Hwm::Bytes(ByteSize::bytes(1)))
        .start()
        .unwrap();
    let away = client.client().node("away");
    away.send("", "first").wait().unwrap();
    let large = padded(1, 1 << 20);
    let mut one = away.send("", large.clone()).timeout(LONG).submit();
    assert!(one.try_take().is_none(), "a quarter is 512 KiB, and it is empty");
    let error = away.send("", "x").timeout(LONG).wait().unwrap_err();
    assert_eq!(error.error().detail(), Detail::WaitingRoomFull);
    assert_eq!(one.cancel().unwrap(), large);
    let mut next = away.send("", "x").timeout(LONG).submit();
    assert!(next.try_take().is_none());
}

/// Case 054. Nothing is locked while somebody waits for room: the same handle is used by others meanwhile, and
/// everything of the host can be looked at.
#[test]
fn a_wait_for_room_holds_no_lock() {
    let _dog = watch_for(Duration::from_secs(30));
    let nobody = Proxy::to_nobody();
    let client = small("client")
        .connect(nobody.address())
        .named("away")
        .send_hwm(Hwm::Bytes(ByteSize::bytes(1)))
        .start()
        .unwrap();
    let away = client.client().node("away");
    away.send("", "first").wait().unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| away.send("", "waits").timeout(LONG).wait().unwrap_err());
        until(|| client.status().waiting == 1);
        for _ in 0..100 {
            assert_eq!(away.try_send("", "now").unwrap_err().error().detail(), Detail::NoRoom);
            drop(away.request("", "given up").timeout(LONG).submit());
            assert!(client.status().waiting >= 1);
        }
        let _ = client.shutdown(Duration::ZERO);
        assert_eq!(waits.join().unwrap().kind(), ErrorKind::ShuttingDown);
    });
}
