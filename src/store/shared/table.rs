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
//! 6. A search reads at most one window. Nothing but the lock waits for another process, and the
//!    lock has a deadline.

use std::fmt;
use std::ops::Range;

use crate::clock::Clock;
use crate::engine::state::{Lifetime, State};
use crate::engine::time::{Nanos, Timestamp};
use crate::store::memory::Overflow;
use crate::store::shared::SharedError;
use crate::store::shared::slot::{Key, Occupant, Slot, Tag};
use crate::store::{Batch, Stats, Step, Write};
use crate::sync::{Ordering, Word};

/// Slots in one cache line.
pub const SLOTS_PER_LINE: usize = 4;

/// Slots for each bucket that a table has room for. At this load one new key in 170,000 finds its
/// window of 32 slots full.
pub(super) const SLOTS_PER_BUCKET: usize = 2;

/// The buckets that a table with this many home lines is made for.
fn capacity(home_lines: usize) -> u64 {
    (home_lines * SLOTS_PER_LINE / SLOTS_PER_BUCKET) as u64
}

/// How far beyond the latest end the table's record of it is set.
const ANNOUNCED_AHEAD: Nanos = Nanos::SECOND;

/// The words beside the slots that all processes share, each on a cache line of its own.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Counters {
    /// The latest instant at which a forgotten bucket had drained.
    floor: Padded,
    /// Buckets that were forgotten after they had drained.
    forgotten: Padded,
    /// Buckets evicted before they had drained.
    live_evictions: Padded,
    /// New ids that were decided in the overflow bucket of their limit.
    overflowed: Padded,
    /// New ids that were refused because their window was full.
    refused: Padded,
    /// No state was ever written that is worth keeping until a later instant than this.
    latest_end: Padded,
    /// Whether a larger table has taken this one's place.
    retired: Padded,
}

#[cfg(loom)]
impl Counters {
    /// Breaks the protocol: a model must find out.
    pub fn lower_floor(&self) {
        self.floor.0.store(0, Ordering::Relaxed);
    }
}

/// A word on a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Padded(Word);

impl Default for Padded {
    fn default() -> Padded {
        Padded(Word::new(0))
    }
}

impl Padded {
    fn get(&self) -> u64 {
        // Relaxed: these words order nothing. An evictor and an inserter of one key hold
        // overlapping windows, so the lock orders the floor between them.
        self.0.load(Ordering::Relaxed)
    }

    fn raise(&self, to: u64) {
        self.0.fetch_max(to, Ordering::Relaxed);
    }

    fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The instants of an insertion at which a process may die; tests stop or kill it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FaultPoint {
    /// The bucket was found; the compare-and-swap comes next.
    Found = 1,
    /// The compare-and-swap has succeeded; the answer is not returned yet.
    Replaced = 2,
    /// The lock comes next.
    BeforeLock = 3,
    /// The lock is held.
    Locked = 4,
    /// A slot is chosen.
    Chosen = 5,
    /// The floor is raised.
    FloorRaised = 6,
    /// The former owner's state is freed.
    Released = 7,
    /// The slot has its new key, and no state yet.
    Renamed = 8,
    /// The state is published; the lock is still held.
    Published = 9,
    /// Between two charges of one call.
    BetweenCharges = 11,
    /// A charge is given back next.
    BeforeGiveBack = 12,
    /// A reset's compare-and-swap comes next.
    BeforeReset = 13,
}

/// Whether a call may wait for the lock of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Return at once if it is taken.
    Never,
    /// Wait as long as a call may take.
    ForCall,
    /// Wait as long as the opening of a table may take.
    ForOpening,
}

/// Where the slots are, and who may give them to new keys.
///
/// Implemented by the mapped file, and by ordinary memory in the models.
pub trait Memory: Send + Sync + fmt::Debug {
    /// The exclusive right to give the slots of a window to new keys, until it is dropped.
    type Guard<'a>
    where
        Self: 'a;

    /// Lines in which a search may begin.
    fn home_lines(&self) -> usize;

    /// Lines in one window. There are `home_lines + window - 1` lines, so that no window wraps.
    fn window(&self) -> usize;

    /// One slot, by its index.
    fn slot(&self, index: usize) -> &Slot;

    /// The shared words beside the slots.
    fn counters(&self) -> &Counters;

    /// Locks the window that begins at `line`; `None` if it is taken and `wait` says not to wait.
    ///
    /// # Errors
    /// [`SharedError`] if the deadline passes or the lock cannot be asked for.
    fn lock(&self, line: usize, wait: Wait) -> Result<Option<Self::Guard<'_>>, SharedError>;

