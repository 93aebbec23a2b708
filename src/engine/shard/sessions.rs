//! The end clients of a shard: their connections, read and ended here, and nowhere else. What they send
//! lies in an origin as everybody's does and waits for a permit as everybody's does; what they are sent
//! goes through the same outbox and writer.
//!
//! A session is in one of these places: `opening` until its first callback, then only in the table; in
//! `ending` from the moment it closes or is over until its last callback. Both lists are bounded by the
//! sockets' limits of sessions.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;

use super::{Link, LinkKey, OriginKey, ShardAction, ShardEngine, Used, room_to_read};
use crate::base::error::{Detail, ErrorKind};
use crate::base::record::{Kind, Record};
use crate::base::time::Instant;
use crate::base::unit::charge;
use crate::engine::lanes;
use crate::engine::seat::SeatFactory;
use crate::engine::stream::{NewSession, SessionShared};
use crate::flow::backlog::{ChunkPool, Head, INLINE_PAYLOAD_MAX};
use crate::flow::ingress::Reason;
use crate::flow::origin::Admit;
use crate::flow::session::{Left, SessionEnd, SessionLife, SessionTimes};
use crate::flow::transport::Transport;
use crate::wire::error::WireError;
use crate::wire::stream::FrameDecoder;

/// The end clients of a shard.
pub(super) struct Sessions {
    /// The seat of each socket.
    seats: Vec<u16>,
    opening: VecDeque<u32>,
    ending: Vec<u32>,
    /// A client took what its next frames waited for.
    again: bool,
    /// No session has a time that is up before this.
    due: Instant,
}

impl Sessions {
    pub(super) fn new() -> Self {
        Sessions { seats: Vec::new(), opening: VecDeque::new(), ending: Vec::new(), again: false, due: Instant::NEVER }
    }
}

/// One end client's side of a link.
pub(super) struct Client {
    shared: Arc<SessionShared>,
    /// Until the session is over.
    transport: Option<Arc<dyn Transport>>,
    decoder: FrameDecoder,
    /// Frames read and not decoded, because they may not be admitted yet.
    carry: Vec<u8>,
    readable: bool,
    /// What is there now is followed by the stream's end.
    ended: bool,
    opened: bool,
    /// In the list of those that end.
    listed: bool,
    /// A write has failed.
    broken: bool,
    /// Our end was told.
    parted: bool,
    life: SessionLife,
    seat: u16,
    /// What of its target's counts is in its socket's.
    counted: (u64, u64),
}

impl Client {
    pub(super) fn is_reading(&self) -> bool {
        self.life.is_reading() && self.opened
    }

    /// Throws away what comes after our end was told, until the client's. True if there may be more now.
    fn discard(&mut self, block: &mut [u8], mut budget: usize) -> bool {
        let Some(transport) = &self.transport else { return false };
        while budget > 0 {
            match transport.read(block) {
                Ok(0) => {
                    self.life.on_end(false);
                    return false;
                }
                Ok(n) => budget = budget.saturating_sub(n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.readable = false;
                    return false;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.life.lose(SessionEnd::Broken);
                    return false;
                }
            }
        }
        true
    }
}

impl ShardEngine {
    /// With the seats of the host's stream sockets, in the order of the plan.
    pub fn with_streams(mut self, streams: &[SeatFactory]) -> Self {
        for make in streams {
            let seat = self.seats.len() as u16;
            self.seats.push(make(self.core.shard.index(), seat));
            self.sessions.seats.push(seat);
        }
        self
    }

    // ---- beginning

