//! Client and server: only one side starts, under a ceiling of its own.

use std::io::{ErrorKind as IoKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::time::Duration;

use afflux::base::error::ErrorKind as Kind;
use afflux::wire::greeting::{Handshake, Security, Side};
use afflux::wire::ready::{Hello, Metadata};
use afflux::{Detail, ErrorKind, Handler, Host, HostBuilder, Lane};
use bytes::Bytes;

use crate::support::proxy::Proxy;
use crate::support::{
    address, as_number, asked, connected, echo, kept, link, number, server, serving, small, told, until, until_status,
    watch,
};

const LONG: Duration = Duration::from_secs(80);

struct Idle;
impl Handler for Idle {}

/// A server of "desk" that answers with its own name.
fn desk(name: &'static str) -> HostBuilder {
    server(name).server("desk", asked(move |request, cx| request.reply(cx, name)))
}

fn of_desk(name: &str, servers: &[&Host]) -> HostBuilder {
    servers.iter().fold(small(name).client_of("desk"), |client, server| client.server_at(address(server)))
}

/// Several servers share the calls by their weights; one that is gone is left out, and is back when it is back.
#[test]
fn clients_ask_and_servers_answer() {
    let _dog = watch();
    let (tell, heard) = channel();
    let tells = move |name: &'static str| {
        let tell = tell.clone();
        serving(
            move |request, cx| request.reply(cx, name),
            move |message, cx| {
                tell.send((name, cx.peer(), message.method().to_owned(), message.into_payload())).unwrap();
            },
        )
    };
    let a = server("a").server("desk", tells("a")).weight(300).start().unwrap();
    let b = server("b").server("desk", tells("b")).start().unwrap();
    let host = connected(of_desk("web", &[&a, &b]));
    let asks = host.client().server("desk").unwrap();
    let turns: Vec<Bytes> = (0..8).map(|_| asks.request("who", "").timeout(LONG).wait().unwrap()).collect();
    assert_eq!(turns.concat(), b"aabaaaba", "300:100, smoothly");
    asks.send("note", "x").wait().unwrap();
    let (_, peer, method, payload) = heard.recv().unwrap();
    assert_eq!((&*peer, &*method, payload), ("web", "note", Bytes::from("x")));

    let left = a.addresses()[0];
    drop(a);
    until_status(&host, |s| s.links.iter().filter(|link| link.up).count() == 1);
    for _ in 0..4 {
        assert_eq!(asks.request("", "").timeout(LONG).wait().unwrap(), "b");
    }
    drop(b);
    until_status(&host, |s| s.links.iter().all(|link| !link.up));
    let error = asks.request("", "").wait().unwrap_err();
    assert_eq!((error.kind(), error.error().detail()), (ErrorKind::Unavailable, Detail::NotConnected));
    let again = || small("again").listen(format!("tcp://{left}")).server("desk", asked(|r, cx| r.reply(cx, "again")));
    let mut back = None;
    until(|| {
        // Its port may still be in the kernel's hands.
        back = again().start().ok();
        back.is_some()
    });
    until(|| asks.request("", "").timeout(LONG).wait().is_ok_and(|reply| reply == "again"));
}

/// A role that is not configured is told at the first word, on a thread and on a shard.
#[test]
fn without_the_role_it_is_not_configured() {
    let _dog = watch();
    let a = desk("a")
        .channel(
            "work",
            asked(|request, cx| {
                let kind = cx.server("desk").unwrap_err().kind();
                request.reply(cx, kind.name());
            }),
        )
        .start()
        .unwrap();
    let error = a.client().server("desk").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotConfigured, "to serve it is not to be a client of it");
    assert!(error.to_string().contains("desk") && error.to_string().contains("client_of"), "{error}");
    let other = connected(of_desk("web", &[&a]));
    assert_eq!(other.client().server("disk").unwrap_err().kind(), ErrorKind::NotConfigured);
    assert_eq!(a.client().channel("work").request("", "").timeout(LONG).wait().unwrap(), "NotConfigured");
}

/// What is for clients and what is for nodes do not mix, whichever way they come, and in whatever order they stand.
#[test]
fn nodes_and_clients_are_served_apart() {
    let _dog = watch();
    let says = |what: &'static str| asked(move |request, cx| request.reply(cx, what));
    let both = server("both")
        .server("s0", says("s0"))
        .channel("c0", says("c0"))
        .server("s1", says("s1"))
        .channel("c1", says("c1"))
        .node_handler(says("node"))
        .start()
        .unwrap();
    let at = address(&both);
    let node = connected(small("node").connect(&at));
    let web = connected(small("web").client_of("s1").server_at(&at).client_of("s0").server_at(&at));
    for name in ["c0", "c1"] {
        assert_eq!(node.client().channel(name).request("", "").timeout(LONG).wait().unwrap(), name);
        let error = web.client().channel(name).request("", "").wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{name} is for nodes");
    }
    for name in ["s0", "s1"] {
        let reply = web.client().server(name).unwrap().request("", "").timeout(LONG).wait();
        assert_eq!(reply.unwrap(), name);
        let error = node.client().channel(name).request("", "").wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{name} is for clients");
    }
    assert_eq!(node.client().node("both").request("", "").timeout(LONG).wait().unwrap(), "node");
    let error = web.client().node("both").request("", "").wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "a client knows no nodes");
    // One host may be both to another: over links of its own each.
    let two = connected(small("two").connect(&at).client_of("s0").server_at(&at));
    assert_eq!(two.client().channel("c0").request("", "").timeout(LONG).wait().unwrap(), "c0");
    assert_eq!(two.client().server("s0").unwrap().request("", "").timeout(LONG).wait().unwrap(), "s0");
    assert_eq!(two.status().links_up, 2);
}

