//! afflux: a thread-per-core messaging runtime whose behaviour under overload is a contract.

pub mod base;
#[cfg(not(afflux_loom))]
pub mod engine;
#[cfg(not(afflux_loom))]
pub mod flow;
pub mod host;
#[cfg(not(afflux_loom))]
pub mod host;
#[cfg(not(afflux_loom))]
pub mod meter;
#[cfg(not(afflux_loom))]
pub mod pattern;
#[cfg(not(afflux_loom))]
pub mod plan;
#[cfg(not(afflux_loom))]
pub mod policy;
pub mod runtime;
pub mod sync;
pub mod sync;
#[cfg(not(afflux_loom))]
pub mod wire;
