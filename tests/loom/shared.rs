//! The shared table in ordinary memory, with a lock for each line in place of the kernel's.

use loom::sync::{Mutex, MutexGuard};
use penstock::clock::ManualClock;
use penstock::engine::time::Timestamp;
use penstock::store::hash::HashKey;
use penstock::store::memory::Overflow;
use penstock::store::shared::{
    Counters, Memory, SLOTS_PER_LINE, SharedError, SharedStore, Slot, Wait,
};

/// What is wrong with the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// Two threads may hand out the same slot.
    NoLock,
    /// A call believes a clock reading older than what was forgotten.
    NoFloor,
}

/// Lines of slots: `home_lines` in which a search may begin, and windows of as many lines.
#[derive(Debug)]
pub struct Lines {
    slots: Vec<Slot>,
    locks: Vec<Mutex<()>>,
    counters: Counters,
    home_lines: usize,
    flaw: Flaw,
}

impl Lines {
    pub fn new(home_lines: usize, flaw: Flaw) -> Lines {
        let lines = 2 * home_lines - 1;
        Lines {
            slots: (0..lines * SLOTS_PER_LINE).map(|_| Slot::new()).collect(),
            locks: (0..lines).map(|_| Mutex::new(())).collect(),
            counters: Counters::default(),
            home_lines,
            flaw,
        }
    }
}

impl Memory for Lines {
    type Guard<'a> = Vec<MutexGuard<'a, ()>>;

    fn home_lines(&self) -> usize {
        self.home_lines
    }

    fn window(&self) -> usize {
        self.home_lines
    }

    fn slot(&self, index: usize) -> &Slot {
        &self.slots[index]
    }

    fn counters(&self) -> &Counters {
        if self.flaw == Flaw::NoFloor {
            self.counters.lower_floor();
        }
        &self.counters
    }

    fn lock(&self, line: usize, _: Wait) -> Result<Option<Self::Guard<'_>>, SharedError> {
        let lines = match self.flaw {
            Flaw::None | Flaw::NoFloor => line..line + self.home_lines,
            Flaw::NoLock => line..line,
        };
        Ok(Some(lines.map(|line| self.locks[line].lock().expect("no panic")).collect()))
    }
}

/// A shared store of `home_lines` lines whose hash places the same ids alike in every run.
pub fn shared(home_lines: usize, flaw: Flaw) -> SharedStore<Lines, ManualClock> {
    let clock = ManualClock::new(Timestamp::ORIGIN);
    SharedStore::new(Lines::new(home_lines, flaw), HashKey::random(), clock, Overflow::Evict)
}
