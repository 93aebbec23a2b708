//! Two links where there may be one: both nodes dialled each other, or a second instance of a node came
//! under the name of the first.
//!
//! ```text
//!   a pair is READY ─┬─ another instance of its node is linked ─▶ Contest: the old links are asked for a sign of life
//!                    │                                              ├─ one gives it within a second ─▶ refused: AlreadyExists
//!                    │                                              └─ none, or they are lost        ─▶ they end, it is up
//!                    └─ accepted, and we dial that node too ────────▶ of two links that which the smaller name dialled stays
//! ```
//!
//! A link that the peer dialled serves the target that we would dial for it, with its queue; while it is up
//! that node is not dialled. Links of clients know no rivals: a client's name is a label. Bounds: a contest holds two connections in their handshake, so there are
//! at most half as many as `handshakes_max`.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use super::{CompletionEngine, ConnKey, State, Timer, command};
use crate::base::id::{LinkId, TargetId};
use crate::base::time::Instant;
use crate::engine::lanes;
use crate::flow::link_clock::clock_ms;
use crate::flow::target::Post;
use crate::wire::ready::Role;

/// How long the links of an earlier instance have for a sign of life.
const SIGN_WITHIN: Duration = Duration::from_secs(1);

/// A pair that waits until it is clear whether an earlier instance of its node is alive.
pub(super) struct Contest {
    link: LinkId,
    application: ConnKey,
    completion: ConnKey,
    dial: Option<u32>,
    node: Arc<str>,
    asked_at: Instant,
}

/// Who stands at the other end of a pair.
struct Claim {
    node: Arc<str>,
    instance: u128,
    slot: u16,
    link: LinkId,
    role: Role,
}

impl CompletionEngine {
    /// Both connections of a link are READY: takes the link in, refuses it, or has it wait.
    pub(super) fn admit(&mut self, application: ConnKey, completion: ConnKey, dial: Option<u32>) {
        let Some(claim) = self.claim_of(application) else { return };
        let plan = &self.shared.plan;
        if claim.role == Role::Client {
            return self.pair(application, completion, dial, dial.is_none());
        }
        if claim.node == plan.name && claim.instance != plan.instance {
            let why = format!("AlreadyExists: {} is the name of the node that you reached", claim.node);
            return self.refuse(application, completion, &why);
        }
        let earlier = self.earlier(&claim.node, claim.instance);
        if !earlier.is_empty() {
            return self.contest(application, completion, dial, claim, &earlier);
        }
        match dial {
            Some(at) => self.admit_dialled(application, completion, at, &claim),
            None => self.admit_accepted(application, completion, &claim),
        }
    }

    fn claim_of(&mut self, key: ConnKey) -> Option<Claim> {
        let State::Half { peer, .. } = &self.conn(key)?.state else { return None };
        let native = peer.native.as_ref()?;
        Some(Claim {
            node: native.node.clone(),
            instance: native.instance,
            slot: native.place.slot,
            link: native.place.link,
            role: native.place.role,
        })
    }

    /// Links of other instances of a node.
    fn earlier(&self, node: &Arc<str>, instance: u128) -> Vec<TargetId> {
        let others = self.ups.iter().filter(|(_, up)| up.is_node() && up.node == *node && up.instance != instance);
        others.map(|(id, _)| *id).collect()
    }

    fn admit_dialled(&mut self, application: ConnKey, completion: ConnKey, at: u32, claim: &Claim) {
        // The peer dialled us before we knew whom we dial: of the two, that of the smaller name stays.
        let theirs = self.ups.iter().find(|(_, up)| {
            up.is_node()
                && up.node == claim.node
                && up.instance == claim.instance
                && up.theirs == Some(self.dials[at as usize].slot)
        });
        if let Some((id, link)) = theirs.map(|(id, up)| (*id, up.link)) {
            self.retire(id, link, "it is to serve the queue of the link that this host dials");
            if claim.node < self.shared.plan.name {
                return self.refuse(application, completion, "the link that the peer dialled stays");
            }
        }
        self.pair(application, completion, Some(at), false);
    }

