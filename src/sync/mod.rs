//! Floor 1: memory shared between threads. The only room with `unsafe`, atomic orderings and
//! locks. Each file is one protocol with its own loom model in `tests/loom/`.
#![allow(unsafe_code)]

pub mod baton;
pub mod cell;
pub mod gate;
#[cfg(not(afflux_loom))]
pub mod keeper;
pub mod lead;
pub mod line;
pub mod lock;
pub mod mark;
pub mod page;
#[cfg(not(afflux_loom))]
pub mod parker;
#[cfg(afflux_mutations)]
mod planted;
pub(crate) mod primitive;
pub mod published;
pub mod ring;
pub mod room;
#[cfg(not(afflux_loom))]
pub mod task;
pub mod tray;
pub mod wake;
pub mod word;

#[cfg(afflux_mutations)]
pub use planted::is_planted;
