//! End clients as they come: let in or closed at once, and given to the shard that has the fewest. There
//! is no handshake, so nothing waits here; the shard does the rest.

use std::net::SocketAddr;
use std::sync::Arc;

use super::{CompletionEngine, ShardCommand};
use crate::base::id::{ShardId, TargetId};
use crate::engine::shared::Life;
use crate::engine::stream::{NewSession, SessionShared};
use crate::flow::target::{Dialect, Serves, Target, TargetSpec};
use crate::flow::transport::Transport;

/// A client's share of the waiting room: there may be many that take nothing.
const ROOM_PARTS: u32 = 64;

impl CompletionEngine {
    /// A client connected to the host's stream socket `socket`. Closed at once, and counted, if the socket
    /// has as many as it may or the host is at its end.
    pub fn handle_client(&mut self, socket: u16, transport: Arc<dyn Transport>, peer: SocketAddr) {
        let shared = self.shared.clone();
        let Some(socket) = shared.streams.get(usize::from(socket)) else {
            debug_assert!(false, "a client came to a socket that is not there");
            return transport.shutdown();
        };
        if shared.life() != Life::Serving || socket.sessions.enter(0).is_err() {
            socket.refused.add(1);
            return transport.shutdown();
        }
        let owner = (0..shared.shards.len()).min_by_key(|s| shared.shards[*s].sessions.get()).unwrap_or(0);
        let owner = ShardId(owner as u16);
        shared.port(owner).sessions.add(1);
        let target = Arc::new(Target::new(TargetSpec {
            id: TargetId(self.next_target),
            owner,
            dialled: false,
            dialect: Dialect::Stream,
            serves: Serves::Node,
            label: format!("client {peer}").into(),
            send_mark: socket.plan.send_mark,
            waiting_ops: (shared.plan.room.ops / ROOM_PARTS).max(1),
            waiting_bytes: shared.plan.room.bytes / u64::from(ROOM_PARTS),
            requests: 0,
            reply_bytes: 0,
            publications: None,
        }));
        self.next_target += 1;
        target.link.set(self.next_link);
        self.next_link += 1;
        shared.targets.lock().push(target.clone());
        let session = Arc::new(SessionShared::new(shared.clone(), target, socket.clone(), peer));
        self.command(owner, ShardCommand::Client(Box::new(NewSession { session, transport })));
    }
}
