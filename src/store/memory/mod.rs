//! Buckets in the memory of this process.

mod shard;
mod table;

use std::convert::Infallible;

use smallvec::{SmallVec, smallvec};

use crate::clock::Clock;
use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::answer::Answer;
use crate::engine::state::{Lifetime, State};
use crate::engine::time::{Nanos, Now, Timeline, Timestamp};
use crate::hash::HashKey;
use crate::prefetch::DISTANCE;
use crate::store::memory::shard::{Access, Shard};
use crate::store::memory::table::{Table, Tag, free_slots};
use crate::store::{
    Answers, Batch, Bucket, Keyspace, Stats, Store, StoreError, StoreStep, TIDIED_EVERY, Wait,
    Write, of_timeline,
};
use crate::sync::counting::AtomicU64;
use crate::sync::{AtomicUsize, Mutex, Ordering};

/// Enough shards that the pause while one of them grows is short with ten million buckets.
const MAX_SHARDS: usize = 256;
/// The minimum capacity of the shards of a bounded store, so that uneven hashing does not fill one
/// shard long before the others.
const MIN_PER_SHARD: usize = 1024;
/// The number of slots tidied at a time, which takes a few microseconds.
const TIDIED: usize = 1024;
/// Smaller tables are not tidied.
const MIN_TIDIED: usize = 64;

/// A list for a batch, which rarely has more buckets than fit without allocation.
type Few<T> = SmallVec<[T; 4]>;

/// The shard of a bucket, and its tag there.
#[derive(Clone, Copy, Debug)]
struct Address {
    shard: usize,
    tag: Tag,
}

/// How a full bounded store handles a new id while no bucket has expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// New ids share one bucket per limit, so a flood of ids resets no client that is being
    /// limited.
    #[default]
    Share,
    /// New ids are denied.
    Deny,
    /// The bucket nearest to expiry is evicted, and its client has a full bucket again.
    Evict,
}

/// Buckets in the memory of this process, in shards with a lock each.
///
/// A bucket takes 16 bytes and is identified by the 64 bits of a keyed SipHash: 56 within its
/// shard, which the other 8 choose (a bounded store with fewer shards uses fewer bits, and holds few
/// buckets). The key is random for each process, so two ids that share a
/// bucket cannot be constructed; among ten million buckets the chance of any shared pair is below
/// one in 300,000. Full buckets are dropped as others are added; no thread runs.
#[derive(Debug)]
pub struct MemoryStore {
    /// The key of the salts of its keyspaces.
    key: HashKey,
    shards: Box<[Shard]>,
    /// The most buckets that one shard may hold.
    max_per_shard: Option<usize>,
    overflow: Overflow,
    /// The buckets that ids share for lack of room. Locked after any shard.
    shared: Mutex<Table>,
    /// The most of them that one limit has had in a batch.
    most_shared: AtomicU64,
    /// Calls that were decided in a shared bucket.
    shared_calls: AtomicU64,
    /// Calls that were refused for lack of room.
    refused_calls: AtomicU64,
    /// The shard that is tidied next.
    next_tidied: AtomicUsize,
}

