//! The one place where limits, a clock, a store and the algorithms meet.

mod bound;
mod counters;
mod error;
mod independent;
mod queue;
mod record;
mod settle;
mod store_ops;
mod thread_slot;
mod top_denied;

use std::sync::Arc;

pub use bound::{BoundLimit, Snapshot};
pub use counters::{Counts, LATENCIES, Latencies, Outcomes, TIMED_ONE_IN};
pub use error::{CallError, Failure, Refused, invalid_id, unknown_limit};
pub use queue::{Place, Turn};
pub use record::DeniedBucket;
pub use top_denied::{CAPACITY, HeavyHitter, MAX_ID_BYTES};

use bound::Prepared;
use counters::ByName;
use store_ops::BatchStep;

use crate::clock::Clock;
use crate::engine::batch::{self, Kind, Member};
use crate::engine::decision::Decision;
use crate::engine::factor::Factor;
use crate::engine::limit::{Cost, Limit};
use crate::engine::operation::{Operation, Verb};
use crate::engine::registry::{Registry, Rule};
use crate::store::{Bucket, Stats, Store, StoreError};
use crate::sync::{AtomicU64, Ordering, RwLock};

/// A decision, and what it was decided by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decided {
    /// The answer.
    pub decision: Decision,
    /// Whether the limit is in shadow mode; false for a refund, which denies nothing.
    pub shadow: bool,
    /// The limit as it applied, where it is another than that of the id's rule.
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

/// One transaction about a bucket.
#[derive(Debug)]
pub struct Transaction<'a, S: Store> {
    /// The limit.
    pub limit: &'a BoundLimit<S>,
    /// Who is asking, in any spelling.
    pub id: &'a str,
    /// Tokens.
    pub cost: i64,
    /// Its part in the decision.
    pub kind: Kind,
    /// What a leaky bucket's size is divided by.
    pub factor: Option<&'a Factor>,
}

/// The answer to several transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecidedAll {
    /// The answer to all as one.
    pub decision: Decision,
    /// The place of the transaction whose decision it is; `None` where none decides.
    pub binding: Option<usize>,
    /// The answers, in order.
    pub parts: Vec<Decided>,
}

/// Decides: limits, a store and a clock.
#[derive(Debug)]
pub struct Limiter<S: Store, C: Clock> {
    store: S,
    clock: C,
    loaded: RwLock<Loaded<S>>,
    /// Counts the replacements of `loaded`, so that who keeps a bound limit can tell that it is no
    /// longer in force.
    generation: AtomicU64,
    is_serialized: bool,
}

#[derive(Debug)]
struct Loaded<S: Store> {
    snapshot: Arc<Snapshot<S>>,
    /// Limits that were defined one by one, and outlive a reload.
    defined: Vec<(String, Limit)>,
    counters: ByName,
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Makes a limiter of the limits in `registry`.
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

    /// Promises that calls come one at a time, each seeing what those before it did, as an
    /// interpreter's lock sees to: they are then counted without asking which thread calls.
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

    /// How often the limits were replaced. What [`Limiter::snapshot`] gives is in force as long as
    /// this stands.
    #[inline]
    pub fn generation(&self) -> u64 {
        // Acquire pairs with the Release in `invalidate`: who sees the new number also gets the new
        // limits.
        self.generation.load(Ordering::Acquire)
    }

    /// The limits in force.
    pub fn snapshot(&self) -> Arc<Snapshot<S>> {
        Arc::clone(&self.loaded.read().snapshot)
    }

    /// Replaces the limits in one step; buckets stay, and so do limits that were
    /// [defined](Limiter::define).
    ///
    /// # Errors
    /// [`Refused`] if a defined limit has a name that is now loaded; the limits in force are left
    /// alone.
    pub fn reload(&self, registry: Registry) -> Result<(), Refused> {
        let mut loaded = self.loaded.write();
        let registry = loaded.defined.iter().try_fold(registry, |registry, (name, limit)| {
            registry.with(name, *limit).map_err(|source| Refused::new(name, source))
        })?;
        self.replace(&mut loaded, registry);
        Ok(())
    }

