//! The store at `shm://` URLs: buckets in a file that all processes of one machine map.

mod batch;
mod build;
mod deadline;
mod error;
mod file;
mod header;
mod insert;
mod lock;
pub mod loom_mutants;
mod maintenance;
mod slot;
mod table;
mod table_memory;

use std::path::{Path, PathBuf};

pub use deadline::Deadline;
pub use error::{SharedError, TableOpenError};
pub use file::MappedFile;
pub use slot::SharedSlot;
pub use table_memory::{FaultPoint, Faults, SLOTS_PER_LINE, TableCounters, TableMemory};

use crate::clock::Clock;
use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::answer::Answer;
use crate::engine::state::{Lifetime, State};
use crate::engine::time::Now;
use crate::hash::HashKey;
use crate::prefetch::DISTANCE;
use crate::store::memory::Overflow;
use crate::store::url::SharedPlace;
use crate::store::{
    Answers, Batch, Bucket, Keyspace, Stats, Store, StoreError, StoreStep, Wait, of_timeline,
};
use table::{SharedTable, SlotAddress};

/// The id of the overflow bucket, which new ids of a limit share while their windows are full. It
/// is not UTF-8, so no client has it.
const OVERFLOW_ID: &[u8] = &[0xff];

/// Returns the path of the table that a URL selects.
///
/// A name selects a file of this user in `/dev/shm`, or in the temporary directory if there is no
/// `/dev/shm`.
#[expect(clippy::disallowed_methods, reason = "a shared table is a file")]
pub fn path(place: &SharedPlace) -> PathBuf {
    match place {
        SharedPlace::Path(path) => path.clone(),
        SharedPlace::Name(name) => {
            let memory = Path::new("/dev/shm");
            let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
            let user = rustix::process::geteuid().as_raw();
            folder.join(format!("penstock-{user}-{name}"))
        }
    }
}

/// Returns a table of another user that a URL with this name selects for the processes of that user.
#[expect(clippy::disallowed_methods, reason = "a shared table is a file")]
pub fn path_of_other_user(place: &SharedPlace) -> Option<PathBuf> {
    let SharedPlace::Name(name) = place else { return None };
    let own = path(place);
    let is_table = |file: &Path| {
        let file = file.file_name()?.to_str()?.strip_prefix("penstock-")?;
        let user = file.strip_suffix(name)?.strip_suffix('-')?;
        Some(user.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let entries = std::fs::read_dir(own.parent()?).ok()?;
    let mut files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    files.find(|file| *file != own && is_table(file) == Some(true))
}

/// A store in a table that several processes share.
#[derive(Debug)]
pub struct SharedStore<M> {
    table: SharedTable<M>,
    key: HashKey,
}

impl<F: Faults> SharedStore<MappedFile<F>> {
    /// Creates a store in an open table.
    pub fn in_file(memory: MappedFile<F>, overflow: Overflow) -> Self {
        let key = memory.hash_key();
        SharedStore::new(memory, key, overflow)
    }
}

impl<M: TableMemory> SharedStore<M> {
    /// Creates a store in any memory. `key` is the key of the hash that places buckets.
    pub fn new(memory: M, key: HashKey, overflow: Overflow) -> Self {
        SharedStore { table: SharedTable::new(memory, overflow), key }
    }

    #[inline(always)]
    fn address(&self, bucket: Bucket<'_>) -> SlotAddress {
        SlotAddress::of(bucket.hash(), bucket.keyspace.kind, bucket.timeline)
    }

    /// Runs a step on one bucket.
    #[inline(always)]
    fn update_one<S: StoreStep>(
        &self,
        bucket: Bucket<'_>,
        step: &S,
        now: Now,
        wait: Wait,
    ) -> Result<Answer, SharedError> {
        let (address, mut answer) = (self.address(bucket), Answer::default());
        let overflow = || self.overflow_address(bucket);
        let deadline = Deadline::of_call(wait);
        self.table.update(address, overflow, step, now, &mut answer, &deadline)?;
        Ok(answer)
    }

    #[cold]
    fn overflow_address(&self, bucket: Bucket<'_>) -> SlotAddress {
        let Bucket { keyspace, timeline, .. } = bucket;
        let hash = keyspace.hash(OVERFLOW_ID) ^ of_timeline(timeline);
        SlotAddress::of(hash, keyspace.kind, timeline)
    }
}

impl<M: TableMemory> Store for SharedStore<M> {
    type Error = SharedError;

    fn keyspace(&self, algorithm: AlgorithmName, prefix: &str) -> Keyspace {
        Keyspace::new(self.key, algorithm, prefix)
    }

    // Not inlined, as for servers, because it would slow down the memory store in the same match.
    #[inline(never)]
    fn update<S: StoreStep>(
        &self,
        bucket: Bucket<'_>,
        step: &S,
        now: Now,
        wait: Wait,
    ) -> Result<Answer, SharedError> {
        self.update_one(bucket, step, now, wait)
    }

    #[cold]
    fn update_shared<S: StoreStep>(
        &self,
        bucket: Bucket<'_>,
        nth: u64,
        step: &S,
        now: Now,
        wait: Wait,
    ) -> Result<Option<Answer>, SharedError> {
        let (address, mut answer) = (self.overflow_address(bucket), Answer::default());
        if nth > 0 || self.table.find(address).is_none() {
            return Ok(None);
        }
        let deadline = Deadline::of_call(wait);
        self.table.update(address, || address, step, now, &mut answer, &deadline)?;
        Ok(Some(answer))
    }

    #[inline(always)]
    fn update_each<'a, S: StoreStep>(
        &self,
        count: usize,
        call: impl Fn(usize) -> (Bucket<'a>, S),
        now: Now,
        mut each: impl FnMut(usize, Result<&Answer, StoreError>),
    ) {
        let request = |index: usize| self.table.fetch(self.address(call(index).0));
        (0..count.min(DISTANCE)).for_each(request);
        for index in 0..count {
            if index + DISTANCE < count {
                request(index + DISTANCE);
            }
            let (bucket, step) = call(index);
            match self.update_one(bucket, &step, now, Wait::Allowed) {
                Ok(answer) => each(index, Ok(&answer)),
                Err(error) => return each(index, Err(error.into())),
            }
        }
    }

    fn update_all<B: Batch>(
        &self,
        buckets: &[Bucket<'_>],
        batch: &B,
        now: Now,
        clock: &impl Clock,
        wait: Wait,
    ) -> Result<Answers, SharedError> {
        let addresses = |&bucket| (self.address(bucket), self.overflow_address(bucket));
        let addresses: Vec<_> = buckets.iter().map(addresses).collect();
        self.table.update_all(&addresses, batch, now, clock, &Deadline::of_call(wait))
    }

    fn forget(&self, bucket: Bucket<'_>) -> Result<bool, SharedError> {
        Ok(self.table.forget(self.address(bucket)))
    }

    fn clear(&self) -> Result<u64, SharedError> {
        Ok(self.table.clear())
    }

    fn raise_lifetimes(
        &self,
        now: Now,
        lifetime: &dyn Fn(State) -> Lifetime,
    ) -> Result<(), SharedError> {
        self.table.raise_lifetimes(now, lifetime)
    }

    fn stats(&self, now: Now) -> Result<Stats, SharedError> {
        Ok(self.table.stats(now))
    }
}
