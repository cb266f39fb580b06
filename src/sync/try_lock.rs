//! A lock for short times that a child process does not inherit.
//!
//! Uses `unsafe` because the value is changed through a shared reference.

use std::cell::UnsafeCell;
use std::mem;
use std::ops::{Deref, DerefMut};
#[cfg(all(unix, any(feature = "python", feature = "redis")))]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

/// The number of forks of this process and its ancestors since `count_forks`.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Counts the forks from now on.
#[cfg(all(unix, any(feature = "python", feature = "redis")))]
pub(crate) fn count_forks() {
    static IS_COUNTED: AtomicBool = AtomicBool::new(false);
    extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    if !IS_COUNTED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler may run in any process and at any time, since it only adds to an atomic.
        // The call fails only if there is no memory, and forks are not counted then.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

/// Returns the number of forks of this process and its ancestors since `count_forks`; a number of its
/// own for each process among these.
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// A value that one thread at a time may use.
///
/// A thread that uses the value during a fork does not exist in the child process, and may have left
/// the value half changed. The child continues with the default value.
#[derive(Debug, Default)]
pub(crate) struct TryLock<T> {
    /// 0, or one more than the forks of the process whose thread uses the value.
    holder: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that has set `holder` uses the value.
unsafe impl<T: Send> Sync for TryLock<T> {}

impl<T> TryLock<T> {
    /// Creates a lock of a value that is no constant of a default.
    pub(crate) const fn new(value: T) -> TryLock<T> {
        TryLock { holder: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }
}

impl<T: Default> TryLock<T> {
    /// Returns the value as soon as no other thread is using it, which must be soon.
    pub(crate) fn lock(&self) -> TryLockGuard<'_, T> {
        loop {
            match self.try_lock() {
                Some(guard) => return guard,
                None => thread::yield_now(),
            }
        }
    }

    /// Returns the value, unless another thread is using it.
    pub(crate) fn try_lock(&self) -> Option<TryLockGuard<'_, T>> {
        self.try_lock_in(forks())
    }

    /// Does the same in the process with this number of forks.
    fn try_lock_in(&self, forks: u32) -> Option<TryLockGuard<'_, T>> {
        let this_process = forks.wrapping_add(1);
        let before = self.holder.load(Ordering::Relaxed);
        if before == this_process {
            return None;
        }
        // Acquire pairs with the Release in `drop`.
        let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
        self.holder.compare_exchange(before, this_process, success, failure).ok()?;
        let mut guard = TryLockGuard(self);
        if before != 0 {
            // Not dropped, because it may be half changed.
            mem::forget(mem::take(&mut *guard));
        }
        Some(guard)
    }
}

/// The right to use the value of a [`TryLock`].
#[derive(Debug)]
pub(crate) struct TryLockGuard<'a, T>(&'a TryLock<T>);

impl<T> Deref for TryLockGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this thread has set `holder`, and no mutable reference outlives a borrow of `self`.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for TryLockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread has set `holder`, and `self` is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for TryLockGuard<'_, T> {
    fn drop(&mut self) {
        self.0.holder.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_has_the_value() {
        let lock = TryLock::<u32>::default();
        let mut guard = lock.try_lock().expect("it is free");
        *guard += 1;
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert_eq!(lock.try_lock().map(|value| *value), Some(1));
    }

    // A real child process is in the tests of the package.
    #[test]
    fn a_child_process_does_not_inherit_the_lock() {
        let (free, held) = (TryLock::<u32>::default(), TryLock::<u32>::default());
        for lock in [&free, &held] {
            *lock.try_lock().expect("it is free") = 7;
        }
        // The thread that holds it does not exist in the child.
        mem::forget(held.try_lock());
        let values = [&free, &held].map(|lock| lock.try_lock_in(forks() + 1).map(|value| *value));
        assert_eq!(values, [Some(7), Some(0)]);
        assert_eq!(held.try_lock().map(|value| *value), Some(0));
    }
}
