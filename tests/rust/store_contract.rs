//! The promises of [`Store`], each by its number in the trait's docs, over every store of the list.
//!
//! Most are told with toys, which make a bucket a number; the last part runs real limits, against a
//! model that never forgets anything.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use penstock::clock::{Clock, ManualClock};
use penstock::config;
use penstock::engine::batch::{self, Kind, Member};
use penstock::engine::limit::Limit;
use penstock::engine::operation::{Operation, Verb};
use penstock::engine::state::{Lifetime, State};
use penstock::engine::time::Timestamp;
use penstock::limiter::{CallError, Limiter, Transaction};
use penstock::store::{Bucket, Store, StoreError};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::stores::{Scripted, Seen, Toy, Toys, at, on_every_store, play, play_all};
use crate::strategies::{any_verb, everyday_limit, nanos};

on_every_store!(
    promise_1_one_call_at_a_time,
    promise_2_a_step_that_breaks_leaves_everything,
    promise_3_states_come_back_bit_for_bit,
    promise_4_nothing_is_forgotten_before_its_end,
    promise_4_no_call_is_judged_before_the_end_of_what_was_forgotten,
    promise_5_buckets_never_meet,
    promise_6_several_buckets_are_one,
    promise_6_all_are_judged_at_one_instant,
    promise_7_the_longest_lifetime_counts,
    several_calls_are_made_in_order,
    a_bucket_that_is_reset_is_as_never_used,
    real_limits_decide_as_if_nothing_were_forgotten,
    members_that_are_watched_or_checked_are_so_everywhere,
);

/// A lifetime that ends for no number a test puts: about 139 years after the instant in its word.
fn long() -> Lifetime {
    Lifetime::of_tally(nanos(1 << 62))
}

/// A toy for a state that ends at `end`, to the nanosecond.
fn ends_at(end: i64) -> Toy {
    Toy::Put(State::from_instant(at(end)).word(), Lifetime::INSTANT)
}

fn promise_1_one_call_at_a_time<S: Store>(fresh: fn() -> S) {
    const THREADS: u64 = 4;
    const EACH: u64 = 1000;
    let store = fresh();
    let space = store.space("toy", "a");
    let spend = |thread: u64| {
        // Half of them through batches.
        let add = Toy::Add(1, long());
        let once = || match thread % 2 {
            0 => play(&store, &space, "shared", add, 0),
            _ => play_all(&store, &space, &[("other", add), ("shared", add)], 0)[1],
        };
        (0..EACH).map(|_| once().word.unwrap_or(0)).collect::<Vec<_>>()
    };
    let mut seen: Vec<u64> = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || spend(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a thread")).collect()
    });
    seen.sort_unstable();
    // Every number was seen by exactly one call: no two read the same state.
    assert_eq!(seen, (0..THREADS * EACH).collect::<Vec<_>>());
}

fn promise_2_a_step_that_breaks_leaves_everything<S: Store>(fresh: fn() -> S) {
    let store = fresh();
    let space = store.space("toy", "a");
    play(&store, &space, "one", Toy::Put(17, long()), 0);
    play(&store, &space, "two", Toy::Put(23, long()), 0);
    let breaks = |call: &dyn Fn() -> Result<(), StoreError>| {
        let outcome = catch_unwind(AssertUnwindSafe(call));
        assert!(!matches!(outcome, Ok(Ok(()))), "it must not pass for an answer");
    };
    for id in ["one", "new"] {
        breaks(&|| {
            let bucket = Bucket { space: &space, id };
            let mut seen = Seen::default();
            store.update(bucket, &Toy::Break, at(0), &mut seen).map_err(Into::into)
        });
        for other in ["two", "newer"] {
            let buckets = [id, other].map(|id| Bucket { space: &space, id });
            for toys in [[Toy::Put(1, long()), Toy::Break], [Toy::Break, Toy::Put(1, long())]] {
                breaks(&|| {
                    let outcome = store.update_all(&buckets, &Toys(toys.to_vec()), at(0));
                    outcome.map(|_| ()).map_err(Into::into)
                });
            }
        }
        breaks(&|| {
            let mut told = 0;
            let calls = [Toy::Look, Toy::Break, Toy::Put(1, long())];
            let calls = calls.map(|toy| (Bucket { space: &space, id }, toy));
            let outcome = store.update_each(&calls, at(0), |_, _| told += 1);
            assert!(told <= 1, "nothing is told of what was not reached");
            outcome.map_err(Into::into)
        });
    }
    let words =
        ["one", "two", "new", "newer"].map(|id| play(&store, &space, id, Toy::Look, 0).word);
    assert_eq!(words, [Some(17), Some(23), None, None]);
    assert_eq!(store.stats().map_err(Into::into).expect("stats").buckets, 2);
    // And it goes on: no lock was left behind.
    play_all(&store, &space, &[("one", Toy::Put(18, long())), ("new", Toy::Put(1, long()))], 0);
    assert_eq!(play(&store, &space, "one", Toy::Look, 0).word, Some(18));
}

