//! The names of the algorithms.

use std::fmt;
use std::str::FromStr;

/// The algorithms, as a limits file spells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AlgorithmName {
    /// `token-bucket`
    TokenBucket,
    /// `leaky-bucket`
    LeakyBucket,
    /// `fixed-window`
    FixedWindow,
    /// `fixed-rate-window`
    FixedRateWindow,
    /// `unlimited`: no algorithm at all.
    Unlimited,
}

impl AlgorithmName {
    /// All of them, in the order of their numbers.
    pub const ALL: [AlgorithmName; 5] = [
        AlgorithmName::TokenBucket,
        AlgorithmName::LeakyBucket,
        AlgorithmName::FixedWindow,
        AlgorithmName::FixedRateWindow,
        AlgorithmName::Unlimited,
    ];

    /// The spelling of a limits file.
    pub const fn as_str(self) -> &'static str {
        match self {
            AlgorithmName::TokenBucket => "token-bucket",
            AlgorithmName::LeakyBucket => "leaky-bucket",
            AlgorithmName::FixedWindow => "fixed-window",
            AlgorithmName::FixedRateWindow => "fixed-rate-window",
            AlgorithmName::Unlimited => "unlimited",
        }
    }
}

impl fmt::Display for AlgorithmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A name that no algorithm has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "algorithm must be one of token-bucket, leaky-bucket, fixed-window, fixed-rate-window and unlimited, found {found}"
)]
pub struct UnknownAlgorithm {
    /// What was given.
    pub found: String,
}

impl FromStr for AlgorithmName {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<AlgorithmName, UnknownAlgorithm> {
        let named = AlgorithmName::ALL.into_iter().find(|name| name.as_str() == text);
        named.ok_or_else(|| UnknownAlgorithm { found: text.to_owned() })
    }
}
