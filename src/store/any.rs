//! The store that a URL selects, behind one type.

use std::path::PathBuf;

use crate::clock::{AnyClock, Clock};
use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::answer::Answer;
use crate::engine::state::{Lifetime, State};
use crate::engine::time::Now;
use crate::store::memory::MemoryStore;
#[cfg(unix)]
use crate::store::memory::Overflow;
#[cfg(feature = "redis")]
use crate::store::redis::{RedisStore, RedisUrl};
use crate::store::remote::RemoteStore;
#[cfg(unix)]
use crate::store::shared::{self, MappedFile, SharedStore};
use crate::store::url::StoreUrl;
use crate::store::{Answers, Batch, Bucket, Keyspace, Stats, Store, StoreError, StoreStep, Wait};

/// A store that is chosen at run time.
///
/// Calls of the memory store are inlined; those of other stores should not be.
#[derive(Debug)]
pub enum AnyStore {
    /// The memory of this process.
    Memory(MemoryStore),
    /// A file that the processes of this machine map.
    #[cfg(unix)]
    Shared(Box<SharedStore<MappedFile>>),
    /// A Redis or Valkey server.
    #[cfg(feature = "redis")]
    Redis(Box<RedisStore>),
}

/// Calls a method of the selected store.
macro_rules! each_store {
    ($any:expr, $store:ident => $call:expr) => {
        match $any {
            AnyStore::Memory($store) => $call,
            #[cfg(unix)]
            AnyStore::Shared($store) => $call,
            #[cfg(feature = "redis")]
            AnyStore::Redis($store) => $call,
        }
    };
}

impl AnyStore {
    /// Returns whether other processes use the same buckets.
    pub fn is_shared(&self) -> bool {
        match self {
            AnyStore::Memory(_) => false,
            #[cfg(unix)]
            AnyStore::Shared(_) => true,
            #[cfg(feature = "redis")]
            AnyStore::Redis(_) => true,
        }
    }

    /// Returns the store of a server, for callers that do not block; `None` for other stores.
    pub fn remote(&self) -> Option<&dyn RemoteStore> {
        match self {
            AnyStore::Memory(_) => None,
            #[cfg(unix)]
            AnyStore::Shared(_) => None,
            #[cfg(feature = "redis")]
            AnyStore::Redis(store) => Some(&**store),
        }
    }

    /// Returns the store of a Redis server, which records its health and events; `None` for other stores.
    #[cfg(feature = "redis")]
    #[inline]
    pub fn redis(&self) -> Option<&RedisStore> {
        match self {
            AnyStore::Memory(_) => None,
            #[cfg(unix)]
            AnyStore::Shared(_) => None,
            AnyStore::Redis(store) => Some(store),
        }
    }
}

impl Store for AnyStore {
    type Error = StoreError;

    fn keyspace(&self, algorithm: AlgorithmName, prefix: &str) -> Keyspace {
        each_store!(self, store => store.keyspace(algorithm, prefix))
    }

    #[inline]
    fn may_wait(&self) -> bool {
        each_store!(self, store => store.may_wait())
    }

    #[inline(always)]
    fn update<S: StoreStep>(
        &self,
        bucket: Bucket<'_>,
        step: &S,
        now: Now,
        wait: Wait,
    ) -> Result<Answer, StoreError> {
        each_store!(self, store => Ok(store.update(bucket, step, now, wait)?))
    }

    fn update_shared<S: StoreStep>(
        &self,
        bucket: Bucket<'_>,
        nth: u64,
        step: &S,
        now: Now,
        wait: Wait,
    ) -> Result<Option<Answer>, StoreError> {
        each_store!(self, store => Ok(store.update_shared(bucket, nth, step, now, wait)?))
    }

