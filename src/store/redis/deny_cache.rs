//! States of buckets that denied, so that repeated requests are denied without the server.
//!
//! The cache stores states instead of decisions. The step runs on them at the time of the call, so
//! the numbers equal the server's, and the first call that the state would allow is sent to the
//! server. A state is used for at most a second; then refunds and resets by other processes have
//! effect.

use hashbrown::HashMap;

use crate::clock::Stopwatch;
use crate::engine::answer::{Answer, Outcome};
use crate::engine::limit::Limit;
use crate::engine::state::State;
use crate::engine::time::{Nanos, Timestamp};
use crate::engine::verb::Verb;
use crate::store::remote::RemoteOp;
use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering};

/// The time for which a state is used.
const MAX_AGE: Nanos = Nanos::SECOND;

/// Buckets that denied, by their keyed hash.
#[derive(Debug)]
pub(super) struct DenyCache {
    /// The maximum number of buckets; 0 if the cache is disabled.
    max_buckets: usize,
    since: Stopwatch,
    denied: Mutex<HashMap<u64, Denied>>,
    /// The size of `denied`, so that checking an empty cache is one load.
    len: AtomicUsize,
    /// The number of changes by this process after which a denied call may be allowed.
    changes: AtomicU64,
    hits: AtomicU64,
}

/// A call that was sent to the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noted {
    bucket: u64,
    verb: Verb,
    /// The number of changes before.
    changes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Denied {
    state: State,
    /// The instant at which the server denied.
    now: Timestamp,
    /// The time at which the reply arrived.
    received_at: Nanos,
}

/// Returns whether the state that denied an earlier call can deny this one. Slots can be returned by
/// another process at any time.
pub(super) fn may_deny(operation: &RemoteOp) -> bool {
    operation.verb.decides() && matches!(operation.limit, Limit::Rate(_))
}

impl DenyCache {
    /// Creates an empty cache of at most `max_buckets`.
    pub(super) fn new(max_buckets: usize) -> DenyCache {
        DenyCache {
            max_buckets,
            since: Stopwatch::start(),
            denied: Mutex::default(),
            len: AtomicUsize::new(0),
            changes: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        }
    }

    /// Returns the number of changes for [`DenyCache::put`]; must be read before the call is sent.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Returns the state of a bucket that recently denied, and the server's time.
    #[inline]
    pub(super) fn get(&self, bucket: u64) -> Option<(State, Timestamp)> {
        // Relaxed: a missed hit costs one round trip.
        if self.len.load(Ordering::Relaxed) == 0 { None } else { self.find(bucket) }
    }

    fn find(&self, bucket: u64) -> Option<(State, Timestamp)> {
        let Denied { state, now, received_at } = *self.denied.lock().get(&bucket)?;
        // Measured from the arrival of the reply, so the server's clock is at least here.
        let age = Nanos::clamped(self.since.elapsed().get() - received_at.get());
        (age <= MAX_AGE).then(|| (state, now.saturating_add(age)))
    }

    /// Counts a call that was denied without the server.
    pub(super) fn count_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of calls that were denied without the server.
    pub(super) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Stores the state of a bucket that denied at `now`, unless a bucket has changed since
    /// `changes`.
    pub(super) fn put(&self, bucket: u64, state: State, now: Timestamp, changes: u64) {
        if self.max_buckets == 0 {
            return;
        }
        let received_at = self.since.elapsed();
        let mut denied = self.denied.lock();
        if self.changes() != changes {
            return;
        }
        if denied.len() >= self.max_buckets && !denied.contains_key(&bucket) {
            denied.retain(|_, one| received_at.get() - one.received_at.get() <= MAX_AGE.get());
            if denied.len() >= self.max_buckets {
                // All are recent. Each dropped state costs one round trip.
                denied.clear();
            }
        }
        denied.insert(bucket, Denied { state, now, received_at });
        self.len.store(denied.len(), Ordering::Relaxed);
    }

    /// Prepares for a call that is sent to the server.
    ///
    /// Returns `None` for slots, of which no state is kept.
    pub(super) fn on_submit(&self, bucket: u64, operation: &RemoteOp) -> Option<Noted> {
        let Limit::Rate(_) = operation.limit else { return None };
        let verb = operation.verb;
        if !verb.decides() {
            self.forget(bucket);
        }
        Some(Noted { bucket, verb, changes: self.changes() })
    }

    /// Keeps or drops the state of a bucket as the reply requires; `None` if there is no valid one.
    pub(super) fn on_reply(&self, noted: Option<Noted>, reply: Option<&Answer>) {
        let Some(Noted { bucket, verb, changes }) = noted else { return };
        match reply {
            // Another caller may have read the state before this change.
            _ if !verb.decides() => self.forget(bucket),
            Some(&Answer { found: Some(state), now, outcome: Outcome::Denied }) => {
                self.put(bucket, state, now, changes);
            }
            Some(_) if verb != Verb::Check => self.on_spend(bucket),
            _ => {}
        }
    }

    /// Drops a bucket with fewer tokens than before, so that the next denial has current numbers.
    #[inline]
    pub(super) fn on_spend(&self, bucket: u64) {
        // Relaxed: a stale state denies no call that the server would allow.
        if self.len.load(Ordering::Relaxed) > 0 {
            let mut denied = self.denied.lock();
            denied.remove(&bucket);
            self.len.store(denied.len(), Ordering::Relaxed);
        }
    }

    /// Drops a bucket before and after this process returns tokens to it.
    pub(super) fn forget(&self, bucket: u64) {
        self.change(|denied| {
            denied.remove(&bucket);
        });
    }

    /// Drops all buckets before and after this process clears the store.
    pub(super) fn clear(&self) {
        self.change(HashMap::clear);
    }

    fn change(&self, drop: impl FnOnce(&mut HashMap<u64, Denied>)) {
        if self.max_buckets == 0 {
            return;
        }
        let mut denied = self.denied.lock();
        // Release pairs with the Acquire in `changes`: a reply from before this change is not kept.
        self.changes.fetch_add(1, Ordering::Release);
        drop(&mut denied);
        self.len.store(denied.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Timestamp = Timestamp::ORIGIN;

    fn state() -> State {
        State::from_word(5).expect("a small word")
    }

    #[test]
    fn a_bucket_is_kept_until_it_changes() {
        let cache = DenyCache::new(10);
        let changes = cache.changes();
        cache.put(1, state(), AT, changes);
        let (kept, now) = cache.get(1).expect("kept");
        assert!(kept == state() && now >= AT);
        assert_eq!(cache.get(2), None);
        cache.forget(1);
        assert_eq!(cache.get(1), None);
        // A reply from before the change.
        cache.put(1, state(), AT, changes);
        assert_eq!(cache.get(1), None);
    }

    #[test]
    fn it_stays_within_its_size() {
        let cache = DenyCache::new(10);
        for number in 0..1000 {
            cache.put(number, state(), AT, cache.changes());
            assert!(cache.denied.lock().len() <= 10);
            assert!(cache.get(number).is_some());
        }
        let off = DenyCache::new(0);
        off.put(1, state(), AT, off.changes());
        assert_eq!(off.get(1), None);
    }
}
