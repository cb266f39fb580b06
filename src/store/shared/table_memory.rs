//! The memory of a table: its slots, their locks, and the words that all processes share.

use std::fmt;
use std::ops::{Deref, Range};

use crate::engine::time::{Now, Timeline, Timestamp};
use crate::store::shared::SharedError;
use crate::store::shared::deadline::Deadline;
use crate::store::shared::slot::SharedSlot;
use crate::sync::counting::{self, AtomicU64, AtomicUsize};
use crate::sync::{Ordering, Word};

/// Slots in one cache line.
pub const SLOTS_PER_LINE: usize = 4;

/// Slots for each bucket that a table has room for. At this load one new key in 170,000 finds its
/// window of 32 slots full.
pub(super) const SLOTS_PER_BUCKET: usize = 2;

/// The memory of one table: a mapped file, or ordinary memory in models.
///
/// Enlarging a table replaces it by a larger one, its successor, which takes over the buckets of
/// the older tables one by one. The tables form a list, and each process has its own.
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

    /// Locks some lines of this table only. Returns `None` if another process holds their lock and
    /// the deadline has passed. The caller holds no other lock.
    ///
    /// # Errors
    /// [`SharedError`] if the table cannot be locked.
    fn lock_lines(
        &self,
        lines: Range<usize>,
        deadline: &Deadline,
    ) -> Result<Option<Self::Guard<'_>>, SharedError>;

    /// Locks the windows of a bucket in this table and in all older ones.
    ///
    /// # Errors
    /// As [`TableMemory::lock_lines`], and if another process holds one of the locks and the deadline has
    /// passed.
    fn lock(&self, place: u64, deadline: &Deadline) -> Result<Self::Guard<'_>, SharedError>;

    /// Returns the table that this one replaces and whose buckets it takes over.
    fn older(&self) -> Option<&Self>;

    /// Returns the table that replaces this one, if this process has opened it.
    fn successor(&self) -> Option<&Self>;

    /// Opens the table that replaces this one; afterwards [`TableMemory::successor`] returns it.
    ///
    /// # Errors
    /// [`SharedError::Replaced`] if there is none.
    fn open_successor(&self) -> Result<(), SharedError>;

    /// Returns whether the file was truncated, so that the words that were read before this call
    /// may be zeros.
    fn is_truncated(&self) -> bool {
        false
    }

    /// Returns an error if this table, or an older one whose buckets it takes over, was truncated.
    ///
    /// # Errors
    /// [`SharedError::Truncated`].
    fn refuse_truncated(&self) -> Result<(), SharedError> {
        if self.tables().any(TableMemory::is_truncated) {
            Err(SharedError::Truncated)
        } else {
            Ok(())
        }
    }

    /// Removes the file of a table without buckets.
    fn discard(&self);

    /// Returns the number of lines of a retired table that this process has found to be free.
    fn swept(&self) -> &AtomicUsize;

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

    /// Returns this table and the older ones that may have buckets, newest first.
    fn tables(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.older_tables())
    }

    /// Returns the older tables that may have buckets, newest first.
    fn older_tables(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(self.older(), |table| table.older())
            .filter(|table| table.counters().stage() != TableStage::Emptied)
    }
}

/// The stage in the life of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableStage {
    /// New buckets are added to it.
    InUse,
    /// A larger table has replaced it. Buckets are moved there, and none is added here.
    Retired,
    /// It has no buckets.
    Emptied,
}

// Words that differ in many bits, so that damage does not retire a table.
const RETIRED: u64 = u64::from_ne_bytes(*b"retired!");
const EMPTIED: u64 = u64::from_ne_bytes(*b"emptied!");

/// The words that all processes of a table share, each on its own cache line.
#[repr(C)]
#[derive(Debug, Default)]
pub struct TableCounters {
    /// The latest instant at which a forgotten bucket became full, on each timeline.
    floors: [Padded; 2],
    /// Buckets that were forgotten after they became full, or because they were damaged.
    pub(super) forgotten: EventCounter,
    /// Buckets that were evicted before they were full.
    pub(super) live_evictions: EventCounter,
    /// New ids that were decided in the overflow bucket of their limit.
    pub(super) overflowed: EventCounter,
    /// New ids that were refused because their window was full.
    pub(super) refused: EventCounter,
    /// Bounds of all states that were ever written.
    pub(super) announced: Announced,
    /// The table's [`TableStage`].
    stage: Padded,
    /// Locks that were taken for inserts.
    pub(super) locked: EventCounter,
    /// Locks among them that their holder has released.
    pub(super) unlocked: EventCounter,
    /// The largest number found so far of locks among them whose holder is dead.
    recovered: Padded,
}

