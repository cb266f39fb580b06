//! A store that runs each step over and over, as a loop around a compare-and-swap would.

use std::convert::Infallible;

use penstock::engine::state::State;
use penstock::engine::time::{Nanos, Timestamp};
use penstock::store::memory::{HashKey, MemoryStore};
use penstock::store::{Batch, Bucket, Script, Stats, Step, Store, Write};

/// Stands for the store in shared memory: a step is run with the state that is there, with others
/// that lost a race, and again with the one that is there, which must give the same write. The
/// answer is that of the last run, so whatever the earlier ones left behind shows.
pub struct Rerun(MemoryStore);

impl Rerun {
    pub fn new() -> Rerun {
        Rerun(MemoryStore::new(None))
    }
}

/// States that another thread may have left meanwhile.
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

struct Again<'a, S>(&'a S);

impl<S: Step> Step for Again<'_, S> {
    type Answer = S::Answer;

    fn run(&self, state: Option<State>, now: Timestamp, answer: &mut S::Answer) -> Write {
        let first = self.0.run(state, now, answer);
        for other in others(state, now) {
            self.0.run(other, now.saturating_add(Nanos::SECOND), answer);
            assert_eq!(self.0.run(state, now, answer), first, "the same step, run again");
        }
        first
    }

    fn script(&self) -> Script {
        self.0.script()
    }

    fn read(&self, reply: &[i64]) -> Option<S::Answer> {
        self.0.read(reply)
    }
}

impl<B: Batch> Batch for Again<'_, B> {
    type Answer = B::Answer;

    fn run(&self, states: &[Option<State>], now: Timestamp, writes: &mut [Write]) -> B::Answer {
        self.0.run(states, now, writes);
        let first = writes.to_vec();
        for other in 0..others(None, now).len() {
            let others: Vec<_> = states.iter().map(|&state| others(state, now)[other]).collect();
            writes.fill(Write::Keep);
            self.0.run(&others, now.saturating_add(Nanos::SECOND), writes);
            writes.fill(Write::Keep);
            self.0.run(states, now, writes);
            assert_eq!(writes, first, "the same batch, run again");
        }
        writes.fill(Write::Keep);
        self.0.run(states, now, writes)
    }

    fn scripts(&self) -> Vec<Script> {
        self.0.scripts()
    }

    fn read(&self, replies: &[Vec<i64>]) -> Option<B::Answer> {
        self.0.read(replies)
    }
}

impl Store for Rerun {
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
        self.0.update(bucket, &Again(step), now, answer)
    }

    fn update_all<B: Batch>(
        &self,
        buckets: &[Bucket<'_, HashKey>],
        batch: &B,
        now: Timestamp,
    ) -> Result<B::Answer, Infallible> {
        self.0.update_all(buckets, &Again(batch), now)
    }

    fn forget(&self, bucket: Bucket<'_, HashKey>) -> Result<bool, Infallible> {
        self.0.forget(bucket)
    }

    fn stats(&self) -> Result<Stats, Infallible> {
        self.0.stats()
    }
}

/// A step that remembers being asked: what no store could run again.
struct Forgetful(std::cell::Cell<u64>);

impl Step for Forgetful {
    type Answer = ();

    fn run(&self, _: Option<State>, _: Timestamp, _: &mut ()) -> Write {
        self.0.set(self.0.get() + 1);
        Write::Put(
            State::from_word(self.0.get()).expect("a small number"),
            penstock::engine::state::Lifetime::INSTANT,
        )
    }

    fn script(&self) -> Script {
        Script { rule: "none", numbers: [0; 8] }
    }

    fn read(&self, _: &[i64]) -> Option<()> {
        None
    }
}

#[test]
#[should_panic(expected = "the same step, run again")]
fn a_step_that_remembers_being_asked_is_found() {
    let store = Rerun::new();
    let space = store.space("toy", "a");
    let bucket = Bucket { space: &space, id: "a" };
    let Ok(()) = store.update(bucket, &Forgetful(Default::default()), Timestamp::ORIGIN, &mut ());
}
