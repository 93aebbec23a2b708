//! The watch: once a second it looks at both sides, prints what it sees, and keeps it for the report, the
//! chart and the histogram log.
//!
//! It is the only reader of the histograms, so what is printed, written and drawn is the same data.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use afflux::host::dump::{HistogramLog, MICROS, write_hgrm};
use afflux::plan::STARTED_BYTES;
use afflux::policy::bridge::BridgeSnapshot;
use afflux::{Host, HostStatus, Latency, LinkStatus};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::batcher::StoreBridge;
use crate::counts::{Counts, Shared};
use crate::load::SLOT_BYTES;
use crate::memory::Memory;
use crate::sample::{Sample, Samples};
use crate::served::{Flow, Served};
use crate::stages::{self, Stage};
use crate::table;
use crate::times::{Set, TIMES, Time, Times};

const EVERY: Duration = Duration::from_secs(1);
/// How often the stages are looked at in between, for their peaks.
const GLANCE: Duration = Duration::from_millis(25);
/// What there is to look at.
#[derive(Clone)]
pub struct Sides {
    /// The load and its host.
    pub load: Option<(Arc<Host>, Arc<Shared>)>,
    /// The service's host, stages and bridge.
    pub service: Option<(Arc<Host>, Arc<Flow>, Arc<StoreBridge>)>,
    /// The relay's own histograms.
    pub times: Arc<Times>,
}

/// Everything that was seen.
pub struct Seen {
    /// In the order of time.
    pub samples: Samples,
    /// Each stage at its fullest: what it held, its bytes, its oldest.
    pub stages: Vec<Stage>,
    /// The fullest send queue and the fullest receive queues, in percent of their marks.
    pub marks: [f64; 2],
    /// The most bytes that were seen in places of the ledgers, by host and row.
    pub places: BTreeMap<(&'static str, &'static str), u64>,
    /// All histograms since the watch began.
    pub times: Set,
}

/// A thread that watches until it is ended.
pub struct Watch {
    end: Sender<()>,
    thread: JoinHandle<io::Result<Seen>>,
}

impl Watch {
    /// Begins now. `prefix`: of the histogram files; `head`: what kind of load this is, printed once.
    pub fn start(sides: Sides, prefix: &Path, head: &str) -> io::Result<Watch> {
        let base = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let log = HistogramLog::create(prefix.with_extension("hlog"), base)?;
        // What was recorded before belongs to no interval.
        sides.take();
        let (end, ended) = bounded(1);
        let watcher = Watcher {
            last: Look::at(&sides),
            sides,
            begin: Instant::now(),
            log,
            prefix: prefix.to_owned(),
            seen: Seen {
                samples: Samples::new(),
                stages: Vec::new(),
                marks: [0.0; 2],
                places: BTreeMap::new(),
                times: Set::new(),
            },
        };
        let mut err = io::stderr();
        // Whoever has closed the error output does not want to know.
        let _ = writeln!(err, "{head}");
        let thread = Builder::new().name("relay-watch".into()).spawn(move || watcher.run(&ended))?;
        Ok(Watch { end, thread })
    }

    /// Takes the last look and writes the percentile tables.
    pub fn end(self) -> io::Result<Seen> {
        drop(self.end);
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the watch panicked")))
    }
}

impl Sides {
    /// What all histograms recorded since the last time.
    fn take(&self) -> Set {
        let mut set = self.times.take();
        if let Some((host, _)) = &self.load {
            set.absorb(Time::SendWait, Latency::SendWait, &host.take_latencies());
        }
        if let Some((host, ..)) = &self.service {
            let latencies = host.take_latencies();
            set.absorb(Time::PermitWait, Latency::PermitWait, &latencies);
            set.absorb(Time::QueueAge, Latency::QueueAge, &latencies);
        }
        set
    }
}

/// Both sides at one moment.
pub struct Look {
    at: Instant,
    /// The load's host, and what the load counted.
    pub load: Option<(HostStatus, Counts)>,
    /// The service's host, its stages and its bridge.
    pub service: Option<(HostStatus, Served, BridgeSnapshot)>,
    memory: Memory,
}

impl Look {
    fn at(sides: &Sides) -> Look {
        Look {
            at: Instant::now(),
            load: sides.load.as_ref().map(|(host, shared)| (host.status(), shared.counts())),
            service: sides
                .service
                .as_ref()
                .map(|(host, flow, bridge)| (host.status(), flow.served(), bridge.snapshot())),
            memory: Memory::now(),
        }
    }
}

struct Watcher {
    sides: Sides,
    begin: Instant,
    last: Look,
    log: HistogramLog,
    prefix: PathBuf,
    seen: Seen,
}

impl Watcher {
    fn run(mut self, ended: &Receiver<()>) -> io::Result<Seen> {
        let none = Set::new();
        loop {
            let due = self.last.at + EVERY;
            let more = loop {
                let wait = due.saturating_duration_since(Instant::now());
                if ended.recv_timeout(wait.min(GLANCE)) != Err(RecvTimeoutError::Timeout) {
                    break false;
                }
                if Instant::now() >= due {
                    break true;
                }
                let stages = self.stages(&Look::at(&self.sides), &none);
                self.keep_stages(stages);
            };
            let (sample, stages, text) = self.look()?;
            self.seen.samples.keep(sample);
            self.keep_stages(stages);
            if !more {
                break;
            }
            let _ = io::stderr().write_all(text.as_bytes());
        }
        self.log.sync()?;
        for (time, tag) in TIMES {
            let histogram = self.seen.times.get(time);
            if !histogram.is_empty() {
                let mut path = self.prefix.clone().into_os_string();
                path.push(format!(".{tag}.hgrm"));
                write_hgrm(PathBuf::from(path), histogram, MICROS)?;
            }
        }
        Ok(self.seen)
    }

