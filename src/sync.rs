//! The one source of locks and atomics: `parking_lot`'s and the standard library's, or loom's in
//! its models.

#[cfg(not(loom))]
pub(crate) use parking_lot::{Mutex, MutexGuard, RwLock};
#[cfg(all(not(loom), feature = "python"))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{
    AtomicI64, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering,
};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{
    AtomicI64, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering,
};
#[cfg(loom)]
pub(crate) use modelled::{Mutex, MutexGuard, RwLock};

pub(crate) mod counting {
    //! For what only counts. It orders and decides nothing, so loom's models are not shown it: each
    //! count would double the orders that there are.

    pub(crate) use parking_lot::Mutex;
    pub(crate) use std::sync::OnceLock;
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64};
}

#[cfg(loom)]
mod modelled {
    //! loom's locks in the shape of `parking_lot`'s, which cannot be poisoned.

    pub(crate) use loom::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

    /// A lock that one thread holds.
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

    /// A lock that many may read.
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