    fn update_all<B: Batch>(
        &self,
        buckets: &[Bucket<'_>],
        batch: &B,
        now: Now,
        clock: &impl Clock,
        wait: Wait,
    ) -> Result<Answers, StoreError> {
        each_store!(self, store => Ok(store.update_all(buckets, batch, now, clock, wait)?))
    }

    #[inline(always)]
    fn update_each<'a, S: StoreStep>(
        &self,
        count: usize,
        call: impl Fn(usize) -> (Bucket<'a>, S),
        now: Now,
        each: impl FnMut(usize, Result<&Answer, StoreError>),
    ) {
        each_store!(self, store => store.update_each(count, call, now, each))
    }

    fn forget(&self, bucket: Bucket<'_>) -> Result<bool, StoreError> {
        each_store!(self, store => Ok(store.forget(bucket)?))
    }

    fn clear(&self) -> Result<u64, StoreError> {
        each_store!(self, store => Ok(store.clear()?))
    }

    fn stats(&self, now: Now) -> Result<Stats, StoreError> {
        each_store!(self, store => Ok(store.stats(now)?))
    }

    #[inline]
    fn tidy(&self, now: impl FnOnce() -> Now) {
        each_store!(self, store => store.tidy(now))
    }

    fn raise_lifetimes(
        &self,
        now: Now,
        lifetime: &dyn Fn(State) -> Lifetime,
    ) -> Result<(), StoreError> {
        each_store!(self, store => Ok(store.raise_lifetimes(now, lifetime)?))
    }
}

/// A store that is ready for use, and the clock of its decisions.
#[derive(Debug)]
pub struct Opened {
    /// The store.
    pub store: AnyStore,
    /// The clock.
    pub clock: AnyClock,
}

#[cfg(unix)]
impl Opened {
    fn shared(memory: MappedFile, clock: AnyClock, overflow: Overflow) -> Opened {
        let store = SharedStore::in_file(memory, overflow);
        Opened { store: AnyStore::Shared(Box::new(store)), clock }
    }
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum OpenError {
    #[cfg(unix)]
    #[error(transparent)]
    Shared(#[from] shared::TableOpenError),
    #[error(
        "{store} is in the memory of one process and cannot be reached from another; call \
         Limiter.stats() or Limiter.reset(name, id) there"
    )]
    OwnProcess { store: &'static str },
    #[cfg(feature = "redis")]
    #[error(transparent)]
    Server(StoreError),
    #[error("shm:// needs Linux or macOS; use redis:// or memory:// here")]
    Unsupported,
}

/// Opens the store at `url`. Decisions use `clock`, except that a server uses its own time instead of the
/// system clock. May wait for a server.
///
/// # Errors
/// [`OpenError`] if the store cannot be opened or created, or a server refuses the client. A server
/// that cannot be reached is not an error.
pub fn open(url: &StoreUrl, clock: AnyClock) -> Result<Opened, OpenError> {
    match url {
        StoreUrl::Memory { max_buckets, overflow } => {
            let store = MemoryStore::new(*max_buckets).with_overflow(*overflow);
            Ok(Opened { store: AnyStore::Memory(store), clock })
        }
        #[cfg(unix)]
        StoreUrl::Shared { place, capacity, overflow } => {
            let memory = MappedFile::open(&shared::path(place), *capacity)?;
            Ok(Opened::shared(memory, clock, *overflow))
        }
        #[cfg(not(unix))]
        StoreUrl::Shared { .. } => Err(OpenError::Unsupported),
        #[cfg(feature = "redis")]
        StoreUrl::Redis(url) => match connect(url, &clock) {
            (_, Err(error @ StoreError::Refused { .. })) => Err(OpenError::Server(error)),
            // If a server is down now, each call tries to connect again.
            (store, _) => Ok(Opened { store, clock }),
        },
    }
}

/// Returns the file of a table that another user has under the name in `url`, if there is one.
pub fn table_of_other_user(url: &StoreUrl) -> Option<PathBuf> {
    match url {
        #[cfg(unix)]
        StoreUrl::Shared { place, .. } => shared::path_of_other_user(place),
        _ => None,
    }
}

/// Opens the store at `url` if it exists; never creates one.
///
/// # Errors
/// [`OpenError`] if there is no such store, or it cannot be opened.
pub fn open_existing(url: &StoreUrl, clock: AnyClock) -> Result<Opened, OpenError> {
    match url {
        StoreUrl::Memory { .. } => Err(OpenError::OwnProcess { store: "memory://" }),
        #[cfg(unix)]
        StoreUrl::Shared { place, overflow, .. } => {
            let memory = MappedFile::open_existing(&shared::path(place))?;
            Ok(Opened::shared(memory, clock, *overflow))
        }
        #[cfg(not(unix))]
        StoreUrl::Shared { .. } => Err(OpenError::Unsupported),
        #[cfg(feature = "redis")]
        StoreUrl::Redis(url) => {
            let (store, connected) = connect(url, &clock);
            connected.map_err(OpenError::Server)?;
            Ok(Opened { store, clock })
        }
    }
}

/// Returns the store of a server, and whether it is connected.
#[cfg(feature = "redis")]
fn connect(url: &RedisUrl, clock: &AnyClock) -> (AnyStore, Result<(), StoreError>) {
    let store = RedisStore::new(url.clone(), matches!(clock, AnyClock::Manual(_)));
    let connected = store.connect();
    (AnyStore::Redis(Box::new(store)), connected)
}
