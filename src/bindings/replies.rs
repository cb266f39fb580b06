//! The class `Replies`: asynchronous calls to a server.
//!
//! Replies arrive on a thread of the store, which must neither wait nor use Python. It adds them to a
//! list and, if the list was empty, wakes the event loop with one byte. The thread of the loop then
//! delivers all replies in the list. A loop that makes one call at a time drives the connection itself.

use std::io::ErrorKind;
#[cfg(unix)]
use std::io::{Read, Write};
#[cfg(unix)]
use std::os::{fd::AsRawFd, unix::net::UnixStream};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::{io, thread};

use hashbrown::HashMap;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::bindings::arguments::{self, Argument};
use crate::bindings::bound_limit::{BoundLimit, verb_named};
use crate::bindings::decision::{Decision, DecisionPart, several};
use crate::bindings::decision_data::DecisionData;
use crate::bindings::errors::with_cost;
use crate::bindings::id_text::{id_text, kept_id};
use crate::bindings::limit_entry::ActiveLimit;
use crate::bindings::limiter::Limiter;
use crate::bindings::limiter_handle::LimiterHandle;
use crate::bindings::once::Once;
use crate::bindings::reservation::Reservation;
use crate::engine::answer::Answer;
use crate::engine::factor::Adjustment;
use crate::engine::verb::Verb;
use crate::limiter::{
    self, Answered, AnsweredAll, Call, Endings, Submitted, SubmittedAll, Transaction,
};
use crate::store::remote::{BorrowedConnection, RemoteCall};
use crate::store::{StoreError, Wait};
use crate::sync::{AtomicU64, Mutex, Ordering, forks};

type ReplyResult = Result<Vec<Answer>, StoreError>;

/// Replies that the event loop has not taken yet.
struct Inbox {
    arrived: Mutex<Arrived>,
    wake: Wake,
}

#[derive(Default)]
struct Arrived {
    replies: Vec<(u64, ReplyResult)>,
    /// Whether the event loop takes them next, without being woken.
    is_read: bool,
}

/// The way in which the thread of the store wakes the event loop.
enum Wake {
    /// Through a socket whose other end the loop watches.
    #[cfg(unix)]
    Socket(UnixStream),
    /// Through a thread that may wait for the interpreter.
    Thread(Sender<()>),
}

impl Inbox {
    fn push(&self, call: u64, outcome: ReplyResult) {
        let mut arrived = self.arrived.lock();
        let wakes = arrived.replies.is_empty() && !arrived.is_read;
        arrived.replies.push((call, outcome));
        drop(arrived);
        if wakes {
            self.wake.wake();
        }
    }
}

impl Wake {
    fn wake(&self) {
        match self {
            #[cfg(unix)]
            Wake::Socket(socket) => {
                // Errors are ignored: a full socket wakes the loop too, and a closed one has no loop.
                let _ = (&*socket).write(&[0]);
            }
            Wake::Thread(thread) => {
                let _ = thread.send(());
            }
        }
    }
}

/// A call whose reply is outstanding.
struct Outstanding {
    handle: Arc<LimiterHandle>,
    future: Py<PyAny>,
    call: Submission,
    /// The bucket and the cost to return if the caller is cancelled.
    undo: Option<Undo>,
}

struct Undo {
    limit: Arc<limiter::BoundLimit>,
    id: String,
    cost: i64,
}

impl Undo {
    /// Refunds the cost without waiting for the reply.
    fn submit(self, handle: &LimiterHandle) {
        let Some(store) = handle.core.store().remote() else { return };
        let refund =
            handle.core.submission(&self.limit, Call::new(Verb::Refund, &self.id, self.cost));
        if let Ok((refund, _)) = refund {
            store.submit(refund, Box::new(|_| {}));
        }
    }
}

enum Submission {
    One {
        call: Submitted,
        active: ActiveLimit,
        id: Py<PyAny>,
        cost: i64,
        adjustment: Option<Adjustment>,
    },
    All {
        call: SubmittedAll,
        parts: Vec<DecisionPart>,
    },
    /// The end of a reservation, whose future has the decision about it.
    End {
        decision: Py<Decision>,
        endings: Endings,
    },
}

