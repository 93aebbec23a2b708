//! Inputs: where the lines come from, and the thread that reads them.
//!
//! A reading thread, because a pipe may give nothing for hours while the load has to see Ctrl-C. It hands
//! over what one read gave, so a slow pipe's lines are not held back for company, and is never more
//! than two reads ahead. Files are read again in every round; what can be read only once is kept in an
//! unnamed file beside the results if there is another round to come.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread::Builder;
use std::time::{SystemTime, UNIX_EPOCH};

use afflux::policy::ledger::{Reservation, WhenFull};
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, bounded};

use crate::priority::give_way;
use crate::record::{Record, RecordId};
use crate::scratch;

/// Bytes of one read.
const READ: usize = 16 << 10;
/// Reads that wait for the load.
const AHEAD: usize = 4;
/// What one read can become at most: nothing but empty lines.
const READ_BYTES: u64 = READ as u64 * (size_of::<Record>() as u64 + 1);

/// What the reading holds at most, for lines of at most `longest` bytes: the reads that wait, the one that is
/// being cut and the one that the load is working off, and the line that has not ended.
pub fn reservation(longest: u64) -> Reservation {
    let reads = AHEAD as u64 + 2;
    let row = Reservation::payload("input, read ahead", reads, READ_BYTES + longest, "the request", WhenFull::Wait);
    row.expecting(reads * 2 * READ as u64)
}

/// Where lines come from.
pub struct Source {
    name: String,
    identity: String,
    from: From,
}

enum From {
    /// Can be read as often as one likes.
    Path(PathBuf),
    /// Can be read once.
    Stream(Box<dyn Read + Send>),
}

impl Source {
    /// The file, pipe or device of that name, `-` for the standard input. The error is the rule that the
    /// name breaks.
    pub fn open(name: &Path) -> Result<Source, String> {
        let shown = name.display().to_string();
        if shown == "-" {
            return Ok(Source::stream(shown, Box::new(io::stdin())));
        }
        let file = File::open(name).map_err(|e| format!("must be a file that can be read, or -: {e}"))?;
        let about = file.metadata().map_err(|e| format!("must be a file that can be read, or -: {e}"))?;
        if about.is_dir() {
            return Err("must be a file or -; this is a directory".into());
        }
        if !about.is_file() {
            return Ok(Source::stream(shown, Box::new(file)));
        }
        let path = name.canonicalize().map_err(|e| format!("must be a file that can be read, or -: {e}"))?;
        let identity = format!("{}, {} bytes of {}", path.display(), about.len(), nanos(about.modified().ok()));
        Ok(Source { name: shown, identity, from: From::Path(path) })
    }

    fn stream(name: String, stream: Box<dyn Read + Send>) -> Source {
        let identity = format!("{name}, read by {} at {}", std::process::id(), nanos(Some(SystemTime::now())));
        Source { name, identity, from: From::Stream(stream) }
    }

    /// Whether the lines of both would be the same lines.
    pub fn is_same(&self, other: &Source) -> bool {
        self.name == other.name || self.identity == other.identity
    }

    /// What makes it the same input in another run with the same store: its path, its length and its last
    /// change. What comes through a pipe is another input every time.
    pub fn identity(&self) -> &str {
        &self.identity
    }
}

fn nanos(time: Option<SystemTime>) -> u128 {
    time.and_then(|t| t.duration_since(UNIX_EPOCH).ok()).map_or(0, |d| d.as_nanos())
}

/// The project's own sources and its lock file, in the order of their paths: there on every machine that
/// has the project. Empty if they are not.
pub fn project() -> Vec<PathBuf> {
    let stated = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let roots = stated.into_iter().chain(std::env::current_dir()).chain([env!("CARGO_MANIFEST_DIR").into()]);
    for root in roots {
        let mut found = Vec::new();
        sources_in(&root.join("src"), &mut found);
        if !found.is_empty() {
            found.sort();
            found.extend(Some(root.join("Cargo.lock")).filter(|lock| lock.is_file()));
            return found;
        }
    }
    Vec::new()
}

