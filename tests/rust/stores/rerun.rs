//! A store without locks, which has only a compare-and-swap per bucket, like a table in shared memory.
//!
//! A step runs in a compare-and-swap loop, and runs again if another thread was faster. A batch charges
//! one bucket after another, and returns the charges if one denies.

use std::convert::Infallible;
use std::sync::Mutex;

use penstock::clock::Clock;
use penstock::engine::algorithm::name::AlgorithmName;
use penstock::engine::state::{Lifetime, State};
use penstock::engine::time::{Nanos, Timestamp};
use penstock::store::memory::MemoryStore;
use penstock::store::remote::{RemoteBatch, RemoteOp, RemoteStep, Reply};
use penstock::store::{Batch, Bucket, Keyspace, Stats, Step, Store, Write};

/// A store that reads and swaps the state of a bucket in separate calls to a memory store. Every step
/// also runs on other states before its result is used, as if it had lost races.
pub struct Rerun {
    store: MemoryStore,
    /// Called before each swap of a batch.
    before_swap: Mutex<Hook>,
}

type Hook = Box<dyn FnMut(usize) + Send>;

impl Rerun {
    pub fn new() -> Rerun {
        Rerun { store: MemoryStore::new(None), before_swap: Mutex::new(Box::new(|_| {})) }
    }

    /// Sets a hook that is called before each swap of a batch, with the index of the bucket.
    pub fn before_swap(&self, hook: impl FnMut(usize) + Send + 'static) {
        *self.before_swap.lock().expect("a lock") = Box::new(hook);
    }

    fn pause(&self, index: usize) {
        // Batches of other threads and calls within the hook are not paused.
        if let Ok(mut hook) = self.before_swap.try_lock() {
            hook(index);
        }
    }

    /// Returns the state of a bucket, and the instant at which a call on it is decided.
    fn read(&self, bucket: Bucket<'_>, now: Timestamp) -> (Option<State>, Timestamp) {
        let mut read = (None, now);
        let Ok(()) = self.store.update(bucket, &Primitive::Read, now, &mut read);
        read
    }

    /// Writes if the bucket still has the state `expected`. Returns whether it did.
    fn swap(
        &self,
        bucket: Bucket<'_>,
        expected: Option<State>,
        write: Write,
        now: Timestamp,
    ) -> bool {
        let mut read = (None, now);
        let swap = Primitive::Swap(expected, write);
        let Ok(()) = self.store.update(bucket, &swap, now, &mut read);
        read.0 == expected
    }

    /// Returns the charges, in reverse order.
    fn return_charges<B: Batch>(&self, charges: Vec<Charge<'_>>, batch: &B, clock: &impl Clock) {
        for charge in charges.into_iter().rev() {
            self.pause(charge.index);
            let Charge { index, bucket, before, after, lifetime } = charge;
            let mut found = Some(after);
            // Exact if there was no other call in between. A new bucket becomes a full one.
            let full = Write::Put(State::from_instant(Timestamp::ORIGIN), Lifetime::INSTANT);
            let undo = before.map_or(full, |state| Write::Put(state, lifetime));
            if self.swap(bucket, found, undo, clock.now()) {
                continue;
            }
            loop {
                found = self.read(bucket, Timestamp::ORIGIN).0;
                // A bucket that was forgotten or reset no longer has the charge.
                let Some(state) = found else { break };
                let now = clock.now();
                let write = batch.give_back(index, after, state, now);
                if write == Write::Keep || self.swap(bucket, found, write, now) {
                    break;
                }
            }
        }
    }
}

/// A charged bucket of a batch.
struct Charge<'a> {
    index: usize,
    bucket: Bucket<'a>,
    before: Option<State>,
    after: State,
    lifetime: Lifetime,
}

/// The two operations of this store on a bucket.
enum Primitive {
    Read,
    Swap(Option<State>, Write),
}

impl Step for Primitive {
    type Answer = (Option<State>, Timestamp);

    fn run(&self, state: Option<State>, now: Timestamp, answer: &mut Self::Answer) -> Write {
        *answer = (state, now);
        match *self {
            Primitive::Swap(expected, write) if expected == state => write,
            _ => Write::Keep,
        }
    }

    fn refuse(&self, _: Timestamp, _: Timestamp, _: &mut Self::Answer) {
        unreachable!("this store grows without bound")
    }
}

