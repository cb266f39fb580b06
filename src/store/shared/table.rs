//! The protocol of a shared table: who may write which word, and when.
//!
//! A bucket that has a slot is decided by one compare-and-swap on its state word. A bucket that has
//! none takes the lock of its window, which the kernel frees when its holder dies at any
//! instruction. Invariants:
//!
//! 1. A key word changes only under the lock of a window that covers its line. Its tag changes only
//!    while its state word is free.
//! 2. A free state word becomes occupied only under that lock. An occupied one changes only by
//!    compare-and-swap.
//! 3. An occupied state word belongs to the key beside it and is masked by that key.
//! 4. A key is in at most one slot whose state word is occupied.
//! 5. A slot freed by eviction had drained at an instant no later than the floor, or was counted as
//!    a live eviction.
//! 6. A search reads at most one window of each table. Nothing but the lock waits for another
//!    process, and the lock has a deadline.
//! 7. Of a table and the older ones that it replaces, at most one holds a key that is not sealed.
//!    Where a key is in a newer table, only that table is used.
//! 8. No key is added to a retired table: a table is retired before any process adds a key to its
//!    successor, and an addition reads the stage after it has taken the lock.

use std::ops::Range;

use crate::engine::state::{Lifetime, State};
use crate::engine::time::{Nanos, Timestamp};
use crate::store::memory::Overflow;
use crate::store::shared::SharedError;
use crate::store::shared::flaw::{Flaw, has};
use crate::store::shared::memory::{FaultPoint, Memory, SLOTS_PER_LINE, Stage, Wait};
use crate::store::shared::slot::{Key, Occupant, Slot, Tag};
use crate::store::{Stats, Step, Write};
use crate::sync::counting::Ordering;

/// How far beyond the latest end the table's record of it is set.
const ANNOUNCED_AHEAD: Nanos = Nanos::SECOND;
/// Lines of an older table that one new bucket frees.
const SWEPT_AT_ONCE: usize = 256;

/// Where a bucket may be, in a table of any size, and its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    place: u64,
    tag: Tag,
}

impl Address {
    /// The address of a bucket with this 128-bit hash: one half says where, the other which.
    #[inline(always)]
    pub(super) fn of(hash: (u64, u64)) -> Address {
        Address { place: hash.0, tag: Tag::of(hash.1) }
    }
}

/// A bucket that was found: its slot, and what the slot held.
#[derive(Debug)]
pub(super) struct Found<'a, M> {
    memory: &'a M,
    slot: &'a Slot,
    occupant: Occupant,
}

/// One charge of a call over several buckets, as it was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charge<'a> {
    slot: &'a Slot,
    /// What the slot held before; `None` if the charge made the bucket.
    before: Option<u64>,
    after: Occupant,
}

/// What came of a step on a slot.
enum Changed<'a> {
    /// The answer holds; what was written, if anything was.
    Done(Option<Charge<'a>>),
    /// Another thread or process changed the slot meanwhile.
    Moved,
    /// The new state must be remembered for longer than the key says, or the bucket is damaged or
    /// being moved to another table.
    NeedsLock,
}

/// What came of a step under the lock.
pub(super) enum Placed<'a> {
    /// The answer is complete; what was written, if anything was.
    Done(Option<Charge<'a>>),
    /// Every slot of the window matters until this instant.
    Full(Timestamp),
    /// The lock is taken, and the caller may not wait.
    Busy,
}

/// A slot that a new bucket may have.
struct Chosen<'a> {
    slot: &'a Slot,
    key: Key,
    /// The bucket that has it now.
    occupant: Option<Occupant>,
}

/// Whether new buckets are added to a table, or else to the larger one that replaced it.
fn is_in_use(memory: &impl Memory) -> bool {
    memory.counters().stage() == Stage::InUse
}

/// A table of slots under the protocol above.
#[derive(Debug)]
pub(super) struct Table<M> {
    /// The table that was opened; a larger one may have replaced it.
    memory: M,
    overflow: Overflow,
}

impl<M: Memory> Table<M> {
    pub(super) fn new(memory: M, overflow: Overflow) -> Self {
        Table { memory, overflow }
    }

