//! Buckets in the memory of this process.

mod table;

use std::convert::Infallible;
use std::fmt;
use std::hash::Hasher;
use std::ptr::null_mut;

use siphasher::sip128::SipHasher13;

use crate::engine::time::Timestamp;
use crate::prefetch::prefetch;
use crate::store::memory::table::{Slots, Table, Tag, home_slot};
use crate::store::{Batch, Bucket, Stats, Step, Store, Write};
use crate::sync::{AtomicPtr, AtomicUsize, Mutex, MutexGuard, Ordering};

/// Enough that the pause while one shard grows stays short at ten million buckets.
const MAX_SHARDS: usize = 256;
/// A bounded store gives each shard room for at least so many, so that chance fills none long
/// before the others.
const MIN_PER_SHARD: usize = 1024;

/// The key of a keyed hash, which is never shown.
#[derive(Clone, Copy)]
pub struct HashKey(u64, u64);

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(..)")
    }
}

/// A shard on cache lines of its own, so that two threads at two shards do not disturb each other.
#[repr(align(64))]
#[derive(Debug)]
struct Shard {
    table: Mutex<Table>,
    /// Where the slots stand and how many they are: for fetching ahead only, so it may be out of date.
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

    /// Notes where the slots stand by now.
    fn note(&self, table: &Table) {
        let (slots, capacity) = table.layout();
        // Relaxed, here and in `fetch`: a pair of which one is old gives the address of some other line, or of none.
        self.slots.store(slots.cast_mut(), Ordering::Relaxed);
        self.capacity.store(capacity, Ordering::Relaxed);
    }

    /// Has the slot fetched at which the search for `tag` begins.
    #[inline(always)]
    fn fetch(&self, tag: Tag) {
        let place = home_slot(tag, self.capacity.load(Ordering::Relaxed));
        prefetch(self.slots.load(Ordering::Relaxed).wrapping_add(place));
    }
}

/// Where a bucket is kept: its shard, and its tag there.
#[derive(Clone, Copy, Debug)]
struct Address {
    shard: usize,
    tag: Tag,
}

/// Buckets in the memory of this process, in shards with a lock each.
///
/// A bucket is known by a keyed 128-bit hash with a random key for each store, so nobody can aim
/// two ids at one bucket, and takes 16 bytes. Worthless buckets are dropped as others come; no
/// thread runs.
#[derive(Debug)]
pub struct MemoryStore {
    key: HashKey,
    shards: Box<[Shard]>,
    /// Buckets that one shard may hold.
    max_per_shard: Option<usize>,
}

impl MemoryStore {
    /// Makes an empty store that grows as it must, or one that keeps at most `max_buckets` (at
    /// least 1) buckets and then evicts the bucket nearest to worthless.
    pub fn new(max_buckets: Option<usize>) -> MemoryStore {
        let shards = match max_buckets {
            None => MAX_SHARDS,
            Some(most) => {
                (most / MIN_PER_SHARD).clamp(1, MAX_SHARDS).next_power_of_two().min(MAX_SHARDS)
            }
        };
        MemoryStore {
            key: random_key(),
            shards: (0..shards).map(|_| Shard::new()).collect(),
            max_per_shard: max_buckets.map(|most| (most / shards).max(1)),
        }
    }

    #[inline(always)]
    fn address(&self, bucket: Bucket<'_, HashKey>) -> Address {
        let hash = hash(*bucket.space, bucket.id.as_bytes());
        // One half says which shard, the other which slot: a power of two of shards, so the mask is
        // whole.
        Address { shard: hash.0 as usize & (self.shards.len() - 1), tag: Tag::of(hash.1) }
    }

    /// Makes room in a shard for so many new buckets. Allocates and frees while no lock is held.
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
                self.shards[shard].note(&table);
                old
            }
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
        let Some(place) = table.find(address.tag) else {
            return self.update_new(table, address, step, now, answer);
        };
        let write = step.run(Some(table.state(place)), table.effective_now(now), answer);
        if let Write::Put(state, lifetime) = write {
            table.replace(place, state, lifetime);
        }
    }

    /// Hands a bucket that is not here to `step`.
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
            let state = table.find(address.tag).map(|place| table.state(place));
            let now = table.effective_now(now);
            let write = step.run(state, now, answer);
            let is_new = state.is_none() && write != Write::Keep;
            if !is_new || table.has_room_for(1) {
                return table.write(address.tag, write, self.max_per_shard, now);
            }
            drop(table);
            self.grow(address.shard, 1, now);
            // Others may have been here meanwhile, so everything is asked anew.
            table = self.shards[address.shard].table.lock();
        }
    }

    /// Locks the shards of all addresses, each once; gives the locked tables and each address's
    /// place among them.
    fn lock_all(&self, addresses: &[Address]) -> (Vec<MutexGuard<'_, Table>>, Vec<usize>) {
        let mut shards: Vec<usize> = addresses.iter().map(|address| address.shard).collect();
        // Ascending: two batches that share shards must meet them in the same order, or each could
        // wait for ever.
        shards.sort_unstable();
        shards.dedup();
        let places = addresses
            .iter()
            .map(|address| shards.partition_point(|&shard| shard < address.shard))
            .collect();
        (shards.iter().map(|&shard| self.shards[shard].table.lock()).collect(), places)
    }
}

