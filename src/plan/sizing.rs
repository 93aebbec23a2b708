//! Sizes of pools, rings and tables as written sums, with the holder of each term named. A sum that
//! is too small is a pool that runs dry under load; a test of the pool's owner would find it late,
//! the sum is found here.

use super::HostPlan;

/// The most shards of one host.
pub const SHARDS_MAX: u16 = 256;

/// The most links of one connect.
pub const LINKS_MAX: u16 = 64;

/// The most channels that one node serves.
pub const CHANNELS_MAX: usize = 256;

/// Replies up to this many bytes are kept whatever the reply hold says: bounded by the request slots.
pub const SMALL_REPLY_MAX: usize = 2048;

/// The most addresses that one handle remembers.
pub const DESTINATIONS_MAX: u32 = 1024;

/// An address that a handle remembers, with its place in the rotation over some members, and in the table.
pub const DESTINATION_BYTES: u64 = 512;

/// The most cells of one host: as many as a mark can count waiters.
pub const CELLS_MAX: u64 = (1 << 20) - 1;

/// The largest mark: a mark counts up to 64 GiB less one, and one larger record may lie beside nothing.
pub const MARK_MAX: u64 = 32 << 30;

/// The largest room, hold or reply mark, bytes.
pub const ROOM_MAX: u64 = 512 << 30;

/// The largest record between nodes, bytes.
pub const MESSAGE_MAX: u64 = 1 << 30;

/// A small record's entry in a queue is the 64 bytes that its charge counts (`RECORD_OVERHEAD`). A record
/// with a payload or an envelope above this lies beside its entry, as a value; the ledger has those values in a row of
/// their own.
pub const INLINE_RECORD_MIN: u64 = 1024;

/// A large record as a value in a queue's table, which may have grown to twice what it holds.
pub const LARGE_RECORD_BYTES: u64 = 2 * 104;

/// A claimed record, before and while it is handled.
pub const JOB_BYTES: u64 = 160;

/// A chunk of a queue of records. A queue that holds anything may have one begun and one not used up.
pub const QUEUE_CHUNK_BYTES: u64 = 4096;
/// Threads of a process that keep a buffer to read into and a chunk to write from. Others do without.
pub const KEEPERS_MAX: u32 = 128;

/// The first chunk of what a thread writes.
pub const WRITE_CHUNK_BYTES: u64 = 1024;

/// Chunks that a shard keeps for its next burst.
pub const QUEUE_CHUNKS_KEPT: u64 = 64;

/// A place in a ring: one record with its target.
pub const RING_SLOT_BYTES: u64 = 160;

/// A cell: word, links, payload, outcome, waker, deadline.
pub const CELL_BYTES: u64 = 512;

/// The machines of one link on both lanes, without any bytes of records: decoders, queues' heads,
/// batons, flow state, one pending PONG and FLOWSTATE.
pub const LINK_STATE_BYTES: u64 = 4096;

/// The application's own properties that one peer told: 2 KiB of text in at most 64 of them.
pub const METADATA_BYTES: u64 = (2 << 10) + 64 * 64;

/// The channels that one peer announced: 256 names of 64 bytes with their bookkeeping.
pub const CHANNEL_LIST_BYTES: u64 = 256 * 96;

/// A subscription beside the bytes of its prefix: its place in the table, which may have grown to twice what it
/// holds, and its member in two sets.
pub const SUBSCRIPTION_BYTES: u64 = 384;

/// The most prefixes that one subscribing role of this host asks for.
pub const SUBSCRIPTIONS_MAX: usize = 16_384;

/// The bytes of all of them.
pub const SUBSCRIPTION_TEXT_MAX: usize = 1 << 20;

/// The longest prefix that this host asks for.
pub const SUBSCRIPTION_LEN_MAX: usize = 4096;

/// A ticket of the permit gate.
pub const TICKET_BYTES: u64 = 64;

/// What one thread measures with: ten histograms of 36 KiB, twice, and its page of counters.
pub const METER_BYTES: u64 = 768 << 10;

/// The error reply of a request that ends without one of its own: a sentence of at most 1 KiB, charged.
pub const ERROR_REPLY_BYTES: u64 = 1024 + 2 + 64;

/// One connection in its handshake: a READY of at most 64 KiB, our own greeting and READY.
pub const HANDSHAKE_BYTES: u64 = (64 << 10) + (24 << 10);

/// A started handler's place: correlation, responder, continuation's head. What the handler itself
/// captures is the user's.
pub const STARTED_BYTES: u64 = 512;

pub(super) const CALLER_RING_SLOTS: u32 = 1024;

/// How many places each pool and table has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// Cells: `room.ops` operations that wait + `request_slots` requests in flight. Having a cell is
    /// having a place in every list that a cell may be put on.
    pub cells: u32,
    /// Rings of callers: `caller_rings` + one shared per shard.
    pub caller_rings: u32,
    /// Tickets of the permit gate: one per origin, that is `peers_max` links + one per ordered pair of
    /// shards + one per end client.
    pub tickets: u32,
    /// Commands that one thread may have unread: a new ring for every caller, an attach and a detach
    /// for every link that may come and go between two turns. What finds no place is told again.
    pub commands: u32,
    /// Connections: two per link + those in their handshake + one listener per address.
    pub connections: u32,
    /// Addresses that a handle remembers: one per peer, within 64..=[`DESTINATIONS_MAX`].
    pub destinations: u32,
}

impl Places {
    pub(super) fn of(plan: &HostPlan) -> Places {
        let shards = u32::from(plan.shards);
        let places = Places {
            cells: plan.room.ops.saturating_add(plan.request_slots),
            caller_rings: plan.caller_rings.saturating_add(shards),
            tickets: plan.peers_max.saturating_add(shards * shards).saturating_add(plan.sessions()),
            commands: plan.caller_rings.saturating_add(1024),
            connections: plan
                .peers_max
                .saturating_mul(2)
                .saturating_add(plan.handshakes_max)
                .saturating_add(plan.listen.len() as u32),
            destinations: plan.peers_max.clamp(64, DESTINATIONS_MAX),
        };
        debug_assert!(places.cells > plan.room.ops);
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::record::Record;

    #[test]
    fn a_ring_slot_holds_a_record_and_its_target() {
        let record = size_of::<Record>() as u64;
        assert!(record + 32 <= RING_SLOT_BYTES && 2 * record <= LARGE_RECORD_BYTES, "{record}");
        assert!(record + 48 <= JOB_BYTES, "{record}");
    }

    #[test]
    fn sums_name_every_holder() {
        let mut plan = HostPlan::defaults("n", 3);
        plan.listen.push(([127, 0, 0, 1], 0).into());
        let places = plan.places();
        assert_eq!(places.cells, 4096 + 65_536);
        assert_eq!(places.caller_rings, 128 + 3);
        assert_eq!(places.tickets, 10_000 + 9);
        assert_eq!(places.connections, 20_000 + 256 + 1);
        assert_eq!(places.destinations, 1024);
        assert!(plan.ring_slots.is_power_of_two());
    }
}
