//! Floor 2, seeing: every number that a host shows, and how many threads' numbers become one.
//!
//! Each thread owns a [`Page`] of plain counters (one slot per [`Meter`]) and a [`LatencySet`];
//! nobody else writes them, and nobody is stopped to read them. What is known host-wide only, of the
//! permit gate and the waiting room for example, is one more [`Reading`]. A [`Measurement`] adds the
//! readings up into a [`Snapshot`].
//!
//! **Names** are `afflux.<owner>.<thing>`; a label is fixed in the table and never an id of a peer,
//! link or message, so the number of series is the length of the table. What is per peer or per
//! origin is in the host's status, not here.
//!
//! **A reset** begins a new epoch and touches nothing else: gauges stay, counters and summed
//! durations start at 0, a peak becomes what its gauge is now. Writers never stop: readers subtract
//! the counters as they were at the reset, so that an event belongs to exactly one epoch. Peaks
//! cannot be subtracted; each writer restarts its own ([`Page::follow_reset`]) and until then its
//! peaks count as what its gauges are.

pub mod latency;
pub mod page;
pub mod snapshot;
pub mod table;

pub use latency::{Latency, LatencySet};
pub use page::{Page, Reading};
pub use snapshot::{Measurement, Snapshot, render_prometheus};
pub use table::Meter;