/// Words of every kind: the least, the largest, each bit alone, and drawn ones.
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

fn promise_3_states_come_back_bit_for_bit<S: Store>(fresh: fn() -> S) {
    let store = fresh();
    let space = store.space("toy", "a");
    let words = words();
    let id = |place: usize| format!("bucket {place}");
    // All at the origin, where a state with a tally cannot have ended.
    for (place, &word) in words.iter().enumerate() {
        assert_eq!(play(&store, &space, &id(place), Toy::Put(word, long()), 0).word, None);
    }
    for round in 0..2 {
        for (place, &word) in words.iter().enumerate() {
            // Each bucket has the word of another by the second round.
            let next = words[(place + 7) % words.len()];
            let here = if round == 0 { word } else { next };
            let seen = play(&store, &space, &id(place), Toy::Put(next, long()), 0);
            assert_eq!(seen, Seen { word: Some(here), judged: at(0) });
        }
    }
    assert_eq!(store.stats().map_err(Into::into).expect("stats").buckets, words.len() as u64);
}

fn promise_4_nothing_is_forgotten_before_its_end<S: Store>(fresh: fn() -> S) {
    let store = fresh();
    let space = store.space("toy", "a");
    let mut live = BTreeMap::new();
    for number in 0..300_i64 {
        let end = 1000 + number % 3;
        play(&store, &space, &format!("live {number}"), ends_at(end), 0);
        live.insert(format!("live {number}"), end);
    }
    // One nanosecond before the first ends, thousands come and go.
    for number in 0..6000_i64 {
        play(&store, &space, &format!("passing {number}"), ends_at(999 - number % 2), 999);
    }
    let stats = store.stats().map_err(Into::into).expect("stats");
    assert!(stats.forgotten > 0, "nothing was forgotten, so nothing was shown");
    assert_eq!(stats.evicted, 0);
    for (id, end) in live {
        let seen = play(&store, &space, &id, Toy::Look, 999);
        assert_eq!(seen, Seen { word: Some(end as u64), judged: at(999) }, "{id}");
    }
}

fn promise_4_no_call_is_judged_before_the_end_of_what_was_forgotten<S: Store>(fresh: fn() -> S) {
    let store = fresh();
    let space = store.space("toy", "a");
    for number in 0..300 {
        play(&store, &space, &format!("drained {number}"), ends_at(1000 + number), 0);
    }
    for number in 0..6000 {
        play(&store, &space, &format!("passing {number}"), ends_at(1000), 2000);
    }
    let (mut remembered, mut forgotten) = (0, 0);
    for number in 0..300 {
        let end = 1000 + number;
        // By a thread that read its clock long ago.
        let seen = match number % 2 {
            0 => play(&store, &space, &format!("drained {number}"), Toy::Look, 500),
            _ => play_all(&store, &space, &[(&format!("drained {number}"), Toy::Look)], 500)[0],
        };
        match seen.word {
            Some(word) => {
                assert_eq!(word, end as u64);
                remembered += 1;
            }
            None => {
                assert!(
                    seen.judged >= at(end),
                    "forgotten at {end} ns, judged at {:?}",
                    seen.judged
                );
                forgotten += 1;
            }
        }
        assert!(seen.judged <= at(2000), "not later than any bucket has ended");
    }
    assert!(forgotten > 0, "nothing was forgotten ({remembered} remembered), so nothing was shown");
}

