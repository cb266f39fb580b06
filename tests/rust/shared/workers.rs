//! Workers: processes of this test binary that use one table until they end, stop or are killed.
//!
//! Every worker counts its admitted requests in a file that all processes map, so that the counts survive
//! the worker. [`Scene::check`] compares them with the table.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::MmapRaw;
use penstock::clock::Stopwatch;
use penstock::engine::time::Nanos;
use penstock::engine::verb::Verb;
use penstock::store::memory::Overflow;
use penstock::store::shared::{FaultPoint, Faults, MappedFile};
use rustix::process::{Signal, WaitOptions};

use super::{COUNTED_LIMIT, FEW_LIMIT, PACED_BURST, PACED_INTERVAL, Shared, fresh_path};

/// Buckets of `Counted`, which are only spent.
pub const COUNTED: usize = 24;
/// Buckets of `Counted` that are also charged in decisions that are denied by another limit.
const PAIRED: usize = 8;
/// The number of buckets of `Few` that are spent and refunded, of those that are spent and reset, and of
/// the buckets of `Paced`.
const FEW: usize = 8;
/// The capacity of the table. It is small, so that buckets collide in every window.
pub const CAPACITY: usize = 110;

/// A counter that all processes of a scene share.
#[derive(Clone, Copy)]
pub enum Count {
    /// Admissions by a bucket of `Counted`.
    Counted(usize),
    /// Admissions by a bucket that is charged together with another limit.
    Paired(usize),
    /// Admissions by a bucket that is refunded.
    Refunded(usize),
    /// Refunds that have begun.
    RefundBegun(usize),
    /// Refunds that are complete.
    RefundDone(usize),
    /// Admissions by a bucket that is reset.
    Forgotten(usize),
    /// Resets that have begun.
    ResetBegun(usize),
    /// Admissions by a bucket of `Paced`.
    Paced(usize),
    /// Signals that processes sent themselves at a fault point.
    Signals(u8),
    /// All calls.
    Calls,
}

impl Count {
    const WORDS: usize = 256;

    fn index(self) -> usize {
        match self {
            Count::Counted(index) => index,
            Count::Paired(index) => 24 + index,
            Count::Refunded(index) => 32 + index,
            Count::RefundBegun(index) => 40 + index,
            Count::RefundDone(index) => 48 + index,
            Count::Forgotten(index) => 56 + index,
            Count::ResetBegun(index) => 64 + index,
            Count::Paced(index) => 72 + index,
            Count::Signals(point) => 128 + usize::from(point),
            Count::Calls => 255,
        }
    }
}

/// Counters that survive their process.
#[derive(Debug)]
pub struct Counts(MmapRaw);

impl Counts {
    fn open(path: &Path) -> Counts {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .expect("a file of counters");
        file.set_len((Count::WORDS * 8) as u64).expect("room for the counters");
        Counts(MmapRaw::map_raw(&file).expect("mapped counters"))
    }

    fn word(&self, count: Count) -> &AtomicU64 {
        self.word_at(count.index())
    }

    fn word_at(&self, index: usize) -> &AtomicU64 {
        assert!(index < Count::WORDS);
        // SAFETY: the map has `WORDS` words and the alignment of a page.
        unsafe { &*self.0.as_ptr().cast::<AtomicU64>().add(index) }
    }

    fn add(&self, count: Count) {
        self.word(count).fetch_add(1, Ordering::Relaxed);
    }

    pub fn get(&self, count: Count) -> i64 {
        self.word(count).load(Ordering::Relaxed) as i64
    }
}

/// A fault that kills or stops its process when a fault point is passed for the n-th time.
#[derive(Clone, Debug)]
struct Signaling {
    point: u8,
    passings: Arc<AtomicU32>,
    stop: bool,
    counts: Arc<Counts>,
}

