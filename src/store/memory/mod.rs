//! Buckets in the memory of this process.

mod table;

use std::convert::Infallible;
use std::ptr::null_mut;

use crate::clock::Clock;
use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::state::{Lifetime, State};
use crate::engine::time::Timestamp;
use crate::prefetch::prefetch;
use crate::store::hash::HashKey;
use crate::store::memory::table::{Slots, Table, Tag, home_slot};
use crate::store::remote::{RemoteBatch, RemoteStep};
use crate::store::{Bucket, Keyspace, Stats, Step, Store, StoreError, Write};
use crate::sync::{AtomicPtr, AtomicUsize, Mutex, MutexGuard, Ordering};

/// Keeps the pause while one shard grows short at ten million buckets.
const MAX_SHARDS: usize = 256;
/// A bounded store gives each shard room for at least this many buckets, so that chance does not
/// fill one shard long before the others.
const MIN_PER_SHARD: usize = 1024;
/// Calls handled at a time by `update_each`: enough to fetch ahead, few enough to stay in cache.
const CHUNK: usize = 64;

/// Slots that are tidied at a time: some microseconds of work.
const TIDIED: usize = 1024;
/// A smaller table is not worth tidying.
const MIN_TIDIED: usize = 64;

/// A shard on cache lines of its own, so that threads at different shards do not slow each other.
#[repr(align(64))]
#[derive(Debug)]
struct Shard {
    table: Mutex<Table>,
    /// Address and number of the slots. Only for prefetching, so they may be out of date.
    slots: AtomicPtr<[u64; 2]>,
    capacity: AtomicUsize,
}

impl Shard {
    fn new() -> Shard {
        Shard {
            table: Mutex::new(Table::new()),
            slots: AtomicPtr::new(null_mut()),
            capacity: AtomicUsize::new(0),
        }
    }

    /// Publishes the address of the slots.
    fn publish(&self, table: &Table) {
        let (slots, capacity) = table.layout();
        // Relaxed, here and in `fetch`: with one old value of the two, the wrong line is fetched,
        // or none.
        self.slots.store(slots.cast_mut(), Ordering::Relaxed);
        self.capacity.store(capacity, Ordering::Relaxed);
    }

    /// Prefetches the slot at which the search for `tag` begins.
    #[inline(always)]
    fn fetch(&self, tag: Tag) {
        let index = home_slot(tag, self.capacity.load(Ordering::Relaxed));
        prefetch(self.slots.load(Ordering::Relaxed).wrapping_add(index));
    }
}

/// The shard of a bucket, and its tag there.
#[derive(Clone, Copy, Debug)]
struct Address {
    shard: usize,
    tag: Tag,
}

/// Buckets in the memory of this process, in shards with a lock each.
///
/// A bucket takes 16 bytes and is identified by 58 bits of a keyed 128-bit SipHash within its
/// shard, which 8 other bits choose (fewer in a small bounded store). The key is random for each
/// store, so two ids that share a bucket cannot be constructed; among ten million buckets the
/// chance of any shared pair is below one in a million. Full buckets are dropped as others are
/// added; no thread runs.
#[derive(Debug)]
pub struct MemoryStore {
    key: HashKey,
    shards: Box<[Shard]>,
    /// The most buckets that one shard may hold.
    max_per_shard: Option<usize>,
    /// The shard that is tidied next.
    next_tidied: AtomicUsize,
}

impl MemoryStore {
    /// Makes an empty store that grows without bound, or one that keeps at most `max_buckets` (at
    /// least 1) and evicts the bucket nearest to full when it has no more room.
    pub fn new(max_buckets: Option<usize>) -> MemoryStore {
        let shards = match max_buckets {
            None => MAX_SHARDS,
            Some(max) => {
                (max / MIN_PER_SHARD).clamp(1, MAX_SHARDS).next_power_of_two().min(MAX_SHARDS)
            }
        };
        MemoryStore {
            key: HashKey::random(),
            shards: (0..shards).map(|_| Shard::new()).collect(),
            max_per_shard: max_buckets.map(|max| (max / shards).max(1)),
            next_tidied: AtomicUsize::new(0),
        }
    }

