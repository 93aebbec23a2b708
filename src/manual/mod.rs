//! The manual. Its pages are compiled and linked with the code that they speak of, so that a name that
//! changes breaks the build of the documentation.

#[doc = include_str!("options.md")]
pub mod options {}