impl Faults for Signaling {
    fn reached(&self, point: FaultPoint) {
        // Not for workers that survive many passings, which would wait at each of their calls.
        let needs_race = self.point == FaultPoint::BeforeGiveBack as u8
            && self.passings.load(Ordering::Relaxed) <= MAX_PASSINGS
            && self.counts.get(Count::Signals(self.point)) == 0;
        if needs_race && point == FaultPoint::BetweenCharges {
            // A charge is returned if another process takes the token that both have seen.
            let until = self.counts.get(Count::Calls) + 50;
            let waiting = Stopwatch::start();
            while self.counts.get(Count::Calls) < until && waiting.elapsed() < SHORT {
                std::thread::yield_now();
            }
        }
        if self.point == point as u8 && self.passings.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.counts.add(Count::Signals(self.point));
            // The signal is sent to this thread. Another thread could receive a signal to the process
            // first, and this one would continue for a while. SAFETY: the call does not access memory.
            unsafe { libc::raise(if self.stop { libc::SIGSTOP } else { libc::SIGKILL }) };
        }
    }
}

/// A random number generator with a seed.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % end
    }
}

/// The instructions for a worker.
#[derive(Clone, Debug, Default)]
pub struct Part {
    pub seed: u64,
    /// The fault point at which it sends itself a signal.
    pub point: Option<FaultPoint>,
    /// The number of the passing at which it does so.
    pub passing: u32,
    /// Whether the signal is SIGSTOP instead of SIGKILL.
    pub stop: bool,
    pub calls: u64,
}

/// One table, and the counters of the processes that use it.
pub struct Scene {
    pub table: PathBuf,
    counts_file: PathBuf,
    pub counts: Counts,
    pub shared: Shared<MappedFile>,
    started: Stopwatch,
}

impl Scene {
    /// Creates a table. The counted buckets get slots before the churning buckets take all of them.
    pub fn new() -> Scene {
        let (table, counts_file) = (fresh_path("table"), fresh_path("counts"));
        let memory = MappedFile::open(&table, Some(CAPACITY)).expect("a new table");
        let shared = Shared::in_file(memory, Overflow::Deny);
        let counts = Counts::open(&counts_file);
        let scene = Scene { table, counts_file, counts, shared, started: Stopwatch::start() };
        let mut numbers = Numbers::new(1);
        for index in 0..COUNTED {
            spend(
                &scene.shared,
                &scene.counts,
                "Counted",
                index.to_string(),
                Count::Counted(index),
            );
        }
        for index in 0..PAIRED {
            let id = format!("paired {index}");
            spend(&scene.shared, &scene.counts, "Counted", id, Count::Paired(index));
        }
        (0..200).for_each(|_| call(&scene.shared, &scene.counts, &mut numbers));
        scene
    }

