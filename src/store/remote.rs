//! Steps as messages, for stores whose server decides.
//!
//! The server decides on its state and returns that state, the instant and the outcome. The client
//! runs the same step on the state and compares the outcomes, so that any disagreement between the two
//! implementations is detected.

use smallvec::{SmallVec, smallvec};

use crate::engine::answer::Answer;
use crate::engine::batch::Kind;
use crate::engine::cost::Cost;
use crate::engine::limit::Limit;
use crate::engine::operation::Verb;
use crate::engine::state::State;
use crate::engine::time::Timestamp;
use crate::store::{Answers, Batch, StoreError, StoreStep, Write};

/// One operation on one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteOp {
    /// The kind of the operation.
    pub verb: Verb,
    /// Its role in a batch; `Spend` if it is alone.
    pub kind: Kind,
    /// Whether the limit is in shadow mode, so that it never denies a batch.
    pub shadow: bool,
    /// The cost in tokens.
    pub cost: Cost,
    /// The limit, whose phase is that of the bucket.
    pub limit: Limit,
}

impl RemoteOp {
    /// Returns whether its denial denies the batch.
    pub fn decides(&self) -> bool {
        self.verb.decides() && self.kind != Kind::SpendOnly && !self.shadow
    }
}

/// A step that can be sent to a server.
pub trait RemoteStep: StoreStep {
    /// The operation to send.
    fn call(&self) -> RemoteOp;

    /// Returns whether the engine decides what a server has answered as the server did.
    fn agrees(&self, reply: &Answer) -> bool {
        self.apply(reply.found, reply.now).0 == reply.allowed()
    }
}

/// A batch that can be sent to a server.
pub trait RemoteBatch: Batch {
    /// The operations to send, in the order of the buckets.
    fn calls(&self) -> Vec<RemoteOp>;

    /// Returns the answers to a batch from the server's replies, which tell about each bucket on its
    /// own; `None` if an outcome differs.
    fn read(&self, replies: &[Answer]) -> Option<Answers> {
        let now = replies.first()?.now;
        let found: SmallVec<[Option<State>; 4]> = replies.iter().map(|reply| reply.found).collect();
        let mut writes: SmallVec<[Write; 4]> = smallvec![Write::Keep; replies.len()];
        let answers = self.apply(&found, &[], now, &mut writes);
        let agree = answers.len() == replies.len()
            && answers.iter().zip(replies).all(|(one, reply)| one.allowed() == reply.allowed());
        agree.then_some(answers)
    }
}

/// A call to a server: the key and operation of each bucket, which are decided together.
#[derive(Clone, Debug)]
pub struct RemoteCall {
    /// Keyspace text, id and operation of each bucket.
    pub ops: Vec<(Box<str>, Box<str>, RemoteOp)>,
    /// The instant to decide at; `None` for the server's own time.
    pub now: Option<Timestamp>,
}

/// Receives the replies, in the order of the operations, on any thread.
pub type Completion = Box<dyn FnOnce(Result<Vec<Answer>, StoreError>) + Send>;

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
