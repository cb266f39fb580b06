//! Conversion of the ids in a log.

use std::borrow::Cow;

use memchr::memmem;

use crate::engine::id::client_address;

/// The prefix of an escaped byte, before its two hexadecimal digits.
const MARK: &str = "\u{fffd}";
/// The separator between the fields of an id.
pub(super) const ID_SEPARATOR: char = '\t';

/// Converts bytes to text, and escapes invalid UTF-8 so that different bytes give different text.
///
/// An invalid byte becomes U+FFFD and two hexadecimal digits. An existing U+FFFD is doubled.
#[must_use]
pub fn escape_invalid_utf8(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes)
        && (text.is_ascii() || memmem::find(bytes, MARK.as_bytes()).is_none())
    {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            text.push(character);
            if character == '\u{fffd}' {
                text.push(character);
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("{MARK}{byte:02x}"));
        }
    }
    Cow::Owned(text)
}

/// Returns the canonical form of an address, as `engine::id::client_address` does, and other text
/// unchanged.
#[must_use]
pub fn canonical(text: &str, ipv6_prefix: u8) -> Cow<'_, str> {
    // The text may be the first word of a list of addresses.
    let word = text.strip_suffix(',').unwrap_or(text);
    client_address(word, ipv6_prefix).unwrap_or(Cow::Borrowed(text))
}
