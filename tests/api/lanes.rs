//! Two connections, seen from outside: what one lane suffers is not the other's business, but for its end.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afflux::{ByteSize, Detail, ErrorKind, Hwm, Lane};

use crate::support::proxy::Proxy;
use crate::support::subscriber::Raw;
use crate::support::{
    as_number, asked, connected, echo, kept, link, number, padded, server, serving, small, told, until, until_or,
    until_status, watch,
};

const LONG: Duration = Duration::from_secs(80);

/// Losing either lane retires the pair: the other connection is closed, requests in flight end at once in
/// `Unavailable(LinkLost)`. The queue stays with the target: what was not begun goes out after the re-attach,
/// in order and once; what was written and not told is in doubt, and counted (promise 1).
#[test]
fn either_lane_s_end_retires_the_pair_and_keeps_the_queue() {
    for cut in [Lane::Completion, Lane::Application] {
        let _dog = watch();
        let other = if cut == Lane::Completion { Lane::Application } else { Lane::Completion };
        let (keep, held) = channel();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hear = heard.clone();
        let server = server("server")
            .channel(
                "work",
                serving(
                    move |request, _| drop(keep.send(request.into_parts().0.into_remote())),
                    move |m, _| hear.lock().unwrap().push(as_number(m.payload())),
                ),
            )
            .start()
            .unwrap();
        let proxy = Proxy::before(&server);
        let client = connected(
            small("client")
                .connect(proxy.address())
                .reconnect(Duration::from_millis(20), Duration::from_millis(100))
                .socket_buffers(ByteSize::kib(16), ByteSize::kib(16))
                .send_hwm(Hwm::Bytes(ByteSize::kib(256))),
        );
        let work = client.client().channel("work");
        let pending: Vec<_> = (0..8).map(|_| work.request("", "").timeout(LONG).submit()).collect();
        let debts: Vec<_> = held.iter().take(8).collect();

        proxy.freeze(Lane::Application);
        let (mut sent, mut refused) = (0, 0);
        // The kernel's buffers are full when the queue is full and stays so.
        until(|| {
            match work.try_send("", padded(sent, 1000)) {
                Ok(()) => (sent, refused) = (sent + 1, 0),
                Err(error) => {
                    assert_eq!(error.error().detail(), Detail::NoRoom);
                    refused += 1;
                    std::thread::yield_now();
                }
            }
            while refused == 0 && work.try_send("", padded(sent, 1000)).is_ok() {
                sent += 1;
            }
            refused > 100
        });
        let waits = work.send("", padded(sent, 1000)).timeout(LONG).submit();
        sent += 1;
        assert!(link(&client).queued_bytes > 128 << 10);

        proxy.cut(cut);
        for pending in pending {
            let error = pending.wait().unwrap_err();
            assert_eq!((error.kind(), error.error().detail()), (ErrorKind::Unavailable, Detail::LinkLost));
            assert_eq!(error.unsent_payload(), None, "whether it ran is not known");
        }
        until(|| proxy.closed(other) == 1);
        drop(debts);

        until_status(&client, |s| s.links_up == 2);
        waits.wait().unwrap();
        let last = sent;
        // The routes follow the link.
        until(|| work.try_send("", padded(last, 1000)).is_ok());
        until_or(
            || heard.lock().unwrap().last() == Some(&last),
            || format!("{:?} of {last} heard; {:?}", heard.lock().unwrap().last(), link(&client)),
        );
        let heard = heard.lock().unwrap();
        assert!(heard.windows(2).all(|w| w[0] < w[1]), "in order, and nothing twice: {heard:?}");
        // It is counted after it was written.
        until(|| link(&client).queued_bytes == 0);
        let status = link(&client);
        let missing = last + 1 - heard.len() as u64;
        let gaps = heard.windows(2).filter(|w| w[0] + 1 != w[1]).count() + usize::from(heard[0] != 0);
        assert!(gaps <= 1, "what is missing was on the way at the cut: {heard:?}");
        assert!(missing <= status.in_doubt_on_detach + status.lost_on_detach, "{missing} missing, {status:?}");
        assert_eq!(status.written + status.lost_on_detach, last + 1 + 8, "{status:?}");
        assert!(status.lost_on_detach <= 1, "one record at most is begun and unfinished: {status:?}");
        until_status(&client, |s| s.link_lost == 8);
    }
}

