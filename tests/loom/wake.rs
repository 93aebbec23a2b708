use afflux::sync::ring::ring;
use afflux::sync::tray::Tray;
use afflux::sync::wake::WakeCell;

use super::atomic::{AtomicU32, Ordering};
use super::{Arc, Condvar, Mutex, model, thread};

/// What a sleeper sleeps on: a ring that nobody hears yet is remembered, as by an eventfd.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.heard.notify_one();
    }

    /// Sleeps. A lost wake is a sleep without end, which loom reports.
    fn sleep(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.heard.wait(rung).unwrap();
        }
        *rung = false;
    }
}

fn sleeper() -> (Arc<WakeCell>, Arc<Bell>) {
    let bell = Arc::new(Bell::default());
    let rope = bell.clone();
    (Arc::new(WakeCell::new(move || rope.ring())), bell)
}

/// Two producers, one sleeper. The work is as weak as it may be: a relaxed store.
#[test]
fn no_wake_is_lost() {
    model(|| {
        let (cell, bell) = sleeper();
        let work = Arc::new(AtomicU32::new(0));
        let producers: Vec<_> = (0..2)
            .map(|_| {
                let (cell, work) = (cell.clone(), work.clone());
                thread::spawn(move || {
                    work.fetch_add(1, Ordering::Relaxed);
                    cell.wake();
                })
            })
            .collect();
        let mut done = 0;
        while done < 2 {
            cell.prepare_sleep();
            if work.load(Ordering::Relaxed) == 0 && cell.sleep_or_abort() {
                bell.sleep();
            }
            cell.awake();
            done += work.swap(0, Ordering::Relaxed);
        }
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        assert!(cell.wakes() <= 2);
    });
}

/// The whole hand-over: a push and a wake on one side, a turn and a sleep on the other.
#[test]
fn a_pushed_item_ends_the_sleep() {
    model(|| {
        let (cell, bell) = sleeper();
        let (mut producer, mut consumer) = ring(2);
        let pusher = {
            let cell = cell.clone();
            thread::spawn(move || {
                for item in 1..=2 {
                    producer.push(item).unwrap();
                    cell.wake();
                }
            })
        };
        let mut taken = Vec::new();
        while taken.len() < 2 {
            consumer.drain(2, |item| taken.push(item));
            cell.prepare_sleep();
            if taken.len() < 2 && consumer.is_empty() && cell.sleep_or_abort() {
                bell.sleep();
            }
            cell.awake();
        }
        pusher.join().unwrap();
        assert_eq!(taken, [1, 2]);
    });
}

/// A thread that is awake costs nobody a system call.
#[test]
fn nobody_wakes_who_is_awake() {
    model(|| {
        let cell = Arc::new(WakeCell::new(|| panic!("called the waker of a thread that is awake")));
        let producer = {
            let cell = cell.clone();
            thread::spawn(move || cell.wake())
        };
        assert!(!cell.wake());
        assert!(!producer.join().unwrap());
        assert_eq!(cell.wakes(), 0);
    });
}

/// Of several wakes for one sleep one is real.
#[test]
fn one_sleep_is_ended_once() {
    model(|| {
        let calls = Arc::new(AtomicU32::new(0));
        let cell = {
            let calls = calls.clone();
            Arc::new(WakeCell::new(move || {
                calls.fetch_add(1, Ordering::Relaxed);
            }))
        };
        cell.prepare_sleep();
        let other = {
            let cell = cell.clone();
            thread::spawn(move || cell.wake())
        };
        let mine = cell.wake();
        let theirs = other.join().unwrap();
        assert!(mine != theirs);
        assert!(!cell.sleep_or_abort());
        assert_eq!((calls.load(Ordering::Relaxed), cell.wakes()), (1, 1));
    });
}

/// What is left in a tray is seen: by a look that it precedes, or by way of a wake.
#[test]
fn what_is_left_in_a_tray_is_seen() {
    model(|| {
        let (cell, bell) = sleeper();
        let tray = Arc::new(Tray::default());
        let leavers: Vec<_> = (0..2)
            .map(|thing| {
                let (cell, tray) = (cell.clone(), tray.clone());
                thread::spawn(move || {
                    tray.leave(thing);
                    cell.wake();
                })
            })
            .collect();
        let mut seen = Vec::new();
        while seen.len() < 2 {
            cell.prepare_sleep();
            if tray.is_empty() && cell.sleep_or_abort() {
                bell.sleep();
            }
            cell.awake();
            seen.extend(tray.take());
        }
        leavers.into_iter().for_each(|leaver| leaver.join().unwrap());
        seen.sort_unstable();
        assert_eq!((seen, tray.is_empty()), (vec![0, 1], true));
    });
}
