//! From options to a plan. Pure: what was found out about the machine is passed in. Every rule is
//! checked and every value that breaks one is reported; then, and only then, there is a plan. No wrong
//! value is replaced by a default.
//!
//! While rules are checked a wrong number is carried on as the nearest right one, so that rules about
//! other options can still be judged; rules between two options are judged only if both are right in
//! themselves, so that one mistake is one violation.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use super::address;
use super::options::{HostOptions, IdlePolicy, Placement};
use crate::base::error::{Detail, Error, ErrorKind, Violation};
use crate::base::time::{TIMEOUT_MS_MAX, whole_millis};
use crate::base::unit::{ByteSize, NAME_LEN_MAX, charge, grouped};
use crate::plan::{
    CELLS_MAX, CHANNELS_MAX, ClientPlan, ConnectPlan, Endpoint, HostPlan, Hwm, HwmPlan, Idle, JobsPlan, LINKS_MAX,
    LimitSource, MARK_MAX, MESSAGE_MAX, Pinning, PublisherPlan, ROOM_MAX, ReplyPlan, RoomPlan, SHARDS_MAX, STREAMS_MAX,
    SUBSCRIPTION_LEN_MAX, SUBSCRIPTION_TEXT_MAX, SUBSCRIPTIONS_MAX, SlowSubscriber, StreamPlan, SubscriberPlan, split,
};
use crate::policy::budget::{Memory, link_marks, stream_mark};
use crate::runtime::machine::Machine;
use crate::wire::ready::METADATA_MAX;

/// Heaviest weight of a channel's member.
const WEIGHT_MAX: u64 = 10_000;

/// The most properties that an application tells its peers; together with ours a READY has room for 64.
const METADATA_COUNT_MAX: usize = 32;

/// The plan that these options mean on this machine, with no instance number yet; or every rule that
/// they break.
pub fn resolve(options: &HostOptions, machine: &Machine) -> Result<HostPlan, Error> {
    let mut rules = Rules { broken: options.misplaced.clone() };
    rules.name("name", &options.name);
    let cores = cores(&mut rules, options, machine);
    let shards = cores.shards;
    let mut plan = HostPlan::defaults(&options.name, shards);
    pubsub(&mut rules, options, &mut plan);
    client_server(&mut rules, options, &mut plan);
    peers(&mut rules, options, &mut plan);
    sizes(&mut rules, options, &mut plan);
    marks(&mut rules, options, machine, &mut plan);
    streams(&mut rules, options, &mut plan);
    jobs(&mut rules, options, cores.effective, &mut plan);
    times(&mut rules, options, &mut plan);
    if !rules.broken.is_empty() {
        return Err(Error::config(rules.broken));
    }
    plan.cpus = machine.cpus.clone();
    plan.shard_cpus = cores.shard_cpus;
    plan.completion_cpu = cores.completion_cpu;
    plan.pinning = options.pinning;
    plan.idle = cores.idle;
    plan.skip_expired_requests = options.skip_expired_requests;
    plan.diagnostics = options.diagnostics;
    // A rule that the plan has and this file does not is our mistake, not the user's.
    plan.check().map_err(|rule| Error::new(ErrorKind::Internal, Detail::None).with_text(rule))?;
    Ok(plan)
}

/// Where the threads run.
struct Cores {
    shards: u16,
    effective: u32,
    shard_cpus: Vec<Option<usize>>,
    completion_cpu: Option<usize>,
    idle: Idle,
}

fn cores(rules: &mut Rules, options: &HostOptions, machine: &Machine) -> Cores {
    let stated = match &options.placement {
        Placement::Auto => None,
        Placement::Count(n) => Some(*n),
        Placement::Cpus(cpus) => Some(cpus.len()),
    };
    let effective = machine.effective_processors(stated);
    let shards = match stated {
        Some(n) => rules.range("shards", n as u64, 1, u64::from(SHARDS_MAX)) as usize,
        None => (if effective >= 3 { effective - 1 } else { effective }).min(usize::from(SHARDS_MAX)),
    };

    let allowed = &machine.cpus;
    let mut shard_cpus = vec![None; shards];
    match &options.placement {
        _ if options.pinning == Pinning::Off => {}
        Placement::Cpus(cpus) => shard_cpus = cpus.iter().copied().map(Some).collect(),
        _ if shards <= allowed.len() => shard_cpus = allowed[..shards].iter().copied().map(Some).collect(),
        _ => {}
    }
    let taken = |cpu: &usize| shard_cpus.contains(&Some(*cpu));
    let completion_cpu =
        allowed.iter().copied().find(|cpu| !taken(cpu)).filter(|_| shard_cpus.iter().any(Option::is_some));
    if let Placement::Cpus(cpus) = &options.placement {
        let twice = cpus.iter().enumerate().find(|(i, cpu)| cpus[..*i].contains(cpu));
        if let Some((_, cpu)) = twice {
            rules.refuse("shards", format!("processor {cpu} twice"), "one shard per processor");
        }
    }
    if options.pinning == Pinning::Required {
        if allowed.is_empty() {
            rules.refuse("pinning", "Required", "the allowed processors are not known on this system");
        } else if let Placement::Cpus(cpus) = &options.placement {
            for cpu in cpus.iter().filter(|cpu| !allowed.contains(cpu)) {
                rules.refuse(
                    "shards",
                    format!("processor {cpu}"),
                    format!("one of the allowed processors {allowed:?}"),
                );
            }
        } else if shards > allowed.len() {
            rules.refuse(
                "shards",
                shards,
                format!("with Pinning::Required at most {}, the allowed processors", allowed.len()),
            );
        }
    }

    // Every shard and the completion thread a processor of its own: by quota, and by affinity if known.
    let unbounded = machine.effective_processors(None);
    let room_for_all = shards < unbounded;
    let idle = match options.idle {
        IdlePolicy::Auto if room_for_all => Idle::SpinThenPark(Duration::from_micros(50)),
        IdlePolicy::Auto | IdlePolicy::Park => Idle::Park,
        IdlePolicy::Spin => Idle::Spin,
        IdlePolicy::SpinThenPark(time) => {
            if time.is_zero() || time > Duration::from_secs(1) {
                rules.refuse(
                    "idle",
                    format!("SpinThenPark({time:?})"),
                    "more than 0 and at most 1 s; Park is without spinning",
                );
            }
            Idle::SpinThenPark(time)
        }
    };
    let effective = u32::try_from(effective).unwrap_or(u32::MAX);
    Cores { shards: shards as u16, effective, shard_cpus, completion_cpu, idle }
}

