//! Reading a completion lane: replies end their requests here and now, whoever reads; commands and
//! faults are handed on to the completion thread.

use std::mem::take;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::answer::{self, Arrived};
use super::shared::{HostShared, error_record};
use crate::base::error::ErrorKind;
use crate::base::record::Record;
use crate::base::time::Instant;
use crate::flow::reader::{Came, ReadEnd, Reader};
use crate::flow::target::Target;
use crate::wire::command::Command;
use crate::wire::decode::Item;
use crate::wire::stock::Malformed;

/// Slots of so many requests are given back at once, while so many are free: whoever sees its end can ask again.
const SLOTS: u32 = 16;

/// What one read came to.
#[derive(Default)]
pub struct Read {
    /// Bytes that came.
    pub bytes: usize,
    /// There may be more.
    pub more: bool,
    /// What the peer said besides replies.
    pub commands: Vec<Command>,
    /// Why the link has to end.
    pub over: Option<String>,
}

/// Reads what is there, within the budget of one turn. Whoever waits for what came is put into `wakes`; `took`
/// is told how long each request took. `late`: see [`Reader::read`].
pub fn read(
    shared: &HostShared,
    target: &Arc<Target>,
    reader: &mut Reader,
    block: &mut [u8],
    (now, late): (Instant, bool),
    wakes: &mut Vec<Waker>,
    mut took: impl FnMut(Duration),
) -> Read {
    let mut read = Read::default();
    let Read { bytes, commands, over, .. } = &mut read;
    let budget = shared.plan.turn.read_bytes_per_link;
    let mut ended = 0;
    let end = reader.read(block, budget, bytes, late, |came| {
        let arrived = match came {
            Came::Reply(whole) => Arrived::of(whole),
            Came::Item(item) => match made(shared, item, commands, over) {
                Some(record) => record.into(),
                None => return,
            },
        };
        if let Some(time) = answer::take_reply(shared, target, arrived, now, wakes) {
            took(time);
            ended += 1;
            if ended == SLOTS || (shared.slots_are_short(target, SLOTS) && !cfg!(afflux_mutation = "slots_kept")) {
                shared.leave_slots(target, take(&mut ended));
            }
        }
    });
    if ended > 0 {
        shared.leave_slots(target, ended);
    }
    match end {
        Ok(more) => read.more = more,
        Err(end) => {
            read.over.get_or_insert_with(|| why(&end));
        }
    }
    read
}

/// The reply in what the decoder has made, if it is one.
#[inline(never)]
fn made(shared: &HostShared, item: Item, commands: &mut Vec<Command>, over: &mut Option<String>) -> Option<Record> {
    match item {
        Item::Record(record) => return Some(record),
        Item::Command(command) => commands.push(command),
        // A stock peer's answer of the wrong shape: whoever asked has no better one to wait for.
        Item::Malformed(Malformed { correlation, reason, .. }) => {
            shared.counts.malformed.add(1);
            return correlation.map(|id| error_record(id, None, ErrorKind::Protocol, 0, reason));
        }
        Item::Publication(_) => *over = Some("not a reply".into()),
        Item::Discarded => {}
    }
    None
}

/// Why a link ends whose lane cannot be read any more.
pub fn why(end: &ReadEnd) -> String {
    match end {
        ReadEnd::Closed => "the peer closed the completion lane".into(),
        ReadEnd::Broken(e) => e.to_string(),
        ReadEnd::Protocol(e) => e.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::record::Kind;
    use crate::engine::rig::{self, Pipe};
    use crate::engine::shared::TAG_REQUEST;
    use crate::flow::target::TargetSpec;
    use crate::plan::HostPlan;
    use crate::sync::cell::{Notify, Terms};
    use crate::wire::decode::{Decoder, Mode};
    use crate::wire::encode;

    /// Requests in flight as each of `asked` replies that come in one read was taken, with a limit of so many.
    fn in_flight(asked: u32, limit: u32) -> Vec<u32> {
        let (shared, _clock, _receivers) = rig::host(HostPlan::defaults("here", 1));
        let target = Arc::new(Target::new(TargetSpec { requests: limit, ..TargetSpec::peer(7) }));
        let mut replies = Vec::new();
        for _ in 0..asked {
            assert!(shared.enter_slot(&target));
            let place = shared.cells.alloc().expect("there are enough");
            let correlation = place.id().correlation();
            let (since, deadline, tag) = (Instant(0), Instant::NEVER, TAG_REQUEST | target.id.0);
            place.publish_claimed(Terms { deadline, since, tag, notify: Notify::None, self_timed: false });
            encode::encode_head(&Record { kind: Kind::Reply, correlation, ..Record::empty() }, 0, &mut replies);
        }
        let decoder = Decoder::new(Mode::NativeCompletion, 1 << 20);
        let mut reader = Reader::new(Arc::new(Pipe::default()), decoder, replies, 1);
        let mut seen = Vec::new();
        let took = |_| seen.push(target.in_flight.ops());
        let mut block = vec![0; 64 << 10];
        let read = read(&shared, &target, &mut reader, &mut block, (Instant(0), false), &mut Vec::new(), took);
        assert!(read.over.is_none() && target.in_flight.ops() == 0, "{:?}", read.over);
        seen
    }

    /// Whoever sees the end of one of them may ask again at once.
    #[test]
    fn where_slots_are_few_each_comes_back_with_its_reply() {
        assert_eq!(in_flight(6, 6), [6, 5, 4, 3, 2, 1]);
        assert_eq!(in_flight(6, 100), [6; 6], "where they are many, all of them together");
        assert_eq!(in_flight(40, 60)[..26], [&[40; 16][..], &[24; 10]].concat()[..], "and some at a time");
    }
}