    fn admit_accepted(&mut self, application: ConnKey, completion: ConnKey, claim: &Claim) {
        let own = self.dials.iter().position(|dial| {
            dial.slot == claim.slot
                && dial.server.is_none()
                && dial.name.as_ref().or(dial.seen.as_ref()) == Some(&claim.node)
                && self.ups.get(&dial.target.id).is_none_or(|up| up.theirs.is_none())
        });
        let own = own.filter(|_| !cfg!(afflux_mutation = "both_links_stay"));
        let Some(at) = own else { return self.pair(application, completion, None, true) };
        let (target, conns) = (self.dials[at].target.id, self.dials[at].conns);
        let up = self.ups.get(&target).map(|up| up.link);
        let trying = conns.iter().any(Option::is_some);
        if self.shared.plan.name < claim.node && (up.is_some() || trying) {
            return self.refuse(application, completion, "the link that this host dialled stays");
        }
        if let Some(link) = up {
            self.retire(target, link, "the link that the peer dialled stays");
        }
        self.abandon_dial(at as u32);
        self.pair(application, completion, Some(at as u32), true);
    }

    fn abandon_dial(&mut self, at: u32) {
        for key in std::mem::take(&mut self.dials[at as usize].conns).into_iter().flatten() {
            self.let_go(key);
        }
    }

    /// Says why on both connections and ends them.
    fn refuse(&mut self, application: ConnKey, completion: ConnKey, why: &str) {
        let mut frame = Vec::new();
        command::write_error(why, &mut frame);
        for key in [application, completion] {
            if let Some(transport) = self.conn(key).and_then(|conn| conn.transport.clone()) {
                // It is small and the connection is new: it fits, or the peer learns less.
                let _ = transport.write(&[IoSlice::new(&frame)]);
                transport.finish();
            }
            self.close(key, why);
        }
    }

    // ---- contests

    fn contest(
        &mut self,
        application: ConnKey,
        completion: ConnKey,
        dial: Option<u32>,
        claim: Claim,
        earlier: &[TargetId],
    ) {
        let now = self.shared.clock.now();
        for up in earlier.iter().filter_map(|id| self.ups.get(id)) {
            let mut frame = Vec::new();
            let context = command::Context::native(clock_ms(now), up.target.decoded.get());
            command::write_ping(0, &context, &mut frame);
            let post = Post::Command { link: up.link, frame: frame.into() };
            lanes::post(&self.shared, &up.target.clone(), post);
        }
        self.set_timer(now.after(SIGN_WITHIN), Timer::Contest(claim.link));
        let Claim { node, link, .. } = claim;
        self.contests.push(Contest { link, application, completion, dial, node, asked_at: now });
    }

    /// The time for a sign of life is over.
    pub(super) fn decide(&mut self, link: LinkId) {
        let Some(contest) = self.take_contest(|contest| contest.link == link) else { return };
        let Some(claim) = self.claim_of(contest.application) else { return };
        let earlier = self.earlier(&claim.node, claim.instance);
        let alive = earlier.iter().filter_map(|id| self.ups.get(id)).any(|up| {
            let led = Instant(up.target.led_read_ns.get());
            up.heard_at.max(led).max(Instant(up.target.last_read_ns.get())) > contest.asked_at
        });
        if alive && !cfg!(afflux_mutation = "newcomer_wins") {
            let why = format!("AlreadyExists: another instance of {} is linked and alive", claim.node);
            return self.refuse(contest.application, contest.completion, &why);
        }
        for id in earlier {
            if let Some(link) = self.ups.get(&id).map(|up| up.link) {
                self.retire(id, link, "it gave no sign of life while another instance of its node asked for its place");
            }
        }
        self.admit(contest.application, contest.completion, contest.dial);
    }

    /// A link of `node` was lost: whoever waited for its end may go on.
    pub(super) fn settle_contests(&mut self, node: &Arc<str>) {
        if self.contests.is_empty() || self.ups.values().any(|up| up.is_node() && up.node == *node) {
            return;
        }
        if let Some(contest) = self.take_contest(|contest| contest.node == *node) {
            self.admit(contest.application, contest.completion, contest.dial);
        }
    }

    fn take_contest(&mut self, is_it: impl Fn(&Contest) -> bool) -> Option<Contest> {
        self.contests.iter().position(is_it).map(|at| self.contests.swap_remove(at))
    }
}
