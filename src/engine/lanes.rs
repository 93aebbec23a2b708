//! Writing to lanes: who holds a baton writes; who does not leaves the record and goes. Used by
//! shards, calling threads and the completion thread alike, on both lanes.

use std::sync::Arc;

use super::answer;
use super::command::CompletionCommand;
use super::publish::Subscribed;
use super::shared::HostShared;
use crate::base::error::ErrorKind;
use crate::base::id::ChannelId;
use crate::base::record::{Kind, Record};
use crate::flow::backlog::{Head, Taken};
use crate::flow::egress::{BatchLimit, Preamble};
use crate::flow::target::{Dialect, Flushed, NO_CHANNEL, Post, Replies, Target, Writer};
use crate::sync::baton::{Held, PostHeld, Released};
use crate::wire::encode;
use crate::wire::header::{ErrorBody, Header};
use crate::wire::stream;

/// What a lane has staged at a time.
pub const BATCH: BatchLimit = BatchLimit { items: 1024, bytes: 256 << 10 };

/// How often a writer looks for what was left meanwhile. Whoever is left more and more would write for ever, and do
/// nothing else: then the lane is the completion thread's, which comes by once a turn.
const ROUNDS_MAX: u32 = 16;

/// The peer's number for a record of the application lane, if it serves its channel on this link.
#[inline]
fn wire_channel(writer: &mut Writer<u16>, local: u16) -> Option<u16> {
    let channel = if local == ChannelId::NODE.0 { local } else { writer.wire_channel(local) };
    (channel != NO_CHANNEL).then_some(channel)
}

/// Puts a record of the application lane into the writer's hands; false if the peer does not serve its
/// channel on this link.
#[inline(always)]
pub fn stage(writer: &mut Writer<u16>, record: &Record, charge: u64) -> bool {
    if writer.stream {
        let head = |out: &mut Vec<u8>| stream::encode_head(envelope(record), record.payload.len(), out);
        writer.egress.push(record.channel, charge, head, &record.payload);
        return true;
    }
    if writer.stock {
        return stage_stock(writer, record, charge);
    }
    let Some(channel) = wire_channel(writer, record.channel) else { return false };
    writer.egress.push(record.channel, charge, Native(record, channel), &record.payload);
    true
}

/// The head of a native record with the peer's number of its channel: no closure, so that it is compiled into
/// every place where records are staged.
struct Native<'a>(&'a Record, u16);

impl Preamble for Native<'_> {
    #[inline(always)]
    fn write(self, out: &mut Vec<u8>) {
        encode::encode_head(self.0, self.1, out);
    }
}

/// The same in the form of a stock peer that we dialled. It serves no channels of ours: the route is the
/// method.
#[cold]
fn stage_stock(writer: &mut Writer<u16>, record: &Record, charge: u64) -> bool {
    if record.channel != ChannelId::NODE.0 || (writer.one_way && record.kind == Kind::Request) {
        return false;
    }
    let (route, len) = (record.method.as_str(), record.payload.len());
    let head = |out: &mut Vec<u8>| match record.kind {
        Kind::Request => encode::encode_stock_request(record.correlation, route, len, out),
        _ => encode::encode_pair_head(route.as_bytes(), len, out),
    };
    writer.egress.push(record.channel, charge, head, &record.payload);
    true
}

/// The same of a record that waited; false if the peer does not serve its channel.
#[inline]
pub fn stage_taken(writer: &mut Writer<u16>, head: &Head, taken: Taken<'_>) -> bool {
    let (first, rest, method_len) = match taken {
        Taken::Record(record) => return stage(writer, &record, head.charge),
        Taken::Bytes { first, rest, method_len } if writer.stock => {
            let record = head.record(first, rest, method_len);
            return stage_stock(writer, &record, head.charge);
        }
        Taken::Bytes { first, rest, method_len } => (first, rest, method_len as u8),
    };
    if writer.stream {
        let encode = |out: &mut Vec<u8>| stream::encode_head(&[], first.len() + rest.len(), out);
        writer.egress.push_copied(head.channel, head.charge, encode, first, rest);
        return true;
    }
    let Some(channel) = wire_channel(writer, head.channel) else { return false };
    let header = Header {
        kind: head.kind,
        method_len,
        depth: head.depth,
        channel,
        correlation: head.correlation,
        expiry_ms: head.expiry_ms,
    };
    let encode = |out: &mut Vec<u8>| encode::encode_header(header, first.len() + rest.len(), out);
    writer.egress.push_copied(head.channel, head.charge, encode, first, rest);
    true
}

