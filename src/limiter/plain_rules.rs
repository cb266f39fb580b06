//! The rules of a plain limit, found by the hash that finds a bucket.

use crate::engine::algorithm::gcra::TokenBucket;
use crate::engine::cost::Cost;
use crate::engine::id::Target;
use crate::engine::limit::Limit;
use crate::engine::registry::{Entry, Rule};
use crate::store::{Bucket, Keyspace};

/// A limit that applies to some ids, and whether it is in shadow mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainRule {
    pub(super) bucket: TokenBucket,
    /// Whether the limit is in shadow mode.
    pub shadow: bool,
}

impl PlainRule {
    /// `None` for another algorithm.
    fn of(rule: &Rule) -> Option<PlainRule> {
        let Limit::TokenBucket(bucket) = rule.limit else { return None };
        Some(PlainRule { bucket, shadow: rule.shadow })
    }
}

/// The default, and the rules of ids that have their own.
///
/// An id is known by the 64 bits of its keyed hash, as it is in a store: a call computes them anyway,
/// and without the key no id can be found that has those of another one.
#[derive(Debug)]
pub(super) struct PlainRules {
    default: PlainRule,
    overrides: Option<Overrides>,
    /// The one of the limits that allows the lowest cost.
    lowest: Limit,
}

/// A hash table that is full to one half at most.
#[derive(Debug)]
struct Overrides {
    groups: Box<[Group]>,
    /// The default, and the different rules of the ids.
    rules: Vec<PlainRule>,
}

/// Four ids on one cache line, each by its hash and the index of its rule, which is not 0. An unused
/// place is all zeros, and follows the used ones.
#[repr(align(64))]
#[derive(Clone, Copy, Debug)]
struct Group([[u64; 2]; GROUP]);

const GROUP: usize = 4;

impl PlainRules {
    /// `None` if a rule is for another algorithm, or for more than one id.
    pub(super) fn of(entry: &Entry, keyspace: &Keyspace) -> Option<PlainRules> {
        let default = PlainRule::of(entry.default_rule())?;
        let mut lowest = entry.default_rule().limit;
        if entry.overrides().is_empty() {
            return Some(PlainRules { default, overrides: None, lowest });
        }
        let groups = vec![Group([[0; 2]; GROUP]); entry.overrides().len() * 2 / GROUP + 1];
        let mut overrides = Overrides { groups: groups.into(), rules: vec![default] };
        for one in entry.overrides() {
            let Target::Id(id) = &one.target else { return None };
            let rule = PlainRule::of(&one.rule)?;
            // The ids that a file lists under one limit follow each other.
            if overrides.rules.len() == 1 || overrides.rules.last() != Some(&rule) {
                overrides.rules.push(rule);
            }
            overrides.insert(Bucket { keyspace, id }.hash());
            if one.rule.limit.max_cost() < lowest.max_cost() {
                lowest = one.rule.limit;
            }
        }
        Some(PlainRules { default, overrides: Some(overrides), lowest })
    }

    /// The rule for the id with the hash that `hash` returns.
    #[inline(always)]
    pub(super) fn rule_for(&self, hash: impl FnOnce() -> u64) -> &PlainRule {
        match &self.overrides {
            None => &self.default,
            Some(overrides) => overrides.rule_for(hash()),
        }
    }

    /// Takes a number of tokens as a cost; `None` if some rule can never allow it.
    #[inline(always)]
    pub(super) fn cost(&self, tokens: i64) -> Option<Cost> {
        self.lowest.cost(tokens).ok()
    }
}

impl Overrides {
    /// The group at which the search for a hash begins: its share of the groups.
    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.groups.len() as u128) >> 64) as usize
    }

    /// Adds an id, for which the last rule is.
    fn insert(&mut self, hash: u64) {
        let index = self.rules.len() as u64 - 1;
        let mut at = self.home(hash);
        loop {
            if let Some(free) = self.groups[at].0.iter_mut().find(|place| place[1] == 0) {
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
            let Group(places) = &self.groups[at];
            // Without branches: whether an id is listed cannot be predicted.
            let index = places
                .iter()
                .fold(0, |index, &[other, rule]| index | if other == hash { rule } else { 0 });
            // Ends, as half of the places are unused.
            if index != 0 || places[GROUP - 1][1] == 0 {
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
    fn an_id_has_the_rule_that_was_added_for_it() {
        let rule = |burst| {
            let bucket = TokenBucket::new(burst, 1, Nanos::SECOND).unwrap();
            PlainRule { bucket, shadow: false }
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
