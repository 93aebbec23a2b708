//! The load: a closed loop. So many records are outstanding, in number and in bytes; the oldest one's
//! answer makes room for the next. Every answer is written down for the audit.
//!
//! ```text
//!   record ─▶ request ─┬─ sequence ─────────────────────────▶ reply, written down
//!                      ├─ Unavailable: did it run? ask again ─▶ the store knows the id
//!                      └─ any other end ────────────────────▶ error, counted by kind
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use afflux::base::error::RequestError;
use afflux::{Channel, ErrorKind, Pending, TwoWay};
use bytes::Bytes;
use crossbeam_channel::{Receiver, RecvTimeoutError};

use crate::audit::Answer;
use crate::input::Batch;
use crate::record::{Record, RecordId, fingerprint};
use crate::scratch;
use crate::tally::Tally;

/// Bytes of the records that are outstanding; one record always passes.
pub const BYTES_OUTSTANDING: u64 = 17 << 20;
/// How long a record is asked for again while the service cannot be reached, and how often.
const RETRY_FOR: Duration = Duration::from_secs(10);
const RETRY_EVERY: Duration = Duration::from_millis(100);
/// How often a load that has nothing to send looks at its answers and at whether it should stop.
const LOOK: Duration = Duration::from_millis(50);

/// Errors of one kind.
#[derive(Debug)]
pub struct Errors {
    /// How many.
    pub count: u64,
    /// What the first one said.
    pub first: String,
}

/// A load that runs, and afterwards what it saw.
pub struct Load {
    channel: Channel,
    outstanding: VecDeque<Asked>,
    most: usize,
    bytes: u64,
    answers: BufWriter<File>,
    errors: BTreeMap<&'static str, Errors>,
    tally: Arc<Tally>,
    begin: Instant,
    took: Duration,
}

struct Asked {
    id: RecordId,
    payload: Bytes,
    pending: Pending<TwoWay>,
}

impl Load {
    /// A load with at most `most` records outstanding, which keeps its answers in `out`.
    pub fn new(channel: Channel, most: u64, tally: Arc<Tally>, out: &Path) -> io::Result<Load> {
        Ok(Load {
            channel,
            outstanding: VecDeque::new(),
            most: most as usize,
            bytes: 0,
            answers: BufWriter::new(scratch::file(out, "answers")?),
            errors: BTreeMap::new(),
            tally,
            begin: Instant::now(),
            took: Duration::ZERO,
        })
    }

    /// Sends what `feed` gives until it ends, the time is up or somebody says stop; then waits for
    /// everything that is outstanding. The error says why not everything was sent.
    pub fn run(
        &mut self,
        feed: &Receiver<Batch>,
        lasting: Option<Duration>,
        stop: &AtomicBool,
    ) -> Result<(), Box<dyn Error>> {
        self.begin = Instant::now();
        let end = self.send_all(feed, lasting, stop);
        let drained = self.drain();
        self.took = self.begin.elapsed();
        end.and(drained)
    }

    fn send_all(
        &mut self,
        feed: &Receiver<Batch>,
        lasting: Option<Duration>,
        stop: &AtomicBool,
    ) -> Result<(), Box<dyn Error>> {
        let begin = self.begin;
        // Relaxed: nothing is read that was written before it was raised.
        let over = || stop.load(Ordering::Relaxed) || lasting.is_some_and(|time| begin.elapsed() >= time);
        while !over() {
            match feed.recv_timeout(LOOK) {
                Ok(batch) => {
                    for record in batch? {
                        if over() {
                            break;
                        }
                        self.send(record)?;
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.take_ready()?,
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Ok(())
    }

    fn send(&mut self, Record { id, payload }: Record) -> io::Result<()> {
        while self.outstanding.len() >= self.most || self.bytes > 0 && self.bytes + cost(&payload) > BYTES_OUTSTANDING {
            self.take_oldest()?;
        }
        self.bytes += cost(&payload);
        self.tally.sent.add(1);
        let pending = self.channel.request(&id.to_string(), payload.clone()).submit();
        self.outstanding.push_back(Asked { id, payload, pending });
        Ok(())
    }

    /// Takes the ends that have come, oldest first.
    fn take_ready(&mut self) -> io::Result<()> {
        while let Some(end) = self.outstanding.front_mut().and_then(|asked| asked.pending.try_take()) {
            if let Some(Asked { id, payload, .. }) = self.outstanding.pop_front() {
                self.ended(id, &payload, end)?;
            }
        }
        Ok(())
    }

    fn take_oldest(&mut self) -> io::Result<()> {
        match self.outstanding.pop_front() {
            Some(Asked { id, payload, pending }) => self.ended(id, &payload, pending.wait()),
            None => Ok(()),
        }
    }

    fn drain(&mut self) -> Result<(), Box<dyn Error>> {
        while !self.outstanding.is_empty() {
            self.take_oldest()?;
        }
        Ok(self.answers.flush()?)
    }

    fn ended(&mut self, id: RecordId, payload: &Bytes, end: Result<Bytes, RequestError>) -> io::Result<()> {
        self.bytes -= cost(payload);
        let begin = Instant::now();
        let mut end = end;
        // Whether it ran is not known, and it does not matter: the store knows what it has.
        while end.as_ref().is_err_and(|e| e.kind() == ErrorKind::Unavailable) && begin.elapsed() < RETRY_FOR {
            thread::sleep(RETRY_EVERY);
            self.tally.retries.add(1);
            end = self.channel.request(&id.to_string(), payload.clone()).wait();
        }
        match end {
            Ok(reply) => match reply[..].try_into() {
                Ok(sequence) => {
                    self.tally.replies.add(1);
                    let answer =
                        Answer { sequence: u64::from_be_bytes(sequence), id, fingerprint: fingerprint(payload) };
                    self.answers.write_all(&answer.to_bytes())
                }
                Err(_) => {
                    self.count(ErrorKind::Protocol, format!("an answer of {} bytes is no sequence", reply.len()));
                    Ok(())
                }
            },
            Err(e) => {
                self.count(e.kind(), e.to_string());
                self.tally.returned.add(u64::from(e.unsent_payload().is_some()));
                Ok(())
            }
        }
    }

    fn count(&mut self, kind: ErrorKind, sentence: String) {
        self.tally.errors.add(1);
        self.errors.entry(kind.name()).or_insert(Errors { count: 0, first: sentence }).count += 1;
    }

    /// How long it ran, the drain included.
    pub fn seconds(&self) -> f64 {
        self.took.as_secs_f64()
    }

    /// Errors by kind.
    pub fn errors(&self) -> &BTreeMap<&'static str, Errors> {
        &self.errors
    }

    /// The answers, from the first.
    pub fn answers(&self) -> io::Result<File> {
        let mut file = self.answers.get_ref().try_clone()?;
        file.seek(SeekFrom::Start(0))?;
        Ok(file)
    }
}

/// What a record takes of the outstanding bytes: at least what the runtime charges for it.
fn cost(payload: &Bytes) -> u64 {
    payload.len() as u64 + 128
}
