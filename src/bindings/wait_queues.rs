//! The wait queues of a limiter.
//!
//! `wait_driver.rs` drives them. No lock of a queue is held while the store is asked or Python code runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::bindings::waiting_call::{BucketQueue, QueueMember};
use crate::engine::time::{Nanos, Timestamp};
use crate::limiter::{Estimate, WaitQueue};
use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering};

/// The wait queues of a limiter. A queue exists while it has waiters.
#[derive(Debug)]
pub(crate) struct WaitQueues {
    count: AtomicUsize,
    /// The number of waiters that have arrived.
    arrivals: AtomicU64,
    registry: Mutex<QueueMap>,
}

#[derive(Debug)]
struct QueueMap {
    /// The process that the queues belong to. After a fork, the waiters exist only in the parent.
    process: u32,
    queues: BTreeMap<(String, String), Arc<BucketQueue>>,
}

impl WaitQueues {
    pub(crate) fn new() -> WaitQueues {
        let registry = QueueMap { process: std::process::id(), queues: BTreeMap::new() };
        let (count, arrivals) = (AtomicUsize::new(0), AtomicU64::new(0));
        WaitQueues { count, arrivals, registry: Mutex::new(registry) }
    }

    /// Returns the number of a waiter that arrives.
    pub(crate) fn next_number(&self) -> u64 {
        // Relaxed: it orders no other access.
        self.arrivals.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns whether the limiter has no waiters.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: a waiter that arrives concurrently is ordered either way.
        self.count.load(Ordering::Relaxed) == 0
    }

    fn with_registry<T>(&self, action: impl FnOnce(&mut QueueMap) -> T) -> T {
        let mut stale = BTreeMap::new();
        let mut registry = self.registry.lock();
        if registry.process != std::process::id() {
            registry.process = std::process::id();
            stale = std::mem::take(&mut registry.queues);
        }
        let result = action(&mut registry);
        self.count.store(registry.queues.len(), Ordering::Relaxed);
        drop(registry);
        // Outside the lock, because dropping may run Python code.
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

    /// Adds a waiter to the queue of a bucket.
    ///
    /// # Errors
    /// The estimated wait, if it exceeds the waiter's timeout.
    pub(crate) fn join(
        &self,
        member: &QueueMember,
        name: &str,
        id: &str,
        estimate: Option<Estimate>,
        now: Timestamp,
    ) -> Result<Arc<BucketQueue>, Nanos> {
        let timeout = member.call.time_left(now);
        let (place, ticket) = (member.place(), member.ticket());
        let arrived = self.with_registry(|registry| {
            let key = (name.to_owned(), id.to_owned());
            let queue = registry.queues.entry(key).or_insert_with(|| {
                let (name, id) = (name.to_owned(), id.to_owned());
                Arc::new(BucketQueue { name, id, waiters: Mutex::new(WaitQueue::default()) })
            });
            let mut waiters = queue.waiters.lock();
            let member = member.clone();
            let arrived = waiters.on_arrival(member, ticket, place.cost, timeout, estimate, now);
            drop(waiters);
            arrived.map_err(|wait| (Arc::clone(queue), wait)).map(|()| {
                place.set_queue(Some(queue));
                Arc::clone(queue)
            })
        });
        arrived.map_err(|(queue, wait)| {
            self.remove_if_empty(&queue);
            wait
        })
    }

    /// Returns whether the queue is registered in this process.
    pub(crate) fn has(&self, queue: &Arc<BucketQueue>) -> bool {
        self.of_bucket(&queue.name, &queue.id).is_some_and(|found| Arc::ptr_eq(&found, queue))
    }

    pub(crate) fn remove_if_empty(&self, queue: &Arc<BucketQueue>) {
        self.with_registry(|registry| {
            let key = (queue.name.clone(), queue.id.clone());
            let found = registry.queues.get(&key).is_some_and(|found| Arc::ptr_eq(found, queue));
            if found && queue.waiters.lock().is_empty() {
                registry.queues.remove(&key);
            }
        });
    }
}
