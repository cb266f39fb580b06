//! The canonical form of ids in requests.

use std::borrow::Cow;
use std::net::IpAddr;

use crate::engine::id::error::{Excerpt, IdError};
use crate::engine::id::{IPV6_PREFIX, IdFormat, Mask, address, fqdn_set, name};

/// The maximum length of an account: 2^64 has 20 digits, and leading zeros are accepted.
const MAX_ACCOUNT_LENGTH: usize = 64;

impl IdFormat {
    /// Returns the canonical form of the id of a request, borrowed where possible.
    ///
    /// The time is bounded for strings of any length: only `any` accepts long strings, and it does not
    /// inspect them.
    ///
    /// # Errors
    /// [`IdError`] if the string is not an id in this format.
    ///
    /// # Source
    /// RFC 5952, section 4, for IPv6; the Public Suffix List for domains.
    #[inline]
    pub fn canonical<'a>(&self, raw: &'a str) -> Result<Cow<'a, str>, IdError> {
        if raw.is_empty() {
            Err(IdError::Empty)
        } else if *self == IdFormat::Any {
            Ok(Cow::Borrowed(raw))
        } else {
            self.canonical_of_text(raw)
        }
    }

    /// Does the same for a non-empty string. Not inlined, to keep callers small.
    fn canonical_of_text<'a>(&self, raw: &'a str) -> Result<Cow<'a, str>, IdError> {
        match *self {
            IdFormat::Any => Ok(Cow::Borrowed(raw)),
            IdFormat::IpAddress => ip_address(raw),
            IdFormat::Ipv6Range(mask) => ipv6_range(raw, mask),
            IdFormat::RegId => account(raw).map(Cow::Borrowed),
            IdFormat::IdentValue => ident_value(raw),
            IdFormat::DomainOrCidr | IdFormat::DomainOrCidrExact => covering(raw),
            IdFormat::FqdnSet => fqdn_set::digest(raw),
            IdFormat::RegIdDomain => after_account(raw, covering),
            IdFormat::RegIdIdentValue => after_account(raw, ident_value),
            IdFormat::RegIdFqdnSet => after_account(raw, fqdn_set::digest),
        }
    }
}

#[inline]
fn ip_address(raw: &str) -> Result<Cow<'_, str>, IdError> {
    address::canonical(raw).ok_or_else(|| IdError::NotAnAddress { found: Excerpt::new(raw) })
}

/// Returns a network with this mask, or the one that covers an address.
pub(super) fn ipv6_range(raw: &str, mask: Mask) -> Result<Cow<'_, str>, IdError> {
    match address::parse(raw) {
        Some(address @ IpAddr::V6(_)) => Ok(address::covering(address, mask.get(), raw)),
        Some(IpAddr::V4(_)) => Err(IdError::Ipv4InRange { found: Excerpt::new(raw) }),
        None => ipv6_network(raw, mask),
    }
}

/// Returns a network with this mask.
pub(super) fn ipv6_network(raw: &str, mask: Mask) -> Result<Cow<'_, str>, IdError> {
    let found = || Excerpt::new(raw);
    match address::network(raw) {
        None => Err(IdError::NotARange { mask: mask.get(), found: found() }),
        Some(ipnet::IpNet::V4(_)) => Err(IdError::Ipv4InRange { found: found() }),
        Some(network) if network.prefix_len() != mask.get() => {
            Err(IdError::OtherMask { mask: mask.get(), found: found() })
        }
        Some(network) => Ok(address::covering(network.addr(), mask.get(), raw)),
    }
}

/// Returns an account without leading zeros.
pub(super) fn account(raw: &str) -> Result<&str, IdError> {
    let not_an_account = || IdError::NotAnAccount { found: Excerpt::new(raw) };
    let is_number = !raw.is_empty()
        && raw.len() <= MAX_ACCOUNT_LENGTH
        && raw.bytes().all(|byte| byte.is_ascii_digit())
        && raw.parse::<u64>().is_ok();
    if !is_number {
        return Err(not_an_account());
    }
    let stripped = raw.trim_start_matches('0');
    Ok(if stripped.is_empty() { &raw[raw.len() - 1..] } else { stripped })
}

/// Returns a name in lower case, or a canonical address.
pub(super) fn ident_value(raw: &str) -> Result<Cow<'_, str>, IdError> {
    match address::canonical(raw) {
        Some(address) => Ok(address),
        None => name::lower_case(raw),
    }
}

