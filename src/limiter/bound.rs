//! The active limits, with everything a call needs computed in advance.

use std::borrow::Cow;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::clock::Stopwatch;
use crate::engine::algorithm::in_flight::InFlight;
use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::cost::{Cost, CostError};
use crate::engine::factor::Adjustment;
use crate::engine::key::LimitName;
use crate::engine::limit::Limit;
use crate::engine::operation::Operation;
use crate::engine::registry::{Entry, Registry, Rule};
use crate::engine::state::{Lifetime, State};
use crate::engine::time::{Timeline, Timestamp};
use crate::engine::verb::Verb;
use crate::limiter::counters::{Counters, CountersByName, Stripe, StripeIndex};
use crate::limiter::error::{CallError, Failure, invalid_id, store_failed, unknown_limit};
use crate::store::{Bucket, Keyspace, Store, StoreError};

/// A call on one bucket of a limit, before it is validated.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The operation.
    pub verb: Verb,
    /// The client's id, in any spelling.
    pub id: &'a str,
    /// Tokens.
    pub cost: i64,
    /// What the call changes in its limit.
    pub adjustment: Option<&'a Adjustment>,
}

impl<'a> Call<'a> {
    /// Returns a call that changes nothing in its limit.
    pub const fn new(verb: Verb, id: &'a str, cost: i64) -> Call<'a> {
        Call { verb, id, cost, adjustment: None }
    }

    /// Returns a spend of `cost` tokens.
    pub const fn spend(id: &'a str, cost: i64) -> Call<'a> {
        Call::new(Verb::Spend, id, cost)
    }

    /// Returns a check of `cost` tokens.
    pub const fn check(id: &'a str, cost: i64) -> Call<'a> {
        Call::new(Verb::Check, id, cost)
    }
}

/// An active limit with the keyspaces of its buckets.
// What every call reads comes first, on as few cache lines as possible.
#[repr(C)]
#[derive(Debug)]
pub struct BoundLimit {
    pub(super) entry: Arc<Entry>,
    /// Shared with previous and later limits of this name in the same limiter.
    pub(super) counters: Arc<Counters>,
    /// One keyspace for each of [`AlgorithmName::ALL`], because an override may have a different
    /// algorithm from the default.
    pub(super) keyspaces: [Keyspace; AlgorithmName::ALL.len()],
    /// The highest cost that the default and all overrides allow; below 0 if one of them has slots.
    max_cost_of_all: i64,
    /// The clock to read for a call. An override may have a window of the other kind than the default; a
    /// reading of the wall clock is one of both.
    pub(super) timeline: Timeline,
    /// The limiter's [generation](crate::limiter::Limiter::generation) in which it is active.
    pub(super) generation: u64,
}

impl BoundLimit {
    fn new(
        entry: &Arc<Entry>,
        store: &impl Store,
        counters: Arc<Counters>,
        generation: u64,
    ) -> BoundLimit {
        let keyspaces =
            AlgorithmName::ALL.map(|algorithm| store.keyspace(algorithm, entry.prefix()));
        let limits = || {
            let overrides = entry.overrides().iter().map(|found| &*found.rule);
            overrides.chain([entry.default_rule()]).map(|rule| rule.limit)
        };
        let max_costs =
            limits().map(|limit| if let Limit::Slots(_) = limit { -1 } else { limit.max_cost() });
        let max_cost_of_all = max_costs.fold(i64::MAX, i64::min);
        let timeline = limits().map(|limit| limit.timeline()).max().unwrap_or_default();
        let entry = Arc::clone(entry);
        BoundLimit { entry, counters, keyspaces, max_cost_of_all, timeline, generation }
    }

    /// Returns the entry of the registry.
    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// Returns the keyspace of `limit`, or `None` for an unlimited limit, which has no buckets.
    #[inline(always)]
    pub(super) fn keyspace(&self, limit: &Limit) -> Option<&Keyspace> {
        let algorithm = limit.algorithm();
        (algorithm != AlgorithmName::Unlimited).then(|| &self.keyspaces[algorithm as usize])
    }

    /// Returns the limit that applies to a canonical id and a call, if it differs from the rule's.
    #[inline(always)]
    fn effective_limit(
        &self,
        rule: &Rule,
        id: &str,
        call: &Call<'_>,
    ) -> Result<Option<Box<Limit>>, Failure> {
        if call.adjustment.is_none() && !rule.limit.has_phase_per_key() {
            return Ok(None);
        }
        self.derived_limit(rule, id, call).map(|limit| Some(Box::new(limit)))
    }

    #[cold]
    fn derived_limit(&self, rule: &Rule, id: &str, call: &Call<'_>) -> Result<Limit, Failure> {
        let mut limit = rule.limit;
        if let Some(adjustment) = call.adjustment {
            if let Some(factor) = &adjustment.factor {
                let named =
                    |source| CallError::Limit { limit: self.entry.name().to_string(), source };
                limit = limit.with_factor(factor).map_err(named)?;
            }
            // Returning tokens leaves more of them, never fewer.
            if !call.verb.returns() {
                // What was used already may cost more than the limit ever allows.
                let is_used = call.verb == Verb::ChargeAfter;
                let cost = if is_used { call.cost.min(0) } else { call.cost };
                let kept = limit.keeping(adjustment.keep, cost);
                limit = kept.map_err(|source| self.invalid_cost(source))?;
            }
        }
        Ok(if limit.has_phase_per_key() {
            limit.for_key(&self.entry.bucket_key(id))
        } else {
            limit
        })
    }

    /// Counts a store error and returns it.
    #[cold]
    pub(super) fn store_failed(&self, error: impl Into<StoreError>) -> Failure {
        self.counters.count_store_error();
        store_failed(error)
    }

    /// Returns the slots of a client; `None` if its limit is not one on requests in flight.
    pub fn slots_for(&self, canonical_id: &str) -> Option<&InFlight> {
        self.entry.rule_for(canonical_id).limit.slots()
    }

    /// Returns the error for a call that would never give its slots back.
    #[cold]
    fn slots_error(&self) -> Failure {
        Box::new(CallError::Slots { limit: self.entry.name().to_string() })
    }

    #[inline]
    pub(super) fn canonical<'a>(&self, id: &'a str) -> Result<Cow<'a, str>, Failure> {
        self.entry.canonical(id).map_err(|source| invalid_id(&self.entry, source))
    }

    #[inline]
    pub(super) fn cost(&self, limit: &Limit, tokens: i64) -> Result<Cost, Failure> {
        limit.cost(tokens).map_err(|source| self.invalid_cost(source))
    }

    #[cold]
    fn invalid_cost(&self, source: CostError) -> Failure {
        Box::new(CallError::Cost { limit: self.entry.name().to_string(), source })
    }

    /// Returns the cost of what was used already, of which as much is charged as possible.
    #[cold]
    fn other_cost(
        &self,
        limit: &Limit,
        call: Call<'_>,
        source: CostError,
    ) -> Result<Cost, Failure> {
        match (call.verb, source) {
            (Verb::ChargeAfter, CostError::TooHigh { .. }) => Ok(limit.cost_in_parts(call.cost)),
            _ => Err(self.invalid_cost(source)),
        }
    }

    /// Validates a call on one bucket.
    ///
    /// # Errors
    /// [`CallError`] if the id, the cost or the factor is invalid.
    #[inline(always)]
    pub fn prepare<'a>(&'a self, call: Call<'a>) -> Result<Prepared<'a>, Failure> {
        let stripe = self.counters.stripe(StripeIndex::choose());
        let stopwatch = stripe.stopwatch();
        let resolved = self.resolve(call)?;
        Ok(Prepared { stripe, stopwatch, call, resolved })
    }

    /// Resolves a call to a canonical id, the limit that applies to it and a valid cost.
    #[inline(always)]
    pub(super) fn resolve<'a>(&'a self, call: Call<'a>) -> Result<Resolved<'a>, Failure> {
        let id = self.canonical(call.id)?;
        let (rule, id_hash) = self.entry.rule_and_hash(&id);
        let effective_limit = self.effective_limit(rule, &id, &call)?;
        let limit = effective_limit.as_deref().unwrap_or(&rule.limit);
        if let Limit::Slots(_) = limit
            && !call.verb.fits_slots()
        {
            return Err(self.slots_error());
        }
        let cost = match limit.cost(call.cost) {
            Ok(cost) => cost,
            Err(source) => self.other_cost(limit, call, source)?,
        };
        Ok(Resolved { bound: self, id, id_hash, rule, effective_limit, cost })
    }

    /// Returns the error of [`BoundLimit::resolve`]. Looks up a rule only for a call that changes its
    /// limit, or a cost that some rule does not allow.
    #[inline(always)]
    pub(super) fn validate(&self, call: Call<'_>) -> Result<(), Failure> {
        if call.adjustment.is_none() && (0..=self.max_cost_of_all).contains(&call.cost) {
            self.canonical(call.id).map(|_| ())
        } else {
            self.resolve(call).map(|_| ())
        }
    }
}

/// The validated arguments of a call, and the limit that applies to them.
#[derive(Debug)]
pub(super) struct Resolved<'a> {
    pub(super) bound: &'a BoundLimit,
    pub(super) id: Cow<'a, str>,
    /// The hash of the id, if the search for its rule has computed it.
    pub(super) id_hash: Option<u64>,
    pub(super) rule: &'a Rule,
    pub(super) effective_limit: Option<Box<Limit>>,
    pub(super) cost: Cost,
}

