//! Simple steps for tests of stores, which treat a bucket as a number.

use penstock::engine::answer::{Answer, Outcome};
use penstock::engine::batch::Kind;
use penstock::engine::cost::Cost;
use penstock::engine::limit::Limit;
use penstock::engine::state::{Lifetime, State};
use penstock::engine::time::{Now, Timestamp};
use penstock::engine::verb::Verb;
use penstock::store::remote::RemoteOp;
use penstock::store::{Answers, Batch, StoreStep, Write};

/// An operation on a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toy {
    /// Reads the number.
    Look,
    /// Stores a word below 2^63.
    Put(u64, Lifetime),
    /// Adds to the number. An unused bucket is 0.
    Add(u64, Lifetime),
    /// Fails: the step panics.
    Break,
}

/// The answer of a toy: the previous word, and the instant at which the call was decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub word: Option<u64>,
    pub now: Timestamp,
}

/// Returns whether a toy sends this operation. A server decides about limits only, so toys send one
/// that no limit sends.
pub fn is_toy(operation: &RemoteOp) -> bool {
    operation.limit.is_unlimited()
}

impl From<Answer> for Seen {
    /// Without a word, and with the instant until which the store has no room, if it refused.
    fn from(answer: Answer) -> Seen {
        match answer.outcome {
            Outcome::Refused => Seen { word: None, now: answer.found.expect("an end").instant() },
            _ => Seen { word: answer.found.map(State::word), now: answer.now },
        }
    }
}

impl StoreStep for Toy {
    fn apply(&self, state: Option<State>, _: Timestamp) -> (bool, Write) {
        let put = |word: u64, lifetime| {
            Write::Put(
                State::from_word(word & (u64::MAX >> 1)).expect("the top bit is off"),
                lifetime,
            )
        };
        let write = match *self {
            Toy::Look => Write::Keep,
            Toy::Put(word, lifetime) => put(word, lifetime),
            Toy::Add(by, lifetime) => put(state.map_or(0, State::word).wrapping_add(by), lifetime),
            Toy::Break => panic!("a failing step"),
        };
        (true, write)
    }

    fn call(&self) -> RemoteOp {
        let (verb, kind, cost) = (Verb::Spend, Kind::Spend, Cost::ZERO);
        RemoteOp { verb, kind, shadow: false, cost, limit: Limit::Unlimited }
    }
}

/// A batch of toys, each for the bucket at the same index.
pub struct Toys(pub Vec<Toy>);

impl Batch for Toys {
    fn apply(
        &self,
        states: &[Option<State>],
        full: &[Option<Timestamp>],
        now: Now,
        writes: &mut [Write],
    ) -> Answers {
        let (mut answers, now) = (Answers::new(), now.steady);
        for (index, toy) in self.0.iter().enumerate() {
            let (_, write) = toy.apply(states[index], now);
            writes[index] = write;
            answers.push(match full.get(index) {
                Some(&Some(until)) => Answer::refused(until, now),
                _ => Answer::new(states[index], now, true),
            });
        }
        if full.iter().any(Option::is_some) {
            // The batch is all or nothing, so nothing is written.
            writes.fill(Write::Keep);
        }
        answers
    }

    fn give_back(&self, _: usize, _: State, _: State, _: Timestamp) -> Write {
        unreachable!("no toy denies")
    }

    fn calls(&self) -> Vec<RemoteOp> {
        self.0.iter().map(StoreStep::call).collect()
    }
}
