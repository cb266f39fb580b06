//! The list of stores under test, and what they are tested with.
//!
//! A store joins the list with a function here and a line in [`on_every_store`]; then every test
//! that names the list runs over it, under its name.

mod rerun;
mod scripted;
mod toy;
mod without_floor;

use penstock::engine::time::Timestamp;
use penstock::store::memory::MemoryStore;
use penstock::store::{Bucket, Store};

pub use rerun::Rerun;
pub use scripted::Scripted;
pub use toy::{Seen, Toy, Toys};
pub use without_floor::WithoutFloor;

/// Makes a test of each function named, for each store of the list: the function is handed what
/// makes an empty store.
macro_rules! on_every_store {
    ($($promise:ident),+ $(,)?) => {
        on_every_store!(@ memory: $($promise),+);
        on_every_store!(@ one_shard: $($promise),+);
        on_every_store!(@ rerun: $($promise),+);
        on_every_store!(@ scripted: $($promise),+);
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

/// A store that knows steps as numbers only.
pub fn scripted() -> Scripted {
    Scripted::new()
}

/// A number of nanoseconds since the clock's origin.
pub fn at(nanos: i64) -> Timestamp {
    Timestamp::new(nanos).expect("an instant of a test is not before the origin")
}

/// One call with a toy, on a store that does not fail.
pub fn play<S: Store>(store: &S, space: &S::Space, id: &str, toy: Toy, now: i64) -> Seen {
    let mut seen = Seen::default();
    let outcome = store.update(Bucket { space, id }, &toy, at(now), &mut seen);
    outcome.map_err(Into::into).expect("the store answers");
    seen
}

/// One call with several toys, on a store that does not fail.
pub fn play_all<S: Store>(
    store: &S,
    space: &S::Space,
    calls: &[(&str, Toy)],
    now: i64,
) -> Vec<Seen> {
    let buckets: Vec<_> = calls.iter().map(|&(id, _)| Bucket { space, id }).collect();
    let toys = Toys(calls.iter().map(|&(_, toy)| toy).collect());
    store.update_all(&buckets, &toys, at(now)).map_err(Into::into).expect("the store answers")
}
