//! Batching of spends: one run of a script decides all that are waiting.
//!
//! Only a few runs are in flight at a time, and other spends wait for their turn, so that the
//! server runs few scripts for a busy process. A single spend is sent immediately.

use std::fmt;
use std::mem;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::clock::Stopwatch;
use crate::engine::answer::Answer;
use crate::store::StoreError;
use crate::store::redis::codec::Spend;
use crate::store::redis::wakes::Sender;
use crate::sync::Mutex;

/// The maximum number of concurrent runs of the script.
const TURNS: usize = 2;
/// The maximum wait of a spend, because the server may be far away or not answer.
const MAX_WAIT: Duration = Duration::from_millis(1);
/// The maximum number of spends in one run, during which the server does nothing else.
pub(super) const MAX_SPENDS: usize = 64;

/// Receives the server's reply about a bucket.
pub(super) enum Replied {
    /// A thread that waits for it.
    Thread(Sender),
    /// A function that is called with it.
    Callback(Callback),
}

/// Is called with the server's reply about a bucket.
pub(super) type Callback = Box<dyn FnOnce(Result<Answer, StoreError>) + Send>;

/// A spend that has not been sent.
pub(super) struct Waiting {
    pub(super) spend: Spend,
    /// Running since the call.
    pub(super) stopwatch: Stopwatch,
    pub(super) replied: Replied,
}

/// The queue of spends.
pub(super) struct Spends {
    waiting: Mutex<Vec<Waiting>>,
    turns: Semaphore,
}

// The callbacks have no readable form.
impl fmt::Debug for Spends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spends").field("turns", &self.turns).finish_non_exhaustive()
    }
}

impl Spends {
    /// Creates an empty queue.
    pub(super) fn new() -> Spends {
        Spends { waiting: Mutex::default(), turns: Semaphore::new(TURNS) }
    }

    /// Adds a spend. Returns whether it is the first, whose caller must call [`Spends::next`].
    pub(super) fn push(&self, spend: Spend, replied: Replied) -> bool {
        let spend = Waiting { spend, stopwatch: Stopwatch::start(), replied };
        let mut waiting = self.waiting.lock();
        waiting.push(spend);
        waiting.len() == 1
    }

    /// Waits for a turn and takes all spends, each part of them for one run of the script. The turn
    /// ends when the permit is dropped; there is no permit after the maximum wait.
    pub(super) async fn next(&self) -> (Vec<Vec<Waiting>>, Option<SemaphorePermit<'_>>) {
        let turn = timeout(MAX_WAIT, self.turns.acquire()).await;
        let mut all = mem::take(&mut *self.waiting.lock());
        let mut parts = Vec::with_capacity(all.len().div_ceil(MAX_SPENDS));
        while !all.is_empty() {
            let rest = all.split_off(all.len().min(MAX_SPENDS));
            parts.push(mem::replace(&mut all, rest));
        }
        (parts, turn.ok().and_then(Result::ok))
    }
}
