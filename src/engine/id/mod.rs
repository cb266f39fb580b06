//! Id formats and the canonical forms of ids.
//!
//! The ids of requests and of overrides are both converted here, so that all spellings of an id use
//! the same bucket.

pub(in crate::engine) mod address;
mod canonical;
mod error;
mod fqdn_set;
mod name;
mod target;

use std::fmt;
use std::str::FromStr;

pub use address::{IPV6_PREFIX, client_address};
pub use error::{Excerpt, IdError, NameFault};
pub use target::Target;

/// The length of an IPv6 mask: 1 to 128.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mask(u8);

impl Mask {
    /// The mask of a typical range of one site: /48.
    pub const SITE: Mask = Mask(48);

    /// Returns a mask of this length; `None` if the length is 0 or above 128.
    pub const fn new(length: u8) -> Option<Mask> {
        if length >= 1 && length <= 128 { Some(Mask(length)) } else { None }
    }

    /// The length, 1 to 128.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// The format of a limit's ids, which is `id:` in limits files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IdFormat {
    /// `any`: any non-empty string, which is its own canonical form.
    #[default]
    Any,
    /// `ipAddress`: an IPv4 or IPv6 address; IPv4-mapped IPv6 becomes IPv4.
    IpAddress,
    /// `ipv6RangeCIDR`, `ipv6RangeCIDR/56`: an IPv6 network with that mask. Requests may also have
    /// an address, which is replaced by its network.
    Ipv6Range(Mask),
    /// `regId`: an account, an unsigned 64-bit decimal.
    RegId,
    /// `identValue`: a DNS name or an IP address.
    IdentValue,
    /// `domainOrCIDR`: a name or an address, replaced by its registered domain, /32 or /64.
    DomainOrCidr,
    /// `domainOrCIDR/exact`: the same, but an override may also name a host below its registered
    /// domain.
    ///
    /// The limits files of a real certificate authority do so (a test host beside its domain), and
    /// would not load with the plain format. Requests with exactly this name use the host's own
    /// bucket and limit; every other name is replaced by its domain.
    DomainOrCidrExact,
    /// `fqdnSet`: comma-separated names and addresses in any order, identified by the SHA-256 of
    /// the sorted set.
    FqdnSet,
    /// `regId:domain`: an account, a colon, and an id of `domainOrCIDR`.
    RegIdDomain,
    /// `regId:identValue`: an account, a colon, and a name or an address.
    RegIdIdentValue,
    /// `regId:fqdnSet`: an account, a colon, and an id of `fqdnSet`.
    RegIdFqdnSet,
}

impl IdFormat {
    /// All formats; the one with a mask is listed once, with its default mask.
    pub const ALL: [IdFormat; 11] = [
        IdFormat::Any,
        IdFormat::IpAddress,
        IdFormat::Ipv6Range(Mask::SITE),
        IdFormat::RegId,
        IdFormat::IdentValue,
        IdFormat::DomainOrCidr,
        IdFormat::DomainOrCidrExact,
        IdFormat::FqdnSet,
        IdFormat::RegIdDomain,
        IdFormat::RegIdIdentValue,
        IdFormat::RegIdFqdnSet,
    ];

    /// Returns the name in limits files, without the mask.
    pub const fn as_str(self) -> &'static str {
        match self {
            IdFormat::Any => "any",
            IdFormat::IpAddress => "ipAddress",
            IdFormat::Ipv6Range(_) => "ipv6RangeCIDR",
            IdFormat::RegId => "regId",
            IdFormat::IdentValue => "identValue",
            IdFormat::DomainOrCidr => "domainOrCIDR",
            IdFormat::DomainOrCidrExact => "domainOrCIDR/exact",
            IdFormat::FqdnSet => "fqdnSet",
            IdFormat::RegIdDomain => "regId:domain",
            IdFormat::RegIdIdentValue => "regId:identValue",
            IdFormat::RegIdFqdnSet => "regId:fqdnSet",
        }
    }
}

impl fmt::Display for IdFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IdFormat::Ipv6Range(mask) if *mask != Mask::SITE => {
                f.pad(&format!("{}/{}", self.as_str(), mask.get()))
            }
            _ => f.pad(self.as_str()),
        }
    }
}

/// The string is not the name of an id format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "id format must be one of any, ipAddress, ipv6RangeCIDR (with /1 to /128 for another mask than \
     /48), regId, identValue, domainOrCIDR, domainOrCIDR/exact, fqdnSet, regId:domain, \
     regId:identValue and regId:fqdnSet, found {found}"
)]
pub struct UnknownFormat {
    /// The given string.
    pub found: Excerpt,
}

impl FromStr for IdFormat {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<IdFormat, UnknownFormat> {
        if let Some(format) = IdFormat::ALL.into_iter().find(|format| format.as_str() == text) {
            return Ok(format);
        }
        let mask = text.strip_prefix("ipv6RangeCIDR/").and_then(address::mask_length);
        let format = mask.and_then(Mask::new).map(IdFormat::Ipv6Range);
        format.ok_or_else(|| UnknownFormat { found: Excerpt::new(text) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_format_parses_back() {
        let masks = [1, 56, 128].map(|mask| IdFormat::Ipv6Range(Mask::new(mask).unwrap()));
        for format in IdFormat::ALL.into_iter().chain(masks) {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        assert_eq!("ipv6RangeCIDR/48".parse(), Ok(IdFormat::Ipv6Range(Mask::SITE)));
    }

    #[test]
    fn unknown_formats_are_refused() {
        for text in [
            "",
            "Any",
            "ipaddress",
            "ipv6RangeCIDR/",
            "ipv6RangeCIDR/0",
            "ipv6RangeCIDR/129",
            "ipv6RangeCIDR/048",
            "ipv6RangeCIDR/+48",
            "regId/48",
            "regId:",
            " any",
        ] {
            assert!(text.parse::<IdFormat>().is_err(), "{text:?}");
        }
    }
}
