use afflux::sync::mark::{Mark, Released};

use super::{Arc, model, thread};

/// No lost waiter: whoever was counted is reported by the release that makes the room.
#[test]
fn a_refused_sender_is_seen_by_the_release() {
    model(|| {
        let mark = Arc::new(Mark::new(10));
        mark.try_admit(10).unwrap();
        let sender = {
            let mark = mark.clone();
            thread::spawn(move || mark.admit_or_wait(5).is_err())
        };
        let writer = {
            let mark = mark.clone();
            thread::spawn(move || mark.release(10))
        };
        let mut refused = u32::from(mark.admit_or_wait(5).is_err());
        refused += u32::from(sender.join().unwrap());
        let released = writer.join().unwrap();
        assert_eq!(mark.waiters(), refused);
        assert_eq!(released.waiters > 0, refused > 0);
        for _ in 0..refused {
            mark.admit_waiter(5).unwrap();
        }
        assert_eq!((mark.bytes(), mark.waiters()), (10, 0));
    });
}

/// A sender that does not wait never gets in front of one that does.
#[test]
fn nobody_overtakes_a_waiter() {
    model(|| {
        let mark = Arc::new(Mark::new(10));
        mark.try_admit(10).unwrap();
        mark.admit_or_wait(10).unwrap_err();
        let overtaker = {
            let mark = mark.clone();
            thread::spawn(move || mark.try_admit(1))
        };
        let writer = {
            let mark = mark.clone();
            thread::spawn(move || mark.release(10))
        };
        let early = mark.admit_waiter(10).is_ok();
        assert_eq!(writer.join().unwrap().waiters, 1);
        overtaker.join().unwrap().unwrap_err();
        assert!(early || mark.admit_waiter(10).is_ok());
        assert_eq!((mark.bytes(), mark.waiters()), (10, 0));
    });
}

/// A swap that was computed from the old limit fails once the new one is set.
#[test]
fn nothing_is_admitted_above_a_new_limit() {
    model(|| {
        let mark = Arc::new(Mark::new(10));
        mark.try_admit(2).unwrap();
        let sender = {
            let mark = mark.clone();
            thread::spawn(move || mark.admit_or_wait(6).is_ok())
        };
        mark.set_limit(4);
        let at_change = mark.bytes();
        let admitted = sender.join().unwrap();
        assert_eq!(mark.bytes(), at_change, "admitted after the change");
        assert_eq!(admitted, at_change == 8);
        assert_eq!(mark.waiters(), u32::from(!admitted));
    });
}

/// A waiter that was refused by the old limit is reported to whoever raises it.
#[test]
fn a_raise_reports_who_waits() {
    model(|| {
        let mark = Arc::new(Mark::new(4));
        mark.try_admit(2).unwrap();
        let sender = {
            let mark = mark.clone();
            thread::spawn(move || mark.admit_or_wait(6).is_err())
        };
        let reported = mark.set_limit(10);
        let refused = sender.join().unwrap();
        assert_eq!(reported, u32::from(refused));
        assert_eq!(mark.waiters(), reported);
    });
}

/// A sender that was refused by the block is reported to whoever lifts it.
#[test]
fn lifting_a_block_reports_who_waits() {
    model(|| {
        let mark = Arc::new(Mark::new(10));
        assert!(!mark.set_blocked(true));
        let sender = {
            let mark = mark.clone();
            thread::spawn(move || mark.admit_or_wait(5).is_err())
        };
        let owner_to_wake = mark.set_blocked(false);
        let refused = sender.join().unwrap();
        assert_eq!(owner_to_wake, refused);
        assert_eq!(mark.waiters(), u32::from(refused));
        assert_eq!(mark.bytes(), if refused { 0 } else { 5 });
    });
}

/// Of two that do not fit together one is admitted; only the first is alone.
#[test]
fn two_never_share_the_room_of_one() {
    model(|| {
        let mark = Arc::new(Mark::new(10));
        let other = {
            let mark = mark.clone();
            thread::spawn(move || mark.try_admit(20))
        };
        let mine = mark.try_admit(6);
        let theirs = other.join().unwrap();
        assert!(mine.is_ok() != theirs.is_ok());
        assert!(mine.or(theirs).unwrap().alone);
        assert_eq!(mark.release(mark.bytes()), Released { bytes: 0, waiters: 0 });
    });
}
