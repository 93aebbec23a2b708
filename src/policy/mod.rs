//! Floor 2: policies. Pure functions and tiny states that see numbers, never queues, so that each is a
//! table test. They know nothing of threads, sockets or each other, and are of use outside the
//! runtime as well.
//!
//! [`budget`] is asked when a queue comes or goes, [`ledger`] when somebody wants the sum.

pub use crate::base::time::Instant;

pub mod batch;
pub mod bridge;
pub mod budget;
pub mod fairness;
pub mod ledger;
pub mod overload;
