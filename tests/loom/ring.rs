use afflux::sync::ring::ring;

use super::{Arc, model, thread};

/// Three pushes into two slots, two takes: what was taken and what is left is what was pushed, in
/// order.
#[test]
fn items_arrive_whole_and_in_order() {
    model(|| {
        let (mut producer, mut consumer) = ring(2);
        let pusher =
            thread::spawn(move || (1..=3).filter(|n| producer.push(Box::new(*n)).is_ok()).collect::<Vec<i32>>());
        let mut taken: Vec<i32> = (0..2).filter_map(|_| consumer.pop()).map(|item| *item).collect();
        let pushed = pusher.join().unwrap();
        consumer.drain(usize::MAX, |item| taken.push(*item));
        assert_eq!(taken, pushed);
        assert!(pushed.len() >= 2);
    });
}

/// A batch is taken while the freed slots are filled again.
#[test]
fn a_batch_is_taken_under_the_producer() {
    model(|| {
        let (mut producer, mut consumer) = ring(2);
        producer.push(Box::new(1)).unwrap();
        producer.push(Box::new(2)).unwrap();
        let pusher = thread::spawn(move || (producer.free(), producer.push(Box::new(3)).is_ok()));
        let mut taken = Vec::new();
        assert_eq!(consumer.drain(2, |item| taken.push(*item)), 2);
        let (free, pushed) = pusher.join().unwrap();
        assert!(free == 0 || (free == 2 && pushed), "a batch gives its slots back at once");
        assert_eq!(consumer.drain(2, |item| taken.push(*item)), usize::from(pushed));
        assert_eq!(taken, &[1, 2, 3][..2 + usize::from(pushed)]);
    });
}

/// Whichever half goes last drops what nobody took, once.
#[test]
fn either_half_may_go_first() {
    model(|| {
        let token = Arc::new(());
        let (mut producer, mut consumer) = ring(2);
        let pushed = token.clone();
        let pusher = thread::spawn(move || {
            producer.push(pushed.clone()).unwrap();
            producer.push(pushed).unwrap();
        });
        drop(consumer.pop());
        drop(consumer);
        pusher.join().unwrap();
        assert_eq!(Arc::strong_count(&token), 1);
    });
}

/// The producer's last items are seen before its going is.
#[test]
fn an_abandoned_ring_has_nothing_left() {
    model(|| {
        let (mut producer, mut consumer) = ring(2);
        let pusher = thread::spawn(move || producer.push(Box::new(1)).unwrap());
        // Nothing was taken yet, so either the producer is there or the item is.
        assert!(!consumer.is_abandoned());
        pusher.join().unwrap();
        assert_eq!(consumer.pop(), Some(Box::new(1)));
        assert!(consumer.is_abandoned());
    });
}

/// The consumer's going is seen by the producer, with every slot it had emptied.
#[test]
fn a_producer_learns_that_nobody_takes() {
    model(|| {
        let (mut producer, mut consumer) = ring(1);
        producer.push(Box::new(1)).unwrap();
        let taker = thread::spawn(move || consumer.pop().is_some());
        if producer.is_abandoned() {
            assert_eq!(producer.free(), 1);
        }
        assert!(taker.join().unwrap());
        assert!(producer.is_abandoned());
        assert_eq!(producer.push(Box::new(2)), Ok(()));
    });
}
