//! DNS names and registered domains.

use std::borrow::Cow;

use crate::engine::id::error::{Excerpt, IdError, NameFault};

/// The maximum length of a name, in bytes without a trailing dot (RFC 1035, section 2.3.4).
pub(super) const MAX_LENGTH: usize = 253;
const MAX_LABEL_LENGTH: usize = 63;

/// Checks that a string is a name; returns whether it is in lower case.
///
/// # Source
/// RFC 1123, section 2.1, for the characters; RFC 5891, section 4.2.3.1, for hyphens in the third
/// and fourth place.
pub(super) fn check(text: &str) -> Result<bool, NameFault> {
    if text.is_empty() {
        return Err(NameFault::Empty);
    }
    if text.len() > MAX_LENGTH {
        return Err(NameFault::LongName);
    }
    if text.ends_with('.') {
        return Err(NameFault::TrailingDot);
    }
    let mut labels = 0;
    let mut numeric = false;
    for label in text.split('.') {
        check_label(label)?;
        numeric = label.bytes().all(|byte| byte.is_ascii_digit());
        labels += 1;
    }
    if labels < 2 {
        return Err(NameFault::OneLabel);
    }
    if numeric {
        return Err(NameFault::NumericEnd);
    }
    Ok(!text.bytes().any(|byte| byte.is_ascii_uppercase()))
}

fn check_label(label: &str) -> Result<(), NameFault> {
    let bytes = label.as_bytes();
    let is_letter_digit_hyphen = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
    match bytes {
        [] => Err(NameFault::EmptyLabel),
        [b'*'] => Err(NameFault::Wildcard),
        _ if !bytes.iter().all(is_letter_digit_hyphen) => Err(NameFault::Character),
        [b'-', ..] | [.., b'-'] => Err(NameFault::OuterHyphen),
        _ if bytes.len() > MAX_LABEL_LENGTH => Err(NameFault::LongLabel),
        [x, n, b'-', b'-', ..] if !matches!((x | 0x20, n | 0x20), (b'x', b'n')) => {
            Err(NameFault::ReservedHyphens)
        }
        _ => Ok(()),
    }
}

/// Returns the offset of the registered domain (eTLD+1) in a lower-case name; `None` if the name
/// is itself a public suffix.
///
/// # Source
/// The Public Suffix List, including its private section, as embedded in the `psl2` crate.
pub(super) fn domain_start(name: &str) -> Option<usize> {
    let domain = psl2::lookup(name)?.registrable_domain()?;
    Some(name.len() - domain.len())
}

/// Returns whether a lower-case name is a public suffix of a private party, such as `github.io`.
pub(super) fn is_private_suffix(name: &str) -> bool {
    psl2::lookup(name).is_some_and(|found| found.is_public_suffix() && found.is_private())
}

/// Returns a name in lower case.
///
/// # Errors
/// [`IdError::NotAName`] if the string is not a name.
pub(super) fn lower_case(raw: &str) -> Result<Cow<'_, str>, IdError> {
    match check(raw) {
        Ok(true) => Ok(Cow::Borrowed(raw)),
        Ok(false) => Ok(Cow::Owned(raw.to_ascii_lowercase())),
        Err(fault) => Err(IdError::NotAName { fault, found: Excerpt::new(raw) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edge_cases_of_names() {
        let label = "a".repeat(63);
        let longest = format!("{label}.{label}.{label}.{}", "a".repeat(61));
        for name in
            ["a.b", "a-b.c", "a--b.c", "xn--bcher-kva.example", "1.2.3.a", "x1.0a", &longest]
        {
            assert_eq!(check(name), Ok(true), "{name}");
        }
        assert_eq!(check("A.b"), Ok(false));
        assert_eq!(check("XN--bcher-kva.example"), Ok(false));
        for (name, fault) in [
            ("", NameFault::Empty),
            ("a", NameFault::OneLabel),
            ("a..b", NameFault::EmptyLabel),
            (".a.b", NameFault::EmptyLabel),
            ("a.b.", NameFault::TrailingDot),
            (".", NameFault::TrailingDot),
            ("*.a.b", NameFault::Wildcard),
            ("a_b.c", NameFault::Character),
            ("a b.c", NameFault::Character),
            ("ä.c", NameFault::Character),
            ("a.c:80", NameFault::Character),
            ("-a.c", NameFault::OuterHyphen),
            ("a-.c", NameFault::OuterHyphen),
            ("xn--.c", NameFault::OuterHyphen),
            ("ab--c.d", NameFault::ReservedHyphens),
            ("10.0.0.01", NameFault::NumericEnd),
            ("10.0.0", NameFault::NumericEnd),
            (&format!("a{label}.b"), NameFault::LongLabel),
            (&format!("a{longest}"), NameFault::LongName),
        ] {
            assert_eq!(check(name), Err(fault), "{name}");
        }
    }

    #[test]
    fn a_registered_domain_is_one_label_below_its_public_suffix() {
        for (name, domain) in [
            ("example.com", Some("example.com")),
            ("a.b.example.co.uk", Some("example.co.uk")),
            ("a.foo.github.io", Some("foo.github.io")),
            ("a.www.ck", Some("www.ck")),
            ("x.a.b.kobe.jp", Some("a.b.kobe.jp")),
            ("a.b.xn--55qx5d.cn", Some("b.xn--55qx5d.cn")),
            ("printer.office.internal", Some("office.internal")),
            ("co.uk", None),
            ("github.io", None),
            ("foo.ck", None),
        ] {
            assert_eq!(domain_start(name).map(|start| &name[start..]), domain, "{name}");
        }
    }
}
