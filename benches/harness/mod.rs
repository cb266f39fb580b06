//! Measures things side by side: rounds taken in turn, medians, and a table with the target beside the figure.

use std::time::Instant;

/// Whether the command line asks for a short turn.
#[expect(
    clippy::disallowed_methods,
    reason = "a bench is told by its command line how long to run"
)]
pub fn quick() -> bool {
    std::env::args().any(|argument| argument == "--quick")
}

/// Something to be timed, by name. It does all its operations each time it is called.
pub type Run<'a> = (&'a str, Box<dyn FnMut() + 'a>);

/// Runs each in turn, `rounds` times, after one turn to warm up; gives the nanoseconds per operation of each round.
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

/// The seconds that a call takes.
#[expect(clippy::disallowed_methods, reason = "a bench reads the clock: that is its work")]
pub fn seconds(run: impl FnOnce()) -> f64 {
    let started = Instant::now();
    run();
    started.elapsed().as_secs_f64()
}

/// The middle of some figures.
pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// How many times as long `one` took as `other`: the median over the rounds.
pub fn ratio(one: &[f64], other: &[f64]) -> f64 {
    let ratios: Vec<f64> = one.iter().zip(other).map(|(one, other)| one / other).collect();
    median(&ratios)
}

/// All ids, and places of them drawn evenly, the same ones at each run.
pub fn ids(buckets: usize, calls: usize) -> (Vec<String>, Vec<usize>) {
    let names = (0..buckets).map(|number| format!("user-{number}")).collect();
    let mut word: u64 = 0x9e37_79b9_7f4a_7c15;
    let draw = || {
        // xorshift64: evenly enough spread for a draw, and without a crate.
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        (word % buckets as u64) as usize
    };
    (names, std::iter::repeat_with(draw).take(calls).collect())
}

/// Rows of the performance page, printed as they come.
pub struct Table {
    /// Whether the turn is long enough to say that a target is met or missed.
    judged: bool,
}

impl Table {
    pub fn new(title: &str, judged: bool) -> Self {
        println!("\n## {title}\n\n| row | what | target | measured | ok |");
        println!("| --- | --- | --- | --- | --- |");
        Table { judged }
    }

    pub fn at_most(&self, row: &str, what: &str, target: f64, measured: f64, unit: &str) {
        let verdict = self.verdict(measured <= target);
        println!("| {row} | {what} | <= {target}{unit} | {measured:.2}{unit} | {verdict} |");
    }

    pub fn at_least(&self, row: &str, what: &str, target: f64, measured: f64, unit: &str) {
        let verdict = self.verdict(measured >= target);
        println!("| {row} | {what} | >= {target}{unit} | {measured:.2}{unit} | {verdict} |");
    }

    pub fn seen(&self, what: &str, measured: f64, unit: &str) {
        println!("|  | {what} |  | {measured:.1}{unit} |  |");
    }

    fn verdict(&self, met: bool) -> &'static str {
        match (self.judged, met) {
            (false, _) => "-",
            (true, true) => "yes",
            (true, false) => "NO",
        }
    }
}
