//! Machines against oracles: each module drives one machine with random operations and compares
//! every answer with a model that is too simple to be wrong.

mod budget;
mod egress;
mod origin;
mod wheel;
mod ledger;
mod options;
//! Machines against oracles, with arbitrary inputs.
mod codec;
mod fuzz_bodies;
mod gate;
