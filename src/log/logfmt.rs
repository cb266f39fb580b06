//! Lines that are pairs such as `name=value` or `name="a value"`.

use memchr::{memchr, memchr2};

use crate::log::fault::LineFault;
use crate::log::json::FieldNames;
use crate::log::line_format::quote;
use crate::log::record::Record;

/// Fills a record with the values of the selected names. A first word that is not part of a pair has an
/// empty name, and other such words are ignored.
pub(super) fn read<'a>(
    names: &FieldNames,
    line: &'a [u8],
    record: &mut Record<'a>,
) -> Result<(), LineFault> {
    let mut rest = line;
    let mut has_pair = false;
    while !rest.is_empty() {
        let end = memchr2(b'=', b' ', rest).unwrap_or(rest.len());
        let word = &rest[..end];
        let is_pair = rest.get(end) == Some(&b'=') && !word.is_empty();
        let (name, value) = if is_pair {
            let after = &rest[end + 1..];
            let (value, length) = value(after)?;
            rest = &after[length..];
            (word, value)
        } else {
            let is_first = rest.len() == line.len();
            rest = &rest[(end + 1).min(rest.len())..];
            if !is_first {
                continue;
            }
            (&b""[..], word)
        };
        has_pair |= is_pair;
        for (wanted, slot) in &names.wanted {
            if wanted.as_bytes() == name {
                record.fill(*slot, value);
            }
        }
    }
    if has_pair { Ok(()) } else { Err(LineFault::Format) }
}

/// Returns a value without its quotes, and its length with them.
fn value(text: &[u8]) -> Result<(&[u8], usize), LineFault> {
    if let Some(inner) = text.strip_prefix(b"\"") {
        let end = quote(inner).ok_or(LineFault::Format)?;
        return Ok((&inner[..end], end + 2));
    }
    let end = memchr(b' ', text).unwrap_or(text.len());
    Ok((&text[..end], end))
}
