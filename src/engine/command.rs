//! The control plane: what the completion thread tells a shard, and the other way round. Rare,
//! bounded, never on the path of a message. What finds the mailbox full is kept by its sender and
//! tried again.

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_channel::Sender;

use super::shared::{HostShared, Outgoing};
use super::stream::NewSession;
use crate::base::id::ShardId;
use crate::base::time::Instant;
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
        /// Requests that were begun later are not lost with it.
        lost_at: Instant,
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

/// What found a shard's mailbox full, in its order. A shard that is stuck while links come and go does not make it
/// grow with them: of each target at most one loss and one attach after it are kept.
#[derive(Debug, Default)]
pub struct LateCommands(VecDeque<ShardCommand>);

impl LateCommands {
    /// Nothing is late.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One more. A loss makes what came before of the same target needless: an attach that is over, an earlier
    /// loss.
    pub fn push(&mut self, command: ShardCommand) {
        if let ShardCommand::Detach { target: lost, .. } = &command {
            self.0.retain(|earlier| match earlier {
                ShardCommand::Attach(attach) if Arc::ptr_eq(&attach.target, lost) => {
                    attach.transport.shutdown();
                    false
                }
                ShardCommand::Detach { target, forget, .. } => *forget || !Arc::ptr_eq(target, lost),
                ShardCommand::Say { target, .. } => !Arc::ptr_eq(target, lost),
                _ => true,
            });
        }
        self.0.push_back(command);
    }

    /// Sends what the mailbox takes.
    pub fn send(&mut self, shared: &HostShared, shard: ShardId) {
        while let Some(command) = self.0.pop_front() {
            if let Err(command) = shared.port(shard).command(command) {
                return self.0.push_front(command);
            }
        }
    }
}

/// What found the completion thread's mailbox full: of each target at most its last list and its loss.
#[derive(Debug, Default)]
pub struct Untold(VecDeque<CompletionCommand>);

impl Untold {
    /// Everything was told.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One more, in place of what it makes needless.
    pub fn push(&mut self, command: CompletionCommand) {
        if let CompletionCommand::Lost { target, .. } | CompletionCommand::Channels { target, .. } = &command {
            self.0.retain(|earlier| match earlier {
                CompletionCommand::Channels { target: of, .. } => !Arc::ptr_eq(of, target),
                _ => true,
            });
        }
        self.0.push_back(command);
    }

    /// Sends what is taken.
    pub fn send(&mut self, mut send: impl FnMut(CompletionCommand) -> Result<(), CompletionCommand>) {
        while let Some(command) = self.0.pop_front() {
            if let Err(command) = send(command) {
                return self.0.push_front(command);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::flow::target::TargetSpec;

    fn target(id: u64) -> Arc<Target> {
        Arc::new(Target::new(TargetSpec::peer(id)))
    }

    fn lost(target: &Arc<Target>, link: u64, forget: bool) -> ShardCommand {
        ShardCommand::Detach { target: target.clone(), link, forget, lost_at: Instant(link) }
    }

    fn shown(late: &LateCommands) -> Vec<String> {
        let show = |command: &ShardCommand| match command {
            ShardCommand::Adopt(target) => format!("adopt {}", target.id.0),
            ShardCommand::Say { target, link, .. } => format!("say {} {link}", target.id.0),
            ShardCommand::Detach { target, link, forget, .. } => format!("lost {} {link} {forget}", target.id.0),
            _ => "else".into(),
        };
        late.0.iter().map(show).collect()
    }

    #[test]
    fn a_stuck_shard_is_told_the_last_loss_of_each_target_and_its_first_adoption() {
        let (a, b) = (target(1), target(2));
        let mut late = LateCommands::default();
        late.push(ShardCommand::Adopt(a.clone()));
        late.push(lost(&b, 1, false));
        for link in 2..1000 {
            late.push(ShardCommand::Say { target: a.clone(), link, frame: Vec::new() });
            late.push(lost(&a, link, false));
        }
        assert_eq!(shown(&late), ["adopt 1", "lost 2 1 false", "lost 1 999 false"]);
        // The end of a target is never taken back.
        late.push(lost(&b, 3, true));
        late.push(lost(&b, 4, false));
        assert_eq!(shown(&late)[1..], ["lost 1 999 false", "lost 2 3 true", "lost 2 4 false"]);
    }

    #[test]
    fn a_loss_is_told_once_there_is_room_and_a_list_only_before_it() {
        let (a, b) = (target(1), target(2));
        let lost = |of: &Arc<Target>| CompletionCommand::Lost { target: of.clone(), link: 1, reason: String::new() };
        let list = |of: &Arc<Target>| CompletionCommand::Channels { target: of.clone(), link: 1, list: Vec::new() };
        let mut untold = Untold::default();
        for command in [list(&a), list(&a), list(&b), list(&a), lost(&a)] {
            untold.push(command);
        }
        untold.send(Err);
        assert!(!untold.is_empty());
        let mut told = Vec::new();
        untold.send(|command| {
            told.push(match command {
                CompletionCommand::Lost { target, .. } => ("lost", target.id.0),
                CompletionCommand::Channels { target, .. } => ("list", target.id.0),
                CompletionCommand::Histograms(_) => ("histograms", 0),
            });
            Ok(())
        });
        assert_eq!(told, [("list", 2), ("lost", 1)]);
        assert!(untold.is_empty());
    }
}
