//! Who is served next, and how long anybody had to wait for it.
//!
//! A policy knows which sources are ready and what their first item is like, and names the source
//! of which one item is served next. Each states its bound: what at most may be served to others
//! between two services of a source that stays ready. Equal counts are not fair where one item
//! costs a thousand times another: choose the resource first, then the policy.
//!
//! | policy | shares equally | bound between two services of a source that stays ready |
//! |---|---|---|
//! | [`RoundRobin`] | turns | one item of each other ready source |
//! | [`DeficitRoundRobin`] | bytes | `ceil(cost / quantum) + 1` visits of each other: that many quanta plus one item each |
//! | [`WeightedClasses`] | turns by weight of the class | per class of weight v, against w: `v / w + 1` turns, times the sources of its own class |
//! | [`OldestDeadline`] | nothing | what has an earlier deadline: nobody who comes after its deadline overtakes it |
//! | [`MaxConsecutive`] | adds to another policy | `max` items in a row of any one source |

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::base::time::Instant;

/// A source, as a small number.
pub type Source = u32;

/// The first item of a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// What serving it takes, in bytes or whatever is shared.
    pub cost: u64,
    /// When it should be served; [`Instant::NEVER`] if nobody minds.
    pub deadline: Instant,
}

/// The order of service among sources.
pub trait Fairness {
    /// A source that had nothing has something. Said of a source that is ready, it is ignored.
    fn ready(&mut self, source: Source, head: Head);

    /// Of whom to serve one item. The source is out of the order until [`Fairness::served`].
    fn next(&mut self) -> Option<Source>;

    /// The source that [`Fairness::next`] named was served; with its next item it is ready again.
    fn served(&mut self, source: Source, next: Option<Head>);

    /// A source has nothing more, or is gone. It comes back as a new one.
    fn leave(&mut self, source: Source);
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Place {
    #[default]
    Out,
    Queued,
    Named,
}

/// Grows a table to hold `source`.
fn at<T: Default>(table: &mut Vec<T>, source: Source) -> &mut T {
    let index = source as usize;
    if table.len() <= index {
        table.resize_with(index + 1, T::default);
    }
    &mut table[index]
}

/// One item of each ready source in turn.
#[derive(Debug, Default)]
pub struct RoundRobin {
    queue: VecDeque<Source>,
    places: Vec<Place>,
}

impl Fairness for RoundRobin {
    fn ready(&mut self, source: Source, _: Head) {
        let place = at(&mut self.places, source);
        if *place == Place::Out {
            *place = Place::Queued;
            self.queue.push_back(source);
        }
    }

    fn next(&mut self) -> Option<Source> {
        let source = self.queue.pop_front()?;
        self.places[source as usize] = Place::Named;
        Some(source)
    }

    fn served(&mut self, source: Source, next: Option<Head>) {
        let place = at(&mut self.places, source);
        if std::mem::take(place) == Place::Named && next.is_some() {
            *place = Place::Queued;
            self.queue.push_back(source);
        }
    }

    fn leave(&mut self, source: Source) {
        if std::mem::take(at(&mut self.places, source)) == Place::Queued {
            self.queue.retain(|other| *other != source);
        }
    }
}

/// Equal bytes: each visit of a source adds a quantum to what it may spend, and it is served while
/// that covers its first item. A source that runs empty loses what it had left, so nobody saves up.
#[derive(Debug)]
pub struct DeficitRoundRobin {
    quantum: u64,
    queue: VecDeque<Source>,
    accounts: Vec<Account>,
    /// The front source has had its quantum for this visit.
    credited: bool,
}

#[derive(Debug, Default)]
struct Account {
    place: Place,
    deficit: u64,
    cost: u64,
}

impl DeficitRoundRobin {
    /// A quantum (at least 1) of about the largest common item serves most visits at once; a much
    /// smaller one is only finer on average.
    pub fn new(quantum: u64) -> Self {
        let (queue, accounts) = (VecDeque::new(), Vec::new());
        DeficitRoundRobin { quantum: quantum.max(1), queue, accounts, credited: false }
    }

    /// Nobody could be served in a whole round: the rounds in which nobody could be either are
    /// credited at once.
    fn skip_rounds(&mut self) {
        let missing = |s: &Source| self.accounts[*s as usize].cost - self.accounts[*s as usize].deficit;
        let rounds = self.queue.iter().map(|s| missing(s).div_ceil(self.quantum)).min().unwrap_or(1) - 1;
        for source in &self.queue {
            self.accounts[*source as usize].deficit += rounds * self.quantum;
        }
    }
}

impl Fairness for DeficitRoundRobin {
    fn ready(&mut self, source: Source, head: Head) {
        let account = at(&mut self.accounts, source);
        if account.place == Place::Out {
            *account = Account { place: Place::Queued, deficit: 0, cost: head.cost };
            self.queue.push_back(source);
        }
    }

