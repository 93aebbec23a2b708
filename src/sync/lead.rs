//! Who reads a lane: a caller that waits for its reply *leads* it and is the one that the socket wakes;
//! whenever nobody leads, the thread that keeps the lane is told by its poller.
//!
//! ```text
//!             begin                      leave: nothing is owed
//!   Nobody ──────────▶ Led by a ticket ─────────────────────────▶ Warm: the leader is gone, and so is the poller's word
//!     ▲  ▲                │      ▲                                 │  │
//!     │  └─ leave, revoke ┘      └────────────── begin ────────────┘  │
//!     └──────────────────────── cool: the keeper, after a while ──────┘
//! ```
//!
//! *Armed* is a bit beside: the keeper's poller tells it when there is something to read. Telling the
//! poller (`watch`) is a system call that is ordered by the poller's own lock and looks at the readiness of
//! the moment, so arming is never too late. Whoever sets the bit tells the poller *after*; whoever clears it
//! tells the poller after and *then* looks whether the bit is back, because the other may have been quicker:
//! so while the bit is set and nobody is between two steps, the poller is armed.
//!
//! * While nobody leads the bit is set: it is set in the same step that ends the lead.
//! * While the lane is warm nothing is owed, or the bit is set: who leaves makes it warm, *then* looks at
//!   what is owed; who asks is owed something, *then* looks at the bit ([`Lead::expect`]). A full fence on
//!   either side: one of them sees the other.
//! * While somebody leads he reads for all, and others see to it that the bit is set for the case that he
//!   gets stuck. The keeper that is told meanwhile declines for a grace; if the leader has not moved
//!   ([`Lead::renew`]) and left something unread, it is revoked.
//!
//! A ticket that was revoked changes nothing any more. What is read, and by whom, is not decided here: the
//! right to read is a baton of its own, and anybody may take it at any time.

use super::primitive::{AtomicU32, AtomicU64, Ordering, fence};

/// The leader's ticket; 0: nobody.
const TICKET: u64 = 0x7FFF_FFFF;
/// The leader is gone, and its ticket is free for the next.
const WARM: u64 = 1 << 31;
/// The ticket that was given last.
const LAST: u32 = 32;
const ARMED: u64 = 1 << 63;

/// A leader, for as long as it is not revoked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(u32);

/// What the keeper is to do when its poller tells it of something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// Nobody leads: read.
    Read,
    /// A leader reads. If it has not moved after a grace, see whether it left anything.
    Led(Ticket, u32),
}

/// Who leads one lane. See the module.
#[derive(Debug)]
pub struct Lead {
    word: AtomicU64,
    lease: AtomicU32,
}

impl Default for Lead {
    fn default() -> Self {
        Lead::new()
    }
}

impl Lead {
    /// Nobody leads, and the poller is taken to be armed.
    pub fn new() -> Self {
        Lead { word: AtomicU64::new(ARMED), lease: AtomicU32::new(0) }
    }

    /// Becomes the leader, if nobody is. `alone`: nothing is owed to anybody but the caller; then the
    /// poller is not to wake the keeper.
    pub fn begin(&self, alone: impl Fn() -> bool, watch: impl Fn(bool)) -> Option<Ticket> {
        let quiet = alone();
        let mut word = self.word.load(Ordering::Relaxed);
        let ticket = loop {
            if word & TICKET != 0 && word & WARM == 0 {
                return None;
            }
            let last = (word & !ARMED) >> LAST;
            let ticket = if last == TICKET { 1 } else { last + 1 };
            let armed = if quiet { 0 } else { word & ARMED };
            let new = armed | ticket << LAST | ticket;
            // AcqRel: takes over from the leader before; the partner is `leave`.
            match self.word.compare_exchange_weak(word, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break ticket as u32,
                Err(now) => word = now,
            }
        };
        if quiet && word & ARMED != 0 {
            self.hush(watch, || !alone());
        }
        Some(Ticket(ticket))
    }

    /// Whether the ticket still leads.
    #[inline]
    pub fn is_led_by(&self, ticket: Ticket) -> bool {
        // Relaxed: a leader that learns late that it was revoked does no harm.
        let word = self.word.load(Ordering::Relaxed);
        word & TICKET == u64::from(ticket.0) && word & WARM == 0
    }

