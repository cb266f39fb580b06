//! Processes that share a table, and die or stop while they use it.
//!
//! The parent runs this test binary again for each worker. A worker writes each admission to a file
//! of counters that it maps, and kills itself at the fault point that it was given.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::MmapRaw;
use penstock::clock::Stopwatch;
use penstock::engine::operation::Verb;
use penstock::engine::time::Nanos;
use penstock::store::memory::Overflow;
use penstock::store::shared::{FaultPoint, Faults, MappedFile};
use rustix::process::{Pid, Signal, WaitOptions, kill_process};

use super::{COUNTED_LIMIT, Shared, fresh_path};

/// Buckets whose admissions are counted.
const COUNTED: usize = 24;
/// Buckets that the table has room for: few, so that buckets meet in every window.
const CAPACITY: usize = 90;

/// Kills or stops its process at one passing of one fault point.
#[derive(Clone, Debug)]
struct Killing {
    point: u8,
    passings: Arc<AtomicU32>,
    stop: bool,
}

impl Killing {
    /// As the environment of a worker says.
    fn from_environment() -> Killing {
        let number = |name: &str| environment(name).and_then(|text| text.parse().ok());
        Killing {
            point: number("WORKER_POINT").unwrap_or(0) as u8,
            passings: Arc::new(AtomicU32::new(number("WORKER_PASSING").unwrap_or(1))),
            stop: environment("WORKER_STOP").as_deref() == Some("true"),
        }
    }
}

impl Faults for Killing {
    fn reached(&self, point: FaultPoint) {
        if self.point == point as u8 && self.passings.fetch_sub(1, Ordering::Relaxed) == 1 {
            signal_self(self.stop);
        }
    }
}

fn signal_self(stop: bool) {
    // To this thread: a signal to the process may reach another one first, and this one would go on
    // for a while.
    // SAFETY: a call without memory.
    unsafe { libc::raise(if stop { libc::SIGSTOP } else { libc::SIGKILL }) };
}

/// Counters that survive the process that counts.
struct AdmissionCounts(MmapRaw);

impl AdmissionCounts {
    fn open(path: &Path) -> AdmissionCounts {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .expect("a file of counters");
        file.set_len((COUNTED * 8) as u64).expect("room for the counters");
        AdmissionCounts(MmapRaw::map_raw(&file).expect("mapped counters"))
    }

    fn counter(&self, index: usize) -> &AtomicU64 {
        assert!(index < COUNTED);
        // SAFETY: the map has `COUNTED` words, aligned as a page is.
        unsafe { &*self.0.as_ptr().cast::<AtomicU64>().add(index) }
    }
}

/// A worker's part, as its environment says.
#[expect(clippy::disallowed_methods, reason = "the parent has no other way to reach its worker")]
fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[derive(Clone)]
struct Part {
    table: PathBuf,
    counts: PathBuf,
    seed: u64,
    point: Option<FaultPoint>,
    passing: u32,
    stop: bool,
    calls: u64,
    /// The capacity of the larger table that it makes; 0 for none.
    capacity: usize,
}

/// This program again, with one of its ignored tests.
fn run_again(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
    command
}

/// Starts a worker, and returns once it has the table open.
fn start(part: &Part) -> Child {
    let point = part.point.map_or(0, |point| point as u8);
    let mut worker = run_again("shared::processes::worker")
        .env("WORKER_TABLE", &part.table)
        .env("WORKER_COUNTS", &part.counts)
        .env("WORKER_SEED", part.seed.to_string())
        .env("WORKER_POINT", point.to_string())
        .env("WORKER_PASSING", part.passing.to_string())
        .env("WORKER_STOP", part.stop.to_string())
        .env("WORKER_CALLS", part.calls.to_string())
        .env("WORKER_CAPACITY", part.capacity.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a worker");
    let mut output = BufReader::new(worker.stdout.take().expect("its output"));
    let is_ready =
        output.by_ref().lines().any(|line| line.is_ok_and(|line| line.ends_with("ready")));
    assert!(is_ready, "the worker did not open the table");
    // Left open: the test runner writes to it at the end.
    worker.stdout = Some(output.into_inner());
    worker
}

/// A child that does not outlive a failed test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It has ended already unless the test failed.
        let _ = self.0.kill();
    }
}

/// Small random numbers, the same for the same seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

