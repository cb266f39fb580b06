//! The rules of a plain limit, looked up by the hash of the bucket.

use std::hint::select_unpredictable;

use crate::engine::cost::Cost;
use crate::engine::id::Target;
use crate::engine::limit::Limit;
use crate::engine::registry::{Entry, Rule};
use crate::store::{Bucket, Keyspace};

/// A token bucket that applies to some ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlainRule {
    pub(super) limit: Limit,
    pub(super) shadow: bool,
}

impl PlainRule {
    /// Returns `None` for any other algorithm.
    fn of(rule: &Rule) -> Option<PlainRule> {
        let Rule { limit, shadow, .. } = *rule;
        matches!(limit, Limit::TokenBucket(_)).then_some(PlainRule { limit, shadow })
    }
}

/// The default rule and the overrides.
///
/// An id is identified by its 64-bit keyed hash, as in a store. A call computes the hash anyway, and a
/// collision cannot be constructed without the key.
#[derive(Debug)]
pub(super) struct PlainRules {
    default: PlainRule,
    overrides: Option<Overrides>,
    /// The highest cost that all of the limits allow.
    max_cost: i64,
}

/// A hash table with linear probing, at most a quarter full, so that a search rarely leaves a group.
#[derive(Debug)]
struct Overrides {
    groups: Box<[Group]>,
    /// The default, followed by the rules of the overrides.
    rules: Vec<PlainRule>,
}

/// Four entries on one cache line. An entry is the hash of an id and the index of its rule, which is never
/// 0. Unused entries are all zeros and follow the used ones.
#[repr(align(64))]
#[derive(Clone, Copy, Debug)]
struct Group([[u64; 2]; GROUP]);

const GROUP: usize = 4;

impl PlainRules {
    /// Returns `None` if a rule has another algorithm, or an override applies to more than one id.
    pub(super) fn of(entry: &Entry, keyspace: &Keyspace) -> Option<PlainRules> {
        let default = PlainRule::of(entry.default_rule())?;
        let mut max_cost = default.limit.max_cost();
        if entry.overrides().is_empty() {
            return Some(PlainRules { default, overrides: None, max_cost });
        }
        let groups = vec![Group([[0; 2]; GROUP]); entry.overrides().len() * 4 / GROUP + 1];
        let mut overrides = Overrides { groups: groups.into(), rules: vec![default] };
        for found in entry.overrides() {
            let Target::Id(id) = &found.target else { return None };
            let rule = PlainRule::of(&found.rule)?;
            // The ids that a file lists under one limit are adjacent.
            if overrides.rules.len() == 1 || overrides.rules.last() != Some(&rule) {
                overrides.rules.push(rule);
            }
            overrides.insert(Bucket { keyspace, id }.hash());
            max_cost = max_cost.min(rule.limit.max_cost());
        }
        Some(PlainRules { default, overrides: Some(overrides), max_cost })
    }

    /// Returns the rule for the id with the hash that `hash` returns.
    #[inline(always)]
    pub(super) fn rule_for(&self, hash: impl FnOnce() -> u64) -> &PlainRule {
        match &self.overrides {
            None => &self.default,
            Some(overrides) => overrides.rule_for(hash()),
        }
    }

    /// Converts a number of tokens to a cost, or returns `None` if some rule can never allow it.
    #[inline(always)]
    pub(super) fn cost(&self, tokens: i64) -> Option<Cost> {
        Cost::new(tokens, self.max_cost).ok()
    }
}

impl Overrides {
    /// Returns the index of the group at which the search for a hash begins.
    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.groups.len() as u128) >> 64) as usize
    }

    /// Adds an id whose rule is the last one in `rules`.
    fn insert(&mut self, hash: u64) {
        let index = self.rules.len() as u64 - 1;
        let mut at = self.home(hash);
        loop {
            if let Some(free) = self.groups[at].0.iter_mut().find(|entry| entry[1] == 0) {
                *free = [hash, index];
                return;
            }
            at = if at + 1 == self.groups.len() { 0 } else { at + 1 };
        }
    }

    #[inline(always)]
    fn rule_for(&self, hash: u64) -> &PlainRule {
        let mut at = self.home(hash);
        loop {
            let Group(entries) = &self.groups[at];
            // Without branches, because it is unpredictable whether an id has an override, and where.
            let index = entries.iter().fold(0, |index, &[other, rule]| {
                index | select_unpredictable(other == hash, rule, 0)
            });
            // The search ends, because most of the entries are unused.
            if index != 0 || entries[GROUP - 1][1] == 0 {
                return &self.rules[index as usize];
            }
            at = if at + 1 == self.groups.len() { 0 } else { at + 1 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::time::Nanos;

    #[test]
    fn ids_have_the_rules_that_were_added_for_them() {
        let rule = |burst| {
            let limit = Limit::token_bucket(burst, 1, Nanos::SECOND).unwrap();
            PlainRule { limit, shadow: false }
        };
        for ids in [1, 3, 4, 5, 1000] {
            let groups = vec![Group([[0; 2]; GROUP]); ids * 2 / GROUP + 1];
            let mut overrides = Overrides { groups: groups.into(), rules: vec![rule(1)] };
            let hash = |id: usize| (id as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for id in 0..ids {
                overrides.rules.push(rule(id as i64 + 2));
                overrides.insert(hash(id));
            }
            for id in 0..2 * ids {
                let expected = if id < ids { rule(id as i64 + 2) } else { rule(1) };
                assert_eq!(*overrides.rule_for(hash(id)), expected, "{id} of {ids}");
            }
        }
    }
}
