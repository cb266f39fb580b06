//! The overrides of one limit, indexed for fast lookup.

use std::borrow::Cow;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use hashbrown::{HashMap, HashTable};
use ipnet::IpNet;

use crate::engine::id::address::{lowest, mask};
use crate::engine::id::{IdError, IdFormat, Target};
use crate::engine::registry::rule::{Rule, Scope};
use crate::hash::HashKey;

/// A limit for listed ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The target in canonical form.
    pub target: Target,
    /// The target as written; the canonical form of a set, for example, is only a digest.
    pub written: Arc<str>,
    /// The line of the id in the file, from 1; `rule.origin` has the line of the limit.
    pub line: Option<u32>,
    /// The rule for the target.
    pub rule: Arc<Rule>,
}

/// The overrides of one limit by target.
#[derive(Clone, Debug, Default)]
pub(super) struct Overrides {
    list: Vec<Override>,
    ids: HashTable<ListedId>,
    accounts: HashMap<Box<str>, u32>,
    ipv4: Lengths<u32>,
    ipv6: Lengths<u128>,
}

/// An id with an override.
#[derive(Clone, Debug)]
struct ListedId {
    /// The hash of the id with [`HashKey::of_process`], which identifies it as it does in a store: it is
    /// also that of the bucket, so a call hashes its id once.
    hash: u64,
    index: u32,
    rule: Arc<Rule>,
}

/// Networks in one table per mask length that occurs, the longest first.
#[derive(Clone, Debug, Default)]
struct Lengths<Bits>(Vec<(u8, HashMap<Bits, u32>)>);

impl<Bits: Copy + Eq + Hash> Lengths<Bits> {
    fn table(&mut self, length: u8) -> &mut HashMap<Bits, u32> {
        let index = self.0.partition_point(|&(other, _)| other > length);
        if self.0.get(index).is_none_or(|&(other, _)| other != length) {
            self.0.insert(index, (length, HashMap::default()));
        }
        &mut self.0[index].1
    }

    fn get(&self, length: u8, bits: Bits) -> Option<&u32> {
        self.0.iter().find(|&&(other, _)| other == length)?.1.get(&bits)
    }

