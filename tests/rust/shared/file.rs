//! Opening, creating and refusing the file of a table.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock::clock::{AnyClock, ManualClock};
use penstock::engine::time::Timestamp;
use penstock::store::memory::Overflow;
use penstock::store::shared::{MappedFile, OpenError, SharedStore};

use super::{Shared, fresh_path};

fn open(path: &Path) -> Result<Shared<MappedFile>, OpenError> {
    Shared::open(path, 100)
}

fn refusal(path: &Path) -> &'static str {
    match open(path) {
        Err(OpenError::Refused { reason, .. }) => reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was opened"),
    }
}

#[test]
fn a_table_is_for_its_user_alone_and_keeps_its_state() {
    let path = fresh_path("table");
    let first = open(&path).expect("a new table");
    let metadata = fs::metadata(&path).expect("a file");
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert!((0..3).all(|_| first.spend("Counted", "ada")));
    drop(first);
    // A smaller capacity changes nothing.
    let again = Shared::open(&path, 7).expect("the same table");
    assert_eq!(again.used("ada"), 3);
    assert_eq!(fs::metadata(&path).expect("a file").ino(), metadata.ino());
    assert_eq!(fs::metadata(&path).expect("a file").len(), metadata.len());
}

#[test]
fn a_table_that_others_may_touch_is_refused() {
    let path = fresh_path("modes");
    drop(open(&path).expect("a new table"));
    for mode in [0o604, 0o640, 0o660, 0o606] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a new mode");
        assert!(refusal(&path).contains("0600"), "{mode:o}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a new mode");
    open(&path).expect("a table");
}

#[test]
fn a_link_a_folder_and_a_stranger_are_refused() {
    let (target, link) = (fresh_path("target"), fresh_path("link"));
    drop(open(&target).expect("a new table"));
    symlink(&target, &link).expect("a link");
    refusal(&link);
    let text = fresh_path("text");
    fs::write(&text, "x".repeat(5000)).expect("a file");
    fs::set_permissions(&text, fs::Permissions::from_mode(0o600)).expect("a mode");
    refusal(&text);
    assert_eq!(fs::read(&text).expect("the file").len(), 5000, "a stranger was written to");
    let folder = fresh_path("folder");
    fs::create_dir(&folder).expect("a folder");
    assert!(open(&folder).is_err());
    fs::remove_dir(&folder).expect("an empty folder");
    assert!(open(&fresh_path("none").join("below")).is_err());
}

#[test]
fn a_file_of_another_length_is_refused() {
    let path = fresh_path("length");
    drop(open(&path).expect("a new table"));
    let whole = fs::read(&path).expect("the table");
    for length in [0, 1, 127, 4095, 4096, whole.len() - 64, whole.len() - 1, whole.len() + 64] {
        let mut other = whole.clone();
        other.resize(length, 0);
        fs::write(&path, other).expect("another length");
        refusal(&path);
    }
    fs::write(&path, whole).expect("the table");
    open(&path).expect("the table again");
}

#[test]
fn every_flipped_bit_of_the_fixed_header_is_found() {
    let path = fresh_path("header");
    drop(open(&path).expect("a new table"));
    let file = OpenOptions::new().read(true).write(true).open(&path).expect("the table");
    let mut header = [0; 128];
    file.read_exact_at(&mut header, 0).expect("the header");
    for bit in 0..header.len() * 8 {
        let mut damaged = header;
        damaged[bit / 8] ^= 1 << (bit % 8);
        file.write_all_at(&damaged, 0).expect("a damaged header");
        refusal(&path);
    }
    file.write_all_at(&header, 0).expect("the header");
    open(&path).expect("the table again");
}

