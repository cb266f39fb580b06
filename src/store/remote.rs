//! Steps as messages, for stores whose server decides.
//!
//! The server decides on its state and returns that state and the instant of the decision. The
//! client runs the same step on both to compute the complete answer, and compares the results, so
//! that any disagreement between the two implementations is detected.

use crate::engine::state::State;
use crate::engine::time::{Nanos, Timestamp};
use crate::store::{Batch, Step, StoreError};

/// What a server does to a bucket. The numbers are part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WireVerb {
    /// Take the cost if the bucket has enough tokens.
    Spend = 1,
    /// Decide as `Spend`, and write nothing.
    Check = 2,
    /// Return the cost.
    Refund = 3,
    /// Take the cost even if the bucket does not have it yet, all or nothing.
    Charge = 4,
    /// Take as much of the cost as the bucket can be overdrawn by.
    ChargePartial = 5,
}

/// The role of an operation in a batch. The numbers are part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WireKind {
    /// Takes part in the decision, and is spent if the batch is allowed.
    Spend = 1,
    /// Takes part in the decision, and is never spent.
    Check = 2,
    /// Does not take part in the decision; spent if the batch is allowed and the bucket has enough
    /// tokens.
    SpendOnly = 3,
}

/// Where a window starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireAnchor {
    /// At a bucket's first request.
    First,
    /// At multiples of the period, plus `phase`.
    Aligned {
        /// The phase, below the period.
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
    /// The kind of the operation.
    pub verb: WireVerb,
    /// Its role in a batch; `Spend` if it is alone.
    pub kind: WireKind,
    /// Whether the limit is in shadow mode, so that it never denies a batch.
    pub shadow: bool,
    /// The cost in tokens.
    pub cost: i64,
    /// The limit.
    pub limit: WireLimit,
}

impl WireOp {
    /// Returns whether its denial denies the batch.
    pub fn decides(&self) -> bool {
        // Refunds and charges are independent of each other.
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
    /// Whether it allowed the operation.
    pub allowed: bool,
}

/// A step that can be sent to a server.
pub trait RemoteStep: Step {
    /// The operation to send.
    fn call(&self) -> WireOp;

    /// Computes the answer from the server's reply; returns `None` if the outcomes differ.
    fn read(&self, reply: &Reply) -> Option<Self::Answer>;
}

/// A batch that can be sent to a server.
pub trait RemoteBatch: Batch {
    /// The operations to send, in the order of the buckets.
    fn calls(&self) -> Vec<WireOp>;

    /// Computes the answer from the server's replies; returns `None` if an outcome differs.
    fn read(&self, replies: &[Reply]) -> Option<Self::Answer>;
}

/// A call to a server: the key and operation of each bucket, which are decided together.
#[derive(Clone, Debug)]
pub struct RemoteCall {
    /// Keyspace text, id and operation of each bucket.
    pub ops: Vec<(Box<str>, Box<str>, WireOp)>,
    /// The instant to decide at; `None` for the server's own time.
    pub now: Option<Timestamp>,
}

/// Receives the replies, in the order of the operations, on any thread.
pub type Completion = Box<dyn FnOnce(Result<Vec<Reply>, StoreError>) + Send>;

/// A store whose server decides. A synchronous caller submits a call and waits for its completion;
/// an event loop does not wait.
pub trait RemoteStore: Send + Sync {
    /// Returns whether one node of the server has all buckets of `call`, as [`RemoteStore::submit`]
    /// requires. Use [`Store::update_all`](crate::store::Store::update_all) otherwise.
    fn is_one_call(&self, call: &RemoteCall) -> bool {
        let _ = call;
        true
    }

    /// Sends `call`. Never waits; `done` is called once.
    fn submit(&self, call: RemoteCall, done: Completion);
}