impl MemoryStore {
    /// Returns an empty store that grows without bound, or one that keeps at most `max_buckets` (at
    /// least 1).
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
            overflow: Overflow::default(),
            shared: Mutex::new(Table::default()),
            most_shared: AtomicU64::new(1),
            shared_calls: AtomicU64::new(0),
            refused_calls: AtomicU64::new(0),
            next_tidied: AtomicUsize::new(0),
        }
    }

    /// Returns the store with another behavior when it is full.
    #[must_use]
    pub fn with_overflow(self, overflow: Overflow) -> MemoryStore {
        MemoryStore { overflow, ..self }
    }

    /// Makes room for a new bucket beside `more` others, unless one will be evicted. Fails with the
    /// time for which the store has no room.
    fn make_room(&self, table: &mut Table, tag: Tag, more: usize, now: Now) -> Result<(), Nanos> {
        match self.max_per_shard {
            Some(max) if self.overflow != Overflow::Evict => table.make_room(tag, max, more, now),
            _ => Ok(()),
        }
    }

    /// Decides on a new bucket for which there is no room for a time.
    #[cold]
    fn update_full<S: StoreStep>(
        &self,
        bucket: Bucket<'_>,
        step: &S,
        full_for: Nanos,
        now: Now,
    ) -> Answer {
        if self.overflow == Overflow::Deny {
            self.refused_calls.fetch_add(1, Ordering::Relaxed);
            let at = now.on(bucket.timeline);
            return Answer::refused(at.saturating_add(full_for), at);
        }
        self.shared_calls.fetch_add(1, Ordering::Relaxed);
        update_in(&mut self.shared.lock(), shared_tag(bucket, 0), bucket.timeline, step, now)
    }

    /// Decides a batch of which some new buckets have no room before the instants in `full`.
    #[cold]
    fn update_all_full<B: Batch>(
        &self,
        buckets: &[Bucket<'_>],
        locked: &mut Locked<'_>,
        full: &[Option<Timestamp>],
        batch: &B,
        now: Now,
    ) -> Answers {
        let count = full.iter().flatten().count() as u64;
        let mut writes = vec![Write::Keep; buckets.len()];
        let mut states = locked.states();
        if self.overflow == Overflow::Deny {
            self.refused_calls.fetch_add(count, Ordering::Relaxed);
            let answer = batch.apply(&states, full, now, &mut writes);
            locked.write(&writes, full, self.max_per_shard, now);
            return answer;
        }
        self.shared_calls.fetch_add(count, Ordering::Relaxed);
        let mut table = self.shared.lock();
        let now = table.effective_now(now);
        // Ids of one limit within one batch have different shared buckets, as no bucket may be
        // named twice.
        let tags: Vec<Tag> = (0..buckets.len())
            .map(|index| {
                let bucket = buckets[index];
                let same = |&other: &usize| {
                    let other_text = buckets[other].keyspace.text();
                    full[other].is_some() && other_text == bucket.keyspace.text()
                };
                let nth = (0..index).filter(same).count() as u64;
                self.most_shared.fetch_max(nth + 1, Ordering::Relaxed);
                shared_tag(bucket, nth)
            })
            .collect();
        for (index, state) in states.iter_mut().enumerate() {
            if full[index].is_some() {
                *state = table.find(tags[index]).map(|found| table.state(found));
            }
        }
        let answer = batch.apply(&states, &[], now, &mut writes);
        locked.write(&writes, full, self.max_per_shard, now);
        for (index, &write) in writes.iter().enumerate() {
            if full[index].is_some() {
                write_shared(&mut table, tags[index], write, now);
            }
        }
        answer
    }

    #[inline(always)]
    fn address(&self, hash: u64) -> Address {
        // The number of shards is a power of two, so the mask has no gaps. The lowest bits choose
        // the shard and the highest the slot, so the buckets of one shard are spread over its
        // slots.
        Address { shard: hash as usize & (self.shards.len() - 1), tag: Tag::of(hash) }
    }

    #[inline(always)]
    fn shard(&self, address: Address) -> &Shard {
        &self.shards[address.shard]
    }

    /// Makes room in a shard for `more` new buckets.
    #[cold]
    fn grow(&self, index: usize, more: usize, now: Now) {
        self.resize(index, more, now, |table| {
            let is_full = !table.has_room_for(more);
            is_full.then(|| table.wanted(more, table.effective_now(now)))
        });
    }

    /// Sets the capacity of a shard to what `wanted` returns. Allocates and frees without holding the lock.
    fn resize(
        &self,
        index: usize,
        more: usize,
        now: Now,
        wanted: impl FnOnce(&Table) -> Option<usize>,
    ) {
        let shard = &self.shards[index];
        let (slots, wanted) = {
            let table = shard.lock();
            (table.layout(), wanted(&table))
        };
        let Some(wanted) = wanted else { return };
        let fresh = free_slots(wanted);
        let mut table = shard.lock();
        // Another thread may have resized it meanwhile.
        let unused = if table.layout() == slots {
            let now = table.effective_now(now);
            table.rebuild(fresh, more, now)
        } else {
            fresh
        };
        shard.publish(&table);
        drop(table);
        drop(unused);
    }

    /// Runs a step on the bucket at `address`.
    #[inline(always)]
    fn update_at<S: StoreStep>(
        &self,
        bucket: Bucket<'_>,
        address: Address,
        step: &S,
        now: Now,
    ) -> Answer {
        let mut access = self.shard(address).lock();
        let table = &mut *access;
        let Some(index) = table.find(address.tag) else {
            return self.update_new(access, bucket, address, step, now);
        };
        let now = table.effective_on(bucket.timeline, now);
        let entry = table.entry(index);
        let found = entry.state();
        let (allowed, write) = step.apply(Some(found), now);
        match write {
            Write::Keep => {}
            Write::Put(state, lifetime) => entry.replace(state, lifetime),
            Write::Clear => table.remove(index),
        }
        Answer::new(Some(found), now, allowed)
    }

    /// Runs a step on a bucket that is not in the table.
    #[inline(never)]
    fn update_new<'a, S: StoreStep>(
        &'a self,
        mut table: Access<'a>,
        bucket: Bucket<'_>,
        address: Address,
        step: &S,
        now: Now,
    ) -> Answer {
        let mut state = None;
        loop {
            let now = table.effective_now(now);
            if state.is_none()
                && let Err(full_for) = self.make_room(&mut table, address.tag, 0, now)
            {
                drop(table);
                return self.update_full(bucket, step, full_for, now);
            }
            let at = now.on(bucket.timeline);
            let (allowed, write) = step.apply(state, at);
            match (state, write) {
                (None, Write::Put(new, lifetime)) if table.has_room_for(1) => {
                    table.insert(address.tag, new, lifetime, self.max_per_shard, now);
                    return Answer::new(None, at, allowed);
                }
                (None, Write::Put(..)) => {}
                _ => {
                    table.write(address.tag, write, self.max_per_shard, now);
                    return Answer::new(state, at, allowed);
                }
            }
            drop(table);
            self.grow(address.shard, 1, now);
            // Another thread may have added this bucket meanwhile, so start again.
            table = self.shards[address.shard].lock();
            state = table.find(address.tag).map(|index| table.state(index));
        }
    }

    /// Locks the shards of all buckets, each once.
    fn lock_all(&self, addresses: &[Address]) -> Locked<'_> {
        let mut shards: Few<usize> = addresses.iter().map(|address| address.shard).collect();
        // Ascending order: two batches that share shards must lock them in the same order to avoid
        // deadlock.
        shards.sort_unstable();
        shards.dedup();
        let place = |address: &Address| {
            (shards.partition_point(|&shard| shard < address.shard), address.tag)
        };
        let places = addresses.iter().map(place).collect();
        Locked { tables: shards.iter().map(|&shard| self.shards[shard].lock()).collect(), places }
    }
}

