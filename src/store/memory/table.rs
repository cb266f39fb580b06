//! One shard: an open-addressed table of 16-byte slots.
//!
//! A slot is two words: a bucket's tag (56 bits of its hash) with its state's lifetime (8 bits),
//! and its state with the top bit set, so that a free slot is all zeros. A search begins at the
//! tag's share of the capacity, so that any capacity works and a grown table keeps its order.

use crate::engine::state::{Lifetime, State};
use crate::engine::time::{Nanos, Now, Timeline, Timestamp};
use crate::store::{Stats, Write};

/// A bucket, or all zeros if it is free.
pub(crate) type Slot = [u64; 2];

const FREE: Slot = [0, 0];
const OCCUPIED: u64 = 1 << 63;
const LIFETIME_MASK: u64 = (1 << Lifetime::BITS) - 1;

/// The capacity of a table that holds its first bucket.
const FIRST_CAPACITY: usize = 8;
/// Slots checked for expired buckets at each insert.
const SWEPT_PER_INSERT: usize = 2;
/// The least capacity that a table shrinks to.
const MIN_SHRUNK: usize = 64;
/// A table with fewer buckets is not swept.
const MIN_SWEPT: usize = 8;
/// Slots checked for the bucket nearest to expiry when a bounded table is full.
const EVICTION_WINDOW: usize = 32;

/// Allocates free slots. Call it without holding a lock.
pub(crate) fn free_slots(capacity: usize) -> Box<[Slot]> {
    // The system provides zeroed pages when they are first used, so even large tables take no time.
    vec![FREE; capacity].into_boxed_slice()
}

/// Identifies a bucket within its table: the upper 56 bits of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(u64);

impl Tag {
    pub(crate) const fn of(hash: u64) -> Tag {
        Tag(hash & !LIFETIME_MASK)
    }
}

/// A bucket that is in a table.
pub(crate) struct TableEntry<'a>(&'a mut Slot);

impl TableEntry<'_> {
    #[inline(always)]
    pub(crate) fn state(&self) -> State {
        state_of(*self.0)
    }

    #[inline(always)]
    pub(crate) fn replace(self, state: State, lifetime: Lifetime) {
        let [key, word] = self.0;
        *word = state.word() | OCCUPIED;
        // Never lowered: the bucket may have been written under a limit with a longer lifetime.
        if lifetime.bits() > *key & LIFETIME_MASK {
            *key = (*key & !LIFETIME_MASK) | lifetime.bits();
        }
    }
}

/// The buckets of one shard.
#[derive(Debug, Default)]
pub(crate) struct Table {
    slots: Box<[Slot]>,
    len: usize,
    swept: usize,
    /// The latest end of a forgotten bucket: no call on this table is decided earlier.
    floor: Now,
    forgotten: u64,
    evicted: u64,
}

impl Table {
    /// Returns the instant at which a call is decided: `now`, or the latest end of a forgotten bucket
    /// if that is later.
    #[inline(always)]
    pub(crate) fn effective_now(&self, now: Now) -> Now {
        now.max(self.floor)
    }

    /// Returns the same on one timeline.
    #[inline(always)]
    pub(crate) fn effective_on(&self, timeline: Timeline, now: Now) -> Timestamp {
        now.on(timeline).max(self.floor.on(timeline))
    }

    /// Returns the address and number of the slots.
    pub(crate) fn layout(&self) -> (*const Slot, usize) {
        (self.slots.as_ptr(), self.slots.len())
    }

    #[inline(always)]
    pub(crate) fn find(&self, tag: Tag) -> Option<usize> {
        let capacity = self.slots.len();
        if capacity == 0 {
            return None;
        }
        let mut index = home_slot(tag, capacity);
        // Ends at a free slot, as a table is never full.
        loop {
            let [key, word] = self.slots[index];
            if word == 0 {
                return None;
            }
            if key & !LIFETIME_MASK == tag.0 {
                return Some(index);
            }
            index += 1;
            if index == capacity {
                index = 0;
            }
        }
    }

    #[inline]
    pub(crate) fn state(&self, index: usize) -> State {
        state_of(self.slots[index])
    }

