//! afflux: a thread-per-core messaging runtime whose behaviour under overload is a contract.

pub mod base;
#[cfg(not(afflux_loom))]
pub mod flow;
#[cfg(not(afflux_loom))]
pub mod host;
#[cfg(not(afflux_loom))]
pub mod meter;
#[cfg(not(afflux_loom))]
pub mod plan;
#[cfg(not(afflux_loom))]
pub mod policy;
#[cfg(not(afflux_loom))]
pub mod runtime;
pub mod sync;
