//! Shared tables in ordinary memory, with a loom lock per line instead of the kernel's file locks.

use std::ops::Range;
use std::sync::Arc;

use loom::sync::{Mutex, MutexGuard};
use penstock::hash::HashKey;
use penstock::store::memory::Overflow;
use penstock::store::shared::{
    Deadline, SLOTS_PER_LINE, SharedError, SharedSlot, SharedStore, TableCounters, TableMemory,
};

/// The lines that are locked to add a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locking {
    /// The window of the bucket.
    Windows,
    /// No lines.
    Nothing,
}

/// The contents of a file, as all processes see them: slots, their locks and counters.
#[derive(Debug)]
pub struct Machine {
    slots: Vec<SharedSlot>,
    locks: Vec<Mutex<()>>,
    counters: TableCounters,
    home_lines: usize,
    key: HashKey,
    locking: Locking,
}

impl Machine {
    /// Creates a table of slots: `home_lines` lines in which a search may begin, and windows of the same
    /// number of lines.
    pub fn new(home_lines: usize, locking: Locking) -> Arc<Machine> {
        let lines = 2 * home_lines - 1;
        Arc::new(Machine {
            slots: (0..lines * SLOTS_PER_LINE).map(|_| SharedSlot::new()).collect(),
            locks: (0..lines).map(|_| Mutex::new(())).collect(),
            counters: TableCounters::default(),
            home_lines,
            key: HashKey::random(),
            locking,
        })
    }

    /// Opens the table, as a process does.
    pub fn open(self: &Arc<Self>) -> SharedStore<Table> {
        SharedStore::new(Table(Arc::clone(self)), self.key, Overflow::Evict)
    }
}

/// One process's view of a table.
#[derive(Debug)]
pub struct Table(Arc<Machine>);

impl TableMemory for Table {
    type Guard<'a> = Vec<MutexGuard<'a, ()>>;

    fn home_lines(&self) -> usize {
        self.0.home_lines
    }

    fn window(&self) -> usize {
        self.0.home_lines
    }

    fn slot(&self, index: usize) -> &SharedSlot {
        &self.0.slots[index]
    }

    fn counters(&self) -> &TableCounters {
        &self.0.counters
    }

    fn lock_lines(
        &self,
        lines: Range<usize>,
        _: &Deadline,
    ) -> Result<Option<Self::Guard<'_>>, SharedError> {
        let locked = match self.0.locking {
            Locking::Windows => lines,
            Locking::Nothing => lines.start..lines.start,
        };
        Ok(Some(locked.map(|line| self.0.locks[line].lock().expect("no panic")).collect()))
    }

    fn held_locks(&self) -> Option<u64> {
        None
    }
}

/// A shared store in a table of `home_lines` lines.
pub fn shared(home_lines: usize, locking: Locking) -> SharedStore<Table> {
    Machine::new(home_lines, locking).open()
}
