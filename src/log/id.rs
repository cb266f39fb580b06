//! Who is asking, as a log says it.

use std::borrow::Cow;

use memchr::memmem;

use crate::engine::id::client_address;

/// What stands for a byte that is no UTF-8, before its two hexadecimal digits.
const MARK: &str = "\u{fffd}";
/// Between the parts of an id that has several.
pub(super) const BETWEEN: char = '\t';

/// Makes text of bytes, so that it can be read and different bytes stay different.
///
/// A byte that is no UTF-8 becomes U+FFFD and two hexadecimal digits; a U+FFFD that was there
/// becomes two.
#[must_use]
pub fn escape_invalid_utf8(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes)
        && (text.is_ascii() || memmem::find(bytes, MARK.as_bytes()).is_none())
    {
        return Cow::Borrowed(text);
    }
    let mut made = String::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        for sign in chunk.valid().chars() {
            made.push(sign);
            if sign == '\u{fffd}' {
                made.push(sign);
            }
        }
        for byte in chunk.invalid() {
            made.push_str(&format!("{MARK}{byte:02x}"));
        }
    }
    Cow::Owned(made)
}

/// Returns the canonical spelling of an address, as `engine::id::client_address`; other text as it
/// is.
#[must_use]
pub fn canonical(text: &str, ipv6_prefix: u8) -> Cow<'_, str> {
    // The first word of a list of addresses.
    let word = text.strip_suffix(',').unwrap_or(text);
    client_address(word, ipv6_prefix).unwrap_or(Cow::Borrowed(text))
}
