//! Order: first in, first out per handle and target, whatever each operation had to wait for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use afflux::{ByteSize, Channel, Detail, Hwm, OneWay, Pending, TwoWay};

use crate::support::proxy::Proxy;
use crate::support::{
    Door, address, as_number, client_of, connected, number, padded, server, serving, small, told, until, watch,
};

const LONG: Duration = Duration::from_secs(80);

enum Started {
    Send(Pending<OneWay>),
    Request(Pending<TwoWay>),
}

impl Started {
    fn end(self) {
        match self {
            Started::Send(p) => p.wait().unwrap(),
            Started::Request(p) => drop(p.wait().unwrap()),
        }
    }
}

/// Sends `n` records of all kinds and sizes, numbered `base..`, in order, with many outstanding.
fn blast(channel: &Channel, base: u64, n: u64) {
    let mut outstanding = VecDeque::new();
    for i in 0..n {
        let payload = padded(base + i, if i % 7 == 0 { 3000 } else { 8 + (i % 50) as usize });
        match i % 5 {
            // Admitted now, or waiting as any other.
            0 => {
                if let Err(error) = channel.try_send("", payload) {
                    assert_eq!(error.error().detail(), Detail::NoRoom);
                    outstanding.push_back(Started::Send(channel.send("", error.into_payload()).timeout(LONG).submit()));
                }
            }
            1 | 2 => outstanding.push_back(Started::Request(channel.request("", payload).timeout(LONG).submit())),
            _ => outstanding.push_back(Started::Send(channel.send("", payload).timeout(LONG).submit())),
        }
        if outstanding.len() > 200 {
            outstanding.drain(..100).for_each(Started::end);
        }
    }
    outstanding.into_iter().for_each(Started::end);
}

/// Through the ring, the caller's own write and the waiting room: the order of the calls is the order at the
/// handler. Several handles beside each other, and one handle that goes from thread to thread.
#[test]
fn one_handle_keeps_its_order() {
    let _dog = watch();
    const N: u64 = 4000;
    const HANDLES: u64 = 3;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (asked, told) = (seen.clone(), seen.clone());
    let server = server("server")
        .receive_hwm(Hwm::Bytes(ByteSize::kib(8)))
        .channel(
            "in",
            serving(
                move |request, cx| {
                    asked.lock().unwrap().push(as_number(request.payload()));
                    request.reply(cx, "");
                },
                move |m, _| told.lock().unwrap().push(as_number(m.payload())),
            ),
        )
        .start()
        .unwrap();
    let client = connected(small("client").connect(address(&server)).send_hwm(Hwm::Bytes(ByteSize::kib(4))));
    thread::scope(|scope| {
        for handle in 1..=HANDLES {
            let channel = client.client().channel("in");
            scope.spawn(move || blast(&channel, handle * 1_000_000, N));
        }
    });
    // Its order goes with it.
    let mut travelling = client.client().channel("in");
    for leg in 0..8 {
        travelling = thread::spawn(move || {
            blast(&travelling, 9_000_000 + leg * 100, 100);
            travelling
        })
        .join()
        .unwrap();
    }
    until(|| seen.lock().unwrap().len() as u64 == HANDLES * N + 800);
    let seen = seen.lock().unwrap();
    for handle in (1..=HANDLES).chain([9]) {
        let of: Vec<_> = seen.iter().filter(|n| **n / 1_000_000 == handle).map(|n| n % 1_000_000).collect();
        let wrong = of.iter().enumerate().find(|(i, n)| *i as u64 != **n);
        assert_eq!(wrong, None, "handle {handle}");
    }
    assert!(client.status().waits > 0, "some had to wait");
}

/// `try_send` never overtakes an operation that waits, even where its own bytes would fit; and who waits is
/// admitted in order when there is room, the small ones not before the large one in front of them.
#[test]
fn nobody_overtakes_a_waiter() {
    let _dog = watch();
    let proxy = Proxy::to_nobody();
    let client = small("client")
        .connect(proxy.address())
        .named("away")
        .reconnect(Duration::from_millis(20), Duration::from_millis(100))
        .send_hwm(Hwm::Bytes(ByteSize::kib(8)))
        .start()
        .unwrap();
    let (away, other) = (client.client().node("away"), client.client().node("away"));
    for n in 0..6 {
        away.send("", padded(n, 1024)).wait().unwrap();
    }
    let large = away.send("", padded(6, 4096)).timeout(LONG).submit();
    for handle in [&away, &other] {
        let error = handle.try_send("", number(99)).unwrap_err();
        assert_eq!(error.error().detail(), Detail::NoRoom);
        let figures = error.error().figures();
        assert!(figures.used.unwrap() + figures.requested.unwrap() <= figures.limit.unwrap(), "it would fit");
    }
    let small = other.send("", number(7)).timeout(LONG).submit();
    let request = away.request("", number(8)).timeout(LONG).submit();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (asked, told) = (seen.clone(), seen.clone());
    let server = server("away")
        .node_handler(serving(
            move |request, cx| {
                asked.lock().unwrap().push(as_number(request.payload()));
                request.reply(cx, "");
            },
            move |m, _| told.lock().unwrap().push(as_number(m.payload())),
        ))
        .start()
        .unwrap();
    proxy.lead_to(&server);
    large.wait().unwrap();
    small.wait().unwrap();
    request.wait().unwrap();
    until(|| seen.lock().unwrap().len() == 9);
    assert_eq!(*seen.lock().unwrap(), (0..9).collect::<Vec<_>>());
    other.try_send("", number(9)).unwrap();
}

/// A full ring makes an operation wait though its queue has room. It waits behind what lies in the ring, be
/// that however much more than a turn takes.
#[test]
fn who_waits_for_a_full_ring_stays_behind_it() {
    let _dog = watch();
    const N: u64 = 1500;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told_to = seen.clone();
    let sink = server("sink").channel("in", told(move |m, _| told_to.lock().unwrap().push(as_number(m.payload()))));
    let sink = sink.start().unwrap();
    let door = Door::shut();
    let at_door = door.clone();
    let source = connected(
        server("source")
            .connect(address(&sink))
            .send_hwm(Hwm::Bytes(ByteSize::mib(8)))
            .channel("block", told(move |_, _| at_door.pass())),
    );
    let caller = client_of(&source);
    let key = door.key();
    let channel = source.client().channel("in");
    caller.client().channel("block").send("", "").wait().unwrap();
    until(|| door.came() == 1);
    let pending: Vec<_> = (0..N).map(|n| channel.send("", number(n)).timeout(LONG).submit()).collect();
    assert!(source.status().waiting > 0, "the ring is full, the queue is not: {:?}", source.status().links);
    drop(key);
    pending.into_iter().for_each(|p| p.wait().unwrap());
    until(|| seen.lock().unwrap().len() as u64 == N);
    assert_eq!(*seen.lock().unwrap(), (0..N).collect::<Vec<_>>());
}
