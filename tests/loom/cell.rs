//! The cell pool.

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
    model(|| {
        let pool = pool(1);
        let id = claimed(&pool, terms(1));
        let backstop = {
            let pool = pool.clone();
            thread::spawn(move || expire(&pool))
        };
        let replied = pool.finish_claimed(id, End::Reply).is_ok();
        let expired = backstop.join().unwrap();
        assert_eq!(usize::from(replied) + expired, 1);
        assert_eq!(pool.take(id), Some(if replied { End::Reply } else { End::Expired(None) }));
        assert_all_free(&pool);
    });
}

#[test]
fn claim_by_the_shard_against_expiry_and_cancel() {
    model(|| {
        let (pool, payload) = (pool(1), Payload::default());
        let id = waiting(&pool, &payload);
        let backstop = {
            let pool = pool.clone();
            thread::spawn(move || expire(&pool))
        };
        let shard = {
            let pool = pool.clone();
            thread::spawn(move || pool.claim(id).map(|_sent| pool.finish_claimed(id, End::Reply).is_ok()))
        };
        let cancelled = pool.finish_waiting(id, End::Cancelled);
        let expired = backstop.join().unwrap();
        let claimed = shard.join().unwrap();
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

#[test]
fn the_end_against_first_poll_and_re_poll() {
    model(|| {
        let pool = pool(1);
        let id = claimed(&pool, terms(9));
        let (first, second) = <(std::sync::Arc<Wakes>, std::sync::Arc<Wakes>)>::default();
        let ending = {
            let pool = pool.clone();
            thread::spawn(move || pool.finish_claimed(id, End::Reply))
        };
        for wakes in [&first, &second] {
            assert!(pool.set_notify(id, Notify::Waker(wakes.clone().into())));
        }
        assert_eq!(ending.join().unwrap(), Ok(()));
        assert_eq!(second.0.load(Ordering::Relaxed), 1, "the last one registered must be woken");
        assert!(first.0.load(Ordering::Relaxed) <= 1);
        assert_eq!(std::sync::Arc::strong_count(&first), 1);
        assert_eq!(pool.take(id), Some(End::Reply));
    });
}

#[test]
fn dropping_the_last_holder_against_reply_and_expiry() {
    model(|| {
        let (pool, payload) = (pool(1), Payload::default());
        let id = waiting(&pool, &payload);
        let backstop = {
            let pool = pool.clone();
            thread::spawn(move || expire(&pool))
        };
        let holder = {
            let pool = pool.clone();
            thread::spawn(move || assert!(pool.detach(id)))
        };
        let replied = pool.claim(id).map(|_sent| pool.finish_claimed(id, End::Reply).is_ok());
        holder.join().unwrap();
        // Claimed and expired, replied, or expired before: one end.
        assert_eq!(backstop.join().unwrap() + usize::from(replied == Some(true)), 1);
        assert_eq!(pool.state(id), None);
        assert_eq!(Payload::strong_count(&payload), 1);
        assert_all_free(&pool);
    });
}

#[test]
fn lapse_against_take() {
    model(|| {
        let pool = pool(1);
        let id = claimed(&pool, terms(1));
        assert_eq!(pool.finish_claimed(id, End::Reply), Ok(()));
        let backstop = {
            let pool = pool.clone();
            thread::spawn(move || {
                pool.sweep(Instant(1), |id, _, _| {
                    let _cut = pool.lapse(id, |_| End::Late);
                })
            })
        };
        let taken = pool.take(id);
        backstop.join().unwrap();
        assert!(matches!(taken, Some(End::Reply | End::Late)), "{taken:?}");
        assert_all_free(&pool);
    });
}

#[test]
fn a_late_reply_against_the_next_use_of_the_place() {
    model(|| {
        let pool = pool(1);
        let old = claimed(&pool, terms(9));
        assert!(pool.finish(old, End::Expired));
        let late = {
            let pool = pool.clone();
            thread::spawn(move || pool.finish_claimed(old, End::Late))
        };
        assert_eq!(pool.take(old), Some(End::Expired(None)));
        let new = claimed(&pool, Terms { tag: 8, ..terms(9) });
        assert_eq!((pool.tag(new), pool.tag(old)), (Some(8), None));
        assert_eq!(late.join().unwrap(), Err(End::Late));
        assert_eq!(pool.state(new), Some(CellState::Claimed));
    });
}

#[test]
fn a_stale_reader_sees_its_own_or_nothing() {
    model(|| {
        let pool = pool(1);
        let old = claimed(&pool, terms(9));
        let reader = {
            let pool = pool.clone();
            thread::spawn(move || (pool.deadline(old), pool.tag(old)))
        };
        assert!(pool.finish(old, End::Expired));
        assert!(pool.take(old).is_some());
        claimed(&pool, Terms { tag: 8, ..terms(10) });
        let (deadline, tag) = reader.join().unwrap();
        assert!(deadline.is_none_or(|deadline| deadline == Instant(9)));
        assert!(tag.is_none_or(|tag| tag == 7));
    });
}

#[test]
fn a_done_list_against_a_holder_who_is_faster() {
    model(|| {
        let pool = pool(1);
        let id = claimed(&pool, Terms { notify: Notify::List(0), ..terms(9) });
        let ending = {
            let pool = pool.clone();
            thread::spawn(move || assert!(pool.finish_claimed(id, End::Reply).is_ok()))
        };
        let shard = {
            let pool = pool.clone();
            thread::spawn(move || pool.drain(pool.done(0)).map(|entry| entry.id).collect::<Vec<_>>())
        };
        let mut told = Vec::new();
        if pool.take(id).is_some() {
            // Free already, if the shard has found it; then the next operation starts here.
            if let Some(place) = pool.alloc() {
                let next = place.id();
                place.publish_claimed(Terms { notify: Notify::List(0), ..terms(9) });
                assert!(pool.finish_claimed(next, End::Reply).is_ok());
                told.push(next);
            }
        }
        ending.join().unwrap();
        told.push(id);
        let mut drained = shard.join().unwrap();
        drained.extend(pool.drain(pool.done(0)).map(|entry| entry.id));
        told.sort_unstable_by_key(|id| id.generation);
        drained.sort_unstable_by_key(|id| id.generation);
        assert_eq!(drained, told, "each is told once");
        for id in told {
            pool.take(id);
        }
        assert_all_free(&pool);
    });
}

#[test]
fn an_inbox_against_pruning() {
    model(|| {
        let (pool, payload) = (pool(2), Payload::default());
        let inbox = Arc::new(CellList::inbox());
        let [over, next] = [(); 2].map(|()| waiting(&pool, &payload));
        pool.push(&inbox, over);
        assert!(pool.finish(over, End::Expired) && pool.take(over).is_some());
        let backstop = {
            let (pool, inbox) = (pool.clone(), inbox.clone());
            thread::spawn(move || {
                let mut gone = Vec::new();
                pool.prune(&inbox, |entry| gone.push(entry.id));
                gone
            })
        };
        let caller = {
            let (pool, inbox) = (pool.clone(), inbox.clone());
            thread::spawn(move || {
                let _was_empty = pool.push(&inbox, next);
            })
        };
        let mut found: Vec<_> = pool.pop(&inbox).into_iter().map(|entry| entry.id).collect();
        caller.join().unwrap();
        let gone = backstop.join().unwrap();
        found.extend(pool.drain(&inbox).map(|entry| entry.id));
        assert_eq!([gone, found].concat(), [over, next], "each is reported once, in order");
        assert!(inbox.is_empty());
    });
}

#[test]
fn publishing_against_a_sweep() {
    model(|| {
        let pool = pool(2);
        // Nobody holds the first one: its end leaves no bound behind.
        assert!(pool.detach(claimed(&pool, terms(1))));
        let backstop = {
            let pool = pool.clone();
            thread::spawn(move || expire(&pool))
        };
        claimed(&pool, terms(5));
        assert_eq!(backstop.join().unwrap(), 1);
        assert!(pool.next_deadline() <= Instant(5), "nobody would look at the new one");
    });
}

#[test]
fn of_two_publishers_one_wakes_the_timekeeper() {
    model(|| {
        let pool = pool(2);
        let other = {
            let pool = pool.clone();
            thread::spawn(move || pool.alloc().unwrap().publish_claimed(terms(5)))
        };
        let first = pool.alloc().unwrap().publish_claimed(terms(4));
        let second = other.join().unwrap();
        assert!(first || second);
        assert_eq!(pool.next_deadline(), Instant(4));
    });
}

#[test]
fn a_place_is_one_callers() {
    model(|| {
        let pool = pool(3);
        let other = {
            let pool = pool.clone();
            thread::spawn(move || {
                let (first, second) = (pool.alloc(), pool.alloc().unwrap());
                drop(first);
                let id = second.id();
                second.publish_claimed(terms(9));
                id
            })
        };
        let mine = pool.alloc().unwrap();
        let theirs = other.join().unwrap();
        let third = pool.alloc().unwrap();
        let mut all = [mine.id().index, theirs.index, third.id().index];
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
        assert!(pool.alloc().is_none());
    });
}
