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
    assert_eq!(spend(&limiter, "Orders", "9", 1), 1, "a new bucket was denied");
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
#[should_panic(expected = "a new bucket was denied")]
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
    let machine = Machine::new(1, Locking::Windows);
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

/// One process checks a bucket while another gives it the slot of an expired one.
fn check_while_a_slot_is_reused() {
    let machine = Machine::new(1, Locking::Windows);
    let process = || limiter(machine.open(), &[("Orders", 1, 1000)]);
    let (writer, reader) = (process(), process());
    for id in &EIGHT[..4] {
        assert_eq!(spend(&writer, "Orders", id, 1), 1);
    }
    for process in [&writer, &reader] {
        process.clock().advance(1000).unwrap();
    }
    let thread = thread::spawn(move || spend(&writer, "Orders", "9", 1));
    let snapshot = reader.snapshot();
    let bound = snapshot.limit("Orders").expect("a limit");
    let seen = reader.decide(bound, Call::check("9", 1)).expect("an answer").decision;
    assert!(seen.reset_after.get() <= 1000, "a word of another bucket was read");
    assert_eq!(thread.join().unwrap(), 1);
}

#[test]
fn a_check_reads_no_word_of_another_bucket() {
    explore_most(check_while_a_slot_is_reused);
}

#[test]
#[should_panic(expected = "a word of another bucket was read")]
fn relaxed_ordering_is_detected() {
    introduce(Mutant::Relaxed);
    explore_most(check_while_a_slot_is_reused);
}
