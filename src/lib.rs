//! afflux: a thread-per-core messaging runtime whose behaviour under overload is a contract.

#[doc(hidden)]
pub mod base;
#[doc(hidden)]
pub mod sync;

#[cfg(not(afflux_loom))]
#[doc(hidden)]
pub mod engine;
#[cfg(not(afflux_loom))]
#[doc(hidden)]
pub mod flow;
#[cfg(not(afflux_loom))]
#[doc(hidden)]
pub mod host;
#[cfg(not(afflux_loom))]
#[doc(hidden)]
pub mod meter;
#[cfg(not(afflux_loom))]
#[doc(hidden)]
pub mod pattern;
#[cfg(not(afflux_loom))]
#[doc(hidden)]
pub mod plan;
#[cfg(not(afflux_loom))]
#[doc(hidden)]
pub mod policy;
#[cfg(not(afflux_loom))]
#[doc(hidden)]
pub mod runtime;
#[cfg(not(afflux_loom))]
#[doc(hidden)]
pub mod wire;

pub use base::error::{Detail, Error, ErrorKind, Figures, RequestError, SendError, Stage, Violation};
pub use base::record::Lane;
pub use base::unit::ByteSize;

#[cfg(not(afflux_loom))]
mod api {
    pub use crate::engine::call::{OneWay, Op, Pending, RequestOp, SendOp, Terminal, TwoWay};
    pub use crate::engine::handler::{
        Context, Failure, Handler, LocalChannel, LocalClient, Message, RemoteResponder, Request, Responder,
    };
    pub use crate::host::Host;
    pub use crate::host::client::{Channel, Client};
    pub use crate::host::options::{HostBuilder, HostOptions, IdlePolicy, Placement};
    pub use crate::host::status::{Account, HostStatus, LinkStatus, PeerAccount, ShardStatus};
    pub use crate::plan::{HostPlan, Hwm, HwmProfile, JobQueueProfile, Level, Pinning};
}

#[cfg(not(afflux_loom))]
pub use api::*;
