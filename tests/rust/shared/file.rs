//! Creation, opening and validation of the file of a table.

use std::fs::{self, OpenOptions};
use std::hash::Hasher;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use penstock::engine::verb::Verb;
use penstock::store::memory::Overflow;
use penstock::store::shared::{MappedFile, TableOpenError};
use siphasher::sip::SipHasher13;

use super::{Shared, fresh_path};

fn open(path: &Path) -> Result<Shared<MappedFile>, TableOpenError> {
    Shared::open(path, 100)
}

fn refusal_reason(path: &Path) -> &'static str {
    match open(path) {
        Err(TableOpenError::Refused { reason, .. }) => reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the file was opened"),
    }
}

#[test]
fn a_table_is_private_and_keeps_its_state() {
    let path = fresh_path("table");
    let first = open(&path).expect("a new table");
    let metadata = fs::metadata(&path).expect("a file");
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert!((0..3).all(|_| first.spend("Counted", "ada")));
    drop(first);
    let again = open(&path).expect("the same table");
    assert_eq!(again.used("ada"), 3);
    assert_eq!(fs::metadata(&path).expect("a file").ino(), metadata.ino());
    assert_eq!(fs::metadata(&path).expect("a file").len(), metadata.len());
}

#[test]
fn a_table_that_other_users_can_access_is_refused() {
    let path = fresh_path("modes");
    drop(open(&path).expect("a new table"));
    for mode in [0o604, 0o640, 0o660, 0o606] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a new mode");
        assert!(refusal_reason(&path).contains("0600"), "{mode:o}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a new mode");
    open(&path).expect("a table");
}

#[test]
fn a_link_a_folder_and_a_foreign_file_are_refused() {
    let (target, link) = (fresh_path("target"), fresh_path("link"));
    drop(open(&target).expect("a new table"));
    symlink(&target, &link).expect("a link");
    refusal_reason(&link);
    let text = fresh_path("text");
    fs::write(&text, "x".repeat(5000)).expect("a file");
    fs::set_permissions(&text, fs::Permissions::from_mode(0o600)).expect("a mode");
    refusal_reason(&text);
    assert_eq!(fs::read(&text).expect("the file").len(), 5000, "a foreign file was modified");
    let folder = fresh_path("folder");
    fs::create_dir(&folder).expect("a folder");
    assert!(open(&folder).is_err());
    fs::remove_dir(&folder).expect("an empty folder");
    assert!(open(&fresh_path("none").join("below")).is_err());
}

#[test]
fn a_file_with_a_wrong_length_is_refused() {
    let path = fresh_path("length");
    drop(open(&path).expect("a new table"));
    let whole = fs::read(&path).expect("the table");
    for length in [0, 1, 127, 4095, 4096, whole.len() - 64, whole.len() - 1, whole.len() + 64] {
        let mut other = whole.clone();
        other.resize(length, 0);
        fs::write(&path, other).expect("another length");
        refusal_reason(&path);
    }
    fs::write(&path, whole).expect("the table");
    open(&path).expect("the table again");
}

#[test]
fn every_bit_flip_in_the_fixed_header_is_detected() {
    let path = fresh_path("header");
    drop(open(&path).expect("a new table"));
    let file = OpenOptions::new().read(true).write(true).open(&path).expect("the table");
    let mut header = [0; 128];
    file.read_exact_at(&mut header, 0).expect("the header");
    for bit in 0..header.len() * 8 {
        let mut damaged = header;
        damaged[bit / 8] ^= 1 << (bit % 8);
        file.write_all_at(&damaged, 0).expect("a damaged header");
        refusal_reason(&path);
    }
    file.write_all_at(&header, 0).expect("the header");
    open(&path).expect("the table again");
}

/// Changes the fixed header of a table, with a valid checksum, as another machine or version would.
fn rewrite(path: &Path, at: usize, bytes: &[u8]) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("the table");
    let mut header = [0; 120];
    file.read_exact_at(&mut header, 0).expect("the header");
    header[at..at + bytes.len()].copy_from_slice(bytes);
    let mut hasher = SipHasher13::new();
    hasher.write(&header);
    file.write_all_at(&header, 0).expect("another header");
    file.write_all_at(&hasher.finish().to_ne_bytes(), 120).expect("its checksum");
}

