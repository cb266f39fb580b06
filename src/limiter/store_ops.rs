//! The engine's operations as steps for local stores and as messages for remote ones.

use crate::clock::Clock;
use crate::engine::algorithm::{self, Algorithm};
use crate::engine::batch::{self, Kind, Member};
use crate::engine::decision::Decision;
use crate::engine::limit::Limit;
use crate::engine::operation::{Operation, Verb};
use crate::engine::state::{Lifetime, State};
use crate::engine::time::Timestamp;
use crate::store::remote::{RemoteBatch, RemoteOp, RemoteStep, Reply};
use crate::store::{Batch, Step, Write};

/// An operation on one bucket, and the caller's clock.
#[derive(Debug)]
pub(super) struct BucketStep<'a, C> {
    pub(super) operation: Operation<'a>,
    pub(super) clock: &'a C,
}

impl<C: Clock> Step for BucketStep<'_, C> {
    type Answer = Decision;

    #[inline(always)]
    fn run(&self, state: Option<State>, now: Timestamp, answer: &mut Decision) -> Write {
        // Almost every call spends from a token bucket, so this case is inlined into the caller.
        let step = match (self.operation.verb, self.operation.limit) {
            (Verb::Spend, Limit::TokenBucket(bucket)) => {
                let step = bucket.spend(self.operation.cost, state, now);
                *answer = step.decision;
                step
            }
            _ => return self.run_other(state, now, answer),
        };
        if step.repaired.is_some() {
            return self.run_again(state, now, answer);
        }
        match step.after {
            None => Write::Keep,
            Some(state) => Write::Put(state, step.lifetime),
        }
    }

    #[cold]
    fn refuse(&self, until: Timestamp, now: Timestamp, answer: &mut Decision) {
        *answer = match self.operation.verb {
            // Nothing was taken, so nothing is returned.
            Verb::Refund => self.operation.step(None, now).decision,
            _ => Decision::refused(until, now),
        };
    }
}

impl<C: Clock> BucketStep<'_, C> {
    #[inline(never)]
    fn run_other(&self, state: Option<State>, now: Timestamp, answer: &mut Decision) -> Write {
        let step = self.operation.step(state, now);
        if step.repaired.is_some() {
            return self.run_again(state, now, answer);
        }
        *answer = step.decision;
        written(&step)
    }

    /// Decides again with a new clock reading, because no call at `now` could have written so late a
    /// state. Most likely this thread was preempted after it read the clock, and other threads have
    /// spent since. Clamping their state would admit their tokens a second time.
    #[cold]
    #[inline(never)]
    fn run_again(&self, state: Option<State>, now: Timestamp, answer: &mut Decision) -> Write {
        let step = self.operation.step(state, now.max(self.clock.read()));
        *answer = step.decision;
        written(&step)
    }
}

impl<C: Clock> RemoteStep for BucketStep<'_, C> {
    fn call(&self) -> RemoteOp {
        remote_op(&self.operation, Kind::Spend, false)
    }

    fn read(&self, reply: &Reply) -> Option<Decision> {
        let decision = self.operation.step(reply.found, reply.now).decision;
        (decision.allowed == reply.allowed).then_some(decision)
    }
}

/// Several operations that are decided together, and the caller's clock.
#[derive(Debug)]
pub(super) struct BatchStep<'a, C> {
    pub(super) verb: Verb,
    pub(super) members: &'a [Member<'a>],
    pub(super) clock: &'a C,
}

impl<C> BatchStep<'_, C> {
    fn steps(&self, states: &[Option<State>], now: Timestamp) -> Vec<algorithm::Step> {
        let mut steps = Vec::with_capacity(self.members.len());
        match self.verb {
            Verb::Spend | Verb::Check => {
                batch::spend(self.members, states, now, &mut steps);
            }
            Verb::Refund | Verb::Charge | Verb::ChargePartial => {
                batch::apply(self.members, states, now, &mut steps);
            }
        }
        steps
    }
}

impl<C: Clock> Batch for BatchStep<'_, C> {
    type Answer = Vec<Decision>;

    fn run(&self, states: &[Option<State>], now: Timestamp, writes: &mut [Write]) -> Vec<Decision> {
        let mut steps = self.steps(states, now);
        if steps.iter().any(|step| step.repaired.is_some()) {
            // The same as `BucketStep::run_again`, with one new instant for all members.
            steps = self.steps(states, now.max(self.clock.read()));
        }
        for (write, step) in writes.iter_mut().zip(&steps) {
            *write = written(step);
        }
        steps.iter().map(|step| step.decision).collect()
    }

    fn run_full(
        &self,
        states: &[Option<State>],
        full: &[Option<Timestamp>],
        now: Timestamp,
        writes: &mut [Write],
    ) -> Vec<Decision> {
        let mut steps = self.steps(states, now);
        if matches!(self.verb, Verb::Spend | Verb::Check) {
            let members = self.members.iter().zip(states);
            steps = members.map(|(member, &state)| member.operation.step(state, now)).collect();
            for (step, until) in steps.iter_mut().zip(full) {
                if let Some(until) = *until {
                    let decision = Decision::refused(until, now);
                    *step = algorithm::Step { decision, after: None, repaired: None, ..*step };
                }
            }
            batch::all_or_nothing(self.members, states, now, &mut steps);
        }
        for (write, step) in writes.iter_mut().zip(&steps) {
            *write = written(step);
        }
        steps.iter().map(|step| step.decision).collect()
    }

    fn give_back(&self, index: usize, charged: State, found: State, now: Timestamp) -> Write {
        let Operation { limit, cost, .. } = self.members[index].operation;
        match limit.give_back(cost, charged, found, now) {
            None => Write::Keep,
            // The bucket is live, so it already has a lifetime, and lifetimes never shrink.
            Some(state) => Write::Put(state, Lifetime::INSTANT),
        }
    }
}

impl<C: Clock> RemoteBatch for BatchStep<'_, C> {
    fn calls(&self) -> Vec<RemoteOp> {
        let members = self.members.iter();
        members.map(|member| remote_op(&member.operation, member.kind, member.shadow)).collect()
    }

    fn read(&self, replies: &[Reply]) -> Option<Vec<Decision>> {
        let now = replies.first()?.now;
        let states: Vec<_> = replies.iter().map(|reply| reply.found).collect();
        let steps = self.steps(&states, now);
        let agree = replies.len() == steps.len()
            && steps
                .iter()
                .zip(replies)
                .all(|(step, reply)| step.decision.allowed == reply.allowed);
        agree.then(|| steps.iter().map(|step| step.decision).collect())
    }
}

#[inline(always)]
pub(super) fn written(step: &algorithm::Step) -> Write {
    match (step.after, step.repaired) {
        (Some(state), _) => Write::Put(state, step.lifetime),
        (None, Some(state)) => Write::Repair(state, step.lifetime),
        (None, None) => Write::Keep,
    }
}

pub(super) fn remote_op(operation: &Operation<'_>, kind: Kind, shadow: bool) -> RemoteOp {
    let Operation { verb, limit, cost } = *operation;
    RemoteOp { verb, kind, shadow, cost, limit: *limit }
}
