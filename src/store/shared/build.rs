//! Creates and opens the file of a table.
//!
//! `NAME` is the table. It is built as `NAME~new`, under a lock on that file, and then renamed. A
//! builder that dies at any instruction leaves at most an unlocked `NAME~new`, with which the next
//! builder starts again. `NAME` is never an incomplete table.
//!
//! Every process that has the table open shares a lock of its file. The lock belongs to the open
//! descriptor, so a forked child has it too, and the kernel releases it with the last of them. A
//! process that gets the lock alone may replace the table by one of another capacity.
//!
//! The name of a table that a URL selects contains no `~`, so no table is in the place of another
//! one's files.
#![expect(clippy::disallowed_methods, reason = "a shared table is a file, and this file opens it")]

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::FallocateFlags;

use crate::hash::HashKey;
use crate::store::shared::TableOpenError;
use crate::store::shared::deadline::Deadline;
use crate::store::shared::header::{Header, Machine, read_header, refuse_others};
use crate::store::shared::lock::{ProcessLock, lock_alone, lock_builders, lock_shared};
use crate::store::shared::table_memory::{FaultPoint, Faults};

/// The capacity of a new table if the URL has none.
const DEFAULT_CAPACITY: usize = 100_000;

/// A table's file and its header.
#[derive(Debug)]
struct TableFile {
    file: File,
    header: Header,
}

/// A table's file, locked against being replaced and mapped.
#[derive(Debug)]
pub(super) struct MappedTable {
    pub(super) file: File,
    pub(super) header: Header,
    pub(super) map: MmapRaw,
    pub(super) identity: (u64, u64),
}

impl TableFile {
    /// Locks and maps the file. Returns `None` if another process is replacing or has replaced it.
    fn map(self, path: &Path) -> Result<Option<MappedTable>, TableOpenError> {
        let TableFile { file, header } = self;
        let identity = identity(&file).map_err(io_error("read", path))?;
        let is_locked = lock_shared(&file).map_err(io_error("lock", path))?;
        if !is_locked || identity_at(path).ok() != Some(identity) {
            return Ok(None);
        }
        let map = MmapOptions::new().len(header.file_bytes as usize).map_raw(&file);
        let map = map.map_err(io_error("map", path))?;
        Ok(Some(MappedTable { file, header, map, identity }))
    }
}

/// Opens the table at `path`, or creates it. A table with another capacity is replaced if no process has it
/// open.
///
/// # Errors
/// [`TableOpenError`].
pub(super) fn open_or_create(
    path: &Path,
    capacity: Option<usize>,
    faults: &impl Faults,
) -> Result<MappedTable, TableOpenError> {
    let machine = Machine::current()?;
    // While another process creates the table, this process's lock is released, because calls on
    // other tables need it.
    let opened = Deadline::of_opening().retry(|| {
        let _process = process_lock(path)?;
        match existing(path, &machine)? {
            Some(table) if table.header.has_capacity(capacity) => table.map(path),
            _ => build(path, capacity, &machine, faults),
        }
    });
    opened?.ok_or_else(|| TableOpenError::Building { path: path.to_owned() })
}

/// Opens the table at `path` if it was created since boot.
///
/// # Errors
/// [`TableOpenError`].
pub(super) fn open_existing(path: &Path) -> Result<MappedTable, TableOpenError> {
    let machine = Machine::current()?;
    let opened = Deadline::of_opening().retry(|| {
        let _process = process_lock(path)?;
        let table = existing(path, &machine)?;
        table.ok_or_else(|| TableOpenError::Missing { path: path.to_owned() })?.map(path)
    });
    opened?.ok_or_else(|| TableOpenError::Building { path: path.to_owned() })
}

/// Takes this process's lock.
fn process_lock(path: &Path) -> Result<ProcessLock, TableOpenError> {
    ProcessLock::take().ok_or_else(|| TableOpenError::Busy { path: path.to_owned() })
}

/// Returns the path of a service file of the table at `path`.
fn service_path(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("~");
    name.push(suffix);
    PathBuf::from(name)
}

/// Opens the table at `path` if it was created since boot.
fn existing(path: &Path, machine: &Machine) -> Result<Option<TableFile>, TableOpenError> {
    let Some(file) = open_file(path, false)? else { return Ok(None) };
    let header = read_header(&file, path, machine)?;
    // The boot-time clock has started again, so the instants in a table of another boot are wrong.
    let is_current = machine.has_created(&header, path)?;
    Ok(Some(TableFile { file, header }).filter(|_| is_current))
}

