//! The targets of overrides.

use std::borrow::Cow;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::engine::id::canonical::{account, after_account, ipv6_network, prefix_of};
use crate::engine::id::error::{Excerpt, IdError};
use crate::engine::id::{IPV6_PREFIX, IdFormat, address, name};

/// The bits of an IPv6 address after the prefix that identifies a client.
const HOST_BITS: u128 = u128::MAX >> IPV6_PREFIX;

/// The target of an override, in canonical form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// One id.
    Id(Box<str>),
    /// Every id of an account.
    Account(Box<str>),
    /// Every address in a network, with its host bits cleared. A single address is an id instead.
    Network(IpNet),
}

impl IdFormat {
    /// Parses the target of an override. It is stricter than [`IdFormat::canonical`] where no
    /// request could match.
    ///
    /// `ipAddress` also accepts networks, `ipv6RangeCIDR` only networks, `domainOrCIDR` only
    /// registered domains and the lowest address of a /64, and `regId:…` also an account alone.
    /// `any` refuses networks, which no request has as its id.
    ///
    /// # Errors
    /// [`IdError`] if the string is not a valid target in this format.
    pub fn target(&self, text: &str) -> Result<Target, IdError> {
        if text.is_empty() {
            return Err(IdError::Empty);
        }
        let id = match *self {
            IdFormat::Any if address::network(text).is_some() => {
                return Err(IdError::NetworkAsText { found: Excerpt::new(text) });
            }
            IdFormat::IpAddress => return address_or_network(text),
            IdFormat::RegIdDomain | IdFormat::RegIdIdentValue | IdFormat::RegIdFqdnSet
                if !text.contains(':') =>
            {
                return account(text).map(|account| Target::Account(account.into()));
            }
            IdFormat::Ipv6Range(mask) => ipv6_network(text, mask)?,
            IdFormat::DomainOrCidr => registered(text)?,
            IdFormat::DomainOrCidrExact => registered_or_below(text)?,
            IdFormat::RegIdDomain => after_account(text, registered)?,
            _ => self.canonical(text)?,
        };
        Ok(Target::Id(id.into()))
    }
}

fn address_or_network(text: &str) -> Result<Target, IdError> {
    let found = || IdError::NotAnAddressOrNetwork { found: Excerpt::new(text) };
    if let Some(network) = address::network(text) {
        // A network of one address is equal to that address, so that duplicates are found.
        return Ok(if network.prefix_len() == network.max_prefix_len() {
            Target::Id(network.addr().to_string().into())
        } else {
            Target::Network(network)
        });
    }
    let address = address::canonical(text).ok_or_else(found)?;
    Ok(Target::Id(address.into()))
}

/// Parses a registered domain, or the lowest address of its prefix.
fn registered(text: &str) -> Result<Cow<'_, str>, IdError> {
    domain_or_address(text, false)
}

/// Parses the same, or a name below a registered domain.
fn registered_or_below(text: &str) -> Result<Cow<'_, str>, IdError> {
    domain_or_address(text, true)
}

fn domain_or_address(text: &str, below: bool) -> Result<Cow<'_, str>, IdError> {
    let found = || Excerpt::new(text);
    if let Some(address) = address::parse(text) {
        return match address {
            IpAddr::V6(v6) if v6.to_bits() & HOST_BITS != 0 => {
                let lowest = (v6.to_bits() & !HOST_BITS).into();
                Err(IdError::NotLowest { found: found(), lowest })
            }
            _ => Ok(prefix_of(address, text)),
        };
    }
    if address::network(text).is_some() {
        return Err(IdError::Masked { found: found() });
    }
    let name = name::lower_case(text)?;
    match name::domain_start(&name) {
        // Its owner may use the name itself, unlike that of a registry such as `co.uk`.
        None if name::is_private_suffix(&name) => Ok(name),
        None => Err(IdError::PublicSuffix { found: found() }),
        Some(start) if start > 0 && !below => {
            Err(IdError::BelowDomain { found: found(), domain: name[start..].into() })
        }
        Some(_) => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(format: &str, text: &str) -> Result<Target, IdError> {
        format.parse::<IdFormat>().unwrap().target(text)
    }

    #[test]
    fn host_bits_are_cleared_and_a_network_of_one_address_is_an_id() {
        for (text, network) in [
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("2001:DB8:ffff::1/32", "2001:db8::/32"),
            ("::/0", "::/0"),
        ] {
            let network = Target::Network(network.parse().unwrap());
            assert_eq!(target("ipAddress", text), Ok(network), "{text}");
        }
        assert_eq!(target("ipAddress", "10.0.0.1/32"), target("ipAddress", "::ffff:10.0.0.1"));
        assert_eq!(target("ipAddress", "2001:db8::1/128"), target("ipAddress", "2001:DB8::1"));
        for text in ["10.0.0.0/33", "10.0.0.0/", "10.0.0.0/08", "10.0.0/8", "::/129", "/8", "a/8"] {
            assert!(target("ipAddress", text).is_err(), "{text}");
        }
        // Shorter masks would clear the prefix of a mapped address.
        for text in ["::ffff:198.51.100.0/48", "::ffff:198.51.100.0/0", "::ffff:198.51.100.0/95"] {
            assert!(target("ipAddress", text).is_err(), "{text}");
        }
    }

    #[test]
    fn targets_that_no_request_can_match_are_refused() {
        let below = target("domainOrCIDR", "Www.Example.co.uk").unwrap_err();
        assert!(
            matches!(&below, IdError::BelowDomain { domain, .. } if **domain == *"example.co.uk")
        );
        assert!(matches!(target("domainOrCIDR", "co.uk"), Err(IdError::PublicSuffix { .. })));
        assert!(matches!(target("domainOrCIDR/exact", "co.uk"), Err(IdError::PublicSuffix { .. })));
        for format in ["domainOrCIDR", "domainOrCIDR/exact"] {
            let private = Target::Id("github.io".into());
            assert_eq!(target(format, "GitHub.io"), Ok(private), "{format}");
        }
        assert!(matches!(target("domainOrCIDR", "10.0.0.0/8"), Err(IdError::Masked { .. })));
        let inside = target("domainOrCIDR", "2001:db8::1").unwrap_err();
        assert!(inside.to_string().ends_with("use 2001:db8::"), "{inside}");
        assert!(target("ipv6RangeCIDR", "2001:db8::").is_err(), "an address is no range");
        assert_eq!(
            target("domainOrCIDR/exact", "Www.Example.com"),
            Ok(Target::Id("www.example.com".into()))
        );
        assert_eq!(target("domainOrCIDR", "2001:DB8::"), Ok(Target::Id("2001:db8::/64".into())));
    }

    #[test]
    fn an_account_alone_applies_to_all_its_ids() {
        for format in ["regId:domain", "regId:identValue", "regId:fqdnSet"] {
            assert_eq!(target(format, "0012"), Ok(Target::Account("12".into())));
            for text in ["", "12:", ":", "a", "12:10.0.0", "-1"] {
                assert!(target(format, text).is_err(), "{format} {text:?}");
            }
        }
        assert_eq!(target("regId", "0012"), Ok(Target::Id("12".into())));
        assert_eq!(
            target("regId:identValue", "7:2001:DB8::1"),
            Ok(Target::Id("7:2001:db8::1".into()))
        );
    }
}
