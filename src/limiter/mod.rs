//! The limiter: decides calls with the loaded limits, a clock and a store.
//!
//! A call has three stages: [prepare](Limiter::prepare), [ask](Limiter::ask) and
//! [conclude](Limiter::conclude). Only the second may wait.

mod bound;
mod call;
mod counters;
mod error;
mod independent;
mod plain;
mod plain_rules;
mod queue;
mod record;
mod settle;
mod store_ops;
mod submit;
mod thread_slot;
mod top_denied;
mod turns;

use std::sync::Arc;

pub use bound::{BoundLimit, Snapshot};
pub use call::Call;
pub use counters::{Counts, LATENCY_SAMPLE_INTERVAL, Outcomes};
pub use error::{CallError, Failure, LimitConflict, invalid_id, unknown_limit};
pub use independent::Ids;
pub use plain::Verdict;
pub use queue::{Estimate, Pace, Placing, Rejected, Step, Ticket, WaitQueue};
pub use record::DeniedBucket;
pub use settle::{Progress, Stage};
pub use submit::{Submitted, SubmittedAll};
pub use top_denied::{CAPACITY, HeavyHitter, MAX_ID_BYTES};

use smallvec::SmallVec;

use bound::Resolved;
use counters::{CountersByName, Stripe};
use store_ops::{BatchStep, BucketStep};

use crate::clock::{Clock, Stopwatch};
use crate::engine::batch::{self, Kind, Member};
use crate::engine::cost::Cost;
use crate::engine::decision::Decision;
use crate::engine::factor::Factor;
use crate::engine::limit::Limit;
use crate::engine::operation::{Operation, Verb};
use crate::engine::registry::Registry;
use crate::engine::time::Timestamp;
use crate::store::{Bucket, Stats, Store, StoreError};
use crate::sync::{AtomicU64, Ordering, RwLock};

/// A list with one element per transaction. Most batches are small enough to need no allocation.
type BatchVec<T> = SmallVec<[T; 4]>;

/// A decision, and the limit it was made under.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decided {
    /// The decision.
    pub decision: Decision,
    /// Whether the limit is in shadow mode; false for a refund, which denies nothing.
    pub shadow: bool,
    /// The limit that was applied, if it differs from that of the id's rule.
    pub effective_limit: Option<Box<Limit>>,
}

impl Decided {
    /// Returns whether the request may proceed. A limit in shadow mode never denies.
    #[inline]
    pub fn allowed(&self) -> bool {
        self.decision.allowed || self.shadow
    }

    /// Returns whether the limit would have denied the request if it were not in shadow mode.
    #[inline]
    pub fn would_deny(&self) -> bool {
        self.shadow && !self.decision.allowed
    }
}

/// One limit, id and cost within a multi-limit decision.
#[derive(Debug)]
pub struct Transaction {
    /// The limit.
    pub limit: Arc<BoundLimit>,
    /// The client's id, in any accepted spelling.
    pub id: String,
    /// The cost in tokens.
    pub cost: i64,
    /// The role in the batch: spend, check, or spend without deciding.
    pub kind: Kind,
    /// The divisor of a leaky bucket's size.
    pub factor: Option<Factor>,
}

impl Transaction {
    /// Creates a transaction without a factor.
    pub fn new(
        limit: &Arc<BoundLimit>,
        id: impl Into<String>,
        cost: i64,
        kind: Kind,
    ) -> Transaction {
        Transaction { limit: Arc::clone(limit), id: id.into(), cost, kind, factor: None }
    }
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

/// A validated call that has not been sent to the store yet.
#[derive(Debug)]
pub struct Prepared<'a> {
    bound: &'a BoundLimit,
    stripe: &'a Stripe,
    stopwatch: Option<Stopwatch>,
    call: Call<'a>,
    resolved: Resolved<'a>,
}

/// Limits, a store and a clock.
#[derive(Debug)]
pub struct Limiter<S: Store, C: Clock> {
    store: S,
    clock: C,
    loaded: RwLock<Loaded>,
    /// The number of times `loaded` was replaced. Holders of a bound limit use it to detect that the
    /// limit is no longer active.
    generation: AtomicU64,
    is_serialized: bool,
}