    /// The newest table that this process knows.
    #[inline(always)]
    pub(super) fn current(&self) -> &M {
        let mut memory = &self.memory;
        while let Some(successor) = memory.successor() {
            memory = successor;
        }
        memory
    }

    /// The newest table that there is.
    pub(super) fn newest(&self) -> Result<&M, SharedError> {
        loop {
            let memory = self.current();
            if is_in_use(memory) {
                return Ok(memory);
            }
            memory.open_successor()?;
        }
    }

    /// Whether a full window makes room for a new bucket.
    pub(super) fn evicts(&self) -> bool {
        self.overflow == Overflow::Evict
    }

    fn window(memory: &M, address: Address) -> Range<usize> {
        let first = memory.home_line(address.place) * SLOTS_PER_LINE;
        first..first + memory.window() * SLOTS_PER_LINE
    }

    #[inline(always)]
    fn find<'a>(&self, memory: &'a M, address: Address) -> Option<Found<'a, M>> {
        Self::window(memory, address).find_map(|index| {
            let slot = memory.slot(index);
            let occupant = slot.occupant_of(address.tag)?;
            Some(Found { memory, slot, occupant })
        })
    }

    /// Finds a bucket in the newest table or in an older one that it has not left yet.
    pub(super) fn find_anywhere(
        &self,
        address: Address,
    ) -> Result<Option<Found<'_, M>>, SharedError> {
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

    fn find_older<'a>(&self, memory: &'a M, address: Address) -> Option<Found<'a, M>> {
        memory.older_tables().find_map(|older| self.find(older, address))
    }

    /// Whether a bucket that is in no older table is not in `memory` either. It may have been
    /// moved there after it was looked for.
    fn is_absent(&self, memory: &M, address: Address) -> bool {
        memory.older().is_none() || self.find(memory, address).is_none()
    }

    /// The instant at which a call at a bucket without a slot is decided: forgetting a drained
    /// bucket is harmless only for calls later than the instant at which it drained.
    pub(super) fn effective_now(&self, memory: &M, now: Timestamp) -> Timestamp {
        let older = std::iter::successors(memory.older(), |table| table.older());
        let floors = std::iter::once(memory).chain(older).map(|table| {
            let counters = table.counters();
            // No bucket drains later than at the latest end: such a floor is damaged.
            Some(counters.floor.get()).filter(|&floor| floor <= counters.latest_end.get())
        });
        let floor = if has(Flaw::NoFloor) { None } else { floors.flatten().max() };
        now.max(Timestamp::clamped(floor.unwrap_or(0) as i64))
    }

    /// The state of a bucket, unless it is damaged.
    ///
    /// A word that says it is worth keeping for longer than any state that was ever written was not
    /// written by a call. It decides as no state would, so that damage cannot lock a client out.
    #[inline(always)]
    pub(super) fn state(&self, found: &Found<'_, M>) -> Option<State> {
        let is_damaged = self.is_damaged(found.memory, found.occupant);
        (!is_damaged).then(|| found.occupant.state())
    }

    #[inline(always)]
    pub(super) fn is_damaged(&self, memory: &M, occupant: Occupant) -> bool {
        occupant.end().get() as u64 > memory.counters().latest_end.get()
    }

    /// Whether a bucket is frozen because a larger table takes it over. In a table that is in use,
    /// such a word is damage.
    #[inline(always)]
    fn is_moving(&self, found: &Found<'_, M>) -> bool {
        found.occupant.is_sealed() && !is_in_use(found.memory)
    }

    /// Makes sure that no reader takes a state that is about to be written for damage.
    #[inline(always)]
    fn announce(&self, memory: &M, state: State, lifetime: Lifetime) {
        let end = lifetime.end_of(state).get() as u64;
        let latest = &memory.counters().latest_end;
        if end > latest.get() {
            // Further than needed, so that processes do not meet at this word at every call.
            latest.raise(end.saturating_add(ANNOUNCED_AHEAD.get() as u64));
        }
    }

    /// Runs `step` on one bucket. Returns `false` if that takes a lock that `wait` does not wait
    /// for; nothing was then written.
    ///
    /// # Errors
    /// [`SharedError`] if the lock is not available in time, or the window is full and the overflow
    /// policy refuses.
    #[inline(always)]
    pub(super) fn update<S: Step>(
        &self,
        address: Address,
        overflow: impl FnOnce() -> Address,
        step: &S,
        now: Timestamp,
        answer: &mut S::Answer,
        wait: Wait,
    ) -> Result<bool, SharedError> {
        // The common case has a step of its own, which is compiled into it: a bucket with a slot.
        let memory = self.current();
        if let Some(found) = self.find(memory, address) {
            memory.reached(FaultPoint::Found);
            let mut run = |state: Option<State>, now: Timestamp| step.run(state, now, answer);
            if let Changed::Done(_) = self.change(&found, &mut run, now) {
                return Ok(true);
            }
        }
        self.update_otherwise(address, overflow, step, now, answer, wait)
    }

    #[cold]
    #[inline(never)]
    fn update_otherwise<S: Step>(
        &self,
        address: Address,
        overflow: impl FnOnce() -> Address,
        step: &S,
        now: Timestamp,
        answer: &mut S::Answer,
        wait: Wait,
    ) -> Result<bool, SharedError> {
        let mut run = |state: Option<State>, now: Timestamp| step.run(state, now, answer);
        if self.try_change(address, &mut run, now).is_some() {
            return Ok(true);
        }
        match self.update_new(address, overflow, &mut run, now, wait)? {
            Placed::Done(_) => Ok(true),
            Placed::Busy => Ok(false),
            Placed::Full(until) => {
                step.refuse(until, now, answer);
                Ok(true)
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn update_new(
        &self,
        address: Address,
        overflow: impl FnOnce() -> Address,
        run: &mut impl FnMut(Option<State>, Timestamp) -> Write,
        now: Timestamp,
        wait: Wait,
    ) -> Result<Placed<'_>, SharedError> {
        let placed = self.insert(address, self.evicts(), run, now, wait)?;
        if !matches!(placed, Placed::Full(_)) || self.is_refused() {
            return Ok(placed);
        }
        let address = overflow();
        match self.try_change(address, run, now) {
            Some(charge) => Ok(Placed::Done(charge)),
            // The shared bucket must have a slot, even if another bucket loses its own.
            None => self.insert(address, true, run, now, wait),
        }
    }

    /// Counts a new bucket whose window is full. Returns whether it is refused, and not shared.
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

    /// Runs a step on a bucket without the lock. `None` if what it writes needs the lock; the
    /// outer `Some` holds what was written, if anything was.
    #[inline(always)]
    pub(super) fn try_change(
        &self,
        address: Address,
        run: &mut impl FnMut(Option<State>, Timestamp) -> Write,
        now: Timestamp,
    ) -> Option<Option<Charge<'_>>> {
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
                Changed::Done(charge) => return Some(charge),
                Changed::Moved => {}
                Changed::NeedsLock => return None,
            }
        }
    }

    /// Answers a call at a bucket without a slot in `memory`, if it writes nothing.
    fn answer_without_slot(
        &self,
        memory: &M,
        address: Address,
        run: &mut impl FnMut(Option<State>, Timestamp) -> Write,
        now: Timestamp,
    ) -> Changed<'_> {
        // After the search: a bucket that a successor made before this reading is not missed.
        if !is_in_use(memory) {
            return Changed::NeedsLock;
        }
        if let Some(found) = self.find_older(memory, address) {
            let is_peek = run(self.state(&found), now) == Write::Keep;
            return match is_peek && !found.occupant.is_sealed() {
                true if found.slot.is_unchanged(found.occupant) => Changed::Done(None),
                true => Changed::Moved,
                false => Changed::NeedsLock,
            };
        }
        if !self.is_absent(memory, address) {
            return Changed::Moved;
        }
        let now = self.effective_now(memory, now);
        let is_peek = run(None, now) == Write::Keep;
        if is_peek && !self.is_full(memory, address, now) {
            Changed::Done(None)
        } else {
            Changed::NeedsLock
        }
    }

    /// Runs a step on what a slot was seen to hold.
    #[inline(always)]
    fn change<'a>(
        &self,
        found: &Found<'a, M>,
        run: &mut impl FnMut(Option<State>, Timestamp) -> Write,
        now: Timestamp,
    ) -> Changed<'a> {
        let &Found { memory, slot, occupant } = found;
        if occupant.is_sealed() {
            return Changed::NeedsLock;
        }
        let state = self.state(found);
        let is_damaged = state.is_none();
        let Some((state, lifetime)) = run(state, now).state() else {
            // The word was the bucket's own when its key was read; it must still be there.
            let is_unchanged = slot.is_unchanged(occupant);
            return if is_unchanged { Changed::Done(None) } else { Changed::Moved };
        };
        // The key of a damaged state may be damaged too: its slot is assigned again.
        if is_damaged || lifetime > occupant.key.lifetime() {
            return Changed::NeedsLock;
        }
        self.announce(memory, state, occupant.key.lifetime());
        match slot.replace(occupant, state) {
            Some(after) => {
                memory.reached(FaultPoint::Replaced);
                Changed::Done(Some(Charge { slot, before: Some(occupant.word), after }))
            }
            None => Changed::Moved,
        }
    }

    /// Runs a step on a bucket under the lock of its window, where it may be assigned a slot or a
    /// longer lifetime. With `evict` a full window makes room.
    pub(super) fn insert(
        &self,
        address: Address,
        evict: bool,
        run: &mut impl FnMut(Option<State>, Timestamp) -> Write,
        now: Timestamp,
        wait: Wait,
    ) -> Result<Placed<'_>, SharedError> {
        loop {
            let memory = self.current();
            self.sweep(memory, now);
            memory.reached(FaultPoint::BeforeLock);
            match memory.lock(address.place, wait) {
                Ok(None) => return Ok(Placed::Busy),
                Ok(Some(_guard)) if is_in_use(memory) || has(Flaw::AddsToRetired) => {
                    memory.counters().locked.count();
                    memory.reached(FaultPoint::Locked);
                    let placed = self.insert_locked(memory, address, evict, run, now);
                    memory.counters().unlocked.count();
                    return Ok(placed);
                }
                Ok(Some(_)) => {}
                // The file of a table without buckets may have been removed.
                Err(SharedError::Replaced) if !is_in_use(memory) => {}
                Err(error) => return Err(error),
            }
            if wait == Wait::Never {
                return Ok(Placed::Busy);
            }
            memory.open_successor()?;
        }
    }

    fn insert_locked<'a>(
        &self,
        memory: &'a M,
        address: Address,
        evict: bool,
        run: &mut impl FnMut(Option<State>, Timestamp) -> Write,
        now: Timestamp,
    ) -> Placed<'a> {
        loop {
            // Another thread or process may have been faster.
            if let Some(found) = self.find(memory, address) {
                match self.change(&found, run, now) {
                    Changed::Done(charge) => return Placed::Done(charge),
                    Changed::Moved => {}
                    // Buckets are sealed only under this lock, and after the table is retired.
                    Changed::NeedsLock if found.occupant.is_sealed() => self.drop_damaged(&found),
                    Changed::NeedsLock => self.raise_lifetime(&found, run, now),
                }
                continue;
            }
            if let Some(found) = self.find_older(memory, address) {
                if found.occupant.is_sealed() {
                    // Its mover died before it had copied the state.
                    found.slot.unseal(found.occupant);
                } else if self.state(&found).is_none() {
                    self.drop_damaged(&found);
                } else if let Ok(chosen) = self.choose(memory, address, now, evict) {
                    self.take_over(memory, &found, &chosen, now);
                } else {
                    // Without room here, the bucket stays where it is.
                    match self.change(&found, run, now) {
                        Changed::Done(charge) => return Placed::Done(charge),
                        Changed::Moved => {}
                        Changed::NeedsLock => self.raise_lifetime(&found, run, now),
                    }
                }
                continue;
            }
            let chosen = match self.choose(memory, address, now, evict) {
                Ok(chosen) => chosen,
                Err(until) => return Placed::Full(until),
            };
            if run(None, self.effective_now(memory, now)) == Write::Keep {
                return Placed::Done(None);
            }
            memory.reached(FaultPoint::Chosen);
            if has(Flaw::RenamesFirst) {
                chosen.slot.rename(chosen.key.succeeded_by(address.tag, Lifetime::INSTANT));
            }
            if !self.vacate(memory, &chosen, now) {
                continue;
            }
            let now = self.effective_now(memory, now);
            let Some((state, lifetime)) = run(None, now).state() else {
                return Placed::Done(None);
            };
            let after = self.occupy(memory, &chosen, address.tag, state, lifetime);
            return Placed::Done(Some(Charge { slot: chosen.slot, before: None, after }));
        }
    }

    /// Frees a chosen slot. `false` if a charge came first.
    fn vacate(&self, memory: &M, chosen: &Chosen<'_>, now: Timestamp) -> bool {
        let Some(occupant) = chosen.occupant else { return true };
        let counters = memory.counters();
        // Raised before the slot is freed: a call that finds its bucket gone must find the floor
        // too.
        if occupant.end() <= now {
            counters.floor.raise(occupant.end().get() as u64);
            memory.reached(FaultPoint::FloorRaised);
        }
        // From exactly the word that was read: a charge that came first makes this fail, and one
        // that comes later fails itself.
        if !chosen.slot.release(occupant) {
            return false;
        }
        memory.reached(FaultPoint::Released);
        if occupant.end() <= now || self.is_damaged(memory, occupant) {
            counters.forgotten.count();
        } else {
            counters.live_evictions.count();
        }
        true
    }

    /// Assigns a free slot to a bucket. Only the holder of the lock writes to a free slot, so these
    /// are plain stores.
    fn occupy(
        &self,
        memory: &M,
        chosen: &Chosen<'_>,
        tag: Tag,
        state: State,
        lifetime: Lifetime,
    ) -> Occupant {
        self.announce(memory, state, lifetime);
        let key = chosen.key.succeeded_by(tag, lifetime);
        chosen.slot.rename(key);
        memory.reached(FaultPoint::Renamed);
        let after = chosen.slot.publish(key, state);
        memory.reached(FaultPoint::Published);
        after
    }

    /// Moves a bucket of an older table to a slot of `memory`, under the locks of both windows.
    ///
    /// A process that does not know `memory` yet may charge the bucket in the older table until it
    /// is sealed. Where a mover dies, the bucket is in the older table, sealed, or in both, of which
    /// only the newer one is used.
    fn take_over(&self, memory: &M, found: &Found<'_, M>, chosen: &Chosen<'_>, now: Timestamp) {
        let &Found { memory: older, slot, occupant } = found;
        let is_sealed = || has(Flaw::CopiesUnsealed) || slot.seal(occupant);
        if !self.vacate(memory, chosen, now) || !is_sealed() {
            return;
        }
        if has(Flaw::FreesBeforeCopy) {
            slot.release_sealed(occupant);
        }
        older.reached(FaultPoint::Sealed);
        if let Some(state) = self.state(found) {
            let (tag, lifetime) = (occupant.key.tag(), occupant.key.lifetime());
            self.occupy(memory, chosen, tag, state, lifetime);
            older.reached(FaultPoint::Copied);
        }
        if has(Flaw::CopiesUnsealed) {
            slot.release(occupant);
        }
        slot.release_sealed(occupant);
        older.reached(FaultPoint::Moved);
    }

    /// Frees some slots of each older table whose buckets have all drained. A table without buckets
    /// is not searched any more.
    fn sweep(&self, memory: &M, now: Timestamp) {
        for older in memory.older_tables() {
            let counters = older.counters();
            let latest_end = counters.latest_end.get();
            if latest_end > now.get() as u64 {
                continue;
            }
            let first = older.swept().load(Ordering::Relaxed);
            let last = older.lines().min(first + SWEPT_AT_ONCE);
            // A process that took a lock before the table was retired may still add a bucket.
            let Ok(Some(_guard)) = older.lock_lines(first..last, Wait::Never) else { continue };
            counters.floor.raise(latest_end);
            let is_free = |&index: &usize| {
                let slot = older.slot(index);
                match slot.occupant() {
                    (_, None) => true,
                    // A process that does not know `memory` may have charged it meanwhile.
                    (_, Some(occupant)) => occupant.end() <= now && slot.release(occupant),
                }
            };
            let slots = first * SLOTS_PER_LINE..last * SLOTS_PER_LINE;
            if slots.len() > slots.take_while(is_free).count() {
                continue;
            }
            older.swept().store(last, Ordering::Relaxed);
            if last == older.lines() {
                older.reached(FaultPoint::Swept);
                memory.counters().latest_end.raise(latest_end);
                memory.counters().floor.raise(counters.floor.get());
                counters.set_emptied();
                older.reached(FaultPoint::Emptied);
                older.discard();
            }
        }
    }

    fn drop_damaged(&self, found: &Found<'_, M>) {
        if found.slot.release(found.occupant) {
            found.memory.counters().forgotten.count();
        }
    }

    /// Raises the lifetime of a bucket to what its next state needs, or drops a damaged bucket. Only
    /// under the lock of its window. The mask excludes the lifetime, so a concurrent charge still
    /// succeeds.
    fn raise_lifetime(
        &self,
        found: &Found<'_, M>,
        run: &mut impl FnMut(Option<State>, Timestamp) -> Write,
        now: Timestamp,
    ) {
        let &Found { memory, slot, occupant } = found;
        let state = self.state(found);
        if state.is_none() {
            return self.drop_damaged(found);
        }
        if let Some((_, lifetime)) = run(state, now).state() {
            self.rename_for(memory, slot, occupant, lifetime, now);
        }
    }

    /// Whether a new bucket would be shared or refused for lack of room.
    #[cold]
    fn is_full(&self, memory: &M, address: Address, now: Timestamp) -> bool {
        !self.evicts() && self.choose(memory, address, now, false).is_err()
    }

    /// The instant until which there is no room for a new bucket.
    pub(super) fn full_until(&self, address: Address, now: Timestamp) -> Option<Timestamp> {
        self.choose(self.current(), address, now, self.evicts()).err()
    }

    /// The slot of a window that a new bucket may have: the first that is free or drained, else,
    /// with `evict`, the one that drains first. Without, the instant at which that one drains.
    fn choose<'a>(
        &self,
        memory: &'a M,
        address: Address,
        now: Timestamp,
        evict: bool,
    ) -> Result<Chosen<'a>, Timestamp> {
        let mut first_to_drain: Option<(&Slot, Occupant)> = None;
        for index in Self::window(memory, address) {
            let slot = memory.slot(index);
            let (key, occupant) = slot.occupant();
            let Some(occupant) = occupant else { return Ok(Chosen { slot, key, occupant: None }) };
            if occupant.end() <= now || self.is_damaged(memory, occupant) {
                return Ok(Chosen { slot, key, occupant: Some(occupant) });
            }
            if first_to_drain.is_none_or(|(_, found)| occupant.end() < found.end()) {
                first_to_drain = Some((slot, occupant));
            }
        }
        match first_to_drain {
            Some((slot, occupant)) if evict => {
                Ok(Chosen { slot, key: occupant.key, occupant: Some(occupant) })
            }
            Some((_, occupant)) => Err(occupant.end()),
            None => Err(now),
        }
    }

    /// Forgets one bucket. Returns whether there was one.
    ///
    /// # Errors
    /// [`SharedError`] if the table was replaced by a larger one and the lock is not available.
    pub(super) fn forget(&self, address: Address) -> Result<bool, SharedError> {
        loop {
            let memory = self.newest()?;
            // The bucket must not be moved meanwhile, and what a dead mover left behind must not
            // come back.
            let has_older = memory.older_tables().next().is_some();
            let _guard = match has_older.then(|| memory.lock(address.place, Wait::ForCall)) {
                None => None,
                Some(Ok(guard)) => guard,
                Some(Err(SharedError::Replaced)) if !is_in_use(memory) => continue,
                Some(Err(error)) => return Err(error),
            };
            // A larger table that has just replaced this one may be taking the bucket over.
            let is_moving = |found: &Found<'_, M>| self.is_moving(found);
            let mut is_forgotten = self.forget_in(memory, address, is_moving);
            for older in memory.older_tables() {
                is_forgotten |= self.forget_in(older, address, |_| false);
            }
            if is_forgotten || is_in_use(memory) {
                return Ok(is_forgotten);
            }
        }
    }

    /// Forgets a bucket in one table, except where `keep` says not to.
    fn forget_in(
        &self,
        memory: &M,
        address: Address,
        keep: impl Fn(&Found<'_, M>) -> bool,
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

    /// Drops the drained buckets, and raises the lifetime of every other bucket with a tally to at
    /// least that of its state.
    pub(super) fn raise_lifetimes(
        &self,
        now: Timestamp,
        lifetime: &dyn Fn(State) -> Lifetime,
    ) -> Result<(), SharedError> {
        let newest = self.newest()?;
        for memory in std::iter::once(newest).chain(newest.older_tables()) {
            for first in (0..memory.lines()).step_by(memory.window()) {
                let last = memory.lines().min(first + memory.window());
                let Some(_guard) = memory.lock_lines(first..last, Wait::ForCall)? else { continue };
                for index in first * SLOTS_PER_LINE..last * SLOTS_PER_LINE {
                    self.raise_lifetime_to(memory, memory.slot(index), now, lifetime);
                }
            }
        }
        Ok(())
    }

    fn raise_lifetime_to(
        &self,
        memory: &M,
        slot: &Slot,
        now: Timestamp,
        lifetime: &dyn Fn(State) -> Lifetime,
    ) {
        let (key, Some(occupant)) = slot.occupant() else { return };
        if occupant.end() <= now {
            memory.counters().floor.raise(occupant.end().get() as u64);
            if slot.release(occupant) {
                memory.counters().forgotten.count();
            }
        } else if key.lifetime() > Lifetime::INSTANT && !self.is_damaged(memory, occupant) {
            self.rename_for(memory, slot, occupant, lifetime(occupant.state()), now);
        }
    }

    /// Raises the lifetime of a bucket with a tally to at least `lifetime`.
    fn rename_for(
        &self,
        memory: &M,
        slot: &Slot,
        occupant: Occupant,
        lifetime: Lifetime,
        now: Timestamp,
    ) {
        let lifetime = lifetime.max(occupant.key.lifetime());
        self.announce(memory, occupant.state(), lifetime);
        // A call that read the key before this may still write a state of its own time, of which it
        // announces the shorter lifetime only.
        self.announce(memory, State::from_tally(now, 0), lifetime);
        slot.rename(occupant.key.with_lifetime(lifetime));
    }

    /// Counts the buckets that are not full at `now`, and returns what the counters hold.
    pub(super) fn stats(&self, now: Timestamp) -> Result<Stats, SharedError> {
        let newest = self.newest()?;
        let tables = || std::iter::once(newest).chain(newest.older_tables());
        let slots: u64 = tables().map(|memory| memory.slots() as u64).sum();
        let live = |memory: &M| {
            let slots = (0..memory.slots()).map(|index| memory.slot(index).occupant());
            slots.filter(|(_, occupant)| occupant.is_some_and(|found| found.end() > now)).count()
        };
        let counters = newest.counters();
        Ok(Stats {
            buckets: Some(tables().map(|memory| live(memory) as u64).sum()),
            capacity: Some(newest.capacity()),
            slots: Some(slots),
            bytes: Some(slots * size_of::<Slot>() as u64),
            forgotten: Some(counters.forgotten.get()),
            evicted: Some(counters.live_evictions.get()),
            shared: Some(counters.overflowed.get()),
            refused: Some(counters.refused.get()),
            recovered_locks: Some(newest.recovered_locks()),
        })
    }

    /// Undoes one charge of a call that was denied elsewhere. `give_back` is the algorithm's own
    /// rule: from the state charged, the state found and the time, which `now` reads, to what is to
    /// be written.
    ///
    /// The bucket is never searched for again: after a reset that would pay back a charge that the
    /// reset already forgot. So a charge stays if its bucket has moved to a larger table since.
    pub(super) fn undo(
        &self,
        charge: Charge<'_>,
        now: impl Fn() -> Timestamp,
        give_back: impl Fn(State, State, Timestamp) -> Write,
    ) {
        let slot = charge.slot;
        self.current().reached(FaultPoint::BeforeGiveBack);
        if slot.restore(charge.after, charge.before) {
            return;
        }
        loop {
            let (key, occupant) = slot.occupant();
            let is_same =
                |found: &Occupant| key.is_same_tenancy(charge.after.key) && !found.is_sealed();
            let Some(occupant) = occupant.filter(is_same) else { return };
            // A fresh reading: what has drained since is not given back.
            let now = if has(Flaw::GivesBackAll) { Timestamp::ORIGIN } else { now() };
            match give_back(charge.after.state(), occupant.state(), now).state() {
                Some((state, _)) if slot.replace(occupant, state).is_none() => {}
                _ => return,
            }
        }
    }
}