/// Addresses, names and channels.
fn peers(rules: &mut Rules, options: &HostOptions, plan: &mut HostPlan) {
    for text in &options.listen {
        match address::listen(text) {
            Ok(addr) if addr.port() != 0 && plan.listen.contains(&addr) => {
                rules.refuse("listen", text, "each address once");
            }
            Ok(addr) => plan.listen.push(addr),
            Err(rule) => rules.refuse("listen", text, rule),
        }
    }
    for connect in &options.connects {
        let links = rules.range("links", connect.links, 1, u64::from(LINKS_MAX)) as u16;
        let name: Option<Arc<str>> = connect.name.as_ref().map(|name| {
            rules.name("named", name);
            if *name == options.name {
                rules.refuse("named", name, "another node than this one");
            }
            if plan.connects.iter().any(|other| other.name.as_deref() == Some(name)) {
                rules.refuse("named", name, "each node is dialled at one address");
            }
            name.as_str().into()
        });
        let addr = address::connect(&connect.addr).unwrap_or_else(|rule| {
            rules.refuse("connect", &connect.addr, rule);
            Endpoint::Name("".into(), 0)
        });
        if plan.connects.iter().any(|other| other.addr == addr && addr != Endpoint::Name("".into(), 0)) {
            rules.refuse("connect", &connect.addr, "each address once; links(n) makes more links to it");
        }
        if connect.pull && links != 1 {
            rules.refuse("links", links, "1 to a PULL socket, which takes from each connection alike");
        }
        plan.connects.push(ConnectPlan { addr, name, links, pull: connect.pull });
    }
    if let Some(credentials) = &options.plain {
        for (what, bytes) in [("user", &credentials.user), ("password", &credentials.password)] {
            if bytes.len() > 255 {
                rules.refuse("plain", format!("a {what} of {} bytes", bytes.len()), "at most 255 bytes");
            }
        }
        plan.credentials = Some(credentials.clone());
    }
    for (i, (name, weight)) in options.channels.iter().enumerate() {
        rules.name("channel", name);
        let weight = rules.range("weight", *weight, 0, WEIGHT_MAX) as u32;
        if options.channels[..i].iter().any(|(other, _)| other == name) {
            rules.refuse("channel", name, "each channel is served once per node");
        }
        plan.channels.push((name.as_str().into(), weight));
    }
    if options.channels.len() > CHANNELS_MAX {
        rules.refuse("channel", options.channels.len(), format!("at most {CHANNELS_MAX} channels per node"));
    }
    plan.peers_max = rules.range("max_peers", options.max_peers, 1, 1_000_000) as u32;
    plan.handshakes_max = rules.range("handshakes", options.max_handshakes, 1, 65_536) as u32;
    plan.caller_rings = rules.range("max_caller_rings", options.max_caller_rings, 1, 65_536) as u32;
    let dialled = plan.links_dialled();
    if rules.good(&["max_peers", "links"]) && dialled > plan.peers_max {
        rules.refuse("max_peers", plan.peers_max, format!("at least the {dialled} links that are dialled"));
    }
}

/// What is served to clients, and whom this host asks as one.
fn client_server(rules: &mut Rules, options: &HostOptions, plan: &mut HostPlan) {
    for (i, (name, weight)) in options.servers.iter().enumerate() {
        rules.name("server", name);
        let weight = rules.range("weight", *weight, 0, WEIGHT_MAX) as u32;
        let known = options.servers[..i].iter().chain(&options.channels).any(|(other, _)| other == name);
        if known {
            rules.refuse("server", name, "each name is served once per node, to nodes or to clients");
        }
        plan.servers.push((name.as_str().into(), weight));
    }
    if !options.servers.is_empty() && options.listen.is_empty() {
        rules.refuse("server", "without listen", "clients connect to an address of listen");
    }
    for (i, stated) in options.clients.iter().enumerate() {
        let name = &stated.name;
        rules.name("client_of", name);
        if options.clients[..i].iter().any(|other| other.name == *name) {
            rules.refuse("client_of", name, "each name once");
        }
        if stated.servers.is_empty() {
            rules.refuse("client_of", name, "has a server: server_at names one");
        }
        let mut servers = Vec::new();
        for text in &stated.servers {
            match address::connect(text) {
                Ok(addr) if servers.contains(&addr) => {
                    rules.refuse("server_at", text, "each address once per role");
                }
                Ok(addr) => servers.push(addr),
                Err(rule) => rules.refuse("server_at", text, rule),
            }
        }
        let send_timeout = rules.time("client_send_timeout", stated.send_timeout);
        plan.clients.push(ClientPlan { name: name.as_str().into(), servers, send_timeout });
    }
    for (option, n) in [("server", options.servers.len()), ("client_of", options.clients.len())] {
        if n > CHANNELS_MAX {
            rules.refuse(option, n, format!("at most {CHANNELS_MAX} per host"));
        }
    }
    metadata(rules, options, plan);
}

/// The application's own properties.
fn metadata(rules: &mut Rules, options: &HostOptions, plan: &mut HostPlan) {
    for (i, (name, value)) in options.metadata.iter().enumerate() {
        let prefix = |text: &str| name.get(..text.len()).is_some_and(|start| start.eq_ignore_ascii_case(text));
        if !prefix("X-") || prefix("X-Afflux-") || name.len() > 255 || !name.bytes().all(|b| b.is_ascii_graphic()) {
            rules.refuse("metadata", format!("{name:?}"), "X- and up to 253 visible ASCII characters, not X-Afflux-");
        }
        if options.metadata[..i].iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
            rules.refuse("metadata", format!("{name:?}"), "each name once, whatever its capitals");
        }
        plan.metadata.push((name.as_str().into(), value.as_slice().into()));
    }
    let size: usize = options.metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
    if size > METADATA_MAX || options.metadata.len() > METADATA_COUNT_MAX {
        let value = format!("{} of {size} bytes", options.metadata.len());
        rules.refuse("metadata", value, format!("at most {METADATA_COUNT_MAX} of {METADATA_MAX} bytes together"));
    }
}

