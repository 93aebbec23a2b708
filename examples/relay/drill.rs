//! Drills: faults of the store that an operator can order, to see what callers are told and what is kept.
//!
//! ```text
//!   --drill hang=3@100    the 100th commit takes three seconds longer
//!   --drill panic@100     the store's thread panics in the 100th commit
//! ```

use std::time::Duration;

/// A fault that is due at some commit, once.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Drill {
    fault: Option<Fault>,
    /// Commits until then.
    left: u64,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    Hang(Duration),
    Panic,
}

/// The rule of the option.
pub const RULE: &str = "must be hang=SECONDS@N or panic@N, with N the number of a commit, from 1";

impl Drill {
    /// As the option spells it; `None` breaks [`RULE`].
    pub fn parse(text: &str) -> Option<Drill> {
        let (what, at) = text.split_once('@')?;
        let left = at.parse().ok().filter(|n: &u64| *n > 0)?;
        let fault = match what.split_once('=') {
            None if what == "panic" => Fault::Panic,
            Some(("hang", seconds)) => {
                let seconds = seconds.parse().ok().filter(|s: &f64| *s > 0.0 && *s <= 3600.0)?;
                Fault::Hang(Duration::from_secs_f64(seconds))
            }
            _ => return None,
        };
        Some(Drill { fault: Some(fault), left })
    }

    /// Does what is due.
    pub fn before_commit(&mut self) {
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return;
        }
        match self.fault.take() {
            Some(Fault::Hang(time)) => std::thread::sleep(time),
            Some(Fault::Panic) => panic!("a drill: the store's thread was told to panic"),
            None => {}
        }
    }
}
