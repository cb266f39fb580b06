//! IP addresses and networks in canonical spelling.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::str;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The longest text of an address: eight groups, the last two as IPv4.
const LONGEST_ADDRESS: usize = 45;

/// Reads an address; an IPv4-mapped IPv6 address becomes IPv4. A port, zone or mask is no part of one.
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
        address => Some(spelled(text, &address.to_canonical())),
    }
}

/// `value` as text: `text` itself where that is the same.
pub(super) fn spelled<'a>(text: &'a str, value: &dyn fmt::Display) -> Cow<'a, str> {
    let mut short = Short::EMPTY;
    // Cannot fail: the longest network has 43 bytes.
    let _ = write!(short, "{value}");
    let spelling = short.as_str();
    if spelling == text { Cow::Borrowed(text) } else { Cow::Owned(spelling.to_owned()) }
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

/// The network of `mask` that covers `address`.
pub(super) fn covering(address: Ipv6Addr, mask: u8) -> IpNet {
    // A mask is at most 128, so the other branch is never taken; the address alone would be the safe answer there.
    match Ipv6Net::new(address, mask) {
        Ok(net) => IpNet::V6(net.trunc()),
        Err(_) => IpNet::from(IpAddr::V6(address)),
    }
}

/// A text on the stack, long enough for every address and network.
struct Short {
    bytes: [u8; 46],
    length: usize,
}

impl Short {
    const EMPTY: Short = Short { bytes: [0; 46], length: 0 };

    fn as_str(&self) -> &str {
        // Whole strings were written one after another, so the bytes are UTF-8.
        str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl fmt::Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        let room = self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}
