//! Looking up host names. The system's lookup blocks, for seconds if it must, so it has a thread of
//! its own, started at the first name and never otherwise. Requests and answers are bounded; a
//! request that finds no place fails like a lookup that found nothing, and is made again with the
//! next dial.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::engine::completion::ConnKey;
use crate::plan::Endpoint;
use crate::sync::wake::WakeCell;

/// Lookups under way or answered and not fetched.
const LOOKUPS_MAX: usize = 256;

/// The lookups of one host.
#[derive(Debug)]
pub struct Resolver {
    wake: Arc<WakeCell>,
    lookups: Option<Sender<(ConnKey, Endpoint)>>,
    answers: (Sender<Answer>, Receiver<Answer>),
}

/// What came of a lookup.
pub type Answer = (ConnKey, io::Result<SocketAddr>);

impl Resolver {
    /// Nothing to look up yet. `wake`: of the thread that fetches the answers.
    pub fn new(wake: Arc<WakeCell>) -> Self {
        Resolver { wake, lookups: None, answers: bounded(LOOKUPS_MAX) }
    }

    /// The address of an endpoint: at once, or later through [`Resolver::answer`].
    pub fn look_up(&mut self, key: ConnKey, endpoint: Endpoint) -> Option<io::Result<SocketAddr>> {
        if let Endpoint::Addr(addr) = endpoint {
            return Some(Ok(addr));
        }
        let busy = || io::Error::new(io::ErrorKind::WouldBlock, "too many names are being looked up");
        if self.lookups.is_none() {
            let (sender, receiver) = bounded(LOOKUPS_MAX);
            let (answers, wake) = (self.answers.0.clone(), self.wake.clone());
            let run = move || {
                // Ends when the host drops its sender.
                for (key, endpoint) in receiver {
                    if answers.send((key, resolve(&endpoint))).is_err() {
                        return;
                    }
                    wake.wake();
                }
            };
            if let Err(e) = thread::Builder::new().name("resolver".into()).spawn(run) {
                return Some(Err(e));
            }
            self.lookups = Some(sender);
        }
        match self.lookups.as_ref().map(|l| l.try_send((key, endpoint))) {
            Some(Ok(())) => None,
            _ => Some(Err(busy())),
        }
    }

    /// The next answer, if one has come.
    pub fn answer(&self) -> Option<Answer> {
        self.answers.1.try_recv().ok()
    }

    /// Whether an answer has come.
    pub fn has_answer(&self) -> bool {
        !self.answers.1.is_empty()
    }
}

fn resolve(endpoint: &Endpoint) -> io::Result<SocketAddr> {
    match endpoint {
        Endpoint::Addr(addr) => Ok(*addr),
        Endpoint::Name(host, port) => (&**host, *port)
            .to_socket_addrs()?
            .next()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_needs_no_thread_and_a_name_is_answered_later() {
        let (sender, woken) = bounded::<()>(1);
        let wake = Arc::new(WakeCell::new(move || sender.try_send(()).unwrap_or_default()));
        wake.prepare_sleep();
        let mut resolver = Resolver::new(wake);
        let key = ConnKey { index: 1, generation: 2 };
        let addr: SocketAddr = ([127, 0, 0, 1], 7).into();
        assert_eq!(resolver.look_up(key, Endpoint::Addr(addr)).unwrap().unwrap(), addr);
        assert!(resolver.lookups.is_none());

        assert!(resolver.look_up(key, Endpoint::Name("localhost".into(), 9)).is_none());
        woken.recv().unwrap();
        let (of, found) = resolver.answer().unwrap();
        assert_eq!((of, found.unwrap().port()), (key, 9));

        assert!(resolver.look_up(key, Endpoint::Name("no such name".into(), 9)).is_none());
        let (_, found) = resolver.answers.1.recv().unwrap();
        assert!(found.is_err());
    }
}
