//! End clients over plain TCP: what a std `TcpStream` sees of a host's stream sockets.

use std::io::{ErrorKind as IoKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::{small, until, until_or, until_status, watch, watch_for};
use afflux::{
    ByteSize, Context, Detail, ErrorKind, Frame, Host, HostBuilder, Hwm, ReplyToken, Session, SessionEnd,
    SessionHandle, StreamStatus,
};

type OnFrame = dyn Fn(Frame, &mut Context<'_, Play>) + Send + Sync;

/// What a session does, made of closures.
#[derive(Clone)]
struct Play {
    opened: Arc<dyn Fn(SessionHandle) + Send + Sync>,
    frame: Arc<OnFrame>,
    closed: Arc<dyn Fn(SessionEnd) + Send + Sync>,
}

impl Session for Play {
    fn opened(&mut self, session: SessionHandle, _: &mut Context<'_, Self>) {
        (self.opened)(session);
    }

    fn frame(&mut self, frame: Frame, cx: &mut Context<'_, Self>) {
        (self.frame.clone())(frame, cx);
    }

    fn closed(&mut self, why: SessionEnd, _: &mut Context<'_, Self>) {
        (self.closed)(why);
    }
}

fn play(frame: impl Fn(Frame, &mut Context<'_, Play>) + Send + Sync + 'static) -> Play {
    Play { opened: Arc::new(drop), frame: Arc::new(frame), closed: Arc::new(drop) }
}

impl Play {
    fn opened(mut self, opened: impl Fn(SessionHandle) + Send + Sync + 'static) -> Self {
        self.opened = Arc::new(opened);
        self
    }

    fn closed(mut self, closed: impl Fn(SessionEnd) + Send + Sync + 'static) -> Self {
        self.closed = Arc::new(closed);
        self
    }
}

/// Answers every frame with its own body.
fn echo() -> Play {
    play(|frame, _| {
        let body = frame.body().clone();
        frame.reply(body).detach();
    })
}

fn serve(play: Play) -> HostBuilder {
    small("service").stream("tcp://127.0.0.1:0", move |_| play.clone())
}

fn at(host: &Host) -> SocketAddr {
    host.stream_addresses()[0]
}

fn status(host: &Host) -> StreamStatus {
    host.status().streams.remove(0)
}

#[track_caller]
fn until_stream(host: &Host, holds: impl Fn(&StreamStatus) -> bool) {
    until_or(|| holds(&status(host)), || format!("{:#?}", status(host)));
}

fn encoded(header: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u16).to_be_bytes().to_vec();
    bytes.extend((body.len() as u32).to_be_bytes());
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(body);
    bytes
}

/// A plain client.
struct Client(TcpStream);

impl Client {
    fn of(host: &Host) -> Client {
        let stream = TcpStream::connect(at(host)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client(stream)
    }

    /// One that will take nothing: its window does not grow while it is not read.
    fn deaf(host: &Host) -> Client {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(16 << 10).unwrap();
        socket.connect(&at(host).into()).unwrap();
        Client(socket.into())
    }

    fn send(&mut self, header: &[u8], body: &[u8]) {
        self.0.write_all(&encoded(header, body)).unwrap();
    }

    fn receive(&mut self) -> (Vec<u8>, Vec<u8>) {
        let mut prefix = [0; 6];
        self.0.read_exact(&mut prefix).unwrap();
        let header = usize::from(u16::from_be_bytes([prefix[0], prefix[1]]));
        let body = u32::from_be_bytes([prefix[2], prefix[3], prefix[4], prefix[5]]) as usize;
        let mut bytes = vec![0; header + body];
        self.0.read_exact(&mut bytes).unwrap();
        let body = bytes.split_off(header);
        (bytes, body)
    }

    /// Whether the connection has ended, with or without a reset.
    fn is_over(&mut self) -> bool {
        match self.0.read(&mut [0; 64]) {
            Ok(0) => true,
            Ok(_) => false,
            Err(e) => matches!(e.kind(), IoKind::ConnectionReset | IoKind::BrokenPipe | IoKind::ConnectionAborted),
        }
    }
}

#[test]
fn a_frame_comes_back_with_its_header() {
    let _dog = watch();
    let host = serve(echo()).start().unwrap();
    let mut client = Client::of(&host);
    for (header, body) in [("", ""), ("id-1", "hello"), ("", "no header"), ("only a header", "")] {
        client.send(header.as_bytes(), body.as_bytes());
        assert_eq!(client.receive(), (header.into(), body.into()));
    }
    let largest = vec![b'x'; 64 << 10];
    client.send(b"", &largest);
    assert_eq!(client.receive().1, largest);
    drop(client);
    until_stream(&host, |s| s.sessions == 0);
    let s = status(&host);
    let bytes: u64 = [0, 9, 9, 13, 64 << 10].iter().sum();
    assert_eq!((s.opened, s.frames_in, s.frames_out, s.ended(SessionEnd::Client)), (1, 5, 5, 1));
    assert_eq!((s.bytes_in, s.bytes_out, s.refused, s.lost), (bytes + 5 * 6, bytes, 0, 0));
}

/// A client that takes nothing fills its own queue and no other's: sends to it end at their ceilings, a lively
/// client on the same shard is served all the while, and once the stalled one reads, all that was accepted comes,
/// in order (field cases 015, 072).
#[test]
fn a_client_that_takes_nothing_stalls_only_itself() {
    let _dog = watch();
    let (sessions, session) = channel();
    let host = serve(echo().opened(move |session| drop(sessions.send(session))))
        .socket_buffers(ByteSize::kib(16), ByteSize::kib(16))
        .stream_hwm(Hwm::Bytes(ByteSize::kib(128)), Hwm::Auto)
        .stream_send_timeout(Duration::from_millis(50))
        .start()
        .unwrap();
    let mut stalled = Client::deaf(&host);
    let to_stalled = session.recv().unwrap();
    let mut lively = Client::of(&host);
    let (mut accepted, mut refused, mut full) = (0_u32, 0, None);
    while refused < 2 {
        match to_stalled.send(accepted.to_be_bytes().repeat(1024)).wait() {
            Ok(()) => (accepted, refused) = (accepted + 1, 0),
            Err(e) => {
                refused += 1;
                full = Some(e);
            }
        }
        lively.send(b"", b"still here?");
        assert_eq!(lively.receive().1, b"still here?");
    }
    let e = full.unwrap();
    assert_eq!((e.kind(), e.error().detail()), (ErrorKind::DeadlineExceeded, Detail::NoRoom));
    let figures = e.error().figures();
    assert!(figures.waited.unwrap() >= Duration::from_millis(50), "{e}");
    assert_eq!((figures.limit, figures.requested), (Some(128 << 10), Some(4096 + 64)));
    assert!(e.to_string().contains(&stalled.0.local_addr().unwrap().to_string()), "the client is named: {e}");
    assert_eq!(e.into_payload().len(), 4096);

    let after = to_stalled.clone();
    let end = std::thread::spawn(move || after.send("the end").timeout(Duration::from_secs(1)).wait());
    for n in 0..accepted {
        assert_eq!(stalled.receive().1, n.to_be_bytes().repeat(1024), "frame {n} of {accepted}");
    }
    if end.join().unwrap().is_ok() {
        assert_eq!(stalled.receive().1, b"the end");
    }
    assert!(status(&host).waits >= 2);
}

/// The limit is looked at before anything is allocated; the connection ends, and it alone (field cases 112, 113).
#[test]
fn a_frame_above_the_limit_ends_its_connection() {
    let _dog = watch();
    let (ends, ended) = channel();
    let handled = Arc::new(Mutex::new(0));
    let counts = handled.clone();
    let played = play(move |frame, _| {
        *counts.lock().unwrap() += 1;
        let body = frame.body().clone();
        frame.reply(body).detach();
    });
    let host = serve(played.closed(move |why| ends.send(why).unwrap_or_default()))
        .stream_max_message_size(ByteSize::bytes(1000))
        .start()
        .unwrap();
    let mut honest = Client::of(&host);
    let foreign: [&[u8]; 4] = [
        &encoded(&[1; 500], &[2; 501])[..],
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &[0xFF; 6],
        &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01],
    ];
    for (n, bytes) in foreign.into_iter().enumerate() {
        let mut client = Client::of(&host);
        client.send(b"", b"before");
        client.0.write_all(bytes).unwrap();
        assert_eq!(ended.recv().unwrap(), SessionEnd::Oversize);
        until(|| client.is_over());
        until_stream(&host, |s| s.ended(SessionEnd::Oversize) == n as u64 + 1);
        assert_eq!(*handled.lock().unwrap(), n + 1, "what came before it was whole");
    }
    honest.send(&[1; 500], &[2; 500]);
    assert_eq!(honest.receive(), (vec![1; 500], vec![2; 500]));
    assert_eq!(status(&host).sessions, 1);
}

/// What was read is handled and answered before the end, also by tokens that are elsewhere.
#[test]
fn a_client_that_ends_its_direction_gets_its_answers() {
    let _dog = watch();
    let (tokens, token) = channel::<ReplyToken>();
    let (ends, ended) = channel();
    let played = play(move |frame, _| match frame.body().as_ref() {
        b"later" => drop(tokens.send(frame.into_parts().0)),
        _ => {
            let body = frame.body().clone();
            frame.reply(body).detach();
        }
    });
    let host = serve(played.closed(move |why| ends.send(why).unwrap_or_default())).start().unwrap();
    let mut client = Client::of(&host);
    for n in 0..200_u32 {
        client.send(b"", &n.to_be_bytes());
    }
    client.send(b"token", b"later");
    client.0.shutdown(Shutdown::Write).unwrap();
    for n in 0..200_u32 {
        assert_eq!(client.receive().1, n.to_be_bytes());
    }
    let token = token.recv().unwrap();
    assert!(ended.try_recv().is_err(), "an answer is outstanding");
    token.reply("at last").wait().unwrap();
    assert_eq!(client.receive(), (b"token".to_vec(), b"at last".to_vec()));
    assert!(ended.try_recv().is_err(), "the token could be asked whether it is used");
    drop(token);
    assert!(client.is_over());
    assert_eq!(ended.recv().unwrap(), SessionEnd::Client);
}

/// A token works once, even if the first attempt failed, and its clones are the same token.
#[test]
fn a_token_works_once() {
    let _dog = watch();
    let (tokens, token) = channel::<ReplyToken>();
    let host = serve(play(move |frame, _| drop(tokens.send(frame.into_parts().0)))).start().unwrap();
    let mut client = Client::of(&host);
    client.send(b"q", b"");
    let first = token.recv().unwrap();
    let second = first.clone();
    drop(first.reply("not started"));
    assert!(!second.is_used());
    first.reply("one").wait().unwrap();
    let e = second.reply("two").wait().unwrap_err();
    assert_eq!((e.kind(), e.error().detail()), (ErrorKind::InvalidOperation, Detail::TokenUsed));
    assert_eq!(e.into_payload(), "two");
    assert_eq!(client.receive(), (b"q".to_vec(), b"one".to_vec()));

    client.send(b"r", b"");
    let failing = token.recv().unwrap();
    let too_large = vec![0; 1 << 20];
    assert_eq!(failing.reply(too_large).wait().unwrap_err().error().detail(), Detail::MessageTooLarge);
    let e = failing.reply("small").wait().unwrap_err();
    assert_eq!(e.error().detail(), Detail::TokenUsed, "no second chance after a failed reply");
}

/// A host with a client that takes nothing and whose queue is full.
fn full(builder: HostBuilder, session: &Receiver<SessionHandle>) -> (Host, Client, SessionHandle) {
    let builder = builder.socket_buffers(ByteSize::kib(16), ByteSize::kib(16));
    let host = builder.start().unwrap();
    let client = Client::deaf(&host);
    let session = session.recv().unwrap();
    // The kernel's buffers are full when the queue is full and stays so, also while the kernel asks the client.
    let mut refused = 0;
    until(|| {
        match session.try_send("", vec![0; 4096]) {
            Ok(()) => refused = 0,
            Err(e) => {
                assert_eq!(e.error().detail(), Detail::NoRoom);
                refused += 1;
            }
        }
        refused > 600
    });
    (host, client, session)
}

/// A send and a reply end at their own socket's ceiling: not at the host's, not at another socket's. A call
/// shortens a send, never lengthens it; nothing changes a reply's.
#[test]
fn each_path_ends_at_its_own_ceiling() {
    let _dog = watch();
    let ms = Duration::from_millis;
    let (sessions, session) = channel();
    let (tokens, token) = channel::<ReplyToken>();
    let played = play(move |frame, _| drop(tokens.send(frame.into_parts().0)));
    let builder = serve(played.opened(move |session| drop(sessions.send(session))))
        .stream_send_timeout(ms(300))
        .stream("tcp://127.0.0.1:0", |_| echo())
        .stream_send_timeout(Duration::from_secs(3600))
        .send_timeout(ms(20))
        .request_timeout(Duration::from_secs(3600));
    let (_host, mut client, session) = full(builder, &session);
    client.send(b"", b"question");
    let token = token.recv().unwrap();
    let waited = |e: afflux::SendError| {
        assert_eq!((e.kind(), e.error().detail()), (ErrorKind::DeadlineExceeded, Detail::NoRoom), "{e}");
        e.error().figures().waited.unwrap()
    };
    let large = || vec![0; 4096];
    let begin = Instant::now();
    let send = waited(session.send(large()).wait().unwrap_err());
    assert!(send >= ms(300) && send <= begin.elapsed(), "{send:?}");
    let shorter = waited(session.send(large()).timeout(ms(40)).wait().unwrap_err());
    assert!((ms(40)..ms(300)).contains(&shorter), "{shorter:?}");
    let begin = Instant::now();
    let longer = waited(session.send(large()).timeout(Duration::from_secs(3000)).wait().unwrap_err());
    assert!(longer >= ms(300) && longer <= begin.elapsed(), "{longer:?}");
    let reply = waited(token.reply(large()).wait().unwrap_err());
    assert!(reply >= ms(300), "{reply:?}");
    let zero = session.send("x").timeout(Duration::ZERO).wait().unwrap_err();
    assert_eq!(zero.kind(), ErrorKind::InvalidOperation);
}

/// The limit of sessions holds, one above it is closed and counted, and a place that is free is taken again
/// (field case 109).
#[test]
fn thousands_of_sessions_and_not_one_more() {
    let _dog = watch_for(Duration::from_secs(240));
    const LIMIT: usize = 2000;
    let host = serve(echo()).stream_sessions(LIMIT as u64).start().unwrap();
    let mut clients: Vec<Client> = (0..LIMIT).map(|_| Client::of(&host)).collect();
    until_stream(&host, |s| s.opened == LIMIT as u64);
    for _ in 0..3 {
        assert!(Client::of(&host).is_over());
    }
    let s = status(&host);
    assert_eq!((s.sessions, s.sessions_peak, s.sessions_max, s.refused), (2000, 2000, 2000, 3));
    for (n, client) in clients.iter_mut().enumerate() {
        client.send(&(n as u32).to_be_bytes(), b"x");
    }
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.receive(), ((n as u32).to_be_bytes().to_vec(), b"x".to_vec()));
    }
    clients.truncate(LIMIT - 10);
    until_stream(&host, |s| s.sessions == LIMIT as u32 - 10);
    let mut late = Client::of(&host);
    late.send(b"", b"in");
    assert_eq!(late.receive().1, b"in");
    drop(clients);
    until_stream(&host, |s| s.sessions == 1);
    assert_eq!(host.status().links.len(), 0, "clients are not peers");
}

