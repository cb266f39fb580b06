//! One slot of a shared table: a key word and a state word.
//!
//! The state is stored XORed with a mask that is computed from the key word. A compare-and-swap
//! that was prepared while the slot belonged to another bucket therefore fails.

use crate::engine::state::{Lifetime, State, StateKind};
use crate::engine::time::{Now, Timestamp};
use crate::store::shared::loom_mutants::{Mutant, has};
use crate::sync::{Ordering, Word};

const LIFETIME_MASK: u64 = (1 << Lifetime::BITS) - 1;
const HAS_SLOTS: u64 = 1 << Lifetime::BITS;
const TENANCY_ONE: u64 = HAS_SLOTS << 1;
const TENANCY_MASK: u64 = 0b1111 * TENANCY_ONE;
const TAG_MASK: u64 = !(LIFETIME_MASK | HAS_SLOTS | TENANCY_MASK);
const TOP_BIT: u64 = 1 << 63;

/// The state word of a free slot, whatever its key word.
pub(super) const FREE: u64 = 0;

/// The lower 51 bits of a hash, in the upper bits of a key word: identifies the bucket of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotTag(u64);

impl SlotTag {
    /// Returns the tag of a bucket with this hash.
    pub(super) const fn of_low_bits(hash: u64) -> SlotTag {
        SlotTag(hash << TAG_MASK.trailing_zeros())
    }
}

/// The key word: tag (51 bits), tenancy (4 bits), whether the state is [`StateKind::Slots`], lifetime
/// (8 bits).
///
/// The tenancy is the number of assignments of the slot, modulo 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotKey(u64);

impl SlotKey {
    /// Returns whether the key has this tag.
    pub(super) const fn is_of(self, tag: SlotTag) -> bool {
        self.0 & TAG_MASK == tag.0
    }

    /// Returns the key of the next bucket in this slot.
    pub(super) fn succeeded_by(self, tag: SlotTag, kind: StateKind, lifetime: Lifetime) -> SlotKey {
        let has_slots = if kind == StateKind::Slots { HAS_SLOTS } else { 0 };
        let one = if has(Mutant::NoTenancy) { 0 } else { TENANCY_ONE };
        let tenancy = self.0.wrapping_add(one) & TENANCY_MASK;
        SlotKey(tag.0 | tenancy | has_slots | lifetime.bits())
    }

    /// Returns what the state is.
    #[inline(always)]
    pub(super) fn kind(self) -> StateKind {
        if !self.lifetime().is_of_tally() {
            StateKind::Instant
        } else if self.0 & HAS_SLOTS == 0 {
            StateKind::Tally
        } else {
            StateKind::Slots
        }
    }

    /// Returns the lifetime of the state.
    pub(super) const fn lifetime(self) -> Lifetime {
        Lifetime::from_bits(self.0)
    }

    /// Returns the same key with another lifetime.
    pub(super) const fn with_lifetime(self, lifetime: Lifetime) -> SlotKey {
        SlotKey((self.0 & !LIFETIME_MASK) | lifetime.bits())
    }

    /// Returns whether both words are of one bucket in one tenancy, with any lifetimes.
    pub(super) const fn is_same_tenancy(self, other: SlotKey) -> bool {
        (self.0 ^ other.0) & !LIFETIME_MASK == 0
    }

    /// Returns the mask of the state. States are below 2^63, so with the top bit set, no masked
    /// state is [`FREE`].
    fn mask(self) -> u64 {
        if has(Mutant::NoMask) {
            return TOP_BIT;
        }
        (self.0 & !LIFETIME_MASK) | TOP_BIT
    }

    /// Returns the state word of a state.
    pub(super) fn masked(self, state: State) -> u64 {
        state.word() ^ self.mask()
    }

    /// Returns the state of a state word.
    pub(super) fn unmasked(self, word: u64) -> State {
        State::from_word((word ^ self.mask()) & !TOP_BIT)
            .unwrap_or(State::from_instant(Timestamp::ORIGIN))
    }
}

/// A slot. Four of them fill a cache line.
#[repr(C)]
#[derive(Debug)]
pub struct SharedSlot {
    key: Word,
    state: Word,
}

/// The content of a slot when it was read: a key word, and a state word that belongs to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Occupant {
    pub(super) key: SlotKey,
    pub(super) word: u64,
}

impl Occupant {
    /// Returns the state.
    pub(super) fn state(self) -> State {
        self.key.unmasked(self.word)
    }

    /// Returns the instant on its timeline from which the bucket is full: the clock's origin if it has only
    /// slots, of which none is held. So a bucket is cleared, and used again, without the lock.
    pub(super) fn end(self) -> Timestamp {
        let (kind, state) = (self.key.kind(), self.state());
        match kind.slots_in(state) {
            Some(0) => Timestamp::ORIGIN,
            _ => self.key.lifetime().end_of(state),
        }
    }

    /// Returns the state; `None` if the bucket is full at `now`.
    #[inline(always)]
    pub(super) fn state_at(self, now: Now) -> Option<State> {
        (!self.is_over(now)).then(|| self.state())
    }

    /// Returns whether the bucket is full at `now`.
    #[inline(always)]
    pub(super) fn is_over(self, now: Now) -> bool {
        self.end() <= now.on(self.key.lifetime().timeline())
    }

    /// Returns the time from `now` until the bucket is full, negative if it is.
    pub(super) fn left(self, now: Now) -> i64 {
        self.end().get().saturating_sub(now.on(self.key.lifetime().timeline()).get())
    }
}

impl SharedSlot {
    /// Returns a free slot, for a table in ordinary memory.
    pub fn new() -> SharedSlot {
        SharedSlot { key: Word::new(0), state: Word::new(FREE) }
    }