    fn next(&mut self) -> Option<Source> {
        let mut passed = 0;
        loop {
            let source = *self.queue.front()?;
            let account = &mut self.accounts[source as usize];
            if !std::mem::replace(&mut self.credited, true) {
                account.deficit = account.deficit.saturating_add(self.quantum);
            }
            if cfg!(afflux_mutation = "shares_ignored") || account.deficit >= account.cost {
                account.deficit = account.deficit.saturating_sub(account.cost);
                account.place = Place::Named;
                self.queue.pop_front();
                return Some(source);
            }
            self.queue.rotate_left(1);
            self.credited = false;
            passed += 1;
            if passed % self.queue.len() == 0 {
                self.skip_rounds();
            }
        }
    }

    fn served(&mut self, source: Source, next: Option<Head>) {
        let account = at(&mut self.accounts, source);
        if account.place != Place::Named {
            return;
        }
        let Some(head) = next else {
            *account = Account::default();
            self.credited = false;
            return;
        };
        account.place = Place::Queued;
        account.cost = head.cost;
        self.credited = account.deficit >= account.cost;
        if self.credited {
            self.queue.push_front(source);
        } else {
            self.queue.push_back(source);
        }
    }

    fn leave(&mut self, source: Source) {
        let account = std::mem::take(at(&mut self.accounts, source));
        if account.place == Place::Queued {
            self.credited &= self.queue.front() != Some(&source);
            self.queue.retain(|other| *other != source);
        }
    }
}

/// Turns by weight among classes, equal turns among the sources of a class. A class that was idle
/// does not catch up on what it did not ask for.
#[derive(Debug)]
pub struct WeightedClasses {
    classes: Vec<Class>,
    class_of: Vec<u16>,
    /// How far the class served last has come.
    virtual_time: u128,
}

#[derive(Debug)]
struct Class {
    /// Added to `pass` per turn: the smaller, the more turns.
    stride: u128,
    pass: u128,
    sources: RoundRobin,
}

/// Divisible finely enough by every weight.
const STRIDE: u128 = 1 << 32;

impl WeightedClasses {
    /// Classes 0, 1, .. with these weights, each at least 1 and at most 10,000. At least one class.
    pub fn new(weights: &[u32]) -> Self {
        debug_assert!(!weights.is_empty());
        let class = |weight: &u32| Class {
            stride: STRIDE
                / u128::from(if cfg!(afflux_mutation = "shares_ignored") { 1 } else { (*weight).clamp(1, 10_000) }),
            pass: 0,
            sources: RoundRobin::default(),
        };
        WeightedClasses { classes: weights.iter().map(class).collect(), class_of: Vec::new(), virtual_time: 0 }
    }

    /// Puts a source into a class; without it a source is in class 0. A source that was ready is out
    /// of the order afterwards, so say it before [`Fairness::ready`].
    pub fn assign(&mut self, source: Source, class: u16) {
        self.leave(source);
        *at(&mut self.class_of, source) = class.min(self.classes.len() as u16 - 1);
    }

    fn class_of(&mut self, source: Source) -> &mut Class {
        let class = *at(&mut self.class_of, source);
        &mut self.classes[class as usize]
    }
}

impl Fairness for WeightedClasses {
    fn ready(&mut self, source: Source, head: Head) {
        let virtual_time = self.virtual_time;
        let class = self.class_of(source);
        if class.sources.queue.is_empty() {
            class.pass = class.pass.max(virtual_time);
        }
        class.sources.ready(source, head);
    }

    fn next(&mut self) -> Option<Source> {
        let waiting = self.classes.iter_mut().filter(|class| !class.sources.queue.is_empty());
        let class = waiting.min_by_key(|class| class.pass)?;
        self.virtual_time = class.pass;
        class.pass += class.stride;
        class.sources.next()
    }

    fn served(&mut self, source: Source, next: Option<Head>) {
        self.class_of(source).sources.served(source, next);
    }