fn promise_5_buckets_never_meet<S: Store>(fresh: fn() -> S) {
    let store = fresh();
    let prefixes = ["", "a", "ab", "b", "1", "12", "a:b", "token-bucket", "limits per client"];
    let algorithms = ["token-bucket", "leaky-bucket", "token-bucketa", "token", "a"];
    let ids = ["", "a", "b", "ab", "a:b", ":", "1", "12", "2001:db8::1", "ab\0", "é", "e\u{301}"];
    let mut number = 0;
    let each = |visit: &mut dyn FnMut(&S::Space, &str)| {
        for algorithm in algorithms {
            for prefix in prefixes {
                // Made anew each time, as a reload does: the same names are the same buckets.
                let space = store.space(algorithm, prefix);
                ids.iter().for_each(|id| visit(&space, id));
            }
        }
    };
    each(&mut |space, id| {
        number += 1;
        let seen = play(&store, space, id, Toy::Put(number, long()), 0);
        assert_eq!(seen.word, None, "{id:?} of {space:?} met another");
    });
    assert_eq!(number as usize, prefixes.len() * algorithms.len() * ids.len());
    number = 0;
    each(&mut |space, id| {
        number += 1;
        assert_eq!(play(&store, space, id, Toy::Look, 0).word, Some(number));
    });
}

fn promise_6_several_buckets_are_one<S: Store + 'static>(fresh: fn() -> S) {
    const EACH: u64 = 1000;
    let store = Arc::new(fresh());
    let ids: Vec<String> = (0..6).map(|number| format!("bucket {number}")).collect();
    let batch = move |toy: Toy, first: usize| {
        // From another end each time, so that no two threads name them in one order.
        let mut calls: Vec<(&str, Toy)> = ids.iter().map(|id| (id.as_str(), toy)).collect();
        calls.rotate_left(first % ids.len());
        play_all(&*store, &store.space("toy", "a"), &calls, 0)
    };
    let (done, told) = mpsc::channel();
    for thread in 0..3 {
        let (batch, done) = (batch.clone(), done.clone());
        // Not in a scope: threads that wait for each other for ever would keep the test from saying
        // so.
        thread::spawn(move || {
            for call in 0..EACH as usize {
                let toy = if thread == 2 { Toy::Look } else { Toy::Add(1, long()) };
                let seen = batch(toy, call * (thread + 1));
                assert!(
                    seen.windows(2).all(|pair| pair[0] == pair[1]),
                    "seen in between: {seen:?}"
                );
            }
            done.send(()).expect("the test waits");
        });
    }
    drop(done);
    for _ in 0..3 {
        told.recv_timeout(Duration::from_secs(60))
            .expect("a thread broke off, or two wait for ever");
    }
    assert!(batch(Toy::Look, 0).iter().all(|seen| seen.word == Some(2 * EACH)));
}

fn promise_6_all_are_judged_at_one_instant<S: Store>(fresh: fn() -> S) {
    let store = fresh();
    let space = store.space("toy", "a");
    for number in 0..6000 {
        play(&store, &space, &format!("passing {number}"), ends_at(1000 + number), 10_000);
    }
    let ids: Vec<String> = (0..40).map(|number| format!("new {number}")).collect();
    let calls: Vec<(&str, Toy)> = ids.iter().map(|id| (id.as_str(), Toy::Look)).collect();
    let alone = ids.iter().map(|id| play(&store, &space, id, Toy::Look, 5).judged).max();
    let together = play_all(&store, &space, &calls, 5);
    assert!(alone > Some(at(5)), "nothing was forgotten, so nothing was shown");
    // The latest that any of them asks for, for all.
    assert!(together.iter().all(|seen| Some(seen.judged) == alone), "{together:?}");
}

fn promise_7_the_longest_lifetime_counts<S: Store>(fresh: fn() -> S) {
    let store = fresh();
    let space = store.space("toy", "a");
    let milli = 1_000_000;
    let (short, longer) = (Lifetime::of_tally(nanos(milli)), Lifetime::of_tally(nanos(64 * milli)));
    let word = State::from_tally(at(0), 1).word();
    let kept = |put: &[Lifetime]| {
        for number in 0..200 {
            let id = format!("{put:?} {number}");
            for &lifetime in put {
                play(&store, &space, &id, Toy::Put(word, lifetime), 0);
            }
        }
        // All that have ended by now have their turn to be forgotten.
        for number in 0..6000 {
            play(&store, &space, &format!("passing {put:?} {number}"), ends_at(0), 64 * milli - 1);
        }
        let seen =
            |number| play(&store, &space, &format!("{put:?} {number}"), Toy::Look, 64 * milli - 1);
        (0..200).filter(|&number| seen(number).word.is_some()).count()
    };
    assert_eq!(kept(&[longer, short]), 200, "a shorter lifetime takes nothing off");
    assert_eq!(kept(&[short, longer, short, short]), 200);
    assert_eq!(kept(&[longer]), 200);
    assert!(kept(&[short]) < 200, "nothing was forgotten, so nothing was shown");
}

