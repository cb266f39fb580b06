//! IP addresses and networks in canonical spelling.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The longest text of an address: eight groups, the last two as IPv4.
const LONGEST_ADDRESS: usize = 45;

/// Leading bits of an IPv6 address that identify one client: one subscriber has at least a /64.
pub const IPV6_PREFIX: u8 = 64;

/// The longest text of an address with brackets, port and zone.
const LONGEST_NODE: usize = 128;

/// The prefix whose addresses stand for IPv4 addresses behind a translator (RFC 6052, section 2.1).
const NAT64: u128 = 0x0064_ff9b_u128 << 96;

/// Returns the canonical address of a client, as a header or a log has it; `None` if `text` is not
/// an address.
///
/// Brackets, a port and a zone are dropped. An IPv4-mapped address becomes IPv4, and so does one of
/// the well-known prefix of translators. IPv6 addresses with the same first `ipv6_prefix` bits
/// become the lowest one, except link-local ones: all of a network's hosts share that prefix.
///
/// # Source
/// RFC 5952, section 4, for IPv6; RFC 7239, section 6, for the port; RFC 6052 for translators.
#[must_use]
pub fn client_address(text: &str, ipv6_prefix: u8) -> Option<Cow<'_, str>> {
    let address = match parse_client(text)? {
        IpAddr::V6(address) => lowest(address, shared_prefix(address, ipv6_prefix)).into(),
        address @ IpAddr::V4(_) => address,
    };
    Some(spelled(address, text))
}

/// Reads the address of a client; `None` if `text` is not one.
pub(in crate::engine) fn parse_client(text: &str) -> Option<IpAddr> {
    Some(match parse_node(text)? {
        IpAddr::V6(address) if address.to_bits() & mask(96) == NAT64 => {
            // The last 32 bits.
            Ipv4Addr::from_bits(address.to_bits() as u32).into()
        }
        address => address,
    })
}

/// Leading bits that identify one client among addresses of which `ipv6_prefix` usually do.
pub(in crate::engine) fn shared_prefix(address: Ipv6Addr, ipv6_prefix: u8) -> u8 {
    if address.is_unicast_link_local() { 128 } else { ipv6_prefix }
}

/// The lowest address with the same first `prefix` bits.
pub(in crate::engine) fn lowest(address: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    Ipv6Addr::from_bits(address.to_bits() & mask(prefix))
}

/// The first `prefix` bits of an IPv6 address.
pub(in crate::engine) fn mask(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

/// The canonical text of an address; `text` where it is spelled so.
pub(in crate::engine) fn spelled(address: IpAddr, text: &str) -> Cow<'_, str> {
    Spelling::of(address).in_place_of(text)
}

fn parse_node(text: &str) -> Option<IpAddr> {
    let first = *text.as_bytes().first()?;
    if text.len() > LONGEST_NODE || !(first.is_ascii_hexdigit() || matches!(first, b':' | b'[')) {
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

/// Whether a text is a port, or an obfuscated one such as `_hidden`.
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(name) => {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            !name.is_empty() && name.bytes().all(is_plain)
        }
        None => (1..=5).contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_digit()),
    }
}

/// Reads an address; an IPv4-mapped IPv6 address becomes IPv4. A port, zone or mask is no part of
/// one.
#[inline]
pub(super) fn parse(text: &str) -> Option<IpAddr> {
    if text.len() > LONGEST_ADDRESS {
        return None;
    }
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// Reads an address and spells it canonically, borrowing where it is spelled so already.
///
/// # Source
/// RFC 5952, section 4, for IPv6.
#[inline]
pub(super) fn canonical(text: &str) -> Option<Cow<'_, str>> {
    if text.len() > LONGEST_ADDRESS {
        return None;
    }
    match text.parse::<IpAddr>().ok()? {
        // The parser takes no other spelling of IPv4 than the canonical one.
        IpAddr::V4(_) => Some(Cow::Borrowed(text)),
        IpAddr::V6(address) => Some(Spelling::of(address.to_canonical()).in_place_of(text)),
    }
}

/// Reads a network, masked; `None` if it is no address with a mask.
///
/// One of IPv4-mapped addresses alone becomes IPv4, as its addresses do.
pub(super) fn network(text: &str) -> Option<IpNet> {
    let (address, mask) = text.split_once('/')?;
    if address.len() > LONGEST_ADDRESS {
        return None;
    }
    let mask = mask_length(mask)?;
    match address.parse::<IpAddr>().ok()? {
        IpAddr::V4(address) => Ipv4Net::new(address, mask).ok().map(|net| IpNet::V4(net.trunc())),
        IpAddr::V6(address) => {
            if let (Some(mapped), Some(mask)) = (address.to_ipv4_mapped(), mask.checked_sub(96)) {
                return Ipv4Net::new(mapped, mask).ok().map(|net| IpNet::V4(net.trunc()));
            }
            Ipv6Net::new(address, mask).ok().map(|net| IpNet::V6(net.trunc()))
        }
    }
}

