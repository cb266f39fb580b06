//! Fast division by a constant divisor.

/// A divisor with its precomputed reciprocal. A division is one multiplication and one shift.
///
/// # Source
/// Granlund and Montgomery, Division by invariant integers using multiplication (1994), theorem
/// 4.2, for numerators of 63 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Divisor {
    reciprocal: u64,
    shift: u32,
}

impl Divisor {
    /// Returns a divisor from 1 to 2^62.
    pub(crate) fn new(divisor: i64) -> Divisor {
        debug_assert!((1..=1 << 62).contains(&divisor), "an emission interval");
        let divisor = divisor as u128;
        // The exponent of the smallest power of two that is at least the divisor.
        let shift = divisor.next_power_of_two().trailing_zeros();
        // Below 2^64, because 2^shift is below twice the divisor by at least one part in 2^62.
        let reciprocal = ((1_u128 << (63 + shift)).div_ceil(divisor)) as u64;
        Divisor { reciprocal, shift }
    }

    /// Returns `numerator` divided by the divisor, rounded down. `numerator` must be at least 0.
    #[inline(always)]
    pub(crate) fn divide(self, numerator: i64) -> i64 {
        // Doubled, so that the quotient starts in the upper word of the product.
        let doubled = (numerator as u64) << 1;
        let product = u128::from(doubled) * u128::from(self.reciprocal);
        ((product >> 64) as u64 >> self.shift) as i64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn extreme_values_are_divided_correctly() {
        let ends = [1, 2, 3, 5, 7, 1000, (1 << 31) - 1, (1 << 61) + 1, (1 << 62) - 1, 1 << 62];
        for divisor in ends {
            for numerator in ends.into_iter().chain([0, i64::MAX, i64::MAX - 1]) {
                let divided = Divisor::new(divisor).divide(numerator);
                assert_eq!(divided, numerator / divisor, "{numerator} / {divisor}");
            }
        }
    }

    proptest! {
        #[test]
        fn it_divides_as_the_processor_does(
            bits in any::<u64>(),
            above in any::<u64>(),
            (shift, other) in (2_u32..64, 1_u32..64),
            off in -1..=1_i64,
        ) {
            let divisor = ((bits >> shift) as i64).clamp(1, 1 << 62);
            let numerator = (above >> other) as i64;
            let exact = (numerator / divisor * divisor).saturating_add(off).max(0);
            for numerator in [numerator, exact] {
                prop_assert_eq!(Divisor::new(divisor).divide(numerator), numerator / divisor);
            }
        }
    }
}