fn several_calls_are_made_in_order<S: Store>(fresh: fn() -> S) {
    let store = fresh();
    let space = store.space("toy", "a");
    let ids: Vec<String> = (0..200).map(|number| format!("bucket {}", number % 150)).collect();
    let calls: Vec<_> =
        ids.iter().map(|id| (Bucket { space: &space, id }, Toy::Add(1, long()))).collect();
    let mut told = Vec::new();
    let outcome = store.update_each(&calls, at(7), |place, seen| told.push((place, *seen)));
    outcome.map_err(Into::into).expect("the store answers");
    for (place, seen) in told.iter().enumerate() {
        // A bucket that is named again has what the first call left.
        let word = (place >= 150).then_some(1);
        assert_eq!(*seen, (place, Seen { word, judged: at(7) }));
    }
    assert_eq!(told.len(), 200);
    assert_eq!(play(&store, &space, "bucket 3", Toy::Look, 7).word, Some(2));
}

fn a_bucket_that_is_reset_is_as_never_used<S: Store>(fresh: fn() -> S) {
    let store = fresh();
    let space = store.space("toy", "a");
    let forget = |id: &str| {
        let bucket = Bucket { space: &space, id };
        store.forget(bucket).map_err(Into::into).expect("the store answers")
    };
    for number in 0..500 {
        play(&store, &space, &format!("bucket {number}"), Toy::Put(number, long()), 0);
    }
    assert!(!forget("another"));
    for number in (0..500).step_by(3) {
        assert!(forget(&format!("bucket {number}")));
        assert!(!forget(&format!("bucket {number}")));
    }
    for number in 0..500 {
        let seen = play(&store, &space, &format!("bucket {number}"), Toy::Look, 0);
        // A reset is no end of a lifetime: calls are judged when they come.
        assert_eq!(seen, Seen { word: (number % 3 > 0).then_some(number), judged: at(0) });
    }
    assert_eq!(store.stats().map_err(Into::into).expect("stats").buckets, 333);
}

/// A call of the model's: members as (limit, id, share of the most, kind), and how much later it
/// comes, in nanoseconds.
#[derive(Clone, Debug)]
struct Call {
    verb: Verb,
    alone: bool,
    members: Vec<(usize, usize, f64, Kind)>,
    later: i64,
}

fn any_call() -> impl Strategy<Value = Call> {
    let kind =
        prop_oneof![4 => Just(Kind::Spend), 1 => Just(Kind::Check), 1 => Just(Kind::SpendOnly)];
    let member = (0..4_usize, 0..12_usize, 0.0..1.0, kind);
    let later = prop_oneof![
        3 => Just(0_i64),
        3 => 0..3_000_000_000_i64,
        // Threads read the clock in one order and come to the store in another.
        1 => -4_000_000_000_i64..0,
        1 => 0..90_000_000_000_i64,
    ];
    (any_verb(), any::<bool>(), prop::collection::vec(member, 1..5), later)
        .prop_map(|(verb, alone, members, later)| Call { verb, alone, members, later })
}

