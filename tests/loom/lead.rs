use afflux::sync::baton::{Asked, Baton, Released};
use afflux::sync::lead::{Lead, Seen, Ticket};

use super::atomic::{AtomicU32, Ordering};
use super::{Arc, Condvar, Mutex, model, model_within, thread};

/// A socket, its peer, the keeper's poller and that of the leader's seat: what the kernel does, each step
/// under a lock. Callers are bits.
#[derive(Default)]
struct Socket {
    asked: u32,
    unread: u32,
    done: u32,
    /// The keeper's poller watches, and has something to report.
    watched: bool,
    told: bool,
    /// Something came since the seat's poller was asked. Edge by edge: a report is made once.
    edge: bool,
    over: bool,
}

#[derive(Default)]
struct Lane {
    socket: Mutex<Socket>,
    changed: Condvar,
    lead: Lead,
    turn: Turn,
    owed: AtomicU32,
}

struct Turn(Baton<()>);

impl Default for Turn {
    fn default() -> Self {
        Turn(Baton::new(()))
    }
}

impl Lane {
    fn new() -> Arc<Lane> {
        let lane = Lane::default();
        lane.socket.lock().unwrap().watched = true;
        Arc::new(lane)
    }

    fn change<R>(&self, change: impl FnOnce(&mut Socket) -> R) -> R {
        let result = change(&mut self.socket.lock().unwrap());
        self.changed.notify_all();
        result
    }

    fn until<R>(&self, mut look: impl FnMut(&mut Socket) -> Option<R>) -> R {
        let mut socket = self.socket.lock().unwrap();
        loop {
            if let Some(found) = look(&mut socket) {
                return found;
            }
            socket = self.changed.wait(socket).unwrap();
        }
    }

    fn watch(&self, on: bool) {
        self.change(|socket| {
            socket.watched = on;
            socket.told = on && (socket.told || socket.unread != 0);
        });
    }

    /// The peer answers, once it was asked.
    fn answer(&self, who: u32) {
        self.until(|socket| (socket.asked & who != 0).then_some(()));
        self.change(|socket| {
            socket.unread |= who;
            socket.told |= socket.watched;
            socket.edge = true;
        });
    }

    fn owe(&self) {
        self.owed.fetch_add(1, Ordering::Relaxed);
    }

    fn ask(&self, who: u32) {
        self.change(|socket| socket.asked |= who);
    }

    fn expect(&self) {
        self.lead.expect(|on| self.watch(on));
    }

    fn follow(&self, who: u32) {
        self.until(|socket| (socket.done & who != 0).then_some(()));
    }

    /// True: something came.
    fn read(&self) -> bool {
        let mut came = false;
        loop {
            let Some(held) = self.turn.0.try_take() else {
                match self.turn.0.ask() {
                    Asked::Busy => return came,
                    Asked::Free => continue,
                }
            };
            let got = self.change(|socket| {
                let got = std::mem::take(&mut socket.unread);
                socket.done |= got;
                got
            });
            self.owed.fetch_sub(got.count_ones(), Ordering::Relaxed);
            came |= got != 0;
            if held.release() == Released::Clean {
                return came;
            }
        }
    }

    fn begin(&self) -> Option<Ticket> {
        self.lead.begin(|| self.owed.load(Ordering::Relaxed) <= 1, |on| self.watch(on))
    }

    fn leave(&self, ticket: Ticket) -> bool {
        self.lead.leave(ticket, true, || self.owed.load(Ordering::Relaxed) > 0, |on| self.watch(on))
    }

    /// Leads if nobody does, follows otherwise.
    fn wait(&self, who: u32) {
        let Some(ticket) = self.begin() else {
            self.expect();
            return self.follow(who);
        };
        while self.lead.is_led_by(ticket) {
            let done = self.until(|socket| {
                let edge = std::mem::take(&mut socket.edge) && socket.unread != 0;
                (edge || socket.done & who != 0).then_some(socket.done & who != 0)
            });
            if done {
                break;
            }
            self.lead.renew();
            self.read();
        }
        self.leave(ticket);
        self.follow(who);
    }

    /// The keeper, to whom every grace is over at once.
    fn keep(&self) {
        while self.until(|socket| (socket.told || socket.over).then(|| std::mem::take(&mut socket.told))) {
            match self.lead.seen(|on| self.watch(on)) {
                Seen::Read => {
                    self.read();
                }
                Seen::Led(ticket, lease) => {
                    if self.lead.is_still(ticket, lease) && self.read() {
                        self.lead.revoke(ticket, |on| self.watch(on));
                    } else {
                        // The grace that it does not have.
                        thread::yield_now();
                    }
                    if self.owed.load(Ordering::Relaxed) > 0 {
                        self.expect();
                    }
                }
            }
        }
    }

    /// Everybody has what he waits for.
    fn end(&self, keeper: thread::JoinHandle<()>) {
        self.change(|socket| socket.over = true);
        keeper.join().unwrap();
        let socket = self.socket.lock().unwrap();
        assert_eq!((socket.unread, self.owed.load(Ordering::Relaxed)), (0, 0));
    }
}

fn start(lane: &Arc<Lane>, run: impl FnOnce(&Lane) + Send + 'static) -> thread::JoinHandle<()> {
    let lane = lane.clone();
    thread::spawn(move || run(&lane))
}

