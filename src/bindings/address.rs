//! The function `canonical_address`, used by the adapters.

use std::borrow::Cow;

use pyo3::prelude::*;

use crate::engine::id::client_address;

/// Return the canonical form of a client address from a header; `None` if it is not an address.
///
/// Brackets, a port and a zone are removed. IPv4-mapped addresses and addresses in the NAT64 prefix
/// `64:ff9b::/96` become IPv4. Other IPv6 addresses, except link-local ones, are truncated to their
/// first `ipv6_prefix` bits.
///
/// Args:
///     text: The address, at most 128 bytes.
///     ipv6_prefix: Leading bits that identify one client, from 1 to 128.
///
/// >>> penstock._core.canonical_address("[2001:DB8::1]:443", 64)
/// '2001:db8::'
/// >>> penstock._core.canonical_address("unknown", 64)
#[pyfunction]
pub(crate) fn canonical_address(text: &str, ipv6_prefix: u8) -> Option<Cow<'_, str>> {
    client_address(text, ipv6_prefix)
}
