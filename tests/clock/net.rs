//! Connections as pairs of byte pipes with bounds. A test fills, freezes and cuts them by lane; a dial can
//! stay without an outcome, as one into a network that swallows it. Readiness is an edge, as a poller's.

use std::any::Any;
use std::collections::{BTreeSet, VecDeque};
use std::io::{self, ErrorKind, IoSlice};
use std::sync::{Arc, Mutex};

use afflux::Lane;
use afflux::flow::transport::Transport;

/// A loop of a node: its shards, then its completion thread.
pub type Thread = (usize, usize);

/// What readiness is reported under.
pub type Token = (u32, u32);

#[derive(Debug, Default)]
struct Half {
    node: usize,
    watch: Option<(Thread, Token)>,
    /// Written here, not read by the other side.
    bytes: VecDeque<u8>,
    frozen: bool,
    /// This side ended both directions.
    shut: bool,
    end_told: bool,
    /// The last read found nothing; the last write was refused.
    starved: bool,
    refused: bool,
}

#[derive(Debug, Default)]
struct Wire {
    halves: [Half; 2],
    lane: Option<Lane>,
    established: bool,
}

#[derive(Debug, Default)]
struct State {
    wires: Vec<Wire>,
    /// Those that anybody watches.
    live: Vec<usize>,
    accepts: Vec<VecDeque<usize>>,
    swallowing: BTreeSet<usize>,
    absent: BTreeSet<usize>,
    capacity: usize,
    /// Grows with everything that happens.
    moves: u64,
}

/// All connections of a test.
#[derive(Debug)]
pub struct Net(Mutex<State>);

/// What a poller reports.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    pub wire: usize,
    pub token: Token,
    pub readable: bool,
    pub writable: bool,
}

/// One side of a connection.
#[derive(Debug)]
pub struct End {
    net: Arc<Net>,
    pub wire: usize,
    side: usize,
}

impl Net {
    pub fn new(nodes: usize, capacity: usize) -> Arc<Net> {
        let accepts = (0..nodes).map(|_| VecDeque::new()).collect();
        Arc::new(Net(Mutex::new(State { accepts, capacity, ..State::default() })))
    }

    /// Bytes that a pipe holds, from now on.
    pub fn set_capacity(&self, bytes: usize) {
        self.0.lock().unwrap().capacity = bytes;
    }

    pub fn moves(&self) -> u64 {
        self.0.lock().unwrap().moves
    }

    /// Dials to this node have no outcome.
    pub fn swallow(&self, node: usize) {
        self.0.lock().unwrap().swallowing.insert(node);
    }

    /// Nobody listens at this node, or somebody does again.
    pub fn set_absent(&self, node: usize, absent: bool) {
        let s = &mut *self.0.lock().unwrap();
        if absent {
            s.absent.insert(node)
        } else {
            s.absent.remove(&node)
        };
    }

