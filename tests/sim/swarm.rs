//! The options of one run, all drawn from its seed: what the hosts may hold, what their callers do, and
//! what happens to them.

use std::time::Duration;

use afflux::base::rng::Rng;
use afflux::plan::{
    ConnectPlan, Endpoint, HostPlan, Hwm, HwmPlan, HwmProfile, Idle, JobsPlan, LimitSource, ReplyPlan, RoomPlan,
};
use afflux::policy::budget::link_marks;

use super::node::address;
use super::script::{Act, SCRIPT_LEN};

/// The options of one seed.
#[derive(Clone, Debug)]
pub struct Swarm {
    pub nodes: usize,
    pub shards: Vec<u16>,
    /// Nodes without a handler of their own.
    pub deaf: Vec<bool>,
    /// How far the nodes' clocks are ahead of the world's; a node that starts anew has its neighbour's.
    pub ahead_ms: Vec<u64>,
    pub jobs: u32,
    /// The most that one target may have of the jobs.
    pub job_share_percent: u64,
    /// The budget that the marks of all links come from; 0: every link has the marks that are stated.
    pub budget: u64,
    /// Where peers are told to pause, and to go on, in percent of the jobs.
    pub thresholds: (u64, u64),
    pub started_per_shard: u32,
    pub links: u16,
    pub send_mark: u64,
    pub receive_mark: u64,
    pub max_message: u64,
    /// In records of the largest size.
    pub oversize: u64,
    pub skip_expired: bool,
    pub spin_us: u64,
    pub room_ops: u32,
    pub request_slots: u32,
    pub requests_per_peer: u32,
    pub owned: u64,
    pub reply_per_peer: u64,
    pub reply_hold: u64,
    pub ring_slots: u32,
    pub caller_rings: u32,
    pub ring_records: u32,
    pub turn_bytes: usize,
    pub read_block: usize,
    pub heartbeat_ms: u64,
    pub reconnect_ms: u64,
    pub pipe: usize,
    pub latency_us: (u64, u64),
    pub turn_us: u64,
    pub callers: usize,
    pub ops: usize,
    /// This share of the callers has so many operations outstanding and no more.
    pub closed_percent: u64,
    pub window: u64,
    /// Mean time between the end of one and the beginning of the next.
    pub think_us: u64,
    /// Mean time between two operations of one of the other callers, and how many it makes at once.
    pub interval_us: u64,
    pub burst: u64,
    pub timeout_ms: (u64, u64),
    /// The longest that a handler's own request may take.
    pub nested_ms: u64,
    pub hold_us: u64,
    pub large_percent: u64,
    pub request_percent: u64,
    pub give_up_percent: u64,
    /// Operations whose callers look late at what became of them.
    pub lazy_percent: u64,
    /// Requests after which a thread waits and leads.
    pub lead_percent: u64,
    pub try_percent: u64,
    pub nest_percent: u64,
    pub keep_percent: u64,
    pub odd_percent: u64,
    pub faults: Faults,
}

/// Which faults are injected; the mean time between two of them.
#[derive(Clone, Debug)]
pub struct Faults {
    pub interval_us: u64,
    pub cut: bool,
    pub freeze: bool,
    pub refuse: bool,
    pub stuck: bool,
    /// A host dies; its peers hear of it or not.
    pub kill: bool,
    /// A host is shut down in good order.
    pub drain: bool,
}

impl Faults {
    pub fn any(&self) -> bool {
        self.cut || self.freeze || self.refuse || self.stuck || self.kill || self.drain
    }
}