#[derive(Debug)]
struct Loaded {
    snapshot: Arc<Snapshot>,
    /// Limits added with [`Limiter::define`], which survive a reload.
    defined: Vec<(String, Limit)>,
    counters: CountersByName,
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Creates a limiter with the limits in `registry`.
    pub fn new(registry: Registry, store: S, clock: C) -> Limiter<S, C> {
        let mut counters = CountersByName::default();
        let snapshot = Arc::new(Snapshot::new(registry, &store, &mut counters));
        Limiter {
            store,
            clock,
            loaded: RwLock::new(Loaded { snapshot, defined: Vec::new(), counters }),
            generation: AtomicU64::new(0),
            is_serialized: false,
        }
    }

    /// Asserts that calls are serialized and that each sees the effects of the previous ones, as under
    /// the GIL. Counting then skips the lookup of the thread's slot.
    #[must_use]
    pub fn assume_serialized(self) -> Limiter<S, C> {
        Limiter { is_serialized: true, ..self }
    }

    /// Returns the clock.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns how many times the limits were replaced. A result of [`Limiter::snapshot`] is current
    /// while this number is unchanged.
    #[inline]
    pub fn generation(&self) -> u64 {
        // Acquire pairs with the Release in `invalidate`: a thread that sees the new number also sees
        // the new limits.
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the active limits.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.loaded.read().snapshot)
    }

    /// Replaces the limits atomically. Buckets and [defined](Limiter::define) limits are kept. The new
    /// limits may include unchanged defined limits, as limits exported from this limiter do.
    ///
    /// # Errors
    /// [`LimitConflict`] if a different limit has the name of a defined one. The active limits are then
    /// unchanged.
    pub fn reload(&self, registry: Registry) -> Result<(), LimitConflict> {
        let mut loaded = self.loaded.write();
        let active = loaded.snapshot.registry();
        let registry = loaded.defined.iter().try_fold(registry, |registry, (name, limit)| {
            if registry.entry(name).is_some_and(|entry| active.entry(name) == Some(entry)) {
                return Ok(registry);
            }
            registry.with(name, *limit).map_err(|source| LimitConflict::new(name, source))
        })?;
        self.replace(&mut loaded, registry);
        Ok(())
    }

    /// Adds a limit without overrides, which survives a reload.
    ///
    /// # Errors
    /// [`LimitConflict`] if the name is invalid or taken.
    pub fn define(&self, name: &str, limit: Limit) -> Result<(), LimitConflict> {
        let mut loaded = self.loaded.write();
        let registry = loaded.snapshot.registry().with(name, limit);
        let registry = registry.map_err(|source| LimitConflict::new(name, source))?;
        loaded.defined.push((name.to_owned(), limit));
        self.replace(&mut loaded, registry);
        Ok(())
    }

    /// Makes every holder of a bound limit look it up again.
    pub fn invalidate(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    fn replace(&self, loaded: &mut Loaded, registry: Registry) {
        let before = Arc::clone(&loaded.snapshot);
        loaded.snapshot = Arc::new(Snapshot::new(registry, &self.store, &mut loaded.counters));
        self.invalidate();
        let Some(lifetime) = bound::lifetimes(before.registry(), loaded.snapshot.registry()) else {
            return;
        };
        if let Err(error) = self.store.raise_lifetimes(self.clock.now(), &lifetime) {
            // Not reported: the new limits are active in any case. Only some existing buckets may expire
            // too early.
            let _: StoreError = error.into();
        }
    }

    /// Validates a call on one bucket.
    ///
    /// # Errors
    /// [`CallError`] if the id, the cost or the factor is invalid.
    #[inline(always)]
    pub fn prepare<'a>(
        &self,
        bound: &'a BoundLimit,
        call: Call<'a>,
    ) -> Result<Prepared<'a>, Failure> {
        let stripe = self.stripe(bound);
        let stopwatch = stripe.stopwatch();
        let resolved = bound.resolve(call)?;
        Ok(Prepared { bound, stripe, stopwatch, call, resolved })
    }

    /// Asks the store if it can answer without waiting. Otherwise reads and writes nothing and returns
    /// `false`; [`Limiter::ask`] must then be called where waiting is allowed. Reads the clock once.
    ///
    /// # Errors
    /// [`CallError::Store`]; `decision` is then unspecified.
    #[inline(always)]
    pub fn try_ask(&self, call: &Prepared<'_>, decision: &mut Decision) -> Result<bool, Failure> {
        let Some((bucket, step)) = self.step(call) else {
            *decision = Decision::unlimited(self.clock.now());
            return Ok(true);
        };
        let asked = self.store.try_update(bucket, |_| step, &self.clock, decision);
        asked.map_err(|error| call.bound.store_failed(error))
    }

    /// Asks the store. May wait.
    ///
    /// # Errors
    /// As [`Limiter::try_ask`].
    #[inline(always)]
    pub fn ask(&self, call: &Prepared<'_>, decision: &mut Decision) -> Result<(), Failure> {
        let now = self.clock.now();
        let Some((bucket, step)) = self.step(call) else {
            *decision = Decision::unlimited(now);
            return Ok(());
        };
        let asked = self.store.update(bucket, &step, now, decision);
        asked.map_err(|error| call.bound.store_failed(error))
    }

    /// Returns the bucket and the step of a call, or `None` if the id is not limited.
    #[inline(always)]
    fn step<'a>(&'a self, call: &'a Prepared<'_>) -> Option<(Bucket<'a>, BucketStep<'a, C>)> {
        let Prepared { bound, call, resolved, .. } = call;
        let limit = resolved.limit();
        let bucket = Bucket { keyspace: bound.keyspace(limit)?, id: &resolved.id };
        let operation = Operation { verb: call.verb, limit, cost: resolved.cost };
        Some((bucket, BucketStep { operation, clock: &self.clock }))
    }

    /// Counts the decision in `decided`, and adds the shadow mode and effective limit to it.
    #[inline(always)]
    pub fn conclude(&self, call: Prepared<'_>, decided: &mut Decided) {
        let Prepared { bound, stripe, stopwatch, call: Call { verb, factor, .. }, resolved } = call;
        let Resolved { id, rule, effective_limit, .. } = resolved;
        // A refund denies nothing.
        decided.shadow = rule.shadow && verb != Verb::Refund;
        // A phase per key is part of the configured limit. Only a factor makes the limit a different one.
        decided.effective_limit = effective_limit.filter(|_| factor.is_some());
        bound.counters.count(stripe, verb, decided.decision.allowed, rule.shadow, &id);
        if let Some(stopwatch) = stopwatch {
            bound.counters.count_latency(stopwatch);
            self.store.tidy(decided.decision.now);
        }
    }

    /// Decides a call on one bucket: prepares, asks and concludes.
    ///
    /// # Errors
    /// [`CallError`] if the id, the cost or the factor is invalid or the store does not answer.
    /// Nothing is then written.
    pub fn decide(&self, bound: &BoundLimit, call: Call<'_>) -> Result<Decided, Failure> {
        // With a store that may wait, the caller has already tried `try_verdict`.
        let mut verdict = Verdict::default();
        if !self.store.may_wait()
            && bound.has_verdict(&call)
            && self.try_verdict(bound, call, &mut verdict).is_some()
        {
            let decision = verdict.decision(&bound.entry.rule_for(call.id).limit, call.cost);
            return Ok(Decided { decision, shadow: verdict.shadow, effective_limit: None });
        }
        let mut decided = Decided::default();
        let call = self.prepare(bound, call)?;
        self.ask(&call, &mut decided.decision)?;
        self.conclude(call, &mut decided);
        Ok(decided)
    }

    /// Does the same as [`Limiter::decide`] if the call is valid and the store can answer without
    /// waiting. Otherwise reads and writes nothing and returns `false`; [`Limiter::decide`] then waits
    /// or returns the error.
    ///
    /// Writes to `decided`, because moving a decision costs as much as computing it.
    #[must_use]
    pub fn try_decide(&self, bound: &BoundLimit, call: Call<'_>, decided: &mut Decided) -> bool {
        let Ok(call) = self.prepare(bound, call) else { return false };
        let is_answered = matches!(self.try_ask(&call, &mut decided.decision), Ok(true));
        if is_answered {
            self.conclude(call, decided);
        }
        is_answered
    }

    /// Decides several transactions together: all of them are applied or none. Refunds are
    /// independent of each other.
    ///
    /// # Errors
    /// [`CallError`] if a transaction is invalid, two transactions have the same bucket, or the store
    /// does not answer. Nothing is then written.
    pub fn decide_all(
        &self,
        verb: Verb,
        transactions: &[Transaction],
    ) -> Result<DecidedAll, Failure> {
        let stopwatch = self.stopwatch(transactions);
        self.decide_all_by(verb, transactions, stopwatch, |buckets, batch, now| {
            let decisions = self.store.update_all(buckets, batch, now, &self.clock);
            decisions.map_err(|error| record::store_failed(transactions, error))
        })
    }

    /// Decides several transactions together. `ask` returns the decisions of those with a bucket.
    fn decide_all_by(
        &self,
        verb: Verb,
        transactions: &[Transaction],
        stopwatch: Option<Stopwatch>,
        ask: impl FnOnce(&[Bucket<'_>], &BatchStep<'_, C>, Timestamp) -> Result<Vec<Decision>, Failure>,
    ) -> Result<DecidedAll, Failure> {
        self.with_batch(verb, transactions, |resolved, indices, buckets, batch| {
            let now = self.clock.now();
            let decisions = if buckets.is_empty() { Vec::new() } else { ask(buckets, batch, now)? };
            self.count_all(verb, transactions, resolved, indices.iter().zip(&decisions));
            let deciding = batch.members.iter().zip(&decisions);
            let deciding = deciding
                .map(|(member, decision)| (verb == Verb::Refund || member.decides(), decision));
            let binding = batch::strictest(deciding);
            let decision = binding.map_or(Decision::unlimited(now), |index| decisions[index]);
            let binding = binding.map(|index| indices[index]);
            let parts = resolved.iter().zip(transactions).map(|(found, transaction)| Decided {
                decision: Decision::unlimited(now),
                shadow: found.rule.shadow
                    && verb != Verb::Refund
                    && transaction.kind != Kind::SpendOnly,
                effective_limit: match transaction.factor {
                    Some(_) => found.effective_limit.clone(),
                    None => None,
                },
            });
            let mut parts: Vec<Decided> = parts.collect();
            for (&index, decision) in indices.iter().zip(decisions) {
                parts[index].decision = decision;
            }
            if let Some(stopwatch) = stopwatch {
                record::count_latency(transactions, stopwatch);
                self.store.tidy(now);
            }
            Ok(DecidedAll { decision, binding, parts })
        })
    }

    /// Validates several transactions. Calls `then` with the resolved transactions, the indices of
    /// those with a bucket, their buckets, and the batch to run on the buckets.
    fn with_batch<T>(
        &self,
        verb: Verb,
        transactions: &[Transaction],
        then: impl FnOnce(
            &[Resolved<'_>],
            &[usize],
            &[Bucket<'_>],
            &BatchStep<'_, C>,
        ) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut resolved = BatchVec::with_capacity(transactions.len());
        for transaction in transactions {
            let Transaction { limit, id, cost, kind, factor } = transaction;
            let call = Call { verb, id, cost: *cost, factor: factor.as_ref() };
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
            let limit = call.limit();
            if let Some(keyspace) = transaction.limit.keyspace(limit) {
                let operation = Operation { verb, limit, cost: call.cost };
                members.push(Member {
                    operation,
                    kind: transaction.kind,
                    shadow: call.rule.shadow,
                });
                buckets.push(Bucket { keyspace, id: &call.id });
                indices.push(index);
            }
        }
        check_duplicates(transactions, &resolved, &indices)?;
        let batch = BatchStep { verb, members: &members, clock: &self.clock };
        then(&resolved, &indices, &buckets, &batch)
    }

    /// Removes a bucket from the store. Returns whether it existed.
    ///
    /// # Errors
    /// [`CallError`] if the id is invalid or the store does not answer.
    pub fn reset(&self, bound: &BoundLimit, id: &str) -> Result<bool, Failure> {
        let id = bound.canonical(id)?;
        let rule = bound.entry.rule_for(&id);
        match bound.keyspace(&rule.limit) {
            None => Ok(false),
            Some(keyspace) => {
                let forgotten = self.store.forget(Bucket { keyspace, id: &id });
                forgotten.map_err(|error| bound.store_failed(error))
            }
        }
    }

    /// Returns the store's statistics.
    ///
    /// # Errors
    /// [`StoreError`] if the store does not answer.
    pub fn stats(&self) -> Result<Stats, StoreError> {
        self.store.stats(self.clock.now()).map_err(Into::into)
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
            key: transactions[pair[0]].limit.entry.bucket_key(&resolved[pair[0]].id),
            first: pair[0],
            second: pair[1],
        })),
    }
}