impl TableCounters {
    /// Returns the latest instants at which a forgotten bucket became full.
    pub(super) fn floor(&self) -> Now {
        let floor = |timeline: Timeline| {
            let floor = self.floors[timeline as usize].get();
            // No bucket becomes full later than at the latest end: such a floor is damaged.
            let is_valid = floor <= self.announced.latest_end(timeline).get();
            Timestamp::clamped(if is_valid { floor as i64 } else { 0 })
        };
        Now { steady: floor(Timeline::Steady), wall: floor(Timeline::Wall) }
    }

    /// Raises the floor of a timeline.
    pub(super) fn raise_floor(&self, timeline: Timeline, to: u64) {
        self.floors[timeline as usize].raise(to);
    }

    /// Returns the stage of the table.
    #[inline(always)]
    pub(super) fn stage(&self) -> TableStage {
        // Acquire pairs with the Release in `set_emptied`: a process that sees an emptied table
        // must also see its floor.
        match self.stage.0.0.load(Ordering::Acquire) {
            RETIRED => TableStage::Retired,
            EMPTIED => TableStage::Emptied,
            _ => TableStage::InUse,
        }
    }

    /// Marks the table as replaced by a larger one. Every process that opens the larger table calls
    /// this before it adds a bucket there.
    pub fn retire(&self) {
        // Fails only if another process has retired or emptied the table.
        let found = self.stage.0.0.load(Ordering::Acquire);
        if found != RETIRED && found != EMPTIED {
            let _ = self.stage.0.0.compare_exchange(
                found,
                RETIRED,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
        }
    }

    /// Marks the table as emptied.
    pub(super) fn set_emptied(&self) {
        self.stage.0.0.store(EMPTIED, Ordering::Release);
    }
}

/// Bounds of all states that were ever written to a table, on one cache line. Each is raised before
/// such a state is written, so what is beyond them is damage.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(super) struct Announced {
    /// The latest end of a state on each timeline.
    latest_ends: [Maximum; 2],
    /// The bits of the longest stored lifetime, on the steady timeline.
    pub(super) longest_lifetime: Maximum,
}

impl Announced {
    /// Returns the latest end of a state on a timeline.
    #[inline(always)]
    pub(super) fn latest_end(&self, timeline: Timeline) -> &Maximum {
        &self.latest_ends[timeline as usize]
    }
}

/// A number that only grows.
#[repr(transparent)]
#[derive(Debug)]
pub(super) struct Maximum(Word);

impl Default for Maximum {
    fn default() -> Maximum {
        Maximum(Word::new(0))
    }
}

impl Maximum {
    /// Returns the number.
    #[inline(always)]
    pub(super) fn get(&self) -> u64 {
        // Relaxed: these words order no other access. Evicting and inserting one key needs
        // overlapping locks, which order the floor.
        self.0.load(Ordering::Relaxed)
    }

    /// Raises the number to at least `to`.
    pub(super) fn raise(&self, to: u64) {
        self.0.fetch_max(to, Ordering::Relaxed);
    }
}

/// A [`Maximum`] on its own cache line.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(super) struct Padded(Maximum);

impl Deref for Padded {
    type Target = Maximum;

    #[inline(always)]
    fn deref(&self) -> &Maximum {
        &self.0
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
    /// The table that is replaced has been linked.
    Linked = 26,
    /// The table has been renamed.
    FileRenamed = 27,
    /// The table that was replaced is retired.
    Retired = 28,
    /// A bucket of an older table is sealed.
    Sealed = 31,
    /// It is copied to the newer table.
    Copied = 32,
    /// It is removed from the older table.
    Moved = 33,
    /// Every slot of an older table is free; the table is marked next.
    Swept = 34,
    /// It is marked as emptied; its file is removed next.
    Emptied = 35,
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
    /// The instants of an opening that builds or enlarges a table, in ascending order.
    pub const OF_BUILDERS: [FaultPoint; 8] = [
        FaultPoint::FileOpened,
        FaultPoint::FileLocked,
        FaultPoint::LookedAgain,
        FaultPoint::Reserved,
        FaultPoint::HeaderWritten,
        FaultPoint::Linked,
        FaultPoint::FileRenamed,
        FaultPoint::Retired,
    ];
    /// The instants of calls that take over buckets of an older table, in ascending order.
    pub const OF_MOVES: [FaultPoint; 5] = [
        FaultPoint::Sealed,
        FaultPoint::Copied,
        FaultPoint::Moved,
        FaultPoint::Swept,
        FaultPoint::Emptied,
    ];
}

/// Receives each fault point that its process reaches; tests stop or kill the process there.
pub trait Faults: Clone + Send + Sync + fmt::Debug {
    /// Receives each fault point.
    #[inline(always)]
    fn reached(&self, _point: FaultPoint) {}
}

impl Faults for () {}
