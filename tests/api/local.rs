//! The local process as a member of a channel: a candidate like any other, through the same admission.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use afflux::{ByteSize, Detail, ErrorKind, Hwm};
use bytes::Bytes;

use crate::support::{
    Door, address, as_number, asked, connected, echo, kept, number, server, serving, small, told, until, until_status,
    watch,
};

const LONG: Duration = Duration::from_secs(80);

/// No connection, no address: requests, errors, messages and handlers' own calls all work, and everything is
/// given back.
#[test]
fn a_host_serves_its_own_callers() {
    let _dog = watch();
    let sum = Arc::new(AtomicU64::new(0));
    let count = sum.clone();
    let host = small("alone")
        .channel(
            "work",
            serving(
                |request, cx| match request.method() {
                    "fail" => request.fail(cx, 7, "as asked"),
                    "onward" => {
                        let (responder, payload) = request.into_parts();
                        let call = cx.channel("work").request("", payload);
                        call.then(cx, |_, end, cx| responder.reply_with(cx, end));
                    }
                    _ => echo(request, cx),
                },
                move |message, cx| {
                    assert_eq!(&*cx.peer(), "alone");
                    count.fetch_add(as_number(message.payload()), Ordering::SeqCst);
                },
            ),
        )
        .start()
        .unwrap();
    host.ready(LONG).unwrap();
    let work = host.client().channel("work");
    for payload in [Bytes::new(), Bytes::from(vec![7; 100]), Bytes::from(vec![9; 100_000])] {
        assert_eq!(work.request("", payload.clone()).timeout(LONG).wait().unwrap(), payload);
        assert_eq!(work.request("onward", payload.clone()).timeout(LONG).wait().unwrap(), payload);
    }
    let error = work.request("fail", "").timeout(LONG).wait().unwrap_err();
    assert_eq!((error.kind(), error.error().code()), (ErrorKind::Remote, 7));
    for n in 0..1000 {
        work.send("", number(n)).timeout(LONG).wait().unwrap();
    }
    until(|| sum.load(Ordering::SeqCst) == 999 * 1000 / 2);
    assert!(work.request("", "node").timeout(LONG).wait().is_ok());
    let error = host.client().node("alone").request("", "").timeout(LONG).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "the node has no handler of its own");
    until_status(&host, |s| s.owned_bytes == 0 && s.requests == 0 && s.waiting == 0 && s.permits.in_use == 0);
    let account = host.shutdown(LONG);
    assert!(account.is_clean(), "{account}");
}

/// The mark holds for local calls: what finds no room waits in order, or is refused with the figures.
#[test]
fn local_calls_wait_at_the_same_mark() {
    let _dog = watch();
    let door = Door::shut();
    let at_door = door.clone();
    let heard = Arc::new(AtomicU64::new(0));
    let hear = heard.clone();
    let host = small("alone")
        .send_hwm(Hwm::Bytes(ByteSize::kib(64)))
        .channel(
            "work",
            told(move |message, _| {
                at_door.pass();
                let n = as_number(message.payload());
                assert_eq!(hear.fetch_add(1, Ordering::SeqCst), n, "in order");
            }),
        )
        .start()
        .unwrap();
    let key = door.key();
    let work = host.client().channel("work");
    let mut sent = 0;
    work.try_send("", number(0)).unwrap();
    until(|| door.came() == 1);
    let refused = loop {
        match work.try_send("", number(sent + 1)) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    let figures = refused.error().figures();
    assert_eq!((refused.error().detail(), figures.limit), (Detail::NoRoom, Some(64 << 10)));
    let waiting: Vec<_> = (1..=10).map(|n| work.send("", number(sent + n)).timeout(LONG).submit()).collect();
    until_status(&host, |s| s.waiting == 10);
    let late = work.send("", "late").timeout(Duration::from_millis(20)).wait().unwrap_err();
    assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
    drop(key);
    for pending in waiting {
        pending.wait().unwrap();
    }
    until(|| heard.load(Ordering::SeqCst) == sent + 11);
}

/// A request that is given up before its turn came is never started.
#[test]
fn a_cancelled_local_request_is_not_started() {
    let _dog = watch();
    let (keep, held) = kept();
    let host = small("alone").max_jobs(1).max_started_handlers(1).channel("keep", keep).start().unwrap();
    let channel = host.client().channel("keep");
    let first = channel.request("", "first").timeout(LONG).submit();
    let debt = held.recv().unwrap();
    let second = channel.request("", "second").timeout(LONG).submit();
    until_status(&host, |s| s.permits.in_use == 1);
    let third = channel.request("", "third").timeout(LONG).submit();
    until(|| host.status().shards[0].unclaimed == 1);
    drop(third);
    debt.0.reply("");
    first.wait().unwrap();
    held.recv().unwrap().0.reply("");
    second.wait().unwrap();
    until_status(&host, |s| s.permits.in_use == 0 && s.shards[0].unclaimed == 0 && s.requests == 0);
    until_status(&host, |s| s.delivered == 2);
    assert!(held.try_recv().is_err());
}

/// Equal weights: the local member and the remote one take turns, in the order of their announcement.
#[test]
fn the_local_member_takes_its_turns() {
    let _dog = watch();
    let said = |what: &'static str| asked(move |request, cx| request.reply(cx, what));
    let far = server("far").channel("who", said("far")).start().unwrap();
    let near = connected(small("near").connect(address(&far)).channel("who", said("near")));
    let who = near.client().channel("who");
    let turns: Vec<Bytes> = (0..8).map(|_| who.request("", "").timeout(LONG).wait().unwrap()).collect();
    for pair in turns.chunks(2) {
        assert_ne!(pair[0], pair[1], "{turns:?}");
    }
    let weighted = connected(small("heavy").connect(address(&far)).channel("who", said("near")).weight(300));
    let who = weighted.client().channel("who");
    let turns: Vec<Bytes> = (0..12).map(|_| who.request("", "").timeout(LONG).wait().unwrap()).collect();
    for four in turns.chunks(4) {
        assert_eq!(four.iter().filter(|turn| &turn[..] == b"near").count(), 3, "{turns:?}");
    }
}
