//! Machines against oracles: each module drives one machine with random operations and compares
//! every answer with a model that is too simple to be wrong.

mod batch;
mod baton;
mod budget;
mod cell;
mod codec;
mod egress;
mod fuzz_bodies;
mod gate;
mod ledger;
mod options;
mod origin;
mod fairness;
mod ingress;
mod link_clock;
mod liveness;
mod pressure;
mod waiters;
mod mark;
mod ring;
mod room;
mod wheel;