    fn leave(&mut self, source: Source) {
        self.class_of(source).sources.leave(source);
    }
}

/// Whose first item must be served soonest; of equal deadlines, who was ready first. Shares
/// nothing: a source whose deadlines are always earlier comes always first, so give it a maximum of
/// consecutive items.
#[derive(Debug, Default)]
pub struct OldestDeadline {
    order: BTreeMap<(Instant, u64), Source>,
    places: Vec<(Place, Instant, u64)>,
    last: u64,
}

impl OldestDeadline {
    fn enter(&mut self, source: Source, head: Head) {
        self.last += 1;
        self.order.insert((head.deadline, self.last), source);
        *at(&mut self.places, source) = (Place::Queued, head.deadline, self.last);
    }
}

impl Fairness for OldestDeadline {
    fn ready(&mut self, source: Source, head: Head) {
        if at(&mut self.places, source).0 == Place::Out {
            self.enter(source, head);
        }
    }

    fn next(&mut self) -> Option<Source> {
        let (_, source) = self.order.pop_first()?;
        self.places[source as usize].0 = Place::Named;
        Some(source)
    }

    fn served(&mut self, source: Source, next: Option<Head>) {
        if std::mem::take(at(&mut self.places, source)).0 == Place::Named
            && let Some(head) = next
        {
            self.enter(source, head);
        }
    }

    fn leave(&mut self, source: Source) {
        let (place, deadline, entered) = std::mem::take(at(&mut self.places, source));
        if place == Place::Queued {
            self.order.remove(&(deadline, entered));
        }
    }
}

/// Any order, but no source more than `max` times in a row while another is ready.
#[derive(Debug)]
pub struct MaxConsecutive<F> {
    inner: F,
    max: u32,
    last: Option<Source>,
    run: u32,
    /// It had its run, and waits until another source was named.
    aside: Option<(Source, Head)>,
}

impl<F: Fairness> MaxConsecutive<F> {
    /// Bounds `inner`; `max` is at least 1.
    pub fn new(inner: F, max: u32) -> Self {
        MaxConsecutive { inner, max: max.max(1), last: None, run: 0, aside: None }
    }
}

impl<F: Fairness> Fairness for MaxConsecutive<F> {
    fn ready(&mut self, source: Source, head: Head) {
        if self.last == Some(source) && self.run >= self.max {
            // Also when it ran empty at the end of its run: that would be a way around the bound.
            self.aside.get_or_insert((source, head));
        } else {
            self.inner.ready(source, head);
        }
    }

    fn next(&mut self) -> Option<Source> {
        let named = self.inner.next();
        if let Some((aside, head)) = self.aside.take() {
            // Whoever is named instead of it ended its run; if there is nobody, it goes on.
            self.inner.ready(aside, head);
            self.last = None;
        }
        let source = named.or_else(|| self.inner.next())?;
        self.run = if self.last.replace(source) == Some(source) { self.run + 1 } else { 1 };
        Some(source)
    }

    fn served(&mut self, source: Source, next: Option<Head>) {
        match next {
            Some(head) if self.run >= self.max => {
                self.inner.served(source, None);
                self.ready(source, head);
            }
            next => self.inner.served(source, next),
        }
    }

    fn leave(&mut self, source: Source) {
        self.aside = self.aside.filter(|(aside, _)| *aside != source);
        self.inner.leave(source);
    }
}

/// Measures one source: the longest time that it was ready and not served. Time in which it was
/// not ready does not count: it had nothing to be served with.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoProgress {
    since: Option<Instant>,
    longest: Duration,
}

