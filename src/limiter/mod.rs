//! Decisions: the place where limits, a clock, a store and the algorithms meet.
//!
//! A call is [prepared](Limiter::prepare), asked of the store, and [concluded](Limiter::conclude).
//! Only the middle may wait.

mod bound;
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
pub use counters::{Counts, Outcomes, TIMED_ONE_IN};
pub use error::{CallError, Failure, Refused, invalid_id, unknown_limit};
pub use plain::Verdict;
pub use plain_rules::PlainRule;
pub use queue::{Estimate, Pace, Placing, Rejected, Step, Ticket, WaitQueue};
pub use record::DeniedBucket;
pub use settle::{Progress, Stage};
pub use submit::{OwnedTransaction, Submitted, SubmittedAll};
pub use top_denied::{CAPACITY, HeavyHitter, MAX_ID_BYTES};

use smallvec::SmallVec;

use bound::Resolved;
use counters::{ByName, Stripe};
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

/// A list for a batch, which rarely has more transactions than fit without an allocation.
type Few<T> = SmallVec<[T; 4]>;

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
    /// Whether the request may proceed: a limit in shadow mode never stops one.
    #[inline]
    pub fn allowed(&self) -> bool {
        self.decision.allowed || self.shadow
    }

    /// Whether the limit denied, but is in shadow mode.
    #[inline]
    pub fn would_deny(&self) -> bool {
        self.shadow && !self.decision.allowed
    }
}

/// One limit, id and cost within a multi-limit decision.
#[derive(Debug)]
pub struct Transaction<'a> {
    /// The limit.
    pub limit: &'a BoundLimit,
    /// The client's id, in any spelling.
    pub id: &'a str,
    /// Tokens.
    pub cost: i64,
    /// Its part in the decision.
    pub kind: Kind,
    /// The divisor of a leaky bucket's size.
    pub factor: Option<&'a Factor>,
}

/// The decision on several transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecidedAll {
    /// The strictest decision.
    pub decision: Decision,
    /// The index of the transaction it belongs to; `None` if none decides.
    pub binding: Option<usize>,
    /// The decisions, in order.
    pub parts: Vec<Decided>,
}

/// A call that is valid under the active limits and was not asked yet.
#[derive(Debug)]
pub struct Prepared<'a> {
    bound: &'a BoundLimit,
    stripe: &'a Stripe,
    stopwatch: Option<Stopwatch>,
    verb: Verb,
    resolved: Resolved<'a>,
    has_factor: bool,
}

/// Limits, a store and a clock.
#[derive(Debug)]
pub struct Limiter<S: Store, C: Clock> {
    store: S,
    clock: C,
    loaded: RwLock<Loaded>,
    /// Counts the replacements of `loaded`, so that the holder of a bound limit can tell that it is
    /// no longer active.
    generation: AtomicU64,
    is_serialized: bool,
}

#[derive(Debug)]
struct Loaded {
    snapshot: Arc<Snapshot>,
    /// Limits that were defined one by one; they survive a reload.
    defined: Vec<(String, Limit)>,
    counters: ByName,
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Makes a limiter with the limits in `registry`.
    pub fn new(registry: Registry, store: S, clock: C) -> Limiter<S, C> {
        let mut counters = ByName::default();
        let snapshot = Arc::new(Snapshot::new(registry, &store, &mut counters));
        Limiter {
            store,
            clock,
            loaded: RwLock::new(Loaded { snapshot, defined: Vec::new(), counters }),
            generation: AtomicU64::new(0),
            is_serialized: false,
        }
    }

    /// Promises that calls come one at a time, each seeing the effects of those before it, as an
    /// interpreter's lock ensures. They are then counted without asking for the thread's slot.
    #[must_use]
    pub fn assume_serialized(self) -> Limiter<S, C> {
        Limiter { is_serialized: true, ..self }
    }

    /// The clock.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// How many times the limits were replaced. The result of [`Limiter::snapshot`] is current
    /// while this number stays the same.
    #[inline]
    pub fn generation(&self) -> u64 {
        // Acquire pairs with the Release in `invalidate`: a thread that sees the new number also gets the
        // new limits.
        self.generation.load(Ordering::Acquire)
    }