/// A client that floods and takes no answer is not read on; those beside it are served, and the waiting room stays
/// theirs (promise 4; field cases 075, 079).
#[test]
fn a_client_that_floods_and_takes_nothing_is_not_read_on() {
    let _dog = watch();
    let host = serve(echo())
        .socket_buffers(ByteSize::kib(16), ByteSize::kib(16))
        .max_jobs(16)
        .waiting_room(256, ByteSize::mib(32))
        .start()
        .unwrap();
    let floods: Vec<Client> = (0..8)
        .map(|_| {
            let mut flood = Client::deaf(&host);
            flood.0.set_nonblocking(true).unwrap();
            let frames = encoded(b"", &[7; 1000]).repeat(64);
            let mut refused = 0;
            until(|| {
                // What is cut off here is a frame of a client that sends no more.
                match flood.0.write(&frames) {
                    Ok(_) => refused = 0,
                    Err(e) if e.kind() == IoKind::WouldBlock => refused += 1,
                    Err(e) => panic!("{e}"),
                }
                refused > 100
            });
            flood
        })
        .collect();
    let mut honest = Client::of(&host);
    for n in 0..500_u32 {
        honest.send(b"", &n.to_be_bytes());
        assert_eq!(honest.receive().1, n.to_be_bytes());
    }
    let now = host.status();
    assert_eq!(now.waiting_room_full, 0, "nobody's answer was thrown out: {now:#?}");
    assert!(now.waiting <= 8 * 16, "{}", now.waiting);
    drop(floods);
    until_stream(&host, |s| s.sessions == 1);
}