    fn command(&self, test: &str, part: &Part) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
            .env("WORKER_TABLE", &self.table)
            .env("WORKER_COUNTS", &self.counts_file)
            .env("WORKER_SEED", part.seed.to_string())
            .env("WORKER_POINT", part.point.map_or(0, |point| point as u8).to_string())
            .env("WORKER_PASSING", part.passing.max(1).to_string())
            .env("WORKER_STOP", u8::from(part.stop).to_string())
            .env("WORKER_CALLS", part.calls.to_string());
        command
    }

    /// Starts a worker.
    pub fn launch(&self, part: &Part) -> Worker {
        let mut command = self.command("shared::workers::worker", part);
        Worker(command.stdout(Stdio::null()).spawn().expect("a worker"))
    }

    /// Starts a worker, and returns when it has opened the table.
    pub fn start(&self, part: &Part) -> Worker {
        let mut command = self.command("shared::workers::worker", part);
        let mut worker = Worker(command.stdout(Stdio::piped()).spawn().expect("a worker"));
        let mut output = BufReader::new(worker.0.stdout.take().expect("its output"));
        let is_ready =
            output.by_ref().lines().any(|line| line.is_ok_and(|line| line.ends_with("ready")));
        assert!(is_ready, "the worker did not open the table");
        // Kept open, because the test runner writes to it at the end.
        worker.0.stdout = Some(output.into_inner());
        worker
    }

    /// Starts a process that only opens the table, or creates it.
    pub fn launch_builder(&self, part: &Part) -> Worker {
        let mut command = self.command("shared::workers::builder", part);
        Worker(command.stdout(Stdio::null()).spawn().expect("a builder"))
    }

    /// Spends one token of a counted bucket, in this process.
    pub fn spend(&self, index: usize) -> Result<bool, String> {
        let answer = self.shared.call(Verb::Spend, "Counted", &index.to_string());
        if answer == Ok(true) {
            self.counts.add(Count::Counted(index));
        }
        answer
    }

    /// Spends the token of a bucket that is refilled immediately, in this process.
    pub fn churn(&self, id: &str) -> Result<bool, String> {
        self.shared.call(Verb::Spend, "Churn", id)
    }

    /// Makes one random call in this process.
    pub fn call(&self, numbers: &mut Numbers) {
        call(&self.shared, &self.counts, numbers);
    }

    /// Returns how often processes sent themselves a signal at a point.
    pub fn signals(&self, point: FaultPoint) -> i64 {
        self.counts.get(Count::Signals(point as u8))
    }

    /// Checks that no bucket admitted more than it was charged, that none was charged more than its
    /// limit, and that each of the `kills` lost at most the charges of one call. Returns the numbers of
    /// admitted requests and of lost charges.
    pub fn check(&self, shared: &Shared<MappedFile>, kills: i64) -> (i64, i64) {
        let elapsed = self.started.elapsed();
        let get = |count| self.counts.get(count);
        let used = |name: &str, id: String| {
            let used = shared.used_of(name, &id);
            let limit = if name == "Few" { FEW_LIMIT } else { COUNTED_LIMIT };
            assert!(used <= limit, "{name} {id}: {used} charged");
            used
        };
        let (mut all, mut lost) = (0, 0);
        for index in 0..COUNTED {
            let (admitted, charged) =
                (get(Count::Counted(index)), used("Counted", index.to_string()));
            assert!(admitted <= charged, "{index}: {admitted} admitted, {charged} charged");
            (all, lost) = (all + admitted, lost + charged - admitted);
        }
        for index in 0..PAIRED {
            let admitted = get(Count::Paired(index));
            let charged = used("Counted", format!("paired {index}"));
            assert!(admitted <= charged, "paired {index}: {admitted} admitted, {charged} charged");
        }
        for index in 0..FEW {
            let admitted = get(Count::Refunded(index));
            let (begun, done) = (get(Count::RefundBegun(index)), get(Count::RefundDone(index)));
            let charged = used("Few", format!("refunded {index}"));
            assert!(admitted - begun <= charged, "{index}: {admitted}, {begun}, {charged}");
            (all, lost) = (all + admitted, lost + charged - (admitted - done));
            let (admitted, resets) = (get(Count::Forgotten(index)), get(Count::ResetBegun(index)));
            assert!(admitted <= FEW_LIMIT * (1 + resets), "{index}: {admitted}, {resets}");
            let admitted = get(Count::Paced(index));
            let refilled = elapsed.get() / PACED_INTERVAL.get() + 1;
            assert!(admitted <= PACED_BURST + refilled, "{index}: {admitted} in {elapsed:?}");
            all += admitted;
        }
        // A worker that is killed may have charged both buckets of a call.
        assert!(lost <= 2 * kills, "{lost} charges lost to {kills} kills");
        // No lock is held, and slots can be used again.
        for id in 0..50 {
            assert!(shared.call(Verb::Spend, "Churn", &format!("after all {id}")).is_ok());
        }
        (all, lost)
    }
}

/// A process of a scene, which is killed if the test fails.
pub struct Worker(Child);

impl Worker {
    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.0)
    }

    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).expect("a signal");
    }

    /// Waits until the process stops or ends. Returns whether it is stopped.
    pub fn stops(&self) -> bool {
        let (_, status) = rustix::process::waitpid(Some(self.pid()), WaitOptions::UNTRACED)
            .expect("a worker")
            .expect("its status");
        status.stopped()
    }

    /// Waits for the end of the process. Returns whether it was killed.
    pub fn ends_killed(mut self) -> bool {
        let status = self.0.wait().expect("an end");
        match status.signal() {
            None => assert!(status.success(), "a worker failed"),
            Some(signal) => assert_eq!(signal, Signal::KILL.as_raw(), "a worker crashed"),
        }
        status.signal().is_some()
    }

    /// Drops a process that has ended and has already been waited for.
    pub fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The process has already ended unless the test failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Spends one token, and counts it if it was allowed.
fn spend<F: Faults>(
    shared: &Shared<MappedFile<F>>,
    counts: &Counts,
    name: &str,
    id: String,
    count: Count,
) {
    // The call fails if the table is full or a stopped process holds its lock.
    if shared.call(Verb::Spend, name, &id) == Ok(true) {
        counts.add(count);
    }
}

