//! Steps as messages, for stores whose server decides.
//!
//! The server decides on its state and returns that state, the instant and the outcome. The client
//! runs the same step on the state and compares the outcomes, so that any disagreement between the two
//! implementations is detected.

use std::net::TcpStream;

use crate::engine::answer::Answer;
use crate::engine::batch::{Kind, Member};
use crate::engine::cost::Cost;
use crate::engine::limit::Limit;
use crate::engine::operation::Operation;
use crate::engine::time::Timestamp;
use crate::engine::verb::Verb;
use crate::store::StoreError;

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
    /// Returns the message for a transaction of a batch.
    pub fn of(member: &Member<'_>) -> RemoteOp {
        let &Member { operation: Operation { verb, limit, cost }, kind, shadow } = member;
        RemoteOp { verb, kind, shadow, cost, limit: *limit }
    }

    /// Returns the transaction.
    pub fn member(&self) -> Member<'_> {
        let &RemoteOp { verb, kind, shadow, cost, ref limit } = self;
        Member { operation: Operation { verb, limit, cost }, kind, shadow }
    }

    /// Returns whether its denial denies the batch.
    pub fn decides(&self) -> bool {
        self.verb.decides() && self.member().decides()
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
    fn is_one_call(&self, call: &RemoteCall) -> bool;

    /// Sends `call`. Never waits; `done` is called once.
    fn submit(&self, call: RemoteCall, done: Completion);

    /// Lets the event loop that calls this drive the connection in place of a thread, as long as it makes one
    /// call at a time; `None` if it cannot. `on_lent` is called, on any thread, once the loan has begun: the
    /// loop must then drive.
    fn lend(&self, _on_lent: Box<dyn FnOnce() + Send>) -> Option<Box<dyn BorrowedConnection>> {
        None
    }

    /// Returns the policy by which the server evicts buckets when its memory is full; of several servers,
    /// the first that evicts any. `None` if the memory is not limited or no server answers.
    fn eviction_policy(&self) -> Option<String>;

    /// Releases the connections. No call follows.
    fn close(&self);
}

/// The connection of a store, lent to an event loop. The loan ends when it is dropped.
pub trait BorrowedConnection: Send + Sync {
    /// Returns the socket that is readable when [`BorrowedConnection::drive`] has something to do.
    fn socket(&self) -> &TcpStream;

    /// Returns whether it has not ended. The store ends it by itself if it is not used.
    fn is_on(&self) -> bool;

    /// Calls `act`, which submits calls, sends them, and calls the completions of those whose replies have
    /// arrived. Never waits.
    fn drive(&self, act: &mut dyn FnMut());
}
