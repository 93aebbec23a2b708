//! Machines against oracles: each module drives one machine with random operations and compares
//! every answer with a model that is too simple to be wrong.

mod baton;
mod budget;
mod codec;
mod egress;
mod fuzz_bodies;
mod ledger;
mod mark;
mod options;
mod origin;
mod ring;
mod room;
mod wheel;