#[test]
fn many_threads_that_open_at_once_share_one_table() {
    let path = fresh_path("table");
    let admitted: usize = std::thread::scope(|scope| {
        let spend = || {
            let shared = open(&path).expect("a table");
            (0..400).filter(|_| shared.spend("Counted", "ada")).count()
        };
        let threads: Vec<_> = (0..20).map(|_| scope.spawn(spend)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
    });
    assert_eq!(admitted as i64, super::COUNTED_LIMIT);
    let mut building = path.into_os_string();
    building.push(".new");
    assert!(!Path::new(&building).exists(), "a half-made table was left behind");
}

fn retired(path: &Path, generation: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{generation}"));
    name.into()
}

#[test]
fn a_larger_table_takes_over_the_buckets_and_the_statistics_show_it() {
    let path = fresh_path("table");
    let small = Shared::open(&path, 100).expect("a new table");
    let ids: Vec<String> = (0..90).map(|id| id.to_string()).collect();
    assert!(ids.iter().all(|id| small.spend("Counted", id)));
    let slots = small.0.stats().expect("statistics").slots.expect("a count");
    let large = Shared::open(&path, 1000).expect("a larger table");
    // Either process uses each bucket, in whichever table it is.
    for (index, id) in ids.iter().enumerate() {
        let (first, second) = if index % 2 == 0 { (&small, &large) } else { (&large, &small) };
        assert_eq!((first.used(id), second.used(id)), (1, 1));
        assert!(first.spend("Counted", id) && second.spend("Counted", id));
        assert_eq!((first.used(id), second.used(id)), (3, 3));
    }
    for shared in [&small, &large] {
        let stats = shared.0.stats().expect("statistics");
        assert_eq!(stats.buckets, Some(90));
        assert!(stats.slots.expect("a count") > 9 * slots);
        assert_eq!((stats.evicted, stats.refused), (Some(0), Some(0)));
    }
    assert!(retired(&path, 1).exists());
    let snapshot = small.0.snapshot();
    let bound = snapshot.limit("Counted").expect("a limit");
    assert!(small.0.reset(bound, "7").expect("an answer"));
    assert_eq!((small.used("7"), large.used("7")), (0, 0));
    fs::remove_file(retired(&path, 1)).expect("the older table");
}

#[test]
fn an_older_table_is_removed_once_its_buckets_have_drained() {
    let path = fresh_path("table");
    let clock = Arc::new(ManualClock::new(Timestamp::clamped(1_800_000_000_000_000_000)));
    let open = |capacity| {
        let memory = MappedFile::open(&path, Some(capacity)).expect("a table");
        let clock = AnyClock::Manual(Arc::clone(&clock));
        Shared::new(SharedStore::in_file(memory, Overflow::Deny), clock)
    };
    let small = open(100);
    let ids: Vec<String> = (0..90).map(|id| id.to_string()).collect();
    assert!(ids.iter().all(|id| small.spend("Tokens", id)));
    let middle = open(1000);
    assert!(ids.iter().all(|id| middle.spend("Tokens", id)));
    let large = open(3000);
    assert!(retired(&path, 1).exists() && retired(&path, 2).exists());
    clock.advance(60_000_000_000).expect("forwards");
    assert!((0..20).all(|id| large.spend("Tokens", &format!("new {id}"))));
    assert!(!retired(&path, 1).exists() && !retired(&path, 2).exists());
    // Processes that had the smaller tables open go on in the largest.
    for shared in [&small, &middle, &large] {
        assert_eq!(ids.iter().filter(|id| shared.spend("Tokens", id)).count(), 90);
    }
    assert_eq!(open(1).0.stats().expect("statistics").buckets, Some(110));
}

#[test]
fn a_stranger_in_the_place_of_the_older_table_is_refused() {
    let path = fresh_path("table");
    let shared = open(&path).expect("a new table");
    assert!(shared.spend("Counted", "ada"));
    fs::write(retired(&path, 1), "mine").expect("a file");
    assert!(matches!(Shared::open(&path, 1000), Err(OpenError::Refused { .. })));
    assert_eq!(fs::read(retired(&path, 1)).expect("the file"), b"mine");
    fs::remove_file(retired(&path, 1)).expect("the file");
    assert_eq!(Shared::open(&path, 1000).expect("a larger table").used("ada"), 1);
    fs::remove_file(retired(&path, 1)).expect("the older table");
}
