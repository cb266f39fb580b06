//! The state of a bucket: one 64-bit word.

use crate::engine::time::{Nanos, Now, Timeline, Timestamp};

const TALLY_BITS: u32 = 20;
const INSTANT_BITS: u32 = 43;

/// The state of a bucket: a word below 2^63, for all algorithms and stores.
///
/// It is either an instant in nanoseconds (a token bucket's TAT), an instant in whole milliseconds
/// (43 bits) with a tally (20 bits), or [`Slots`]. The algorithm determines which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State(u64);

impl State {
    /// Slots of which none is held. It has the same effect as no state.
    pub const EMPTY: State = State(0);
    /// The maximum tally.
    pub const MAX_TALLY: u64 = (1 << TALLY_BITS) - 1;
    /// The latest instant of a state with a tally (in the year 2248).
    ///
    /// For algorithms with a tally, time does not advance beyond it.
    pub const MAX_INSTANT: Timestamp =
        Timestamp::ORIGIN.saturating_add(Nanos::from_millis((1 << INSTANT_BITS) - 1));

    /// Returns a state with an instant in nanoseconds.
    pub const fn from_instant(instant: Timestamp) -> State {
        State(instant.get() as u64)
    }

    /// The instant, to the nanosecond.
    pub const fn instant(self) -> Timestamp {
        // The word is below 2^63, so the instant is not negative.
        Timestamp::clamped(self.0 as i64)
    }

    /// Returns a state with an instant, rounded down to the millisecond, and a tally.
    pub fn from_tally(instant: Timestamp, tally: u64) -> State {
        debug_assert!(tally <= State::MAX_TALLY, "a limit admits no larger tally");
        let instant = instant.min(State::MAX_INSTANT);
        let millis = (instant.get() / 1_000_000) as u64;
        State(millis << TALLY_BITS | tally.min(State::MAX_TALLY))
    }

    /// The instant of a state with a tally, in whole milliseconds.
    pub const fn tally_instant(self) -> Timestamp {
        Timestamp::ORIGIN.saturating_add(Nanos::from_millis(self.0 >> TALLY_BITS))
    }

    /// The tally.
    pub const fn tally(self) -> u64 {
        self.0 & State::MAX_TALLY
    }

    /// Returns a state with slots. Read as one with a tally, its instant is the start of the epoch, late
    /// by less than a unit, so that stores need not tell the two apart.
    pub fn from_slots(slots: Slots) -> State {
        let start = slots.start.clamp(0, (1 << Slots::START_BITS) - 1).unsigned_abs();
        let [current, previous] =
            [slots.current, slots.previous].map(|held| held.clamp(0, Slots::MAX).unsigned_abs());
        State((start << Slots::BITS | current) << Slots::BITS | previous)
    }

    /// The slots.
    pub const fn slots(self) -> Slots {
        let mask = Slots::MAX.unsigned_abs();
        Slots {
            start: (self.0 >> (2 * Slots::BITS)).cast_signed(),
            current: (self.0 >> Slots::BITS & mask).cast_signed(),
            previous: (self.0 & mask).cast_signed(),
        }
    }

    /// Returns the state of a stored word; `None` if the word is invalid.
    pub const fn from_word(word: u64) -> Option<State> {
        if word >> 63 == 0 { Some(State(word)) } else { None }
    }

    /// The word to store, below 2^63.
    pub const fn word(self) -> u64 {
        self.0
    }
}

/// What the states of an algorithm are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateKind {
    /// An instant in nanoseconds.
    Instant,
    /// An instant in whole milliseconds with a tally: the tokens used.
    Tally,
    /// The slots of requests in flight.
    Slots,
}

impl StateKind {
    /// Returns whether a store may read its states as an instant with a tally.
    pub const fn has_tally(self) -> bool {
        !matches!(self, StateKind::Instant)
    }

    /// Returns the number of slots held in a state; `None` if it has none.
    ///
    /// Without the limit, it is unknown whether the slots of the previous epoch have expired, so they are
    /// included.
    pub fn slots_in(self, state: State) -> Option<i64> {
        let Slots { current, previous, .. } = state.slots();
        (self == StateKind::Slots).then_some(current + previous)
    }
}