/// Writes a lone record on the calling thread: nothing is outstanding for its target, so nothing
/// can be overtaken. False: it was left, because the lane is down or somebody else is writing.
pub fn write_alone(shared: &HostShared, target: &Arc<Target>, record: &Record) -> bool {
    let Some(mut writer) = target.application.try_take() else { return false };
    let mut staged = false;
    if writer.transport.is_some() && writer.egress.is_empty() {
        staged = stage(&mut writer, record, record.charge());
        // What is not taken now stays with the baton, in front of everything; the owner hears from
        // the kernel when the lane takes more.
        flush_application(target, &mut writer);
        if target.mark.waiters() > 0 {
            shared.port(target.owner).poke(target);
        }
    }
    let_go(shared, target, writer);
    staged
}

/// Gives an application lane's baton back; the owner looks at the lane if anybody asked meanwhile.
pub fn let_go(shared: &HostShared, target: &Arc<Target>, writer: Held<'_, Writer<u16>>) {
    if writer.release() == Released::MoreWork {
        shared.port(target.owner).poke(target);
    }
}

/// Writes what is staged, and takes it off the mark. Operations that wait are the owner's to
/// admit: it looks at them after each of its own flushes, and is poked after anybody else's.
pub fn flush_application(target: &Target, writer: &mut Writer<u16>) -> Flushed {
    let mut freed = 0;
    let flushed = writer.flush(|_, charges| freed += charges);
    if freed > 0 {
        // Who waits for the room is the caller's business, see above.
        let _ = target.mark.release(freed);
        target.written.set(writer.written_ever);
        if writer.stream {
            target.written_charge.add(freed);
        }
    }
    flushed
}

/// Leaves a reply, an error or a command for the completion lane of `target`, and writes it if
/// nobody else is writing.
pub fn post(shared: &Arc<HostShared>, target: &Arc<Target>, post: Post) {
    if let Some(writer) = target.completion.post(post) {
        write_posts(shared, target, writer);
    }
}

/// Sees to it that what was left for the completion lane of `target`, replies or publications, is written, by whoever writes now or here.
pub fn drive_completion(shared: &Arc<HostShared>, target: &Arc<Target>) {
    if let Some(writer) = target.completion.come_by() {
        write_posts(shared, target, writer);
    }
}

/// Sends a reply or an error to a request that came on `link`.
pub fn answer(shared: &Arc<HostShared>, target: &Arc<Target>, link: u64, mut record: Record) {
    match take_writer(target, link) {
        Some(mut held) => {
            hand_over(target, &mut held, &mut record);
            write_posts(shared, target, held);
        }
        None => post(shared, target, Post::Reply { link, record }),
    }
}

/// The same without writing it, if nobody else writes now. The caller sees to it that somebody comes by.
#[inline]
pub fn leave_answer(shared: &Arc<HostShared>, target: &Arc<Target>, link: u64, record: &mut Record) {
    match take_writer(target, link) {
        Some(mut held) => {
            hand_over(target, &mut held, record);
            if let Some(held) = held.release() {
                write_posts(shared, target, held);
            }
        }
        None => post(shared, target, Post::Reply { link, record: record.take() }),
    }
}

/// The writer of the completion lane of `target`, if nobody has it, nothing was left for it and it is that of this
/// attach: what is handed to it needs no place among the posts.
#[inline]
fn take_writer(target: &Target, link: u64) -> Option<PostHeld<'_, Replies, Post>> {
    if target.completion.is_asked() {
        return None;
    }
    target.completion.try_take().filter(|held| held.writer.link == link && link != 0)
}

/// A reply on the writer's link: staged, or behind those that wait for it.
#[inline(always)]
fn hand_over(target: &Target, replies: &mut Replies, record: &mut Record) {
    let charge = record.charge();
    if replies.waiting.is_empty() && replies.writer.egress.room(BATCH) {
        stage_reply(target, &mut replies.writer, record, charge);
    } else {
        replies.waiting.push(&mut replies.chunks, record.take(), charge, 0);
    }
}

