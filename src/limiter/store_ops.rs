//! The engine's operations as the steps and batches of stores.

use smallvec::smallvec;

use crate::engine::answer::Answer;
use crate::engine::batch::{self, Kind, Member};
use crate::engine::operation::Operation;
use crate::engine::state::State;
use crate::engine::time::{Now, Timestamp};
use crate::store::remote::RemoteOp;
use crate::store::{Answers, Batch, StoreStep, Write};

impl StoreStep for Operation<'_> {
    #[inline(always)]
    fn apply(&self, found: Option<State>, now: Timestamp) -> (bool, Write) {
        Operation::apply(self, found, now)
    }

    fn call(&self) -> RemoteOp {
        RemoteOp::of(&Member { operation: *self, kind: Kind::Spend, shadow: false })
    }
}

/// Several operations that are decided together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Members<'a>(pub(super) &'a [Member<'a>]);

impl Batch for Members<'_> {
    fn apply(
        &self,
        found: &[Option<State>],
        full: &[Option<Timestamp>],
        now: Now,
        writes: &mut [Write],
    ) -> Answers {
        let mut answers: Answers = smallvec![Answer::default(); self.0.len()];
        batch::decide(self.0, found, full, now, &mut answers, writes);
        answers
    }

    fn calls(&self) -> Vec<RemoteOp> {
        self.0.iter().map(RemoteOp::of).collect()
    }

    fn give_back(&self, index: usize, charged: State, found: State, now: Timestamp) -> Write {
        let Operation { limit, cost, verb } = self.0[index].operation;
        // How much of the cost a partial charge has taken is not known.
        match verb.is_partial() {
            true => Write::Keep,
            false => limit.give_back(cost, charged, found, now),
        }
    }
}
