//! The table of ceilings over sockets: seven ways of a message out of one host, all of whose peers take nothing. One
//! socket's ceiling is short and those of all the others are long: what goes by it ends, and everything else still
//! waits. That each ends to the millisecond is shown on a virtual clock, in `host`.

use std::future::Future;
use std::io::Write;
use std::net::TcpStream;
use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use afflux::{
    ByteSize, Context, Detail, ErrorKind, Frame, Host, Hwm, Lane, Multicast, OneWay, Pending, Publish,
    PublisherOptions, ReplyToken, SendError, Session, SessionHandle, SlowSubscriber,
};

use crate::support::proxy::Proxy;
use crate::support::subscriber::Raw;
use crate::support::{address, connected, server, small, told, until, watch_for};

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(50);

/// A way, and which of five ceilings is its own: the node's, the client's, the publisher's, those of two sockets.
const TABLE: [(&str, usize); 7] = [
    ("node", 0),
    ("channel", 0),
    ("client/server", 1),
    ("logical multicast", 0),
    ("classic pub/sub", 2),
    ("STREAM send", 3),
    ("STREAM reply", 4),
];

enum Way {
    Send(Pending<OneWay>),
    Multicast(Multicast),
    Publish(Publish),
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut TaskContext::from_waker(Waker::noop()))
}

impl Way {
    /// How it failed, if it has.
    fn end(&mut self, name: &str) -> Option<SendError> {
        match self {
            Way::Send(pending) => pending.try_take().map(|end| end.expect_err(name)),
            Way::Publish(publication) => match poll(publication) {
                Poll::Ready(end) => Some(end.expect_err(name)),
                Poll::Pending => None,
            },
            Way::Multicast(multicast) => match poll(multicast) {
                Poll::Ready(told) => {
                    // The one that takes what comes was told long ago.
                    assert_eq!((told.members.len(), told.accepted()), (2, 1), "{told}");
                    told.members.into_iter().find_map(|(_, end)| end.err())
                }
                Poll::Pending => None,
            },
        }
    }
}

struct Tells(Sender<SessionHandle>, Sender<ReplyToken>);

impl Session for Tells {
    fn opened(&mut self, session: SessionHandle, _: &mut Context<'_, Self>) {
        self.0.send(session).unwrap();
    }

    fn frame(&mut self, frame: Frame, _: &mut Context<'_, Self>) {
        self.1.send(frame.into_parts().0).unwrap();
    }
}

/// Peers, and what else must live as long as the ways are stuck.
struct Peers {
    hosts: Vec<Host>,
    proxies: Vec<Proxy>,
    clients: Vec<TcpStream>,
    subscriber: Option<Raw>,
}

/// Whether an offer of one more was taken; there was no room for it if not.
fn taken(offered: Result<(), SendError>) -> bool {
    match offered {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.error().detail(), Detail::NoRoom, "{error}");
            false
        }
    }
}

