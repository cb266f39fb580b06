//! Processes that share a table, and are killed or stopped at a fault point while they use it.

use std::fs;

use penstock::clock::Stopwatch;
use penstock::engine::time::Nanos;
use penstock::store::shared::{FaultPoint, MappedFile};
use rustix::process::{Signal, WaitOptions};

use super::workers::{CAPACITY, COUNTED, MAX_PASSINGS, Part, SHORT, Scene, Worker};
use super::{COUNTED_LIMIT, Shared, fresh_path};

/// Runs `rounds` rounds of `lanes` concurrent workers. Returns how many were killed.
fn run_in_lanes(scene: &Scene, lanes: u64, rounds: u64, part: impl Fn(u64) -> Part) -> i64 {
    let run = |round| {
        let lanes = round * lanes..(round + 1) * lanes;
        let workers: Vec<Worker> = lanes.map(|seed| scene.start(&part(seed))).collect();
        workers.into_iter().map(|worker| i64::from(worker.ends_killed())).sum::<i64>()
    };
    (0..rounds).map(run).sum()
}

fn is_exhausted(scene: &Scene) -> bool {
    (0..COUNTED).all(|index| scene.shared.used(&index.to_string()) == COUNTED_LIMIT)
}

#[test]
fn workers_admit_exactly_the_limit_while_the_table_grows() {
    let scene = Scene::new(0);
    let kills = run_in_lanes(&scene, 4, 1, |seed| {
        let capacity = if seed == 0 { 0 } else { CAPACITY + 200 * seed as usize };
        Part { seed, calls: 110_000, capacity, enlarge_at: 200, ..Part::default() }
    });
    let (_, lost) = scene.check(&scene.shared, kills);
    assert_eq!((kills, lost), (0, 0));
    assert!(is_exhausted(&scene));
}

#[test]
fn workers_killed_at_any_passing_of_a_point_never_admit_too_much() {
    let points = FaultPoint::OF_CALLS;
    let scene = Scene::new(0);
    let kills = run_in_lanes(&scene, 3, points.len() as u64, |seed| Part {
        seed,
        // Every third worker survives.
        point: (seed % 3 != 0).then(|| points[(seed / 3) as usize % points.len()]),
        passing: 1 + (seed % 97) as u32,
        calls: 3_000,
        ..Part::default()
    });
    let (admitted, _) = scene.check(&scene.shared, kills);
    assert!(kills >= 10, "only {kills} workers were killed");
    assert!(admitted > 1000, "only {admitted} requests were admitted");
}

/// The start time of a scene with a stopped clock, and the time at which all its buckets have expired.
const START: i64 = 1_800_000_000_000_000_000;
const LATER: i64 = START + 2 * 86_400_000_000_000;

/// Returns whether a point can be reached only if all buckets have expired.
fn needs_empty_table(point: FaultPoint) -> bool {
    matches!(point, FaultPoint::Swept | FaultPoint::Emptied)
}

/// Returns the instructions for a worker that reaches a point.
fn part_that_reaches(point: FaultPoint, seed: u64) -> Part {
    let is_of_call = FaultPoint::OF_CALLS.contains(&point);
    let needs_empty_table = needs_empty_table(point);
    Part {
        seed,
        point: Some(point),
        passing: if is_of_call { 1 + seed as u32 % MAX_PASSINGS } else { 1 },
        calls: 20_000,
        capacity: if is_of_call { 0 } else { CAPACITY + 20 * (seed as usize % 100 + 1) },
        enlarge_at: if needs_empty_table { 0 } else { 200 },
        time: if needs_empty_table { LATER } else { 0 },
        ..Part::default()
    }
}

/// A charge is returned only if another worker takes the token that both have seen, so a worker may not
/// reach that point.
const ATTEMPTS: u64 = 10;

#[test]
fn a_worker_killed_at_each_numbered_point_loses_at_most_its_own_call() {
    let points = FaultPoint::OF_CALLS.into_iter().chain(FaultPoint::OF_BUILDERS);
    for point in points.chain(FaultPoint::OF_MOVES) {
        let needs_empty_table = needs_empty_table(point);
        let scene = Scene::new(if needs_empty_table { START } else { 0 });
        if needs_empty_table {
            scene.counts.clear();
        }
        let mut kills = 0;
        for attempt in 0..ATTEMPTS {
            let part = part_that_reaches(point, u64::from(point as u8) + attempt);
            // The worker would empty the table itself.
            let rival = (!needs_empty_table).then(|| rival(&scene, attempt));
            let dying = scene.start(&part);
            kills += i64::from(dying.ends_killed());
            if let Some(rival) = rival {
                rival.signal(Signal::KILL);
                kills += i64::from(rival.ends_killed());
            }
            if scene.signals(point) > 0 {
                break;
            }
        }
        assert_eq!(scene.signals(point), 1, "no worker reached {point:?}");
        if needs_empty_table {
            scene.check(&scene.at(LATER), kills);
        } else {
            scene.check(&scene.shared, kills);
        }
    }
}

