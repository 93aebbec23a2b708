//! Connections as pairs of byte pipes. What they have of TCP is what the engines may rely on:
//!
//! * a bounded number of bytes between writer and reader; a full pipe refuses, a nearly full one takes a part;
//! * a read gives what is there; less than was asked for means that the pipe is empty;
//! * readiness is an edge: when bytes or the end arrive, when room appears after a refusal, when a
//!   connection is registered that is ready already. What an edge reports is the state when it is looked at;
//! * a shutdown reaches the other side behind the bytes, as an end or as a reset that overtakes them;
//!   one direction may be finished alone, and the other is read on;
//! * a host that dies takes its connections along: the others hear of it, or hear nothing any more.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{self, ErrorKind, IoSlice};
use std::sync::{Arc, Mutex};

use afflux::base::rng::Rng;
use afflux::flow::transport::Transport;

use super::agenda::{Agenda, Event, Thread, VirtualClock};
use super::tap::{Begun, Tap};

/// Which lane a connection became.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaneOf {
    Unknown,
    Application,
    Completion,
}

#[derive(Default)]
struct Pipe {
    /// `None`: the end of the stream.
    flight: VecDeque<(u64, Option<Vec<u8>>)>,
    arrived: VecDeque<u8>,
    /// Bytes that the writer does not know to be taken.
    used: usize,
    starved: bool,
    ended: bool,
    frozen_until: u64,
    /// The connection is torn: what is written into it from now on is lost.
    torn: bool,
    last_at: u64,
}

#[derive(Default)]
struct End {
    /// The node whose end it is.
    node: usize,
    watchers: Vec<(Thread, (u32, u32))>,
    shut: bool,
    /// Nothing more is written here; it is still read.
    finished: bool,
    /// Its host died without a word: it does not even say that nobody reads.
    silent: bool,
    reset: bool,
    established: bool,
    refused: bool,
    /// Its keeper is not told when there is something to read.
    quiet: bool,
    tap: Tap,
}

pub struct Shape {
    /// Bytes that a pipe holds.
    pub capacity: usize,
    pub latency_min: u64,
    pub latency_max: u64,
}

struct State {
    rng: Rng,
    shape: Shape,
    pipes: Vec<Pipe>,
    ends: Vec<End>,
    lanes: Vec<LaneOf>,
    ready: BTreeMap<Thread, Vec<usize>>,
    stirred: Vec<Thread>,
    accepts: Vec<VecDeque<usize>>,
    refusing_until: u64,
    /// Hosts that are there.
    present: Vec<bool>,
    /// What was begun on a connection, for the book.
    begun: Vec<(usize, Begun)>,
}

/// All connections of a world.
pub struct Net {
    clock: Arc<VirtualClock>,
    agenda: Agenda,
    state: Mutex<State>,
}

/// What a poller reports about one connection.
pub struct Readiness {
    pub end: usize,
    pub token: (u32, u32),
    pub readable: bool,
    pub writable: bool,
}

/// One end of a connection, as an engine holds it.
pub struct SimTransport {
    net: Arc<Net>,
    pub end: usize,
}

impl State {
    fn latency(&mut self) -> u64 {
        self.shape.latency_min + self.rng.below(self.shape.latency_max - self.shape.latency_min + 1)
    }

    fn edge(&mut self, end: usize) {
        for (thread, _) in &self.ends[end].watchers {
            let ready = self.ready.entry(*thread).or_default();
            if !ready.contains(&end) {
                ready.push(end);
            }
            self.stirred.push(*thread);
        }
    }

