//! How a host goes: by the limit that it was given, with an account, and without waiting for those who say nothing.

use std::io::Read;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use afflux::{ByteSize, ErrorKind, Hwm, Lane};

use crate::support::proxy::Proxy;
use crate::support::{
    Door, address, asked, client_of, connected, kept, link, number, padded, server, small, told, until, until_status,
    watch_for,
};

/// Longer than any watchdog.
const LONG: Duration = Duration::from_secs(3600);
const PATIENCE: Duration = Duration::from_secs(30);

/// Case 091. Peers that are idle, and connections that never said a word, hold no shutdown: only what is being
/// handled is waited for, however much time there is.
#[test]
fn who_says_nothing_does_not_hold_a_shutdown() {
    let _dog = watch_for(PATIENCE);
    let door = Door::shut();
    let at_door = door.clone();
    let server = server("server")
        .channel(
            "slow",
            asked(move |request, cx| {
                at_door.pass();
                request.reply(cx, "done");
            }),
        )
        .start()
        .unwrap();
    let _idle = client_of(&server);
    let client = connected(small("other").connect(address(&server)));
    let to = server.addresses()[0];
    let mut mute: Vec<_> = (0..10).map(|_| TcpStream::connect(to).unwrap()).collect();
    let pending = client.client().channel("slow").request("", "").timeout(LONG).submit();
    until(|| door.came() == 1);
    let closing = thread::spawn(move || server.shutdown(LONG));
    // It takes nobody any more: the shutdown has begun, and waits for the one handler.
    until(|| match TcpStream::connect(to) {
        Ok(mut late) => {
            late.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            matches!(late.read(&mut [0]), Ok(0))
        }
        Err(_) => true,
    });
    assert!(!closing.is_finished());
    door.open();
    assert_eq!(pending.wait().unwrap(), "done");
    let account = closing.join().unwrap();
    assert!(account.is_clean(), "{account}");
    for mute in &mut mute {
        // Greeted, and closed.
        let mut rest = Vec::new();
        let _ = mute.read_to_end(&mut rest);
    }
}

/// Cases 090, 092. All at once: its jobs are used up, a thousand sends wait, requests are out, one peer reads nothing,
/// one connection is half open. The shutdown comes back by its limit, every operation has had exactly one end, the
/// threads are gone and the connections closed, and the account says what was not sent.
#[test]
fn a_shutdown_of_a_host_in_trouble_comes_back_by_its_limit() {
    let _dog = watch_for(PATIENCE);
    let (keep, held) = kept();
    let (keep_here, held_here) = kept();
    let deaf = server("deaf").channel("news", told(|m, _| drop(m))).channel("keep", keep).start().unwrap();
    let proxy = Proxy::before(&deaf);
    let host = connected(
        server("zqx")
            .connect(proxy.address())
            .max_jobs(2)
            .max_started_handlers(2)
            .send_hwm(Hwm::Bytes(ByteSize::kib(64)))
            .socket_buffers(ByteSize::kib(16), ByteSize::kib(16))
            .channel("here", keep_here),
    );
    let caller = connected(small("caller").connect(address(&host)));
    let here = caller.client().channel("here");
    let asked: Vec<_> = (0..20).map(|n| here.request("", number(n)).timeout(LONG).submit()).collect();
    let debts: Vec<_> = held_here.iter().take(2).collect();
    until_status(&host, |s| s.is_paused());
    let keep = host.client().channel("keep");
    let out: Vec<_> = (0..5).map(|n| keep.request("", number(n)).timeout(LONG).submit()).collect();
    let owed: Vec<_> = held.iter().take(5).collect();
    proxy.freeze(Lane::Application);
    let news = host.client().channel("news");
    let mut waiting = Vec::new();
    until(|| {
        while news.try_send("", padded(0, 1000)).is_ok() {}
        waiting.push(news.send("", padded(1, 1000)).timeout(LONG).submit());
        link_to(&host, "deaf") == 1000
    });
    let mut half = TcpStream::connect(host.addresses()[0]).unwrap();
    assert!(threads("zqx-") == 2);

    let account = host.shutdown(Duration::from_millis(300));

    assert_eq!(threads("zqx-"), 0, "its threads are joined");
    let of = account.peers.iter().find(|p| &*p.peer == "deaf").unwrap();
    assert!(of.queued_bytes > 32 << 10 && of.waiting == 1000 && of.in_flight == 5, "{account}");
    let mut ended = 0;
    for pending in waiting {
        match pending.wait() {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ShuttingDown, "{error}");
                assert_eq!(error.into_payload().len(), 1000);
                ended += 1;
            }
        }
    }
    assert_eq!(ended, 1000);
    for pending in out {
        assert_eq!(pending.wait().unwrap_err().kind(), ErrorKind::ShuttingDown);
    }
    for pending in asked {
        assert_eq!(pending.wait().unwrap_err().kind(), ErrorKind::Unavailable, "its link is gone");
    }
    let _ = half.read_to_end(&mut Vec::new());
    drop((debts, owed));
    until_status(&deaf, |s| s.links_lost == 1);
    // Who waits hears of the end first; the place comes back after it.
    until(|| link(&caller).in_flight == 0);
}

fn link_to(host: &afflux::Host, peer: &str) -> u64 {
    host.status().links.iter().find(|link| &*link.peer == peer).map_or(0, |link| u64::from(link.waiting))
}

/// Threads of this process of which the name begins so.
fn threads(name: &str) -> usize {
    if !cfg!(target_os = "linux") {
        return if name.is_empty() { 1 } else { 0 };
    }
    let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    names.filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|c| c.starts_with(name))).count()
}
