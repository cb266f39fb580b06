//! The guarantees of [`Store`], by their numbers in the trait's docs, tested on every store.
//!
//! The tests use [`Toy`] steps, which treat a bucket as a number. `real_limits` uses real limits.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use penstock::clock::ManualClock;
use penstock::engine::algorithm::name::AlgorithmName;
use penstock::engine::state::{Lifetime, State};
use penstock::engine::time::{Timeline, Timestamp};
use penstock::store::{Bucket, Keyspace, Store, StoreError, Wait};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::stores::{
    Scripted, Seen, Toy, Toys, at, count, keyspace, keyspace_of_instants, on_every_store,
    one_shard, play, play_all, without_floor,
};
use crate::strategies::nanos;

on_every_store!(
    guarantee_1_one_call_at_a_time,
    guarantee_2_a_failed_step_changes_nothing,
    guarantee_3_states_are_preserved_exactly,
    guarantee_5_buckets_are_separate,
    guarantee_8_a_state_may_be_any_word,
    several_calls_are_executed_in_order,
    a_reset_bucket_is_full,
    a_cleared_store_is_empty,
);

mod forgotten {
    use super::{
        guarantee_4_no_bucket_is_forgotten_before_its_end,
        guarantee_4_no_call_is_decided_before_the_end_of_a_forgotten_bucket,
        guarantee_6_a_batch_is_decided_at_one_instant, guarantee_7_the_longest_lifetime_applies,
    };
    crate::stores::on_forgetting_stores!(
        guarantee_4_no_bucket_is_forgotten_before_its_end,
        guarantee_4_no_call_is_decided_before_the_end_of_a_forgotten_bucket,
        guarantee_6_a_batch_is_decided_at_one_instant,
        guarantee_7_the_longest_lifetime_applies,
    );
}

mod locked {
    use super::guarantee_6_a_batch_is_atomic;
    crate::stores::on_locking_stores!(guarantee_6_a_batch_is_atomic);
}

/// Returns a lifetime that does not end for any word of the tests: about 139 years after the instant in
/// the word.
fn long() -> Lifetime {
    Lifetime::of_tally(nanos(1 << 62))
}

/// Returns a toy that stores a state that expires at exactly `end` ns.
fn ends_at(end: i64) -> Toy {
    Toy::Put(State::from_instant(at(end)).word(), Lifetime::INSTANT)
}

fn guarantee_1_one_call_at_a_time<S: Store>(fresh: fn() -> S) {
    const THREADS: u64 = 4;
    const EACH: u64 = 1000;
    let store = fresh();
    let keyspace = keyspace(&store);
    let spend = |thread: u64| {
        // Half of the threads use batches.
        let add = Toy::Add(1, long());
        let once = || match thread % 2 {
            0 => play(&store, &keyspace, "shared", add, 0),
            _ => play_all(&store, &keyspace, &[("other", add), ("shared", add)], 0)[1],
        };
        (0..EACH).map(|_| once().word.unwrap_or(0)).collect::<Vec<_>>()
    };
    let mut seen: Vec<u64> = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || spend(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a thread")).collect()
    });
    seen.sort_unstable();
    // Every number was seen by exactly one call, so no two calls read the same state.
    assert_eq!(seen, (0..THREADS * EACH).collect::<Vec<_>>());
}