/// A host with these ceilings, and one send on each of the seven ways that waits for room.
fn stuck(ceilings: [Duration; 5]) -> (Host, Peers, [Way; 7]) {
    let deaf = || told(|message, _| drop(message));
    let slow = server("slow").channel("work", deaf()).channel("news", deaf()).start().unwrap();
    let quick = server("quick").channel("news", deaf()).start().unwrap();
    let desk = server("desk-1").server("desk", deaf()).start().unwrap();
    let proxies = vec![Proxy::before(&slow), Proxy::before(&desk)];
    let (sessions, session) = channel();
    let (tokens, token) = channel();
    let tells = move |_| Tells(sessions.clone(), tokens.clone());
    let options = PublisherOptions::new().hwm(ByteSize::kib(64)).slow_subscriber(SlowSubscriber::Wait);
    let host = connected(
        small("host")
            .listen("tcp://127.0.0.1:0")
            .connect(proxies[0].address())
            .connect(address(&quick))
            .send_hwm(Hwm::Bytes(ByteSize::kib(64)))
            .send_timeout(ceilings[0])
            .client_of("desk")
            .server_at(proxies[1].address())
            .client_send_timeout(ceilings[1])
            .publisher(options.timeout(ceilings[2]))
            .stream("tcp://127.0.0.1:0", tells.clone())
            .stream_send_timeout(ceilings[3])
            .stream("tcp://127.0.0.1:0", tells)
            .stream_send_timeout(ceilings[4])
            .socket_buffers(ByteSize::kib(16), ByteSize::kib(16))
            // Nobody's send and nobody's reply ends at this one.
            .request_timeout(Duration::from_millis(1)),
    );
    proxies.iter().for_each(|proxy| proxy.freeze(Lane::Application));
    let full = || vec![7; 4096];
    let client = host.client();
    let (node, work, desk_of) = (client.node("slow"), client.channel("work"), client.server("desk").unwrap());

    let mut clients = Vec::new();
    let at_sockets = [0, 1].map(|socket| {
        let deaf = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        deaf.set_recv_buffer_size(16 << 10).unwrap();
        deaf.connect(&host.stream_addresses()[socket].into()).unwrap();
        let mut deaf = TcpStream::from(deaf);
        deaf.write_all(&[0, 0, 0, 0, 0, 1, b'?']).unwrap();
        clients.push(deaf);
        (session.recv().unwrap(), token.recv().unwrap())
    });
    let subscriber = Raw::subscribe(&host, "t");
    until(|| host.status().publisher.unwrap().subscriptions == 1);
    let publisher = host.publisher().unwrap();
    // Until there is no room and there will be none, because the kernel's buffers are full too.
    let mut refused = 0;
    until(|| {
        let mut some = taken(node.try_send("", full())) | taken(desk_of.try_send("", full()));
        for (session, _) in &at_sockets {
            some |= taken(session.try_send("", full()));
        }
        if let Poll::Ready(Ok(_)) = poll(&mut publisher.publish("t", full())) {
            some = true;
        }
        refused = if some { 0 } else { refused + 1 };
        refused > 600
    });
    let mut publication = publisher.publish("t", full());
    assert!(poll(&mut publication).is_pending());

    let ways = [
        Way::Send(node.send("", full()).submit()),
        Way::Send(work.send("", full()).submit()),
        Way::Send(desk_of.send("", full()).submit()),
        Way::Multicast(client.channel("news").multicast("", full()).submit()),
        Way::Publish(publication),
        Way::Send(at_sockets[0].0.send(full()).submit()),
        Way::Send(at_sockets[1].1.reply(full()).submit()),
    ];
    let peers = Peers { hosts: vec![slow, quick, desk], proxies, clients, subscriber: Some(subscriber) };
    (host, peers, ways)
}

#[test]
fn what_goes_by_a_socket_ends_at_its_ceiling_and_nothing_else_does() {
    let _dog = watch_for(Duration::from_secs(240));
    for short in 0..5 {
        let mut ceilings = [LONG; 5];
        ceilings[short] = SHORT;
        let (host, peers, mut ways) = stuck(ceilings);
        for ((name, own), way) in TABLE.iter().zip(&mut ways).filter(|((_, own), _)| *own == short) {
            let mut end = None;
            until(|| {
                end = way.end(name);
                end.is_some()
            });
            let error = end.unwrap();
            assert_eq!((error.kind(), error.error().detail()), (ErrorKind::DeadlineExceeded, Detail::NoRoom), "{name}");
            assert!(error.error().figures().waited.unwrap() >= SHORT, "{name}: {error}");
            assert_eq!(error.into_payload().len(), 4096, "{name} of ceiling {own}: the payload comes back");
        }
        for ((name, own), way) in TABLE.iter().zip(&mut ways).filter(|((_, own), _)| *own != short) {
            assert!(way.end(name).is_none(), "{name} has ceiling {own} and ended with {short}");
        }
        // The peers first: nobody drains what they will not take.
        let Peers { hosts, proxies, clients, subscriber } = peers;
        drop((ways, proxies, clients, subscriber));
        drop((hosts, host));
    }
}
