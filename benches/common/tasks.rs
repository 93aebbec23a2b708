//! Calls that are awaited: as many tasks as requests are outstanding, on the least executor that runs them, one
//! thread with a list of who was woken.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

use afflux::Host;
use bytes::Bytes;

use super::{Args, Sample, Server, Usage, finish, histogram};

struct Woken {
    list: Mutex<Vec<usize>>,
    thread: Thread,
}

struct Task {
    at: usize,
    woken: Arc<Woken>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut list = self.woken.list.lock().expect("nobody panics");
        list.push(self.at);
        let first = list.len() == 1;
        drop(list);
        // Whoever wakes the second finds the thread awake or about to be.
        if first {
            self.woken.thread.unpark();
        }
    }
}

/// Runs all of them to their ends.
pub fn run(mut tasks: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    let all = (0..tasks.len()).collect();
    let woken = Arc::new(Woken { list: Mutex::new(all), thread: std::thread::current() });
    let wakers: Vec<Waker> =
        (0..tasks.len()).map(|at| Waker::from(Arc::new(Task { at, woken: woken.clone() }))).collect();
    let (mut left, mut ended, mut ready) = (tasks.len(), vec![false; tasks.len()], Vec::new());
    while left > 0 {
        mem::swap(&mut ready, &mut *woken.list.lock().expect("nobody panics"));
        if ready.is_empty() {
            std::thread::park();
        }
        for at in ready.drain(..) {
            // A wake may come twice, and after the end.
            if !ended[at] && tasks[at].as_mut().poll(&mut Context::from_waker(&wakers[at])) == Poll::Ready(()) {
                ended[at] = true;
                left -= 1;
            }
        }
    }
}

/// A window of tasks that ask again and again, `outstanding` of them.
pub fn measure(args: &Args, server: &Server, host: &Host, size: usize, outstanding: usize) -> Sample {
    let (echo, payload) = (host.client().channel("echo"), Bytes::from(vec![7; size]));
    let warm_until = Instant::now() + args.warm_up();
    let until = warm_until + args.window();
    let (times, before, last) = (RefCell::new(histogram()), Cell::new(None), Cell::new(warm_until));
    let task = || async {
        let mut sent = Instant::now();
        while sent < until {
            let reply = echo.request("", payload.clone()).await.expect("an echo");
            assert_eq!(reply.len(), size);
            let now = Instant::now();
            if now >= warm_until {
                if before.get().is_none() {
                    before.set(Some((Usage::own(), server.usage(), now)));
                }
                times.borrow_mut().saturating_record((now - sent).as_nanos() as u64);
                last.set(now);
            }
            sent = now;
        }
    };
    run((0..outstanding).map(|_| Box::pin(task()) as Pin<Box<dyn Future<Output = ()>>>).collect());
    let times = times.into_inner();
    let (own, other, begin) = before.get().expect("a reply after the warm-up");
    finish(times.len(), (last.get() - begin).as_secs_f64(), Some(times), (own, other), server)
}
