//! The rows of a host: one for every place that can hold a message, from the plan alone. Whoever adds
//! a queue, a pool or a buffer adds its row here; the tests that fill every place find what is missing.

use super::{Ledger, Reservation, WhenFull};
use crate::base::unit::{ByteSize, FRAME_OVERHEAD, HEADER_LEN, RECORD_OVERHEAD};
use crate::plan::{
    CELL_BYTES, CHANNEL_LIST_BYTES, DESTINATION_BYTES, ERROR_REPLY_BYTES, HANDSHAKE_BYTES, HostPlan, Hwm,
    INLINE_RECORD_MIN, JOB_BYTES, KEEPERS_MAX, LARGE_RECORD_BYTES, LINK_STATE_BYTES, METADATA_BYTES, METER_BYTES,
    QUEUE_CHUNK_BYTES, QUEUE_CHUNKS_KEPT, RING_SLOT_BYTES, SESSION_STATE_BYTES, SMALL_REPLY_MAX, STARTED_BYTES,
    SUBSCRIPTION_BYTES, SUBSCRIPTION_TEXT_MAX, SUBSCRIPTIONS_MAX, SlowSubscriber, StreamPlan, TICKET_BYTES,
    WRITE_CHUNK_BYTES,
};
use crate::policy::budget::link_marks;

/// What the sums leave out.
pub const OMITTED: &str = "not counted: thread stacks, kernel socket buffers, allocator fragmentation, \
                           the program's own handlers, closures and futures";

/// The ledger of a host with as many links as its plan allows at the very most.
pub fn of(plan: &HostPlan) -> Ledger {
    of_links(plan, plan.peers_max)
}

/// The ledger of a host with `links` links: the same rows, which grow with the links that come.
pub fn of_links(plan: &HostPlan, links: u32) -> Ledger {
    let mut ledger = Ledger::new();
    ordinary(&mut ledger, plan, links);
    replies(&mut ledger, plan, links);
    pubsub(&mut ledger, plan, links);
    clients(&mut ledger, plan);
    entries(&mut ledger, plan, links);
    overhead(&mut ledger, plan, links);
    ledger
}

/// The table for people, with its headline and what it leaves out.
pub fn report(plan: &HostPlan, links: u32) -> String {
    let ledger = of_links(plan, links);
    let sum =
        ledger.total_maximum().map_or_else(|| "no bound".into(), |n| ByteSize::mib(n.div_ceil(1 << 20)).to_string());
    format!("{} with {links} links: at most {sum}\n{ledger}\n{OMITTED}", plan.name)
}

/// Marks of a link while there are `links` of them; a manual mark is the plan's.
fn marks(plan: &HostPlan, links: u32) -> (u64, u64) {
    let planned = link_marks(&plan.hwm, links);
    let of = |stated, planned, manual| if stated == Hwm::Auto { planned } else { manual };
    (of(plan.hwm.send, planned.send, plan.send_mark), of(plan.hwm.receive, planned.receive, plan.receive_mark))
}

/// Marks fall when links come, and what was admitted under a higher mark stays until it drains. The
/// i-th link that filled its queues did so while there were i links at least; so they hold at most
/// the sum of the marks at 1, 2, .. links, and this is that sum beyond the present marks.
fn above_fallen(plan: &HostPlan, links: u32) -> u64 {
    let (send, receive) = marks(plan, links);
    (1..=links).fold(0_u64, |sum, i| {
        let (s, r) = marks(plan, i);
        sum.saturating_add(s.saturating_sub(send)).saturating_add(r.saturating_sub(receive))
    })
}

/// A row per queue of that mark, and none for an unlimited one.
fn queue(name: &'static str, capacity: u64, mark: u64, released_by: &'static str, when_full: WhenFull) -> Reservation {
    let row = Reservation::payload(name, capacity, mark, released_by, when_full);
    if mark == 0 && !cfg!(afflux_mutation = "unlimited_unsaid") { row.unlimited() } else { row }
}

