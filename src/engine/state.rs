//! What a bucket remembers: one word.

use crate::engine::time::{Nanos, Timestamp};

const TALLY_BITS: u32 = 20;
const INSTANT_BITS: u32 = 43;

/// What a bucket remembers: one word below 2^63, for every algorithm and in every store.
///
/// Either an instant in nanoseconds (a token bucket's TAT), or an instant in whole milliseconds (43
/// bits) with a tally (20 bits). Which of the two it is, the algorithm knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State(u64);

impl State {
    /// The largest tally a word can hold.
    pub const MAX_TALLY: u64 = (1 << TALLY_BITS) - 1;
    /// The latest instant a word with a tally can hold (in the year 2248).
    ///
    /// For the algorithms that keep a tally, time stops there: what is denied stays denied.
    pub const MAX_INSTANT: Timestamp =
        Timestamp::ORIGIN.saturating_add(Nanos::from_millis((1 << INSTANT_BITS) - 1));

    /// Takes an instant, to the nanosecond.
    pub const fn from_instant(instant: Timestamp) -> State {
        State(instant.get() as u64)
    }

    /// The instant, to the nanosecond.
    pub const fn instant(self) -> Timestamp {
        // A word is below 2^63, so it is never negative.
        Timestamp::clamped(self.0 as i64)
    }

    /// Takes an instant, rounded down to the millisecond, and a tally.
    pub fn from_tally(instant: Timestamp, tally: u64) -> State {
        debug_assert!(tally <= State::MAX_TALLY, "a limit admits no larger tally");
        let instant = instant.min(State::MAX_INSTANT);
        let millis = (instant.get() / 1_000_000) as u64;
        State(millis << TALLY_BITS | tally.min(State::MAX_TALLY))
    }

    /// The instant beside a tally, in whole milliseconds.
    pub const fn tally_instant(self) -> Timestamp {
        Timestamp::ORIGIN.saturating_add(Nanos::from_millis(self.0 >> TALLY_BITS))
    }

    /// The tally.
    pub const fn tally(self) -> u64 {
        self.0 & State::MAX_TALLY
    }

    /// Takes a word that a store kept; `None` if no state has it.
    pub const fn from_word(word: u64) -> Option<State> {
        if word >> 63 == 0 { Some(State(word)) } else { None }
    }

    /// The word that a store keeps, below 2^63.
    pub const fn word(self) -> u64 {
        self.0
    }
}

/// When a state expires, without knowing its limit.
///
/// 0: at the instant in the word itself (a TAT). k from 1: 2^(k-1) milliseconds after the instant
/// beside the tally, the limit's longest memory rounded up to a power of two. A store keeps it
/// beside the state in 6 bits and never lowers it while the bucket lives, as a bucket may have been
/// filled under a limit with a longer memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lifetime(u8);

impl Lifetime {
    /// Of a state that is an instant in nanoseconds.
    pub const INSTANT: Lifetime = Lifetime(0);
    /// How many bits a lifetime takes.
    pub const BITS: u32 = 6;

    /// A state with a tally that expires `memory` after its instant.
    pub const fn of_tally(memory: Nanos) -> Lifetime {
        // Rounded up to whole milliseconds, then to a power of two; at most 2^44 ms, so the class
        // is at most 45.
        let millis = memory.millis() + !memory.is_whole_millis() as u64;
        Lifetime(1 + millis.next_power_of_two().trailing_zeros() as u8)
    }

    /// Takes the 6 bits that a store kept.
    pub const fn from_bits(bits: u64) -> Lifetime {
        Lifetime((bits & ((1 << Lifetime::BITS) - 1)) as u8)
    }

    /// The 6 bits that a store keeps.
    pub const fn bits(self) -> u64 {
        self.0 as u64
    }

    /// The instant from which `state` decides as no state would.
    pub const fn end_of(self, state: State) -> Timestamp {
        if self.0 == 0 {
            state.instant()
        } else {
            state.tally_instant().saturating_add(Nanos::from_millis(1 << (self.0 - 1)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_its_instant_and_its_tally() {
        let at = Timestamp::new(1_700_000_000_123_999_999).unwrap();
        let state = State::from_tally(at, State::MAX_TALLY);
        assert_eq!(state.tally(), State::MAX_TALLY);
        assert_eq!(state.tally_instant().get(), 1_700_000_000_123_000_000);
        assert_eq!(State::from_word(state.word()), Some(state));
        assert_eq!(State::from_word(1 << 63), None);
    }

    #[test]
    fn the_largest_word_is_below_two_to_the_63() {
        assert!(State::from_tally(Timestamp::MAX, State::MAX_TALLY).word() < 1 << 63);
        assert!(State::from_instant(Timestamp::MAX).word() < 1 << 63);
    }

    #[test]
    fn a_lifetime_never_ends_before_its_memory_does() {
        for millis in [1, 2, 3, 1000, 1024, 1025, 86_400_000] {
            let memory = Nanos::from_millis(millis);
            let state = State::from_tally(Timestamp::ORIGIN, 1);
            let end = Lifetime::of_tally(memory).end_of(state).get();
            assert!(end >= memory.get() && end < 2 * memory.get(), "{millis} ms end at {end} ns");
        }
        assert_eq!(
            Lifetime::from_bits(Lifetime::of_tally(Nanos::MAX).bits()),
            Lifetime::of_tally(Nanos::MAX)
        );
    }
}
