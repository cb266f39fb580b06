//! Models of the shared table. Each claim also runs with a deliberate bug, which it must detect.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use loom::thread;
use penstock::clock::ManualClock;
use penstock::config;
use penstock::engine::algorithm::window::Anchor;
use penstock::engine::limit::Limit;
use penstock::engine::time::{Nanos, Timestamp};
use penstock::limiter::{Call, Limiter};
use penstock::store::Store;
use penstock::store::shared::loom_mutants::{Mutant, introduce};

use crate::shared::{Locking, Machine, shared};
use crate::{EIGHT, explore_most, explore_some, limiter, new_bucket, spend, spend_all};

/// loom detects the race between a read and a later write by another thread only if each access is
/// announced. Without announcements, this program has only one outcome.
#[test]
fn both_outcomes_of_a_race_are_explored() {
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let outcomes = Arc::clone(&seen);
    explore_most(move || {
        let limiter = limiter(shared(1, Locking::Windows), &[("Orders", 1, 1000)]);
        let other = Arc::clone(&limiter);
        let thread = thread::spawn(move || spend(&other, "Orders", "shared", 1));
        let first = spend(&limiter, "Orders", "shared", 1);
        outcomes.lock().unwrap().insert((first, thread.join().unwrap()));
    });
    assert_eq!(seen.lock().unwrap().iter().copied().collect::<Vec<_>>(), [(0, 1), (1, 0)]);
}

#[test]
fn a_new_bucket_is_added_once() {
    explore_most(|| new_bucket(shared(1, Locking::Windows)));
    explore_most(|| new_bucket(shared(2, Locking::Windows)));
}

#[test]
#[should_panic(expected = "left: 4")]
fn adding_buckets_without_a_lock_is_detected() {
    explore_most(|| new_bucket(shared(1, Locking::Nothing)));
}

/// Two batches that need the same two buckets.
fn batches() {
    let limiter = limiter(shared(1, Locking::Windows), &[("Orders", 1, 1_000_000)]);
    let other = Arc::clone(&limiter);
    let thread = thread::spawn(move || spend_all(&other, "Orders", ["a", "b"]));
    let both = spend_all(&limiter, "Orders", ["b", "a"]) + thread.join().unwrap();
    // Each may deny the other. Both have then returned their charges.
    assert!(both <= 1);
    assert_eq!(both + spend(&limiter, "Orders", "a", 2), 1);
    assert_eq!(both + spend(&limiter, "Orders", "b", 2), 1);
}

#[test]
fn batches_admit_no_more_than_the_limit() {
    explore_some(1, batches);
}

/// Between one thread's clock reading and its spend, a bucket becomes full and its slot is assigned to
/// another bucket.
fn old_clock_reading() {
    let limiter = limiter(shared(1, Locking::Windows), &[("Orders", 1, 1000)]);
    // One bucket per slot of the window.
    for id in &EIGHT[..4] {
        assert_eq!(spend(&limiter, "Orders", id, 1), 1);
    }
    let other = Arc::clone(&limiter);
    let thread = thread::spawn(move || spend(&other, "Orders", EIGHT[0], 1));
    limiter.clock().advance(1000).unwrap();
    assert_eq!(spend(&limiter, "Orders", "9", 1), 1);
    let late = thread.join().unwrap();
    let last = spend(&limiter, "Orders", EIGHT[0], 1);
    assert!(1 + late + last <= 2, "{} allowed instead of 2", 1 + late + last);
}

#[test]
fn an_expired_bucket_is_not_revived_by_an_old_clock_reading() {
    explore_most(old_clock_reading);
}

#[test]
#[should_panic(expected = "3 allowed instead of 2")]
fn a_table_without_its_floor_is_detected() {
    introduce(Mutant::NoFloor);
    explore_most(old_clock_reading);
}

/// An expired bucket is charged while another bucket takes its slot.
fn charge_against_eviction() {
    let limiter = limiter(shared(1, Locking::Windows), &[("Orders", 1, 1000)]);
    for id in &EIGHT[..4] {
        assert_eq!(spend(&limiter, "Orders", id, 1), 1);
    }
    limiter.clock().advance(1000).unwrap();
    let other = Arc::clone(&limiter);
    let thread = thread::spawn(move || spend(&other, "Orders", EIGHT[0], 1));
    assert_eq!(spend(&limiter, "Orders", "9", 1), 1);
    let charged = thread.join().unwrap();
    assert_eq!(charged + spend(&limiter, "Orders", EIGHT[0], 1), 1, "a lost charge");
    assert_eq!(spend(&limiter, "Orders", "9", 1), 0, "a lost charge");
}

