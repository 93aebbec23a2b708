//! What a host is started with, what it shows, and how it ends.

use std::fs;
use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::time::Duration;

use afflux::{
    ByteSize, Channel, Client, Context, Error, ErrorKind, Frame, Host, HostPlan, HostStatus, Hwm, Latency,
    LocalChannel, LocalClient, Message, OneWay, Pending, Placement, RemoteResponder, ReplyToken, Request, RequestError,
    RequestOp, Responder, SendError, SendOp, SessionHandle, SessionReply, SessionSend, TwoWay,
};

use crate::support::proxy::Proxy;
use crate::support::{
    Door, address, as_number, asked, client_of, connected, echo, kept, number, padded, server, serving, small, told,
    until, until_status, watch,
};

const LONG: Duration = Duration::from_secs(80);

/// What may cross threads, and what may not, is a part of the API: a handler's things stay on their shard.
mod threads {
    use super::*;

    fn is_send<T: Send>() {}
    fn is_shared<T: Send + Sync>() {}
    fn is_handle<T: Clone + Send + Sync>() {}

    /// Compiles for `T: !Send` alone: for a `Send` one both implementations apply, and the call is ambiguous.
    trait StaysHere<Which> {
        fn stays() {}
    }
    struct Sends;
    impl<T: ?Sized> StaysHere<()> for T {}
    impl<T: ?Sized + Send> StaysHere<Sends> for T {}

    #[test]
    fn what_crosses_threads_and_what_stays() {
        is_shared::<Host>();
        is_handle::<Client>();
        is_handle::<Channel>();
        is_send::<Pending<OneWay>>();
        is_send::<Pending<TwoWay>>();
        is_send::<SendOp<'static>>();
        is_send::<RequestOp<'static>>();
        is_send::<RemoteResponder>();
        is_send::<Message>();
        is_handle::<SessionHandle>();
        is_handle::<ReplyToken>();
        is_send::<Frame>();
        is_send::<SessionSend>();
        is_send::<SessionReply>();
        is_shared::<SendError>();
        is_shared::<RequestError>();
        is_shared::<Error>();
        is_shared::<HostStatus>();
        is_shared::<HostPlan>();
        <Responder as StaysHere<_>>::stays();
        <Request as StaysHere<_>>::stays();
        <LocalClient as StaysHere<_>>::stays();
        <LocalChannel as StaysHere<_>>::stays();
        <Context<'static, crate::support::Service> as StaysHere<_>>::stays();
    }
}

/// One attempt names every value that breaks its rule, with option, value and rule.
#[test]
fn every_broken_rule_is_named_at_once() {
    let _dog = watch();
    let error = small("not a name")
        .listen("tcp://127.0.0.1:0")
        .connect("nonsense")
        .links(65)
        .max_jobs(0)
        .pause_resume(60, 80)
        .send_timeout(Duration::ZERO)
        .heartbeat(Duration::from_secs(2), Duration::from_secs(1))
        .send_hwm(Hwm::Bytes(ByteSize::bytes(0)))
        .channel("echo", asked(echo))
        .weight(10_001)
        .channel("echo", asked(echo))
        .start()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let mut options: Vec<_> = error.violations().iter().map(|v| v.option).collect();
    options.sort_unstable();
    options.dedup();
    let expected = [
        "channel",
        "connect",
        "heartbeat",
        "links",
        "max_jobs",
        "name",
        "pause_resume",
        "send_hwm",
        "send_timeout",
        "weight",
    ];
    assert_eq!(options, expected, "{error}");
    for violation in error.violations() {
        assert!(!violation.value.is_empty() && !violation.rule.is_empty(), "{violation:?}");
        assert!(error.to_string().contains(&violation.to_string()), "{error}");
    }
    for wrong in
        [small("n").max_jobs(1 << 31), small("n").connect("tcp://127.0.0.1:1").links(0), small("n").max_jobs(0)]
    {
        assert_eq!(wrong.start().unwrap_err().violations().len(), 1);
    }
}

