//! The one table of all counters and gauges. A number that is not a row here is not shown anywhere.
//!
//! Invariants, held by tests: rows of one name stand together, differ in exactly their label, agree
//! in unit and help, and are all counters or all not; every peak names its gauge.

/// How the pages' numbers become one, and what a reset does to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only grows. Pages add up; a reset starts it at 0.
    Counter,
    /// What is there now. Pages add up, also where one thread raises what another lowers (a page may
    /// then hold less than nothing, as a wrapped number); a reset leaves it.
    Gauge,
    /// What is there now, where the worst page is the answer, as for an age. A reset leaves it.
    Worst,
    /// The highest of a gauge since the reset. Pages add up, so that over several threads it is a
    /// bound: never below the true peak, and above it if threads had theirs at different times.
    Peak(Meter),
    /// The first counter per million of the second, in this epoch; 0 while the second is 0. No
    /// page holds it.
    Ratio(Meter, Meter),
}

/// What one step of a number is. Durations are nanoseconds in pages and snapshots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// A plain count.
    Count,
    /// Bytes, as marks charge them.
    Bytes,
    /// Nanoseconds; seconds where people or other programs read it.
    Nanos,
    /// Parts per million; a fraction where people or other programs read it.
    Ppm,
    /// 1 if it is so, 0 if not.
    Flag,
}

/// All that is fixed about a number.
#[derive(Debug)]
pub struct Row {
    /// Dotted, under `afflux.`.
    pub name: &'static str,
    /// What tells it from other rows of the same name.
    pub label: Option<(&'static str, &'static str)>,
    /// How it is added up and reset.
    pub kind: Kind,
    /// What one step is.
    pub unit: Unit,
    /// One sentence for the person who looks at a dashboard.
    pub help: &'static str,
}

macro_rules! label {
    () => {
        None
    };
    ($key:ident = $value:literal) => {
        Some((stringify!($key), $value))
    };
}

macro_rules! meters {
    ($($name:literal, $unit:ident, $help:literal { $($id:ident: $kind:ident $(($($of:ident),+))? $(, $key:ident = $value:literal)?;)+ })+) => {
        /// The place of a number in every page, and its identity in a [`Snapshot`](super::Snapshot).
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u16)]
        pub enum Meter {
            $($(#[doc = concat!("`", $name, $("{", stringify!($key), "=", $value, "}",)? "`: ", $help)] $id,)+)+
        }

        impl Meter {
            /// Every number in the order of the table, which is also the order of the pages.
            pub const ALL: &'static [Meter] = &[$($(Meter::$id,)+)+];

            /// All that is fixed about this number.
            pub fn row(self) -> &'static Row {
                &ROWS[self.index()]
            }
        }

        static ROWS: [Row; Meter::COUNT] = [$($(Row {
            name: $name,
            label: label!($($key = $value)?),
            kind: Kind::$kind $(($(Meter::$of),+))?,
            unit: Unit::$unit,
            help: $help,
        },)+)+];
    };
}

impl Meter {
    /// The length of a page.
    pub const COUNT: usize = Meter::ALL.len();

    /// Its place in a page.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The row that keeps the highest value of this gauge, if there is one.
    #[inline]
    pub fn peak(self) -> Option<Meter> {
        PEAKS[self.index()]
    }
}

static PEAKS: [Option<Meter>; Meter::COUNT] = {
    let mut peaks = [None; Meter::COUNT];
    let mut i = 0;
    while i < Meter::COUNT {
        if let Kind::Peak(gauge) = ROWS[i].kind {
            peaks[gauge.index()] = Some(Meter::ALL[i]);
        }
        i += 1;
    }
    peaks
};

