//! Machines against oracles: each module drives one machine with random operations and compares
//! every answer with a model that is too simple to be wrong.

mod batch;
mod baton;
mod bridge;
mod budget;
mod cell;
mod clocks;
mod codec;
mod durations;
mod egress;
mod fairness;
mod fuzz_bodies;
mod gate;
mod ingress;
mod ledger;
mod link_clock;
mod liveness;
mod mark;
mod options;
mod origin;
mod pressure;
mod publications;
mod ring;
mod room;
mod session;
mod stream;
mod topics;
mod waiters;
mod wheel;
