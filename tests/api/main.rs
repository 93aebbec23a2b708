//! The promises of the API, shown from outside: real hosts, real sockets on loopback, nothing but what a
//! user of the crate can reach. Each test names what it holds.

#[path = "../support/mod.rs"]
mod support;

mod basics;
mod budget;
mod ceilings;
mod closing;
mod gate;
mod hostile;
mod idle;
mod lanes;
mod lead;
mod local;
mod marks;
mod multicast;
mod options;
mod order;
mod pubsub;
mod rivals;
mod room;
mod server;
mod stream;
mod stuck;
