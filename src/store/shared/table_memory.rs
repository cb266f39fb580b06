//! The memory of a table: its slots, their locks, and the words that all processes share.

use std::fmt;
use std::ops::Range;

use crate::engine::time::{Now, Timeline, Timestamp};
use crate::store::shared::SharedError;
use crate::store::shared::deadline::Deadline;
use crate::store::shared::slot::SharedSlot;
use crate::sync::counting::{self, AtomicU64};
use crate::sync::{Ordering, Word};

/// Slots in one cache line.
pub const SLOTS_PER_LINE: usize = 4;

/// Slots for each bucket that a table has room for. At this load one new key in 170,000 finds its
/// window of 32 slots full.
pub(super) const SLOTS_PER_BUCKET: usize = 2;

/// The memory of a table: a mapped file, or ordinary memory in models.
pub trait TableMemory: Send + Sync + fmt::Debug {
    /// The locks of some windows, which are released on drop. Only their holder assigns slots
    /// there.
    type Guard<'a>
    where
        Self: 'a;

    /// Returns the number of lines in which a search can begin.
    fn home_lines(&self) -> usize;

    /// Returns the number of lines in one window. There are `home_lines + window - 1` lines, so
    /// that no window wraps.
    fn window(&self) -> usize;

    /// Returns a slot by its index.
    fn slot(&self, index: usize) -> &SharedSlot;

    /// Returns the words that all processes share.
    fn counters(&self) -> &TableCounters;

    /// Locks some lines. Returns `None` if another process holds their lock and the deadline has
    /// passed. The caller holds no other lock.
    ///
    /// # Errors
    /// [`SharedError`] if the table cannot be locked.
    fn lock_lines(
        &self,
        lines: Range<usize>,
        deadline: &Deadline,
    ) -> Result<Option<Self::Guard<'_>>, SharedError>;

    /// Locks the window of a bucket.
    ///
    /// # Errors
    /// As [`TableMemory::lock_lines`], and if another process holds the lock and the deadline has
    /// passed.
    fn lock(&self, place: u64, deadline: &Deadline) -> Result<Self::Guard<'_>, SharedError> {
        let home = self.home_line(place);
        let locked = self.lock_lines(home..home + self.window(), deadline)?;
        locked.ok_or_else(|| deadline.error())
    }

    /// Returns the number of locks of lines that processes hold; `None` if it is unknown.
    fn held_locks(&self) -> Option<u64>;

    /// Receives each fault point.
    #[inline(always)]
    fn reached(&self, _point: FaultPoint) {}

    /// Returns the number of locks for inserts whose holder was killed before it released them. It
    /// never decreases, and never includes a lock that is still held.
    fn recovered_locks(&self) -> u64 {
        let counters = self.counters();
        // In this order, a lock that is released in the meantime counts as released or as held, and
        // one that is taken in the meantime does not count at all.
        let locked = counters.locked.get();
        if let Some(held) = self.held_locks() {
            let released = counters.unlocked.get().saturating_add(held);
            counters.recovered.raise(locked.saturating_sub(released));
        }
        counters.recovered.get()
    }

    /// Returns the first line of the window of a bucket.
    #[inline(always)]
    fn home_line(&self, place: u64) -> usize {
        ((u128::from(place) * self.home_lines() as u128) >> 64) as usize
    }

    /// Returns the number of buckets for which the table was created.
    fn capacity(&self) -> u64 {
        (self.home_lines() * SLOTS_PER_LINE / SLOTS_PER_BUCKET) as u64
    }

    /// Returns the number of lines. The last windows extend beyond the last home line.
    fn lines(&self) -> usize {
        self.home_lines() + self.window() - 1
    }

    /// Returns the number of slots.
    fn slots(&self) -> usize {
        self.lines() * SLOTS_PER_LINE
    }
}

