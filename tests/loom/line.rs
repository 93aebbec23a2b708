use afflux::sync::line::Line;

use super::{Arc, model, thread};

/// Two come and go beside a third that stays: it becomes the first, and the others keep free what it wants.
#[test]
fn who_stays_becomes_the_first() {
    model(|| {
        let line = Arc::new(Line::default());
        let passing = |who: u64| {
            let line = line.clone();
            thread::spawn(move || {
                line.stand(who, 10 * who);
                line.leave(who)
            })
        };
        let (first, second) = (passing(1), passing(2));
        line.stand(3, 30);
        let left = [first.join().unwrap(), second.join().unwrap()];
        assert_eq!((line.kept_from(3), line.kept_from(1), line.kept_from(2)), (0, 30, 30), "{left:?}");
        assert!(line.leave(3), "the first, and the only one");
        assert_eq!((line.kept_from(1), line.kept_from(2)), (0, 0));
    });
}

/// Nobody passes the one that came first, whatever it wants later.
#[test]
fn the_order_is_that_of_coming() {
    model(|| {
        let line = Arc::new(Line::default());
        line.stand(1, 10);
        let other = {
            let line = line.clone();
            thread::spawn(move || line.stand(2, 20))
        };
        line.stand(1, 11);
        assert_eq!(line.kept_from(1), 0);
        other.join().unwrap();
        assert_eq!(line.kept_from(2), 11);
        assert!(!line.leave(2) && line.leave(1));
        assert_eq!(line.kept_from(2), 0);
    });
}
