//! Reading and emptying a whole table while other processes use it.

use crate::clock::Clock;
use crate::engine::state::Lifetime;
use crate::engine::time::Timestamp;
use crate::store::inspect::{Inspect, Inspection, ResetWithin, SlowBucket, Survey};
use crate::store::shared::slot::Occupant;
use crate::store::shared::table::{Memory, Table};
use crate::store::shared::{MappedFile, SharedStore};
use crate::store::{Store, StoreError};

impl<M: Memory, C: Clock> Table<M, C> {
    /// The buckets in the table. Each is read on its own: others change meanwhile.
    fn occupants(&self) -> impl Iterator<Item = Occupant> {
        (0..self.slots()).filter_map(|slot| {
            let place = self.memory.slot(slot);
            loop {
                let occupant = place.occupant().1?;
                // Without the lock, the key may belong to the next owner of the slot.
                if place.is_unchanged(occupant) {
                    return Some(occupant).filter(|&occupant| !self.is_damaged(occupant));
                }
            }
        })
    }

    /// How soon the buckets are full again, and the slowest of them.
    fn reset_times(&self, now: Timestamp, slowest: usize) -> (ResetWithin, Vec<SlowBucket>) {
        let mut survey = Survey::new(slowest);
        for occupant in self.occupants() {
            let is_instant = occupant.key.lifetime() == Lifetime::INSTANT;
            let tally = (!is_instant).then(|| occupant.state().tally());
            // The table keeps a hash of the id.
            survey.add(occupant.end(), now, tally, || None);
        }
        let (_, reset_within, slowest) = survey.finish();
        (reset_within, slowest)
    }

    /// Forgets all buckets. Returns how many there were.
    fn clear(&self) -> u64 {
        let mut cleared = 0;
        for slot in 0..self.slots() {
            let place = self.memory.slot(slot);
            // An occupied word may be freed by anybody, as in a reset; nothing else needs the lock.
            while let (_, Some(occupant)) = place.occupant() {
                if place.release(occupant) {
                    cleared += 1;
                    break;
                }
            }
        }
        cleared
    }
}

impl<C: Clock> Inspect for SharedStore<MappedFile, C> {
    fn inspect(&self, now: Timestamp, slowest: usize) -> Result<Inspection, StoreError> {
        let (reset_within, slowest) = self.table.reset_times(now, slowest);
        Ok(Inspection {
            stats: self.stats(now)?,
            file: Some(self.table.memory.path().to_owned()),
            created: Some(self.table.memory.created()),
            reset_within: Some(reset_within),
            slowest,
        })
    }

    fn clear(&self) -> Result<u64, StoreError> {
        Ok(self.table.clear())
    }
}
