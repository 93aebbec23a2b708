//! ZMTP 3.1 and what native peers put into it. Pure: bytes in, bytes out.
//!
//! ```text
//!  greeting.rs   64 bytes each way, then READY each way: who is there, in which role
//!    ready.rs    the properties of READY          socket.rs    ZeroMQ's types, pairs and mirrors
//!  frame.rs      flags, length, body
//!  decode.rs     bytes -> records and commands    encode.rs    records -> heads (payloads are never copied)
//!    assembly.rs the record that is not whole yet
//!    header.rs   24 bytes before a native record  stock.rs     envelope, route, `ok` and `error`
//!  command.rs    what travels between records     channels.rs  what a node serves, as text
//!  stream.rs     length-prefixed frames of end clients, who speak no ZMTP
//! ```
//!
//! Two rules hold everywhere. A length is compared with its limit before anything is allocated, and
//! what is allocated grows with the bytes that came, never with those announced. And no byte of a
//! peer can make this code panic: what cannot be is a [`WireError`], which says whose fault it is
//! and what the peer is told.

pub mod assembly;
pub mod channels;
pub mod command;
pub mod decode;
pub mod encode;
pub mod error;
pub mod frame;
pub mod greeting;
pub mod header;
pub mod ready;
pub mod socket;
pub mod stock;
pub mod stream;

pub use error::WireError;

/// The version of the native protocol that we speak.
pub const VERSION: u16 = 1;

/// The lowest version of the native protocol that we still speak.
pub const VERSION_MIN: u16 = 1;
