use afflux::sync::page::MeterPage;

use super::{Arc, model, thread};

const COUNT: usize = 0;
const GAUGE: usize = 1;
const PEAK: usize = 2;

/// Readers see a counter only ever grow, and all of it once the writer is done.
#[test]
fn a_counter_never_falls() {
    model(|| {
        let page = Arc::new(MeterPage::new(3));
        let writer = {
            let page = page.clone();
            thread::spawn(move || {
                page.add(COUNT, 1);
                page.add(COUNT, 1);
            })
        };
        let first = page.get(COUNT);
        let second = page.snapshot()[COUNT];
        assert!(first <= second && second <= 2);
        writer.join().unwrap();
        assert_eq!(page.get(COUNT), 2);
    });
}

/// A reset never stops the writer, and a page that says it has settled has the new peak.
#[test]
fn a_settled_page_has_the_new_peak() {
    model(|| {
        let page = Arc::new(MeterPage::new(3));
        let writer = {
            let page = page.clone();
            thread::spawn(move || {
                page.max(PEAK, 9);
                page.set(GAUGE, 4);
                while !page.follow_reset(|page| page.set(PEAK, page.get(GAUGE))) {
                    thread::yield_now();
                }
            })
        };
        assert_eq!(page.ask_reset(), 1);
        while !page.is_settled() {
            thread::yield_now();
        }
        assert_eq!(page.get(PEAK), 4);
        writer.join().unwrap();
        assert_eq!((page.epoch(), page.get(GAUGE)), (1, 4));
    });
}
