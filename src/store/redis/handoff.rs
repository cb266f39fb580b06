//! Waking of the threads whose replies have arrived.
//!
//! A message from the server answers many threads. Python runs one of them at a time: if all wake at
//! once, most only wait again, for the GIL. So a thread with a [`Relay`] receives its reply from
//! the thread before it, once that one has the GIL. Other threads receive theirs at once.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;
use std::thread::{self, Thread};

use crate::engine::answer::Answer;
use crate::store::StoreError;
use crate::sync::Mutex;

thread_local! {
    static HAS_RELAY: Cell<bool> = const { Cell::new(false) };
    /// The queue of which this thread must wake the next thread.
    static OWED: RefCell<Option<Arc<Handoff>>> = const { RefCell::new(None) };
}

/// While it exists, this thread receives replies in turn with other threads. The next thread is
/// woken when the relay is dropped or the thread makes another call.
#[derive(Debug)]
pub struct Relay {
    /// A relay is for the thread that created it.
    thread: PhantomData<*mut ()>,
}

impl Relay {
    /// Creates the relay of this thread.
    #[must_use]
    pub fn start() -> Relay {
        HAS_RELAY.set(true);
        Relay { thread: PhantomData }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        HAS_RELAY.set(false);
        pass_on();
    }
}

/// Wakes the next thread after a call of this thread.
pub(super) fn pass_on() {
    if let Some(handoff) = OWED.take() {
        handoff.wake_next();
    }
}

/// The replies of threads with a relay, first come, first served.
///
/// While there are any, at least one thread with a reply has yet to wake the next.
#[derive(Debug, Default)]
pub(super) struct Handoff {
    waiting: Mutex<VecDeque<(Sender, Result<Answer, StoreError>)>>,
}

impl Handoff {
    /// Creates a reply for this thread to wait for.
    pub(super) fn channel(self: &Arc<Self>) -> (Sender, Receiver) {
        pass_on();
        if HAS_RELAY.get() {
            OWED.set(Some(Arc::clone(self)));
        }
        let answer = Arc::new(Mailbox {
            reply: Mutex::default(),
            thread: thread::current(),
            has_relay: HAS_RELAY.get(),
        });
        (Sender { answer: Some(Arc::clone(&answer)) }, Receiver { answer })
    }

    /// Sends replies to their threads.
    pub(super) fn send(&self, replies: Vec<(Sender, Result<Answer, StoreError>)>) {
        let (in_turn, at_once): (Vec<_>, Vec<_>) =
            replies.into_iter().partition(|(sender, _)| sender.has_relay());
        for (sender, reply) in at_once {
            sender.send(reply);
        }
        if !in_turn.is_empty() {
            self.waiting.lock().extend(in_turn);
            self.wake_next();
        }
    }

    fn wake_next(&self) {
        while let Some((sender, reply)) = self.next() {
            if sender.send(reply) {
                break;
            }
        }
    }

    fn next(&self) -> Option<(Sender, Result<Answer, StoreError>)> {
        self.waiting.lock().pop_front()
    }
}

#[derive(Debug)]
struct Mailbox {
    reply: Mutex<Option<Result<Answer, StoreError>>>,
    thread: Thread,
    has_relay: bool,
}

/// Receives the reply to a thread's call.
#[derive(Debug)]
pub(super) struct Receiver {
    answer: Arc<Mailbox>,
}

impl Receiver {
    /// Waits for the reply; an error if its sender was dropped.
    pub(super) fn wait(self) -> Result<Answer, StoreError> {
        loop {
            let reply = self.answer.reply.lock().take();
            if let Some(reply) = reply {
                return reply;
            }
            thread::park();
        }
    }
}

/// Sends the reply to a thread's call.
#[derive(Debug)]
pub(super) struct Sender {
    /// `None` once the reply is sent.
    answer: Option<Arc<Mailbox>>,
}