/// Messages and requests, from the call to the end of the handler.
fn ordinary(ledger: &mut Ledger, plan: &HostPlan, links: u32) {
    use WhenFull::{Never, Park, Refuse, Wait};
    let (send, receive) = marks(plan, links);
    let fallen = above_fallen(plan, links);
    let (links, shards) = (u64::from(links), u64::from(plan.shards));
    let (largest, typical) = (plan.record_max(), plan.record_typical());
    let written = "the write of the record's last byte";
    // An empty queue takes one record larger than its mark; an unlimited one is larger than any.
    let above = |mark: u64| if mark == 0 { 0 } else { largest.saturating_sub(mark) };
    let one = |name, capacity, mark, by| Reservation::payload(name, capacity, above(mark), by, Wait).expecting(0);

    ledger.add(queue("send queues", links, send, written, Wait));
    ledger.add(one("send queues, one larger record", links, send, written));
    ledger.add(queue("local queues", shards, plan.send_mark, "the claim", Wait));
    ledger.add(one("local queues, one larger record", shards, plan.send_mark, "the claim"));
    ledger.add(queue("receive queues", links, receive, "the claim", Park));
    ledger.add(Reservation::payload("above a fallen mark", 1, fallen, "write or claim", Never).expecting(0));
    ledger.add(
        Reservation::payload("oversize budget", 1, plan.oversize_budget, "the larger record's claim", Park)
            .expecting(0),
    );
    ledger.add(
        Reservation::payload("read carries", links, plan.turn.read_block as u64, "room in the receive queue", Park)
            .expecting(links * typical),
    );
    ledger.add(
        Reservation::payload("waiting room", 1, plan.room.bytes, "room, deadline, cancel or detach", Refuse)
            .expecting(u64::from(plan.room.ops).saturating_mul(typical)),
    );
    let jobs = u64::from(plan.jobs.limit) + u64::from(plan.max_started);
    let frames = plan.streams.iter().map(|stream| StreamPlan::mark_min(stream.max_frame));
    let largest = frames.fold(largest, u64::max);
    ledger.add(
        Reservation::payload("owned records", 1, plan.max_owned_bytes.max(largest), "the handler's end", Park)
            .expecting(jobs.saturating_mul(typical)),
    );
}

/// The completion lane, both sides.
fn replies(ledger: &mut Ledger, plan: &HostPlan, links: u32) {
    use WhenFull::{Never, Refuse, Wait};
    let (links, started, slots) = (u64::from(links), u64::from(plan.max_started), u64::from(plan.request_slots));
    let (small, typical) = (SMALL_REPLY_MAX as u64, plan.record_typical());
    let written = "the write of the record's last byte";
    let taken = "take, or the operation's deadline";

    // The host's mark, and once more for peers below host / peers, who are never refused because of it.
    ledger.add(
        Reservation::payload("replies going out", 2, plan.reply.host, written, Wait)
            .expecting(started.saturating_mul(typical)),
    );
    ledger.add(Reservation::payload("error replies", started, ERROR_REPLY_BYTES, written, Never).expecting(0));
    let held = if typical > small { slots.saturating_mul(typical) } else { 0 };
    ledger.add(Reservation::payload("reply hold", 1, plan.reply.hold, taken, Refuse).expecting(held));
    ledger.add(Reservation::payload("awaited replies beyond it", 1, plan.max_message, taken, Refuse).expecting(0));
    ledger.add(
        Reservation::payload("small replies", slots, small, taken, Never)
            .expecting(slots.saturating_mul(typical.min(small))),
    );
    let beginning = small + HEADER_LEN as u64 + FRAME_OVERHEAD;
    ledger.add(
        Reservation::payload("replies in assembly", links, beginning, "the reply's last byte", Never)
            .expecting(links * typical),
    );
}

