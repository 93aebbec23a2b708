use afflux::sync::room::{ROOM_BYTES_MAX, ROOM_OPS_MAX, Room, RoomFull};
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Enter(u64),
    /// Which of those inside leaves.
    Leave(prop::sample::Index),
    ResetPeaks,
}

fn op() -> impl Strategy<Value = Op> {
    let bytes =
        prop_oneof![8 => 0_u64..8, 2 => 8_u64..40, 1 => ROOM_BYTES_MAX - 4..ROOM_BYTES_MAX + 4, 1 => Just(u64::MAX)];
    prop_oneof![
        6 => bytes.prop_map(Op::Enter),
        5 => any::<prop::sample::Index>().prop_map(Op::Leave),
        1 => Just(Op::ResetPeaks),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_room_is_never_above_its_bounds(
        ops_max in prop_oneof![0_u32..6, Just(u32::MAX)],
        bytes_max in prop_oneof![0_u64..30, Just(u64::MAX)],
        ops in vec(op(), 0..120),
    ) {
        let room = Room::new(ops_max, bytes_max);
        let (ops_max, bytes_max) = (ops_max.min(ROOM_OPS_MAX), bytes_max.min(ROOM_BYTES_MAX));
        let mut inside: Vec<u64> = Vec::new();
        let mut peaks = (0, 0);

        for op in ops {
            let count = inside.len() as u32;
            let sum: u64 = inside.iter().sum();
            match op {
                Op::Enter(bytes) => {
                    let together = u128::from(sum) + u128::from(bytes);
                    let fits = count < ops_max && together <= u128::from(bytes_max);
                    let expected = match fits || (inside.is_empty() && bytes <= ROOM_BYTES_MAX) {
                        true => {
                            inside.push(bytes);
                            Ok(())
                        }
                        false => Err(RoomFull { ops: count, ops_max, bytes: sum, bytes_max }),
                    };
                    prop_assert_eq!(room.enter(bytes), expected);
                }
                Op::Leave(which) if !inside.is_empty() => {
                    room.leave(inside.swap_remove(which.index(inside.len())));
                }
                Op::ResetPeaks => {
                    room.reset_peaks();
                    peaks = (count, sum);
                }
                Op::Leave(_) => {}
            }
            let (count, sum) = (inside.len() as u32, inside.iter().sum());
            peaks = (peaks.0.max(count), peaks.1.max(sum));
            prop_assert_eq!((room.ops(), room.bytes()), (count, sum));
            prop_assert_eq!((room.ops_peak(), room.bytes_peak()), peaks);
            prop_assert!(count <= 1 || (count <= ops_max && sum <= bytes_max));
        }
    }
}
