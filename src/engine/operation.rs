//! What a call does to one bucket.

use crate::engine::algorithm::{Overdraft, Step};
use crate::engine::cost::Cost;
use crate::engine::decision::Decision;
use crate::engine::limit::Limit;
use crate::engine::state::State;
use crate::engine::time::Timestamp;

/// What is done to a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Take.
    Spend,
    /// Ask without taking.
    Check,
    /// Return tokens.
    Refund,
    /// Take what the bucket need not hold yet, all or nothing.
    Charge,
    /// Take what the bucket need not hold yet, as much as it can owe.
    ChargePartial,
}

/// One verb with a limit and a cost: all that decides about a bucket, but its state and the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation<'a> {
    /// What is done.
    pub verb: Verb,
    /// The limit, as it applies to this bucket.
    pub limit: &'a Limit,
    /// Tokens.
    pub cost: Cost,
}

impl Operation<'_> {
    /// Decides. Pure: the same values give the same step, however often it is asked.
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

    /// The bucket's numbers as they stand, with nothing spent.
    pub(crate) fn peek(&self, state: Option<State>, now: Timestamp) -> Decision {
        self.limit.spend(Cost::ZERO, state, now).decision
    }
}
