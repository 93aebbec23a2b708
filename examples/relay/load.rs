//! The load: records become requests, and each request's one end is counted.
//!
//! ```text
//!   record ─▶ slot ─▶ request ─┬─ sequence ─────────────────────────▶ reply, written down
//!                              ├─ Unavailable: did it run? ask again ─▶ the store knows the id
//!                              └─ any other end ────────────────────▶ error, counted by kind and detail
//! ```
//!
//! Two loops over the same slots. *Open*: every request has a time at which it is meant to be made, whatever
//! became of the ones before it, and its latency counts from that time, so that a service that stalls cannot
//! hide it (no coordinated omission). *Closed*: so many requests are outstanding, and an end makes room for the
//! next; what it measures is how the two fit together, and it is labelled so.
//!
//! The table of slots is the only place for records that are outstanding: full, in number or in bytes, nothing
//! is begun until there is room, and an open loop is late then, by its own account.

use std::collections::VecDeque;
use std::error::Error;
use std::fs::File;
use std::future::Future;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use afflux::{Channel, Detail, ErrorKind, Pending, RequestError, TwoWay};
use bytes::Bytes;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};

use crate::audit::Answer;
use crate::counts::{Counts, Shared};
use crate::input::Batch;
use crate::record::{Record, fingerprint};
use crate::sizes::BYTES_OUTSTANDING;
use crate::tenants::TenantId;
use crate::times::Time;

/// How long a record is asked for again while the service cannot be reached, and how often.
const RETRY_FOR: Duration = Duration::from_secs(10);
const RETRY_EVERY: Duration = Duration::from_millis(100);
/// How often a load that has nothing to send looks whether it should stop.
const LOOK: Duration = Duration::from_millis(20);
/// The longest that an open loop sleeps between two looks at its schedule.
const NAP: Duration = Duration::from_micros(200);
/// Requests that are begun or ended in a row before the other side has its turn.
const RUN: usize = 256;

/// What one slot takes, with its place in the queues: for the ledger.
pub const SLOT_BYTES: u64 = 512;

/// Wakes one slot: its request has an end.
struct SlotWaker {
    slot: u32,
    raised: AtomicBool,
    ready: Sender<(u32, Instant)>,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // AcqRel: pairs with the lowering, so that an end that comes after it is told again.
        if !self.raised.swap(true, Ordering::AcqRel) {
            // As many places as slots, and each slot at most once in there: never full.
            let _ = self.ready.try_send((self.slot, Instant::now()));
        }
    }
}

struct Slot {
    waker: Waker,
    signal: Arc<SlotWaker>,
    asked: Option<Asked>,
}

struct Asked {
    record: Record,
    tenant: TenantId,
    /// When the request was meant to be made.
    meant: Instant,
    /// `None`: it waits to be made again.
    pending: Option<Pending<TwoWay>>,
    /// When it was found first that the service cannot be reached.
    failing: Option<Instant>,
}

/// A load that runs, and afterwards what it saw.
pub struct Load {
    channel: Channel,
    feed: Receiver<Batch>,
    records: VecDeque<Record>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    ready: Receiver<(u32, Instant)>,
    /// To be asked again, in the order of their time.
    again: VecDeque<(Instant, u32)>,
    counts: Counts,
    shared: Arc<Shared>,
    answers: BufWriter<File>,
    flushed: Instant,
    /// Requests whose latency is not recorded, because they only warm up.
    warming: bool,
}

/// Why a loop goes on or stops.
pub struct Until<'a> {
    /// Somebody says stop.
    pub stop: &'a AtomicBool,
    /// The time is up.
    pub end: Option<Instant>,
}

impl Until<'_> {
    fn over(&self) -> bool {
        // Relaxed: nothing is read that was written before it was raised.
        self.stop.load(Ordering::Relaxed) || self.end.is_some_and(|end| Instant::now() >= end)
    }
}

