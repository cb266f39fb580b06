//! Entries of a registry.

use std::borrow::Cow;
use std::net::IpAddr;

use crate::engine::answer::Answer;
use crate::engine::cost::Cost;
use crate::engine::decision::Decision;
use crate::engine::id::address::{canonical_text, lowest, parse_client, shared_prefix};
use crate::engine::id::{IdError, IdFormat};
use crate::engine::key::{LimitName, NameError, bucket_key};
use crate::engine::limit::Limit;
use crate::engine::operation::Operation;
use crate::engine::registry::overrides::{Override, Overrides};
use crate::engine::registry::rule::{Rule, Scope};
use crate::engine::state::Lease;
use crate::engine::verb::Verb;
#[cfg(doc)]
use crate::hash::HashKey;

/// A limit with its name, id format, default and overrides.
// What every call reads comes first, on as few cache lines as possible.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    // `None` for most limits, which makes their lookups fast.
    overrides: Option<Box<Overrides>>,
    id_format: IdFormat,
    default: Rule,
    name: LimitName,
    number: Option<u64>,
    prefix: Box<str>,
}

impl Entry {
    pub(super) fn new(
        name: LimitName,
        number: Option<u64>,
        id_format: IdFormat,
        default: Rule,
        overrides: Option<Overrides>,
    ) -> Entry {
        let prefix =
            number.map_or_else(|| name.as_str().into(), |number| number.to_string().into());
        Entry { name, number, prefix, id_format, default, overrides: overrides.map(Box::new) }
    }

    /// Returns an entry with ids of any format and no number.
    ///
    /// # Errors
    /// [`NameError`] if the name is invalid.
    pub fn alone(name: &str, rule: Rule) -> Result<Entry, NameError> {
        Ok(Entry::new(LimitName::new(name)?, None, IdFormat::Any, rule, None))
    }

    /// Returns an entry with a default, ids of any format and no number.
    pub(super) fn plain(name: LimitName, limit: Limit) -> Entry {
        Entry::new(name, None, IdFormat::Any, Rule::plain(limit), None)
    }

    /// Returns the same limit without its number.
    pub(super) fn without_number(&self) -> Entry {
        let overrides = self.overrides.as_deref().cloned();
        Entry::new(self.name.clone(), None, self.id_format, self.default.clone(), overrides)
    }

    /// The limit's name.
    pub fn name(&self) -> &LimitName {
        &self.name
    }

    /// The limit's number, if it has one.
    pub fn number(&self) -> Option<u64> {
        self.number
    }

    /// The part of a bucket key before the colon: the number in decimal, or the name.
    #[inline]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The format of the limit's ids.
    pub fn id_format(&self) -> IdFormat {
        self.id_format
    }

    /// Returns the bucket key of a canonical id.
    pub fn bucket_key(&self, id: &str) -> String {
        bucket_key(&self.prefix, id)
    }

