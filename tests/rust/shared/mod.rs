//! The shared-memory store: its file, damage to it, and processes that die while they use it.
//!
//! 1. A file that is not a complete table of this user is refused.
//! 2. If several processes open a table concurrently, or are killed at any point, there is one table.
//! 3. A table in use keeps its capacity; one that no process has open is replaced by one with another capacity.
//! 4. Processes that are killed at any instruction never cause over-admission, and each kill loses
//!    at most one charge per bucket of its call.
//! 5. A process that is stopped while it adds a bucket blocks only new buckets. No call waits longer than
//!    the deadline.
//! 6. After a fork, parent and child use the same buckets.
//! 7. An operator can clear all buckets while calls are in progress.

mod clear;
mod file;
mod processes;
mod torture;
mod workers;

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

use penstock::clock::{AnyClock, SystemClock};
use penstock::config;
use penstock::engine::algorithm::window::Anchor;
use penstock::engine::batch::Kind;
use penstock::engine::limit::Limit;
use penstock::engine::time::Nanos;
use penstock::engine::verb::Verb;
use penstock::limiter::{Call, Limiter, Transaction};
use penstock::store::memory::Overflow;
use penstock::store::shared::{Faults, MappedFile, SharedStore, TableMemory, TableOpenError};

/// The files of one test, removed when its thread ends.
#[derive(Default)]
struct Files(Vec<PathBuf>);

impl Drop for Files {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns an unused path.
pub fn fresh_path(name: &str) -> PathBuf {
    thread_local!(static FILES: RefCell<Files> = RefCell::default());
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("unnamed").replace("::", ".");
    FILES.with_borrow_mut(|files| {
        let file = format!("{test}-{name}-{}-{}", std::process::id(), files.0.len());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
        files.0.push(path.clone());
        path
    })
}

/// The clock of a table, whose readings calls share, as they do under Python.
pub fn table_clock() -> AnyClock {
    AnyClock::System(SystemClock::new())
}

/// A limiter in a shared table, with the limits `Counted`, `Churn`, `Few`, `Paced`, `Tokens` and
/// `Drips`.
pub struct Shared<M: TableMemory>(pub Limiter<SharedStore<M>, AnyClock>);

impl Shared<MappedFile> {
    pub fn open(path: &Path, capacity: usize) -> Result<Shared<MappedFile>, TableOpenError> {
        Ok(Shared::in_file(MappedFile::open(path, Some(capacity))?, Overflow::Share))
    }
}

impl<F: Faults> Shared<MappedFile<F>> {
    pub fn in_file(memory: MappedFile<F>, overflow: Overflow) -> Shared<MappedFile<F>> {
        Shared::new(SharedStore::in_file(memory, overflow), table_clock())
    }
}

impl<M: TableMemory> Shared<M> {
    pub fn new(store: SharedStore<M>, clock: AnyClock) -> Shared<M> {
        let day = Nanos::from_millis(86_400_000);
        let limits = [
            ("Counted", Limit::fixed_window(COUNTED_LIMIT, day, Anchor::First)),
            ("Churn", Limit::token_bucket(1, 1, Nanos::from_millis(1))),
            ("Few", Limit::fixed_window(FEW_LIMIT, day, Anchor::First)),
            ("Paced", Limit::token_bucket(PACED_BURST, 1, PACED_INTERVAL)),
            ("Tokens", Limit::token_bucket(5, 1, Nanos::from_millis(1000))),
            ("Drips", Limit::leaky_bucket(1200, Nanos::from_millis(60_000), 1)),
        ];
        let limits = limits.map(|(name, limit)| (name.to_owned(), limit.expect("a limit")));
        Shared(Limiter::new(config::from_limits(limits).expect("limits"), store, clock))
    }

    /// Makes a call with a cost of 1, and returns whether it is allowed.
    pub fn call(&self, verb: Verb, name: &str, id: &str) -> Result<bool, String> {
        let snapshot = self.0.snapshot();
        let bound = snapshot.limit(name).expect("a limit");
        let decided =
            self.0.decide(bound, Call::new(verb, id, 1)).map_err(|error| error.to_string())?;
        Ok(decided.decision.allowed)
    }

    pub fn spend(&self, name: &str, id: &str) -> bool {
        self.call(Verb::Spend, name, id).expect("an answer")
    }

    /// Spends one token from each of two buckets in a batch, and returns whether it is allowed.
    pub fn spend_all(&self, buckets: [(&str, &str); 2]) -> Result<bool, String> {
        let snapshot = self.0.snapshot();
        let part = |(name, id)| {
            let limit = snapshot.limit(name).expect("a limit");
            Transaction::new(limit, id, 1, Kind::Spend)
        };
        let decided = self.0.decide_all(Verb::Spend, &buckets.map(part));
        Ok(decided.map_err(|error| error.to_string())?.decision.allowed)
    }

    /// Resets a bucket, and returns whether it existed.
    pub fn reset(&self, name: &str, id: &str) -> Result<bool, String> {
        let snapshot = self.0.snapshot();
        let bound = snapshot.limit(name).expect("a limit");
        self.0.reset(bound, id).map_err(|error| error.to_string())
    }

    /// Returns the tokens taken from a bucket of a fixed window.
    pub fn used_of(&self, name: &str, id: &str) -> i64 {
        let snapshot = self.0.snapshot();
        let bound = snapshot.limit(name).expect("a limit");
        let peek = self.0.decide(bound, Call::check(id, 0)).expect("an answer");
        let limit = if name == "Few" { FEW_LIMIT } else { COUNTED_LIMIT };
        limit - peek.decision.remaining
    }

    /// Returns the tokens taken from a bucket of `Counted`.
    pub fn used(&self, id: &str) -> i64 {
        self.used_of("Counted", id)
    }
}

/// The tokens per day of the limit `Counted`.
pub const COUNTED_LIMIT: i64 = 5_000;
/// The tokens per day of the limit `Few`.
pub const FEW_LIMIT: i64 = 100;
/// The burst of the limit `Paced`.
pub const PACED_BURST: i64 = 10;
/// The emission interval of the limit `Paced`.
pub const PACED_INTERVAL: Nanos = Nanos::from_millis(1);