    /// An end client is this shard's from now on.
    pub(super) fn admit_client(&mut self, new: NewSession) {
        let NewSession { session, transport } = new;
        let Some(seat) = self.sessions.seats.get(usize::from(session.socket.index)).copied() else {
            debug_assert!(false, "every stream socket has a seat");
            return transport.shutdown();
        };
        let target = session.target.clone();
        let index = self.adopt(target.clone());
        let plan = self.core.shared().plan.clone();
        let (now, socket) = (self.core.now, &session.socket.plan);
        let times = SessionTimes { idle: socket.idle, assembly: plan.assembly_timeout, linger: plan.assembly_timeout };
        if let Some(mut writer) = target.application.try_take() {
            (writer.transport, writer.link, writer.stream) = (Some(transport.clone()), target.link.get(), true);
            lanes::let_go(self.core.shared(), &target, writer);
        }
        let Some(link) = self.link(index) else { return };
        link.origin.set_mark(socket.receive_mark);
        let key = LinkKey { index, generation: link.generation };
        link.client = Some(Box::new(Client {
            decoder: FrameDecoder::new(socket.max_frame),
            transport: Some(transport.clone()),
            carry: Vec::new(),
            readable: true,
            ended: false,
            opened: false,
            listed: false,
            broken: false,
            parted: false,
            life: SessionLife::new(times, now),
            seat,
            counted: (0, 0),
            shared: session,
        }));
        self.actions.push_back(ShardAction::Watch { link: key, transport });
        self.sessions.opening.push_back(index);
    }

    /// What is due for end clients: first callbacks and times. True if there is more to do now.
    pub(super) fn serve_sessions(&mut self) -> bool {
        while self.core.may_start()
            && let Some(index) = self.sessions.opening.pop_front()
        {
            self.open_session(index);
        }
        if self.core.now >= self.sessions.due {
            self.sessions.due = Instant::NEVER;
            for index in 0..self.links.len() as u32 {
                self.look_at_session(index);
            }
        }
        !self.sessions.opening.is_empty() && self.core.may_start()
    }

    /// Sessions that are about to end, after everything that this turn did for them: what else they wait for
    /// wakes the shard. True if there is more to do now.
    pub(super) fn end_sessions(&mut self) -> bool {
        if self.sessions.ending.is_empty() {
            return std::mem::take(&mut self.sessions.again);
        }
        for index in std::mem::take(&mut self.sessions.ending) {
            if let Some(client) = self.client(index) {
                client.listed = false;
                self.look_at_session(index);
            }
        }
        std::mem::take(&mut self.sessions.again)
    }

    /// When sessions are to be looked at again, at the latest.
    pub(super) fn sessions_due(&self) -> Instant {
        self.sessions.due
    }

    fn open_session(&mut self, index: u32) {
        let Some(link) = self.link(index) else { return };
        let peer = link.peer.clone();
        let Some(client) = &mut link.client else { return };
        client.opened = true;
        let (seat, shared) = (client.seat, client.shared.clone());
        shared.socket.opened.add(1);
        let made = self.seats[usize::from(seat)].open(&mut self.core, shared, peer);
        let Some(client) = self.client(index) else { return };
        if !made {
            client.life.lose(SessionEnd::Panicked);
        }
        self.readable.push_back(index);
        self.look_at_session(index);
    }

    // ---- reading

    /// The poller saw the peer's end of a connection, or an error on it. No other event will follow, so it is read
    /// to that end, however short the reads before it are.
    pub fn handle_end(&mut self, key: LinkKey) {
        if let Some(link) = self.link(key.index)
            && link.generation == key.generation
            && let Some(conn) = &mut link.conn
        {
            conn.ended = !cfg!(afflux_mutation = "peer_end_unread");
        }
        if let Some(link) = self.link(key.index)
            && link.generation == key.generation
            && let Some(client) = &mut link.client
        {
            client.ended = !cfg!(afflux_mutation = "client_end_unread");
            if client.life.is_closing()
                && let Some(transport) = &client.transport
                && let Err(e) = transport.read(&mut [0])
                && e.kind() != io::ErrorKind::WouldBlock
            {
                client.broken = true;
                return self.list(key.index);
            }
            self.client_readable(key.index);
        }
    }

    /// The poller saw something to read on an end client's connection.
    pub(super) fn client_readable(&mut self, index: u32) {
        if let Some(client) = self.client(index)
            && !client.readable
        {
            client.readable = true;
            if client.is_reading() || client.life.is_parting() {
                self.readable.push_back(index);
            }
        }
    }