/// The locked shards of a batch, and the table and tag of each of its buckets.
struct Locked<'a> {
    tables: Few<Access<'a>>,
    places: Few<(usize, Tag)>,
}

impl Locked<'_> {
    fn states(&self) -> Few<Option<State>> {
        let state = |&(table, tag): &(usize, Tag)| {
            let table = &self.tables[table];
            table.find(tag).map(|index| table.state(index))
        };
        self.places.iter().map(state).collect()
    }

    /// Writes the buckets not in `full`; an empty `full` means that none are. There must be room.
    fn write(
        &mut self,
        writes: &[Write],
        full: &[Option<Timestamp>],
        max: Option<usize>,
        now: Now,
    ) {
        for (index, (&write, &(table, tag))) in writes.iter().zip(&self.places).enumerate() {
            if full.get(index).is_none_or(Option::is_none) {
                self.tables[table].write(tag, write, max, now);
            }
        }
    }
}

impl Store for MemoryStore {
    type Error = Infallible;

    fn keyspace(&self, algorithm: AlgorithmName, prefix: &str) -> Keyspace {
        Keyspace::new(self.key, algorithm, prefix).in_process()
    }

    #[inline(always)]
    fn update<S: StoreStep>(
        &self,
        bucket: Bucket<'_>,
        step: &S,
        now: Now,
        _wait: Wait,
    ) -> Result<Answer, Infallible> {
        Ok(self.update_at(bucket, self.address(bucket.hash()), step, now))
    }

