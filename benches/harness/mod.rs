//! Side-by-side measurement: alternating rounds, medians, and a table of results and targets.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use governor::{Quota, RateLimiter};
use penstock::clock::{Clock, SystemClock};
use penstock::engine::limit::Limit;
use penstock::engine::registry::Registry;
use penstock::engine::time::Nanos;
use penstock::limiter::{Call, Limiter};
use penstock::store::memory::MemoryStore;

/// Burst, and seconds per token: large enough that no id is denied and no bucket drains during a run.
const BURST: u32 = 40_000_000;
const PERIOD: u64 = 100;

/// The shards of [`Least`], as many as of a memory store.
const SHARDS: usize = 256;

/// Steps after which [`Least`] takes as long as a decision of penstock about one of 1,000 ids.
const STEPS: u64 = 50;

/// Whether the command line asks for a quick run.
#[expect(clippy::disallowed_methods, reason = "the command line selects quick runs")]
pub fn quick() -> bool {
    std::env::args().any(|argument| argument == "--quick")
}

/// A named function to time. Each call performs all operations.
type Run<'a> = (&'a str, Box<dyn FnMut() + 'a>);

/// Runs each in turn, `rounds` times, after a warm-up. Returns the nanoseconds per operation of each round.
fn alternate(runs: &mut [Run<'_>], operations: usize, rounds: usize) -> Vec<Vec<f64>> {
    for (_, run) in runs.iter_mut() {
        run();
    }
    let mut times = vec![Vec::with_capacity(rounds); runs.len()];
    for _ in 0..rounds {
        for ((_, run), of_run) in runs.iter_mut().zip(&mut times) {
            of_run.push(seconds(run) * 1e9 / operations as f64);
        }
    }
    times
}

/// Returns the duration of a call in seconds.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
pub fn seconds(run: impl FnOnce()) -> f64 {
    let started = Instant::now();
    run();
    started.elapsed().as_secs_f64()
}

fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Returns the median over the rounds of `times` divided by `others`.
fn ratio(times: &[f64], others: &[f64]) -> f64 {
    let ratios: Vec<f64> = times.iter().zip(others).map(|(time, other)| time / other).collect();
    median(&ratios)
}

/// Returns all ids, and uniformly drawn indices of ids, the same in each run.
pub fn ids(buckets: usize, calls: usize) -> (Vec<String>, Vec<usize>) {
    let names = (0..buckets).map(|number| format!("user-{number}")).collect();
    let mut word: u64 = 0x9e37_79b9_7f4a_7c15;
    let draw = || {
        // xorshift64: sufficiently uniform, and needs no crate.
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        (word % buckets as u64) as usize
    };
    (names, std::iter::repeat_with(draw).take(calls).collect())
}

/// Returns a limiter with the limit `Orders`.
pub fn limiter() -> Limiter<MemoryStore, SystemClock> {
    let period = Nanos::SECOND.saturating_mul(PERIOD);
    let limit = Limit::token_bucket(BURST.into(), 1, period).expect("a valid limit");
    let registry = Registry::default().with("Orders", limit).expect("a valid name");
    Limiter::new(registry, MemoryStore::new(None), SystemClock::new())
}

/// What a limiter in memory cannot do without: a keyed hash of the id, the time, a lock and one slot.
///
/// `steps` of other work follow. A processor loads the next id while it waits for a slot, but only if few
/// instructions lie between: it holds some hundreds at a time. So among many ids a limiter that computes
/// more than an answer waits for each load in turn, here as in any program.
struct Least {
    hasher: RandomState,
    clock: SystemClock,
    shards: Vec<Shard>,
}

/// A shard on separate cache lines, as in the memory store.
#[repr(align(64))]
struct Shard(Mutex<Vec<[u64; 2]>>);

impl Least {
    fn new(buckets: usize) -> Least {
        // As full as a table of the memory store that has just grown.
        let slots = buckets * 5 / 4 / SHARDS + 1;
        let shards = (0..SHARDS).map(|_| Shard(Mutex::new(vec![[0; 2]; slots]))).collect();
        Least { hasher: RandomState::new(), clock: SystemClock::new(), shards }
    }

    fn ask(&self, name: &str, steps: u64) -> bool {
        let hash = self.hasher.hash_one(name.as_bytes());
        let now = self.clock.now().get().unsigned_abs();
        let mut slots = self.shards[hash as usize % SHARDS].0.lock().expect("no panic");
        let index = ((u128::from(hash) * slots.len() as u128) >> 64) as usize;
        slots[index] = [hash, slots[index][1].max(now)];
        let mut word = slots[index][1];
        drop(slots);
        for step in 0..steps {
            word = black_box(word.rotate_left(3) ^ step);
        }
        black_box(word) > 0
    }
}

/// The times per decision, in nanoseconds.
pub struct Comparison {
    penstock: Vec<f64>,
    /// Of the faster governor.
    governor: Vec<f64>,
    /// Of [`Least`] with other work.
    least: Vec<f64>,
}

impl Comparison {
    /// Adds the rows: how many times as fast as governor, and of the least with as much other work.
    ///
    /// Among few ids, the other work is longer than a limiter needs.
    pub fn show(&self, table: &Table, what: &str, is_large: bool) {
        let faster = ratio(&self.governor, &self.penstock);
        table.seen(&format!("times as fast as the faster governor, {what}"), faster, " x");
        if is_large {
            let of_least = ratio(&self.penstock, &self.least);
            let (least, penstock) = (Some(median(&self.least)), Some(median(&self.penstock)));
            let what = format!("times the least with as much other work, {what}");
            let times = Times { least, penstock };
            table.target("12", &what, (Ordering::Less, 1.2), of_least, " x", times);
        }
    }
}

/// Compares penstock with governor, which stores GCRA states by key in a `DashMap` (its default) or in a
/// `HashMap` with a mutex. `run` makes a call for each drawn name and checks that it is allowed. Adds a
/// row for each limiter, described by `what`.
pub fn compare_with_governor(
    table: &Table,
    what: &str,
    (buckets, calls, rounds): (usize, usize, usize),
    run: impl Fn(&[String], &[usize], &(dyn Fn(&String) -> bool + Sync)),
) -> Comparison {
    let (names, drawn) = ids(buckets, calls);
    let limiter = limiter();
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit("Orders").expect("a limit");
    let quota = Quota::with_period(Duration::from_secs(PERIOD)).expect("not zero");
    let quota = quota.allow_burst(NonZeroU32::new(BURST).expect("not zero"));
    let dashmap = RateLimiter::dashmap(quota);
    let hashmap = RateLimiter::hashmap(quota);
    let least = Least::new(buckets);
    for name in &names {
        limiter.decide(bound, Call::spend(name, 1)).expect("an answer");
        dashmap.check_key(name).expect("allowed");
        hashmap.check_key(name).expect("allowed");
    }
    let spend = |name: &String| {
        limiter.decide(bound, Call::spend(name, 1)).is_ok_and(|decided| decided.decision.allowed)
    };
    let run = |ask: &(dyn Fn(&String) -> bool + Sync)| run(&names, &drawn, ask);
    let mut runs: [Run<'_>; 5] = [
        ("penstock", Box::new(|| run(&spend))),
        ("governor, dashmap", Box::new(|| run(&|name| dashmap.check_key(name).is_ok()))),
        ("governor, hashmap", Box::new(|| run(&|name| hashmap.check_key(name).is_ok()))),
        ("least", Box::new(|| run(&|name| least.ask(name, 0)))),
        ("least with other work", Box::new(|| run(&|name| least.ask(name, STEPS)))),
    ];
    let times = alternate(&mut runs, calls, rounds);
    for ((name, _), times) in runs.iter().zip(&times) {
        table.seen(&format!("{name}, {what}"), median(times), " ns");
    }
    let [penstock, dashmap, hashmap, _, least] = times.try_into().expect("five runs");
    let governor = if median(&dashmap) < median(&hashmap) { dashmap } else { hashmap };
    Comparison { penstock, governor, least }
}

/// The times behind a row, in nanoseconds.
#[derive(Clone, Copy, Default)]
pub struct Times {
    least: Option<f64>,
    penstock: Option<f64>,
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |time: Option<f64>| time.map_or(String::new(), |time| format!("{time:.1} ns"));
        write!(f, "{} | {} |", shown(self.least), shown(self.penstock))
    }
}

