use afflux::sync::mark::{Admitted, BYTES_MAX, Mark, Refused, Released};
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    TryAdmit(u64),
    AdmitOrWait(u64),
    AdmitWaiter(u64),
    AddWaiter,
    ForgetWaiter,
    /// Which of the admitted records leaves.
    Release(prop::sample::Index),
    SetBlocked(bool),
    SetLimit(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let charge = || prop_oneof![8 => 1_u64..8, 2 => 8_u64..30, 1 => Just(0), 1 => BYTES_MAX - 4..BYTES_MAX + 4];
    prop_oneof![
        4 => charge().prop_map(Op::TryAdmit),
        4 => charge().prop_map(Op::AdmitOrWait),
        3 => charge().prop_map(Op::AdmitWaiter),
        1 => Just(Op::AddWaiter),
        2 => Just(Op::ForgetWaiter),
        6 => any::<prop::sample::Index>().prop_map(Op::Release),
        1 => any::<bool>().prop_map(Op::SetBlocked),
        1 => prop_oneof![Just(0), 1_u64..30, Just(u64::MAX)].prop_map(Op::SetLimit),
    ]
}

#[derive(Default)]
struct Oracle {
    admitted: Vec<u64>,
    waiters: u32,
    blocked: bool,
    limit: u64,
}

impl Oracle {
    fn bytes(&self) -> u64 {
        self.admitted.iter().sum()
    }

    /// The rule of the house, in its own words.
    fn admit(&mut self, charge: u64, ahead: u32) -> Result<Admitted, Refused> {
        let bytes = self.bytes();
        let refused = Refused { used: bytes, limit: self.limit, waiters: self.waiters, blocked: self.blocked };
        let sum = u128::from(bytes) + u128::from(charge);
        let fits = self.limit == 0 || sum <= u128::from(self.limit) || bytes == 0;
        if ahead > 0 || self.blocked || !fits || sum > u128::from(BYTES_MAX) {
            return Err(refused);
        }
        self.admitted.push(charge);
        Ok(Admitted { alone: bytes == 0 })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_mark_follows_the_rule(limit in 0_u64..30, ops in vec(op(), 0..120)) {
        let mark = Mark::new(limit);
        let mut oracle = Oracle { limit, ..Oracle::default() };

        for op in ops {
            match op {
                Op::TryAdmit(charge) => {
                    let ahead = oracle.waiters;
                    prop_assert_eq!(mark.try_admit(charge), oracle.admit(charge, ahead));
                }
                Op::AdmitOrWait(charge) => {
                    let ahead = oracle.waiters;
                    let expected = oracle.admit(charge, ahead);
                    oracle.waiters += u32::from(expected.is_err());
                    prop_assert_eq!(mark.admit_or_wait(charge), expected);
                }
                Op::AdmitWaiter(charge) if oracle.waiters > 0 => {
                    let others = oracle.waiters - 1;
                    let mut expected = oracle.admit(charge, 0);
                    if let Ok(admitted) = &mut expected {
                        oracle.waiters = others;
                        admitted.alone &= others == 0;
                    }
                    prop_assert_eq!(mark.admit_waiter(charge), expected);
                }
                Op::AddWaiter => {
                    mark.add_waiter();
                    oracle.waiters += 1;
                }
                Op::ForgetWaiter if oracle.waiters > 0 => {
                    mark.forget_waiter();
                    oracle.waiters -= 1;
                }
                Op::Release(which) if !oracle.admitted.is_empty() => {
                    let charge = oracle.admitted.swap_remove(which.index(oracle.admitted.len()));
                    let left = Released { bytes: oracle.bytes(), waiters: oracle.waiters };
                    prop_assert_eq!(mark.release(charge), left);
                }
                Op::SetBlocked(blocked) => {
                    let to_wake = oracle.blocked && !blocked && oracle.waiters > 0;
                    prop_assert_eq!(mark.set_blocked(blocked), to_wake);
                    oracle.blocked = blocked;
                }
                Op::SetLimit(limit) => {
                    prop_assert_eq!(mark.set_limit(limit), oracle.waiters);
                    oracle.limit = limit;
                }
                Op::AdmitWaiter(_) | Op::ForgetWaiter | Op::Release(_) => {}
            }
            prop_assert_eq!(mark.bytes(), oracle.bytes());
            prop_assert_eq!(mark.waiters(), oracle.waiters);
            prop_assert_eq!(mark.is_blocked(), oracle.blocked);
            prop_assert_eq!(mark.limit(), oracle.limit);
        }
    }
}

/// The version of the limit is the topmost field: when it wraps, nothing else moves.
#[test]
fn a_limit_may_change_more_often_than_the_version_counts() {
    let mark = Mark::new(10);
    mark.try_admit(3).unwrap();
    mark.add_waiter();
    let _ = mark.set_blocked(true);
    for limit in 0..300 {
        assert_eq!(mark.set_limit(limit), 1);
        assert_eq!((mark.bytes(), mark.waiters(), mark.is_blocked(), mark.limit()), (3, 1, true, limit));
    }
}