    /// Reads and decodes one end client within its budget. True if it goes on in the next turn.
    pub(super) fn read_client(&mut self, index: u32) -> bool {
        let mut block = std::mem::take(&mut self.block);
        let (mut offered, mut bytes) = (0, 0);
        let more = self.read_client_into(index, &mut block, &mut offered, &mut bytes);
        self.block = block;
        if let Some(client) = self.client(index) {
            let socket = &client.shared.socket;
            socket.frames_in.add(u64::from(offered));
            socket.bytes_in.add(bytes);
        }
        // Whatever ended the reading: what came before it is whole, and is claimed.
        self.note_offered(index, offered);
        self.look_at_session(index);
        more
    }

    fn read_client_into(&mut self, index: u32, block: &mut [u8], offered: &mut u32, bytes: &mut u64) -> bool {
        let plan = self.core.shared().plan.clone();
        let now = self.core.now;
        let Some(link) = self.links.get_mut(index as usize).and_then(Option::as_deref_mut) else { return false };
        let mut budget = plan.turn.read_bytes_per_link;
        // What is left from before comes first.
        let mut have = 0;
        if let Some(client) = &mut link.client {
            if client.life.is_parting() {
                return client.discard(block, budget);
            }
            if !client.is_reading() {
                return false;
            }
            have = client.carry.len();
            block[..have].copy_from_slice(&client.carry);
            client.carry = Vec::new();
        }
        loop {
            let decoded = decode(&mut self.chunks, link, &block[..have], now, offered);
            let Some(client) = &mut link.client else { return false };
            let used = match decoded {
                Ok(used) => used,
                Err(_) => {
                    client.life.lose(SessionEnd::Oversize);
                    return false;
                }
            };
            block.copy_within(used.consumed..have, 0);
            have -= used.consumed;
            if used.parked || budget == 0 || !client.readable {
                client.carry.extend_from_slice(&block[..have]);
                if used.parked {
                    client.life.on_parked();
                } else {
                    client.life.on_waiting(client.decoder.is_within(), now);
                }
                return !used.parked && client.readable;
            }
            let Some(transport) = &client.transport else { return false };
            let space = if have == 0 { client.decoder.space(budget) } else { None };
            let in_place = space.is_some();
            let space = space.unwrap_or_else(|| {
                let room = room_to_read(&link.origin, plan.turn.read_min).min(block.len() - have);
                &mut block[have..have + room]
            });
            let asked = space.len();
            match transport.read(space) {
                Ok(0) => {
                    let within = client.decoder.is_within();
                    client.life.on_end(within);
                    return false;
                }
                Ok(n) => {
                    if in_place {
                        client.decoder.filled(n);
                    } else {
                        have += n;
                    }
                    *bytes += n as u64;
                    budget = budget.saturating_sub(n);
                    client.life.on_read(now);
                    // A short read: the socket is empty, and what comes next will be told.
                    client.readable = n == asked || client.ended;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => client.readable = false,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    client.life.lose(SessionEnd::Broken);
                    return false;
                }
            }
        }
    }

    // ---- writing

    /// A flush of this link is over. `moved`: bytes went; `broken`: the connection takes nothing any more.
    pub(super) fn client_flushed(&mut self, index: u32, moved: bool, broken: bool) {
        let now = self.core.now;
        let Some(link) = self.link(index) else { return };
        let (frames, charges) = (link.target.written.get(), link.target.written_charge.get());
        let Some(client) = &mut link.client else { return };
        let (more, bytes) = (frames - client.counted.0, charges - client.counted.1);
        if more > 0 {
            client.counted = (frames, charges);
            client.shared.socket.frames_out.add(more);
            client.shared.socket.bytes_out.add(bytes - more * charge(0, 0));
        }
        if moved {
            client.life.on_written(now);
        }
        client.broken |= broken;
        let ends = client.broken || client.life.is_closing();
        // Its frames may be claimed again, if room was what they waited for.
        self.sessions.again |= more > 0 && link.held.is_some();
        if ends {
            self.list(index);
        }
    }

    // ---- ending

    fn client(&mut self, index: u32) -> Option<&mut Client> {
        self.link(index)?.client.as_deref_mut()
    }

