//! The figures of one thread, published for everybody: counters, gauges and peaks by number.
//!
//! One thread writes, so a change is a plain load and store and no line is fought for; readers see
//! each figure whole, but not all figures of the same instant. Two figures agree with each other
//! only while nothing happens.
//!
//! A reset never stops the writer. Of counters the reader subtracts a [`MeterPage::snapshot`] that it
//! took at the reset. A peak must fall back to the present value, and only the writer may store:
//! so the reader asks, the writer follows once per turn, and until then the page says that it has
//! not settled.
//!
//! Full: a page has as many figures as it was made with; counters wrap after 2^64.

use crossbeam_utils::CachePadded;

use super::primitive::{AtomicU64, Ordering};

const FIGURES_PER_LINE: usize = 16;

/// The figures of one thread. See the module's text.
#[derive(Debug)]
pub struct MeterPage {
    /// Whole lines, so that two threads' pages never share one.
    lines: Box<[CachePadded<[AtomicU64; FIGURES_PER_LINE]>]>,
    figures: usize,
    resets_asked: CachePadded<AtomicU64>,
    resets_followed: CachePadded<AtomicU64>,
}

impl MeterPage {
    /// A page of `figures` zeros, numbered from 0.
    pub fn new(figures: usize) -> Self {
        MeterPage {
            lines: (0..figures.div_ceil(FIGURES_PER_LINE)).map(|_| CachePadded::default()).collect(),
            figures,
            resets_asked: CachePadded::new(AtomicU64::new(0)),
            resets_followed: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// Adds to a counter. Writer only: of two threads that add at once, one is lost.
    #[inline]
    pub fn add(&self, figure: usize, n: u64) {
        // Relaxed throughout: a figure hands over no other memory.
        let cell = self.cell(figure);
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets a gauge, or a counter that is kept elsewhere. Writer only.
    #[inline]
    pub fn set(&self, figure: usize, value: u64) {
        self.cell(figure).store(value, Ordering::Relaxed);
    }

    /// Raises a peak to `value`, if it is lower. Writer only.
    #[inline]
    pub fn max(&self, figure: usize, value: u64) {
        let cell = self.cell(figure);
        if cell.load(Ordering::Relaxed) < value {
            cell.store(value, Ordering::Relaxed);
        }
    }

    /// One figure.
    #[inline]
    pub fn get(&self, figure: usize) -> u64 {
        self.cell(figure).load(Ordering::Relaxed)
    }

    /// All figures, one after the other while the writer goes on.
    pub fn snapshot(&self) -> Vec<u64> {
        (0..self.figures).map(|figure| self.get(figure)).collect()
    }

    /// How many figures there are.
    pub fn figures(&self) -> usize {
        self.figures
    }

    /// Asks the writer to let peaks fall to the present values. Any reader may; returns the new
    /// [`MeterPage::epoch`].
    pub fn ask_reset(&self) -> u64 {
        self.resets_asked.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Writer, once per turn: if a reset was asked for, `restart` sets the peaks. Returns whether it
    /// was.
    #[inline]
    pub fn follow_reset(&self, restart: impl FnOnce(&Self)) -> bool {
        let asked = self.resets_asked.load(Ordering::Relaxed);
        if asked == self.resets_followed.load(Ordering::Relaxed) {
            return false;
        }
        if cfg!(afflux_mutation = "page_settles_early") {
            self.resets_followed.store(asked, Ordering::Release);
        }
        restart(self);
        // Release: the peaks are set before the page counts as settled; the partner is
        // `is_settled`.
        self.resets_followed.store(asked, Ordering::Release);
        true
    }

    /// How many resets were asked for so far.
    pub fn epoch(&self) -> u64 {
        self.resets_asked.load(Ordering::Relaxed)
    }

    /// Whether the writer has followed all resets: if not, peaks are still those of the last epoch.
    pub fn is_settled(&self) -> bool {
        // Acquire: peaks read after this are of the epoch; the partner is `follow_reset`.
        self.resets_followed.load(Ordering::Acquire) == self.epoch()
    }

    #[inline(always)]
    fn cell(&self, figure: usize) -> &AtomicU64 {
        &self.lines[figure / FIGURES_PER_LINE][figure % FIGURES_PER_LINE]
    }
}
