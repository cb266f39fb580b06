//! `canonical_address`, for the adapters.

use std::borrow::Cow;

use pyo3::prelude::*;

use crate::engine::id::client_address;

/// Return the canonical address of a client, as a header has it; `None` if it is not an address.
///
/// Brackets, a port and a zone are dropped. An IPv4-mapped address becomes IPv4, and so does one of
/// the NAT64 prefix `64:ff9b::/96`. IPv6 addresses with the same first `ipv6_prefix` bits become
/// the lowest one, except link-local ones.
///
/// Args:
///     text: The address; at most 128 bytes.
///     ipv6_prefix: Leading bits that identify one client, from 1 to 128.
///
/// >>> penstock._core.canonical_address("[2001:DB8::1]:443", 64)
/// '2001:db8::'
/// >>> penstock._core.canonical_address("unknown", 64)
#[pyfunction]
pub(crate) fn canonical_address(text: &str, ipv6_prefix: u8) -> Option<Cow<'_, str>> {
    client_address(text, ipv6_prefix)
}
