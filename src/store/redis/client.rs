//! The runtime that drives the connection, and the threads that run it.
//!
//! Synchronous callers run it themselves: the first one reads and writes for all, and the others
//! are woken when their replies have arrived. From the first asynchronous call on, a dedicated
//! thread runs it, and lends it to an event loop that makes one call at a time.
//!
//! A runtime does not survive a fork, so it belongs to one process: a child creates another, and
//! never uses its parent's. Locks that another thread held during the fork stay locked in the
//! child, so every lock belongs to the runtime of one process too.

use std::mem;
use std::pin::pin;
use std::process;
use std::sync::Arc;
use std::thread;

use futures_util::future::{Either, join_all, select};
use redis::{Cmd, Value};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Notify;
use tokio::task::coop::unconstrained;

use crate::clock::Stopwatch;
use crate::engine::answer::Answer;
use crate::store::StoreError;
use crate::store::redis::breaker::{Breaker, Change};
use crate::store::redis::call_batch::{CallBatch, Callback, Replied, Waiting};
use crate::store::redis::codec::{self, Unit};
use crate::store::redis::deny_cache::DenyCache;
use crate::store::redis::handoff::Handoff;
use crate::store::redis::link::Link;
use crate::store::redis::loan::{Lender, Loan, OnLent};
use crate::store::redis::metrics::{CallKind, CallResult, Metrics, StoreEvent};
use crate::store::redis::url::RedisUrl;
use crate::store::redis::{SLACK, handoff, replies};
use crate::store::remote::RemoteOp;
#[cfg(unix)]
use crate::sync::count_forks;
use crate::sync::{AppendList, AtomicBool, Ordering, forks};

/// Receives the server's reply.
pub(super) type Done = Box<dyn FnOnce(Result<Value, StoreError>) + Send>;

/// A client of one server, usable in every process that inherits it.
#[derive(Debug)]
pub(super) struct Client {
    url: RedisUrl,
    seed: u64,
    /// Those of this process's ancestors and its own, oldest first.
    engines: AppendList<Engine>,
    is_closed: AtomicBool,
}

impl Client {
    /// Creates a client that connects at its first call. `seed` is for the jitter of its breaker.
    pub(super) fn new(url: RedisUrl, seed: u64) -> Client {
        #[cfg(unix)]
        count_forks();
        Client { url, seed, engines: AppendList::new(), is_closed: AtomicBool::new(false) }
    }

    /// The URL.
    pub(super) fn url(&self) -> &RedisUrl {
        &self.url
    }

    /// Returns the engine of this process.
    ///
    /// # Errors
    /// [`StoreError::Closed`], or [`StoreError::Unavailable`] if the system has no resources left.
    pub(super) fn engine(&self) -> Result<&Engine, StoreError> {
        // Relaxed: no other access depends on the flag.
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(StoreError::Closed);
        }
        let forks = forks();
        self.engines.find_or_push(
            |engine| engine.forks == forks,
            || Engine::new(forks, &self.url, self.seed ^ u64::from(process::id())),
        )
    }

    /// Refuses calls from now on.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        for engine in self.engines.iter().filter(|engine| engine.forks == forks()) {
            engine.shared.link.close();
        }
    }
}

/// The runtime of one process and its data.
#[derive(Debug)]
pub(super) struct Engine {
    /// Identifies the process. Its id would take a call of the system for each decision.
    forks: u32,
    runtime: Option<Arc<Runtime>>,
    shared: Arc<SharedEngine>,
    /// Whether a thread runs the runtime; false if none could be started.
    #[expect(clippy::disallowed_types, reason = "an engine is used in one process only")]
    driver: std::sync::OnceLock<bool>,
    stop: Arc<Notify>,
    lender: Arc<Lender>,
}

/// The part of an engine that calls in progress share.
#[derive(Debug)]
struct SharedEngine {
    link: Link,
    batch: CallBatch,
    handoff: Arc<Handoff>,
    breaker: Breaker,
    deny_cache: Arc<DenyCache>,
    metrics: Arc<Metrics>,
}

