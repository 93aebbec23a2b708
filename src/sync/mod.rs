//! Floor 1: memory shared between threads. The only room with `unsafe`, atomic orderings and
//! locks. Each file is one protocol with its own loom model in `tests/loom/`.
#![allow(unsafe_code)]

pub(crate) mod primitive;

pub mod baton;
pub mod mark;
pub mod page;
pub mod published;
pub mod ring;
pub mod room;
pub mod wake;
