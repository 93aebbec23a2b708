//! Deadlines: a hierarchical timing wheel with ticks of 1 ms.
//!
//! Owns every timer of one thread, in a table whose size is fixed at construction. Eight levels of
//! 64 slots; a timer lies on the level of the highest group of six bits in which its tick differs
//! from `elapsed`, so every timer of a level is due before any timer of the level above, and the
//! first occupied slot of the lowest occupied level is the next one. When the time of a higher
//! slot comes, its timers move down.
//!
//! ```text
//!   tick of a timer   ... | 6 bits | 6 bits | 6 bits |
//!   level                     2        1        0          eight levels hold any instant: no rounds, no far list
//! ```
//!
//! Invariants: no timer's tick is below `elapsed`; on levels above 0 no occupied slot is at or
//! before the present one, except the one that is being emptied; a slot's bit is set if its list
//! is not empty. A timer is rounded up to its tick, so it never fires early; it fires up to 1 ms
//! plus the time between two polls late. When full, [`TimerWheel::insert`] gives the value back.

use crate::base::time::Instant;

/// One tick, in nanoseconds.
const TICK: u64 = 1_000_000;

const LEVELS: usize = 8;
const SLOTS: usize = 64;
const BITS: u32 = 6;

/// Firing one timer costs its owner about as much as moving this many to a lower level.
const MOVES_PER_FIRE: usize = 16;

const NIL: u32 = u32::MAX;

/// Names one timer. A key of a timer that fired or was cancelled is recognised and does nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TimerKey {
    index: u32,
    generation: u32,
}

/// The timers of one thread.
#[derive(Debug)]
pub struct TimerWheel<T> {
    levels: Box<[Level; LEVELS]>,
    timers: Vec<Timer<T>>,
    capacity: usize,
    free: u32,
    len: usize,
    /// Ticks up to here, this one excluded, have been fired.
    elapsed: u64,
    /// A slot above level 0 whose time has come and whose timers are on their way down.
    emptying: Option<usize>,
}

#[derive(Debug)]
struct Level {
    occupied: u64,
    heads: [u32; SLOTS],
}

#[derive(Debug)]
struct Timer<T> {
    generation: u32,
    /// Level x 64 + slot, while it is set.
    slot: u16,
    /// In its slot's list, or in the free list.
    next: u32,
    previous: u32,
    tick: u64,
    value: Option<T>,
}

impl<T> TimerWheel<T> {
    /// Room for `capacity` timers at a time, at most `u32::MAX - 1`. Reserves the whole table now,
    /// so that an insert never allocates.
    pub fn new(capacity: u32) -> Self {
        TimerWheel {
            levels: Box::new([const { Level { occupied: 0, heads: [NIL; SLOTS] } }; LEVELS]),
            timers: Vec::with_capacity(capacity as usize),
            capacity: capacity as usize,
            free: NIL,
            len: 0,
            elapsed: 0,
            emptying: None,
        }
    }

    /// Sets a timer that fires at the first poll at or after `at`. Gives the value back if as many
    /// timers are set as there is room for.
    pub fn insert(&mut self, at: Instant, value: T) -> Result<TimerKey, T> {
        let index = if self.free != NIL {
            self.free
        } else if self.timers.len() < self.capacity {
            self.timers.push(Timer { generation: 0, slot: 0, next: NIL, previous: NIL, tick: 0, value: None });
            (self.timers.len() - 1) as u32
        } else {
            return Err(value);
        };
        let tick = if cfg!(afflux_mutation = "wheel_early") { at.0 / TICK } else { at.0.div_ceil(TICK) };
        let timer = &mut self.timers[index as usize];
        if index == self.free {
            self.free = timer.next;
        }
        timer.tick = tick.max(self.elapsed);
        timer.value = Some(value);
        let generation = timer.generation;
        self.len += 1;
        self.link(index);
        Ok(TimerKey { index, generation })
    }

