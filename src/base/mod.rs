//! Floor 0: the vocabulary. Plain values without behaviour that could wait, block or allocate
//! behind the caller's back. Everything above speaks in these types.

pub mod error;
pub mod id;
pub mod panic;
pub mod record;
pub mod rng;
pub mod time;
pub mod unit;
