//! High-water marks from outside: where a sender stops, and that no mark stops what may go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use afflux::{ByteSize, Detail, Hwm};

use crate::support::{address, connected, kept, link, padded, server, small, told, until, until_or, watch};

const LONG: Duration = Duration::from_secs(80);
const RECORD: u64 = 1000 + 64;

/// Field case 002, contract 30: behind a handler that does not finish a sender stops, and what was accepted lies in
/// the queues on the way: what is owned, the receive queue, a read that was not decoded, the kernel's buffers, the
/// send queue. A smaller receive mark accepts less.
#[test]
fn a_sender_stops_at_the_sum_of_what_is_on_the_way() {
    let accepted = [16, 512].map(|receive| {
        let _dog = watch();
        let (keep, held) = kept();
        // Bytes, not jobs, are what runs out: no pause comes in between.
        let server = server("server")
            .max_jobs(100_000)
            .max_started_handlers(1)
            .max_owned_bytes(ByteSize::kib(4))
            .receive_hwm(Hwm::Bytes(ByteSize::kib(receive)))
            .socket_buffers(ByteSize::kib(16), ByteSize::kib(16))
            .channel("keep", keep)
            .start()
            .unwrap();
        let client = connected(
            small("client")
                .connect(address(&server))
                .send_hwm(Hwm::Bytes(ByteSize::kib(64)))
                .socket_buffers(ByteSize::kib(16), ByteSize::kib(16)),
        );
        let channel = client.client().channel("keep");
        let first = channel.request("", "").timeout(LONG).submit();
        let debt = held.recv().unwrap();
        let (mut sent, mut refused) = (0, 0);
        until(|| {
            match channel.try_send("", padded(sent, 1000)) {
                Ok(()) => (sent, refused) = (sent + 1, 0),
                Err(error) => {
                    assert_eq!(error.error().detail(), Detail::NoRoom);
                    refused += 1;
                }
            }
            while refused == 0 && channel.try_send("", padded(sent, 1000)).is_ok() {
                sent += 1;
            }
            refused > 300
        });
        let (at_client, at_server) = (link(&client), server.status());
        assert!(!at_server.is_paused(), "{:?}", at_server.permits);
        let (queued, owned) = (at_client.queued_bytes, at_server.owned_bytes);
        let received = (at_server.received - 1) * RECORD;
        assert!(queued <= 64 << 10 && owned <= (4 << 10) + RECORD, "{queued} {owned}");
        assert!(received <= owned + (receive << 10) + RECORD, "{received} in a queue of {receive} KiB");
        // The rest lies in a read of at most 64 KiB and in the kernel, which doubles what it is asked for.
        let between = (sent * RECORD).saturating_sub(queued + received);
        assert!(between <= (64 << 10) + 2 * (2 * (16 << 10)) + RECORD, "{between} on the way, {receive} KiB");
        debt.0.reply("");
        first.wait().unwrap();
        until_or(|| server.status().delivered == sent + 1, || format!("{:?}", server.status()));
        sent
    });
    assert!(accepted[0] < accepted[1], "{accepted:?}");
}

/// Field case 003: one side without a mark and one with a small one, either way round: everything arrives.
#[test]
fn a_side_without_a_mark_stops_nobody() {
    const RECORDS: u64 = if cfg!(debug_assertions) { 600 } else { 6_400 };
    let small_mark = Hwm::Bytes(ByteSize::kib(64));
    for (send, receive) in [(small_mark, Hwm::Unlimited), (Hwm::Unlimited, small_mark)] {
        let _dog = watch();
        let seen = Arc::new(AtomicU64::new(0));
        let count = seen.clone();
        let server = server("server")
            .receive_hwm(receive)
            .channel(
                "in",
                told(move |m, _| {
                    count.fetch_add(m.payload().len() as u64, Ordering::SeqCst);
                }),
            )
            .start()
            .unwrap();
        let client = connected(small("client").connect(address(&server)).send_hwm(send));
        let channel = client.client().channel("in");
        for n in 0..RECORDS {
            channel.send("", padded(n, 16 << 10)).timeout(LONG).wait().unwrap();
        }
        until(|| seen.load(Ordering::SeqCst) == RECORDS * (16 << 10));
    }
}