#[test]
#[ignore = "a worker that the tests below start"]
fn worker() {
    let number =
        |name: &str| environment(name).and_then(|text| text.parse::<u64>().ok()).expect("a number");
    let path = PathBuf::from(environment("WORKER_TABLE").expect("a table"));
    let counts = AdmissionCounts::open(Path::new(&environment("WORKER_COUNTS").expect("counts")));
    let faults = Killing::from_environment();
    let memory = MappedFile::open_reporting(&path, None, faults.clone()).expect("the table");
    let shared = Shared::in_file(memory, Overflow::Deny);
    // Another opening of this process replaces the table by a larger one.
    let enlarge = Some(number("WORKER_CAPACITY") as usize).filter(|&capacity| capacity > 0);
    println!("ready");
    let mut numbers = Numbers(number("WORKER_SEED") | 1);
    let count = |index: usize| counts.counter(index).fetch_add(1, Ordering::Relaxed);
    for call in 0..number("WORKER_CALLS") {
        let index = numbers.below(COUNTED as u64) as usize;
        let other = (index + 1) % COUNTED;
        let churning = numbers.below(10_000).to_string();
        if let Some(enlarge) = enlarge.filter(|_| call == 200) {
            drop(
                MappedFile::open_reporting(&path, Some(enlarge), faults.clone()).expect("a table"),
            );
        }
        // A store that is full, or whose lock a stopped process holds, may refuse new buckets.
        match numbers.below(8) {
            0..4 if shared.call(Verb::Spend, "Counted", &index.to_string()) == Ok(true) => {
                count(index);
            }
            4 => {
                let ids = [index.to_string(), other.to_string()];
                if shared.spend_both("Counted", [&ids[0], &ids[1]]) == Ok(true) {
                    count(index);
                    count(other);
                }
            }
            5 => {
                let snapshot = shared.0.snapshot();
                let bound = snapshot.limit("Churn").expect("a limit");
                let _ = shared.0.reset(bound, &churning);
            }
            _ => {
                let _ = shared.call(Verb::Spend, "Churn", &churning);
            }
        }
    }
}

/// What a torture run came to.
struct Outcome {
    kills: i64,
    admitted: i64,
    lost: i64,
}

/// Runs workers one after another in `lanes` lanes at once. Checks that no bucket admitted more
/// than it was charged, nor was charged more than its limit.
fn torture(
    lanes: u64,
    rounds: u64,
    calls: u64,
    point: impl Fn(u64) -> Option<FaultPoint>,
    capacity: impl Fn(u64) -> usize,
) -> Outcome {
    let part = |seed: u64| Part {
        table: fresh_path("unused"),
        counts: PathBuf::new(),
        seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        point: point(seed),
        passing: 1 + (seed % 97) as u32,
        stop: false,
        calls,
        capacity: capacity(seed),
    };
    let (table, counts) = (fresh_path("table"), fresh_path("counts"));
    let shared = Shared::open(&table, CAPACITY).expect("a new table");
    // The counted buckets take their slots before the churning ones take them all.
    assert!((0..COUNTED).all(|index| shared.spend("Counted", &index.to_string())));
    let mut kills = 0;
    for round in 0..rounds {
        let workers: Vec<Child> = (0..lanes)
            .map(|lane| {
                let part = part(round * lanes + lane);
                start(&Part { table: table.clone(), counts: counts.clone(), ..part })
            })
            .collect();
        for mut worker in workers {
            let status = worker.wait().expect("an end");
            match status.signal() {
                None => assert!(status.success(), "a worker failed"),
                Some(signal) => {
                    assert_eq!(signal, Signal::KILL.as_raw(), "a worker crashed");
                    kills += 1;
                }
            }
        }
    }
    let counts = AdmissionCounts::open(&counts);
    let mut outcome = Outcome { kills, admitted: 0, lost: 0 };
    for index in 0..COUNTED {
        // One was spent above.
        let admitted = counts.counter(index).load(Ordering::Relaxed) as i64 + 1;
        let charged = shared.used(&index.to_string());
        assert!(admitted <= charged, "{index}: {admitted} admitted, {charged} charged");
        assert!(charged <= COUNTED_LIMIT, "{index}: {charged} charged");
        outcome.admitted += admitted;
        outcome.lost += charged - admitted;
    }
    // Both buckets of a call may be charged by a worker that dies.
    assert!(outcome.lost <= 2 * kills, "{} charges lost to {kills} kills", outcome.lost);
    // Nothing is left locked, and every slot can be used again.
    assert!(shared.spend("Churn", "after all"));
    outcome
}

#[test]
fn workers_that_are_not_killed_admit_exactly_the_limit() {
    let outcome = torture(4, 1, 100_000, |_| None, |_| 0);
    assert_eq!((outcome.kills, outcome.lost), (0, 0));
    assert_eq!(outcome.admitted, COUNTED as i64 * COUNTED_LIMIT);
}

#[test]
fn workers_that_die_at_any_point_admit_nothing_twice() {
    let points = FaultPoint::OF_CALLS;
    let rounds = 2 * points.len() as u64;
    // Every third worker lives on.
    let point = |seed| (seed % 3 != 0).then(|| points[(seed / 3) as usize % points.len()]);
    let outcome = torture(3, rounds, 3_000, point, |_| 0);
    assert!(outcome.kills >= 20, "only {} workers were killed", outcome.kills);
    assert!(outcome.admitted > 1000, "only {} requests were admitted", outcome.admitted);
}