/// Reads the length of a mask: digits without a leading zero, at most 128.
pub(super) fn mask_length(text: &str) -> Option<u8> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit())
        && (text == "0" || !text.starts_with('0'))
        && text.len() <= 3;
    if is_plain { text.parse().ok().filter(|&mask| mask <= 128) } else { None }
}

/// The network that covers an address: IPv4 alone, IPv6 with the rest of its `mask`; `text` where
/// it is spelled so.
pub(super) fn covering(address: IpAddr, mask: u8, text: &str) -> Cow<'_, str> {
    match address {
        IpAddr::V4(_) => Spelling::of(address).masked(32).in_place_of(text),
        IpAddr::V6(address) => {
            Spelling::of(lowest(address, mask).into()).masked(mask).in_place_of(text)
        }
    }
}

/// The text of an address or a network, on the stack.
///
/// The standard library spells addresses alike, but takes two to three times as long over it.
struct Spelling {
    /// The longest network has 43 bytes; a power of two lets the compiler see that none is beyond
    /// the end.
    bytes: [u8; 64],
    length: usize,
}

impl Spelling {
    fn of(address: IpAddr) -> Spelling {
        let mut spelling = Spelling { bytes: [0; 64], length: 0 };
        match address {
            IpAddr::V4(address) => {
                for (place, byte) in address.octets().into_iter().enumerate() {
                    if place > 0 {
                        spelling.push(b'.');
                    }
                    spelling.decimal(byte);
                }
            }
            IpAddr::V6(address) => spelling.groups(address.segments()),
        }
        spelling
    }

    fn masked(mut self, length: u8) -> Spelling {
        self.push(b'/');
        self.decimal(length);
        self
    }

    /// This spelling, borrowed from `text` where it is the same.
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
        // The first digit that is not 0, or else the last.
        let mut shift = (15 - (group | 1).leading_zeros()) / 4 * 4;
        loop {
            self.push(DIGITS[usize::from(group >> shift & 0xf)]);
            if shift == 0 {
                break;
            }
            shift -= 4;
        }
    }

    /// Eight groups, the first of the longest runs of zeros left out if it is longer than one.
    fn groups(&mut self, groups: [u16; 8]) {
        let (mut start, mut end) = (8, 8);
        let mut run = 0;
        for (place, group) in groups.into_iter().enumerate() {
            run = if group == 0 { run + 1 } else { 0 };
            if run > 1 && run > end - start {
                (start, end) = (place + 1 - run, place + 1);
            }
        }
        for (place, group) in groups.into_iter().enumerate() {
            if place == start {
                self.push(b':');
                // The colon before the groups behind the run; at the end there are none.
                if end == 8 {
                    self.push(b':');
                }
            }
            if (start..end).contains(&place) {
                continue;
            }
            if place > 0 {
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
    fn an_address_is_spelled_as_its_rfc_says() {
        // RFC 5952, sections 4.1 to 4.3 and 5; then the corners of the run that is left out.
        for (text, canonical) in [
            ("2001:0db8::0001", "2001:db8::1"),
            ("2001:db8:0:0:0:0:2:1", "2001:db8::2:1"),
            ("2001:db8::1:1:1:1:1", "2001:db8:0:1:1:1:1:1"),
            ("2001:0:0:1:0:0:0:1", "2001:0:0:1::1"),
            ("2001:db8:0:0:1:0:0:1", "2001:db8::1:0:0:1"),
            ("2001:DB8::AbCd", "2001:db8::abcd"),
            ("0:0:0:0:0:0:0:0", "::"),
            ("0:0:0:0:0:0:0:1", "::1"),
            ("1:0:0:0:0:0:0:0", "1::"),
            ("0:1:0:0:0:0:0:0", "0:1::"),
            ("0:0:1:0:0:0:0:0", "0:0:1::"),
            ("1:2:3:4:5:6:0:0", "1:2:3:4:5:6::"),
            ("0:0:1:0:0:2:0:0", "::1:0:0:2:0:0"),
            ("1:2:3:4:5:6:7:0", "1:2:3:4:5:6:7:0"),
            ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("::ffff:192.0.2.105", "192.0.2.105"),
            ("::192.0.2.1", "::c000:201"),
        ] {
            assert_eq!(canonical_of(text), canonical);
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(address.to_canonical().to_string(), canonical, "as std");
        }
    }

    #[test]
    fn clients_that_share_a_prefix_by_accident_stay_apart() {
        for (text, client) in [
            // RFC 6052: behind a translator, the last 32 bits are the IPv4 address.
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

    fn canonical_of(text: &str) -> String {
        canonical(text).unwrap().into_owned()
    }

    #[test]
    fn the_longest_network_fits() {
        let longest = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        let network = covering(longest.parse().unwrap(), 128, "");
        assert_eq!(network, format!("{longest}/128"));
        assert_eq!(covering("::1".parse().unwrap(), 0, ""), "::/0");
    }
}
