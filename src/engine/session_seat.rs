//! The seat of one stream socket on one shard: the sessions of its clients and their continuations. A
//! panic ends the session it came from; the shard closes its connection.
//!
//! Bounded by the socket's limit of sessions; a session that ended is in here until its last callback.

use std::collections::HashMap;
use std::mem::take;
use std::sync::Arc;

use super::call::Lineage;
use super::core::{ContinuationKey, Core};
use super::handler::Context;
use super::seat::{Continuations, Peer, Seat, Start, Waiting, count_panic, discard};
use super::session::{Frame, Session, SessionHandle};
use super::shared::Outcome;
use super::stream::SessionShared;
use crate::base::id::TargetId;
use crate::base::panic::{caught, dropped};
use crate::flow::session::SessionEnd;
use crate::sync::task::TaskKey;

struct Place<S> {
    shared: Arc<SessionShared>,
    session: S,
}

/// See the module.
pub struct SessionSeat<S: Session, F> {
    factory: Arc<F>,
    shard: usize,
    seat: u16,
    sessions: HashMap<TargetId, Place<S>>,
    continuations: Continuations<S>,
}

/// Calls made by a session's callbacks stand at the beginning of a chain: no caller's deadline is above
/// them.
const FIRST: Lineage = Lineage { depth: 1, deadline: None };

impl<S: Session, F: Fn(usize) -> S> SessionSeat<S, F> {
    /// An empty seat.
    pub fn new(factory: Arc<F>, shard: usize, seat: u16) -> Self {
        SessionSeat { factory, shard, seat, sessions: HashMap::new(), continuations: Continuations::new() }
    }

    /// Runs `call` on the session of `peer`; nothing if there is none any more. After a panic nothing of it
    /// is left.
    fn call(
        &mut self,
        core: &mut Core,
        place: u32,
        lineage: Lineage,
        peer: Peer,
        call: impl FnOnce(&mut S, &Arc<SessionShared>, &mut Context<'_, S>),
    ) {
        let id = peer.id;
        let Some(Place { shared, session }) = self.sessions.get_mut(&id) else { return discard(core, call) };
        let mut cx = Context { core, continuations: &mut self.continuations, seat: self.seat, place, lineage, peer };
        if let Err(panic) = caught(|| call(session, shared, &mut cx)) {
            count_panic(core, panic);
            shared.panicked.raise();
            shared.poke();
            self.forget(core, id);
        }
    }

    /// Drops a session and its continuations, whose captures may have a last word that panics.
    fn forget(&mut self, core: &mut Core, id: TargetId) {
        if let Some(gone) = self.sessions.remove(&id) {
            discard(core, gone.session);
        }
        for Waiting { place, run, .. } in self.continuations.take_of(id) {
            discard(core, run);
            core.leave_place(place);
        }
    }
}

impl<S: Session, F> Drop for SessionSeat<S, F> {
    /// One by one: a last word that panics must not meet another that does.
    fn drop(&mut self) {
        // The shard is over, and so is its count.
        for (_, gone) in self.sessions.drain() {
            let _ = dropped(gone.session);
        }
        for waiting in self.continuations.take_all() {
            let _ = dropped(waiting.run);
        }
    }
}

impl<S: Session, F: Fn(usize) -> S> Seat for SessionSeat<S, F> {
    fn start(&mut self, core: &mut Core, start: Start<'_>) {
        let Start { record, peer, place, lineage, .. } = start;
        let peer = peer.clone();
        let (header, bytes) = (record.correlation as usize, take(&mut record.payload));
        self.call(core, place, lineage, peer, |session, shared, cx| {
            session.frame(Frame::new(shared.clone(), header, bytes), cx);
        });
        core.leave_place(place);
    }

    fn resume(&mut self, core: &mut Core, key: ContinuationKey, outcome: Outcome) {
        let Some(Waiting { place, lineage, peer, run }) = self.continuations.take(key) else { return };
        self.call(core, place, lineage, peer, |session, _, cx| run(session, outcome, cx));
        core.leave_place(place);
    }

    fn poll(&mut self, _: &mut Core, _: TaskKey) {}

    fn open(&mut self, core: &mut Core, shared: Arc<SessionShared>, peer: Peer) -> bool {
        let (factory, shard, id) = (self.factory.clone(), self.shard, peer.id);
        let session = match caught(|| factory(shard)) {
            Ok(session) => session,
            Err(panic) => {
                count_panic(core, panic);
                return false;
            }
        };
        self.sessions.insert(id, Place { shared, session });
        let place = core.start_place(0, 1);
        self.call(core, place, FIRST, peer, |session, shared, cx| {
            session.opened(SessionHandle::new(shared.clone()), cx);
        });
        core.leave_place(place);
        self.sessions.contains_key(&id)
    }

    fn close(&mut self, core: &mut Core, why: SessionEnd, peer: Peer) {
        let (place, id) = (core.start_place(0, 1), peer.id);
        self.call(core, place, FIRST, peer, |session, _, cx| session.closed(why, cx));
        core.leave_place(place);
        self.forget(core, id);
    }
}
