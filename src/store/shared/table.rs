//! The protocol of a shared table: which thread may write which word, and when. `insert.rs` is the
//! part under the lock.
//!
//! A call on a bucket with a slot is decided by one compare-and-swap on its state word. A call on a
//! bucket without one takes the lock of its window, which the kernel releases if its holder dies at
//! any instruction. Invariants:
//!
//! 1. A key word changes only under the lock of a window that covers its line. Its tag changes only
//!    while its state word is free.
//! 2. A free state word becomes occupied only under that lock. An occupied one changes only by
//!    compare-and-swap.
//! 3. An occupied state word belongs to the key beside it and is masked by that key.
//! 4. A key is in at most one slot whose state word is occupied.
//! 5. The bucket of a slot freed by eviction was full at an instant no later than the floor, or was
//!    counted as a live eviction.
//! 6. A search reads at most one window of each table. Only the lock waits for another process, with
//!    a deadline.
//! 7. At most one table of a list holds an unsealed slot of a key. If a key is in a newer table, only
//!    that table is used.
//! 8. No key is added to a retired table: a table is retired before any process adds a key to its
//!    successor, and an insert reads the stage after it has taken the lock.

use std::ops::Range;

use crate::engine::answer::Answer;
use crate::engine::state::{Lifetime, State, StateKind};
use crate::engine::time::{Nanos, Now, Timeline};
use crate::prefetch::prefetch;
use crate::store::memory::Overflow;
use crate::store::shared::SharedError;
use crate::store::shared::deadline::Deadline;
use crate::store::shared::loom_mutants::{Mutant, has};
use crate::store::shared::slot::{Occupant, SharedSlot, SlotTag};
use crate::store::shared::table_memory::{
    FaultPoint, Maximum, SLOTS_PER_LINE, TableMemory, TableStage,
};
use crate::store::{StoreStep, Write};

/// How far beyond a new latest end the announced one is raised.
const ANNOUNCED_AHEAD: Nanos = Nanos::SECOND;

/// The location of a bucket in a table of any size, its tag, its timeline, and what its states are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotAddress {
    pub(super) place: u64,
    pub(super) tag: SlotTag,
    pub(super) kind: StateKind,
    pub(super) timeline: Timeline,
}

impl SlotAddress {
    /// Returns the address of a bucket with this hash.
    ///
    /// The upper bits select the home line and the lower bits are the tag, so two buckets share a
    /// state only if their tags are equal and their home lines are less than a window apart.
    #[inline(always)]
    pub(super) fn of(hash: u64, kind: StateKind, timeline: Timeline) -> SlotAddress {
        SlotAddress { place: hash, tag: SlotTag::of_low_bits(hash), kind, timeline }
    }
}

/// Returns whether a lifetime is longer than the one whose bits are in `longest`.
#[inline(always)]
fn exceeds(lifetime: Lifetime, longest: &Maximum) -> bool {
    // Most states have an instant in nanoseconds, for which the word need not be read.
    lifetime.is_of_tally() && lifetime.on(Timeline::Steady).bits() > longest.get()
}

/// The slot of a bucket, and its content when it was found.
#[derive(Debug)]
pub(super) struct FoundSlot<'a, M> {
    pub(super) memory: &'a M,
    pub(super) slot: &'a SharedSlot,
    pub(super) occupant: Occupant,
    /// The address that was looked for.
    address: SlotAddress,
}

/// A charge that a call has written, which it may have to give back.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotCharge<'a> {
    pub(super) slot: &'a SharedSlot,
    /// The previous state word; `None` if the charge created the bucket.
    pub(super) before: Option<u64>,
    pub(super) after: Occupant,
}

/// The outcome of a step on a slot without the lock.
pub(super) enum StepOutcome<'a> {
    /// The answer is valid. Contains the charge if a state was written.
    Done(Option<SlotCharge<'a>>),
    /// Another thread or process has changed the slot.
    Moved,
    /// The bucket needs a longer lifetime, is damaged, or is being moved to another table.
    NeedsLock,
}

/// The outcome of a step under the lock.
pub(super) enum InsertOutcome<'a> {
    /// The answer is valid. Contains the charge if a state was written.
    Done(Option<SlotCharge<'a>>),
    /// No bucket of the window is full for this time.
    Full(Nanos),
}

