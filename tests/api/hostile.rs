//! Peers that mean no good, over loopback: what they do costs themselves, and nobody else.

use std::time::Duration;

use afflux::{Detail, ErrorKind};

use crate::support::subscriber::Raw;
use crate::support::{asked, client_of, echo, server, watch};

const LONG: Duration = Duration::from_secs(80);

/// One PONG is pending at a time and the latest wins: signs of life earn few answers, however many they are.
#[test]
fn many_pings_earn_few_pongs() {
    let _dog = watch();
    let server = server("server").channel("echo", asked(echo)).start().unwrap();
    let client = client_of(&server);
    let mut peer = Raw::dial_as(&server, "DEALER", None);
    let pongs = peer.ping(20_000);
    assert!(pongs < 2_000, "{pongs} answers to 20,000 signs of life");
    let reply = client.client().channel("echo").request("", "still there").timeout(LONG).wait().unwrap();
    assert_eq!(&*reply, b"still there");
}

/// Who is no node of ours serves nothing, whatever it announces.
#[test]
fn a_stranger_announces_nothing() {
    let _dog = watch();
    let server = server("server").channel("echo", asked(echo)).start().unwrap();
    let mut peer = Raw::dial_as(&server, "DEALER", None);
    peer.announce(5_000);
    assert!(peer.ping(1) > 0, "all of it was read");
    let error = server.client().channel("channel-5000").request("", "x").timeout(LONG).wait().unwrap_err();
    assert_eq!((error.kind(), error.error().detail()), (ErrorKind::NotFound, Detail::None), "not asked at all");
    let reply = server.client().channel("echo").request("", "mine").timeout(LONG).wait().unwrap();
    assert_eq!(&*reply, b"mine");
}