    /// Called at each instant at which a process may die.
    #[inline(always)]
    fn reached(&self, _point: FaultPoint) {}
}

/// Where a bucket may be: the line at which its window begins, and its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    home: usize,
    tag: Tag,
}

/// A bucket that was found: its slot, and what the slot held.
#[derive(Clone, Copy, Debug)]
struct Found {
    slot: usize,
    occupant: Occupant,
}

/// One charge of a call over several buckets, as it was written.
#[derive(Clone, Copy, Debug)]
struct Charge {
    slot: usize,
    /// What the slot held before; `None` if the charge made the bucket.
    before: Option<u64>,
    after: Occupant,
}

/// What came of a step on a slot.
enum Changed {
    /// The answer holds; what was written, if anything was.
    Done(Option<Charge>),
    /// Another thread or process changed the slot meanwhile.
    Moved,
    /// The new state must be remembered for longer than the key says.
    NeedsLock,
}

/// What came of a step under the lock.
enum Placed {
    /// The answer is complete; what was written, if anything was.
    Done(Option<Charge>),
    /// Every slot of the window matters until this instant.
    Full(Timestamp),
    /// The lock is taken, and the caller may not wait.
    Busy,
}

/// A table of slots under the protocol above.
#[derive(Debug)]
pub(super) struct Table<M, C> {
    pub(super) memory: M,
    /// The clock that every call's `now` was read from, for second readings.
    pub(super) clock: C,
    pub(super) overflow: Overflow,
}

impl<M: Memory, C: Clock> Table<M, C> {
    /// The address of a bucket with this 128-bit hash: one half says where, the other which.
    #[inline(always)]
    pub(super) fn address(&self, hash: (u64, u64)) -> Address {
        let home = (u128::from(hash.0) * self.memory.home_lines() as u128) >> 64;
        Address { home: home as usize, tag: Tag::of(hash.1) }
    }

    fn window(&self, address: Address) -> Range<usize> {
        let first = address.home * SLOTS_PER_LINE;
        first..first + self.memory.window() * SLOTS_PER_LINE
    }

    #[inline(always)]
    fn find(&self, address: Address) -> Option<Found> {
        self.window(address).find_map(|slot| {
            let occupant = self.memory.slot(slot).occupant_of(address.tag)?;
            Some(Found { slot, occupant })
        })
    }

    /// The instant at which a call at a bucket without a slot is decided: forgetting a drained
    /// bucket is harmless only for calls later than the instant at which it drained.
    fn effective_now(&self, now: Timestamp) -> Timestamp {
        now.max(Timestamp::clamped(self.memory.counters().floor.get() as i64))
    }

    /// The state of a bucket, unless it is damaged.
    ///
    /// A word that says it is worth keeping for longer than any state that was ever written was not
    /// written by a call. It decides as no state would, so that damage cannot lock a client out.
    #[inline(always)]
    fn state(&self, occupant: Occupant) -> Option<State> {
        (!self.is_damaged(occupant)).then(|| occupant.state())
    }

    pub(super) fn is_damaged(&self, occupant: Occupant) -> bool {
        occupant.end().get() as u64 > self.memory.counters().latest_end.get()
    }