impl RemoteStep for Primitive {
    fn call(&self) -> RemoteOp {
        unreachable!("this store has no server")
    }

    fn read(&self, _: &Reply) -> Option<Self::Answer> {
        None
    }
}

/// Returns states that another thread may have written.
fn others(state: Option<State>, now: Timestamp) -> [Option<State>; 6] {
    let later = now.saturating_add(Nanos::SECOND);
    [
        None,
        State::from_word(0),
        State::from_word(u64::MAX >> 1),
        state.and_then(|state| State::from_word(state.word() ^ 1)),
        Some(State::from_instant(later)),
        Some(State::from_tally(now, 1)),
    ]
}

/// Runs a step as if it had lost several races. The answer is reused, so a step that depends on its
/// previous content is detected.
fn run<S: Step>(step: &S, state: Option<State>, now: Timestamp, answer: &mut S::Answer) -> Write {
    let first = step.run(state, now, answer);
    for other in others(state, now) {
        step.run(other, now.saturating_add(Nanos::SECOND), answer);
        assert_eq!(
            step.run(state, now, answer),
            first,
            "a repeated step must have the same result"
        );
    }
    first
}

impl Store for Rerun {
    type Error = Infallible;

    fn keyspace(&self, algorithm: AlgorithmName, prefix: &str) -> Keyspace {
        self.store.keyspace(algorithm, prefix)
    }

    fn update<S: RemoteStep>(
        &self,
        bucket: Bucket<'_>,
        step: &S,
        now: Timestamp,
        answer: &mut S::Answer,
    ) -> Result<(), Infallible> {
        loop {
            let (found, now) = self.read(bucket, now);
            let write = run(step, found, now, answer);
            if write == Write::Keep || self.swap(bucket, found, write, now) {
                return Ok(());
            }
        }
    }

    fn update_all<B: RemoteBatch>(
        &self,
        buckets: &[Bucket<'_>],
        batch: &B,
        now: Timestamp,
        clock: &impl Clock,
    ) -> Result<B::Answer, Infallible> {
        'again: loop {
            let read: Vec<_> = buckets.iter().map(|&bucket| self.read(bucket, now)).collect();
            let now = read.iter().map(|&(_, now)| now).fold(now, Timestamp::max);
            let mut states: Vec<_> = read.iter().map(|&(state, _)| state).collect();
            let mut writes = vec![Write::Keep; buckets.len()];
            let mut answer = batch.run(&states, now, &mut writes);
            let mut charges: Vec<Charge<'_>> = Vec::new();
            let mut index = 0;
            while index < buckets.len() {
                let bucket = buckets[index];
                self.pause(index);
                let write = writes[index];
                if write == Write::Keep || self.swap(bucket, states[index], write, now) {
                    if let Write::Put(after, lifetime) = write {
                        let before = states[index];
                        charges.push(Charge { index, bucket, before, after, lifetime });
                    }
                    index += 1;
                    continue;
                }
                // Another thread was faster: decide again with its state.
                states[index] = self.read(bucket, now).0;
                let charged = writes[..index].to_vec();
                writes.fill(Write::Keep);
                answer = batch.run(&states, now, &mut writes);
                if writes[..index] != charged[..] {
                    let is_denied = !writes.iter().any(|write| matches!(write, Write::Put(..)));
                    self.return_charges(charges, batch, clock);
                    if is_denied {
                        return Ok(answer);
                    }
                    continue 'again;
                }
            }
            return Ok(answer);
        }
    }

    fn forget(&self, bucket: Bucket<'_>) -> Result<bool, Infallible> {
        self.store.forget(bucket)
    }

    fn stats(&self, now: Timestamp) -> Result<Stats, Infallible> {
        self.store.stats(now)
    }
}

/// A step with side effects, which this kind of store cannot support.
struct CountingStep(std::cell::Cell<u64>);

impl Step for CountingStep {
    type Answer = ();

    fn run(&self, _: Option<State>, _: Timestamp, _: &mut ()) -> Write {
        self.0.set(self.0.get() + 1);
        Write::Put(State::from_word(self.0.get()).expect("a small number"), Lifetime::INSTANT)
    }

    fn refuse(&self, _: Timestamp, _: Timestamp, _: &mut ()) {}
}

#[test]
#[should_panic(expected = "a repeated step must have the same result")]
fn a_step_with_side_effects_is_detected() {
    run(&CountingStep(Default::default()), None, Timestamp::ORIGIN, &mut ());
}
