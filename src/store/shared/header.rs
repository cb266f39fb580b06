//! The header of a table's file, and the checks before a file is used.
#![expect(clippy::disallowed_methods, reason = "a shared table is a file, and its header is read")]

use std::fs::{self, File};
use std::hash::Hasher;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use siphasher::sip::SipHasher13;

use crate::hash::HashKey;
use crate::store::shared::TableOpenError;
use crate::store::shared::slot::SharedSlot;
use crate::store::shared::table_memory::{SLOTS_PER_BUCKET, SLOTS_PER_LINE, TableCounters};
use crate::sync::counting::AtomicU64;

const MAGIC: u64 = u64::from_ne_bytes(*b"penstock");
const LAYOUT: u32 = 5;
const ENDIAN_MARK: u32 = 0x0102_0304;
pub(super) const HEADER_BYTES: usize = 4096;
/// The offset of the counters, which all processes write.
const COUNTERS_AT: usize = offset_of!(FirstPage, counters);
/// Bytes of the header that never change after creation. Their checksum follows.
const FIXED_BYTES: usize = COUNTERS_AT - size_of::<u64>();
/// The file with the boot id on Linux.
#[cfg(not(target_vendor = "apple"))]
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";
/// Lines in which a key may be, starting at its home line.
pub(super) const WINDOW: usize = 8;
const _: () = assert!(COUNTERS_AT == 128 && size_of::<FirstPage>() <= HEADER_BYTES);

/// The first page of a table's file in the memory of its processes.
#[repr(C)]
pub(super) struct FirstPage {
    /// The header, which is read when the file is opened.
    header: [AtomicU64; 16],
    pub(super) counters: TableCounters,
}

/// The part of the header that never changes.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub(super) home_lines: u64,
    pub(super) file_bytes: u64,
    pub(super) boot_id: [u8; 16],
    /// The key of the hash that places buckets, from the operating system's randomness.
    pub(super) hash_key: HashKey,
    owner: u32,
    time_namespace: u64,
}

impl Header {
    /// Returns the header of a new table.
    pub(super) fn new(capacity: usize, hash_key: HashKey, machine: &Machine) -> Header {
        let home_lines = home_lines(capacity);
        Header {
            home_lines,
            file_bytes: file_bytes(home_lines),
            boot_id: machine.boot_id,
            hash_key,
            owner: machine.user,
            time_namespace: machine.time_namespace,
        }
    }

    /// Returns whether the table has this capacity; `None` is any.
    pub(super) fn has_capacity(&self, capacity: Option<usize>) -> bool {
        capacity.is_none_or(|capacity| self.home_lines == home_lines(capacity))
    }

    /// Returns the number of buckets for which the table was created.
    pub(super) fn capacity(&self) -> u64 {
        self.home_lines * SLOTS_PER_LINE as u64 / SLOTS_PER_BUCKET as u64
    }

    /// Returns the bytes of the header page.
    pub(super) fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&MAGIC.to_ne_bytes());
        for field in [LAYOUT, ENDIAN_MARK, HEADER_BYTES as u32, size_of::<SharedSlot>() as u32] {
            put(&field.to_ne_bytes());
        }
        put(&self.home_lines.to_ne_bytes());
        put(&(WINDOW as u32).to_ne_bytes());
        put(&(SLOTS_PER_LINE as u32).to_ne_bytes());
        put(&self.file_bytes.to_ne_bytes());
        put(&self.boot_id);
        put(&self.hash_key.0.to_ne_bytes());
        put(&self.hash_key.1.to_ne_bytes());
        put(&self.owner.to_ne_bytes());
        put(&[0; 4]);
        put(&self.time_namespace.to_ne_bytes());
        let sum = checksum(&bytes[..FIXED_BYTES]);
        bytes[FIXED_BYTES..COUNTERS_AT].copy_from_slice(&sum.to_ne_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn of_bytes(bytes: &[u8; HEADER_BYTES]) -> Result<Header, &'static str> {
        let mut at = 0;
        let mut field = |length: usize| {
            at += length;
            &bytes[at - length..at]
        };
        if u64_of(field(8)) != MAGIC {
            return Err("it is not a penstock table");
        }
        if u32_of(field(4)) != LAYOUT {
            return Err("another version of penstock made it");
        }
        if u32_of(field(4)) != ENDIAN_MARK {
            return Err("a machine with another byte order made it");
        }
        let sizes = [u32_of(field(4)), u32_of(field(4))];
        let home_lines = u64_of(field(8));
        let shape = [u32_of(field(4)), u32_of(field(4))];
        if sizes != [HEADER_BYTES as u32, size_of::<SharedSlot>() as u32]
            || shape != [WINDOW as u32, SLOTS_PER_LINE as u32]
        {
            return Err("another version of penstock made it");
        }
        let file_bytes = u64_of(field(8));
        let mut boot_id = [0; 16];
        boot_id.copy_from_slice(field(16));
        let hash_key = HashKey(u64_of(field(8)), u64_of(field(8)));
        let owner = u32_of(field(4));
        field(4);
        let time_namespace = u64_of(field(8));
        if u64_of(&bytes[FIXED_BYTES..COUNTERS_AT]) != checksum(&bytes[..FIXED_BYTES]) {
            return Err("its header is damaged");
        }
        Ok(Header { home_lines, file_bytes, boot_id, hash_key, owner, time_namespace })
    }
}