    /// Makes sure that no reader takes a state that is about to be written for damage.
    #[inline(always)]
    fn announce(&self, state: State, lifetime: Lifetime) {
        let end = lifetime.end_of(state).get() as u64;
        let latest = &self.memory.counters().latest_end;
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
    ) -> Result<Placed, SharedError> {
        let placed = self.insert(address, self.overflow == Overflow::Evict, run, now, wait)?;
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
    fn is_refused(&self) -> bool {
        let counters = self.memory.counters();
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
    fn try_change(
        &self,
        address: Address,
        run: &mut impl FnMut(Option<State>, Timestamp) -> Write,
        now: Timestamp,
    ) -> Option<Option<Charge>> {
        loop {
            let Some(found) = self.find(address) else {
                let now = self.effective_now(now);
                let is_peek = run(None, now) == Write::Keep;
                return (is_peek && !self.is_full(address, now)).then_some(None);
            };
            self.memory.reached(FaultPoint::Found);
            match self.change(found, run, now) {
                Changed::Done(charge) => return Some(charge),
                Changed::Moved => {}
                Changed::NeedsLock => return None,
            }
        }
    }

    /// Runs a step on what a slot was seen to hold.
    #[inline(always)]
    fn change(
        &self,
        Found { slot, occupant }: Found,
        run: &mut impl FnMut(Option<State>, Timestamp) -> Write,
        now: Timestamp,
    ) -> Changed {
        let place = self.memory.slot(slot);
        let Some((state, lifetime)) = run(self.state(occupant), now).state() else {
            // The word was the bucket's own when its key was read; it must still be there.
            let is_unchanged = place.is_unchanged(occupant);
            return if is_unchanged { Changed::Done(None) } else { Changed::Moved };
        };
        if lifetime > occupant.key.lifetime() {
            return Changed::NeedsLock;
        }
        self.announce(state, occupant.key.lifetime());
        match place.replace(occupant, state) {
            Some(after) => {
                self.memory.reached(FaultPoint::Replaced);
                Changed::Done(Some(Charge { slot, before: Some(occupant.word), after }))
            }
            None => Changed::Moved,
        }
    }

    /// Runs a step on a bucket under the lock of its window, where it may be given a slot or a
    /// longer lifetime. With `evict` a full window makes room.
    fn insert(
        &self,
        address: Address,
        evict: bool,
        run: &mut impl FnMut(Option<State>, Timestamp) -> Write,
        now: Timestamp,
        wait: Wait,
    ) -> Result<Placed, SharedError> {
        self.memory.reached(FaultPoint::BeforeLock);
        let Some(_guard) = self.memory.lock(address.home, wait)? else { return Ok(Placed::Busy) };
        self.memory.reached(FaultPoint::Locked);
        loop {
            // Another thread or process may have been faster.
            if let Some(found) = self.find(address) {
                match self.change(found, run, now) {
                    Changed::Done(charge) => return Ok(Placed::Done(charge)),
                    Changed::Moved => {}
                    Changed::NeedsLock => self.raise_lifetime(found, run, now),
                }
                continue;
            }
            let (slot, key, occupant) = match self.choose(address, now, evict) {
                Ok(chosen) => chosen,
                Err(until) => return Ok(Placed::Full(until)),
            };
            if run(None, self.effective_now(now)) == Write::Keep {
                return Ok(Placed::Done(None));
            }
            self.memory.reached(FaultPoint::Chosen);
            let place = self.memory.slot(slot);
            if let Some(occupant) = occupant {
                // Raised before the slot is freed: a call that finds its bucket gone must find the
                // floor too.
                if occupant.end() <= now {
                    self.memory.counters().floor.raise(occupant.end().get() as u64);
                    self.memory.reached(FaultPoint::FloorRaised);
                }
                // From exactly the word that was read: a charge that came first makes this fail,
                // and one that comes later fails itself.
                if !place.release(occupant) {
                    continue;
                }
                self.memory.reached(FaultPoint::Released);
                let counters = self.memory.counters();
                if occupant.end() <= now || self.is_damaged(occupant) {
                    counters.forgotten.count();
                } else {
                    counters.live_evictions.count();
                }
            }
            let now = self.effective_now(now);
            let Some((state, lifetime)) = run(None, now).state() else {
                return Ok(Placed::Done(None));
            };
            self.announce(state, lifetime);
            // Only the holder of the lock writes to a free slot, so these are plain stores.
            let key = key.succeeded_by(address.tag, lifetime);
            place.rename(key);
            self.memory.reached(FaultPoint::Renamed);
            let after = place.publish(key, state);
            self.memory.reached(FaultPoint::Published);
            return Ok(Placed::Done(Some(Charge { slot, before: None, after })));
        }
    }

    /// Raises the lifetime of a bucket to what its next state needs. Only under the lock of its
    /// window. The mask excludes the lifetime, so a concurrent charge still succeeds.
    fn raise_lifetime(
        &self,
        Found { slot, occupant }: Found,
        run: &mut impl FnMut(Option<State>, Timestamp) -> Write,
        now: Timestamp,
    ) {
        if let Some((_, lifetime)) = run(self.state(occupant), now).state() {
            let lifetime = lifetime.max(occupant.key.lifetime());
            self.announce(occupant.state(), lifetime);
            self.memory.slot(slot).rename(occupant.key.with_lifetime(lifetime));
        }
    }

    /// Whether a new bucket would be shared or refused for lack of room.
    #[cold]
    fn is_full(&self, address: Address, now: Timestamp) -> bool {
        self.overflow != Overflow::Evict && self.choose(address, now, false).is_err()
    }

    /// The slot of a window that a new bucket may have: the first that is free or drained, else,
    /// with `evict`, the one that drains first. Without, the instant at which that one drains.
    fn choose(
        &self,
        address: Address,
        now: Timestamp,
        evict: bool,
    ) -> Result<(usize, Key, Option<Occupant>), Timestamp> {
        let mut first_to_drain: Option<(usize, Occupant)> = None;
        for slot in self.window(address) {
            let (key, occupant) = self.memory.slot(slot).occupant();
            let Some(occupant) = occupant else { return Ok((slot, key, None)) };
            if occupant.end() <= now || self.is_damaged(occupant) {
                return Ok((slot, key, Some(occupant)));
            }
            if first_to_drain.is_none_or(|(_, found)| occupant.end() < found.end()) {
                first_to_drain = Some((slot, occupant));
            }
        }
        match first_to_drain {
            Some((slot, occupant)) if evict => Ok((slot, occupant.key, Some(occupant))),
            Some((_, occupant)) => Err(occupant.end()),
            None => Err(now),
        }
    }

    /// Forgets one bucket. Returns whether there was one.
    pub(super) fn forget(&self, address: Address) -> bool {
        while let Some(Found { slot, occupant }) = self.find(address) {
            self.memory.reached(FaultPoint::BeforeReset);
            if self.memory.slot(slot).release(occupant) {
                return true;
            }
        }
        false
    }

    /// Drops the drained buckets, and gives every other bucket with a tally at least the lifetime
    /// of its state.
    pub(super) fn raise_lifetimes(
        &self,
        now: Timestamp,
        lifetime: &dyn Fn(State) -> Lifetime,
    ) -> Result<(), SharedError> {
        let lines = self.memory.home_lines() + self.memory.window() - 1;
        for first in (0..lines).step_by(self.memory.window()) {
            let Some(_guard) = self.memory.lock(first, Wait::ForCall)? else { continue };
            let last = lines.min(first + self.memory.window());
            for slot in first * SLOTS_PER_LINE..last * SLOTS_PER_LINE {
                let place = self.memory.slot(slot);
                let (key, Some(occupant)) = place.occupant() else { continue };
                if occupant.end() <= now {
                    self.memory.counters().floor.raise(occupant.end().get() as u64);
                    if place.release(occupant) {
                        self.memory.counters().forgotten.count();
                    }
                } else if key.lifetime() > Lifetime::INSTANT && !self.is_damaged(occupant) {
                    let lifetime = lifetime(occupant.state()).max(key.lifetime());
                    self.announce(occupant.state(), lifetime);
                    place.rename(key.with_lifetime(lifetime));
                }
            }
        }
        Ok(())
    }

    /// The number of slots.
    pub(super) fn slots(&self) -> usize {
        (self.memory.home_lines() + self.memory.window() - 1) * SLOTS_PER_LINE
    }

    /// Counts the buckets that are not full at `now`, and what the counters hold.
    pub(super) fn stats(&self, now: Timestamp) -> Stats {
        let slots = self.slots();
        let is_live = |slot: &usize| {
            let (_, occupant) = self.memory.slot(*slot).occupant();
            occupant.is_some_and(|occupant| occupant.end() > now)
        };
        Stats {
            buckets: Some((0..slots).filter(is_live).count() as u64),
            capacity: Some(capacity(self.memory.home_lines())),
            slots: Some(slots as u64),
            bytes: Some((slots * size_of::<Slot>()) as u64),
            forgotten: Some(self.memory.counters().forgotten.get()),
            evicted: Some(self.memory.counters().live_evictions.get()),
            shared: Some(self.memory.counters().overflowed.get()),
            refused: Some(self.memory.counters().refused.get()),
        }
    }

    /// Undoes one charge of a call that was denied elsewhere. `give_back` is the algorithm's own
    /// rule: from the state charged, the state found and the time to what is to be written.
    ///
    /// The bucket is never searched for again: after a reset that would pay back a charge that the
    /// reset already forgot.
    fn undo(&self, charge: Charge, give_back: impl Fn(State, State, Timestamp) -> Write) {
        let place = self.memory.slot(charge.slot);
        self.memory.reached(FaultPoint::BeforeGiveBack);
        if place.restore(charge.after, charge.before) {
            return;
        }
        loop {
            let (key, occupant) = place.occupant();
            let Some(occupant) = occupant.filter(|_| key.is_same_tenancy(charge.after.key)) else {
                return;
            };
            // A fresh reading: what has drained since is not given back.
            let now = self.clock.now();
            match give_back(charge.after.state(), occupant.state(), now).state() {
                Some((state, _)) if place.replace(occupant, state).is_none() => {}
                _ => return,
            }
        }
    }

    /// Hands the states of several buckets to `batch`, and charges them in order. If one of them
    /// turns out to be denied when its turn comes, the charges before it are given back.
    ///
    /// # Errors
    /// As [`Table::update`]; charges already written are given back.
    pub(super) fn update_all<B: Batch>(
        &self,
        buckets: &[(Address, Address)],
        batch: &B,
        now: Timestamp,
    ) -> Result<B::Answer, SharedError> {
        let mut call = BatchCall {
            table: self,
            batch,
            now: self.effective_now(now),
            addresses: buckets.iter().map(|&(address, _)| address).collect(),
            overflows: buckets.iter().map(|&(_, overflow)| overflow).collect(),
            states: vec![None; buckets.len()],
            writes: vec![Write::Keep; buckets.len()],
            charges: vec![None; buckets.len()],
            full: vec![None; buckets.len()],
        };
        // Read first, without writing: most denials are answered from this alone.
        for index in 0..buckets.len() {
            call.read(index);
        }
        let mut answer = call.run();
        for index in 0..buckets.len() {
            while call.writes[index] != Write::Keep {
                match call.write(index) {
                    Ok(true) => break,
                    Ok(false) => answer = call.run(),
                    Err(error) => {
                        call.writes.fill(Write::Keep);
                        call.give_back_unwanted();
                        return Err(error);
                    }
                }
                call.give_back_unwanted();
            }
            self.memory.reached(FaultPoint::BetweenCharges);
        }
        Ok(answer)
    }
}

/// A call over several buckets under way.
struct BatchCall<'a, M, C, B> {
    table: &'a Table<M, C>,
    batch: &'a B,
    now: Timestamp,
    addresses: Vec<Address>,
    overflows: Vec<Address>,
    /// The state of each bucket before this call charged it.
    states: Vec<Option<State>>,
    /// What the batch wants to write, given these states.
    writes: Vec<Write>,
    charges: Vec<Option<Charge>>,
    /// For each new bucket without room, the instant until which there is none.
    full: Vec<Option<Timestamp>>,
}

impl<M: Memory, C: Clock, B: Batch> BatchCall<'_, M, C, B> {
    /// Reads the state of one bucket, or of the bucket that takes its place for lack of room.
    fn read(&mut self, index: usize) {
        let address = self.addresses[index];
        let mut found = self.table.find(address);
        if found.is_none() && address != self.overflows[index] && self.full[index].is_none() {
            let evict = self.table.overflow == Overflow::Evict;
            if let Err(until) = self.table.choose(address, self.now, evict) {
                if self.table.is_refused() {
                    self.full[index] = Some(until);
                } else {
                    self.addresses[index] = self.overflows[index];
                    found = self.table.find(self.addresses[index]);
                }
            }
        }
        self.states[index] = found.and_then(|found| self.table.state(found.occupant));
    }