    /// Copies what has arrived at `own`; none of it: the end of the stream.
    fn look(&self, own: usize, buf: &mut [u8]) -> io::Result<usize> {
        if self.ends[own].shut {
            return Ok(0);
        }
        if self.ends[own].reset {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let pipe = &self.pipes[own ^ 1];
        if pipe.arrived.is_empty() {
            return if pipe.ended { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        }
        let n = buf.len().min(pipe.arrived.len());
        let (front, back) = pipe.arrived.as_slices();
        let first = n.min(front.len());
        buf[..first].copy_from_slice(&front[..first]);
        buf[first..n].copy_from_slice(&back[..n - first]);
        Ok(n)
    }

    fn readable(&self, end: usize) -> bool {
        let (e, p) = (&self.ends[end], &self.pipes[end ^ 1]);
        !p.arrived.is_empty() || p.ended || e.reset || e.shut || e.refused
    }

    fn writable(&self, end: usize) -> bool {
        let e = &self.ends[end];
        e.established && (self.pipes[end].used < self.shape.capacity || e.reset || e.shut) || e.refused
    }
}

impl Net {
    pub fn new(clock: Arc<VirtualClock>, agenda: Agenda, seed: u64, shape: Shape, nodes: usize) -> Arc<Net> {
        let state = State {
            rng: Rng::new(seed),
            shape,
            pipes: Vec::new(),
            ends: Vec::new(),
            lanes: Vec::new(),
            ready: BTreeMap::new(),
            stirred: Vec::new(),
            accepts: (0..nodes).map(|_| VecDeque::new()).collect(),
            refusing_until: 0,
            present: vec![true; nodes],
            begun: Vec::new(),
        };
        Arc::new(Net { clock, agenda, state: Mutex::new(state) })
    }

    /// Starts a connection to the listener of node `to`, watched by `thread` from the start.
    pub fn dial(self: &Arc<Self>, thread: Thread, token: (u32, u32), to: usize) -> Arc<SimTransport> {
        let s = &mut *self.state.lock().unwrap();
        let refused = s.refusing_until > self.clock.ns() || !s.present[to];
        let end = s.ends.len();
        for _ in 0..2 {
            s.ends.push(End::default());
            s.pipes.push(Pipe::default());
        }
        s.lanes.push(LaneOf::Unknown);
        s.ends[end].watchers.push((thread, token));
        (s.ends[end].node, s.ends[end + 1].node) = (thread.node, to);
        s.ends[end + 1].established = true;
        let (there, back) = (s.latency(), s.latency());
        let now = self.clock.ns();
        self.agenda.add(now + there + back, Event::Connected(end, !refused));
        if !refused {
            self.agenda.add(now + there, Event::Arrive(to, end + 1));
        }
        Arc::new(SimTransport { net: self.clone(), end })
    }

    pub fn on_connected(&self, end: usize, well: bool) {
        let s = &mut *self.state.lock().unwrap();
        s.ends[end].established = well;
        s.ends[end].refused = !well;
        s.edge(end);
    }

    /// How a dial has come out, if it has.
    pub fn outcome(&self, end: usize) -> Option<bool> {
        let s = self.state.lock().unwrap();
        let e = &s.ends[end];
        (e.established || e.refused).then_some(e.established)
    }

    pub fn on_arrive(&self, node: usize, thread: Thread, end: usize) {
        let s = &mut *self.state.lock().unwrap();
        if !s.present[node] {
            s.ends[end].shut = true;
            let at = self.clock.ns() + s.latency();
            return self.agenda.add(at, Event::Reset(end ^ 1));
        }
        s.accepts[node].push_back(end);
        s.stirred.push(thread);
    }

    pub fn has_accepts(&self, node: usize) -> bool {
        !self.state.lock().unwrap().accepts[node].is_empty()
    }

    pub fn accept(self: &Arc<Self>, node: usize) -> Option<Arc<SimTransport>> {
        let end = self.state.lock().unwrap().accepts[node].pop_front()?;
        Some(Arc::new(SimTransport { net: self.clone(), end }))
    }

    pub fn watch(&self, end: usize, thread: Thread, token: (u32, u32)) {
        let s = &mut *self.state.lock().unwrap();
        s.ends[end].watchers.retain(|(t, _)| *t != thread);
        s.ends[end].watchers.push((thread, token));
        if s.readable(end) || s.writable(end) {
            let ready = s.ready.entry(thread).or_default();
            if !ready.contains(&end) {
                ready.push(end);
            }
            s.stirred.push(thread);
        }
    }

    pub fn unwatch(&self, end: usize, thread: Thread) {
        let s = &mut *self.state.lock().unwrap();
        s.ends[end].watchers.retain(|(t, _)| *t != thread);
        if let Some(ready) = s.ready.get_mut(&thread) {
            ready.retain(|e| *e != end);
        }
    }

    /// Turns telling of what is to be read on or off, as a poller's registration does.
    fn set_quiet(&self, end: usize, quiet: bool) {
        let s = &mut *self.state.lock().unwrap();
        s.ends[end].quiet = quiet;
        if !quiet && s.readable(end) {
            s.edge(end);
        }
    }

    /// What a poll of this thread returns now, without waiting.
    pub fn poll(&self, thread: Thread) -> Vec<Readiness> {
        let s = &mut *self.state.lock().unwrap();
        let ready = s.ready.get_mut(&thread).map(std::mem::take).unwrap_or_default();
        ready
            .into_iter()
            .filter_map(|end| {
                let token = s.ends[end].watchers.iter().find(|(t, _)| *t == thread)?.1;
                let (readable, writable) = (s.readable(end) && !s.ends[end].quiet, s.writable(end));
                (readable || writable).then_some(Readiness { end, token, readable, writable })
            })
            .collect()
    }

    pub fn has_ready(&self, thread: Thread) -> bool {
        self.state.lock().unwrap().ready.get(&thread).is_some_and(|r| !r.is_empty())
    }

    /// Threads whose pollers have something new.
    pub fn take_stirred(&self) -> Vec<Thread> {
        std::mem::take(&mut self.state.lock().unwrap().stirred)
    }

    pub fn on_deliver(&self, from: usize) {
        let s = &mut *self.state.lock().unwrap();
        let now = self.clock.ns();
        if s.pipes[from].frozen_until > now {
            self.agenda.add(s.pipes[from].frozen_until, Event::Deliver(from));
            return;
        }
        let to = from ^ 1;
        let mut any = false;
        while s.pipes[from].flight.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, part)) = s.pipes[from].flight.pop_front() else { break };
            match part {
                _ if s.ends[to].reset => {}
                Some(_) if s.ends[to].silent => {}
                Some(bytes) if s.ends[to].shut => {
                    // Nobody reads there any more, and the kernel says so.
                    s.pipes[from].used -= bytes.len();
                    let at = now + s.latency();
                    self.agenda.add(at, Event::Reset(from));
                }
                Some(bytes) => s.pipes[from].arrived.extend(bytes),
                None => s.pipes[from].ended = true,
            }
            any = true;
        }
        if any {
            s.edge(to);
        }
    }

    pub fn on_acknowledge(&self, writer: usize, bytes: usize) {
        let s = &mut *self.state.lock().unwrap();
        let capacity = s.shape.capacity;
        let pipe = &mut s.pipes[writer];
        pipe.used = pipe.used.saturating_sub(bytes);
        // As Linux does: room is told when a third of the buffer is free.
        if pipe.starved && pipe.used <= capacity - capacity.div_ceil(3) {
            pipe.starved = false;
            s.edge(writer);
        }
    }

    pub fn on_reset(&self, end: usize) {
        let s = &mut *self.state.lock().unwrap();
        if !s.ends[end].reset {
            s.ends[end].reset = true;
            s.pipes[end ^ 1].arrived.clear();
            s.edge(end);
        }
    }

    pub fn set_lane(&self, end: usize, lane: LaneOf) {
        self.state.lock().unwrap().lanes[end / 2] = lane;
    }

    /// Connections that live now, with their lanes.
    pub fn living(&self) -> Vec<(usize, LaneOf)> {
        let s = self.state.lock().unwrap();
        (0..s.lanes.len())
            .filter(|c| {
                [2 * c, 2 * c + 1]
                    .iter()
                    .all(|e| !s.ends[*e].shut && !s.ends[*e].finished && !s.ends[*e].reset && !s.ends[*e].refused)
            })
            .map(|c| (c, s.lanes[c]))
            .collect()
    }

    /// Both ends find out soon, whatever is under way is lost.
    pub fn cut(&self, connection: usize) {
        let s = &mut *self.state.lock().unwrap();
        let now = self.clock.ns();
        for end in [2 * connection, 2 * connection + 1] {
            s.pipes[end].flight.clear();
            s.pipes[end].torn = true;
            let at = now + s.latency();
            self.agenda.add(at, Event::Reset(end));
        }
    }

    /// Nothing of what `end` writes arrives, nor does it hear what its reader took, until then.
    pub fn freeze(&self, end: usize, until: u64) {
        let s = &mut *self.state.lock().unwrap();
        s.pipes[end].frozen_until = s.pipes[end].frozen_until.max(until);
    }

    /// What was begun on a connection since the last time.
    pub fn take_begun(&self) -> Vec<(usize, Begun)> {
        std::mem::take(&mut self.state.lock().unwrap().begun)
    }

    /// A host is gone, with all ends that its threads watch. `told`: the other sides hear of it.
    pub fn on_death(&self, node: usize, told: bool) {
        let s = &mut *self.state.lock().unwrap();
        s.present[node] = false;
        s.ready.retain(|thread, _| thread.node != node);
        s.stirred.retain(|thread| thread.node != node);
        s.accepts[node].clear();
        // One that has not arrived yet is refused when it does.
        let gone: Vec<usize> = (0..s.ends.len()).filter(|end| s.ends[*end].node == node).collect();
        gone.iter().for_each(|end| s.ends[*end].watchers.clear());
        for end in gone {
            if told {
                self.close(s, end, true);
            } else {
                // No byte of it arrives any more, and nobody says why.
                s.ends[end].shut = true;
                s.ends[end].silent = true;
                s.pipes[end].flight.clear();
            }
        }
    }

    /// The host is there again.
    pub fn on_birth(&self, node: usize) {
        self.state.lock().unwrap().present[node] = true;
    }

    /// Dials are refused until then.
    pub fn refuse(&self, until: u64) {
        self.state.lock().unwrap().refusing_until = until;
    }

    /// No freeze lasts longer than now.
    pub fn heal(&self) {
        let s = &mut *self.state.lock().unwrap();
        let now = self.clock.ns();
        s.refusing_until = 0;
        for end in 0..s.pipes.len() {
            let latency = s.latency();
            let pipe = &mut s.pipes[end];
            if pipe.frozen_until > now {
                pipe.frozen_until = now;
                for (at, _) in &mut pipe.flight {
                    *at = (*at).min(now + latency);
                }
                pipe.last_at = now + latency;
                self.agenda.add(now + latency, Event::Deliver(end));
            }
        }
    }

    /// What is under way on connections that live.
    pub fn under_way(&self) -> Vec<String> {
        let s = self.state.lock().unwrap();
        let mut left = Vec::new();
        for (end, p) in s.pipes.iter().enumerate() {
            let reader = &s.ends[end ^ 1];
            let nothing = p.flight.is_empty() && p.arrived.is_empty();
            if !(reader.shut || reader.reset || nothing) {
                let (lane, by) = (s.lanes[end / 2], &reader.watchers);
                let (unread, flight) = (p.arrived.len(), p.flight.len());
                left.push(format!(
                    "{lane:?} lane, end {end}: {unread} bytes unread by {by:?}, {flight} parts in flight"
                ));
            }
        }
        left
    }

    fn close(&self, s: &mut State, end: usize, dropped: bool) {
        if s.ends[end].shut || s.ends[end].reset && dropped {
            return;
        }
        s.ends[end].shut = true;
        s.edge(end);
        let unread = !s.pipes[end ^ 1].arrived.is_empty();
        let latency = s.latency();
        let now = self.clock.ns();
        if (dropped && unread) || s.rng.below(3) == 0 {
            s.pipes[end].flight.clear();
            self.agenda.add(now + latency, Event::Reset(end ^ 1));
        } else if !s.ends[end].finished {
            self.end_stream(s, end, latency);
        }
    }

    /// The end of what `end` writes, behind what it has written.
    fn end_stream(&self, s: &mut State, end: usize, latency: u64) {
        let pipe = &mut s.pipes[end];
        if pipe.torn {
            return;
        }
        let at = (self.clock.ns() + latency).max(pipe.last_at).max(pipe.frozen_until);
        pipe.last_at = at;
        pipe.flight.push_back((at, None));
        self.agenda.add(at, Event::Deliver(end));
    }
}

