//! Inserts, under the lock of a window: assign slots to new buckets, and move buckets of older
//! tables.

use crate::engine::state::{Lifetime, State};
use crate::engine::time::{Nanos, Now, Timeline};
use crate::store::Wait;
use crate::store::Write;
use crate::store::shared::SharedError;
use crate::store::shared::deadline::Deadline;
use crate::store::shared::loom_mutants::{Mutant, has};
use crate::store::shared::slot::{Occupant, SharedSlot, SlotKey};
use crate::store::shared::table::{
    FoundSlot, InsertOutcome, SharedTable, SlotAddress, SlotCharge, StepOutcome, is_in_use,
};
use crate::store::shared::table_memory::{FaultPoint, SLOTS_PER_LINE, TableMemory};
use crate::sync::counting::Ordering;

/// Lines of an older table that one insert frees.
const SWEPT_AT_ONCE: usize = 256;

/// A slot that can be assigned to a new bucket.
struct ChosenSlot<'a> {
    slot: &'a SharedSlot,
    key: SlotKey,
    /// Its current bucket.
    occupant: Option<Occupant>,
}

impl<M: TableMemory> SharedTable<M> {
    /// Runs a step on a bucket under the lock of its window, and assigns a slot or a longer
    /// lifetime if necessary. With `evict`, a full window evicts another bucket.
    ///
    /// # Errors
    /// [`SharedError`] if the table cannot be locked.
    pub(super) fn insert(
        &self,
        address: SlotAddress,
        evict: bool,
        run: &mut impl FnMut(Option<State>, Now) -> Write,
        now: Now,
        deadline: &Deadline,
    ) -> Result<InsertOutcome<'_>, SharedError> {
        loop {
            let memory = self.current();
            self.sweep(memory, now);
            memory.reached(FaultPoint::BeforeLock);
            match memory.lock(address.place, deadline) {
                Ok(_guard) if is_in_use(memory) || has(Mutant::AddsToRetired) => {
                    memory.counters().locked.count();
                    memory.reached(FaultPoint::Locked);
                    let placed = self.insert_locked(memory, address, evict, run, now);
                    memory.counters().unlocked.count();
                    return placed;
                }
                Ok(_) => {}
                // The file of a table without buckets may have been removed.
                Err(SharedError::Replaced) if !is_in_use(memory) => {}
                Err(error) => return Err(error),
            }
            if !deadline.may_wait() {
                return Err(deadline.error());
            }
            memory.open_successor()?;
        }
    }

    fn insert_locked<'a>(
        &self,
        memory: &'a M,
        address: SlotAddress,
        evict: bool,
        run: &mut impl FnMut(Option<State>, Now) -> Write,
        now: Now,
    ) -> Result<InsertOutcome<'a>, SharedError> {
        loop {
            // Another thread or process may have inserted it in the meantime.
            if let Some(found) = self.find(memory, address) {
                match self.change_locked(&found, run, now) {
                    Some(charge) => return Ok(InsertOutcome::Done(charge)),
                    None => continue,
                }
            }
            if let Some(found) = self.find_older(memory, address) {
                if found.occupant.is_sealed() {
                    // The process that moved it died before it copied the state.
                    found.slot.unseal(found.occupant);
                } else if self.state(&found, now).is_none() {
                    self.drop_stale(&found);
                } else if let Ok(chosen) = self.choose(memory, address, now, evict) {
                    self.take_over(memory, &found, &chosen, now);
                } else if let Some(charge) = self.change_locked(&found, run, now) {
                    // There is no room here, so the bucket stays in the older table.
                    return Ok(InsertOutcome::Done(charge));
                }
                continue;
            }
            let chosen = match self.choose(memory, address, now, evict) {
                Ok(chosen) => chosen,
                Err(wait) => return Ok(InsertOutcome::Full(wait)),
            };
            // A truncated file reads as zeros, in which no bucket is found.
            memory.refuse_truncated()?;
            if run(None, self.effective_now(memory, now)) == Write::Keep {
                return Ok(InsertOutcome::Done(None));
            }
            memory.reached(FaultPoint::Chosen);
            if has(Mutant::RenamesFirst) {
                let key = chosen.key.succeeded_by(address.tag, address.kind, Lifetime::INSTANT);
                chosen.slot.rename(key);
            }
            if !self.vacate(memory, &chosen, now) {
                continue;
            }
            let now = self.effective_now(memory, now);
            let Some((state, lifetime)) = run(None, now).state() else {
                return Ok(InsertOutcome::Done(None));
            };
            let (tag, kind) = (address.tag, address.kind);
            let key = chosen.key.succeeded_by(tag, kind, lifetime);
            let after = self.occupy(memory, &chosen, key, state);
            return Ok(InsertOutcome::Done(Some(SlotCharge {
                slot: chosen.slot,
                before: None,
                after,
            })));
        }
    }

    /// Frees a chosen slot. Returns `false` if its bucket was charged in the meantime.
    fn vacate(&self, memory: &M, chosen: &ChosenSlot<'_>, now: Now) -> bool {
        let Some(occupant) = chosen.occupant else { return true };
        let counters = memory.counters();
        // Raised before the slot is freed: a call that does not find its bucket must see the floor.
        if occupant.is_over(now) {
            self.raise_floor(memory, occupant);
            memory.reached(FaultPoint::FloorRaised);
        }
        // Compared with the word that was read: an earlier charge makes this fail, and a later
        // charge fails itself.
        if !chosen.slot.release(occupant) {
            return false;
        }
        memory.reached(FaultPoint::Released);
        if occupant.is_over(now) || self.is_damaged(memory, occupant) {
            counters.forgotten.count();
        } else {
            counters.live_evictions.count();
        }
        true
    }

    /// Assigns a free slot to a bucket. Only the holder of the lock writes to a free slot, so plain
    /// stores suffice.
    fn occupy(&self, memory: &M, chosen: &ChosenSlot<'_>, key: SlotKey, state: State) -> Occupant {
        self.announce(memory, state, key.lifetime());
        chosen.slot.rename(key);
        memory.reached(FaultPoint::Renamed);
        let after = chosen.slot.publish(key, state);
        memory.reached(FaultPoint::Published);
        after
    }

    /// Moves a bucket of an older table to a slot of `memory`, under the locks of both windows.
    ///
    /// A process that has not opened `memory` yet may charge the bucket in the older table until it
    /// is sealed. If this process dies in between, the bucket is either sealed in the older table
    /// or in both tables, and then the newer one is used.
    fn take_over(&self, memory: &M, found: &FoundSlot<'_, M>, chosen: &ChosenSlot<'_>, now: Now) {
        let &FoundSlot { memory: older, slot, occupant, .. } = found;
        let is_sealed = || has(Mutant::CopiesUnsealed) || slot.seal(occupant);
        if !self.vacate(memory, chosen, now) || !is_sealed() {
            return;
        }
        if has(Mutant::FreesBeforeCopy) {
            slot.release_sealed(occupant);
        }
        older.reached(FaultPoint::Sealed);
        if let Some(state) = self.state(found, now) {
            self.occupy(memory, chosen, chosen.key.succeeded_as(occupant.key), state);
            older.reached(FaultPoint::Copied);
        }
        if has(Mutant::CopiesUnsealed) {
            slot.release(occupant);
        }
        slot.release_sealed(occupant);
        older.reached(FaultPoint::Moved);
    }

    /// Frees some slots of each older table in which all buckets are full. A table without buckets
    /// is no longer searched.
    fn sweep(&self, memory: &M, now: Now) {
        for older in memory.older_tables() {
            let counters = older.counters();
            let latest_end = |timeline| counters.announced.latest_end(timeline).get();
            let timelines = [Timeline::Steady, Timeline::Wall];
            if timelines.iter().any(|&each| latest_end(each) > now.on(each).get() as u64) {
                continue;
            }
            let first = older.swept().load(Ordering::Relaxed);
            let last = older.lines().min(first + SWEPT_AT_ONCE);
            // A process that took the lock before the table was retired may still add a bucket.
            let Ok(Some(_guard)) = older.lock_lines(first..last, &Deadline::of_call(Wait::Never))
            else {
                continue;
            };
            for timeline in timelines {
                counters.raise_floor(timeline, latest_end(timeline));
            }
            let is_free = |&index: &usize| {
                let slot = older.slot(index);
                match slot.occupant() {
                    (_, None) => true,
                    // A process that has not opened `memory` may have charged it.
                    (_, Some(occupant)) => occupant.is_over(now) && slot.release(occupant),
                }
            };
            let slots = first * SLOTS_PER_LINE..last * SLOTS_PER_LINE;
            if slots.len() > slots.take_while(is_free).count() {
                continue;
            }
            older.swept().store(last, Ordering::Relaxed);
            if last == older.lines() {
                older.reached(FaultPoint::Swept);
                for timeline in timelines {
                    let floor = counters.floor().on(timeline).get() as u64;
                    memory.counters().announced.latest_end(timeline).raise(latest_end(timeline));
                    memory.counters().raise_floor(timeline, floor);
                }
                counters.set_emptied();
                older.reached(FaultPoint::Emptied);
                older.discard();
            }
        }
    }

    /// Forgets a bucket whose lifetime is over or that is damaged.
    fn drop_stale(&self, found: &FoundSlot<'_, M>) {
        let counters = found.memory.counters();
        if !self.is_damaged(found.memory, found.occupant) {
            self.raise_floor(found.memory, found.occupant);
        }
        if found.slot.release(found.occupant) {
            counters.forgotten.count();
        }
    }

    /// Raises the floor to the end of a bucket that is forgotten.
    pub(super) fn raise_floor(&self, memory: &M, occupant: Occupant) {
        let timeline = occupant.key.lifetime().timeline();
        memory.counters().raise_floor(timeline, occupant.end().get() as u64);
    }

    /// Runs a step on a bucket. Where its next state needs a longer lifetime, raises the lifetime
    /// or drops a stale bucket and returns `None`: the bucket must then be found again. The mask
    /// excludes the lifetime, so a concurrent charge still succeeds.
    fn change_locked<'a>(
        &self,
        found: &FoundSlot<'a, M>,
        run: &mut impl FnMut(Option<State>, Now) -> Write,
        now: Now,
    ) -> Option<Option<SlotCharge<'a>>> {
        match self.change(found, run, now) {
            StepOutcome::Done(charge) => return Some(charge),
            StepOutcome::Moved => return None,
            StepOutcome::NeedsLock => {}
        }
        let &FoundSlot { memory, slot, occupant, .. } = found;
        // Buckets are sealed only under this lock, after the table is retired.
        match self.state(found, now).filter(|_| !occupant.is_sealed()) {
            None => self.drop_stale(found),
            Some(state) => {
                if let Some((_, lifetime)) = run(Some(state), now).state() {
                    self.rename_for(memory, slot, occupant, lifetime, now);
                }
            }
        }
        None
    }

    /// Returns whether a new bucket would be shared or refused for lack of room.
    #[cold]
    pub(super) fn is_full(&self, memory: &M, address: SlotAddress, now: Now) -> bool {
        !self.evicts() && self.choose(memory, address, now, false).is_err()
    }

    /// Returns the time for which there is no room for a new bucket; `None` if there is room.
    pub(super) fn full_for(&self, address: SlotAddress, now: Now) -> Option<Nanos> {
        self.choose(self.current(), address, now, self.evicts()).err()
    }

    /// Returns the slot for a new bucket: the first one that is free or whose bucket is full, or
    /// else, with `evict`, the one whose bucket is full first.
    ///
    /// # Errors
    /// The time until the first bucket is full, if none is and `evict` is false.
    fn choose<'a>(
        &self,
        memory: &'a M,
        address: SlotAddress,
        now: Now,
        evict: bool,
    ) -> Result<ChosenSlot<'a>, Nanos> {
        let mut first_full: Option<(&SharedSlot, Occupant)> = None;
        for index in Self::window(memory, address) {
            let slot = memory.slot(index);
            let (key, occupant) = slot.occupant();
            let Some(occupant) = occupant else {
                return Ok(ChosenSlot { slot, key, occupant: None });
            };
            if occupant.is_over(now) || self.is_damaged(memory, occupant) {
                return Ok(ChosenSlot { slot, key, occupant: Some(occupant) });
            }
            if first_full.is_none_or(|(_, found)| occupant.left(now) < found.left(now)) {
                first_full = Some((slot, occupant));
            }
        }
        match first_full {
            Some((slot, occupant)) if evict => {
                Ok(ChosenSlot { slot, key: occupant.key, occupant: Some(occupant) })
            }
            Some((_, occupant)) => Err(Nanos::clamped(occupant.left(now))),
            None => Err(Nanos::ZERO),
        }
    }
}
