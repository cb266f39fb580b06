//! Conversion of the ids in a log.

use std::borrow::Cow;

use crate::engine::id::client_address;

/// The separator between the fields of an id.
pub(super) const ID_SEPARATOR: char = '\t';

/// Returns the canonical form of an address, as `engine::id::client_address` does, and other text
/// unchanged. Marks around an address are no part of it.
#[must_use]
pub fn canonical(text: &str, ipv6_prefix: u8) -> Cow<'_, str> {
    client_address(text, ipv6_prefix)
        .or_else(|| client_address(without_marks(text), ipv6_prefix))
        .unwrap_or(Cow::Borrowed(text))
}

/// Returns the canonical form of the address in a field, or of the first in a list.
#[must_use]
pub fn address(text: &str) -> Option<Cow<'_, str>> {
    let first = text.split(',').next().unwrap_or_default();
    client_address(first, 128).or_else(|| client_address(without_marks(first), 128))
}

/// Returns a field without quotes, parentheses, a name as in `client=192.0.2.1`, and the priority of syslog,
/// as in `<134>192.0.2.1`.
fn without_marks(text: &str) -> &str {
    let is_mark = |character| matches!(character, '"' | '\'' | '(' | ')' | '<' | '>' | ',' | ';');
    let bare = text.trim_matches(is_mark);
    let value = bare.find(['=', '>']).filter(|&end| bare[..end].bytes().all(is_word));
    value.map_or(bare, |end| bare[end + 1..].trim_matches(is_mark))
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.')
}