/// Every decision is that of a model which never forgets, at the instant at which the store says
/// that it judged; and that instant is the clock's, or one that has been before.
fn real_limits_decide_as_if_nothing_were_forgotten<S: Store>(fresh: fn() -> S) {
    let config =
        ProptestConfig { failure_persistence: None, cases: 40, ..ProptestConfig::default() };
    let limits = prop::collection::vec(everyday_limit(), 4);
    let strategy = (limits, prop::collection::vec(any_call(), 1..150));
    let run = TestRunner::new(config).run(&strategy, |(limits, calls)| {
        let names = ["one", "two", "three", "four"];
        let named = names.iter().zip(&limits).map(|(name, limit)| (name.to_string(), *limit));
        let registry = config::from_limits(named).expect("limits");
        let start = 1_700_000_000_000_000_000;
        let limiter = Limiter::new(registry, fresh(), ManualClock::new(at(start)));
        let in_force = limiter.in_force();
        let mut model: BTreeMap<(usize, String), State> = BTreeMap::new();
        let mut latest = at(start);
        for (place, call) in calls.iter().enumerate() {
            limiter.clock().set(limiter.clock().now().get() + call.later, true).expect("a time");
            let now = limiter.clock().now();
            latest = latest.max(now);
            let mut members = call.members.clone();
            members.sort_by_key(|&(limit, id, ..)| (limit, id));
            members.dedup_by_key(|&mut (limit, id, ..)| (limit, id));
            members.truncate(if call.alone { 1 } else { 4 });
            let ids: Vec<String> = members.iter().map(|&(_, id, ..)| format!("id {id}")).collect();
            let bound = |limit: usize| in_force.limit(names[limit]).expect("a limit");
            let limits: Vec<Limit> = members
                .iter()
                .zip(&ids)
                .map(|(&(limit, ..), id)| {
                    limits[limit].for_key(&bound(limit).entry().bucket_key(id))
                })
                .collect();
            let costs: Vec<i64> = members
                .iter()
                .zip(&limits)
                .map(|(&(_, _, share, _), limit)| {
                    (share * share * (limit.max_cost() + 1) as f64) as i64
                })
                .collect();
            // What the store says.
            let (decisions, all) = if call.alone {
                let decided =
                    limiter.decide(bound(members[0].0), call.verb, &ids[0], costs[0], None);
                let decision = decided.expect("an answer").decision;
                (vec![decision], decision)
            } else {
                let transactions: Vec<_> = members
                    .iter()
                    .zip(&ids)
                    .zip(&costs)
                    .map(|((member, id), &cost)| Transaction {
                        limit: bound(member.0),
                        id,
                        cost,
                        kind: member.3,
                        factor: None,
                    })
                    .collect();
                let decided = limiter.decide_all(call.verb, &transactions).expect("an answer");
                let parts = decided.parts.iter().map(|part| part.decision).collect();
                (parts, decided.decision)
            };
            // What the model says.
            let judged = decisions[0].now;
            prop_assert!(
                judged >= now && judged <= latest,
                "call {}: judged at {:?}",
                place,
                judged
            );
            let mut steps = Vec::new();
            let states: Vec<_> = members
                .iter()
                .zip(&ids)
                .map(|(member, id)| model.get(&(member.0, id.clone())).copied())
                .collect();
            let operations: Vec<Member<'_>> = members
                .iter()
                .zip(&limits)
                .zip(&costs)
                .map(|((member, limit), &cost)| {
                    let refunds_nothing =
                        call.verb == Verb::Refund && member.3 == Kind::Check && !call.alone;
                    let cost = limit.cost(if refunds_nothing { 0 } else { cost }).expect("a cost");
                    let kind = if call.alone { Kind::Spend } else { member.3 };
                    Member {
                        operation: Operation { verb: call.verb, limit, cost },
                        kind,
                        shadow: false,
                    }
                })
                .collect();
            match call.verb {
                Verb::Refund => batch::refund(&operations, &states, judged, &mut steps),
                _ => {
                    batch::spend(&operations, &states, judged, &mut steps);
                }
            }
            for ((member, id), (step, decision)) in
                members.iter().zip(ids).zip(steps.iter().zip(&decisions))
            {
                prop_assert_eq!(decision, &step.decision, "call {}: {:?}", place, call);
                if let Some(state) = step.after.or(step.mended) {
                    model.insert((member.0, id), state);
                }
            }
            let decides = |place: usize| {
                call.verb == Verb::Refund || call.alone || members[place].3 != Kind::SpendOnly
            };
            let strictest = batch::strictest(
                (0..members.len()).map(|place| (decides(place), &decisions[place])),
            );
            if let Some(strictest) = strictest {
                prop_assert_eq!(all, decisions[strictest]);
            }
        }
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}

fn members_that_are_watched_or_checked_are_so_everywhere<S: Store>(fresh: fn() -> S) {
    let limits = r#"
        Orders: {burst: 2, count: 1, period: 1h}
        Watched: {burst: 1, count: 1, period: 1h, mode: shadow}
    "#;
    let registry = config::parse(limits, None, None).expect("limits");
    let limiter = Limiter::new(registry, fresh(), ManualClock::new(at(0)));
    let in_force = limiter.in_force();
    let spend = |orders: Kind, watched: Kind| {
        let transaction = |name: &str, kind| Transaction {
            limit: in_force.limit(name).expect("a limit"),
            id: "a",
            cost: 1,
            kind,
            factor: None,
        };
        let both = [transaction("Orders", orders), transaction("Watched", watched)];
        let decided = limiter.decide_all(Verb::Spend, &both).expect("an answer");
        let left = ["Orders", "Watched"].map(|name| {
            let bound = in_force.limit(name).expect("a limit");
            limiter.decide(bound, Verb::Check, "a", 0, None).expect("an answer").decision.remaining
        });
        (decided.decision.allowed, left)
    };
    // A check of a watched limit decides nothing and takes nothing.
    assert_eq!(spend(Kind::Check, Kind::Check), (true, [2, 1]));
    assert_eq!(spend(Kind::Spend, Kind::Check), (true, [1, 1]));
    // A spend is counted by the watched limit, which then denies nobody.
    assert_eq!(spend(Kind::Check, Kind::Spend), (true, [1, 0]));
    assert_eq!(spend(Kind::SpendOnly, Kind::Spend), (true, [0, 0]));
    assert_eq!(spend(Kind::Check, Kind::Spend), (false, [0, 0]));
    assert_eq!(spend(Kind::SpendOnly, Kind::Check), (true, [0, 0]));
}

/// Promise 2 for a store that can fail: whoever is told of a failure may have been charged, never
/// more, and all others as they were told.
#[test]
fn promise_2_a_call_that_fails_takes_what_it_asked_for_at_most() {
    let store = Scripted::failing(3);
    let space = store.space("toy", "a");
    let (mut answered, mut failed) = (0, 0);
    for _ in 0..300 {
        let mut seen = Seen::default();
        let bucket = Bucket { space: &space, id: "a" };
        match store.update(bucket, &Toy::Add(1, long()), Timestamp::ORIGIN, &mut seen) {
            Ok(()) => answered += 1,
            Err(StoreError::Unavailable { .. } | StoreError::Timeout { .. }) => failed += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!((answered, failed), (200, 100));
    let word = loop {
        let mut seen = Seen::default();
        if store.update(Bucket { space: &space, id: "a" }, &Toy::Look, at(0), &mut seen).is_ok() {
            break seen.word.expect("it was used");
        }
    };
    // Half of the failures came after the deed.
    assert_eq!(word, 250);
}

#[test]
fn a_store_that_fails_is_an_error_of_every_call() {
    let limits = "Orders: {burst: 100, count: 1, period: 1h}";
    let registry = config::parse(limits, None, None).expect("limits");
    // Every call fails, the first too late, the second at once, and so on.
    let limiter = Limiter::new(registry, Scripted::failing(1), ManualClock::new(at(0)));
    let in_force = limiter.in_force();
    let bound = in_force.limit("Orders").expect("a limit");
    for _ in 0..2 {
        for verb in [Verb::Spend, Verb::Check, Verb::Refund] {
            let failure = limiter.decide(bound, verb, "a", 1, None).expect_err("it fails");
            assert!(matches!(*failure, CallError::Store(_)), "{failure}");
            let one =
                Transaction { limit: bound, id: "a", cost: 1, kind: Kind::Spend, factor: None };
            let failure = limiter.decide_all(verb, &[one]).expect_err("it fails");
            assert!(matches!(*failure, CallError::Store(_)), "{failure}");
        }
        let (place, failure) =
            limiter.decide_each(bound, &["a", "b"], &[1, 1], |_, _| {}).expect_err("it fails");
        assert!(place == 0 && matches!(*failure, CallError::Store(_)), "{failure}");
        assert!(matches!(*limiter.reset(bound, "a").expect_err("it fails"), CallError::Store(_)));
        limiter.stats().expect_err("it fails");
    }
}

/// Calls of a batch before the one that fails stand, and the place that failed is told.
#[test]
fn several_calls_stop_at_the_one_that_fails() {
    let limits = "Orders: {burst: 100, count: 1, period: 1h}";
    let registry = config::parse(limits, None, None).expect("limits");
    let limiter = Limiter::new(registry, Scripted::failing(101), ManualClock::new(at(0)));
    let in_force = limiter.in_force();
    let bound = in_force.limit("Orders").expect("a limit");
    let ids: Vec<String> = (0..150).map(|number| format!("id {number}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let mut told = Vec::new();
    let outcome = limiter.decide_each(bound, &ids, &[1; 150], |place, _| told.push(place));
    let (place, failure) = outcome.expect_err("the 101st call fails");
    assert!(matches!(*failure, CallError::Store(StoreError::Timeout { millis: 50 })), "{failure}");
    assert_eq!((place, told), (100, (0..100).collect::<Vec<_>>()));
    assert_eq!(limiter.stats().expect("stats").buckets, 101);
}