    fn run(&mut self) -> B::Answer {
        self.writes.fill(Write::Keep);
        if self.full.iter().any(Option::is_some) {
            return self.batch.run_full(&self.states, &self.full, self.now, &mut self.writes);
        }
        self.batch.run(&self.states, self.now, &mut self.writes)
    }

    /// Writes what one bucket is to hold. `false` if the bucket has changed, or another takes its
    /// place: its state is then read again, and the batch must run again.
    fn write(&mut self, index: usize) -> Result<bool, SharedError> {
        let (table, address) = (self.table, self.addresses[index]);
        let (expected, wanted, now) = (self.states[index], self.writes[index], self.now);
        let mut latest = now;
        let mut run = |state: Option<State>, at: Timestamp| {
            latest = latest.max(at);
            if state == expected && at == now { wanted } else { Write::Keep }
        };
        let charge = match table.try_change(address, &mut run, now) {
            Some(charge) => charge,
            None => {
                let evict = table.overflow == Overflow::Evict || address == self.overflows[index];
                match table.insert(address, evict, &mut run, now, Wait::ForCall)? {
                    Placed::Done(charge) => charge,
                    Placed::Busy => return Err(SharedError::Busy),
                    Placed::Full(_) => None,
                }
            }
        };
        let is_written = charge.is_some();
        if is_written {
            // A repair took nothing, so there is nothing to give back.
            self.charges[index] = charge.filter(|_| matches!(wanted, Write::Put(..)));
        } else {
            self.now = latest;
            self.read(index);
        }
        Ok(is_written)
    }

    /// Returns, last first, the charges that are not wanted any more.
    fn give_back_unwanted(&mut self) {
        for (index, charge) in self.charges.iter_mut().enumerate().rev() {
            if !matches!(self.writes[index], Write::Put(..))
                && let Some(charge) = charge.take()
            {
                self.table.undo(charge, |charged, found, now| {
                    self.batch.give_back(index, charged, found, now)
                });
            }
        }
    }
}
