//! Costs that the GIL makes unnecessary: allocation of decisions, locks around values that are replaced
//! while they are read, and atomic steps.
//!
//! With the GIL, a call holds it from its first line to its last, so no other call can run in between.
//! A free-threaded build (`Py_GIL_DISABLED`) allocates each decision, and guards each shared value with a
//! read-write lock.

#[cfg(not(Py_GIL_DISABLED))]
pub(crate) use with_lock::{DecisionPool, Flag, Shared};
#[cfg(Py_GIL_DISABLED)]
pub(crate) use without_lock::{DecisionPool, Flag, Shared};

#[cfg(not(Py_GIL_DISABLED))]
mod with_lock {
    use std::ptr::null_mut;
    use std::sync::Arc;

    use pyo3::ffi;
    use pyo3::prelude::*;

    use crate::bindings::decision::Decision;
    use crate::bindings::decision_data::DecisionData;
    use crate::sync::{AtomicBool, AtomicPtr, Ordering};

    /// Decisions that are reused when nothing else refers to them.
    ///
    /// There are two, because `decision = bound.spend(id)` in a loop still refers to the previous
    /// decision while the next one is made.
    #[derive(Debug, Default)]
    pub(crate) struct DecisionPool {
        slots: [AtomicPtr<ffi::PyObject>; 2],
    }

    /// An unused decision of the pool.
    pub(crate) struct Idle<'py> {
        py: Python<'py>,
        object: *mut ffi::PyObject,
    }

    impl DecisionPool {
        /// Returns an unused decision, if there is one.
        #[inline(always)]
        pub(crate) fn idle<'py>(&self, py: Python<'py>) -> Option<Idle<'py>> {
            for slot in &self.slots {
                // Relaxed: `py` proves that this thread holds the GIL, as every user of the pool does.
                let object = slot.load(Ordering::Relaxed);
                // SAFETY: a pointer in the pool is an owned reference to a Decision, so it is valid.
                if !object.is_null() && unsafe { ffi::Py_REFCNT(object) } == 1 {
                    return Some(Idle { py, object });
                }
            }
            None
        }

        /// Creates a decision, and adds it to the pool if a slot is free.
        #[cold]
        pub(crate) fn make<'py>(
            &self,
            py: Python<'py>,
            data: DecisionData,
        ) -> PyResult<Bound<'py, Decision>> {
            let decision = Bound::new(py, Decision::new(data))?;
            let mut slots = self.slots.iter();
            if let Some(slot) = slots.find(|slot| slot.load(Ordering::Relaxed).is_null()) {
                slot.store(decision.clone().into_ptr(), Ordering::Relaxed);
            }
            Ok(decision)
        }
    }

    impl<'py> Idle<'py> {
        /// Calls `fill` with the decision's data. Returns the decision and the result of `fill`, or
        /// `None` if `fill` returned `None`.
        ///
        /// `fill` must neither wait nor let other Python code run. In particular, it must not drop the
        /// references that it replaces.
        #[inline(always)]
        pub(crate) fn fill<R>(
            self,
            fill: impl FnOnce(&mut DecisionData) -> Option<R>,
        ) -> Option<(Bound<'py, Decision>, R)> {
            // SAFETY: the pool's reference was the only one when `self` was created, and no Python code
            // has run since. Nothing else can reach the decision, because it does not support weak
            // references and is not tracked by the garbage collector. So `fill` has the only reference to
            // its data. The pointer to the data is derived from the object's own pointer, at the offset
            // that PyO3 uses.
            unsafe {
                let decision =
                    Borrowed::from_ptr(self.py, self.object).cast_unchecked::<Decision>();
                let offset = decision.get().data_address() - self.object.addr();
                let data = self.object.byte_add(offset).cast::<DecisionData>();
                let result = fill(&mut *data)?;
                Some((decision.to_owned(), result))
            }
        }
    }

    impl Drop for DecisionPool {
        fn drop(&mut self) {
            for slot in &mut self.slots {
                let object = std::mem::replace(slot.get_mut(), null_mut());
                if !object.is_null() {
                    // SAFETY: a pointer in the pool is an owned reference. It was just removed from the
                    // pool, so it is released only once, and `attach` holds the GIL.
                    Python::attach(|py| drop(unsafe { Bound::from_owned_ptr(py, object) }));
                }
            }
        }
    }

    /// A flag. Of all callers that set it, one finds that it was not set.
    #[derive(Debug, Default)]
    pub(crate) struct Flag(AtomicBool);

    impl Flag {
        /// Sets the flag. Returns whether it was set before.
        #[inline(always)]
        pub(crate) fn set(&self, _py: Python<'_>) -> bool {
            // Not one step, which costs 8 ns: `_py` proves that this thread holds the GIL, so no other is
            // between the two.
            let was_set = self.0.load(Ordering::Relaxed);
            self.0.store(true, Ordering::Relaxed);
            was_set
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
            // SAFETY: the pointer comes from `Arc::into_raw`, and only `replace` releases that
            // reference, which needs the GIL. `_py` proves that this thread holds the GIL until `read`
            // has returned.
            read(unsafe { &*self.current.load(Ordering::Relaxed) })
        }

        /// Replaces the value.
        pub(crate) fn replace(&self, _py: Python<'_>, value: Arc<T>) {
            let previous = self.current.swap(Arc::into_raw(value).cast_mut(), Ordering::Relaxed);
            // SAFETY: as in `with`. The pointer was just removed, so it is released only once.
            drop(unsafe { Arc::from_raw(previous) });
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
    use crate::sync::{AtomicBool, Ordering, RwLock};

    /// Creates decisions. Without the GIL it is unknown whether one is in use, so none is reused.
    #[derive(Debug, Default)]
    pub(crate) struct DecisionPool(());

    /// The place of a new decision.
    pub(crate) struct Idle<'py>(Python<'py>);

    impl DecisionPool {
        /// Returns the place of a new decision.
        #[inline(always)]
        pub(crate) fn idle<'py>(&self, py: Python<'py>) -> Option<Idle<'py>> {
            Some(Idle(py))
        }

        /// Creates a decision.
        #[inline]
        pub(crate) fn make<'py>(
            &self,
            py: Python<'py>,
            data: DecisionData,
        ) -> PyResult<Bound<'py, Decision>> {
            Bound::new(py, Decision::new(data))
        }
    }

    impl<'py> Idle<'py> {
        /// Calls `fill` with the data of the new decision. Returns the decision and the result of `fill`,
        /// or `None` if `fill` returned `None` or there is no memory.
        ///
        /// `fill` must neither wait nor let other Python code run.
        #[inline(always)]
        pub(crate) fn fill<R>(
            self,
            fill: impl FnOnce(&mut DecisionData) -> Option<R>,
        ) -> Option<(Bound<'py, Decision>, R)> {
            let mut data = DecisionData::default();
            let result = fill(&mut data)?;
            Some((Bound::new(self.0, Decision::new(data)).ok()?, result))
        }
    }

    /// A flag. Of all callers that set it, one finds that it was not set.
    #[derive(Debug, Default)]
    pub(crate) struct Flag(AtomicBool);

    impl Flag {
        /// Sets the flag. Returns whether it was set before.
        #[inline(always)]
        pub(crate) fn set(&self, _py: Python<'_>) -> bool {
            // Relaxed: it orders no other access.
            self.0.swap(true, Ordering::Relaxed)
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