#[test]
fn a_valid_header_of_another_version_machine_or_clock_is_refused() {
    let swapped = 0x0102_0304_u32.swap_bytes();
    let fields: [(usize, &[u8], &str); 8] = [
        (8, &1_u32.to_ne_bytes(), "version"),
        (12, &swapped.to_ne_bytes(), "byte order"),
        (16, &8192_u32.to_ne_bytes(), "version"),
        (20, &32_u32.to_ne_bytes(), "version"),
        (32, &4_u32.to_ne_bytes(), "version"),
        (36, &8_u32.to_ne_bytes(), "version"),
        (24, &u64::MAX.to_ne_bytes(), "length"),
        (88, &1_u64.to_ne_bytes(), "clocks"),
    ];
    for (at, bytes, reason) in fields {
        let path = fresh_path("version");
        drop(open(&path).expect("a new table"));
        rewrite(&path, at, bytes);
        let before = fs::read(&path).expect("the file");
        assert!(
            refusal_reason(&path).contains(reason),
            "the field at {at}: {}",
            refusal_reason(&path)
        );
        assert_eq!(fs::read(&path).expect("the file"), before, "a refused file was modified");
    }
}

#[test]
fn a_table_of_a_previous_boot_is_replaced_by_an_empty_one() {
    let path = fresh_path("boot");
    let before = open(&path).expect("a new table");
    assert!((0..3).all(|_| before.spend("Counted", "ada")));
    drop(before);
    rewrite(&path, 48, &[7; 16]);
    let after = open(&path).expect("a table of this boot");
    assert_eq!(after.used("ada"), 0);
    assert!(after.spend("Counted", "ada"));
    assert_eq!(open(&path).expect("the same table").used("ada"), 1);
    // A command reports that there is no table.
    rewrite(&path, 48, &[7; 16]);
    assert!(matches!(MappedFile::open_existing(&path), Err(TableOpenError::Missing { .. })));
}

#[test]
fn a_table_without_a_boot_id_is_refused() {
    let path = fresh_path("boot");
    drop(open(&path).expect("a new table"));
    rewrite(&path, 48, &[0; 16]);
    let before = fs::read(&path).expect("the file");
    assert!(refusal_reason(&path).contains("since the machine started"));
    assert_eq!(fs::read(&path).expect("the file"), before, "a refused file was modified");
}

#[test]
fn a_new_table_allocates_all_its_space() {
    let path = fresh_path("room");
    drop(Shared::open(&path, 1_000_000).expect("a new table"));
    let metadata = fs::metadata(&path).expect("a file");
    assert!(metadata.len() > 32_000_000);
    assert!(metadata.blocks() * 512 >= metadata.len(), "{} blocks", metadata.blocks());
}

fn capacity_of(shared: &Shared<MappedFile>) -> Option<u64> {
    shared.0.stats().expect("statistics").capacity
}

#[test]
fn a_table_that_no_process_has_open_is_replaced_by_one_of_another_capacity() {
    let path = fresh_path("table");
    for capacity in [100, 1000, 40] {
        let shared = Shared::open(&path, capacity).expect("a table of this capacity");
        assert_eq!((shared.used("ada"), capacity_of(&shared)), (0, Some(capacity as u64)));
        assert!(shared.spend("Counted", "ada"));
        drop(shared);
        // Without a capacity, and with the same one, it is used as it is.
        let memory = MappedFile::open(&path, None).expect("the same table");
        assert_eq!(Shared::in_file(memory, Overflow::Share).used("ada"), 1);
        assert_eq!(Shared::open(&path, capacity).expect("the same table").used("ada"), 1);
    }
}

#[test]
fn a_table_in_use_keeps_its_capacity() {
    let path = fresh_path("table");
    let shared = Shared::open(&path, 100).expect("a new table");
    assert!(shared.spend("Counted", "ada"));
    for capacity in [50, 1000] {
        match Shared::open(&path, capacity) {
            Err(TableOpenError::InUse { capacity: 100, .. }) => {}
            other => panic!("{:?}", other.map(drop)),
        }
    }
    assert!(shared.spend("Counted", "bob"));
    let other = MappedFile::open(&path, None).expect("the same table");
    drop(shared);
    // The second one still has it open.
    assert!(matches!(Shared::open(&path, 1000), Err(TableOpenError::InUse { .. })));
    let other = Shared::in_file(other, Overflow::Share);
    assert_eq!((other.used("ada"), other.used("bob")), (1, 1));
    drop(other);
    assert_eq!(Shared::open(&path, 1000).expect("a new table").used("ada"), 0);
}

#[test]
fn tables_with_similar_names_are_separate() {
    let path = fresh_path("table");
    let named = |suffix: &str| PathBuf::from(format!("{}{suffix}", path.display()));
    let others = [".1", ".new", "-1", "_1"].map(named);
    let limiters = others.each_ref().map(|path| open(path).expect("a new table"));
    assert!(limiters.iter().all(|limiter| limiter.spend("Counted", "ada")));
    drop(open(&path).expect("a new table"));
    for (limiter, other) in limiters.iter().zip(&others) {
        assert!(limiter.call(Verb::Spend, "Counted", "new").is_ok(), "{}", other.display());
        assert_eq!(open(other).expect("the table").used("ada"), 1, "{}", other.display());
        fs::remove_file(other).expect("the table");
    }
}
