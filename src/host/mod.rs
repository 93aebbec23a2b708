//! Floor 7: what a user of the crate holds.

pub mod dump;
