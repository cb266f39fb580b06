//! Batching of calls on one bucket each: one run of the script decides all that are waiting.
//!
//! Only a few runs are in flight at a time, and other calls wait for their turn, so that the
//! server runs few scripts for a busy process. A call without others is sent immediately.

use std::fmt;
use std::mem;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::clock::Stopwatch;
use crate::engine::answer::Answer;
use crate::store::StoreError;
use crate::store::redis::handoff::Sender;
use crate::store::remote::RemoteOp;
use crate::sync::Mutex;

/// The maximum number of concurrent runs of the script.
const TURNS: usize = 2;
/// The maximum wait of a call, because the server may be far away or not answer.
const MAX_WAIT: Duration = Duration::from_millis(1);
/// The maximum number of calls in one run, during which the server does nothing else.
pub(super) const MAX_CALLS: usize = 64;

/// Receives the server's reply about a bucket.
pub(super) enum Replied {
    /// A thread that waits for it.
    Thread(Sender),
    /// A function that is called with it.
    Callback(Callback),
}

/// Is called with the server's reply about a bucket.
pub(super) type Callback = Box<dyn FnOnce(Result<Answer, StoreError>) + Send>;

/// A call that has not been sent.
pub(super) struct Waiting {
    pub(super) key: Vec<u8>,
    pub(super) operation: RemoteOp,
    /// Running since the call.
    pub(super) stopwatch: Stopwatch,
    pub(super) replied: Replied,
}

/// The queue of calls.
pub(super) struct CallBatch {
    waiting: Mutex<Vec<Waiting>>,
    turns: Semaphore,
}

// The callbacks have no readable form.
impl fmt::Debug for CallBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallBatch").field("turns", &self.turns).finish_non_exhaustive()
    }
}

impl CallBatch {
    /// Creates an empty queue.
    pub(super) fn new() -> CallBatch {
        CallBatch { waiting: Mutex::default(), turns: Semaphore::new(TURNS) }
    }

    /// Adds a call. Returns whether it is the first, whose caller must call [`CallBatch::next`].
    pub(super) fn push(&self, key: Vec<u8>, operation: RemoteOp, replied: Replied) -> bool {
        let call = Waiting { key, operation, stopwatch: Stopwatch::start(), replied };
        let mut waiting = self.waiting.lock();
        waiting.push(call);
        waiting.len() == 1
    }

    /// Waits for a turn and takes all calls, each part of them for one run of the script. The turn
    /// ends when the permit is dropped; there is no permit after the maximum wait.
    pub(super) async fn next(&self) -> (Vec<Vec<Waiting>>, Option<SemaphorePermit<'_>>) {
        let turn = timeout(MAX_WAIT, self.turns.acquire()).await;
        let mut all = mem::take(&mut *self.waiting.lock());
        let mut parts = Vec::with_capacity(all.len().div_ceil(MAX_CALLS));
        while !all.is_empty() {
            let rest = all.split_off(all.len().min(MAX_CALLS));
            parts.push(mem::replace(&mut all, rest));
        }
        (parts, turn.ok().and_then(Result::ok))
    }
}
