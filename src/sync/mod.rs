//! Floor 1: memory shared between threads. The only room with `unsafe`, atomic orderings and
//! locks. Each file is one protocol with its own loom model in `tests/loom/`.
#![allow(unsafe_code)]

pub mod cell;
pub mod gate;
pub(crate) mod primitive;