impl Submission {
    /// Computes the decision, or the reservation, from a server's replies.
    fn conclude<'py>(
        self,
        py: Python<'py>,
        handle: &Arc<LimiterHandle>,
        replies: ReplyResult,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Submission::One { call, active, id, cost, adjustment } => {
                let (verb, id, adjustment) = (call.verb(), id.bind(py), adjustment.as_ref());
                let answered = handle.core.conclude_reply(call, replies)?;
                if verb == Verb::Reserve {
                    let reserved =
                        Reservation::of_answer(handle, &active, id, cost, adjustment, answered);
                    return reserved.map(Bound::into_any);
                }
                let data = DecisionData::new(answered, verb, cost, id, active.1);
                Ok(Bound::new(py, Decision::new(data))?.into_any())
            }
            Submission::End { decision, endings } => {
                handle.wake_after(py, &endings);
                Ok(decision.into_bound(py).into_any())
            }
            Submission::All { call, parts } => {
                let answered = handle.core.conclude_replies(&call, replies)?;
                decided_all(py, handle, call.verb(), call.into_transactions(), parts, answered)
            }
        }
    }
}

#[doc = doc!(Replies)]
#[pyclass(frozen, weakref, module = "penstock._core")]
pub(crate) struct Replies {
    inbox: Arc<Inbox>,
    calls: Mutex<HashMap<u64, Outstanding>>,
    last: AtomicU64,
    borrowed: Mutex<Borrowed>,
    /// Identifies the process whose loop it is. A child inherits it.
    forks: u32,
    #[cfg(unix)]
    socket: Option<UnixStream>,
}

/// The connection that the event loop drives itself, and why.
#[derive(Default)]
struct Borrowed {
    /// The number of calls in a row while no other one was outstanding.
    alone: u32,
    loan: Option<(Weak<LimiterHandle>, Arc<dyn BorrowedConnection>)>,
}

/// The number of calls in a row without others after which the event loop drives the connection.
#[cfg(unix)]
const CALLS_BEFORE_LOAN: u32 = 16;

