//! One thread's numbers: the table's rows over a page that its owner alone writes.
//!
//! A gauge takes its peak along, so that no writer can forget it. Peaks restart once per turn if a
//! reset was asked for; until then the page reads as not settled and its gauges stand in for them.

use super::table::{Kind, Meter};
use crate::sync::page::MeterPage;

/// The numbers of one thread, all 0 at first. Everybody may read; of two threads that write, one
/// loses what it wrote.
#[derive(Debug)]
pub struct Page(MeterPage);

impl Page {
    /// A page for every row of the table.
    pub fn new() -> Self {
        Page(MeterPage::new(Meter::COUNT))
    }

    /// Adds to a counter, or to a gauge that is kept as a difference and has no peak.
    #[inline]
    pub fn add(&self, meter: Meter, n: u64) {
        self.0.add(meter.index(), n);
    }

    /// Takes from a gauge what [`Page::add`] gave, here or on another thread's page.
    #[inline]
    pub fn sub(&self, meter: Meter, n: u64) {
        self.0.add(meter.index(), n.wrapping_neg());
    }

    /// Sets a gauge and raises its peak; or sets a counter that is kept elsewhere.
    #[inline]
    pub fn set(&self, meter: Meter, value: u64) {
        self.0.set(meter.index(), value);
        if let Some(peak) = meter.peak() {
            self.0.max(peak.index(), value);
        }
    }

    /// Raises a peak to a value that its gauge had between two calls of [`Page::set`].
    #[inline]
    pub fn raise(&self, peak: Meter, value: u64) {
        self.0.max(peak.index(), value);
    }

    /// One number as this thread has it.
    #[inline]
    pub fn get(&self, meter: Meter) -> u64 {
        self.0.get(meter.index())
    }

    /// Asks the writer to restart its peaks. After [`Measurement::reset`](super::Measurement::reset).
    pub fn ask_reset(&self) {
        self.0.ask_reset();
    }

    /// Writer, once per turn: peaks become what their gauges are now, if a reset was asked for.
    #[inline]
    pub fn follow_reset(&self) {
        self.0.follow_reset(|page| {
            for &meter in Meter::ALL {
                if let Kind::Peak(gauge) = meter.row().kind {
                    page.set(meter.index(), page.get(gauge.index()));
                }
            }
        });
    }

    /// All numbers, each read once.
    pub fn read(&self) -> Reading {
        // In this order: peaks read after a page was seen to have settled are of its epoch.
        let settled = self.0.is_settled();
        Reading { values: self.0.snapshot(), settled }
    }
}

impl Default for Page {
    fn default() -> Self {
        Page::new()
    }
}

/// What a page, or whoever knows numbers that no thread owns, said at one moment.
#[derive(Debug)]
pub struct Reading {
    values: Vec<u64>,
    settled: bool,
}

impl Reading {
    /// A reading without a page: of the permit gate, for example. Its peaks are of the running epoch.
    pub fn of(numbers: impl IntoIterator<Item = (Meter, u64)>) -> Self {
        let mut values = vec![0; Meter::COUNT];
        for (meter, value) in numbers {
            values[meter.index()] = value;
        }
        Reading { values, settled: true }
    }

    /// One number. A peak of an older epoch reads as its gauge.
    pub fn value(&self, meter: Meter) -> u64 {
        match meter.row().kind {
            Kind::Peak(gauge) if !self.settled => self.values[gauge.index()],
            _ => self.values[meter.index()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_takes_its_peak_along() {
        let page = Page::new();
        page.set(Meter::OwnedAccounted, 70);
        page.set(Meter::OwnedAccounted, 7);
        page.raise(Meter::RoomOperationsPeak, 3);
        let r = page.read();
        assert_eq!((r.value(Meter::OwnedAccounted), r.value(Meter::OwnedAccountedPeak)), (7, 70));
        assert_eq!(r.value(Meter::RoomOperationsPeak), 3);
    }

    #[test]
    fn peaks_read_as_their_gauges_until_the_writer_restarts_them() {
        let page = Page::new();
        page.set(Meter::OwnedAccounted, 70);
        page.set(Meter::OwnedAccounted, 7);
        let peak = |page: &Page| page.read().value(Meter::OwnedAccountedPeak);
        page.follow_reset();
        assert_eq!(peak(&page), 70, "nobody asked");
        page.ask_reset();
        assert_eq!(peak(&page), 7, "the peak is of the old epoch");
        page.set(Meter::OwnedAccounted, 9);
        assert_eq!(peak(&page), 9);
        page.follow_reset();
        page.set(Meter::OwnedAccounted, 8);
        assert_eq!(peak(&page), 9);
    }

    #[test]
    fn a_difference_may_be_lowered_where_it_was_not_raised() {
        let (a, b) = (Page::new(), Page::new());
        a.add(Meter::RequestsPending, 5);
        b.sub(Meter::RequestsPending, 2);
        assert_eq!(a.get(Meter::RequestsPending).wrapping_add(b.get(Meter::RequestsPending)), 3);
    }
}
