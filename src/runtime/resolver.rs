//! Looking up host names. The system's lookup blocks, for seconds if it must, so it has threads of its own,
//! started when a name is asked for and none of them is free.
//!
//! ```text
//!   dial ─▶ waiting for the name ─▶ queue of names ─▶ a free thread ─▶ all who wait for it then
//!              └ forgotten: gone; a name that nobody waits for any more is not looked up
//! ```
//!
//! A name is in the queue or under way once, whoever waits for it, and so holds one thread at most: names that do
//! not come back hold the others only if there are as many of them as threads, and then each waits its turn.
//! Everything is bounded; a request that finds no place fails like a lookup that found nothing, and is made again
//! with the next dial.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::engine::completion::ConnKey;
use crate::plan::Endpoint;
use crate::sync::wake::WakeCell;

/// Names that are waited for at a time.
const NAMES_MAX: usize = 256;

/// Names that are looked up at a time, each by a thread.
const THREADS_MAX: usize = 4;

/// Addresses of one name that are tried; there are hardly ever more than two.
const ADDRESSES_MAX: usize = 16;

/// The addresses of an endpoint, the next to be tried last.
pub type Found = io::Result<Vec<SocketAddr>>;

/// What finds the addresses of a name. Runs on threads of its own and may block.
type Find = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// A host name and a port.
type Name = (Arc<str>, u16);

/// A name that is waited for, and by whom: the connections, and how many attempts failed before each.
#[derive(Debug)]
struct Wanted {
    name: Name,
    by: Vec<(ConnKey, usize)>,
    under_way: bool,
}

/// The lookups of one host.
pub struct Resolver {
    wake: Arc<WakeCell>,
    find: Arc<Find>,
    /// In the order in which they were asked for.
    wanted: Vec<Wanted>,
    /// Never holds more than there are threads.
    names: (Sender<Name>, Receiver<Name>),
    threads: usize,
    under_way: usize,
    looked_up: (Sender<LookedUp>, Receiver<LookedUp>),
    answers: VecDeque<(ConnKey, Found)>,
}

type LookedUp = (Name, io::Result<Vec<SocketAddr>>);

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

impl Resolver {
    /// Nothing to look up yet. `wake`: of the thread that fetches the answers.
    pub fn new(wake: Arc<WakeCell>) -> Self {
        Self::with(wake, |host, port| Ok((host, port).to_socket_addrs()?.take(ADDRESSES_MAX).collect()))
    }

    pub(super) fn with(
        wake: Arc<WakeCell>,
        find: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        Resolver {
            wake,
            find: Arc::new(find),
            wanted: Vec::new(),
            names: bounded(THREADS_MAX),
            threads: 0,
            under_way: 0,
            looked_up: bounded(THREADS_MAX),
            answers: VecDeque::new(),
        }
    }

    /// The addresses of an endpoint: at once, or later through [`Resolver::answer`]. Those of a name begin with
    /// another one after each of the `failed` attempts.
    pub fn look_up(&mut self, key: ConnKey, endpoint: Endpoint, failed: usize) -> Option<Found> {
        let name = match endpoint {
            Endpoint::Addr(addr) => return Some(Ok(vec![addr])),
            Endpoint::Name(host, port) => (host, port),
        };
        let names = self.wanted.len();
        match self.wanted.iter_mut().find(|wanted| wanted.name == name) {
            Some(wanted) => wanted.by.push((key, failed)),
            None if names < NAMES_MAX => {
                self.wanted.push(Wanted { name, by: vec![(key, failed)], under_way: false });
                self.hand_out();
            }
            None => {
                let busy = io::Error::new(io::ErrorKind::WouldBlock, "too many names are being looked up");
                return Some(Err(busy));
            }
        }
        None
    }

    /// This connection is of no interest any more.
    pub fn forget(&mut self, key: ConnKey) {
        self.answers.retain(|(of, _)| *of != key);
        self.wanted.iter_mut().for_each(|wanted| wanted.by.retain(|(by, _)| *by != key));
        // What is under way comes back, wanted or not.
        self.wanted.retain(|wanted| wanted.under_way || !wanted.by.is_empty());
    }

