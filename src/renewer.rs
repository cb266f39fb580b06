//! The thread that renews the slots of all limiters of this process, without the interpreter.
//!
//! It starts with the first slot, sleeps until the next one is due, and ends when no limiter holds
//! any. A C extension that holds the interpreter for long, or a busy event loop, delays nothing.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::engine::time::{Nanos, Timestamp};
use crate::sync::{TryLock, TryLockGuard, forks};

/// The longest sleep. The time of a sleep may not pass while the machine is suspended, that of leases does.
const MAX_SLEEP: Nanos = Nanos::from_millis(15_000);

/// A limiter that may hold slots.
pub trait Renewed: Send + Sync {
    /// Renews the slots that are due. Returns the time until it must be called again; `None` if nothing is
    /// held.
    fn renew(&self) -> Option<Nanos>;
}

/// The limiters of this process that hold slots, and the thread that renews them.
#[derive(Debug)]
pub struct Renewer(TryLock<Plans>);

/// The renewer of this process.
pub static RENEWER: Renewer =
    Renewer(TryLock::new(Plans { forks: 0, thread: None, plans: Vec::new() }));

#[derive(Debug, Default)]
struct Plans {
    /// The forks of the process that the thread belongs to. A child process has no thread.
    forks: u32,
    thread: Option<Thread>,
    plans: Vec<Plan>,
}

/// When a limiter is renewed.
struct Plan {
    limiter: Weak<dyn Renewed>,
    at: Timestamp,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("at", &self.at).finish_non_exhaustive()
    }
}

impl Renewer {
    /// Renews a limiter after a time, or earlier if that is planned already.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn plan(&'static self, limiter: &Weak<dyn Renewed>, after: Nanos) -> io::Result<()> {
        let mut state = self.state();
        state.plan(limiter.clone(), now().saturating_add(after));
        if let Some(thread) = &state.thread {
            thread.unpark();
            return Ok(());
        }
        let forks = state.forks;
        // The thread begins with the lock.
        let run = move || self.run(forks);
        let started = thread::Builder::new().name("penstock-slots".into()).spawn(run)?;
        state.thread = Some(started.thread().clone());
        Ok(())
    }

    /// Forgets a limiter that holds nothing any more. The thread ends with the last one.
    pub fn forget<T: Renewed + 'static>(&self, limiter: &T) {
        let mut state = self.state();
        let address = std::ptr::from_ref(limiter).cast::<()>();
        state.plans.retain(|plan| plan.limiter.as_ptr().cast::<()>() != address);
        if let Some(thread) = &state.thread
            && state.plans.is_empty()
        {
            thread.unpark();
        }
    }

    fn state(&self) -> TryLockGuard<'_, Plans> {
        let mut state = self.0.lock();
        if state.forks != forks() {
            *state = Plans { forks: forks(), ..Plans::default() };
        }
        state
    }

    fn run(&self, forks: u32) {
        loop {
            for limiter in self.take_due() {
                if let Some(after) = renew(&limiter) {
                    self.state().plan(limiter, now().saturating_add(after));
                }
            }
            let mut state = self.state();
            let Some(next) = state.plans.iter().map(|plan| plan.at).min() else {
                if state.forks == forks {
                    state.thread = None;
                }
                return;
            };
            drop(state);
            let nanos = next.get().saturating_sub(now().get()).clamp(0, MAX_SLEEP.get());
            #[expect(
                clippy::disallowed_methods,
                reason = "a thread of its own, which a plan wakes"
            )]
            thread::park_timeout(Duration::from_nanos(nanos.unsigned_abs()));
        }
    }

    /// Removes and returns the limiters that are due.
    fn take_due(&self) -> Vec<Weak<dyn Renewed>> {
        let mut state = self.state();
        let now = now();
        let due = state.plans.extract_if(.., |plan| plan.at <= now);
        due.map(|plan| plan.limiter).collect()
    }
}

impl Plans {
    fn plan(&mut self, limiter: Weak<dyn Renewed>, at: Timestamp) {
        let planned = self.plans.iter_mut().find(|plan| Weak::ptr_eq(&plan.limiter, &limiter));
        match planned {
            Some(plan) => plan.at = plan.at.min(at),
            None => self.plans.push(Plan { limiter, at }),
        }
    }
}

fn now() -> Timestamp {
    SystemClock::new().now()
}

fn renew(limiter: &Weak<dyn Renewed>) -> Option<Nanos> {
    let limiter: Arc<dyn Renewed> = limiter.upgrade()?;
    // A fault with one limiter must not end the renewal of the others.
    catch_unwind(AssertUnwindSafe(|| limiter.renew())).unwrap_or(Some(Nanos::SECOND))
}
