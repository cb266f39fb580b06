//! The canonical form of IP addresses and networks.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The length of the longest address: eight groups, the last two in IPv4 notation.
const MAX_ADDRESS_LENGTH: usize = 45;

/// Prefix length that identifies one client with IPv6: a subscriber has at least a /64.
pub const IPV6_PREFIX: u8 = 64;

/// The maximum length of an address with brackets, port and zone.
const MAX_NODE_LENGTH: usize = 128;

/// The well-known prefix of IPv4 addresses behind NAT64 (RFC 6052, section 2.1).
const NAT64: u128 = 0x0064_ff9b_u128 << 96;

/// Returns the canonical address of a client from a header or a log; `None` if `text` is not an
/// address.
///
/// Brackets, a port and a zone are removed. IPv4-mapped and NAT64 addresses become IPv4. IPv6
/// addresses with the same first `ipv6_prefix` bits become the lowest one, except link-local
/// addresses, whose prefix is the same for all hosts of a network.
///
/// # Source
/// RFC 5952, section 4, for IPv6; RFC 7239, section 6, for the port; RFC 6052 for NAT64.
#[must_use]
pub fn client_address(text: &str, ipv6_prefix: u8) -> Option<Cow<'_, str>> {
    let address = match parse_client(text)? {
        IpAddr::V6(address) => lowest(address, shared_prefix(address, ipv6_prefix)).into(),
        address @ IpAddr::V4(_) => address,
    };
    Some(canonical_text(address, text))
}

/// Parses the address of a client; returns `None` if `text` is not an address.
pub(in crate::engine) fn parse_client(text: &str) -> Option<IpAddr> {
    Some(match parse_node(text)? {
        IpAddr::V6(address) if address.to_bits() & mask(96) == NAT64 => {
            // The last 32 bits.
            Ipv4Addr::from_bits(address.to_bits() as u32).into()
        }
        address => address,
    })
}

/// Returns the prefix length that identifies one client: `ipv6_prefix`, or 128 if link-local.
pub(in crate::engine) fn shared_prefix(address: Ipv6Addr, ipv6_prefix: u8) -> u8 {
    if address.is_unicast_link_local() { 128 } else { ipv6_prefix }
}

/// Returns the lowest address with the same first `prefix` bits.
pub(in crate::engine) fn lowest(address: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    Ipv6Addr::from_bits(address.to_bits() & mask(prefix))
}

/// Returns a mask of the first `prefix` bits of an IPv6 address.
pub(in crate::engine) fn mask(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

/// Returns the canonical text of an address, borrowed if `text` is canonical.
pub(in crate::engine) fn canonical_text(address: IpAddr, text: &str) -> Cow<'_, str> {
    AddressText::of(address).in_place_of(text)
}

fn parse_node(text: &str) -> Option<IpAddr> {
    let first = *text.as_bytes().first()?;
    if text.len() > MAX_NODE_LENGTH || !(first.is_ascii_hexdigit() || matches!(first, b':' | b'['))
    {
        return None;
    }
    let bare = match text.strip_prefix('[') {
        Some(inner) => {
            let (address, port) = inner.split_once(']')?;
            (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)).then_some(address)?
        }
        None => match text.split_once(':') {
            Some((address, port)) if address.contains('.') && is_port(port) => address,
            _ => text,
        },
    };
    let bare = bare.split_once('%').map_or(bare, |(address, _)| address);
    bare.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// Returns whether a string is a port, or an obfuscated one such as `_hidden`.
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(name) => {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            !name.is_empty() && name.bytes().all(is_plain)
        }
        None => (1..=5).contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_digit()),
    }
}

/// Parses an address without port, zone or mask. An IPv4-mapped IPv6 address becomes IPv4.
#[inline]
pub(super) fn parse(text: &str) -> Option<IpAddr> {
    if text.len() > MAX_ADDRESS_LENGTH {
        return None;
    }
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// Returns the canonical form of an address, borrowed if `text` is canonical.
///
/// # Source
/// RFC 5952, section 4, for IPv6.
#[inline]
pub(super) fn canonical(text: &str) -> Option<Cow<'_, str>> {
    if text.len() > MAX_ADDRESS_LENGTH {
        return None;
    }
    match text.parse::<IpAddr>().ok()? {
        // The parser accepts IPv4 only in canonical form.
        IpAddr::V4(_) => Some(Cow::Borrowed(text)),
        IpAddr::V6(address) => Some(AddressText::of(address.to_canonical()).in_place_of(text)),
    }
}

/// Parses a network and clears its host bits; returns `None` if the string is not an address with a
/// mask. A network of IPv4-mapped addresses becomes IPv4; its mask must be at least 96.
pub(super) fn network(text: &str) -> Option<IpNet> {
    let (address, mask) = text.split_once('/')?;
    if address.len() > MAX_ADDRESS_LENGTH {
        return None;
    }
    let mask = mask_length(mask)?;
    match address.parse::<IpAddr>().ok()? {
        IpAddr::V4(address) => Ipv4Net::new(address, mask).ok().map(|net| IpNet::V4(net.trunc())),
        IpAddr::V6(address) => {
            if let Some(mapped) = address.to_ipv4_mapped() {
                let mask = mask.checked_sub(96)?;
                return Ipv4Net::new(mapped, mask).ok().map(|net| IpNet::V4(net.trunc()));
            }
            Ipv6Net::new(address, mask).ok().map(|net| IpNet::V6(net.trunc()))
        }
    }
}