fn write_posts(shared: &Arc<HostShared>, target: &Arc<Target>, held: PostHeld<'_, Replies, Post>) {
    match Subscribed::new(shared, target) {
        None => write_rounds(shared, target, held, None),
        Some(mut published) => {
            write_rounds(shared, target, held, Some(&mut published));
            published.end();
        }
    }
}

fn write_rounds(
    shared: &Arc<HostShared>,
    target: &Arc<Target>,
    mut held: PostHeld<'_, Replies, Post>,
    mut published: Option<&mut Subscribed<'_>>,
) {
    let mut rounds = 0;
    loop {
        let mut room = false;
        held.drain_posts(|replies, post| match post {
            // 0 is no link: the request came on one that was lost before it was claimed.
            Post::Reply { link, mut record } if link == replies.writer.link && link != 0 => {
                hand_over(target, replies, &mut record);
            }
            // What was answered over a link that is gone has nobody who waits for it any more.
            Post::Reply { record, .. } => {
                undeliverable(shared, target, record.charge());
                room = true;
            }
            Post::Command { link, frame } => {
                // Refused: too many wait. Whoever tells states by commands tells them again.
                let _told = link == replies.writer.link && link != 0 && replies.writer.egress.push_raw(&frame);
            }
            Post::Subscriptions { link, frames } => {
                if link == replies.writer.link
                    && let Some(transport) = &replies.writer.transport
                    && !replies.writer.egress.push_raw(&frames)
                {
                    transport.shutdown();
                }
            }
            Post::Attach { link, transport } => {
                replies.writer.link = link;
                replies.writer.transport = Some(transport);
            }
            Post::Retire { link } if link == replies.writer.link => {
                replies.writer.link = 0;
                replies.writer.transport = None;
                let detached = replies.writer.egress.detach();
                if let Some(published) = &mut published {
                    return published.close();
                }
                let staged = detached.unbegun.into_iter().map(|staged| staged.charge);
                for charge in detached.begun.map(|(_, charge)| charge).into_iter().chain(staged) {
                    undeliverable(shared, target, charge);
                }
                while let Some(popped) = replies.waiting.pop(&mut replies.chunks) {
                    undeliverable(shared, target, popped.charge);
                }
                // Those who wait for room here answer what nobody asks any more, and find that out now.
                room = true;
            }
            Post::Retire { .. } => {}
        });
        match &mut published {
            Some(published) => published.write(&mut held.writer),
            None => {
                let mut broken;
                while {
                    let (mut written, mut bytes) = (0, 0);
                    let flushed = held.writer.flush(|records, charges| {
                        written += records as u32;
                        bytes += charges;
                    });
                    if written > 0 {
                        leave_replies(shared, target, written, bytes);
                        room = true;
                    }
                    broken = flushed == Flushed::Broken;
                    flushed == Flushed::Empty && stage_waiting(target, &mut held)
                } {}
                // The one connection of a stock peer is not read while its queue is full, and its queue is full
                // while it takes no replies: nobody else would find out.
                if broken && target.dialect == Dialect::Stock && !cfg!(afflux_mutation = "broken_unheard") {
                    let (target, link) = (target.clone(), held.writer.link);
                    let lost = CompletionCommand::Lost { target, link, reason: "it takes no more replies".into() };
                    // Should the mailbox be full: its next sign of life is written here too.
                    let _ = shared.completion.command(lost);
                }
            }
        }
        if room {
            if !cfg!(afflux_mutation = "replies_unadmitted") {
                answer::admit_waiting(shared, target);
            }
            if target.held.is_raised() && target.held.lower() {
                shared.port(target.owner).poke(target);
            }
        }
        rounds += 1;
        if rounds == ROUNDS_MAX && !cfg!(afflux_mutation = "writer_captured") {
            drop(held);
            shared.completion.leave_unwritten(target);
            break;
        }
        match held.release() {
            Some(again) => held = again,
            None => break,
        }
    }
}

/// Stages replies that wait; true if there were any.
fn stage_waiting(target: &Target, replies: &mut Replies) -> bool {
    let mut any = false;
    while !replies.waiting.is_empty()
        && replies.writer.egress.room(BATCH)
        && let Some(popped) = replies.waiting.pop(&mut replies.chunks)
    {
        stage_reply(target, &mut replies.writer, &popped.record, popped.charge);
        any = true;
    }
    any
}