/// The words that all processes of a table share, each on its own cache line.
#[repr(C)]
#[derive(Debug, Default)]
pub struct TableCounters {
    /// The latest instant at which a forgotten bucket became full, on each timeline.
    floors: [Maximum; 2],
    /// Buckets that were forgotten after they became full.
    pub(super) forgotten: EventCounter,
    /// Buckets that were evicted before they were full.
    pub(super) live_evictions: EventCounter,
    /// New ids that were decided in the overflow bucket of their limit.
    pub(super) overflowed: EventCounter,
    /// New ids that were refused because their window was full.
    pub(super) refused: EventCounter,
    /// Locks that were taken for inserts.
    pub(super) locked: EventCounter,
    /// Locks among them that their holder has released.
    pub(super) unlocked: EventCounter,
    /// The largest number found so far of locks among them whose holder is dead.
    recovered: Maximum,
}

impl TableCounters {
    /// Returns the latest instants at which a forgotten bucket became full.
    pub(super) fn floor(&self) -> Now {
        let floor = |timeline: Timeline| {
            Timestamp::clamped(self.floors[timeline as usize].get().cast_signed())
        };
        Now { steady: floor(Timeline::Steady), wall: floor(Timeline::Wall) }
    }

    /// Raises the floor of a timeline.
    pub(super) fn raise_floor(&self, timeline: Timeline, to: Timestamp) {
        self.floors[timeline as usize].raise(to.get().cast_unsigned());
    }
}

/// A number that only grows, on its own cache line.
#[repr(C, align(64))]
#[derive(Debug)]
struct Maximum(Word);

impl Default for Maximum {
    fn default() -> Maximum {
        Maximum(Word::new(0))
    }
}

impl Maximum {
    /// Returns the number.
    #[inline(always)]
    fn get(&self) -> u64 {
        // Relaxed: these words order no other access. Evicting and inserting one key needs
        // overlapping locks, which order the floor.
        self.0.load(Ordering::Relaxed)
    }

    /// Raises the number to at least `to`.
    fn raise(&self, to: u64) {
        self.0.fetch_max(to, Ordering::Relaxed);
    }
}

/// A counter on its own cache line.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(super) struct EventCounter(AtomicU64);

impl EventCounter {
    /// Returns the count.
    pub(super) fn get(&self) -> u64 {
        // Acquire: counters are read in program order, so that one can be subtracted from another.
        self.0.load(counting::Ordering::Acquire)
    }

    /// Adds one.
    pub(super) fn count(&self) {
        self.0.fetch_add(1, counting::Ordering::Relaxed);
    }
}

/// A point at which tests stop or kill a process.
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
    /// `NAME~new` is open.
    FileOpened = 21,
    /// `NAME~new` is locked.
    FileLocked = 22,
    /// `NAME` has been read again.
    LookedAgain = 23,
    /// The file's bytes are reserved.
    Reserved = 24,
    /// The header is written.
    HeaderWritten = 25,
    /// The table has been renamed.
    FileRenamed = 26,
}

impl FaultPoint {
    /// The instants of calls, in ascending order.
    pub const OF_CALLS: [FaultPoint; 12] = [
        FaultPoint::Found,
        FaultPoint::Replaced,
        FaultPoint::BeforeLock,
        FaultPoint::Locked,
        FaultPoint::Chosen,
        FaultPoint::FloorRaised,
        FaultPoint::Released,
        FaultPoint::Renamed,
        FaultPoint::Published,
        FaultPoint::BetweenCharges,
        FaultPoint::BeforeGiveBack,
        FaultPoint::BeforeReset,
    ];
    /// The instants of an opening that builds a table, in ascending order.
    pub const OF_BUILDERS: [FaultPoint; 6] = [
        FaultPoint::FileOpened,
        FaultPoint::FileLocked,
        FaultPoint::LookedAgain,
        FaultPoint::Reserved,
        FaultPoint::HeaderWritten,
        FaultPoint::FileRenamed,
    ];
}

/// Receives each fault point that its process reaches; tests stop or kill the process there.
pub trait Faults: Clone + Send + Sync + fmt::Debug {
    /// Receives each fault point.
    #[inline(always)]
    fn reached(&self, _point: FaultPoint) {}
}

impl Faults for () {}