/// A frozen application lane is not a dead peer: replies go on, heartbeats go on, no link is lost, for many
/// times the silence that would kill it.
#[test]
fn a_frozen_application_lane_stops_no_reply() {
    let _dog = watch();
    let (keep, held) = kept();
    let server = server("server")
        .heartbeat(Duration::from_millis(150), Duration::from_millis(1500))
        .channel("keep", keep)
        .channel("echo", asked(echo))
        .start()
        .unwrap();
    let proxy = Proxy::before(&server);
    let client = connected(
        small("client").connect(proxy.address()).heartbeat(Duration::from_millis(150), Duration::from_millis(1500)),
    );
    let keep = client.client().channel("keep");
    let pending: Vec<_> = (0..30).map(|n| keep.request("", number(n)).timeout(LONG).submit()).collect();
    let debts: Vec<_> = held.iter().take(30).collect();
    proxy.freeze(Lane::Application);
    let stuck = client.client().channel("echo").request("", "through").timeout(LONG).submit();
    let begin = client.status();
    // A PING or PONG comes back between one reply and the next: 30 of them are three times the silence that
    // means death.
    for (pending, (debt, payload)) in pending.into_iter().zip(debts) {
        let beats = proxy.bytes_back(Lane::Completion);
        until(|| proxy.bytes_back(Lane::Completion) > beats);
        debt.reply(payload.clone());
        assert_eq!(pending.wait().unwrap(), payload);
    }
    until_status(&client, |s| s.replies == begin.replies + 30);
    let now = client.status();
    assert_eq!((now.links_lost, now.links_up), (0, 1));
    assert_eq!(server.status().links_lost, 0);
    proxy.thaw(Lane::Application);
    assert_eq!(stuck.wait().unwrap(), "through");
}

/// A peer of which neither lane brings a byte is dead, and noticed; the next pair takes over.
#[test]
fn two_frozen_lanes_are_a_dead_peer() {
    let _dog = watch();
    let server = server("server").channel("echo", asked(echo)).start().unwrap();
    let proxy = Proxy::before(&server);
    let client = connected(
        small("client")
            .connect(proxy.address())
            .reconnect(Duration::from_millis(20), Duration::from_millis(100))
            .heartbeat(Duration::from_millis(100), Duration::from_millis(1000)),
    );
    let echo = client.client().channel("echo");
    proxy.freeze(Lane::Application);
    proxy.freeze(Lane::Completion);
    let error = echo.request("", "x").timeout(LONG).wait().unwrap_err();
    assert_eq!((error.kind(), error.error().detail()), (ErrorKind::Unavailable, Detail::LinkLost));
    // On a busy machine the next one may have been silent for that long too.
    until(|| match echo.request("", "x").timeout(LONG).wait() {
        Ok(reply) => reply == "x",
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            false
        }
    });
    assert!(client.status().links_up >= 2);
}

/// A stock peer has one connection. When its last bytes and its end come together, the end is seen all the same,
/// long before a heartbeat would miss it, and what it said is handled.
#[test]
fn a_stock_peer_that_speaks_and_goes() {
    let _dog = watch();
    let silence = Duration::from_secs(100);
    let (tell, heard) = channel();
    // With one job each record is a pressure that comes and goes.
    let server = server("server")
        .max_jobs(1)
        .heartbeat(silence, 3 * silence)
        .channel("news", told(move |m, _| tell.send(m.into_payload()).unwrap()))
        .start()
        .unwrap();
    for n in 1..=20_u8 {
        let mut peer = TcpStream::connect(server.addresses()[0]).unwrap();
        let mut greeting = [0; 64];
        (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xFF, 0x7F, 3, 1);
        greeting[12..16].copy_from_slice(b"NULL");
        peer.write_all(&greeting).unwrap();
        peer.write_all(b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH").unwrap();
        peer.read_exact(&mut greeting).unwrap();
        // Its READY: from here on the connection is the shard's.
        let mut head = [0; 2];
        peer.read_exact(&mut head).unwrap();
        peer.read_exact(&mut vec![0; head[1] as usize]).unwrap();
        until_status(&server, |s| s.links_up == u64::from(n));
        peer.write_all(&[1, 4, b'n', b'e', b'w', b's', 0, 1, n]).unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        assert_eq!(&*heard.recv().unwrap(), [n]);
        until_status(&server, |s| s.links_lost == u64::from(n));
    }
    // Contract 18: a peer of one lane is not told of pressure, not even as it comes.
    assert_eq!(server.status().flow_frames_sent, 0);
    // The route that a record came with is cut down to its method, and given back whole.
    until_status(&server, |s| s.owned_bytes == 0);
}

/// Contract 18: a peer of one lane is not told of pressure, however long it lasts. It feels TCP.
#[test]
fn a_stock_peer_is_told_of_no_pressure() {
    let _dog = watch();
    let (keep, held) = kept();
    let server = server("server").max_jobs(1).max_started_handlers(1).channel("keep", keep).start().unwrap();
    let mut peer = Raw::dial_as(&server, "DEALER", None);
    // The first is started and kept; the second was claimed, and keeps the only permit.
    peer.request("keep", "1");
    peer.request("keep", "2");
    let debt = held.recv().unwrap();
    until_status(&server, |s| s.is_paused());
    // The thread that tells has looked at it since then, and more than once.
    let others: Vec<_> = (2..=4)
        .map(|n| {
            let other = Raw::dial_as(&server, "DEALER", None);
            until_status(&server, |s| s.links_up == n);
            other
        })
        .collect();
    assert_eq!(server.status().flow_frames_sent, 0);
    drop((debt, others));
}