/// Puts a reply or error into the writer's hands, in the peer's dialect.
#[inline]
fn stage_reply(target: &Target, writer: &mut Writer<()>, record: &Record, charge: u64) {
    match target.dialect {
        // An end client has no completion lane: nothing is ever posted for it.
        Dialect::Native | Dialect::Local | Dialect::Stream => {
            debug_assert!(record.method.as_str().is_empty(), "an answer names no method");
            let (header, len) = (Header::of(record, record.channel), record.payload.len());
            let head = |out: &mut Vec<u8>| encode::encode_header(header, len, out);
            writer.egress.push((), charge, head, &record.payload);
        }
        Dialect::Stock | Dialect::Subscriber | Dialect::Publisher(_) => stage_stock_reply(writer, record, charge),
    }
}

#[cold]
fn stage_stock_reply(writer: &mut Writer<()>, record: &Record, charge: u64) {
    match record.kind {
        Kind::Error => {
            let body = ErrorBody::parse(&record.payload);
            let answer = Err((ErrorKind::from_wire(record.channel), &*body.sentence));
            let head = |out: &mut Vec<u8>| encode::encode_stock_answer(envelope(record), answer, out);
            writer.egress.push_copied((), charge, head, &[], &[]);
        }
        _ => {
            let answer = Ok(record.payload.len());
            let head = |out: &mut Vec<u8>| encode::encode_stock_answer(envelope(record), answer, out);
            writer.egress.push((), charge, head, &record.payload);
        }
    }
}

fn envelope(record: &Record) -> &[u8] {
    record.envelope.as_deref().unwrap_or_default()
}

/// A reply that nobody waits for any more.
fn undeliverable(shared: &HostShared, target: &Target, charge: u64) {
    shared.counts.replies_undeliverable.add(1);
    leave_replies(shared, target, 1, charge);
}

/// Takes so many replies off the marks of the completion lane. Their peer's next requests may be claimed again.
fn leave_replies(shared: &HostShared, target: &Target, replies: u32, bytes: u64) {
    target.replies.leave_many(replies, bytes);
    shared.replies.leave_many(replies, bytes);
    if !cfg!(afflux_mutation = "host_replies_unrelieved") {
        shared.relieve();
    }
}

#[cfg(test)]
mod tests {
    use std::any::Any;
    use std::io::{self, IoSlice};
    use std::sync::Weak;

    use super::*;
    use crate::engine::rig;

    use crate::flow::target::TargetSpec;
    use crate::flow::transport::Transport;
    use crate::plan::HostPlan;

    use crate::sync::word::Gauge;

    /// Takes everything, and as long as it is written to leaves one more command.
    #[derive(Debug)]
    struct Chatty {
        target: Weak<Target>,
        writes: Gauge,
        most: u64,
    }

    impl Transport for Chatty {
        fn read(&self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }

        fn write(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
            self.writes.add(1);
            if self.writes.get() < self.most {
                let target = self.target.upgrade().expect("it is written to");
                let left = target.completion.post(Post::Command { link: 1, frame: "more".into() });
                assert!(left.is_none(), "there is a writer");
            }
            Ok(bufs.iter().map(|buf| buf.len()).sum())
        }

        fn shutdown(&self) {}

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    /// A writer who is left one thing after another stops after a while, and the lane is the completion thread's.
    #[test]
    fn nobody_writes_what_others_leave_for_ever() {
        let (shared, _clock, _receivers) = rig::host(HostPlan::defaults("here", 1));
        let target = Arc::new(Target::new(TargetSpec::peer(7)));
        let chatty = Arc::new(Chatty { target: Arc::downgrade(&target), writes: Gauge::default(), most: 40 });
        post(&shared, &target, Post::Attach { link: 1, transport: chatty.clone() });
        post(&shared, &target, Post::Command { link: 1, frame: "first".into() });
        assert_eq!(chatty.writes.get(), u64::from(ROUNDS_MAX));
        let mut turns = 0;
        while !shared.completion.unwritten.is_empty() {
            shared.completion.unwritten.take().iter().for_each(|target| drive_completion(&shared, target));
            turns += 1;
        }
        assert_eq!((chatty.writes.get(), turns), (40, 2), "all of it was written");
    }
}