/// What was accepted is written before a shutdown ends; what was not is told, client by client; every session gets
/// its last callback.
#[test]
fn a_shutdown_drains_and_tells_what_it_could_not() {
    let _dog = watch();
    let (sessions, session) = channel();
    let (ends, ended) = channel();
    let played = echo().opened(move |session| drop(sessions.send(session)));
    let builder = serve(played.closed(move |why| ends.send(why).unwrap_or_default()));
    let (host, stalled, to_stalled) = full(builder, &session);
    let mut good = Client::of(&host);
    let to_good = session.recv().unwrap();
    for n in 0..100_u32 {
        to_good.send(n.to_be_bytes().to_vec()).wait().unwrap();
    }
    let waiting = to_stalled.send(vec![0; 4096]).submit();
    let account = host.shutdown(Duration::from_millis(300));
    assert!(!account.is_clean());
    assert_eq!(account.peers.len(), 1, "{account}");
    assert!(account.to_string().contains(&stalled.0.local_addr().unwrap().to_string()), "{account}");
    assert!(account.peers[0].queued_bytes > 0);
    let e = waiting.wait().unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::ShuttingDown | ErrorKind::DeadlineExceeded), "{e}");
    for n in 0..100_u32 {
        assert_eq!(good.receive().1, n.to_be_bytes());
    }
    assert!(good.is_over());
    let mut reasons = [ended.recv().unwrap(), ended.recv().unwrap()];
    reasons.sort_by_key(|why| *why as u8);
    assert_eq!(reasons, [SessionEnd::Shutdown; 2]);
    let e = to_good.send("x").wait().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ShuttingDown);
}

