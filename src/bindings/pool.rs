//! What the interpreter's lock saves: allocation of decisions, locks around values that are replaced
//! while others read them, and the locks of a store.
//!
//! On a build with a global interpreter lock all three rely on it: a call holds the lock from its
//! first line to its last, so no other call can run in between. A free-threaded build
//! (`Py_GIL_DISABLED`) has no such lock; there each decision is allocated, each value is behind a
//! read-write lock, and the store takes its own locks.

#[cfg(not(Py_GIL_DISABLED))]
pub(crate) use with_lock::{DecisionPool, Shared, make_core};
#[cfg(Py_GIL_DISABLED)]
pub(crate) use without_lock::{DecisionPool, Shared, make_core};

#[cfg(not(Py_GIL_DISABLED))]
mod with_lock {
    use std::ptr::null_mut;
    use std::sync::Arc;

    use pyo3::ffi;
    use pyo3::prelude::*;

    use crate::bindings::decision::Decision;
    use crate::bindings::decision_data::DecisionData;
    use crate::bindings::limiter_handle::Core;
    use crate::clock::AnyClock;
    use crate::engine::registry::Registry;
    use crate::limiter;
    use crate::store::Store;
    use crate::store::any::AnyStore;
    use crate::store::memory::Serialized;
    use crate::sync::{AtomicPtr, Ordering};

    /// Makes a limiter, whose calls are serialized unless they may wait.
    pub(crate) fn make_core(registry: Registry, store: AnyStore, clock: AnyClock) -> Core {
        if store.may_wait() {
            return limiter::Limiter::new(registry, store, clock);
        }
        // SAFETY: only methods of Python classes ask a limiter's store, and `LimiterHandle::run`, the
        // one place that can detach from the interpreter meanwhile, does so for stores that may
        // wait. So a call holds the interpreter's lock from its first line to its last, and nothing
        // in between runs other Python code.
        let evidence = unsafe { Serialized::promise() };
        let store = store.without_locks(evidence);
        limiter::Limiter::new(registry, store, clock).assume_serialized()
    }

    /// Decisions that are reused once they have no other reference.
    ///
    /// There are two, as `decision = bound.spend(id)` in a loop still refers to the last one while
    /// the next is made.
    #[derive(Debug, Default)]
    pub(crate) struct DecisionPool {
        kept: [AtomicPtr<ffi::PyObject>; 2],
    }

    /// An unused decision.
    pub(crate) struct Idle<'py> {
        py: Python<'py>,
        kept: *mut ffi::PyObject,
    }

    impl DecisionPool {
        /// An unused decision, if there is one.
        #[inline(always)]
        pub(crate) fn idle<'py>(&self, py: Python<'py>) -> Option<Idle<'py>> {
            for slot in &self.kept {
                // Relaxed: `py` shows that this thread holds the interpreter's lock, as every user
                // of the pool does.
                let kept = slot.load(Ordering::Relaxed);
                // SAFETY: a pointer in the pool is an owned reference to a Decision, so it is
                // valid.
                if !kept.is_null() && unsafe { ffi::Py_REFCNT(kept) } == 1 {
                    return Some(Idle { py, kept });
                }
            }
            None
        }

        /// Makes a decision, and keeps it if there is room.
        #[cold]
        pub(crate) fn make<'py>(
            &self,
            py: Python<'py>,
            content: DecisionData,
        ) -> PyResult<Bound<'py, Decision>> {
            let decision = Bound::new(py, Decision::new(content))?;
            if let Some(slot) = self.kept.iter().find(|slot| slot.load(Ordering::Relaxed).is_null())
            {
                slot.store(decision.clone().into_ptr(), Ordering::Relaxed);
            }
            Ok(decision)
        }
    }

    impl<'py> Idle<'py> {
        /// Lets `fill` change the decision's content, and returns the decision with what `fill`
        /// returned; `None` if that was `None`.
        ///
        /// `fill` must not let other Python code run, nor wait: references that it replaces must be
        /// dropped afterwards.
        #[inline(always)]
        pub(crate) fn fill<R>(
            self,
            fill: impl FnOnce(&mut DecisionData) -> Option<R>,
        ) -> Option<(Bound<'py, Decision>, R)> {
            // SAFETY: the pool's reference was the only one when this was made, and no Python code
            // ran since: so nothing else refers to the decision or can reach it, as it takes no weak
            // references and is not tracked by the garbage collector. So no other reference to
            // its content exists while `fill` has one. The pointer to the content is derived from
            // the object's own, at the offset that PyO3 gives.
            unsafe {
                let decision = Borrowed::from_ptr(self.py, self.kept).cast_unchecked::<Decision>();
                let offset = decision.get().data_address() - self.kept.addr();
                let content = self.kept.byte_add(offset).cast::<DecisionData>();
                let filled = fill(&mut *content)?;
                Some((decision.to_owned(), filled))
            }
        }
    }

    impl Drop for DecisionPool {
        fn drop(&mut self) {
            for slot in &mut self.kept {
                let kept = std::mem::replace(slot.get_mut(), null_mut());
                if !kept.is_null() {
                    // SAFETY: a pointer in the pool is an owned reference; it was taken out just
                    // now, so it is given back once. `attach` holds the interpreter's lock while
                    // that is done.
                    Python::attach(|py| drop(unsafe { Bound::from_owned_ptr(py, kept) }));
                }
            }
        }
    }

    /// A value that every call reads and that is rarely replaced.
    #[derive(Debug)]
    pub(crate) struct Shared<T> {
        current: AtomicPtr<T>,
    }

    impl<T> Shared<T> {
        pub(crate) fn new(value: Arc<T>) -> Shared<T> {
            Shared { current: AtomicPtr::new(Arc::into_raw(value).cast_mut()) }
        }

        /// Passes the value to `read`, which must not let other Python code run, nor wait.
        #[inline(always)]
        pub(crate) fn with<R>(&self, _py: Python<'_>, read: impl FnOnce(&T) -> R) -> R {
            // SAFETY: the pointer comes from `Arc::into_raw`, and that reference is given back only
            // by `replace`, under the interpreter's lock, which `_py` shows to be held here until
            // `read` has returned.
            read(unsafe { &*self.current.load(Ordering::Relaxed) })
        }

        /// Replaces the value.
        pub(crate) fn replace(&self, _py: Python<'_>, value: Arc<T>) {
            let before = self.current.swap(Arc::into_raw(value).cast_mut(), Ordering::Relaxed);
            // SAFETY: as in `with`; the pointer was taken out just now, so it is given back once.
            drop(unsafe { Arc::from_raw(before) });
        }
    }

    impl<T> Drop for Shared<T> {
        fn drop(&mut self) {
            // SAFETY: the pointer comes from `Arc::into_raw`, and no other reference to `self` exists.
            drop(unsafe { Arc::from_raw(*self.current.get_mut()) });
        }
    }
}

