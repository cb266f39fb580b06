//! A small store with two shards, which is correct or has one bug that a model must detect.

use std::collections::BTreeMap;
use std::convert::Infallible;

use loom::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use loom::sync::{Mutex, MutexGuard, RwLock};
use penstock::clock::Clock;
use penstock::engine::algorithm::name::AlgorithmName;
use penstock::engine::answer::Answer;
use penstock::engine::state::{Lifetime, State};
use penstock::engine::time::{Now, Timestamp};
use penstock::store::memory::MemoryStore;
use penstock::store::{Answers, Batch, Bucket, Keyspace, Stats, Store, StoreStep, Wait, Write};

/// The bug of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Releases its lock between reading a state and writing the next.
    ReadsThenWrites,
    /// Accepts a clock reading older than the buckets it has dropped.
    NoFloor,
    /// Locks the shards of a batch in the order of the call.
    LocksInCallOrder,
    /// Releases the lock of one shard of a batch before it takes the next.
    OneLockAtATime,
    /// Copies a growing table, and swaps the copy in after other threads may have written to the
    /// original.
    CopiesThenSwaps,
}

type Key = (String, String);

#[derive(Clone, Default)]
struct Shard {
    buckets: BTreeMap<Key, (State, Lifetime)>,
    floor: Timestamp,
}

pub struct Faulty {
    shards: [Mutex<Shard>; 2],
    fault: Fault,
    /// Prepares keyspaces.
    keyspaces: MemoryStore,
}

impl Faulty {
    pub fn new(fault: Fault) -> Faulty {
        let shards = [Mutex::new(Shard::default()), Mutex::new(Shard::default())];
        Faulty { shards, fault, keyspaces: MemoryStore::new(Some(1)) }
    }

    /// Returns the shard of a bucket. Ids whose last bytes are adjacent, such as `a` and `b`, are in
    /// different shards.
    fn shard_of(bucket: Bucket<'_>) -> usize {
        bucket.id.bytes().last().map_or(0, |byte| usize::from(byte % 2))
    }

    fn lock(&self, index: usize) -> MutexGuard<'_, Shard> {
        self.shards[index].lock().unwrap()
    }

    fn effective_now(&self, shard: &Shard, now: Timestamp) -> Timestamp {
        if self.fault == Fault::NoFloor { now } else { now.max(shard.floor) }
    }
}

fn key(bucket: Bucket<'_>) -> Key {
    (bucket.keyspace.text().to_owned(), bucket.id.to_owned())
}

impl Shard {
    fn state(&self, key: &Key) -> Option<State> {
        self.buckets.get(key).map(|&(state, _)| state)
    }

    /// Stores a state; for a new bucket, drops expired ones.
    fn write(&mut self, key: Key, write: Write, now: Timestamp) {
        let Some((state, lifetime)) = write.state() else { return };
        if self.buckets.insert(key, (state, lifetime)).is_none() {
            let ends = |&(state, lifetime): &(State, Lifetime)| lifetime.end_of(state);
            let ended = self.buckets.values().map(ends).filter(|&end| end <= now).max();
            self.floor = self.floor.max(ended.unwrap_or(Timestamp::ORIGIN));
            self.buckets.retain(|_, kept| ends(kept) > now);
        }
    }
}

impl Store for Faulty {
    type Error = Infallible;

    fn keyspace(&self, algorithm: AlgorithmName, prefix: &str) -> Keyspace {
        self.keyspaces.keyspace(algorithm, prefix)
    }

    fn update<S: StoreStep>(
        &self,
        bucket: Bucket<'_>,
        step: &S,
        now: Now,
        _wait: Wait,
    ) -> Result<Answer, Infallible> {
        let (index, key) = (Faulty::shard_of(bucket), key(bucket));
        let mut shard = self.lock(index);
        let now = self.effective_now(&shard, now.steady);
        let state = shard.state(&key);
        let (allowed, write) = step.apply(state, now);
        match self.fault {
            Fault::ReadsThenWrites => {
                drop(shard);
                shard = self.lock(index);
            }
            Fault::CopiesThenSwaps if state.is_none() => {
                let copy = shard.clone();
                drop(shard);
                shard = self.lock(index);
                *shard = copy;
            }
            _ => {}
        }
        shard.write(key, write, now);
        Ok(Answer::new(state, now, allowed))
    }

    fn update_all<B: Batch>(
        &self,
        buckets: &[Bucket<'_>],
        batch: &B,
        now: Now,
        _clock: &impl Clock,
        _wait: Wait,
    ) -> Result<Answers, Infallible> {
        let mut order: Vec<usize> =
            buckets.iter().map(|&bucket| Faulty::shard_of(bucket)).collect();
        if self.fault != Fault::LocksInCallOrder {
            order.sort_unstable();
        }
        order.dedup();
        let mut locked: [Option<MutexGuard<'_, Shard>>; 2] = [None, None];
        let mut states = vec![None; buckets.len()];
        let now = now.steady;
        let mut decided_at = now;
        for index in order {
            let shard = self.lock(index);
            decided_at = decided_at.max(self.effective_now(&shard, now));
            for (state, &bucket) in states.iter_mut().zip(buckets) {
                if Faulty::shard_of(bucket) == index {
                    *state = shard.state(&key(bucket));
                }
            }
            if self.fault != Fault::OneLockAtATime {
                locked[index] = Some(shard);
            }
        }
        let mut writes = vec![Write::Keep; buckets.len()];
        let answers = batch.apply(&states, &[], decided_at.into(), &mut writes);
        for (&bucket, write) in buckets.iter().zip(writes) {
            let index = Faulty::shard_of(bucket);
            match &mut locked[index] {
                Some(shard) => shard.write(key(bucket), write, decided_at),
                None => self.lock(index).write(key(bucket), write, decided_at),
            }
        }
        Ok(answers)
    }

    fn forget(&self, bucket: Bucket<'_>) -> Result<bool, Infallible> {
        Ok(self.lock(Faulty::shard_of(bucket)).buckets.remove(&key(bucket)).is_some())
    }

    fn clear(&self) -> Result<u64, Infallible> {
        let take = |shard| std::mem::take(&mut self.lock(shard).buckets).len() as u64;
        Ok((0..2).map(take).sum())
    }

    fn stats(&self, _now: Now) -> Result<Stats, Infallible> {
        let buckets = (0..2).map(|shard| self.lock(shard).buckets.len() as u64).sum();
        Ok(Stats { buckets: Some(buckets), ..Stats::default() })
    }
}

/// A clock that reads and writes in separate steps when it advances.
pub struct TornClock(AtomicI64);

impl TornClock {
    pub fn new() -> TornClock {
        TornClock(AtomicI64::new(0))
    }

    pub fn advance(&self, by: i64) {
        let now = self.0.load(Ordering::SeqCst);
        self.0.store(now + by, Ordering::SeqCst);
    }
}

impl Clock for TornClock {
    fn now(&self) -> Timestamp {
        Timestamp::clamped(self.0.load(Ordering::SeqCst))
    }
}

/// A limit whose generation is incremented before the limit is replaced.
pub struct EarlyGeneration {
    number: AtomicU64,
    limit: RwLock<u64>,
}

impl EarlyGeneration {
    pub fn new() -> EarlyGeneration {
        EarlyGeneration { number: AtomicU64::new(0), limit: RwLock::new(0) }
    }

    pub fn replace(&self, limit: u64) {
        self.number.fetch_add(1, Ordering::Release);
        *self.limit.write().unwrap() = limit;
    }

    pub fn generation(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    pub fn snapshot(&self) -> u64 {
        *self.limit.read().unwrap()
    }
}