fn guarantee_2_a_failed_step_changes_nothing<S: Store>(fresh: fn() -> S) {
    let store = fresh();
    let keyspace = keyspace(&store);
    play(&store, &keyspace, "one", Toy::Put(17, long()), 0);
    play(&store, &keyspace, "two", Toy::Put(23, long()), 0);
    let clock = ManualClock::new(at(0));
    let breaks = |call: &dyn Fn() -> Result<(), StoreError>| {
        let outcome = catch_unwind(AssertUnwindSafe(call));
        assert!(!matches!(outcome, Ok(Ok(()))), "a failed step must not return an answer");
    };
    for id in ["one", "new"] {
        breaks(&|| {
            let bucket = Bucket::new(&keyspace, id);
            store
                .update(bucket, &Toy::Break, at(0).into(), Wait::Allowed)
                .map(|_| ())
                .map_err(Into::into)
        });
        for other in ["two", "newer"] {
            let buckets = [id, other].map(|id| Bucket::new(&keyspace, id));
            for toys in [[Toy::Put(1, long()), Toy::Break], [Toy::Break, Toy::Put(1, long())]] {
                breaks(&|| {
                    let outcome = store.update_all(
                        &buckets,
                        &Toys(toys.to_vec()),
                        at(0).into(),
                        &clock,
                        Wait::Allowed,
                    );
                    outcome.map(|_| ()).map_err(Into::into)
                });
            }
        }
        breaks(&|| {
            let (mut answered, mut outcome) = (0, Ok(()));
            let toys = [Toy::Look, Toy::Break, Toy::Look];
            let bucket = Bucket::new(&keyspace, id);
            store.update_each(
                3,
                |index| (bucket, toys[index]),
                at(0).into(),
                |_, answer| match answer {
                    Ok(_) => answered += 1,
                    Err(error) => outcome = Err(error),
                },
            );
            assert!(answered < 3, "a failed step has no answer");
            outcome
        });
    }
    let words =
        ["one", "two", "new", "newer"].map(|id| play(&store, &keyspace, id, Toy::Look, 0).word);
    assert_eq!(words, [Some(17), Some(23), None, None]);
    assert_eq!(count(&store, 0), 2);
    // The store still works, so no lock is held.
    play_all(&store, &keyspace, &[("one", Toy::Put(18, long())), ("new", Toy::Put(1, long()))], 0);
    assert_eq!(play(&store, &keyspace, "one", Toy::Look, 0).word, Some(18));
}

/// Returns words of every kind: the smallest, the largest, each single bit, and pseudorandom ones.
fn words() -> Vec<u64> {
    let mut words: Vec<u64> = vec![0, u64::MAX >> 1, State::MAX_TALLY, !State::MAX_TALLY >> 1];
    words.extend((0..63).map(|bit| 1 << bit));
    let mut word: u64 = 0x2545_f491_4f6c_dd1d;
    words.extend((0..1500).map(|_| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word >> 1
    }));
    words
}

fn guarantee_3_states_are_preserved_exactly<S: Store>(fresh: fn() -> S) {
    let store = fresh();
    let keyspace = keyspace(&store);
    let words = words();
    let id = |index: usize| format!("bucket {index}");
    // All at the origin, where no state with a tally has expired.
    for (index, &word) in words.iter().enumerate() {
        assert_eq!(play(&store, &keyspace, &id(index), Toy::Put(word, long()), 0).word, None);
    }
    for round in 0..2 {
        for (index, &word) in words.iter().enumerate() {
            // In the second round, each bucket has the word that the first round stored.
            let next = words[(index + 7) % words.len()];
            let expected = if round == 0 { word } else { next };
            let seen = play(&store, &keyspace, &id(index), Toy::Put(next, long()), 0);
            assert_eq!(seen, Seen { word: Some(expected), now: at(0) });
        }
    }
    assert_eq!(count(&store, 0), words.len() as u64);
}

