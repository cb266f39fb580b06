//! Simple steps for tests of stores, which treat a bucket as a number.

use penstock::engine::batch::Kind;
use penstock::engine::cost::Cost;
use penstock::engine::limit::Limit;
use penstock::engine::operation::Verb;
use penstock::engine::state::{Lifetime, State};
use penstock::engine::time::Timestamp;
use penstock::store::remote::{RemoteBatch, RemoteOp, RemoteStep, Reply};
use penstock::store::{Batch, Step, Write};

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

impl Step for Toy {
    type Answer = Seen;

    fn run(&self, state: Option<State>, now: Timestamp, answer: &mut Seen) -> Write {
        *answer = Seen { word: state.map(State::word), now };
        let put = |word: u64, lifetime| {
            Write::Put(
                State::from_word(word & (u64::MAX >> 1)).expect("the top bit is off"),
                lifetime,
            )
        };
        match *self {
            Toy::Look => Write::Keep,
            Toy::Put(word, lifetime) => put(word, lifetime),
            Toy::Add(by, lifetime) => put(answer.word.unwrap_or(0).wrapping_add(by), lifetime),
            Toy::Break => panic!("a failing step"),
        }
    }

    /// Answers without a word, and with the instant until which the store has no room.
    fn refuse(&self, until: Timestamp, _: Timestamp, answer: &mut Seen) {
        *answer = Seen { word: None, now: until };
    }
}

impl RemoteStep for Toy {
    fn call(&self) -> RemoteOp {
        let (verb, kind, cost) = (Verb::Spend, Kind::Spend, Cost::ZERO);
        RemoteOp { verb, kind, shadow: false, cost, limit: Limit::Unlimited }
    }

    fn read(&self, reply: &Reply) -> Option<Seen> {
        Some(Seen { word: reply.found.map(State::word), now: reply.now })
    }
}

/// A batch of toys, each for the bucket at the same index.
pub struct Toys(pub Vec<Toy>);

impl Batch for Toys {
    type Answer = Vec<Seen>;

    fn run(&self, states: &[Option<State>], now: Timestamp, writes: &mut [Write]) -> Vec<Seen> {
        let mut seen = vec![Seen::default(); self.0.len()];
        for (index, toy) in self.0.iter().enumerate() {
            writes[index] = toy.run(states[index], now, &mut seen[index]);
        }
        seen
    }

    fn run_full(
        &self,
        states: &[Option<State>],
        full: &[Option<Timestamp>],
        now: Timestamp,
        writes: &mut [Write],
    ) -> Vec<Seen> {
        // The batch is all or nothing, so nothing is written.
        let seen = self.run(states, now, writes);
        writes.fill(Write::Keep);
        let refused = |(&until, seen): (&Option<Timestamp>, Seen)| {
            until.map_or(seen, |now| Seen { word: None, now })
        };
        full.iter().zip(seen).map(refused).collect()
    }

    fn give_back(&self, _: usize, _: State, _: State, _: Timestamp) -> Write {
        unreachable!("no toy denies")
    }
}

impl RemoteBatch for Toys {
    fn calls(&self) -> Vec<RemoteOp> {
        self.0.iter().map(RemoteStep::call).collect()
    }

    fn read(&self, replies: &[Reply]) -> Option<Vec<Seen>> {
        self.0.iter().zip(replies).map(|(toy, reply)| toy.read(reply)).collect()
    }
}
