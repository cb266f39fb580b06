//! One shard's buckets: an open-addressed table of 16-byte slots.
//!
//! A slot is two words. The first is a bucket's tag (58 bits of its hash) and its state's lifetime
//! (6 bits); the second is its state with the top bit set, so that a slot of zeros is a free one.
//! The tag says where a search begins, in proportion to the capacity, so that any capacity will do
//! and a grown table keeps its order.

use crate::engine::state::{Lifetime, State};
use crate::engine::time::Timestamp;
use crate::store::{Stats, Write};

type Slot = [u64; 2];

const FREE: Slot = [0, 0];
const OCCUPIED: u64 = 1 << 63;
const LIFETIME_MASK: u64 = (1 << Lifetime::BITS) - 1;

/// The capacity of a table that holds its first bucket.
const FIRST_CAPACITY: usize = 8;
/// Slots looked at for worthless buckets whenever a new one comes.
const SWEPT_PER_INSERT: usize = 2;
/// Below so many buckets a table is not worth sweeping.
const SWEPT_FROM: usize = 8;
/// Slots looked at for the bucket nearest to worthless, when a bounded table is full.
const EVICTION_WINDOW: usize = 32;

/// What names a bucket within its table: the upper 58 bits of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(u64);

impl Tag {
    pub(crate) const fn of(hash: u64) -> Tag {
        Tag(hash & !LIFETIME_MASK)
    }
}

/// Slots, allocated and not used yet.
#[derive(Debug, Default)]
pub(crate) struct Slots(Vec<Slot>);

impl Slots {
    /// Allocates; done while no lock is held.
    pub(crate) fn new(capacity: usize) -> Slots {
        Slots(vec![FREE; capacity])
    }
}

/// The buckets of one shard.
#[derive(Debug)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    len: usize,
    swept: usize,
    /// The latest instant at which a forgotten bucket ended: no call here is judged earlier.
    floor: Timestamp,
    forgotten: u64,
    evicted: u64,
}

impl Table {
    pub(crate) const fn new() -> Table {
        Table {
            slots: Vec::new(),
            len: 0,
            swept: 0,
            floor: Timestamp::ORIGIN,
            forgotten: 0,
            evicted: 0,
        }
    }

    /// The instant at which a call here is judged: `now`, or the end of what was forgotten if that
    /// is later.
    #[inline]
    pub(crate) fn effective_now(&self, now: Timestamp) -> Timestamp {
        now.max(self.floor)
    }

    /// Where the slots stand, and how many they are.
    pub(crate) fn layout(&self) -> (*const Slot, usize) {
        (self.slots.as_ptr(), self.slots.len())
    }

    #[inline]
    pub(crate) fn find(&self, tag: Tag) -> Option<usize> {
        let capacity = self.slots.len();
        if capacity == 0 {
            return None;
        }
        let mut place = home_slot(tag, capacity);
        // Ends at a free slot at the latest, and a table is never full.
        loop {
            let [key, word] = self.slots[place];
            if word == 0 {
                return None;
            }
            if key & !LIFETIME_MASK == tag.0 {
                return Some(place);
            }
            place += 1;
            if place == capacity {
                place = 0;
            }
        }
    }

    #[inline]
    pub(crate) fn state(&self, place: usize) -> State {
        state_of(self.slots[place])
    }

    /// Puts a state into the slot of a bucket that is here.
    #[inline]
    pub(crate) fn replace(&mut self, place: usize, state: State, lifetime: Lifetime) {
        let [key, word] = &mut self.slots[place];
        *word = state.word() | OCCUPIED;
        // Never lowered: the bucket may have been filled under a limit with a longer memory.
        if lifetime.bits() > *key & LIFETIME_MASK {
            *key = (*key & !LIFETIME_MASK) | lifetime.bits();
        }
    }

    /// Whether so many new buckets can be put without growing.
    #[inline]
    pub(crate) fn has_room_for(&self, more: usize) -> bool {
        self.len + more <= self.slots.len() - self.slots.len() / 7
            && self.len + more < self.slots.len()
    }

