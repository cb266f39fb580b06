//! The file of a shared table: how it is created, checked, mapped and replaced.
//!
//! `NAME` is the table. `NAME.new` is where it is built, under a lock on `NAME.new` itself, and then
//! renamed. A builder that dies at any instruction leaves at most an unlocked `NAME.new`, which the
//! next builder starts again. There is never a half-made `NAME`.
#![expect(clippy::disallowed_methods, reason = "a shared table is a file, and this file opens it")]

use std::fs::{self, File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use memmap2::{MmapOptions, MmapRaw};
use siphasher::sip::SipHasher13;

use crate::clock::{self, BootClock, Clock};
use crate::engine::time::Timestamp;
use crate::store::hash::HashKey;
use crate::store::shared::lock::{ProcessLock, WindowGuard, lock_builders, retry};
use crate::store::shared::slot::Slot;
use crate::store::shared::table::{Counters, Memory, SLOTS_PER_BUCKET, SLOTS_PER_LINE, Wait};
use crate::store::shared::{OpenError, SharedError};

const MAGIC: u64 = u64::from_ne_bytes(*b"penstock");
const LAYOUT: u32 = 1;
const ENDIAN_MARK: u32 = 0x0102_0304;
const HEADER_BYTES: usize = 4096;
/// Bytes of the header that never change after creation; their checksum follows them.
const FIXED_BYTES: usize = 120;
/// Where the words that all processes write begin.
const COUNTERS_AT: usize = 128;
/// Lines in which a key may be, from its home line on.
const WINDOW: usize = 8;
const _: () = assert!(COUNTERS_AT + size_of::<Counters>() <= HEADER_BYTES);

/// The part of the header that never changes.
#[derive(Clone, Debug)]
struct Header {
    home_lines: u64,
    file_bytes: u64,
    boot_id: [u8; 16],
    /// The key of the hash that places buckets, from the operating system's randomness.
    hash_key: HashKey,
    owner: u32,
    /// The wall clock less the boot-time clock when the file was created: every process adds this
    /// one offset, so that all read one clock.
    clock_offset: i64,
    time_namespace: u64,
    /// When the file was created, by its own clock.
    created: i64,
}

impl Header {
    fn new(capacity: usize, hash_key: HashKey, machine: &Machine) -> Header {
        let home_lines = (capacity.max(1) * SLOTS_PER_BUCKET).div_ceil(SLOTS_PER_LINE);
        let clock_offset = clock::wall_offset_of_boot_time();
        Header {
            home_lines: home_lines as u64,
            file_bytes: file_bytes(home_lines as u64),
            boot_id: machine.boot_id,
            hash_key,
            owner: machine.user,
            clock_offset,
            time_namespace: machine.time_namespace,
            created: BootClock::new(clock_offset).now().get(),
        }
    }

    /// Buckets that the file was made for.
    fn capacity(&self) -> u64 {
        self.home_lines * SLOTS_PER_LINE as u64 / SLOTS_PER_BUCKET as u64
    }

    fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&MAGIC.to_ne_bytes());
        for field in [LAYOUT, ENDIAN_MARK, HEADER_BYTES as u32, size_of::<Slot>() as u32] {
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
        put(&self.clock_offset.to_ne_bytes());
        put(&self.time_namespace.to_ne_bytes());
        put(&self.created.to_ne_bytes());
        let sum = checksum(&bytes[..FIXED_BYTES]);
        bytes[FIXED_BYTES..COUNTERS_AT].copy_from_slice(&sum.to_ne_bytes());
        bytes
    }

    /// Reads a header; the text says what is wrong with it.
    fn of_bytes(bytes: &[u8; HEADER_BYTES]) -> Result<Header, &'static str> {
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
        if sizes != [HEADER_BYTES as u32, size_of::<Slot>() as u32]
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
        let clock_offset = u64_of(field(8)) as i64;
        let time_namespace = u64_of(field(8));
        let created = u64_of(field(8)) as i64;
        if u64_of(&bytes[FIXED_BYTES..COUNTERS_AT]) != checksum(&bytes[..FIXED_BYTES]) {
            return Err("its header is damaged");
        }
        Ok(Header {
            home_lines,
            file_bytes,
            boot_id,
            hash_key,
            owner,
            clock_offset,
            time_namespace,
            created,
        })
    }
}

fn u64_of(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}

fn u32_of(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_ne_bytes)
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish()
}

fn file_bytes(home_lines: u64) -> u64 {
    // The last windows reach past the last home line, so that none wraps.
    let lines = home_lines + WINDOW as u64 - 1;
    HEADER_BYTES as u64 + lines * (SLOTS_PER_LINE * size_of::<Slot>()) as u64
}

/// What a table must agree with to be used here.
#[derive(Debug)]
struct Machine {
    boot_id: [u8; 16],
    user: u32,
    time_namespace: u64,
}