impl Replies {
    /// Sends `call` and returns a future for its decision.
    fn submit<'py>(
        &self,
        event_loop: &Bound<'py, PyAny>,
        handle: &Arc<LimiterHandle>,
        remote: RemoteCall,
        call: Submission,
        undo: Option<Undo>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = event_loop.py();
        let store = match handle.core.store().remote() {
            Some(store) if !remote.ops.is_empty() => store,
            // The id is not limited, so there is nothing to ask.
            _ => return call.conclude(py, handle, Ok(Vec::new())),
        };
        let future = event_loop.call_method0("create_future")?;
        // Relaxed: the numbers only have to be unique.
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let (handle, kept) = (Arc::clone(handle), future.clone().unbind());
        let outstanding = Outstanding { handle: Arc::clone(&handle), future: kept, call, undo };
        let is_alone = {
            let mut calls = self.calls.lock();
            calls.insert(number, outstanding);
            calls.len() == 1
        };
        let inbox = Arc::clone(&self.inbox);
        let done = Box::new(move |outcome| inbox.push(number, outcome));
        match self.loan(event_loop, &handle, is_alone)? {
            None => store.submit(remote, done),
            Some(loan) => {
                let mut call = Some((remote, done));
                loan.drive(&mut || {
                    if let Some((remote, done)) = call.take() {
                        store.submit(remote, done);
                    }
                });
            }
        }
        Ok(future)
    }

    /// Returns the loan with which to make a call. Begins one after some calls without others, and ends it
    /// at the first call that is not alone.
    fn loan(
        &self,
        event_loop: &Bound<'_, PyAny>,
        handle: &Arc<LimiterHandle>,
        is_alone: bool,
    ) -> PyResult<Option<Arc<dyn BorrowedConnection>>> {
        let mut borrowed = self.borrowed.lock();
        borrowed.alone = if is_alone { borrowed.alone.saturating_add(1) } else { 0 };
        let Some((of, loan)) = &borrowed.loan else { return Ok(None) };
        if !is_alone || !loan.is_on() {
            drop(borrowed);
            self.end_loan(event_loop)?;
            return Ok(None);
        }
        // Another limiter's calls are made by the thread of its store.
        Ok(Some(Arc::clone(loan)).filter(|_| of.as_ptr() == Arc::as_ptr(handle)))
    }

    /// Requests a loan of the store of `handle` after some calls without others.
    #[cfg(unix)]
    fn request_loan(slf: &Bound<'_, Self>, handle: &Arc<LimiterHandle>) -> PyResult<()> {
        let replies = slf.get();
        let inbox = Arc::clone(&replies.inbox);
        let mut borrowed = replies.borrowed.lock();
        if borrowed.alone < CALLS_BEFORE_LOAN || replies.socket.is_none() {
            return Ok(());
        }
        borrowed.alone = 0;
        let store = handle.core.store().remote().filter(|_| borrowed.loan.is_none());
        let Some(loan) = store.and_then(|store| store.lend(Box::new(move || inbox.wake.wake())))
        else {
            return Ok(());
        };
        drop(borrowed);
        let watched = loan.socket().as_raw_fd();
        // If the loop cannot watch it, the loan ends here.
        running_loop(slf.py())?.call_method1("add_reader", (watched, slf.getattr("read")?))?;
        replies.borrowed.lock().loan = Some((Arc::downgrade(handle), loan.into()));
        Ok(())
    }

    /// Ends the loan, if any.
    #[cfg_attr(not(unix), expect(unused_variables, reason = "there is no loan"))]
    fn end_loan(&self, event_loop: &Bound<'_, PyAny>) -> PyResult<()> {
        let ended = {
            let mut borrowed = self.borrowed.lock();
            borrowed.alone = 0;
            borrowed.loan.take()
        };
        #[cfg(unix)]
        if let Some((_, loan)) = ended {
            event_loop.call_method1("remove_reader", (loan.socket().as_raw_fd(),))?;
        }
        Ok(())
    }

    /// Sets the result of each future whose reply has arrived.
    fn receive(slf: &Bound<'_, Self>) -> PyResult<()> {
        static NAMES: Once<[Py<PyString>; 3]> = Once::new();
        let (py, replies) = (slf.py(), slf.get());
        let [done, set_result, set_exception] = NAMES.get_or_init(py, || {
            ["done", "set_result", "set_exception"].map(|name| PyString::intern(py, name).unbind())
        });
        let loan = replies.borrowed.lock().loan.as_ref().map(|(_, loan)| Arc::clone(loan));
        if let Some(loan) = &loan {
            replies.inbox.arrived.lock().is_read = true;
            loan.drive(&mut || {});
        }
        let Arrived { replies: arrived, .. } = std::mem::take(&mut *replies.inbox.arrived.lock());
        let mut asked = None;
        for (number, outcome) in arrived {
            let Some(outstanding) = replies.calls.lock().remove(&number) else { continue };
            let Outstanding { handle, future, call, undo } = outstanding;
            let decision = call.conclude(py, &handle, outcome);
            handle.log_events(py);
            asked = Some(Arc::clone(&handle));
            let future = future.bind(py);
            if future.call_method0(done)?.is_truthy()? {
                // The caller was cancelled. A spend keeps its tokens; an acquire returns them.
                let is_taken = decision.is_ok_and(|decision| {
                    decision.cast::<Decision>().is_ok_and(|decision| decision.get().is_taken(py))
                });
                if let Some(undo) = undo.filter(|_| is_taken) {
                    undo.submit(&handle);
                }
                continue;
            }
            match decision {
                Ok(decision) => future.call_method1(set_result, (decision,))?,
                Err(error) => future.call_method1(set_exception, (error.into_value(py),))?,
            };
        }
        match (loan, asked) {
            (Some(loan), _) if !loan.is_on() => replies.end_loan(&running_loop(py)?),
            #[cfg(unix)]
            (None, Some(handle)) => Replies::request_loan(slf, &handle),
            _ => Ok(()),
        }
    }

    fn is_of_this_process(&self) -> bool {
        self.forks == forks()
    }

    /// Empties the socket that has woken the loop.
    fn drain(&self) {
        #[cfg(unix)]
        if let Some(socket) = &self.socket {
            let mut bytes = [0; 64];
            while matches!((&*socket).read(&mut bytes), Ok(64)) {}
        }
    }
}

