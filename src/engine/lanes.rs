//! Writing to lanes: who holds a baton writes; who does not leaves the record and goes. Used by
//! shards, calling threads and the completion thread alike, on both lanes.

use std::sync::Arc;

use super::answer;
use super::shared::HostShared;
use crate::base::error::ErrorKind;
use crate::base::id::ChannelId;
use crate::base::record::{Kind, Record};
use crate::flow::egress::BatchLimit;
use crate::flow::target::{Dialect, Flushed, NO_CHANNEL, Post, Target, Writer};
use crate::sync::baton::{Held, PostHeld, Released};
use crate::wire::encode;
use crate::wire::header::ErrorBody;

/// What a lane has staged at a time.
pub const BATCH: BatchLimit = BatchLimit { items: 1024, bytes: 256 << 10 };

/// Puts a record of the application lane into the writer's hands; gives it back if the peer does
/// not serve its channel on this link.
#[inline]
pub fn stage(writer: &mut Writer<Record>, record: Record) -> Result<(), Record> {
    let local = record.channel;
    let channel = if local == ChannelId::NODE.0 { local } else { writer.wire_channel(local) };
    if channel == NO_CHANNEL {
        return Err(record);
    }
    let charge = record.charge();
    writer.egress.push(record, charge, |r, out| encode::encode_head(r, channel, out), |r| &r.payload);
    Ok(())
}

/// Writes a lone record on the calling thread: nothing is outstanding for its target, so nothing
/// can be overtaken. Gives it back if the lane is down or somebody else is writing.
pub fn write_alone(shared: &HostShared, target: &Arc<Target>, record: Record) -> Option<Record> {
    let Some(mut writer) = target.application.try_take() else { return Some(record) };
    let mut left = Some(record);
    if writer.transport.is_some() && writer.egress.is_empty() {
        left = left.and_then(|record| stage(&mut writer, record).err());
        // What is not taken now stays with the baton, in front of everything; the owner hears from
        // the kernel when the lane takes more.
        flush_application(target, &mut writer);
        if target.mark.waiters() > 0 {
            shared.port(target.owner).poke(target);
        }
    }
    let_go(shared, target, writer);
    left
}

/// Gives an application lane's baton back; the owner looks at the lane if anybody asked meanwhile.
pub fn let_go(shared: &HostShared, target: &Arc<Target>, writer: Held<'_, Writer<Record>>) {
    if writer.release() == Released::MoreWork {
        shared.port(target.owner).poke(target);
    }
}

/// Writes what is staged, and takes it off the mark. Operations that wait are the owner's to
/// admit: it looks at them after each of its own flushes, and is poked after anybody else's.
pub fn flush_application(target: &Target, writer: &mut Writer<Record>) -> Flushed {
    let mut freed = 0;
    let flushed = writer.flush(|_, charge| freed += charge);
    if freed > 0 {
        // Who waits for the room is the caller's business, see above.
        let _ = target.mark.release(freed);
        target.written.set(writer.written_ever);
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

/// Writes what the completion lane of `target` has left, if nobody else does.
pub fn drive_completion(shared: &Arc<HostShared>, target: &Arc<Target>) {
    if let Some(writer) = target.completion.try_take() {
        write_posts(shared, target, writer);
    }
}

fn write_posts(shared: &Arc<HostShared>, target: &Arc<Target>, mut held: PostHeld<'_, Writer<Record>, Post>) {
    loop {
        let mut room = false;
        held.drain_posts(|writer, post| match post {
            // 0 is no link: the request came on one that was lost before it was claimed.
            Post::Reply { link, record } if link == writer.link && link != 0 => stage_reply(target, writer, record),
            // What was answered over a link that is gone has nobody who waits for it any more.
            Post::Reply { record, .. } => {
                shared.counts.replies_undeliverable.add(1);
                leave_replies(shared, target, record.charge());
                room = true;
            }
            Post::Command { link, frame } => {
                // Refused: too many wait. Whoever tells states by commands tells them again.
                let _told = link == writer.link && link != 0 && writer.egress.push_raw(&frame);
            }
            Post::Attach { link, transport } => {
                writer.link = link;
                writer.transport = Some(transport);
            }
            Post::Retire { link } if link == writer.link => {
                writer.link = 0;
                writer.transport = None;
                let detached = writer.egress.detach();
                for (_, charge) in detached.begun.into_iter().chain(detached.unbegun) {
                    shared.counts.replies_undeliverable.add(1);
                    leave_replies(shared, target, charge);
                }
                // Those who wait for room here answer what nobody asks any more, and find that out now.
                room = true;
            }
            Post::Retire { .. } => {}
        });
        held.flush(|_, charge| {
            leave_replies(shared, target, charge);
            room = true;
        });
        if room {
            answer::admit_waiting(shared, target);
            if target.held.is_raised() && target.held.lower() {
                shared.port(target.owner).poke(target);
            }
        }
        match held.release() {
            Some(again) => held = again,
            None => return,
        }
    }
}

/// Puts a reply or error into the writer's hands, in the peer's dialect.
fn stage_reply(target: &Target, writer: &mut Writer<Record>, mut record: Record) {
    let charge = record.charge();
    let channel = record.channel;
    match (target.dialect, record.kind) {
        (Dialect::Native, _) => {
            writer.egress.push(record, charge, |r, out| encode::encode_head(r, channel, out), |r| &r.payload);
        }
        (Dialect::Stock, Kind::Error) => {
            let body = std::mem::take(&mut record.payload);
            let body = ErrorBody::parse(&body);
            let answer = Err((ErrorKind::from_wire(channel), &*body.sentence));
            let head = |r: &Record, out: &mut Vec<u8>| encode::encode_stock_answer(envelope(r), answer, out);
            writer.egress.push(record, charge, head, |r| &r.payload);
        }
        (Dialect::Stock, _) => {
            let head =
                |r: &Record, out: &mut Vec<u8>| encode::encode_stock_answer(envelope(r), Ok(r.payload.len()), out);
            writer.egress.push(record, charge, head, |r| &r.payload);
        }
    }
}

fn envelope(record: &Record) -> &[u8] {
    record.envelope.as_deref().unwrap_or_default()
}

/// Takes a reply off the marks of the completion lane. Its peer's next requests may be claimed again.
fn leave_replies(shared: &HostShared, target: &Target, charge: u64) {
    target.replies.leave(charge);
    shared.replies.leave(charge);
    shared.relieve();
}