impl Swarm {
    pub fn draw(seed: u64, ops: usize) -> Swarm {
        let r = &mut Rng::new(seed ^ 0x5357_4152_4D00_0000);
        let nodes = one_of(r, &[2, 2, 3, 3, 4, 5]) as usize;
        let shards: Vec<u16> = (0..nodes).map(|_| 1 + r.below(4) as u16).collect();
        let max_message = one_of(r, &[4 << 10, 16 << 10, 64 << 10]);
        let record_max = max_message + 1024;
        let latency_min = one_of(r, &[5, 20, 200]);
        let started_per_shard = one_of(r, &[1, 4, 16, 64]) as u32;
        let mut swarm = Swarm {
            nodes,
            deaf: (0..nodes).map(|_| r.below(5) == 0).collect(),
            jobs: one_of(r, &[1, 1, 2, 5, 16, 64]) as u32,
            thresholds: one_of_pairs(r, &[(80, 60), (80, 60), (50, 0), (100, 99)]),
            started_per_shard,
            links: 1 + r.below(3) as u16 * r.below(2) as u16,
            send_mark: one_of(r, &[512, 4 << 10, 16 << 10, 256 << 10, 0]),
            receive_mark: one_of(r, &[512, 4 << 10, 16 << 10, 256 << 10]),
            max_message,
            oversize: 1 + r.below(3),
            skip_expired: r.below(2) == 0,
            spin_us: one_of(r, &[0, 0, 15]),
            room_ops: one_of(r, &[4, 64, 256, 1024]) as u32,
            request_slots: one_of(r, &[4, 32, 1024]) as u32,
            requests_per_peer: one_of(r, &[2, 16, 1024]) as u32,
            owned: one_of(r, &[2 << 10, 64 << 10, 16 << 20]),
            reply_per_peer: one_of(r, &[1 << 10, 16 << 10, 1 << 20]).min(record_max * 2),
            reply_hold: record_max * one_of(r, &[1, 1, 4, 64]),
            ring_slots: one_of(r, &[4, 16, 256]) as u32,
            caller_rings: one_of(r, &[1, 4, 128]) as u32,
            ring_records: one_of(r, &[1, 8, 256]) as u32,
            turn_bytes: one_of(r, &[1 << 10, 16 << 10, 256 << 10]) as usize,
            read_block: one_of(r, &[8 << 10, 64 << 10]) as usize,
            heartbeat_ms: one_of(r, &[20, 100, 1000]),
            reconnect_ms: one_of(r, &[1, 10]),
            pipe: one_of(r, &[700, 4 << 10, 64 << 10]) as usize,
            latency_us: (latency_min, latency_min * (1 + r.below(4))),
            turn_us: one_of(r, &[2, 10, 50]),
            callers: 2 + r.below(8) as usize,
            ops,
            closed_percent: one_of(r, &[0, 60, 100]),
            window: one_of(r, &[1, 4, 16]),
            think_us: one_of(r, &[10, 100, 1000]),
            interval_us: one_of(r, &[100, 500, 2000]),
            burst: one_of(r, &[1, 1, 4, 16]),
            timeout_ms: (1 + r.below(20), one_of(r, &[50, 400, 2000])),
            nested_ms: if started_per_shard == 1 { 20 } else { one_of(r, &[20, 200]) },
            hold_us: one_of(r, &[50, 500, 5000, 20_000]),
            large_percent: one_of(r, &[0, 3, 15]),
            request_percent: one_of(r, &[20, 50, 90]),
            lazy_percent: one_of(r, &[0, 0, 20, 60]),
            lead_percent: [0, 20, 60][(seed / 2 % 3) as usize],
            give_up_percent: one_of(r, &[0, 2, 10]),
            try_percent: one_of(r, &[0, 10]),
            nest_percent: one_of(r, &[0, 10, 30]),
            keep_percent: one_of(r, &[10, 50]),
            odd_percent: one_of(r, &[0, 3]),
            faults: Faults {
                interval_us: one_of(r, &[3_000, 20_000, 100_000]),
                cut: r.below(2) == 0,
                freeze: r.below(2) == 0,
                refuse: r.below(2) == 0,
                stuck: r.below(2) == 0,
                kill: r.below(4) == 0,
                drain: r.below(4) == 0,
            },
            ahead_ms: (0..nodes).map(|_| one_of(r, &[0, 0, 3, 1_000_000, (1 << 32) - 300])).collect(),
            job_share_percent: one_of(r, &[100, 100, 50, 20]),
            budget: one_of(r, &[0, 0, 0, 128 << 10, 512 << 10]),
            shards,
        };
        // Every fourth run is driven into a corner that chance alone finds rarely.
        match seed % 16 {
            3 | 11 => swarm.under_pressure(r),
            7 => swarm.slow_readers(r),
            15 => swarm.crowded(r),
            _ => {}
        }
        swarm
    }

    /// Few jobs, handlers that keep their places, links that tear: peers are paused for long.
    fn under_pressure(&mut self, r: &mut Rng) {
        (self.jobs, self.started_per_shard) = (one_of(r, &[1, 2, 5]) as u32, 1);
        (self.keep_percent, self.hold_us, self.request_percent) = (50, 20_000, 90);
        (self.faults.cut, self.faults.interval_us) = (true, one_of(r, &[5_000, 20_000]));
        // So that what peers know of each other can be compared.
        (self.faults.freeze, self.faults.kill) = (false, false);
        self.room_ops = self.room_ops.max(64);
    }

    /// Thin connections, narrow reply marks, large replies: answers wait for room.
    fn slow_readers(&mut self, r: &mut Rng) {
        (self.pipe, self.reply_per_peer) = (one_of(r, &[700, 4 << 10]) as usize, 1 << 10);
        (self.large_percent, self.request_percent, self.lazy_percent) = (15, 90, 60);
        (self.faults.cut, self.faults.freeze, self.faults.interval_us) = (true, true, 20_000);
        self.reply_hold = self.max_message + 1024;
    }

    /// A small room that handlers and callers fill.
    fn crowded(&mut self, r: &mut Rng) {
        (self.room_ops, self.send_mark) = (one_of(r, &[4, 16]) as u32, 512);
        (self.nest_percent, self.request_percent, self.started_per_shard) = (60, 90, 16);
        (self.closed_percent, self.window, self.callers) = (100, 4, 9);
    }

