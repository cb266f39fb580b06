//! Decisions on several transactions together.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::clock::{Clock, Stopwatch};
use crate::engine::answer::Answer;
use crate::engine::batch::{self, Kind, Member};
use crate::engine::cost::Cost;
use crate::engine::decision::Decision;
use crate::engine::factor::Adjustment;
use crate::engine::limit::Limit;
use crate::engine::time::{Now, Timeline, Timestamp};
use crate::engine::verb::Verb;
use crate::limiter::bound::Resolved;
use crate::limiter::counters::{Stripe, StripeIndex};
use crate::limiter::store_ops::Members;
use crate::limiter::{Answered, BoundLimit, Call, CallError, Decided, Failure, Limiter, error};
use crate::store::{Answers, Bucket, Store, StoreError, Wait};

/// A list with one element per transaction. Most batches are small enough to need no allocation.
pub type BatchVec<T> = SmallVec<[T; 4]>;

/// One limit, id and cost within a multi-limit decision.
#[derive(Debug)]
pub struct Transaction {
    /// The limit.
    pub limit: Arc<BoundLimit>,
    /// The client's id, in any accepted spelling.
    pub id: String,
    /// The cost in tokens.
    pub cost: i64,
    /// The role in the batch.
    pub kind: Kind,
    /// What the call changes in its limit.
    pub adjustment: Option<Adjustment>,
}

impl Transaction {
    /// Creates a transaction that changes nothing in its limit.
    pub fn new(
        limit: &Arc<BoundLimit>,
        id: impl Into<String>,
        cost: i64,
        kind: Kind,
    ) -> Transaction {
        Transaction { limit: Arc::clone(limit), id: id.into(), cost, kind, adjustment: None }
    }

    /// Computes the decision on this transaction.
    fn numbers(&self, verb: Verb, effective: Option<&Limit>, answer: &Answer) -> Decision {
        self.limit.entry.numbers(verb, &self.id, self.cost, effective, answer)
    }
}

/// The answers on several transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnsweredAll {
    /// The index of the strictest transaction; `None` if no transaction decides.
    pub binding: Option<usize>,
    /// The instant of the decision on the steady clock.
    pub now: Timestamp,
    /// The answer of each transaction, in order.
    pub parts: Vec<Answered>,
    /// What was asked about each of them.
    pub verbs: BatchVec<Verb>,
}

/// The decision on several transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecidedAll {
    /// The strictest decision.
    pub decision: Decision,
    /// The index of its transaction; `None` if no transaction decides.
    pub binding: Option<usize>,
    /// The decision of each transaction, in order.
    pub parts: Vec<Decided>,
}

impl AnsweredAll {
    /// Computes the numbers.
    pub fn decided(self, transactions: &[Transaction]) -> DecidedAll {
        let parts = self.parts.into_iter().zip(self.verbs).zip(transactions);
        let parts = parts.map(|((part, verb), transaction)| {
            let Answered { answer, shadow, effective_limit } = part;
            let decision = transaction.numbers(verb, effective_limit.as_deref(), &answer);
            Decided { decision, shadow, effective_limit }
        });
        let parts: Vec<Decided> = parts.collect();
        let decision = self.binding.map_or(Decision::unlimited(self.now), |at| parts[at].decision);
        DecidedAll { decision, binding: self.binding, parts }
    }
}