/// Rows of the results, printed as they are added.
pub struct Table {
    /// Whether the run is long enough to decide if a target is met.
    is_conclusive: bool,
}

impl Table {
    pub fn new(title: &str, is_conclusive: bool) -> Self {
        let columns = "row | what | least | penstock | target | measured | ok";
        println!("\n## {title}\n\n| {columns} |");
        println!("| --- | --- | --- | --- | --- | --- | --- |");
        Table { is_conclusive }
    }

    /// Shows a row with a target, which `Less` measurements meet, or `Greater` ones.
    pub fn target(
        &self,
        row: &str,
        what: &str,
        (direction, target): (Ordering, f64),
        measured: f64,
        unit: &str,
        times: Times,
    ) {
        let sign = if direction == Ordering::Less { "<=" } else { ">=" };
        let is_met = measured == target || measured.total_cmp(&target) == direction;
        let verdict = self.verdict(is_met);
        println!(
            "| {row} | {what} | {times} {sign} {target}{unit} | {measured:.2}{unit} | {verdict} |"
        );
    }

    pub fn seen(&self, what: &str, measured: f64, unit: &str) {
        println!("|  | {what} |  |  |  | {measured:.1}{unit} |  |");
    }

    fn verdict(&self, is_met: bool) -> &'static str {
        match (self.is_conclusive, is_met) {
            (false, _) => "-",
            (true, true) => "yes",
            (true, false) => "NO",
        }
    }
}
