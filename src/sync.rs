//! Locks and atomics of the crate: those of `parking_lot` and the standard library, or loom's in models.
//!
//! `OnceLock` and `LazyLock` are not among them: a child process that is forked off while another
//! thread computes such a value waits for that thread forever. With a `OnceBox` both compute it.

#[cfg(feature = "redis")]
mod append_list;
mod try_lock;

#[cfg(feature = "redis")]
pub(crate) use append_list::AppendList;
#[cfg(all(unix, any(feature = "python", feature = "redis")))]
pub(crate) use try_lock::count_forks;
pub(crate) use try_lock::{TryLock, TryLockGuard, forks};

#[cfg(all(not(loom), feature = "python"))]
pub(crate) use parking_lot::Condvar;
#[cfg(not(loom))]
pub(crate) use parking_lot::{Mutex, MutexGuard, RwLock};
#[cfg(all(not(loom), any(feature = "python", feature = "redis")))]
pub(crate) use std::sync::atomic::AtomicBool;
#[cfg(all(not(loom), feature = "redis"))]
pub(crate) use std::sync::atomic::AtomicU32;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{
    AtomicI64, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering,
};

/// A word that several processes share.
#[cfg(all(unix, not(loom)))]
pub(crate) type Word = AtomicU64;
#[cfg(loom)]
pub(crate) use modelled::Word;

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{
    AtomicI64, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering,
};
#[cfg(loom)]
pub(crate) use modelled::{Mutex, MutexGuard, RwLock};

pub(crate) mod counting {
    //! Locks and atomics for counters, process-local data and the arrays of simulations. They order no other
    //! access and affect no decision, so loom does not model them: every access would multiply the number
    //! of orders.

    pub(crate) use once_cell::race::OnceBox;
    pub(crate) use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};
}

#[cfg(loom)]
mod modelled {
    //! loom's locks with the interface of `parking_lot`'s, which cannot be poisoned.

    pub(crate) use loom::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

    use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    /// An atomic word that announces each access.
    ///
    /// loom remembers only the last access per object, so a thread that reads a word and later writes it
    /// hides the race of that write with another thread's earlier read. The announcement is a separate
    /// object with Relaxed ordering, so it does not order accesses to the word.
    #[derive(Debug)]
    pub(crate) struct Word {
        announced: AtomicUsize,
        word: AtomicU64,
    }

    impl Word {
        pub(crate) fn new(value: u64) -> Word {
            Word { announced: AtomicUsize::new(0), word: AtomicU64::new(value) }
        }

        fn announced(&self) -> &AtomicU64 {
            self.announced.fetch_add(1, Ordering::Relaxed);
            &self.word
        }

        pub(crate) fn load(&self, order: Ordering) -> u64 {
            self.announced().load(order)
        }

        pub(crate) fn store(&self, value: u64, order: Ordering) {
            self.announced().store(value, order);
        }

        pub(crate) fn compare_exchange(
            &self,
            current: u64,
            new: u64,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u64, u64> {
            self.announced().compare_exchange(current, new, success, failure)
        }

        pub(crate) fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
            self.announced().fetch_max(value, order)
        }
    }

    /// A mutual exclusion lock.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("a model stops at its first panic")
        }
    }

    /// A read-write lock.
    #[derive(Debug)]
    pub(crate) struct RwLock<T>(loom::sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> RwLock<T> {
            RwLock(loom::sync::RwLock::new(value))
        }

        pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect("a model stops at its first panic")
        }

        pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect("a model stops at its first panic")
        }
    }
}
