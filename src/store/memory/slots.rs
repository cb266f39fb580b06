//! Memory of tables.
//!
//! Slots are read in random order, so with many of them most of a call is spent waiting for memory.
//! With small pages there are two waits, because the processor's TLB holds only a few thousand
//! pages. The large tables of a store are therefore adjacent in a region of huge pages, which one
//! table alone rarely fills.
//!
//! Uses `unsafe` because each table owns its part of a region, which the compiler cannot know.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, slice_from_raw_parts_mut};
use std::slice;

#[cfg(target_os = "linux")]
use std::sync::{Arc, Weak};

#[cfg(target_os = "linux")]
use crate::store::memory::slots::region::{Part, Region};
#[cfg(target_os = "linux")]
use crate::sync::counting::Mutex;

/// A bucket, or all zeros if it is free.
pub(crate) type Slot = [u64; 2];

pub(crate) const FREE: Slot = [0, 0];

/// The slots of a small page.
const PAGE: usize = 4096 / size_of::<Slot>();
/// A table with fewer slots is never in a region.
const MIN_IN_REGION: usize = 4 * PAGE;
/// The slots of the smallest region, which is two huge pages.
#[cfg(target_os = "linux")]
const MIN_REGION: usize = 1024 * PAGE;

/// The slots of one table.
pub(crate) struct Slots {
    first: NonNull<Slot>,
    len: usize,
    /// The part of a region that the slots are; `None` if they were allocated alone.
    #[cfg(target_os = "linux")]
    part: Option<Part>,
}

// SAFETY: the slots belong to this value alone.
unsafe impl Send for Slots {}
// SAFETY: as above; a shared reference only reads them.
unsafe impl Sync for Slots {}

impl Slots {
    /// Allocates free slots, so call it without holding a lock.
    pub(crate) fn new(capacity: usize) -> Slots {
        let slots = Box::leak(vec![FREE; capacity].into_boxed_slice());
        Slots {
            first: NonNull::from(&mut *slots).cast(),
            len: slots.len(),
            #[cfg(target_os = "linux")]
            part: None,
        }
    }

    /// The least capacity of at least `capacity` that tables have. Large tables have few different
    /// ones, so that those of a store are found side by side.
    pub(crate) fn round_up(capacity: usize) -> usize {
        if capacity < MIN_IN_REGION {
            return capacity;
        }
        let mut rounded = MIN_IN_REGION;
        while rounded < capacity {
            // In whole pages, so that each table can return its own.
            rounded = (rounded + rounded / 2).next_multiple_of(PAGE);
        }
        rounded
    }
}

impl Default for Slots {
    fn default() -> Slots {
        Slots::new(0)
    }
}

impl Deref for Slots {
    type Target = [Slot];

    #[inline(always)]
    fn deref(&self) -> &[Slot] {
        // SAFETY: the slots are initialized, and belong to `self` until it is dropped.
        unsafe { slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl DerefMut for Slots {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [Slot] {
        // SAFETY: as in `deref`; this is the only reference to `self`.
        unsafe { slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        if let Some(part) = &self.part {
            // SAFETY: the slots are no longer used.
            unsafe { part.release() };
            return;
        }
        let slots = slice_from_raw_parts_mut(self.first.as_ptr(), self.len);
        // SAFETY: the slots are the box that `new` has leaked.
        drop(unsafe { Box::from_raw(slots) });
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").field("len", &self.len).finish_non_exhaustive()
    }
}

/// The regions of a store: one for each capacity that its large tables have.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    #[cfg(target_os = "linux")]
    regions: Mutex<Vec<Weak<Region>>>,
}

impl Regions {
    /// Allocates free slots for the table at an index of `tables`.
    #[cfg(target_os = "linux")]
    pub(crate) fn slots(&self, index: usize, tables: usize, capacity: usize) -> Slots {
        if capacity < MIN_IN_REGION || capacity * tables < MIN_REGION {
            return Slots::new(capacity);
        }
        let mut regions = self.regions.lock();
        regions.retain(|region| region.strong_count() > 0);
        let known = regions.iter().filter_map(Weak::upgrade);
        let mut known = known.filter(|region| region.capacity() == capacity);
        let region = known.next().or_else(|| {
            let region = Region::new(tables, capacity)?;
            regions.push(Arc::downgrade(&region));
            Some(region)
        });
        // A table that is rebuilt at the same capacity still has its part.
        match region.and_then(|region| region.part(index)) {
            Some(part) => Slots { first: part.first(), len: capacity, part: Some(part) },
            None => Slots::new(capacity),
        }
    }

    /// Allocates free slots.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn slots(&self, _index: usize, _tables: usize, capacity: usize) -> Slots {
        Slots::new(capacity)
    }
}

#[cfg(target_os = "linux")]
mod region {
    use std::fmt;
    use std::ptr::NonNull;
    use std::sync::Arc;

    use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};

    use crate::store::memory::slots::{PAGE, Slot};
    use crate::sync::Ordering;
    use crate::sync::counting::AtomicU64;

    /// The alignment of a huge page.
    const HUGE_PAGE: usize = 2 << 20;

    /// Memory for tables of one capacity, one for each shard. Pages that no table has used take
    /// none.
    pub(super) struct Region {
        map: MmapRaw,
        /// Bytes before the first table.
        offset: usize,
        capacity: usize,
        /// The tables whose part is in use, 64 in each word.
        used: Box<[AtomicU64]>,
    }

    impl fmt::Debug for Region {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Region").field("capacity", &self.capacity).finish_non_exhaustive()
        }
    }