/// Returns the number in 8 bytes.
fn u64_of(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}

/// Returns the number in 4 bytes.
fn u32_of(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_ne_bytes)
}

/// Returns the checksum of the fixed bytes.
fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Returns the number of home lines of a table with this capacity.
fn home_lines(capacity: usize) -> u64 {
    let slots = (capacity.max(1) as u64).saturating_mul(SLOTS_PER_BUCKET as u64);
    slots.div_ceil(SLOTS_PER_LINE as u64)
}

/// Returns the length of a table's file. The length of an impossible table saturates, and no file
/// has it.
fn file_bytes(home_lines: u64) -> u64 {
    // The last windows extend beyond the last home line, so that none wraps around.
    let lines = home_lines.saturating_add(WINDOW as u64 - 1);
    let slots = lines.saturating_mul((SLOTS_PER_LINE * size_of::<SharedSlot>()) as u64);
    slots.saturating_add(HEADER_BYTES as u64)
}

/// The properties that a table must match to be used by this process.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) boot_id: [u8; 16],
    pub(super) user: u32,
    time_namespace: u64,
}

impl Machine {
    /// Returns the properties of this process and the machine.
    ///
    /// # Errors
    /// [`TableOpenError::UnknownBoot`] if the boot id cannot be read. Without it, a table in use looks like
    /// one that was created before the machine started.
    pub(super) fn current() -> Result<Machine, TableOpenError> {
        let text = boot_id_text().map_err(|error| error.to_string());
        let boot_id = text.and_then(|text| {
            parse_boot_id(&text).ok_or_else(|| format!("expected a UUID, found {:?}", text.trim()))
        });
        Ok(Machine {
            boot_id: boot_id.map_err(|why| TableOpenError::UnknownBoot { why })?,
            user: rustix::process::geteuid().as_raw(),
            time_namespace: fs::metadata("/proc/self/ns/time").map_or(0, |file| file.ino()),
        })
    }

    /// Returns whether a table was created since this machine started.
    ///
    /// # Errors
    /// [`TableOpenError::Refused`] if the table does not say when it was created.
    pub(super) fn has_created(&self, header: &Header, path: &Path) -> Result<bool, TableOpenError> {
        if header.boot_id == [0; 16] {
            let reason = "it does not say whether it was created since the machine started";
            return Err(TableOpenError::Refused { path: path.to_owned(), reason });
        }
        Ok(header.boot_id == self.boot_id)
    }
}

/// Parses a boot id; `None` if the string is not a UUID or all of its digits are 0.
fn parse_boot_id(text: &str) -> Option<[u8; 16]> {
    let digits = text.trim().replace('-', "");
    let id = u128::from_str_radix(&digits, 16).ok().filter(|&id| digits.len() == 32 && id != 0);
    id.map(u128::to_be_bytes)
}

#[cfg(not(target_vendor = "apple"))]
fn boot_id_text() -> io::Result<String> {
    fs::read_to_string(BOOT_ID_FILE)
}