#[pymethods]
impl Replies {
    #[new]
    #[pyo3(signature = (wake = None))]
    fn new(wake: Option<Py<PyAny>>) -> PyResult<Replies> {
        let os_error = |error: io::Error| PyOSError::new_err(error.to_string());
        let (calls, last) = (Mutex::new(HashMap::new()), AtomicU64::new(0));
        let (borrowed, forks) = (Mutex::default(), forks());
        let inbox = |wake| Arc::new(Inbox { arrived: Mutex::default(), wake });
        if let Some(wake) = wake {
            let (sender, receiver) = channel();
            let forward_wakes = move || {
                for () in receiver {
                    // `None` means that the interpreter is shutting down, and the loop with it.
                    let woken = Python::try_attach(|py| wake.call0(py).is_ok());
                    if woken != Some(true) {
                        return;
                    }
                }
            };
            thread::Builder::new()
                .name("penstock-replies".to_owned())
                .spawn(forward_wakes)
                .map_err(os_error)?;
            return Ok(Replies {
                inbox: inbox(Wake::Thread(sender)),
                calls,
                last,
                borrowed,
                forks,
                #[cfg(unix)]
                socket: None,
            });
        }
        #[cfg(unix)]
        {
            let (reader, writer) = UnixStream::pair().map_err(os_error)?;
            reader.set_nonblocking(true).map_err(os_error)?;
            writer.set_nonblocking(true).map_err(os_error)?;
            let (inbox, socket) = (inbox(Wake::Socket(writer)), Some(reader));
            Ok(Replies { inbox, calls, last, borrowed, forks, socket })
        }
        #[cfg(not(unix))]
        Err(os_error(ErrorKind::Unsupported.into()))
    }

    #[doc = doc!(Replies.fileno)]
    fn fileno(&self) -> PyResult<i32> {
        #[cfg(unix)]
        if let Some(socket) = &self.socket {
            return Ok(socket.as_raw_fd());
        }
        Err(PyOSError::new_err(io::Error::from(ErrorKind::Unsupported).to_string()))
    }

    #[doc = doc!(Replies.deliver)]
    fn deliver(slf: &Bound<'_, Self>) -> PyResult<()> {
        let replies = slf.get();
        // What wakes the loop of the parent is left in the socket, which both have.
        if !replies.is_of_this_process() {
            return Ok(());
        }
        // Before the replies are taken, so that a reply that arrives in between wakes the loop again.
        replies.drain();
        Replies::receive(slf)
    }

    #[doc = doc!(Replies.read)]
    fn read(slf: &Bound<'_, Self>) -> PyResult<()> {
        let replies = slf.get();
        if !replies.is_of_this_process() {
            // A coroutine that goes on in a child has no running loop.
            let this_loop = running_loop(slf.py());
            return this_loop.map_or(Ok(()), |this_loop| replies.end_loan(&this_loop));
        }
        Replies::receive(slf)
    }

