use super::*;
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::task::Wake;

type Pool = CellPool<String, Result<&'static str, String>>;

fn pool(capacity: u32) -> Pool {
    CellPool::new(capacity, 2, |_| ())
}

fn terms(deadline: u64) -> Terms {
    Terms { deadline: Instant(deadline), since: Instant(0), tag: 7, notify: Notify::None, self_timed: false }
}

fn waiting(pool: &Pool, deadline: u64) -> CellId {
    let place = pool.alloc().unwrap();
    let id = place.id();
    place.publish_waiting("payload".into(), terms(deadline));
    id
}

fn claimed(pool: &Pool, deadline: u64) -> CellId {
    let place = pool.alloc().unwrap();
    let id = place.id();
    place.publish_claimed(terms(deadline));
    id
}

fn back(payload: Option<String>) -> Result<&'static str, String> {
    Err(payload.unwrap_or_default())
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Count {
    fn waker(self: &Arc<Self>) -> Notify {
        Notify::Waker(self.clone().into())
    }

    fn wakes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum From {
    Private,
    Waiting,
    Claimed,
    Done,
    /// Taken, but still in an inbox.
    Spent,
    /// Taken, place free.
    Vacant,
}

const ALL: [From; 6] = [From::Private, From::Waiting, From::Claimed, From::Done, From::Spent, From::Vacant];

/// What an event says and does in each state, in the order of [`ALL`]: did it win, and what the id
/// leads to afterwards (`-` nothing, `W` waiting, `C` claimed, `D` done).
const TABLE: [(&str, [&str; 6]); 11] = [
    ("claim", ["no -", "yes C", "no C", "no D", "no -", "no -"]),
    ("with_waiting", ["no -", "yes W", "no C", "no D", "no -", "no -"]),
    ("hand_over", ["no -", "yes W", "yes C", "no D", "no -", "no -"]),
    ("finish", ["no -", "yes D", "yes D", "no D", "no -", "no -"]),
    ("finish_waiting", ["no -", "yes D", "no C", "no D", "no -", "no -"]),
    ("finish_claimed", ["no -", "no W", "yes D", "no D", "no -", "no -"]),
    ("take", ["no -", "no W", "no C", "yes -", "no -", "no -"]),
    ("detach", ["no -", "yes W", "yes C", "yes -", "no -", "no -"]),
    ("set_notify", ["no -", "yes W", "yes C", "yes D", "no -", "no -"]),
    ("lapse", ["no -", "no W", "no C", "yes D", "no -", "no -"]),
    ("push", ["no -", "yes W", "yes C", "yes D", "no -", "no -"]),
];

#[test]
fn every_event_in_every_state() {
    for (event, row) in TABLE {
        for (from, expected) in ALL.into_iter().zip(row) {
            let pool = pool(2);
            let inbox = CellList::inbox();
            let mut private = None;
            let id = match from {
                From::Private => private.insert(pool.alloc().unwrap()).id(),
                From::Waiting => waiting(&pool, 10),
                From::Claimed => claimed(&pool, 10),
                From::Done | From::Spent | From::Vacant => waiting(&pool, 10),
            };
            if from == From::Spent {
                pool.push(&inbox, id);
            }
            if matches!(from, From::Done | From::Spent | From::Vacant) {
                assert!(pool.finish(id, back));
            }
            if matches!(from, From::Spent | From::Vacant) {
                assert_eq!(pool.take(id), Some(Err("payload".into())));
            }
            let won = match event {
                "claim" => pool.claim(id).is_some_and(|payload| payload == "payload"),
                "with_waiting" => pool.with_waiting(id, |payload| payload.len()) == Some(7),
                "hand_over" => pool.hand_over(&inbox, id, 8) == Some(true) && pool.tag(id) == Some(8),
                "finish" => pool.finish(id, back),
                "finish_waiting" => pool.finish_waiting(id, Err),
                "finish_claimed" => pool.finish_claimed(id, Ok("reply")).is_ok(),
                "take" => pool.take(id) == Some(Err("payload".into())),
                "detach" => pool.detach(id),
                "set_notify" => pool.set_notify(id, Notify::None),
                "lapse" => pool.lapse(id, |_| Ok("cut")),
                "push" => pool.push(&inbox, id),
                _ => unreachable!(),
            };
            let after = match pool.state(id) {
                None => '-',
                Some(CellState::Waiting) => 'W',
                Some(CellState::Claimed) => 'C',
                Some(CellState::Done) => 'D',
            };
            assert_eq!(format!("{} {after}", if won { "yes" } else { "no" }), expected, "{event} in {from:?}");
            assert_eq!(pool.is_live(id), matches!(after, 'W' | 'C'));
            assert_eq!(pool.deadline(id).is_some(), after != '-');
        }
    }
}

#[test]
fn a_late_reply_is_given_back_and_changes_nothing() {
    let pool = pool(1);
    let first = claimed(&pool, 10);
    assert!(pool.finish(first, back));
    assert_eq!(pool.finish_claimed(first, Ok("late")), Err(Ok("late")));
    assert_eq!(pool.take(first), Some(Err(String::new())));
    let second = claimed(&pool, 10);
    assert_eq!(first.index, second.index);
    assert_eq!(pool.finish_claimed(first, Ok("late")), Err(Ok("late")));
    assert_eq!(pool.finish_claimed(CellId { index: 99, generation: 0 }, Ok("wild")), Err(Ok("wild")));
    assert_eq!(pool.finish_claimed(second, Ok("in time")), Ok(()));
    assert_eq!(pool.take(second), Some(Ok("in time")));
}

#[test]
fn an_unpublished_place_leads_nowhere_and_comes_back() {
    let pool = pool(1);
    let place = pool.alloc().unwrap();
    assert!(pool.alloc().is_none());
    let id = place.id();
    drop(place);
    let again = pool.alloc().unwrap().id();
    assert_eq!((again.index, again.generation), (id.index, id.generation + 1));
}

#[test]
fn the_end_is_told_once_to_the_last_registered() {
    let pool = pool(1);
    let (old, new) = (Arc::new(Count::default()), Arc::new(Count::default()));
    let id = waiting(&pool, 10);
    assert!(pool.set_notify(id, old.waker()));
    assert!(pool.set_notify(id, new.waker()));
    assert_eq!(Arc::strong_count(&old), 1, "a replaced waker is let go");
    assert!(pool.finish(id, back));
    assert_eq!((old.wakes(), new.wakes()), (0, 1));
    assert!(pool.set_notify(id, old.waker()), "over already: told at once");
    assert_eq!((old.wakes(), new.wakes()), (1, 1));
    assert!(pool.take(id).is_some());
    assert!(!pool.set_notify(id, old.waker()));
    assert_eq!(old.wakes(), 1);
}

#[test]
fn a_done_list_gets_each_end_once_in_order_and_its_owner_is_woken_when_it_was_empty() {
    let woken = Arc::new(AtomicU32::new(0));
    let seen = woken.clone();
    let pool: Pool = CellPool::new(4, 2, move |list| {
        assert_eq!(list, 1);
        seen.fetch_add(1, Ordering::Relaxed);
    });
    let ids: Vec<_> = (0..3).map(|_| claimed(&pool, 10)).collect();
    for id in &ids {
        assert!(pool.set_notify(*id, Notify::List(1)));
    }
    assert!(pool.done(1).is_empty());
    for id in [ids[2], ids[0]] {
        assert_eq!(pool.finish_claimed(id, Ok("reply")), Ok(()));
    }
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    assert!(pool.set_notify(ids[0], Notify::List(1)), "stands there already");
    assert_eq!(pool.finish_claimed(ids[1], Ok("reply")), Ok(()));
    let order: Vec<_> = pool.drain(pool.done(1)).collect();
    assert_eq!(order, [ids[2], ids[0], ids[1]].map(|id| Entry { id, tag: 7 }));
    assert!(pool.done(1).is_empty());
    assert!(pool.set_notify(ids[0], Notify::List(1)), "done and not taken: told again");
    assert_eq!((pool.drain(pool.done(1)).count(), woken.load(Ordering::Relaxed)), (1, 2));
    assert!(ids.iter().all(|id| pool.take(*id) == Some(Ok("reply"))));
}

#[test]
fn a_place_that_stands_in_a_list_is_not_used_again() {
    let pool = pool(1);
    let inbox = CellList::inbox();
    let id = waiting(&pool, 10);
    assert!(pool.push(&inbox, id));
    assert!(!pool.push(&inbox, id), "only once");
    assert!(pool.finish(id, back));
    assert!(pool.take(id).is_some());
    assert!(pool.alloc().is_none());
    assert_eq!(pool.pop(&inbox), Some(Entry { id, tag: 7 }), "reported although it is over");
    assert_eq!(pool.alloc().map(|place| place.id().generation), Some(1));
    assert!(!pool.push(&inbox, id), "stale");
}

#[test]
fn both_lists_must_let_go_of_a_place() {
    for inbox_first in [false, true] {
        let pool = pool(1);
        let inbox = CellList::inbox();
        let id = waiting(&pool, 10);
        pool.push(&inbox, id);
        pool.set_notify(id, Notify::List(0));
        pool.finish(id, back);
        pool.take(id);
        let lists = if inbox_first { [&inbox, pool.done(0)] } else { [pool.done(0), &inbox] };
        assert!(pool.pop(lists[0]).is_some());
        assert!(pool.alloc().is_none());
        assert!(pool.pop(lists[1]).is_some());
        assert!(pool.alloc().is_some());
    }
}

#[test]
fn prune_frees_what_is_over_and_keeps_the_order_of_the_rest() {
    let pool = pool(6);
    let inbox = CellList::inbox();
    let ids: Vec<_> = (0..6).map(|_| waiting(&pool, 10)).collect();
    for id in &ids {
        pool.push(&inbox, *id);
    }
    for over in [0, 2, 3, 5] {
        pool.finish(ids[over], back);
    }
    for taken in [0, 3, 5] {
        pool.take(ids[taken]);
    }
    let mut gone = Vec::new();
    pool.prune(&inbox, |entry| gone.push(entry.id));
    assert_eq!(gone, [ids[0], ids[3], ids[5]]);
    let late = waiting(&pool, 10);
    pool.push(&inbox, late);
    let rest: Vec<_> = pool.drain(&inbox).map(|entry| entry.id).collect();
    assert_eq!(rest, [ids[1], ids[2], ids[4], late]);
}

#[test]
fn a_detached_operation_runs_on_and_its_end_frees_the_place() {
    let pool = pool(1);
    let wakes = Arc::new(Count::default());
    let id = waiting(&pool, 10);
    pool.set_notify(id, wakes.waker());
    assert!(pool.detach(id));
    assert!(!pool.detach(id) && !pool.set_notify(id, Notify::None), "nobody holds it");
    assert_eq!(Arc::strong_count(&wakes), 1);
    assert_eq!(pool.claim(id).as_deref(), Some("payload"));
    assert_eq!(pool.finish_claimed(id, Ok("reply")), Ok(()));
    assert_eq!((pool.state(id), wakes.wakes()), (None, 0));
    assert!(pool.alloc().is_some());
    assert_eq!(pool.counts(), CellCounts::default());
}

#[test]
fn a_sweep_offers_what_is_due_and_nothing_else() {
    let pool = pool(600);
    assert_eq!(pool.next_deadline(), Instant::NEVER);
    let late = waiting(&pool, 500);
    let early = claimed(&pool, 100);
    let far: Vec<_> = (0..400).map(|i| waiting(&pool, 300 + i)).collect();
    assert_eq!(pool.next_deadline(), Instant(100));
    pool.sweep(Instant(99), |_, _, _| panic!("nothing is due"));
    let mut ended = Vec::new();
    pool.sweep(Instant(100), |id, state, tag| {
        ended.push((id, state, tag));
        assert!(pool.finish(id, back));
    });
    assert_eq!(ended, [(early, CellState::Claimed, 7)]);
    // Ended, not taken: the outcome has until the deadline, which is over.
    assert_eq!(pool.next_deadline(), Instant(100));
    pool.sweep(Instant(100), |id, state, _| {
        assert_eq!((id, state), (early, CellState::Done));
        assert!(pool.lapse(id, |_| Err("cut".into())));
    });
    assert_eq!(pool.next_deadline(), Instant(300));
    assert_eq!(pool.take(early), Some(Err("cut".into())));
    assert!(pool.detach(late));
    let mut ends = 0;
    pool.sweep(Instant(500), |id, state, _| match state {
        CellState::Done => assert!(pool.lapse(id, |outcome| outcome)),
        _ => {
            ends += 1;
            assert!(pool.finish(id, back));
        }
    });
    assert_eq!(ends, 202, "301 to 500 of the far, and the one whose holder went");
    assert_eq!(pool.state(late), None, "nobody waits for it");
    assert!(far.iter().all(|id| pool.state(*id).is_some()));
}

#[test]
fn publishing_says_when_the_timekeeper_sleeps_too_long() {
    let pool = pool(4);
    let publish = |deadline, self_timed| pool.alloc().unwrap().publish_claimed(Terms { self_timed, ..terms(deadline) });
    assert!(publish(50_000_000, false));
    assert!(!publish(50_000_000, false));
    assert!(!publish(40_000_000, true), "with its grace it is not earlier");
    assert!(publish(39_999_999, true));
    assert_eq!(pool.next_deadline(), Instant(49_999_999));
}

#[test]
fn a_self_timed_cell_has_a_grace() {
    let pool = pool(1);
    let place = pool.alloc().unwrap();
    let id = place.id();
    place.publish_claimed(Terms { self_timed: true, ..terms(1_000_000) });
    assert_eq!(pool.deadline(id), Some(Instant(1_000_000)));
    let mut offered = 0;
    pool.sweep(Instant(10_999_999), |_, _, _| offered += 1);
    assert_eq!(offered, 0);
    pool.sweep(Instant(11_000_000), |_, _, _| offered += 1);
    pool.sweep(Instant(11_000_000), |_, _, _| offered += 1);
    assert_eq!(offered, 2, "left alone, it is offered again");
}

#[test]
fn a_maker_that_panics_ends_the_operation_without_an_outcome() {
    let pool = pool(1);
    let wakes = Arc::new(Count::default());
    let id = waiting(&pool, 10);
    pool.set_notify(id, wakes.waker());
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pool.finish(id, |_| panic!("planted"))));
    assert!(result.is_err());
    assert_eq!((pool.state(id), wakes.wakes()), (Some(CellState::Done), 1));
    assert_eq!(pool.take(id), None);
    assert!(pool.alloc().is_some());
}

