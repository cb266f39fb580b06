//! A number for each thread, so that each may count in a place of its own.

use std::cell::Cell;

use crate::sync::Ordering;
use crate::sync::counting::AtomicU64;

/// So many threads at a time have a seat of their own; the rest share one.
pub(super) const SEATS: usize = 64;

/// The seat of those who have none of their own.
const SHARED: u8 = SEATS as u8;
/// This thread has not asked yet.
const UNKNOWN: u8 = u8::MAX;

/// One bit for each seat that a thread has. No lock, so that a fork cannot catch one held; the
/// seats of threads that a fork leaves behind stay taken.
static TAKEN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    // Without a destructor, so that reading it is a load and nothing else.
    static SEAT: Cell<u8> = const { Cell::new(UNKNOWN) };
    static HELD: Held = const { Held(Cell::new(SHARED)) };
}

/// Gives the seat back when its thread ends.
struct Held(Cell<u8>);

impl Drop for Held {
    fn drop(&mut self) {
        // What is still to come in this thread counts where all may.
        SEAT.set(SHARED);
        give_back(self.0.get());
    }
}

/// This thread's seat: nobody else has it while the thread lives. [`SEATS`] is the shared one.
#[inline(always)]
pub(super) fn seat() -> usize {
    let seat = SEAT.get();
    usize::from(if seat == UNKNOWN { claim() } else { seat })
}

#[cold]
fn claim() -> u8 {
    let mut taken = TAKEN.load(Ordering::Relaxed);
    let seat = loop {
        let free = taken.trailing_ones() as u8;
        if free == SHARED {
            break SHARED;
        }
        // Acquire pairs with the Release in `give_back`: who gets a seat sees what was counted
        // from it before.
        let claimed = taken | 1 << free;
        match TAKEN.compare_exchange(taken, claimed, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => break free,
            Err(found) => taken = found,
        }
    };
    // A thread that is ending can hold nothing any more.
    let is_held = HELD.try_with(|held| held.0.set(seat)).is_ok();
    if !is_held {
        give_back(seat);
    }
    let seat = if is_held { seat } else { SHARED };
    SEAT.set(seat);
    seat
}

fn give_back(seat: u8) {
    if seat != SHARED {
        TAKEN.fetch_and(!(1 << seat), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn threads_that_live_together_sit_apart_and_the_rest_share() {
        const THREADS: usize = SEATS + 8;
        let together = Barrier::new(THREADS);
        let mut seats: Vec<usize> = thread::scope(|scope| {
            let sit = || {
                let seats = (seat(), seat());
                assert_eq!(seats.0, seats.1);
                together.wait();
                seats.0
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(sit)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        seats.retain(|&seat| seat != SEATS);
        let alone = seats.len();
        seats.sort_unstable();
        seats.dedup();
        assert_eq!(seats.len(), alone);
        // Other tests' threads may have some.
        assert!((1..=SEATS).contains(&alone));
    }

    #[test]
    fn a_seat_is_free_again_when_its_thread_has_ended() {
        // Far more threads than seats, one after the other.
        let shared = (0..20 * SEATS).filter(|_| {
            let thread = thread::spawn(seat);
            thread.join().unwrap() == SEATS
        });
        assert!(shared.count() < 10 * SEATS, "seats are not given back");
    }
}
