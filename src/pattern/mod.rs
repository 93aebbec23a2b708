//! Floor 4: what a message means.

pub mod route;
pub mod topics;
