//! Time, chance and what happens next. One thread, one agenda: the earliest entry runs, entries of
//! the same instant run in the order they were made. Nothing else decides an order, so a seed is a run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use afflux::base::time::{Clock, Instant};

/// A clock that stands still until the world moves it.
#[derive(Debug, Default)]
pub struct VirtualClock(AtomicU64);

impl VirtualClock {
    pub fn set(&self, now: u64) {
        self.0.store(now, Ordering::Relaxed);
    }

    pub fn ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        Instant(self.ns())
    }
}

/// One thread of a host: a shard, or its completion thread, which comes after the shards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Thread {
    pub node: usize,
    /// How often the host was started before.
    pub life: u32,
    pub at: usize,
}

/// What is on the agenda.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// A thread goes on, unless it was rescheduled since.
    Run(Thread, u64),
    /// Bytes or the end of the stream arrive at the other side of this end.
    Deliver(usize),
    /// The writer at this end learns that its reader took so many bytes.
    Acknowledge(usize, usize),
    /// This end learns that the other side will not talk to it any more.
    Reset(usize),
    /// A dial of this end comes out.
    Connected(usize, bool),
    /// A connection arrives at the listener of a node.
    Arrive(usize, usize),
    /// A caller makes its next operation.
    Call(usize),
    /// The user of an operation does what he planned: cancel it, or drop it.
    GiveUp(usize),
    /// A caller that leads a lane goes on.
    Lead(usize),
    /// A caller looks at last what became of an operation.
    Take(usize),
    /// A responder that was kept answers, from a thread of its own.
    Answer(usize),
    /// A handler's future that sleeps goes on.
    Alarm(usize),
    /// The next fault.
    Fault,
    /// A host that was killed or shut down starts anew.
    Restart(usize),
    /// A host that drains is looked at.
    Drain(usize),
    /// Look whether everything is over.
    Look,
}

#[derive(Default)]
struct Entries {
    heap: BinaryHeap<Reverse<(u64, u64, Numbered)>>,
    made: u64,
}

/// Compared by nothing: time and number decide.
#[derive(Clone, Copy)]
struct Numbered(Event);

impl PartialEq for Numbered {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Numbered {}

impl PartialOrd for Numbered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Numbered {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

/// Everything that will happen. Handlers and connections add to it from within the engines.
#[derive(Clone, Default)]
pub struct Agenda(Arc<Mutex<Entries>>);

impl Agenda {
    pub fn add(&self, at: u64, event: Event) {
        let entries = &mut *self.0.lock().unwrap();
        entries.made += 1;
        entries.heap.push(Reverse((at, entries.made, Numbered(event))));
    }

    pub fn next(&self) -> Option<(u64, Event)> {
        let Reverse((at, _, Numbered(event))) = self.0.lock().unwrap().heap.pop()?;
        Some((at, event))
    }
}

/// What has happened, in one number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trace(u64);

impl Default for Trace {
    fn default() -> Self {
        Trace(0xCBF2_9CE4_8422_2325)
    }
}

impl Trace {
    pub fn note(&mut self, words: &[u64]) {
        for word in words {
            self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
        }
    }
}

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
