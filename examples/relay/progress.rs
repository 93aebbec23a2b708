//! The line that says how far it is: once a second, over itself on a terminal, one after the other
//! elsewhere.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use afflux::base::unit::grouped;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::tally::Tally;

const EVERY: Duration = Duration::from_secs(1);

/// A thread that prints until it is ended.
pub struct Progress {
    end: Sender<()>,
    thread: JoinHandle<()>,
}

impl Progress {
    /// Prints on the error output.
    pub fn start(tally: Arc<Tally>) -> io::Result<Progress> {
        let (end, ended) = bounded(1);
        let thread = Builder::new().name("relay-progress".into()).spawn(move || print(&tally, &ended))?;
        Ok(Progress { end, thread })
    }

    /// Prints no more.
    pub fn end(self) {
        drop(self.end);
        // A panic in there has printed itself, and nothing depends on it.
        let _ = self.thread.join();
    }
}

fn print(tally: &Tally, ended: &Receiver<()>) {
    let mut err = io::stderr();
    let terminal = err.is_terminal();
    let (begin, mut last, mut lines) = (Instant::now(), (Instant::now(), 0), 0);
    while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        let (now, replies) = (Instant::now(), tally.replies.get());
        let rate = (replies - last.1) as f64 / (now - last.0).as_secs_f64();
        last = (now, replies);
        let line = format!(
            "{:4.0} s  sent {}  answered {}  errors {}  {}/s",
            begin.elapsed().as_secs_f64(),
            grouped(tally.sent.get()),
            grouped(replies),
            grouped(tally.errors.get()),
            grouped(rate as u64),
        );
        // Whoever has closed the error output does not want to know.
        let _ = if terminal { write!(err, "\r{line:<79}") } else { writeln!(err, "{line}") };
        lines += 1;
    }
    if terminal && lines > 0 {
        let _ = writeln!(err);
    }
}