fn sources_in(dir: &Path, found: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            sources_in(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// The records of one read, or why there are no more.
pub type Batch = io::Result<Vec<Record>>;

/// Reads all sources, in their order, `rounds` times or for ever; `numbers` are the store's numbers of
/// them. A line longer than `longest` is cut to one byte more than that, so that it is refused and
/// counted and not held. Ends when the receiver is gone, or with a read that fails. `gives_way`: see [`give_way`].
pub fn feed(
    sources: Vec<Source>,
    numbers: Vec<u32>,
    rounds: Option<u64>,
    longest: usize,
    out: &Path,
    gives_way: bool,
) -> io::Result<Receiver<Batch>> {
    let (sender, receiver) = bounded(AHEAD);
    let mut inputs = Vec::new();
    for (source, number) in sources.into_iter().zip(numbers) {
        let copy = match source.from {
            From::Stream(_) if rounds != Some(1) => Some(scratch::file(out, &format!("input-{number}"))?),
            _ => None,
        };
        inputs.push(Input { source, number, copy });
    }
    let reader = Reader { sender, cut: longest + 1 };
    let run = move || {
        if gives_way {
            give_way();
        }
        reader.run(inputs, rounds);
    };
    Builder::new().name("relay-input".into()).spawn(run)?;
    Ok(receiver)
}

struct Input {
    source: Source,
    number: u32,
    /// Where a stream is kept for the next round.
    copy: Option<File>,
}

/// Why reading stops.
enum Stop {
    Failed(io::Error),
    /// Nobody takes any more.
    Unwanted,
}

struct Reader {
    sender: Sender<Batch>,
    cut: usize,
}

impl Reader {
    fn run(self, mut inputs: Vec<Input>, rounds: Option<u64>) {
        for round in 0..rounds.unwrap_or(u64::MAX) {
            let mut records = 0;
            for input in &mut inputs {
                match self.read(input, round) {
                    Ok(n) => records += n,
                    Err(Stop::Unwanted) => return,
                    Err(Stop::Failed(e)) => {
                        let e = io::Error::new(e.kind(), format!("--input {}: {e}", input.source.name));
                        // Nobody there to hear of it: then it does not matter either.
                        let _ = self.sender.send(Err(e));
                        return;
                    }
                }
            }
            if records == 0 {
                return;
            }
        }
    }

    /// Reads one input once; how many records it had.
    fn read(&self, input: &mut Input, round: u64) -> Result<u64, Stop> {
        let mut lines = Lines::new(self.cut, input.number, round);
        match (&mut input.source.from, &mut input.copy) {
            (From::Path(path), _) => self.pass(File::open(path).map_err(Stop::Failed)?, None, &mut lines)?,
            (From::Stream(stream), copy) if round == 0 => self.pass(stream, copy.as_mut(), &mut lines)?,
            (From::Stream(_), Some(copy)) => {
                copy.seek(SeekFrom::Start(0)).map_err(Stop::Failed)?;
                self.pass(copy, None, &mut lines)?;
            }
            (From::Stream(_), None) => {}
        }
        Ok(lines.line)
    }

    fn pass(&self, from: impl Read, mut copy: Option<&mut File>, lines: &mut Lines) -> Result<(), Stop> {
        let mut from = BufReader::with_capacity(READ, from);
        loop {
            let bytes = match from.fill_buf() {
                Ok(bytes) => bytes,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(Stop::Failed(e)),
            };
            if bytes.is_empty() {
                return self.hand_over(lines.last());
            }
            if let Some(copy) = &mut copy {
                copy.write_all(bytes).map_err(Stop::Failed)?;
            }
            let records = lines.split(bytes);
            let n = bytes.len();
            from.consume(n);
            self.hand_over(records)?;
        }
    }

    fn hand_over(&self, records: Vec<Record>) -> Result<(), Stop> {
        if records.is_empty() {
            return Ok(());
        }
        self.sender.send(Ok(records)).map_err(|_| Stop::Unwanted)
    }
}

/// Cuts reads into lines. An empty line is a record; the end of a file that ends in a newline is none.
struct Lines {
    /// The line that has not ended yet.
    begun: Vec<u8>,
    cut: usize,
    input: u32,
    line: u64,
    round: u64,
}

impl Lines {
    fn new(cut: usize, input: u32, round: u64) -> Lines {
        Lines { begun: Vec::new(), cut, input, line: 0, round }
    }

    fn split(&mut self, bytes: &[u8]) -> Vec<Record> {
        let mut records = Vec::new();
        for part in bytes.split_inclusive(|b| *b == b'\n') {
            let line = part.strip_suffix(b"\n");
            let text = line.unwrap_or(part);
            let room = self.cut - self.begun.len();
            self.begun.extend_from_slice(&text[..text.len().min(room)]);
            if line.is_some() {
                records.push(self.record());
            }
        }
        records
    }

    fn last(&mut self) -> Vec<Record> {
        if self.begun.is_empty() { Vec::new() } else { vec![self.record()] }
    }

    fn record(&mut self) -> Record {
        let id = RecordId { input: self.input, line: self.line, round: self.round };
        self.line += 1;
        let payload = Bytes::copy_from_slice(&self.begun);
        self.begun.clear();
        // A large line does not keep its memory for the small ones after it.
        self.begun.shrink_to(READ);
        Record { id, payload }
    }
}
