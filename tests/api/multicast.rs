//! One send per member, each under its own ceiling.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use afflux::{ByteSize, Detail, Host, Hwm, Lane};
use bytes::Bytes;

use crate::support::proxy::Proxy;
use crate::support::{address, asked, block_on, client_of, server, small, told, until, watch};

const LONG: Duration = Duration::from_secs(80);

/// Every member hears it once, the local one too, over however many links; nobody else does.
#[test]
fn every_member_is_told_once() {
    let _dog = watch();
    let (tell, heard) = channel();
    let hear = |name: &'static str| {
        let tell = tell.clone();
        told(move |message, _| tell.send((name, message.into_payload())).unwrap())
    };
    let members: Vec<Host> =
        ["a", "b"].map(|name| server(name).channel("news", hear(name)).start().unwrap()).into_iter().collect();
    let other = server("other").channel("work", hear("other")).start().unwrap();
    let host = small("c")
        .connect(address(&members[0]))
        .links(2)
        .connect(address(&members[1]))
        .connect(address(&other))
        .channel("news", hear("c"))
        .start()
        .unwrap();
    host.ready(LONG).unwrap();
    let news = host.client().channel("news");
    for n in 0..10_u8 {
        let told = if n % 2 == 0 {
            news.multicast("", vec![n]).timeout(LONG).wait()
        } else {
            block_on(news.multicast("", vec![n]).submit())
        };
        assert!(told.is_complete() && told.accepted() == 3, "{told}");
        let mut nodes: Vec<_> = told.members.iter().map(|(node, _)| node.to_string()).collect();
        nodes.sort();
        assert_eq!(nodes, ["a", "b", "c"]);
        let mut came: Vec<_> = heard.iter().take(3).collect();
        came.sort();
        let payload = Bytes::from(vec![n]);
        assert_eq!(came, [("a", payload.clone()), ("b", payload.clone()), ("c", payload)]);
    }
    assert!(heard.try_recv().is_err());
}

#[test]
fn nobody_to_tell_is_a_success() {
    let _dog = watch();
    let host = small("alone").start().unwrap();
    let told = host.client().channel("news").multicast("", "x").wait();
    assert!(told.is_complete() && told.members.is_empty());
}

/// A member that takes nothing is waited for at its own ceiling; the others have theirs long before.
#[test]
fn a_slow_member_holds_nobody_else() {
    let _dog = watch();
    let (tell, heard) = channel();
    let quick = server("quick").channel("news", told(move |m, _| drop(tell.send(m.into_payload())))).start().unwrap();
    let slow = server("slow").channel("news", told(|m, _| drop(m))).start().unwrap();
    let proxy = Proxy::before(&slow);
    let host = small("host")
        .connect(address(&quick))
        .connect(proxy.address())
        .send_hwm(Hwm::Bytes(ByteSize::kib(64)))
        .socket_buffers(ByteSize::kib(16), ByteSize::kib(16))
        .start()
        .unwrap();
    host.ready(LONG).unwrap();
    proxy.freeze(Lane::Application);
    let news = host.client().channel("news");
    let mut sent = 0;
    // Until the slow one's queue stays full. The quick one may not get its processor for a moment either.
    let error = loop {
        let told = news.multicast("", vec![1; 8000]).timeout(Duration::from_millis(50)).wait();
        assert_eq!(told.members.len(), 2);
        let mut ends: BTreeMap<_, _> = told.members.into_iter().collect();
        sent += usize::from(ends["quick"].is_ok());
        if let Some(Err(error)) = ends.remove("slow") {
            break error;
        }
    };
    assert_eq!(error.error().detail(), Detail::NoRoom);
    assert_eq!(error.into_payload().len(), 8000, "the payload comes back");
    let waiting = news.multicast("", "last").timeout(LONG).submit();
    // The quick one has all of it while the slow one's send still waits.
    for _ in 0..sent {
        assert_eq!(heard.recv().unwrap().len(), 8000);
    }
    assert_eq!(&*heard.recv().unwrap(), b"last");
    until(|| host.status().waiting <= 1);
    proxy.thaw(Lane::Application);
    assert!(waiting.wait().is_complete());
}

/// On a thread of the runtime nothing is sent by a wait, and what was started before is cancelled; either way every
/// payload comes back.
#[test]
fn a_shard_that_would_wait_sends_nothing() {
    let _dog = watch();
    let (tell, heard) = channel();
    let member = server("member").channel("news", told(move |m, _| tell.send(m.into_payload()).unwrap()));
    let member = member.start().unwrap();
    let host = Arc::new(client_of(&member));
    let inner = host.clone();
    let outer = server("outer")
        .channel(
            "block",
            asked(move |request, cx| {
                let told = inner.client().channel("news").multicast("", "never").wait();
                assert_eq!(told.members.len(), 1);
                for (node, end) in told.members {
                    let error = end.unwrap_err();
                    assert_eq!((&*node, error.error().detail()), ("member", Detail::WaitOnShard));
                    assert_eq!(error.into_payload(), "never");
                }
                // An end that there was already is the end.
                assert!(inner.client().channel("news").multicast("", "once").submit().wait().is_complete());
                request.reply(cx, "done");
            }),
        )
        .start()
        .unwrap();
    assert_eq!(client_of(&outer).client().channel("block").request("", "").wait().unwrap(), "done");
    assert_eq!(heard.recv().unwrap(), "once");
    host.client().channel("news").send("", "last").wait().unwrap();
    assert_eq!(heard.recv().unwrap(), "last", "nothing else was sent");
}
