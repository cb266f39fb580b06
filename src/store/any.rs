//! The store that a URL selects, behind one type.

use crate::clock::Clock;
use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::state::{Lifetime, State};
use crate::engine::time::Timestamp;
use crate::store::memory::MemoryStore;
use crate::store::remote::{RemoteBatch, RemoteStep};
use crate::store::url::StoreUrl;
use crate::store::{Bucket, Keyspace, Stats, Store, StoreError};

/// Any store, as a limiter whose store is chosen at run time holds it.
///
/// The memory store is inlined into every call; other stores belong in functions that are not.
#[derive(Debug)]
pub enum AnyStore {
    /// This process's memory.
    Memory(MemoryStore),
}

impl AnyStore {
    /// Whether other processes count in the same buckets.
    pub fn is_shared(&self) -> bool {
        match self {
            AnyStore::Memory(_) => false,
        }
    }

    /// Whether a call may wait for a lock or a network.
    pub fn may_wait(&self) -> bool {
        match self {
            AnyStore::Memory(_) => false,
        }
    }
}

impl Store for AnyStore {
    type Error = StoreError;

    fn keyspace(&self, algorithm: AlgorithmName, prefix: &str) -> Keyspace {
        match self {
            AnyStore::Memory(store) => store.keyspace(algorithm, prefix),
        }
    }

    #[inline(always)]
    fn update<S: RemoteStep>(
        &self,
        bucket: Bucket<'_>,
        step: &S,
        now: Timestamp,
        answer: &mut S::Answer,
    ) -> Result<(), StoreError> {
        match self {
            AnyStore::Memory(store) => Ok(store.update(bucket, step, now, answer)?),
        }
    }

    #[inline(always)]
    fn try_update<S: RemoteStep>(
        &self,
        bucket: Bucket<'_>,
        step: &S,
        now: Timestamp,
        answer: &mut S::Answer,
    ) -> Result<bool, StoreError> {
        match self {
            AnyStore::Memory(store) => Ok(store.try_update(bucket, step, now, answer)?),
        }
    }

    fn update_all<B: RemoteBatch>(
        &self,
        buckets: &[Bucket<'_>],
        batch: &B,
        now: Timestamp,
        clock: &impl Clock,
    ) -> Result<B::Answer, StoreError> {
        match self {
            AnyStore::Memory(store) => Ok(store.update_all(buckets, batch, now, clock)?),
        }
    }

    #[inline(always)]
    fn update_each<'a, S: RemoteStep>(
        &self,
        count: usize,
        call: impl Fn(usize) -> (Bucket<'a>, S),
        now: Timestamp,
        each: impl FnMut(usize, Result<&S::Answer, StoreError>),
    ) {
        match self {
            AnyStore::Memory(store) => store.update_each(count, call, now, each),
        }
    }

    fn forget(&self, bucket: Bucket<'_>) -> Result<bool, StoreError> {
        match self {
            AnyStore::Memory(store) => Ok(store.forget(bucket)?),
        }
    }

    fn stats(&self, now: Timestamp) -> Result<Stats, StoreError> {
        match self {
            AnyStore::Memory(store) => Ok(store.stats(now)?),
        }
    }

    #[inline]
    fn tidy(&self, now: Timestamp) {
        match self {
            AnyStore::Memory(store) => store.tidy(now),
        }
    }

    fn raise_lifetimes(
        &self,
        now: Timestamp,
        lifetime: &dyn Fn(State) -> Lifetime,
    ) -> Result<(), StoreError> {
        match self {
            AnyStore::Memory(store) => Ok(store.raise_lifetimes(now, lifetime)?),
        }
    }

    fn close(&self) {
        match self {
            AnyStore::Memory(store) => store.close(),
        }
    }
}

/// The clock that a store's decisions are made by.
#[derive(Debug)]
pub enum StoreClock<C> {
    /// The caller's.
    Given(C),
}

impl<C: Clock> Clock for StoreClock<C> {
    #[inline(always)]
    fn now(&self) -> Timestamp {
        match self {
            StoreClock::Given(clock) => clock.now(),
        }
    }
}

/// A store that is ready for use, and the clock of its decisions.
#[derive(Debug)]
pub struct Opened<C> {
    /// The store.
    pub store: AnyStore,
    /// The clock.
    pub clock: StoreClock<C>,
}

/// Opens the store at `url`. `clock` decides unless the store has a clock of its own.
pub fn open<C>(url: &StoreUrl, clock: C) -> Opened<C> {
    match *url {
        StoreUrl::Memory { max_buckets, overflow } => Opened {
            store: AnyStore::Memory(MemoryStore::new(max_buckets).with_overflow(overflow)),
            clock: StoreClock::Given(clock),
        },
    }
}