/// Returns whether new buckets are added to a table. If not, a larger one has replaced it, or its
/// file was truncated; the error of [`TableMemory::open_successor`] tells which.
pub(super) fn is_in_use(memory: &impl TableMemory) -> bool {
    memory.counters().stage() == TableStage::InUse && memory.refuse_truncated().is_ok()
}

/// A table of slots under the protocol above.
#[derive(Debug)]
pub(super) struct SharedTable<M> {
    /// The table that was opened. A larger one may have replaced it.
    memory: M,
    overflow: Overflow,
}

impl<M: TableMemory> SharedTable<M> {
    pub(super) fn new(memory: M, overflow: Overflow) -> Self {
        SharedTable { memory, overflow }
    }

    /// Returns the newest table that this process has opened.
    #[inline(always)]
    pub(super) fn current(&self) -> &M {
        let mut memory = &self.memory;
        while let Some(successor) = memory.successor() {
            memory = successor;
        }
        memory
    }

    /// Returns the newest table, and opens it if necessary.
    ///
    /// # Errors
    /// As [`TableMemory::open_successor`].
    pub(super) fn newest(&self) -> Result<&M, SharedError> {
        loop {
            let memory = self.current();
            if is_in_use(memory) {
                return Ok(memory);
            }
            memory.open_successor()?;
        }
    }

    /// Returns whether a full window evicts a bucket for a new one.
    pub(super) fn evicts(&self) -> bool {
        self.overflow == Overflow::Evict
    }

    /// Returns the slots in which a bucket may be.
    pub(super) fn window(memory: &M, address: SlotAddress) -> Range<usize> {
        let first = memory.home_line(address.place) * SLOTS_PER_LINE;
        first..first + memory.window() * SLOTS_PER_LINE
    }

    /// Prefetches the line at which the search for a bucket begins.
    #[inline(always)]
    pub(super) fn fetch(&self, address: SlotAddress) {
        let memory = self.current();
        prefetch(memory.slot(memory.home_line(address.place) * SLOTS_PER_LINE));
    }