#[test]
fn a_charge_and_an_eviction_exclude_each_other() {
    explore_most(charge_against_eviction);
}

#[test]
#[should_panic(expected = "a lost charge")]
fn a_slot_freed_without_compare_exchange_is_detected() {
    introduce(Mutant::FreesByStore);
    explore_most(charge_against_eviction);
}

#[test]
#[should_panic(expected = "a lost charge")]
fn a_slot_renamed_before_it_is_freed_is_detected() {
    introduce(Mutant::RenamesFirst);
    explore_most(charge_against_eviction);
}

/// A bucket is charged while a live bucket with the same state takes its slot.
fn charge_against_live_eviction() {
    let limiter = limiter(shared(1, Locking::Windows), &[("Orders", 2, 1000)]);
    for id in &EIGHT[..4] {
        assert_eq!(spend(&limiter, "Orders", id, 1), 1);
    }
    let other = Arc::clone(&limiter);
    let thread = thread::spawn(move || spend(&other, "Orders", EIGHT[0], 1));
    assert_eq!(spend(&limiter, "Orders", "9", 1), 1);
    assert_eq!(thread.join().unwrap(), 1);
    assert_ne!(spend(&limiter, "Orders", "9", 2), 0, "a charge on another bucket");
}

#[test]
fn a_charge_never_reaches_another_bucket() {
    explore_most(charge_against_live_eviction);
}

#[test]
#[should_panic(expected = "a charge on another bucket")]
fn states_without_a_mask_are_detected() {
    introduce(Mutant::NoMask);
    explore_most(charge_against_live_eviction);
}

/// A batch returns a charge to a bucket that was reset and charged again.
fn return_after_reset() {
    let limiter = limiter(shared(1, Locking::Windows), &[("Orders", 1, 1000)]);
    let other = Arc::clone(&limiter);
    let thread = thread::spawn(move || spend_all(&other, "Orders", ["a", "b"]));
    let b = spend(&limiter, "Orders", "b", 1);
    reset(&limiter, "a");
    let a = spend(&limiter, "Orders", "a", 1);
    assert!(b + thread.join().unwrap() <= 1);
    assert!(a + spend(&limiter, "Orders", "a", 1) <= 1, "another call's charge was returned");
}

fn reset<S: Store>(limiter: &Limiter<S, ManualClock>, id: &str) {
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit("Orders").expect("a limit");
    limiter.reset(bound, id).expect("an answer");
}

#[test]
fn a_charge_removed_by_a_reset_is_not_returned() {
    explore_some(1, return_after_reset);
}

#[test]
#[should_panic(expected = "another call's charge was returned")]
fn keys_without_tenancies_are_detected() {
    introduce(Mutant::NoTenancy);
    explore_most(return_after_reset);
}

/// A batch returns a charge whose tokens have been refilled in the meantime.
fn late_return() {
    let limiter = limiter(shared(1, Locking::Windows), &[("Orders", 1, 1000)]);
    let other = Arc::clone(&limiter);
    let thread = thread::spawn(move || spend_all(&other, "Orders", ["a", "b"]));
    spend(&limiter, "Orders", "b", 1);
    limiter.clock().advance(1000).unwrap();
    let a = spend(&limiter, "Orders", "a", 1);
    thread.join().unwrap();
    assert!(a + spend(&limiter, "Orders", "a", 1) <= 1, "another call's charge was returned");
}

#[test]
fn a_refilled_charge_is_not_returned() {
    explore_some(1, late_return);
}

#[test]
#[should_panic(expected = "another call's charge was returned")]
fn returning_a_charge_with_a_plain_refund_is_detected() {
    introduce(Mutant::GivesBackAll);
    explore_most(late_return);
}

/// One process charges a bucket at the start of a new window, while another process with a longer
/// window raises the bucket's lifetime.
fn charge_while_a_lifetime_is_raised() {
    let machine = Machine::new(Locking::Windows);
    let process = |count: i64, seconds: u64| {
        let window = Nanos::from_millis(1000 * seconds);
        let limit = Limit::fixed_window(count, window, Anchor::First).expect("a limit");
        let registry = config::from_limits([("Orders".to_owned(), limit)]).expect("limits");
        Arc::new(Limiter::new(registry, machine.open(), ManualClock::new(Timestamp::ORIGIN)))
    };
    let (short, long) = (process(1, 2), process(3, 3600));
    assert_eq!(spend(&short, "Orders", "shared", 1), 1);
    for process in [&short, &long] {
        process.clock().advance(2_000_000_000).unwrap();
    }
    let thread = thread::spawn(move || spend(&short, "Orders", "shared", 1));
    let snapshot = long.snapshot();
    let bound = snapshot.limit("Orders").expect("a limit");
    assert!(long.decide(bound, Call::spend("shared", 2)).expect("an answer").decision.allowed);
    assert_eq!(thread.join().unwrap(), 1);
    // Either all three tokens were spent in the new window, or two of them in the previous one.
    assert_ne!(spend(&long, "Orders", "shared", 3), 1, "a lost charge");
}