    /// The leader moves.
    #[inline]
    pub fn renew(&self) {
        // Relaxed, and no exchange: there is one leader, and the keeper compares values a grace apart.
        self.lease.store(self.lease.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Somebody is owed a reply from now on: sees to it that the poller tells the keeper. To be called after
    /// that was noted where the leader looks; not by a caller that begins to lead itself.
    #[inline]
    pub fn expect(&self, watch: impl Fn(bool)) {
        // What is owed was noted before the bit is looked at; the partners are the fences in `hush` and `leave`.
        fence(Ordering::SeqCst);
        if self.word.load(Ordering::Relaxed) & ARMED == 0 && !cfg!(afflux_mutation = "lead_unexpected") {
            self.arm(watch);
        }
    }

    #[cold]
    fn arm(&self, watch: impl Fn(bool)) {
        // AcqRel: as `begin`.
        if self.word.fetch_or(ARMED, Ordering::AcqRel) & ARMED == 0 {
            watch(true);
        }
    }

    /// The bit was cleared: tells the poller, and takes it back if somebody wants it armed meanwhile.
    fn hush(&self, watch: impl Fn(bool), owed: impl Fn() -> bool) {
        watch(false);
        // The bit was cleared before what is owed is looked at; the partner is the fence in `expect`.
        fence(Ordering::SeqCst);
        if self.word.load(Ordering::Relaxed) & ARMED != 0 {
            if !cfg!(afflux_mutation = "lead_hushed_blindly") {
                watch(true);
            }
        } else if owed() {
            self.arm(watch);
        }
    }

    /// The leader goes. `owed`: somebody is owed a reply, or there may be something unread. `warm`: if not,
    /// another leader is expected soon, and the keeper will [`Lead::cool`] the lane if none comes. True: the
    /// lane is warm now. A revoked leader changes nothing.
    pub fn leave(&self, ticket: Ticket, warm: bool, owed: impl Fn() -> bool, watch: impl Fn(bool)) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word & TICKET != u64::from(ticket.0) || word & WARM != 0 {
                return false;
            }
            let warms = warm && word & ARMED == 0 && !owed();
            let new = if warms { word | WARM } else { word & !TICKET | ARMED };
            // AcqRel: hands over to the next leader; the partner is `begin`.
            match self.word.compare_exchange_weak(word, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if !warms => {
                    if word & ARMED == 0 && !cfg!(afflux_mutation = "lead_left_unarmed") {
                        watch(true);
                    }
                    return false;
                }
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        // Warm before what is owed is looked at; the partner is the fence in `expect`.
        fence(Ordering::SeqCst);
        !(owed() && !cfg!(afflux_mutation = "lead_warm_while_owed") && self.cool(watch))
    }

    /// For the keeper, and for a leaver that finds something owed: a warm lane is nobody's from now on. True:
    /// it was warm.
    pub fn cool(&self, watch: impl Fn(bool)) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        while word & WARM != 0 {
            if self.free(&mut word, &watch) {
                return true;
            }
        }
        false
    }

    /// For the keeper: takes the lead away from a leader that is stuck.
    pub fn revoke(&self, ticket: Ticket, watch: impl Fn(bool)) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        while word & TICKET == u64::from(ticket.0) {
            if self.free(&mut word, &watch) {
                return true;
            }
        }
        false
    }

    /// One attempt to make the lane nobody's.
    fn free(&self, word: &mut u64, watch: &impl Fn(bool)) -> bool {
        let new = *word & !(TICKET | WARM) | ARMED;
        // AcqRel: as `leave`.
        match self.word.compare_exchange_weak(*word, new, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => {
                if *word & ARMED == 0 {
                    watch(true);
                }
                true
            }
            Err(now) => {
                *word = now;
                false
            }
        }
    }

    /// For the keeper: its poller told of something to read. If a leader reads, the poller is not to wake the
    /// keeper for every reply: the keeper comes back after a grace.
    pub fn seen(&self, watch: impl Fn(bool)) -> Seen {
        if self.cool(&watch) {
            return Seen::Read;
        }
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let ticket = (word & TICKET) as u32;
            if ticket == 0 || word & WARM != 0 {
                // Warm between the two looks: the next report of the poller finds it.
                self.cool(&watch);
                return Seen::Read;
            }
            let lease = self.lease.load(Ordering::Relaxed);
            // AcqRel: as `begin`.
            match self.word.compare_exchange_weak(word, word & !ARMED, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    self.hush(watch, || false);
                    return Seen::Led(Ticket(ticket), lease);
                }
                Err(now) => word = now,
            }
        }
    }

    /// For the keeper, a grace after [`Seen::Led`]: whether that leader leads and has not moved.
    pub fn is_still(&self, ticket: Ticket, lease: u32) -> bool {
        self.is_led_by(ticket) && self.lease.load(Ordering::Relaxed) == lease
    }

    /// How far leaders have moved; changes with every read of one: for a keeper that cools a lane which nobody has led for a while.
    pub fn lease(&self) -> u32 {
        self.lease.load(Ordering::Relaxed)
    }

    /// Whether somebody leads.
    pub fn is_led(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        word & TICKET != 0 && word & WARM == 0
    }

    /// Whether the lane is warm.
    pub fn is_warm(&self) -> bool {
        self.word.load(Ordering::Relaxed) & WARM != 0
    }

    /// How often it was led, for checks; it begins anew at 2^31.
    pub fn count(&self) -> u32 {
        ((self.word.load(Ordering::Relaxed) & !ARMED) >> LAST) as u32
    }

    /// Another connection, which its poller watches from the start, and which nobody leads: who led the one
    /// before sleeps on that.
    pub fn attach(&self) {
        let mut word = self.word.load(Ordering::Relaxed);
        while !self.free(&mut word, &|_| ()) {}
    }
}
