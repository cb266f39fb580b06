//! A call that waits for its turn: an `acquire` or a reservation, of one limit or of several, in a thread or
//! in a task.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use smallvec::SmallVec;

use crate::bindings::decision::{Decision, DecisionPart};
use crate::bindings::limit_entry::LimitEntry;
use crate::bindings::once::Once;
use crate::bindings::taken::{Parts, ReservedPart, Taken};
use crate::engine::batch::Kind;
use crate::engine::factor::Adjustment;
use crate::engine::time::{Nanos, Timestamp};
use crate::engine::verb::Verb;
use crate::limiter::{self, Decided, HeldSlotKey, Pace, Ticket, WaitQueue};
use crate::sync::{Condvar, Mutex};

/// For how long a thread sleeps without looking for signals, such as Ctrl-C.
const SLICE: Duration = Duration::from_millis(100);

static GREEN_EVENT: Once<Py<PyAny>> = Once::new();

/// A call that waits.
#[derive(Debug)]
pub(crate) struct WaitingCall {
    /// A spend or a reservation.
    pub(crate) verb: Verb,
    /// Whether its limits decide together, when all of them allow it. The cost of any other call, which has
    /// one limit, may be charged in advance.
    pub(crate) is_joint: bool,
    /// Its limits. It may wait in the queue of each.
    pub(crate) places: Places,
    pub(crate) timeout: Option<Nanos>,
    pub(crate) arrived_at: Timestamp,
    /// Its arrival number, the same in all queues.
    number: u64,
    pub(crate) wakeup: Wakeup,
    progress: Mutex<CallProgress>,
}

pub(crate) type Places = SmallVec<[QueuePlace; 1]>;

/// A limit of a call, and its place in the queue of that bucket.
#[derive(Debug)]
pub(crate) struct QueuePlace {
    /// The limit at the time of arrival.
    pub(crate) entry: Py<LimitEntry>,
    pub(crate) id: Py<PyAny>,
    pub(crate) cost: i64,
    pub(crate) kind: Kind,
    /// The tokens that must be left.
    pub(crate) keep: i64,
    queue: Mutex<Option<Arc<BucketQueue>>>,
    /// The timer that wakes the caller on a `ManualClock`.
    pub(crate) timer: Mutex<Option<(i64, u64)>>,
}

/// The decision for the caller, and what was taken.
type WaitOutcome = PyResult<(Py<Decision>, Acquisition)>;

/// What was taken for a call.
#[derive(Debug)]
pub(crate) enum Acquisition {
    /// What was available when the call was made.
    Parts(Parts),
    Charge(Charge),
}

/// The charge of a waiter.
#[derive(Debug)]
pub(crate) struct Charge {
    /// The limit at the time of the charge. A refund uses it even after a reload.
    pub(crate) bound: Arc<limiter::BoundLimit>,
    pub(crate) entry: Py<LimitEntry>,
    pub(crate) decided: Decided,
    pub(crate) cost: i64,
    pub(crate) pace: Pace,
    /// The slots that were taken; `None` for tokens.
    pub(crate) slot: Option<HeldSlotKey>,
}

/// The waiters of one bucket.
#[derive(Debug)]
pub(crate) struct BucketQueue {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) waiters: Mutex<WaitQueue<QueueMember, Charge>>,
}

/// The part of a call that changes.
#[derive(Debug, Default)]
struct CallProgress {
    outcome: Option<WaitOutcome>,
    /// Whether it has an outcome, or the caller has left.
    is_over: bool,
    /// Whether a thread asks the store about all limits.
    is_asked: bool,
    /// The queues that wanted to ask meanwhile.
    busy: Vec<Arc<BucketQueue>>,
}

/// Whether a driver may ask the store about all limits of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    Granted,
    /// Another thread asks.
    Busy,
    Over,
}

impl Charge {
    /// Returns what it took from the bucket; nothing in shadow mode.
    pub(crate) fn into_parts(self, id: &Bound<'_, PyAny>) -> Parts {
        let Charge { bound, entry, decided, cost, slot, .. } = self;
        let taken = || ReservedPart { entry, cost, taken: Taken::new(slot, &bound, id, None) };
        decided.decision.allowed.then(taken).into_iter().collect()
    }
}

