//! Two links where there may be one: nodes that dial each other, and two instances under one name.

use std::time::Duration;

use afflux::{ErrorKind, Host, Lane};

use crate::support::proxy::Proxy;
use crate::support::{address, asked, connected, echo, server, small, until, until_or, until_status, watch};

const LONG: Duration = Duration::from_secs(80);

fn quick(builder: afflux::HostBuilder) -> afflux::HostBuilder {
    builder.reconnect(Duration::from_millis(5), Duration::from_millis(50))
}

fn up(host: &Host) -> usize {
    host.status().links.iter().filter(|link| link.up).count()
}

/// Both dial each other, by name or by address alone: one link of the two stays, it serves both, and both are
/// ready. What was sent to the named node before it was there arrives over whichever link came.
#[test]
fn of_two_nodes_that_dial_each_other_one_link_stays() {
    for named in [true, false] {
        for round in 0..4 {
            let _dog = watch();
            // Each has to know the other's address before either starts.
            let (to_a, to_b) = (Proxy::to_nobody(), Proxy::to_nobody());
            let node = |name: &str, other: &str, to: &Proxy| {
                let host = quick(server(name)).node_handler(asked(echo)).connect(to.address());
                if named { host.named(other) } else { host }.start().unwrap()
            };
            let a = node("a", "b", &to_b);
            let b = node("b", "a", &to_a);
            let early = named.then(|| a.client().node("b").request("", "early").timeout(LONG).submit());
            if round % 2 == 0 {
                to_a.lead_to(&a);
                to_b.lead_to(&b);
            } else {
                to_b.lead_to(&b);
                to_a.lead_to(&a);
            }
            a.ready(LONG).unwrap();
            b.ready(LONG).unwrap();
            until_or(|| up(&a) == 1 && up(&b) == 1, || format!("{:#?} {:#?}", a.status().links, b.status().links));
            assert_eq!(a.status().links.len() + b.status().links.len(), 2, "one target each");
            if let Some(early) = early {
                // It may have been in flight on a link that gave way; then it says so.
                if let Err(error) = early.wait() {
                    assert_eq!(error.error().detail(), afflux::Detail::LinkLost, "{error}");
                }
            }
            for (from, to) in [(&a, "b"), (&b, "a")] {
                // One of the two may give way just now.
                until(|| match from.client().node(to).request("", "hello").timeout(LONG).wait() {
                    Ok(reply) => &*reply == b"hello",
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                        false
                    }
                });
            }
        }
    }
}

/// While the peer's link is up its node is not dialled; when it ends, it is.
#[test]
fn a_node_whose_link_is_up_is_not_dialled_until_it_ends() {
    let _dog = watch();
    let to_a = Proxy::to_nobody();
    let away = Proxy::to_nobody();
    let a = quick(server("a")).node_handler(asked(echo)).connect(away.address()).named("b").start().unwrap();
    to_a.lead_to(&a);
    let b = quick(server("b")).node_handler(asked(echo)).connect(to_a.address()).named("a").start().unwrap();
    a.ready(LONG).unwrap();
    b.ready(LONG).unwrap();
    assert_eq!((up(&a), up(&b)), (1, 1));
    // Now a could reach b, and b is no longer led to a: the link that ends is replaced from the other side.
    away.lead_to(&b);
    to_a.lead_to_nobody();
    to_a.cut(Lane::Completion);
    // The first dial may find that b has not heard of the end yet.
    let seen = || format!("{:#?} {:#?} closed {}", a.status().links, b.status().links, away.closed(Lane::Completion));
    until_or(|| up(&a) == 1 && up(&b) == 1 && b.status().links_up >= 2, seen);
    // Of the dials of both sides one stays, and one that goes takes its requests along.
    until(|| b.client().node("a").request("", "hello").timeout(LONG).wait().is_ok_and(|reply| &*reply == b"hello"));
}

/// A second instance under the name of a node that is linked and alive is refused, and says so in its log; the
/// first goes on. When the first is gone, the second gets its place.
#[test]
fn a_living_instance_keeps_its_name() {
    let _dog = watch();
    let center = quick(server("center")).channel("echo", asked(echo)).start().unwrap();
    let first = connected(quick(small("twin")).connect(address(&center)));
    let second = quick(small("twin")).connect(address(&center)).start().unwrap();
    // Each attempt of the second is asked about, and refused.
    until_status(&center, |s| s.handshakes_failed >= 4);
    assert_eq!(center.status().links_lost, 0);
    let echo = first.client().channel("echo");
    assert_eq!(&*echo.request("", "first").timeout(LONG).wait().unwrap(), b"first");
    drop(first);
    let echo = second.client().channel("echo");
    until(|| echo.request("", "second").timeout(LONG).wait().is_ok_and(|reply| &*reply == b"second"));
}

/// An instance that gives no sign of life loses its place to a new one.
#[test]
fn a_silent_instance_is_replaced() {
    let _dog = watch();
    let center = quick(server("center")).channel("echo", asked(echo)).start().unwrap();
    let proxy = Proxy::before(&center);
    let silent = connected(small("twin").connect(proxy.address()).heartbeat(LONG / 8, LONG));
    proxy.freeze(Lane::Completion);
    proxy.freeze(Lane::Application);
    let second = connected(quick(small("twin")).connect(address(&center)));
    until_status(&center, |s| s.links_lost == 1);
    let echo = second.client().channel("echo");
    until(|| echo.request("", "new").timeout(LONG).wait().is_ok_and(|reply| &*reply == b"new"));
    drop(silent);
}

/// Somebody else has our own name: refused at once, on either side.
#[test]
fn a_peer_with_our_own_name_is_refused() {
    let _dog = watch();
    let center = quick(server("twin")).start().unwrap();
    let other = quick(small("twin")).connect(address(&center)).start().unwrap();
    until_status(&center, |s| s.handshakes_failed >= 4);
    until_status(&other, |s| s.handshakes_failed >= 2);
    assert_eq!((up(&center), up(&other)), (0, 0));
}