#[test]
fn counts_and_scan_agree_with_what_was_published() {
    let pool = pool(300);
    let ids: Vec<_> = (0..300).map(|_| waiting(&pool, 10)).collect();
    for id in &ids[..200] {
        pool.claim(*id);
    }
    for id in &ids[..100] {
        assert_eq!(pool.finish_claimed(*id, Ok("reply")), Ok(()));
    }
    assert_eq!(pool.counts(), CellCounts { waiting: 100, claimed: 100, done: 100 });
    let mut seen = CellCounts::default();
    pool.scan(|_, state, tag| {
        assert_eq!(tag, 7);
        match state {
            CellState::Waiting => seen.waiting += 1,
            CellState::Claimed => seen.claimed += 1,
            CellState::Done => seen.done += 1,
        }
    });
    assert_eq!(seen, pool.counts());
}

#[test]
fn dropping_the_pool_drops_what_it_holds() {
    let held = Arc::new(Mutex::new(()));
    let pool: CellPool<Arc<Mutex<()>>, Arc<Mutex<()>>> = CellPool::new(3, 0, |_| ());
    for end in [false, true] {
        let place = pool.alloc().unwrap();
        let id = place.id();
        place.publish_waiting(held.clone(), terms(1));
        assert!(!end || pool.finish(id, Option::unwrap));
    }
    assert_eq!(Arc::strong_count(&held), 3);
    drop(pool);
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn a_cell_with_small_contents_takes_two_cache_lines() {
    assert_eq!(size_of::<Cell<[u64; 7], [u64; 7]>>(), 128);
}
