//! The cell pool.

use super::race::{both_orders, race2, race3, six_orders};
use super::{Arc, model, thread};
use afflux::base::id::CellId;
use afflux::base::time::Instant;
use afflux::sync::cell::{CellList, CellPool, CellState, Notify, Terms};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

/// How an operation ended. The payload comes back as itself.
#[derive(Clone, PartialEq, Eq, Debug)]
enum End {
    Reply,
    Late,
    Expired(Option<Payload>),
    Cancelled(Payload),
}

/// Counted by the standard library: whoever loses one is seen.
type Payload = std::sync::Arc<()>;
type Pool = CellPool<Payload, End>;

fn pool(capacity: u32) -> Arc<Pool> {
    Arc::new(CellPool::new(capacity, 1, |_| ()))
}

fn terms(deadline: u64) -> Terms {
    Terms { deadline: Instant(deadline), since: Instant(0), tag: 7, notify: Notify::None, self_timed: false }
}

fn claimed(pool: &Pool, terms: Terms) -> CellId {
    let place = pool.alloc().unwrap();
    let id = place.id();
    place.publish_claimed(terms);
    id
}

fn waiting(pool: &Pool, payload: &Payload) -> CellId {
    let place = pool.alloc().unwrap();
    let id = place.id();
    place.publish_waiting(payload.clone(), terms(1));
    id
}

/// The number of operations that a sweep ended.
fn expire(pool: &Pool) -> usize {
    let mut ended = 0;
    pool.sweep(Instant(1), |id, state, _| match state {
        CellState::Done => {
            pool.lapse(id, |end| end);
        }
        _ => ended += usize::from(pool.finish(id, End::Expired)),
    });
    ended
}

