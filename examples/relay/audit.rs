//! The audit: what the callers were told, against what the closed database holds. Needs no memory that
//! grows with the records.

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;

use afflux::base::unit::grouped;
use redb::{Builder, DatabaseError, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata};

use crate::record::{ID_LEN, RecordId, fingerprint};
use crate::store::{CACHE, FILE, IDS, RECORDS, TENANTS};

/// The load's file of answers in its output directory.
pub const ANSWERS: &str = "relay.answers";

/// What one caller was told.
pub struct Answer {
    /// Where the record is.
    pub sequence: u64,
    /// Which record it is.
    pub id: RecordId,
    /// What was in it when it was sent.
    pub fingerprint: u64,
}

const ANSWER_LEN: usize = 16 + ID_LEN;

impl Answer {
    /// As it is written down.
    pub fn to_bytes(&self) -> [u8; ANSWER_LEN] {
        let mut bytes = [0; ANSWER_LEN];
        bytes[..8].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.fingerprint.to_be_bytes());
        bytes[16..].copy_from_slice(&self.id.to_bytes());
        bytes
    }
}

/// What the store really holds.
#[derive(Debug, Default)]
pub struct Audit {
    /// Records of this run that are in the store: those it committed, and those it recognised.
    pub committed: u64,
    /// Answers that were compared; `None`: there were none to compare.
    pub answers: Option<u64>,
    /// Answered with success and not there, or not as they were sent.
    pub lost: u64,
    /// Copies beyond the first of one id.
    pub duplicated: u64,
    /// Everything in the store, earlier runs included.
    pub held: u64,
    /// Tenants in the store.
    pub tenants: u64,
}

/// Reads the database at `path` again, which had given the sequences up to `before` when the run began.
/// Without answers only what is stored twice can be found.
pub fn audit(path: &Path, before: u64, answers: Option<&Path>) -> Result<Audit, Box<dyn Error>> {
    let read = read(path)?;
    let (records, ids) = (read.open_table(RECORDS)?, read.open_table(IDS)?);
    let mut audit = Audit { tenants: read.open_table(TENANTS)?.len()?, ..Audit::default() };

    // The index names one sequence per id, so every further copy is one that it does not name.
    for record in records.iter()? {
        let (sequence, record) = record?;
        let sequence = sequence.value();
        let id: &[u8; ID_LEN] = record.value().first_chunk().ok_or("a record in the store is shorter than its id")?;
        let named = ids.get(id)?.map(|named| named.value());
        audit.held += 1;
        audit.committed += u64::from(sequence > before);
        audit.duplicated += u64::from(named != Some(sequence));
    }

    let Some(answers) = answers else { return Ok(audit) };
    let named = |e: std::io::Error| format!("{}: {e}", answers.display());
    let mut answers = BufReader::new(File::open(answers).map_err(named)?);
    let (mut answer, mut compared) = ([0; ANSWER_LEN], 0);
    while let Some((sequence, print, id)) = next(&mut answers, &mut answer)? {
        compared += 1;
        audit.committed += u64::from(sequence <= before);
        let found = records.get(sequence)?;
        let there = found.is_some_and(|found| {
            let (found_id, line) = found.value().split_at(ID_LEN);
            found_id == id && fingerprint(line) == print
        });
        audit.lost += u64::from(!there);
    }
    audit.answers = Some(compared);
    Ok(audit)
}

/// The database as it is. One that was not closed, because its service was killed or its disk was full, is
/// repaired first.
fn read(path: &Path) -> Result<ReadTransaction, Box<dyn Error>> {
    match Builder::new().set_cache_size(CACHE).open_read_only(path) {
        Ok(db) => Ok(db.begin_read()?),
        Err(DatabaseError::RepairAborted) => Ok(Builder::new().set_cache_size(CACHE).open(path)?.begin_read()?),
        Err(e) => Err(e.into()),
    }
}

type Told<'a> = (u64, u64, &'a [u8]);

/// The next whole answer. A writer that was killed may leave half of one, which nobody was told.
fn next<'a>(answers: &mut impl Read, answer: &'a mut [u8; ANSWER_LEN]) -> std::io::Result<Option<Told<'a>>> {
    match answers.read_exact(answer) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(e),
    }
    let number = |at: usize| answer[at..at + 8].iter().fold(0_u64, |n, byte| n << 8 | u64::from(*byte));
    Ok(Some((number(0), number(8), &answer[16..])))
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(answers) = self.answers {
            write!(f, "{} answers compared: lost {}, ", grouped(answers), grouped(self.lost))?;
        }
        write!(
            f,
            "duplicated {}; the store holds {} records of {} tenants",
            grouped(self.duplicated),
            grouped(self.held),
            grouped(self.tenants),
        )
    }
}

/// `--verify`: compares the answers in `out` with the store in `dir`.
pub fn verify(out: &Path, dir: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let audit = audit(&dir.join(FILE), 0, Some(&out.join(ANSWERS)))?;
    println!("{audit}");
    Ok(audit.broken())
}

impl Audit {
    /// What must not be, in words.
    pub fn broken(&self) -> Vec<String> {
        let rules = [
            (self.lost, "answered with success and not in the store", "lost"),
            (self.duplicated, "more than once in the store", "duplicated"),
        ];
        let broken = rules.into_iter().filter(|(n, ..)| *n > 0);
        broken.map(|(n, what, name)| format!("broken invariant: {name} = {n}: {what}")).collect()
    }
}
