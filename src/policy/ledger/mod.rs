//! The reservation ledger: every place that can hold a message, with its capacity, the bytes of each,
//! who releases it and what happens when it is full. A place that is not in here is a place without a
//! bound. The ledger of a running host is [`of`] its plan; a program may keep one for its own stages.
//!
//! ```text
//! maximum  = capacity x bytes each         what the place holds at the very most
//! expected <= maximum                      what it holds when it is full of typical records
//! observed <= maximum                      or the ledger is wrong ([`Ledger::compare`])
//! ```
//!
//! *Payload* rows hold bytes of records, as charged. *Overhead* rows are what it takes to keep them. The
//! sums leave out what only the platform knows; the table says so in its last line.

use std::fmt;

use crate::base::unit::grouped;

mod host;

pub use host::{OMITTED, of, of_links, report};

/// Bytes of records, or what it takes to keep them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Row {
    /// Charged bytes of records.
    Payload,
    /// Entries, blocks, places, states.
    Overhead,
}

/// What happens at the edge of a place that is full.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WhenFull {
    /// Whoever brings more waits under a deadline.
    Wait,
    /// The source is not read on; the network tells the sender.
    Park,
    /// Whoever brings more gets it back with an error, at once.
    Refuse,
    /// The newest is thrown away and counted.
    Shed,
    /// The rest goes to a slower store.
    Spill,
    /// The connection is closed.
    Disconnect,
    /// Cannot be full: another row bounds it, or every holder has a place of its own.
    Never,
}

impl fmt::Display for WhenFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            WhenFull::Wait => "wait",
            WhenFull::Park => "park",
            WhenFull::Refuse => "refuse",
            WhenFull::Shed => "shed",
            WhenFull::Spill => "spill",
            WhenFull::Disconnect => "disconnect",
            WhenFull::Never => "never",
        })
    }
}

/// One place that can hold something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reservation {
    /// The place; unique in its ledger.
    pub name: &'static str,
    /// Payload or overhead.
    pub row: Row,
    /// How many it holds.
    pub capacity: u64,
    /// The hard maximum of each, bytes. `None`: the user made it unlimited, and the sum is no bound.
    pub bytes_each: Option<u64>,
    /// When something leaves.
    pub released_by: &'static str,
    /// What happens when nothing fits.
    pub when_full: WhenFull,
    /// What it holds when full of typical records, bytes.
    pub expected: u64,
}

impl Reservation {
    /// A place for bytes of records. Expected to be full to its maximum, until [`Reservation::expecting`]
    /// says otherwise.
    pub fn payload(
        name: &'static str,
        capacity: u64,
        bytes_each: u64,
        released_by: &'static str,
        when_full: WhenFull,
    ) -> Self {
        let expected = capacity.saturating_mul(bytes_each);
        Reservation {
            name,
            row: Row::Payload,
            capacity,
            bytes_each: Some(bytes_each),
            released_by,
            when_full,
            expected,
        }
    }

    /// A place that holds no bytes of records itself.
    pub fn overhead(
        name: &'static str,
        capacity: u64,
        bytes_each: u64,
        released_by: &'static str,
        when_full: WhenFull,
    ) -> Self {
        Reservation { row: Row::Overhead, ..Reservation::payload(name, capacity, bytes_each, released_by, when_full) }
    }

    /// States what the place holds when it is full of typical records; never more than its maximum.
    pub fn expecting(mut self, bytes: u64) -> Self {
        self.expected = bytes.min(self.maximum().unwrap_or(u64::MAX));
        self
    }

    /// Takes the bound away.
    pub fn unlimited(mut self) -> Self {
        self.bytes_each = None;
        self.expected = 0;
        self
    }

    /// Capacity x bytes each; `None` if there is no bound. Saturates.
    pub fn maximum(&self) -> Option<u64> {
        self.bytes_each.map(|each| self.capacity.saturating_mul(each))
    }
}

/// All places, in the order in which a record meets them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ledger {
    rows: Vec<Reservation>,
}

impl Ledger {
    /// No places yet.
    pub fn new() -> Self {
        Ledger::default()
    }