    /// Finds a bucket in one table.
    #[inline(always)]
    pub(super) fn find<'a>(&self, memory: &'a M, address: SlotAddress) -> Option<FoundSlot<'a, M>> {
        Self::window(memory, address).find_map(|index| {
            let slot = memory.slot(index);
            let occupant = slot.occupant_of(address.tag)?;
            Some(FoundSlot { memory, slot, occupant, address })
        })
    }

    /// Finds a bucket in the newest table, or in an older one if it has not been moved yet.
    ///
    /// # Errors
    /// As [`TableMemory::open_successor`].
    pub(super) fn find_anywhere(
        &self,
        address: SlotAddress,
    ) -> Result<Option<FoundSlot<'_, M>>, SharedError> {
        loop {
            let memory = self.current();
            let found = self.find(memory, address);
            if found.as_ref().is_some_and(|found| !self.is_moving(found)) {
                return Ok(found);
            }
            if !is_in_use(memory) {
                memory.open_successor()?;
                continue;
            }
            if found.is_some() {
                return Ok(found);
            }
            match self.find_older(memory, address) {
                Some(found) => return Ok(Some(found)),
                None if self.is_absent(memory, address) => return Ok(None),
                None => {}
            }
        }
    }

    /// Finds a bucket in a table that `memory` replaces.
    pub(super) fn find_older<'a>(
        &self,
        memory: &'a M,
        address: SlotAddress,
    ) -> Option<FoundSlot<'a, M>> {
        memory.older_tables().find_map(|older| self.find(older, address))
    }

    /// Returns whether a bucket that was not found in `memory` and then not in an older table is
    /// absent. It may have been moved to `memory` between the two searches.
    fn is_absent(&self, memory: &M, address: SlotAddress) -> bool {
        memory.older().is_none() || self.find(memory, address).is_none()
    }

    /// Returns the instant at which a call on a bucket without a slot is decided. Forgetting a full
    /// bucket is harmless only for calls after the instant at which it became full.
    pub(super) fn effective_now(&self, memory: &M, now: Now) -> Now {
        if has(Mutant::NoFloor) {
            return now;
        }
        let older = std::iter::successors(memory.older(), |table| table.older());
        let floors = std::iter::once(memory).chain(older).map(|table| table.counters().floor());
        floors.fold(now, Now::max)
    }

    /// Returns the state of a bucket; `None` if its lifetime is over at `now` or it is damaged.
    ///
    /// Both are decided as no state, so that damage cannot deny a client for longer than a lifetime. A
    /// slot with a longer lifetime or a later end than any that was ever written is damaged. One with a
    /// level that would take years to drain is over at its end. The lifetime in the key word may be
    /// damaged too: with that of a tally, a damaged TAT of a later year would look expired. So it must
    /// be of the kind that the call expects.
    #[inline(always)]
    pub(super) fn state(&self, found: &FoundSlot<'_, M>, now: Now) -> Option<State> {
        let &FoundSlot { memory, occupant, address, .. } = found;
        let is_over = occupant.is_over(now);
        let is_damaged = occupant.key.kind() != address.kind
            || occupant.key.lifetime().timeline() != address.timeline
            || self.is_damaged(memory, occupant);
        (!is_over && !is_damaged).then(|| occupant.state())
    }

    /// Returns whether no call can have written the content of a slot.
    #[inline(always)]
    pub(super) fn is_damaged(&self, memory: &M, occupant: Occupant) -> bool {
        let (announced, lifetime) = (&memory.counters().announced, occupant.key.lifetime());
        occupant.end().get() as u64 > announced.latest_end(lifetime.timeline()).get()
            || exceeds(lifetime, &announced.longest_lifetime)
    }

    /// Returns whether a bucket is sealed because it is being moved to a larger table. In a table
    /// that is in use, such a word is damaged.
    #[inline(always)]
    pub(super) fn is_moving(&self, found: &FoundSlot<'_, M>) -> bool {
        found.occupant.is_sealed() && !is_in_use(found.memory)
    }

    /// Raises the bounds of valid states before a state is written, so that no reader takes it for
    /// damage.
    #[inline(always)]
    pub(super) fn announce(&self, memory: &M, state: State, lifetime: Lifetime) {
        let end = lifetime.end_of(state).get() as u64;
        let announced = &memory.counters().announced;
        let latest_end = announced.latest_end(lifetime.timeline());
        if end > latest_end.get() {
            // Raised further than necessary to reduce contention on this word.
            latest_end.raise(end.saturating_add(ANNOUNCED_AHEAD.get() as u64));
        }
        if exceeds(lifetime, &announced.longest_lifetime) {
            announced.longest_lifetime.raise(lifetime.on(Timeline::Steady).bits());
        }
    }

    /// Runs `step` on one bucket.
    ///
    /// # Errors
    /// [`SharedError::Busy`] if that needs a lock that is not released before the deadline, and if the
    /// table cannot be locked. Nothing was then written.
    #[inline(always)]
    pub(super) fn update<S: StoreStep>(
        &self,
        address: SlotAddress,
        overflow: impl FnOnce() -> SlotAddress,
        step: &S,
        now: Now,
        answer: &mut Answer,
        deadline: &Deadline,
    ) -> Result<(), SharedError> {
        // The common case, a bucket with a slot, has its own copy of the step, which is inlined.
        let memory = self.current();
        if let Some(found) = self.find(memory, address) {
            memory.reached(FaultPoint::Found);
            let mut run =
                |state: Option<State>, now: Now| step.run(state, now.on(address.timeline), answer);
            if let StepOutcome::Done(_) = self.change(&found, &mut run, now) {
                return Ok(());
            }
        }
        self.update_otherwise(address, overflow, step, now, answer, deadline)
    }

    #[cold]
    #[inline(never)]
    fn update_otherwise<S: StoreStep>(
        &self,
        address: SlotAddress,
        overflow: impl FnOnce() -> SlotAddress,
        step: &S,
        now: Now,
        answer: &mut Answer,
        deadline: &Deadline,
    ) -> Result<(), SharedError> {
        let mut run =
            |state: Option<State>, now: Now| step.run(state, now.on(address.timeline), answer);
        if self.try_change(address, &mut run, now).is_some() {
            return Ok(());
        }
        match self.update_new(address, overflow, &mut run, now, deadline)? {
            InsertOutcome::Done(_) => Ok(()),
            InsertOutcome::Full(wait) => {
                let now = now.on(address.timeline);
                *answer = Answer::refused(now.saturating_add(wait), now);
                Ok(())
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn update_new(
        &self,
        address: SlotAddress,
        overflow: impl FnOnce() -> SlotAddress,
        run: &mut impl FnMut(Option<State>, Now) -> Write,
        now: Now,
        deadline: &Deadline,
    ) -> Result<InsertOutcome<'_>, SharedError> {
        let placed = self.insert(address, self.evicts(), run, now, deadline)?;
        if !matches!(placed, InsertOutcome::Full(_)) || self.is_refused() {
            return Ok(placed);
        }
        let address = overflow();
        match self.try_change(address, run, now) {
            Some(charge) => Ok(InsertOutcome::Done(charge)),
            // The overflow bucket must have a slot, even if another bucket is evicted for it.
            None => self.insert(address, true, run, now, deadline),
        }
    }

    /// Counts a new bucket whose window is full. Returns whether it is refused; otherwise it shares
    /// the overflow bucket.
    pub(super) fn is_refused(&self) -> bool {
        let counters = self.current().counters();
        let is_refused = self.overflow == Overflow::Deny;
        if is_refused {
            counters.refused.count()
        } else {
            counters.overflowed.count()
        }
        is_refused
    }

    /// Runs a step on a bucket without the lock. Returns `None` if the write needs the lock,
    /// otherwise the charge if a state was written.
    #[inline(always)]
    pub(super) fn try_change(
        &self,
        address: SlotAddress,
        run: &mut impl FnMut(Option<State>, Now) -> Write,
        now: Now,
    ) -> Option<Option<SlotCharge<'_>>> {
        let memory = self.current();
        loop {
            let changed = match self.find(memory, address) {
                Some(found) => {
                    memory.reached(FaultPoint::Found);
                    self.change(&found, run, now)
                }
                None => self.answer_without_slot(memory, address, run, now),
            };
            match changed {
                StepOutcome::Done(charge) => return Some(charge),
                StepOutcome::Moved => {}
                StepOutcome::NeedsLock => return None,
            }
        }
    }

    /// Answers a call on a bucket without a slot in `memory` if the call writes nothing.
    fn answer_without_slot(
        &self,
        memory: &M,
        address: SlotAddress,
        run: &mut impl FnMut(Option<State>, Now) -> Write,
        now: Now,
    ) -> StepOutcome<'_> {
        // After the search, so that a bucket that a process has added to a successor is not missed.
        if !is_in_use(memory) {
            return StepOutcome::NeedsLock;
        }
        if let Some(found) = self.find_older(memory, address) {
            let is_peek = run(self.state(&found, now), now) == Write::Keep;
            return match is_peek && !found.occupant.is_sealed() {
                true if found.slot.is_unchanged(found.occupant) => StepOutcome::Done(None),
                true => StepOutcome::Moved,
                false => StepOutcome::NeedsLock,
            };
        }
        if !self.is_absent(memory, address) {
            return StepOutcome::Moved;
        }
        let now = self.effective_now(memory, now);
        let is_peek = run(None, now) == Write::Keep;
        if is_peek && !self.is_full(memory, address, now) {
            StepOutcome::Done(None)
        } else {
            StepOutcome::NeedsLock
        }
    }

    /// Runs a step on the content of a slot as it was found.
    #[inline(always)]
    pub(super) fn change<'a>(
        &self,
        found: &FoundSlot<'a, M>,
        run: &mut impl FnMut(Option<State>, Now) -> Write,
        now: Now,
    ) -> StepOutcome<'a> {
        let &FoundSlot { memory, slot, occupant, .. } = found;
        if occupant.is_sealed() {
            return StepOutcome::NeedsLock;
        }
        let Some((state, lifetime)) = run(self.state(found, now), now).state() else {
            // The word belonged to the key when both were read. It must be unchanged.
            let is_unchanged = slot.is_unchanged(occupant);
            return if is_unchanged { StepOutcome::Done(None) } else { StepOutcome::Moved };
        };
        // The key of a damaged state may be damaged too, so its slot must be assigned again.
        let is_kept = lifetime <= occupant.key.lifetime();
        if self.is_damaged(memory, occupant) || !is_kept {
            return StepOutcome::NeedsLock;
        }
        self.announce(memory, state, occupant.key.lifetime());
        match slot.replace(occupant, state) {
            Some(after) => {
                memory.reached(FaultPoint::Replaced);
                StepOutcome::Done(Some(SlotCharge { slot, before: Some(occupant.word), after }))
            }
            None => StepOutcome::Moved,
        }
    }
}