    /// Gives the next names to threads that are free, or that there may be yet.
    fn hand_out(&mut self) {
        for wanted in self.wanted.iter_mut().filter(|wanted| !wanted.under_way) {
            if self.under_way == self.threads {
                if self.threads == THREADS_MAX {
                    return;
                }
                let (find, wake) = (self.find.clone(), self.wake.clone());
                let (names, looked_up) = (self.names.1.clone(), self.looked_up.0.clone());
                let run = move || {
                    // Ends when the host drops its sender.
                    for (host, port) in names {
                        let found = find(&host, port);
                        if looked_up.send(((host, port), found)).is_err() {
                            return;
                        }
                        wake.wake();
                    }
                };
                match thread::Builder::new().name("resolver".into()).spawn(run) {
                    Ok(_) => self.threads += 1,
                    // Those that there are do it later; without any this is the answer.
                    Err(_) if self.threads > 0 => return,
                    Err(e) => {
                        let failed = |(key, _)| (key, Err(io::Error::new(e.kind(), e.to_string())));
                        self.answers.extend(wanted.by.drain(..).map(failed));
                        continue;
                    }
                }
            }
            // There is a place: fewer are under way than there are threads.
            if self.names.0.try_send(wanted.name.clone()).is_ok() {
                wanted.under_way = true;
                self.under_way += 1;
            }
        }
        self.wanted.retain(|wanted| wanted.under_way || !wanted.by.is_empty());
    }

    /// The next answer, if one has come: for a connection that was not forgotten.
    pub fn answer(&mut self) -> Option<(ConnKey, Found)> {
        while self.answers.is_empty() {
            let (name, found) = self.looked_up.1.try_recv().ok()?;
            self.under_way -= 1;
            if let Some(at) = self.wanted.iter().position(|wanted| wanted.name == name) {
                let by = self.wanted.remove(at).by;
                self.answers.extend(by.into_iter().map(|(key, failed)| (key, for_attempt(&found, failed))));
            }
            self.hand_out();
        }
        self.answers.pop_front()
    }

    /// Whether an answer has come.
    pub fn has_answer(&self) -> bool {
        !self.answers.is_empty() || !self.looked_up.1.is_empty()
    }
}

