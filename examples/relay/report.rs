//! The counts at the end, for people and for programs, and the invariants that they must keep.

use std::collections::BTreeMap;
use std::fmt;

use afflux::HostStatus;
use afflux::base::unit::{ByteSize, grouped};
use afflux::meter::{Latency, LatencySet};
use serde_json::{Map, Value, json};

use crate::audit::Audit;
use crate::load::Errors;
use crate::tally::Tally;

/// What was seen of the hosts and the process when the load had ended.
pub struct Seen {
    /// Length of the run.
    pub seconds: f64,
    /// The client host's histograms: the ones that were written to its files.
    pub latencies: LatencySet,
    /// The service's host.
    pub service: HostStatus,
    /// The client's host.
    pub client: HostStatus,
    /// Sum of the ledgers; `None`: no bound.
    pub ledger: Option<u64>,
    /// Resident bytes before the hosts started.
    pub rss_before: u64,
    /// The most resident bytes.
    pub rss_peak: u64,
}

/// Everything that is reported.
pub struct Report<'a> {
    tally: &'a Tally,
    errors: &'a BTreeMap<&'static str, Errors>,
    audit: &'a Audit,
    seen: &'a Seen,
}

impl<'a> Report<'a> {
    /// Joins what was counted, found and seen.
    pub fn new(
        tally: &'a Tally,
        errors: &'a BTreeMap<&'static str, Errors>,
        audit: &'a Audit,
        seen: &'a Seen,
    ) -> Report<'a> {
        Report { tally, errors, audit, seen }
    }

    fn accepted(&self) -> u64 {
        self.tally.sent.get() - self.tally.returned.get()
    }

    /// The client host's request latency, in microseconds.
    fn micros(&self, quantile: f64) -> f64 {
        self.seen.latencies.get(Latency::Request).value_at_quantile(quantile) as f64 / 1e3
    }

    /// Every invariant that does not hold, in words.
    pub fn broken(&self) -> Vec<String> {
        let (audit, permits) = (self.audit, &self.seen.service.permits);
        let (sent, replies) = (self.tally.sent.get(), self.tally.replies.get());
        let errors: u64 = self.errors.values().map(|e| e.count).sum();
        let rules = [
            (audit.lost == 0, format!("lost = {}: answered with success and not in the store", audit.lost)),
            (audit.duplicated == 0, format!("duplicated = {}: more than once in the store", audit.duplicated)),
            (sent == replies + errors, format!("sent = {sent}, but {replies} replies and {errors} errors")),
            (replies <= audit.committed, format!("{replies} replies, but committed = {}", audit.committed)),
            (permits.peak <= permits.limit, format!("permits_peak = {} of {}", permits.peak, permits.limit)),
        ];
        rules.into_iter().filter(|(holds, _)| !holds).map(|(_, why)| format!("broken invariant: {why}")).collect()
    }

    /// For programs: one object, one name per number.
    pub fn json(&self) -> String {
        let Seen { service, client, .. } = self.seen;
        let errors: Map<String, Value> =
            self.errors.iter().map(|(kind, e)| ((*kind).to_owned(), e.count.into())).collect();
        let object = json!({
            "sent": self.tally.sent.get(),
            "accepted": self.accepted(),
            "committed": self.audit.committed,
            "errors": errors,
            "replies": self.tally.replies.get(),
            "lost": self.audit.lost,
            "duplicated": self.audit.duplicated,
            "recognised": self.tally.recognised.get(),
            "retries": self.tally.retries.get(),
            "held": self.audit.held,
            "tenants": self.audit.tenants,
            "commits": self.tally.commits.get(),
            "permits_limit": service.permits.limit,
            "permits_peak": service.permits.peak,
            "permit_waits": service.permits.waits,
            "waits": client.waits,
            "pauses": service.permits.pauses,
            "flow_frames_sent": service.flow_frames_sent,
            "ledger_bytes": self.seen.ledger,
            "rss_before_bytes": self.seen.rss_before,
            "rss_peak_bytes": self.seen.rss_peak,
            "p50_us": self.micros(0.5),
            "p99_us": self.micros(0.99),
            "p999_us": self.micros(0.999),
            "max_us": self.micros(1.0),
            "seconds": self.seen.seconds,
        });
        format!("{object:#}\n")
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Seen { seconds, service, client, ledger, rss_before, rss_peak, .. } = self.seen;
        let (tally, audit) = (self.tally, self.audit);
        let n = |count: u64| grouped(count);
        let mib = |bytes: u64| ByteSize::mib(bytes.div_ceil(1 << 20));
        writeln!(
            f,
            "sent {}, accepted {}, answered {} in {seconds:.3} s: {}/s; {} commits",
            n(tally.sent.get()),
            n(self.accepted()),
            n(tally.replies.get()),
            n((tally.replies.get() as f64 / seconds.max(1e-9)) as u64),
            n(tally.commits.get()),
        )?;
        for (kind, Errors { count, first }) in self.errors {
            writeln!(f, "  {kind} {}, the first: {first}", n(*count))?;
        }
        writeln!(
            f,
            "committed {}, lost {}, duplicated {}, recognised {}, asked again {}; the store holds {} records of {} tenants",
            n(audit.committed),
            n(audit.lost),
            n(audit.duplicated),
            n(tally.recognised.get()),
            n(tally.retries.get()),
            n(audit.held),
            n(audit.tenants),
        )?;
        let permits = &service.permits;
        writeln!(
            f,
            "jobs: limit {}, peak {}, {} waits, {} pauses, {} flow frames; {} operations waited for room",
            n(permits.limit.into()),
            n(permits.peak.into()),
            n(permits.waits),
            n(permits.pauses),
            n(service.flow_frames_sent),
            n(client.waits),
        )?;
        let ledger = ledger.map_or_else(|| "no bound".into(), |bytes| mib(bytes).to_string());
        writeln!(f, "memory: {} before, {} at most; ledger {ledger}", mib(*rss_before), mib(*rss_peak))?;
        writeln!(
            f,
            "latency: p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us, max {:.1} us",
            self.micros(0.5),
            self.micros(0.99),
            self.micros(0.999),
            self.micros(1.0),
        )
    }
}
