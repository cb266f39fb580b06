//! Reading and emptying a whole table while other processes use it.

use crate::engine::state::Lifetime;
use crate::engine::time::Timestamp;
use crate::store::inspect::{Inspect, Inspection, ResetWithin, SlowBucket, Survey};
use crate::store::shared::memory::Memory;
use crate::store::shared::slot::Occupant;
use crate::store::shared::table::Table;
use crate::store::shared::{MappedFile, SharedError, SharedStore};
use crate::store::{Store, StoreError};

impl<M: Memory> Table<M> {
    /// The buckets in a table. Each is read on its own: others change meanwhile.
    fn occupants(&self, memory: &M) -> impl Iterator<Item = Occupant> {
        (0..memory.slots()).filter_map(|index| {
            let place = memory.slot(index);
            loop {
                let occupant = place.occupant().1?;
                // Without the lock, the key may belong to the next owner of the slot.
                if place.is_unchanged(occupant) {
                    let is_valid = |&occupant: &Occupant| {
                        !occupant.is_sealed() && !self.is_damaged(memory, occupant)
                    };
                    return Some(occupant).filter(is_valid);
                }
            }
        })
    }

    /// How soon the buckets are full again, and the slowest of them.
    fn reset_times(
        &self,
        now: Timestamp,
        slowest: usize,
    ) -> Result<(ResetWithin, Vec<SlowBucket>), SharedError> {
        let newest = self.newest()?;
        let tables = std::iter::once(newest).chain(newest.older_tables());
        let mut survey = Survey::new(slowest);
        for occupant in tables.flat_map(|memory| self.occupants(memory)) {
            let is_instant = occupant.key.lifetime() == Lifetime::INSTANT;
            let tally = (!is_instant).then(|| occupant.state().tally());
            // The table keeps a hash of the id.
            survey.add(occupant.end(), now, tally, || None);
        }
        let (_, reset_within, slowest) = survey.finish();
        Ok((reset_within, slowest))
    }

    /// Forgets all buckets. Returns how many there were.
    fn clear(&self) -> Result<u64, SharedError> {
        let newest = self.newest()?;
        // The newest last, since buckets move there.
        let mut tables: Vec<_> = newest.older_tables().collect();
        tables.insert(0, newest);
        let mut cleared = 0;
        for place in tables
            .iter()
            .rev()
            .flat_map(|&memory| (0..memory.slots()).map(move |index| memory.slot(index)))
        {
            // An occupied word may be freed by anybody, as in a reset; nothing else needs the lock.
            while let (_, Some(occupant)) = place.occupant() {
                if place.release(occupant) {
                    cleared += 1;
                    break;
                }
            }
        }
        Ok(cleared)
    }
}

impl Inspect for SharedStore<MappedFile> {
    fn inspect(&self, now: Timestamp, slowest: usize) -> Result<Inspection, StoreError> {
        let (reset_within, slowest) = self.table.reset_times(now, slowest)?;
        Ok(Inspection {
            stats: self.stats(now)?,
            file: Some(self.table.current().path().to_owned()),
            created: Some(self.table.current().created()),
            reset_within: Some(reset_within),
            slowest,
        })
    }

    fn clear(&self) -> Result<u64, StoreError> {
        Ok(self.table.clear()?)
    }
}
