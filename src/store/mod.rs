//! Where buckets are kept. A store moves states under keys; it knows no limit, decision, algorithm
//! or clock.

pub mod memory;
pub mod url;

use std::convert::Infallible;
use std::fmt;

use crate::engine::state::{Lifetime, State};
use crate::engine::time::Timestamp;

/// What a step leaves in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// What was there.
    Keep,
    /// A state, and how to tell when it is worthless.
    Put(State, Lifetime),
}

/// What is done to one bucket: from its old state to an answer and its new state.
pub trait Step {
    /// What the caller is told.
    type Answer: Default;

    /// Decides, and puts the answer into its place: moving an answer about costs as much as making
    /// it.
    ///
    /// Pure: a store may call it again, with the same state or another one, and use the last
    /// outcome only.
    fn run(&self, state: Option<State>, now: Timestamp, answer: &mut Self::Answer) -> Write;

    /// The same rule as numbers, for a store whose server runs it.
    fn script(&self) -> Script;

    /// The answer in a server's reply to [`Step::script`]; `None` if it is no such reply.
    fn read(&self, reply: &[i64]) -> Option<Self::Answer>;
}

/// What is done to several buckets at one instant, as one.
pub trait Batch {
    /// What the caller is told.
    type Answer;

    /// Decides. Pure, as [`Step::run`]. `states` has the buckets in order; each element of `writes`
    /// starts as `Keep`.
    fn run(&self, states: &[Option<State>], now: Timestamp, writes: &mut [Write]) -> Self::Answer;

    /// The same rules as numbers, one script for each bucket, for a store whose server runs them.
    fn scripts(&self) -> Vec<Script>;

    /// The answer in a server's replies to [`Batch::scripts`]; `None` if they are no such replies.
    fn read(&self, replies: &[Vec<i64>]) -> Option<Self::Answer>;
}

/// A rule as numbers: what a server needs to decide as [`Step::run`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script {
    /// Which rule.
    pub rule: &'static str,
    /// Its numbers, in the order that the rule's own script states.
    pub numbers: [i64; 8],
}

/// A store could not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// It cannot be reached.
    #[error("the store cannot be reached: {why}")]
    Unavailable {
        /// What was seen.
        why: String,
    },
    /// It did not answer in time.
    #[error("the store did not answer within {millis} ms")]
    Timeout {
        /// How long was waited.
        millis: u64,
    },
    /// It was closed.
    #[error("the limiter is closed")]
    Closed,
}

impl From<Infallible> for StoreError {
    fn from(never: Infallible) -> StoreError {
        match never {}
    }
}

/// A bucket within a batch.
#[derive(Debug)]
pub struct Bucket<'a, S> {
    /// The buckets of its limit.
    pub space: &'a S,
    /// The id, in canonical spelling.
    pub id: &'a str,
}

// Derived, these would ask it of `S` too.
impl<S> Clone for Bucket<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Bucket<'_, S> {}

/// What a store tells of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Buckets kept, those included that are worthless by now and not dropped yet.
    pub buckets: u64,
    /// Buckets that there is room for before the store grows.
    pub slots: u64,
    /// Bytes that the slots take.
    pub bytes: u64,
    /// Worthless buckets that were dropped.
    pub forgotten: u64,
    /// Buckets that were dropped while they still mattered, for want of room.
    pub evicted: u64,
}

/// Keeps one state for each bucket.
///
/// An implementer guarantees, and the contract suite tests each by its number:
///
/// 1. **One at a time.** No other call sees or changes a bucket between a step's reading and its
///    writing.
/// 2. **Nothing half-done.** A step that panics, and a call that fails, leave every bucket as it
///    was, but that a failed call over a network may have taken what it asked for (never more).
/// 3. **Exactly.** A state comes back bit for bit, until it is forgotten.
/// 4. **Forgetting is invisible.** A state is forgotten only from the end of its [`Lifetime`] on,
///    or when there is no room and it is counted as evicted. A call at a bucket that may have been
///    forgotten is judged no earlier than the latest instant at which a forgotten one ended: two
///    threads may read the clock in one order and come here in the other.
/// 5. **Apart.** Buckets of different spaces or ids never meet, and nobody who cannot see this
///    process's memory can find two ids that do.
/// 6. **Together.** In a batch every bucket is read and written at one instant, which is the same
///    for all.
/// 7. **Never raised by a lifetime.** The longest lifetime that a live bucket was ever put with is
///    the one that counts.
///
/// A store judges a call at the `now` it is given, raised as 4 demands; one that tells the time
/// itself, as a server may, passes its own to the step instead.
pub trait Store: Send + Sync {
    /// The buckets of one limit and algorithm, prepared once so that a call need not name them
    /// again.
    type Space: fmt::Debug + Send + Sync;

    /// Why it cannot answer; `Infallible` for a store that always can, so that its calls need not
    /// ask.
    type Error: Into<StoreError>;

    /// Prepares the buckets of the limit `prefix` (its number or name) under the algorithm
    /// `algorithm`.
    fn space(&self, algorithm: &str, prefix: &str) -> Self::Space;

    /// Hands the state of one bucket to `step`, and keeps what it returns.
    ///
    /// # Errors
    /// [`Store::Error`] if the store cannot answer; `answer` then means nothing.
    fn update<S: Step>(
        &self,
        bucket: Bucket<'_, Self::Space>,
        step: &S,
        now: Timestamp,
        answer: &mut S::Answer,
    ) -> Result<(), Self::Error>;

    /// Hands the states of several buckets to `batch`, and keeps what it returns. No bucket may be
    /// named twice.
    ///
    /// # Errors
    /// [`Store::Error`] if the store cannot answer.
    fn update_all<B: Batch>(
        &self,
        buckets: &[Bucket<'_, Self::Space>],
        batch: &B,
        now: Timestamp,
    ) -> Result<B::Answer, Self::Error>;

    /// Hands each bucket to the step beside it, one after the other; `told` is given each answer
    /// with its place.
    ///
    /// # Errors
    /// [`Store::Error`] if the store cannot answer; calls before the failing one stand.
    fn update_each<S: Step>(
        &self,
        calls: &[(Bucket<'_, Self::Space>, S)],
        now: Timestamp,
        mut told: impl FnMut(usize, &S::Answer),
    ) -> Result<(), Self::Error> {
        let mut answer = S::Answer::default();
        for (place, (bucket, step)) in calls.iter().enumerate() {
            self.update(*bucket, step, now, &mut answer)?;
            told(place, &answer);
        }
        Ok(())
    }

    /// Forgets one bucket; whether there was one.
    ///
    /// # Errors
    /// [`Store::Error`] if the store cannot answer.
    fn forget(&self, bucket: Bucket<'_, Self::Space>) -> Result<bool, Self::Error>;

    /// What there is to tell of the store.
    ///
    /// # Errors
    /// [`Store::Error`] if the store cannot answer.
    fn stats(&self) -> Result<Stats, Self::Error>;
}
