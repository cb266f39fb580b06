//! Stores, which map bucket keys to states. They do not know limits, decisions or algorithms.

pub mod any;
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;
pub mod remote;
#[cfg(unix)]
pub mod shared;
pub mod url;
pub mod url_parts;

use std::convert::Infallible;

use smallvec::{SmallVec, smallvec};

use crate::clock::Clock;
use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::answer::Answer;
pub use crate::engine::state::Write;
use crate::engine::state::{Lifetime, State, StateKind};
use crate::engine::time::{Now, Timeline, Timestamp};
use crate::hash::HashKey;
use crate::store::remote::RemoteOp;

/// The number of calls of `update_each` that share the work of tidying.
pub(crate) const TIDIED_EVERY: usize = 256;

/// A pure function from the state of one bucket to whether a call is allowed, and what it writes.
///
/// A store may run it several times, with the same state or another one, and uses only the last
/// outcome.
pub trait StoreStep {
    /// Decides.
    fn apply(&self, found: Option<State>, now: Timestamp) -> (bool, Write);

    /// Returns the same as a message, for a store whose server decides.
    fn call(&self) -> RemoteOp;

    /// Decides, and records what was found.
    #[inline(always)]
    fn run(&self, found: Option<State>, now: Timestamp, answer: &mut Answer) -> Write {
        let (allowed, write) = self.apply(found, now);
        *answer = Answer::new(found, now, allowed);
        write
    }

    /// Returns whether this decides what a server has answered as the server did.
    fn agrees(&self, reply: &Answer) -> bool {
        self.apply(reply.found, reply.now).0 == reply.allowed()
    }
}

/// The answers of a batch, in the order of its buckets.
pub type Answers = SmallVec<[Answer; 4]>;

/// A pure function from the states of several buckets to what becomes of a call on all of them.
pub trait Batch {
    /// Decides, under the same rules as [`StoreStep`]. `found` holds the states in the order of the
    /// buckets; each element of `writes` is `Keep` when the function is called. `full` is empty, or
    /// holds the instants before which a full store has no space for a bucket, on its timeline.
    fn apply(
        &self,
        found: &[Option<State>],
        full: &[Option<Timestamp>],
        now: Now,
        writes: &mut [Write],
    ) -> Answers;

    /// Returns the same as messages, in the order of the buckets, for a store whose server decides.
    fn calls(&self) -> Vec<RemoteOp>;

    /// Undoes the charge of bucket `index` because the batch was denied. The charge wrote the state
    /// `charged`; the bucket now has the state `found`.
    ///
    /// Only called by stores that charge one bucket after another. `now` must have been read after
    /// `found`, because tokens that have refilled since the charge must not be returned.
    fn give_back(&self, index: usize, charged: State, found: State, now: Timestamp) -> Write;

    /// Returns the answers to the batch from a server's replies, which tell about each bucket on its
    /// own; `None` if an outcome differs.
    fn read(&self, replies: &[Answer]) -> Option<Answers> {
        let now = Now::from(replies.first()?.now);
        let found: SmallVec<[Option<State>; 4]> = replies.iter().map(|reply| reply.found).collect();
        let mut writes: SmallVec<[Write; 4]> = smallvec![Write::Keep; replies.len()];
        let answers = self.apply(&found, &[], now, &mut writes);
        let agree = answers.len() == replies.len()
            && answers.iter().zip(replies).all(|(one, reply)| one.allowed() == reply.allowed());
        agree.then_some(answers)
    }
}

/// Why a store did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum StoreError {
    /// The store could not be reached; the call was not made.
    #[error("the store cannot be reached: {why}")]
    Unavailable { why: String },
    /// The server refused the client's credentials or permissions; the call was not made.
    #[error("the store refuses this client: {why}")]
    Refused { why: String },
    /// No reply arrived in time; the call may have been made.
    #[error("the store did not answer within {millis} ms")]
    Timeout { millis: u64 },
    /// The connection was lost before the reply arrived; the call may have been made.
    #[error("the connection to the store was lost before it answered: {why}")]
    ReplyLost { why: String },
    /// The reply is invalid; the call may have been made.
    #[error("{why}")]
    BadReply { why: &'static str },
    /// The store was closed; the call was not made.
    #[error("the limiter is closed")]
    Closed,
    /// The call would have to wait and may not ([`Wait::Never`]); it was not made.
    #[error("the call would have to wait")]
    WouldWait,
}