/// What is published and what is subscribed to.
fn pubsub(rules: &mut Rules, options: &HostOptions, plan: &mut HostPlan) {
    if let Some(stated) = &options.publisher {
        let slow = match stated.slow {
            SlowSubscriber::Disconnect(stall) => SlowSubscriber::Disconnect(rules.time("slow_subscriber", stall)),
            other => other,
        };
        plan.publisher = Some(PublisherPlan {
            mark: rules.bytes("publisher.hwm", stated.hwm, 1, MARK_MAX),
            slow,
            linger: rules.time("publisher.linger", stated.linger),
            timeout: rules.time("publisher.timeout", stated.timeout),
            table: rules.bytes("publisher.subscription_table", stated.table, 4 << 10, ROOM_MAX),
        });
        if options.listen.is_empty() {
            rules.refuse("publisher", "without listen", "subscribers connect to an address of listen");
        }
    }
    for (i, stated) in options.subscribers.iter().enumerate() {
        let name = &stated.name;
        rules.name("subscriber", name);
        if options.subscribers[..i].iter().any(|other| other.name == *name) {
            rules.refuse("subscriber", name, "each name once");
        }
        if stated.publishers.is_empty() && !stated.accepts {
            rules.refuse("subscriber", name, "has a publisher: publisher_at names one");
        }
        if stated.accepts && options.listen.is_empty() {
            rules.refuse("publishers_connect", "without listen", "publishers connect to an address of listen");
        }
        if stated.accepts && plan.subscribers.iter().any(|other| other.accepts) {
            rules.refuse("publishers_connect", name, "of one subscriber per host");
        }
        let mut publishers = Vec::new();
        for text in &stated.publishers {
            match address::connect(text) {
                Ok(addr) if publishers.contains(&addr) => {
                    rules.refuse("publisher_at", text, "each address once per subscriber");
                }
                Ok(addr) => publishers.push(addr),
                Err(rule) => rules.refuse("publisher_at", text, rule),
            }
        }
        let too_long = stated.topics.iter().find(|topic| topic.len() > SUBSCRIPTION_LEN_MAX);
        if let Some(topic) = too_long {
            rules.refuse("topic", format!("{} bytes", topic.len()), format!("at most {SUBSCRIPTION_LEN_MAX} bytes"));
        }
        let text: usize = stated.topics.iter().map(Vec::len).sum();
        if stated.topics.len() > SUBSCRIPTIONS_MAX || text > SUBSCRIPTION_TEXT_MAX {
            let value = format!("{} prefixes of {text} bytes", stated.topics.len());
            let rule = format!("per subscriber at most {SUBSCRIPTIONS_MAX} of {SUBSCRIPTION_TEXT_MAX} bytes together");
            rules.refuse("topic", value, rule);
        }
        let topics = stated.topics.iter().map(|topic| topic.as_slice().into()).collect();
        plan.subscribers.push(SubscriberPlan {
            name: name.as_str().into(),
            publishers,
            accepts: stated.accepts,
            topics,
        });
    }
    if options.subscribers.len() > CHANNELS_MAX {
        rules.refuse("subscriber", options.subscribers.len(), format!("at most {CHANNELS_MAX} per host"));
    }
}

/// Rooms, holds and slots: what is full refuses or parks, so each must hold one record of any size.
fn sizes(rules: &mut Rules, options: &HostOptions, plan: &mut HostPlan) {
    let size = |rules: &mut Rules, option, value: ByteSize, low, high| rules.bytes(option, value, low, high);
    plan.max_message = size(rules, "max_message_size", options.max_message_size, 1, MESSAGE_MAX);
    plan.stream_max_message = size(rules, "stream_max_message_size", options.stream_max_message_size, 1, MESSAGE_MAX);
    let message = plan.max_message;
    // Without a right message size nothing can be said about what must hold one.
    let largest = if rules.good(&["max_message_size"]) { plan.record_max() } else { 1 };
    let shards = u64::from(plan.shards);

    let ops = rules.range("waiting_room", options.room_ops, 1, CELLS_MAX - 1);
    plan.room = RoomPlan::new(ops as u32, size(rules, "waiting_room", options.room_bytes, largest, ROOM_MAX));
    let slots = rules.range("request_slots", options.request_slots, 1, CELLS_MAX - 1);
    plan.request_slots = slots as u32;
    plan.requests_per_peer = rules.range("requests_per_peer", options.requests_per_peer, 1, CELLS_MAX - 1) as u32;
    if rules.good(&["waiting_room", "request_slots"]) && ops + slots > CELLS_MAX {
        let rule = format!("with {} operations in the waiting room at most {}", grouped(ops), grouped(CELLS_MAX - ops));
        rules.refuse("request_slots", grouped(slots), rule);
    }
    plan.reply = ReplyPlan {
        per_peer: size(rules, "reply_marks", options.reply_per_peer, 1, ROOM_MAX),
        host: size(rules, "reply_marks", options.reply_host, largest, ROOM_MAX),
        hold: size(rules, "reply_hold", options.reply_hold, largest, ROOM_MAX),
    };
    if rules.good(&["reply_marks"]) && plan.reply.per_peer > plan.reply.host {
        let rule = format!("the mark per peer at most the host's, {}", options.reply_host);
        rules.refuse("reply_marks", options.reply_per_peer, rule);
    }
    let oversize = options.oversize_budget.unwrap_or(ByteSize::bytes(2 * message * shards));
    let least = if rules.good(&["max_message_size", "shards"]) { message * shards } else { 1 };
    plan.oversize_budget = size(rules, "oversize_budget", oversize, least, ROOM_MAX.max(2 * message * shards));
    let most = if rules.good(&["max_message_size"]) { message } else { MESSAGE_MAX };
    let typical = options.typical_record.unwrap_or(ByteSize::bytes(most.min(1024)));
    plan.typical_record = size(rules, "typical_record", typical, 0, most);
    if let Some((send, receive)) = options.socket_buffers {
        let mut buffer = |value| Some(size(rules, "socket_buffers", value, 4 << 10, 1 << 30) as u32);
        plan.socket_send_buffer = buffer(send);
        plan.socket_receive_buffer = buffer(receive);
    }
}

