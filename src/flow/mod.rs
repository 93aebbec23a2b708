//! Floor 3: what pressure means. Pure machines: `&mut self`, time and bytes passed in; no socket,
//! no thread, no clock, no shared memory. They never call each other: each returns small values
//! that the engine routes, so that every one of them is tested alone on a virtual clock.

pub mod egress;
pub mod origin;
pub mod reader;
mod staging;
pub mod target;
pub mod transport;
pub mod wheel;
