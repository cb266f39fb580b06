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
    #[error("no limit is named '{}'; {known}", found.escape_debug())]
    UnknownLimit {
        found: String,
        /// A clause with the nearest name, if one is near, and at most ten of the names.
        known: String,
    },
    #[error("{limit}: {source}")]
    InvalidId { limit: String, source: IdError },
    #[error("{limit}: {source}")]
    Cost { limit: String, source: CostError },
    #[error("{limit}: {source}")]
    Limit { limit: String, source: LimitError },
    #[error(
        "{limit}: this limits requests in flight, whose slots are given back; take one with reserve or \
         reserve_all"
    )]
    Slots { limit: String },
    #[error(
        "the bucket {key} is named twice, as transactions {first} and {second}; use one with the sum of the costs"
    )]
    DuplicateBucket { limit: String, key: String, first: usize, second: usize },
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
    // Names of a registry can be many, and a name can be long; an error must not take long.
    let found: String = name.chars().take(100).collect();
    let entries = registry.entries().iter().take(1000);
    let mut names: Vec<(usize, &str)> = entries
        .map(|entry| entry.name().as_str())
        .map(|other| (strsim::levenshtein(&found, other), other))
        .collect();
    names.sort_unstable();
    let nearest = names.first().filter(|(distance, other)| *distance <= 1 + other.len() / 4);
    let nearest = nearest.map(|(_, other)| format!("did you mean '{other}'? "));
    names.truncate(10);
    names.sort_unstable_by_key(|&(_, other)| other);
    let shown = names.iter().map(|&(_, other)| other).collect::<Vec<_>>().join(", ");
    let listed = match registry.entries().len() {
        0 => "there are no limits".to_owned(),
        1..=10 => format!("expected one of {shown}"),
        more => format!("expected one of {shown} and {} more", more - 10),
    };
    let known = match nearest {
        Some(nearest) => format!("{nearest}E{}", &listed[1..]),
        None => listed,
    };
    Box::new(CallError::UnknownLimit { found, known })
}

/// Returns the error for an id that does not have the id format of `entry`.
#[cold]
pub fn invalid_id(entry: &Entry, source: IdError) -> Failure {
    Box::new(CallError::InvalidId { limit: entry.name().to_string(), source })
}
