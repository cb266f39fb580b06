//! Thread slots: small numbers that give each thread its own counters.

use std::cell::Cell;

use crate::sync::Ordering;
use crate::sync::counting::AtomicU64;

/// The number of threads that can have their own slot at the same time. Further threads share one.
pub(super) const SLOTS: usize = 64;

/// The slot of threads without their own.
const SHARED: u8 = SLOTS as u8;
/// The value for a thread that has not claimed a slot yet.
const UNKNOWN: u8 = u8::MAX;

/// One bit per slot that is taken. Not behind a lock, which a fork could leave locked forever. In a
/// forked child, the slots of the parent's other threads stay taken.
static TAKEN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    // Has no destructor, so that reading it is a single load.
    static SLOT: Cell<u8> = const { Cell::new(UNKNOWN) };
    static HELD: Held = const { Held(Cell::new(SHARED)) };
}

/// The owner of a thread's slot, which releases the slot when the thread ends.
struct Held(Cell<u8>);

impl Drop for Held {
    fn drop(&mut self) {
        // Later calls of this thread, from other destructors, count in the shared slot.
        SLOT.set(SHARED);
        release(self.0.get());
    }
}

/// Returns this thread's slot. No other live thread has the same slot, except the shared one, which is
/// [`SLOTS`].
#[inline(always)]
pub(super) fn thread_slot() -> usize {
    let slot = SLOT.get();
    usize::from(if slot == UNKNOWN { claim() } else { slot })
}

#[cold]
fn claim() -> u8 {
    let mut taken = TAKEN.load(Ordering::Relaxed);
    let slot = loop {
        let free = taken.trailing_ones() as u8;
        if free == SHARED {
            break SHARED;
        }
        // Acquire pairs with the Release in `release`: a thread that claims a slot sees the counts of
        // its previous owner.
        let claimed = taken | 1 << free;
        match TAKEN.compare_exchange(taken, claimed, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => break free,
            Err(found) => taken = found,
        }
    };
    // A thread that is ending cannot own a slot.
    let is_held = HELD.try_with(|held| held.0.set(slot)).is_ok();
    if !is_held {
        release(slot);
    }
    let slot = if is_held { slot } else { SHARED };
    SLOT.set(slot);
    slot
}

fn release(slot: u8) {
    if slot != SHARED {
        TAKEN.fetch_and(!(1 << slot), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn concurrent_threads_have_different_slots_or_the_shared_one() {
        const THREADS: usize = SLOTS + 8;
        let barrier = Barrier::new(THREADS);
        let mut slots: Vec<usize> = thread::scope(|scope| {
            let claim_slot = || {
                let slots = (thread_slot(), thread_slot());
                assert_eq!(slots.0, slots.1);
                barrier.wait();
                slots.0
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(claim_slot)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        slots.retain(|&slot| slot != SLOTS);
        let exclusive = slots.len();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), exclusive);
        // Threads of other tests may hold some slots.
        assert!((1..=SLOTS).contains(&exclusive));
    }

    #[test]
    fn a_slot_is_released_when_its_thread_ends() {
        // Many more threads than slots, one after the other.
        let shared = (0..20 * SLOTS).filter(|_| {
            let thread = thread::spawn(thread_slot);
            thread.join().unwrap() == SLOTS
        });
        assert!(shared.count() < 10 * SLOTS, "slots are not released");
    }
}
