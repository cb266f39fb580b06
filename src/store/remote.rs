//! A step as a message, for a store whose server decides.
//!
//! The server runs the rule on the state it holds and returns that state and the instant it used.
//! The client then runs the same step on both to compute the complete answer, and compares
//! verdicts: two implementations that disagree are found at once.

use crate::engine::state::State;
use crate::engine::time::{Nanos, Timestamp};
use crate::store::{Batch, Step, StoreError};

/// What a server does to a bucket. The numbers are the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WireVerb {
    /// Take the cost if the bucket has it.
    Spend = 1,
    /// Decide as `Spend`, and write nothing.
    Check = 2,
    /// Return the cost.
    Refund = 3,
    /// Take the cost although the bucket may not have it yet; all or nothing.
    Charge = 4,
    /// Take as much of the cost as the bucket can owe.
    ChargePartial = 5,
}

/// The part of one operation in a batch. The numbers are the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WireKind {
    /// Decides, and is spent if all that decide are allowed.
    Spend = 1,
    /// Decides, and is never spent.
    Check = 2,
    /// Does not decide; is spent if it has room when the others are allowed.
    SpendOnly = 3,
}

/// Where a window starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireAnchor {
    /// At a bucket's first request.
    First,
    /// At multiples of the period, shifted by `phase`.
    Aligned {
        /// The shift, below the period.
        phase: Nanos,
    },
}

/// The parameters of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the parameters of the algorithms")]
pub enum WireLimit {
    TokenBucket { burst: i64, emission_interval: Nanos },
    LeakyBucket { size: i64, drip_rate: Nanos, drip_size: i64 },
    FixedWindow { count: i64, period: Nanos, anchor: WireAnchor },
    FixedRateWindow { count: i64, period: Nanos, burst: i64, anchor: WireAnchor },
    Unlimited,
}

/// One operation on one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireOp {
    /// What is done.
    pub verb: WireVerb,
    /// Its part in a batch; `Spend` if it is alone.
    pub kind: WireKind,
    /// Whether the limit is in shadow mode, so that it never denies a batch.
    pub shadow: bool,
    /// Tokens.
    pub cost: i64,
    /// The limit.
    pub limit: WireLimit,
}

impl WireOp {
    /// Whether its denial denies the batch that it is part of.
    pub fn decides(&self) -> bool {
        // Refunds and charges are each on their own.
        matches!(self.verb, WireVerb::Spend | WireVerb::Check)
            && self.kind != WireKind::SpendOnly
            && !self.shadow
    }
}

/// A server's reply about one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The state that the server found.
    pub found: Option<State>,
    /// The instant at which it decided.
    pub now: Timestamp,
    /// Its verdict.
    pub allowed: bool,
}

/// A step that can be sent to a server.
pub trait RemoteStep: Step {
    /// The operation to send.
    fn call(&self) -> WireOp;

    /// Computes the answer from the server's reply; `None` if the verdicts differ.
    fn read(&self, reply: &Reply) -> Option<Self::Answer>;
}

/// A batch that can be sent to a server.
pub trait RemoteBatch: Batch {
    /// The operations to send, in the order of the buckets.
    fn calls(&self) -> Vec<WireOp>;

    /// Computes the answer from the server's replies; `None` if a verdict differs.
    fn read(&self, replies: &[Reply]) -> Option<Self::Answer>;
}

/// A call to a server: each bucket's key and operation. All are decided as one.
#[derive(Clone, Debug)]
pub struct RemoteCall {
    /// Keyspace text, id and operation of each bucket.
    pub ops: Vec<(Box<str>, Box<str>, WireOp)>,
    /// The instant to decide at; `None` for the server's own time.
    pub now: Option<Timestamp>,
}

/// Receives the replies, in the order of the operations, on whichever thread they arrive.
pub type Completion = Box<dyn FnOnce(Result<Vec<Reply>, StoreError>) + Send>;

/// A store whose server decides. A synchronous caller submits a call and waits for its completion;
/// an event loop submits it and goes on.
pub trait RemoteStore: Send + Sync {
    /// Whether all buckets of `call` can be decided at one place, as [`RemoteStore::submit`] requires.
    /// [`Store::update_all`](crate::store::Store::update_all) decides any others.
    fn is_one_call(&self, call: &RemoteCall) -> bool {
        let _ = call;
        true
    }

    /// Sends `call`. Never waits; `done` is called once.
    fn submit(&self, call: RemoteCall, done: Completion);
}