    /// Returns the canonical form of an id.
    ///
    /// # Errors
    /// [`IdError`] if it is not valid in the limit's id format.
    #[inline(always)]
    pub fn canonical<'a>(&self, raw: &'a str) -> Result<Cow<'a, str>, IdError> {
        // Inlined into every call, because almost all ids are of this format.
        if self.id_format == IdFormat::Any && !raw.is_empty() {
            return Ok(Cow::Borrowed(raw));
        }
        self.canonical_in_format(raw)
    }

    #[inline(never)]
    fn canonical_in_format<'a>(&self, raw: &'a str) -> Result<Cow<'a, str>, IdError> {
        match (&self.overrides, self.id_format) {
            (Some(overrides), IdFormat::DomainOrCidrExact) => overrides.host_or_covering(raw),
            _ => self.id_format.canonical(raw),
        }
    }

    /// Returns the id of the client at an address; `None` if `text` is not an address.
    ///
    /// IPv6 addresses with the same first `ipv6_prefix` bits are one client. Overrides are looked
    /// up by the full address: one for a host, or for a network with a longer prefix, applies only
    /// to its addresses, which then have a separate bucket.
    pub fn address_id<'a>(&self, text: &'a str, ipv6_prefix: u8) -> Option<Cow<'a, str>> {
        let address = match parse_client(text)? {
            IpAddr::V6(address) => {
                let prefix = shared_prefix(address, ipv6_prefix);
                IpAddr::V6(match (&self.overrides, self.id_format) {
                    (
                        Some(overrides),
                        IdFormat::Any | IdFormat::IpAddress | IdFormat::IdentValue,
                    ) => overrides.shared_address(address, prefix),
                    // This format itself replaces an address by its network, unless an override
                    // names the address.
                    (Some(overrides), IdFormat::DomainOrCidrExact)
                        if overrides.names(&address.to_string()) =>
                    {
                        address
                    }
                    _ => lowest(address, prefix),
                })
            }
            address @ IpAddr::V4(_) => address,
        };
        Some(canonical_text(address, text))
    }

    /// Returns the rule that applies to a canonical id.
    ///
    /// An exact id takes precedence over its account, an account over the longest matching network,
    /// and a network over the default.
    #[inline]
    pub fn rule_for(&self, canonical: &str) -> &Rule {
        self.rule_and_hash(canonical).0
    }

    /// Does the same, and returns the hash of the id with [`HashKey::of_process`], if there are overrides.
    #[inline(always)]
    pub fn rule_and_hash(&self, canonical: &str) -> (&Rule, Option<u64>) {
        match &self.overrides {
            None => (&self.default, None),
            Some(overrides) => {
                let (rule, hash) = overrides.rule_for(canonical);
                (rule.unwrap_or(&self.default), Some(hash))
            }
        }
    }

    /// Computes the decision on a call of `tokens` for an id in any spelling, from what a store
    /// found and did. `effective` is the limit that was applied if it is not that of the id's rule.
    pub fn numbers(
        &self,
        verb: Verb,
        id: &str,
        tokens: i64,
        effective: Option<&Limit>,
        answer: &Answer,
    ) -> Decision {
        self.with_operation(verb, id, tokens, effective, |operation| operation.numbers(answer))
    }

    /// Returns the lease of the slots that a call has taken or kept; `None` if it has none.
    pub fn lease(&self, verb: Verb, id: &str, tokens: i64, answer: &Answer) -> Option<Lease> {
        self.with_operation(verb, id, tokens, None, |operation| operation.lease(answer))
    }

    /// Calls `read` with the operation of a call that was made.
    fn with_operation<R>(
        &self,
        verb: Verb,
        id: &str,
        tokens: i64,
        effective: Option<&Limit>,
        read: impl FnOnce(&Operation<'_>) -> R,
    ) -> R {
        let only = self.only_rule().filter(|rule| !rule.limit.has_phase_per_key());
        let derived;
        let limit = match effective.or(only.map(|rule| &rule.limit)) {
            Some(limit) => limit,
            None => {
                // Always valid, because this entry accepted the id when the call was decided.
                let id = self.canonical(id).unwrap_or(Cow::Borrowed(id));
                let limit = &self.rule_for(&id).limit;
                derived = if limit.has_phase_per_key() {
                    limit.for_key(&self.bucket_key(&id))
                } else {
                    *limit
                };
                &derived
            }
        };
        let cost = match verb {
            verb if verb.is_partial() => limit.cost_in_parts(tokens),
            _ => limit.cost(tokens).unwrap_or(Cost::ZERO),
        };
        read(&Operation { verb, limit, cost })
    }

    /// Returns the rule that applies to every id; `None` if there are overrides.
    #[inline]
    pub fn only_rule(&self) -> Option<&Rule> {
        if self.overrides.is_none() { Some(&self.default) } else { None }
    }

    /// The default; unlimited and of scope [`Scope::None`] if there is none.
    pub fn default_rule(&self) -> &Rule {
        &self.default
    }

    /// Returns whether there is a default.
    pub fn has_default(&self) -> bool {
        self.default.scope != Scope::None
    }

    /// The overrides, in the order in which they were added.
    pub fn overrides(&self) -> &[Override] {
        self.overrides.as_ref().map_or(&[], |overrides| overrides.list())
    }
}