/// The slots of requests in flight: those taken in the current epoch and in the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// The start of the current epoch, in units.
    pub start: i64,
    /// Slots taken in the current epoch.
    pub current: i64,
    /// Slots taken in the previous epoch.
    pub previous: i64,
}

impl Slots {
    /// The unit of epochs: 1024 ms, so that a start leaves the low ten bits of an instant free.
    pub const UNIT: Nanos = Nanos::from_millis(1 << (2 * Slots::BITS - TALLY_BITS));
    /// The most slots of one epoch.
    pub const MAX: i64 = (1 << Slots::BITS) - 1;
    const BITS: u32 = 15;
    const START_BITS: u32 = 63 - 2 * Slots::BITS;
}

/// The epoch in which slots were taken, and its length then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease(u64);

impl Lease {
    /// The lease of slots that are not counted. It is of no epoch, so its release returns nothing.
    pub const NONE: Lease = Lease(u64::MAX << Lease::EPOCH_BITS);
    const EPOCH_BITS: u32 = 30;

    /// Returns the lease of slots taken in the epoch that began at `start`; both in units.
    pub(super) const fn new(start: i64, epoch: i64) -> Lease {
        Lease(start.unsigned_abs() << Lease::EPOCH_BITS | epoch.unsigned_abs())
    }

    /// The start of the epoch, in units.
    pub const fn start(self) -> i64 {
        (self.0 >> Lease::EPOCH_BITS).cast_signed()
    }

    /// The length of the epoch, in units.
    pub const fn epoch(self) -> i64 {
        (self.0 & ((1 << Lease::EPOCH_BITS) - 1)).cast_signed()
    }
}

/// The expiry of a state, so that stores need not know its limit.
///
/// The highest bit is the [`Timeline`] of the state. The others are 0 for a state that ends at its
/// instant (a TAT). Otherwise it ends some milliseconds after the instant of a state with a tally: that is
/// the limit's longest lifetime, rounded up to a power of two or to halfway to the next, so by less than
/// a half. A store keeps it in 8 bits beside the state. It never shortens the lifetime of a live bucket,
/// which may have been filled under a limit with a longer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lifetime(u8);

impl Lifetime {
    /// The lifetime of a state with an instant in nanoseconds.
    pub const INSTANT: Lifetime = Lifetime(0);
    /// The size of a lifetime in bits.
    pub const BITS: u32 = 8;
    /// The steps between a power of two and the next.
    const STEPS: u64 = 2;
    const ON_WALL: u8 = 1 << (Lifetime::BITS - 1);

    /// Returns the lifetime of a state with a tally that expires `memory` after its instant.
    pub const fn of_tally(memory: Nanos) -> Lifetime {
        // Rounded up to whole milliseconds, and to at least two.
        let mut millis = memory.millis() + !memory.is_whole_millis() as u64;
        if millis < Lifetime::STEPS {
            millis = Lifetime::STEPS;
        }
        // From 2 to 4 steps of 2^shift milliseconds; 4 are 2 of the next size. At most 87, as the shift
        // is at most 42.
        let shift = millis.ilog2() - Lifetime::STEPS.ilog2();
        let steps = millis.div_ceil(1 << shift);
        Lifetime(1 + (shift as u64 * Lifetime::STEPS + steps - Lifetime::STEPS) as u8)
    }

    /// Returns the lifetime of the stored bits.
    pub const fn from_bits(bits: u64) -> Lifetime {
        Lifetime((bits & ((1 << Lifetime::BITS) - 1)) as u8)
    }

    /// The bits to store.
    pub const fn bits(self) -> u64 {
        self.0 as u64
    }

    /// Returns the same lifetime on another timeline.
    #[must_use]
    pub const fn on(self, timeline: Timeline) -> Lifetime {
        match timeline {
            Timeline::Steady => Lifetime(self.0 & !Lifetime::ON_WALL),
            Timeline::Wall => Lifetime(self.0 | Lifetime::ON_WALL),
        }
    }

    /// Returns the timeline of the states.
    #[inline(always)]
    pub const fn timeline(self) -> Timeline {
        if self.0 & Lifetime::ON_WALL == 0 { Timeline::Steady } else { Timeline::Wall }
    }

    /// Returns whether this is the lifetime of a state with a tally.
    #[inline(always)]
    pub const fn is_of_tally(self) -> bool {
        self.0 & !Lifetime::ON_WALL > 0
    }