/// What is published and not taken, and who wants what. Every link may be a subscriber's.
fn pubsub(ledger: &mut Ledger, plan: &HostPlan, links: u32) {
    use WhenFull::{Disconnect, Never, Refuse, Shed, Wait};
    let links = u64::from(links);
    if let Some(publisher) = &plan.publisher {
        let written = "the write of the publication's last byte, or its drop";
        let when_full = match publisher.slow {
            SlowSubscriber::Wait => Wait,
            SlowSubscriber::Disconnect(_) => Disconnect,
            SlowSubscriber::DropNewest | SlowSubscriber::DropOldest => Shed,
        };
        ledger.add(Reservation::payload("subscription queues", links, publisher.mark, written, when_full));
        // One that found nothing else; where the oldest are dropped, one staged and the newest.
        let largest = plan.record_max() + FRAME_OVERHEAD;
        let ones = if publisher.slow == SlowSubscriber::DropOldest { 2 } else { 1 } * links;
        let above = largest.saturating_sub(publisher.mark);
        let row = Reservation::payload("subscription queues, larger publications", ones, above, written, when_full);
        ledger.add(row.expecting(0));
        let row =
            Reservation::overhead("subscriptions of subscribers", 1, publisher.table, "cancel or detach", Disconnect);
        ledger.add(row.expecting(links.saturating_mul(SUBSCRIPTION_BYTES + 16).min(publisher.table)));
        let chunks = 2 * links;
        let name = "chunks of subscription queues";
        ledger
            .add(Reservation::overhead(name, chunks, QUEUE_CHUNK_BYTES, "the queue's last record", Never).expecting(0));
    }
    if !plan.subscribers.is_empty() {
        // The set, changes that were not told, and both as frames on their way to each publisher.
        let entries = (SUBSCRIPTIONS_MAX * 2 * 64) as u64;
        let text = (SUBSCRIPTION_TEXT_MAX + SUBSCRIPTIONS_MAX * 16) as u64;
        let dialled: u64 = plan.subscribers.iter().map(|s| s.publishers.len() as u64).sum();
        let publishers = if plan.subscribers.iter().any(|s| s.accepts) { dialled.max(links) } else { dialled };
        let roles = plan.subscribers.len() as u64;
        let row = Reservation::overhead("our subscriptions", roles, entries + 2 * text, "unsubscribe", Refuse);
        ledger.add(row.expecting(roles * 4096));
        let row = Reservation::overhead("our subscriptions, being told", publishers, 2 * text, "the write", Disconnect);
        ledger.add(row.expecting(0));
    }
}

/// End clients, as many as their sockets let in; no rows without a socket.
fn clients(ledger: &mut Ledger, plan: &HostPlan) {
    let sessions = u64::from(plan.sessions());
    if sessions == 0 {
        return;
    }
    type Mark = fn(&StreamPlan) -> u64;
    // Sockets may differ: the part of each client in the sum of them all, rounded up.
    let each = |of: Mark| {
        let sum = plan.streams.iter().map(|s| u64::from(s.sessions).saturating_mul(of(s)));
        sum.fold(0_u64, u64::saturating_add).div_ceil(sessions)
    };
    let bounded = |row: Reservation, of: Mark| {
        if plan.streams.iter().any(|s| of(s) == 0) { row.unlimited() } else { row.expecting(0) }
    };
    let (send, receive): (Mark, Mark) = (|s| s.send_mark, |s| s.receive_mark);
    let written = "the write of the frame's last byte";
    let row = Reservation::payload("client send queues", sessions, each(send), written, WhenFull::Wait);
    ledger.add(bounded(row, send));
    let row = Reservation::payload("client receive queues", sessions, each(receive), "the claim", WhenFull::Park);
    ledger.add(bounded(row, receive));
    let carry = plan.turn.read_block as u64;
    let room = "room in the receive queue";
    ledger.add(Reservation::payload("client read carries", sessions, carry, room, WhenFull::Park).expecting(0));
    let ended = "the session's last callback";
    ledger.add(Reservation::overhead("sessions", sessions, SESSION_STATE_BYTES, ended, WhenFull::Disconnect));
    let write = plan.turn.write_block as u64;
    let row =
        Reservation::overhead("client unfinished writes", sessions, write, "the client's reading", WhenFull::Park);
    ledger.add(row.expecting(0));
}

/// What queues need beyond the charges of what they hold. A small record is its charge. A large one is a
/// value besides, so a queue that is bounded in bytes has the most of them when it is full of the
/// smallest large ones. An owned record has a permit or was started; what waits or is held lies in a cell.
fn entries(ledger: &mut Ledger, plan: &HostPlan, links: u32) {
    let queues = [
        "send queues",
        "local queues",
        "receive queues",
        "above a fallen mark",
        "replies going out",
        "subscription queues",
        "client send queues",
        "client receive queues",
    ];
    let mut rows = queues.iter().filter_map(|name| ledger.get(name));
    let most = rows.try_fold(0_u64, |sum, r| Some(sum.saturating_add(r.maximum()?)));
    let large = most.unwrap_or(0) / (INLINE_RECORD_MIN + RECORD_OVERHEAD);
    let row =
        Reservation::overhead("large records", large, LARGE_RECORD_BYTES, "the record's leaving", WhenFull::Never);
    ledger.add(if most.is_some() { row.expecting(0) } else { row.unlimited() });
    let jobs = u64::from(plan.jobs.limit) + u64::from(plan.max_started);
    ledger.add(Reservation::overhead("claimed records", jobs, JOB_BYTES, "the handler's end", WhenFull::Never));
    // Of a link: what it sends, what it receives and what it answers; of a client the first two.
    let chunks = 2 * 3 * u64::from(links)
        + 2 * 2 * u64::from(plan.sessions())
        + u64::from(plan.shards) * (2 + QUEUE_CHUNKS_KEPT);
    let row =
        Reservation::overhead("queue chunks", chunks, QUEUE_CHUNK_BYTES, "the queue's last record", WhenFull::Never);
    ledger.add(row.expecting(u64::from(plan.shards) * QUEUE_CHUNKS_KEPT * QUEUE_CHUNK_BYTES));
}