impl QueuePlace {
    pub(crate) fn new(
        (id, cost, entry): DecisionPart,
        kind: Kind,
        adjustment: Option<&Adjustment>,
    ) -> QueuePlace {
        let keep = adjustment.map_or(0, |adjustment| adjustment.keep);
        let (queue, timer) = (Mutex::new(None), Mutex::new(None));
        QueuePlace { entry, id, cost, kind, keep, queue, timer }
    }

    /// Returns the queue that the call has joined.
    pub(crate) fn queue(&self) -> Option<Arc<BucketQueue>> {
        self.queue.lock().clone()
    }

    pub(crate) fn set_queue(&self, queue: Option<&Arc<BucketQueue>>) {
        *self.queue.lock() = queue.cloned();
    }
}

impl WaitingCall {
    pub(crate) fn new(
        verb: Verb,
        is_joint: bool,
        places: Places,
        timeout: Option<Nanos>,
        (arrived_at, number): (Timestamp, u64),
        notify: Option<Py<PyAny>>,
    ) -> WaitingCall {
        let (wakeup, progress) = (Wakeup::new(notify), Mutex::new(CallProgress::default()));
        WaitingCall { verb, is_joint, places, timeout, arrived_at, number, wakeup, progress }
    }

    /// Returns what is left of the timeout.
    pub(crate) fn time_left(&self, now: Timestamp) -> Option<Nanos> {
        let waited = now.get() - self.arrived_at.get();
        self.timeout.map(|timeout| Nanos::clamped((timeout.get() - waited).max(0)))
    }

    /// Returns whether a wait that begins now ends after the timeout; if `None`, whether it has passed.
    pub(crate) fn is_too_late(&self, wait: Option<Nanos>, now: Timestamp) -> bool {
        let end = wait.map_or(now, |wait| now.saturating_add(wait));
        self.timeout.is_some_and(|timeout| end > self.arrived_at.saturating_add(timeout))
    }

    /// Asks for permission to ask the store about all limits, on behalf of `queue`. If granted,
    /// [`end`](Self::end) must follow.
    pub(crate) fn begin(&self, queue: Option<&Arc<BucketQueue>>) -> Permission {
        let mut progress = self.progress.lock();
        if progress.is_over {
            return Permission::Over;
        }
        if std::mem::replace(&mut progress.is_asked, true) {
            progress.busy.extend(queue.cloned());
            return Permission::Busy;
        }
        Permission::Granted
    }

    /// Ends a question to the store. The queues that wanted to ask meanwhile ask next; returns them.
    pub(crate) fn end(&self, now: Timestamp) -> Vec<Arc<BucketQueue>> {
        let busy = {
            let mut progress = self.progress.lock();
            progress.is_asked = false;
            std::mem::take(&mut progress.busy)
        };
        busy.iter().for_each(|queue| queue.waiters.lock().on_busy(now));
        busy
    }

    /// Returns whether it has an outcome, or the caller has left.
    pub(crate) fn is_over(&self) -> bool {
        self.progress.lock().is_over
    }

    /// Stores the outcome for the caller. Returns what was taken if the caller has left.
    pub(crate) fn finish(&self, outcome: WaitOutcome) -> Option<Acquisition> {
        let mut progress = self.progress.lock();
        if std::mem::replace(&mut progress.is_over, true) {
            drop(progress);
            return outcome.ok().map(|(_, taken)| taken);
        }
        progress.outcome = Some(outcome);
        None
    }

    /// Returns whether it was served and the caller has not taken the outcome over.
    ///
    /// # Errors
    /// Its own, once.
    pub(crate) fn is_served(&self) -> PyResult<bool> {
        let mut progress = self.progress.lock();
        let error = progress.outcome.take_if(|outcome| outcome.is_err());
        let is_served = progress.outcome.is_some();
        drop(progress);
        error.map_or(Ok(is_served), |error| error.map(|_| false))
    }

    /// Takes the outcome over for the caller.
    pub(crate) fn take_outcome(&self) -> Option<WaitOutcome> {
        self.progress.lock().outcome.take()
    }

    /// Ends it because the caller leaves. Returns an outcome that the caller has not taken over.
    pub(crate) fn abandon(&self) -> Option<WaitOutcome> {
        let mut progress = self.progress.lock();
        progress.is_over = true;
        progress.outcome.take()
    }

