//! The names of the algorithms.

use std::fmt;
use std::str::FromStr;

use crate::engine::id::Excerpt;
use crate::engine::named_enum::named_enum;
use crate::engine::state::StateKind;

named_enum! {
    /// The algorithms by their names in limits files.
    pub enum AlgorithmName {
        TokenBucket = "token-bucket",
        LeakyBucket = "leaky-bucket",
        FixedWindow = "fixed-window",
        FixedRateWindow = "fixed-rate-window",
        CalendarWindow = "calendar-window",
        InFlight = "in-flight",
        /// No limit.
        Unlimited = "unlimited",
    }
}

impl AlgorithmName {
    /// Returns what its states are.
    pub const fn state_kind(self) -> StateKind {
        match self {
            AlgorithmName::LeakyBucket
            | AlgorithmName::FixedWindow
            | AlgorithmName::FixedRateWindow => StateKind::Tally,
            AlgorithmName::InFlight => StateKind::Slots,
            AlgorithmName::TokenBucket
            | AlgorithmName::CalendarWindow
            | AlgorithmName::Unlimited => StateKind::Instant,
        }
    }
}

impl fmt::Display for AlgorithmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The name is not that of an algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("algorithm must be {}, found {found}", alternatives())]
pub struct UnknownAlgorithm {
    /// The given name.
    pub found: Excerpt,
}

/// Returns all names as `a, b or c`.
fn alternatives() -> String {
    let [first @ .., last] = AlgorithmName::ALL.map(AlgorithmName::as_str);
    format!("{} or {last}", first.join(", "))
}

impl FromStr for AlgorithmName {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<AlgorithmName, UnknownAlgorithm> {
        let named = AlgorithmName::ALL.into_iter().find(|name| name.as_str() == text);
        named.ok_or_else(|| UnknownAlgorithm { found: Excerpt::new(text) })
    }
}
