//! Floor 6: threads, sockets and clocks. The only floor that asks the system for anything.
//!
//! ```text
//!   calling threads ─ rings, cells ─▶ shard 0 .. N-1 (pinned, one poller each)
//!        │  │                            ▲    application connections
//!        │  └─ batons ─▶ sockets         │ commands
//!        └──────────▶ completion thread ─┘    listeners, dials, completion connections
//! ```

pub mod boot;
pub mod bridge;
pub mod clock;
pub mod completion;
pub mod machine;
pub mod resolver;
pub mod seat;
pub mod shard;
pub mod spin;
pub mod tcp;
#[cfg(test)]
pub mod watchdog;
