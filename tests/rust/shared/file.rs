//! Opening, creating and refusing the file of a table.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use penstock::store::shared::{MappedFile, OpenError};

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
    // Another capacity changes nothing: the table that exists keeps its own.
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
            (0..1500).filter(|_| shared.spend("Counted", "ada")).count()
        };
        let threads: Vec<_> = (0..20).map(|_| scope.spawn(spend)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
    });
    assert_eq!(admitted as i64, super::COUNTED_LIMIT);
    let mut building = path.into_os_string();
    building.push(".new");
    assert!(!Path::new(&building).exists(), "a half-made table was left behind");
}