    impl Region {
        /// `None` if the system has larger pages, or no such memory.
        pub(super) fn new(tables: usize, capacity: usize) -> Option<Arc<Region>> {
            let bytes = capacity.checked_mul(tables)?.checked_mul(size_of::<Slot>())?;
            if rustix::param::page_size() != PAGE * size_of::<Slot>() {
                return None;
            }
            let mut options = MmapOptions::new();
            let map =
                options.len(bytes.checked_add(HUGE_PAGE)?).no_reserve_swap().map_anon().ok()?;
            // A kernel without huge pages refuses; the region is as good as any memory then.
            let _ = map.advise(Advice::HugePage);
            let map = MmapRaw::from(map);
            let offset = map.as_ptr().align_offset(HUGE_PAGE);
            let used = (0..tables.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
            Some(Arc::new(Region { map, offset, capacity, used }))
        }

        pub(super) fn capacity(&self) -> usize {
            self.capacity
        }

        /// The part of the table at an index; `None` if it is in use.
        pub(super) fn part(self: Arc<Region>, index: usize) -> Option<Part> {
            let bit = 1 << (index % 64);
            // Acquire pairs with the Release in `Part::release`: the part is free and all zeros.
            let used = self.used.get(index / 64)?.fetch_or(bit, Ordering::Acquire);
            (used & bit == 0).then(|| Part { region: self, index })
        }
    }

    /// The part of a region that one table owns.
    #[derive(Debug)]
    pub(super) struct Part {
        region: Arc<Region>,
        index: usize,
    }

    impl Part {
        /// Its first slot.
        pub(super) fn first(&self) -> NonNull<Slot> {
            let at = self.region.offset + self.index * self.bytes();
            // SAFETY: the region has room for all of its tables from `offset` on, and the system
            // has filled it with zeros, which are free slots.
            unsafe { NonNull::new_unchecked(self.region.map.as_mut_ptr().add(at).cast()) }
        }

        fn bytes(&self) -> usize {
            self.region.capacity * size_of::<Slot>()
        }

        /// Returns the memory to the system, and the part to the region.
        ///
        /// # Safety
        /// The slots are no longer used.
        pub(super) unsafe fn release(&self) {
            let (region, bytes) = (&self.region, self.bytes());
            let at = region.offset + self.index * bytes;
            // SAFETY: the slots are whole pages of this part, and no longer used. The system fills
            // them with zeros when they are used again.
            let returned =
                unsafe { region.map.unchecked_advise_range(UncheckedAdvice::DontNeed, at, bytes) };
            if returned.is_err() {
                // Memory that is locked is not returned.
                // SAFETY: as above.
                unsafe { self.first().as_ptr().write_bytes(0, region.capacity) };
            }
            region.used[self.index / 64].fetch_and(!(1 << (self.index % 64)), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: usize = 256;

    #[test]
    fn tables_of_a_region_have_slots_of_their_own_which_are_free() {
        let regions = Regions::default();
        for _ in 0..2 {
            // The first table is rebuilt at the same capacity while its part is in use.
            let mut tables: Vec<Slots> = (0..TABLES)
                .chain([0])
                .map(|index| regions.slots(index, TABLES, MIN_IN_REGION))
                .collect();
            for (index, slots) in (1..).zip(&mut tables) {
                assert_eq!(**slots, [FREE; MIN_IN_REGION]);
                slots.fill([index; 2]);
            }
            for (index, slots) in (1..).zip(&tables) {
                assert_eq!(**slots, [[index; 2]; MIN_IN_REGION]);
            }
            // Those of the second turn have the memory of the others.
            tables.drain(1..);
            let again = regions.slots(1, TABLES, MIN_IN_REGION);
            assert_eq!(*again, [FREE; MIN_IN_REGION]);
        }
    }

    #[test]
    fn capacities_grow_in_whole_pages_by_little_more_than_asked() {
        let mut capacity = MIN_IN_REGION;
        while capacity < 1 << 40 {
            let next = Slots::round_up(capacity + capacity / 2);
            assert!(next.is_multiple_of(PAGE) && Slots::round_up(next) == next);
            assert!(next <= capacity + capacity / 2 + PAGE);
            capacity = next;
        }
        assert_eq!(Slots::round_up(MIN_IN_REGION - 1), MIN_IN_REGION - 1);
    }
}