    /// Returns the content of the slot if its bucket has this tag.
    #[inline(always)]
    pub(super) fn occupant_of(&self, tag: SlotTag) -> Option<Occupant> {
        // Relaxed: the reads below confirm it.
        if !SlotKey(self.key.load(Ordering::Relaxed)).is_of(tag) {
            return None;
        }
        // The state before the key. Acquire on the state pairs with the Release in `publish`: a
        // thread that reads a state word sees the key that it was written with, or a later one.
        let word = self.state.load(ordered(Ordering::Acquire));
        if word == FREE {
            return None;
        }
        // Acquire on the key pairs with the Release in `rename`: a thread that sees a new key
        // cannot read the state word of the previous one in `is_unchanged`.
        let key = SlotKey(self.key.load(ordered(Ordering::Acquire)));
        key.is_of(tag).then_some(Occupant { key, word })
    }

    /// Returns the key and the content of the slot, for any tag. They are consistent only while its
    /// window is locked.
    pub(super) fn occupant(&self) -> (SlotKey, Option<Occupant>) {
        let word = self.state.load(Ordering::Acquire);
        let key = SlotKey(self.key.load(Ordering::Acquire));
        (key, (word != FREE).then_some(Occupant { key, word }))
    }

    /// Returns whether the state word is the one that was read.
    #[inline(always)]
    pub(super) fn is_unchanged(&self, seen: Occupant) -> bool {
        self.state.load(ordered(Ordering::Acquire)) == seen.word
    }

    /// Replaces the state, which decides the call. Returns `None` if the slot was changed or
    /// assigned to another bucket, whose mask differs.
    #[inline(always)]
    pub(super) fn replace(&self, seen: Occupant, state: State) -> Option<Occupant> {
        let word = seen.key.masked(state);
        self.swap(seen.word, word).then_some(Occupant { word, ..seen })
    }

    /// Frees the slot. Returns `false` if its state has changed.
    pub(super) fn release(&self, seen: Occupant) -> bool {
        if has(Mutant::FreesByStore) {
            self.state.store(FREE, Ordering::Release);
            return true;
        }
        self.swap(seen.word, FREE)
    }

    /// Restores the state word before `after` was written; `None` frees the slot. Returns `false`
    /// if the state has changed.
    pub(super) fn restore(&self, after: Occupant, before: Option<u64>) -> bool {
        self.swap(after.word, before.unwrap_or(FREE))
    }

    #[inline(always)]
    fn swap(&self, current: u64, new: u64) -> bool {
        // AcqRel: a thread that reads the new word must also see its key.
        let success = ordered(Ordering::AcqRel);
        self.state.compare_exchange(current, new, success, Ordering::Relaxed).is_ok()
    }

    /// Assigns a free slot to another key. Only under the lock of its window.
    pub(super) fn rename(&self, key: SlotKey) {
        self.key.store(key.0, ordered(Ordering::Release));
    }

    /// Stores the first state of a bucket. Only under the lock of its window, after
    /// [`SharedSlot::rename`]: only the holder of the lock writes to a free slot.
    pub(super) fn publish(&self, key: SlotKey, state: State) -> Occupant {
        let word = key.masked(state);
        self.state.store(word, ordered(Ordering::Release));
        Occupant { key, word }
    }
}

/// Returns the ordering that the protocol requires.
#[inline(always)]
fn ordered(order: Ordering) -> Ordering {
    if has(Mutant::Relaxed) { Ordering::Relaxed } else { order }
}

impl Default for SharedSlot {
    fn default() -> SharedSlot {
        SharedSlot::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(word: u64) -> State {
        State::from_word(word).expect("a word below 2^63")
    }

    #[test]
    fn no_masked_state_is_free_and_each_comes_back() {
        for hash in [0, u64::MAX, 0x0123_4567_89ab_cdef, TOP_BIT] {
            let key = SlotKey(0).succeeded_by(
                SlotTag::of_low_bits(hash),
                StateKind::Instant,
                Lifetime::INSTANT,
            );
            for word in [0, 1, (1 << 63) - 1, key.mask() & !TOP_BIT] {
                let masked = key.masked(state(word));
                assert_ne!(masked, FREE);
                assert_eq!(key.unmasked(masked), state(word));
            }
        }
    }

    #[test]
    fn a_word_of_a_former_owner_cannot_be_replaced() {
        let slot = SharedSlot::new();
        let (mine, other) = (SlotTag::of_low_bits(1), SlotTag::of_low_bits(2));
        let first = SlotKey(0).succeeded_by(mine, StateKind::Instant, Lifetime::INSTANT);
        slot.rename(first);
        let seen = slot.publish(first, state(5));
        assert!(slot.release(seen));
        let second = first.succeeded_by(other, StateKind::Instant, Lifetime::INSTANT);
        slot.rename(second);
        slot.publish(second, state(5));
        assert!(slot.replace(seen, state(6)).is_none());
        assert!(slot.occupant_of(mine).is_none());
        assert_eq!(slot.occupant_of(other).map(Occupant::state), Some(state(5)));
    }

    #[test]
    fn the_same_key_in_a_later_tenancy_has_another_mask() {
        let tag = SlotTag::of_low_bits(7);
        let first = SlotKey(0).succeeded_by(tag, StateKind::Instant, Lifetime::INSTANT);
        let second = first.succeeded_by(tag, StateKind::Instant, Lifetime::INSTANT);
        assert_ne!(first.masked(state(5)), second.masked(state(5)));
        assert!(!first.is_same_tenancy(second));
        assert!(first.is_same_tenancy(first.with_lifetime(Lifetime::from_bits(9))));
    }
}