meters! {
    "afflux.host.ready", Flag, "1 while the host serves and accepts new work." { HostReady: Gauge; }

    // Bytes.
    "afflux.host.hwm.effective_budget", Bytes, "Byte budget that is divided among the queues." { HwmBudget: Gauge; }
    "afflux.host.hwm.applied", Bytes, "Sum of the marks in force." { HwmApplied: Gauge; }
    "afflux.host.hwm.queues", Count, "Queues among which the budget is divided." { HwmQueues: Gauge; }
    "afflux.host.hwm.accounted", Bytes, "Bytes in ordinary queues, those in assembly included." {
        HwmAccounted: Gauge, state = "current";
        HwmAccountedPeak: Peak(HwmAccounted), state = "peak";
    }
    "afflux.host.hwm.completion_accounted", Bytes, "Bytes waiting to be written on completion lanes." {
        CompletionAccounted: Gauge, state = "current";
        CompletionAccountedPeak: Peak(CompletionAccounted), state = "peak";
    }
    "afflux.host.hwm.blocked_ratio", Ppm, "First attempts that found their target at its mark, of all first attempts." {
        HwmBlockedRatio: Ratio(HwmBlocked, HwmAttempts);
    }
    "afflux.host.hwm.attempts", Count,
        "First attempts to admit an operation to its target's queue." { HwmAttempts: Counter; }
    "afflux.host.hwm.blocked", Count,
        "First attempts that found the target at its mark; a pause by the peer is not one." {
        HwmBlocked: Counter;
    }
    "afflux.host.hwm.parks", Count, "Times that a link stopped reading, by what was full." {
        ParksAtMark: Counter, reason = "mark";
        ParksForOversize: Counter, reason = "oversize";
        ParksForOwned: Counter, reason = "owned";
        ParksForReplies: Counter, reason = "replies";
    }
    "afflux.host.hwm.parked", Count, "Links that do not read now because something is full." { ParkedLinks: Gauge; }
    "afflux.host.oversize.accounted", Bytes, "Bytes above marks that records larger than their mark have drawn." {
        OversizeAccounted: Gauge, state = "current";
        OversizeAccountedPeak: Peak(OversizeAccounted), state = "peak";
    }
    "afflux.host.oversize.records", Count, "Records larger than their queue's mark." { OversizeRecords: Counter; }
    "afflux.host.owned.limit", Bytes, "Most bytes that claimed and unfinished records may hold." { OwnedLimit: Gauge; }
    "afflux.host.owned.accounted", Bytes, "Bytes of claimed and unfinished records." {
        OwnedAccounted: Gauge, state = "current";
        OwnedAccountedPeak: Peak(OwnedAccounted), state = "peak";
    }

    // Jobs.
    "afflux.host.job_queue.limit", Count, "Most permits that may be in use." { JobsLimit: Gauge; }
    "afflux.host.job_queue.jobs", Count, "Permits by state; in use is reserved plus queued." {
        JobsReserved: Gauge, state = "reserved";
        JobsQueued: Gauge, state = "queued";
        JobsInUse: Gauge, state = "in_use";
        JobsPeak: Peak(JobsInUse), state = "peak";
    }
    "afflux.host.job_queue.capacity_waiters", Count, "Origins that wait for a permit now." { JobWaiters: Gauge; }
    "afflux.host.job_queue.capacity_waits", Count, "Waits for a permit that began." { JobWaits: Counter; }
    "afflux.host.job_queue.capacity_wait_duration", Nanos, "Time that finished waits for a permit took, added up." {
        JobWaitTime: Counter;
    }
    "afflux.host.job_queue.oldest_wait", Nanos,
        "How long the oldest waiting origin has waited." { JobOldestWait: Worst; }
    "afflux.host.job_queue.pressure_state", Flag, "1 for the state that peers are told now." {
        PressureRunning: Gauge, state = "running";
        PressurePaused: Gauge, state = "paused";
    }
    "afflux.host.job_queue.pressure_transitions", Count,
        "Crossings of the pause and resume thresholds, by the state entered." {
        PressureResumes: Counter, state = "running";
        PressurePauses: Counter, state = "paused";
    }
    "afflux.host.job_queue.pause_current", Nanos,
        "For how long the host has been paused; 0 while it runs." { PauseCurrent: Gauge; }
    "afflux.host.job_queue.pause_duration", Nanos,
        "Time spent paused, the present pause included." { PauseTime: Counter; }
    "afflux.host.job_queue.flow_states_told", Count, "Flow states written to peers." { FlowStatesTold: Counter; }
    "afflux.host.handlers.limit", Count, "Most records that may be started and unfinished." { HandlersLimit: Gauge; }
    "afflux.host.handlers.started", Count, "Records started and unfinished." {
        HandlersStarted: Gauge, state = "current";
        HandlersStartedPeak: Peak(HandlersStarted), state = "peak";
    }
    "afflux.host.handlers.panics", Count,
        "Handlers that panicked; the instance was made anew." { HandlerPanics: Counter; }

    // Rooms.
    "afflux.host.waiting_room.limit", Count, "Most operations that may wait for room." { RoomLimit: Gauge; }
    "afflux.host.waiting_room.operations", Count, "Operations that wait for room." {
        RoomOperations: Gauge, state = "current";
        RoomOperationsPeak: Peak(RoomOperations), state = "peak";
    }
    "afflux.host.waiting_room.accounted", Bytes, "Bytes of the operations that wait for room." {
        RoomAccounted: Gauge, state = "current";
        RoomAccountedPeak: Peak(RoomAccounted), state = "peak";
    }
    "afflux.host.waiting_room.refused", Count,
        "Operations refused at once because the room, or the target's share of it, was full." {
        RoomRefused: Counter;
    }
    "afflux.host.request_slots.limit", Count, "Most requests that may be in flight." { SlotsLimit: Gauge; }
    "afflux.host.request_slots.used", Count, "Requests in flight, and replies not yet taken." {
        SlotsUsed: Gauge, state = "current";
        SlotsUsedPeak: Peak(SlotsUsed), state = "peak";
    }
    "afflux.host.reply_hold.limit", Bytes,
        "Most bytes of replies that have arrived and are not yet taken." { HoldLimit: Gauge; }
    "afflux.host.reply_hold.accounted", Bytes, "Bytes of replies that have arrived and are not yet taken." {
        HoldAccounted: Gauge, state = "current";
        HoldAccountedPeak: Peak(HoldAccounted), state = "peak";
    }
    "afflux.host.caller_rings", Count, "Rings of handles in use." { CallerRings: Gauge; }

    // Links and peers.
    "afflux.peer.configured", Count, "Targets to connect to." { PeersConfigured: Gauge; }
    "afflux.peer.connected", Count, "Peers with at least one link." { PeersConnected: Gauge; }
    "afflux.peer.ready", Count, "Peers whose channel list is known." { PeersReady: Gauge; }
    "afflux.peer.pausing", Count, "Links whose peer asks us to pause now." { PeersPausing: Gauge; }
    "afflux.peer.links", Count, "Links that are up." { Links: Gauge; }
    "afflux.peer.links_attached", Count, "Links that came up." { LinksAttached: Counter; }
    "afflux.peer.links_lost", Count, "Links that ended, by why." {
        LinksLostClosed: Counter, reason = "closed";
        LinksLostSilent: Counter, reason = "silent";
        LinksLostProtocol: Counter, reason = "protocol";
        LinksLostStalled: Counter, reason = "stalled";
        LinksLostShutdown: Counter, reason = "shutdown";
    }
    "afflux.peer.half_open", Count, "Connections in their handshake." { HalfOpen: Gauge; }
    "afflux.peer.handshakes_failed", Count,
        "Connections that ended before they were a link." { HandshakesFailed: Counter; }
    "afflux.peer.dials_failed", Count, "Connection attempts of ours that failed." { DialsFailed: Counter; }
    "afflux.peer.sent", Bytes, "Bytes handed to the kernel." {
        BytesSentApplication: Counter, lane = "application";
        BytesSentCompletion: Counter, lane = "completion";
    }
    "afflux.peer.received", Bytes, "Bytes read from the kernel." {
        BytesReceivedApplication: Counter, lane = "application";
        BytesReceivedCompletion: Counter, lane = "completion";
    }
    "afflux.peer.queue.records", Count, "Records in the queues between callers, links and handlers." {
        QueuedToSend: Gauge, direction = "send";
        QueuedReceived: Gauge, direction = "receive";
    }
    "afflux.peer.queue.age", Nanos, "How long the oldest record of any queue has been there." {
        OldestToSend: Worst, direction = "send";
        OldestReceived: Worst, direction = "receive";
    }
    "afflux.peer.messages.accepted", Count,
        "Messages and requests accepted for their target's queue." { Accepted: Counter; }
    "afflux.peer.messages.sent", Count, "Messages and requests written whole." { Sent: Counter; }
    "afflux.peer.messages.received", Count, "Messages and requests decoded." { Received: Counter; }
    "afflux.peer.messages.delivered", Count, "Messages and requests whose handler was started." { Delivered: Counter; }
    "afflux.peer.messages.dropped", Count,
        "Records that reached no handler and no caller. Never because of load, except subscriber_mark." {
        DroppedNoHandler: Counter, reason = "no_handler";
        DroppedMalformed: Counter, reason = "malformed";
        DroppedLateReply: Counter, reason = "late_reply";
        DroppedLostOnDetach: Counter, reason = "lost_on_detach";
        DroppedInDoubtOnDetach: Counter, reason = "in_doubt_on_detach";
        DroppedExpired: Counter, reason = "expired";
        DroppedReplyHold: Counter, reason = "reply_hold";
        DroppedUntaken: Counter, reason = "untaken";
        DroppedCallDepth: Counter, reason = "call_depth";
        DroppedSubscriberMark: Counter, reason = "subscriber_mark";
        DroppedShutdown: Counter, reason = "shutdown";
    }
    "afflux.peer.replies.sent", Count, "Replies and error replies written whole." { RepliesSent: Counter; }
    "afflux.peer.replies.received", Count,
        "Replies and error replies that ended a request." { RepliesReceived: Counter; }
    "afflux.peer.replies.left", Count, "Replies that their shard could not write at once." { RepliesLeft: Counter; }

    // Operations: what was submitted is the sum of its endings and of what is pending.
    "afflux.peer.send.submitted", Count, "Sends that were started." { SendsSubmitted: Counter; }
    "afflux.peer.send.pending", Count, "Sends that wait." { SendsPending: Gauge; }
    "afflux.peer.send.ended", Count, "Sends by their one ending." {
        SendsAccepted: Counter, outcome = "accepted";
        SendsNoRoom: Counter, outcome = "no_room";
        SendsRoomFull: Counter, outcome = "waiting_room_full";
        SendsUnavailable: Counter, outcome = "unavailable";
        SendsRefused: Counter, outcome = "refused";
        SendsCancelled: Counter, outcome = "cancelled";
        SendsShutdown: Counter, outcome = "shutdown";
    }
    "afflux.peer.request.submitted", Count, "Requests that were started." { RequestsSubmitted: Counter; }
    "afflux.peer.request.pending", Count, "Requests without an ending." { RequestsPending: Gauge; }
    "afflux.peer.request.ended", Count, "Requests by their one ending." {
        RequestsReplied: Counter, outcome = "reply";
        RequestsRemoteError: Counter, outcome = "remote_error";
        RequestsNoReply: Counter, outcome = "no_reply";
        RequestsNoRoom: Counter, outcome = "no_room";
        RequestsRoomFull: Counter, outcome = "waiting_room_full";
        RequestsUnavailable: Counter, outcome = "unavailable";
        RequestsRefused: Counter, outcome = "refused";
        RequestsCancelled: Counter, outcome = "cancelled";
        RequestsShutdown: Counter, outcome = "shutdown";
    }
    "afflux.peer.request.timeouts", Count,
        "Requests that their deadline ended, in whatever stage." { RequestTimeouts: Counter; }
    "afflux.peer.channel.selection_failures", Count, "Calls that found no member of their channel, by why." {
        SelectionNoMember: Counter, reason = "no_member";
        SelectionNotReady: Counter, reason = "not_ready";
        SelectionDraining: Counter, reason = "draining";
    }

    // Patterns.
    "afflux.publisher.published", Count, "Messages published." { Published: Counter; }
    "afflux.publisher.subscriptions", Count, "Subscriptions of all subscribers." { Subscriptions: Gauge; }
    "afflux.stream.connections", Count, "Stream clients that are connected." { StreamConnections: Gauge; }
    "afflux.stream.opened", Count, "Stream clients that connected." { StreamsOpened: Counter; }
    "afflux.stream.closed", Count, "Stream clients that went away." { StreamsClosed: Counter; }

    // Threads.
    "afflux.shard.turns", Count, "Turns of the event loops." { Turns: Counter; }
    "afflux.shard.slow_turns", Count, "Turns in which user code kept a shard for 10 ms or more." { SlowTurns: Counter; }
    "afflux.shard.polls", Count, "Times that a thread asked the kernel for events." { Polls: Counter; }
    "afflux.shard.wakes", Count, "Times that a sleeping thread had to be woken." { Wakes: Counter; }
    "afflux.shard.direct_writes", Count, "Records that the caller's own thread wrote." { DirectWrites: Counter; }
    "afflux.shard.backstop_expiries", Count,
        "Operations of a stuck shard that the completion thread ended." { BackstopExpiries: Counter; }
    "afflux.shard.no_progress", Nanos, "Longest time that a ready origin has gone unserved." {
        NoProgress: Worst, state = "current";
        NoProgressPeak: Peak(NoProgress), state = "peak";
    }
    "afflux.host.diagnostics.overflow", Count,
        "Flow records that their reader was too slow for." { DiagnosticsOverflow: Counter; }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_where_the_table_has_it() {
        for (i, meter) in Meter::ALL.iter().enumerate() {
            assert_eq!(meter.index(), i);
        }
        assert_eq!(Meter::JobsPeak.row().name, "afflux.host.job_queue.jobs");
        assert_eq!(Meter::JobsPeak.row().label, Some(("state", "peak")));
        assert_eq!(Meter::JobsPeak.row().kind, Kind::Peak(Meter::JobsInUse));
    }

    #[test]
    fn rows_of_one_name_stand_together_and_differ_in_their_label() {
        let mut seen = std::collections::HashSet::new();
        let mut labels = std::collections::HashSet::new();
        let mut last = "";
        for row in Meter::ALL.iter().map(|m| m.row()) {
            if row.name != last {
                assert!(seen.insert(row.name), "{} is torn apart", row.name);
                labels.clear();
                last = row.name;
            }
            assert!(labels.insert(row.label), "{} twice with {:?}", row.name, row.label);
            assert!(labels.len() == 1 || labels.iter().all(|l| l.is_some()), "{}: with and without label", row.name);
            let keys: std::collections::HashSet<_> = labels.iter().flatten().map(|(key, _)| key).collect();
            assert!(keys.len() <= 1, "{}: two label keys", row.name);
        }
    }

    #[test]
    fn rows_of_one_name_are_all_counters_or_all_not() {
        for pair in Meter::ALL.windows(2).map(|w| (w[0].row(), w[1].row())).filter(|(a, b)| a.name == b.name) {
            assert_eq!(pair.0.kind == Kind::Counter, pair.1.kind == Kind::Counter, "{}", pair.0.name);
        }
    }

    #[test]
    fn names_and_sentences_keep_to_the_scheme() {
        for row in Meter::ALL.iter().map(|m| m.row()) {
            assert!(row.name.starts_with("afflux."), "{}", row.name);
            assert!(row.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'.' || b == b'_'), "{}", row.name);
            assert!(row.help.ends_with('.') && !row.help.contains(['\n', '\\']), "{}", row.name);
        }
    }

    #[test]
    fn peaks_follow_a_gauge_and_ratios_follow_counters() {
        for row in Meter::ALL.iter().map(|m| m.row()) {
            match row.kind {
                Kind::Peak(of) => {
                    assert!(matches!(of.row().kind, Kind::Gauge | Kind::Worst), "{}", row.name);
                    assert_eq!(of.row().name, row.name);
                    assert_eq!(of.peak().map(|peak| peak.row().kind), Some(row.kind));
                }
                Kind::Ratio(part, whole) => {
                    assert_eq!((part.row().kind, whole.row().kind), (Kind::Counter, Kind::Counter), "{}", row.name);
                    assert_eq!(row.unit, Unit::Ppm);
                }
                _ => assert_ne!(row.unit, Unit::Ppm, "{}", row.name),
            }
        }
    }
}
