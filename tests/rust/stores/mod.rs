//! The list of stores under test, and what they are tested with.
//!
//! A store joins the list with a function here and a line in [`on_every_store`]; then every test
//! that names the list runs over it, under its name.

#[cfg(feature = "redis")]
pub mod redis;
mod rerun;
mod scripted;
mod toy;
mod without_floor;
pub mod wrapped;

use penstock::clock::ManualClock;
use penstock::engine::algorithm::name::AlgorithmName;
use penstock::engine::time::Timestamp;
use penstock::store::memory::MemoryStore;
use penstock::store::memory::Overflow;
use penstock::store::shared::{MappedFile, SharedStore};
use penstock::store::{Bucket, Keyspace, Store};

pub use rerun::Rerun;
pub use scripted::Scripted;
pub use toy::{Seen, Toy, Toys};
pub use without_floor::without_floor;

/// Makes a test of each function named, for each store of the list: the function is handed what
/// makes an empty store.
macro_rules! on_every_store {
    ($($promise:ident),+ $(,)?) => {
        crate::stores::on_forgetting_stores!($($promise),+);
        #[cfg(feature = "redis")]
        crate::stores::on_every_store!(@ redis: $($promise),+);
    };
    (@ $store:ident: $($promise:ident),+) => {
        mod $store {
            $(
                #[test]
                fn $promise() {
                    super::$promise(crate::stores::$store);
                }
            )+
        }
    };
}
pub(crate) use on_every_store;

/// As [`on_every_store`], for the stores that forget a bucket when another one arrives. A server
/// forgets by itself, by its own clock.
macro_rules! on_forgetting_stores {
    ($($promise:ident),+ $(,)?) => {
        crate::stores::on_every_store!(@ rerun: $($promise),+);
        crate::stores::on_every_store!(@ shared: $($promise),+);
        crate::stores::on_locking_stores!($($promise),+);
    };
}
pub(crate) use on_forgetting_stores;

/// As [`on_every_store`], for the stores that lock all buckets of a batch.
macro_rules! on_locking_stores {
    ($($promise:ident),+ $(,)?) => {
        crate::stores::on_every_store!(@ memory: $($promise),+);
        crate::stores::on_every_store!(@ one_shard: $($promise),+);
        crate::stores::on_every_store!(@ scripted: $($promise),+);
    };
}
pub(crate) use on_locking_stores;

/// The memory store as it comes: unbounded, in many shards.
pub fn memory() -> MemoryStore {
    MemoryStore::new(None)
}

/// The memory store in one shard, where every bucket meets every other. It has room for all that
/// the tests put.
pub fn one_shard() -> MemoryStore {
    MemoryStore::new(Some(ONE_SHARD))
}

/// The most buckets that a memory store keeps in one shard; no test of the list puts more that live
/// at one time.
pub const ONE_SHARD: usize = 2047;

/// A store that runs each step over and over.
pub fn rerun() -> Rerun {
    Rerun::new()
}

/// A store in a file of its own, named after the test.
pub fn shared() -> SharedStore<MappedFile> {
    let path = crate::shared::fresh_path("store");
    let memory = MappedFile::open(&path, Some(4096)).expect("a new table");
    SharedStore::in_file(memory, Overflow::Deny)
}

/// A store on the tests' server.
#[cfg(feature = "redis")]
pub fn redis() -> redis::Redis {
    redis::Redis::new(redis::server())
}

/// A store that knows steps as numbers only.
pub fn scripted() -> Scripted {
    Scripted::new()
}

/// A number of nanoseconds since the clock's origin.
pub fn at(nanos: i64) -> Timestamp {
    Timestamp::new(nanos).expect("an instant of a test is not before the origin")
}

/// The keyspace of the tests that need only one.
pub fn keyspace<S: Store>(store: &S) -> Keyspace {
    store.keyspace(AlgorithmName::TokenBucket, "a")
}

/// One call with a toy, on a store that does not fail.
pub fn play<S: Store>(store: &S, keyspace: &Keyspace, id: &str, toy: Toy, now: i64) -> Seen {
    let mut seen = Seen::default();
    let outcome = store.update(Bucket { keyspace, id }, &toy, at(now), &mut seen);
    outcome.map_err(Into::into).expect("the store answers");
    seen
}

/// One call with several toys, on a store that does not fail.
pub fn play_all<S: Store>(
    store: &S,
    keyspace: &Keyspace,
    calls: &[(&str, Toy)],
    now: i64,
) -> Vec<Seen> {
    let buckets: Vec<_> = calls.iter().map(|&(id, _)| Bucket { keyspace, id }).collect();
    let toys = Toys(calls.iter().map(|&(_, toy)| toy).collect());
    let clock = ManualClock::new(at(now));
    let outcome = store.update_all(&buckets, &toys, at(now), &clock);
    outcome.map_err(Into::into).expect("the store answers")
}

/// The number of buckets that the store counts at `now`.
pub fn count<S: Store>(store: &S, now: i64) -> u64 {
    let stats = store.stats(at(now)).map_err(Into::into).expect("stats");
    stats.buckets.expect("a store of the tests counts its buckets")
}