    fn longest(&self, masked: impl Fn(u8) -> Bits) -> Option<u32> {
        self.0.iter().find_map(|(length, table)| table.get(&masked(*length)).copied())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Overrides {
    pub(super) fn list(&self) -> &[Override] {
        &self.list
    }

    /// Adds an override; the error is an existing override with the same target.
    pub(super) fn insert(
        &mut self,
        target: Target,
        written: Arc<str>,
        line: Option<u32>,
        mut rule: Rule,
    ) -> Result<(), &Override> {
        if let Some(former) = self.index_of(&target) {
            return Err(&self.list[former]);
        }
        // No limits file has 2^32 ids.
        let index = self.list.len() as u32;
        rule.scope = match &target {
            Target::Id(_) => Scope::Id,
            Target::Account(account) => Scope::Account(account.clone()),
            Target::Network(network) => Scope::Network(*network),
        };
        // A file lists the ids with one rule together.
        let previous = self.list.last().map(|previous| &previous.rule);
        let rule = match previous.filter(|&previous| {
            **previous == rule && previous.scope == rule.scope && previous.origin == rule.origin
        }) {
            Some(previous) => Arc::clone(previous),
            None => Arc::new(rule),
        };
        match &target {
            Target::Id(id) => {
                let listed = ListedId { hash: hash(id), index, rule: Arc::clone(&rule) };
                self.ids.insert_unique(listed.hash, listed, |listed| listed.hash);
            }
            Target::Account(account) => {
                self.accounts.insert(account.clone(), index);
            }
            Target::Network(IpNet::V4(net)) => {
                self.ipv4.table(net.prefix_len()).insert(net.addr().to_bits(), index);
            }
            Target::Network(IpNet::V6(net)) => {
                self.ipv6.table(net.prefix_len()).insert(net.addr().to_bits(), index);
            }
        }
        self.list.push(Override { target, written, line, rule });
        Ok(())
    }

    fn index_of(&self, target: &Target) -> Option<usize> {
        let index = match target {
            Target::Id(id) => self.listed(hash(id)).map(|listed| &listed.index),
            Target::Account(account) => self.accounts.get(account),
            Target::Network(IpNet::V4(net)) => {
                self.ipv4.get(net.prefix_len(), net.addr().to_bits())
            }
            Target::Network(IpNet::V6(net)) => {
                self.ipv6.get(net.prefix_len(), net.addr().to_bits())
            }
        };
        index.map(|&index| index as usize)
    }

    /// Returns the rule of the override that applies to a canonical id, if any, and the id's hash.
    #[inline]
    pub(super) fn rule_for(&self, id: &str) -> (Option<&Rule>, u64) {
        let hash = hash(id);
        let rule = match self.listed(hash) {
            Some(listed) => Some(&*listed.rule),
            None => self.wider(id).map(|index| &*self.list[index as usize].rule),
        };
        (rule, hash)
    }

    fn applying_to(&self, id: &str) -> Option<u32> {
        let listed = self.listed(hash(id)).map(|listed| listed.index);
        listed.or_else(|| self.wider(id))
    }

    #[inline(always)]
    fn listed(&self, hash: u64) -> Option<&ListedId> {
        self.ids.find(hash, |listed| listed.hash == hash)
    }

    /// Returns whether an override names exactly this id.
    pub(super) fn names(&self, id: &str) -> bool {
        self.listed(hash(id)).is_some()
    }

    /// Returns the address that identifies a client: the lowest one with the same first `prefix`
    /// bits to which the same override applies. If that override is for a smaller network, it is
    /// the lowest address of that network, which then has a separate bucket.
    pub(super) fn shared_address(&self, address: Ipv6Addr, prefix: u8) -> Ipv6Addr {
        let applying_to = |address: Ipv6Addr| self.applying_to(&address.to_string());
        let length_of = |index: u32| match &self.list[index as usize].target {
            Target::Network(network) => network.prefix_len(),
            _ => 128,
        };
        let index = applying_to(address);
        let length = prefix.max(index.map_or(0, length_of));
        let mut found = lowest(address, length);
        // The other override is for a smaller network, which does not contain `address`: skip it.
        while found < address
            && let other = applying_to(found)
            && other != index
        {
            let covered = mask(other.map_or(128, length_of));
            found = Ipv6Addr::from_bits((found.to_bits() | !covered).saturating_add(1));
        }
        found.min(address)
    }

    /// Returns the override for the account of an id or for the longest network that contains it.
    #[inline]
    fn wider(&self, id: &str) -> Option<u32> {
        if !self.accounts.is_empty() {
            let (account, _) = id.split_once(':')?;
            return self.accounts.get(account).copied();
        }
        if self.ipv4.is_empty() && self.ipv6.is_empty() {
            return None;
        }
        match id.parse().ok()? {
            IpAddr::V4(address) => self.ipv4.longest(|length| {
                // The mask of /0 would be a shift by all 32 bits.
                address.to_bits() & u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)
            }),
            IpAddr::V6(address) => self.ipv6.longest(|length| address.to_bits() & mask(length)),
        }
    }

    /// Returns a name unchanged if an override names it, and otherwise its covering domain or
    /// network.
    pub(super) fn host_or_covering<'a>(&self, raw: &'a str) -> Result<Cow<'a, str>, IdError> {
        // An error here is ignored, because the call below returns it as well.
        if let Ok(name) = IdFormat::IdentValue.canonical(raw)
            && self.names(&name)
        {
            return Ok(name);
        }
        IdFormat::DomainOrCidrExact.canonical(raw)
    }
}

#[inline(always)]
fn hash(id: &str) -> u64 {
    HashKey::of_process().hash(id.as_bytes())
}

impl PartialEq for Overrides {
    fn eq(&self, other: &Overrides) -> bool {
        // The spelling of the ids in the files is ignored.
        let has = |own: &Override| {
            other.index_of(&own.target).is_some_and(|index| other.list[index].rule == own.rule)
        };
        self.list.len() == other.list.len() && self.list.iter().all(has)
    }
}

impl Eq for Overrides {}
