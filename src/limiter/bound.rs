//! Limits in force: each with the places of its buckets, prepared once.

use std::borrow::Cow;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::engine::algorithm::AlgorithmName;
use crate::engine::factor::Factor;
use crate::engine::key::LimitName;
use crate::engine::limit::{Cost, Limit};
use crate::engine::registry::{Entry, Registry, Rule};
use crate::limiter::counters::{ByName, Counters};
use crate::limiter::error::{CallError, Failure, invalid_id, store_failed, unknown_limit};
use crate::store::{Store, StoreError};

/// A limit in force, with the places of its buckets.
#[derive(Debug)]
pub struct BoundLimit<S: Store> {
    pub(super) entry: Arc<Entry>,
    /// In the order of [`AlgorithmName::ALL`]; an override may have another algorithm than the
    /// default.
    pub(super) spaces: [S::Space; 4],
    /// Those of all limits of this name that the limiter ever had.
    pub(super) counters: Arc<Counters>,
}

impl<S: Store> BoundLimit<S> {
    fn new(entry: &Arc<Entry>, store: &S, counters: Arc<Counters>) -> BoundLimit<S> {
        let space = |algorithm: AlgorithmName| store.space(algorithm.as_str(), entry.prefix());
        BoundLimit {
            entry: Arc::clone(entry),
            spaces: [
                space(AlgorithmName::TokenBucket),
                space(AlgorithmName::LeakyBucket),
                space(AlgorithmName::FixedWindow),
                space(AlgorithmName::FixedRateWindow),
            ],
            counters,
        }
    }

    /// The entry of the registry.
    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// The place of the limit's buckets; `None` where there is no limit and so no bucket.
    #[inline]
    pub(super) fn space(&self, limit: &Limit) -> Option<&S::Space> {
        match limit {
            Limit::TokenBucket(_) => Some(&self.spaces[0]),
            Limit::LeakyBucket(_) => Some(&self.spaces[1]),
            Limit::FixedWindow(_) => Some(&self.spaces[2]),
            Limit::FixedRateWindow(_) => Some(&self.spaces[3]),
            Limit::Unlimited => None,
        }
    }

    /// The limit that applies to a canonical id and a factor, where it is another than the rule's
    /// own.
    #[inline]
    pub(super) fn limit_for(
        &self,
        rule: &Rule,
        id: &str,
        factor: Option<&Factor>,
    ) -> Result<Option<Box<Limit>>, Failure> {
        if factor.is_none() && !rule.limit.has_phase_per_key() {
            return Ok(None);
        }
        self.effective_limit_for(rule, id, factor).map(|limit| Some(Box::new(limit)))
    }

    #[cold]
    fn effective_limit_for(
        &self,
        rule: &Rule,
        id: &str,
        factor: Option<&Factor>,
    ) -> Result<Limit, Failure> {
        let named = |source| CallError::Limit { limit: self.entry.name().to_string(), source };
        let limit = factor
            .map_or(Ok(rule.limit), |factor| rule.limit.with_factor(factor))
            .map_err(named)?;
        Ok(if limit.has_phase_per_key() {
            limit.for_key(&self.entry.bucket_key(id))
        } else {
            limit
        })
    }

    /// Counts that the store did not answer, and says so.
    #[cold]
    pub(super) fn store_failed(&self, error: impl Into<StoreError>) -> Failure {
        self.counters.count_store_error();
        store_failed(error)
    }

    #[inline]
    pub(super) fn canonical<'a>(&self, id: &'a str) -> Result<Cow<'a, str>, Failure> {
        self.entry.canonical(id).map_err(|source| invalid_id(&self.entry, source))
    }

    #[inline]
    pub(super) fn cost(&self, limit: &Limit, tokens: i64) -> Result<Cost, Failure> {
        let named =
            |source| Box::new(CallError::Cost { limit: self.entry.name().to_string(), source });
        limit.cost(tokens).map_err(named)
    }

    /// All that is known of a call before the store is asked.
    #[inline(always)]
    pub(super) fn prepared<'a>(
        &'a self,
        id: &'a str,
        cost: i64,
        factor: Option<&Factor>,
    ) -> Result<Prepared<'a>, Failure> {
        let id = self.canonical(id)?;
        let rule = self.entry.rule_for(&id);
        let effective_limit = self.limit_for(rule, &id, factor)?;
        let cost = self.cost(effective_limit.as_deref().unwrap_or(&rule.limit), cost)?;
        Ok(Prepared { id, rule, effective_limit, cost })
    }
}

/// One call, with all that is known before the store is asked.
pub(super) struct Prepared<'a> {
    pub(super) id: Cow<'a, str>,
    pub(super) rule: &'a Rule,
    pub(super) effective_limit: Option<Box<Limit>>,
    pub(super) cost: Cost,
}

impl Prepared<'_> {
    /// The limit as it applies.
    #[inline(always)]
    pub(super) fn limit(&self) -> &Limit {
        self.effective_limit.as_deref().unwrap_or(&self.rule.limit)
    }
}

/// All limits in force at one time.
#[derive(Debug)]
pub struct Snapshot<S: Store> {
    registry: Registry,
    by_name: HashMap<LimitName, Arc<BoundLimit<S>>>,
}

impl<S: Store> Snapshot<S> {
    pub(super) fn new(registry: Registry, store: &S, counters: &mut ByName) -> Snapshot<S> {
        counters.retain(&registry);
        let bound = registry.entries().iter().map(|entry| {
            let bound = BoundLimit::new(entry, store, counters.of(entry.name()));
            (entry.name().clone(), Arc::new(bound))
        });
        Snapshot { by_name: bound.collect(), registry }
    }

    /// The registry.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The limit of this name.
    ///
    /// # Errors
    /// [`CallError::UnknownLimit`].
    pub fn limit(&self, name: &str) -> Result<&Arc<BoundLimit<S>>, Failure> {
        self.by_name.get(name).ok_or_else(|| unknown_limit(&self.registry, name))
    }
}
