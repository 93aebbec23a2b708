//! Floor 6: threads, sockets and clocks. The only floor that asks the system for anything.

pub mod machine;