#[test]
fn workers_admit_exactly_the_limit_while_the_table_grows() {
    let capacity = |seed| if seed == 0 { 0 } else { CAPACITY + 200 * seed as usize };
    let outcome = torture(4, 1, 100_000, |_| None, capacity);
    assert_eq!((outcome.kills, outcome.lost), (0, 0));
    assert_eq!(outcome.admitted, COUNTED as i64 * COUNTED_LIMIT);
}

#[test]
fn workers_that_die_while_the_table_grows_admit_nothing_twice() {
    let points =
        [&FaultPoint::OF_MOVES[..], &FaultPoint::OF_BUILDERS, &FaultPoint::OF_CALLS].concat();
    // In each round one worker enlarges the table, and another one dies, or both are the same.
    let point = |seed| (seed % 3 != 0).then(|| points[(seed / 3) as usize % points.len()]);
    let capacity = |seed| if seed % 3 == 1 { CAPACITY + 10 * (seed as usize / 3 + 1) } else { 0 };
    let outcome = torture(3, points.len() as u64, 3_000, point, capacity);
    assert!(outcome.kills >= 20, "only {} workers were killed", outcome.kills);
    assert!(outcome.admitted > 1000, "only {} requests were admitted", outcome.admitted);
}

#[test]
fn a_stopped_process_holds_up_new_buckets_only() {
    let (table, counts) = (fresh_path("table"), fresh_path("counts"));
    let shared = Shared::open(&table, CAPACITY).expect("a new table");
    assert!((0..COUNTED).all(|index| shared.spend("Counted", &index.to_string())));
    for point in [FaultPoint::Locked, FaultPoint::Released, FaultPoint::Renamed] {
        let worker = start(&Part {
            table: table.clone(),
            counts: counts.clone(),
            seed: 7,
            point: Some(point),
            passing: 3,
            stop: true,
            calls: 100_000,
            capacity: 0,
        });
        let pid = Pid::from_child(&worker);
        let mut worker = Killed(worker);
        let (_, status) = rustix::process::waitpid(Some(pid), WaitOptions::UNTRACED)
            .expect("a worker")
            .expect("its status");
        assert!(status.stopped(), "the worker ended before it reached {point:?}");
        let stopwatch = Stopwatch::start();
        assert!(
            (0..COUNTED)
                .all(|index| shared.call(Verb::Spend, "Counted", &index.to_string()).is_ok())
        );
        assert!(stopwatch.elapsed() < Nanos::from_millis(150), "known buckets waited");
        // New buckets wait for the deadline where the stopped process holds their window.
        let is_refused =
            (0..500).any(|id| shared.call(Verb::Spend, "Churn", &format!("new {id}")).is_err());
        assert!(is_refused, "the stopped process held no lock at {point:?}");
        kill_process(pid, Signal::CONT).expect("a signal");
        worker.0.kill().expect("a signal");
        worker.0.wait().expect("an end");
        assert!(shared.call(Verb::Spend, "Churn", "new again").is_ok());
    }
}

#[test]
#[ignore = "a builder that the test below starts"]
fn builder() {
    let path = PathBuf::from(environment("WORKER_TABLE").expect("a table"));
    let capacity = environment("WORKER_CAPACITY").and_then(|text| text.parse().ok());
    drop(
        MappedFile::open_reporting(&path, capacity, Killing::from_environment()).expect("a table"),
    );
}

#[test]
fn builders_that_die_at_any_point_leave_one_table_or_none() {
    let path = fresh_path("table");
    for point in FaultPoint::OF_BUILDERS.map(|point| point as u8) {
        let _ = fs::remove_file(&path);
        let builders: Vec<Child> = (0..6)
            .map(|builder| {
                let point = if builder % 2 == 0 { point } else { 0 };
                run_again("shared::processes::builder")
                    .env("WORKER_TABLE", &path)
                    .env("WORKER_POINT", point.to_string())
                    .stdout(Stdio::null())
                    .spawn()
                    .expect("a builder")
            })
            .collect();
        for mut builder in builders {
            let status = builder.wait().expect("an end");
            let is_killed = status.signal() == Some(Signal::KILL.as_raw());
            assert!(status.success() || is_killed, "point {point}: {status}");
        }
        let first = Shared::open(&path, CAPACITY).expect("a table");
        assert!(first.spend("Counted", "ada"));
        let second = Shared::open(&path, CAPACITY).expect("the same table");
        assert_eq!(second.used("ada"), 1, "point {point}: two tables");
    }
}
