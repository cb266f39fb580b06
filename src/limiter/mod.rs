//! The limiter: decides calls with the loaded limits, a clock and a store.
//!
//! A call has three stages: [prepare](BoundLimit::prepare), ask and
//! [conclude](Limiter::conclude). Only the second may wait.

mod batch;
mod bound;
mod counters;
mod error;
mod settle;
mod slots;
mod spend_each;
mod store_ops;
mod submit;
mod top_denied;
mod waiting;

use std::sync::Arc;

pub use batch::{AnsweredAll, DecidedAll, Transaction};
pub use bound::{BoundLimit, Call, Prepared, Snapshot};
pub use counters::{Counts, DeniedBucket, LATENCY_SAMPLE_INTERVAL, Outcomes};
pub use error::{CallError, Failure, LimitConflict, invalid_id, unknown_limit};
pub use settle::{Progress, Stage};
pub use slots::{AddedSlot, Ending, Endings, HeldSlotKey, OpenSlots, Returned, count_endings};
pub use spend_each::IdList;
pub use submit::{Submitted, SubmittedAll};
pub use top_denied::{CAPACITY, HeavyHitter, MAX_ID_BYTES};
pub use waiting::{
    Acquired, BucketChange, Demand, Driven, Estimate, WaitOutcome, WaitingCall, WaitingRoom, Want,
};

use bound::Resolved;
use counters::CountersByName;

use crate::clock::Clock;
use crate::engine::answer::Answer;
use crate::engine::decision::Decision;
use crate::engine::limit::Limit;
use crate::engine::operation::Operation;
use crate::engine::registry::{Entry, Registry, RegistryError};
use crate::engine::time::{Now, Timeline};
use crate::engine::verb::Verb;
use crate::store::{Bucket, Stats, Store, StoreError, Wait};
use crate::sync::{AtomicU64, Ordering, RwLock};

/// The answer to a call, and the limit it was decided under. The numbers follow from both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// What the store found and did.
    pub answer: Answer,
    /// Whether the limit is in shadow mode; false for a refund, which denies nothing.
    pub shadow: bool,
    /// The limit that was applied, if it differs from that of the id's rule.
    pub effective_limit: Option<Box<Limit>>,
}

/// An answer with its numbers, for callers that need them immediately.
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

/// Limits, a store and a clock.
#[derive(Debug)]
pub struct Limiter<S: Store, C: Clock> {
    store: S,
    clock: C,
    loaded: RwLock<Loaded>,
    /// The number of times `loaded` was replaced. Holders of a bound limit use it to detect that the
    /// limit is no longer active.
    generation: AtomicU64,
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
        let snapshot = Arc::new(Snapshot::new(registry, &store, &mut counters, 0));
        Limiter {
            store,
            clock,
            loaded: RwLock::new(Loaded { snapshot, defined: Vec::new(), counters }),
            generation: AtomicU64::new(0),
        }
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
    /// [`LimitConflict`] if a different limit has the name of a defined one, or a limit keeps overrides
    /// and loses its default. The active limits are then unchanged.
    pub fn reload(&self, registry: Registry) -> Result<(), LimitConflict> {
        self.replace(|loaded| {
            let active = loaded.snapshot.registry();
            for entry in registry.entries().iter().filter(|entry| !entry.has_default()) {
                let name = entry.name().as_str();
                if active.entry(name).is_some_and(|entry| entry.has_default()) {
                    return Err(LimitConflict::new(name, RegistryError::DefaultRemoved));
                }
            }
            loaded.defined.iter().try_fold(registry, |registry, (name, limit)| {
                if registry.entry(name).is_some_and(|entry| active.entry(name) == Some(entry)) {
                    return Ok(registry);
                }
                registry.with(name, *limit).map_err(|source| LimitConflict::new(name, source))
            })
        })
    }

    /// Adds a limit without overrides, which survives a reload.
    ///
    /// # Errors
    /// [`LimitConflict`] if the name is invalid or taken.
    pub fn define(&self, name: &str, limit: Limit) -> Result<(), LimitConflict> {
        self.replace(|loaded| {
            let registry = loaded.snapshot.registry().with(name, limit);
            let registry = registry.map_err(|source| LimitConflict::new(name, source))?;
            loaded.defined.push((name.to_owned(), limit));
            Ok(registry)
        })
    }

    /// Adds a limit that a reload has removed, with its overrides, unless a limit has its name. The
    /// next reload removes it again. Returns whether it was added.
    pub fn restore(&self, entry: &Arc<Entry>) -> bool {
        self.replace(|loaded| loaded.snapshot.registry().with_entry(entry).ok_or(())).is_ok()
    }

