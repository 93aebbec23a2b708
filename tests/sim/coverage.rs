//! What a run has reached: injected faults and states of the engines, each with how often it was seen. A
//! state that no seed reaches is a state that nothing proves: it fails the run.

use std::collections::BTreeMap;

/// Which states were reached, and how often a step found them. One that was looked for and not found
/// is in it with zero.
#[derive(Clone, Default)]
pub struct Coverage {
    /// By where the name lies: steps are many, and a name is the same one nearly every time.
    counts: BTreeMap<usize, (&'static str, u64)>,
}

impl Coverage {
    pub fn see(&mut self, what: &'static str, seen: bool) {
        self.add(what, u64::from(seen));
    }

    pub fn add(&mut self, what: &'static str, n: u64) {
        self.counts.entry(what.as_ptr() as usize).or_insert((what, 0)).1 += n;
    }

    pub fn merge(&mut self, other: &Coverage) {
        for (what, n) in other.counts.values() {
            self.add(what, *n);
        }
    }

    fn by_name(&self) -> BTreeMap<&'static str, u64> {
        let mut names: BTreeMap<&'static str, u64> = BTreeMap::new();
        for (what, n) in self.counts.values() {
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