/// Whether a call may wait for a lock of another process or for a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It may wait.
    Allowed,
    /// It fails with [`StoreError::WouldWait`] instead, and no charge of it remains.
    Never,
}

impl StoreError {
    /// Returns whether the call may have been made although there is no valid reply.
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            StoreError::Timeout { .. }
            | StoreError::ReplyLost { .. }
            | StoreError::BadReply { .. } => true,
            StoreError::Unavailable { .. }
            | StoreError::Refused { .. }
            | StoreError::Closed
            | StoreError::WouldWait => false,
        }
    }
}

impl From<Infallible> for StoreError {
    fn from(never: Infallible) -> StoreError {
        match never {}
    }
}

/// The buckets of one limit under one algorithm, for every kind of store.
#[derive(Clone, Debug)]
pub struct Keyspace {
    /// The key of the hashes of ids.
    hash: HashKey,
    /// Whether that is [`HashKey::of_process`].
    is_in_process: bool,
    /// Secret number that is different for each store and keyspace: one id has a bucket in each.
    salt: u64,
    /// The kind of its states.
    pub(crate) kind: StateKind,
    /// The limit's number or name and the algorithm, for a store that keeps keys as text.
    text: Box<str>,
}

impl Keyspace {
    /// Prepares the buckets of the limit `prefix` (its number or name) under `algorithm`, in a
    /// store whose hash has the key `key`.
    pub fn new(key: HashKey, algorithm: AlgorithmName, prefix: &str) -> Keyspace {
        // The algorithm contains no colon, so no two pairs have the same text.
        let text = format!("{algorithm}:{prefix}");
        let (salt, kind) = (key.hash(text.as_bytes()), algorithm.definition().state);
        Keyspace { hash: key, is_in_process: false, salt, kind, text: text.into() }
    }

    /// Hashes ids with [`HashKey::of_process`], as overrides do, so that a call hashes its id once. Only
    /// for a store in the memory of this process.
    pub(crate) fn in_process(self) -> Keyspace {
        Keyspace { hash: HashKey::of_process(), is_in_process: true, ..self }
    }

    /// Returns the keyed hash that identifies the bucket of `id` within its store. Without the key, ids
    /// with the same hash cannot be constructed.
    #[inline(always)]
    pub(crate) fn hash(&self, id: &[u8]) -> u64 {
        self.hash.hash(id) ^ self.salt
    }

    /// Returns the hash of an id with [`HashKey::of_process`], if the buckets use it.
    #[inline(always)]
    pub(crate) fn id_hash(&self, id: &str) -> Option<u64> {
        self.is_in_process.then(|| self.hash.hash(id.as_bytes()))
    }

    /// `algorithm:prefix`, which identifies the keyspace.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// One bucket.
#[derive(Clone, Copy, Debug)]
pub struct Bucket<'a> {
    /// The buckets of its limit.
    pub keyspace: &'a Keyspace,
    /// The client's id, in canonical form.
    pub id: &'a str,
    /// The hash of the id with [`HashKey::of_process`], if it is known and the keyspace uses it.
    id_hash: Option<u64>,
    /// The timeline of its states.
    pub(crate) timeline: Timeline,
}

