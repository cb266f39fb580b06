//! What a call changes in its limit: a factor, the exact number by which the size of a leaky bucket is
//! divided, and the tokens to keep.

use std::fmt;
use std::str::FromStr;

/// The maximum number of significant digits of a factor.
const MAX_DIGITS: usize = 24;
/// Sizes are below 10^7, so all factors above 10^8 have the same effect, as do all below 10^-8.
const MAX_MAGNITUDE: i32 = 8;

/// The number by which a leaky bucket's size is divided, as an exact ratio. A factor below 1
/// enlarges the bucket; 0 lifts the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Factor {
    negative: bool,
    numerator: u128,
    denominator: u128,
    text: String,
}

/// What a call changes in the limit that applies to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adjustment {
    /// The divisor of a leaky bucket's size. Boxed, because few calls have one and batches move it.
    pub factor: Option<Box<Factor>>,
    /// The tokens that a spend must leave in the bucket.
    pub keep: i64,
}

impl Adjustment {
    /// Returns the adjustment of a call that must leave `keep` tokens; `None` if it need not leave any.
    pub fn keeping(keep: i64) -> Option<Adjustment> {
        (keep != 0).then_some(Adjustment { factor: None, keep })
    }

    /// Returns what of it applies to calls about the tokens that were spent: the tokens to keep matter
    /// to the spend alone.
    #[must_use]
    pub fn after_spend(self) -> Option<Adjustment> {
        self.factor.map(|factor| Adjustment { factor: Some(factor), keep: 0 })
    }
}

/// The string is not a valid factor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum FactorError {
    #[error("factor must be a decimal such as 0.35 or a ratio such as 1/3, found {found:?}")]
    NotANumber { found: String },
    #[error("factor must not be divided by 0, found {found:?}")]
    DividedByZero { found: String },
    #[error("factor must have at most {MAX_DIGITS} digits, found {found:?}")]
    TooManyDigits { found: String },
}

impl Factor {
    /// Returns whether the factor is 0, which lifts the limit.
    pub fn is_zero(&self) -> bool {
        self.numerator == 0
    }

    /// Returns whether the factor is below 0, which is invalid.
    pub fn is_negative(&self) -> bool {
        self.negative && self.numerator != 0
    }

    /// Returns `size` divided by this factor, rounded up; `None` if that is above `max`.
    pub(crate) fn divide(&self, size: u64, max: u64) -> Result<Option<u64>, FactorError> {
        let too_many = || FactorError::TooManyDigits { found: self.text.clone() };
        let product = u128::from(size).checked_mul(self.denominator).ok_or_else(too_many)?;
        let quotient = product.div_ceil(self.numerator);
        Ok(u64::try_from(quotient).ok().filter(|&quotient| quotient <= max))
    }
}

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl FromStr for Factor {
    type Err = FactorError;

    /// Parses a decimal (`0.35`, `-2`, `5e-3`) or a ratio of whole numbers (`1/3`).
    fn from_str(text: &str) -> Result<Factor, FactorError> {
        let not_a_number = || FactorError::NotANumber { found: shown(text) };
        let too_many = || FactorError::TooManyDigits { found: shown(text) };
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let (numerator, denominator) = if let Some((above, below)) = unsigned.split_once('/') {
            let whole = |digits: &str| {
                if !is_digits(digits) {
                    return Err(not_a_number());
                }
                let digits = digits.trim_start_matches('0');
                if digits.len() > MAX_DIGITS {
                    return Err(too_many());
                }
                Ok(digits
                    .bytes()
                    .fold(0, |number: u128, digit| number * 10 + u128::from(digit - b'0')))
            };
            let ratio = (whole(above)?, whole(below)?);
            if ratio.1 == 0 {
                return Err(FactorError::DividedByZero { found: shown(text) });
            }
            ratio
        } else {
            let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
                Some((mantissa, exponent)) => {
                    (mantissa, exponent_of(exponent).ok_or_else(not_a_number)?)
                }
                None => (unsigned, 0),
            };
            let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
            if !is_digits(&format!("{whole}{part}")) {
                return Err(not_a_number());
            }
            decimal(whole, part, exponent).ok_or_else(too_many)?
        };
        Ok(Factor { negative, numerator, denominator, text: shown(text) })
    }
}

/// Returns a decimal as a ratio; `None` if it has too many digits.
fn decimal(whole: &str, part: &str, exponent: i32) -> Option<(u128, u128)> {
    let digits = format!("{whole}{part}");
    let trailing = digits.len() - digits.trim_end_matches('0').len();
    let significant = digits.trim_matches('0');
    if significant.is_empty() {
        return Some((0, 1));
    }
    if significant.len() > MAX_DIGITS {
        return None;
    }
    // The value is `significant * 10^power`.
    let power = exponent.saturating_sub(part.len() as i32).saturating_add(trailing as i32);
    let magnitude = power.saturating_add(significant.len() as i32);
    if magnitude > MAX_MAGNITUDE {
        return Some((10_u128.pow(MAX_MAGNITUDE as u32), 1));
    }
    if magnitude < -MAX_MAGNITUDE {
        return Some((1, 10_u128.pow(MAX_MAGNITUDE as u32)));
    }
    let number =
        significant.bytes().fold(0, |number: u128, digit| number * 10 + u128::from(digit - b'0'));
    let scale = 10_u128.checked_pow(power.unsigned_abs())?;
    if power < 0 { Some((number, scale)) } else { Some((number.checked_mul(scale)?, 1)) }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Parses an exponent, clamped to 10^9.
fn exponent_of(text: &str) -> Option<i32> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !is_digits(digits) {
        return None;
    }
    let number = digits.parse().unwrap_or(1_000_000_000_i32).min(1_000_000_000);
    Some(if text.starts_with('-') { -number } else { number })
}

/// Returns the beginning of a string, for an error message.
fn shown(text: &str) -> String {
    text.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_divided_exactly_and_rounded_up() {
        for (factor, size, divided) in [
            ("1", 5, 5),
            ("0.5", 5, 10),
            ("1/3", 5, 15),
            ("3", 10, 4),
            ("0.35", 21, 60),
            ("0.07", 100, 1429),
            ("5e-1", 5, 10),
            ("50e-2", 5, 10),
            ("1e308", 5, 1),
            ("0.0000001", 1, 10_000_000),
            ("00.50", 7, 14),
            (".5", 7, 14),
        ] {
            let factor: Factor = factor.parse().unwrap();
            assert_eq!(factor.divide(size, u64::MAX).unwrap(), Some(divided), "{size} by {factor}");
        }
        assert_eq!("1e-400".parse::<Factor>().unwrap().divide(1, 1_048_575).unwrap(), None);
    }

    #[test]
    fn invalid_factors_are_refused() {
        for text in [
            "", "-", "a", "1/", "/2", "1/2/3", "1 ", "0x1", "1e", "e5", ".", "nan", "inf", "1_0",
            "--1", "١",
        ] {
            assert!(
                matches!(text.parse::<Factor>(), Err(FactorError::NotANumber { .. })),
                "{text:?}"
            );
        }
        assert!(matches!("1/0".parse::<Factor>(), Err(FactorError::DividedByZero { .. })));
        let long = "1".repeat(1000);
        assert!(matches!(long.parse::<Factor>(), Err(FactorError::TooManyDigits { .. })));
        assert!("-0".parse::<Factor>().unwrap().is_zero());
        assert!("-1/2".parse::<Factor>().unwrap().is_negative());
    }
}
