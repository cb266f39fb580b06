//! Asynchronous calls: the message to the server, and the decision computed from its reply.
//!
//! The caller passes a [`RemoteCall`] to the store and returns to its event loop. The reply may arrive
//! on any thread and is concluded on the thread of the event loop.

use std::sync::Arc;

use crate::clock::{Clock, Stopwatch};
use crate::engine::answer::Answer;
use crate::engine::factor::Adjustment;
use crate::engine::time::Timeline;
use crate::engine::verb::Verb;
use crate::limiter::batch::{Timing, store_failed, with_batch};
use crate::limiter::counters::StripeIndex;
use crate::limiter::{
    Answered, AnsweredAll, BoundLimit, Call, Failure, Limiter, Prepared, Transaction,
};
use crate::store::remote::{RemoteCall, RemoteOp};
use crate::store::{Batch, Bucket, Store, StoreError, StoreStep};

/// A call on one bucket that awaits the server's reply.
#[derive(Debug)]
pub struct Submitted {
    bound: Arc<BoundLimit>,
    verb: Verb,
    id: String,
    cost: i64,
    adjustment: Option<Adjustment>,
    stopwatch: Stopwatch,
    /// Whether a denial is not counted, because the caller then waits.
    waits: bool,
}

/// A call on several buckets that awaits the server's reply.
#[derive(Debug)]
pub struct SubmittedAll {
    verb: Verb,
    transactions: Vec<Transaction>,
    stopwatch: Stopwatch,
}

impl Submitted {
    /// Returns the operation of the call.
    pub fn verb(&self) -> Verb {
        self.verb
    }

    /// Makes the call one of a caller that waits if it is denied. A denial is then not counted.
    pub fn set_waits(&mut self, waits: bool) {
        self.waits = waits;
    }
}

impl SubmittedAll {
    /// Returns the operation of the call.
    pub fn verb(&self) -> Verb {
        self.verb
    }

    /// Returns the transactions.
    pub fn into_transactions(self) -> Vec<Transaction> {
        self.transactions
    }
}

/// Returns an operation with the strings that identify its bucket.
fn op(bucket: &Bucket<'_>, operation: RemoteOp) -> (Box<str>, Box<str>, RemoteOp) {
    (bucket.keyspace.text().into(), bucket.id.into(), operation)
}

/// Returns the error for replies that do not match their call.
fn mismatched_reply() -> StoreError {
    StoreError::BadReply { why: "the server's replies do not match the call" }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Prepares a call on one bucket for [`submit`](crate::store::remote::RemoteStore::submit).
    /// The call has no operations if the id is not limited, and then needs no server.
    ///
    /// # Errors
    /// [`CallError`](crate::limiter::CallError) if the id, the cost or the factor is invalid.
    pub fn submission(
        &self,
        bound: &Arc<BoundLimit>,
        call: Call<'_>,
    ) -> Result<(RemoteCall, Submitted), Failure> {
        // Every call is timed, because the cost is negligible compared with a round trip.
        let stopwatch = Stopwatch::start();
        let prepared = bound.prepare(call)?;
        let op = prepared.operation().map(|(bucket, operation)| op(&bucket, operation.call()));
        let ops = Vec::from_iter(op);
        let (id, bound) = (prepared.resolved.id.into_owned(), Arc::clone(bound));
        let Call { verb, cost, adjustment, .. } = call;
        let adjustment = adjustment.cloned();
        let call = Submitted { bound, verb, id, cost, adjustment, stopwatch, waits: false };
        Ok((RemoteCall { ops, now: Some(self.clock.read(Timeline::Wall).wall) }, call))
    }

    /// Computes the decision from a server's reply, and counts it.
    ///
    /// # Errors
    /// [`CallError::Store`](crate::limiter::CallError::Store) if there is no valid reply.
    pub fn conclude_reply(
        &self,
        call: Submitted,
        replies: Result<Vec<Answer>, StoreError>,
    ) -> Result<Answered, Failure> {
        let Submitted { bound, verb, id, cost, adjustment, stopwatch, waits } = call;
        let (bound, stopwatch) = (&*bound, Some(stopwatch));
        let call = Call { verb, id: &id, cost, adjustment: adjustment.as_ref() };
        let stripe = bound.counters.stripe(StripeIndex::choose());
        let resolved = bound.resolve(call)?;
        let mut call = Prepared { stripe, stopwatch, call, resolved };
        let answer = match call.operation() {
            None => Ok(Some(Answer::new(None, self.clock.now(), true))),
            Some((_, step)) => replies.map(|replies| {
                let reply = <[Answer; 1]>::try_from(replies).ok();
                reply.map(|[reply]| reply).filter(|reply| step.agrees(reply))
            }),
        };
        let answer = answer.and_then(|answer| answer.ok_or_else(mismatched_reply));
        let answer = answer.map_err(|error| bound.store_failed(error))?;
        if waits {
            call.count_if_allowed(&answer);
        }
        let mut answered = Answered::default();
        self.conclude(call, answer, &mut answered);
        Ok(answered)
    }

    /// Prepares several transactions that are decided together, as [`Limiter::submission`] does for one.
    ///
    /// # Errors
    /// [`CallError`](crate::limiter::CallError) if a transaction is invalid or two have the same bucket.
    pub fn submission_of_all(
        &self,
        verb: Verb,
        transactions: Vec<Transaction>,
    ) -> Result<(RemoteCall, SubmittedAll), Failure> {
        let stopwatch = Stopwatch::start();
        let ops = with_batch(verb, &transactions, |_, _, buckets, batch| {
            let calls = buckets.iter().zip(batch.calls());
            Ok(calls.map(|(bucket, operation)| op(bucket, operation)).collect())
        })?;
        let call = RemoteCall { ops, now: Some(self.clock.read(Timeline::Wall).wall) };
        Ok((call, SubmittedAll { verb, transactions, stopwatch }))
    }

    /// Computes the decision from a server's replies, and counts it.
    ///
    /// # Errors
    /// [`CallError::Store`](crate::limiter::CallError::Store) if there are no valid replies.
    pub fn conclude_replies(
        &self,
        call: &SubmittedAll,
        replies: Result<Vec<Answer>, StoreError>,
    ) -> Result<AnsweredAll, Failure> {
        let transactions = &call.transactions;
        let failed = |error: StoreError| store_failed(transactions, error);
        let (timing, counted_as) = (Timing::Since(call.stopwatch), |_| Some(call.verb));
        self.answer_all_by(call.verb, transactions, timing, counted_as, |_, batch, _| {
            batch.read(&replies.map_err(failed)?).ok_or_else(|| failed(mismatched_reply()))
        })
    }
}
