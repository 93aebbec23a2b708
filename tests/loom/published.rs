use afflux::sync::published::Published;

use super::atomic::{AtomicBool, Ordering};
use super::{Arc, model, thread};

/// A reader's copy is never newer in name than in content: after a last refresh it has the last
/// value.
#[test]
fn a_copy_does_not_stay_stale() {
    model(|| {
        let published = Arc::new(Published::new(0.into()));
        let writer = {
            let published = published.clone();
            thread::spawn(move || {
                published.store(1.into());
                published.store(2.into());
            })
        };
        let mut copy = published.cached();
        let before = *copy;
        published.refresh(&mut copy);
        assert!(*copy >= before);
        assert_eq!(copy.version(), *copy);
        writer.join().unwrap();
        published.refresh(&mut copy);
        assert_eq!((*copy, copy.version(), *published.load()), (2, 2, 2));
        assert!(!published.refresh(&mut copy));
    });
}

/// Who was told of a change refreshes to it.
#[test]
fn a_change_that_was_announced_is_seen() {
    model(|| {
        let published = Arc::new(Published::new(0.into()));
        let told = Arc::new(AtomicBool::new(false));
        let mut copy = published.cached();
        let writer = {
            let (published, told) = (published.clone(), told.clone());
            thread::spawn(move || {
                published.store(1.into());
                told.store(true, Ordering::Release);
            })
        };
        if told.load(Ordering::Acquire) {
            assert!(published.refresh(&mut copy));
            assert_eq!(*copy, 1);
        }
        writer.join().unwrap();
    });
}