impl NoProgress {
    /// The source is ready. Said again while it is, it changes nothing.
    pub fn ready(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// The source was served; `still_ready`: a new interval begins.
    pub fn served(&mut self, now: Instant, still_ready: bool) {
        self.not_ready(now);
        self.since = still_ready.then_some(now);
    }

    /// The source is not ready any more, and it was not served: what it waited in vain counts.
    pub fn not_ready(&mut self, now: Instant) {
        self.longest = self.longest(now);
        self.since = None;
    }

    /// How long it has been ready without being served, up to now.
    pub fn current(&self, now: Instant) -> Duration {
        self.since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// The longest such time, the present one included.
    pub fn longest(&self, now: Instant) -> Duration {
        self.longest.max(self.current(now))
    }

    /// Forgets what was; an interval that is under way counts from `now`.
    pub fn reset(&mut self, now: Instant) {
        self.longest = Duration::ZERO;
        self.since = self.since.map(|_| now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: Instant = Instant::NEVER;

    fn head(cost: u64) -> Head {
        Head { cost, deadline: NEVER }
    }

    /// Serves `n` items; every source has an endless supply of items like its first.
    fn serve(order: &mut impl Fairness, heads: &[Head], n: usize) -> Vec<Source> {
        let mut out = Vec::new();
        for _ in 0..n {
            let source = order.next().unwrap();
            order.served(source, Some(heads[source as usize]));
            out.push(source);
        }
        out
    }

    fn all_ready(order: &mut impl Fairness, heads: &[Head]) {
        heads.iter().enumerate().for_each(|(source, head)| order.ready(source as Source, *head));
    }

    #[test]
    fn the_merger_of_the_book() {
        let mut order = RoundRobin::default();
        let mut sources = [vec!["a3", "a2", "a1"], vec!["b1"], vec!["c2", "c1"]];
        all_ready(&mut order, &[head(1); 3]);
        let mut merged = Vec::new();
        while let Some(source) = order.next() {
            let items = &mut sources[source as usize];
            merged.extend(items.pop());
            order.served(source, (!items.is_empty()).then_some(head(1)));
        }
        assert_eq!(merged, ["a1", "b1", "c1", "a2", "c2", "a3"]);
    }

    #[test]
    fn deficit_shares_bytes_and_not_turns() {
        let heads = [head(1000), head(10), head(100)];
        let mut order = DeficitRoundRobin::new(500);
        all_ready(&mut order, &heads);
        let mut bytes = [0u64; 3];
        for source in serve(&mut order, &heads, 10_000) {
            bytes[source as usize] += heads[source as usize].cost;
        }
        let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
        assert!(most - least <= 2 * 1000, "{bytes:?}");
    }

    #[test]
    fn deficit_is_quick_with_a_tiny_quantum_and_forgets_the_idle() {
        let mut order = DeficitRoundRobin::new(1);
        order.ready(0, head(u64::MAX / 4));
        order.ready(1, head(u64::MAX / 2));
        assert_eq!(order.next(), Some(0));
        order.served(0, None);
        order.ready(0, head(10));
        assert_eq!(order.next(), Some(0), "what it had left is gone, and 10 is still less than the rest");
        order.leave(1);
        order.served(0, None);
        assert_eq!(order.next(), None);
    }

    #[test]
    fn classes_share_turns_by_weight_and_do_not_catch_up() {
        let mut order = WeightedClasses::new(&[1, 3]);
        order.assign(1, 1);
        order.assign(2, 1);
        all_ready(&mut order, &[head(1); 3]);
        let turns = serve(&mut order, &[head(1); 3], 400);
        let count = |n| turns.iter().filter(|s| **s == n).count();
        assert_eq!((count(0), count(1), count(2)), (100, 150, 150));
        order.leave(0);
        serve(&mut order, &[head(1); 3], 1000);
        order.ready(0, head(1));
        let turns = serve(&mut order, &[head(1); 3], 40);
        assert!((9..=11).contains(&turns.iter().filter(|s| **s == 0).count()), "{turns:?}");
    }

    #[test]
    fn earliest_deadline_first_and_equal_ones_in_order() {
        let mut order = OldestDeadline::default();
        for (source, deadline) in [(0, 50), (1, 20), (2, 50), (3, 70)] {
            order.ready(source, Head { cost: 1, deadline: Instant(deadline) });
        }
        order.leave(3);
        order.ready(1, Head { cost: 1, deadline: Instant(99) });
        let mut out = Vec::new();
        while let Some(source) = order.next() {
            order.served(source, None);
            out.push(source);
        }
        assert_eq!(out, [1, 0, 2]);
    }

    #[test]
    fn nobody_has_more_than_its_run_while_another_is_ready() {
        let heads = [Head { cost: 1, deadline: Instant(1) }, head(1)];
        let mut order = MaxConsecutive::new(OldestDeadline::default(), 3);
        all_ready(&mut order, &heads);
        assert_eq!(serve(&mut order, &heads, 9), [0, 0, 0, 1, 0, 0, 0, 1, 0]);
        order.leave(1);
        assert_eq!(serve(&mut order, &heads, 5), [0; 5], "alone it goes on");
        order.leave(0);
        assert_eq!(order.next(), None);
    }

    #[test]
    fn only_time_spent_ready_counts() {
        let mut p = NoProgress::default();
        let ns = Duration::from_nanos;
        assert_eq!(p.longest(Instant(100)), ns(0));
        p.ready(Instant(100));
        p.ready(Instant(150));
        assert_eq!(p.current(Instant(170)), ns(70));
        p.served(Instant(180), true);
        p.served(Instant(200), false);
        assert_eq!((p.current(Instant(900)), p.longest(Instant(900))), (ns(0), ns(80)));
        p.ready(Instant(1000));
        p.not_ready(Instant(1090));
        assert_eq!(p.longest(Instant(5000)), ns(90));
        p.ready(Instant(5000));
        p.reset(Instant(6000));
        assert_eq!(p.longest(Instant(6010)), ns(10));
    }
}
