//! One shard: a table behind a lock, which a store whose calls come one at a time does not take.
//!
//! Uses `unsafe` because the compiler cannot know that calls come one at a time.

use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;

use crate::prefetch::prefetch;
use crate::store::memory::table::{Table, Tag, home_slot};
use crate::sync::{AtomicPtr, AtomicUsize, Mutex, MutexGuard, Ordering};

/// Proof that the calls of a store are serialized, for example by an interpreter's lock.
#[derive(Clone, Copy, Debug)]
pub struct Serialized(());

impl Serialized {
    /// Asserts it.
    ///
    /// # Safety
    /// Each call of a store with this proof must end before the next one begins, on any thread, and
    /// the next one must see all effects of earlier ones.
    pub unsafe fn promise() -> Serialized {
        Serialized(())
    }
}

/// A shard on separate cache lines, so that threads on different shards do not slow each other.
#[repr(align(64))]
#[derive(Debug)]
pub(super) struct Shard {
    table: Mutex<Table>,
    /// Address and number of the slots. Only for prefetching, so they may be out of date.
    slots: AtomicPtr<[u64; 2]>,
    capacity: AtomicUsize,
}

impl Shard {
    pub(super) fn new() -> Shard {
        Shard {
            table: Mutex::new(Table::new()),
            slots: AtomicPtr::new(null_mut()),
            capacity: AtomicUsize::new(0),
        }
    }

    /// The table, which no other caller can use meanwhile.
    #[inline(always)]
    pub(super) fn lock(&self, serialized: Option<Serialized>) -> Access<'_> {
        match serialized {
            None => Access::Locked(self.table.lock()),
            Some(promise) => self.skip_lock(promise),
        }
    }

    #[cfg(not(any(loom, debug_assertions)))]
    #[inline(always)]
    fn skip_lock(&self, _promise: Serialized) -> Access<'_> {
        // SAFETY: as promised, no other call of the store runs, and no call asks for a table that
        // it already has. So this is the only reference to it.
        Access::Alone(unsafe { &mut *self.table.data_ptr() })
    }

    /// Takes the lock to verify the promise, in models and in builds that check assertions.
    #[cfg(any(loom, debug_assertions))]
    fn skip_lock(&self, _promise: Serialized) -> Access<'_> {
        let Some(table) = self.table.try_lock() else {
            panic!("two calls of a serialized store overlap")
        };
        // An access that a model sees: it can change threads here, while the table is in use.
        self.capacity();
        Access::Locked(table)
    }

    /// Publishes the address of the slots.
    pub(super) fn publish(&self, table: &Table) {
        let (slots, capacity) = table.layout();
        // Relaxed, here and in `fetch`: with one old value of the two, the wrong line is fetched,
        // or none.
        self.slots.store(slots.cast_mut(), Ordering::Relaxed);
        self.capacity.store(capacity, Ordering::Relaxed);
    }

    /// The number of slots, possibly out of date.
    pub(super) fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Prefetches the slot at which the search for `tag` begins.
    #[inline(always)]
    pub(super) fn fetch(&self, tag: Tag) {
        let index = home_slot(tag, self.capacity());
        let home = self.slots.load(Ordering::Relaxed).wrapping_add(index);
        prefetch(home);
        // Every fourth or fifth search ends on the next cache line.
        prefetch(home.wrapping_add(3));
    }
}

/// A table that no other caller can use meanwhile.
pub(super) enum Access<'a> {
    /// Until the lock is released.
    Locked(MutexGuard<'a, Table>),
    /// Because there is no other caller.
    #[cfg(not(any(loom, debug_assertions)))]
    Alone(&'a mut Table),
}

impl Deref for Access<'_> {
    type Target = Table;

    #[inline(always)]
    fn deref(&self) -> &Table {
        match self {
            Access::Locked(table) => table,
            #[cfg(not(any(loom, debug_assertions)))]
            Access::Alone(table) => table,
        }
    }
}

impl DerefMut for Access<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Table {
        match self {
            Access::Locked(table) => table,
            #[cfg(not(any(loom, debug_assertions)))]
            Access::Alone(table) => table,
        }
    }
}
