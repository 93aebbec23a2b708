//! The two ends of client and server: servers that a role of ours dials, and nodes that are here as clients.
//!
//! ```text
//!   client   a dial per server ─▶ Up, serves nothing ─▶ a member of its role's rotation
//!   server   accepted          ─▶ Up, is served      ─▶ in no route: it starts, we answer
//! ```
//!
//! A client's name is a label: two of one name are both served, so none of the rules about rivals apply. Pressure,
//! marks and liveness are those of every native link.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{CompletionEngine, Dial, Timer};
use crate::base::time::Instant;
use crate::engine::command::ShardCommand;
use crate::flow::backoff::Backoff;
use crate::flow::target::{Dialect, Serves};
use crate::pattern::route::{Channel, Member, Servers};
use crate::plan::Endpoint;

/// What a dial knows of the server that it dials for a role.
pub(super) struct ServerDial {
    /// The role, by its number in the plan.
    role: usize,
    /// The weight that the server gave the role's name, when it was last seen to serve it.
    weight: Option<u32>,
}

impl CompletionEngine {
    /// Dials for every role and server of the plan.
    pub(super) fn add_servers(&mut self) {
        let plan = self.shared.plan.clone();
        for (role, client) in plan.clients.iter().enumerate() {
            let _ = self.directory.number(&client.name);
            for to in &client.servers {
                self.add_server(role, to.clone());
            }
        }
    }

    fn add_server(&mut self, role: usize, to: Endpoint) {
        let target = self.new_target(true, Dialect::Native, Serves::Nothing, to.to_string().into());
        self.command(target.owner, ShardCommand::Adopt(target.clone()));
        let at = self.dials.len() as u32;
        let backoff = Backoff::new(self.shared.plan.reconnect_min, self.shared.plan.reconnect_max);
        self.dials.push(Dial {
            target,
            to,
            name: None,
            slot: 0,
            backoff,
            conns: [None; 2],
            had_outcome: false,
            seen: None,
            role: None,
            pull: false,
            server: Some(ServerDial { role, weight: None }),
        });
        self.set_timer(Instant(0), Timer::Redial(at));
    }

    /// Who may be asked by each role now.
    pub(super) fn server_routes(&mut self) -> HashMap<Arc<str>, Servers> {
        let plan = self.shared.plan.clone();
        let mut routes = HashMap::new();
        for (number, client) in plan.clients.iter().enumerate() {
            let Some(id) = self.directory.number(&client.name) else { continue };
            let (mut members, mut settled) = (Vec::new(), true);
            for dial in &mut self.dials {
                let Some(server) = dial.server.as_mut().filter(|server| server.role == number) else { continue };
                settled &= dial.had_outcome;
                let up = self.ups.get(&dial.target.id);
                let told = up.map(|up| up.channels.iter().find(|(name, _)| *name == client.name));
                if let Some(Some((_, weight))) = told {
                    server.weight = Some(*weight);
                }
                let Some(weight) = server.weight else { continue };
                let links = if told.flatten().is_some() { vec![dial.target.clone()] } else { Vec::new() };
                members.push(Member { node: dial.target.label(), weight, links });
            }
            routes.insert(client.name.clone(), Servers { channel: Channel { id, members }, settled });
        }
        routes
    }

    /// Nodes that are here as clients.
    pub(super) fn clients(&self) -> HashSet<Arc<str>> {
        let clients = self.ups.values().filter(|up| up.target.serves == Serves::Client);
        clients.map(|up| up.node.clone()).collect()
    }
}
