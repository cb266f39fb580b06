//! Why a limit is invalid.

use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::factor::FactorError;
use crate::engine::id::Excerpt;
use crate::engine::named_enum::listed;
use crate::engine::state::State;
use crate::engine::time::Nanos;

/// The longest time in which a bucket may refill or drain, and the longest window: 2^62 ns, about
/// 146 years.
pub(crate) const MAX_PERIOD: Nanos = Nanos::clamped(1 << 62);
const MAX_PERIOD_TEXT: &str = "146 years";

/// Why a limit is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum LimitError {
    #[error("{field} must be at least {least}, found {found}")]
    TooSmall { field: &'static str, least: i64, found: i64 },
    #[error("{field} must be longer than 0s, found 0s")]
    NoTime { field: &'static str },
    #[error("{field} must be at most {most}, found {found}", most = MAX_PERIOD_TEXT)]
    TooLong { field: &'static str, found: Nanos },
    #[error("{field} is missing")]
    Missing { field: &'static str },
    #[error("{field} must be {}, found {found}", listed(words, "or"))]
    UnknownWord { field: &'static str, words: &'static [&'static str], found: Excerpt },
    #[error(
        "count {count} in a period of {period} is too fast: rounded to whole nanoseconds, the time to add one token \
         would change the rate by more than 0.1 %; use a smaller count or a longer period"
    )]
    TooFast { count: i64, period: Nanos },
    #[error(
        "burst {burst} at count {count} per period of {period} would take longer than {most} to fill; use a smaller burst \
         or a faster rate",
        most = MAX_PERIOD_TEXT
    )]
    TooSlow { burst: i64, count: i64, period: Nanos },
    #[error(
        "size {size} with drip_size {drip_size} every drip_rate of {drip_rate} would take longer than {most} to \
         drain; use a smaller size or a faster drip",
        most = MAX_PERIOD_TEXT
    )]
    DrainsTooSlowly { size: i64, drip_rate: Nanos, drip_size: i64 },
    #[error(
        "{field} must be a whole number of milliseconds for this algorithm, found {found}; the token bucket takes any \
         period"
    )]
    PartOfMillisecond { field: &'static str, found: Nanos },
    #[error(
        "{field} must be at most {most} for this algorithm, found {found}; the token bucket takes larger numbers",
        most = State::MAX_TALLY
    )]
    BeyondTally { field: &'static str, found: i64 },
    #[error("count must be at most {most} for requests in flight, found {found}")]
    TooManySlots { found: i64, most: i64 },
    #[error(
        "lease must be from {least} to {most}, found {found}; slots that are held for longer are renewed, so a \
         lease need not be as long as a request"
    )]
    LeaseOutOfRange { found: Nanos, least: Nanos, most: Nanos },
    #[error(
        "max_hold must be at least the lease of {lease}, found {found}; use a longer max_hold, or a shorter lease"
    )]
    MaxHoldBelowLease { found: Nanos, lease: Nanos },
    #[error(
        "{field} must be at most {most}, found {found}; count a larger unit, such as thousands of tokens"
    )]
    TooLarge { field: &'static str, most: i64, found: i64 },
    #[error(
        "zone must be a time zone such as Europe/Berlin, found {found}{}",
        nearest.map_or_else(String::new, |nearest| format!("; did you mean {nearest}?"))
    )]
    UnknownZone { found: Excerpt, nearest: Option<&'static str> },
    #[error("phase must be shorter than the period of {period}, found {found}")]
    PhaseTooLong { found: Nanos, period: Nanos },
    #[error(
        "phase is for windows with the anchor `aligned`; with `first` a window starts at its first request"
    )]
    PhaseWithoutAlignment,
    #[error("give at least one of max, duration and min_interval")]
    OlderFormEmpty,
    #[error("factor applies to leaky buckets only, and this limit is a {algorithm}")]
    FactorForOther { algorithm: AlgorithmName },
    #[error("factor must be at least 0, found {found}")]
    FactorNegative { found: String },
    #[error(
        "factor {found} makes the size {size} larger than {most}; use a larger factor",
        most = State::MAX_TALLY
    )]
    FactorTooSmall { found: String, size: u64 },
    #[error(transparent)]
    Factor(#[from] FactorError),
}

impl LimitError {
    /// Returns the invalid parameter; `None` if several are.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            LimitError::BeyondTally { field, .. } if field.contains('+') => None,
            LimitError::TooSmall { field, .. }
            | LimitError::NoTime { field }
            | LimitError::TooLong { field, .. }
            | LimitError::Missing { field }
            | LimitError::UnknownWord { field, .. }
            | LimitError::PartOfMillisecond { field, .. }
            | LimitError::TooLarge { field, .. }
            | LimitError::BeyondTally { field, .. } => Some(field),
            LimitError::UnknownZone { .. } => Some("zone"),
            LimitError::TooFast { .. } | LimitError::TooManySlots { .. } => Some("count"),
            LimitError::LeaseOutOfRange { .. } => Some("lease"),
            LimitError::MaxHoldBelowLease { .. } => Some("max_hold"),
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
