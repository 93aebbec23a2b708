//! Machines against oracles, with arbitrary inputs.

mod codec;
mod fuzz_bodies;