impl<'a> Bucket<'a> {
    /// Returns the bucket of an id in canonical form, on the steady timeline.
    pub const fn new(keyspace: &'a Keyspace, id: &'a str) -> Bucket<'a> {
        Bucket { keyspace, id, id_hash: None, timeline: Timeline::Steady }
    }

    /// Returns the bucket of the same id on a timeline. An id has one on each.
    #[inline(always)]
    #[must_use]
    pub const fn on(self, timeline: Timeline) -> Bucket<'a> {
        Bucket { timeline, ..self }
    }

    /// Returns the same bucket if the hash of the id with [`HashKey::of_process`] is known.
    #[inline(always)]
    pub(crate) fn hashed(self, id_hash: Option<u64>) -> Bucket<'a> {
        let id_hash = id_hash.filter(|_| self.keyspace.is_in_process);
        Bucket { id_hash, ..self }
    }

    /// Returns the keyed hash that identifies the bucket within its store.
    #[inline(always)]
    pub(crate) fn hash(&self) -> u64 {
        let hash = match self.id_hash {
            Some(hash) => hash ^ self.keyspace.salt,
            None => self.keyspace.hash(self.id.as_bytes()),
        };
        hash ^ of_timeline(self.timeline)
    }
}

/// Returns what distinguishes the buckets of one id on the two timelines.
#[inline(always)]
pub(crate) const fn of_timeline(timeline: Timeline) -> u64 {
    // An odd number of many bits, of which some are in every part of a hash that a store uses.
    0x9E37_79B9_7F4A_7C15 * timeline as u64
}

/// A store's statistics. `None` where a store cannot count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Buckets that are not full.
    pub buckets: Option<u64>,
    /// The number of buckets for which the store was created; `None` if it grows.
    pub capacity: Option<u64>,
    /// Buckets that fit before the store grows.
    pub slots: Option<u64>,
    /// Bytes that the slots take.
    pub bytes: Option<u64>,
    /// Full buckets that were dropped.
    pub forgotten: Option<u64>,
    /// Buckets that were evicted for lack of space although they were not full.
    pub evicted: Option<u64>,
    /// Calls that were decided in a bucket shared by several ids for lack of space.
    pub shared: Option<u64>,
    /// Calls that were refused for lack of space.
    pub refused: Option<u64>,
    /// Locks whose holder was killed before it had released them.
    pub recovered_locks: Option<u64>,
}

/// Keeps one state per bucket.
///
/// Implementations guarantee the following; the contract suite tests each by its number.
///
/// 1. **One at a time.** No other call sees or changes a bucket between a step's read and its
///    write.
/// 2. **No partial changes.** A step that panics and a call that fails leave every bucket
///    unchanged. The exception is a call whose reply is lost ([`StoreError::is_outcome_unknown`]):
///    it may have taken its cost, but no more.
/// 3. **Exact.** A state is returned bit for bit until it is forgotten.
/// 4. **Forgetting is invisible.** A state is forgotten at the end of its [`Lifetime`] or later, or
///    for lack of room and then counted as evicted. A call on a bucket that may have been forgotten
///    is decided no earlier than the latest end of a forgotten state: two threads may read the
///    clock in one order and reach the store in the other. A bucket that a step clears takes no room.
/// 5. **Separate.** Buckets of different keyspaces or ids do not share a state, except for hash
///    collisions, which cannot be constructed without access to this process's memory. A full store
///    may let new ids of one keyspace share a state, and counts each such call.
/// 6. **All or nothing.** A batch is decided at one instant for all of its buckets. A store that
///    can lock them all also reads and writes them at one instant. Any other charges one bucket
///    after another and gives the charges back on a denial: it never admits too much, and at most
///    one charge too many remains until the give-back, which a killed process leaves behind.
/// 7. **Lifetimes only grow.** The longest lifetime that a live bucket was written with applies.
/// 8. **Any word.** A state may be any word below 2^63, of any algorithm. A store reads of it only when it
///    ends, as [`Lifetime::end_of`] does: all bits under a lifetime of an instant, the upper 43 bits under
///    one of a tally, and of slots also whether the lower 30 bits are 0, so that none is held. A state
///    that is over when it is written may be forgotten at once.
///
/// A store decides a call at the `now` it is given, on the timeline of the bucket, raised as guarantee 4
/// requires. A server decides at its own time, which is that of a wall clock, on both timelines.
pub trait Store: Send + Sync {
    /// Why the store did not answer; `Infallible` for a store that always does.
    type Error: Into<StoreError>;

