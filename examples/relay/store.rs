//! The durable store: a database, and what one commit is.
//!
//! ```text
//!   records   sequence → id, line        as committed, in order; what an answer's sequence names
//!   ids       id → sequence              makes a record that comes again the same record
//!   tenants   tenant → records           with `--key`
//!   inputs    identity → number          the first part of an id
//! ```
//!
//! One transaction holds a whole batch and all tables, so they never disagree. A commit that fails leaves
//! nothing behind: the database is closed, and opened again with the next batch, so that a disk that was full
//! for a while costs refusals and no restart. Invariant: every id is in `records` once; the audit proves it
//! from `records` alone.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use redb::{
    Builder, Database, DatabaseError, Durability, Error, ReadableDatabase, ReadableTable, Table, TableDefinition,
    WriteTransaction,
};

use crate::drill::Drill;
use crate::record::{ID_LEN, RecordId, tenant};

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
pub const CACHE: usize = 8 << 20;

/// Something to store.
pub enum Item {
    /// A record.
    Line(RecordId, Bytes),
    /// An input of which somebody wants to know the number.
    Input(String),
}

impl Item {
    /// What it takes in a batch: its bytes here, and twice more in the database's pages, where a large value
    /// is written as a whole and copied once.
    pub fn expanded(&self) -> u64 {
        match self {
            Item::Line(_, line) => 3 * (line.len() + ID_LEN) as u64,
            Item::Input(identity) => 3 * identity.len() as u64,
        }
    }
}

/// What became of an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// Under this new sequence.
    Now(u64),
    /// It was there, under this sequence.
    Before(u64),
    /// Another line is there under that id.
    Conflict,
    /// The number of the input.
    Input(u32),
}

/// A database, and the sequences that it has given.
pub struct Store {
    /// `None`: a commit failed; opened again with the next one.
    db: Option<Database>,
    path: PathBuf,
    last: u64,
    key: Option<usize>,
    drill: Drill,
}

impl Store {
    /// Opens the database in `dir`, makes it if there is none, and empties it first if it is to be `fresh`.
    /// With `key` it counts records per tenant.
    pub fn open(dir: &Path, fresh: bool, key: Option<usize>, drill: Drill) -> Result<Store, String> {
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
        let mut store = Store { db: None, path, last: 0, key, drill };
        store.reopen().map_err(|e| named(&e))?;
        Ok(store)
    }

    /// The database's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The last sequence given; 0 if none was.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Closes the database; whoever commits next opens it again.
    pub fn close(&mut self) {
        self.db = None;
    }

    /// Stores a batch. When it returns, what it says is on the disk.
    pub fn commit(&mut self, items: &[Item]) -> Result<Vec<Stored>, Error> {
        if self.db.is_none() {
            self.reopen()?;
        }
        let committed = self.transact(items);
        if committed.is_err() {
            self.close();
        }
        committed
    }

    /// The database, with all tables, so that whoever reads finds them.
    fn reopen(&mut self) -> Result<&Database, Error> {
        let db = Builder::new().set_cache_size(CACHE).create(&self.path)?;
        let transaction = db.begin_write()?;
        transaction.open_table(RECORDS)?;
        transaction.open_table(IDS)?;
        transaction.open_table(TENANTS)?;
        transaction.open_table(INPUTS)?;
        transaction.commit()?;
        self.last = db.begin_read()?.open_table(RECORDS)?.last()?.map_or(0, |(sequence, _)| sequence.value());
        Ok(self.db.insert(db))
    }

    fn transact(&mut self, items: &[Item]) -> Result<Vec<Stored>, Error> {
        let Some(db) = &self.db else { return Ok(Vec::new()) };
        let mut transaction = db.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        let mut last = self.last;
        let stored = {
            let (records, ids) = (transaction.open_table(RECORDS)?, transaction.open_table(IDS)?);
            let mut tables = Tables { records, ids, value: Vec::new() };
            items.iter().map(|item| tables.put(item, &mut last, &transaction)).collect::<Result<Vec<_>, Error>>()?
        };
        if last == self.last && !stored.iter().any(|stored| matches!(stored, Stored::Input(_))) {
            // Nothing but records that were on the disk before.
            transaction.abort()?;
            return Ok(stored);
        }
        if let Some(field) = self.key {
            count_tenants(&transaction, field, items, &stored)?;
        }
        self.drill.before_commit();
        transaction.commit()?;
        self.last = last;
        Ok(stored)
    }
}

fn count_tenants(transaction: &WriteTransaction, field: usize, items: &[Item], stored: &[Stored]) -> Result<(), Error> {
    let mut counts: HashMap<Vec<u8>, u64> = HashMap::new();
    for (item, stored) in items.iter().zip(stored) {
        if let (Item::Line(_, line), Stored::Now(_)) = (item, stored) {
            *counts.entry(tenant(line, field).into_owned()).or_default() += 1;
        }
    }
    let mut tenants = transaction.open_table(TENANTS)?;
    for (tenant, n) in counts {
        let before = tenants.get(&*tenant)?.map_or(0, |n| n.value());
        tenants.insert(&*tenant, before + n)?;
    }
    Ok(())
}

struct Tables<'txn> {
    records: Table<'txn, u64, &'static [u8]>,
    ids: Table<'txn, &'static [u8; ID_LEN], u64>,
    /// Where an id and its line are put together; the same for all of a batch.
    value: Vec<u8>,
}

impl Tables<'_> {
    fn put(&mut self, item: &Item, last: &mut u64, transaction: &WriteTransaction) -> Result<Stored, Error> {
        match item {
            Item::Line(id, line) => self.line(*id, line, last),
            Item::Input(identity) => Ok(Stored::Input(number(transaction, identity)?)),
        }
    }

    fn line(&mut self, id: RecordId, line: &[u8], last: &mut u64) -> Result<Stored, Error> {
        let id = id.to_bytes();
        let known = self.ids.get(&id)?.map(|sequence| sequence.value());
        if let Some(sequence) = known {
            let same = self.records.get(sequence)?.is_some_and(|found| found.value()[ID_LEN..] == *line);
            return Ok(if same { Stored::Before(sequence) } else { Stored::Conflict });
        }
        *last += 1;
        self.value.clear();
        self.value.extend_from_slice(&id);
        self.value.extend_from_slice(line);
        self.records.insert(*last, self.value.as_slice())?;
        self.ids.insert(&id, *last)?;
        Ok(Stored::Now(*last))
    }
}

/// The number of an input: the same for one that was seen before.
fn number(transaction: &WriteTransaction, identity: &str) -> Result<u32, Error> {
    let mut inputs = transaction.open_table(INPUTS)?;
    if let Some(known) = inputs.get(identity)? {
        return Ok(known.value());
    }
    let next = inputs.iter()?.count() as u32;
    inputs.insert(identity, next)?;
    Ok(next)
}
