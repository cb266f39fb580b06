//! The wait queues of a limiter: who waits, and for what.
//!
//! `waiting.rs` drives them. No lock of a queue is held while the store is asked or Python code runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::prelude::*;

use crate::bindings::decision::Decision;
use crate::bindings::limit_entry::LimitEntry;
use crate::engine::time::{Nanos, Timestamp};
use crate::limiter::{self, Decided, Estimate, Pace, Ticket, WaitQueue};
use crate::sync::{AtomicUsize, Mutex, Ordering};

/// What was charged for a waiter.
#[derive(Debug)]
pub(crate) struct Charge {
    /// The limit at that time: the charge is returned under it, whatever a reload has put in its
    /// place.
    pub(crate) bound: Arc<limiter::BoundLimit>,
    pub(crate) entry: Py<LimitEntry>,
    pub(crate) decided: Decided,
    pub(crate) cost: i64,
    pub(crate) pace: Pace,
}

/// The waiters of one bucket.
#[derive(Debug)]
pub(crate) struct BucketQueue {
    name: String,
    pub(crate) id: String,
    pub(crate) waiters: Mutex<WaitQueue<Arc<WaiterState>, Charge>>,
}

/// The wait queues of a limiter. A queue exists while it has waiters.
#[derive(Debug)]
pub(crate) struct WaitQueues {
    count: AtomicUsize,
    registry: Mutex<Registry>,
}

#[derive(Debug)]
struct Registry {
    /// After a fork the waiters are in the other process.
    process: u32,
    queues: BTreeMap<(String, String), Arc<BucketQueue>>,
}

impl WaitQueues {
    pub(crate) fn new() -> WaitQueues {
        let registry = Registry { process: std::process::id(), queues: BTreeMap::new() };
        WaitQueues { count: AtomicUsize::new(0), registry: Mutex::new(registry) }
    }

    /// Whether no caller waits at this limiter.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: a waiter that arrives at the same time may as well arrive later.
        self.count.load(Ordering::Relaxed) == 0
    }

    fn with_registry<T>(&self, action: impl FnOnce(&mut Registry) -> T) -> T {
        let mut stale = BTreeMap::new();
        let mut registry = self.registry.lock();
        if registry.process != std::process::id() {
            registry.process = std::process::id();
            stale = std::mem::take(&mut registry.queues);
        }
        let result = action(&mut registry);
        self.count.store(registry.queues.len(), Ordering::Relaxed);
        drop(registry);
        // Outside the lock: this may run Python code.
        drop(stale);
        result
    }

    pub(crate) fn all(&self) -> Vec<Arc<BucketQueue>> {
        if self.is_empty() {
            return Vec::new();
        }
        self.with_registry(|registry| registry.queues.values().cloned().collect())
    }

    pub(crate) fn of_bucket(&self, name: &str, id: &str) -> Option<Arc<BucketQueue>> {
        let key = (name.to_owned(), id.to_owned());
        self.with_registry(|registry| registry.queues.get(&key).cloned())
    }

    /// Adds a waiter to the queue of a bucket; the error is how long it would wait, too long.
    pub(crate) fn join(
        &self,
        waiter: &Arc<WaiterState>,
        name: &str,
        id: &str,
        estimate: Option<Estimate>,
        now: Timestamp,
    ) -> Result<Arc<BucketQueue>, Nanos> {
        let arrived = self.with_registry(|registry| {
            let key = (name.to_owned(), id.to_owned());
            let queue = registry.queues.entry(key).or_insert_with(|| {
                let (name, id) = (name.to_owned(), id.to_owned());
                Arc::new(BucketQueue { name, id, waiters: Mutex::new(WaitQueue::default()) })
            });
            let (own, cost) = (Arc::clone(waiter), waiter.cost);
            let arrived = queue.waiters.lock().on_arrival(own, cost, waiter.timeout, estimate, now);
            arrived.map_err(|wait| (Arc::clone(queue), wait)).map(|ticket| {
                let mut standing = waiter.standing.lock();
                (standing.queue, standing.ticket) = (Some(Arc::clone(queue)), ticket);
                Arc::clone(queue)
            })
        });
        arrived.map_err(|(queue, wait)| {
            self.remove_if_empty(&queue);
            wait
        })
    }

    /// Whether the queue is of this process.
    pub(crate) fn has(&self, queue: &Arc<BucketQueue>) -> bool {
        self.of_bucket(&queue.name, &queue.id).is_some_and(|known| Arc::ptr_eq(&known, queue))
    }

    pub(crate) fn remove_if_empty(&self, queue: &Arc<BucketQueue>) {
        self.with_registry(|registry| {
            let key = (queue.name.clone(), queue.id.clone());
            let is_known = registry.queues.get(&key).is_some_and(|known| Arc::ptr_eq(known, queue));
            if is_known && queue.waiters.lock().is_empty() {
                registry.queues.remove(&key);
            }
        });
    }
}

/// One waiter, as its queue holds it.
#[derive(Debug)]
pub(crate) struct WaiterState {
    /// The limit when the waiter came.
    pub(crate) entry: Py<LimitEntry>,
    pub(crate) id: Py<PyAny>,
    pub(crate) cost: i64,
    pub(crate) timeout: Option<Nanos>,
    pub(crate) notify: Py<PyAny>,
    pub(crate) standing: Mutex<Standing>,
    /// What wakes the waiter on a `ManualClock`.
    pub(crate) timer: Mutex<Option<(i64, u64)>>,
}

#[derive(Debug, Default)]
pub(crate) struct Standing {
    pub(crate) queue: Option<Arc<BucketQueue>>,
    pub(crate) ticket: Ticket,
    pub(crate) outcome: Option<PyResult<(Py<Decision>, Charge)>>,
    /// Whether the caller has the outcome, or has left.
    pub(crate) is_over: bool,
}

impl WaiterState {
    pub(crate) fn ticket(&self) -> Ticket {
        self.standing.lock().ticket
    }

    /// Keeps the outcome for the caller; returns the charge if the caller has left.
    pub(crate) fn finish(&self, outcome: PyResult<(Py<Decision>, Charge)>) -> Option<Charge> {
        let mut standing = self.standing.lock();
        if standing.is_over {
            drop(standing);
            return outcome.ok().map(|(_, charge)| charge);
        }
        standing.outcome = Some(outcome);
        None
    }
}