impl Machine {
    fn current() -> Machine {
        Machine {
            boot_id: boot_id(),
            user: rustix::process::geteuid().as_raw(),
            time_namespace: fs::metadata("/proc/self/ns/time").map_or(0, |file| file.ino()),
        }
    }
}

/// The boot's identity, as the kernel states it; zeros where it states none.
fn boot_id() -> [u8; 16] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> =
        text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    id
}

/// A table's file, mapped.
#[derive(Debug)]
pub struct MappedFile {
    header: Header,
    home_lines: usize,
    map: MmapRaw,
    /// Kept for life: closing any descriptor of the file would drop this process's locks on it.
    file: Option<File>,
    identity: (u64, u64),
    path: PathBuf,
}

impl MappedFile {
    /// Opens the table at `path`, or creates it with room for `capacity` buckets.
    ///
    /// # Errors
    /// [`OpenError`] if there is a file that is not a table of this user on this machine, or there
    /// is no room.
    pub fn open(path: &Path, capacity: usize) -> Result<MappedFile, OpenError> {
        Self::open_reporting(path, capacity, |_| {})
    }

    /// Opens the table at `path` if there is one of this boot, and never creates one.
    ///
    /// # Errors
    /// As [`MappedFile::open`], and [`OpenError::Missing`].
    pub fn open_existing(path: &Path) -> Result<MappedFile, OpenError> {
        let _process = process_lock(path)?;
        let table = existing(path, &Machine::current())?;
        table.ok_or_else(|| OpenError::Missing { path: path.to_owned() })
    }

    /// As [`MappedFile::open`]; `reached` is called at each numbered instant at which the process
    /// may die.
    pub fn open_reporting(
        path: &Path,
        capacity: usize,
        reached: impl Fn(BuildPoint),
    ) -> Result<MappedFile, OpenError> {
        let machine = Machine::current();
        // Another process that builds the table is waited for without this process's lock, which
        // calls on other tables need.
        let opened = retry(Wait::ForOpening, || {
            let _process = process_lock(path)?;
            match existing(path, &machine)? {
                Some(table) => Ok(Some(table)),
                None => build(path, capacity, &machine, &reached),
            }
        });
        opened.and_then(|table| table.ok_or_else(|| OpenError::Busy { path: path.to_owned() }))
    }

    fn map(file: File, header: Header, path: &Path) -> Result<MappedFile, OpenError> {
        let failed = |source| OpenError::Io { action: "map", path: path.to_owned(), source };
        let metadata = file.metadata().map_err(failed)?;
        let map = MmapOptions::new().len(header.file_bytes as usize).map_raw(&file);
        Ok(MappedFile {
            home_lines: header.home_lines as usize,
            map: map.map_err(failed)?,
            identity: (metadata.dev(), metadata.ino()),
            file: Some(file),
            path: path.to_owned(),
            header,
        })
    }

    /// The clock that every process reads with this table.
    pub fn clock(&self) -> BootClock {
        BootClock::new(self.header.clock_offset)
    }

    /// The key of the hash that places buckets.
    pub fn hash_key(&self) -> HashKey {
        self.header.hash_key
    }

    /// Buckets that the table was made for.
    pub fn capacity(&self) -> u64 {
        self.header.capacity()
    }

    /// When the table was created, by its own clock.
    pub fn created(&self) -> Timestamp {
        Timestamp::clamped(self.header.created)
    }

    /// Where the table is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn slots(&self) -> usize {
        (self.home_lines + WINDOW - 1) * SLOTS_PER_LINE
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // A close drops the locks that other threads hold on the file. It waits for them, and
        // closes all the same if it cannot.
        let _process = ProcessLock::take(Wait::ForOpening);
        self.file.take();
    }
}

impl Memory for MappedFile {
    type Guard<'a> = WindowGuard<'a>;

    #[inline(always)]
    fn home_lines(&self) -> usize {
        self.home_lines
    }

    #[inline(always)]
    fn window(&self) -> usize {
        WINDOW
    }

    #[inline(always)]
    fn slot(&self, index: usize) -> &Slot {
        debug_assert!(index < self.slots(), "slot {index} is beyond the table");
        // SAFETY: the map has `slots()` slots behind the header, as `open` has checked, and the
        // table asks for no other: a home line is below `home_lines`. A slot is two atomic words,
        // for which any bytes are valid, and a page's start is aligned for them.
        unsafe { &*self.map.as_ptr().add(HEADER_BYTES).cast::<Slot>().add(index) }
    }

    #[inline(always)]
    fn counters(&self) -> &Counters {
        // SAFETY: the header is longer than this, and the words are atomics, aligned to 64 bytes
        // as the offset is.
        unsafe { &*self.map.as_ptr().add(COUNTERS_AT).cast::<Counters>() }
    }

    fn lock(&self, line: usize, wait: Wait) -> Result<Option<WindowGuard<'_>>, SharedError> {
        let file = self.file.as_ref().ok_or(SharedError::Replaced)?;
        WindowGuard::take(file, self.identity, line, WINDOW, wait)
    }
}

