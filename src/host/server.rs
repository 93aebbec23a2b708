//! Client and server: a role in which only one side starts. A server serves a name to clients and answers; a
//! client asks any of its servers, under a ceiling of its own.
//!
//! ```text
//!   Host::builder("orders-1").listen(..).server("orders", |_shard| Orders::default())
//!   Host::builder("web-1").client_of("orders").server_at("tcp://..").server_at("tcp://..")
//!       host.client().server("orders")?.request("place", body)
//! ```

use std::time::Duration;

use super::handler_seat;
use super::options::{HostBuilder, Served};
use crate::base::error::Violation;
use crate::engine::handler::Handler;

/// What a user stated about one role of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ClientOption {
    pub(crate) name: String,
    pub(crate) servers: Vec<String>,
    pub(crate) send_timeout: Duration,
}

impl HostBuilder {
    /// Serves `name` to clients: hosts that are [`client_of`](Self::client_of) it, and stock DEALER, REQ and PUSH
    /// sockets. Only they start; this host answers, and a call of its own to such a client is
    /// `InvalidOperation`. Nodes that connect do not see it: for those there is [`channel`](Self::channel).
    /// `factory`, and what a name is, are as there; [`weight`](Self::weight) may follow. At most 256.
    /// Without [`listen`](Self::listen), or with the name of a channel: refused.
    pub fn server<H: Handler>(
        mut self,
        name: impl Into<String>,
        factory: impl Fn(usize) -> H + Send + Sync + 'static,
    ) -> Self {
        self.options.servers.push((name.into(), 100));
        self.options.served = Some(Served::ToClients);
        self.roles.servers.push(handler_seat(factory));
        self
    }

    /// Is a client of the servers of `name`, which [`server_at`](Self::server_at) lists:
    /// [`Client::server`](crate::Client::server) calls them. One link to each, on which nothing can be called
    /// from there. At most 256, each once; without a server: refused.
    pub fn client_of(mut self, name: impl Into<String>) -> Self {
        let option = ClientOption { name: name.into(), servers: Vec::new(), send_timeout: Duration::from_secs(1) };
        self.options.clients.push(option);
        self
    }

    /// A server of the client role before: the `tcp://host:port` of a host that serves its name by
    /// [`server`](Self::server). Dialled, and dialled again whenever the link is down. Several share the
    /// calls by their weights. The same address twice for one role is refused.
    pub fn server_at(self, addr: impl Into<String>) -> Self {
        let addr = addr.into();
        self.on_client("server_at", addr.clone(), |client| client.servers.push(addr))
    }

    /// Ceiling of a send by the client role before, in place of [`send_timeout`](Self::send_timeout), which is that
    /// of node and channel. Rounded up to ms, 1..=2,147,483,647 ms, default 1 s. Requests have the host's
    /// [`request_timeout`](Self::request_timeout).
    pub fn client_send_timeout(self, timeout: Duration) -> Self {
        self.on_client("client_send_timeout", format!("{timeout:?}"), |client| client.send_timeout = timeout)
    }

    fn on_client(mut self, option: &'static str, value: String, set: impl FnOnce(&mut ClientOption)) -> Self {
        match self.options.clients.last_mut() {
            Some(client) => set(client),
            None => self.options.misplaced.push(Violation {
                option,
                value,
                rule: "speaks of the client_of before it, and there is none".into(),
            }),
        }
        self
    }
}
