//! Side-by-side measurement: alternating rounds, medians, and a table of results and targets.

use std::fmt;
use std::time::Instant;

/// Whether the command line asks for a quick run.
#[expect(clippy::disallowed_methods, reason = "the command line selects quick runs")]
pub fn quick() -> bool {
    std::env::args().any(|argument| argument == "--quick")
}

/// A named function to time. Each call performs all operations.
pub type Run<'a> = (&'a str, Box<dyn FnMut() + 'a>);

/// Runs each in turn, `rounds` times, after a warm-up; returns the nanoseconds per operation of each round.
pub fn alternate(runs: &mut [Run<'_>], operations: usize, rounds: usize) -> Vec<Vec<f64>> {
    for (_, run) in runs.iter_mut() {
        run();
    }
    let mut took = vec![Vec::with_capacity(rounds); runs.len()];
    for _ in 0..rounds {
        for ((_, run), times) in runs.iter_mut().zip(&mut took) {
            times.push(seconds(run) * 1e9 / operations as f64);
        }
    }
    took
}

/// The duration of a call in seconds.
#[expect(clippy::disallowed_methods, reason = "a bench reads the clock: that is its work")]
pub fn seconds(run: impl FnOnce()) -> f64 {
    let started = Instant::now();
    run();
    started.elapsed().as_secs_f64()
}

/// The median.
pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The median over the rounds of the time of `one` divided by that of `other`.
pub fn ratio(one: &[f64], other: &[f64]) -> f64 {
    let ratios: Vec<f64> = one.iter().zip(other).map(|(one, other)| one / other).collect();
    median(&ratios)
}

/// All ids, and indexes of ids drawn uniformly, the same in each run.
pub fn ids(buckets: usize, calls: usize) -> (Vec<String>, Vec<usize>) {
    let names = (0..buckets).map(|number| format!("user-{number}")).collect();
    let mut word: u64 = 0x9e37_79b9_7f4a_7c15;
    let draw = || {
        // xorshift64: uniform enough, and needs no crate.
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        (word % buckets as u64) as usize
    };
    (names, std::iter::repeat_with(draw).take(calls).collect())
}

/// The times behind a row, in nanoseconds: penstock's, and those of the best other package.
#[derive(Clone, Copy, Default)]
pub struct Sides {
    pub ours: Option<f64>,
    pub peer: Option<f64>,
}

impl fmt::Display for Sides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |time: Option<f64>| time.map_or(String::new(), |time| format!("{time:.1} ns"));
        write!(f, "  | {} | {} |", shown(self.ours), shown(self.peer))
    }
}

/// Rows of the results, printed as they are added.
pub struct Table {
    /// Whether the run is long enough to decide if a target is met.
    is_conclusive: bool,
}

impl Table {
    pub fn new(title: &str, is_conclusive: bool) -> Self {
        let columns = "row | what | without | penstock | best other | target | measured | ok";
        println!("\n## {title}\n\n| {columns} |");
        println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
        Table { is_conclusive }
    }

    pub fn at_most(
        &self,
        row: &str,
        what: &str,
        target: f64,
        measured: f64,
        unit: &str,
        sides: Sides,
    ) {
        let verdict = self.verdict(measured <= target);
        println!("| {row} | {what} |{sides} <= {target}{unit} | {measured:.2}{unit} | {verdict} |");
    }

    pub fn at_least(
        &self,
        row: &str,
        what: &str,
        target: f64,
        measured: f64,
        unit: &str,
        sides: Sides,
    ) {
        let verdict = self.verdict(measured >= target);
        println!("| {row} | {what} |{sides} >= {target}{unit} | {measured:.2}{unit} | {verdict} |");
    }

    pub fn seen(&self, what: &str, measured: f64, unit: &str) {
        println!("|  | {what} |  |  |  |  | {measured:.1}{unit} |  |");
    }

    fn verdict(&self, met: bool) -> &'static str {
        match (self.is_conclusive, met) {
            (false, _) => "-",
            (true, true) => "yes",
            (true, false) => "NO",
        }
    }
}
