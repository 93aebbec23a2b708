//! The durable store: a database, and the one thread that may block on it.
//!
//! ```text
//!   records   sequence → id, line        as committed, in order; what an answer's sequence names
//!   ids       id → sequence              makes a record that comes again the same record
//!   tenants   tenant → records           with `--key`
//!   inputs    identity → number          the first part of an id
//! ```
//!
//! One transaction holds a whole batch and all tables, so they never disagree. An answer is given after the
//! fsync and not before. Invariant: every id is in `records` once; the audit proves it from `records`
//! alone.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder as ThreadBuilder, JoinHandle};
use std::time::{Duration, Instant as SystemInstant};

use afflux::RemoteResponder;
use afflux::base::time::Instant;
use afflux::policy::batch::{Batch, BatchLimits, Joined};
use bytes::Bytes;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use redb::{
    Builder, Database, DatabaseError, Durability, Error, ReadableDatabase, ReadableTable, Table, TableDefinition,
    WriteTransaction,
};

use crate::record::{ID_LEN, RecordId, tenant};
use crate::tally::Tally;

/// Sequence → id, line.
pub const RECORDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("records");
/// Id → sequence.
pub const IDS: TableDefinition<'_, &[u8; ID_LEN], u64> = TableDefinition::new("ids");
/// Tenant → records.
pub const TENANTS: TableDefinition<'_, &[u8], u64> = TableDefinition::new("tenants");
const INPUTS: TableDefinition<'_, &str, u32> = TableDefinition::new("inputs");

/// The database's file in the store's directory.
pub const FILE: &str = "relay.redb";
/// What the database may keep in memory.
pub const CACHE: usize = 32 << 20;
/// The bounds of one commit. Longer than the age nobody waits for company; a larger batch makes
/// everybody in it wait for the last one's bytes.
pub const BATCH: BatchLimits =
    BatchLimits { items: 1024, bytes: 4 << 20, age: Duration::from_millis(1), reserve: Duration::ZERO };

/// Codes of error answers.
pub mod code {
    /// The request is no record.
    pub const MALFORMED: u16 = 400;
    /// Another line is stored under this id.
    pub const CONFLICT: u16 = 409;
    /// The commit failed.
    pub const FAILED: u16 = 500;
    /// The store's thread takes no more.
    pub const FULL: u16 = 507;
}

/// A database that is open, and the sequences that it has given.
pub struct Store {
    db: Database,
    path: PathBuf,
    last: u64,
    key: Option<usize>,
}

impl Store {
    /// Opens the database in `dir`, makes it if there is none, and empties it first if it is to be `fresh`.
    /// With `key` it counts records per tenant.
    pub fn open(dir: &Path, fresh: bool, key: Option<usize>) -> Result<Store, String> {
        let path = dir.join(FILE);
        let named = |e: &dyn std::fmt::Display| format!("--store {}: {e}", dir.display());
        std::fs::create_dir_all(dir).map_err(|e| named(&e))?;
        if fresh && path.exists() {
            // Not under somebody who is using it.
            if let Err(e @ DatabaseError::DatabaseAlreadyOpen) = Builder::new().open(&path) {
                return Err(named(&e));
            }
            std::fs::remove_file(&path).map_err(|e| named(&e))?;
        }
        let db = Builder::new().set_cache_size(CACHE).create(&path).map_err(|e| named(&e))?;
        let last = prepare(&db).map_err(|e| named(&e))?;
        Ok(Store { db, path, last, key })
    }

    /// The database's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The last sequence given; 0 if none was.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The numbers of these inputs: the same for an input that was seen before.
    pub fn number<'a>(&self, identities: impl Iterator<Item = &'a str>) -> Result<Vec<u32>, Error> {
        let transaction = self.begin()?;
        let mut numbers = Vec::new();
        {
            let mut inputs = transaction.open_table(INPUTS)?;
            let mut next = inputs.iter()?.count() as u32;
            for identity in identities {
                let known = inputs.get(identity)?.map(|number| number.value());
                numbers.push(match known {
                    Some(number) => number,
                    None => {
                        inputs.insert(identity, next)?;
                        next += 1;
                        next - 1
                    }
                });
            }
        }
        transaction.commit()?;
        Ok(numbers)
    }

    fn begin(&self) -> Result<WriteTransaction, Error> {
        let mut transaction = self.db.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        Ok(transaction)
    }

    /// Stores a batch. When it returns, what it says is on the disk.
    fn commit(&mut self, jobs: &[Job]) -> Result<Vec<Stored>, Error> {
        let transaction = self.begin()?;
        let mut last = self.last;
        let stored = {
            let mut tables = Tables { records: transaction.open_table(RECORDS)?, ids: transaction.open_table(IDS)? };
            let stored: Result<Vec<Stored>, Error> = jobs.iter().map(|job| tables.put(job, &mut last)).collect();
            stored?
        };
        if last == self.last {
            // Nothing but records that were on the disk before.
            transaction.abort()?;
            return Ok(stored);
        }
        if let Some(field) = self.key {
            let mut counts: HashMap<Vec<u8>, u64> = HashMap::new();
            for (job, _) in jobs.iter().zip(&stored).filter(|(_, stored)| matches!(stored, Stored::Now(_))) {
                *counts.entry(tenant(&job.payload, field)).or_default() += 1;
            }
            let mut tenants = transaction.open_table(TENANTS)?;
            for (tenant, n) in counts {
                let before = tenants.get(&*tenant)?.map_or(0, |n| n.value());
                tenants.insert(&*tenant, before + n)?;
            }
        }
        transaction.commit()?;
        self.last = last;
        Ok(stored)
    }
}

