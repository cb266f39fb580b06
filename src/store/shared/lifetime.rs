//! The lifetime of a state, as a key word stores it.

use crate::engine::state::{Lifetime, State};
use crate::engine::time::{Nanos, Timestamp};
use crate::store::shared::table_memory::Maximum;

const MANTISSA_BITS: u32 = 5;
const ONE: u64 = 1 << MANTISSA_BITS;

/// A lifetime, rounded up by at most 1/32: a slot is not reused much later than its bucket is full.
///
/// 0 is [`Lifetime::INSTANT`]. A larger number is a floating-point number of milliseconds, so that
/// numbers have the order of their lifetimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StoredLifetime(u16);

impl StoredLifetime {
    /// The lifetime of a state with an instant in nanoseconds.
    pub(super) const INSTANT: StoredLifetime = StoredLifetime(0);
    /// The size of a stored lifetime.
    pub(super) const BITS: u32 = 11;

    /// Returns the shortest stored lifetime that is no shorter than `lifetime`.
    #[inline(always)]
    pub(super) fn at_least(lifetime: Lifetime) -> StoredLifetime {
        if lifetime == Lifetime::INSTANT {
            return StoredLifetime::INSTANT;
        }
        let end = lifetime.end_of(State::from_tally(Timestamp::ORIGIN, 0));
        let millis = (end.get() as u64).div_ceil(1_000_000).max(1);
        // All numbers below 2 * ONE are exact.
        let dropped_bits = (u64::BITS - millis.leading_zeros()).saturating_sub(MANTISSA_BITS + 1);
        let mantissa = millis.div_ceil(1 << dropped_bits);
        let number = u64::from(dropped_bits) * ONE + mantissa;
        StoredLifetime(number.min((1 << StoredLifetime::BITS) - 1) as u16)
    }

    /// Returns the lifetime that the lowest bits of a word store.
    pub(super) const fn from_bits(bits: u64) -> StoredLifetime {
        StoredLifetime((bits & ((1 << StoredLifetime::BITS) - 1)) as u16)
    }

    /// Returns the bits to store.
    pub(super) const fn bits(self) -> u64 {
        self.0 as u64
    }

    /// Returns whether this is the lifetime of a state with a tally.
    pub(super) fn is_of_tally(self) -> bool {
        self != StoredLifetime::INSTANT
    }

    /// Returns whether this lifetime is longer than the one whose bits are in `longest`.
    #[inline(always)]
    pub(super) fn exceeds(self, longest: &Maximum) -> bool {
        // Most states have an instant in nanoseconds, for which the word need not be read.
        self.is_of_tally() && self.bits() > longest.get()
    }

    /// Returns the time for which a state with a tally is kept after its instant.
    fn duration(self) -> Nanos {
        let number = self.bits();
        if number < 2 * ONE {
            return Nanos::from_millis(number);
        }
        Nanos::from_millis((number % ONE + ONE) << (number / ONE - 1).min(44))
    }

    /// Returns the instant from which `state` has the same effect as no state.
    #[inline(always)]
    pub(super) fn end_of(self, state: State) -> Timestamp {
        if self.0 == 0 {
            state.instant()
        } else {
            state.tally_instant().saturating_add(self.duration())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_are_rounded_up_by_at_most_one_part_in_32() {
        let steps =
            (0..43).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) + 1, 3 << bit >> 1]);
        let mut last = StoredLifetime::INSTANT;
        for millis in steps.chain([600_000, 86_400_000]).filter(|&millis| millis > 0) {
            let lifetime = Lifetime::of_tally(Nanos::from_millis(millis));
            let needed = lifetime.end_of(State::from_tally(Timestamp::ORIGIN, 0)).get();
            let stored = StoredLifetime::at_least(lifetime);
            let kept = stored.end_of(State::from_tally(Timestamp::ORIGIN, 0)).get();
            assert!(needed <= kept && kept <= needed + needed / 32, "{millis} ms: {kept}");
            assert_eq!(
                StoredLifetime::from_bits(u64::MAX << StoredLifetime::BITS | stored.bits()),
                stored
            );
        }
        // In ascending order, up to the longest time that nanoseconds can express.
        for number in 1..=1250 {
            let next = StoredLifetime(number);
            assert!(next > last && next.duration() > last.duration(), "{number}");
            last = next;
        }
        assert_eq!(StoredLifetime::at_least(Lifetime::INSTANT), StoredLifetime::INSTANT);
    }
}
