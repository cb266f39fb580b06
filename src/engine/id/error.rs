//! Errors about ids.

use std::fmt;

use crate::engine::id::IdFormat;

/// The maximum number of characters of an input that an error message shows.
const MAX_SHOWN: usize = 60;

/// Unexpected input, quoted and truncated for an error message.
#[derive(Clone, PartialEq, Eq)]
pub struct Excerpt(Box<str>);

impl Excerpt {
    /// Quotes a string of any length.
    pub fn new(text: &str) -> Excerpt {
        match text.char_indices().nth(MAX_SHOWN) {
            None => Excerpt(format!("{text:?}").into()),
            Some((end, _)) => Excerpt(format!("{:?}… ({} bytes)", &text[..end], text.len()).into()),
        }
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The string is not an id in the format of its limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum IdError {
    #[error("id must not be empty")]
    Empty,
    #[error("id must be at most {most} bytes long for the format {format}, found {found} bytes")]
    TooLong { format: IdFormat, most: usize, found: usize },
    #[error("id must be an IPv4 or IPv6 address without port, zone or mask, found {found}")]
    NotAnAddress { found: Excerpt },
    #[error("id must be an IPv4 or IPv6 address, or a network such as 10.0.0.0/8, found {found}")]
    NotAnAddressOrNetwork { found: Excerpt },
    /// A network, where ids are strings: no request could have it as its id.
    #[error(
        "id must not be a network, because ids of this limit are strings, found {found}; \
         add id_format: ipAddress to the limit"
    )]
    NetworkAsText { found: Excerpt },
    #[error("id must be an IPv6 network such as 2001:db8::/{mask}, found {found}")]
    NotARange { mask: u8, found: Excerpt },
    #[error("id must be IPv6, found the IPv4 address in {found}")]
    Ipv4InRange { found: Excerpt },
    #[error("the mask of the id must be /{mask}, found {found}")]
    OtherMask { mask: u8, found: Excerpt },
    #[error("id must be an unsigned decimal number below 2^64, found {found}")]
    NotAnAccount { found: Excerpt },
    #[error("id must be an account, a colon and more, as in 12345678:example.com, found {found}")]
    NoColon { found: Excerpt },
    #[error("id must be a DNS name or an IP address: {fault}, found {found}")]
    NotAName { fault: NameFault, found: Excerpt },
    #[error("id must be an address without its mask, found {found}")]
    Masked { found: Excerpt },
    #[error(
        "an override's IPv6 address must be the lowest of its /64, found {found}; use {lowest}"
    )]
    NotLowest { found: Excerpt, lowest: std::net::Ipv6Addr },
    /// A name below its registered domain, which no request can match.
    #[error("an override must name a registered domain, found {found}; use {domain}")]
    BelowDomain { found: Excerpt, domain: Box<str> },
    /// A public suffix, below which unrelated parties register domains.
    #[error(
        "an override must name a registered domain, found the public suffix {found}; use a name below it"
    )]
    PublicSuffix { found: Excerpt },
}

/// The reason why a string is not a DNS name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum NameFault {
    #[error("a name must not be empty")]
    Empty,
    #[error("a name must have two labels or more")]
    OneLabel,
    #[error("a label must not be empty")]
    EmptyLabel,
    #[error("a name must not end with a dot")]
    TrailingDot,
    #[error("a wildcard is not a name")]
    Wildcard,
    #[error("a label may have only letters, digits and hyphens (other scripts as xn--)")]
    Character,
    #[error("a label must not begin or end with a hyphen")]
    OuterHyphen,
    #[error("hyphens in the third and fourth position of a label are reserved for xn--")]
    ReservedHyphens,
    #[error("a label must be at most 63 bytes long")]
    LongLabel,
    #[error("a name must be at most 253 bytes long")]
    LongName,
    /// The last label consists of digits, as in a malformed IPv4 address.
    #[error("the last label of a name must not be all digits")]
    NumericEnd,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_quoted_and_truncated() {
        assert_eq!(Excerpt::new("a\"b\n").to_string(), r#""a\"b\n""#);
        let long = "ä".repeat(1_000_000);
        let shown = Excerpt::new(&long).to_string();
        assert!(shown.ends_with("… (2000000 bytes)") && shown.len() < 200, "{shown}");
    }
}