/// The instants of a creation at which a process may die; tests kill it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BuildPoint {
    /// `NAME.new` is open.
    Opened = 21,
    /// `NAME.new` is locked.
    Locked = 22,
    /// `NAME` was looked at again.
    LookedAgain = 23,
    /// The file's bytes are reserved.
    Reserved = 24,
    /// The header is written.
    HeaderWritten = 25,
    /// The table is in its place.
    Renamed = 26,
}

fn process_lock(path: &Path) -> Result<ProcessLock, OpenError> {
    match ProcessLock::take(Wait::ForOpening) {
        Ok(Some(lock)) => Ok(lock),
        Ok(None) | Err(_) => Err(OpenError::Busy { path: path.to_owned() }),
    }
}

/// The table at `path`, if there is one of this boot.
fn existing(path: &Path, machine: &Machine) -> Result<Option<MappedFile>, OpenError> {
    let Some(file) = open_file(path, false)? else { return Ok(None) };
    let header = checked(&file, path, machine)?;
    if header.boot_id != machine.boot_id {
        // Its clock has started again: nothing in it can be read by today's clock.
        return Ok(None);
    }
    MappedFile::map(file, header, path).map(Some)
}

/// Builds a table beside `path` and renames it; `None` if another process does or did.
fn build(
    path: &Path,
    capacity: usize,
    machine: &Machine,
    reached: &impl Fn(BuildPoint),
) -> Result<Option<MappedFile>, OpenError> {
    let mut building = path.as_os_str().to_owned();
    building.push(".new");
    let building = PathBuf::from(building);
    let io = |action: &'static str, path: &Path| {
        let path = path.to_owned();
        move |source| OpenError::Io { action, path, source }
    };
    let Some(file) = open_file(&building, true)? else { return Ok(None) };
    reached(BuildPoint::Opened);
    refuse_others(&file, &building, machine)?;
    if !lock_builders(&file).map_err(io("lock", &building))? {
        return Ok(None);
    }
    reached(BuildPoint::Locked);
    // Another process may have renamed or removed it since it was opened here.
    let locked = file.metadata().map_err(io("read", &building))?;
    match fs::symlink_metadata(&building) {
        Ok(found) if (found.dev(), found.ino()) == (locked.dev(), locked.ino()) => {}
        _ => return Ok(None),
    }
    let ready = existing(path, machine)?;
    reached(BuildPoint::LookedAgain);
    if ready.is_some() {
        fs::remove_file(&building).map_err(io("remove", &building))?;
        return Ok(ready);
    }
    let header = Header::new(capacity, HashKey::random(), machine);
    file.set_len(0).map_err(io("create", &building))?;
    // Reserved now: a file system without room is an error here, and not a fatal signal at some
    // later write.
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, header.file_bytes)
        .map_err(io_error)
        .and_then(|()| file.set_len(header.file_bytes))
        .map_err(|source| {
            // An empty file takes no room from anybody.
            let _ = file.set_len(0);
            OpenError::NoRoom { path: path.to_owned(), bytes: header.file_bytes, source }
        })?;
    reached(BuildPoint::Reserved);
    file.write_all_at(&header.to_bytes(), 0).map_err(io("write", &building))?;
    reached(BuildPoint::HeaderWritten);
    fs::rename(&building, path).map_err(io("create", path))?;
    reached(BuildPoint::Renamed);
    MappedFile::map(file, header, path).map(Some)
}

/// Opens a file without following a link; `None` if there is none and `create` is false.
fn open_file(path: &Path, create: bool) -> Result<Option<File>, OpenError> {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(create)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path);
    match opened {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !create => Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            Err(OpenError::Refused { path: path.to_owned(), reason: "it is a symbolic link" })
        }
        Err(source) => Err(OpenError::Io { action: "open", path: path.to_owned(), source }),
    }
}

/// The header of a table that may be used: of this user, for this user alone, whole.
fn checked(file: &File, path: &Path, machine: &Machine) -> Result<Header, OpenError> {
    let refused = |reason| OpenError::Refused { path: path.to_owned(), reason };
    let length = refuse_others(file, path, machine)?;
    let mut bytes = [0; HEADER_BYTES];
    if length < HEADER_BYTES as u64 || (&mut &*file).read_exact(&mut bytes).is_err() {
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

/// Refuses what is not a regular file of this user alone. Returns its length.
fn refuse_others(file: &File, path: &Path, machine: &Machine) -> Result<u64, OpenError> {
    let refused = |reason| OpenError::Refused { path: path.to_owned(), reason };
    let metadata = file.metadata();
    let metadata = metadata.map_err(|source| OpenError::Io {
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
    Ok(metadata.len())
}

fn io_error(error: rustix::io::Errno) -> io::Error {
    error.into()
}