    /// Looks, and writes the interval that ends now into the log.
    fn look(&mut self) -> io::Result<(Sample, Vec<Stage>, String)> {
        let now = Look::at(&self.sides);
        let times = self.sides.take();
        let start = self.last.at.saturating_duration_since(self.begin).as_secs_f64();
        let sample = self.sample(&now, &times);
        for (time, tag) in TIMES {
            if !times.get(time).is_empty() {
                self.log.interval(tag, start, sample.length, times.get(time))?;
            }
        }
        self.seen.times.merge(&times);
        let stages = self.stages(&now, &times);
        let tenants = match (&self.sides.service, &self.sides.load) {
            (Some((_, flow, _)), _) => flow.tenants.seen(),
            (None, Some((_, shared))) => shared.tenants.seen(),
            (None, None) => Vec::new(),
        };
        let text = table::text(&now, &sample, &stages, &tenants);
        self.last = now;
        Ok((sample, stages, text))
    }

    /// The stages as they are; what they hold in places of the ledgers is kept if it is the most so far.
    fn stages(&mut self, now: &Look, times: &Set) -> Vec<Stage> {
        let mut stages = Vec::new();
        if let (Some((host, _)), Some((status, counts))) = (self.sides.load.clone(), &now.load) {
            stages.extend(stages::of_load(status, host.plan(), times));
            self.seen.marks[0] = self.seen.marks[0].max(stages::send_mark(status));
            self.place("relay-load", "waiting room", status.waiting_bytes);
            // An empty queue takes one record larger than its mark, and that one has a row of its own.
            let within = |link: &LinkStatus| link.queued_bytes.min(link.send_mark);
            let beyond = |link: &LinkStatus| link.queued_bytes.saturating_sub(link.send_mark);
            self.place("relay-load", "send queues", status.links.iter().map(within).sum());
            self.place("relay-load", "send queues, one larger record", status.links.iter().map(beyond).sum());
            self.place("relay-load", "reply hold", status.reply_hold_bytes);
            self.place("relay-load", "outstanding records", counts.bytes_peak);
            self.place("relay-load", "slots of the load", counts.outstanding * SLOT_BYTES);
        }
        if let (Some((host, flow, _)), Some((status, served, bridge))) = (self.sides.service.clone(), &now.service) {
            let of = stages::of_service(status, host.plan(), served, bridge, times);
            self.seen.marks[1] = self.seen.marks[1].max(stages::receive_mark(status, host.plan(), served));
            let started: u64 = status.shards.iter().map(|shard| shard.started_peak).sum();
            let tenants = flow.tenants.bytes();
            self.place("relay-service", "owned records", status.owned_bytes_peak);
            self.place("relay-service", "started handlers", started * STARTED_BYTES);
            self.place("relay-service", "replies going out", status.reply_bytes);
            self.place("relay-service", "batch", served.batch.bytes_peak);
            self.place("relay-service", "store bridge", bridge.bytes_peak);
            self.place("relay-service", "tenants", tenants);
            stages.extend(of);
        }
        stages
    }

    fn place(&mut self, host: &'static str, row: &'static str, bytes: u64) {
        let most = self.seen.places.entry((host, row)).or_default();
        *most = bytes.max(*most);
    }

    fn sample(&self, now: &Look, times: &Set) -> Sample {
        let last = &self.last;
        let mut sample = Sample {
            at: now.at.saturating_duration_since(self.begin).as_secs_f64(),
            length: now.at.saturating_duration_since(last.at).as_secs_f64(),
            p50: times.ms(Time::Request, 0.5),
            p99: times.ms(Time::Request, 0.99),
            resident: now.memory.resident,
            allocated: now.memory.allocated,
            ..Sample::default()
        };
        if let (Some((host, counts)), Some((host_before, before))) = (&now.load, &last.load) {
            let blocked = |host: &HostStatus| host.waits + host.waiting_room_full;
            sample.submitted = counts.submitted - before.submitted;
            sample.offered = counts.intended.max(counts.submitted) - before.intended.max(before.submitted);
            sample.replies = counts.replies - before.replies;
            sample.blocked = blocked(host) - blocked(host_before);
        }
        if let (Some((host, served, _)), Some((host_before, before, _))) = (&now.service, &last.service) {
            sample.commits = served.stored - before.stored;
            sample.permit_waits = host.permits.waits - host_before.permits.waits;
            sample.paused = (host.permits.paused_total - host_before.permits.paused_total).as_secs_f64();
        } else {
            sample.commits = sample.replies;
            let paused = |look: &Look| {
                let links = look.load.iter().flat_map(|(host, _)| &host.links);
                links.filter_map(|link| link.paused_for).max().unwrap_or_default()
            };
            sample.paused = paused(now).as_secs_f64().min(sample.length);
        }
        sample
    }

    /// Each stage at its fullest.
    fn keep_stages(&mut self, stages: Vec<Stage>) {
        for stage in stages {
            match self.seen.stages.iter_mut().find(|seen| seen.name == stage.name) {
                Some(seen) => {
                    seen.held = seen.held.max(stage.held);
                    seen.bytes = seen.bytes.max(stage.bytes);
                    seen.oldest = seen.oldest.max(stage.oldest);
                }
                None => self.seen.stages.push(stage),
            }
        }
    }
}