    #[doc = doc!(Replies.call)]
    #[pyo3(signature = (event_loop, verb, bound, id, cost = Argument::Missing, factor = None, keep = None))]
    #[pyo3(text_signature = "($self, event_loop, verb, bound, id, cost=1, factor=None, keep=0)")]
    #[expect(clippy::too_many_arguments, reason = "one per argument of a call")]
    fn call<'py>(
        &self,
        event_loop: &Bound<'py, PyAny>,
        verb: &str,
        bound: &Bound<'py, BoundLimit>,
        id: &Bound<'py, PyAny>,
        cost: Argument<'py>,
        factor: Option<&Bound<'py, PyAny>>,
        keep: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, bound) = (id.py(), bound.get());
        let is_acquire = verb == "acquire";
        let verb = if is_acquire { Verb::Spend } else { verb_named(verb)? };
        if (is_acquire || verb == Verb::Refund) && !bound.handle.waiting.is_empty() {
            return Ok(None);
        }
        let what = if verb == Verb::Reserve { "estimate" } else { "cost" };
        let tokens = cost.or_int(what, 1)?;
        let adjustment = arguments::adjustment(factor, keep)?;
        let text = id_text(id)?;
        let id = kept_id(id, &text);
        let exact = |error: limiter::Failure| with_cost(error.into(), cost.given());
        let (core, (limit, entry)) = (&bound.handle.core, bound.snapshot(py)?);
        let call = Call { verb, id: &text, cost: tokens, adjustment: adjustment.as_ref() };
        let is_remote = core.store().remote().is_some();
        let answered = match verb {
            Verb::Reserve if is_remote => None,
            Verb::Reserve => {
                let reserved = bound.try_reserve(call, &id).transpose()?;
                return Ok(reserved.map(Bound::into_any));
            }
            _ => {
                let mut answered = Answered::default();
                let is_decided = if is_acquire {
                    core.take(&limit, call, Wait::Never, &mut answered).unwrap_or(false)
                } else {
                    core.try_answer(&limit, call, &mut answered).is_some()
                };
                is_decided.then_some(answered)
            }
        };
        if let Some(answered) = answered {
            let data = DecisionData::new(answered, verb, tokens, &id, entry);
            return Ok(Some(Bound::new(py, Decision::new(data))?.into_any()));
        }
        if !is_remote {
            return Ok(None);
        }
        let (remote, mut call) = core.submission(&limit, call).map_err(exact)?;
        call.set_waits(is_acquire);
        let undo = Undo { limit: Arc::clone(&limit), id: text.into_owned(), cost: tokens };
        let (active, id) = ((limit, entry), id.unbind());
        let call = Submission::One { call, active, id, cost: tokens, adjustment };
        self.submit(event_loop, &bound.handle, remote, call, is_acquire.then_some(undo)).map(Some)
    }

    #[doc = doc!(Replies.end)]
    fn end<'py>(
        &self,
        event_loop: &Bound<'py, PyAny>,
        reserved: &Bound<'py, Reservation>,
        is_cancelled: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, reserved) = (event_loop.py(), reserved.get());
        if reserved.handle().core.store().remote().is_none() {
            reserved.release_nowait(py, is_cancelled)?;
            return Ok(None);
        }
        let future = event_loop.call_method0("create_future")?;
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let mut endings = Endings::new();
        reserved.add_endings(py, is_cancelled, &mut endings);
        let decision = reserved.decision(py)?.unbind();
        let call = Submission::End { decision, endings: endings.clone() };
        let (handle, kept) = (Arc::clone(reserved.handle()), future.clone().unbind());
        let outstanding = Outstanding { handle, future: kept, call, undo: None };
        self.calls.lock().insert(number, outstanding);
        let inbox = Arc::clone(&self.inbox);
        let then = move || inbox.push(number, Ok(Vec::new()));
        reserved.handle().submit_endings(endings, then);
        Ok(Some(future))
    }

    #[doc = doc!(Replies.call_all)]
    fn call_all<'py>(
        &self,
        event_loop: &Bound<'py, PyAny>,
        verb: &str,
        limiter: &Bound<'py, Limiter>,
        transactions: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (verb, handle) = (verb_named(verb)?, limiter.get().handle());
        if verb == Verb::Refund && !handle.waiting.is_empty() {
            return Ok(None);
        }
        let (transactions, parts) = limiter.get().transactions(verb, transactions)?;
        if handle.core.store().remote().is_none() {
            let answered = handle.core.try_answer_all(verb, &transactions)?;
            let decided = answered.map(|answered| {
                decided_all(event_loop.py(), handle, verb, transactions, parts, answered)
            });
            return decided.transpose();
        }
        let (remote, call) = handle.core.submission_of_all(verb, transactions)?;
        if handle.core.store().remote().is_some_and(|store| !store.is_one_call(&remote)) {
            return Ok(None);
        }
        self.submit(event_loop, handle, remote, Submission::All { call, parts }, None).map(Some)
    }
}

fn running_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    py.import("asyncio")?.call_method0("get_running_loop")
}

/// Returns the decision about several buckets, or their reservation.
fn decided_all<'py>(
    py: Python<'py>,
    handle: &Arc<LimiterHandle>,
    verb: Verb,
    transactions: Vec<Transaction>,
    parts: Vec<DecisionPart>,
    answered: AnsweredAll,
) -> PyResult<Bound<'py, PyAny>> {
    if verb == Verb::Reserve {
        let reserved = Reservation::of_several(py, handle, transactions, parts, answered)?;
        return Ok(reserved.into_any());
    }
    several(py, handle, answered, parts).map(Bound::into_any)
}
