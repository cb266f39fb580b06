//! Limit names and bucket keys.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::engine::id::Excerpt;

/// The name of a limit, which is part of its bucket keys.
///
/// It is not empty or all digits, has no colon or control character, and does not start or end with
/// white space. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitName(Arc<str>);

/// The string is not a valid limit name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The empty string.
    #[error("a limit's name must not be empty")]
    Empty,
    /// Only digits, which would be ambiguous with a limit's number.
    #[error("a limit's name must not be all digits, found {found}; add a letter")]
    AllDigits {
        /// The given string.
        found: Excerpt,
    },
    /// Contains a colon, which ends the name in a bucket key.
    #[error("a limit's name must not contain a colon, found {found}")]
    Colon {
        /// The given string.
        found: Excerpt,
    },
    /// White space at the start or end.
    #[error("a limit's name must not begin or end with a blank, found {found}")]
    OuterBlank {
        /// The given string.
        found: Excerpt,
    },
    /// `<<`, the merge key of YAML, which no limits file can have as a name.
    #[error("a limit's name must not be <<, which is a merge key in YAML")]
    MergeKey,
    /// Contains a control character.
    #[error("a limit's name must not contain control characters, found {found}")]
    Control {
        /// The given string.
        found: Excerpt,
    },
}

impl LimitName {
    /// Parses a limit name.
    ///
    /// # Errors
    /// [`NameError`] if the string is not a valid name.
    pub fn new(text: &str) -> Result<LimitName, NameError> {
        let found = || Excerpt::new(text);
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(NameError::AllDigits { found: found() });
        }
        if text == "<<" {
            return Err(NameError::MergeKey);
        }
        if text.contains(':') {
            return Err(NameError::Colon { found: found() });
        }
        if text.trim().len() != text.len() {
            return Err(NameError::OuterBlank { found: found() });
        }
        if text.chars().any(char::is_control) {
            return Err(NameError::Control { found: found() });
        }
        Ok(LimitName(text.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for LimitName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<LimitName, NameError> {
        LimitName::new(text)
    }
}

impl Borrow<str> for LimitName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LimitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for LimitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Returns a bucket key: `number:id` or `name:id`, which cannot be equal.
///
/// `prefix` is a limit's number in decimal, or its name; `id` is in canonical form.
pub fn bucket_key(prefix: &str, id: &str) -> String {
    let mut key = String::with_capacity(prefix.len() + 1 + id.len());
    key.push_str(prefix);
    key.push(':');
    key.push_str(id);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_as_given() {
        for text in ["NewOrders", "orders per user", "6a", "-1", "½", "注文", "a", "²"] {
            assert_eq!(LimitName::new(text).unwrap().as_str(), text);
        }
    }

    #[test]
    fn ambiguous_names_are_refused() {
        assert_eq!(LimitName::new(""), Err(NameError::Empty));
        assert!(matches!(LimitName::new("6"), Err(NameError::AllDigits { .. })));
        assert!(matches!(LimitName::new("007"), Err(NameError::AllDigits { .. })));
        for text in [":", "a:", "a:b", "::"] {
            assert!(matches!(LimitName::new(text), Err(NameError::Colon { .. })), "{text:?}");
        }
        for text in [" ", " a", "a ", "a\n", "\u{a0}a"] {
            assert!(matches!(LimitName::new(text), Err(NameError::OuterBlank { .. })), "{text:?}");
        }
        for text in ["a\nb", "a\0b", "\u{1b}[2J"] {
            assert!(matches!(LimitName::new(text), Err(NameError::Control { .. })), "{text:?}");
        }
    }

    #[test]
    fn a_bucket_key_is_the_prefix_a_colon_and_the_id() {
        assert_eq!(bucket_key("6", "2001:db8::1"), "6:2001:db8::1");
    }
}