    /// Adds a limit beside the loaded ones, for everyone; it outlives a reload.
    ///
    /// # Errors
    /// [`Refused`] if the name cannot be or is taken.
    pub fn define(&self, name: &str, limit: Limit) -> Result<(), Refused> {
        let mut loaded = self.loaded.write();
        let registry = loaded.snapshot.registry().with(name, limit);
        let registry = registry.map_err(|source| Refused::new(name, source))?;
        loaded.defined.push((name.to_owned(), limit));
        self.replace(&mut loaded, registry);
        Ok(())
    }

    /// Makes everyone who keeps a bound limit ask for it again.
    pub fn invalidate(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    fn replace(&self, loaded: &mut Loaded<S>, registry: Registry) {
        loaded.snapshot = Arc::new(Snapshot::new(registry, &self.store, &mut loaded.counters));
        self.invalidate();
    }

    /// Does `verb` to one bucket.
    ///
    /// `cost` is in tokens. The clock is read once.
    ///
    /// # Errors
    /// [`CallError`] if the id, the cost or the factor cannot be, or the store cannot answer;
    /// nothing is then written.
    pub fn decide(
        &self,
        bound: &BoundLimit<S>,
        verb: Verb,
        id: &str,
        cost: i64,
        factor: Option<&Factor>,
    ) -> Result<Decided, Failure> {
        let mut decided = Decided::default();
        self.decide_into(bound, verb, id, cost, factor, &mut decided)?;
        Ok(decided)
    }

    /// As [`Limiter::decide`], into a place that the caller has: moving an answer about costs as
    /// much as making it.
    ///
    /// # Errors
    /// As [`Limiter::decide`]; `decided` then means nothing.
    #[inline(always)]
    pub fn decide_into(
        &self,
        bound: &BoundLimit<S>,
        verb: Verb,
        id: &str,
        cost: i64,
        factor: Option<&Factor>,
        decided: &mut Decided,
    ) -> Result<(), Failure> {
        let stripe = self.stripe(bound);
        let stopwatch = stripe.stopwatch();
        let id = bound.canonical(id)?;
        let rule = bound.entry.rule_for(&id);
        // Nearly every call is about a token bucket without a factor: it stands in the caller's
        // line, in one piece.
        if let (limit @ Limit::TokenBucket(_), None) = (&rule.limit, factor) {
            let cost = bound.cost(limit, cost)?;
            let now = self.clock.now();
            let bucket = Bucket { space: &bound.spaces[0], id: &id };
            let operation = Operation { verb, limit, cost };
            self.store
                .update(bucket, &operation, now, &mut decided.decision)
                .map_err(|error| bound.store_failed(error))?;
            decided.shadow = rule.shadow && verb != Verb::Refund;
            decided.effective_limit = None;
        } else {
            *decided = self.decide_otherwise(bound, rule, verb, &id, cost, factor)?;
        }
        bound.counters.count(stripe, verb, decided.decision.allowed, rule.shadow, &id);
        if let Some(stopwatch) = stopwatch {
            bound.counters.count_latency(stopwatch);
        }
        Ok(())
    }

    #[inline(never)]
    fn decide_otherwise(
        &self,
        bound: &BoundLimit<S>,
        rule: &Rule,
        verb: Verb,
        id: &str,
        cost: i64,
        factor: Option<&Factor>,
    ) -> Result<Decided, Failure> {
        let effective_limit = bound.limit_for(rule, id, factor)?;
        let limit = effective_limit.as_deref().unwrap_or(&rule.limit);
        let cost = bound.cost(limit, cost)?;
        let now = self.clock.now();
        let mut decision = Decision::unlimited(now);
        if let Some(space) = bound.space(limit) {
            let operation = Operation { verb, limit, cost };
            self.store
                .update(Bucket { space, id }, &operation, now, &mut decision)
                .map_err(|error| bound.store_failed(error))?;
        }
        // A phase per key is the limit's own: only a factor makes another limit of it.
        let effective_limit = effective_limit.filter(|_| factor.is_some());
        let shadow = rule.shadow && verb != Verb::Refund;
        Ok(Decided { decision, shadow, effective_limit })
    }

    /// Decides several transactions as one, all or nothing (a refund: each on its own).
    ///
    /// # Errors
    /// [`CallError`] if one of them cannot be, one bucket is named twice, or the store cannot
    /// answer; nothing is then written.
    pub fn decide_all(
        &self,
        verb: Verb,
        transactions: &[Transaction<'_, S>],
    ) -> Result<DecidedAll, Failure> {
        let stopwatch = self.stopwatch(transactions);
        let mut prepared = Vec::with_capacity(transactions.len());
        for transaction in transactions {
            let (id, cost) = (transaction.id, transaction.cost);
            let mut one = transaction.limit.prepared(id, cost, transaction.factor)?;
            if verb == Verb::Refund && transaction.kind == Kind::Check {
                one.cost = Cost::ZERO;
            }
            prepared.push(one);
        }
        // Where there is no limit there is no bucket: such a transaction is allowed, and decides
        // nothing.
        let mut places = Vec::with_capacity(prepared.len());
        let mut buckets = Vec::with_capacity(prepared.len());
        let mut members = Vec::with_capacity(prepared.len());
        for (place, (transaction, one)) in transactions.iter().zip(&prepared).enumerate() {
            let limit = one.limit();
            if let Some(space) = transaction.limit.space(limit) {
                let operation = Operation { verb, limit, cost: one.cost };
                members.push(Member { operation, kind: transaction.kind, shadow: one.rule.shadow });
                buckets.push(Bucket { space, id: &one.id });
                places.push(place);
            }
        }
        refuse_duplicates(transactions, &prepared, &places)?;
        let now = self.clock.now();
        let decisions = match buckets.len() {
            0 => Vec::new(),
            _ => {
                let batch_step = BatchStep { verb, members: &members };
                let decisions = self.store.update_all(&buckets, &batch_step, now);
                decisions.map_err(|error| record::store_failed(transactions, error))?
            }
        };
        self.count_all(verb, transactions, &prepared, places.iter().zip(&decisions));
        let deciding = members.iter().zip(&decisions);
        let deciding =
            deciding.map(|(member, decision)| (verb == Verb::Refund || member.decides(), decision));
        let binding = batch::strictest(deciding);
        let decision = binding.map_or(Decision::unlimited(now), |place| decisions[place]);
        let binding = binding.map(|place| places[place]);
        let mut parts: Vec<Decided> = prepared
            .into_iter()
            .zip(transactions)
            .map(|(one, transaction)| Decided {
                decision: Decision::unlimited(now),
                shadow: one.rule.shadow
                    && verb != Verb::Refund
                    && transaction.kind != Kind::SpendOnly,
                effective_limit: one.effective_limit.filter(|_| transaction.factor.is_some()),
            })
            .collect();
        for (place, decision) in places.into_iter().zip(decisions) {
            parts[place].decision = decision;
        }
        record::count_latency(transactions, stopwatch);
        Ok(DecidedAll { decision, binding, parts })
    }

    /// Forgets one bucket; whether there was one.
    ///
    /// # Errors
    /// [`CallError`] if the id cannot be or the store cannot answer.
    pub fn reset(&self, bound: &BoundLimit<S>, id: &str) -> Result<bool, Failure> {
        let id = bound.canonical(id)?;
        let rule = bound.entry.rule_for(&id);
        match bound.space(&rule.limit) {
            None => Ok(false),
            Some(space) => {
                let forgotten = self.store.forget(Bucket { space, id: &id });
                forgotten.map_err(|error| bound.store_failed(error))
            }
        }
    }

    /// What the store tells of itself.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot answer.
    pub fn stats(&self) -> Result<Stats, StoreError> {
        self.store.stats().map_err(Into::into)
    }
}

/// Refuses a bucket that is named twice: `places` are the transactions that have a bucket.
fn refuse_duplicates<S: Store>(
    transactions: &[Transaction<'_, S>],
    prepared: &[Prepared<'_>],
    places: &[usize],
) -> Result<(), Failure> {
    let key = |place: usize| (transactions[place].limit.entry.prefix(), &*prepared[place].id);
    let mut sorted = places.to_vec();
    sorted.sort_by(|&one, &other| key(one).cmp(&key(other)).then(one.cmp(&other)));
    match sorted.windows(2).find(|pair| key(pair[0]) == key(pair[1])) {
        None => Ok(()),
        Some(pair) => Err(Box::new(CallError::DuplicateBucket {
            key: transactions[pair[0]].limit.entry.bucket_key(&prepared[pair[0]].id),
            first: pair[0],
            second: pair[1],
        })),
    }
}