    /// Adds a place.
    ///
    /// # Panics
    /// If there is a place of that name already: its bytes would be counted twice.
    pub fn add(&mut self, row: Reservation) {
        assert!(self.get(row.name).is_none(), "two places are called {}", row.name);
        self.rows.push(row);
    }

    /// All places.
    pub fn rows(&self) -> &[Reservation] {
        &self.rows
    }

    /// The place of that name.
    pub fn get(&self, name: &str) -> Option<&Reservation> {
        self.rows.iter().find(|r| r.name == name)
    }

    /// Sum of the maxima of one sort of rows; `None` if one has no bound.
    pub fn maximum(&self, row: Row) -> Option<u64> {
        self.of_sort(row).try_fold(0_u64, |sum, r| Some(sum.saturating_add(r.maximum()?)))
    }

    /// Sum of what is expected of one sort of rows.
    pub fn expected(&self, row: Row) -> u64 {
        self.of_sort(row).fold(0, |sum, r| sum.saturating_add(r.expected))
    }

    /// Sum of all maxima; `None` if one row has no bound.
    pub fn total_maximum(&self) -> Option<u64> {
        Some(self.maximum(Row::Payload)?.saturating_add(self.maximum(Row::Overhead)?))
    }

    /// Sum of all that is expected.
    pub fn total_expected(&self) -> u64 {
        self.expected(Row::Payload).saturating_add(self.expected(Row::Overhead))
    }

    /// Puts what was observed beside what was calculated. A name that is not in the ledger is the worst
    /// finding: a place that nobody bounded.
    pub fn compare<'a>(&self, observed: impl IntoIterator<Item = (&'a str, u64)>) -> Comparison {
        let mut lines: Vec<Compared> = self
            .rows
            .iter()
            .map(|r| Compared {
                name: r.name.to_owned(),
                maximum: r.maximum(),
                expected: r.expected,
                observed: None,
                unknown: false,
            })
            .collect();
        for (name, bytes) in observed {
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.observed = Some(line.observed.unwrap_or(0).saturating_add(bytes)),
                None => lines.push(Compared {
                    name: name.to_owned(),
                    maximum: Some(0),
                    expected: 0,
                    observed: Some(bytes),
                    unknown: true,
                }),
            }
        }
        Comparison { lines }
    }

    fn of_sort(&self, row: Row) -> impl Iterator<Item = &Reservation> {
        self.rows.iter().filter(move |r| r.row == row)
    }
}

fn bytes(n: Option<u64>) -> String {
    n.map_or_else(|| "no bound".into(), grouped)
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.rows.iter().map(|r| r.name.len()).max().unwrap_or(0).max("overhead, sum".len());
        let head = ["capacity", "bytes each", "maximum", "expected"];
        let [a, b, c, d] = head;
        writeln!(f, "{:name$}  {a:>10} {b:>15} {c:>19} {d:>19}  {:10}  released by", "place", "when full")?;
        for sort in [Row::Payload, Row::Overhead] {
            for r in self.of_sort(sort) {
                writeln!(
                    f,
                    "{:name$}  {:>10} {:>15} {:>19} {:>19}  {:10}  {}",
                    r.name,
                    grouped(r.capacity),
                    bytes(r.bytes_each),
                    bytes(r.maximum()),
                    grouped(r.expected),
                    r.when_full,
                    r.released_by
                )?;
            }
            let title = if sort == Row::Payload { "payload, sum" } else { "overhead, sum" };
            writeln!(
                f,
                "{title:name$}  {:>10} {:>15} {:>19} {:>19}",
                "",
                "",
                bytes(self.maximum(sort)),
                grouped(self.expected(sort))
            )?;
        }
        let total = self.total_maximum();
        write!(f, "{:name$}  {:>10} {:>15} {:>19} {:>19}", "all", "", "", bytes(total), grouped(self.total_expected()))
    }
}

