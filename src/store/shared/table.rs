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
//! 6. A search reads at most one window. Only the lock waits for another process, with a deadline.

use crate::engine::answer::Answer;
use crate::engine::state::{State, StateKind};
use crate::engine::time::{Nanos, Now, Timeline};
use crate::prefetch::prefetch;
use crate::store::memory::Overflow;
use crate::store::shared::SharedError;
use crate::store::shared::deadline::Deadline;
use crate::store::shared::loom_mutants::{Mutant, has};
use crate::store::shared::slot::{Occupant, SharedSlot, SlotTag};
use crate::store::shared::table_memory::{FaultPoint, SLOTS_PER_LINE, TableMemory};
use crate::store::{StoreStep, Write};

/// The location of a bucket in a table, its tag, its timeline, and what its states are.
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

/// The slot of a bucket, and its content when it was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundSlot<'a> {
    pub(super) slot: &'a SharedSlot,
    pub(super) occupant: Occupant,
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
    /// The bucket needs a slot or a longer lifetime.
    NeedsLock,
}

/// The outcome of a step under the lock.
pub(super) enum InsertOutcome<'a> {
    /// The answer is valid. Contains the charge if a state was written.
    Done(Option<SlotCharge<'a>>),
    /// No bucket of the window is full for this time.
    Full(Nanos),
}

/// A table of slots under the protocol above.
#[derive(Debug)]
pub(super) struct SharedTable<M> {
    pub(super) memory: M,
    overflow: Overflow,
}

impl<M: TableMemory> SharedTable<M> {
    pub(super) fn new(memory: M, overflow: Overflow) -> Self {
        SharedTable { memory, overflow }
    }

    /// Returns whether a full window evicts a bucket for a new one.
    pub(super) fn evicts(&self) -> bool {
        self.overflow == Overflow::Evict
    }

    /// Returns the slots in which a bucket may be.
    pub(super) fn window(&self, address: SlotAddress) -> impl Iterator<Item = &SharedSlot> {
        let first = self.memory.home_line(address.place) * SLOTS_PER_LINE;
        let window = first..first + self.memory.window() * SLOTS_PER_LINE;
        window.map(|index| self.memory.slot(index))
    }

    /// Prefetches the line at which the search for a bucket begins.
    #[inline(always)]
    pub(super) fn fetch(&self, address: SlotAddress) {
        prefetch(self.memory.slot(self.memory.home_line(address.place) * SLOTS_PER_LINE));
    }

    /// Finds a bucket.
    #[inline(always)]
    pub(super) fn find(&self, address: SlotAddress) -> Option<FoundSlot<'_>> {
        self.window(address).find_map(|slot| {
            let occupant = slot.occupant_of(address.tag)?;
            Some(FoundSlot { slot, occupant })
        })
    }

    /// Returns the instant at which a call on a bucket without a slot is decided. Forgetting a full
    /// bucket is harmless only for calls after the instant at which it became full.
    pub(super) fn effective_now(&self, now: Now) -> Now {
        if has(Mutant::NoFloor) { now } else { now.max(self.memory.counters().floor()) }
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
        // The common case, a bucket with a slot, has its own copy of the step, which is inlined: saves 50 of
        // the 1,410 instructions of a spend.
        if let Some(found) = self.find(address) {
            self.memory.reached(FaultPoint::Found);
            let mut run =
                |state: Option<State>, now: Now| step.run(state, now.on(address.timeline), answer);
            if let StepOutcome::Done(_) = self.change(found, &mut run, now) {
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
            // The overflow bucket must have a slot, even if a bucket that holds none is evicted for it.
            None => self.insert(address, true, run, now, deadline),
        }
    }

    /// Counts a new bucket whose window is full. Returns whether it is refused; otherwise it shares
    /// the overflow bucket.
    pub(super) fn is_refused(&self) -> bool {
        let counters = self.memory.counters();
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
        loop {
            let changed = match self.find(address) {
                Some(found) => {
                    self.memory.reached(FaultPoint::Found);
                    self.change(found, run, now)
                }
                None => self.answer_without_slot(address, run, now),
            };
            match changed {
                StepOutcome::Done(charge) => return Some(charge),
                StepOutcome::Moved => {}
                StepOutcome::NeedsLock => return None,
            }
        }
    }

    /// Answers a call on a bucket without a slot if the call writes nothing.
    fn answer_without_slot(
        &self,
        address: SlotAddress,
        run: &mut impl FnMut(Option<State>, Now) -> Write,
        now: Now,
    ) -> StepOutcome<'_> {
        let now = self.effective_now(now);
        let is_peek = run(None, now) == Write::Keep;
        if is_peek && !self.is_full(address, now) {
            StepOutcome::Done(None)
        } else {
            StepOutcome::NeedsLock
        }
    }

    /// Runs a step on the content of a slot as it was found.
    #[inline(always)]
    pub(super) fn change<'a>(
        &'a self,
        FoundSlot { slot, occupant }: FoundSlot<'a>,
        run: &mut impl FnMut(Option<State>, Now) -> Write,
        now: Now,
    ) -> StepOutcome<'a> {
        let Some((state, lifetime)) = run(occupant.state_at(now), now).state() else {
            // The word belonged to the key when both were read. It must be unchanged.
            let is_unchanged = slot.is_unchanged(occupant);
            return if is_unchanged { StepOutcome::Done(None) } else { StepOutcome::Moved };
        };
        if lifetime > occupant.key.lifetime() {
            return StepOutcome::NeedsLock;
        }
        match slot.replace(occupant, state) {
            Some(after) => {
                self.memory.reached(FaultPoint::Replaced);
                StepOutcome::Done(Some(SlotCharge { slot, before: Some(occupant.word), after }))
            }
            None => StepOutcome::Moved,
        }
    }
}
