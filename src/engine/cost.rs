//! The cost of a request.

/// The tokens that one request takes, at most what its limit can ever allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(pub(super) i64);

impl Cost {
    /// Zero tokens, the cost of a peek.
    pub const ZERO: Cost = Cost(0);

    /// Takes a number of tokens as the cost of a request under a limit that allows `most`.
    ///
    /// # Errors
    /// [`CostError`] if it is negative, or above `most`.
    #[inline]
    pub const fn new(tokens: i64, most: i64) -> Result<Cost, CostError> {
        if tokens < 0 {
            return Err(CostError::Negative { found: tokens });
        }
        if tokens > most {
            return Err(CostError::TooHigh { found: tokens, most });
        }
        Ok(Cost(tokens))
    }

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
    #[error("keep must be at least 0, found {found}")]
    KeepNegative { found: i64 },
    #[error(
        "cost and keep together must be at most {most}, which is all this limit can ever hold, found {cost} and {keep}"
    )]
    KeepTooHigh { cost: i64, keep: i64, most: i64 },
}