impl Engine {
    fn new(forks: u32, url: &RedisUrl, seed: u64) -> Result<Engine, StoreError> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build();
        let runtime =
            runtime.map_err(|error| StoreError::Unavailable { why: error.to_string() })?;
        let shared = SharedEngine {
            link: Link::new(url.clone()),
            batch: CallBatch::new(),
            handoff: Arc::default(),
            breaker: Breaker::new(seed),
            deny_cache: Arc::new(DenyCache::new(url.deny_cache)),
            metrics: Arc::default(),
        };
        Ok(Engine {
            forks,
            runtime: Some(Arc::new(runtime)),
            shared: Arc::new(shared),
            driver: Default::default(),
            stop: Arc::new(Notify::new()),
            lender: Arc::new(Lender::new(url.deadline)),
        })
    }

    /// Returns the cache of buckets that denied.
    pub(super) fn deny_cache(&self) -> &Arc<DenyCache> {
        &self.shared.deny_cache
    }

    /// Returns the circuit breaker.
    pub(super) fn breaker(&self) -> &Breaker {
        &self.shared.breaker
    }

    /// Returns the counts and events for metrics and logs.
    pub(super) fn metrics(&self) -> &Arc<Metrics> {
        &self.shared.metrics
    }

    fn runtime(&self) -> &Arc<Runtime> {
        self.runtime.as_ref().expect("it is taken when the engine is dropped only")
    }

    /// Waits for a call. First wakes the next thread whose reply has arrived, which would wait as well.
    fn block_on<T>(&self, call: impl Future<Output = T>) -> T {
        handoff::pass_on();
        self.run(call)
    }

    /// Runs the runtime until a call is done. The engine's thread continues with what others have begun.
    fn run<T>(&self, call: impl Future<Output = T>) -> T {
        self.lender.end();
        let reply = self.runtime().block_on(call);
        self.lender.end();
        reply
    }

    /// Connects within the timeout of the URL.
    ///
    /// # Errors
    /// [`StoreError`] if there is no connection.
    pub(super) fn connect(&self) -> Result<(), StoreError> {
        self.block_on(self.shared.link.connect())
    }

    /// Refuses a call while the breaker is open.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub(super) fn admit(&self) -> Result<(), StoreError> {
        self.shared.admit()
    }

    /// Makes a call that was admitted and waits for its reply.
    ///
    /// # Errors
    /// [`StoreError`] if there is none.
    pub(super) fn call(&self, call: CallKind, command: &Cmd) -> Result<Value, StoreError> {
        self.block_on(self.shared.ask(call, command))
    }

    /// Makes calls that were admitted, in order, and waits for their replies.
    pub(super) fn call_each(
        &self,
        call: CallKind,
        commands: &[Cmd],
    ) -> Vec<Result<Value, StoreError>> {
        self.block_on(async {
            // On one open connection, all commands are sent in order.
            self.shared.link.wake().await;
            let calls = join_all(commands.iter().map(|command| self.shared.ask(call, command)));
            // A call that exhausted its budget would be sent after later calls.
            unconstrained(calls).await
        })
    }

    /// Makes calls that were admitted, at the same time, and waits for their replies.
    pub(super) fn call_together(
        &self,
        call: CallKind,
        commands: &[Cmd],
    ) -> Vec<Result<Value, StoreError>> {
        self.block_on(join_all(commands.iter().map(|command| self.shared.ask(call, command))))
    }

    /// Makes a call on one bucket that was admitted, at the server's time and together with those of
    /// other callers, and waits for its reply.
    ///
    /// # Errors
    /// [`StoreError`] if there is none.
    pub(super) fn decide(&self, key: Vec<u8>, operation: RemoteOp) -> Result<Answer, StoreError> {
        let (sender, receiver) = self.shared.handoff.channel();
        if self.shared.batch.push(key, operation, Replied::Thread(sender)) {
            self.run(self.shared.send_batch());
        }
        receiver.wait()
    }

    /// Makes a call that was admitted. Never waits; `done` is called on the runtime's thread.
    pub(super) fn submit(&self, call: CallKind, command: Cmd, done: Done) {
        if let Err(error) = self.drive() {
            return done(Err(error));
        }
        let shared = Arc::clone(&self.shared);
        self.runtime().spawn(async move { done(shared.ask(call, &command).await) });
    }

    /// As [`Engine::decide`], but never waits; `replied` is called on the runtime's thread.
    pub(super) fn submit_one(&self, key: Vec<u8>, operation: RemoteOp, replied: Callback) {
        if let Err(error) = self.drive() {
            return replied(Err(error));
        }
        if self.shared.batch.push(key, operation, Replied::Callback(replied)) {
            let shared = Arc::clone(&self.shared);
            self.runtime().spawn(async move { shared.send_batch().await });
        }
    }

    /// Lends the runtime to the event loop that calls this; `None` if it cannot be lent, or is lent already. A
    /// call from outside the loan ends it.
    pub(super) fn lend(&self, on_lent: OnLent) -> Option<Loan> {
        let socket = self.shared.link.socket()?;
        Loan::request(self.runtime(), &self.lender, &socket, on_lent)
    }

    /// Starts the thread that runs the runtime, if there is none.
    fn drive(&self) -> Result<(), StoreError> {
        if *self.driver.get_or_init(|| self.start_driver()) {
            // A caller within the runtime drives it.
            if Handle::try_current().is_err() {
                self.lender.end();
            }
            return Ok(());
        }
        Err(StoreError::Unavailable { why: "no thread can be started".to_owned() })
    }

    fn start_driver(&self) -> bool {
        let (runtime, stop) = (Arc::clone(self.runtime()), Arc::clone(&self.stop));
        let lender = Arc::clone(&self.lender);
        let run = move || {
            let is_requested = async || {
                let (stopped, requested) = (pin!(stop.notified()), pin!(lender.requested()));
                matches!(select(stopped, requested).await, Either::Right(_))
            };
            while runtime.block_on(is_requested()) {
                lender.lend();
            }
            shut_down(runtime);
        };
        thread::Builder::new().name("penstock-redis".into()).spawn(run).is_ok()
    }
}