#[test]
fn a_charge_survives_a_raised_lifetime() {
    explore_most(charge_while_a_lifetime_is_raised);
}

#[test]
#[should_panic(expected = "a lost charge")]
fn an_unannounced_window_end_is_detected() {
    introduce(Mutant::AnnouncesFoundOnly);
    explore_most(charge_while_a_lifetime_is_raised);
}

/// Opens the table in a separate process.
fn process(machine: &Arc<Machine>, burst: i64) -> Arc<Limiter<impl Store + use<>, ManualClock>> {
    limiter(machine.open(), &[("Orders", burst, 1_000_000)])
}

/// One process uses a table while another replaces it by a larger one and uses that. Of three tokens,
/// `spent` were taken before.
fn replaced_table(locking: Locking, spent: i64) {
    let machine = Machine::new(locking);
    let before = process(&machine, 3);
    assert_eq!(spend(&before, "Orders", "shared", spent), spent);
    let thread = thread::spawn(move || spend(&before, "Orders", "shared", 2));
    machine.replace_table();
    let after = process(&machine, 3);
    let admitted = spend(&after, "Orders", "shared", 2) + thread.join().unwrap();
    let all = spent + admitted + spend(&after, "Orders", "shared", 1);
    assert_eq!(all, 3, "admitted by both tables");
}

#[test]
fn a_table_and_its_successor_admit_the_limit_together() {
    explore_some(1, || replaced_table(Locking::Windows, 0));
    explore_some(1, || replaced_table(Locking::Windows, 1));
}

#[test]
#[should_panic(expected = "admitted by both tables")]
fn a_key_added_to_a_retired_table_is_detected() {
    introduce(Mutant::AddsToRetired);
    explore_most(|| replaced_table(Locking::Windows, 0));
}

#[test]
#[should_panic(expected = "admitted by both tables")]
fn a_move_without_the_lock_of_the_older_table_is_detected() {
    explore_most(|| replaced_table(Locking::NewestTable, 0));
}

#[test]
#[should_panic(expected = "admitted by both tables")]
fn a_bucket_copied_before_it_is_sealed_is_detected() {
    introduce(Mutant::CopiesUnsealed);
    explore_most(|| replaced_table(Locking::Windows, 1));
}

/// One process checks a bucket while another moves it to the larger table.
fn peek_while_moved() {
    let machine = Machine::new(Locking::Windows);
    assert_eq!(spend(&process(&machine, 2), "Orders", "shared", 1), 1);
    machine.replace_table();
    let (mover, reader) = (process(&machine, 2), process(&machine, 2));
    let thread = thread::spawn(move || spend(&mover, "Orders", "shared", 1));
    let snapshot = reader.snapshot();
    let bound = snapshot.limit("Orders").expect("a limit");
    let seen = reader.decide(bound, Call::check("shared", 2)).expect("an answer");
    assert!(!seen.decision.allowed, "a bucket was not found while it was moved");
    assert_eq!(thread.join().unwrap(), 1);
}

#[test]
fn a_bucket_is_found_while_it_is_moved() {
    explore_most(peek_while_moved);
}

#[test]
#[should_panic(expected = "a bucket was not found while it was moved")]
fn a_bucket_freed_before_it_is_copied_is_detected() {
    introduce(Mutant::FreesBeforeCopy);
    explore_most(peek_while_moved);
}

#[test]
#[should_panic(expected = "a bucket was not found while it was moved")]
fn relaxed_ordering_is_detected() {
    introduce(Mutant::Relaxed);
    explore_most(peek_while_moved);
}

/// One process resets a bucket while another, which still uses the smaller table, charges it.
#[test]
fn a_reset_reaches_a_bucket_in_either_table() {
    explore_most(|| {
        let machine = Machine::new(Locking::Windows);
        let before = process(&machine, 1);
        assert_eq!(spend(&before, "Orders", "shared", 1), 1);
        machine.replace_table();
        let after = process(&machine, 1);
        let thread = thread::spawn(move || spend(&before, "Orders", "shared", 1));
        reset(&after, "shared");
        let admitted = thread.join().unwrap() + spend(&after, "Orders", "shared", 1);
        assert_eq!(admitted, 1);
    });
}