/// Creates a table as a service file and renames it to `path`. Returns `None` if another process is
/// doing so or has done so.
fn build(
    path: &Path,
    capacity: Option<usize>,
    machine: &Machine,
    faults: &impl Faults,
) -> Result<Option<MappedTable>, TableOpenError> {
    let building = service_path(path, "new");
    let Some(file) = open_file(&building, true)? else { return Ok(None) };
    faults.reached(FaultPoint::FileOpened);
    refuse_others(&file, &building, machine)?;
    // A umask may have removed the owner's rights, and the next process could not open the table.
    file.set_permissions(Permissions::from_mode(0o600)).map_err(io_error("create", &building))?;
    if !lock_builders(&file).map_err(io_error("lock", &building))? {
        return Ok(None);
    }
    faults.reached(FaultPoint::FileLocked);
    // Another process may have renamed or removed the file after it was opened here.
    if identity_at(&building).ok() != Some(identity(&file).map_err(io_error("read", &building))?) {
        return Ok(None);
    }
    // Locked until it is replaced.
    let replaced = existing(path, machine)?;
    faults.reached(FaultPoint::LookedAgain);
    if let Some(TableFile { file, header }) = &replaced {
        let is_made = header.has_capacity(capacity);
        if is_made || !lock_alone(file).map_err(io_error("lock", path))? {
            fs::remove_file(&building).map_err(io_error("remove", &building))?;
            let (path, capacity) = (path.to_owned(), header.capacity());
            return if is_made { Ok(None) } else { Err(TableOpenError::InUse { path, capacity }) };
        }
    }
    let capacity = capacity.unwrap_or(DEFAULT_CAPACITY);
    let header = Header::new(capacity, HashKey::random(), machine);
    reserve(&file, &header, path, &building)?;
    faults.reached(FaultPoint::Reserved);
    file.write_all_at(&header.to_bytes(), 0).map_err(io_error("write", &building))?;
    faults.reached(FaultPoint::HeaderWritten);
    // Before the table has its name, or a process that wants another capacity could replace it. No other
    // process has this lock of the new file.
    lock_shared(&file).map_err(io_error("lock", &building))?;
    fs::rename(&building, path).map_err(io_error("create", path))?;
    faults.reached(FaultPoint::FileRenamed);
    TableFile { file, header }.map(path)
}

/// Reserves the table's bytes, so that a full file system is an error here and not a fatal signal
/// at a later write.
fn reserve(
    file: &File,
    header: &Header,
    path: &Path,
    building: &Path,
) -> Result<(), TableOpenError> {
    let bytes = header.file_bytes;
    let reserve = || rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes);
    let reserved = file.set_len(0).and_then(|()| Ok(rustix::io::retry_on_intr(reserve)?));
    reserved.and_then(|()| file.set_len(bytes)).map_err(|source| {
        // Otherwise the incomplete table would use up space.
        let _ = fs::remove_file(building);
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        if matches!(source.kind(), FileTooLarge | QuotaExceeded | StorageFull) {
            return TableOpenError::NoRoom { path: path.to_owned(), bytes, source };
        }
        TableOpenError::Io { action: "reserve room in", path: building.to_owned(), source }
    })
}

/// Returns the identity of a file: its device and inode numbers.
fn identity(file: &File) -> io::Result<(u64, u64)> {
    file.metadata().map(|found| (found.dev(), found.ino()))
}

/// Returns the identity of the file at a path, without following a link.
fn identity_at(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// Returns a function that adds the failed action and the path to an error of the system.
fn io_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> TableOpenError {
    let path = path.to_owned();
    move |source| TableOpenError::Io { action, path: path.clone(), source }
}

/// Opens a file without following a link. Returns `None` if it does not exist and `create` is
/// false.
fn open_file(path: &Path, create: bool) -> Result<Option<File>, TableOpenError> {
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
            Err(TableOpenError::Refused { path: path.to_owned(), reason: "it is a symbolic link" })
        }
        Err(source) => Err(TableOpenError::Io { action: "open", path: path.to_owned(), source }),
    }
}