/// Makes all tables, so that whoever reads finds them; the last sequence in there.
fn prepare(db: &Database) -> Result<u64, Error> {
    let transaction = db.begin_write()?;
    transaction.open_table(RECORDS)?;
    transaction.open_table(IDS)?;
    transaction.open_table(TENANTS)?;
    transaction.open_table(INPUTS)?;
    transaction.commit()?;
    let last = db.begin_read()?.open_table(RECORDS)?.last()?.map_or(0, |(sequence, _)| sequence.value());
    Ok(last)
}

/// What became of one record of a batch.
enum Stored {
    /// Under this new sequence.
    Now(u64),
    /// It was there, under this sequence.
    Before(u64),
    /// Something else is there.
    Conflict,
}

struct Tables<'txn> {
    records: Table<'txn, u64, &'static [u8]>,
    ids: Table<'txn, &'static [u8; ID_LEN], u64>,
}

impl Tables<'_> {
    fn put(&mut self, job: &Job, last: &mut u64) -> Result<Stored, Error> {
        let id = job.id.to_bytes();
        let known = self.ids.get(&id)?.map(|sequence| sequence.value());
        if let Some(sequence) = known {
            let same = self.records.get(sequence)?.is_some_and(|found| found.value()[ID_LEN..] == job.payload);
            return Ok(if same { Stored::Before(sequence) } else { Stored::Conflict });
        }
        *last += 1;
        self.records.insert(*last, [&id, &job.payload[..]].concat().as_slice())?;
        self.ids.insert(&id, *last)?;
        Ok(Stored::Now(*last))
    }
}

/// One record to store, and the duty to answer for it.
pub struct Job {
    /// Which.
    pub id: RecordId,
    /// The line.
    pub payload: Bytes,
    /// Answered by the store's thread, after the fsync.
    pub responder: RemoteResponder,
}

/// Starts the store's thread. It ends when every sender of jobs is gone; the database is closed then. The
/// first commit that fails raises `stop`, and everything after it is answered with that error.
pub fn spawn(
    store: Store,
    jobs: Receiver<Job>,
    tally: Arc<Tally>,
    stop: Arc<AtomicBool>,
) -> io::Result<JoinHandle<Result<(), Error>>> {
    let worker = Worker { store, jobs, tally, stop, begin: SystemInstant::now() };
    ThreadBuilder::new().name("relay-store".into()).spawn(move || worker.run())
}

struct Worker {
    store: Store,
    jobs: Receiver<Job>,
    tally: Arc<Tally>,
    stop: Arc<AtomicBool>,
    begin: SystemInstant,
}

impl Worker {
    fn run(mut self) -> Result<(), Error> {
        let mut waiting: Option<Job> = None;
        loop {
            let Some(first) = waiting.take().or_else(|| self.jobs.recv().ok()) else { return Ok(()) };
            let batch = self.gather(first, &mut waiting);
            if let Err(e) = self.store_and_answer(batch) {
                // Relaxed: only a hint to stop early; every record gets its answer anyway.
                self.stop.store(true, Ordering::Relaxed);
                waiting.into_iter().chain(self.jobs).for_each(|job| refuse(job.responder, &e));
                return Err(e);
            }
        }
    }

    /// Jobs until one of the bounds says that it is enough. A job that does not fit is left in `next`.
    fn gather(&self, first: Job, next: &mut Option<Job>) -> Vec<Job> {
        let mut batch = Batch::new(BATCH);
        let mut jobs = Vec::new();
        let mut job = first;
        loop {
            match batch.offer(size(&job), Instant::NEVER, self.now()) {
                Joined::Open => jobs.push(job),
                Joined::Closed(_) => {
                    jobs.push(job);
                    return jobs;
                }
                Joined::Refused(_) => {
                    *next = Some(job);
                    return jobs;
                }
            }
            let left = batch.due().map_or(Duration::ZERO, |due| due.since(self.now()));
            job = match self.jobs.recv_timeout(left) {
                Ok(job) => job,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return jobs,
            };
        }
    }

    fn now(&self) -> Instant {
        Instant(self.begin.elapsed().as_nanos() as u64)
    }

    fn store_and_answer(&mut self, jobs: Vec<Job>) -> Result<(), Error> {
        let stored = match self.store.commit(&jobs) {
            Ok(stored) => stored,
            Err(e) => {
                jobs.into_iter().for_each(|job| refuse(job.responder, &e));
                return Err(e);
            }
        };
        self.tally.commits.add(1);
        for (job, stored) in jobs.into_iter().zip(stored) {
            match stored {
                Stored::Now(sequence) => job.responder.reply(sequence.to_be_bytes().to_vec()),
                Stored::Before(sequence) => {
                    self.tally.recognised.add(1);
                    job.responder.reply(sequence.to_be_bytes().to_vec());
                }
                Stored::Conflict => {
                    job.responder.fail(code::CONFLICT, &format!("another line is stored as {}", job.id));
                }
            }
        }
        Ok(())
    }
}

fn refuse(responder: RemoteResponder, why: &Error) {
    responder.fail(code::FAILED, &format!("the commit failed: {why}"));
}

/// What a job takes in a batch: its bytes twice, here and in the database's pages.
fn size(job: &Job) -> u64 {
    2 * (job.payload.len() + ID_LEN) as u64
}
