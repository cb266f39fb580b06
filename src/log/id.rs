//! Who is asking, as a log says it.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};

use memchr::memmem;

/// What stands for a byte that is no UTF-8, before its two hexadecimal digits.
const MARK: &str = "\u{fffd}";
/// The longest text of an address with brackets, port and zone.
const LONGEST_ADDRESS: usize = 128;
/// Between the parts of an id that has several.
pub(super) const BETWEEN: char = '\t';

/// Makes text of bytes, so that it can be read and different bytes stay different.
///
/// A byte that is no UTF-8 becomes U+FFFD and two hexadecimal digits; a U+FFFD that was there
/// becomes two.
#[must_use]
pub fn marked(bytes: &[u8]) -> Cow<'_, str> {
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

/// Spells an address as the web layer does; any other text stays as it is.
///
/// Brackets, a port and a zone are left out, an IPv4-mapped address becomes IPv4, and IPv6
/// addresses that share their first `ipv6_prefix` bits become one.
///
/// # Source
/// RFC 5952, section 4, for IPv6.
#[must_use]
pub fn canonical(text: &str, ipv6_prefix: u8) -> Cow<'_, str> {
    let Some(address) = address(text) else { return Cow::Borrowed(text) };
    let spelled = match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(ipv6_prefix)).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() & mask).to_string()
        }
    };
    if spelled == text { Cow::Borrowed(text) } else { Cow::Owned(spelled) }
}

fn address(text: &str) -> Option<IpAddr> {
    let first = *text.as_bytes().first()?;
    if text.len() > LONGEST_ADDRESS || !(first.is_ascii_hexdigit() || matches!(first, b':' | b'['))
    {
        return None;
    }
    let bare = match text.strip_prefix('[') {
        Some(inner) => {
            let (address, port) = inner.split_once(']')?;
            is_port(port).then_some(address)?
        }
        None => match text.split_once(':') {
            Some((address, port)) if address.contains('.') && is_port_number(port) => address,
            _ => text,
        },
    };
    let bare = bare.split_once('%').map_or(bare, |(address, _)| address);
    bare.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(is_port_number)
}

fn is_port_number(text: &str) -> bool {
    (1..=5).contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_digit())
}
