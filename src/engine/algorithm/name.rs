//! The names of the algorithms.

use std::fmt;
use std::str::FromStr;

use crate::engine::id::Excerpt;
use crate::engine::named_enum::listed;

pub use crate::engine::algorithm::AlgorithmName;

impl fmt::Display for AlgorithmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The name is not that of an algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("algorithm must be {}, found {found}", listed(AlgorithmName::NAMES, "or"))]
pub struct UnknownAlgorithm {
    /// The given name.
    pub found: Excerpt,
}

impl FromStr for AlgorithmName {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<AlgorithmName, UnknownAlgorithm> {
        AlgorithmName::named(text).ok_or_else(|| UnknownAlgorithm { found: Excerpt::new(text) })
    }
}
