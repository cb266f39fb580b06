//! Sets of names and addresses, identified by a digest.

use std::borrow::Cow;
use std::fmt::Write;

use sha2::{Digest, Sha256};

use crate::engine::id::error::IdError;
use crate::engine::id::{IdFormat, address, name};

/// The maximum length of a set; the largest sets of certificate authorities are half as long.
const MAX_LENGTH: usize = 65_536;

/// Returns the SHA-256, in lower-case hex, of the sorted names and then the sorted addresses,
/// without duplicates.
pub(super) fn digest(raw: &str) -> Result<Cow<'_, str>, IdError> {
    if raw.len() > MAX_LENGTH {
        return Err(IdError::TooLong {
            format: IdFormat::FqdnSet,
            most: MAX_LENGTH,
            found: raw.len(),
        });
    }
    let mut members = raw.split(',').map(member).collect::<Result<Vec<_>, _>>()?;
    members.sort_unstable();
    members.dedup();
    let mut digest = Sha256::new();
    for (index, (_, member)) in members.iter().enumerate() {
        if index > 0 {
            digest.update(b",");
        }
        digest.update(member.as_bytes());
    }
    let mut hex = String::with_capacity(64);
    for byte in digest.finalize() {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    Ok(Cow::Owned(hex))
}

/// Returns a member and whether it is an address, because names are sorted first.
fn member(text: &str) -> Result<(bool, Cow<'_, str>), IdError> {
    match address::canonical(text) {
        Some(address) => Ok((true, address)),
        None => Ok((false, name::lower_case(text)?)),
    }
}