/// Starts a worker that runs until it is killed.
fn rival(scene: &Scene, seed: u64) -> Worker {
    scene.start(&Part { seed, calls: u64::MAX, ..Part::default() })
}

/// Starts a worker that stops at a point. Returns it, and how many others were killed before.
fn stopped_at(scene: &Scene, point: FaultPoint) -> (Worker, i64) {
    for attempt in 0..ATTEMPTS {
        let part = part_that_reaches(point, u64::from(point as u8) + attempt);
        let rival = rival(scene, attempt);
        let worker = scene.start(&Part { stop: true, calls: 5_000, ..part });
        let (_, status) = rustix::process::waitpid(Some(worker.pid()), WaitOptions::UNTRACED)
            .expect("a worker")
            .expect("its status");
        rival.signal(Signal::KILL);
        assert!(rival.ends_killed());
        if status.stopped() {
            return (worker, attempt as i64 + 1);
        }
        worker.forget();
    }
    panic!("no worker reached {point:?}");
}

#[test]
fn a_process_stopped_during_a_call_blocks_only_new_buckets() {
    let (scene, mut kills) = (Scene::new(0), 0);
    for point in FaultPoint::OF_CALLS {
        let (worker, others) = stopped_at(&scene, point);
        kills += others;
        let stopwatch = Stopwatch::start();
        assert!((0..COUNTED).all(|index| scene.spend(index).is_ok()), "{point:?}");
        assert!(stopwatch.elapsed() < SHORT, "existing buckets waited at {point:?}");
        // New buckets whose window the stopped process has locked wait until the deadline.
        let points = FaultPoint::Locked as u8..=FaultPoint::Published as u8;
        let is_refused = (0..300).any(|id| scene.churn(&format!("new {id}")).is_err());
        assert_eq!(is_refused, points.contains(&(point as u8)), "{point:?}");
        worker.signal(Signal::CONT);
        assert!(!worker.ends_killed());
        assert!(scene.churn("new again").is_ok());
    }
    scene.check(&scene.shared, kills);
}

#[test]
fn a_stopped_process_delays_each_call_by_one_deadline_at_most() {
    let scene = Scene::new(0);
    let (worker, kills) = stopped_at(&scene, FaultPoint::Locked);
    // The deadline of a call is 200 ms.
    let longest = Nanos::from_millis(350);
    let timed = |call: &dyn Fn() -> bool| {
        let stopwatch = Stopwatch::start();
        (call(), stopwatch.elapsed())
    };
    let run = |thread: usize| {
        let add = |number: usize| {
            let id = format!("{thread} {number}");
            timed(&|| scene.churn(&id).is_ok())
        };
        let add_both = |number: usize| {
            let ids = [0, 1].map(|part| format!("{thread} {number} {part}"));
            timed(&|| scene.shared.spend_all([("Churn", &ids[0]), ("Churn", &ids[1])]).is_ok())
        };
        (0..8).map(add).chain((8..12).map(add_both)).collect::<Vec<_>>()
    };
    let timed: Vec<(bool, Nanos)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(move || run(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a thread")).collect()
    });
    assert!(timed.iter().any(|&(is_added, _)| !is_added), "no call met the stopped process");
    for (is_added, elapsed) in timed {
        // A call that is not in the way of the stopped process does not wait behind one that is.
        assert!(elapsed < if is_added { SHORT } else { longest }, "{is_added} after {elapsed:?}");
    }
    worker.signal(Signal::CONT);
    assert!(!worker.ends_killed());
    scene.check(&scene.shared, kills);
}

#[test]
fn a_lock_is_counted_as_recovered_after_its_holder_is_killed() {
    let scene = Scene::new(0);
    let recovered = || scene.shared.0.stats().expect("figures").recovered_locks.expect("a number");
    for (point, is_locked) in [
        (FaultPoint::Found, false),
        (FaultPoint::Locked, true),
        (FaultPoint::Renamed, true),
        (FaultPoint::BeforeReset, false),
    ] {
        let (worker, _) = stopped_at(&scene, point);
        // Workers that were killed before may have held locks too. The lock of the stopped process is not
        // counted yet.
        let before = recovered();
        worker.signal(Signal::KILL);
        assert!(worker.ends_killed());
        assert_eq!(recovered() - before, u64::from(is_locked), "{point:?}");
    }
}