/// Words of each kind, with lifetimes of both kinds on both timelines, in buckets of each algorithm.
fn guarantee_8_a_state_may_be_any_word<S: Store>(fresh: fn() -> S) {
    let store = fresh();
    let config = ProptestConfig { failure_persistence: None, cases: 32, ..Default::default() };
    let lifetime = prop_oneof![
        Just(Lifetime::INSTANT),
        (0..i64::MAX).prop_map(|memory| Lifetime::of_tally(nanos(memory))),
    ];
    let timeline = prop_oneof![Just(Timeline::Steady), Just(Timeline::Wall)];
    let algorithms: Vec<_> =
        AlgorithmName::ALL.into_iter().filter(|name| *name != AlgorithmName::Unlimited).collect();
    // With bits in every part: a word without slots need not be kept, and an instant at the origin is over.
    let word = (1..1_u64 << 63).prop_map(|word| word | 1);
    let call = (prop::sample::select(algorithms), word, lifetime, timeline);
    let calls = prop::collection::vec(call, 1..20);
    let run = TestRunner::new(config).run(&calls, |calls| {
        let id = |index: usize| format!("bucket {index}");
        for (index, &(algorithm, word, lifetime, timeline)) in calls.iter().enumerate() {
            let keyspace = store.keyspace(algorithm, "words");
            let put = Toy::Put(word, lifetime.on(timeline));
            play(&store, &keyspace, &id(index), put, 0);
        }
        for (index, &(algorithm, word, ..)) in calls.iter().enumerate() {
            let keyspace = store.keyspace(algorithm, "words");
            let seen = play(&store, &keyspace, &id(index), Toy::Look, 0);
            prop_assert_eq!(seen.word, Some(word), "{} of {:?}", id(index), calls[index]);
        }
        store.clear().map_err(Into::into).expect("a cleared store");
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}

fn guarantee_4_no_bucket_is_forgotten_before_its_end<S: Store>(fresh: fn() -> S) {
    let store = fresh();
    let keyspace = keyspace_of_instants(&store);
    let mut live = BTreeMap::new();
    for number in 0..300_i64 {
        let end = 1000 + number % 3;
        play(&store, &keyspace, &format!("live {number}"), ends_at(end), 0);
        live.insert(format!("live {number}"), end);
    }
    // One nanosecond before the first expires, thousands of other buckets are added and expire.
    for number in 0..6000_i64 {
        play(&store, &keyspace, &format!("passing {number}"), ends_at(999 - number % 2), 999);
    }
    let stats = store.stats(at(999).into()).map_err(Into::into).expect("stats");
    assert!(stats.forgotten > Some(0), "no bucket was forgotten, so the test proves nothing");
    assert_eq!(stats.evicted.unwrap_or(0), 0);
    for (id, end) in live {
        let seen = play(&store, &keyspace, &id, Toy::Look, 999);
        assert_eq!(seen, Seen { word: Some(end as u64), now: at(999) }, "{id}");
    }
}

fn guarantee_4_no_call_is_decided_before_the_end_of_a_forgotten_bucket<S: Store>(fresh: fn() -> S) {
    let store = fresh();
    let keyspace = keyspace_of_instants(&store);
    for number in 0..300 {
        play(&store, &keyspace, &format!("expired {number}"), ends_at(1000 + number), 0);
    }
    for number in 0..6000 {
        play(&store, &keyspace, &format!("passing {number}"), ends_at(1000), 2000);
    }
    let (mut remembered, mut forgotten) = (0, 0);
    for number in 0..300 {
        let end = 1000 + number;
        // The call has an old clock reading.
        let seen = match number % 2 {
            0 => play(&store, &keyspace, &format!("expired {number}"), Toy::Look, 500),
            _ => play_all(&store, &keyspace, &[(&format!("expired {number}"), Toy::Look)], 500)[0],
        };
        match seen.word {
            Some(word) => {
                assert_eq!(word, end as u64);
                remembered += 1;
            }
            None => {
                assert!(seen.now >= at(end), "forgotten at {end} ns, decided at {:?}", seen.now);
                forgotten += 1;
            }
        }
        assert!(seen.now <= at(2000), "not later than the latest call");
    }
    assert!(forgotten > 0, "all {remembered} buckets were kept, so the test proves nothing");
}

#[test]
#[should_panic(expected = "forgotten at 1")]
fn a_store_without_its_floor_is_detected() {
    guarantee_4_no_call_is_decided_before_the_end_of_a_forgotten_bucket(|| {
        without_floor(one_shard())
    });
}

fn guarantee_5_buckets_are_separate<S: Store>(fresh: fn() -> S) {
    let store = fresh();
    let prefixes = ["", "a", "ab", "b", "1", "12", "a:b", "token-bucket", "limits per client"];
    let algorithms = AlgorithmName::ALL;
    let ids = ["", "a", "b", "ab", "a:b", ":", "1", "12", "2001:db8::1", "ab\0", "é", "e\u{301}"];
    let mut number = 0;
    let each = |visit: &mut dyn FnMut(&Keyspace, Lifetime, &str)| {
        for algorithm in algorithms {
            let lifetime =
                if algorithm.definition().state.has_tally() { long() } else { Lifetime::INSTANT };
            for prefix in prefixes {
                // Created again each time, as in a reload. The same names must mean the same buckets.
                let keyspace = store.keyspace(algorithm, prefix);
                ids.iter().for_each(|id| visit(&keyspace, lifetime, id));
            }
        }
    };
    each(&mut |keyspace, lifetime, id| {
        number += 1;
        let seen = play(&store, keyspace, id, Toy::Put(number, lifetime), 0);
        assert_eq!(seen.word, None, "{id:?} of {keyspace:?} shares a bucket");
    });
    assert_eq!(number as usize, prefixes.len() * algorithms.len() * ids.len());
    number = 0;
    each(&mut |keyspace, _, id| {
        number += 1;
        assert_eq!(play(&store, keyspace, id, Toy::Look, 0).word, Some(number));
    });
}

fn guarantee_6_a_batch_is_atomic<S: Store + 'static>(fresh: fn() -> S) {
    const EACH: u64 = 1000;
    let store = Arc::new(fresh());
    let ids: Vec<String> = (0..6).map(|number| format!("bucket {number}")).collect();
    let batch = move |toy: Toy, first: usize| {
        // In varying orders, so that threads lock the buckets in different orders.
        let mut calls: Vec<(&str, Toy)> = ids.iter().map(|id| (id.as_str(), toy)).collect();
        calls.rotate_left(first % ids.len());
        play_all(&*store, &keyspace(&*store), &calls, 0)
    };
    let (done, answers) = mpsc::channel();
    for thread in 0..3 {
        let (batch, done) = (batch.clone(), done.clone());
        // Not in a scope, which would wait forever for deadlocked threads.
        thread::spawn(move || {
            for call in 0..EACH as usize {
                let toy = if thread == 2 { Toy::Look } else { Toy::Add(1, long()) };
                let seen = batch(toy, call * (thread + 1));
                assert!(
                    seen.windows(2).all(|pair| pair[0] == pair[1]),
                    "a partial batch was seen: {seen:?}"
                );
            }
            done.send(()).expect("the test is waiting");
        });
    }
    drop(done);
    for _ in 0..3 {
        answers
            .recv_timeout(Duration::from_secs(60))
            .expect("a thread failed, or two are deadlocked");
    }
    assert!(batch(Toy::Look, 0).iter().all(|seen| seen.word == Some(2 * EACH)));
}

fn guarantee_6_a_batch_is_decided_at_one_instant<S: Store>(fresh: fn() -> S) {
    let store = fresh();
    let keyspace = keyspace_of_instants(&store);
    for number in 0..6000 {
        play(&store, &keyspace, &format!("passing {number}"), ends_at(1000 + number), 10_000);
    }
    let ids: Vec<String> = (0..40).map(|number| format!("new {number}")).collect();
    let calls: Vec<(&str, Toy)> = ids.iter().map(|id| (id.as_str(), Toy::Look)).collect();
    let alone = ids.iter().map(|id| play(&store, &keyspace, id, Toy::Look, 5).now).max();
    let together = play_all(&store, &keyspace, &calls, 5);
    assert!(alone > Some(at(5)), "no bucket was forgotten, so the test proves nothing");
    // All are decided at the latest instant of any of them.
    assert!(together.iter().all(|seen| Some(seen.now) == alone), "{together:?}");
}

fn guarantee_7_the_longest_lifetime_applies<S: Store>(fresh: fn() -> S) {
    let store = fresh();
    let (keyspace, others) = (keyspace(&store), keyspace_of_instants(&store));
    let milli = 1_000_000;
    let (short, longer) = (Lifetime::of_tally(nanos(milli)), Lifetime::of_tally(nanos(64 * milli)));
    let word = State::from_tally(at(0), 1).word();
    let kept = |put: &[Lifetime]| {
        for number in 0..200 {
            let id = format!("{put:?} {number}");
            for &lifetime in put {
                play(&store, &keyspace, &id, Toy::Put(word, lifetime), 0);
            }
        }
        // New buckets, so that the store drops the expired ones.
        for number in 0..6000 {
            play(&store, &others, &format!("passing {put:?} {number}"), ends_at(0), 64 * milli - 1);
        }
        let seen = |number| {
            play(&store, &keyspace, &format!("{put:?} {number}"), Toy::Look, 64 * milli - 1)
        };
        (0..200).filter(|&number| seen(number).word.is_some()).count()
    };
    assert_eq!(kept(&[longer, short]), 200, "a shorter lifetime has no effect");
    assert_eq!(kept(&[short, longer, short, short]), 200);
    assert_eq!(kept(&[longer]), 200);
    assert!(kept(&[short]) < 200, "no bucket was forgotten, so the test proves nothing");
}

fn several_calls_are_executed_in_order<S: Store>(fresh: fn() -> S) {
    let store = fresh();
    let keyspace = keyspace(&store);
    let ids: Vec<String> = (0..200).map(|number| format!("bucket {}", number % 150)).collect();
    let bucket = |index: usize| Bucket::new(&keyspace, &ids[index]);
    let (mut answers, step) = (Vec::new(), Toy::Add(1, long()));
    store.update_each(
        ids.len(),
        |index| (bucket(index), step),
        at(7).into(),
        |index, answer| {
            answers.push((index, Seen::from(*answer.expect("the store answers"))));
        },
    );
    for (index, seen) in answers.iter().enumerate() {
        // The second call on a bucket sees the state of the first.
        let word = (index >= 150).then_some(1);
        assert_eq!(*seen, (index, Seen { word, now: at(7) }));
    }
    assert_eq!(answers.len(), 200);
    assert_eq!(play(&store, &keyspace, "bucket 3", Toy::Look, 7).word, Some(2));
}

fn a_reset_bucket_is_full<S: Store>(fresh: fn() -> S) {
    let store = fresh();
    let keyspace = keyspace(&store);
    let forget = |id: &str| {
        let bucket = Bucket::new(&keyspace, id);
        store.forget(bucket).map_err(Into::into).expect("the store answers")
    };
    for number in 0..500 {
        play(&store, &keyspace, &format!("bucket {number}"), Toy::Put(number, long()), 0);
    }
    assert!(!forget("another"));
    for number in (0..500).step_by(3) {
        assert!(forget(&format!("bucket {number}")));
        assert!(!forget(&format!("bucket {number}")));
    }
    for number in 0..500 {
        let seen = play(&store, &keyspace, &format!("bucket {number}"), Toy::Look, 0);
        // A reset does not raise the floor, so calls are decided at their own instants.
        assert_eq!(seen, Seen { word: (number % 3 > 0).then_some(number), now: at(0) });
    }
    assert_eq!(count(&store, 0), 333);
}

fn a_cleared_store_is_empty<S: Store>(fresh: fn() -> S) {
    let store = fresh();
    let keyspace = keyspace(&store);
    let clear = || store.clear().map_err(Into::into).expect("the store answers");
    assert_eq!(clear(), 0);
    for round in 0..2 {
        for number in 0..500 {
            let seen = play(&store, &keyspace, &number.to_string(), Toy::Put(7, long()), round);
            assert_eq!(seen, Seen { word: None, now: at(round) });
        }
        assert_eq!(clear(), 500);
        assert_eq!(count(&store, round), 0);
    }
}

/// Guarantee 2 for a store that can fail: a failed call takes its cost or nothing, and a successful call
/// takes its cost.
#[test]
fn guarantee_2_a_failed_call_takes_at_most_its_cost() {
    let store = Scripted::failing(3);
    let keyspace = keyspace(&store);
    let (mut answered, mut failed) = (0, 0);
    for _ in 0..300 {
        let bucket = Bucket::new(&keyspace, "a");
        match store.update(bucket, &Toy::Add(1, long()), Timestamp::ORIGIN.into(), Wait::Allowed) {
            Ok(_) => answered += 1,
            Err(StoreError::Unavailable { .. } | StoreError::Timeout { .. }) => failed += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!((answered, failed), (200, 100));
    let word = loop {
        if let Ok(answer) =
            store.update(Bucket::new(&keyspace, "a"), &Toy::Look, at(0).into(), Wait::Allowed)
        {
            break Seen::from(answer).word.expect("a used bucket");
        }
    };
    // Half of the failed calls were executed.
    assert_eq!(word, 250);
}
