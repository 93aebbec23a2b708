//! The control plane: what the completion thread tells a shard, and the other way round. Rare,
//! bounded, never on the path of a message. What finds the mailbox full is kept by its sender and
//! tried again.

use std::sync::Arc;

use crossbeam_channel::Sender;

use super::shared::Outgoing;
use super::stream::NewSession;
use crate::flow::target::Target;
use crate::flow::transport::Transport;
use crate::meter::latency::LatencySet;
use crate::sync::ring::Consumer;
use crate::wire::decode::Mode;

/// To a shard.
#[derive(Debug)]
pub enum ShardCommand {
    /// A new origin of records: a handle's ring.
    Ring(Consumer<Outgoing>),
    /// A pair is up; the shard has its application connection from now on.
    Attach(Box<Attach>),
    /// The pair of that attach is lost. `forget`: the target is gone with it.
    Detach {
        /// Which target.
        target: Arc<Target>,
        /// Which attach of it.
        link: u64,
        /// Nothing will ever be sent to it again.
        forget: bool,
    },
    /// A target that we dial, before it was ever up: it has a queue from the start.
    Adopt(Arc<Target>),
    /// An end client came; it is the shard's from now on.
    Client(Box<NewSession>),
    /// A command for a peer whose only connection the shard writes.
    Say {
        /// Which target.
        target: Arc<Target>,
        /// Which attach of it.
        link: u64,
        /// The frame.
        frame: Vec<u8>,
    },
    /// The shard's histograms are wanted.
    Histograms(Sender<LatencySet>),
}

/// A pair that came up.
#[derive(Debug)]
pub struct Attach {
    /// Whose it is.
    pub target: Arc<Target>,
    /// The number of this attach.
    pub link: u64,
    /// The application connection, or a stock peer's only one.
    pub transport: Arc<dyn Transport>,
    /// Bytes that were read behind the handshake.
    pub carry: Vec<u8>,
    /// Local channel number to the peer's number.
    pub channels: Vec<u16>,
    /// How its bytes are to be read.
    pub mode: Mode,
    /// It answers nothing: requests to it are refused.
    pub one_way: bool,
}

/// To the completion thread.
#[derive(Debug)]
pub enum CompletionCommand {
    /// The shard cannot read or write the application connection of that attach any more.
    Lost {
        /// Which target.
        target: Arc<Target>,
        /// Which attach of it.
        link: u64,
        /// What was seen.
        reason: String,
    },
    /// The peer announced a new channel list on the application lane.
    Channels {
        /// Which target.
        target: Arc<Target>,
        /// Which attach of it.
        link: u64,
        /// Names and weights, whole.
        list: Vec<(Arc<str>, u32)>,
    },
    /// The completion thread's histograms are wanted.
    Histograms(Sender<LatencySet>),
}
