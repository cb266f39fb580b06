//! Shared tables in ordinary memory, with a loom lock per line instead of the kernel's file locks.

use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Mutex, MutexGuard};
use penstock::hash::HashKey;
use penstock::store::memory::Overflow;
use penstock::store::shared::{
    Deadline, SLOTS_PER_LINE, SharedError, SharedSlot, SharedStore, TableCounters, TableMemory,
};

/// The lines that are locked to add a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locking {
    /// The windows of the bucket in all tables.
    Windows,
    /// No lines.
    Nothing,
    /// The window of the bucket in the newest table.
    NewestTable,
}

/// The contents of a file: slots, their locks and counters.
#[derive(Debug)]
struct Lines {
    slots: Vec<SharedSlot>,
    locks: Vec<Mutex<()>>,
    counters: TableCounters,
    home_lines: usize,
}

impl Lines {
    /// Creates lines of slots: `home_lines` lines in which a search may begin, and windows of the same
    /// number of lines.
    fn new(home_lines: usize) -> Arc<Lines> {
        let lines = 2 * home_lines - 1;
        Arc::new(Lines {
            slots: (0..lines * SLOTS_PER_LINE).map(|_| SharedSlot::new()).collect(),
            locks: (0..lines).map(|_| Mutex::new(())).collect(),
            counters: TableCounters::default(),
            home_lines,
        })
    }
}

/// A table and the larger one that may replace it, as all processes see them in the file system.
#[derive(Debug)]
pub struct Machine {
    tables: [Arc<Lines>; 2],
    is_replaced: AtomicBool,
    key: HashKey,
    locking: Locking,
}

impl Machine {
    pub fn new(locking: Locking) -> Arc<Machine> {
        Arc::new(Machine {
            tables: [Lines::new(1), Lines::new(1)],
            is_replaced: AtomicBool::new(false),
            key: HashKey::random(),
            locking,
        })
    }

    /// Replaces the table by the larger one.
    pub fn replace_table(&self) {
        self.is_replaced.store(true, Ordering::SeqCst);
    }

    /// Opens the newest table, as a process does.
    pub fn open(self: &Arc<Self>) -> SharedStore<Table> {
        SharedStore::new(Table::open(self), self.key, Overflow::Evict)
    }
}

/// One process's view of a table.
#[derive(Debug)]
pub struct Table {
    lines: Arc<Lines>,
    older: Option<Box<Table>>,
    successor: OnceLock<Box<Table>>,
    swept: AtomicUsize,
    machine: Arc<Machine>,
}

impl Table {
    fn open(machine: &Arc<Machine>) -> Table {
        let table = |generation: usize, older| Table {
            lines: Arc::clone(&machine.tables[generation]),
            older,
            successor: OnceLock::new(),
            swept: AtomicUsize::new(0),
            machine: Arc::clone(machine),
        };
        if !machine.is_replaced.load(Ordering::SeqCst) {
            return table(0, None);
        }
        let older = table(0, None);
        older.counters().retire();
        table(1, Some(Box::new(older)))
    }

    fn lock_here(&self, lines: Range<usize>) -> Vec<MutexGuard<'_, ()>> {
        lines.map(|line| self.lines.locks[line].lock().expect("no panic")).collect()
    }
}

impl TableMemory for Table {
    type Guard<'a> = Vec<MutexGuard<'a, ()>>;

    fn home_lines(&self) -> usize {
        self.lines.home_lines
    }

    fn window(&self) -> usize {
        self.lines.home_lines
    }

    fn slot(&self, index: usize) -> &SharedSlot {
        &self.lines.slots[index]
    }

    fn counters(&self) -> &TableCounters {
        &self.lines.counters
    }

    fn lock_lines(
        &self,
        lines: Range<usize>,
        _: &Deadline,
    ) -> Result<Option<Self::Guard<'_>>, SharedError> {
        Ok(Some(self.lock_here(lines)))
    }

    fn lock(&self, place: u64, _: &Deadline) -> Result<Self::Guard<'_>, SharedError> {
        let window = |table: &Table| {
            let home = table.home_line(place);
            match self.machine.locking {
                Locking::Windows | Locking::NewestTable => home..home + table.window(),
                Locking::Nothing => home..home,
            }
        };
        let mut guard = self.lock_here(window(self));
        if self.machine.locking != Locking::NewestTable {
            for older in self.older_tables() {
                guard.extend(older.lock_here(window(older)));
            }
        }
        Ok(guard)
    }

    fn older(&self) -> Option<&Table> {
        self.older.as_deref()
    }

    fn successor(&self) -> Option<&Table> {
        self.successor.get().map(Box::as_ref)
    }

    fn open_successor(&self) -> Result<(), SharedError> {
        self.successor.get_or_init(|| Box::new(Table::open(&self.machine)));
        Ok(())
    }

    fn held_locks(&self) -> Option<u64> {
        None
    }

    fn discard(&self) {}

    fn swept(&self) -> &AtomicUsize {
        &self.swept
    }
}

/// A shared store in a table of `home_lines` lines.
pub fn shared(home_lines: usize, locking: Locking) -> SharedStore<Table> {
    Arc::new(Machine {
        tables: [Lines::new(home_lines), Lines::new(1)],
        is_replaced: AtomicBool::new(false),
        key: HashKey::random(),
        locking,
    })
    .open()
}