/// Blocks, rings, pools and tables.
fn overhead(ledger: &mut Ledger, plan: &HostPlan, links: u32) {
    use WhenFull::{Disconnect, Never, Park, Refuse, Wait};
    let (places, turn) = (plan.places(), &plan.turn);
    let (links, threads) = (u64::from(links), u64::from(plan.shards) + 1);
    let half_open = u64::from(plan.handshakes_max);
    let product = |a: u32, b: u32| u64::from(a) * u64::from(b);
    let blocks = (turn.read_block + turn.write_block) as u64;
    let (host, detach) = ("the host's end", "detach");
    let of = Reservation::overhead;

    ledger.add(of("read and write blocks", threads, blocks, host, Never));
    // One of either for all hosts of the process.
    let (keepers, buffers) = (u64::from(KEEPERS_MAX), turn.read_block as u64 + WRITE_CHUNK_BYTES);
    ledger.add(
        of("buffers of threads that call", keepers, buffers, "the thread's end", Never).expecting(threads * buffers),
    );
    ledger.add(of("unfinished writes", 2 * links, turn.write_block as u64, "the peer's reading", Park).expecting(0));
    ledger.add(of("caller rings", product(places.caller_rings, plan.ring_slots), RING_SLOT_BYTES, host, Wait));
    ledger.add(of("cells", u64::from(places.cells), CELL_BYTES, "take", Refuse));
    ledger.add(of("tickets", u64::from(places.tickets), TICKET_BYTES, "grant or cancel", Never));
    ledger.add(of("started handlers", u64::from(plan.max_started), STARTED_BYTES, "the handler's end", Wait));
    let known = u64::from(plan.shards) * u64::from(places.destinations);
    ledger.add(
        of("known addresses", known, DESTINATION_BYTES, "an address used later", Never)
            .expecting(links * DESTINATION_BYTES),
    );
    ledger.add(of("link state", links, LINK_STATE_BYTES, detach, Refuse));
    ledger.add(of("channel lists of peers", links, CHANNEL_LIST_BYTES, detach, Disconnect).expecting(links * 1024));
    ledger.add(of("properties of peers", links, METADATA_BYTES, detach, Disconnect).expecting(0));
    ledger
        .add(of("handshakes", half_open, HANDSHAKE_BYTES, "READY or timeout", Disconnect).expecting(half_open * 1024));
    // One more for callers that read replies themselves.
    ledger.add(of("histograms and counters", threads + 1, METER_BYTES, host, Never));
}

#[cfg(test)]
mod tests {
    use super::super::Row;
    use super::*;
    use std::time::Duration;

    use crate::plan::{LimitSource, PublisherPlan};

    const KIB: u64 = 1024;
    const MIB: u64 = KIB * KIB;

    #[test]
    fn a_default_host_is_bounded_and_every_row_says_who_releases_it() {
        let ledger = of(&HostPlan::defaults("n", 3));
        assert!(ledger.total_maximum().is_some());
        for row in ledger.rows() {
            assert!(!row.released_by.is_empty(), "{}", row.name);
            assert!(row.expected <= row.maximum().unwrap(), "{}", row.name);
        }
    }

