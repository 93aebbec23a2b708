//! The counts at the end, for people and for programs, and the invariants that they must keep.

use std::collections::BTreeMap;
use std::fmt;

use afflux::HostStatus;
use afflux::base::unit::{ByteSize, grouped};
use afflux::policy::bridge::{BridgeSnapshot, BridgeTime};
use afflux::policy::ledger::Ledger;
use serde_json::{Map, Value, json};

use crate::audit::Audit;
use crate::counts::Counts;
use crate::memory::Memory;
use crate::sample::Sample;
use crate::served::{CLOSED_BY, Served};
use crate::table::{sum_of_load, sum_of_service};
use crate::tenants;
use crate::times::Time;
use crate::watch::Seen;

/// Tenants in the report; the store has all of them.
const TENANTS_TOLD: usize = 100;

/// The ledgers of this process's hosts, each with the stages around it.
#[derive(Default)]
pub struct Ledgers(Vec<(&'static str, Ledger)>);

impl Ledgers {
    /// Adds one.
    pub fn add(&mut self, host: &'static str, ledger: Ledger) {
        self.0.push((host, ledger));
    }

    /// Sum of all maxima; `None`: something was made unlimited.
    fn maximum(&self) -> Option<u64> {
        self.0.iter().try_fold(0_u64, |sum, (_, ledger)| Some(sum.saturating_add(ledger.total_maximum()?)))
    }

    fn expected(&self) -> u64 {
        self.0.iter().fold(0, |sum, (_, ledger)| sum.saturating_add(ledger.total_expected()))
    }
}

impl fmt::Display for Ledgers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (host, ledger) in &self.0 {
            let most = ledger.total_maximum().map_or_else(|| "no bound".into(), |n| mib(n).to_string());
            writeln!(f, "ledger of {host}: at most {most}\n{ledger}\n")?;
        }
        write!(f, "{}", afflux::policy::ledger::OMITTED)
    }
}

/// Everything that is reported.
pub struct Report {
    /// What kind of load it was; empty without a load.
    pub pace: String,
    /// Commits per second that were measured first.
    pub rate: Option<f64>,
    /// Length of the run, without the measuring.
    pub seconds: f64,
    /// What the load counted.
    pub counts: Option<Counts>,
    /// The client's host.
    pub client: Option<HostStatus>,
    /// The service's host, stages and bridge.
    pub served: Option<(HostStatus, Served, BridgeSnapshot)>,
    /// The tenants.
    pub tenants: Vec<tenants::Seen>,
    /// What the store really holds; `None`: it is another process's, or could not be read again.
    pub audit: Option<Audit>,
    /// What may be held.
    pub ledgers: Ledgers,
    /// Before the load, the most, and after it.
    pub memory: [Memory; 3],
    /// What the watch saw.
    pub seen: Seen,
}

fn mib(bytes: u64) -> ByteSize {
    ByteSize::mib(bytes.div_ceil(1 << 20))
}

impl Report {
    /// What the chart is called.
    pub fn title(&self) -> String {
        let what = if self.pace.is_empty() { "service" } else { &self.pace };
        let (replies, errors) = self.counts.as_ref().map_or((0, 0), |counts| (counts.replies, counts.failed()));
        match self.counts {
            Some(_) => format!("relay, {what}: {} replies, {} errors", grouped(replies), grouped(errors)),
            None => format!("relay, {what}"),
        }
    }

    /// Every invariant that does not hold, in words.
    pub fn broken(&self) -> Vec<String> {
        let mut broken = self.audit.as_ref().map_or_else(Vec::new, Audit::broken);
        let mut rule = |holds: bool, why: String| {
            if !holds {
                broken.push(format!("broken invariant: {why}"));
            }
        };
        if let Some(counts) = &self.counts {
            let (sent, replies, errors) = (counts.submitted, counts.replies, counts.failed());
            rule(sent == replies + errors, format!("sent = {sent}, but {replies} replies and {errors} errors"));
            if let (Some(_), Some(audit)) = (&self.served, &self.audit) {
                let committed = audit.committed;
                rule(replies <= committed, format!("{replies} replies, but committed = {committed}"));
            }
        }
        if let Some((host, served, _)) = &self.served {
            let permits = &host.permits;
            rule(permits.peak <= permits.limit, format!("permits_peak = {} of {}", permits.peak, permits.limit));
            rule(served.held() == 0, format!("{} records have no answer", served.held()));
        }
        for (host, ledger) in &self.ledgers.0 {
            let comparison = ledger.compare(self.observed(host));
            for line in comparison.lines().iter().filter(|line| !line.holds()) {
                let most = line.maximum.map_or_else(|| "no bound".into(), grouped);
                let seen = grouped(line.observed.unwrap_or(0));
                rule(false, format!("{host}, {}: {seen} bytes held of {most}", line.name));
            }
        }
        if let Some(most) = self.ledgers.maximum() {
            let [before, peak, _] = self.memory;
            let grown = peak.allocated.saturating_sub(before.allocated);
            rule(grown <= most, format!("allocated {} bytes more than before, ledger {most}", grouped(grown)));
        }
        broken
    }

