//! The cost of a request.

/// The tokens that one request takes. Created by [`Limit::cost`], so it is at most what the limit
/// can ever allow.
///
/// [`Limit::cost`]: crate::engine::limit::Limit::cost
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(pub(super) i64);

impl Cost {
    /// Zero tokens, the cost of a peek.
    pub const ZERO: Cost = Cost(0);

    /// The number of tokens, 0 or more.
    pub const fn get(self) -> i64 {
        self.0
    }
}

/// Why a cost is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum CostError {
    #[error("cost must be at least 0, found {found}")]
    Negative { found: i64 },
    #[error(
        "cost must be at most {most}, which is all this limit can ever allow at once, found {found}"
    )]
    TooHigh { found: i64, most: i64 },
}
