//! Marks that nobody set follow the number of links: they fall at once when links come, and rise when links
//! have gone for a while.

use std::time::Duration;

use afflux::{ByteSize, Detail, Host, Hwm, Lane};

use crate::support::proxy::Proxy;
use crate::support::{
    address, asked, connected, echo, kept, padded, server, small, until, until_or, until_status, watch,
};

const LONG: Duration = Duration::from_secs(80);
const MIB: u64 = 1 << 20;

fn marks(host: &Host) -> (Vec<u64>, u64) {
    let status = host.status();
    (status.links.iter().map(|link| link.send_mark).collect(), status.receive_mark)
}

/// A link is up here when its other end says so, or a moment later.
#[track_caller]
fn until_marks(host: &Host, expected: (Vec<u64>, u64)) {
    until_or(|| marks(host) == expected, || format!("{:?} instead of {expected:?}", marks(host)));
}

fn guest(center: &Host, n: usize) -> Host {
    connected(small(&format!("guest-{n}")).connect(address(center)))
}

#[test]
fn marks_fall_with_the_links_that_come_and_rise_when_they_have_gone() {
    let _dog = watch();
    let center = server("center").hwm_budget(ByteSize::mib(4)).channel("echo", asked(echo)).start().unwrap();
    until_marks(&center, (vec![], MIB));
    let mut guests: Vec<Host> = (0..2).map(|n| guest(&center, n)).collect();
    until_marks(&center, (vec![MIB; 2], MIB));
    guests.extend((2..8).map(|n| guest(&center, n)));
    until_marks(&center, (vec![MIB / 4; 8], MIB / 4));
    assert_eq!((center.status().budget, center.status().budget_insufficient), (4 * MIB, false));
    guests.truncate(4);
    until_status(&center, |s| s.links.len() == 4);
    assert_eq!(marks(&center), (vec![MIB / 4; 4], MIB / 4), "not yet: they may come back");
    until_marks(&center, (vec![MIB / 2; 4], MIB / 2));
    guests.push(guest(&center, 9));
    let fifth = 4 * MIB / 10;
    until_marks(&center, (vec![fifth; 5], fifth));
}

/// A mark that the user set stays what it is.
#[test]
fn a_stated_mark_does_not_move() {
    let _dog = watch();
    let center = server("center")
        .hwm_budget(ByteSize::mib(4))
        .send_hwm(Hwm::Bytes(ByteSize::mib(1)))
        .receive_hwm(Hwm::Unlimited)
        .start()
        .unwrap();
    let _guests: Vec<Host> = (0..2).map(|n| guest(&center, n)).collect();
    until_marks(&center, (vec![MIB; 2], 0));
}

/// Whoever waits at a mark that rises is admitted, and a link that is parked at one is read on.
#[test]
fn who_waits_at_a_mark_that_rises_goes_on() {
    let _dog = watch();
    let (keep, held) = kept();
    let center = server("center")
        .hwm_budget(ByteSize::mib(2))
        .max_jobs(1)
        .max_started_handlers(1)
        .channel("keep", keep)
        .start()
        .unwrap();
    let proxy = Proxy::before(&center);
    let one = connected(
        small("one")
            .connect(proxy.address())
            .node_handler(asked(echo))
            .socket_buffers(ByteSize::kib(16), ByteSize::kib(16))
            .send_hwm(Hwm::Bytes(ByteSize::mib(8))),
    );
    let others: Vec<Host> = (0..3).map(|n| guest(&center, n)).collect();
    until(|| marks(&center).1 == MIB / 4);
    // Nothing is claimed: the receive queue fills to its mark, because the sender is not told to pause.
    let channel = one.client().channel("keep");
    proxy.freeze(Lane::Completion);
    let first = channel.request("", "").timeout(LONG).submit();
    let debt = held.recv().unwrap();
    for n in 0..3000 {
        until(|| channel.try_send("", padded(n, 1000)).is_ok());
    }
    let unclaimed = |host: &Host| host.status().shards[0].unclaimed;
    let fit = MIB / 4 / 1064;
    until_or(|| unclaimed(&center) >= fit - 1, || format!("{} of {fit}", unclaimed(&center)));
    // And nothing is taken: the send queue fills to its mark, and one more waits.
    proxy.freeze(Lane::Application);
    let back = center.client().node("one");
    let mut refused = 0;
    until(|| {
        refused = match back.try_send("", padded(0, 1000)) {
            Ok(()) => 0,
            Err(error) => {
                assert_eq!(error.error().detail(), Detail::NoRoom);
                refused + 1
            }
        };
        refused > 200
    });
    let mut waiting = back.send("", padded(0, 1000)).timeout(LONG).submit();
    until_status(&center, |s| s.waiting == 1);
    assert!(waiting.try_take().is_none());
    drop(others);
    waiting.wait().unwrap();
    proxy.thaw(Lane::Application);
    until_or(|| unclaimed(&center) > 2 * fit, || format!("{}", unclaimed(&center)));
    proxy.thaw(Lane::Completion);
    debt.0.reply("");
    first.wait().unwrap();
}