impl Resolved<'_> {
    /// Returns the limit that applies.
    #[inline(always)]
    pub(super) fn limit(&self) -> &Limit {
        self.effective_limit.as_deref().unwrap_or(&self.rule.limit)
    }

    /// Returns the bucket and the operation, or `None` if the id is not limited.
    #[inline(always)]
    pub(super) fn operation(&self, verb: Verb) -> Option<(Bucket<'_>, Operation<'_>)> {
        let limit = self.limit();
        let keyspace = self.bound.keyspace(limit)?;
        let bucket = Bucket::new(keyspace, &self.id).on(limit.timeline()).hashed(self.id_hash);
        Some((bucket, Operation { verb, limit, cost: self.cost }))
    }
}

/// A validated call that has not been sent to the store yet.
#[derive(Debug)]
pub struct Prepared<'a> {
    pub(super) stripe: &'a Stripe,
    pub(super) stopwatch: Option<Stopwatch>,
    pub(super) call: Call<'a>,
    pub(super) resolved: Resolved<'a>,
}

impl Prepared<'_> {
    /// Returns the bucket and the operation, or `None` if the id is not limited.
    #[inline(always)]
    pub(super) fn operation(&self) -> Option<(Bucket<'_>, Operation<'_>)> {
        self.resolved.operation(self.call.verb)
    }
}

