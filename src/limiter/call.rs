//! A call on one bucket.

use crate::engine::factor::Factor;
use crate::engine::operation::Verb;

/// A call on one bucket of a limit, before it is validated.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The operation.
    pub verb: Verb,
    /// The client's id, in any spelling.
    pub id: &'a str,
    /// Tokens.
    pub cost: i64,
    /// The divisor of a leaky bucket's size.
    pub factor: Option<&'a Factor>,
}

impl<'a> Call<'a> {
    /// A call without a factor.
    pub const fn new(verb: Verb, id: &'a str, cost: i64) -> Call<'a> {
        Call { verb, id, cost, factor: None }
    }

    /// A spend of `cost` tokens.
    pub const fn spend(id: &'a str, cost: i64) -> Call<'a> {
        Call::new(Verb::Spend, id, cost)
    }

    /// A check of `cost` tokens.
    pub const fn check(id: &'a str, cost: i64) -> Call<'a> {
        Call::new(Verb::Check, id, cost)
    }
}
