//! Steps that a reader can follow without knowing any limit: a bucket holds a number.

use penstock::engine::state::{Lifetime, State};
use penstock::engine::time::Timestamp;
use penstock::store::{Batch, Script, Step, Write};

/// What is done to a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toy {
    /// Nothing.
    Look,
    /// It becomes this word, below 2^63.
    Put(u64, Lifetime),
    /// So much is added; a bucket that was never used counts from 0.
    Add(u64, Lifetime),
    /// Nothing can be said: the step panics, and a server has no reply.
    Break,
}

/// What a toy tells: the word before, and the instant at which it was judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub word: Option<u64>,
    pub judged: Timestamp,
}

impl Toy {
    /// The name of the rule in a script.
    pub const RULE: &'static str = "toy";

    /// The toy of these numbers.
    pub fn of(numbers: [i64; 8]) -> Toy {
        let lifetime = Lifetime::from_bits(numbers[2] as u64);
        match numbers[0] {
            0 => Toy::Look,
            1 => Toy::Put(numbers[1] as u64, lifetime),
            2 => Toy::Add(numbers[1] as u64, lifetime),
            _ => Toy::Break,
        }
    }
}

impl Step for Toy {
    type Answer = Seen;

    fn run(&self, state: Option<State>, now: Timestamp, answer: &mut Seen) -> Write {
        *answer = Seen { word: state.map(State::word), judged: now };
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
            Toy::Break => panic!("a step that breaks"),
        }
    }

    fn script(&self) -> Script {
        let (verb, word, lifetime) = match *self {
            Toy::Look => (0, 0, 0),
            Toy::Put(word, lifetime) => (1, word as i64, lifetime.bits() as i64),
            Toy::Add(by, lifetime) => (2, by as i64, lifetime.bits() as i64),
            Toy::Break => (3, 0, 0),
        };
        Script { rule: Toy::RULE, numbers: [verb, word, lifetime, 0, 0, 0, 0, 0] }
    }

    fn read(&self, reply: &[i64]) -> Option<Seen> {
        let &[known, word, judged] = reply else { return None };
        Some(Seen {
            word: (known != 0).then_some(word as u64),
            judged: Timestamp::new(judged).ok()?,
        })
    }
}

/// Several toys, each for the bucket at its place.
pub struct Toys(pub Vec<Toy>);

impl Batch for Toys {
    type Answer = Vec<Seen>;

    fn run(&self, states: &[Option<State>], now: Timestamp, writes: &mut [Write]) -> Vec<Seen> {
        let mut seen = vec![Seen::default(); self.0.len()];
        for (place, toy) in self.0.iter().enumerate() {
            writes[place] = toy.run(states[place], now, &mut seen[place]);
        }
        seen
    }

    fn scripts(&self) -> Vec<Script> {
        self.0.iter().map(Step::script).collect()
    }

    fn read(&self, replies: &[Vec<i64>]) -> Option<Vec<Seen>> {
        self.0.iter().zip(replies).map(|(toy, reply)| toy.read(reply)).collect()
    }
}
