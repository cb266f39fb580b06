//! The store at `shm://` URLs: buckets in a file that all processes of one machine map.

mod batch;
mod build;
mod bus_error;
mod deadline;
mod file;
mod header;
mod insert;
mod lock;
pub mod loom_mutants;
mod maintenance;
mod slot;
mod table;
mod table_memory;

use std::io;
use std::path::{Path, PathBuf};

pub use deadline::Deadline;
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
        self.table.forget(self.address(bucket))
    }

    fn clear(&self) -> Result<u64, SharedError> {
        self.table.clear()
    }

    fn raise_lifetimes(
        &self,
        now: Now,
        lifetime: &dyn Fn(State) -> Lifetime,
    ) -> Result<(), SharedError> {
        self.table.raise_lifetimes(now, lifetime)
    }

    fn stats(&self, now: Now) -> Result<Stats, SharedError> {
        self.table.stats(now)
    }
}

/// The error of a call on a shared table.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum SharedError {
    #[error("another process is adding buckets in the same place and did not finish in time")]
    Busy,
    #[error("the shared table's file was removed or replaced; restart the processes that use it")]
    Replaced,
    #[error(
        "the shared table's file was truncated; remove it and restart the processes that use it"
    )]
    Truncated,
    #[error("the table was replaced by a larger one, which cannot be opened: {0}")]
    Open(#[source] TableOpenError),
    #[error("the shared table's file cannot be locked: {0}")]
    Lock(#[source] io::Error),
    #[error("the call would have to wait for another process")]
    WouldWait,
}

impl From<SharedError> for StoreError {
    fn from(error: SharedError) -> StoreError {
        match error {
            SharedError::WouldWait => StoreError::WouldWait,
            error => StoreError::Unavailable { why: error.to_string() },
        }
    }
}

/// The error of opening or creating a shared table.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum TableOpenError {
    #[error("{} cannot be used as a shared table: {reason}", path.display())]
    Refused { path: PathBuf, reason: &'static str },
    /// Without the boot id, a table in use looks like one of an earlier boot.
    #[error(
        "a shared table cannot be opened: the boot id of this machine (on Linux, \
         /proc/sys/kernel/random/boot_id) cannot be read: {why}; make it readable, for example with \
         ProcSubset=all in the systemd unit, or without masking /proc/sys in the container"
    )]
    UnknownBoot { why: String },
    /// There is no table, or it was created before the machine started.
    #[error(
        "there is no shared table at {}; it is created by the first process of this user that \
         uses it",
        path.display()
    )]
    Missing { path: PathBuf },
    #[error(
        "{} has no room for a table of {bytes} bytes; free some, or lower capacity: {source}",
        path.display()
    )]
    NoRoom { path: PathBuf, bytes: u64, source: io::Error },
    /// Another thread of this process is opening a table and did not finish in time.
    #[error("{} cannot be opened: this process is busy with another shared table", path.display())]
    Busy { path: PathBuf },
    #[error(
        "{} cannot be opened: another process is creating or enlarging it and did not finish in \
         time; it may be stopped",
        path.display()
    )]
    Building { path: PathBuf },
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}