    /// The capacity to grow to when a new bucket has no room.
    pub(crate) fn wanted(&self, more: usize, now: Timestamp) -> usize {
        let live =
            self.slots.iter().filter(|&&slot| slot[1] != 0 && end_of(slot) > now).count() + more;
        let capacity = self.slots.len();
        let mut wanted = if live * 2 < capacity {
            // Most were worthless: making the table anew is room enough, and where nearly all were,
            // so is half of it.
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

    /// Moves what still matters into `fresh`; gives the old slots back, to be freed while no lock
    /// is held.
    ///
    /// Does nothing if `fresh` turns out too small because others were faster.
    pub(crate) fn rebuild(&mut self, fresh: Slots, more: usize, now: Timestamp) -> Slots {
        let live = self.slots.iter().filter(|&&slot| slot[1] != 0 && end_of(slot) > now).count();
        if live + more > fresh.0.len() - fresh.0.len() / 7 {
            return fresh;
        }
        let old = std::mem::replace(&mut self.slots, fresh.0);
        let before = self.len;
        self.len = 0;
        self.swept = 0;
        for &slot in &old {
            if slot[1] == 0 {
                continue;
            }
            let end = end_of(slot);
            if end > now {
                self.place(slot);
            } else {
                self.floor = self.floor.max(end);
            }
        }
        self.forgotten += (before - self.len) as u64;
        Slots(old)
    }

    /// Puts the state of a bucket that is not here. There must be room.
    pub(crate) fn insert(
        &mut self,
        tag: Tag,
        state: State,
        lifetime: Lifetime,
        most: Option<usize>,
        now: Timestamp,
    ) {
        self.sweep(now);
        if most.is_some_and(|most| self.len >= most) {
            self.evict(tag, now);
        }
        self.place([tag.0 | lifetime.bits(), state.word() | OCCUPIED]);
    }

    /// Writes to a bucket, wherever it is by now. There must be room for a new one.
    pub(crate) fn write(&mut self, tag: Tag, write: Write, most: Option<usize>, now: Timestamp) {
        if let Write::Put(state, lifetime) = write {
            match self.find(tag) {
                Some(place) => self.replace(place, state, lifetime),
                None => self.insert(tag, state, lifetime, most, now),
            }
        }
    }

    /// Forgets a bucket; whether it was here.
    pub(crate) fn forget(&mut self, tag: Tag) -> bool {
        let found = self.find(tag);
        if let Some(place) = found {
            self.remove(place);
        }
        found.is_some()
    }

    pub(crate) fn add_to(&self, stats: &mut Stats) {
        stats.buckets += self.len as u64;
        stats.slots += self.slots.len() as u64;
        stats.bytes += (self.slots.capacity() * size_of::<Slot>()) as u64;
        stats.forgotten += self.forgotten;
        stats.evicted += self.evicted;
    }

    fn place(&mut self, slot: Slot) {
        let capacity = self.slots.len();
        let mut place = home_slot(tag_of(slot), capacity);
        while self.slots[place][1] != 0 {
            place = if place + 1 == capacity { 0 } else { place + 1 };
        }
        self.slots[place] = slot;
        self.len += 1;
    }

    /// Looks at a few slots in turn and drops the worthless buckets in them.
    fn sweep(&mut self, now: Timestamp) {
        if self.len < SWEPT_FROM {
            return;
        }
        for _ in 0..SWEPT_PER_INSERT {
            self.swept = if self.swept + 1 >= self.slots.len() { 0 } else { self.swept + 1 };
            let slot = self.slots[self.swept];
            if slot[1] != 0 && end_of(slot) <= now {
                self.drop_ended(self.swept);
            }
        }
    }

    fn drop_ended(&mut self, place: usize) {
        self.floor = self.floor.max(end_of(self.slots[place]));
        self.forgotten += 1;
        self.remove(place);
    }

    /// Makes room in a full bounded table: a worthless bucket near the new one's home, or the
    /// nearest to worthless.
    fn evict(&mut self, tag: Tag, now: Timestamp) {
        let capacity = self.slots.len();
        let home = home_slot(tag, capacity);
        let mut found: Option<(Timestamp, usize)> = None;
        // The whole table if it has to be: a bounded table that is full holds at least one bucket.
        for step in 0..capacity {
            if step >= EVICTION_WINDOW && found.is_some() {
                break;
            }
            let place = (home + step) % capacity;
            let slot = self.slots[place];
            if slot[1] != 0 && found.is_none_or(|(end, _)| end_of(slot) < end) {
                found = Some((end_of(slot), place));
            }
        }
        match found {
            Some((end, place)) if end <= now => self.drop_ended(place),
            Some((_, place)) => {
                self.evicted += 1;
                self.remove(place);
            }
            None => {}
        }
    }

    /// Frees a slot and moves the ones behind it up, so that no search meets a gap before its
    /// bucket.
    fn remove(&mut self, place: usize) {
        let capacity = self.slots.len();
        let mut gap = place;
        let mut next = place;
        loop {
            next = if next + 1 == capacity { 0 } else { next + 1 };
            let slot = self.slots[next];
            if slot[1] == 0 {
                break;
            }
            let home = home_slot(tag_of(slot), capacity);
            // It may move into the gap unless its home lies behind the gap.
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

/// Where the search for a tag begins: the tag's share of the capacity.
#[inline]
pub(crate) fn home_slot(tag: Tag, capacity: usize) -> usize {
    ((u128::from(tag.0) * capacity as u128) >> 64) as usize
}

fn tag_of(slot: Slot) -> Tag {
    Tag::of(slot[0])
}

#[inline]
fn state_of(slot: Slot) -> State {
    // Always a state: the top bit is the slot's own.
    State::from_word(slot[1] & !OCCUPIED).unwrap_or(State::from_instant(Timestamp::ORIGIN))
}

fn end_of(slot: Slot) -> Timestamp {
    Lifetime::from_bits(slot[0]).end_of(state_of(slot))
}