    fn observed(&self, host: &str) -> Vec<(&'static str, u64)> {
        let of_host = self.seen.places.iter().filter(|((of, _), _)| *of == host);
        of_host.map(|((_, row), bytes)| (*row, *bytes)).collect()
    }

    /// A request latency in microseconds.
    fn micros(&self, quantile: f64) -> f64 {
        self.seen.times.ms(Time::Request, quantile) * 1e3
    }

    /// For programs: one object, one name per number.
    pub fn json(&self) -> String {
        let none = Counts::default();
        let counts = self.counts.as_ref().unwrap_or(&none);
        let (mut kinds, mut details) = (BTreeMap::<&str, u64>::new(), Map::new());
        for errors in &counts.errors {
            *kinds.entry(errors.end.0).or_default() += errors.count;
            let first = errors.first.to_string();
            details.insert(
                format!("{}/{:?}", errors.end.0, errors.end.1),
                json!({ "count": errors.count, "first": first }),
            );
        }
        let audit = self.audit.as_ref();
        let [before, peak, after] = self.memory;
        let mut object = json!({
            "loop": self.pace,
            "sent": counts.submitted,
            "submitted": counts.submitted,
            "accepted": counts.submitted - counts.returned,
            "committed": audit.map(|audit| audit.committed),
            "errors": kinds,
            "error_details": details,
            "replies": counts.replies,
            "lost": audit.map(|audit| audit.lost),
            "duplicated": audit.map(|audit| audit.duplicated),
            "retries": counts.retries,
            "held": audit.map(|audit| audit.held),
            "tenants_stored": audit.map(|audit| audit.tenants),
            "measured_commits_per_second": self.rate,
            "late_ms_max": counts.late_max.as_secs_f64() * 1e3,
            "send_mark_peak_percent": self.seen.marks[0],
            "receive_mark_peak_percent": self.seen.marks[1],
            "ledger_bytes": self.ledgers.maximum(),
            "ledger_expected_bytes": self.ledgers.expected(),
            "rss_before_bytes": before.resident,
            "rss_peak_bytes": peak.resident,
            "rss_after_bytes": after.resident,
            "allocated_before_bytes": before.allocated,
            "allocated_peak_bytes": peak.allocated,
            "allocated_after_bytes": after.allocated,
            "p50_us": self.micros(0.5),
            "p99_us": self.micros(0.99),
            "p999_us": self.micros(0.999),
            "max_us": self.micros(1.0),
            "seconds": self.seconds,
            "tenants": self.tenants.iter().take(TENANTS_TOLD).map(tenant).collect::<Vec<_>>(),
            "stages": self.seen.stages.iter().map(stage).collect::<Vec<_>>(),
            "ledger": self.rows(),
            "samples": self.seen.samples.kept().iter().map(sample).collect::<Vec<_>>(),
        });
        if let Value::Object(object) = &mut object {
            if let Some(client) = &self.client {
                object.insert("waits".into(), client.waits.into());
                object.insert("no_room".into(), client.no_room.into());
                object.insert("waiting_room_full".into(), client.waiting_room_full.into());
                object.insert("late_replies".into(), client.late_replies.into());
                object.insert("load_links_lost".into(), client.links_lost.into());
            }
            if let Some((host, served, bridge)) = &self.served {
                object.append(&mut of_service(host, served, bridge));
            }
        }
        format!("{object:#}\n")
    }

    /// Every row of every ledger, with the most that was seen in it where somebody looked.
    fn rows(&self) -> Vec<Value> {
        let of = |(host, ledger): &(&'static str, Ledger)| {
            let comparison = ledger.compare(self.observed(host));
            let lines = comparison.lines().iter();
            lines
                .map(|line| {
                    json!({
                        "host": host,
                        "name": line.name,
                        "maximum": line.maximum,
                        "expected": line.expected,
                        "peak_held": line.observed,
                    })
                })
                .collect::<Vec<_>>()
        };
        self.ledgers.0.iter().flat_map(of).collect()
    }
}

fn tenant(seen: &tenants::Seen) -> Value {
    json!({
        "name": seen.name,
        "served": seen.served,
        "waiting": seen.waiting,
        "no_progress_ms_max": seen.no_progress.as_secs_f64() * 1e3,
    })
}

fn stage(stage: &crate::stages::Stage) -> Value {
    json!({
        "name": stage.name,
        "held_peak": stage.held,
        "capacity": stage.capacity,
        "bytes_peak": stage.bytes,
        "bytes_capacity": stage.bytes_max,
        "oldest_ms_max": stage.oldest.as_secs_f64() * 1e3,
    })
}

fn sample(sample: &Sample) -> Value {
    json!({
        "at": sample.at,
        "seconds": sample.length,
        "offered": sample.offered,
        "submitted": sample.submitted,
        "replies": sample.replies,
        "commits": sample.commits,
        "blocked": sample.blocked,
        "permit_waits": sample.permit_waits,
        "paused_seconds": sample.paused,
        "p50_ms": sample.p50,
        "p99_ms": sample.p99,
        "rss_bytes": sample.resident,
        "allocated_bytes": sample.allocated,
    })
}

