//! Processes that are killed, stopped and continued at random instants while they use one table.
//!
//! It lasts three seconds. `PENSTOCK_TORTURE_SECONDS=600 cargo test torture -- --nocapture` lasts
//! longer, and `PENSTOCK_TORTURE_SEED` repeats the choices of a run, though not its instants.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use penstock::clock::Stopwatch;
use penstock::engine::time::Nanos;
use rustix::process::Signal;

use super::workers::{Count, Numbers, Part, Scene, Worker};

const LANES: usize = 3;
/// The time for which one table is used.
const EPOCH: Nanos = Nanos::from_millis(1_500);

#[expect(clippy::disallowed_methods, reason = "the duration and the seed can be set by hand")]
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a whole number"))
}

#[derive(Default)]
struct Tally {
    kills: i64,
    stops: i64,
    admitted: i64,
    lost: i64,
    calls: i64,
}

/// Runs one table from its creation until its last worker has ended.
fn epoch(numbers: &mut Numbers, total: &mut Tally) {
    let (scene, mut kills) = (Scene::new(), 0);
    let launch = |numbers: &mut Numbers| {
        let seed = numbers.below(u64::MAX);
        scene.launch(&Part { seed, calls: u64::MAX, ..Part::default() })
    };
    let mut workers: Vec<Worker> = (0..LANES).map(|_| launch(numbers)).collect();
    let mut own = Numbers::new(numbers.below(u64::MAX));
    let stopwatch = Stopwatch::start();
    while stopwatch.elapsed() < EPOCH {
        // Until the workers have made more calls, or none of them can make any.
        let until = scene.counts.get(Count::Calls) + numbers.below(3_000) as i64;
        let waiting = Stopwatch::start();
        while scene.counts.get(Count::Calls) < until && waiting.elapsed() < Nanos::from_millis(100)
        {
            scene.call(&mut own);
        }
        let lane = numbers.below(LANES as u64) as usize;
        match numbers.below(4) {
            0 => {
                workers[lane].signal(Signal::STOP);
                total.stops += 1;
            }
            1 | 2 => workers[lane].signal(Signal::CONT),
            _ => {
                let worker = std::mem::replace(&mut workers[lane], launch(numbers));
                worker.signal(Signal::KILL);
                assert!(worker.ends_killed());
                kills += 1;
            }
        }
    }
    for worker in workers {
        // This also kills stopped processes.
        worker.signal(Signal::KILL);
        assert!(worker.ends_killed());
        kills += 1;
    }
    let (admitted, lost) = scene.check(&scene.shared, kills);
    total.kills += kills;
    total.admitted += admitted;
    total.lost += lost;
    total.calls += scene.counts.get(Count::Calls);
}

#[test]
fn torture() {
    let seconds = setting("PENSTOCK_TORTURE_SECONDS").unwrap_or(3);
    let seed = setting("PENSTOCK_TORTURE_SEED").unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("PENSTOCK_TORTURE_SEED={seed}");
    let mut numbers = Numbers::new(seed);
    let mut total = Tally::default();
    let stopwatch = Stopwatch::start();
    let end = Nanos::clamped(Duration::from_secs(seconds).as_nanos() as i64);
    while stopwatch.elapsed() < end {
        epoch(&mut numbers, &mut total);
    }
    let Tally { kills, stops, admitted, lost, calls } = total;
    println!(
        "{calls} calls, {admitted} admitted, {kills} killed, {stops} stopped, {lost} charges lost"
    );
    assert!(kills > 3 && admitted > 1_000, "{kills} killed, {admitted} admitted");
}