    /// The dialling side; `Err`: refused.
    pub fn dial(self: &Arc<Self>, thread: Thread, token: Token, to: usize) -> io::Result<Arc<End>> {
        let s = &mut *self.0.lock().unwrap();
        s.moves += 1;
        if s.absent.contains(&to) {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        let established = !s.swallowing.contains(&to);
        let mut wire = Wire { established, ..Wire::default() };
        wire.halves[0].node = thread.0;
        wire.halves[1].node = to;
        wire.halves[0].watch = Some((thread, token));
        wire.halves[0].refused = true;
        let at = s.wires.len();
        s.wires.push(wire);
        s.live.push(at);
        if established {
            s.accepts[to].push_back(at);
        }
        Ok(Arc::new(End { net: self.clone(), wire: at, side: 0 }))
    }

    pub fn is_established(&self, wire: usize) -> bool {
        self.0.lock().unwrap().wires[wire].established
    }

    pub fn accept(self: &Arc<Self>, node: usize) -> Option<Arc<End>> {
        let s = &mut *self.0.lock().unwrap();
        let wire = s.accepts[node].pop_front()?;
        s.moves += 1;
        Some(Arc::new(End { net: self.clone(), wire, side: 1 }))
    }

    pub fn watch(&self, end: &End, thread: Thread, token: Token) {
        let s = &mut *self.0.lock().unwrap();
        if !s.live.contains(&end.wire) {
            s.live.push(end.wire);
        }
        let half = &mut s.wires[end.wire].halves[end.side];
        half.watch = Some((thread, token));
        (half.starved, half.refused, half.end_told) = (true, true, false);
    }

    pub fn unwatch(&self, end: &End, thread: Thread) {
        let half = &mut self.0.lock().unwrap().wires[end.wire].halves[end.side];
        if half.watch.is_some_and(|(watcher, _)| watcher == thread) {
            half.watch = None;
        }
    }

    pub fn set_lane(&self, end: &End, lane: Lane) {
        self.0.lock().unwrap().wires[end.wire].lane = Some(lane);
    }

    /// Nothing of what `from` writes on this lane to `to` arrives, or it does again.
    pub fn freeze(&self, from: usize, to: usize, lane: Lane, frozen: bool) {
        let s = &mut *self.0.lock().unwrap();
        s.moves += 1;
        for wire in s.wires.iter_mut().filter(|wire| wire.lane == Some(lane)) {
            let ends = [wire.halves[0].node, wire.halves[1].node];
            for (half, ends) in wire.halves.iter_mut().zip([[ends[0], ends[1]], [ends[1], ends[0]]]) {
                if ends == [from, to] {
                    half.frozen = frozen;
                }
            }
        }
    }

    /// Ends every connection of this lane between the two, with what is in it.
    pub fn cut(&self, a: usize, b: usize, lane: Lane) {
        let s = &mut *self.0.lock().unwrap();
        s.moves += 1;
        for wire in s.wires.iter_mut().filter(|wire| wire.lane == Some(lane)) {
            let mut ends = [wire.halves[0].node, wire.halves[1].node];
            ends.sort_unstable();
            if ends == [a.min(b), a.max(b)] {
                for half in &mut wire.halves {
                    half.bytes.clear();
                    half.shut = true;
                }
            }
        }
    }

    /// Connections that nobody has ended.
    pub fn open(&self) -> usize {
        let s = self.0.lock().unwrap();
        s.wires.iter().filter(|wire| wire.established && wire.halves.iter().all(|half| !half.shut)).count()
    }

    /// What has become ready for this thread since it was asked last.
    pub fn poll(&self, thread: Thread) -> Vec<Ready> {
        let s = &mut *self.0.lock().unwrap();
        let (capacity, mut found) = (s.capacity, Vec::new());
        s.live.retain(|at| s.wires[*at].halves.iter().any(|half| half.watch.is_some()));
        for &at in &s.live {
            let wire = &mut s.wires[at];
            if !wire.established {
                continue;
            }
            for side in 0..2 {
                let other = &wire.halves[1 - side];
                let (full, gone) = (!other.bytes.is_empty() && !other.frozen, other.shut);
                let half = &mut wire.halves[side];
                let Some((_, token)) = half.watch.filter(|(watcher, _)| *watcher == thread) else { continue };
                let over = (gone || half.shut) && !half.end_told;
                let readable = (half.starved && full) || over;
                let writable = half.refused && half.bytes.len() < capacity;
                half.end_told |= over;
                if readable || writable {
                    half.starved &= !readable;
                    half.refused &= !writable;
                    found.push(Ready { wire: at, token, readable, writable });
                }
            }
        }
        if !found.is_empty() {
            s.moves += 1;
        }
        found
    }
}

impl Transport for End {
    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let s = &mut *self.net.0.lock().unwrap();
        let [mine, other] = s.wires[self.wire].halves.get_disjoint_mut([self.side, 1 - self.side]).unwrap();
        if mine.shut {
            return Ok(0);
        }
        let n = if other.frozen { 0 } else { buf.len().min(other.bytes.len()) };
        if n == 0 {
            mine.starved = true;
            return if other.shut { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        }
        for (to, from) in buf.iter_mut().zip(other.bytes.drain(..n)) {
            *to = from;
        }
        // Less than was asked for means that nothing is left.
        mine.starved |= n < buf.len();
        s.moves += 1;
        Ok(n)
    }

    fn write(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let s = &mut *self.net.0.lock().unwrap();
        let capacity = s.capacity;
        let [mine, other] = s.wires[self.wire].halves.get_disjoint_mut([self.side, 1 - self.side]).unwrap();
        if mine.shut || other.shut {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let room = capacity.saturating_sub(mine.bytes.len());
        let before = mine.bytes.len();
        mine.bytes.extend(bufs.iter().flat_map(|buf| buf.iter().copied()).take(room));
        let n = mine.bytes.len() - before;
        let wanted: usize = bufs.iter().map(|buf| buf.len()).sum();
        mine.refused |= n < wanted;
        if n == 0 && wanted > 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        s.moves += 1;
        Ok(n)
    }

    fn shutdown(&self) {
        let s = &mut *self.net.0.lock().unwrap();
        s.moves += 1;
        s.wires[self.wire].halves[self.side].shut = true;
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