impl fmt::Debug for SimTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "end {}", self.end)
    }
}

impl Transport for SimTransport {
    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let s = &mut *self.net.state.lock().unwrap();
        let (own, other) = (self.end, self.end ^ 1);
        let n = s.look(own, buf)?;
        s.pipes[other].arrived.drain(..n);
        if n > 0 {
            let at = (self.net.clock.ns() + s.latency()).max(s.pipes[own].frozen_until);
            self.net.agenda.add(at, Event::Acknowledge(other, n));
        }
        Ok(n)
    }

    fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.net.state.lock().unwrap().look(self.end, buf)
    }

    fn watch(&self, on: bool) {
        self.net.set_quiet(self.end, !on);
    }

    fn write(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let s = &mut *self.net.state.lock().unwrap();
        let end = self.end;
        let e = &s.ends[end];
        if e.shut || e.finished || e.reset {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let asked: usize = bufs.iter().map(|b| b.len()).sum();
        let free = s.shape.capacity - s.pipes[end].used;
        if free == 0 || !s.ends[end].established {
            s.pipes[end].starved = true;
            return Err(ErrorKind::WouldBlock.into());
        }
        let mut n = asked.min(free);
        if n > 1 && s.rng.below(4) == 0 {
            n = 1 + s.rng.below(n as u64) as usize;
        }
        let mut bytes = Vec::with_capacity(n);
        for buf in bufs {
            let rest = n - bytes.len();
            bytes.extend_from_slice(&buf[..buf.len().min(rest)]);
        }
        let mut begun = Vec::new();
        s.ends[end].tap.on_taken(bufs, n, &mut begun);
        s.begun.extend(begun.into_iter().map(|one| (end / 2, one)));
        let at = self.net.clock.ns() + s.latency();
        let pipe = &mut s.pipes[end];
        let at = at.max(pipe.last_at).max(pipe.frozen_until);
        pipe.last_at = at;
        pipe.used += n;
        if !pipe.torn {
            pipe.flight.push_back((at, Some(bytes)));
            self.net.agenda.add(at, Event::Deliver(end));
        }
        Ok(n)
    }

    fn shutdown(&self) {
        self.net.close(&mut self.net.state.lock().unwrap(), self.end, false);
    }

    fn finish(&self) {
        let s = &mut *self.net.state.lock().unwrap();
        let e = &mut s.ends[self.end];
        if !(e.shut || e.reset || std::mem::replace(&mut e.finished, true)) {
            let latency = s.latency();
            self.net.end_stream(s, self.end, latency);
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SimTransport {
    fn drop(&mut self) {
        self.net.close(&mut self.net.state.lock().unwrap(), self.end, true);
    }
}