#[cfg(target_vendor = "apple")]
fn boot_id_text() -> io::Result<String> {
    let mut text = [0_u8; 64];
    let mut length = text.len();
    let name = c"kern.bootsessionuuid".as_ptr();
    let (value, none) = (text.as_mut_ptr().cast(), std::ptr::null_mut());
    // SAFETY: the kernel writes at most `length` bytes of `text`, and reads the name as far as its
    // zero.
    let outcome = unsafe { libc::sysctlbyname(name, value, &raw mut length, none, 0) };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    let bytes = text.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

/// Returns the header of a table, if the table may be used: it belongs to this user, no other user
/// may access it, and it is complete.
///
/// # Errors
/// [`TableOpenError::Refused`].
pub(super) fn read_header(
    file: &File,
    path: &Path,
    machine: &Machine,
) -> Result<Header, TableOpenError> {
    let refused = |reason| TableOpenError::Refused { path: path.to_owned(), reason };
    let length = refuse_others(file, path, machine)?;
    let mut bytes = [0; HEADER_BYTES];
    if length < HEADER_BYTES as u64 || file.read_exact_at(&mut bytes, 0).is_err() {
        return Err(refused("it is shorter than a table's header"));
    }
    let header = Header::of_bytes(&bytes).map_err(refused)?;
    if header.file_bytes != file_bytes(header.home_lines) || header.file_bytes != length {
        return Err(refused("its length is not the one it was created with"));
    }
    if header.time_namespace != machine.time_namespace {
        return Err(refused("it was created in another time namespace, where clocks differ"));
    }
    Ok(header)
}

/// The types of network file systems in the kernel's `magic.h`: NFS, SMB and its successors, Ceph,
/// AFS (two implementations), Coda, GFS2, OCFS2 and Lustre. Other machines see their files, but
/// have other clocks and boot ids. FUSE is not among them, because it serves local file systems
/// too.
#[cfg(target_os = "linux")]
const NETWORK_FILE_SYSTEMS: [u32; 11] = [
    0x0000_6969,
    0x0000_517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x00c3_6400,
    0x5346_414f,
    0x6b41_4653,
    0x7375_7245,
    0x0116_1970,
    0x7461_636f,
    0x0bd0_0bd0,
];

/// Returns whether a file is on a network file system.
#[cfg(target_os = "linux")]
fn is_on_network(file: &File) -> bool {
    let found = rustix::fs::fstatfs(file);
    found.is_ok_and(|found| NETWORK_FILE_SYSTEMS.contains(&(found.f_type as u32)))
}

#[cfg(not(target_os = "linux"))]
fn is_on_network(_: &File) -> bool {
    false
}

/// Returns the length of a file.
///
/// # Errors
/// [`TableOpenError::Refused`] if it is not a regular file of this user on this machine, or another user
/// may access it.
pub(super) fn refuse_others(
    file: &File,
    path: &Path,
    machine: &Machine,
) -> Result<u64, TableOpenError> {
    let refused = |reason| TableOpenError::Refused { path: path.to_owned(), reason };
    let metadata = file.metadata();
    let metadata = metadata.map_err(|source| TableOpenError::Io {
        action: "read",
        path: path.to_owned(),
        source,
    })?;
    if !metadata.is_file() {
        return Err(refused("it is not a regular file"));
    }
    if metadata.uid() != machine.user {
        return Err(refused("it belongs to another user"));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(refused("other users may access it; its mode must be 0600"));
    }
    if is_on_network(file) {
        return Err(refused("it is on a network file system; use a path on this machine"));
    }
    Ok(metadata.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_uuid_is_a_boot_id() {
        let id = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
        let bytes = [15, 30, 45, 60, 75, 90, 105, 120, 135, 150, 165, 180, 195, 210, 225, 240];
        assert_eq!(parse_boot_id(&format!("{id}\n")), Some(bytes));
        for text in ["", "\n", &id[..35], "00000000-0000-0000-0000-000000000000", &"x".repeat(32)] {
            assert_eq!(parse_boot_id(text), None, "{text:?}");
        }
    }
}