/// Whether a call about several buckets is timed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Timing {
    /// Some calls are timed.
    Sampled,
    /// It is, and has already begun.
    Since(Stopwatch),
    /// It is not, because it may be part of a longer wait.
    None,
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Decides several transactions together: all of them are applied or none. Refunds are
    /// independent of each other.
    ///
    /// # Errors
    /// [`CallError`] if a transaction is invalid, two transactions have the same bucket, or the store
    /// does not answer. Nothing is then written.
    pub fn answer_all(
        &self,
        verb: Verb,
        transactions: &[Transaction],
    ) -> Result<AnsweredAll, Failure> {
        self.ask_all(verb, transactions, Timing::Sampled, |_| Some(verb), Wait::Allowed)
    }

    /// Does the same as [`Limiter::answer_all`] if the store can answer without waiting. Otherwise
    /// returns `None`, and no charge of this call remains.
    ///
    /// # Errors
    /// As [`Limiter::answer_all`].
    pub fn try_answer_all(
        &self,
        verb: Verb,
        transactions: &[Transaction],
    ) -> Result<Option<AnsweredAll>, Failure> {
        match self.ask_all(verb, transactions, Timing::Sampled, |_| Some(verb), Wait::Never) {
            Err(error) if *error == CallError::Store(StoreError::WouldWait) => Ok(None),
            answered => answered.map(Some),
        }
    }

    /// Decides several transactions, and counts them as the operation that `counted_as` returns for
    /// whether all are allowed.
    pub(super) fn ask_all(
        &self,
        verb: Verb,
        transactions: &[Transaction],
        timing: Timing,
        counted_as: impl FnOnce(bool) -> Option<Verb>,
        wait: Wait,
    ) -> Result<AnsweredAll, Failure> {
        self.answer_all_by(verb, transactions, timing, counted_as, |buckets, batch, now| {
            let answers = self.store.update_all(buckets, batch, now, &self.clock, wait);
            answers.map_err(|error| store_failed(transactions, error))
        })
    }

    /// Does the same as [`Limiter::answer_all`], with the numbers.
    ///
    /// # Errors
    /// As [`Limiter::answer_all`].
    pub fn decide_all(
        &self,
        verb: Verb,
        transactions: &[Transaction],
    ) -> Result<DecidedAll, Failure> {
        Ok(self.answer_all(verb, transactions)?.decided(transactions))
    }

    /// Decides several transactions together. `ask` returns the answers of those with a bucket.
    pub(super) fn answer_all_by(
        &self,
        verb: Verb,
        transactions: &[Transaction],
        timing: Timing,
        counted_as: impl FnOnce(bool) -> Option<Verb>,
        ask: impl FnOnce(&[Bucket<'_>], &Members<'_>, Now) -> Result<Answers, Failure>,
    ) -> Result<AnsweredAll, Failure> {
        let stripe = StripeIndex::choose();
        let stopwatch = match timing {
            // The sampling of the first limit decides.
            Timing::Sampled => {
                let first = transactions.first().map(|first| first.limit.counters.stripe(stripe));
                first.and_then(Stripe::stopwatch)
            }
            Timing::Since(stopwatch) => Some(stopwatch),
            Timing::None => None,
        };
        // A call by the wall clock needs both clocks.
        let timeline = transactions.iter().map(|transaction| transaction.limit.timeline).max();
        let now = self.clock.read(timeline.unwrap_or_default());
        with_batch(verb, transactions, |resolved, indices, buckets, batch| {
            let answers =
                if buckets.is_empty() { Answers::new() } else { ask(buckets, batch, now)? };
            let denies = |(member, answer): (&Member<'_>, &Answer)| {
                verb.decides() && member.decides() && !answer.allowed()
            };
            let allowed = !batch.0.iter().zip(&answers).any(denies);
            if let Some(verb) = counted_as(allowed) {
                count_all(verb, transactions, stripe, resolved, indices.iter().zip(&answers));
            }
            let deciding = batch.0.iter().zip(&answers);
            let deciding = deciding.map(|(member, answer)| {
                (verb == Verb::Refund || member.decides(), member.operation.numbers(answer))
            });
            let binding = batch::strictest(deciding).map(|index| indices[index]);
            let parts = resolved.iter().zip(transactions).map(|(found, transaction)| Answered {
                answer: Answer::new(None, now.steady, true),
                shadow: found.rule.shadow && verb != Verb::Refund && transaction.kind.decides(),
                effective_limit: match transaction.adjustment {
                    Some(_) => found.effective_limit.clone(),
                    None => None,
                },
            });
            let mut parts: Vec<Answered> = parts.collect();
            for (&index, answer) in indices.iter().zip(answers) {
                parts[index].answer = answer;
            }
            if let Some(stopwatch) = stopwatch {
                transactions.iter().for_each(|one| one.limit.counters.count_latency(stopwatch));
                self.store.tidy(|| self.clock.read(Timeline::Wall));
            }
            let verbs = transactions.iter().map(|one| one.kind.verb(verb)).collect();
            Ok(AnsweredAll { binding, now: now.steady, parts, verbs })
        })
    }
}