/// Two callers, each of whom may lead; a reply that nobody reads is a hang.
#[test]
fn of_two_who_wait_both_get_their_reply() {
    model_within(1, || {
        let lane = Lane::new();
        let keeper = start(&lane, Lane::keep);
        let other = start(&lane, |lane| {
            lane.owe();
            lane.ask(2);
            lane.answer(2);
            lane.wait(2);
        });
        lane.owe();
        lane.ask(1);
        lane.answer(1);
        lane.wait(1);
        other.join().unwrap();
        lane.end(keeper);
    });
}

/// A caller leaves, warm if nothing is owed, while another asks who will not read himself.
#[test]
fn who_asks_as_the_leader_leaves_gets_his_reply() {
    model_within(1, || {
        let lane = Lane::new();
        let keeper = start(&lane, Lane::keep);
        let other = start(&lane, |lane| {
            lane.owe();
            lane.expect();
            lane.ask(2);
            lane.answer(2);
            lane.follow(2);
        });
        lane.owe();
        let ticket = lane.begin().expect("nobody else leads");
        lane.ask(1);
        lane.answer(1);
        lane.read();
        lane.leave(ticket);
        lane.follow(1);
        other.join().unwrap();
        lane.end(keeper);
    });
}

/// A leader that does nothing until another has his reply: the keeper takes over.
#[test]
fn a_stuck_leader_holds_up_nobody() {
    model(|| {
        let lane = Lane::new();
        let keeper = start(&lane, Lane::keep);
        let other = start(&lane, |lane| {
            lane.owe();
            lane.expect();
            lane.ask(2);
            lane.answer(2);
            lane.follow(2);
        });
        lane.owe();
        let ticket = lane.begin().expect("nobody else leads");
        lane.follow(2);
        lane.ask(1);
        lane.answer(1);
        lane.read();
        lane.leave(ticket);
        lane.follow(1);
        other.join().unwrap();
        lane.end(keeper);
    });
}

/// A warm lane is taken back by the keeper, while somebody asks and another leads.
#[test]
fn a_lane_that_cools_is_read() {
    model_within(1, || {
        let lane = Lane::new();
        lane.owe();
        let ticket = lane.begin().expect("nobody leads");
        lane.ask(1);
        lane.answer(1);
        lane.read();
        assert!(lane.leave(ticket), "nothing is owed");
        let keeper = start(&lane, |lane| {
            if lane.lead.cool(|on| lane.watch(on)) {
                lane.read();
            }
            lane.keep();
        });
        let other = start(&lane, |lane| {
            lane.owe();
            lane.expect();
            lane.ask(2);
            lane.answer(2);
            lane.follow(2);
        });
        lane.owe();
        lane.ask(4);
        lane.answer(4);
        lane.wait(4);
        other.join().unwrap();
        lane.end(keeper);
    });
}

/// The keeper was told and has declined; what comes after the leader has gone is told again.
#[test]
fn who_leaves_something_owed_has_it_watched() {
    model(|| {
        let lane = Lane::new();
        lane.owe();
        lane.owe();
        let ticket = lane.begin().expect("nobody leads");
        assert!(matches!(lane.lead.seen(|on| lane.watch(on)), Seen::Led(..)));
        let peer = start(&lane, |lane| {
            lane.ask(2);
            lane.answer(2);
        });
        lane.ask(1);
        lane.answer(1);
        lane.read();
        lane.leave(ticket);
        peer.join().unwrap();
        let keeper = start(&lane, Lane::keep);
        lane.follow(2);
        lane.end(keeper);
    });
}

/// The keeper declines between the look of one who asks and the leave of one who goes: either sees the other.
#[test]
fn a_lane_is_not_warm_while_something_is_owed() {
    model(|| {
        let lane = Lane::new();
        lane.owe();
        let ticket = lane.begin().expect("nobody leads");
        lane.ask(1);
        lane.answer(1);
        lane.read();
        let asker = start(&lane, |lane| {
            lane.owe();
            lane.expect();
        });
        let keeper = start(&lane, |lane| {
            lane.lead.seen(|on| lane.watch(on));
        });
        lane.leave(ticket);
        asker.join().unwrap();
        keeper.join().unwrap();
        assert!(!lane.lead.is_warm() || lane.socket.lock().unwrap().watched);
    });
}

/// Of two who begin one leads; one who was revoked ends nothing of the next.
#[test]
fn leaders_exclude_each_other() {
    model(|| {
        let lane = Arc::new(Lead::new());
        let first = lane.begin(|| true, |_| ()).expect("nobody leads");
        let keeper = {
            let lane = lane.clone();
            thread::spawn(move || lane.revoke(first, |_| ()))
        };
        let second = {
            let lane = lane.clone();
            thread::spawn(move || lane.begin(|| true, |_| ()))
        };
        lane.leave(first, false, || false, |_| ());
        let revoked = keeper.join().unwrap();
        let second = second.join().unwrap();
        assert!(!lane.is_led_by(first));
        match second {
            Some(second) => assert!(lane.is_led_by(second), "what the first did late changes nothing"),
            None => assert!(!lane.is_led()),
        }
        assert!(!lane.revoke(first, |_| ()) || !revoked);
    });
}