impl Load {
    /// A load with at most `most` records outstanding, which writes the ids that it got success for to
    /// `answers`.
    pub fn new(
        channel: Channel,
        feed: Receiver<Batch>,
        most: usize,
        shared: Arc<Shared>,
        answers: &Path,
    ) -> io::Result<Load> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", answers.display()));
        let (sender, ready) = bounded(most);
        let slot = |slot: u32| {
            let signal = Arc::new(SlotWaker { slot, raised: AtomicBool::new(false), ready: sender.clone() });
            Slot { waker: signal.clone().into(), signal, asked: None }
        };
        Ok(Load {
            channel,
            feed,
            records: VecDeque::new(),
            slots: (0..most as u32).map(slot).collect(),
            free: (0..most as u32).rev().collect(),
            ready,
            again: VecDeque::new(),
            counts: Counts::default(),
            shared,
            answers: BufWriter::new(File::create(answers).map_err(named)?),
            flushed: Instant::now(),
            warming: false,
        })
    }

    /// A closed loop of `most` records; the commits per second that it got answers for. Where `warming`, it
    /// is only measured: its latencies are not kept.
    pub fn closed(&mut self, most: usize, until: &Until<'_>, warming: bool) -> Result<f64, Box<dyn Error>> {
        self.warming = warming;
        let (begin, before) = (Instant::now(), self.counts.replies);
        let most = most.min(self.slots.len());
        while !until.over() {
            let mut ended = false;
            for _ in 0..RUN {
                if self.counts.outstanding as usize >= most || !self.fits()? {
                    break;
                }
                match self.records.pop_front() {
                    Some(record) => {
                        let now = Instant::now();
                        self.ask(record, now, now)?;
                    }
                    None => {
                        ended = !self.refill(Duration::ZERO)?;
                        break;
                    }
                }
            }
            self.turn()?;
            if ended {
                break;
            }
            if self.counts.outstanding as usize >= most || self.records.is_empty() {
                self.rest(LOOK)?;
            }
        }
        let rate = (self.counts.replies - before) as f64 / begin.elapsed().as_secs_f64().max(1e-9);
        self.warming = false;
        Ok(rate)
    }

    /// An open loop: `rate` requests are meant to be made per second, evenly.
    pub fn open(&mut self, rate: f64, until: &Until<'_>) -> Result<(), Box<dyn Error>> {
        let interval = Duration::from_secs_f64(1.0 / rate);
        let (mut begin, mut made, before) = (Instant::now(), 0_u64, self.counts.intended);
        let mut due = begin;
        while !until.over() {
            let now = Instant::now();
            for _ in 0..RUN {
                if due > now || !self.fits()? {
                    break;
                }
                let Some(record) = self.records.pop_front() else {
                    if !self.refill(Duration::ZERO)? {
                        return Ok(());
                    }
                    if self.records.is_empty() {
                        // A slow input, not a slow service: there was nothing that could have been late.
                        (begin, made) = (Instant::now(), 0);
                        due = begin;
                        break;
                    }
                    continue;
                };
                self.counts.late_max = self.counts.late_max.max(now - due);
                self.ask(record, due, now)?;
                made += 1;
                // From the beginning and not from the last one, so that rounding does not add up.
                due = begin + Duration::from_secs_f64(made as f64 / rate);
            }
            let missed = now.saturating_duration_since(due).as_secs_f64() / interval.as_secs_f64();
            self.counts.intended = before.max(self.counts.submitted + missed as u64);
            self.turn()?;
            if due > Instant::now() {
                thread::sleep(NAP);
            } else if self.records.is_empty() {
                self.refill(NAP)?;
            }
        }
        Ok(())
    }

    /// Waits for everything that is outstanding.
    pub fn drain(&mut self) -> Result<(), Box<dyn Error>> {
        while self.counts.outstanding > 0 {
            self.turn()?;
            self.rest(LOOK)?;
        }
        self.counts.intended = self.counts.intended.max(self.counts.submitted);
        self.shared.publish(&self.counts);
        Ok(self.answers.flush()?)
    }

    /// More records, waiting at most so long; false: there are no more.
    fn refill(&mut self, wait: Duration) -> Result<bool, Box<dyn Error>> {
        let batch = if wait.is_zero() {
            self.feed.try_recv().map_err(|e| e == TryRecvError::Disconnected)
        } else {
            self.feed.recv_timeout(wait).map_err(|e| e == RecvTimeoutError::Disconnected)
        };
        match batch {
            Ok(batch) => self.records.extend(batch?),
            Err(true) => return Ok(false),
            Err(false) => {}
        }
        Ok(true)
    }

    /// Whether the next record may be begun.
    fn fits(&mut self) -> io::Result<bool> {
        let next = self.records.front().map_or(0, cost);
        Ok(!self.free.is_empty() && (self.counts.bytes == 0 || self.counts.bytes + next <= BYTES_OUTSTANDING))
    }

    fn ask(&mut self, record: Record, meant: Instant, now: Instant) -> io::Result<()> {
        let Some(slot) = self.free.pop() else { return Ok(()) };
        self.counts.submitted += 1;
        self.counts.outstanding += 1;
        self.counts.bytes += cost(&record);
        self.counts.bytes_peak = self.counts.bytes_peak.max(self.counts.bytes);
        let tenant = self.shared.tenants.came(&record.payload, now);
        self.slots[slot as usize].asked = Some(Asked { record, tenant, meant, pending: None, failing: None });
        self.request(slot, now)
    }

    /// Makes the request of a slot. Most that are refused are refused at once.
    fn request(&mut self, slot: u32, now: Instant) -> io::Result<()> {
        if let Some(asked) = &mut self.slots[slot as usize].asked {
            let Record { id, payload } = &asked.record;
            asked.pending = Some(self.channel.request(&id.to_string(), payload.clone()).submit());
        }
        self.look(slot, now)
    }

    /// Looks whether a slot's request has ended, by `at`, and asks to be told if not.
    fn look(&mut self, slot: u32, at: Instant) -> io::Result<()> {
        let place = &mut self.slots[slot as usize];
        let Some(pending) = place.asked.as_mut().and_then(|asked| asked.pending.as_mut()) else { return Ok(()) };
        match Pin::new(pending).poll(&mut Context::from_waker(&place.waker)) {
            Poll::Ready(end) => self.ended(slot, end, at),
            Poll::Pending => Ok(()),
        }
    }

    /// Takes the ends that have come, and asks again what is to be asked again.
    fn turn(&mut self) -> io::Result<()> {
        for _ in 0..2 * RUN {
            let Ok((slot, at)) = self.ready.try_recv() else { break };
            self.wake(slot, at)?;
        }
        while let Some((at, slot)) = self.again.front().copied() {
            let now = Instant::now();
            if at > now {
                break;
            }
            self.again.pop_front();
            self.counts.retries += 1;
            self.request(slot, now)?;
        }
        if self.flushed.elapsed() > Duration::from_secs(1) {
            self.answers.flush()?;
            self.flushed = Instant::now();
        }
        self.shared.publish(&self.counts);
        Ok(())
    }

    fn wake(&mut self, slot: u32, at: Instant) -> io::Result<()> {
        self.slots[slot as usize].signal.raised.store(false, Ordering::Release);
        self.look(slot, at)
    }

    /// Sleeps until an end has come, at most for `time`.
    fn rest(&mut self, time: Duration) -> io::Result<()> {
        match self.ready.recv_timeout(time) {
            Ok((slot, at)) => self.wake(slot, at),
            Err(_) => Ok(()),
        }
    }

    fn ended(&mut self, slot: u32, end: Result<Bytes, RequestError>, at: Instant) -> io::Result<()> {
        let Some(asked) = &mut self.slots[slot as usize].asked else { return Ok(()) };
        asked.pending = None;
        // Whether it ran is not known, and it does not matter: the store knows what it has.
        if end.as_ref().is_err_and(|e| e.kind() == ErrorKind::Unavailable)
            && asked.failing.get_or_insert(at).elapsed() < RETRY_FOR
        {
            self.again.push_back((Instant::now() + RETRY_EVERY, slot));
            return Ok(());
        }
        let Some(Asked { record, tenant, meant, .. }) = self.slots[slot as usize].asked.take() else { return Ok(()) };
        self.free.push(slot);
        self.counts.outstanding -= 1;
        self.counts.bytes -= cost(&record);
        self.shared.tenants.ended(at, [(tenant, end.is_ok())]);
        match end {
            Ok(reply) => match reply[..].try_into() {
                Ok(sequence) => {
                    self.counts.replies += 1;
                    if !self.warming {
                        self.shared.times.record(Time::Request, at.saturating_duration_since(meant));
                    }
                    let (sequence, fingerprint) = (u64::from_be_bytes(sequence), fingerprint(&record.payload));
                    self.answers.write_all(&Answer { sequence, id: record.id, fingerprint }.to_bytes())?;
                }
                Err(_) => {
                    let said = || format!("an answer of {} bytes is no sequence", reply.len());
                    self.counts.fail((ErrorKind::Protocol.name(), Detail::Malformed), said);
                }
            },
            Err(e) => {
                self.counts.fail((e.kind().name(), e.error().detail()), || e.to_string());
                self.counts.returned += u64::from(e.unsent_payload().is_some());
            }
        }
        Ok(())
    }
}

/// What a record takes of the outstanding bytes: at least what the runtime charges for it.
fn cost(record: &Record) -> u64 {
    record.payload.len() as u64 + 128
}

/// The numbers that the service's store has for these inputs.
pub fn number(channel: &Channel, method: &str, identities: &[&str], within: Duration) -> Result<Vec<u32>, String> {
    let ask = |identity: &&str| channel.request(method, identity.as_bytes().to_vec()).timeout(within).submit();
    let pending: Vec<Pending<TwoWay>> = identities.iter().map(ask).collect();
    let number = |pending: Pending<TwoWay>| {
        let reply = pending.wait().map_err(|e| e.to_string())?;
        let bytes = reply[..].try_into().map_err(|_| "an answer that is no number of an input".to_owned())?;
        Ok(u32::from_be_bytes(bytes))
    };
    pending.into_iter().map(number).collect()
}
