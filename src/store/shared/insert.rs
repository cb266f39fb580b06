//! Inserts, under the lock of a window: assign slots to new buckets.

use crate::engine::state::{Lifetime, State, StateKind};
use crate::engine::time::{Nanos, Now};
use crate::store::Write;
use crate::store::shared::SharedError;
use crate::store::shared::deadline::Deadline;
use crate::store::shared::loom_mutants::{Mutant, has};
use crate::store::shared::slot::{Occupant, SharedSlot, SlotKey};
use crate::store::shared::table::{
    FoundSlot, InsertOutcome, SharedTable, SlotAddress, SlotCharge, StepOutcome,
};
use crate::store::shared::table_memory::{FaultPoint, TableMemory};

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
        self.memory.reached(FaultPoint::BeforeLock);
        let _guard = self.memory.lock(address.place, deadline)?;
        self.memory.counters().locked.count();
        self.memory.reached(FaultPoint::Locked);
        let placed = self.insert_locked(address, evict, run, now);
        self.memory.counters().unlocked.count();
        Ok(placed)
    }

    fn insert_locked(
        &self,
        address: SlotAddress,
        evict: bool,
        run: &mut impl FnMut(Option<State>, Now) -> Write,
        now: Now,
    ) -> InsertOutcome<'_> {
        loop {
            // Another thread or process may have inserted it in the meantime.
            if let Some(found) = self.find(address) {
                match self.change_locked(found, run, now) {
                    Some(charge) => return InsertOutcome::Done(charge),
                    None => continue,
                }
            }
            let chosen = match self.choose(address, now, evict) {
                Ok(chosen) => chosen,
                Err(wait) => return InsertOutcome::Full(wait),
            };
            if run(None, self.effective_now(now)) == Write::Keep {
                return InsertOutcome::Done(None);
            }
            self.memory.reached(FaultPoint::Chosen);
            if has(Mutant::RenamesFirst) {
                let key = chosen.key.succeeded_by(address.tag, address.kind, Lifetime::INSTANT);
                chosen.slot.rename(key);
            }
            if !self.vacate(&chosen, now) {
                continue;
            }
            let Some((state, lifetime)) = run(None, self.effective_now(now)).state() else {
                return InsertOutcome::Done(None);
            };
            let key = chosen.key.succeeded_by(address.tag, address.kind, lifetime);
            let after = self.occupy(&chosen, key, state);
            return InsertOutcome::Done(Some(SlotCharge {
                slot: chosen.slot,
                before: None,
                after,
            }));
        }
    }

    /// Frees a chosen slot. Returns `false` if its bucket was charged in the meantime.
    fn vacate(&self, chosen: &ChosenSlot<'_>, now: Now) -> bool {
        let Some(occupant) = chosen.occupant else { return true };
        let is_over = occupant.is_over(now);
        // Raised before the slot is freed: a call that does not find its bucket must see the floor.
        if is_over {
            self.raise_floor(occupant);
            self.memory.reached(FaultPoint::FloorRaised);
        }
        // Compared with the word that was read: an earlier charge makes this fail, and a later
        // charge fails itself.
        if !chosen.slot.release(occupant) {
            return false;
        }
        self.memory.reached(FaultPoint::Released);
        let counters = self.memory.counters();
        if is_over {
            counters.forgotten.count()
        } else {
            counters.live_evictions.count()
        }
        true
    }

    /// Assigns a free slot to a bucket. Only the holder of the lock writes to a free slot, so plain
    /// stores suffice.
    fn occupy(&self, chosen: &ChosenSlot<'_>, key: SlotKey, state: State) -> Occupant {
        chosen.slot.rename(key);
        self.memory.reached(FaultPoint::Renamed);
        let after = chosen.slot.publish(key, state);
        self.memory.reached(FaultPoint::Published);
        after
    }

    /// Forgets a bucket whose lifetime is over.
    pub(super) fn drop_over(&self, FoundSlot { slot, occupant }: FoundSlot<'_>) {
        self.raise_floor(occupant);
        if slot.release(occupant) {
            self.memory.counters().forgotten.count();
        }
    }

    /// Raises the floor to the end of a bucket that is forgotten.
    fn raise_floor(&self, occupant: Occupant) {
        let timeline = occupant.key.lifetime().timeline();
        self.memory.counters().raise_floor(timeline, occupant.end());
    }

    /// Runs a step on a bucket. Where its next state needs a longer lifetime, raises the lifetime or
    /// drops a bucket that is over, and returns `None`: the bucket must then be found again. The mask
    /// excludes the lifetime, so a concurrent charge still succeeds.
    fn change_locked<'a>(
        &'a self,
        found: FoundSlot<'a>,
        run: &mut impl FnMut(Option<State>, Now) -> Write,
        now: Now,
    ) -> Option<Option<SlotCharge<'a>>> {
        match self.change(found, run, now) {
            StepOutcome::Done(charge) => return Some(charge),
            StepOutcome::Moved => return None,
            StepOutcome::NeedsLock => {}
        }
        match found.occupant.state_at(now) {
            None => self.drop_over(found),
            Some(state) => {
                if let Some((_, lifetime)) = run(Some(state), now).state() {
                    found.raise_lifetime(lifetime);
                }
            }
        }
        None
    }

    /// Returns whether a new bucket would be shared or refused for lack of room.
    #[cold]
    pub(super) fn is_full(&self, address: SlotAddress, now: Now) -> bool {
        !self.evicts() && self.choose(address, now, false).is_err()
    }

    /// Returns the time for which there is no room for a new bucket; `None` if there is room.
    pub(super) fn full_for(&self, address: SlotAddress, now: Now) -> Option<Nanos> {
        self.choose(address, now, self.evicts()).err()
    }

    /// Returns the slot for a new bucket: the first one that is free or whose bucket is full, or
    /// else, with `evict`, the one whose bucket is full first. A bucket in which requests in flight hold
    /// slots is evicted only if the user has chosen that: others would be admitted beside them.
    ///
    /// # Errors
    /// The time until the first bucket is full, if none is and none may be evicted.
    fn choose(&self, address: SlotAddress, now: Now, evict: bool) -> Result<ChosenSlot<'_>, Nanos> {
        let is_kept = |occupant: &Occupant| {
            !evict || !self.evicts() && occupant.key.kind() == StateKind::Slots
        };
        let order = |occupant: &Occupant| (is_kept(occupant), occupant.left(now));
        let mut first_full: Option<(&SharedSlot, Occupant)> = None;
        for slot in self.window(address) {
            let (key, occupant) = slot.occupant();
            if occupant.is_none_or(|occupant| occupant.is_over(now)) {
                return Ok(ChosenSlot { slot, key, occupant });
            }
            if let Some(occupant) = occupant
                && first_full.is_none_or(|(_, first)| order(&occupant) < order(&first))
            {
                first_full = Some((slot, occupant));
            }
        }
        match first_full {
            Some((slot, occupant)) if !is_kept(&occupant) => {
                Ok(ChosenSlot { slot, key: occupant.key, occupant: Some(occupant) })
            }
            Some((_, occupant)) => Err(Nanos::clamped(occupant.left(now))),
            None => Err(Nanos::ZERO),
        }
    }
}