#[test]
fn a_process_stopped_while_it_enlarges_the_table_blocks_only_nearby_buckets() {
    let moves = [FaultPoint::Sealed, FaultPoint::Copied, FaultPoint::Moved];
    for point in FaultPoint::OF_BUILDERS.into_iter().chain(moves) {
        let scene = Scene::new(0);
        let is_moving = moves.contains(&point);
        let (worker, kills) = stopped_at(&scene, point);
        let opened = MappedFile::open(&scene.table, Some(CAPACITY)).expect("the current table");
        drop(opened);
        let mut waited = 0;
        for index in (0..COUNTED).step_by(2) {
            let stopwatch = Stopwatch::start();
            let is_answered = scene.spend(index).is_ok();
            // The deadline of a call is 200 ms.
            assert!(stopwatch.elapsed() < Nanos::from_millis(2_000), "{index} hung at {point:?}");
            waited += usize::from(!is_answered);
        }
        // Buckets that the other worker has already moved do not wait.
        assert!(is_moving || waited == 0, "{point:?}: {waited} buckets waited");
        assert!(waited < COUNTED / 2, "every bucket waited at {point:?}");
        let is_refused = (0..300).any(|id| scene.churn(&format!("new {id}")).is_err());
        assert_eq!(is_refused, is_moving, "{point:?}");
        // Opening with an even larger capacity waits for the builder.
        std::thread::scope(|scope| {
            let larger = || MappedFile::open(&scene.table, Some(20 * CAPACITY)).map(drop);
            let larger = scope.spawn(larger);
            worker.signal(Signal::CONT);
            larger.join().expect("a thread").expect("a larger table");
        });
        assert!(!worker.ends_killed());
        assert!((0..COUNTED).all(|index| scene.spend(index).is_ok()));
        scene.check(&scene.shared, kills);
    }
}

#[test]
fn builders_killed_at_any_point_leave_at_most_one_table() {
    let scene = Scene::new(0);
    for point in FaultPoint::OF_BUILDERS {
        let _ = fs::remove_file(&scene.table);
        let dying = scene.launch_builder(&Part { point: Some(point), ..Part::default() });
        // Only a builder that enlarges a table creates a second name.
        assert_eq!(dying.ends_killed(), point != FaultPoint::Linked, "{point:?}");
        let builders: Vec<Worker> = (0..5)
            .map(|builder| {
                let point = (builder % 2 == 0).then_some(point);
                scene.launch_builder(&Part { point, ..Part::default() })
            })
            .collect();
        builders.into_iter().for_each(|builder| {
            builder.ends_killed();
        });
        let first = Shared::open(&scene.table, CAPACITY).expect("a table");
        assert!(first.spend("Counted", "ada"));
        let second = Shared::open(&scene.table, CAPACITY).expect("the same table");
        assert_eq!(second.used("ada"), 1, "{point:?}: two tables");
    }
}

#[test]
fn builders_killed_while_they_enlarge_leave_one_table_with_all_buckets() {
    for point in FaultPoint::OF_BUILDERS {
        let scene = Scene::new(0);
        let used: Vec<_> =
            (0..COUNTED).map(|index| scene.shared.used(&index.to_string())).collect();
        let builders: Vec<Worker> = (0..4)
            .map(|builder| {
                let point = (builder % 2 == 0).then_some(point);
                let capacity = CAPACITY + 50 * (builder + 1);
                scene.launch_builder(&Part { point, capacity, ..Part::default() })
            })
            .collect();
        let kills: Vec<_> = builders.into_iter().map(Worker::ends_killed).collect();
        assert_eq!(kills.contains(&true), scene.signals(point) > 0, "{point:?}");
        let opened = Shared::open(&scene.table, CAPACITY).expect("a table");
        let found: Vec<_> = (0..COUNTED).map(|index| opened.used(&index.to_string())).collect();
        assert_eq!(found, used, "{point:?}");
        assert!((0..COUNTED).all(|index| scene.spend(index).is_ok()));
        scene.check(&opened, 0);
    }
}

#[test]
fn a_table_that_cannot_be_built_is_an_error_at_opening() {
    let path = fresh_path("table");
    let building = std::path::PathBuf::from(format!("{}~new", path.display()));
    // A folder, in which no table can be built.
    fs::create_dir(&building).expect("a folder");
    assert!(MappedFile::open(&path, Some(CAPACITY)).is_err());
    fs::remove_dir(&building).expect("an empty folder");
    assert!(MappedFile::open(&path, Some(CAPACITY)).is_ok());
}
