//! A table in a file that is mapped into this process.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use memmap2::MmapRaw;

use crate::hash::HashKey;
use crate::store::shared::build::{self, MappedTable};
use crate::store::shared::deadline::Deadline;
use crate::store::shared::header::{FirstPage, HEADER_BYTES, WINDOW};
use crate::store::shared::lock::{self, LinesGuard, ProcessLock, WindowGuard};
use crate::store::shared::slot::SharedSlot;
use crate::store::shared::table_memory::{FaultPoint, Faults, TableCounters, TableMemory};
use crate::store::shared::{SharedError, TableOpenError};

/// A table in a mapped file.
#[derive(Debug)]
pub struct MappedFile<F = ()> {
    hash_key: HashKey,
    home_lines: usize,
    map: MmapRaw,
    /// Open as long as the table is: closing any descriptor of the file would release this process's locks
    /// on it. Its lock keeps other processes from replacing the table.
    file: Option<File>,
    identity: (u64, u64),
    faults: F,
}

impl MappedFile {
    /// Opens the table at `path`, or creates it.
    ///
    /// The capacity of a table is fixed, and its memory is reserved when it is created. With `None`, an
    /// existing table is used as it is, and a new one has room for 100,000 buckets. A table with another
    /// capacity is replaced by an empty one if no process has it open.
    ///
    /// # Errors
    /// [`TableOpenError`] if the file is not a table of this user on this machine, there is no room, or
    /// processes use the table with another capacity.
    pub fn open(path: &Path, capacity: Option<usize>) -> Result<MappedFile, TableOpenError> {
        MappedFile::open_reporting(path, capacity, ())
    }

    /// Opens the table at `path` if it was created since boot. Never creates one.
    ///
    /// # Errors
    /// As [`MappedFile::open`], and [`TableOpenError::Missing`].
    pub fn open_existing(path: &Path) -> Result<MappedFile, TableOpenError> {
        build::open_existing(path).map(|table| MappedFile::new(table, ()))
    }
}

impl<F: Faults> MappedFile<F> {
    /// Does the same as [`MappedFile::open`]. `faults` is called at each fault point.
    ///
    /// # Errors
    /// As [`MappedFile::open`].
    pub fn open_reporting(
        path: &Path,
        capacity: Option<usize>,
        faults: F,
    ) -> Result<MappedFile<F>, TableOpenError> {
        let table = build::open_or_create(path, capacity, &faults)?;
        Ok(MappedFile::new(table, faults))
    }

    fn new(table: MappedTable, faults: F) -> MappedFile<F> {
        let MappedTable { file, header, map, identity } = table;
        MappedFile {
            hash_key: header.hash_key,
            home_lines: header.home_lines as usize,
            map,
            file: Some(file),
            identity,
            faults,
        }
    }

    /// Returns the key of the hash that places buckets.
    pub fn hash_key(&self) -> HashKey {
        self.hash_key
    }
}

impl<F> Drop for MappedFile<F> {
    fn drop(&mut self) {
        // Closing the file releases the locks of other threads on it, so it waits for them. If that
        // fails, it is closed nevertheless.
        let _process = ProcessLock::take();
        self.file.take();
    }
}

impl<F: Faults> TableMemory for MappedFile<F> {
    type Guard<'a>
        = WindowGuard<'a>
    where
        F: 'a;

    #[inline(always)]
    fn home_lines(&self) -> usize {
        self.home_lines
    }

    #[inline(always)]
    fn window(&self) -> usize {
        WINDOW
    }

    #[inline(always)]
    fn slot(&self, index: usize) -> &SharedSlot {
        debug_assert!(index < self.slots(), "slot {index} is beyond the table");
        // SAFETY: the map has `slots()` slots after the header, as `open` has checked, and the
        // table uses no others: a home line is below `home_lines`. A slot is two atomic words, for
        // which any bytes are valid, and a page's start is aligned for them.
        unsafe { &*self.map.as_ptr().add(HEADER_BYTES).cast::<SharedSlot>().add(index) }
    }

    #[inline(always)]
    fn counters(&self) -> &TableCounters {
        // SAFETY: the map begins with this page, as `open` has checked. It has atomic words only, for
        // which any bytes are valid, and a page's start is aligned for them.
        let page = unsafe { &*self.map.as_ptr().cast::<FirstPage>() };
        &page.counters
    }

    fn lock_lines(
        &self,
        lines: Range<usize>,
        deadline: &Deadline,
    ) -> Result<Option<WindowGuard<'_>>, SharedError> {
        WindowGuard::take(deadline, || {
            let file = self.file.as_ref().ok_or(SharedError::Replaced)?;
            LinesGuard::try_take(file, self.identity, lines.clone())
        })
    }

    fn held_locks(&self) -> Option<u64> {
        let file = self.file.as_ref()?;
        // The kernel does not list locks of this process. While this lock is held, it has none.
        let _process = ProcessLock::take()?;
        lock::held_by_others(file, self.lines()).ok()
    }

    #[inline(always)]
    fn reached(&self, point: FaultPoint) {
        self.faults.reached(point);
    }
}
