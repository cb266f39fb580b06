//! Operations other than decisions: resets, longer lifetimes after a reload, and statistics.

use crate::engine::state::{Lifetime, State};
use crate::engine::time::Now;
use crate::store::Stats;
use crate::store::Wait;
use crate::store::shared::SharedError;
use crate::store::shared::deadline::Deadline;
use crate::store::shared::slot::SharedSlot;
use crate::store::shared::table::{FoundSlot, SharedTable, SlotAddress};
use crate::store::shared::table_memory::{FaultPoint, SLOTS_PER_LINE, TableMemory};

/// Lines that a walk over the table locks at a time.
const LINES_AT_ONCE: usize = 64;

impl FoundSlot<'_> {
    /// Raises the lifetime of the bucket to at least `lifetime`. Only under the lock.
    ///
    /// A call that has read the previous key may still write a state, which then has the longer lifetime
    /// too.
    pub(super) fn raise_lifetime(self, lifetime: Lifetime) {
        let current = self.occupant.key.lifetime();
        let lifetime = lifetime.on(current.timeline()).max(current);
        self.slot.rename(self.occupant.key.with_lifetime(lifetime));
    }
}

impl<M: TableMemory> SharedTable<M> {
    /// Returns all slots.
    fn slots(&self) -> impl Iterator<Item = &SharedSlot> {
        (0..self.memory.slots()).map(|index| self.memory.slot(index))
    }

    /// Forgets one bucket. Returns whether it existed.
    pub(super) fn forget(&self, address: SlotAddress) -> bool {
        while let Some(FoundSlot { slot, occupant }) = self.find(address) {
            self.memory.reached(FaultPoint::BeforeReset);
            if slot.release(occupant) {
                return true;
            }
        }
        false
    }

    /// Drops the full buckets, and raises the lifetime of every other bucket with a tally to at
    /// least that of its state. Locks few lines at a time, and leaves out those that a stopped
    /// process has locked.
    ///
    /// # Errors
    /// [`SharedError::Busy`] if lines were left out, and if the table cannot be locked.
    pub(super) fn raise_lifetimes(
        &self,
        now: Now,
        lifetime: &dyn Fn(State) -> Lifetime,
    ) -> Result<(), SharedError> {
        let (memory, deadline) = (&self.memory, Deadline::of_call(Wait::Allowed));
        let mut is_complete = true;
        for first in (0..memory.lines()).step_by(LINES_AT_ONCE) {
            let last = memory.lines().min(first + LINES_AT_ONCE);
            let Some(_guard) = memory.lock_lines(first..last, &deadline)? else {
                is_complete = false;
                continue;
            };
            for index in first * SLOTS_PER_LINE..last * SLOTS_PER_LINE {
                let slot = memory.slot(index);
                let (key, Some(occupant)) = slot.occupant() else { continue };
                let found = FoundSlot { slot, occupant };
                if occupant.is_over(now) {
                    self.drop_over(found);
                } else if key.lifetime().is_of_tally() {
                    found.raise_lifetime(lifetime(occupant.state()));
                }
            }
        }
        if is_complete { Ok(()) } else { Err(SharedError::Busy) }
    }

    /// Returns the number of buckets that are not full at `now`, and the counters.
    pub(super) fn stats(&self, now: Now) -> Stats {
        let memory = &self.memory;
        let is_live = |slot: &&SharedSlot| {
            let (_, occupant) = slot.occupant();
            occupant.is_some_and(|occupant| !occupant.is_over(now))
        };
        let (counters, slots) = (memory.counters(), memory.slots() as u64);
        Stats {
            buckets: Some(self.slots().filter(is_live).count() as u64),
            capacity: Some(memory.capacity()),
            slots: Some(slots),
            bytes: Some(slots * size_of::<SharedSlot>() as u64),
            forgotten: Some(counters.forgotten.get()),
            evicted: Some(counters.live_evictions.get()),
            shared: Some(counters.overflowed.get()),
            refused: Some(counters.refused.get()),
            recovered_locks: Some(memory.recovered_locks()),
        }
    }

    /// Forgets all buckets. Returns their number.
    pub(super) fn clear(&self) -> u64 {
        let mut cleared = 0;
        for slot in self.slots() {
            // As in a reset, freeing a slot needs no lock.
            while let (_, Some(occupant)) = slot.occupant() {
                if slot.release(occupant) {
                    cleared += 1;
                    break;
                }
            }
        }
        cleared
    }
}
