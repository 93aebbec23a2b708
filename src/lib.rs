//! afflux: a thread-per-core messaging runtime whose behaviour under overload is a contract.

pub mod base;
pub mod sync;
pub mod wire;
