//! The list of stores under test, and helpers to test them.
//!
//! To add a store, add a function here and a line in [`on_every_store`]. Every test that uses the list
//! then runs on it, in a module with the store's name.

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
use penstock::store::{Bucket, Keyspace, Store, Wait};

pub use rerun::rerun;
pub use scripted::Scripted;
pub use toy::{Seen, Toy, Toys};
pub use without_floor::without_floor;

/// Generates a test for each function and each store. The function receives a constructor of an empty
/// store.
macro_rules! on_every_store {
    ($($test:ident),+ $(,)?) => {
        crate::stores::on_forgetting_stores!($($test),+);
        #[cfg(feature = "redis")]
        crate::stores::on_every_store!(@ redis: $($test),+);
    };
    (@ $store:ident: $($test:ident),+) => {
        mod $store {
            $(
                #[test]
                fn $test() {
                    super::$test(crate::stores::$store);
                }
            )+
        }
    };
}
pub(crate) use on_every_store;

/// Like [`on_every_store`], for the stores that forget buckets when new ones are added. A server instead
/// forgets buckets by its own clock.
macro_rules! on_forgetting_stores {
    ($($test:ident),+ $(,)?) => {
        crate::stores::on_every_store!(@ rerun: $($test),+);
        crate::stores::on_every_store!(@ shared: $($test),+);
        crate::stores::on_locking_stores!($($test),+);
    };
}
pub(crate) use on_forgetting_stores;

/// Like [`on_every_store`], for the stores that lock all buckets of a batch.
macro_rules! on_locking_stores {
    ($($test:ident),+ $(,)?) => {
        crate::stores::on_every_store!(@ memory: $($test),+);
        crate::stores::on_every_store!(@ one_shard: $($test),+);
        crate::stores::on_every_store!(@ scripted: $($test),+);
    };
}
pub(crate) use on_locking_stores;

/// Creates an unbounded memory store with many shards.
pub fn memory() -> MemoryStore {
    MemoryStore::new(None)
}

/// Creates a memory store with one shard, which has room for all buckets of the tests.
pub fn one_shard() -> MemoryStore {
    MemoryStore::new(Some(ONE_SHARD))
}

/// The largest capacity of a memory store with one shard. No test of the list has more live buckets.
pub const ONE_SHARD: usize = 2047;

/// Creates a store in a new file that is named after the test.
pub fn shared() -> SharedStore<MappedFile> {
    let path = crate::shared::fresh_path("store");
    let memory = MappedFile::open(&path, Some(4096)).expect("a new table");
    SharedStore::in_file(memory, Overflow::Deny)
}

/// Creates a store on the shared server of the tests.
#[cfg(feature = "redis")]
pub fn redis() -> redis::Redis {
    redis::Redis::new(redis::server())
}

/// Creates a store that receives steps only as messages.
pub fn scripted() -> Scripted {
    Scripted::new()
}

/// Returns the instant `nanos` after the clock's origin.
pub fn at(nanos: i64) -> Timestamp {
    Timestamp::new(nanos).expect("an instant not before the origin")
}

/// Creates the keyspace for tests that need only one. Its states have the lifetime of a tally.
pub fn keyspace<S: Store>(store: &S) -> Keyspace {
    store.keyspace(AlgorithmName::LeakyBucket, "a")
}

/// Creates the same for states that expire at their instant.
pub fn keyspace_of_instants<S: Store>(store: &S) -> Keyspace {
    store.keyspace(AlgorithmName::TokenBucket, "a")
}

/// Makes one call with a toy, on a store that does not fail.
pub fn play<S: Store>(store: &S, keyspace: &Keyspace, id: &str, toy: Toy, now: i64) -> Seen {
    let outcome = store.update(Bucket::new(keyspace, id), &toy, at(now).into(), Wait::Allowed);
    outcome.map_err(Into::into).expect("the store answers").into()
}

/// Makes one batch call with several toys, on a store that does not fail.
pub fn play_all<S: Store>(
    store: &S,
    keyspace: &Keyspace,
    calls: &[(&str, Toy)],
    now: i64,
) -> Vec<Seen> {
    let buckets: Vec<_> = calls.iter().map(|&(id, _)| Bucket::new(keyspace, id)).collect();
    let toys = Toys(calls.iter().map(|&(_, toy)| toy).collect());
    let clock = ManualClock::new(at(now));
    let outcome = store.update_all(&buckets, &toys, at(now).into(), &clock, Wait::Allowed);
    let answers = outcome.map_err(Into::into).expect("the store answers");
    answers.into_iter().map(Seen::from).collect()
}

/// Returns the number of live buckets at `now`.
pub fn count<S: Store>(store: &S, now: i64) -> u64 {
    let stats = store.stats(at(now).into()).map_err(Into::into).expect("stats");
    stats.buckets.expect("a store that counts its buckets")
}