/// The addresses in the order for an attempt after so many others.
fn for_attempt(found: &Found, failed: usize) -> Found {
    match found {
        Ok(all) => {
            let mut order = all.clone();
            order.rotate_left(failed % all.len().max(1));
            order.reverse();
            Ok(order)
        }
        Err(e) => Err(io::Error::new(e.kind(), e.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::runtime::watchdog::watch;
    use crate::sync::lock::Lock;

    fn key(index: u32) -> ConnKey {
        ConnKey { index, generation: 2 }
    }

    fn name(host: &str) -> Endpoint {
        Endpoint::Name(host.into(), 9)
    }

    fn addr(last: u8) -> SocketAddr {
        ([127, 0, 0, last], 9).into()
    }

    /// A resolver, and what it is woken by.
    fn resolver(
        find: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> (Resolver, Receiver<()>) {
        let (sender, woken) = bounded::<()>(1);
        let wake = Arc::new(WakeCell::new(move || sender.try_send(()).unwrap_or_default()));
        (Resolver::with(wake, find), woken)
    }

    /// The next answer, waited for.
    fn answer(resolver: &mut Resolver, woken: &Receiver<()>) -> (ConnKey, Found) {
        loop {
            resolver.wake.prepare_sleep();
            if resolver.has_answer()
                && let Some(answer) = resolver.answer()
            {
                resolver.wake.awake();
                return answer;
            }
            if resolver.wake.sleep_or_abort() {
                woken.recv().unwrap();
            }
            resolver.wake.awake();
        }
    }

    /// Names beginning with `dead` do not come back before the sender sends; every name that is looked up is told.
    fn blocking() -> (Resolver, Receiver<()>, mpsc::Sender<()>, mpsc::Receiver<String>) {
        let ((go, wait), (tell, told)) = (mpsc::channel::<()>(), mpsc::channel());
        let wait = Lock::new(wait);
        let (resolver, woken) = resolver(move |host, _| {
            tell.send(host.to_owned()).unwrap();
            if host.starts_with("dead") {
                // The test is over if there is no word.
                let _ = wait.lock().recv();
            }
            Ok(vec![addr(1), addr(2), addr(3)])
        });
        (resolver, woken, go, told)
    }

    #[test]
    fn an_address_needs_no_thread_and_a_name_is_answered_later() {
        let _watchdog = watch();
        let (_, woken) = resolver(|_, _| Ok(Vec::new()));
        let mut system = Resolver::new(Arc::new(WakeCell::new(|| {})));
        assert_eq!(system.look_up(key(1), Endpoint::Addr(addr(7)), 3).unwrap().unwrap(), [addr(7)]);
        assert_eq!(system.threads, 0);
        drop(woken);

        let (mut resolver, woken) = resolver(|host, port| Ok((host, port).to_socket_addrs()?.collect()));
        assert!(resolver.look_up(key(1), name("localhost"), 0).is_none());
        let (of, found) = answer(&mut resolver, &woken);
        assert_eq!((of, found.unwrap()[0].port()), (key(1), 9));
        assert!(resolver.look_up(key(1), name("no such name"), 0).is_none());
        assert!(answer(&mut resolver, &woken).1.is_err());
        assert_eq!(resolver.threads, 1);
    }

    #[test]
    fn both_lanes_share_a_lookup_and_each_attempt_begins_with_the_next_address() {
        let _watchdog = watch();
        let (mut resolver, woken, go, told) = blocking();
        for (i, failed) in [0, 0, 1, 5].into_iter().enumerate() {
            assert!(resolver.look_up(key(i as u32), name("dead"), failed).is_none());
        }
        go.send(()).unwrap();
        let first = [[3, 2, 1], [3, 2, 1], [1, 3, 2], [2, 1, 3]];
        for (i, order) in first.into_iter().enumerate() {
            let (of, found) = answer(&mut resolver, &woken);
            assert_eq!((of, found.unwrap()), (key(i as u32), order.map(addr).to_vec()));
        }
        assert_eq!(told.try_iter().count(), 1);
        assert!(resolver.wanted.is_empty() && resolver.under_way == 0);
    }

    #[test]
    fn a_name_that_blocks_holds_no_other_however_often_it_is_asked_for() {
        let _watchdog = watch();
        let (mut resolver, woken, go, _told) = blocking();
        for n in 0..100 {
            assert!(resolver.look_up(key(n), name("dead"), 0).is_none());
            resolver.forget(key(n));
        }
        assert!(resolver.look_up(key(200), name("live"), 0).is_none());
        assert_eq!(answer(&mut resolver, &woken).0, key(200));
        drop(go);
    }

    #[test]
    fn what_nobody_waits_for_any_more_is_not_looked_up_and_not_answered() {
        let _watchdog = watch();
        let (mut resolver, woken, go, told) = blocking();
        for n in 0..THREADS_MAX as u32 {
            assert!(resolver.look_up(key(n), name(&format!("dead-{n}")), 0).is_none());
        }
        let taken: Vec<String> = told.iter().take(THREADS_MAX).collect();
        assert!(taken.iter().all(|host| host.starts_with("dead")));
        for (n, host) in [(10, "never"), (11, "kept"), (12, "kept")] {
            assert!(resolver.look_up(key(n), name(host), 0).is_none());
        }
        for n in [0, 10, 11] {
            resolver.forget(key(n));
        }
        (0..THREADS_MAX).for_each(|_| go.send(()).unwrap());
        let mut answered: Vec<u32> = (0..THREADS_MAX).map(|_| answer(&mut resolver, &woken).0.index).collect();
        answered.sort_unstable();
        assert_eq!(answered, [1, 2, 3, 12]);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), ["kept"]);
    }

    #[test]
    fn there_is_a_bound_to_the_names_and_none_is_lost_below_it() {
        let _watchdog = watch();
        let (mut resolver, woken, go, _told) = blocking();
        for n in 0..NAMES_MAX as u32 {
            assert!(resolver.look_up(key(n), name(&format!("dead-{n}")), 0).is_none());
        }
        let refused = resolver.look_up(key(1000), name("one more"), 0).unwrap().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        assert!(resolver.look_up(key(1001), name("dead-7"), 0).is_none(), "that one is asked for already");
        drop(go);
        let mut answered: Vec<u32> = (0..=NAMES_MAX).map(|_| answer(&mut resolver, &woken).0.index).collect();
        answered.sort_unstable();
        assert!(answered.iter().copied().eq((0..NAMES_MAX as u32).chain([1001])));
        assert_eq!(resolver.threads, THREADS_MAX);
    }
}