/// The limits that are active at one time.
#[derive(Debug)]
pub struct Snapshot {
    registry: Registry,
    by_name: HashMap<LimitName, Arc<BoundLimit>>,
}

impl Snapshot {
    pub(super) fn new(
        registry: Registry,
        store: &impl Store,
        counters: &mut CountersByName,
        generation: u64,
    ) -> Snapshot {
        counters.retain(&registry);
        let bound = registry.entries().iter().map(|entry| {
            let counters = counters.get_or_insert(entry.name());
            let bound = BoundLimit::new(entry, store, counters, generation);
            (entry.name().clone(), Arc::new(bound))
        });
        Snapshot { by_name: bound.collect(), registry }
    }

    /// Returns the registry.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns the limit named `name`.
    ///
    /// # Errors
    /// [`CallError::UnknownLimit`] if there is none.
    pub fn limit(&self, name: &str) -> Result<&Arc<BoundLimit>, Failure> {
        self.by_name.get(name).ok_or_else(|| unknown_limit(&self.registry, name))
    }

    /// Returns the limit with the buckets of `entry`: a limit with a number may have another name now.
    pub(super) fn limit_with_buckets_of(&self, entry: &Entry) -> Option<&Arc<BoundLimit>> {
        let has_buckets = |bound: &&Arc<BoundLimit>| bound.entry.prefix() == entry.prefix();
        let named = self.by_name.get(entry.name()).filter(has_buckets);
        named.or_else(|| self.by_name.values().find(has_buckets))
    }
}

/// Returns a function that computes how long a state must be kept under the limits that a reload has
/// added or changed, or `None` if none of these limits keeps a tally.
pub(super) fn lifetimes(
    before: &Registry,
    after: &Registry,
) -> Option<impl Fn(State) -> Lifetime + use<>> {
    let changed =
        after.entries().iter().filter(|entry| before.entry(entry.name().as_str()) != Some(entry));
    let limits = changed.flat_map(|entry| {
        let overrides = entry.overrides().iter().map(|found| found.rule.limit);
        overrides.chain([entry.default_rule().limit])
    });
    let limits = limits.filter(|limit| limit.algorithm().definition().state.has_tally());
    // A lifetime is the larger of a constant and a multiple of the tally. So it suffices to compare the
    // limits with the longest lifetime at the smallest and at the largest tally.
    let mut longest: Option<[(Lifetime, Limit); 2]> = None;
    for limit in limits {
        let ends = [1, State::MAX_TALLY]
            .map(|tally| (lifetime_of(&limit, State::from_tally(Timestamp::ORIGIN, tally)), limit));
        longest = Some(match longest {
            None => ends,
            Some([low, high]) => [
                if ends[0].0 > low.0 { ends[0] } else { low },
                if ends[1].0 > high.0 { ends[1] } else { high },
            ],
        });
    }
    let limits = longest?.map(|(_, limit)| limit);
    Some(move |state| {
        let [low, high] = limits.map(|limit| lifetime_of(&limit, state));
        low.max(high)
    })
}

/// Returns how long `state` affects decisions under `limit`.
fn lifetime_of(limit: &Limit, state: State) -> Lifetime {
    // A store keeps each bucket on its timeline.
    limit.lifetime(Some(state)).on(Timeline::Steady)
}
