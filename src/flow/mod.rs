//! Floor 3: what pressure means. Pure machines: `&mut self`, time and bytes passed in; no socket,
//! no thread, no clock. They never call each other: each returns small values that the engine
//! routes, so that every one of them is tested alone on a virtual clock. The one that threads share
//! is [`target`], which is made of the floor below.

pub mod backlog;
pub mod backoff;
pub mod egress;
pub mod ingress;
pub mod link_clock;
pub mod liveness;
pub mod origin;
pub mod payload;
pub mod pressure;
pub mod publications;
pub mod reader;
pub mod session;
mod staging;
pub mod target;
pub mod transport;
pub mod waiters;
pub mod wheel;