/// The budget, the marks at start and what follows from the budget.
fn marks(rules: &mut Rules, options: &HostOptions, machine: &Machine, plan: &mut HostPlan) {
    let hard = machine.memory_hard.unwrap_or(u64::MAX);
    for (option, stated) in [("memory_limit", options.memory_limit), ("hwm_budget", options.hwm_budget)] {
        match stated {
            Some(n) if n.get() == 0 => rules.refuse(option, n, "more than 0; not stated is computed"),
            Some(n) if n.get() > hard => {
                rules.refuse(option, n, format!("at most {}, the control group's limit", ByteSize::bytes(hard)));
            }
            _ => {}
        }
    }
    for (option, stated) in [("send_hwm", options.send_hwm), ("receive_hwm", options.receive_hwm)] {
        match stated {
            Hwm::Bytes(n) if n.get() == 0 => rules.refuse(option, "Bytes(0)", "Unlimited, if that is meant"),
            Hwm::Bytes(n) => drop(rules.bytes(option, n, 1, MARK_MAX)),
            Hwm::Auto | Hwm::Unlimited => {}
        }
    }
    let memory = Memory {
        budget: options.hwm_budget.map(ByteSize::get),
        option: options.memory_limit.map(ByteSize::get),
        hint: None,
        hard: machine.memory_hard,
        physical: machine.memory_physical,
    };
    let (source, limit) = memory.strongest();
    plan.hwm = HwmPlan {
        profile: options.hwm,
        source,
        limit,
        send: options.send_hwm,
        receive: options.receive_hwm,
        budget: 0,
    };
    let links = plan.links_dialled().max(1);
    let marks = link_marks(&plan.hwm, links);
    (plan.hwm.budget, plan.send_mark, plan.receive_mark) = (marks.budget, marks.send, marks.receive);

    // Minima that do not fit stay, with a flag; values that the user chose are refused instead.
    let chosen = [("send_hwm", options.send_hwm), ("receive_hwm", options.receive_hwm)];
    if marks.insufficient && rules.good(&["memory_limit", "hwm_budget", "send_hwm", "receive_hwm", "links"]) {
        for (option, stated) in chosen {
            if let Hwm::Bytes(n) = stated {
                let budget = ByteSize::bytes(marks.budget);
                let whose = if source == LimitSource::Budget { "stated" } else { "computed" };
                let rule = format!("fits, for {links} link(s) in both directions, the {whose} budget of {budget}");
                rules.refuse(option, n, rule);
            }
        }
    }
    let owned = options.max_owned_bytes.unwrap_or(ByteSize::bytes(marks.budget.clamp(1, ROOM_MAX)));
    plan.max_owned_bytes = rules.bytes("max_owned_bytes", owned, 1, ROOM_MAX);
}

/// The sockets for end clients. A client's marks come from the budget as if every client were there.
fn streams(rules: &mut Rules, options: &HostOptions, plan: &mut HostPlan) {
    if options.streams.len() > STREAMS_MAX {
        rules.refuse("stream", options.streams.len(), format!("at most {STREAMS_MAX} addresses per host"));
    }
    let clients = options.streams.iter().fold(0_u64, |sum, s| sum.saturating_add(s.sessions));
    for stream in &options.streams {
        let addr = address::listen(&stream.addr).unwrap_or_else(|rule| {
            rules.refuse("stream", &stream.addr, rule);
            ([127, 0, 0, 1], 0).into()
        });
        let taken = plan.listen.iter().chain(plan.streams.iter().map(|s| &s.addr)).any(|other| *other == addr);
        if addr.port() != 0 && taken {
            rules.refuse("stream", &stream.addr, "each address once");
        }
        let least = StreamPlan::mark_min(plan.stream_max_message);
        let automatic = stream_mark(&plan.hwm, clients).max(least);
        let mut mark = |hwm| match hwm {
            Hwm::Auto => automatic,
            Hwm::Unlimited => 0,
            Hwm::Bytes(n) => rules.bytes("stream_hwm", n, least, MARK_MAX),
        };
        let (send_mark, receive_mark) = (mark(stream.send_hwm), mark(stream.receive_hwm));
        let largest = if send_mark == 0 { MESSAGE_MAX } else { (send_mark - charge(0, 0)).min(MESSAGE_MAX) };
        plan.streams.push(StreamPlan {
            addr,
            name: stream.addr.as_str().into(),
            sessions: rules.range("stream_sessions", stream.sessions, 1, 1_000_000) as u32,
            send_mark,
            receive_mark,
            max_frame: plan.stream_max_message,
            max_frame_out: largest,
            send_timeout: rules.time("stream_send_timeout", stream.send_timeout),
            idle: stream.idle.map(|idle| rules.time("stream_idle", idle)),
        });
    }
}