/// A server finds no way to its clients: their channels are not announced, and their names say what they are.
#[test]
fn a_server_starts_nothing() {
    let _dog = watch();
    let a = desk("a").start().unwrap();
    let served = || of_desk("web", &[&a]).channel("pages", asked(echo)).node_handler(asked(echo));
    let web = connected(served());
    assert_eq!(web.client().server("desk").unwrap().request("", "").timeout(LONG).wait().unwrap(), "a");
    let error = a.client().node("web").request("", "back").wait().unwrap_err();
    assert_eq!((error.kind(), error.error().detail()), (ErrorKind::InvalidOperation, Detail::OnlyClientStarts));
    assert!(error.to_string().contains("web: it is a client of this host"), "{error}");
    assert_eq!(error.unsent_payload().unwrap(), "back", "the payload comes back");
    let error = a.client().node("web").try_send("", "back").unwrap_err();
    assert_eq!(error.error().detail(), Detail::OnlyClientStarts);
    let error = a.client().channel("pages").send("", "").wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(a.client().channel("pages").multicast("", "").wait().members.is_empty());
    drop(web);
    until_status(&a, |s| s.links.is_empty());
    assert_eq!(a.client().node("web").request("", "").wait().unwrap_err().kind(), ErrorKind::NotFound);
}

/// A peer that takes the part of a server and starts all the same is answered with the reason, and what it says
/// reaches no handler.
#[test]
fn a_server_that_starts_is_refused() {
    let _dog = watch();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let web = small("web")
        .client_of("desk")
        .server_at(format!("tcp://{}", listener.local_addr().unwrap()))
        .channel("pages", told(|_, _| panic!("it came through")))
        .start()
        .unwrap();
    let (mut application, mut completion) = (None, None);
    for _ in 0..2 {
        let (lane, stream) = take_as_server(listener.accept().unwrap().0);
        *if lane == Lane::Application { &mut application } else { &mut completion } = Some(stream);
    }
    let (mut application, mut completion) = (application.unwrap(), completion.unwrap());
    web.ready(LONG).unwrap();
    // A message and a request to channel 0: kind, flags, method, depth, channel, 0, correlation, expiry, 0.
    for kind in [1, 2] {
        let mut frame = vec![0, 24, kind, 0, 0, 0, 0, 0, 0, 0];
        frame.extend_from_slice(&17_u64.to_be_bytes());
        frame.extend_from_slice(&[0; 8]);
        application.write_all(&frame).unwrap();
    }
    // An error reply: kind 4, the error's kind, the correlation, the sentence.
    let mut read = Vec::new();
    until(|| {
        let mut part = [0; 1024];
        match completion.read(&mut part) {
            Ok(n) => read.extend_from_slice(&part[..n]),
            Err(e) => assert!(matches!(e.kind(), IoKind::WouldBlock | IoKind::TimedOut), "{e}"),
        }
        read.windows(30).any(|w| w == b"this host is a client here: on")
    });
    until_status(&web, |s| s.no_handler == 2 && s.owned_bytes == 0);
    assert_eq!(web.status().delivered, 0);
}

/// Does the accepting side of a handshake as a host would that serves "desk".
fn take_as_server(mut stream: TcpStream) -> (Lane, TcpStream) {
    let hello = Hello {
        node: "liar".into(),
        instance: 1,
        max_message: 1 << 20,
        clock_ms: 0,
        channels: vec![],
        servers: vec![("desk".into(), 100)],
        metadata: Metadata::default(),
    };
    let mut handshake = Handshake::new(Side::Accept, hello, Security::Null);
    loop {
        let mut out = Vec::new();
        handshake.poll_transmit(&mut out);
        stream.write_all(&out).unwrap();
        if let Some(peer) = handshake.outcome() {
            stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            return (peer.native.as_ref().unwrap().place.lane, stream);
        }
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        handshake.handle_bytes(&byte).unwrap();
    }
}

/// Names of clients are labels: two of one name are both served, and one that comes again is no rival of itself.
#[test]
fn clients_of_one_name_are_all_served() {
    let _dog = watch();
    let a = desk("a").start().unwrap();
    let clients: Vec<Host> = (0..3).map(|_| connected(of_desk("web", &[&a]))).collect();
    for client in &clients {
        assert_eq!(client.client().server("desk").unwrap().request("", "").timeout(LONG).wait().unwrap(), "a");
    }
    assert_eq!(a.status().links.len(), 3);
    // Even the server's own name is only a label.
    let same = connected(of_desk("a", &[&a]));
    assert_eq!(same.client().server("desk").unwrap().request("", "").timeout(LONG).wait().unwrap(), "a");
}