    /// Has it looked at once a turn until it is gone.
    fn list(&mut self, index: u32) {
        if let Some(client) = self.client(index)
            && !std::mem::replace(&mut client.listed, true)
        {
            self.sessions.ending.push(index);
        }
    }

    /// Whether anything has to end now; to be asked whenever something may have changed.
    pub(super) fn look_at_session(&mut self, index: u32) {
        let now = self.core.now;
        let Some(link) = self.link(index) else { return };
        let Some(client) = &mut link.client else { return };
        if client.broken {
            client.life.lose(SessionEnd::Broken);
        }
        if client.shared.panicked.is_raised() {
            client.life.lose(SessionEnd::Panicked);
        }
        if client.shared.close.is_raised() {
            client.life.close(SessionEnd::Closed);
        }
        if !client.opened && client.life.over().is_none() {
            return;
        }
        // A job and a continuation each hold the peer. Frames that wait for the client to take its answers wait
        // for nobody here.
        let work = !link.origin.is_empty() || Rc::strong_count(&link.peer) > 1;
        let ours = work && link.held != Some(Reason::ReplyMark);
        let open = client.life.is_reading();
        let mark = &link.target.mark;
        // Rights first: who answers is admitted, and gives his right back then.
        let rights = if open { client.shared.rights() } else { client.shared.rights_while_closing() };
        let rights = if cfg!(afflux_mutation = "client_unanswered") { 0 } else { rights };
        let left = if ours || (open && rights > 0) {
            Left::Work
        } else if work || rights > 0 || mark.bytes() > 0 || mark.waiters() > 0 {
            Left::Bytes
        } else {
            Left::Nothing
        };
        client.life.poll(left, now);
        if client.life.is_parting()
            && !client.parted
            && let Some(transport) = &client.transport
        {
            transport.finish();
            (client.parted, client.readable) = (true, true);
            link.target.gone.raise();
            self.readable.push_back(index);
        }
        let Some(client) = self.client(index) else { return };
        let (over, closing, next) = (client.life.over(), client.life.is_closing(), client.life.next());
        self.sessions.due = self.sessions.due.min(next);
        match over {
            None if closing => self.list(index),
            None => {}
            Some(why) => {
                self.end_connection_of(index, why);
                if work { self.list(index) } else { self.end_session(index, why) }
            }
        }
    }

    /// The connection ends: nothing can be sent to the client any more. What it had sent is still handled.
    fn end_connection_of(&mut self, index: u32, why: SessionEnd) {
        let shared = self.core.shared().clone();
        let Some(link) = self.links[index as usize].as_deref_mut() else { return };
        let Some(client) = &mut link.client else { return };
        let Some(transport) = client.transport.take() else { return };
        let target = link.target.clone();
        match why {
            // A second time does no harm.
            SessionEnd::Client | SessionEnd::Closed | SessionEnd::Shutdown => transport.finish(),
            _ => transport.shutdown(),
        }
        client.carry = Vec::new();
        client.decoder = FrameDecoder::new(0);
        target.gone.raise();
        target.link.set(0);
        link.origin.abandon();
        let mut lost = 0;
        // Nobody else writes to an end client, so the baton is here.
        if let Some(mut writer) = target.application.try_take() {
            (writer.transport, writer.link) = (None, 0);
            let detached = writer.egress.detach();
            let unbegun = detached.unbegun.into_iter().map(|staged| staged.charge);
            for charge in detached.begun.map(|(_, charge)| charge).into_iter().chain(unbegun) {
                let _ = target.mark.release(charge);
                lost += 1;
            }
            lanes::let_go(&shared, &target, writer);
        }
        while let Some(popped) = link.outbox.pop(&mut self.chunks) {
            let _ = target.mark.release(popped.charge);
            lost += 1;
        }
        target.lost_on_detach.add(lost);
        client.shared.socket.lost.add(lost);
        for id in link.waiters.drain() {
            target.mark.forget_waiter();
            shared.fail(id, target.id.0, Some(&target), ErrorKind::Unavailable, Detail::Detached);
        }
        shared.targets.lock().retain(|t| t.id != target.id);
        self.actions.push_back(ShardAction::Unwatch { transport });
    }