/// The job limit and the started bound.
fn jobs(rules: &mut Rules, options: &HostOptions, effective: u32, plan: &mut HostPlan) {
    let most = i32::MAX as u64;
    let shards = u64::from(plan.shards);
    let limit = match options.max_jobs {
        Some(n) => rules.range("max_jobs", n, u64::from(!cfg!(afflux_mutation = "zero_jobs_pass")), most),
        None => {
            let n = u64::from(options.jobs.jobs_per_processor()) * u64::from(effective);
            rules.range("jobs", n, 1, most)
        }
    };
    let pause = rules.range("pause_resume", options.pause_percent, 1, 100);
    let resume = rules.range("pause_resume", options.resume_percent, 0, 99);
    if rules.good(&["pause_resume"]) && resume >= pause {
        rules.refuse("pause_resume", format!("({pause}, {resume})"), "the second below the first");
    }
    let each = rules.range("target_job_share", options.target_job_percent, 1, 100);
    plan.jobs =
        JobsPlan::new(limit as u32, plan.shards, pause as u8, resume as u8, effective).with_target_percent(each as u8);
    plan.turn.claims = plan.jobs.turn_claims;
    let started = match options.max_started_handlers {
        Some(n) if rules.good(&["shards"]) && n < shards => {
            rules.refuse("max_started_handlers", n, format!("at least one for each of the {shards} shards"));
            shards
        }
        Some(n) => rules.range("max_started_handlers", n, 1, u64::from(u32::MAX)),
        None => (4 * limit).clamp(shards, u64::from(u32::MAX)),
    };
    plan.max_started = started as u32;
    plan.started_per_shard = split(plan.max_started, plan.shards);
}

/// Every wait has an end: whole milliseconds, never zero, never without bound.
fn times(rules: &mut Rules, options: &HostOptions, plan: &mut HostPlan) {
    plan.send_timeout = rules.time("send_timeout", options.send_timeout);
    plan.request_timeout = rules.time("request_timeout", options.request_timeout);
    plan.handshake_timeout = rules.time("handshakes", options.handshake_timeout);
    plan.assembly_timeout = rules.time("assembly_timeout", options.assembly_timeout);
    plan.heartbeat = rules.time("heartbeat", options.heartbeat);
    plan.dead_after = rules.time("heartbeat", options.dead_after);
    if rules.good(&["heartbeat"]) && plan.dead_after <= plan.heartbeat {
        rules.refuse(
            "heartbeat",
            format!("{:?}", plan.dead_after),
            format!("dead after more than the interval, {:?}", plan.heartbeat),
        );
    }
    plan.reconnect_min = rules.time("reconnect", options.reconnect_min);
    plan.reconnect_max = rules.time("reconnect", options.reconnect_max);
    if rules.good(&["reconnect"]) && plan.reconnect_min > plan.reconnect_max {
        rules.refuse(
            "reconnect",
            format!("{:?}", plan.reconnect_min),
            format!("at most the longest wait, {:?}", plan.reconnect_max),
        );
    }
}

/// What was broken so far.
struct Rules {
    broken: Vec<Violation>,
}

impl Rules {
    fn refuse(&mut self, option: &'static str, value: impl Display, rule: impl Into<String>) {
        self.broken.push(Violation { option, value: value.to_string(), rule: rule.into() });
    }

    /// None of these options broke a rule so far.
    fn good(&self, options: &[&str]) -> bool {
        self.broken.iter().all(|v| !options.contains(&v.option))
    }

    /// `value`, or the nearest right one if it is wrong.
    fn range(&mut self, option: &'static str, value: u64, low: u64, high: u64) -> u64 {
        if !(low..=high).contains(&value) {
            self.refuse(option, grouped(value), format!("{}..={}", grouped(low), grouped(high)));
        }
        value.clamp(low, high)
    }

    fn bytes(&mut self, option: &'static str, value: ByteSize, low: u64, high: u64) -> u64 {
        if !(low..=high).contains(&value.get()) {
            self.refuse(option, value, format!("{}..={}", ByteSize::bytes(low), ByteSize::bytes(high)));
        }
        value.get().clamp(low, high)
    }

    fn time(&mut self, option: &'static str, value: Duration) -> Duration {
        whole_millis(value).unwrap_or_else(|| {
            self.refuse(option, format!("{value:?}"), format!("1..={} ms", grouped(TIMEOUT_MS_MAX)));
            Duration::from_millis(1)
        })
    }