#[cfg(Py_GIL_DISABLED)]
mod without_lock {
    use std::sync::Arc;

    use pyo3::prelude::*;

    use crate::bindings::decision::Decision;
    use crate::bindings::decision_data::DecisionData;
    use crate::bindings::limiter_handle::Core;
    use crate::clock::AnyClock;
    use crate::engine::registry::Registry;
    use crate::limiter;
    use crate::store::any::AnyStore;
    use crate::sync::RwLock;

    /// Makes a limiter, whose calls may overlap.
    pub(crate) fn make_core(registry: Registry, store: AnyStore, clock: AnyClock) -> Core {
        limiter::Limiter::new(registry, store, clock)
    }

    /// Allocates each decision: without the interpreter's lock it is unknown whether a kept one is
    /// in use.
    #[derive(Debug, Default)]
    pub(crate) struct DecisionPool(());

    /// An unused decision: there is none.
    pub(crate) enum Idle<'py> {
        #[expect(dead_code, reason = "it is there to be of the same shape as with the lock")]
        Never(std::convert::Infallible, std::marker::PhantomData<Python<'py>>),
    }

    impl DecisionPool {
        /// An unused decision: never any.
        #[inline(always)]
        pub(crate) fn idle<'py>(&self, _py: Python<'py>) -> Option<Idle<'py>> {
            None
        }

        /// Makes a decision.
        #[inline]
        pub(crate) fn make<'py>(
            &self,
            py: Python<'py>,
            content: DecisionData,
        ) -> PyResult<Bound<'py, Decision>> {
            Bound::new(py, Decision::new(content))
        }
    }

    impl<'py> Idle<'py> {
        /// Lets `fill` change the decision's content: never called.
        pub(crate) fn fill<R>(
            self,
            _fill: impl FnOnce(&mut DecisionData) -> Option<R>,
        ) -> Option<(Bound<'py, Decision>, R)> {
            match self {
                Idle::Never(never, _) => match never {},
            }
        }
    }

    /// A value that every call reads and that is rarely replaced.
    #[derive(Debug)]
    pub(crate) struct Shared<T> {
        current: RwLock<Arc<T>>,
    }

    impl<T> Shared<T> {
        pub(crate) fn new(value: Arc<T>) -> Shared<T> {
            Shared { current: RwLock::new(value) }
        }

        /// Passes the value to `read`, which must not let other Python code run, nor wait.
        #[inline(always)]
        pub(crate) fn with<R>(&self, _py: Python<'_>, read: impl FnOnce(&T) -> R) -> R {
            read(&self.current.read())
        }

        /// Replaces the value.
        pub(crate) fn replace(&self, _py: Python<'_>, value: Arc<T>) {
            *self.current.write() = value;
        }
    }
}