/// Makes one random call.
fn call<F: Faults>(shared: &Shared<MappedFile<F>>, counts: &Counts, numbers: &mut Numbers) {
    let index = numbers.below(COUNTED as u64) as usize;
    let other = (index + 1) % COUNTED;
    let few = index % FEW;
    let churning = numbers.below(10_000).to_string();
    match numbers.below(16) {
        0..5 => spend(shared, counts, "Counted", index.to_string(), Count::Counted(index)),
        5 => {
            let ids = [index.to_string(), other.to_string()];
            if shared.spend_all([("Counted", &ids[0]), ("Counted", &ids[1])]) == Ok(true) {
                counts.add(Count::Counted(index));
                counts.add(Count::Counted(other));
            }
        }
        // All processes compete for the single token of a bucket, so that some charges are returned.
        6..8 => {
            let paired = format!("paired {few}");
            if shared.spend_all([("Counted", &paired), ("Churn", "hot")]) == Ok(true) {
                counts.add(Count::Paired(few));
            }
        }
        8 => spend(shared, counts, "Few", format!("refunded {few}"), Count::Refunded(few)),
        9 => {
            let id = format!("refunded {few}");
            // A token that this process has just spent, so that there is always one to refund.
            if shared.call(Verb::Spend, "Few", &id) == Ok(true) {
                counts.add(Count::Refunded(few));
                counts.add(Count::RefundBegun(few));
                match shared.call(Verb::Refund, "Few", &id) {
                    Ok(_) => counts.add(Count::RefundDone(few)),
                    // An error leaves the bucket unchanged.
                    Err(_) => {
                        counts.word(Count::RefundBegun(few)).fetch_sub(1, Ordering::Relaxed);
                    }
                }
            }
        }
        10 => {
            let id = format!("forgotten {few}");
            if numbers.below(20) == 0 {
                counts.add(Count::ResetBegun(few));
                let _ = shared.reset("Few", &id);
            }
            spend(shared, counts, "Few", id, Count::Forgotten(few));
        }
        11 => spend(shared, counts, "Paced", few.to_string(), Count::Paced(few)),
        12 => {
            let _ = shared.reset("Churn", &churning);
        }
        _ => {
            let _ = shared.call(Verb::Spend, "Churn", &churning);
        }
    }
    counts.add(Count::Calls);
}

/// Returns an instruction for this worker from its environment.
#[expect(clippy::disallowed_methods, reason = "the parent has no other way to reach its worker")]
fn environment(name: &str) -> String {
    std::env::var(name).expect("a worker's environment")
}

fn number(name: &str) -> u64 {
    environment(name).parse().expect("a number")
}

/// Returns the table of this worker's scene, the counters, and the fault to inject.
fn scene_of_worker() -> (PathBuf, Arc<Counts>, Signaling) {
    let counts = Arc::new(Counts::open(Path::new(&environment("WORKER_COUNTS"))));
    let signaling = Signaling {
        point: number("WORKER_POINT") as u8,
        passings: Arc::new(AtomicU32::new(number("WORKER_PASSING") as u32)),
        stop: number("WORKER_STOP") == 1,
        counts: Arc::clone(&counts),
    };
    (environment("WORKER_TABLE").into(), counts, signaling)
}

#[test]
#[ignore = "a worker that other tests start"]
fn worker() {
    let (table, counts, faults) = scene_of_worker();
    let memory = MappedFile::open_reporting(&table, None, faults).expect("the table");
    let shared = Shared::in_file(memory, Overflow::Deny);
    println!("ready");
    let mut numbers = Numbers::new(number("WORKER_SEED"));
    for _ in 0..number("WORKER_CALLS") {
        call(&shared, &counts, &mut numbers);
    }
}

#[test]
#[ignore = "a builder that other tests start"]
fn builder() {
    let (table, _, faults) = scene_of_worker();
    drop(MappedFile::open_reporting(&table, Some(CAPACITY), faults).expect("a table"));
}

/// The maximum time of a call that does not wait for another process, on a busy machine.
pub const SHORT: Nanos = Nanos::from_millis(150);

/// The maximum number of passings for which a test ensures that a worker reaches the point.
pub const MAX_PASSINGS: u32 = 7;