impl Sender {
    fn has_relay(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.has_relay)
    }

    /// Returns whether the thread is still waiting. If it is, it will wake the next thread.
    fn send(mut self, reply: Result<Answer, StoreError>) -> bool {
        self.answer.take().is_some_and(|answer| answer.fill(reply))
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            answer.fill(Err(StoreError::Closed));
        }
    }
}

impl Mailbox {
    fn fill(self: Arc<Self>, reply: Result<Answer, StoreError>) -> bool {
        // The receiver has the other reference. It is dropped before its thread passes on.
        let is_awaited = Arc::strong_count(&self) > 1;
        *self.reply.lock() = Some(reply);
        self.thread.unpark();
        is_awaited
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::engine::time::Timestamp;

    fn reply() -> Result<Answer, StoreError> {
        Ok(Answer::new(None, Timestamp::ORIGIN, true))
    }

    /// Starts threads that wait for a reply, each in a relay that ends when the test says so.
    fn waiting(
        handoff: &Arc<Handoff>,
        count: usize,
    ) -> (Vec<Sender>, mpsc::Receiver<usize>, Vec<mpsc::Sender<()>>) {
        let (received, arrivals) = mpsc::channel();
        let (mut senders, mut ends) = (Vec::new(), Vec::new());
        for number in 0..count {
            let (created, creation) = mpsc::channel();
            let (end, ended) = mpsc::channel();
            let (handoff, received) = (Arc::clone(handoff), received.clone());
            thread::spawn(move || {
                let relay = Relay::start();
                let (sender, receiver) = handoff.channel();
                created.send(sender).expect("the test receives it");
                receiver.wait().expect("it is answered");
                received.send(number).expect("the test receives it");
                let _: Result<(), _> = ended.recv();
                drop(relay);
            });
            senders.push(creation.recv().expect("the thread has started"));
            ends.push(end);
        }
        (senders, arrivals, ends)
    }

    #[test]
    fn each_thread_is_woken_by_the_one_before_it() {
        let handoff = Arc::new(Handoff::default());
        let (senders, arrivals, ends) = waiting(&handoff, 5);
        handoff.send(senders.into_iter().map(|sender| (sender, reply())).collect());
        for (number, end) in ends.into_iter().enumerate() {
            assert_eq!(arrivals.recv(), Ok(number));
            assert_eq!(handoff.waiting.lock().len(), 4 - number);
            assert!(arrivals.try_recv().is_err());
            drop(end);
        }
    }

    #[test]
    fn a_thread_that_makes_another_call_wakes_the_next_one_first() {
        let handoff = Arc::new(Handoff::default());
        let (senders, arrivals, _ends) = waiting(&handoff, 1);
        let _relay = Relay::start();
        let (sender, receiver) = handoff.channel();
        let replies = std::iter::once(sender).chain(senders).map(|sender| (sender, reply()));
        handoff.send(replies.collect());
        receiver.wait().expect("it is answered");
        assert_eq!(handoff.waiting.lock().len(), 1);
        let _next = handoff.channel();
        assert_eq!(arrivals.recv(), Ok(0));
    }

    #[test]
    fn a_thread_that_gave_up_is_passed_over() {
        let handoff = Arc::new(Handoff::default());
        let (senders, arrivals, _ends) = waiting(&handoff, 1);
        let relay = Relay::start();
        let (sender, receiver) = handoff.channel();
        drop((receiver, relay));
        let replies = std::iter::once(sender).chain(senders).map(|sender| (sender, reply()));
        handoff.send(replies.collect());
        assert_eq!(arrivals.recv(), Ok(0));
    }

    #[test]
    fn threads_without_a_relay_are_all_woken_at_once() {
        let handoff = Arc::new(Handoff::default());
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| handoff.channel()).unzip();
        handoff.send(senders.into_iter().map(|sender| (sender, reply())).collect());
        assert!(receivers.into_iter().all(|receiver| receiver.wait().is_ok()));
    }

    #[test]
    fn a_reply_that_never_comes_is_an_error() {
        let (sender, receiver) = Arc::new(Handoff::default()).channel();
        drop(sender);
        assert!(matches!(receiver.wait(), Err(StoreError::Closed)));
    }
}
