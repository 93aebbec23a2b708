//! Signals. Ctrl-C: the first one drains, one that comes a second later or after that ends the process as it is.
//! One signal may arrive twice: the terminal sends it to a whole group, and so do the tools that send it on.
//!
//! A file that has reached its size limit is an error of the write that found it, as a full disk is, and not
//! the end of the process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

const PATIENCE: Duration = Duration::from_secs(1);

/// Raises `stop` at the first signal, from a thread that waits for them until the process ends.
pub fn listen(stop: Arc<AtomicBool>) -> io::Result<()> {
    // What it would do by itself is to end the process; being handled is all that is wanted.
    #[cfg(target_os = "linux")]
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    Builder::new().name("relay-signals".into()).spawn(move || {
        let mut first = None;
        for signal in signals.forever() {
            if first.get_or_insert_with(Instant::now).elapsed() >= PATIENCE {
                std::process::exit(128 + signal);
            }
            // Relaxed: nothing is read that was written before it.
            stop.store(true, Ordering::Relaxed);
        }
    })?;
    Ok(())
}

/// Linux on every processor but the MIPS.
#[cfg(target_os = "linux")]
const SIGXFSZ: i32 = if cfg!(any(target_arch = "mips", target_arch = "mips64")) { 31 } else { 25 };