/// The job queue of a server holds its clients back as it does nodes, and lets them go on.
#[test]
fn a_server_under_pressure_pauses_its_clients() {
    let _dog = watch();
    let (keep, held) = kept();
    let a = server("a").max_jobs(10).max_started_handlers(8).server("desk", keep).start().unwrap();
    let proxy = Proxy::before(&a);
    let web = connected(small("web").client_of("desk").server_at(proxy.address()));
    let asks = web.client().server("desk").unwrap();
    let pending: Vec<_> = (0..40).map(|n| asks.request("", number(n)).timeout(LONG).submit()).collect();
    until(|| link(&web).paused_for.is_some());
    let error = asks.send("", "mine").timeout(Duration::from_millis(20)).wait().unwrap_err();
    assert_eq!((error.kind(), error.error().detail()), (ErrorKind::DeadlineExceeded, Detail::NoRoom));
    assert!(error.error().figures().paused_for.is_some(), "{error}");
    for _ in 0..40 {
        let (debt, payload) = held.recv().unwrap();
        debt.reply(payload);
    }
    for (n, pending) in pending.into_iter().enumerate() {
        assert_eq!(as_number(&pending.wait().unwrap()), n as u64);
    }
    until(|| link(&web).paused_for.is_none());
}

/// A client that loses either lane dials again and goes on.
#[test]
fn a_client_that_loses_its_link_goes_on() {
    let _dog = watch();
    let a = desk("a").start().unwrap();
    let proxy = Proxy::before(&a);
    let web = connected(small("web").client_of("desk").server_at(proxy.address()));
    let asks = web.client().server("desk").unwrap();
    for (n, lane) in [Lane::Application, Lane::Completion].into_iter().enumerate() {
        // Between two links it is `Unavailable` at once.
        until(|| asks.request("", "").timeout(LONG).wait().is_ok_and(|reply| reply == "a"));
        proxy.cut(lane);
        until_status(&web, |s| s.links_up == n as u64 + 2);
    }
    until(|| asks.request("", "").timeout(LONG).wait().is_ok());
}

/// A handler asks servers as threads do; what a peer told of itself can be read there.
#[test]
fn a_handler_is_a_client_too() {
    let _dog = watch();
    let a = server("a")
        .server(
            "desk",
            asked(|request, cx| {
                let region = cx.metadata("x-region").unwrap_or_default();
                request.reply(cx, region);
            }),
        )
        .start()
        .unwrap();
    let web = connected(of_desk("web", &[&a]).metadata("X-Region", "eu").channel(
        "pages",
        asked(|request, cx| {
            let (responder, payload) = request.into_parts();
            let ask = cx.server("desk").unwrap().request("", payload);
            ask.then(cx, |_, end, cx| responder.reply_with(cx, end));
        }),
    ));
    let pages = web.client().channel("pages");
    assert_eq!(pages.request("", "").timeout(LONG).wait().unwrap(), "eu");
}

#[test]
fn every_broken_rule_of_the_roles_is_named() {
    let _dog = watch();
    let error = small("a")
        .server_at("tcp://127.0.0.1:1")
        .client_send_timeout(Duration::from_secs(1))
        .server("desk", |_| Idle)
        .weight(10_001)
        .channel("desk", |_| Idle)
        .client_of("a b")
        .client_of("x")
        .server_at("tcp://127.0.0.1:0")
        .server_at("tcp://127.0.0.1:7000")
        .server_at("tcp://localhost:7000")
        .client_send_timeout(Duration::ZERO)
        .client_of("x")
        .server_at("tcp://127.0.0.1:7000")
        .metadata("Region", "eu")
        .metadata("X-Afflux-Region", "eu")
        .metadata("X-A", vec![0; 3000])
        .metadata("x-a", "")
        .start()
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Config);
    let found: Vec<String> = error.violations().iter().map(ToString::to_string).collect();
    for expected in [
        "server_at = tcp://127.0.0.1:1: speaks of the client_of before it",
        "client_send_timeout = 1s: speaks of",
        "weight = 10,001",
        "server = desk: each name is served once",
        "server = without listen",
        "client_of = \"a b\"",
        "client_of = a b: has a server",
        "server_at = tcp://127.0.0.1:0",
        "server_at = tcp://localhost:7000: each address once",
        "client_send_timeout = 0ns",
        "client_of = x: each name once",
        "metadata = \"Region\"",
        "metadata = \"X-Afflux-Region\"",
        "metadata = \"x-a\": each name once",
        "metadata = 4 of",
    ] {
        assert!(found.iter().any(|found| found.starts_with(expected)), "{expected} is not in {found:#?}");
    }
    assert_eq!(found.len(), 15, "{found:#?}");
}
