//! One limit: its name, its default, its overrides.

use std::borrow::Cow;
use std::net::IpAddr;

use crate::engine::id::address::{lowest, parse_client, shared_prefix, spelled};
use crate::engine::id::{IdError, IdFormat};
use crate::engine::key::{LimitName, NameError, bucket_key};
use crate::engine::limit::Limit;
use crate::engine::registry::overrides::{Override, Overrides};
use crate::engine::registry::rule::{Rule, Scope};

/// One limit: its name, what its ids are, its default, its overrides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    name: LimitName,
    number: Option<u64>,
    prefix: Box<str>,
    id_format: IdFormat,
    default: Rule,
    // Most limits have no overrides, and then a look-up ends here.
    overrides: Option<Box<Overrides>>,
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

    /// A limit on its own, with ids of any format and no number.
    ///
    /// # Errors
    /// [`NameError`] if the text is no name.
    pub fn alone(name: &str, rule: Rule) -> Result<Entry, NameError> {
        Ok(Entry::new(LimitName::new(name)?, None, IdFormat::Any, rule, None))
    }

    /// A limit for everyone, with ids of any format and no number.
    pub(super) fn plain(name: LimitName, limit: Limit) -> Entry {
        Entry::new(name, None, IdFormat::Any, Rule::plain(limit), None)
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

    /// What the limit's ids are.
    pub fn id_format(&self) -> IdFormat {
        self.id_format
    }

    /// The key of the bucket of an id in canonical spelling.
    pub fn bucket_key(&self, id: &str) -> String {
        bucket_key(&self.prefix, id)
    }

    /// Spells an id canonically.
    ///
    /// # Errors
    /// [`IdError`] if it does not fit the limit's id format.
    #[inline]
    pub fn canonical<'a>(&self, raw: &'a str) -> Result<Cow<'a, str>, IdError> {
        match (&self.overrides, self.id_format) {
            (_, IdFormat::Any) if !raw.is_empty() => Ok(Cow::Borrowed(raw)),
            (Some(overrides), IdFormat::DomainOrCidrExact) => overrides.host_or_covering(raw),
            _ => self.id_format.canonical(raw),
        }
    }

    /// The id under which the client at an address is counted; `None` if `text` is not an address.
    ///
    /// IPv6 addresses with the same first `ipv6_prefix` bits are one client. The override is that of
    /// the address itself: one for a host, or for a network of a longer prefix, applies to its
    /// addresses alone, which are then counted apart from the others.
    pub fn address_id<'a>(&self, text: &'a str, ipv6_prefix: u8) -> Option<Cow<'a, str>> {
        let address = match parse_client(text)? {
            IpAddr::V6(address) => {
                let prefix = shared_prefix(address, ipv6_prefix);
                IpAddr::V6(match (&self.overrides, self.id_format) {
                    (
                        Some(overrides),
                        IdFormat::Any | IdFormat::IpAddress | IdFormat::IdentValue,
                    ) => overrides.shared_address(address, prefix),
                    // This format covers an address by its own prefix, unless an override names it.
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
        Some(spelled(address, text))
    }

    /// The rule that applies to an id in canonical spelling.
    ///
    /// An exact id goes before its account, that before the longest network, and that before the
    /// default.
    #[inline]
    pub fn rule_for(&self, canonical: &str) -> &Rule {
        match &self.overrides {
            None => &self.default,
            Some(overrides) => overrides.rule_for(canonical).unwrap_or(&self.default),
        }
    }

    /// The one rule that applies to every id; `None` where there are overrides.
    #[inline]
    pub fn only_rule(&self) -> Option<&Rule> {
        if self.overrides.is_none() { Some(&self.default) } else { None }
    }

    /// The rule for everyone; of scope [`Scope::None`] and unlimited if there is no default.
    pub fn default_rule(&self) -> &Rule {
        &self.default
    }

    /// Whether there is a limit for everyone.
    pub fn has_default(&self) -> bool {
        self.default.scope != Scope::None
    }

    /// The overrides, in the order in which they were written.
    pub fn overrides(&self) -> &[Override] {
        self.overrides.as_ref().map_or(&[], |overrides| overrides.list())
    }
}
