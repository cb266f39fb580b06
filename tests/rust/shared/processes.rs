//! Processes that share a table, and are killed or stopped at a fault point while they use it.

use std::collections::BTreeMap;
use std::fs;

use penstock::clock::Stopwatch;
use penstock::engine::time::Nanos;
use penstock::store::shared::{FaultPoint, MappedFile, TableOpenError};
use rustix::process::Signal;

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
fn workers_admit_exactly_the_limit() {
    let scene = Scene::new();
    let part = |seed| Part { seed, calls: 110_000, ..Part::default() };
    let kills = run_in_lanes(&scene, 4, 1, part);
    let (_, lost) = scene.check(&scene.shared, kills);
    assert_eq!((kills, lost), (0, 0));
    assert!(is_exhausted(&scene));
}

#[test]
fn workers_killed_at_any_passing_of_a_point_never_admit_too_much() {
    let points = FaultPoint::OF_CALLS;
    let scene = Scene::new();
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

/// Returns the instructions for a worker that reaches a point.
fn part_that_reaches(point: FaultPoint, seed: u64) -> Part {
    let passing = 1 + seed as u32 % MAX_PASSINGS;
    Part { seed, point: Some(point), passing, calls: 20_000, ..Part::default() }
}

/// A charge is returned only if another worker takes the token that both have seen, so a worker may not
/// reach that point.
const ATTEMPTS: u64 = 10;

#[test]
fn a_worker_killed_at_each_numbered_point_loses_at_most_its_own_call() {
    for point in FaultPoint::OF_CALLS {
        let (scene, mut kills) = (Scene::new(), 0);
        for attempt in 0..ATTEMPTS {
            let part = part_that_reaches(point, u64::from(point as u8) + attempt);
            let rival = rival(&scene, attempt);
            let dying = scene.start(&part);
            kills += i64::from(dying.ends_killed());
            rival.signal(Signal::KILL);
            kills += i64::from(rival.ends_killed());
            if scene.signals(point) > 0 {
                break;
            }
        }
        assert_eq!(scene.signals(point), 1, "no worker reached {point:?}");
        scene.check(&scene.shared, kills);
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
        let is_stopped = worker.stops();
        rival.signal(Signal::KILL);
        assert!(rival.ends_killed());
        if is_stopped {
            return (worker, attempt as i64 + 1);
        }
        worker.forget();
    }
    panic!("no worker reached {point:?}");
}

#[test]
fn a_process_stopped_during_a_call_blocks_only_new_buckets() {
    let (scene, mut kills) = (Scene::new(), 0);
    for point in FaultPoint::OF_CALLS {
        let (worker, others) = stopped_at(&scene, point);
        kills += others;
        // A call that waited for the stopped process would fail.
        assert!((0..COUNTED).all(|index| scene.spend(index).is_ok()), "{point:?}");
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
    let scene = Scene::new();
    let (worker, kills) = stopped_at(&scene, FaultPoint::Locked);
    // The deadline of a call is 200 ms.
    let longest = Nanos::from_millis(350);
    let timed = |buckets: usize, call: &dyn Fn() -> bool| {
        let stopwatch = Stopwatch::start();
        ((call(), buckets), stopwatch.elapsed())
    };
    let run = |thread: usize| {
        let add = |number: usize| {
            let id = format!("{thread} {number}");
            timed(1, &|| scene.churn(&id).is_ok())
        };
        let add_both = |number: usize| {
            let ids = [0, 1].map(|part| format!("{thread} {number} {part}"));
            timed(2, &|| scene.shared.spend_all([("Churn", &ids[0]), ("Churn", &ids[1])]).is_ok())
        };
        (0..8).map(add).chain((8..12).map(add_both)).collect::<Vec<_>>()
    };
    let mut times: BTreeMap<(bool, usize), Vec<Nanos>> = BTreeMap::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(move || run(thread))).collect();
        for (kind, elapsed) in threads.into_iter().flat_map(|one| one.join().expect("a thread")) {
            times.entry(kind).or_default().push(elapsed);
        }
    });
    assert!(times.keys().any(|&(is_added, _)| !is_added), "no call met the stopped process");
    for ((is_added, buckets), mut elapsed) in times {
        // A call that is not in the way of the stopped process does not wait behind one that is. The
        // median, for a busy machine.
        elapsed.sort_unstable();
        let longest = if is_added { SHORT } else { longest };
        assert!(elapsed[elapsed.len() / 2] < longest, "{is_added}, {buckets}: {elapsed:?}");
    }
    worker.signal(Signal::CONT);
    assert!(!worker.ends_killed());
    scene.check(&scene.shared, kills);
}

#[test]
fn a_lock_is_counted_as_recovered_after_its_holder_is_killed() {
    let scene = Scene::new();
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
fn builders_killed_at_any_point_leave_at_most_one_table() {
    let scene = Scene::new();
    for point in FaultPoint::OF_BUILDERS {
        let _ = fs::remove_file(&scene.table);
        let dying = scene.launch_builder(&Part { point: Some(point), ..Part::default() });
        assert!(dying.ends_killed(), "{point:?}");
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
fn a_replaced_table_survives_its_builder() {
    for point in FaultPoint::OF_BUILDERS {
        let mut scene = Scene::new();
        scene.table = fresh_path("unused");
        drop(Shared::open(&scene.table, 2 * CAPACITY).expect("a table of another capacity"));
        let dying = scene.launch_builder(&Part { point: Some(point), ..Part::default() });
        assert!(dying.ends_killed(), "{point:?}");
        let made = Shared::open(&scene.table, CAPACITY).expect("a table");
        assert!(made.spend("Counted", "ada"), "{point:?}");
        let again = Shared::open(&scene.table, CAPACITY).expect("the same table");
        assert_eq!(again.used("ada"), 1, "{point:?}");
    }
}

#[test]
fn a_table_keeps_its_capacity_from_the_moment_it_has_its_name() {
    let mut scene = Scene::new();
    scene.table = fresh_path("named");
    let point = Some(FaultPoint::FileRenamed);
    let builder = scene.launch_builder(&Part { point, stop: true, ..Part::default() });
    assert!(builder.stops());
    let other = MappedFile::open(&scene.table, Some(2 * CAPACITY));
    assert!(matches!(other, Err(TableOpenError::InUse { .. })), "{other:?}");
    builder.signal(Signal::CONT);
    assert!(!builder.ends_killed());
    assert!(MappedFile::open(&scene.table, Some(2 * CAPACITY)).is_ok());
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
