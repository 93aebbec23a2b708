//! The read half of a completion lane. It lives in a baton: the completion thread reads, or
//! whoever leads; never two at once.

use std::io;
use std::sync::Arc;

use super::transport::Transport;
use crate::wire::decode::{Decoder, Item};
use crate::wire::error::WireError;

/// Why reading came to its end.
#[derive(Debug)]
pub enum ReadEnd {
    /// The peer closed the connection.
    Closed,
    /// The connection broke.
    Broken(io::Error),
    /// The peer broke the protocol.
    Protocol(WireError),
}

/// The connection, and what was read of it and not decoded: at most half a head or a record in
/// assembly. At rest it owns no buffer.
#[derive(Debug)]
pub struct Reader {
    transport: Arc<dyn Transport>,
    decoder: Decoder,
    carry: Vec<u8>,
    /// The attach that it belongs to.
    pub link: u64,
    /// The peer's end was seen, and no other event will follow: it is read to that end.
    pub ended: bool,
}

impl Reader {
    /// Reads `transport`, after what was already read of it.
    pub fn new(transport: Arc<dyn Transport>, decoder: Decoder, carry: Vec<u8>, link: u64) -> Self {
        Reader { transport, decoder, carry, link, ended: false }
    }

    /// Reads until the connection has no more, or `budget` bytes were read; hands over what was
    /// decoded. `Ok(true)`: there may be more. `bytes` counts what came.
    pub fn read(
        &mut self,
        block: &mut [u8],
        mut budget: usize,
        bytes: &mut usize,
        mut each: impl FnMut(Item),
    ) -> Result<bool, ReadEnd> {
        let mut have = self.carry.len();
        block[..have].copy_from_slice(&self.carry);
        self.carry = Vec::new();
        let mut empty = false;
        loop {
            let mut at = 0;
            while let Some(item) = {
                let step = self.decoder.decode(&block[at..have]).map_err(ReadEnd::Protocol)?;
                at += step.consumed;
                step.item
            } {
                each(item);
            }
            block.copy_within(at..have, 0);
            have -= at;
            if empty || budget == 0 {
                self.carry.extend_from_slice(&block[..have]);
                return Ok(!empty);
            }
            // A large body is read where it will stay; everything else goes through the block.
            let space = if have == 0 { self.decoder.assembly_space(budget) } else { None };
            let direct = space.is_some();
            let space = space.unwrap_or(&mut block[have..]);
            let asked = space.len();
            match self.transport.read(space) {
                Ok(0) => return Err(ReadEnd::Closed),
                Ok(n) => {
                    *bytes += n;
                    budget = budget.saturating_sub(n);
                    if direct {
                        self.decoder.assembly_filled(n);
                    } else {
                        have += n;
                    }
                    // A short read: the socket is empty, and what comes next will be told, but for the end.
                    empty = n < asked && !self.ended;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => empty = true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(ReadEnd::Broken(e)),
            }
        }
    }
}
