//! The loan of the runtime to an event loop.
//!
//! A call of an event loop that the engine's thread sends and receives takes four switches between threads. A
//! loop that makes one call at a time therefore drives the runtime itself: when it calls, and when the socket
//! of the connection is readable. It never waits.
//!
//! The engine's thread takes the runtime back as soon as the loop has not driven it for a moment, so that
//! timers run although the loop is busy or the reply does not come, and for any call of another caller.

use std::fmt;
use std::mem;
use std::net::TcpStream;
use std::sync::{Arc, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::yield_now;

use crate::store::redis::client::shut_down;
use crate::store::redis::connection::Socket;
use crate::store::remote::BorrowedConnection;
use crate::sync::{AtomicU8, AtomicU64, Mutex, Ordering, forks};

/// The time without use after which a loan ends, at most.
const UNUSED: Duration = Duration::from_millis(10);

/// The state: the engine's thread drives the runtime, is asked to lend it, has lent it.
const KEPT: u8 = 0;
const WANTED: u8 = 1;
const LENT: u8 = 2;

/// Is called on the engine's thread once a loan has begun.
pub(super) type OnLent = Box<dyn FnOnce() + Send>;

/// The side of the engine's thread.
#[derive(Debug)]
pub(super) struct Lender {
    /// The time without use after which a loan ends.
    unused: Duration,
    state: AtomicU8,
    /// The number of times that the loop has driven the runtime.
    uses: AtomicU64,
    wanted: Notify,
    thread: Mutex<Option<Thread>>,
    on_lent: Mutex<Requested>,
}

/// What to call once the loan that was requested last has begun.
#[derive(Default)]
struct Requested(Option<OnLent>);

// The function has no readable form.
impl fmt::Debug for Requested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Requested").field(&self.0.is_some()).finish()
    }
}

impl Lender {
    /// Creates a lender that serves timers within `deadline`, too, if a loan is not used.
    pub(super) fn new(deadline: Duration) -> Lender {
        Lender {
            unused: UNUSED.min(deadline),
            state: AtomicU8::new(KEPT),
            uses: AtomicU64::new(0),
            wanted: Notify::new(),
            thread: Mutex::default(),
            on_lent: Mutex::default(),
        }
    }

    /// Asks for the runtime; `false` if another event loop has it. It is lent once `on_lent` is called.
    fn request(&self, on_lent: OnLent) -> bool {
        let mut requested = self.on_lent.lock();
        let is_free = self.change(KEPT, WANTED);
        if is_free {
            *requested = Requested(Some(on_lent));
            self.wanted.notify_one();
        }
        is_free
    }

    fn change(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Returns whether a loan is requested or has begun.
    fn is_on(&self) -> bool {
        self.state.load(Ordering::SeqCst) != KEPT
    }

    /// Ends the loan, if any: the engine's thread drives the runtime again.
    #[inline]
    pub(super) fn end(&self) {
        if self.is_on() && self.state.swap(KEPT, Ordering::SeqCst) == LENT {
            self.thread.lock().iter().for_each(Thread::unpark);
        }
    }

    /// Waits for a request.
    pub(super) async fn requested(&self) {
        self.wanted.notified().await;
    }

    /// Lends the runtime, which the engine's thread has left, and waits for the end of the loan.
    pub(super) fn lend(&self) {
        *self.thread.lock() = Some(thread::current());
        let mut requested = self.on_lent.lock();
        if !self.change(WANTED, LENT) {
            return;
        }
        let on_lent = requested.0.take();
        drop(requested);
        // The loop may have made a call in the meantime, which no thread has driven.
        on_lent.into_iter().for_each(|on_lent| on_lent());
        // The end of an earlier loan may have woken this thread while it was awake.
        rest(Duration::ZERO);
        let mut before = self.uses.load(Ordering::Relaxed);
        while self.state.load(Ordering::SeqCst) == LENT {
            rest(self.unused);
            let uses = self.uses.load(Ordering::Relaxed);
            if mem::replace(&mut before, uses) == uses {
                self.change(LENT, KEPT);
            }
        }
    }
}

/// Waits for the end of a loan.
#[expect(clippy::disallowed_methods, reason = "a loan that is not used ends")]
fn rest(at_most: Duration) {
    thread::park_timeout(at_most);
}

/// The side of the event loop. The loan ends when it is dropped.
pub(super) struct Loan {
    runtime: Weak<Runtime>,
    lender: Arc<Lender>,
    connection: Weak<Socket>,
    watched: TcpStream,
    /// Identifies the process: in a child, the runtime is the parent's.
    forks: u32,
}

impl Loan {
    /// Requests a loan to drive the connection of this socket; `None` if there can be none.
    pub(super) fn request(
        runtime: &Arc<Runtime>,
        lender: &Arc<Lender>,
        socket: &Arc<Socket>,
        on_lent: OnLent,
    ) -> Option<Loan> {
        let watched = socket.copy()?;
        lender.request(on_lent).then(|| Loan {
            runtime: Arc::downgrade(runtime),
            lender: Arc::clone(lender),
            connection: Arc::downgrade(socket),
            watched,
            forks: forks(),
        })
    }
}

impl BorrowedConnection for Loan {
    fn socket(&self) -> &TcpStream {
        &self.watched
    }

    fn is_on(&self) -> bool {
        let is_open = || self.connection.upgrade().is_some_and(|socket| socket.is_open());
        self.lender.is_on() && self.forks == forks() && is_open()
    }

    fn drive(&self, act: &mut dyn FnMut()) {
        let runtime = Some(&self.runtime).filter(|_| self.forks == forks());
        let Some(runtime) = runtime.and_then(Weak::upgrade) else { return act() };
        self.lender.uses.fetch_add(1, Ordering::Relaxed);
        // The driver polls events before the last step. If another thread drives the runtime, this does not wait
        // for it.
        runtime.block_on(async {
            act();
            yield_now().await;
        });
        shut_down(runtime);
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // In a child, the lender is the parent's, whose threads may have had its locks.
        if self.forks == forks() {
            self.lender.end();
        }
    }
}