    #[inline(always)]
    fn address(&self, bucket: Bucket<'_>) -> Address {
        let hash = bucket.keyspace.hash.hash(bucket.id.as_bytes());
        // The number of shards is a power of two, so the mask has no gaps.
        Address { shard: hash.0 as usize & (self.shards.len() - 1), tag: Tag::of(hash.1) }
    }

    /// Makes room in a shard for `more` new buckets. Allocates and frees without holding the lock.
    #[cold]
    fn grow(&self, shard: usize, more: usize, now: Timestamp) {
        let wanted = {
            let table = self.shards[shard].table.lock();
            if table.has_room_for(more) {
                return;
            }
            table.wanted(more, table.effective_now(now))
        };
        let fresh = Slots::new(wanted);
        let old = {
            let mut table = self.shards[shard].table.lock();
            if table.has_room_for(more) {
                fresh
            } else {
                let now = table.effective_now(now);
                let old = table.rebuild(fresh, more, now);
                self.shards[shard].publish(&table);
                old
            }
        };
        drop(old);
    }

    /// Returns the memory of a shard that is mostly free.
    fn shrink(&self, shard: &Shard, now: Timestamp) {
        let Some(wanted) = shard.table.lock().shrunk() else { return };
        let fresh = Slots::new(wanted);
        let old = {
            let mut table = shard.table.lock();
            let now = table.effective_now(now);
            // A table that has grown meanwhile is left alone.
            let old = table.rebuild(fresh, 0, now);
            shard.publish(&table);
            old
        };
        drop(old);
    }

    #[inline(always)]
    fn update_at<S: Step>(
        &self,
        address: Address,
        step: &S,
        now: Timestamp,
        answer: &mut S::Answer,
    ) {
        let mut table = self.shards[address.shard].table.lock();
        let Some(index) = table.find(address.tag) else {
            return self.update_new(table, address, step, now, answer);
        };
        let write = step.run(Some(table.state(index)), table.effective_now(now), answer);
        if let Some((state, lifetime)) = write.state() {
            table.replace(index, state, lifetime);
        }
    }

    /// Runs a step on a bucket that is not in the table.
    #[inline(never)]
    fn update_new<'a, S: Step>(
        &'a self,
        mut table: MutexGuard<'a, Table>,
        address: Address,
        step: &S,
        now: Timestamp,
        answer: &mut S::Answer,
    ) {
        loop {
            let state = table.find(address.tag).map(|index| table.state(index));
            let now = table.effective_now(now);
            let write = step.run(state, now, answer);
            let is_new = state.is_none() && write != Write::Keep;
            if !is_new || table.has_room_for(1) {
                return table.write(address.tag, write, self.max_per_shard, now);
            }
            drop(table);
            self.grow(address.shard, 1, now);
            // Another thread may have added this bucket meanwhile, so start again.
            table = self.shards[address.shard].table.lock();
        }
    }

    /// Locks the shards of all addresses, each once. Returns the locked tables and, for each
    /// address, the index of its table.
    fn lock_all(&self, addresses: &[Address]) -> (Vec<MutexGuard<'_, Table>>, Vec<usize>) {
        let mut shards: Vec<usize> = addresses.iter().map(|address| address.shard).collect();
        // Ascending order: two batches that share shards must lock them in the same order to avoid
        // deadlock.
        shards.sort_unstable();
        shards.dedup();
        let tables = addresses
            .iter()
            .map(|address| shards.partition_point(|&shard| shard < address.shard))
            .collect();
        (shards.iter().map(|&shard| self.shards[shard].table.lock()).collect(), tables)
    }
}

impl Store for MemoryStore {
    type Error = Infallible;

    fn keyspace(&self, algorithm: AlgorithmName, prefix: &str) -> Keyspace {
        Keyspace::new(self.key, algorithm, prefix)
    }

    #[inline(always)]
    fn update<S: RemoteStep>(
        &self,
        bucket: Bucket<'_>,
        step: &S,
        now: Timestamp,
        answer: &mut S::Answer,
    ) -> Result<(), Infallible> {
        self.update_at(self.address(bucket), step, now, answer);
        Ok(())
    }

