//! Why a limit is invalid.

use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::factor::FactorError;
use crate::engine::state::State;
use crate::engine::time::Nanos;

/// The longest time that a bucket may take to fill or to drain, and the longest window: 2^62 ns,
/// about 146 years.
pub(crate) const MAX_PERIOD: Nanos = Nanos::clamped(1 << 62);
const MAX_PERIOD_TEXT: &str = "146 years";

/// Why a limit is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// A number below its minimum.
    #[error("{field} must be at least {least}, found {found}")]
    TooSmall {
        /// The parameter.
        field: &'static str,
        /// The minimum.
        least: i64,
        /// What was given.
        found: i64,
    },
    /// A length of time of zero.
    #[error("{field} must be longer than 0s, found 0s")]
    NoTime {
        /// The parameter.
        field: &'static str,
    },
    /// A length of time too long to compute with.
    #[error("{field} must be at most {most}, found {found}", most = MAX_PERIOD_TEXT)]
    TooLong {
        /// The parameter.
        field: &'static str,
        /// What was given.
        found: Nanos,
    },
    /// A negative length of time.
    #[error("{field} must not be negative, found -{}", Nanos::clamped(found.saturating_neg()))]
    NegativeTime {
        /// The parameter.
        field: &'static str,
        /// What was given, in nanoseconds.
        found: i64,
    },
    /// A rate too fast for whole nanoseconds.
    #[error(
        "count {count} in a period of {period} is too fast: rounded to whole nanoseconds, the time to add one token \
         would change the rate by more than 0.1 %; use a smaller count or a longer period"
    )]
    TooFast {
        /// Tokens added in each period.
        count: i64,
        /// The period.
        period: Nanos,
    },
    /// A bucket that would take too long to fill to compute with.
    #[error(
        "burst {burst} at count {count} per period of {period} would take longer than {most} to fill; use a smaller burst \
         or a faster rate",
        most = MAX_PERIOD_TEXT
    )]
    TooSlow {
        /// Tokens a full bucket holds.
        burst: i64,
        /// Tokens added in each period.
        count: i64,
        /// The period.
        period: Nanos,
    },
    /// A bucket that would take too long to drain to compute with.
    #[error(
        "size {size} with drip_size {drip_size} every drip_rate of {drip_rate} would take longer than {most} to \
         drain; use a smaller size or a faster drip",
        most = MAX_PERIOD_TEXT
    )]
    DrainsTooSlowly {
        /// Requests there is room for.
        size: i64,
        /// The time between drips.
        drip_rate: Nanos,
        /// Requests that leave at each drip.
        drip_size: i64,
    },
    /// A length of time finer than this algorithm keeps.
    #[error(
        "{field} must be a whole number of milliseconds for this algorithm, found {found}; the token bucket takes any \
         period"
    )]
    PartOfMillisecond {
        /// The parameter.
        field: &'static str,
        /// What was given.
        found: Nanos,
    },
    /// A number above the largest tally.
    #[error(
        "{field} must be at most {most} for this algorithm, found {found}; the token bucket takes larger numbers",
        most = State::MAX_TALLY
    )]
    BeyondTally {
        /// The parameter, or the sum of parameters.
        field: &'static str,
        /// What was given.
        found: i64,
    },
    /// A phase that reaches into the next window.
    #[error("phase must be shorter than the period of {period}, found {found}")]
    PhaseTooLong {
        /// What was given.
        found: Nanos,
        /// The window.
        period: Nanos,
    },
    /// A phase for windows that are not aligned.
    #[error(
        "phase is for windows with the anchor `aligned`; with `first` a window starts at its first request"
    )]
    PhaseWithoutAlignment,
    /// The older form of the leaky bucket without any field.
    #[error("give at least one of max, duration and min_interval")]
    OlderFormEmpty,
    /// A factor for a limit that is not a leaky bucket.
    #[error("factor applies to leaky buckets only, and this limit is a {algorithm}")]
    FactorForOther {
        /// What the limit is.
        algorithm: AlgorithmName,
    },
    /// A factor below 0.
    #[error("factor must be at least 0, found {found}")]
    FactorNegative {
        /// The factor as given.
        found: String,
    },
    /// A factor that makes a size above the largest tally.
    #[error(
        "factor {found} makes the size {size} larger than {most}; use a larger factor",
        most = State::MAX_TALLY
    )]
    FactorTooSmall {
        /// The factor as given.
        found: String,
        /// The size it was applied to.
        size: u64,
    },
    /// A factor that is not a number.
    #[error(transparent)]
    Factor(#[from] FactorError),
}

impl LimitError {
    /// The parameter at fault, where it is one.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            LimitError::BeyondTally { field, .. } if field.contains('+') => None,
            LimitError::TooSmall { field, .. }
            | LimitError::NoTime { field }
            | LimitError::TooLong { field, .. }
            | LimitError::NegativeTime { field, .. }
            | LimitError::PartOfMillisecond { field, .. }
            | LimitError::BeyondTally { field, .. } => Some(field),
            LimitError::TooFast { .. } => Some("count"),
            LimitError::TooSlow { .. } => Some("burst"),
            LimitError::DrainsTooSlowly { .. } => Some("size"),
            LimitError::PhaseTooLong { .. } | LimitError::PhaseWithoutAlignment => Some("phase"),
            LimitError::FactorForOther { .. }
            | LimitError::FactorNegative { .. }
            | LimitError::FactorTooSmall { .. }
            | LimitError::Factor(_) => Some("factor"),
            LimitError::OlderFormEmpty => None,
        }
    }
}
