//! The plan's part about roles that only ask.

use std::sync::Arc;
use std::time::Duration;

use super::Endpoint;

/// One role of a client: whom it asks, and how long its sends may wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientPlan {
    /// What its servers serve, and what the program calls it.
    pub name: Arc<str>,
    /// Whom to dial: one link to each.
    pub servers: Vec<Endpoint>,
    /// Ceiling of a send to a server, whole ms in 1..=i32::MAX. Default 1 s.
    pub send_timeout: Duration,
}