    /// Returns the bucket at an index that was found, to read and write it without another search.
    #[inline(always)]
    pub(crate) fn entry(&mut self, index: usize) -> TableEntry<'_> {
        TableEntry(&mut self.slots[index])
    }

    /// Writes the state of a bucket that is in the table.
    fn replace(&mut self, index: usize, state: State, lifetime: Lifetime) {
        self.entry(index).replace(state, lifetime);
    }

    /// Returns whether `more` new buckets fit without growing.
    #[inline]
    pub(crate) fn has_room_for(&self, more: usize) -> bool {
        self.len + more <= self.slots.len() - self.slots.len() / 7
            && self.len + more < self.slots.len()
    }

    /// Returns the capacity to grow to when a new bucket has no room.
    pub(crate) fn wanted(&self, more: usize, now: Now) -> usize {
        let live = self.live(now) + more;
        let capacity = self.slots.len();
        let mut wanted = if live * 2 < capacity {
            // Most buckets have expired, so rebuilding makes enough room; if nearly all have, half
            // the capacity is enough.
            if live * 8 < capacity { capacity / 2 } else { capacity }
        } else {
            capacity + capacity / 2
        };
        wanted = wanted.max(FIRST_CAPACITY);
        while live >= wanted - wanted / 7 {
            wanted += wanted / 2;
        }
        wanted
    }

    /// Moves the live buckets into `fresh`. Returns the old slots, to be freed without holding the
    /// lock.
    ///
    /// Does nothing if `fresh` is too small because the table has grown meanwhile.
    pub(crate) fn rebuild(&mut self, fresh: Box<[Slot]>, more: usize, now: Now) -> Box<[Slot]> {
        if self.live(now) + more > fresh.len() - fresh.len() / 7 {
            return fresh;
        }
        let old = std::mem::replace(&mut self.slots, fresh);
        let before = self.len;
        self.len = 0;
        self.swept = 0;
        for &slot in &*old {
            if slot[1] == 0 {
                continue;
            }
            if has_ended(slot, now) {
                self.raise_floor(slot);
            } else {
                self.put(slot);
            }
        }
        self.forgotten += (before - self.len) as u64;
        old
    }

    /// Adds a bucket that is not in the table. There must be room.
    pub(crate) fn insert(
        &mut self,
        tag: Tag,
        state: State,
        lifetime: Lifetime,
        max: Option<usize>,
        now: Now,
    ) {
        self.sweep(now);
        if max.is_some_and(|max| self.len >= max) {
            self.evict(tag, now);
        }
        self.put([tag.0 | lifetime.bits(), state.word() | OCCUPIED]);
    }

    /// Applies `write` to a bucket. There must be room for a new one.
    pub(crate) fn write(&mut self, tag: Tag, write: Write, max: Option<usize>, now: Now) {
        match (write, self.find(tag)) {
            (Write::Put(state, lifetime), Some(index)) => self.replace(index, state, lifetime),
            (Write::Put(state, lifetime), None) => self.insert(tag, state, lifetime, max, now),
            (Write::Clear, Some(index)) => self.remove(index),
            (Write::Keep, _) | (Write::Clear, None) => {}
        }
    }

    /// Forgets a bucket. Returns whether it was in the table.
    pub(crate) fn forget(&mut self, tag: Tag) -> bool {
        let found = self.find(tag);
        if let Some(index) = found {
            self.remove(index);
        }
        found.is_some()
    }

    /// Forgets all buckets. Returns how many there were.
    pub(crate) fn clear(&mut self) -> usize {
        let cleared = self.len;
        self.slots = Box::default();
        (self.len, self.swept) = (0, 0);
        cleared
    }

    /// Adds the numbers of this table.
    pub(crate) fn add_to(&self, stats: &mut Stats, now: Now) {
        let slots = self.slots.len();
        for (sum, number) in [
            (&mut stats.buckets, self.live(now) as u64),
            (&mut stats.slots, slots as u64),
            (&mut stats.bytes, (slots * size_of::<Slot>()) as u64),
            (&mut stats.forgotten, self.forgotten),
            (&mut stats.evicted, self.evicted),
        ] {
            *sum.get_or_insert(0) += number;
        }
    }

    fn put(&mut self, slot: Slot) {
        let capacity = self.slots.len();
        let mut index = home_slot(tag_of(slot), capacity);
        while self.slots[index][1] != 0 {
            index = if index + 1 == capacity { 0 } else { index + 1 };
        }
        self.slots[index] = slot;
        self.len += 1;
    }

    /// Counts the buckets that have not expired.
    fn live(&self, now: Now) -> usize {
        self.slots.iter().filter(|&&slot| slot[1] != 0 && !has_ended(slot, now)).count()
    }

    /// Drops the expired buckets in the next `count` slots, or up to the last slot. Returns whether it was
    /// reached, so that another table has its turn.
    pub(crate) fn tidy(&mut self, count: usize, now: Now) -> bool {
        let end = self.slots.len().min(self.swept + count);
        let ended = |slots: &[Slot]| slots.iter().position(|&slot| has_ended(slot, now));
        while let Some(found) = ended(&self.slots[self.swept..end]) {
            self.drop_ended(self.swept + found);
            self.swept += found + 1;
        }
        let is_done = end == self.slots.len();
        self.swept = if is_done { 0 } else { end };
        is_done
    }

    /// Returns the capacity that is enough for a table that is mostly free; `None` if it is not.
    pub(crate) fn shrunk(&self) -> Option<usize> {
        let wanted = (self.len * 2).max(MIN_SHRUNK);
        (wanted * 2 < self.slots.len()).then_some(wanted)
    }

    /// Drops the expired buckets, and raises the lifetime of each other one that has a tally to
    /// `lifetime` of its state.
    pub(crate) fn raise(&mut self, now: Now, lifetime: &dyn Fn(State) -> Lifetime) {
        let mut index = 0;
        while index < self.slots.len() {
            let slot = self.slots[index];
            if has_ended(slot, now) {
                // Another bucket may have moved here.
                self.drop_ended(index);
                continue;
            }
            let current = Lifetime::from_bits(slot[0]);
            if slot[1] != 0 && current.is_of_tally() {
                let lifetime = lifetime(state_of(slot)).on(current.timeline());
                self.replace(index, state_of(slot), lifetime);
            }
            index += 1;
        }
    }

    /// Drops the expired buckets in the next few slots.
    fn sweep(&mut self, now: Now) {
        if self.len >= MIN_SWEPT {
            self.tidy(SWEPT_PER_INSERT, now);
        }
    }

    fn drop_ended(&mut self, index: usize) {
        self.raise_floor(self.slots[index]);
        self.forgotten += 1;
        self.remove(index);
    }

    /// Raises the floor of a timeline to the end of a bucket.
    fn raise_floor(&mut self, slot: Slot) {
        let (lifetime, end) = (Lifetime::from_bits(slot[0]), end_of(slot));
        match lifetime.timeline() {
            Timeline::Steady => self.floor.steady = self.floor.steady.max(end),
            Timeline::Wall => self.floor.wall = self.floor.wall.max(end),
        }
    }

    /// Makes room for a new bucket if the table would hold more than `max` with `more` others.
    /// Fails with the time until a bucket near the new one's home expires if none has.
    pub(crate) fn make_room(
        &mut self,
        tag: Tag,
        max: usize,
        more: usize,
        now: Now,
    ) -> Result<(), Nanos> {
        if self.len + more < max {
            return Ok(());
        }
        self.sweep(now);
        while self.len + more >= max {
            match self.nearest(tag, now) {
                Some((..=0, index)) => self.drop_ended(index),
                Some((left, _)) => return Err(Nanos::clamped(left)),
                None => return Err(Nanos::ZERO),
            }
        }
        Ok(())
    }

    /// Makes room in a full bounded table: drops an expired bucket near the new one's home, or
    /// evicts the nearest to expiry.
    fn evict(&mut self, tag: Tag, now: Now) {
        match self.nearest(tag, now) {
            Some((..=0, index)) => self.drop_ended(index),
            Some((_, index)) => {
                self.evicted += 1;
                self.remove(index);
            }
            None => {}
        }
    }

    /// Finds the bucket nearest to expiry among those near the home of `tag`, and the time until then.
    fn nearest(&self, tag: Tag, now: Now) -> Option<(i64, usize)> {
        let capacity = self.slots.len();
        let home = home_slot(tag, capacity);
        let mut found: Option<(i64, usize)> = None;
        // Past the window only if it holds no bucket at all.
        for step in 0..capacity {
            if step >= EVICTION_WINDOW && found.is_some() {
                break;
            }
            let index = (home + step) % capacity;
            let slot = self.slots[index];
            let left = Lifetime::from_bits(slot[0]).left(state_of(slot), now);
            if slot[1] != 0 && found.is_none_or(|(nearest, _)| left < nearest) {
                found = Some((left, index));
            }
        }
        found
    }

    /// Frees a slot and moves later buckets up, so that no search meets a gap before its bucket.
    pub(crate) fn remove(&mut self, index: usize) {
        let capacity = self.slots.len();
        let mut gap = index;
        let mut next = index;
        loop {
            next = if next + 1 == capacity { 0 } else { next + 1 };
            let slot = self.slots[next];
            if slot[1] == 0 {
                break;
            }
            let home = home_slot(tag_of(slot), capacity);
            // It may move into the gap unless its home is behind the gap.
            let from_home = (next + capacity - home) % capacity;
            let from_gap = (next + capacity - gap) % capacity;
            if from_home >= from_gap {
                self.slots[gap] = slot;
                gap = next;
            }
        }
        self.slots[gap] = FREE;
        self.len -= 1;
    }
}

/// Returns the slot at which the search for a tag begins: the tag's share of the capacity.
#[inline]
pub(crate) fn home_slot(tag: Tag, capacity: usize) -> usize {
    ((u128::from(tag.0) * capacity as u128) >> 64) as usize
}

fn tag_of(slot: Slot) -> Tag {
    Tag::of(slot[0])
}

#[inline]
fn state_of(slot: Slot) -> State {
    // Always a state, as only the top bit was added.
    State::from_word(slot[1] & !OCCUPIED).unwrap_or(State::from_instant(Timestamp::ORIGIN))
}

/// Returns whether a slot has a bucket that has expired at `now`.
#[inline(always)]
fn has_ended(slot: Slot, now: Now) -> bool {
    let [key, word] = slot;
    if key & LIFETIME_MASK == Lifetime::INSTANT.bits() {
        // A free slot becomes a number above every instant.
        word ^ OCCUPIED <= now.steady.get() as u64
    } else {
        Lifetime::from_bits(key).is_over(state_of(slot), now)
    }
}

fn end_of(slot: Slot) -> Timestamp {
    Lifetime::from_bits(slot[0]).end_of(state_of(slot))
}
