//! A call whose caller does not wait: what is sent to a server, and what its reply means.
//!
//! The caller sends [`RemoteCall`] to the store and returns to its event loop. When the reply has
//! arrived, on whichever thread, it is concluded on the event loop's.

use std::sync::Arc;

use crate::clock::{Clock, Stopwatch};
use crate::engine::batch::Kind;
use crate::engine::decision::Decision;
use crate::engine::factor::Factor;
use crate::engine::operation::Verb;
use crate::limiter::{
    BoundLimit, Decided, DecidedAll, Failure, Limiter, Prepared, Transaction, record,
};
use crate::store::remote::{RemoteBatch, RemoteCall, RemoteStep, Reply};
use crate::store::{Store, StoreError};

/// A call on one bucket that a server is asked to decide.
#[derive(Debug)]
pub struct Submitted {
    bound: Arc<BoundLimit>,
    verb: Verb,
    id: String,
    cost: i64,
    factor: Option<Factor>,
    stopwatch: Stopwatch,
    /// What the store wants to know again with the reply.
    submitted: u64,
}

/// A transaction that owns its parts.
#[derive(Debug)]
pub struct OwnedTransaction {
    /// The limit.
    pub limit: Arc<BoundLimit>,
    /// The client's id, in any spelling.
    pub id: String,
    /// Tokens.
    pub cost: i64,
    /// Its part in the decision.
    pub kind: Kind,
    /// The divisor of a leaky bucket's size.
    pub factor: Option<Factor>,
}

impl OwnedTransaction {
    /// The transactions in the form that decides.
    pub fn borrowed(transactions: &[OwnedTransaction]) -> Vec<Transaction<'_>> {
        let each = transactions.iter().map(|one| Transaction {
            limit: &one.limit,
            id: &one.id,
            cost: one.cost,
            kind: one.kind,
            factor: one.factor.as_ref(),
        });
        each.collect()
    }
}

/// A call on several buckets that a server is asked to decide as one.
#[derive(Debug)]
pub struct SubmittedAll {
    verb: Verb,
    transactions: Vec<OwnedTransaction>,
    stopwatch: Stopwatch,
}

/// The error of a reply that does not belong to its call.
fn unreadable() -> StoreError {
    StoreError::BadReply { why: "the server's replies do not fit the call" }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Prepares a call on one bucket for [`submit`](crate::store::remote::RemoteStore::submit).
    /// Its operations are empty if the id is not limited: no server is then needed.
    ///
    /// # Errors
    /// [`CallError`](crate::limiter::CallError) if the id, the cost or the factor is invalid.
    pub fn submission(
        &self,
        bound: &Arc<BoundLimit>,
        verb: Verb,
        id: &str,
        cost: i64,
        factor: Option<Factor>,
    ) -> Result<(RemoteCall, Submitted), Failure> {
        // Every call is timed: that costs nothing beside a round trip.
        let stopwatch = Stopwatch::start();
        let call = self.prepare(bound, verb, id, cost, factor.as_ref())?;
        let (mut ops, mut submitted) = (Vec::new(), 0);
        if let Some((bucket, step)) = self.step(&call) {
            let operation = step.call();
            submitted = self.store.on_submit(bucket, operation.verb);
            ops.push((bucket.keyspace.text().into(), bucket.id.into(), operation));
        }
        let id = call.resolved.id.into_owned();
        let bound = Arc::clone(bound);
        let call = Submitted { bound, verb, id, cost, factor, stopwatch, submitted };
        Ok((RemoteCall { ops, now: Some(self.clock.now()) }, call))
    }

    /// Computes the decision from a server's reply, and counts it.
    ///
    /// # Errors
    /// [`CallError::Store`](crate::limiter::CallError::Store).
    pub fn conclude_reply(
        &self,
        call: Submitted,
        replies: Result<Vec<Reply>, StoreError>,
    ) -> Result<Decided, Failure> {
        let Submitted { bound, verb, id, cost, factor, stopwatch, submitted } = call;
        let resolved = bound.resolve(&id, cost, factor.as_ref())?;
        let (stripe, has_factor) = (self.stripe(&bound), factor.is_some());
        let bound = &*bound;
        let stopwatch = Some(stopwatch);
        let call = Prepared { bound, stripe, stopwatch, verb, resolved, has_factor };
        let decision = match self.step(&call) {
            None => Ok(Some(Decision::unlimited(self.clock.now()))),
            Some((bucket, step)) => {
                let reply = replies.map(|replies| <[Reply; 1]>::try_from(replies).ok());
                let found = reply.as_ref().ok().and_then(Option::as_ref).map(|[reply]| reply);
                self.store.on_reply(bucket, &step, found, submitted);
                reply.map(|reply| reply.and_then(|[reply]| step.read(&reply)))
            }
        };
        let decision = decision.and_then(|decision| decision.ok_or_else(unreadable));
        let decision = decision.map_err(|error| bound.store_failed(error))?;
        let mut decided = Decided { decision, ..Decided::default() };
        self.conclude(call, &mut decided);
        Ok(decided)
    }

    /// As [`Limiter::submission`], for several transactions that are decided as one.
    ///
    /// # Errors
    /// [`CallError`](crate::limiter::CallError) if a transaction is invalid or one bucket is named twice.
    pub fn submission_of_all(
        &self,
        verb: Verb,
        transactions: Vec<OwnedTransaction>,
    ) -> Result<(RemoteCall, SubmittedAll), Failure> {
        let stopwatch = Stopwatch::start();
        let ops = self.with_batch(
            verb,
            &OwnedTransaction::borrowed(&transactions),
            |_, _, buckets, batch| {
                let calls = buckets.iter().zip(batch.calls());
                Ok(calls
                    .map(|(bucket, operation)| {
                        self.store.on_submit(*bucket, operation.verb);
                        (bucket.keyspace.text().into(), bucket.id.into(), operation)
                    })
                    .collect())
            },
        )?;
        let call = RemoteCall { ops, now: Some(self.clock.now()) };
        Ok((call, SubmittedAll { verb, transactions, stopwatch }))
    }

    /// Computes the decision from a server's replies, and counts it.
    ///
    /// # Errors
    /// [`CallError::Store`](crate::limiter::CallError::Store).
    pub fn conclude_replies(
        &self,
        call: &SubmittedAll,
        replies: Result<Vec<Reply>, StoreError>,
    ) -> Result<DecidedAll, Failure> {
        let transactions = OwnedTransaction::borrowed(&call.transactions);
        let failed = |error: StoreError| record::store_failed(&transactions, error);
        self.decide_all_by(call.verb, &transactions, Some(call.stopwatch), |buckets, batch, _| {
            for (bucket, operation) in buckets.iter().zip(batch.calls()) {
                self.store.on_submit(*bucket, operation.verb);
            }
            batch.read(&replies.map_err(failed)?).ok_or_else(|| failed(unreadable()))
        })
    }
}