/// Stops a runtime that no one else uses, without waiting for anything.
pub(super) fn shut_down(runtime: Arc<Runtime>) {
    if let Some(runtime) = Arc::into_inner(runtime) {
        runtime.shutdown_background();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        if self.forks == forks() {
            self.stop.notify_one();
            self.lender.end();
            shut_down(runtime);
        } else {
            // It is the parent's: its locks may be held, and its event queue is shared with the
            // parent.
            mem::forget((runtime, Arc::clone(&self.shared), Arc::clone(&self.stop)));
        }
    }
}

impl SharedEngine {
    fn admit(&self) -> Result<(), StoreError> {
        self.breaker.admit().map_err(|pause| {
            let millis = pause.millis() + 1;
            let why = format!("it failed several times in a row; next attempt in {millis} ms");
            StoreError::Unavailable { why }
        })
    }

    async fn ask(&self, call: CallKind, command: &Cmd) -> Result<Value, StoreError> {
        let stopwatch = Stopwatch::start();
        let (reply, is_answer) = self.send(command).await;
        self.metrics.count(call, CallResult::of(&reply, is_answer), stopwatch);
        reply
    }

    /// Sends the calls that are waiting.
    async fn send_batch(&self) {
        let (parts, _turn) = self.batch.next().await;
        join_all(parts.into_iter().map(|calls| self.send_part(calls))).await;
    }

    /// Decides some calls by one run of the script.
    async fn send_part(&self, calls: Vec<Waiting>) {
        let each = calls.iter().map(|call| (call.key.as_slice(), &call.operation));
        let command = codec::decide(each, Unit::Each, None, SLACK);
        let (reply, is_answer) = self.send(&command).await;
        let result = CallResult::of(&reply, is_answer);
        let keys: Vec<_> = calls.iter().map(|call| call.key.as_slice()).collect();
        let replies = replies(&self.metrics, reply, &keys);
        let mut threads = Vec::with_capacity(calls.len());
        for (call, reply) in calls.into_iter().zip(replies) {
            self.metrics.count(CallKind::of(&[call.operation]), result, call.stopwatch);
            match call.replied {
                Replied::Thread(sender) => threads.push((sender, reply)),
                Replied::Callback(callback) => callback(reply),
            }
        }
        self.handoff.send(threads);
    }

    /// Sends a command; also returns whether the server answered, even with an error.
    async fn send(&self, command: &Cmd) -> (Result<Value, StoreError>, bool) {
        let sent = self.breaker.period();
        let (reply, is_answer) = self.link.ask(command).await;
        let note = |change| {
            self.metrics.add(match change {
                Change::Closed(after) => StoreEvent::Answering { after },
                Change::Opened => StoreEvent::Failing {
                    why: reply.as_ref().err().map(ToString::to_string).unwrap_or_default(),
                },
            });
        };
        if is_answer {
            self.breaker.on_success(note);
        } else if self.breaker.on_failure(sent, note) {
            // The connection may be dead without notice.
            self.link.drop_connection();
        }
        (reply, is_answer)
    }
}
