//! A broken store: it believes every clock reading, however late it comes.

use std::convert::Infallible;

use penstock::engine::state::State;
use penstock::engine::time::Timestamp;
use penstock::store::memory::{HashKey, MemoryStore};
use penstock::store::{Batch, Bucket, Script, Stats, Step, Store, Write};

/// The memory store without its floor: a call is judged at the instant that its caller read, even
/// where a bucket was forgotten that ended later. What a test finds here it would find in a store
/// that broke the second half of promise 4.
pub struct WithoutFloor(pub MemoryStore);

/// A step, and what its caller's clock showed.
struct AsRead<'a, S>(&'a S, Timestamp);

impl<S: Step> Step for AsRead<'_, S> {
    type Answer = S::Answer;

    fn run(&self, state: Option<State>, _: Timestamp, answer: &mut S::Answer) -> Write {
        self.0.run(state, self.1, answer)
    }

    fn script(&self) -> Script {
        self.0.script()
    }

    fn read(&self, reply: &[i64]) -> Option<S::Answer> {
        self.0.read(reply)
    }
}

impl<B: Batch> Batch for AsRead<'_, B> {
    type Answer = B::Answer;

    fn run(&self, states: &[Option<State>], _: Timestamp, writes: &mut [Write]) -> B::Answer {
        self.0.run(states, self.1, writes)
    }

    fn scripts(&self) -> Vec<Script> {
        self.0.scripts()
    }

    fn read(&self, replies: &[Vec<i64>]) -> Option<B::Answer> {
        self.0.read(replies)
    }
}

impl Store for WithoutFloor {
    type Space = HashKey;
    type Error = Infallible;

    fn space(&self, algorithm: &str, prefix: &str) -> HashKey {
        self.0.space(algorithm, prefix)
    }

    fn update<S: Step>(
        &self,
        bucket: Bucket<'_, HashKey>,
        step: &S,
        now: Timestamp,
        answer: &mut S::Answer,
    ) -> Result<(), Infallible> {
        self.0.update(bucket, &AsRead(step, now), now, answer)
    }

    fn update_all<B: Batch>(
        &self,
        buckets: &[Bucket<'_, HashKey>],
        batch: &B,
        now: Timestamp,
    ) -> Result<B::Answer, Infallible> {
        self.0.update_all(buckets, &AsRead(batch, now), now)
    }

    fn forget(&self, bucket: Bucket<'_, HashKey>) -> Result<bool, Infallible> {
        self.0.forget(bucket)
    }

    fn stats(&self) -> Result<Stats, Infallible> {
        self.0.stats()
    }
}
