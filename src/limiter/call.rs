//! A call on one bucket.

use crate::engine::factor::Adjustment;
use crate::engine::verb::Verb;

/// A call on one bucket of a limit, before it is validated.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The operation.
    pub verb: Verb,
    /// The client's id, in any spelling.
    pub id: &'a str,
    /// Tokens.
    pub cost: i64,
    /// What the call changes in its limit.
    pub adjustment: Option<&'a Adjustment>,
}

impl<'a> Call<'a> {
    /// Returns a call that changes nothing in its limit.
    pub const fn new(verb: Verb, id: &'a str, cost: i64) -> Call<'a> {
        Call { verb, id, cost, adjustment: None }
    }

    /// Returns a spend of `cost` tokens.
    pub const fn spend(id: &'a str, cost: i64) -> Call<'a> {
        Call::new(Verb::Spend, id, cost)
    }

    /// Returns a check of `cost` tokens.
    pub const fn check(id: &'a str, cost: i64) -> Call<'a> {
        Call::new(Verb::Check, id, cost)
    }
}