    /// Leaves the queues in which it still is, because those behind it count its demands. Returns these
    /// queues, and the charge that one of them had.
    pub(crate) fn leave_queues(&self, now: Timestamp) -> (Vec<Arc<BucketQueue>>, Option<Charge>) {
        let (mut queues, mut charge) = (Vec::new(), None);
        for place in &self.places {
            let Some((queue, ticket)) = self.queue_and_ticket(place) else { continue };
            let departed = queue.waiters.lock().on_departure(ticket, now);
            let Some((_, charged)) = departed else { continue };
            charge = charged.or(charge);
            queues.push(queue);
        }
        (queues, charge)
    }

    pub(crate) fn ticket(&self, place: &QueuePlace) -> Ticket {
        Ticket::new(place.keep, self.number)
    }

    /// Returns the queue in which a place is, and its ticket there.
    pub(crate) fn queue_and_ticket(
        &self,
        place: &QueuePlace,
    ) -> Option<(Arc<BucketQueue>, Ticket)> {
        Some((place.queue()?, self.ticket(place)))
    }
}

/// A call in its place in a queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueMember {
    pub(crate) call: Arc<WaitingCall>,
    pub(crate) index: usize,
}

impl QueueMember {
    pub(crate) fn place(&self) -> &QueuePlace {
        &self.call.places[self.index]
    }

    pub(crate) fn ticket(&self) -> Ticket {
        self.call.ticket(self.place())
    }
}

/// Wakes one caller: a thread or greenlet that sleeps here, or a task through a function.
#[derive(Debug)]
pub(crate) struct Wakeup {
    /// May be called from any thread.
    function: Option<Py<PyAny>>,
    sleep: Mutex<Sleep>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Sleep {
    is_notified: bool,
    /// What a greenlet of gevent waits for, so that the others, which share its thread, run meanwhile.
    event: Option<Py<PyAny>>,
}

impl Wakeup {
    pub(crate) fn new(function: Option<Py<PyAny>>) -> Wakeup {
        Wakeup { function, sleep: Mutex::new(Sleep::default()), changed: Condvar::default() }
    }

    /// Calls the function, or wakes the thread; its next `wait` may also return immediately.
    ///
    /// # Errors
    /// The event loop of the caller is closed, or this thread is interrupted.
    pub(crate) fn notify(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(function) = &self.function {
            return function.call0(py).map(drop);
        }
        let event = {
            let mut sleep = self.sleep.lock();
            sleep.is_notified = true;
            sleep.event.take()
        };
        self.changed.notify_one();
        event.map_or(Ok(()), |event| event.call_method0(py, "set").map(drop))
    }

    /// Blocks this thread or greenlet until it is notified, or for `seconds`; `None` means no limit.
    // Not `threading.Event`: when the interpreter ends, CPython unwinds the daemon threads that wait in
    // it. Unwinding through Rust ends the process with an abort. A thread that PyO3 attaches again is
    // stopped instead.
    pub(crate) fn wait(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<()> {
        let event = GREEN_EVENT.import(py, "penstock.wait_queue", "green_event")?.call0()?;
        if !event.is_none() {
            return self.wait_in_greenlet(&event, seconds);
        }
        let mut left = seconds.and_then(|left| Duration::try_from_secs_f64(left).ok());
        loop {
            let slice = left.map_or(SLICE, |left| left.min(SLICE));
            let is_notified = py.detach(|| {
                let mut sleep = self.sleep.lock();
                if !sleep.is_notified {
                    self.changed.wait_for(&mut sleep, slice);
                }
                std::mem::take(&mut sleep.is_notified)
            });
            py.check_signals()?;
            left = left.map(|left| left - slice);
            if is_notified || left.is_some_and(|left| left.is_zero()) {
                return Ok(());
            }
        }
    }

    fn wait_in_greenlet(&self, event: &Bound<'_, PyAny>, seconds: Option<f64>) -> PyResult<()> {
        let previous = {
            let mut sleep = self.sleep.lock();
            if std::mem::take(&mut sleep.is_notified) {
                return Ok(());
            }
            sleep.event.replace(event.clone().unbind())
        };
        drop(previous);
        event.call_method1("wait", (seconds,))?;
        self.sleep.lock().is_notified = false;
        Ok(())
    }
}