    /// The active limits.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.loaded.read().snapshot)
    }

    /// Replaces the limits in one step. Buckets stay, and so do [defined](Limiter::define) limits,
    /// which may be among the new ones, unchanged, as they are in limits that came from this limiter.
    ///
    /// # Errors
    /// [`Refused`] if another limit has the name of a defined one; the active limits then stay.
    pub fn reload(&self, registry: Registry) -> Result<(), Refused> {
        let mut loaded = self.loaded.write();
        let active = loaded.snapshot.registry();
        let registry = loaded.defined.iter().try_fold(registry, |registry, (name, limit)| {
            if registry.entry(name).is_some_and(|entry| active.entry(name) == Some(entry)) {
                return Ok(registry);
            }
            registry.with(name, *limit).map_err(|source| Refused::new(name, source))
        })?;
        self.replace(&mut loaded, registry);
        Ok(())
    }

    /// Adds a limit for everyone to the loaded ones; it survives a reload.
    ///
    /// # Errors
    /// [`Refused`] if the name is invalid or taken.
    pub fn define(&self, name: &str, limit: Limit) -> Result<(), Refused> {
        let mut loaded = self.loaded.write();
        let registry = loaded.snapshot.registry().with(name, limit);
        let registry = registry.map_err(|source| Refused::new(name, source))?;
        loaded.defined.push((name.to_owned(), limit));
        self.replace(&mut loaded, registry);
        Ok(())
    }

    /// Makes every holder of a bound limit ask for it again.
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
            // The limits are active all the same; a bucket may be forgotten early.
            let _: StoreError = error.into();
        }
    }

    /// Validates a call on one bucket. `cost` is in tokens.
    ///
    /// # Errors
    /// [`CallError`] if the id, the cost or the factor is invalid.
    #[inline(always)]
    pub fn prepare<'a>(
        &self,
        bound: &'a BoundLimit,
        verb: Verb,
        id: &'a str,
        cost: i64,
        factor: Option<&Factor>,
    ) -> Result<Prepared<'a>, Failure> {
        let stripe = self.stripe(bound);
        let stopwatch = stripe.stopwatch();
        let resolved = bound.resolve(id, cost, factor)?;
        Ok(Prepared { bound, stripe, stopwatch, verb, resolved, has_factor: factor.is_some() })
    }

    /// Asks the store without waiting. Returns `false` if that is impossible: nothing was then read
    /// or written, and [`Limiter::ask`] must be called where waiting is allowed. The clock is read
    /// once.
    ///
    /// # Errors
    /// [`CallError::Store`]; `decision` is then meaningless.
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

    /// The bucket and the step of a call; `None` if it is not limited.
    #[inline(always)]
    fn step<'a>(&'a self, call: &'a Prepared<'_>) -> Option<(Bucket<'a>, BucketStep<'a, C>)> {
        let Prepared { bound, verb, resolved, .. } = call;
        let limit = resolved.limit();
        let bucket = Bucket { keyspace: bound.keyspace(limit)?, id: &resolved.id };
        let operation = Operation { verb: *verb, limit, cost: resolved.cost };
        Some((bucket, BucketStep { operation, clock: &self.clock }))
    }

    /// Counts the decision in `decided`, and completes it by the limit it was made under.
    #[inline(always)]
    pub fn conclude(&self, call: Prepared<'_>, decided: &mut Decided) {
        let Prepared { bound, stripe, stopwatch, verb, resolved, has_factor } = call;
        let Resolved { id, rule, effective_limit, .. } = resolved;
        // A refund denies nothing.
        decided.shadow = rule.shadow && verb != Verb::Refund;
        // A phase per key belongs to the limit itself; only a factor makes another limit of it.
        decided.effective_limit = effective_limit.filter(|_| has_factor);
        bound.counters.count(stripe, verb, decided.decision.allowed, rule.shadow, &id);
        if let Some(stopwatch) = stopwatch {
            bound.counters.count_latency(stopwatch);
            self.store.tidy(decided.decision.now);
        }
    }

    /// Decides on one bucket: prepares, asks and concludes.
    ///
    /// # Errors
    /// [`CallError`] if the id, the cost or the factor is invalid or the store does not answer;
    /// nothing is then written.
    pub fn decide(
        &self,
        bound: &BoundLimit,
        verb: Verb,
        id: &str,
        cost: i64,
        factor: Option<&Factor>,
    ) -> Result<Decided, Failure> {
        // Under a store that may wait, the caller has tried this way already.
        let mut verdict = Verdict::default();
        if factor.is_none()
            && !self.store.may_wait()
            && let Some(rule) = self.try_verdict(bound, verb, id, cost, &mut verdict)
        {
            let decision = verdict.decision(&Limit::TokenBucket(rule.bucket), cost);
            return Ok(Decided { decision, shadow: rule.shadow, effective_limit: None });
        }
        let mut decided = Decided::default();
        let call = self.prepare(bound, verb, id, cost, factor)?;
        self.ask(&call, &mut decided.decision)?;
        self.conclude(call, &mut decided);
        Ok(decided)
    }

    /// As [`Limiter::decide`], into `decided`, if the store can answer at once and nothing is wrong:
    /// moving a decision costs as much as computing it. Returns `false` otherwise; nothing was then
    /// read or written, and [`Limiter::decide`] waits or reports the error.
    #[must_use]
    pub fn try_decide(
        &self,
        bound: &BoundLimit,
        verb: Verb,
        id: &str,
        cost: i64,
        factor: Option<&Factor>,
        decided: &mut Decided,
    ) -> bool {
        let Ok(call) = self.prepare(bound, verb, id, cost, factor) else { return false };
        let is_answered = matches!(self.try_ask(&call, &mut decided.decision), Ok(true));
        if is_answered {
            self.conclude(call, decided);
        }
        is_answered
    }

    /// Decides several transactions as one, all or nothing (a refund: each on its own).
    ///
    /// # Errors
    /// [`CallError`] if a transaction is invalid, one bucket is named twice, or the store does not
    /// answer; nothing is then written.
    pub fn decide_all(
        &self,
        verb: Verb,
        transactions: &[Transaction<'_>],
    ) -> Result<DecidedAll, Failure> {
        let stopwatch = self.stopwatch(transactions);
        self.decide_all_by(verb, transactions, stopwatch, |buckets, batch, now| {
            let decisions = self.store.update_all(buckets, batch, now, &self.clock);
            decisions.map_err(|error| record::store_failed(transactions, error))
        })
    }

    /// Decides several transactions as one; `ask` returns the decisions of those with a bucket.
    fn decide_all_by(
        &self,
        verb: Verb,
        transactions: &[Transaction<'_>],
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
            let parts = resolved.iter().zip(transactions).map(|(one, transaction)| Decided {
                decision: Decision::unlimited(now),
                shadow: one.rule.shadow
                    && verb != Verb::Refund
                    && transaction.kind != Kind::SpendOnly,
                effective_limit: match transaction.factor {
                    Some(_) => one.effective_limit.clone(),
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

    /// Validates several transactions, and calls `then` with what they mean, the indices of those
    /// with a bucket, their buckets and the batch to run on them.
    fn with_batch<T>(
        &self,
        verb: Verb,
        transactions: &[Transaction<'_>],
        then: impl FnOnce(
            &[Resolved<'_>],
            &[usize],
            &[Bucket<'_>],
            &BatchStep<'_, C>,
        ) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut resolved = Few::with_capacity(transactions.len());
        for transaction in transactions {
            let (id, cost) = (transaction.id, transaction.cost);
            let mut one = transaction.limit.resolve(id, cost, transaction.factor)?;
            if verb == Verb::Refund && transaction.kind == Kind::Check {
                one.cost = Cost::ZERO;
            }
            resolved.push(one);
        }
        // Without a limit there is no bucket: such a transaction is allowed and decides nothing.
        let mut indices = Few::with_capacity(resolved.len());
        let mut buckets = Few::with_capacity(resolved.len());
        let mut members = Few::with_capacity(resolved.len());
        for (index, (transaction, one)) in transactions.iter().zip(&resolved).enumerate() {
            let limit = one.limit();
            if let Some(keyspace) = transaction.limit.keyspace(limit) {
                let operation = Operation { verb, limit, cost: one.cost };
                members.push(Member { operation, kind: transaction.kind, shadow: one.rule.shadow });
                buckets.push(Bucket { keyspace, id: &one.id });
                indices.push(index);
            }
        }
        refuse_duplicates(transactions, &resolved, &indices)?;
        let batch = BatchStep { verb, members: &members, clock: &self.clock };
        then(&resolved, &indices, &buckets, &batch)
    }

    /// Forgets one bucket. Returns whether it was there.
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

    /// The store's statistics.
    ///
    /// # Errors
    /// [`StoreError`] if the store does not answer.
    pub fn stats(&self) -> Result<Stats, StoreError> {
        self.store.stats(self.clock.now()).map_err(Into::into)
    }
}

/// Refuses a bucket that is named twice. `indices` are the transactions that have a bucket.
fn refuse_duplicates(
    transactions: &[Transaction<'_>],
    resolved: &[Resolved<'_>],
    indices: &[usize],
) -> Result<(), Failure> {
    let key = |index: usize| (transactions[index].limit.entry.prefix(), &*resolved[index].id);
    let mut sorted = Few::from_slice(indices);
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
