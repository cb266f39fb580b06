//! A small store with two shards that is correct, or has one bug that a model must detect.

use std::collections::BTreeMap;
use std::convert::Infallible;

use loom::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use loom::sync::{Mutex, MutexGuard, RwLock};
use penstock::clock::Clock;
use penstock::engine::state::{Lifetime, State};
use penstock::engine::time::Timestamp;
use penstock::store::{Batch, Bucket, Stats, Step, Store, Write};

/// The bug of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Releases its lock between reading a state and writing the next.
    ReadsThenWrites,
    /// Accepts a clock reading older than the buckets it dropped.
    NoFloor,
    /// A batch locks shards in the order of the buckets in the call.
    LocksAsNamed,
    /// A batch releases one shard's lock before it takes the next.
    OneAfterAnother,
    /// A growing table is copied and swapped in after other threads may have written to the old one.
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
}

impl Faulty {
    pub fn new(fault: Fault) -> Faulty {
        Faulty { shards: [Mutex::new(Shard::default()), Mutex::new(Shard::default())], fault }
    }

    /// `a` and `b` are in different shards, and so are all other neighbors.
    fn place(bucket: Bucket<'_, String>) -> usize {
        bucket.id.bytes().last().map_or(0, |byte| usize::from(byte % 2))
    }

    fn lock(&self, place: usize) -> MutexGuard<'_, Shard> {
        self.shards[place].lock().unwrap()
    }

    fn effective_now(&self, shard: &Shard, now: Timestamp) -> Timestamp {
        if self.fault == Fault::NoFloor { now } else { now.max(shard.floor) }
    }
}

fn key(bucket: Bucket<'_, String>) -> Key {
    (bucket.space.clone(), bucket.id.to_owned())
}

impl Shard {
    fn state(&self, key: &Key) -> Option<State> {
        self.buckets.get(key).map(|&(state, _)| state)
    }

    /// Stores a state; for a new bucket, drops expired ones.
    fn write(&mut self, key: Key, write: Write, now: Timestamp) {
        let Write::Put(state, lifetime) = write else { return };
        if self.buckets.insert(key, (state, lifetime)).is_none() {
            let ends = |&(state, lifetime): &(State, Lifetime)| lifetime.end_of(state);
            let ended = self.buckets.values().map(ends).filter(|&end| end <= now).max();
            self.floor = self.floor.max(ended.unwrap_or(Timestamp::ORIGIN));
            self.buckets.retain(|_, kept| ends(kept) > now);
        }
    }
}

impl Store for Faulty {
    type Space = String;
    type Error = Infallible;

    fn space(&self, algorithm: &str, prefix: &str) -> String {
        format!("{algorithm} {prefix}")
    }

    fn update<S: Step>(
        &self,
        bucket: Bucket<'_, String>,
        step: &S,
        now: Timestamp,
        answer: &mut S::Answer,
    ) -> Result<(), Infallible> {
        let (place, key) = (Faulty::place(bucket), key(bucket));
        let mut shard = self.lock(place);
        let now = self.effective_now(&shard, now);
        let state = shard.state(&key);
        let write = step.run(state, now, answer);
        match self.fault {
            Fault::ReadsThenWrites => {
                drop(shard);
                shard = self.lock(place);
            }
            Fault::CopiesThenSwaps if state.is_none() => {
                let copy = shard.clone();
                drop(shard);
                shard = self.lock(place);
                *shard = copy;
            }
            _ => {}
        }
        shard.write(key, write, now);
        Ok(())
    }

    fn update_all<B: Batch>(
        &self,
        buckets: &[Bucket<'_, String>],
        batch: &B,
        now: Timestamp,
    ) -> Result<B::Answer, Infallible> {
        let mut order: Vec<usize> = buckets.iter().map(|&bucket| Faulty::place(bucket)).collect();
        if self.fault != Fault::LocksAsNamed {
            order.sort_unstable();
        }
        order.dedup();
        let mut locked: [Option<MutexGuard<'_, Shard>>; 2] = [None, None];
        let mut states = vec![None; buckets.len()];
        let mut effective_now = now;
        for place in order {
            let shard = self.lock(place);
            effective_now = effective_now.max(self.effective_now(&shard, now));
            for (state, &bucket) in states.iter_mut().zip(buckets) {
                if Faulty::place(bucket) == place {
                    *state = shard.state(&key(bucket));
                }
            }
            if self.fault != Fault::OneAfterAnother {
                locked[place] = Some(shard);
            }
        }
        let mut writes = vec![Write::Keep; buckets.len()];
        let answer = batch.run(&states, effective_now, &mut writes);
        for (&bucket, write) in buckets.iter().zip(writes) {
            let place = Faulty::place(bucket);
            match &mut locked[place] {
                Some(shard) => shard.write(key(bucket), write, effective_now),
                None => self.lock(place).write(key(bucket), write, effective_now),
            }
        }
        Ok(answer)
    }

    fn forget(&self, bucket: Bucket<'_, String>) -> Result<bool, Infallible> {
        Ok(self.lock(Faulty::place(bucket)).buckets.remove(&key(bucket)).is_some())
    }

    fn stats(&self) -> Result<Stats, Infallible> {
        let buckets = (0..2).map(|place| self.lock(place).buckets.len() as u64).sum();
        Ok(Stats { buckets, ..Stats::default() })
    }
}

/// A clock that advances by a separate read and write.
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

/// A generation that is incremented before the replacement.
pub struct ToldTooSoon {
    number: AtomicU64,
    limit: RwLock<u64>,
}

impl ToldTooSoon {
    pub fn new() -> ToldTooSoon {
        ToldTooSoon { number: AtomicU64::new(0), limit: RwLock::new(0) }
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
