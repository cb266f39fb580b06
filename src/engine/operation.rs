//! Operations on buckets.

use crate::engine::algorithm::{Overdraft, Step};
use crate::engine::cost::Cost;
use crate::engine::decision::Decision;
use crate::engine::limit::Limit;
use crate::engine::state::State;
use crate::engine::time::Timestamp;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Take tokens.
    Spend,
    /// Ask without taking tokens.
    Check,
    /// Return tokens.
    Refund,
    /// Take tokens that the bucket may not have yet, all or nothing.
    Charge,
    /// Take tokens that the bucket may not have yet, as many as possible.
    ChargePartial,
}

/// An operation on one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation<'a> {
    /// The kind of the operation.
    pub verb: Verb,
    /// The limit that applies to this bucket.
    pub limit: &'a Limit,
    /// The cost in tokens.
    pub cost: Cost,
}

impl Operation<'_> {
    /// Applies the operation to a state. Pure.
    pub fn step(&self, state: Option<State>, now: Timestamp) -> Step {
        match self.verb {
            Verb::Spend => self.limit.spend(self.cost, state, now),
            Verb::Check => {
                let step = self.limit.spend(self.cost, state, now);
                Step { after: None, repaired: None, ..step }
            }
            Verb::Refund => self.limit.refund(self.cost, state, now),
            Verb::Charge => self.limit.charge(self.cost, Overdraft::AllOrNothing, state, now),
            Verb::ChargePartial => self.limit.charge(self.cost, Overdraft::Partial, state, now),
        }
    }

    /// Returns the current numbers of the bucket, with nothing spent.
    pub(crate) fn peek(&self, state: Option<State>, now: Timestamp) -> Decision {
        self.limit.spend(Cost::ZERO, state, now).decision
    }
}