    fn update_all<B: RemoteBatch>(
        &self,
        buckets: &[Bucket<'_>],
        batch: &B,
        now: Timestamp,
        _clock: &impl Clock,
    ) -> Result<B::Answer, Infallible> {
        let addresses: Vec<Address> = buckets.iter().map(|&bucket| self.address(bucket)).collect();
        let mut states = vec![None; buckets.len()];
        let mut writes = vec![Write::Keep; buckets.len()];
        loop {
            writes.fill(Write::Keep);
            let (mut tables, table_of) = self.lock_all(&addresses);
            let now = tables.iter().fold(now, |now, table| table.effective_now(now));
            let mut new_in = vec![0; tables.len()];
            for ((state, address), &table) in states.iter_mut().zip(&addresses).zip(&table_of) {
                *state = tables[table].find(address.tag).map(|index| tables[table].state(index));
                new_in[table] += usize::from(state.is_none());
            }
            let answer = batch.run(&states, now, &mut writes);
            let full = table_of.iter().zip(&addresses).find(|&(&table, _)| {
                // An empty table has no room at all, yet a batch that writes nothing needs none.
                new_in[table] > 0 && !tables[table].has_room_for(new_in[table])
            });
            if let Some((&table, address)) = full
                && writes.iter().any(|&write| write != Write::Keep)
            {
                let more = new_in[table];
                drop(tables);
                self.grow(address.shard, more, now);
                continue;
            }
            for ((&write, address), &table) in writes.iter().zip(&addresses).zip(&table_of) {
                tables[table].write(address.tag, write, self.max_per_shard, now);
            }
            return Ok(answer);
        }
    }

    fn update_each<'a, S: RemoteStep>(
        &self,
        count: usize,
        call: impl Fn(usize) -> (Bucket<'a>, S),
        now: Timestamp,
        mut each: impl FnMut(usize, Result<&S::Answer, StoreError>),
    ) {
        let mut answer = S::Answer::default();
        let mut calls = Vec::with_capacity(CHUNK.min(count));
        for first in (0..count).step_by(CHUNK) {
            if first % (4 * CHUNK) == 0 {
                self.tidy(now);
            }
            // First every slot of the chunk is requested, then each is read: with many buckets
            // most of a call is the wait for memory.
            for index in first..count.min(first + CHUNK) {
                let (bucket, step) = call(index);
                let address = self.address(bucket);
                self.shards[address.shard].fetch(address.tag);
                calls.push((address, step));
            }
            for (index, (address, step)) in (first..).zip(calls.drain(..)) {
                self.update_at(address, &step, now, &mut answer);
                each(index, Ok(&answer));
            }
        }
    }

    fn forget(&self, bucket: Bucket<'_>) -> Result<bool, Infallible> {
        let address = self.address(bucket);
        Ok(self.shards[address.shard].table.lock().forget(address.tag))
    }

    #[cold]
    fn tidy(&self, now: Timestamp) {
        if cfg!(loom) {
            // It does what a new bucket does, which the models cover, and would multiply them.
            return;
        }
        // Relaxed, here and below: which shard is next decides nothing.
        let next = self.next_tidied.load(Ordering::Relaxed);
        let later = (next..next + self.shards.len()).find(|index| {
            let shard = &self.shards[index % self.shards.len()];
            shard.capacity.load(Ordering::Relaxed) > MIN_TIDIED
        });
        let Some(index) = later else { return };
        let shard = &self.shards[index % self.shards.len()];
        let is_done = {
            let mut table = shard.table.lock();
            let now = table.effective_now(now);
            table.tidy(TIDIED, now)
        };
        if is_done {
            self.shrink(shard, now);
        }
        let next = (index + usize::from(is_done)) % self.shards.len();
        self.next_tidied.store(next, Ordering::Relaxed);
    }

    fn raise_lifetimes(
        &self,
        now: Timestamp,
        lifetime: &dyn Fn(State) -> Lifetime,
    ) -> Result<(), Infallible> {
        for shard in &self.shards {
            let mut table = shard.table.lock();
            let now = table.effective_now(now);
            table.raise(now, lifetime);
        }
        Ok(())
    }

    fn stats(&self, now: Timestamp) -> Result<Stats, Infallible> {
        let mut stats = table::Figures::default();
        for shard in &self.shards {
            shard.table.lock().add_to(&mut stats, now);
        }
        Ok(Stats {
            buckets: Some(stats.buckets),
            slots: Some(stats.slots),
            bytes: Some(stats.bytes + size_of_val(&*self.shards) as u64),
            forgotten: Some(stats.forgotten),
            evicted: Some(stats.evicted),
        })
    }
}
