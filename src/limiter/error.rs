//! Errors of calls and of changes to the limits.

use crate::engine::cost::CostError;
use crate::engine::id::IdError;
use crate::engine::limit_error::LimitError;
use crate::engine::registry::{Entry, Registry, RegistryError};
use crate::store::StoreError;

/// The reason why a call has no decision. A denial is a decision, not an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum CallError {
    #[error("no limit is named {found:?}; {known}")]
    UnknownLimit {
        found: String,
        /// A clause that lists the existing limits, at most ten of them.
        known: String,
    },
    #[error("{limit}: {source}")]
    InvalidId { limit: String, source: IdError },
    #[error("{limit}: {source}")]
    Cost { limit: String, source: CostError },
    #[error("{limit}: {source}")]
    Limit { limit: String, source: LimitError },
    #[error(
        "the bucket {key} is named twice, as transactions {first} and {second}; use one with the sum of the costs"
    )]
    DuplicateBucket { key: String, first: usize, second: usize },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A limit that cannot be added to the loaded limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {source}")]
pub struct LimitConflict {
    /// The limit's name as given, truncated to 100 characters.
    pub name: String,
    /// The cause.
    pub source: RegistryError,
}

impl LimitConflict {
    pub(super) fn new(name: &str, source: RegistryError) -> LimitConflict {
        LimitConflict { name: name.chars().take(100).collect(), source }
    }
}

/// A [`CallError`], boxed so that results stay small.
pub type Failure = Box<CallError>;

#[cold]
pub(super) fn store_failed(error: impl Into<StoreError>) -> Failure {
    Box::new(CallError::Store(error.into()))
}

/// Returns the error for a name that is not in `registry`.
#[cold]
pub fn unknown_limit(registry: &Registry, name: &str) -> Failure {
    let mut names: Vec<&str> =
        registry.entries().iter().map(|entry| entry.name().as_str()).collect();
    names.sort_unstable();
    let shown = names.iter().take(10).copied().collect::<Vec<_>>().join(", ");
    let known = match names.len() {
        0 => "there are no limits".to_owned(),
        1..=10 => format!("the limits are {shown}"),
        more => format!("the limits are {shown} and {} more", more - 10),
    };
    Box::new(CallError::UnknownLimit { found: name.chars().take(100).collect(), known })
}

/// Returns the error for an id that does not have the id format of `entry`.
#[cold]
pub fn invalid_id(entry: &Entry, source: IdError) -> Failure {
    Box::new(CallError::InvalidId { limit: entry.name().to_string(), source })
}
