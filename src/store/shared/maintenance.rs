//! Operations other than decisions: resets, longer lifetimes after a reload, and statistics.

use crate::engine::state::{Lifetime, State};
use crate::engine::time::Now;
use crate::store::Stats;
use crate::store::Wait;
use crate::store::shared::SharedError;
use crate::store::shared::deadline::Deadline;
use crate::store::shared::loom_mutants::{Mutant, has};
use crate::store::shared::slot::{Occupant, SharedSlot};
use crate::store::shared::table::{FoundSlot, SharedTable, SlotAddress, is_in_use};
use crate::store::shared::table_memory::{FaultPoint, SLOTS_PER_LINE, TableMemory};

/// Lines that a walk over the table locks at a time.
const LINES_AT_ONCE: usize = 64;

impl<M: TableMemory> SharedTable<M> {
    /// Forgets one bucket. Returns whether it existed.
    ///
    /// # Errors
    /// [`SharedError`] if the table was replaced by a larger one that cannot be opened or locked.
    pub(super) fn forget(&self, address: SlotAddress) -> Result<bool, SharedError> {
        let deadline = Deadline::of_call(Wait::Allowed);
        loop {
            let memory = self.newest()?;
            // Under the lock, no process moves the bucket, and no copy that a killed process left
            // behind is restored.
            let has_older = memory.older_tables().next().is_some();
            let _guard = match has_older.then(|| memory.lock(address.place, &deadline)) {
                None => None,
                Some(Ok(guard)) => Some(guard),
                Some(Err(SharedError::Replaced)) if !is_in_use(memory) => continue,
                Some(Err(error)) => return Err(error),
            };
            // The bucket may be on its way to a larger table that has just replaced this one.
            let is_moving = |found: &FoundSlot<'_, M>| self.is_moving(found);
            let mut is_forgotten = self.forget_in(memory, address, is_moving);
            for older in memory.older_tables() {
                is_forgotten |= self.forget_in(older, address, |_| false);
            }
            if is_forgotten || is_in_use(memory) {
                return Ok(is_forgotten);
            }
        }
    }

    /// Forgets a bucket in one table, unless `keep` returns true for it. Returns whether it
    /// existed.
    fn forget_in(
        &self,
        memory: &M,
        address: SlotAddress,
        keep: impl Fn(&FoundSlot<'_, M>) -> bool,
    ) -> bool {
        while let Some(found) = self.find(memory, address) {
            if keep(&found) {
                return false;
            }
            memory.reached(FaultPoint::BeforeReset);
            if found.slot.release(found.occupant) {
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
        let (newest, deadline) = (self.newest()?, Deadline::of_call(Wait::Allowed));
        let mut is_complete = true;
        for memory in newest.tables() {
            for first in (0..memory.lines()).step_by(LINES_AT_ONCE) {
                let last = memory.lines().min(first + LINES_AT_ONCE);
                let Some(_guard) = memory.lock_lines(first..last, &deadline)? else {
                    is_complete = false;
                    continue;
                };
                for index in first * SLOTS_PER_LINE..last * SLOTS_PER_LINE {
                    self.raise_lifetime_to(memory, memory.slot(index), now, lifetime);
                }
            }
        }
        if is_complete { Ok(()) } else { Err(SharedError::Busy) }
    }

    /// Drops the bucket of one slot if it is full, or raises its lifetime. Only under the lock.
    fn raise_lifetime_to(
        &self,
        memory: &M,
        slot: &SharedSlot,
        now: Now,
        lifetime: &dyn Fn(State) -> Lifetime,
    ) {
        let (key, Some(occupant)) = slot.occupant() else { return };
        if occupant.is_over(now) {
            self.raise_floor(memory, occupant);
            if slot.release(occupant) {
                memory.counters().forgotten.count();
            }
        } else if key.kind().has_tally() && !self.is_damaged(memory, occupant) {
            self.rename_for(memory, slot, occupant, lifetime(occupant.state()), now);
        }
    }

    /// Raises the lifetime of a bucket with a tally to at least `lifetime`. Only under the lock.
    pub(super) fn rename_for(
        &self,
        memory: &M,
        slot: &SharedSlot,
        occupant: Occupant,
        lifetime: Lifetime,
        now: Now,
    ) {
        let timeline = occupant.key.lifetime().timeline();
        let lifetime = lifetime.on(timeline).max(occupant.key.lifetime());
        self.announce(memory, occupant.state(), lifetime);
        // A call that has read the previous key may still write a state of its own time, for which
        // it announces only the shorter lifetime.
        if !has(Mutant::AnnouncesFoundOnly) {
            self.announce(memory, State::from_tally(now.on(timeline), 0), lifetime);
        }
        slot.rename(occupant.key.with_lifetime(lifetime));
    }

    /// Returns the number of buckets that are not full at `now`, and the counters.
    ///
    /// # Errors
    /// [`SharedError`] if a larger table cannot be opened, or the file was truncated.
    pub(super) fn stats(&self, now: Now) -> Result<Stats, SharedError> {
        let newest = self.newest()?;
        let tables = || newest.tables();
        let slots: u64 = tables().map(|memory| memory.slots() as u64).sum();
        let live = |memory: &M| {
            let slots = (0..memory.slots()).map(|index| memory.slot(index).occupant());
            slots.filter(|(_, occupant)| occupant.is_some_and(|found| !found.is_over(now))).count()
        };
        let buckets = tables().map(|memory| live(memory) as u64).sum();
        newest.refuse_truncated()?;
        let counters = newest.counters();
        Ok(Stats {
            buckets: Some(buckets),
            capacity: Some(newest.capacity()),
            slots: Some(slots),
            bytes: Some(slots * size_of::<SharedSlot>() as u64),
            forgotten: Some(counters.forgotten.get()),
            evicted: Some(counters.live_evictions.get()),
            shared: Some(counters.overflowed.get()),
            refused: Some(counters.refused.get()),
            recovered_locks: Some(newest.recovered_locks()),
        })
    }

    /// Forgets all buckets. Returns their number.
    pub(super) fn clear(&self) -> Result<u64, SharedError> {
        let newest = self.newest()?;
        // The newest table last, because buckets move there.
        let mut tables: Vec<_> = newest.tables().collect();
        tables.reverse();
        let mut cleared = 0;
        let slots = tables
            .into_iter()
            .flat_map(|memory| (0..memory.slots()).map(move |index| memory.slot(index)));
        for slot in slots {
            // As in a reset, freeing a slot needs no lock.
            while let (_, Some(occupant)) = slot.occupant() {
                if slot.release(occupant) {
                    cleared += 1;
                    break;
                }
            }
        }
        newest.refuse_truncated()?;
        Ok(cleared)
    }
}
