//! Events and call times of one process, for logs and metrics.

use std::fmt;

use crate::clock::Stopwatch;
use crate::engine::answer::Answer;
use crate::engine::named_enum::named_enum;
use crate::engine::time::Nanos;
use crate::engine::verb::Effect;
use crate::latencies::{Histogram, Latencies};
use crate::store::StoreError;
use crate::store::redis::codec::Found;
use crate::store::remote::RemoteOp;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering};

/// The maximum number of unread events.
const MAX_EVENTS: usize = 16;

/// A change for the operator's attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    /// Calls fail immediately from now on.
    Failing {
        /// How the last call failed.
        why: String,
    },
    /// Calls are made again.
    Answering {
        /// The time since calls began to fail.
        after: Nanos,
    },
    /// An invalid value was found at the key of a bucket.
    Healed {
        /// The key.
        key: String,
    },
}

impl fmt::Display for StoreEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreEvent::Failing { why } => {
                write!(f, "the server fails; calls fail at once until it answers: {why}")
            }
            StoreEvent::Answering { after } => {
                let tenths = after.millis() / 100;
                write!(f, "the server answers again after {}.{} s", tenths / 10, tenths % 10)
            }
            StoreEvent::Healed { key } => write!(
                f,
                "the value at the key {key} is not a bucket; its client starts with a full bucket \
                 (logged once; stats() counts all)"
            ),
        }
    }
}

named_enum! {
    /// The kind of a call to the server, by its name in metrics.
    pub enum CallKind {
        Spend = "spend",
        Check = "check",
        Refund = "refund",
        Charge = "charge",
        Several = "several",
        Reset = "reset",
        Other = "other",
    }
}

impl CallKind {
    /// Returns the kind of a call with these operations.
    pub(super) fn of(operations: &[RemoteOp]) -> CallKind {
        let [operation] = operations else { return CallKind::Several };
        match operation.verb.effect() {
            Effect::Take => CallKind::Spend,
            Effect::Look => CallKind::Check,
            Effect::Return => CallKind::Refund,
            Effect::Charge => CallKind::Charge,
        }
    }
}

named_enum! {
    /// How a call ended, by its name in metrics.
    pub enum CallResult {
        Answered = "answered",
        /// With an error of the server.
        Error = "error",
        /// Not within the deadline.
        Timeout = "timeout",
        /// With the loss of its connection.
        Lost = "lost",
        /// Without a connection.
        Unavailable = "unavailable",
    }
}

impl CallResult {
    /// Returns the result of a call; `is_answer` if the server sent it.
    pub(super) fn of<T>(result: &Result<T, StoreError>, is_answer: bool) -> CallResult {
        match result {
            Ok(_) => CallResult::Answered,
            Err(_) if is_answer => CallResult::Error,
            Err(StoreError::Timeout { .. }) => CallResult::Timeout,
            Err(StoreError::ReplyLost { .. } | StoreError::BadReply { .. }) => CallResult::Lost,
            Err(_) => CallResult::Unavailable,
        }
    }
}

/// Times of calls, unread events, and counts.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    times: [[Histogram; CallResult::ALL.len()]; CallKind::ALL.len()],
    healed: AtomicU64,
    events: Mutex<Vec<StoreEvent>>,
    /// Whether there are events, so that checking for them is one load.
    has_events: AtomicBool,
}

impl Metrics {
    /// Records a call with its time.
    pub(super) fn count(&self, call: CallKind, result: CallResult, stopwatch: Stopwatch) {
        self.times[call as usize][result as usize].count(stopwatch);
    }

    /// Returns the times of calls, by kind and result.
    pub(super) fn times(&self) -> Vec<(CallKind, CallResult, Latencies)> {
        let all = CallKind::ALL.into_iter().flat_map(|call| {
            CallResult::ALL.into_iter().map(move |result| {
                (call, result, self.times[call as usize][result as usize].read())
            })
        });
        all.filter(|(.., times)| *times != Latencies::default()).collect()
    }

    /// Returns the reply for the bucket with a key.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if the server refused to write.
    pub(super) fn reply(&self, found: Found, key: &[u8]) -> Result<Answer, StoreError> {
        match found {
            Found::Answer(reply) => Ok(reply),
            Found::NoState(reply) => {
                self.on_healed(key);
                Ok(reply)
            }
            Found::Refused(why) => Err(StoreError::Unavailable { why }),
        }
    }

    /// Counts an invalid value. The first one is an event.
    #[cold]
    fn on_healed(&self, key: &[u8]) {
        if self.healed.fetch_add(1, Ordering::Relaxed) == 0 {
            self.add(StoreEvent::Healed { key: String::from_utf8_lossy(key).into_owned() });
        }
    }

    /// Returns the number of invalid values.
    pub(super) fn healed(&self) -> u64 {
        self.healed.load(Ordering::Relaxed)
    }

    /// Stores an event for the next reader.
    #[cold]
    pub(super) fn add(&self, event: StoreEvent) {
        let mut events = self.events.lock();
        if events.len() >= MAX_EVENTS {
            // No call has read them, as with refunds in the background. The oldest matter least.
            events.remove(0);
        }
        events.push(event);
        // Relaxed: the list is read under its lock.
        self.has_events.store(true, Ordering::Relaxed);
    }

    /// Takes the events, the oldest first.
    #[inline]
    pub(super) fn take_events(&self) -> Vec<StoreEvent> {
        if !self.has_events.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut events = self.events.lock();
        self.has_events.store(false, Ordering::Relaxed);
        std::mem::take(&mut *events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_value_that_is_no_state_is_an_event() {
        let metrics = Metrics::default();
        assert_eq!(metrics.take_events(), []);
        metrics.on_healed(b"a");
        metrics.on_healed(b"b");
        assert_eq!(metrics.take_events(), [StoreEvent::Healed { key: "a".to_owned() }]);
        assert_eq!((metrics.take_events(), metrics.healed()), (Vec::new(), 2));
    }

    #[test]
    fn events_that_no_one_reads_take_no_more_memory() {
        let metrics = Metrics::default();
        for millis in 0..1000 {
            metrics.add(StoreEvent::Answering { after: Nanos::from_millis(millis) });
        }
        let events = metrics.take_events();
        assert_eq!(events.len(), MAX_EVENTS);
        assert_eq!(events[0].to_string(), "the server answers again after 0.9 s");
    }

    #[test]
    fn calls_are_counted_by_what_they_ask_and_how_they_end() {
        let metrics = Metrics::default();
        let answered = CallResult::of(&Ok(()), true);
        let timeout = CallResult::of::<()>(&Err(StoreError::Timeout { millis: 1 }), false);
        for result in [answered, timeout, timeout] {
            metrics.count(CallKind::Spend, result, Stopwatch::start());
        }
        let times = metrics.times();
        let counted = times.iter().map(|(call, result, times)| {
            (call.as_str(), result.as_str(), times.calls.iter().sum::<u64>())
        });
        let expected = [("spend", "answered", 1), ("spend", "timeout", 2)];
        assert_eq!(counted.collect::<Vec<_>>(), expected);
    }
}