    fn name(&mut self, option: &'static str, name: &str) {
        let good = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        if !(1..=NAME_LEN_MAX).contains(&name.len()) || !name.bytes().all(good) {
            self.refuse(option, format!("{name:?}"), format!("1..={NAME_LEN_MAX} characters of A-Z a-z 0-9 . _ -"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::handler::Handler;
    use crate::host::options::HostBuilder;
    use crate::host::pubsub::PublisherOptions;
    use crate::plan::{HwmProfile, JobQueueProfile};

    const MIB: u64 = 1 << 20;

    fn machine(processors: usize) -> Machine {
        Machine {
            cpus: (0..processors).collect(),
            processors: Some(processors),
            memory_physical: Some(1000 * MIB),
            ..Machine::default()
        }
    }

    fn node() -> HostBuilder {
        HostBuilder::new("orders-1")
    }

    struct Silent;

    impl crate::engine::session::Session for Silent {
        fn frame(&mut self, _: crate::engine::session::Frame, _: &mut crate::engine::handler::Context<'_, Self>) {}
    }

    fn silent(_: usize) -> Silent {
        Silent
    }

    fn client(addr: &str) -> HostBuilder {
        node().stream(addr, silent)
    }

    #[test]
    fn marks_of_clients_are_a_part_of_the_budget_and_never_less_than_a_frame() {
        let of = |builder: HostBuilder| {
            let stream = plan(builder, 4).streams.remove(0);
            (stream.send_mark, stream.receive_mark, stream.max_frame_out)
        };
        const KIB: u64 = 1 << 10;
        let default = client("tcp://:1");
        assert_eq!(of(default), (65_600, 65_600, 64 * KIB), "64 KiB and what a frame of 64 KiB costs");
        let few = client("tcp://:1").stream_sessions(10);
        assert_eq!(of(few), (128 * KIB, 128 * KIB, 128 * KIB - 64));
        let small = client("tcp://:1")
            .stream_max_message_size(ByteSize::kib(1))
            .stream_hwm(Hwm::Bytes(ByteSize::kib(2)), Hwm::Unlimited);
        assert_eq!(of(small), (2 * KIB, 0, 2 * KIB - 64));
        let large = client("tcp://:1").stream_max_message_size(ByteSize::mib(1));
        assert_eq!(of(large).1, 1024 * KIB + 64);
    }

    fn plan(builder: HostBuilder, processors: usize) -> HostPlan {
        resolve(builder.options(), &machine(processors)).unwrap()
    }

    /// The violations as `option = value: rule`.
    fn broken(builder: &HostBuilder, machine: &Machine) -> Vec<String> {
        match resolve(builder.options(), machine) {
            Ok(plan) => panic!("{plan:?}"),
            Err(e) => e.violations().iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn publishing_and_subscribing_are_judged_together() {
        let right = node()
            .listen("tcp://127.0.0.1:7201")
            .publisher(PublisherOptions::new().hwm(ByteSize::kib(64)))
            .subscriber("ticks", |_| Deaf)
            .publisher_at("tcp://127.0.0.1:7202")
            .publisher_at("tcp://ticker-2:7202")
            .topic("eur/")
            .topic("");
        let plan = plan(right, 2);
        assert_eq!(plan.publisher.unwrap().mark, 64 << 10);
        assert_eq!((plan.subscribers[0].publishers.len(), plan.subscribers[0].topics.len()), (2, 2));
        assert_eq!(plan.links_dialled(), 2);

        let zero = Duration::ZERO;
        let options = PublisherOptions::new()
            .hwm(ByteSize::bytes(0))
            .slow_subscriber(SlowSubscriber::Disconnect(zero))
            .linger(zero)
            .timeout(Duration::MAX)
            .subscription_table(ByteSize::bytes(1));
        let wrong = node()
            .topic("before any subscriber")
            .publisher(options.clone())
            .publisher(options)
            .subscriber("ticks", |_| Deaf)
            .publisher_at("tcp://127.0.0.1:7202")
            .publisher_at("tcp://localhost:7202")
            .publisher_at("tcp://127.0.0.1:0")
            .topic(vec![0; 5000])
            .subscriber("ticks", |_| Deaf)
            .subscriber("a b", |_| Deaf)
            .publishers_connect()
            .publisher_at("udp://127.0.0.1:7202")
            .subscriber("b", |_| Deaf)
            .publishers_connect();
        let found = broken(&wrong, &machine(2));
        let expected = [
            "topic = before any subscriber: speaks of the subscriber before it",
            "publisher = a second one",
            "slow_subscriber = 0ns",
            "publisher.hwm = 0",
            "publisher.linger = 0ns",
            "publisher.timeout = 18446744073709551615",
            "publisher.subscription_table = 1",
            "publisher = without listen",
            "publisher_at = tcp://localhost:7202: each address once",
            "publisher_at = tcp://127.0.0.1:0",
            "topic = 5000 bytes",
            "subscriber = ticks: each name once",
            "subscriber = ticks: has a publisher",
            "subscriber = \"a b\"",
            "publishers_connect = without listen",
            "publisher_at = udp://127.0.0.1:7202",
            "publishers_connect = without listen",
            "publishers_connect = b: of one subscriber",
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found} instead of {expected}");
        }
    }

    struct Deaf;
    impl Handler for Deaf {}

    #[test]
    fn the_defaults_of_a_machine_with_four_processors() {
        let plan = plan(node(), 4);
        assert_eq!((plan.shards, plan.jobs.effective_processors, plan.jobs.limit), (3, 4, 512));
        assert_eq!((plan.jobs.pause_at, plan.jobs.resume_at), (410, 307));
        assert_eq!((plan.jobs.turn_claims, plan.jobs.share), (64, 42));
        assert_eq!((plan.max_started, &plan.started_per_shard[..]), (2048, &[683, 683, 682][..]));
        assert_eq!((plan.hwm.budget, plan.max_owned_bytes), (50 * MIB, 50 * MIB));
        assert_eq!((plan.send_mark, plan.receive_mark), (MIB, MIB));
        assert_eq!(plan.shard_cpus, [Some(0), Some(1), Some(2)]);
        assert_eq!(plan.completion_cpu, Some(3));
        assert_eq!(plan.idle, Idle::SpinThenPark(Duration::from_micros(50)));
        assert_eq!(plan.oversize_budget, 2 * 16 * MIB * 3);
        // Case 071: who names no ceiling waits for a second, and is told then.
        let second = Duration::from_secs(1);
        assert_eq!((plan.send_timeout, plan.request_timeout), (second, 30 * second));
    }

    #[test]
    fn shards_and_idling_follow_the_processors() {
        for (processors, shards, spins) in [(1, 1, false), (2, 2, false), (3, 2, true), (4, 3, true), (16, 15, true)] {
            let plan = plan(node(), processors);
            assert_eq!((plan.shards, plan.idle != Idle::Park), (shards, spins), "{processors}");
        }
        let quota = crate::runtime::machine::Quota { micros: 250_000, period: 100_000 };
        let limited = Machine { quota: Some(quota), ..machine(16) };
        let plan = resolve(node().options(), &limited).unwrap();
        assert_eq!((plan.shards, plan.jobs.limit, plan.idle), (2, 256, Idle::Park));
        assert_eq!(resolve(node().options(), &Machine::default()).unwrap().shards, 1);
    }

    #[test]
    fn stated_processors_are_used_and_one_is_left_for_the_completion_thread() {
        let placed = plan(node().shards(Placement::Cpus(vec![2, 0])), 4);
        assert_eq!((placed.shard_cpus, placed.completion_cpu), (vec![Some(2), Some(0)], Some(1)));
        let crowded = plan(node().shards(Placement::Count(5)), 2);
        assert_eq!((crowded.shard_cpus, crowded.completion_cpu), (vec![None; 5], None));
        assert_eq!((crowded.idle, crowded.jobs.effective_processors), (Idle::Park, 2));
        let off = plan(node().pinning(Pinning::Off), 4);
        assert_eq!((off.shard_cpus, off.completion_cpu), (vec![None; 3], None));
    }

    #[test]
    fn exact_values_are_exact() {
        let one = plan(node().max_jobs(1).shards(Placement::Count(8)), 16);
        assert_eq!((one.jobs.limit, one.jobs.pause_at, one.jobs.resume_at), (1, 1, 0));
        assert_eq!((one.max_started, one.jobs.turn_claims), (8, 1));
        let most = plan(node().max_jobs(i32::MAX as u64), 4);
        assert_eq!((most.jobs.limit, most.max_started), (i32::MAX as u32, u32::MAX));
        let profiles = plan(node().jobs(JobQueueProfile::Compact).hwm(HwmProfile::Throughput), 4);
        assert_eq!((profiles.jobs.limit, profiles.hwm.budget), (128, 80 * MIB));
    }

    #[test]
    fn timeouts_round_up_to_milliseconds() {
        let plan = plan(node().send_timeout(Duration::from_nanos(1)).request_timeout(Duration::from_micros(1500)), 1);
        assert_eq!((plan.send_timeout, plan.request_timeout), (Duration::from_millis(1), Duration::from_millis(2)));
    }

    #[test]
    fn marks_are_divided_among_the_links_that_are_dialled() {
        let four = node().hwm_budget(ByteSize::mib(2)).connect("tcp://:1").links(3).connect("tcp://:2");
        let shared = plan(four, 4);
        assert_eq!((shared.send_mark, shared.receive_mark), (MIB / 4, MIB / 4));
        let manual = node().send_hwm(Hwm::Bytes(ByteSize::kib(512))).receive_hwm(Hwm::Unlimited);
        let stated = plan(manual, 4);
        assert_eq!((stated.send_mark, stated.receive_mark), (MIB / 2, 0));
    }

    /// One wrong value, one violation, with the option's name and the rule.
    #[test]
    fn every_rule_names_its_option() {
        let (ms, kib) = (Duration::from_millis, ByteSize::kib);
        let forever = Duration::MAX;
        let cases: Vec<(HostBuilder, &str)> = vec![
            (HostBuilder::new(""), "name = \"\": 1..=64 characters"),
            (HostBuilder::new("a b"), "name = \"a b\": 1..=64 characters"),
            (HostBuilder::new("n".repeat(65)), "name = \"nnn"),
            (node().listen("7101"), "listen = 7101: is written tcp://host:port"),
            (node().listen("tcp://:1").listen("tcp://localhost:1"), "listen = tcp://localhost:1: each address once"),
            (node().connect("tcp://x"), "connect = tcp://x: is written"),
            (node().connect("tcp://x:1").connect("tcp://x:1"), "connect = tcp://x:1: each address once; links(n)"),
            (node().connect("tcp://x:1").links(0), "links = 0: 1..=64"),
            (node().connect("tcp://x:1").links(65), "links = 65: 1..=64"),
            (node().links(2), "links = 2: speaks of the connect before it"),
            (node().named("a"), "named = a: speaks of the connect before it"),
            (node().connect("tcp://x:1").named("a/b"), "named = \"a/b\": 1..=64 characters"),
            (node().connect("tcp://x:1").named("orders-1"), "named = orders-1: another node"),
            (node().connect("tcp://x:1").named("a").connect("tcp://y:1").named("a"), "named = a: each node"),
            (node().weight(5), "weight = 5: speaks of the channel before it"),
            (node().shards(Placement::Count(0)), "shards = 0: 1..=256"),
            (node().shards(Placement::Count(257)), "shards = 257: 1..=256"),
            (node().shards(Placement::Cpus(vec![])), "shards = 0: 1..=256"),
            (node().shards(Placement::Cpus(vec![1, 1])), "shards = processor 1 twice: one shard"),
            (
                node().shards(Placement::Cpus(vec![1, 9])).pinning(Pinning::Required),
                "shards = processor 9: one of the allowed processors [0, 1, 2, 3]",
            ),
            (
                node().shards(Placement::Count(5)).pinning(Pinning::Required),
                "shards = 5: with Pinning::Required at most 4",
            ),
            (node().idle(IdlePolicy::SpinThenPark(Duration::ZERO)), "idle = SpinThenPark(0ns): more than 0"),
            (node().idle(IdlePolicy::SpinThenPark(ms(1001))), "idle = SpinThenPark(1.001s): more than 0"),
            (node().memory_limit(kib(0)), "memory_limit = 0 B: more than 0"),
            (node().hwm_budget(kib(0)), "hwm_budget = 0 B: more than 0"),
            (node().send_hwm(Hwm::Bytes(kib(0))), "send_hwm = Bytes(0): Unlimited"),
            (node().receive_hwm(Hwm::Bytes(ByteSize::gib(33))), "receive_hwm = 33 GiB: 1 B..=32 GiB"),
            (node().send_hwm(Hwm::Bytes(ByteSize::mib(50))), "send_hwm = 50 MiB: fits, for 1 link(s)"),
            (node().max_message_size(kib(0)), "max_message_size = 0 B: 1 B..=1 GiB"),
            (node().max_message_size(ByteSize::bytes((1 << 30) + 1)), "max_message_size = 1073741825 B"),
            (node().stream_max_message_size(kib(0)), "stream_max_message_size = 0 B"),
            (node().stream_sessions(1), "stream_sessions = 1: speaks of the stream before it"),
            (node().stream_idle(ms(1)), "stream_idle = 1ms: speaks of the stream before it"),
            (client("9000"), "stream = 9000: is written tcp://host:port"),
            (client("tcp://:1").stream("tcp://localhost:1", silent), "stream = tcp://localhost:1: each address once"),
            (client("tcp://:1").listen("tcp://:1"), "stream = tcp://:1: each address once"),
            (client("tcp://:1").stream_sessions(0), "stream_sessions = 0: 1..=1,000,000"),
            (client("tcp://:1").stream_send_timeout(Duration::ZERO), "stream_send_timeout = 0ns: 1..="),
            (client("tcp://:1").stream_idle(forever), "stream_idle = "),
            (client("tcp://:1").stream_hwm(Hwm::Bytes(kib(64)), Hwm::Auto), "stream_hwm = 64 KiB: 65600 B..="),
            (node().oversize_budget(ByteSize::mib(47)), "oversize_budget = 47 MiB: 48 MiB..="),
            (node().max_owned_bytes(kib(0)), "max_owned_bytes = 0 B"),
            (node().max_jobs(0), "max_jobs = 0: 1..=2,147,483,647"),
            (node().target_job_share(0), "target_job_share = 0: 1..=100"),
            (node().target_job_share(101), "target_job_share = 101: 1..=100"),
            (node().max_jobs(1 << 31), "max_jobs = 2,147,483,648: 1..=2,147,483,647"),
            (node().pause_resume(0, 0), "pause_resume = 0: 1..=100"),
            (node().pause_resume(101, 0), "pause_resume = 101: 1..=100"),
            (node().pause_resume(100, 100), "pause_resume = 100: 0..=99"),
            (node().pause_resume(60, 60), "pause_resume = (60, 60): the second below the first"),
            (node().max_started_handlers(2), "max_started_handlers = 2: at least one for each of the 3 shards"),
            (node().max_started_handlers(1 << 32), "max_started_handlers = 4,294,967,296"),
            (node().waiting_room(0, ByteSize::mib(64)), "waiting_room = 0: 1..=1,048,574"),
            (node().waiting_room(1, ByteSize::mib(16)), "waiting_room = 16 MiB: 16777535 B..=512 GiB"),
            (node().request_slots(0), "request_slots = 0: 1..="),
            (node().request_slots(1_048_574), "request_slots = 1,048,574: with 4,096 operations"),
            (node().requests_per_peer(0), "requests_per_peer = 0: 1..="),
            (node().reply_marks(kib(0), ByteSize::mib(128)), "reply_marks = 0 B: 1 B..="),
            (node().reply_marks(ByteSize::mib(65), ByteSize::mib(64)), "reply_marks = 65 MiB: the mark per peer"),
            (node().reply_marks(kib(1), ByteSize::mib(16)), "reply_marks = 16 MiB: 16777535 B"),
            (node().reply_hold(ByteSize::mib(16)), "reply_hold = 16 MiB: 16777535 B"),
            (node().send_timeout(Duration::ZERO), "send_timeout = 0ns: 1..=2,147,483,647 ms"),
            (node().send_timeout(forever), "send_timeout = 18446744073709551615.999999999s: 1..="),
            (node().request_timeout(ms(1 << 31)), "request_timeout = 2147483.648s: 1..="),
            (node().max_caller_rings(0), "max_caller_rings = 0: 1..=65,536"),
            (node().max_peers(0), "max_peers = 0: 1..=1,000,000"),
            (node().connect("tcp://x:1").links(3).max_peers(2), "max_peers = 2: at least the 3 links"),
            (node().handshakes(0, ms(1)), "handshakes = 0: 1..=65,536"),
            (node().handshakes(1, Duration::ZERO), "handshakes = 0ns: 1..="),
            (node().heartbeat(ms(5), ms(5)), "heartbeat = 5ms: dead after more than the interval, 5ms"),
            (node().heartbeat(Duration::ZERO, ms(5)), "heartbeat = 0ns: 1..="),
            (node().reconnect(ms(2), ms(1)), "reconnect = 2ms: at most the longest wait, 1ms"),
            (node().assembly_timeout(forever), "assembly_timeout = "),
            (node().socket_buffers(kib(3), kib(64)), "socket_buffers = 3 KiB: 4 KiB..=1 GiB"),
            (node().typical_record(ByteSize::mib(17)), "typical_record = 17 MiB: 0 B..=16 MiB"),
        ];
        for (builder, start) in cases {
            let violations = broken(&builder, &machine(4));
            assert!(violations.len() == 1 && violations[0].starts_with(start), "{start}\n{violations:#?}");
        }
    }

    #[test]
    fn channels_are_judged_too() {
        let of = |channels: &[(&str, u64)]| {
            let mut builder = node();
            builder.options.channels = channels.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect();
            builder
        };
        let plan = plan(of(&[("a", 0), ("b", 10_000)]), 1);
        assert_eq!(plan.channels, [("a".into(), 0), ("b".into(), 10_000)]);
        assert_eq!(
            broken(&of(&[("a", 1), ("a", 1)]), &machine(1)),
            ["channel = a: each channel is served once per node"]
        );
        assert_eq!(broken(&of(&[("a", 10_001)]), &machine(1)), ["weight = 10,001: 0..=10,000"]);
        let names: Vec<String> = (0..257).map(|i| format!("c{i}")).collect();
        let many: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        assert_eq!(broken(&of(&many), &machine(1)), ["channel = 257: at most 256 channels per node"]);
    }

    #[test]
    fn the_hard_limit_binds_what_the_user_states() {
        let limited = Machine { memory_hard: Some(100 * MIB), ..machine(4) };
        let allowed = node().memory_limit(ByteSize::mib(100));
        assert_eq!(resolve(allowed.options(), &limited).unwrap().hwm.budget, 5 * MIB);
        let rule = "at most 100 MiB, the control group's limit";
        let above = node().memory_limit(ByteSize::mib(101));
        assert_eq!(broken(&above, &limited), [format!("memory_limit = 101 MiB: {rule}")]);
        let above = node().hwm_budget(ByteSize::mib(101));
        assert_eq!(broken(&above, &limited), [format!("hwm_budget = 101 MiB: {rule}")]);
    }

    #[test]
    fn required_pinning_wants_known_processors() {
        let unknown = Machine { processors: Some(4), ..Machine::default() };
        let required = node().pinning(Pinning::Required);
        assert_eq!(
            broken(&required, &unknown),
            ["pinning = Required: the allowed processors are not known on this system"]
        );
        assert!(resolve(required.options(), &machine(4)).is_ok());
    }

    #[test]
    fn all_mistakes_are_shown_at_once() {
        let builder = HostBuilder::new("a b")
            .listen("nowhere")
            .connect("tcp://x:1")
            .links(0)
            .max_jobs(0)
            .send_timeout(Duration::ZERO)
            .reply_hold(ByteSize::kib(1));
        let options: Vec<String> =
            broken(&builder, &machine(4)).iter().map(|v| v.split(' ').next().unwrap().to_owned()).collect();
        assert_eq!(options, ["name", "listen", "links", "reply_hold", "max_jobs", "send_timeout"]);
    }
}
