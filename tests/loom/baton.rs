use afflux::sync::baton::{Asked, Baton, PostBaton, Released};

use super::atomic::{AtomicU32, Ordering};
use super::{Arc, model, thread};

/// What each of three threads left to be done. Relaxed stores: only the baton orders them.
type Left = [AtomicU32; 3];

/// Work by the rules: take the baton and look as long as there is more, or ask and go.
fn work_off(baton: &Baton<u32>, left: &Left) {
    loop {
        let Some(mut held) = baton.try_take() else {
            match baton.ask() {
                Asked::Busy => return,
                Asked::Free => continue,
            }
        };
        for work in left.iter().filter(|work| work.load(Ordering::Relaxed) == 1) {
            work.store(0, Ordering::Relaxed);
            *held += 1;
        }
        if held.release() == Released::Clean {
            return;
        }
    }
}

/// Hand-over against late work.
#[test]
fn no_work_is_left_behind() {
    model(|| {
        let shared = Arc::new((Baton::new(0), Left::default()));
        let workers: Vec<_> = (0..2)
            .map(|n: usize| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (baton, left) = &*shared;
                    left[n].store(1, Ordering::Relaxed);
                    work_off(baton, left);
                })
            })
            .collect();
        let (baton, left) = &*shared;
        left[2].store(1, Ordering::Relaxed);
        work_off(baton, left);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(*baton.try_take().unwrap(), 3);
    });
}

/// A holder that may not do the work itself sees it after its release, and can tell another.
#[test]
fn who_lets_go_sees_what_was_left() {
    model(|| {
        let shared = Arc::new((Baton::new(()), Left::default()));
        let held = shared.0.try_take().unwrap();
        let askers: Vec<_> = (0..2)
            .map(|n: usize| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (baton, left) = &*shared;
                    left[n].store(1, Ordering::Relaxed);
                    (n, baton.ask())
                })
            })
            .collect();
        let released = held.release();
        let seen: Vec<_> = shared.1.iter().map(|work| work.load(Ordering::Relaxed)).collect();
        let answers: Vec<_> = askers.into_iter().map(|asker| asker.join().unwrap()).collect();
        let busy = |(_, asked): &&(usize, Asked)| *asked == Asked::Busy;
        assert_eq!(released == Released::MoreWork, answers.iter().any(|answer| busy(&answer)));
        assert!(answers.iter().filter(busy).all(|(n, _)| seen[*n] == 1));
    });
}

/// Writes a record if the baton is free, leaves it if not.
fn write_or_post(lane: &PostBaton<Vec<u32>, u32>, record: u32) {
    let mut held = match lane.try_take() {
        Some(mut held) => {
            held.drain_posts(Vec::push);
            held.push(record);
            held
        }
        None => match lane.post(record) {
            Some(held) => held,
            None => return,
        },
    };
    loop {
        held.drain_posts(Vec::push);
        match held.release() {
            Some(again) => held = again,
            None => return,
        }
    }
}

/// A posted record is written by the holder it was posted to, or by its poster.
#[test]
fn no_posted_record_is_left_behind() {
    model(|| {
        let lane = Arc::new(PostBaton::new(Vec::new()));
        let others: Vec<_> = (1..=2)
            .map(|n| {
                let lane = lane.clone();
                thread::spawn(move || write_or_post(&lane, n))
            })
            .collect();
        write_or_post(&lane, 3);
        others.into_iter().for_each(|other| other.join().unwrap());
        let mut held = lane.try_take().unwrap();
        assert_eq!(held.drain_posts(|_, n| panic!("record {n} was left behind")), 0);
        held.sort_unstable();
        assert_eq!(*held, [1, 2, 3]);
    });
}

/// One thread's posts keep their order, whoever writes them.
#[test]
fn posts_keep_their_order() {
    model(|| {
        let lane = Arc::new(PostBaton::new(Vec::new()));
        let holder = {
            let lane = lane.clone();
            thread::spawn(move || write_or_post(&lane, 1))
        };
        write_or_post(&lane, 2);
        write_or_post(&lane, 3);
        holder.join().unwrap();
        let mut held = lane.try_take().unwrap();
        held.retain(|n| *n != 1);
        assert_eq!(*held, [2, 3]);
    });
}

/// Holds the baton; clears away what it guards if it is retired by then.
fn hold(baton: &Baton<Option<&str>>, reason: &AtomicU32) {
    while let Some(mut held) = baton.try_take() {
        if baton.is_retired() {
            assert_eq!(reason.load(Ordering::Relaxed), 7);
            *held = None;
        }
        if held.release() == Released::Clean {
            return;
        }
    }
}

/// Whoever retires it while it is held, the holder clears away; nobody has to come by later.
#[test]
fn a_retired_baton_is_cleared_away() {
    model(|| {
        let shared = Arc::new((Baton::new(Some("socket")), AtomicU32::new(0)));
        let holders: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || hold(&shared.0, &shared.1))
            })
            .collect();
        let (baton, reason) = &*shared;
        reason.store(7, Ordering::Relaxed);
        if baton.retire() == Asked::Free {
            hold(baton, reason);
        }
        holders.into_iter().for_each(|holder| holder.join().unwrap());
        assert!(baton.is_retired());
        assert_eq!(*baton.try_take().unwrap(), None);
    });
}
