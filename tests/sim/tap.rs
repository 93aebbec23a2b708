//! Which operations and replies were begun on a connection: read from what is written there. The rules
//! that it serves: an operation of which a byte was taken by one connection is never begun on another,
//! and one that has failed is never begun at all; a reply goes over the link on which its request came.

use std::io::IoSlice;

/// How far behind the first byte of a frame its operation is known: head, header, method, number.
const AHEAD: usize = 9 + HEADER + METHOD + 4;
const HEADER: usize = 24;
/// The longest method that the workload uses.
const METHOD: usize = 8;
const GREETING: u64 = 64;

/// What was begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begun {
    Operation(u32),
    Reply(u32),
}

/// The writing side of one end.
#[derive(Default)]
pub struct Tap {
    /// Bytes of the greeting or of a frame's body that are still to come.
    skip: u64,
    greeted: bool,
    /// The beginning of a frame, while its operation is not known.
    head: Vec<u8>,
}

impl Tap {
    /// The transport took `taken` bytes of `bufs`. Adds the operations that were begun with them.
    pub fn on_taken(&mut self, bufs: &[IoSlice<'_>], taken: usize, begun: &mut Vec<Begun>) {
        let mut seen = Vec::with_capacity(taken + AHEAD);
        for buf in bufs {
            let room = taken + AHEAD - seen.len();
            seen.extend_from_slice(&buf[..buf.len().min(room)]);
        }
        if !self.greeted {
            (self.greeted, self.skip) = (true, GREETING);
        }
        let mut at = 0;
        while at < taken {
            let step = self.skip.min((taken - at) as u64);
            self.skip -= step;
            at += step as usize;
            if at == taken {
                break;
            }
            // What lies ahead in the same write belongs to the same frame.
            let known = self.head.len();
            self.head.extend_from_slice(&seen[at..seen.len().min(at + AHEAD - known)]);
            match look(&self.head) {
                Some((len, one)) => {
                    begun.extend(one);
                    // The part of the frame that was taken before this write is in `known`.
                    self.skip = len - known as u64;
                    self.head.clear();
                }
                None => {
                    // A frame whose operation is not known yet: all of it is here that there is.
                    self.head.truncate(known + taken - at);
                    break;
                }
            }
        }
    }
}

/// The length of the frame that begins here, and what it is if it is a record with a number.
fn look(head: &[u8]) -> Option<(u64, Option<Begun>)> {
    let flags = *head.first()?;
    let (size, len) = match flags & 2 {
        0 => (2, u64::from(*head.get(1)?)),
        _ => (9, u64::from_be_bytes(head.get(1..9)?.try_into().unwrap())),
    };
    if flags & 4 != 0 || len < HEADER as u64 {
        return Some((size as u64 + len, None));
    }
    let header = head.get(size..size + HEADER)?;
    let number = |at: usize| head.get(at..at + 4).map(|n| u32::from_le_bytes(n.try_into().unwrap()));
    let at = size + HEADER + usize::from(header[2]);
    let begun = match header[0] {
        1 | 2 => Some(Begun::Operation(number(at)?)),
        3 => Some(Begun::Reply(number(at)?)),
        _ => None,
    };
    Some((size as u64 + len, begun))
}
