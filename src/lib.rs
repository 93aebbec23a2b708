//! A thread-per-core messaging runtime whose behaviour under overload is a contract.
//!
//! Each pinned core runs its own event loop with lock-free queues per origin; a shared permit counter
//! holds the host's job limit; a completion thread keeps replies flowing while everything else is
//! full or stuck. There is no async executor here: operations are futures that run on yours, or
//! threads wait for them.
//!
//! Two limits do the work, and they do not convert into each other:
//!
//! ```text
//!   bytes   a mark per link and direction        full: the sender waits, under its deadline
//!   jobs    M permits per host, taken before a   full: nothing more is claimed; queues fill, TCP
//!           record is claimed, returned right    closes the window, and the sender feels it; peers
//!           before its handler starts            are told to pause at 80 %
//! ```
//!
//! Start with [`Host::builder`]; serve with a [`Handler`]; call with [`Client::channel`]. An operation
//! is lazy: nothing happens before `.wait()`, `.await`, [`Op::then`] or [`Op::submit`].
//!
//! ```
//! use afflux::{Context, Handler, Host, Request};
//!
//! struct Upper;
//!
//! impl Handler for Upper {
//!     fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
//!         let text = request.payload().to_ascii_uppercase();
//!         request.reply(cx, text);
//!     }
//! }
//!
//! let service = Host::builder("upper").listen("tcp://127.0.0.1:0").channel("upper", |_| Upper).start()?;
//! let caller = Host::builder("caller").connect(format!("tcp://{}", service.addresses()[0])).start()?;
//! let reply = caller.client().channel("upper").request("", "water").wait()?;
//! assert_eq!(&reply[..], b"WATER");
//! # Ok::<(), afflux::Error>(())
//! ```
//!
//! The [`manual`] has chapters on architecture, backpressure, sizing, the wire, options, operations and
//! performance.

/// All planted faults in one build, none of them on: `AFFLUX_MUTATION` names the one of this process. See
/// `tests/mutations.sh`, which alone builds like this.
#[cfg(afflux_mutations)]
macro_rules! cfg {
    (afflux_mutation = $name:literal) => {
        $crate::sync::is_planted($name)
    };
    ($($other:tt)*) => {
        ::core::cfg!($($other)*)
    };
}

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
pub mod manual;
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
        Context, Failure, Handler, LocalChannel, LocalClient, Message, RemoteResponder, Request, Responder, reply_all,
    };
    pub use crate::engine::multicast::{Multicast, MulticastOp, Told};
    pub use crate::engine::publish::{Dropped, Publish, Published, Publisher};
    pub use crate::engine::session::{Frame, ReplyToken, Sending, Session, SessionHandle, SessionReply, SessionSend};
    pub use crate::engine::subscribe::Subscriber;
    pub use crate::flow::publications::{Amount, DropReason};
    pub use crate::flow::session::SessionEnd;
    pub use crate::host::Host;
    pub use crate::host::client::{Channel, Client};
    pub use crate::host::options::{HostBuilder, HostOptions, IdlePolicy, Placement};
    pub use crate::host::pubsub::{DropCounts, PublisherOptions, PublisherStatus, SubscriberStatus};
    pub use crate::host::status::{Account, HostStatus, LinkStatus, PeerAccount, ShardStatus};
    pub use crate::host::stream::StreamStatus;
    pub use crate::meter::latency::{Latency, LatencySet};
    pub use crate::plan::{HostPlan, Hwm, HwmProfile, JobQueueProfile, Level, Pinning, SlowSubscriber};
    pub use crate::runtime::bridge::{Bridge, BridgePermit, BridgeTask};
    pub use crate::sync::gate::{GateSnapshot, Pressure};
    pub use crate::wire::stock::Publication;
}

#[cfg(not(afflux_loom))]
pub use api::*;