    /// Returns whether `state` has the same effect as no state from `now` on.
    #[inline(always)]
    pub fn is_over(self, state: State, now: Now) -> bool {
        self.end_of(state) <= now.on(self.timeline())
    }

    /// Returns the time from `now` to the end of `state`, negative if that has passed.
    pub fn left(self, state: State, now: Now) -> i64 {
        self.end_of(state).get().saturating_sub(now.on(self.timeline()).get())
    }

    /// Returns the instant on its timeline from which `state` has the same effect as no state.
    pub const fn end_of(self, state: State) -> Timestamp {
        if !self.is_of_tally() {
            state.instant()
        } else {
            let number = (self.0 & !Lifetime::ON_WALL) as u64 - 1;
            let steps = Lifetime::STEPS + number % Lifetime::STEPS;
            // Damaged bits may have a shift of up to 63, for which the sum saturates anyway.
            let shift = number / Lifetime::STEPS;
            let millis = steps << if shift > 60 { 60 } else { shift };
            state.tally_instant().saturating_add(Nanos::from_millis(millis))
        }
    }
}

/// The write of a call to a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Write {
    /// Nothing: the bucket keeps its state.
    #[default]
    Keep,
    /// A new state, and how long to keep it.
    Put(State, Lifetime),
    /// No state: nothing is held in a bucket that was found.
    Clear,
}

impl Write {
    /// Returns the state to write; `None` to keep the existing one. After a clear it is [`State::EMPTY`],
    /// for a store that cannot remove a bucket.
    #[inline(always)]
    pub fn state(self) -> Option<(State, Lifetime)> {
        match self {
            Write::Keep => None,
            Write::Put(state, lifetime) => Some((state, lifetime)),
            Write::Clear => Some((State::EMPTY, Lifetime::INSTANT)),
        }
    }

    /// Returns the write of a state if something changes.
    #[inline(always)]
    pub(crate) fn put_if(changes: bool, state: State, lifetime: Lifetime) -> Write {
        if changes { Write::Put(state, lifetime) } else { Write::Keep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_holds_an_instant_and_a_tally() {
        let at = Timestamp::new(1_700_000_000_123_999_999).unwrap();
        let state = State::from_tally(at, State::MAX_TALLY);
        assert_eq!(state.tally(), State::MAX_TALLY);
        assert_eq!(state.tally_instant().get(), 1_700_000_000_123_000_000);
        assert_eq!(State::from_word(state.word()), Some(state));
        assert_eq!(State::from_word(1 << 63), None);
    }

    #[test]
    fn lifetimes_are_rounded_up() {
        let state = State::from_tally(Timestamp::ORIGIN, 1);
        let mut before = Lifetime::INSTANT;
        for millis in (2..10_000).chain([86_400_000, 1 << 40, (1 << 42) + 1]) {
            let memory = Nanos::from_millis(millis);
            let lifetime = Lifetime::of_tally(memory);
            let end = lifetime.end_of(state).get();
            assert!(end >= memory.get(), "{millis} ms end at {end} ns");
            assert!(end < memory.get() + memory.get() / 2, "{millis} ms end at {end} ns");
            assert!(lifetime >= before, "the bits are in the order of the lifetimes");
            before = lifetime;
        }
        for millis in 0..2 {
            let lifetime = Lifetime::of_tally(Nanos::from_millis(millis));
            assert_eq!(lifetime.end_of(state), Timestamp::clamped(2_000_000));
        }
        for bits in (1..=127).chain(129..=255) {
            let end = Lifetime::from_bits(bits).end_of(state);
            assert!(end >= Timestamp::clamped(2_000_000) && end <= Timestamp::MAX);
        }
        for lifetime in [Lifetime::INSTANT, Lifetime::of_tally(Nanos::MAX)] {
            for timeline in [Timeline::Steady, Timeline::Wall] {
                let stored = Lifetime::from_bits(lifetime.on(timeline).bits());
                assert_eq!(stored.timeline(), timeline);
                assert_eq!(stored.end_of(state), lifetime.end_of(state));
                assert_eq!(stored.is_of_tally(), lifetime.is_of_tally());
                assert_eq!(stored.on(Timeline::Steady), lifetime);
            }
        }
    }
}