impl Store for MemoryStore {
    type Space = HashKey;
    type Error = Infallible;

    fn space(&self, algorithm: &str, prefix: &str) -> HashKey {
        // A key of its own for each limit and algorithm: a call then hashes nothing but the id. The
        // length goes first, so that no algorithm and prefix can be cut in two ways.
        let mut scope = (algorithm.len() as u64).to_le_bytes().to_vec();
        scope.extend_from_slice(algorithm.as_bytes());
        scope.extend_from_slice(prefix.as_bytes());
        let (low, high) = hash(self.key, &scope);
        HashKey(low, high)
    }

    #[inline(always)]
    fn update<S: Step>(
        &self,
        bucket: Bucket<'_, HashKey>,
        step: &S,
        now: Timestamp,
        answer: &mut S::Answer,
    ) -> Result<(), Infallible> {
        self.update_at(self.address(bucket), step, now, answer);
        Ok(())
    }

    fn update_all<B: Batch>(
        &self,
        buckets: &[Bucket<'_, HashKey>],
        batch: &B,
        now: Timestamp,
    ) -> Result<B::Answer, Infallible> {
        let addresses: Vec<Address> = buckets.iter().map(|&bucket| self.address(bucket)).collect();
        let mut states = vec![None; buckets.len()];
        let mut writes = vec![Write::Keep; buckets.len()];
        loop {
            writes.fill(Write::Keep);
            let (mut tables, places) = self.lock_all(&addresses);
            let now = tables.iter().fold(now, |now, table| table.effective_now(now));
            let mut new_in = vec![0; tables.len()];
            for ((state, address), &place) in states.iter_mut().zip(&addresses).zip(&places) {
                let table = &tables[place];
                *state = table.find(address.tag).map(|found| table.state(found));
                new_in[place] += usize::from(state.is_none());
            }
            let answer = batch.run(&states, now, &mut writes);
            let full = places.iter().zip(&addresses).find(|&(&place, _)| {
                // An empty table has no room at all, yet needs none for a batch that writes
                // nothing.
                new_in[place] > 0 && !tables[place].has_room_for(new_in[place])
            });
            if let Some((&place, address)) = full
                && writes.iter().any(|&write| write != Write::Keep)
            {
                let more = new_in[place];
                drop(tables);
                self.grow(address.shard, more, now);
                continue;
            }
            for ((&write, address), &place) in writes.iter().zip(&addresses).zip(&places) {
                tables[place].write(address.tag, write, self.max_per_shard, now);
            }
            return Ok(answer);
        }
    }

    fn update_each<S: Step>(
        &self,
        calls: &[(Bucket<'_, HashKey>, S)],
        now: Timestamp,
        mut told: impl FnMut(usize, &S::Answer),
    ) -> Result<(), Infallible> {
        // First all are asked for, then each is read: with many buckets the wait for memory is most of a call.
        let mut addresses = Vec::with_capacity(calls.len());
        for &(bucket, _) in calls {
            let address = self.address(bucket);
            self.shards[address.shard].fetch(address.tag);
            addresses.push(address);
        }
        let mut answer = S::Answer::default();
        for (place, (&address, (_, step))) in addresses.iter().zip(calls).enumerate() {
            self.update_at(address, step, now, &mut answer);
            told(place, &answer);
        }
        Ok(())
    }

    fn forget(&self, bucket: Bucket<'_, HashKey>) -> Result<bool, Infallible> {
        let address = self.address(bucket);
        Ok(self.shards[address.shard].table.lock().forget(address.tag))
    }

    fn stats(&self) -> Result<Stats, Infallible> {
        let mut stats = Stats::default();
        for shard in &self.shards {
            shard.table.lock().add_to(&mut stats);
        }
        stats.bytes += size_of_val(&*self.shards) as u64;
        Ok(stats)
    }
}

/// SipHash-1-3 with 128 bits out: a keyed function whose collisions cannot be found without the
/// key.
#[inline(always)]
fn hash(key: HashKey, bytes: &[u8]) -> (u64, u64) {
    let hash = SipHasher13::new_with_keys(key.0, key.1).hash(bytes);
    (hash.h1, hash.h2)
}

/// A key that nobody can guess.
fn random_key() -> HashKey {
    if cfg!(loom) {
        // A model is run a thousand times, and has to meet the same shards each time.
        return HashKey(0, 0);
    }
    // The standard library seeds this from the operating system's randomness, and cannot fail at
    // it.
    use std::hash::{BuildHasher, RandomState};
    let word = || RandomState::new().build_hasher().finish();
    HashKey(word(), word())
}
