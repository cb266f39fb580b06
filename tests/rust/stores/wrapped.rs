//! A wrapper around the memory store, with which a test changes one behavior. A change of the [`Store`]
//! trait affects only this file.

use std::convert::Infallible;

use penstock::clock::Clock;
use penstock::engine::algorithm::name::AlgorithmName;
use penstock::engine::answer::Answer;
use penstock::engine::state::{Lifetime, State};
use penstock::engine::time::{Now, Timestamp};
use penstock::store::memory::MemoryStore;
use penstock::store::remote::RemoteOp;
use penstock::store::{Answers, Batch, Bucket, Keyspace, Stats, Store, StoreStep, Wait, Write};

/// Runs a step or a batch at an instant, and returns its writes.
pub type Decide<'a> = dyn FnMut(Now) -> Vec<Write> + 'a;

/// The behavior of a wrapper.
pub trait Around: Send + Sync {
    /// Runs a call on these buckets.
    fn call<T>(&self, _buckets: &[Bucket<'_>], call: impl FnOnce() -> T) -> T {
        call()
    }

    /// Runs a step or a batch at the instant that is passed to `decide`. The store would decide at
    /// `now`, and `asked` is the caller's clock reading.
    fn decide(
        &self,
        _buckets: &[Bucket<'_>],
        now: Now,
        _asked: Now,
        decide: &mut Decide<'_>,
    ) -> Vec<Write> {
        decide(now)
    }
}

/// A memory store with the behavior `A` around its steps.
pub struct Wrapped<A> {
    pub store: MemoryStore,
    pub around: A,
}

struct Inside<'a, S, A> {
    inner: &'a S,
    around: &'a A,
    buckets: &'a [Bucket<'a>],
    asked: Now,
}

impl<S: StoreStep, A: Around> StoreStep for Inside<'_, S, A> {
    fn apply(&self, state: Option<State>, now: Timestamp) -> (bool, Write) {
        let mut allowed = false;
        let mut run = |now: Now| {
            let (is_allowed, write) = self.inner.apply(state, now.steady);
            allowed = is_allowed;
            vec![write]
        };
        let write = self.around.decide(self.buckets, now.into(), self.asked, &mut run)[0];
        (allowed, write)
    }

    fn call(&self) -> RemoteOp {
        self.inner.call()
    }
}

impl<B: Batch, A: Around> Batch for Inside<'_, B, A> {
    fn apply(
        &self,
        states: &[Option<State>],
        full: &[Option<Timestamp>],
        now: Now,
        writes: &mut [Write],
    ) -> Answers {
        let mut answers = None;
        let mut run = |now| {
            writes.fill(Write::Keep);
            answers = Some(self.inner.apply(states, full, now, writes));
            writes.to_vec()
        };
        self.around.decide(self.buckets, now, self.asked, &mut run);
        answers.expect("a batch runs at least once")
    }

    fn give_back(&self, index: usize, charged: State, found: State, now: Timestamp) -> Write {
        self.inner.give_back(index, charged, found, now)
    }

    fn calls(&self) -> Vec<RemoteOp> {
        self.inner.calls()
    }
}

impl<A: Around> Store for Wrapped<A> {
    type Error = Infallible;

    fn keyspace(&self, algorithm: AlgorithmName, prefix: &str) -> Keyspace {
        self.store.keyspace(algorithm, prefix)
    }

    fn update<S: StoreStep>(
        &self,
        bucket: Bucket<'_>,
        step: &S,
        now: Now,
        wait: Wait,
    ) -> Result<Answer, Infallible> {
        let step = Inside { inner: step, around: &self.around, buckets: &[bucket], asked: now };
        self.around.call(&[bucket], || self.store.update(bucket, &step, now, wait))
    }

    fn update_all<B: Batch>(
        &self,
        buckets: &[Bucket<'_>],
        batch: &B,
        now: Now,
        clock: &impl Clock,
        wait: Wait,
    ) -> Result<Answers, Infallible> {
        let batch = Inside { inner: batch, around: &self.around, buckets, asked: now };
        self.around.call(buckets, || self.store.update_all(buckets, &batch, now, clock, wait))
    }

    fn forget(&self, bucket: Bucket<'_>) -> Result<bool, Infallible> {
        self.store.forget(bucket)
    }

    fn clear(&self) -> Result<u64, Infallible> {
        self.store.clear()
    }

    fn tidy(&self, now: impl FnOnce() -> Now) {
        self.store.tidy(now);
    }

    fn raise_lifetimes(
        &self,
        now: Now,
        lifetime: &dyn Fn(State) -> Lifetime,
    ) -> Result<(), Infallible> {
        self.store.raise_lifetimes(now, lifetime)
    }

    fn stats(&self, now: Now) -> Result<Stats, Infallible> {
        self.store.stats(now)
    }
}