/// One place, calculated and observed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compared {
    /// The place.
    pub name: String,
    /// Its maximum; `None`: no bound.
    pub maximum: Option<u64>,
    /// What it was expected to hold when full of typical records.
    pub expected: u64,
    /// What was seen; `None`: nobody looked.
    pub observed: Option<u64>,
    /// Not a place of the ledger.
    pub unknown: bool,
}

impl Compared {
    /// Nothing was seen beyond the maximum.
    pub fn holds(&self) -> bool {
        !self.unknown && self.observed.unwrap_or(0) <= self.maximum.unwrap_or(u64::MAX)
    }
}

/// Calculated against observed, place by place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Comparison {
    lines: Vec<Compared>,
}

impl Comparison {
    /// Every place, those that the ledger does not know last.
    pub fn lines(&self) -> &[Compared] {
        &self.lines
    }

    /// Every place holds, and no place is unknown.
    pub fn holds(&self) -> bool {
        self.lines.iter().all(Compared::holds)
    }

    /// Sum of what was seen.
    pub fn observed(&self) -> u64 {
        self.lines.iter().fold(0, |sum, line| sum.saturating_add(line.observed.unwrap_or(0)))
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.lines.iter().map(|line| line.name.len()).max().unwrap_or(0).max("place".len());
        write!(f, "{:name$}  {:>19} {:>19} {:>19}  verdict", "place", "maximum", "expected", "observed")?;
        for line in &self.lines {
            let verdict = match line {
                Compared { unknown: true, .. } => "NOT IN THE LEDGER",
                Compared { observed: None, .. } => "not looked at",
                line if line.holds() => "holds",
                _ => "ABOVE ITS MAXIMUM",
            };
            let observed = line.observed.map_or_else(|| "-".into(), grouped);
            write!(
                f,
                "\n{:name$}  {:>19} {:>19} {observed:>19}  {verdict}",
                line.name,
                bytes(line.maximum),
                grouped(line.expected)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;
    const MIB: u64 = KIB * KIB;

    fn book() -> Ledger {
        let mut ledger = Ledger::new();
        let mut row = |name, capacity, each| {
            ledger.add(Reservation::payload(name, capacity, each, "the next stage", WhenFull::Wait));
        };
        row("connections", 256, 8 * KIB);
        row("messages", 512, 16 * KIB);
        row("workers", 32, 256 * KIB);
        row("commits", 128, 64 * KIB);
        ledger
    }

    #[test]
    fn four_reservations_of_a_relay_are_26_mib() {
        assert_eq!(book().rows().iter().map(|r| r.maximum().unwrap() / MIB).collect::<Vec<_>>(), [2, 8, 8, 8]);
        assert_eq!(book().maximum(Row::Payload), Some(26 * MIB));
        assert_eq!(book().maximum(Row::Overhead), Some(0));
        assert_eq!(book().total_expected(), 26 * MIB);
    }

    #[test]
    fn the_table_is_aligned_and_ends_in_the_sum() {
        let table = book().to_string();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 1 + 4 + 3);
        let column = |line: &str, word: &str| line.find(word).map(|at| at + word.len());
        assert_eq!(column(lines[0], "maximum"), column(lines[1], "2,097,152"));
        assert_eq!(column(lines[1], "2,097,152"), column(lines[7], "27,262,976"));
    }

    #[test]
    #[should_panic(expected = "two places are called workers")]
    fn a_place_is_counted_once() {
        let mut ledger = book();
        ledger.add(Reservation::overhead("workers", 1, 1, "", WhenFull::Never));
    }

    #[test]
    fn observed_bytes_are_held_against_the_maximum() {
        let ledger = book();
        let fine = ledger.compare([("connections", 2 * MIB), ("workers", MIB), ("workers", MIB)]);
        assert!(fine.holds());
        assert_eq!(fine.observed(), 4 * MIB);
        let above = ledger.compare([("connections", 2 * MIB + 1)]);
        assert!(!above.holds() && above.to_string().contains("ABOVE ITS MAXIMUM"));
        let unknown = ledger.compare([("retry queue", 0)]);
        assert!(!unknown.holds() && unknown.to_string().contains("NOT IN THE LEDGER"));
    }
}
