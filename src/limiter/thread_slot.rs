//! A number for each thread, so that each has its own counters.

use std::cell::Cell;

use crate::sync::Ordering;
use crate::sync::counting::AtomicU64;

/// The number of threads that can have their own slot at one time; the others share one.
pub(super) const SLOTS: usize = 64;

/// The slot of threads without their own.
const SHARED: u8 = SLOTS as u8;
/// This thread has not claimed a slot yet.
const UNKNOWN: u8 = u8::MAX;

/// One bit for each slot that a thread has. No lock, so that a fork cannot catch one held; the
/// slots of threads that a fork leaves behind stay taken.
static TAKEN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    // Without a destructor, so that reading it is a load and nothing else.
    static SLOT: Cell<u8> = const { Cell::new(UNKNOWN) };
    static HELD: Held = const { Held(Cell::new(SHARED)) };
}

/// Returns the slot when its thread ends.
struct Held(Cell<u8>);

impl Drop for Held {
    fn drop(&mut self) {
        // Later calls of this thread count in the shared slot.
        SLOT.set(SHARED);
        give_back(self.0.get());
    }
}

/// This thread's slot: no other thread has it while the thread lives. [`SLOTS`] is the shared one.
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
        // Acquire pairs with the Release in `give_back`: a thread that claims a slot sees
        // the counts of its former owner.
        let claimed = taken | 1 << free;
        match TAKEN.compare_exchange(taken, claimed, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => break free,
            Err(found) => taken = found,
        }
    };
    // A thread that is ending cannot own a slot.
    let is_held = HELD.try_with(|held| held.0.set(slot)).is_ok();
    if !is_held {
        give_back(slot);
    }
    let slot = if is_held { slot } else { SHARED };
    SLOT.set(slot);
    slot
}

fn give_back(slot: u8) {
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
    fn threads_that_live_at_once_have_different_slots_or_the_shared_one() {
        const THREADS: usize = SLOTS + 8;
        let together = Barrier::new(THREADS);
        let mut slots: Vec<usize> = thread::scope(|scope| {
            let sit = || {
                let slots = (thread_slot(), thread_slot());
                assert_eq!(slots.0, slots.1);
                together.wait();
                slots.0
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(sit)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        slots.retain(|&slot| slot != SLOTS);
        let alone = slots.len();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), alone);
        // Other tests' threads may have some.
        assert!((1..=SLOTS).contains(&alone));
    }

    #[test]
    fn a_slot_is_free_again_when_its_thread_has_ended() {
        // Far more threads than slots, one after the other.
        let shared = (0..20 * SLOTS).filter(|_| {
            let thread = thread::spawn(thread_slot);
            thread.join().unwrap() == SLOTS
        });
        assert!(shared.count() < 10 * SLOTS, "slots are not given back");
    }
}
