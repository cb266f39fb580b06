//! Spends that are sent together: one run of a script decides all that are waiting.
//!
//! A few runs are under way at a time. Meanwhile spends wait for their turn, so that a busy process
//! has its server run few scripts; a spend that comes alone is sent at once.

use std::fmt;
use std::mem;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::clock::Stopwatch;
use crate::store::StoreError;
use crate::store::redis::codec::Spend;
use crate::store::remote::Reply;
use crate::sync::Mutex;

/// How many runs of the script are under way before spends wait.
const TURNS: usize = 2;
/// How long a spend waits at most: the server may be far away, or not answer.
const MAX_WAIT: Duration = Duration::from_millis(1);
/// The most spends in one run, during which the server does nothing else.
pub(super) const MAX_SPENDS: usize = 64;

/// Receives the server's reply about a bucket.
pub(super) type Replied = Box<dyn FnOnce(Result<Reply, StoreError>) + Send>;

/// A spend that has not been sent.
pub(super) struct Waiting {
    pub(super) spend: Spend,
    /// Since its caller made it.
    pub(super) stopwatch: Stopwatch,
    pub(super) replied: Replied,
}

/// The spends that wait for their turn.
pub(super) struct Spends {
    waiting: Mutex<Vec<Waiting>>,
    turns: Semaphore,
}

// The callbacks tell nothing.
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

    /// Adds a spend; whether it is the first, so that its caller must have [`Spends::next`] called.
    pub(super) fn push(&self, spend: Spend, replied: Replied) -> bool {
        let spend = Waiting { spend, stopwatch: Stopwatch::start(), replied };
        let mut waiting = self.waiting.lock();
        waiting.push(spend);
        waiting.len() == 1
    }

    /// Waits for a turn and takes all spends, each part of them for one run of the script. The turn
    /// ends when the permit is dropped; there is none if it took too long.
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