    /// Takes a timer back before it fires. `None`: it fired or was cancelled already.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        let timer = self.timers.get(key.index as usize)?;
        if timer.generation != key.generation || timer.value.is_none() {
            return None;
        }
        self.unlink(key.index);
        self.release(key.index)
    }

    /// Fires timers that are due at `now`, earlier ticks first, at most `limit` (which also bounds
    /// the work of moving timers between levels). True: the limit ended it; poll again soon.
    pub fn poll(&mut self, now: Instant, limit: usize, mut fire: impl FnMut(T)) -> bool {
        let now = now.0 / TICK;
        let mut work = limit.saturating_mul(MOVES_PER_FIRE);
        while let Some((slot, tick)) = self.next_slot() {
            if tick > now {
                break;
            }
            if work == 0 {
                return true;
            }
            self.elapsed = self.elapsed.max(tick);
            let (level, place) = (slot / SLOTS, slot % SLOTS);
            let index = self.levels[level].heads[place];
            self.unlink(index);
            if level == 0 {
                work = work.saturating_sub(MOVES_PER_FIRE);
                if let Some(value) = self.release(index) {
                    fire(value);
                }
            } else {
                work -= 1;
                self.link(index);
                self.emptying = (self.levels[level].heads[place] != NIL).then_some(slot);
            }
        }
        if self.emptying.is_none() {
            self.elapsed = self.elapsed.max(now);
        }
        false
    }

    /// When to poll next; `None` without timers. Never later than the earliest timer's tick. It is
    /// exact for a timer due within the present 64 ms; for one further away it may be earlier, at
    /// a point from which [`TimerWheel::poll`] brings it one level nearer: a timer `d` ms away
    /// causes at most `log64(d) + 1` polls that fire nothing.
    pub fn next(&self) -> Option<Instant> {
        self.next_slot().map(|(_, tick)| Instant(tick.saturating_mul(TICK)))
    }

    /// Timers set.
    pub fn len(&self) -> usize {
        self.len
    }

    /// No timer is set.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Timers that may be set at a time.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The slot to look at next and the tick at which its time comes.
    fn next_slot(&self) -> Option<(usize, u64)> {
        if let Some(slot) = self.emptying {
            return Some((slot, self.elapsed));
        }
        self.levels.iter().enumerate().find(|(_, level)| level.occupied != 0).map(|(n, level)| {
            let shift = n as u32 * BITS;
            let place = level.occupied.trailing_zeros() as usize;
            let above = self.elapsed >> shift >> BITS << BITS;
            (n * SLOTS + place, (above | place as u64) << shift)
        })
    }

    fn link(&mut self, index: u32) {
        let tick = self.timers[index as usize].tick;
        let level = ((tick ^ self.elapsed) | 1).ilog2() / BITS;
        let place = (tick >> (level * BITS)) as usize % SLOTS;
        let slots = &mut self.levels[level as usize];
        let head = std::mem::replace(&mut slots.heads[place], index);
        slots.occupied |= 1 << place;
        if head != NIL {
            self.timers[head as usize].previous = index;
        }
        let timer = &mut self.timers[index as usize];
        timer.slot = (level as usize * SLOTS + place) as u16;
        timer.next = head;
        timer.previous = NIL;
    }

    fn unlink(&mut self, index: u32) {
        let Timer { slot, next, previous, .. } = self.timers[index as usize];
        if next != NIL {
            self.timers[next as usize].previous = previous;
        }
        if previous != NIL {
            self.timers[previous as usize].next = next;
            return;
        }
        let (level, place) = (slot as usize / SLOTS, slot as usize % SLOTS);
        self.levels[level].heads[place] = next;
        if next == NIL {
            self.levels[level].occupied &= !(1 << place);
            if self.emptying == Some(slot as usize) {
                self.emptying = None;
            }
        }
    }

    fn release(&mut self, index: u32) -> Option<T> {
        let timer = &mut self.timers[index as usize];
        timer.generation = timer.generation.wrapping_add(1);
        timer.next = std::mem::replace(&mut self.free, index);
        self.len -= 1;
        timer.value.take()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::base::time::TIMEOUT_MS_MAX;

    fn ms(n: u64) -> Instant {
        Instant(n * TICK)
    }

    fn fired(wheel: &mut TimerWheel<u32>, now: Instant) -> Vec<u32> {
        let mut out = Vec::new();
        while wheel.poll(now, 3, |v| out.push(v)) {}
        out
    }

    #[test]
    fn fires_at_its_tick_and_not_a_nanosecond_before_its_time() {
        let mut wheel = TimerWheel::new(4);
        wheel.insert(Instant(5 * TICK + 1), 1).unwrap();
        assert_eq!(wheel.next(), Some(ms(6)));
        assert_eq!(fired(&mut wheel, Instant(5 * TICK + 1)), []);
        assert_eq!(fired(&mut wheel, Instant(6 * TICK - 1)), []);
        assert_eq!(fired(&mut wheel, ms(6)), [1]);
        assert_eq!(wheel.next(), None);
    }

    #[test]
    fn a_point_in_the_past_fires_at_the_next_poll() {
        let mut wheel = TimerWheel::new(4);
        assert_eq!(fired(&mut wheel, ms(1_000_000)), []);
        wheel.insert(ms(3), 1).unwrap();
        assert!(wheel.next().unwrap() <= ms(1_000_000));
        assert_eq!(fired(&mut wheel, ms(1_000_000)), [1]);
    }

    #[test]
    fn earlier_ticks_fire_first_whatever_the_jump() {
        let mut wheel = TimerWheel::new(8);
        for (i, at) in [4096, 1, 64, 63, 65, 262_144, 262_143].into_iter().enumerate() {
            wheel.insert(ms(at), i as u32).unwrap();
        }
        assert_eq!(fired(&mut wheel, ms(300_000)), [1, 3, 2, 4, 0, 6, 5]);
    }

    #[test]
    fn the_longest_deadline_and_never_have_a_place() {
        let mut wheel = TimerWheel::new(2);
        let start = Instant(u64::MAX / 2).after(Duration::from_millis(TIMEOUT_MS_MAX));
        assert_eq!(fired(&mut wheel, Instant(u64::MAX / 2)), []);
        wheel.insert(start, 1).unwrap();
        wheel.insert(Instant::NEVER, 2).unwrap();
        let mut polls = 0;
        let mut now = Instant(u64::MAX / 2);
        loop {
            now = wheel.next().unwrap().max(now);
            polls += 1;
            if !fired(&mut wheel, now).is_empty() {
                break;
            }
        }
        assert_eq!(now, Instant(start.0.div_ceil(TICK) * TICK));
        assert!(polls <= 7, "{polls} polls");
        assert_eq!(fired(&mut wheel, Instant(u64::MAX - TICK)), []);
        assert_eq!(wheel.len(), 1);
    }

    #[test]
    fn full_gives_the_value_back_and_places_are_reused_under_new_names() {
        let mut wheel = TimerWheel::new(2);
        let a = wheel.insert(ms(1), 1).unwrap();
        wheel.insert(ms(1), 2).unwrap();
        assert_eq!(wheel.insert(ms(1), 3), Err(3));
        assert_eq!(wheel.cancel(a), Some(1));
        assert_eq!(wheel.cancel(a), None);
        let c = wheel.insert(ms(2), 3).unwrap();
        assert_eq!(wheel.cancel(a), None, "an old name does not reach the new timer");
        assert_eq!(fired(&mut wheel, ms(2)), [2, 3]);
        assert_eq!(wheel.cancel(c), None);
        assert!(wheel.is_empty());
    }

    #[test]
    fn the_limit_bounds_firing_and_moving() {
        let mut wheel = TimerWheel::new(1000);
        for i in 0..1000u32 {
            wheel.insert(ms(4096 + u64::from(i) % 2), i).unwrap();
        }
        let mut out = Vec::new();
        let mut polls = 0;
        while wheel.poll(ms(5000), 10, |v| out.push(v)) {
            polls += 1;
            assert!(out.len() <= polls * 10);
            assert!(wheel.next().unwrap() <= ms(5000), "what is left is due");
        }
        assert_eq!(out.len(), 1000);
        assert!((100..=115).contains(&polls), "{polls}: 100 to fire, a few to move");
    }

    #[test]
    fn cancelling_what_is_on_its_way_down_is_whole() {
        let mut wheel = TimerWheel::new(100);
        let keys: Vec<_> = (0..100).map(|i| wheel.insert(ms(4096), i).unwrap()).collect();
        assert!(wheel.poll(ms(4096), 1, |_| ()));
        let left = keys.into_iter().filter_map(|key| wheel.cancel(key)).count();
        assert_eq!(left, 100);
        assert_eq!(wheel.next(), None);
        wheel.insert(ms(4097), 7).unwrap();
        assert_eq!(fired(&mut wheel, ms(4097)), [7]);
    }
}
