//! Floor 7: what a user of the crate holds.

pub(crate) mod address;
pub mod dump;
pub mod options;
pub mod resolve;