    /// The last callback; the place is free afterwards.
    fn end_session(&mut self, index: u32, why: SessionEnd) {
        let Some(link) = self.link(index) else { return };
        let peer = link.peer.clone();
        let Some(client) = link.client.take() else { return };
        if client.opened {
            self.seats[usize::from(client.seat)].close(&mut self.core, why, peer);
        }
        let socket = &client.shared.socket;
        socket.ended[why as usize].add(1);
        socket.sessions.leave(0);
        self.core.shared().port(self.core.shard).sessions.sub(1);
        self.reap(index);
    }

    /// The host is over: every session gets its last callback. What lies in its queues is lost, and was
    /// told by the account of the shutdown.
    pub fn stop(&mut self) {
        for index in 0..self.links.len() as u32 {
            if let Some(client) = self.client(index) {
                client.life.lose(SessionEnd::Shutdown);
                let why = client.life.over().unwrap_or(SessionEnd::Shutdown);
                self.end_connection_of(index, why);
                self.end_session(index, why);
            }
        }
    }

    fn note_offered(&mut self, index: u32, offered: u32) {
        if offered > 0 {
            let shared = self.core.shared().clone();
            shared.counts.received.add(u64::from(offered));
            self.unclaimed += u64::from(offered);
            shared.port(self.core.shard).unclaimed.set(self.unclaimed);
            self.ingress.offered(OriginKey(index), offered, self.core.now);
        }
    }
}

/// Decodes what is admitted of `input` into the client's origin.
fn decode(
    chunks: &mut ChunkPool,
    link: &mut Link,
    input: &[u8],
    now: Instant,
    offered: &mut u32,
) -> Result<Used, WireError> {
    let mut consumed = 0;
    loop {
        let Some(client) = &mut link.client else { return Ok(Used { consumed, parked: false, commands: 0 }) };
        let (decoder, seat) = (&mut client.decoder, client.seat);
        if decoder.is_assembling() {
            consumed += decoder.take(&input[consumed..]);
            let Some(whole) = decoder.finish() else { return Ok(Used { consumed, parked: false, commands: 0 }) };
            let charge = charge(whole.bytes.len(), 0);
            link.origin.offer(chunks, frame(seat, whole.header, whole.bytes.into()), charge, now);
            *offered += 1;
            continue;
        }
        let (n, len) = decoder.take_prefix(&input[consumed..])?;
        consumed += n;
        let Some(len) = len else { return Ok(Used { consumed, parked: false, commands: 0 }) };
        let charge = charge(len as usize, 0);
        if link.origin.admits(charge) != Admit::Yes {
            // A mark is never less than one frame, so the queue is not empty and a claim will say when.
            let parked = link.origin.park();
            debug_assert!(parked, "an empty queue takes any one frame");
            link.target.parked.raise();
            return Ok(Used { consumed, parked: true, commands: 0 });
        }
        match decoder.whole(&input[consumed..]) {
            Some(whole) if whole.bytes.len() <= INLINE_PAYLOAD_MAX => {
                let head = Head::of(&frame(seat, whole.header, Bytes::new()), charge, now.0);
                link.origin.offer_bytes(chunks, &head, 0, whole.bytes);
                consumed += whole.bytes.len();
                *offered += 1;
            }
            Some(whole) => {
                let bytes = Bytes::copy_from_slice(whole.bytes);
                consumed += whole.bytes.len();
                link.origin.offer(chunks, frame(seat, whole.header, bytes), charge, now);
                *offered += 1;
            }
            None => {
                decoder.begin();
                link.origin.reserve(charge);
                link.origin.grow(charge);
            }
        }
    }
}

/// A client's frame as a record: header and body behind each other, the header's length beside them.
fn frame(seat: u16, header: u16, payload: Bytes) -> Record {
    Record { kind: Kind::Message, channel: seat, correlation: u64::from(header), payload, ..Record::empty() }
}

#[cfg(test)]
mod tests;
