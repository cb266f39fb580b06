//! Creates and opens the file of a table, and replaces it by a larger one.
//!
//! `NAME` is the table. It is built as `NAME~new`, under a lock on that file, and then renamed. A
//! builder that dies at any instruction leaves at most an unlocked `NAME~new`, with which the next
//! builder starts again. `NAME` is never an incomplete table.
//!
//! A table that is replaced by a larger one is linked as `NAME~1`, `NAME~2` and so on (its
//! generation, counted from 0, plus 1) until its last bucket has left it. The name of a table that
//! a URL selects contains no `~`, so no table is in the place of another one's files.
#![expect(clippy::disallowed_methods, reason = "a shared table is a file, and this file opens it")]

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use memmap2::MmapOptions;
use rustix::fs::FallocateFlags;

use crate::hash::HashKey;
use crate::store::shared::TableOpenError;
use crate::store::shared::bus_error::TableMap;
use crate::store::shared::deadline::Deadline;
use crate::store::shared::header::{Header, Machine, read_header, refuse_others};
use crate::store::shared::lock::{ProcessLock, lock_builders};
use crate::store::shared::table_memory::{FaultPoint, Faults};

/// The capacity of a new table if the URL has none.
const DEFAULT_CAPACITY: usize = 100_000;

/// A table's file and its header.
#[derive(Debug)]
struct TableFile {
    file: File,
    header: Header,
}

/// A table's file, mapped.
#[derive(Debug)]
pub(super) struct MappedTable {
    pub(super) file: File,
    pub(super) header: Header,
    pub(super) map: TableMap,
    pub(super) identity: (u64, u64),
    /// Its path.
    pub(super) place: PathBuf,
}

/// A mapped table, and the older ones that it replaces, oldest first.
#[derive(Debug)]
pub(super) struct MappedTables {
    pub(super) newest: MappedTable,
    pub(super) older: Vec<MappedTable>,
}

impl TableFile {
    /// Maps the file.
    fn map(self, place: PathBuf) -> Result<MappedTable, TableOpenError> {
        let TableFile { file, header } = self;
        let map = MmapOptions::new().len(header.file_bytes as usize).map_raw(&file);
        let map = map.map_err(io_error("map", &place))?;
        let identity = identity(&file).map_err(io_error("read", &place))?;
        let map = TableMap::new(map, &file, identity);
        Ok(MappedTable { file, header, map, identity, place })
    }
}

/// Opens the table at `path`, or creates it. A table with less room than `capacity` is replaced by
/// a larger one. `assemble` runs under this process's lock. It retires the older tables.
///
/// # Errors
/// [`TableOpenError`].
pub(super) fn open_or_create<T>(
    path: &Path,
    capacity: Option<usize>,
    faults: &impl Faults,
    assemble: impl Fn(MappedTables) -> T,
) -> Result<T, TableOpenError> {
    let machine = Machine::current()?;
    // While another process creates the table, this process's lock is released, because calls on
    // other tables need it.
    let opened = Deadline::of_opening().retry(|| {
        let _process = process_lock(path)?;
        match existing(path, &machine)? {
            Some(table) if !table.header.is_smaller_than(capacity) => {
                map(table, path, &machine).map(|tables| Some(assemble(tables)))
            }
            _ => build(path, capacity, &machine, faults, &assemble),
        }
    });
    opened.and_then(|table| table.ok_or_else(|| TableOpenError::Building { path: path.to_owned() }))
}

/// Opens the table at `path` if it was created since boot and its header `is_wanted`.
///
/// # Errors
/// [`TableOpenError`].
pub(super) fn open_existing<T>(
    path: &Path,
    is_wanted: impl Fn(&Header) -> bool,
    assemble: impl Fn(MappedTables) -> T,
) -> Result<Option<T>, TableOpenError> {
    let machine = Machine::current()?;
    let _process = process_lock(path)?;
    let table = existing(path, &machine)?.filter(|table| is_wanted(&table.header));
    table.map(|table| map(table, path, &machine).map(&assemble)).transpose()
}

