use afflux::sync::baton::{Asked, Baton, PostBaton, Released};

use super::atomic::{AtomicU32, Ordering};
use super::{Arc, model, thread};

/// Work by the rules: take the baton and look as long as there is more, or ask and go.
fn work_off(baton: &Baton<u32>, left: &AtomicU32) {
    loop {
        let Some(mut held) = baton.try_take() else {
            match baton.ask() {
                Asked::Busy => return,
                Asked::Free => continue,
            }
        };
        *held += left.swap(0, Ordering::Relaxed);
        if held.release() == Released::Clean {
            return;
        }
    }
}

/// Hand-over against late work, three at once. The work itself is relaxed: the baton must order it.
#[test]
fn no_work_is_left_behind() {
    model(|| {
        let shared = Arc::new((Baton::new(0), AtomicU32::new(0)));
        let others: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.1.fetch_add(1, Ordering::Relaxed);
                    work_off(&shared.0, &shared.1);
                })
            })
            .collect();
        shared.1.fetch_add(1, Ordering::Relaxed);
        work_off(&shared.0, &shared.1);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(*shared.0.try_take().unwrap(), 3);
        assert_eq!(shared.1.load(Ordering::Relaxed), 0);
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
        others.into_iter().for_each(|other| other.join().unwrap());
        let mut held = lane.try_take().unwrap();
        assert_eq!(held.drain_posts(|_, n| panic!("record {n} was left behind")), 0);
        held.sort_unstable();
        assert_eq!(*held, [1, 2]);
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

/// Holds the baton once; clears away what it guards if it is retired by then.
fn hold(baton: &Baton<Option<&str>>) {
    while let Some(mut held) = baton.try_take() {
        if baton.is_retired() {
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
        let baton = Arc::new(Baton::new(Some("socket")));
        let holders: Vec<_> = (0..2)
            .map(|_| {
                let baton = baton.clone();
                thread::spawn(move || hold(&baton))
            })
            .collect();
        if baton.retire() == Asked::Free {
            hold(&baton);
        }
        holders.into_iter().for_each(|holder| holder.join().unwrap());
        assert!(baton.is_retired());
        assert_eq!(*baton.try_take().unwrap(), None);
    });
}
