//! The manual. Its pages are compiled and linked with the code that they speak of, so that a name that
//! changes breaks the build of the documentation.

#[doc = include_str!("architecture.md")]
pub mod architecture {}

#[doc = include_str!("backpressure.md")]
pub mod backpressure {}

#[doc = include_str!("wire.md")]
pub mod wire {}

#[doc = include_str!("options.md")]
pub mod options {}

#[doc = include_str!("sizing.md")]
pub mod sizing {}

#[doc = include_str!("operations.md")]
pub mod operations {}

#[doc = include_str!("performance.md")]
#[doc = include_str!("load.svg")]
pub mod performance {}

/// The examples of the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub mod readme {}