/// Nothing is bound if any value breaks its rule: the address of a host that was refused is free.
#[test]
fn a_refused_start_binds_nothing() {
    let _dog = watch();
    let probe = TcpListener::bind("127.0.0.1:0").unwrap();
    let free = format!("tcp://{}", probe.local_addr().unwrap());
    drop(probe);
    small("n").listen(&free).max_jobs(0).start().unwrap_err();
    let taken = small("n").listen(&free).start().unwrap();
    let error = small("m").listen(&free).start().unwrap_err();
    assert_eq!((error.kind(), error.violations()[0].option), (ErrorKind::Config, "listen"));
    // The second one's failure is not the first one's business.
    assert_eq!(address(&taken), free);
}

/// Several hosts in one process are normal: nothing is global, each counts for itself.
#[test]
fn several_hosts_live_in_one_process() {
    let _dog = watch();
    let servers: Vec<_> =
        (0..3).map(|i| server(&format!("server-{i}")).channel("echo", asked(echo)).start().unwrap()).collect();
    let clients: Vec<_> = servers.iter().map(client_of).collect();
    for (i, client) in clients.iter().enumerate() {
        for _ in 0..=i {
            client.client().channel("echo").request("", "x").wait().unwrap();
        }
    }
    for (i, (server, client)) in servers.iter().zip(&clients).enumerate() {
        let n = i as u64 + 1;
        until(|| (server.status().received, client.status().replies) == (n, n));
    }
    // Members of one channel share its requests, by weight.
    let all = servers.iter().fold(small("all"), |builder, server| builder.connect(address(server)));
    let all = connected(all);
    let echo = all.client().channel("echo");
    for _ in 0..30 {
        echo.request("", "x").wait().unwrap();
    }
    for (i, server) in servers.iter().enumerate() {
        assert_eq!(server.status().received, i as u64 + 1 + 10, "a third each");
    }
}

/// At a quiet moment everything that was received was handled, and nothing is held anywhere.
#[test]
fn counts_add_up_at_a_quiet_moment() {
    let _dog = watch();
    let server = server("server").channel("in", serving(echo, |_, _| {})).start().unwrap();
    let client = client_of(&server);
    let channel = client.client().channel("in");
    let pending: Vec<_> = (0..300).map(|n| channel.request("", number(n)).timeout(LONG).submit()).collect();
    for n in 0..200 {
        channel.send("", number(n)).timeout(LONG).wait().unwrap();
    }
    for pending in pending {
        pending.wait().unwrap();
    }
    until_status(&server, |s| s.delivered == 500 && s.permits.in_use == 0);
    // Who waits is woken first, and counted after; so is the peer that takes what a shard writes.
    until_status(&client, |s| s.replies == 300 && s.requests == 0 && s.links[0].written == 500);
    let (s, c) = (server.status(), client.status());
    assert_eq!((s.received, s.delivered, s.no_handler, s.malformed, s.handler_panics), (500, 500, 0, 0, 0));
    assert_eq!((c.replies, c.requests, c.waiting, c.late_replies, c.reply_hold_bytes), (300, 0, 0, 0, 0));
    assert_eq!((c.links[0].written, c.links[0].queued_bytes, c.links[0].in_flight), (500, 0, 0));
    assert_eq!((s.owned_bytes, s.reply_bytes, s.links[0].reply_bytes), (0, 0, 0));
    assert!(c.requests_peak >= 1);
    assert!(!format!("{s:?}").is_empty() && client.plan_report().contains("waiting room"));
}