    /// Makes every holder of a bound limit look it up again.
    pub fn invalidate(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Replaces the limits by those that `next` returns, and makes the store keep existing buckets for as
    /// long as these need.
    fn replace<E>(&self, next: impl FnOnce(&mut Loaded) -> Result<Registry, E>) -> Result<(), E> {
        let mut locked = self.loaded.write();
        let loaded = &mut *locked;
        let registry = next(loaded)?;
        // If the limiter is closed meanwhile, no generation is that of these limits, and calls look them
        // up again.
        let generation = self.generation() + 1;
        let after = Snapshot::new(registry, &self.store, &mut loaded.counters, generation);
        let after = Arc::new(after);
        let before = std::mem::replace(&mut loaded.snapshot, Arc::clone(&after));
        self.invalidate();
        // The limits are not locked from here on: this takes long in a large store, and calls are decided
        // under the new limits.
        drop(locked);
        if let Some(lifetime) = bound::lifetimes(before.registry(), after.registry())
            && let Err(error) =
                self.store.raise_lifetimes(self.clock.read(Timeline::Wall), &lifetime)
        {
            // Not reported: the new limits are active in any case. Only some existing buckets may expire
            // too early.
            let _: StoreError = error.into();
        }
        Ok(())
    }

    /// Asks the store.
    ///
    /// # Errors
    /// [`CallError::Store`].
    #[inline]
    fn ask(&self, call: &Prepared<'_>, now: Now) -> Result<Answer, Failure> {
        let asked = self.ask_within(call, now, Wait::Allowed);
        asked.map_err(|error| call.resolved.bound.store_failed(error))
    }

    /// Asks the store. `now` is a reading of the limit's clock before the call was prepared, which saves 4 to 8 %
    /// of a spend: the processor reads the time only when what precedes it is done, and then works ahead.
    #[inline(always)]
    fn ask_within(&self, call: &Prepared<'_>, now: Now, wait: Wait) -> Result<Answer, S::Error> {
        match call.operation() {
            Some((bucket, operation)) => self.store.update(bucket, &operation, now, wait),
            None => Ok(Answer::new(None, now.steady, true)),
        }
    }

    /// Counts the answer, and adds what the caller needs to know of the limit.
    #[inline(always)]
    pub fn conclude(&self, call: Prepared<'_>, answer: Answer, answered: &mut Answered) {
        let Prepared { stripe, stopwatch, call: Call { verb, adjustment, .. }, resolved } = call;
        let Resolved { bound, id, rule, effective_limit, .. } = resolved;
        bound.counters.count(stripe, verb, answer.allowed(), rule.shadow, &id);
        if let Some(stopwatch) = stopwatch {
            bound.counters.count_latency(stopwatch);
            self.store.tidy(|| self.clock.read(Timeline::Wall));
        }
        answered.answer = answer;
        // A refund denies nothing.
        answered.shadow = rule.shadow && verb != Verb::Refund;
        // A phase per key is part of the configured limit. Only an adjustment makes the limit a different one.
        let effective_limit = effective_limit.filter(|_| adjustment.is_some());
        if effective_limit.is_some() || answered.effective_limit.is_some() {
            answered.effective_limit = effective_limit;
        }
    }

    /// Decides a call on one bucket: prepares, asks and concludes.
    ///
    /// # Errors
    /// [`CallError`] if the id, the cost or the factor is invalid or the store does not answer.
    /// Nothing is then written.
    pub fn answer(&self, bound: &BoundLimit, call: Call<'_>) -> Result<Answered, Failure> {
        let now = self.clock.read(bound.timeline);
        let call = bound.prepare(call)?;
        let (answer, mut answered) = (self.ask(&call, now)?, Answered::default());
        self.conclude(call, answer, &mut answered);
        Ok(answered)
    }

    /// Does the same as [`Limiter::answer`] if the call is valid and the store can answer without
    /// waiting. Otherwise reads and writes nothing and returns `None`; [`Limiter::answer`] then waits
    /// or returns the error.
    ///
    /// Writes to `answered`, because moving an answer costs as much as deciding.
    #[inline(always)]
    #[must_use]
    pub fn try_answer(
        &self,
        bound: &BoundLimit,
        call: Call<'_>,
        answered: &mut Answered,
    ) -> Option<()> {
        let now = self.clock.read(bound.timeline);
        let call = bound.prepare(call).ok()?;
        // An error is counted by the call that follows and may wait.
        let answer = self.ask_within(&call, now, Wait::Never).ok()?;
        self.conclude(call, answer, answered);
        Some(())
    }

    /// Does the same as [`Limiter::answer`], with the numbers.
    ///
    /// # Errors
    /// As [`Limiter::answer`].
    pub fn decide(&self, bound: &BoundLimit, call: Call<'_>) -> Result<Decided, Failure> {
        let now = self.clock.read(bound.timeline);
        let call = bound.prepare(call)?;
        let (answer, counted_as) = (self.ask(&call, now)?, call.call.verb);
        Ok(self.decided(call, answer, counted_as))
    }

    /// Concludes a call with its numbers. Counts it as the operation `counted_as`.
    fn decided(&self, mut call: Prepared<'_>, answer: Answer, counted_as: Verb) -> Decided {
        let operation = Operation {
            verb: call.call.verb,
            limit: call.resolved.limit(),
            cost: call.resolved.cost,
        };
        let decision = operation.numbers(&answer);
        let mut answered = Answered::default();
        call.call.verb = counted_as;
        self.conclude(call, answer, &mut answered);
        let Answered { shadow, effective_limit, .. } = answered;
        Decided { decision, shadow, effective_limit }
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
                let bucket = Bucket::new(keyspace, &id).on(rule.limit.timeline());
                let forgotten = self.store.forget(bucket);
                forgotten.map_err(|error| bound.store_failed(error))
            }
        }
    }

    /// Returns the store's statistics.
    ///
    /// # Errors
    /// [`StoreError`] if the store does not answer.
    pub fn stats(&self) -> Result<Stats, StoreError> {
        self.store.stats(self.clock.read(Timeline::Wall)).map_err(Into::into)
    }
}