/// Every place is free, each once.
fn assert_all_free(pool: &Pool) {
    let places: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
    let mut distinct: Vec<_> = places.iter().map(|place| place.id().index).collect();
    distinct.sort_unstable();
    assert_eq!(distinct, (0..pool.capacity()).collect::<Vec<_>>());
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn reply_against_expiry() {
    both_orders(|order| {
        let pool = pool(1);
        let id = claimed(&pool, terms(1));
        let (replied, expired) = race2(order, &pool, move |pool| pool.finish_claimed(id, End::Reply).is_ok(), expire);
        assert_eq!(usize::from(replied) + expired, 1);
        assert_eq!(pool.take(id), Some(if replied { End::Reply } else { End::Expired(None) }));
        assert_all_free(&pool);
    });
}

#[test]
fn claim_by_the_shard_against_expiry_and_cancel() {
    six_orders(|order| {
        let (pool, payload) = (pool(1), Payload::default());
        let id = waiting(&pool, &payload);
        let (claimed, cancelled, expired) = race3(
            order,
            &pool,
            move |pool| pool.claim(id).map(|_sent| pool.finish_claimed(id, End::Reply).is_ok()),
            move |pool| pool.finish_waiting(id, End::Cancelled),
            move |pool| usize::from(pool.finish(id, End::Expired)),
        );
        match pool.take(id).unwrap() {
            End::Reply => assert_eq!((claimed, expired, cancelled), (Some(true), 0, false)),
            // Expired on its way, or before: only then there is something to give back.
            End::Expired(back) => {
                assert_eq!((expired, cancelled), (1, false));
                assert_eq!(claimed, if back.is_some() { None } else { Some(false) });
            }
            End::Cancelled(_) => assert_eq!((claimed, expired, cancelled), (None, 0, true)),
            End::Late => panic!(),
        }
        assert_eq!(Payload::strong_count(&payload), 1);
        assert_all_free(&pool);
    });
}

/// A holder registers twice while `end` ends its operation: the last one registered is woken, once.
fn first_poll_and_re_poll(end: impl Fn(&Pool, CellId) -> Result<(), End> + Copy + Send + Sync + 'static) {
    both_orders(move |order| {
        let pool = pool(1);
        let id = claimed(&pool, terms(9));
        let wakes = <[std::sync::Arc<Wakes>; 2]>::default();
        let wakers = wakes.clone();
        let ((), ended) = race2(
            order,
            &pool,
            move |pool| {
                for wakes in wakers {
                    assert!(pool.set_notify(id, Notify::Waker(wakes.into())));
                }
            },
            move |pool| end(pool, id),
        );
        assert_eq!(ended, Ok(()));
        assert_eq!(wakes[1].0.load(Ordering::Relaxed), 1, "the last one registered must be woken");
        assert!(wakes[0].0.load(Ordering::Relaxed) <= 1);
        assert!(wakes.iter().all(|wakes| std::sync::Arc::strong_count(wakes) == 1));
        assert_eq!(pool.take(id), Some(End::Reply));
        assert_all_free(&pool);
    });
}

#[test]
fn the_end_against_first_poll_and_re_poll() {
    first_poll_and_re_poll(|pool, id| pool.finish_claimed(id, End::Reply));
}

/// The same, of a reply whose wakes come after those of others.
#[test]
fn an_end_that_wakes_later_against_first_poll_and_re_poll() {
    first_poll_and_re_poll(|pool, id| {
        let mut later = Vec::new();
        let ended = pool.finish_claimed_later(id, End::Reply, &mut later);
        later.into_iter().for_each(std::task::Waker::wake);
        ended
    });
}

#[test]
fn dropping_the_last_holder_against_reply_and_expiry() {
    six_orders(|order| {
        let pool = pool(1);
        let id = claimed(&pool, terms(9));
        let (replied, detached, expired) = race3(
            order,
            &pool,
            move |pool| pool.finish_claimed(id, End::Reply).is_ok(),
            move |pool| pool.detach(id),
            move |pool| usize::from(pool.finish(id, End::Expired)),
        );
        assert_eq!((expired + usize::from(replied), detached), (1, true));
        assert_eq!(pool.state(id), None);
        assert_all_free(&pool);
    });
}

#[test]
fn dropping_the_last_holder_against_a_sweep() {
    both_orders(|order| {
        let (pool, payload) = (pool(1), Payload::default());
        let id = waiting(&pool, &payload);
        assert_eq!(race2(order, &pool, move |pool| pool.detach(id), expire), (true, 1));
        assert_eq!((pool.state(id), Payload::strong_count(&payload)), (None, 1));
        assert_all_free(&pool);
    });
}

#[test]
fn lapse_against_take() {
    both_orders(|order| {
        let pool = pool(1);
        let id = claimed(&pool, terms(1));
        assert_eq!(pool.finish_claimed(id, End::Reply), Ok(()));
        let (taken, cut) = race2(order, &pool, move |pool| pool.take(id), move |pool| pool.lapse(id, |_| End::Late));
        assert_eq!(taken, Some(if cut { End::Late } else { End::Reply }));
        assert_all_free(&pool);
    });
}

#[test]
fn a_late_reply_against_the_next_use_of_the_place() {
    both_orders(|order| {
        let pool = pool(1);
        let old = claimed(&pool, terms(9));
        assert!(pool.finish(old, End::Expired));
        let (late, new) = race2(
            order,
            &pool,
            move |pool| pool.finish_claimed(old, End::Late),
            move |pool| {
                assert_eq!(pool.take(old), Some(End::Expired(None)));
                claimed(pool, Terms { tag: 8, ..terms(9) })
            },
        );
        assert_eq!(late, Err(End::Late));
        assert_eq!((pool.state(new), pool.tag(new), pool.tag(old)), (Some(CellState::Claimed), Some(8), None));
    });
}

#[test]
fn a_stale_reader_sees_its_own_or_nothing() {
    both_orders(|order| {
        let pool = pool(1);
        let old = claimed(&pool, terms(9));
        let ((deadline, tag), ()) = race2(
            order,
            &pool,
            move |pool| (pool.deadline(old), pool.tag(old)),
            move |pool| {
                assert!(pool.finish(old, End::Expired) && pool.take(old).is_some());
                claimed(pool, Terms { tag: 8, ..terms(10) });
            },
        );
        assert!(deadline.is_none_or(|deadline| deadline == Instant(9)));
        assert!(tag.is_none_or(|tag| tag == 7));
    });
}

#[test]
fn a_done_list_against_a_holder_who_is_faster() {
    six_orders(|order| {
        let pool = pool(1);
        let listed = || Terms { notify: Notify::List(0), ..terms(9) };
        let id = claimed(&pool, listed());
        let (next, (), mut drained) = race3(
            order,
            &pool,
            move |pool| {
                pool.take(id)?;
                // Free already if the shard has found it; then the next operation starts here.
                let place = pool.alloc()?;
                let next = place.id();
                place.publish_claimed(listed());
                assert!(pool.finish_claimed(next, End::Reply).is_ok());
                Some(next)
            },
            move |pool| assert!(pool.finish_claimed(id, End::Reply).is_ok()),
            |pool| pool.pop(pool.done(0)).into_iter().map(|entry| entry.id).collect::<Vec<_>>(),
        );
        drained.extend(pool.drain(pool.done(0)).take(3).map(|entry| entry.id));
        assert_eq!(drained, [Some(id), next].into_iter().flatten().collect::<Vec<_>>(), "each is told once");
        for id in drained {
            pool.take(id);
        }
        assert_all_free(&pool);
    });
}

/// Who goes to sleep over an empty inbox has not missed what a pruner had in his hands.
#[test]
fn an_inbox_that_is_pruned_is_not_taken_for_empty() {
    model(|| {
        let (pool, payload) = (CellPool::new(2, 0, |_| ()), Payload::default());
        let [over, waits] = [(); 2].map(|()| waiting(&pool, &payload));
        let shared = Arc::new((pool, CellList::inbox()));
        let (pool, inbox) = &*shared;
        pool.push(inbox, over);
        pool.push(inbox, waits);
        assert!(pool.finish(over, End::Expired) && pool.take(over).is_some());
        let pruner = {
            let shared = shared.clone();
            thread::spawn(move || shared.0.prune(&shared.1, |_| ()))
        };
        assert!(!inbox.is_empty());
        pruner.join().unwrap();
        assert_eq!(pool.drain(inbox).map(|entry| entry.id).collect::<Vec<_>>(), [waits]);
        assert!(inbox.is_empty());
        assert!(pool.finish(waits, End::Expired) && pool.take(waits).is_some());
    });
}

#[test]
fn an_inbox_against_pruning() {
    six_orders(|order| {
        let (pool, payload) = (CellPool::new(2, 0, |_| ()), Payload::default());
        let [over, next] = [(); 2].map(|()| waiting(&pool, &payload));
        let shared = Arc::new((pool, CellList::inbox()));
        let (pool, inbox) = &*shared;
        pool.push(inbox, over);
        assert!(pool.finish(over, End::Expired) && pool.take(over).is_some());
        let (found, _was_empty, gone) = race3(
            order,
            &shared,
            |(pool, inbox)| pool.pop(inbox).map(|entry| entry.id),
            move |(pool, inbox)| pool.push(inbox, next),
            |(pool, inbox)| {
                let mut gone = Vec::new();
                pool.prune(inbox, |entry| gone.push(entry.id));
                gone
            },
        );
        let left = pool.drain(inbox).take(3).map(|entry| entry.id);
        let all: Vec<_> = gone.into_iter().chain(found).chain(left).collect();
        assert_eq!(all, [over, next], "each is reported once, in order");
        assert!(inbox.is_empty());
    });
}

/// An operation that found its target goes to that one's owner while its time is up and its holder takes the end:
/// who was told that it lies there finds it there, and takes its waiter off the mark.
#[test]
fn a_hand_over_against_an_end_that_is_taken() {
    both_orders(|order| {
        let (pool, payload) = (CellPool::new(1, 0, |_| ()), Payload::default());
        let id = waiting(&pool, &payload);
        let shared = Arc::new((pool, CellList::inbox()));
        let (pool, inbox) = &*shared;
        let (handed, ()) = race2(
            order,
            &shared,
            move |(pool, inbox)| pool.hand_over(inbox, id, 8).is_some(),
            move |(pool, _)| assert!(pool.finish(id, End::Expired) && pool.take(id).is_some()),
        );
        let found: Vec<_> = pool.drain(inbox).take(2).map(|entry| (entry.id, entry.tag)).collect();
        assert_eq!(found, if handed { vec![(id, 8)] } else { vec![] });
        assert_all_free(pool);
    });
}

#[test]
fn publishing_against_a_sweep() {
    both_orders(|order| {
        let pool = pool(2);
        // Nobody holds the first one: its end leaves no bound behind.
        assert!(pool.detach(claimed(&pool, terms(1))));
        let (_, expired) = race2(order, &pool, |pool| claimed(pool, terms(5)), expire);
        assert_eq!(expired, 1);
        assert!(pool.next_deadline() <= Instant(5), "nobody would look at the new one");
    });
}

#[test]
fn of_two_publishers_one_wakes_the_timekeeper() {
    both_orders(|order| {
        let pool = pool(2);
        let publish = |deadline| move |pool: &Pool| pool.alloc().unwrap().publish_claimed(terms(deadline));
        let (earlier, later) = race2(order, &pool, publish(4), publish(5));
        assert!(earlier || later);
        assert_eq!(pool.next_deadline(), Instant(4));
    });
}

#[test]
fn a_place_is_one_callers() {
    both_orders(|order| {
        let pool = pool(3);
        let publish = |place: afflux::sync::cell::Place<'_, _, _>| {
            let id = place.id();
            place.publish_claimed(terms(9));
            id.index
        };
        let (mine, theirs) = race2(
            order,
            &pool,
            move |pool| publish(pool.alloc().unwrap()),
            move |pool| {
                let (first, second) = (pool.alloc(), pool.alloc().unwrap());
                drop(first);
                publish(second)
            },
        );
        let third = pool.alloc().unwrap();
        let mut all = [mine, theirs, third.id().index];
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
        assert!(pool.alloc().is_none());
    });
}
