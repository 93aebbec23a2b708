//! Floor 5: one engine per thread. Only engines know several machines at once; machines never call
//! each other. An engine is driven by four kinds of calls, in this order:
//!
//! 1. `handle_*`: what happened outside, an accepted connection or a readiness event;
//! 2. `turn(now)`: one bounded round of work, which says when to come back;
//! 3. `poll_action`: what the shell has to do, until there is nothing left;
//! 4. `has_work`: after announcing the sleep, whether to sleep at all.
//!
//! `now` never goes back. Everything else comes through the shared memory of [`shared`].

pub mod answer;
pub mod call;
pub mod command;
pub mod completion;
pub mod core;
pub mod destinations;
pub mod handle;
pub mod handler;
pub mod here;
pub mod lanes;
pub mod lead;
pub mod multicast;
pub mod publish;
pub mod reading;
#[cfg(test)]
mod rig;
pub mod seat;
pub mod session;
pub mod session_seat;
pub mod shard;
pub mod shared;
pub mod stream;
pub mod subscribe;