/// A panic ends its session and no other; the shard lives, and the next client gets a session of its own.
#[test]
fn a_panic_ends_its_session_alone() {
    let _dog = watch();
    let played = play(|frame, _| {
        assert_ne!(frame.body().as_ref(), b"die");
        let body = frame.body().clone();
        frame.reply(body).detach();
    });
    let host = serve(played).start().unwrap();
    let (mut first, mut second) = (Client::of(&host), Client::of(&host));
    first.send(b"", b"die");
    first.0.shutdown(Shutdown::Write).unwrap();
    assert!(first.is_over());
    until_stream(&host, |s| s.ended(SessionEnd::Panicked) == 1);
    second.send(b"", b"alive");
    assert_eq!(second.receive().1, b"alive");
    until_status(&host, |s| s.handler_panics == 1);
    assert_eq!(status(&host).sessions, 1);
}

/// A session calls others before it answers, and sends that nobody waits for end with their client.
#[test]
fn a_session_calls_a_channel_and_answers_with_what_it_got() {
    let _dog = watch();
    let played = play(|frame, cx| {
        let (token, _, body) = frame.into_parts();
        let asked = cx.channel("upper").request("", body);
        asked.then(cx, move |_, outcome, cx| {
            let reply = token.reply(outcome.unwrap_or_else(|e| e.to_string().into()));
            reply.then(cx, |_, sent, _| sent.expect("room"));
        });
    });
    let back = crate::support::server("back")
        .channel(
            "upper",
            crate::support::asked(|r, cx| {
                let upper = r.payload().to_ascii_uppercase();
                r.reply(cx, upper);
            }),
        )
        .start()
        .unwrap();
    let host = serve(played).connect(crate::support::address(&back)).start().unwrap();
    let mut client = Client::of(&host);
    for text in ["abc", "water"] {
        client.send(b"id", text.as_bytes());
    }
    client.0.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.receive(), (b"id".to_vec(), b"ABC".to_vec()));
    assert_eq!(client.receive(), (b"id".to_vec(), b"WATER".to_vec()), "continuations end before the session");
    assert!(client.is_over());
    until_stream(&host, |s| s.ended(SessionEnd::Client) == 1);
}