/// Validates several transactions. Calls `then` with the resolved transactions, the indices of
/// those with a bucket, their buckets, and the batch to run on the buckets.
pub(super) fn with_batch<T>(
    verb: Verb,
    transactions: &[Transaction],
    then: impl FnOnce(&[Resolved<'_>], &[usize], &[Bucket<'_>], &Members<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut resolved = BatchVec::with_capacity(transactions.len());
    for transaction in transactions {
        let Transaction { limit, id, cost, kind, adjustment } = transaction;
        let adjustment = adjustment.as_ref();
        // A check of a charge, which may cost more than the limit ever allows, only looks.
        let looks = verb == Verb::Check && *kind == Kind::Charge;
        let cost = if looks { (*cost).min(0) } else { *cost };
        let call = Call { verb: kind.verb(verb), id, cost, adjustment };
        let mut found = limit.resolve(call)?;
        if verb == Verb::Refund && *kind == Kind::Check {
            found.cost = Cost::ZERO;
        }
        resolved.push(found);
    }
    // An unlimited transaction has no bucket. It is allowed and does not affect the decision.
    let mut indices = BatchVec::with_capacity(resolved.len());
    let mut buckets = BatchVec::with_capacity(resolved.len());
    let mut members = BatchVec::with_capacity(resolved.len());
    for (index, (transaction, call)) in transactions.iter().zip(&resolved).enumerate() {
        let verb = transaction.kind.verb(verb);
        let Some((bucket, operation)) = call.operation(verb) else { continue };
        members.push(Member { operation, kind: transaction.kind, shadow: call.rule.shadow });
        buckets.push(bucket);
        indices.push(index);
    }
    check_duplicates(transactions, &resolved, &indices)?;
    then(&resolved, &indices, &buckets, &Members(&members))
}

/// Counts the decision of each transaction. `decided` contains those with a bucket, by ascending
/// index.
fn count_all<'a>(
    verb: Verb,
    transactions: &[Transaction],
    stripe: StripeIndex,
    resolved: &[Resolved<'_>],
    decided: impl Iterator<Item = (&'a usize, &'a Answer)>,
) {
    let mut decided = decided.peekable();
    for (index, (transaction, one)) in transactions.iter().zip(resolved).enumerate() {
        let decision = decided.next_if(|&(&bucket, _)| bucket == index);
        let allowed = decision.is_none_or(|(_, answer)| answer.allowed());
        let verb = match (verb, transaction.kind) {
            (Verb::Spend | Verb::Reserve, Kind::Check) => Verb::Check,
            (verb, kind) => kind.verb(verb),
        };
        let counters = &transaction.limit.counters;
        counters.count(counters.stripe(stripe), verb, allowed, one.rule.shadow, &one.id);
    }
}

/// Returns an error if two transactions have the same bucket. `indices` are those that have a bucket.
fn check_duplicates(
    transactions: &[Transaction],
    resolved: &[Resolved<'_>],
    indices: &[usize],
) -> Result<(), Failure> {
    let key = |index: usize| (transactions[index].limit.entry.prefix(), &*resolved[index].id);
    let mut sorted = BatchVec::from_slice(indices);
    sorted.sort_by(|&one, &other| key(one).cmp(&key(other)).then(one.cmp(&other)));
    match sorted.windows(2).find(|pair| key(pair[0]) == key(pair[1])) {
        None => Ok(()),
        Some(pair) => Err(Box::new(CallError::DuplicateBucket {
            limit: transactions[pair[0]].limit.entry.name().to_string(),
            key: transactions[pair[0]].limit.entry.bucket_key(&resolved[pair[0]].id),
            first: pair[0],
            second: pair[1],
        })),
    }
}

/// Counts a store error for each limit of a batch, and returns the error.
#[cold]
pub(super) fn store_failed(transactions: &[Transaction], error: impl Into<StoreError>) -> Failure {
    let error = error.into();
    // A call that may not wait is repeated where it may.
    if error != StoreError::WouldWait {
        transactions.iter().for_each(|transaction| transaction.limit.counters.count_store_error());
    }
    error::store_failed(error)
}