/// Returns the registered domain of a name, or the /32 or /64 of an address. A public suffix is
/// its own domain.
fn covering(raw: &str) -> Result<Cow<'_, str>, IdError> {
    if let Some(address) = address::parse(raw) {
        return Ok(prefix_of(address, raw));
    }
    let name = name::lower_case(raw)?;
    let start = name::domain_start(&name).unwrap_or(0);
    Ok(match name {
        Cow::Borrowed(name) => Cow::Borrowed(&name[start..]),
        Cow::Owned(mut name) => {
            name.drain(..start);
            Cow::Owned(name)
        }
    })
}

/// Returns the network that covers an address: a /32 for IPv4, a /64 for IPv6.
pub(super) fn prefix_of(address: IpAddr, raw: &str) -> Cow<'_, str> {
    address::covering(address, IPV6_PREFIX, raw)
}

/// Returns an account, a colon, and the result of `part` for the rest. The text is split at the
/// first colon, because the rest may be an IPv6 address.
pub(super) fn after_account<'a>(
    raw: &'a str,
    part: impl Fn(&'a str) -> Result<Cow<'a, str>, IdError>,
) -> Result<Cow<'a, str>, IdError> {
    // An account is short, so a colon further on cannot be the separator.
    let colon = raw.bytes().take(MAX_ACCOUNT_LENGTH + 1).position(|byte| byte == b':');
    let colon = colon.ok_or_else(|| IdError::NoColon { found: Excerpt::new(raw) })?;
    let account = account(&raw[..colon])?;
    let rest = &raw[colon + 1..];
    let second = part(rest)?;
    if matches!(second, Cow::Borrowed(second) if second.len() == rest.len()) {
        return Ok(Cow::Borrowed(&raw[colon - account.len()..]));
    }
    let mut id = String::with_capacity(account.len() + 1 + second.len());
    id.push_str(account);
    id.push(':');
    id.push_str(&second);
    Ok(Cow::Owned(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical<'a>(format: &str, raw: &'a str) -> Result<Cow<'a, str>, IdError> {
        format.parse::<IdFormat>().unwrap().canonical(raw)
    }

    #[test]
    fn canonical_ids_are_borrowed() {
        for (format, raw) in [
            ("any", "any string at all"),
            ("ipAddress", "203.0.113.7"),
            ("ipAddress", "2001:db8::1"),
            ("ipv6RangeCIDR", "2001:db8::/48"),
            ("regId", "12345678"),
            ("identValue", "www.example.com"),
            ("domainOrCIDR", "example.com"),
            ("regId:identValue", "7:2001:db8::1"),
            ("regId:domain", "7:example.com"),
        ] {
            let Ok(Cow::Borrowed(spelling)) = canonical(format, raw) else {
                panic!("{format} does not borrow {raw}");
            };
            assert_eq!(spelling, raw);
        }
    }

    #[test]
    fn parts_of_the_text_are_borrowed() {
        for (format, raw, spelling) in [
            ("regId", "0012", "12"),
            ("regId", "000", "0"),
            ("domainOrCIDR", "a.b.example.co.uk", "example.co.uk"),
            ("regId:identValue", "007:example.com", "7:example.com"),
        ] {
            assert!(
                matches!(canonical(format, raw), Ok(Cow::Borrowed(found)) if found == spelling)
            );
        }
    }

    #[test]
    fn an_ipv4_address_has_no_ipv6_range() {
        for raw in ["192.0.2.1", "::ffff:192.0.2.1", "10.0.0.0/8", "::ffff:10.0.0.0/104"] {
            let error = canonical("ipv6RangeCIDR", raw).unwrap_err();
            assert!(matches!(error, IdError::Ipv4InRange { .. }), "{raw}: {error}");
        }
    }

    #[test]
    fn overlong_texts_are_refused_by_their_length() {
        for piece in ["0", "1", "a", "a.", ":", "::", "1:", "/", "é", "a,", "1.1.1.1,", "xn--a."] {
            let text = piece.repeat(5_000_000);
            for format in IdFormat::ALL.into_iter().filter(|&format| format != IdFormat::Any) {
                let error = format.canonical(&text).unwrap_err();
                assert!(error.to_string().len() < 400, "{format}: {error}");
            }
        }
    }
}