/// Closing from this side: what was accepted goes out, what came is answered, then the end. A client that is gone
/// is `Unavailable` for everybody who still holds it, those who wait included.
#[test]
fn closing_from_this_side_and_sending_to_nobody() {
    let _dog = watch();
    let (sessions, session) = channel();
    let host = serve(echo().opened(move |session| drop(sessions.send(session))))
        .socket_buffers(ByteSize::kib(16), ByteSize::kib(16))
        .stream_send_timeout(Duration::from_secs(80))
        .start()
        .unwrap();
    let mut client = Client::of(&host);
    let held = session.recv().unwrap();
    assert_eq!(
        (held.peer(), held.socket(), held.is_open()),
        (client.0.local_addr().unwrap(), "tcp://127.0.0.1:0", true)
    );
    for n in 0..10_u32 {
        held.send_frame(n.to_be_bytes().to_vec(), "bye").wait().unwrap();
    }
    held.close();
    assert_eq!(held.send("late").wait().unwrap_err().kind(), ErrorKind::Unavailable);
    for n in 0..10_u32 {
        assert_eq!(client.receive(), (n.to_be_bytes().to_vec(), b"bye".to_vec()));
    }
    assert!(client.is_over());
    until(|| !held.is_open());
    drop(client);
    until_stream(&host, |s| s.ended(SessionEnd::Closed) == 1);

    let client = Client::of(&host);
    let held = session.recv().unwrap();
    let waiting = loop {
        let mut pending = held.send(vec![0; 4096]).submit();
        // A full queue and a kernel that takes no more look the same from here; the one that stays waits.
        if pending.try_take().is_none() {
            break pending;
        }
    };
    drop(client);
    let e = waiting.wait();
    if let Err(e) = e {
        assert_eq!((e.kind(), e.error().detail()), (ErrorKind::Unavailable, Detail::Detached));
    }
    until_stream(&host, |s| s.sessions == 0);
    let e = held.send("x").wait().unwrap_err();
    assert_eq!((e.kind(), e.error().detail()), (ErrorKind::Unavailable, Detail::Detached));
    assert_eq!(e.into_payload(), "x");
}

