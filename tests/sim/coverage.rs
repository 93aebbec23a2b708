//! What a run has reached: injected faults and states of the engines, each with how often it was seen. A
//! state that no seed reaches is a state that nothing proves: it fails the run.

use std::collections::BTreeMap;

/// Which states were reached, and how often a step found them. One that was looked for and not found
/// is in it with zero, and so is every one of [`EXPECTED`].
#[derive(Clone)]
pub struct Coverage {
    /// By where the name lies: steps are many, and a name is the same one nearly every time.
    places: Vec<Option<(&'static str, u64)>>,
}

/// More than three times as many as there are names.
const PLACES: usize = 1 << 10;

/// What is only told of when it happens.
const EXPECTED: [&str; 27] = [
    "a record in assembly got no byte in time",
    "end: accepted",
    "end: failed after it was sent",
    "end: let go",
    "end: payload back, cancelled",
    "end: payload back, no room in time",
    "end: payload back, nobody there",
    "end: payload back, target gone",
    "end: payload back, waiting room full",
    "end: reply",
    "end: reply to a handler",
    "fault: application lane cut",
    "fault: completion lane cut",
    "fault: connection cut in its handshake",
    "fault: dials refused",
    "fault: freeze of one direction",
    "fault: handler panics",
    "fault: host gone without a word",
    "fault: host killed",
    "fault: host shut down",
    "fault: stuck shard",
    "fault: thread interrupted with the baton of a lane of records",
    "fault: thread interrupted with the baton of a lane of replies",
    "no byte on either lane in time",
    "request skipped that had expired",
    "shutdown at its deadline",
    "shutdown found everything done",
];

impl Default for Coverage {
    fn default() -> Self {
        let mut coverage = Coverage { places: vec![None; PLACES] };
        EXPECTED.iter().for_each(|what| coverage.add(what, 0));
        coverage
    }
}

impl Coverage {
    pub fn see(&mut self, what: &'static str, seen: bool) {
        self.add(what, u64::from(seen));
    }

    pub fn add(&mut self, what: &'static str, n: u64) {
        let mut at = (what.as_ptr() as usize).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54;
        loop {
            match &mut self.places[at % PLACES] {
                Some((name, count)) if name.as_ptr() == what.as_ptr() => return *count += n,
                Some(_) => at += 1,
                free => return *free = Some((what, n)),
            }
        }
    }

    pub fn merge(&mut self, other: &Coverage) {
        for (what, n) in other.places.iter().flatten() {
            self.add(what, *n);
        }
    }

    fn by_name(&self) -> BTreeMap<&'static str, u64> {
        let mut names: BTreeMap<&'static str, u64> = BTreeMap::new();
        for (what, n) in self.places.iter().flatten() {
            *names.entry(what).or_default() += n;
        }
        names
    }

    pub fn never(&self) -> Vec<&'static str> {
        self.by_name().into_iter().filter(|(_, n)| *n == 0).map(|(what, _)| what).collect()
    }

    pub fn print(&self) {
        for (what, n) in self.by_name() {
            let mark = if n == 0 { "NEVER" } else { "" };
            println!("  {what:<56} {n:>12}  {mark}");
        }
    }
}