/// Parses the length of a mask: digits without a leading zero, at most 128.
pub(super) fn mask_length(text: &str) -> Option<u8> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit())
        && (text == "0" || !text.starts_with('0'))
        && text.len() <= 3;
    if is_plain { text.parse().ok().filter(|&mask| mask <= 128) } else { None }
}

/// Returns the network that covers an address: a /32 for IPv4, a network of length `mask` for
/// IPv6. Borrowed if `text` is canonical.
pub(super) fn covering(address: IpAddr, mask: u8, text: &str) -> Cow<'_, str> {
    match address {
        IpAddr::V4(_) => AddressText::of(address).masked(32).in_place_of(text),
        IpAddr::V6(address) => {
            AddressText::of(lowest(address, mask).into()).masked(mask).in_place_of(text)
        }
    }
}

/// The canonical text of an address or a network, on the stack.
///
/// The standard library produces the same text, but takes two to three times as long.
struct AddressText {
    /// The longest network has 43 bytes. With a power of two the compiler omits bounds checks.
    bytes: [u8; 64],
    length: usize,
}

impl AddressText {
    fn of(address: IpAddr) -> AddressText {
        let mut text = AddressText { bytes: [0; 64], length: 0 };
        match address {
            IpAddr::V4(address) => {
                for (index, byte) in address.octets().into_iter().enumerate() {
                    if index > 0 {
                        text.push(b'.');
                    }
                    text.decimal(byte);
                }
            }
            IpAddr::V6(address) => text.groups(address.segments()),
        }
        text
    }

    fn masked(mut self, length: u8) -> AddressText {
        self.push(b'/');
        self.decimal(length);
        self
    }

    /// Returns this text, borrowed from `text` if that is the same.
    fn in_place_of<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let bytes = &self.bytes[..self.length % 64];
        if bytes == text.as_bytes() {
            return Cow::Borrowed(text);
        }
        // Only ASCII was pushed.
        Cow::Owned(str::from_utf8(bytes).unwrap_or_default().to_owned())
    }

    fn push(&mut self, byte: u8) {
        self.bytes[self.length % 64] = byte;
        self.length += 1;
    }

    fn decimal(&mut self, number: u8) {
        if number >= 100 {
            self.push(b'0' + number / 100);
        }
        if number >= 10 {
            self.push(b'0' + number / 10 % 10);
        }
        self.push(b'0' + number % 10);
    }

    fn hexadecimal(&mut self, group: u16) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // Start at the first digit that is not 0, or at the last digit.
        let mut shift = (15 - (group | 1).leading_zeros()) / 4 * 4;
        loop {
            self.push(DIGITS[usize::from(group >> shift & 0xf)]);
            if shift == 0 {
                break;
            }
            shift -= 4;
        }
    }

    /// Writes eight groups; the first of the longest runs of zeros is omitted if longer than one.
    fn groups(&mut self, groups: [u16; 8]) {
        let (mut start, mut end) = (8, 8);
        let mut run = 0;
        for (index, group) in groups.into_iter().enumerate() {
            run = if group == 0 { run + 1 } else { 0 };
            if run > 1 && run > end - start {
                (start, end) = (index + 1 - run, index + 1);
            }
        }
        for (index, group) in groups.into_iter().enumerate() {
            if index == start {
                self.push(b':');
                // The second colon; elsewhere the next group writes it.
                if end == 8 {
                    self.push(b':');
                }
            }
            if (start..end).contains(&index) {
                continue;
            }
            if index > 0 {
                self.push(b':');
            }
            self.hexadecimal(group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unrelated_clients_with_the_same_prefix_stay_separate() {
        for (text, client) in [
            // RFC 6052: behind NAT64, the last 32 bits are the IPv4 address.
            ("64:ff9b::203.0.113.7", "203.0.113.7"),
            ("64:ff9b::c633:6401", "198.51.100.1"),
            ("64:ff9b::1:c633:6401", "64:ff9b::"),
            ("64:ff9c::c633:6401", "64:ff9c::"),
            ("fe80::1", "fe80::1"),
            ("[fe80::2%eth0]:80", "fe80::2"),
            ("2001:db8::2", "2001:db8::"),
        ] {
            assert_eq!(client_address(text, 64).as_deref(), Some(client), "{text}");
        }
    }

    #[test]
    fn the_longest_network_fits() {
        let longest = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        let network = covering(longest.parse().unwrap(), 128, "");
        assert_eq!(network, format!("{longest}/128"));
        assert_eq!(covering("::1".parse().unwrap(), 0, ""), "::/0");
    }
}
