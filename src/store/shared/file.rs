//! Tables in files that are mapped into this process.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use smallvec::smallvec;

use crate::engine::time::Timestamp;
use crate::hash::HashKey;
use crate::store::shared::build::{self, MappedTable, MappedTables};
use crate::store::shared::bus_error::TableMap;
use crate::store::shared::deadline::Deadline;
use crate::store::shared::header::{FirstPage, HEADER_BYTES, Header, WINDOW};
use crate::store::shared::lock::{self, LinesGuard, ProcessLock, WindowGuard};
use crate::store::shared::slot::SharedSlot;
use crate::store::shared::table_memory::{FaultPoint, Faults, TableCounters, TableMemory};
use crate::store::shared::{SharedError, TableOpenError};
use crate::sync::counting::{self, AtomicUsize, OnceBox};

/// A table in a mapped file.
#[derive(Debug)]
pub struct MappedFile<F = ()> {
    header: Header,
    home_lines: usize,
    map: TableMap,
    /// Open as long as the table is: closing any descriptor of the file would release this
    /// process's locks on it.
    file: Option<File>,
    identity: (u64, u64),
    /// The path of this table, which is the retired path if it was replaced.
    place: PathBuf,
    /// The path of the newest table.
    path: PathBuf,
    older: Option<Box<MappedFile<F>>>,
    /// The table that replaces this one.
    successor: OnceBox<MappedFile<F>>,
    swept: AtomicUsize,
    faults: F,
}

impl MappedFile {
    /// Opens the table at `path`, or creates it.
    ///
    /// A table with room for fewer buckets than `capacity` is replaced by a larger one, which takes
    /// over its buckets while other processes use them. With `None`, an existing table is used as
    /// it is, and a new one has room for 100,000.
    ///
    /// # Errors
    /// [`TableOpenError`] if the file is not a table of this user on this machine, or there is no room.
    pub fn open(path: &Path, capacity: Option<usize>) -> Result<MappedFile, TableOpenError> {
        MappedFile::open_reporting(path, capacity, ())
    }

    /// Opens the table at `path` if it was created since boot. Never creates one.
    ///
    /// # Errors
    /// As [`MappedFile::open`], and [`TableOpenError::Missing`].
    pub fn open_existing(path: &Path) -> Result<MappedFile, TableOpenError> {
        let opened = build::open_existing(path, |_| true, |tables| assembled(tables, path, &()));
        opened?.ok_or_else(|| TableOpenError::Missing { path: path.to_owned() })
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
        let assemble = |tables| assembled(tables, path, &faults);
        build::open_or_create(path, capacity, &faults, assemble)
    }

    /// Creates a table from a mapped file. Its successors are opened at `path`, and it takes over
    /// the buckets of `older`.
    fn new(
        MappedTable { file, header, map, identity, place }: MappedTable,
        path: &Path,
        older: Option<Box<MappedFile<F>>>,
        faults: &F,
    ) -> MappedFile<F> {
        MappedFile {
            home_lines: header.home_lines as usize,
            header,
            map,
            file: Some(file),
            identity,
            place,
            path: path.to_owned(),
            older,
            successor: OnceBox::new(),
            swept: AtomicUsize::new(0),
            faults: faults.clone(),
        }
    }

    /// Returns the key of the hash that places buckets.
    pub fn hash_key(&self) -> HashKey {
        self.header.hash_key
    }

    /// Returns when the table was created, on the steady clock.
    pub fn created(&self) -> Timestamp {
        Timestamp::clamped(self.header.created)
    }

    /// Returns the path of the newest table.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the first page of the file.
    #[inline(always)]
    fn first_page(&self) -> &FirstPage {
        // SAFETY: the map begins with it, as `open` has checked. It has atomic words only, for which any
        // bytes are valid, and a page's start is aligned for them.
        unsafe { &*self.map.as_ptr().cast::<FirstPage>() }
    }

    /// Locks lines of this table unless another process holds one of their locks.
    fn try_lock(
        &self,
        lines: Range<usize>,
        needs_name: bool,
    ) -> Result<Option<LinesGuard<'_>>, SharedError> {
        let file = self.file.as_ref().ok_or(SharedError::Replaced)?;
        LinesGuard::try_take(file, self.identity, self.header.file_bytes, needs_name, lines)
    }

    /// Returns the lines in which a bucket may be.
    fn window_of(&self, place: u64) -> Range<usize> {
        let home = self.home_line(place);
        home..home + WINDOW
    }
}

/// Creates a table with its older tables, and retires these.
///
/// This must not fail: dropping a table waits for the process's lock, which is held.
fn assembled<F: Faults>(tables: MappedTables, path: &Path, faults: &F) -> MappedFile<F> {
    let older = tables.older.into_iter().fold(None, |older, table| {
        let table = MappedFile::new(table, path, older, faults);
        table.counters().retire();
        Some(Box::new(table))
    });
    MappedFile::new(tables.newest, path, older, faults)
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
        &self.first_page().counters
    }

    fn lock_lines(
        &self,
        lines: Range<usize>,
        deadline: &Deadline,
    ) -> Result<Option<WindowGuard<'_>>, SharedError> {
        WindowGuard::take(deadline, || {
            Ok(self.try_lock(lines.clone(), false)?.map(|lines| smallvec![lines]))
        })
    }

    fn lock(&self, place: u64, deadline: &Deadline) -> Result<WindowGuard<'_>, SharedError> {
        let taken = WindowGuard::take(deadline, || {
            let here = std::iter::once((self, true));
            let tables = here.chain(self.older_tables().map(|older| (older, false)));
            let windows = tables.map(|(table, needs_name): (&MappedFile<F>, _)| {
                table.try_lock(table.window_of(place), needs_name)
            });
            windows.collect()
        });
        taken?.ok_or_else(|| deadline.error())
    }

    fn older(&self) -> Option<&MappedFile<F>> {
        self.older.as_deref()
    }

    #[inline(always)]
    fn successor(&self) -> Option<&MappedFile<F>> {
        self.successor.get()
    }

    fn open_successor(&self) -> Result<(), SharedError> {
        if self.successor().is_some() {
            return Ok(());
        }
        self.refuse_truncated()?;
        let is_newer = |header: &Header| {
            header.is_related(&self.header) && header.generation > self.header.generation
        };
        let assemble = |tables| assembled(tables, &self.path, &self.faults);
        let opened = build::open_existing(&self.path, is_newer, assemble);
        let opened = Box::new(opened.map_err(SharedError::Open)?.ok_or(SharedError::Replaced)?);
        // Another thread may have opened it in the meantime.
        let _: Result<(), Box<_>> = self.successor.set(opened);
        Ok(())
    }

    fn is_truncated(&self) -> bool {
        // Must not be read before the words that the caller has read: they may be from the zero
        // pages with which another thread has replaced the table in the meantime.
        counting::fence(counting::Ordering::Acquire);
        self.first_page().magic.load(counting::Ordering::Relaxed) == 0
    }

    fn held_locks(&self) -> Option<u64> {
        let file = self.file.as_ref()?;
        // The kernel does not list locks of this process. While this lock is held, it has none.
        let _process = ProcessLock::take()?;
        lock::held_by_others(file, self.lines()).ok()
    }

    fn discard(&self) {
        build::remove(&self.place, self.identity);
    }

    fn swept(&self) -> &AtomicUsize {
        &self.swept
    }

    #[inline(always)]
    fn reached(&self, point: FaultPoint) {
        self.faults.reached(point);
    }
}
