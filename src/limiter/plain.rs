//! The fast path: token buckets whose ids need no canonical form.
//!
//! Almost every call uses it, so its data is stored together, and it computes only what the caller needs
//! immediately. The other numbers of the decision are computed from the previous state when they are
//! read.

use crate::clock::Clock;
use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::batch::Kind;
use crate::engine::cost::Cost;
use crate::engine::decision::Decision;
use crate::engine::id::IdFormat;
use crate::engine::limit::Limit;
use crate::engine::operation::{Operation, Verb};
use crate::engine::registry::Entry;
use crate::engine::state::{Lifetime, State};
use crate::engine::time::Timestamp;
use crate::limiter::plain_rules::{PlainRule, PlainRules};
use crate::limiter::store_ops::{remote_op, written};
use crate::limiter::{BoundLimit, Call, Ids, Limiter};
use crate::store::remote::{RemoteOp, RemoteStep, Reply};
use crate::store::{Bucket, Keyspace, Step, Store, Write};

/// The data of a limit without an id format, all of whose rules are token buckets.
#[derive(Debug)]
pub(super) struct PlainLimit {
    pub(super) rules: PlainRules,
    pub(super) keyspace: Keyspace,
}

impl PlainLimit {
    /// Returns `None` for a limit that is not plain.
    pub(super) fn of(entry: &Entry, store: &impl Store) -> Option<PlainLimit> {
        if entry.id_format() != IdFormat::Any {
            return None;
        }
        let keyspace = store.keyspace(AlgorithmName::TokenBucket, entry.prefix());
        let rules = PlainRules::of(entry, &keyspace)?;
        Some(PlainLimit { rules, keyspace })
    }

    /// Returns the hashes of the buckets of many ids, or `None` if an id is invalid or a cost exceeds the
    /// maximum of some rule.
    pub(super) fn hashes(&self, ids: &(impl Ids + ?Sized), costs: &[i64]) -> Option<Vec<u64>> {
        if costs.iter().any(|&cost| self.rules.cost(cost).is_none()) {
            return None;
        }
        let mut hashes = Vec::with_capacity(costs.len());
        ids.try_for_each(|id| {
            hashes.push(Bucket { keyspace: &self.keyspace, id }.hash());
            (!id.is_empty()).then_some(())
        })?;
        Some(hashes)
    }
}

/// A decision on a spend or a check of a plain limit, before its numbers are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the limit allows the request.
    pub allowed: bool,
    /// Whether the limit is in shadow mode.
    pub shadow: bool,
    /// Whether a full store has no room for the bucket before `tat`.
    is_refused: bool,
    /// The TAT before the call.
    tat: Timestamp,
    now: Timestamp,
}

impl Verdict {
    /// Computes the decision. `limit` and `cost` must be those of the call.
    pub fn decision(&self, limit: &Limit, cost: i64) -> Decision {
        match limit.cost(cost) {
            Ok(cost) if !self.is_refused => {
                limit.spend(cost, Some(State::from_instant(self.tat)), self.now).decision
            }
            _ => Decision::refused(self.tat, self.now),
        }
    }
}

/// A spend or a check of a plain limit, and the caller's clock.
struct PlainStep<'a, C> {
    rule: &'a PlainRule,
    verb: Verb,
    cost: Cost,
    clock: &'a C,
}

impl<C: Clock> Step for PlainStep<'_, C> {
    type Answer = Verdict;

    #[inline(always)]
    fn run(&self, state: Option<State>, now: Timestamp, verdict: &mut Verdict) -> Write {
        let PlainRule { limit, shadow } = self.rule;
        let Limit::TokenBucket(bucket) = limit else { return self.run_again(state, now, verdict) };
        let Some((allowed, after)) = bucket.admit(self.cost, state, now) else {
            return self.run_again(state, now, verdict);
        };
        let tat = state.map_or(now, State::instant);
        *verdict = Verdict { allowed, shadow: *shadow, is_refused: false, tat, now };
        if allowed && self.verb == Verb::Spend && self.cost > Cost::ZERO {
            Write::Put(after, Lifetime::INSTANT)
        } else {
            Write::Keep
        }
    }

    #[cold]
    fn refuse(&self, until: Timestamp, now: Timestamp, verdict: &mut Verdict) {
        let shadow = self.rule.shadow;
        *verdict = Verdict { allowed: false, shadow, is_refused: true, tat: until, now };
    }
}

impl<C: Clock> PlainStep<'_, C> {
    /// Decides again with a new clock reading, because no call at `now` could have written so late a
    /// state. See `BucketStep::run_again`.
    #[cold]
    #[inline(never)]
    fn run_again(&self, state: Option<State>, now: Timestamp, verdict: &mut Verdict) -> Write {
        let now = now.max(self.clock.read());
        let PlainRule { limit, shadow } = *self.rule;
        let step = limit.spend(self.cost, state, now);
        let (allowed, tat) = (step.decision.allowed, state.map_or(now, State::instant));
        *verdict = Verdict { allowed, shadow, is_refused: false, tat, now };
        if self.verb == Verb::Spend { written(&step) } else { Write::Keep }
    }
}

impl<C: Clock> RemoteStep for PlainStep<'_, C> {
    fn call(&self) -> RemoteOp {
        let operation = Operation { verb: self.verb, limit: &self.rule.limit, cost: self.cost };
        remote_op(&operation, Kind::Spend, false)
    }

    fn read(&self, reply: &Reply) -> Option<Verdict> {
        let (PlainRule { limit, shadow }, now) = (*self.rule, reply.now);
        let allowed = limit.spend(self.cost, reply.found, now).decision.allowed;
        let tat = reply.found.map_or(now, State::instant);
        let verdict = Verdict { allowed, shadow, is_refused: false, tat, now };
        (allowed == reply.allowed).then_some(verdict)
    }
}

impl BoundLimit {
    /// Returns whether ids need no canonical form, and all of the limits are token buckets.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        self.plain.is_some()
    }

    /// Returns whether [`Limiter::try_verdict`] can decide a call.
    #[inline(always)]
    pub fn has_verdict(&self, call: &Call<'_>) -> bool {
        let is_verb = matches!(call.verb, Verb::Spend | Verb::Check);
        is_verb && call.factor.is_none() && self.is_plain()
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Does the same as [`Limiter::try_decide`] for a call that [has a verdict](BoundLimit::has_verdict).
    /// Returns `None` and writes nothing to the store if the call is invalid, or the store cannot answer
    /// without waiting.
    #[inline(always)]
    pub fn try_verdict(
        &self,
        bound: &BoundLimit,
        call: Call<'_>,
        verdict: &mut Verdict,
    ) -> Option<()> {
        let Call { verb, id, .. } = call;
        let plain = bound.plain.as_ref().filter(|_| !id.is_empty())?;
        let cost = plain.rules.cost(call.cost)?;
        let stripe = self.stripe(bound);
        let stopwatch = stripe.stopwatch();
        let (bucket, clock) = (Bucket { keyspace: &plain.keyspace, id }, &self.clock);
        let step = move |hash: Option<u64>| {
            let rule = plain.rules.rule_for(|| hash.unwrap_or_else(|| bucket.hash()));
            PlainStep { rule, verb, cost, clock }
        };
        if !matches!(self.store.try_update(bucket, step, clock, verdict), Ok(true)) {
            return None;
        }
        bound.counters.count(stripe, verb, verdict.allowed, verdict.shadow, id);
        if let Some(stopwatch) = stopwatch {
            bound.counters.count_latency(stopwatch);
            self.store.tidy(verdict.now);
        }
        Some(())
    }
}