    /// Prepares the buckets of the limit `prefix` (its number or name) under `algorithm`.
    fn keyspace(&self, algorithm: AlgorithmName, prefix: &str) -> Keyspace;

    /// Returns whether some calls wait for a lock of another process or for a network.
    fn may_wait(&self) -> bool {
        true
    }

    /// Runs `step` on one bucket.
    ///
    /// # Errors
    /// [`Store::Error`] if the store does not answer, or would have to wait and `wait` forbids it.
    fn update<S: StoreStep>(
        &self,
        bucket: Bucket<'_>,
        step: &S,
        now: Now,
        wait: Wait,
    ) -> Result<Answer, Self::Error>;

    /// Runs `step` on the bucket that `bucket` shares while the store is full, or the `nth` of them if those of
    /// a batch share different ones. `None` if there is none.
    ///
    /// A slot may have been taken there before its own bucket had room.
    ///
    /// # Errors
    /// As [`Store::update`].
    fn update_shared<S: StoreStep>(
        &self,
        _bucket: Bucket<'_>,
        _nth: u64,
        _step: &S,
        _now: Now,
        _wait: Wait,
    ) -> Result<Option<Answer>, Self::Error> {
        Ok(None)
    }

    /// Runs `batch` on several different buckets. `clock` is read again for each give-back.
    ///
    /// # Errors
    /// As [`Store::update`].
    fn update_all<B: Batch>(
        &self,
        buckets: &[Bucket<'_>],
        batch: &B,
        now: Now,
        clock: &impl Clock,
        wait: Wait,
    ) -> Result<Answers, Self::Error>;

    /// Runs `count` independent steps in order; `call` returns the bucket and the step of an index,
    /// `each` receives every answer with its index. May wait. The store chooses how many it handles at
    /// a time, and makes no further calls after an error.
    #[inline(always)]
    fn update_each<'a, S: StoreStep>(
        &self,
        count: usize,
        call: impl Fn(usize) -> (Bucket<'a>, S),
        now: Now,
        mut each: impl FnMut(usize, Result<&Answer, StoreError>),
    ) {
        for index in 0..count {
            if index % TIDIED_EVERY == 0 {
                self.tidy(|| now);
            }
            let (bucket, step) = call(index);
            match self.update(bucket, &step, now, Wait::Allowed) {
                Ok(answer) => each(index, Ok(&answer)),
                Err(error) => return each(index, Err(error.into())),
            }
        }
    }

    /// Removes one bucket. Returns whether it existed.
    ///
    /// # Errors
    /// [`Store::Error`] if the store does not answer.
    fn forget(&self, bucket: Bucket<'_>) -> Result<bool, Self::Error>;

    /// Removes all buckets, including those of other processes. Returns how many there were.
    ///
    /// # Errors
    /// [`Store::Error`] if the store does not answer.
    fn clear(&self) -> Result<u64, Self::Error>;

    /// Returns the store's statistics.
    ///
    /// # Errors
    /// [`Store::Error`] if the store does not answer.
    fn stats(&self, now: Now) -> Result<Stats, Self::Error>;

    /// Does a little housekeeping, such as returning the memory of expired buckets. A limiter calls
    /// this once in some hundred calls. `now` reads the clock, which most stores need not do.
    fn tidy(&self, now: impl FnOnce() -> Now) {
        let _ = now;
    }

    /// Drops the buckets that have expired at `now`, and raises the lifetime of every other one
    /// that has a tally to at least `lifetime` of its state. A limiter calls this after a
    /// reload, so that decisions under a slower limit do not depend on other traffic.
    ///
    /// A store that drops each bucket exactly when it expires need not do anything.
    ///
    /// # Errors
    /// [`Store::Error`] if the store does not answer.
    fn raise_lifetimes(
        &self,
        now: Now,
        lifetime: &dyn Fn(State) -> Lifetime,
    ) -> Result<(), Self::Error> {
        let _ = (now, lifetime);
        Ok(())
    }
}
