//! The engine's operations as steps for local stores and as messages for remote ones.

use smallvec::smallvec;

use crate::engine::answer::Answer;
use crate::engine::batch::{self, Kind, Member};
use crate::engine::operation::Operation;
use crate::engine::state::{Lifetime, State};
use crate::engine::time::Timestamp;
use crate::store::remote::{RemoteBatch, RemoteOp, RemoteStep};
use crate::store::{Answers, Batch, StoreStep, Write};

impl StoreStep for Operation<'_> {
    #[inline(always)]
    fn apply(&self, found: Option<State>, now: Timestamp) -> (bool, Write) {
        Operation::apply(self, found, now)
    }
}

impl RemoteStep for Operation<'_> {
    fn call(&self) -> RemoteOp {
        remote_op(self, Kind::Spend, false)
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
        now: Timestamp,
        writes: &mut [Write],
    ) -> Answers {
        let mut answers: Answers = smallvec![Answer::default(); self.0.len()];
        batch::decide(self.0, found, full, now, &mut answers, writes);
        answers
    }

    fn give_back(&self, index: usize, charged: State, found: State, now: Timestamp) -> Write {
        let Operation { limit, cost, .. } = self.0[index].operation;
        match limit.give_back(cost, charged, found, now) {
            None => Write::Keep,
            // The bucket is live, so it already has a lifetime, and lifetimes never shrink.
            Some(state) => Write::Put(state, Lifetime::INSTANT),
        }
    }
}

impl RemoteBatch for Members<'_> {
    fn calls(&self) -> Vec<RemoteOp> {
        let members = self.0.iter();
        members.map(|member| remote_op(&member.operation, member.kind, member.shadow)).collect()
    }
}

fn remote_op(operation: &Operation<'_>, kind: Kind, shadow: bool) -> RemoteOp {
    let Operation { verb, limit, cost } = *operation;
    RemoteOp { verb, kind, shadow, cost, limit: *limit }
}