    /// The plan of one node. Every node dials those after it.
    pub fn plan(&self, node: usize, life: u32) -> HostPlan {
        let shards = self.shards[node];
        let (pause, resume) = self.thresholds;
        let mut plan = HostPlan::defaults(&name(node), shards);
        let jobs = JobsPlan::new(self.jobs, shards, pause as u8, resume as u8, u32::from(shards))
            .with_target_percent(self.job_share_percent as u8);
        plan.instance = u128::from(life) << 32 | (node as u128 + 1);
        plan.skip_expired_requests = self.skip_expired;
        plan.idle = match self.spin_us {
            0 => Idle::Park,
            us => Idle::SpinThenPark(Duration::from_micros(us)),
        };
        plan.turn.claims = jobs.turn_claims;
        plan.jobs = jobs;
        plan.started_per_shard = vec![self.started_per_shard; usize::from(shards)];
        plan.max_started = self.started_per_shard * u32::from(shards);
        plan.channels = vec![("svc".into(), 100), ("slow".into(), 100)];
        plan.connects = (node + 1..self.nodes)
            .map(|to| ConnectPlan {
                addr: Endpoint::Addr(address(to)),
                name: Some(name(to).into()),
                links: self.links,
                pull: false,
            })
            .collect();
        (plan.send_mark, plan.receive_mark) = (self.send_mark, self.receive_mark);
        (plan.hwm.send, plan.hwm.receive) = (Hwm::from_number(self.send_mark), Hwm::from_number(self.receive_mark));
        if self.budget > 0 {
            plan.hwm = HwmPlan {
                profile: HwmProfile::Compact,
                source: LimitSource::Budget,
                limit: self.budget,
                ..HwmPlan::default()
            };
            let marks = link_marks(&plan.hwm, plan.links_dialled().max(1));
            (plan.hwm.budget, plan.send_mark, plan.receive_mark) = (marks.budget, marks.send, marks.receive);
        }
        plan.max_message = self.max_message;
        plan.oversize_budget = self.oversize * self.max_message;
        plan.max_owned_bytes = self.owned;
        let record_max = plan.record_max();
        plan.room = RoomPlan::new(self.room_ops, (record_max * 4).max(64 << 10));
        (plan.request_slots, plan.requests_per_peer) = (self.request_slots, self.requests_per_peer);
        plan.reply = ReplyPlan {
            per_peer: self.reply_per_peer,
            host: (4 * self.reply_per_peer).max(record_max),
            hold: self.reply_hold.max(record_max),
        };
        plan.send_timeout = Duration::from_millis(self.timeout_ms.1);
        plan.request_timeout = Duration::from_millis(self.timeout_ms.1);
        (plan.ring_slots, plan.caller_rings) = (self.ring_slots, self.caller_rings);
        plan.peers_max = 64;
        plan.heartbeat = Duration::from_millis(self.heartbeat_ms);
        plan.dead_after = Duration::from_millis(self.heartbeat_ms * 3);
        plan.handshake_timeout = Duration::from_millis(500);
        plan.reconnect_min = Duration::from_millis(self.reconnect_ms);
        plan.reconnect_max = Duration::from_millis(self.reconnect_ms * 8);
        plan.assembly_timeout = Duration::from_millis(500);
        plan.turn.ring_records = self.ring_records;
        plan.turn.read_bytes_per_link = self.turn_bytes;
        plan.turn.write_bytes_per_link = self.turn_bytes;
        plan.turn.read_block = self.read_block;
        plan
    }

    /// How far a node's clock is ahead of the world's.
    pub fn ahead(&self, node: usize, life: u32) -> u64 {
        self.ahead_ms[(node + life as usize) % self.nodes] * 1_000_000
    }

    /// A payload length.
    pub fn len(&self, r: &mut Rng) -> usize {
        let max = self.max_message;
        let len = match r.below(100) {
            p if p < self.large_percent => one_of(r, &[max, max / 2, self.receive_mark + 1, self.send_mark + 1]),
            p if p < 60 => r.below(200),
            _ => r.below(2000),
        };
        len.clamp(SCRIPT_LEN as u64, max) as usize
    }

    pub fn act(&self, r: &mut Rng) -> Act {
        let mut p = r.below(100);
        for (share, act) in [
            (self.keep_percent, Act::Keep),
            (self.nest_percent, Act::Nest),
            (self.odd_percent, Act::Drop),
            (self.odd_percent, Act::Fail),
            (self.odd_percent, Act::Panic),
        ] {
            if p < share {
                return act;
            }
            p -= share;
        }
        Act::Inline
    }
}

pub fn name(node: usize) -> String {
    format!("n{node}")
}

fn one_of_pairs(r: &mut Rng, of: &[(u64, u64)]) -> (u64, u64) {
    of[r.below(of.len() as u64) as usize]
}

pub fn one_of(r: &mut Rng, of: &[u64]) -> u64 {
    of[r.below(of.len() as u64) as usize]
}