    #[test]
    fn rows_are_the_arithmetic_of_the_plan() {
        let plan = HostPlan::defaults("n", 2);
        let ledger = of_links(&plan, 4);
        let max = |name: &str| ledger.get(name).unwrap().maximum().unwrap();
        assert_eq!(max("send queues"), 4 * MIB);
        assert_eq!(max("send queues, one larger record"), 4 * (15 * MIB + 255 + 64));
        assert_eq!(max("receive queues"), 4 * MIB);
        assert_eq!(max("oversize budget"), 2 * 2 * 16 * MIB);
        assert_eq!(max("waiting room"), 64 * MIB);
        assert_eq!(max("owned records"), 512 * MIB);
        assert_eq!(max("replies going out"), 2 * 128 * MIB);
        assert_eq!(max("reply hold"), 64 * MIB);
        assert_eq!(max("small replies"), 65_536 * 2 * KIB);
        assert_eq!(max("cells"), (4096 + 65_536) * CELL_BYTES);
        assert_eq!(max("caller rings"), 130 * 1024 * RING_SLOT_BYTES);
        assert_eq!(ledger.get("large records").unwrap().capacity, (4 + 2 + 4 + 256) * MIB / (1024 + 64));
        assert_eq!(ledger.get("claimed records").unwrap().capacity, 384 + 4 * 384);
        assert_eq!(max("queue chunks"), (4 * 6 + 2 * 66) * 4096);
    }

    #[test]
    fn end_clients_have_their_rows_once_there_is_a_socket() {
        let mut plan = HostPlan::defaults("n", 1);
        assert!(of(&plan).get("client send queues").is_none());
        let stream = |sessions, send_mark| StreamPlan {
            addr: ([127, 0, 0, 1], 0).into(),
            name: "tcp://127.0.0.1:0".into(),
            sessions,
            send_mark,
            receive_mark: 65_600,
            max_frame: 64 * KIB,
            max_frame_out: 64 * KIB,
            send_timeout: std::time::Duration::from_secs(1),
            idle: None,
        };
        plan.streams = vec![stream(100, 128 * KIB), stream(300, 64 * KIB)];
        let ledger = of(&plan);
        let max = |name: &str| ledger.get(name).unwrap().maximum().unwrap();
        assert_eq!(max("client send queues"), (100 * 128 + 300 * 64) * KIB);
        assert_eq!(max("client receive queues"), 400 * 65_600);
        assert_eq!(max("client read carries"), 400 * 64 * KIB);
        assert_eq!(max("sessions"), 400 * SESSION_STATE_BYTES);
        plan.streams.push(stream(1, 0));
        assert_eq!(of(&plan).get("client send queues").unwrap().maximum(), None);
    }

    #[test]
    fn an_unlimited_mark_takes_the_bound_away_and_the_table_says_so() {
        let mut plan = HostPlan::defaults("n", 1);
        plan.hwm.receive = Hwm::Unlimited;
        plan.receive_mark = 0;
        let ledger = of(&plan);
        assert_eq!(ledger.total_maximum(), None);
        assert_eq!(ledger.maximum(Row::Overhead), None, "nobody counts the entries of an unlimited queue");
        assert!(ledger.get("send queues").unwrap().maximum().is_some());
        assert!(report(&plan, 1).contains("no bound"));
    }

    #[test]
    fn a_publisher_has_a_queue_for_every_link() {
        let mut plan = HostPlan::defaults("n", 2);
        assert!(of(&plan).get("subscription queues").is_none());
        plan.publisher = Some(PublisherPlan {
            mark: MIB,
            slow: SlowSubscriber::DropOldest,
            linger: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            table: 64 * MIB,
        });
        let ledger = of_links(&plan, 5);
        let max = |name: &str| ledger.get(name).unwrap().maximum().unwrap();
        assert_eq!(max("subscription queues"), 5 * MIB);
        assert_eq!(max("subscription queues, larger publications"), 2 * 5 * (15 * MIB + 255 + 64 + 32));
        assert_eq!(max("subscriptions of subscribers"), 64 * MIB);
        assert_eq!(ledger.get("subscription queues").unwrap().when_full, WhenFull::Shed);
    }

    #[test]
    fn marks_that_fell_leave_what_was_admitted_before() {
        let mut plan = HostPlan::defaults("n", 2);
        (plan.hwm.source, plan.hwm.limit) = (LimitSource::Budget, 4 * MIB);
        let at = |links, name: &str| of_links(&plan, links).get(name).unwrap().maximum().unwrap();
        assert_eq!((at(2, "send queues"), at(2, "above a fallen mark")), (2 * MIB, 0));
        assert_eq!(at(4, "send queues"), 4 * 512 * KIB);
        // With one and two links each mark was 1 MiB, with three a sixth of 4 MiB, now it is 512 KiB.
        assert_eq!(at(4, "above a fallen mark"), 2 * (512 * KIB + 512 * KIB + (4 * MIB / 6 - 512 * KIB)));
    }
}