/// Takes this process's lock.
fn process_lock(path: &Path) -> Result<ProcessLock, TableOpenError> {
    ProcessLock::take().ok_or_else(|| TableOpenError::Busy { path: path.to_owned() })
}

/// Returns the path of a table after a larger one has replaced it.
fn retired_path(path: &Path, generation: u32) -> PathBuf {
    service_path(path, &(u64::from(generation) + 1).to_string())
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

/// Maps a table and the older tables that it replaces.
fn map(table: TableFile, path: &Path, machine: &Machine) -> Result<MappedTables, TableOpenError> {
    let mut older = Vec::new();
    for generation in table.header.oldest..table.header.generation {
        let place = retired_path(path, generation);
        let Some(found) = existing(&place, machine)? else { continue };
        if found.header.is_related(&table.header) && found.header.generation == generation {
            older.push(found.map(place)?);
        }
    }
    Ok(MappedTables { newest: table.map(path.to_owned())?, older })
}

/// Creates a table as a service file and renames it to `path`. Returns `None` if another process is
/// doing so or has done so.
fn build<T>(
    path: &Path,
    capacity: Option<usize>,
    machine: &Machine,
    faults: &impl Faults,
    assemble: impl Fn(MappedTables) -> T,
) -> Result<Option<T>, TableOpenError> {
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
    let replaced = existing(path, machine)?;
    faults.reached(FaultPoint::LookedAgain);
    let header = match &replaced {
        None => {
            let capacity = capacity.unwrap_or(DEFAULT_CAPACITY);
            Header::new(capacity, HashKey::random(), machine)
        }
        Some(table) => match capacity.filter(|_| table.header.is_smaller_than(capacity)) {
            Some(capacity) => table.header.enlarged(capacity),
            None => {
                fs::remove_file(&building).map_err(io_error("remove", &building))?;
                return Ok(None);
            }
        },
    };
    reserve(&file, &header, path, &building)?;
    faults.reached(FaultPoint::Reserved);
    file.write_all_at(&header.to_bytes(), 0).map_err(io_error("write", &building))?;
    faults.reached(FaultPoint::HeaderWritten);
    if let Some(replaced) = &replaced {
        keep_name(path, replaced, machine)?;
        faults.reached(FaultPoint::Linked);
    }
    fs::rename(&building, path).map_err(io_error("create", path))?;
    faults.reached(FaultPoint::FileRenamed);
    let table = assemble(map(TableFile { file, header }, path, machine)?);
    faults.reached(FaultPoint::Retired);
    Ok(Some(table))
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

/// Links the table at `path` under its retired path, where it is found after it is replaced.
fn keep_name(path: &Path, replaced: &TableFile, machine: &Machine) -> Result<(), TableOpenError> {
    let kept = retired_path(path, replaced.header.generation);
    let identity = identity(&replaced.file).map_err(io_error("read", path))?;
    if identity_at(&kept).ok() == Some(identity) {
        // A process died after it had linked the table.
        return Ok(());
    }
    if let Some(file) = open_file(&kept, false)? {
        // A leftover of a removed table. Other files are refused.
        read_header(&file, &kept, machine)?;
        fs::remove_file(&kept).map_err(io_error("remove", &kept))?;
    }
    fs::hard_link(path, &kept).map_err(io_error("create", &kept))
}

/// Returns the identity of a file: its device and inode numbers.
fn identity(file: &File) -> io::Result<(u64, u64)> {
    file.metadata().map(|found| (found.dev(), found.ino()))
}

/// Returns the identity of the file at a path, without following a link.
fn identity_at(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// Removes the file at `path` if it has this identity.
pub(super) fn remove(path: &Path, identity: (u64, u64)) {
    if identity_at(path).is_ok_and(|found| found == identity) {
        // If this fails, the file uses up space until the table is enlarged again.
        let _ = fs::remove_file(path);
    }
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
