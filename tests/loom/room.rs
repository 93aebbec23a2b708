use afflux::sync::room::Room;

use super::{Arc, model, thread};

/// Two enter while a third leaves: never above the bound, whatever the order.
#[test]
fn never_above_its_bound() {
    model(|| {
        let room = Arc::new(Room::new(2, 10));
        room.enter(4).unwrap();
        let enterer = |bytes: u64| {
            let room = room.clone();
            thread::spawn(move || room.enter(bytes).is_ok())
        };
        let (first, second) = (enterer(6), enterer(5));
        assert!(room.ops() <= 2 && room.bytes() <= 10);
        room.leave(4);
        let entered = [(first, 6), (second, 5)].map(|(enterer, bytes)| (enterer.join().unwrap(), bytes));
        let inside = || entered.iter().filter(|(ok, _)| *ok);
        assert!(inside().count() == 1, "6 and 5 do not fit together, and one of them always fits");
        assert_eq!((room.ops(), room.bytes()), (1, inside().map(|(_, bytes)| bytes).sum()));
        assert!(room.ops_peak() <= 2 && room.bytes_peak() <= 10);
    });
}

/// What is larger than the room is in there alone.
#[test]
fn an_oversize_one_is_alone() {
    model(|| {
        let room = Arc::new(Room::new(4, 10));
        let big = {
            let room = room.clone();
            thread::spawn(move || room.enter(100).is_ok())
        };
        let small = room.enter(1).is_ok();
        let big = big.join().unwrap();
        assert!(small != big);
        room.leave(if big { 100 } else { 1 });
        assert_eq!((room.ops(), room.bytes()), (0, 0));
    });
}