    #[cold]
    fn update_shared<S: StoreStep>(
        &self,
        bucket: Bucket<'_>,
        nth: u64,
        step: &S,
        now: Now,
        _wait: Wait,
    ) -> Result<Option<Answer>, Infallible> {
        let update = || {
            let tag = shared_tag(bucket, nth);
            update_in(&mut self.shared.lock(), tag, bucket.timeline, step, now)
        };
        Ok((nth < self.most_shared.load(Ordering::Relaxed)).then(update))
    }

    fn may_wait(&self) -> bool {
        false
    }

    /// With many buckets most of a call is spent waiting for memory, so their slots are requested
    /// ahead.
    #[inline(always)]
    fn update_each<'a, S: StoreStep>(
        &self,
        count: usize,
        call: impl Fn(usize) -> (Bucket<'a>, S),
        now: Now,
        mut each: impl FnMut(usize, Result<&Answer, StoreError>),
    ) {
        let mut ahead = [Address { shard: 0, tag: Tag::of(0) }; DISTANCE];
        let request = |index: usize| {
            let address = self.address(call(index).0.hash());
            self.shard(address).fetch(address.tag);
            address
        };
        for (index, address) in ahead.iter_mut().enumerate().take(count) {
            *address = request(index);
        }
        for index in 0..count {
            if index % TIDIED_EVERY == 0 {
                self.tidy(|| now);
            }
            let address = ahead[index % DISTANCE];
            if index + DISTANCE < count {
                ahead[index % DISTANCE] = request(index + DISTANCE);
            }
            let (bucket, step) = call(index);
            each(index, Ok(&self.update_at(bucket, address, &step, now)));
        }
    }

