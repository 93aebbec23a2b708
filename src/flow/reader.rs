//! The read half of a completion lane. It lives in a baton: the completion thread reads, or
//! whoever leads; never two at once.

use std::io;
use std::mem::take;
use std::sync::Arc;

use super::transport::Transport;
use crate::wire::decode::{Decoder, Item, Whole};
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

/// What came on a completion lane.
#[derive(Debug)]
pub enum Came<'a> {
    /// A native peer's reply or error, as it lies in the block: nothing was made of it yet.
    Reply(Whole<'a>),
    /// Anything else.
    Item(Item),
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
    /// Bytes that were decoded and still lie in the connection: see [`Reader::read`].
    peeked: usize,
}

/// The most that is read without being taken out of the connection.
const PEEK_MAX: usize = 4 << 10;

impl Reader {
    /// Reads `transport`, after what was already read of it.
    pub fn new(transport: Arc<dyn Transport>, decoder: Decoder, carry: Vec<u8>, link: u64) -> Self {
        Reader { transport, decoder, carry, link, ended: false, peeked: 0 }
    }

    /// Whether something was only looked at.
    pub fn has_peeked(&self) -> bool {
        self.peeked > 0
    }

    /// Takes out of the connection what was only looked at. To be called before a sleep, before the poller
    /// is told to watch, and before the turn to read is given to somebody who does neither: for the kernel it
    /// is unread.
    pub fn discard(&mut self, block: &mut [u8]) -> Result<(), ReadEnd> {
        let mut at = 0;
        while self.peeked > 0 {
            // One piece behind the other: read over itself, it stays what it is.
            at = if at == block.len() { 0 } else { at };
            let end = block.len().min(at + self.peeked);
            match self.transport.read(&mut block[at..end]) {
                Ok(0) => return Err(ReadEnd::Closed),
                Ok(n) => (at, self.peeked) = (at + n, self.peeked - n),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(ReadEnd::Broken(e)),
            }
        }
        Ok(())
    }

    /// Reads until the connection has no more, or `budget` bytes were read; hands over what was
    /// decoded. `Ok(true)`: there may be more. `bytes` counts what came. `late`: a little that came alone may
    /// stay in the connection until [`Reader::discard`]. A connection that is only read acknowledges at once
    /// when it is read empty; so the acknowledgement leaves after what the caller does next.
    pub fn read(
        &mut self,
        block: &mut [u8],
        mut budget: usize,
        bytes: &mut usize,
        mut late: bool,
        mut each: impl FnMut(Came<'_>),
    ) -> Result<bool, ReadEnd> {
        self.discard(block)?;
        let mut have = 0;
        if !self.carry.is_empty() {
            have = self.carry.len();
            block[..have].copy_from_slice(&self.carry);
            self.carry = Vec::new();
        }
        let (mut empty, mut filled) = (false, false);
        loop {
            let at = self.decode(&block[..have], take(&mut filled), &mut each).map_err(ReadEnd::Protocol)?;
            if at < have {
                block.copy_within(at..have, 0);
            }
            have -= at;
            if empty || budget == 0 {
                if have > 0 {
                    self.carry.extend_from_slice(&block[..have]);
                }
                return Ok(!empty);
            }
            // A large body is read where it will stay; everything else goes through the block.
            let space = if have == 0 { self.decoder.assembly_space(budget) } else { None };
            let direct = space.is_some();
            late &= !direct && *bytes == 0 && !self.ended;
            let space = match space {
                Some(space) => space,
                None if late => {
                    let end = block.len().min(have + PEEK_MAX);
                    &mut block[have..end]
                }
                None => &mut block[have..],
            };
            let asked = space.len();
            match if late { self.transport.peek(space) } else { self.transport.read(space) } {
                Ok(0) => return Err(ReadEnd::Closed),
                Ok(n) => {
                    *bytes += n;
                    budget = budget.saturating_sub(n);
                    if direct {
                        self.decoder.assembly_filled(n);
                        filled = true;
                    } else {
                        have += n;
                    }
                    // A short read: the socket is empty, and what comes next will be told, but for the end.
                    empty = n < asked && !self.ended;
                    if late {
                        self.peeked = n;
                        if !empty {
                            self.discard(&mut block[have - n..have])?;
                        }
                    }
                }
                Err(e) if late && e.kind() == io::ErrorKind::Unsupported => late = false,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => empty = true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(ReadEnd::Broken(e)),
            }
        }
    }

    /// Hands over what is whole in `input` and says how far that goes. `filled`: what is in assembly has grown
    /// besides.
    #[inline]
    fn decode(&mut self, input: &[u8], mut filled: bool, each: &mut impl FnMut(Came<'_>)) -> Result<usize, WireError> {
        let mut at = 0;
        while at < input.len() || take(&mut filled) {
            if let Some(whole) = self.decoder.whole(&input[at..]) {
                at += whole.consumed;
                each(Came::Reply(whole));
                continue;
            }
            let step = self.decoder.decode(&input[at..])?;
            at += step.consumed;
            let Some(item) = step.item else { break };
            each(Came::Item(item));
        }
        Ok(at)
    }
}