fn of_service(host: &HostStatus, served: &Served, bridge: &BridgeSnapshot) -> Map<String, Value> {
    let permits = &host.permits;
    let closed_by: Map<String, Value> =
        CLOSED_BY.iter().zip(served.closed_by).map(|((_, name), n)| ((*name).to_owned(), n.into())).collect();
    let time = |time: BridgeTime| {
        let spent = bridge.time(time);
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        let value = json!({ "count": spent.count, "mean_ms": ms(spent.mean()), "max_ms": ms(spent.longest) });
        (time.name().to_owned(), value)
    };
    let object = json!({
        "received": served.received,
        "stored": served.stored,
        "recognised": served.recognised,
        "refused": served.refused,
        "failed": served.failed,
        "commits": served.commits,
        "failed_commits": served.failed_commits,
        "batches": served.batches,
        "batch_closed_by": closed_by,
        "bridge": BridgeTime::ALL.into_iter().map(time).collect::<Map<_, _>>(),
        "permits_limit": permits.limit,
        "permits_peak": permits.peak,
        "permit_waits": permits.waits,
        "pauses": permits.pauses,
        "paused_ms": permits.paused_total.as_secs_f64() * 1e3,
        "flow_frames_sent": host.flow_frames_sent,
        "malformed": host.malformed,
        "handshakes_failed": host.handshakes_failed,
        "links_lost": host.links_lost,
    });
    if let Value::Object(object) = object { object } else { Map::new() }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = |count: u64| grouped(count);
        if let Some(counts) = &self.counts {
            let rate = |count: u64| n((count as f64 / self.seconds.max(1e-9)) as u64);
            let replies: u64 = self.seen.samples.kept().iter().map(|sample| sample.replies).sum();
            writeln!(f, "{}", self.pace)?;
            writeln!(f, "{}", sum_of_load(counts).trim_start())?;
            for errors in &counts.errors {
                writeln!(f, "  {}/{:?}, the first: {}", errors.end.0, errors.end.1, errors.first)?;
            }
            writeln!(
                f,
                "{} replies in {:.3} s: {}/s; asked again {}; at most {:.1} ms late with a request",
                n(replies),
                self.seconds,
                rate(replies),
                n(counts.retries),
                counts.late_max.as_secs_f64() * 1e3,
            )?;
        }
        if let Some((host, served, bridge)) = &self.served {
            writeln!(f, "{}", sum_of_service(served).trim_start())?;
            match &self.audit {
                Some(audit) => writeln!(f, "committed {}; {audit}", n(audit.committed))?,
                None => writeln!(f, "what the store holds is not known")?,
            }
            let permits = &host.permits;
            writeln!(
                f,
                "jobs: limit {}, peak {}, {} waits, {} pauses of {:.1} s altogether, {} flow frames",
                n(permits.limit.into()),
                n(permits.peak.into()),
                n(permits.waits),
                n(permits.pauses),
                permits.paused_total.as_secs_f64(),
                n(host.flow_frames_sent),
            )?;
            let closed: Vec<String> = CLOSED_BY
                .iter()
                .zip(served.closed_by)
                .filter(|(_, count)| *count > 0)
                .map(|((_, name), count)| format!("{name} {}", n(count)))
                .collect();
            writeln!(
                f,
                "batches: {} in {} commits, closed by {}",
                n(served.batches),
                n(served.commits),
                closed.join(", ")
            )?;
            let times: Vec<String> = BridgeTime::ALL
                .into_iter()
                .map(|time| {
                    let spent = bridge.time(time);
                    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
                    format!("{} {:.2}/{:.1}", time.name(), ms(spent.mean()), ms(spent.longest))
                })
                .collect();
            writeln!(f, "bridge, mean/longest ms: {}", times.join(", "))?;
        }
        if let Some(client) = &self.client {
            let (waits, full) = (n(client.waits), n(client.waiting_room_full));
            writeln!(f, "room: {waits} operations waited, {full} found the waiting room full")?;
            writeln!(
                f,
                "latency: p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us, max {:.1} us",
                self.micros(0.5),
                self.micros(0.99),
                self.micros(0.999),
                self.micros(1.0),
            )?;
        }
        for tenant in self.tenants.iter().take(5) {
            writeln!(
                f,
                "tenant {}: served {}, longest without progress {:.1} ms",
                tenant.name,
                n(tenant.served),
                tenant.no_progress.as_secs_f64() * 1e3
            )?;
        }
        let ledger = self.ledgers.maximum().map_or_else(|| "no bound".into(), |bytes| mib(bytes).to_string());
        let [before, peak, after] = self.memory;
        writeln!(
            f,
            "memory: resident {} before, {} at most, {} after; allocated {}, {}, {}; ledger {ledger}, of which {} expected",
            mib(before.resident),
            mib(peak.resident),
            mib(after.resident),
            mib(before.allocated),
            mib(peak.allocated),
            mib(after.allocated),
            mib(self.ledgers.expected()),
        )
    }
}