    fn update_all<B: Batch>(
        &self,
        buckets: &[Bucket<'_>],
        batch: &B,
        now: Now,
        _clock: &impl Clock,
        _wait: Wait,
    ) -> Result<Answers, Infallible> {
        let addresses: Few<Address> =
            buckets.iter().map(|&bucket| self.address(bucket.hash())).collect();
        let mut writes: Few<Write> = smallvec![Write::Keep; buckets.len()];
        loop {
            writes.fill(Write::Keep);
            let mut locked = self.lock_all(&addresses);
            let now = locked.tables.iter().fold(now, |now, table| table.effective_now(now));
            let mut full = Vec::new();
            let mut new_in: Few<usize> = smallvec![0; locked.tables.len()];
            for (index, &(table, tag)) in locked.places.iter().enumerate() {
                if locked.tables[table].find(tag).is_none() {
                    match self.make_room(&mut locked.tables[table], tag, new_in[table], now) {
                        Ok(()) => new_in[table] += 1,
                        Err(full_for) => {
                            let at = now.on(buckets[index].timeline);
                            full.resize(buckets.len(), None);
                            full[index] = Some(at.saturating_add(full_for));
                        }
                    }
                }
            }
            let lacking = (0..buckets.len()).find(|&index| {
                // An empty table has no room at all, yet a batch that writes nothing needs none.
                let (table, _) = locked.places[index];
                new_in[table] > 0 && !locked.tables[table].has_room_for(new_in[table])
            });
            let answer = if full.is_empty() {
                Ok(batch.apply(&locked.states(), &[], now, &mut writes))
            } else {
                Err(full)
            };
            let needs_room = answer.is_err() || writes.iter().any(|&write| write != Write::Keep);
            if let Some(index) = lacking.filter(|_| needs_room) {
                let more = new_in[locked.places[index].0];
                drop(locked);
                self.grow(addresses[index].shard, more, now);
                continue;
            }
            return Ok(match answer {
                Ok(answer) => {
                    locked.write(&writes, &[], self.max_per_shard, now);
                    answer
                }
                Err(full) => self.update_all_full(buckets, &mut locked, &full, batch, now),
            });
        }
    }

    fn forget(&self, bucket: Bucket<'_>) -> Result<bool, Infallible> {
        let address = self.address(bucket.hash());
        Ok(self.shards[address.shard].lock().forget(address.tag))
    }

    fn clear(&self) -> Result<u64, Infallible> {
        let mut cleared = self.shared.lock().clear();
        for shard in &self.shards {
            let mut table = shard.lock();
            cleared += table.clear();
            shard.publish(&table);
        }
        Ok(cleared as u64)
    }

    #[cold]
    fn tidy(&self, now: impl FnOnce() -> Now) {
        if cfg!(loom) {
            // Skipped: new buckets run the same code, and this would multiply the interleavings.
            return;
        }
        // Relaxed, here and below: which shard is next decides nothing.
        let next = self.next_tidied.load(Ordering::Relaxed);
        let later = (next..next + self.shards.len().min(8)).find(|index| {
            let shard = &self.shards[index % self.shards.len()];
            shard.capacity() > MIN_TIDIED
        });
        let Some(index) = later else {
            return self.next_tidied.store((next + 8) % self.shards.len(), Ordering::Relaxed);
        };
        let index = index % self.shards.len();
        let (shard, now) = (&self.shards[index], now());
        let is_done = {
            let mut table = shard.lock();
            let now = table.effective_now(now);
            table.tidy(TIDIED, now)
        };
        if is_done {
            self.resize(index, 0, now, Table::shrunk);
        }
        let next = (index + usize::from(is_done)) % self.shards.len();
        self.next_tidied.store(next, Ordering::Relaxed);
    }

    fn raise_lifetimes(
        &self,
        now: Now,
        lifetime: &dyn Fn(State) -> Lifetime,
    ) -> Result<(), Infallible> {
        for shard in &self.shards {
            let mut table = shard.lock();
            let now = table.effective_now(now);
            table.raise(now, lifetime);
        }
        Ok(())
    }

    fn stats(&self, now: Now) -> Result<Stats, Infallible> {
        let mut stats = Stats {
            capacity: self.max_per_shard.map(|max| (max * self.shards.len()) as u64),
            bytes: Some(size_of_val(&*self.shards) as u64),
            shared: Some(self.shared_calls.load(Ordering::Relaxed)),
            refused: Some(self.refused_calls.load(Ordering::Relaxed)),
            ..Stats::default()
        };
        for shard in &self.shards {
            shard.lock().add_to(&mut stats, now);
        }
        Ok(stats)
    }
}

/// Returns the tag of the bucket that ids of a keyspace share, the `nth` of them within one batch.
fn shared_tag(bucket: Bucket<'_>, nth: u64) -> Tag {
    Tag::of(bucket.keyspace.hash(&nth.to_le_bytes()) ^ of_timeline(bucket.timeline))
}

/// Runs a step on a shared bucket.
fn update_in<S: StoreStep>(
    table: &mut Table,
    tag: Tag,
    timeline: Timeline,
    step: &S,
    now: Now,
) -> Answer {
    let now = table.effective_now(now);
    let (at, state) = (now.on(timeline), table.find(tag).map(|index| table.state(index)));
    let (allowed, write) = step.apply(state, at);
    write_shared(table, tag, write, now);
    Answer::new(state, at, allowed)
}

/// Writes a shared bucket. There are few, so the table may grow while it is locked.
fn write_shared(table: &mut Table, tag: Tag, write: Write, now: Now) {
    if !table.has_room_for(1) {
        let fresh = free_slots(table.wanted(1, now));
        drop(table.rebuild(fresh, 1, now));
    }
    table.write(tag, write, None, now);
}
