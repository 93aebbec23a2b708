//! The table that is printed once a second, and the two lines that add up.

use afflux::base::unit::{ByteSize, grouped};

use crate::counts::Counts;
use crate::sample::Sample;
use crate::served::Served;
use crate::stages::{self, Stage};
use crate::tenants::Seen as Tenant;
use crate::watch::Look;

/// Tenants in the table that is printed.
const TENANTS_SHOWN: usize = 5;

/// The table of one second.
pub fn text(now: &Look, sample: &Sample, stages: &[Stage], tenants: &[Tenant]) -> String {
    let per_second = |n: u64| grouped((n as f64 / sample.length.max(1e-9)) as u64);
    let mib = |bytes: u64| ByteSize::mib(bytes.div_ceil(1 << 20));
    let mut lines = vec![format!(
        "{:4.0} s  offered {}/s, replies {}/s, commits {}/s; p50 {:.1} ms, p99 {:.1} ms; rss {}, allocated {}",
        sample.at,
        per_second(sample.offered),
        per_second(sample.replies),
        per_second(sample.commits),
        sample.p50,
        sample.p99,
        mib(sample.resident),
        mib(sample.allocated),
    )];
    if let Some((host, counts)) = &now.load {
        lines.push(sum_of_load(counts));
        lines.push(format!(
            "        blocked {:.1} %, {} waited for room, {} found the waiting room full; the peer has paused us for {:.1} s",
            100.0 * sample.blocked as f64 / sample.submitted.max(1) as f64,
            grouped(host.waits),
            grouped(host.waiting_room_full),
            host.links.iter().filter_map(|link| link.paused_for).max().unwrap_or_default().as_secs_f64(),
        ));
    }
    if let Some((host, served, _)) = &now.service {
        lines.push(sum_of_service(served));
        let permits = &host.permits;
        lines.push(format!(
            "        permits {} of {}, {} waits; {} pauses, {} for {:.1} s altogether; {} batches in {} commits",
            permits.in_use,
            permits.limit,
            grouped(permits.waits),
            grouped(permits.pauses),
            if host.is_paused() { "paused now," } else { "running now, paused" },
            permits.paused_total.as_secs_f64(),
            grouped(served.batches),
            grouped(served.commits),
        ));
    }
    lines.push(stages::head());
    lines.extend(stages.iter().map(Stage::to_string));
    for tenant in tenants.iter().take(TENANTS_SHOWN) {
        let name: String = tenant.name.chars().take(24).collect();
        lines.push(format!(
            "  tenant {name:<24} served {:>12}  waiting {:>8}  longest without progress {:>8.1} ms",
            grouped(tenant.served),
            grouped(tenant.waiting),
            tenant.no_progress.as_secs_f64() * 1e3,
        ));
    }
    if tenants.len() > TENANTS_SHOWN {
        lines.push(format!("  and {} tenants more", tenants.len() - TENANTS_SHOWN));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Every submitted record by its end: the two sides of the line are equal, always.
pub fn sum_of_load(counts: &Counts) -> String {
    let mut line = format!("        submitted {} = replies {}", grouped(counts.submitted), grouped(counts.replies));
    for errors in &counts.errors {
        line += &format!(" + {}/{:?} {}", errors.end.0, errors.end.1, grouped(errors.count));
    }
    line + &format!(" + outstanding {}", grouped(counts.outstanding))
}

/// Every received record by its end.
pub fn sum_of_service(served: &Served) -> String {
    format!(
        "        received {} = stored {} + recognised {} + refused {} + failed {} + held {}",
        grouped(served.received),
        grouped(served.stored),
        grouped(served.recognised),
        grouped(served.refused),
        grouped(served.failed),
        grouped(served.held()),
    )
}