/// A send ends at its ceiling even while the client's shard is stuck in user code (promise 5), and connections that
/// never say a word are closed at the idle time.
#[test]
fn a_stuck_shard_and_a_silent_client() {
    let _dog = watch();
    let (sessions, session) = channel();
    let (entered, inside) = channel();
    let (go, going) = channel::<()>();
    let going = Mutex::new(going);
    let played = play(move |frame, _| {
        entered.send(()).unwrap();
        going.lock().unwrap().recv().unwrap();
        frame.reply("").detach();
    });
    let builder = serve(played.opened(move |session| drop(sessions.send(session))))
        .stream_send_timeout(Duration::from_millis(60))
        .stream("tcp://127.0.0.1:0", |_| echo())
        .stream_idle(Duration::from_millis(100));
    let (host, mut client, session) = full(builder, &session);
    client.send(b"", b"stick");
    inside.recv().unwrap();
    let e = session.send(vec![0; 4096]).wait().unwrap_err();
    assert_eq!(e.error().detail(), Detail::NoRoom);
    go.send(()).unwrap();
    let mut silent = Client(TcpStream::connect(host.stream_addresses()[1]).unwrap());
    assert!(silent.is_over());
    until_or(|| host.status().streams[1].ended(SessionEnd::Idle) == 1, || format!("{:#?}", host.status().streams));
    assert_eq!(status(&host).ended(SessionEnd::Idle), 0, "a socket's idle time is its own");
}