/// The account of a shutdown says per peer what was not delivered, and each operation still open has ended
/// in `ShuttingDown`; what was accepted and could go out went out.
#[test]
fn a_shutdown_accounts_for_every_peer() {
    let _dog = watch();
    let (keep, held) = kept();
    let server = server("server").channel("keep", keep).start().unwrap();
    let nobody = Proxy::to_nobody();
    let client = small("client")
        .connect(address(&server))
        .connect(nobody.address())
        .named("away")
        .send_hwm(Hwm::Bytes(ByteSize::kib(1)))
        .start()
        .unwrap();
    let (keep, away) = (client.client().channel("keep"), client.client().node("away"));
    let unanswered = keep.request("", "x").timeout(LONG).submit();
    let debt = held.recv().unwrap();
    away.send("", padded(0, 500)).wait().unwrap();
    let waiting = away.send("", padded(1, 1000)).timeout(LONG).submit();
    let account = client.shutdown(Duration::from_millis(50));
    assert!(!account.is_clean());
    let of = |name: &str| account.peers.iter().find(|p| &*p.peer == name).unwrap().clone();
    assert_eq!((of("away").queued_bytes, of("away").waiting, of("away").in_flight), (564, 1, 0));
    assert_eq!((of("server").queued_bytes, of("server").waiting, of("server").in_flight), (0, 0, 1));
    assert_eq!(account.peers.len(), 2);
    assert!(account.to_string().contains("away: 564 bytes not sent"), "{account}");
    assert_eq!(unanswered.wait().unwrap_err().kind(), ErrorKind::ShuttingDown);
    let error = waiting.wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ShuttingDown);
    assert_eq!(error.into_payload().len(), 1000);
    // Handles outlive the host, and say so.
    let error = keep.send("", "mine").wait().unwrap_err();
    assert_eq!((error.kind(), error.into_payload()), (ErrorKind::ShuttingDown, "mine".into()));
    assert_eq!(keep.request("", "mine").wait().unwrap_err().kind(), ErrorKind::ShuttingDown);
    drop(debt);
}

/// What was accepted goes out before the end, and started handlers are waited for, within the deadline.
#[test]
fn a_shutdown_lets_go_out_what_was_accepted() {
    let _dog = watch();
    let (tell, heard) = channel();
    let door = Door::shut();
    let at_door = door.clone();
    let server = server("server")
        .channel(
            "news",
            told(move |m, _| {
                at_door.pass();
                tell.send(m.into_payload()).unwrap();
            }),
        )
        .start()
        .unwrap();
    let client = client_of(&server);
    let key = door.key();
    let news = client.client().channel("news");
    for n in 0..500 {
        news.send("", number(n)).timeout(LONG).wait().unwrap();
    }
    let account = client.shutdown(LONG);
    assert!(account.is_clean(), "{account}");
    assert_eq!(account.to_string(), "everything accepted was written to its peer");
    until(|| door.came() == 1);
    drop(key);
    let account = server.shutdown(LONG);
    assert!(account.is_clean(), "{account}");
    let heard: Vec<_> = heard.try_iter().map(|payload| as_number(&payload)).collect();
    assert_eq!(heard, (0..500).collect::<Vec<_>>());
}

/// `dump()` writes an interval log and a percentile file per histogram, as the standard tools read them.
#[test]
fn a_dump_writes_histogram_files() {
    let _dog = watch();
    let server = server("server").channel("echo", asked(echo)).start().unwrap();
    let client = client_of(&server);
    let echo = client.client().channel("echo");
    for _ in 0..100 {
        echo.request("", "x").wait().unwrap();
    }
    let dir = std::env::temp_dir().join(format!("afflux-dump-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let set = client.dump(dir.join("run")).unwrap();
    assert_eq!(set.get(Latency::Request).len(), 100);
    let mut names: Vec<_> =
        fs::read_dir(&dir).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let log = fs::read_to_string(dir.join("run.hlog")).unwrap();
    assert!(log.starts_with("#[") && log.contains("\"StartTimestamp\"") && log.contains("Tag="), "{log}");
    let hgrm: Vec<_> = names.iter().filter(|n| n.ends_with(".hgrm")).collect();
    assert!(!hgrm.is_empty(), "{names:?}");
    for name in hgrm {
        let text = fs::read_to_string(dir.join(name)).unwrap();
        assert!(text.contains("Percentile") && text.contains("#[Max"), "{name}: {text}");
    }
    // The next one begins afresh.
    assert_eq!(client.dump(dir.join("next")).unwrap().get(Latency::Request).len(), 0);
    fs::remove_dir_all(&dir).unwrap();
    assert!(client.dump(dir.join("gone")).is_err());
}

/// The placement that was asked for is what runs.
#[test]
fn as_many_shards_as_were_asked_for() {
    let _dog = watch();
    for n in [1, 2, 5] {
        let host = Host::builder("n").shards(Placement::Count(n)).pinning(afflux::Pinning::Off).start().unwrap();
        let status = host.status();
        assert_eq!(status.shards.len(), n);
        assert!(status.shards.iter().all(|s| !s.pinned));
        assert!(host.shutdown(Duration::from_secs(1)).is_clean());
    }
}
