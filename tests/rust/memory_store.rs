//! Guarantees of the memory store alone: its capacity, sweeping and growth, and that its hash keys stay
//! secret.

use std::collections::{BTreeMap, BTreeSet};

use penstock::clock::ManualClock;
use penstock::config;
use penstock::engine::algorithm::name::AlgorithmName;
use penstock::engine::batch::Kind;
use penstock::engine::decision::Decision;
use penstock::engine::state::{Lifetime, State};
use penstock::engine::verb::Verb;
use penstock::limiter::{Call, Limiter, Transaction};
use penstock::store::memory::{MemoryStore, Overflow};
use penstock::store::{Bucket, Store};

use crate::stores::{Toy, at, keyspace, play, play_all};
use crate::strategies::nanos;

/// Returns a toy that stores a state that expires at exactly `end` ns.
fn ends_at(end: i64) -> Toy {
    Toy::Put(State::from_instant(at(end)).word(), Lifetime::INSTANT)
}

/// The statistics that the memory store always has.
#[derive(Debug)]
struct Figures {
    buckets: u64,
    slots: u64,
    bytes: u64,
    forgotten: u64,
    evicted: u64,
}

fn stats(store: &MemoryStore) -> Figures {
    let Ok(stats) = store.stats(at(0).into());
    let figure = |number: Option<u64>| number.expect("a figure");
    Figures {
        buckets: figure(stats.buckets),
        slots: figure(stats.slots),
        bytes: figure(stats.bytes),
        forgotten: figure(stats.forgotten),
        evicted: figure(stats.evicted),
    }
}

/// A random number generator with a fixed seed.
struct Random(u64);

impl Random {
    fn below(&mut self, max: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The upper bits are more random.
        (self.0 >> 20) % max
    }
}

#[test]
fn a_bounded_store_stays_within_its_capacity_and_counts_evictions() {
    for max in [1, 2, 3, 7, 8, 9, 100, 1023, 1024, 2047, 2048, 3000, 5000] {
        let store = MemoryStore::new(Some(max as usize)).with_overflow(Overflow::Evict);
        let keyspace = keyspace(&store);
        let mut put = 0;
        while put < 3 * max + 50 {
            // All buckets are live. Some are added in batches.
            let ids: Vec<String> =
                (put..put + 1 + put % 3).map(|number| number.to_string()).collect();
            let calls: Vec<(&str, Toy)> =
                ids.iter().map(|id| (id.as_str(), ends_at(i64::MAX))).collect();
            match calls[..] {
                [(id, toy)] => {
                    play(&store, &keyspace, id, toy, 0);
                }
                _ => {
                    play_all(&store, &keyspace, &calls, 0);
                }
            }
            put += calls.len() as u64;
            let stats = stats(&store);
            assert!(stats.buckets <= max, "{} buckets of {max}", stats.buckets);
            assert_eq!(stats.buckets + stats.evicted, put, "each bucket is kept or counted");
            assert_eq!(stats.forgotten, 0);
            assert!(stats.slots > stats.buckets || put == 0);
            assert!(stats.bytes >= 16 * stats.slots);
        }
        let shards = (max / 1024).max(1).next_power_of_two();
        // Every shard is full.
        assert_eq!(stats(&store).buckets, max / shards * shards);
    }
}

#[test]
fn the_bucket_that_expires_first_is_evicted() {
    let store = MemoryStore::new(Some(20)).with_overflow(Overflow::Evict);
    let keyspace = keyspace(&store);
    for number in 0..20 {
        // 7 and 20 are coprime, so every end from 1000 to 1019 is used, in mixed order.
        play(
            &store,
            &keyspace,
            &format!("old {}", number * 7 % 20),
            ends_at(1000 + number * 7 % 20),
            0,
        );
    }
    for number in 0..12 {
        play(&store, &keyspace, &format!("new {number}"), ends_at(2000), 0);
    }
    let kept = |id: String| play(&store, &keyspace, &id, Toy::Look, 0).word.is_some();
    for number in 0..20 {
        assert_eq!(kept(format!("old {number}")), number >= 12, "old {number}");
    }
    assert!((0..12).all(|number| kept(format!("new {number}"))));
    assert_eq!((stats(&store).evicted, stats(&store).forgotten), (12, 0));
    // At 1015 ns some have expired, and dropping them is not an eviction.
    for number in 0..4 {
        play(&store, &keyspace, &format!("newer {number}"), ends_at(2000), 1015);
    }
    assert_eq!((stats(&store).evicted, stats(&store).forgotten), (12, 4));
}

#[test]
fn expired_buckets_are_dropped_as_new_ones_are_added() {
    const LIVE: i64 = 5000;
    for (store, slack) in
        [(MemoryStore::new(None), 256 * 8), (MemoryStore::new(Some(50_000)), 8 * 64)]
    {
        let keyspace = keyspace(&store);
        let mut max = 0;
        for now in 0..150_000 {
            play(&store, &keyspace, &now.to_string(), ends_at(now + LIVE), now);
            if now % 100 == 0 {
                max = max.max(stats(&store).buckets);
            }
        }
        let stats = stats(&store);
        assert_eq!(stats.evicted, 0);
        assert_eq!(stats.forgotten + stats.buckets, 150_000);
        assert!(max < 3 * LIVE as u64 + slack, "{max} buckets were kept for {LIVE} live ones");
        assert!(stats.slots < 6 * LIVE as u64 + 2 * slack, "{} slots", stats.slots);
        // All buckets have expired, and almost all are dropped while new ones are added.
        for number in 0..20_000 {
            play(&store, &keyspace, &format!("late {number}"), ends_at(i64::MAX), 1_000_000);
        }
        assert!(self::stats(&store).forgotten > 149_500, "{:?}", self::stats(&store));
    }
}

/// Compares random operations on thousands of buckets with a map that never drops any.
#[test]
fn growth_and_sweeping_preserve_every_state() {
    let milli = 1_000_000;
    for (max, ids) in [(None, 40_000), (None, 3000), (Some(2047), 1900), (Some(200_000), 20_000)] {
        let store = MemoryStore::new(max);
        let keyspace = keyspace(&store);
        let mut model: BTreeMap<u64, (u64, Lifetime)> = BTreeMap::new();
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ ids);
        let (mut now, mut latest) = (0, 0);
        let (mut forgotten, mut found) = (0, 0);
        for call in 0..120_000_u64 {
            now += random.below(4) as i64 * milli / 64;
            latest = latest.max(now);
            // Some clock readings are old.
            let read = if call % 16 == 0 { now - random.below(now as u64 + 1) as i64 } else { now };
            let number = random.below(ids);
            let id = number.to_string();
            let lifetime = Lifetime::of_tally(nanos(milli << random.below(11)));
            let word = State::from_tally(at(now), random.below(1 << 20)).word();
            let verb = random.below(10);
            if verb == 0 {
                let Ok(existed) = store.forget(Bucket::new(&keyspace, &id));
                let expected = model.remove(&number);
                assert!(!existed || expected.is_some());
                continue;
            }
            let toy = if verb < 4 { Toy::Look } else { Toy::Put(word, lifetime) };
            let seen = play(&store, &keyspace, &id, toy, read);
            assert!(seen.now >= at(read) && seen.now <= at(latest));
            let known = model.get(&number);
            match (seen.word, known) {
                (Some(word), Some(&(known, _))) => {
                    assert_eq!(word, known, "call {call} at {id}");
                    found += 1;
                }
                (Some(word), None) => {
                    panic!("call {call} at {id} saw {word:#x}, which was never stored")
                }
                (None, Some(&(word, lifetime))) => {
                    let end = lifetime.end_of(State::from_word(word).expect("a word"));
                    assert!(seen.now >= end, "call {call} at {id}: forgotten before its end");
                    forgotten += 1;
                }
                (None, None) => {}
            }
            if verb >= 4 {
                // The store never lowers a lifetime, unless the bucket was dropped in between.
                let longest = match (seen.word, known) {
                    (Some(_), Some(&(_, known))) => known.max(lifetime),
                    _ => lifetime,
                };
                model.insert(number, (word, longest));
            } else if seen.word.is_none() {
                model.remove(&number);
            }
        }
        assert_eq!(stats(&store).evicted, 0);
        assert!(forgotten > 1000 && found > 1000, "{forgotten} forgotten, {found} found");
        assert!(stats(&store).forgotten >= forgotten);
    }
}

/// A store places buckets by a random salt. A small table has few placements, so two of five stores
/// may have the same by chance, but not all.
#[test]
fn stores_place_buckets_differently() {
    let survivors = || -> Vec<u64> {
        let store = MemoryStore::new(Some(30)).with_overflow(Overflow::Evict);
        let keyspace = keyspace(&store);
        for number in 0..300 {
            play(&store, &keyspace, &number.to_string(), ends_at(1000), 0);
        }
        let kept = |number: &u64| {
            play(&store, &keyspace, &number.to_string(), Toy::Look, 0).word.is_some()
        };
        (0..300).filter(kept).collect()
    };
    let runs: BTreeSet<_> = (0..10).map(|_| survivors()).collect();
    assert!(runs.len() > 1);
}

#[test]
fn debug_output_does_not_contain_the_hash_key() {
    let store = MemoryStore::new(None);
    let keyspace = store.keyspace(AlgorithmName::TokenBucket, "Orders");
    assert!(format!("{keyspace:?}").contains("hash: HashKey(..)"));
    assert!(format!("{store:?}").contains("key: HashKey(..)"));
}

/// After a flood of new ids, calls on known ids free the memory. Full buckets are not counted.
#[test]
fn the_memory_of_a_flood_is_freed() {
    let store = MemoryStore::new(None);
    let keyspace = keyspace(&store);
    for number in 0..200_000 {
        play(&store, &keyspace, &number.to_string(), ends_at(1000), 0);
    }
    play(&store, &keyspace, "known", ends_at(i64::MAX), 0);
    let count = |now: i64| {
        let Ok(stats) = store.stats(at(now).into());
        stats.buckets
    };
    assert_eq!((count(999), count(1000)), (Some(200_001), Some(1)));
    let flood = stats(&store);
    // Two thousand timed calls on the known id, after which a limiter calls `tidy`.
    for _ in 0..2000 {
        play(&store, &keyspace, "known", Toy::Look, 2000);
        store.tidy(|| at(2000).into());
    }
    let after = stats(&store);
    assert_eq!((after.buckets, after.forgotten), (1, 200_000));
    assert!(after.bytes * 8 < flood.bytes, "{} of {} bytes", after.bytes, flood.bytes);
    assert!(play(&store, &keyspace, "known", Toy::Look, 2000).word.is_some());
}

/// Creates a limiter with one limit and a store for at most `max` buckets.
fn limiter(max: usize, overflow: Overflow, limit: &str) -> Limiter<MemoryStore, ManualClock> {
    let registry = config::parse(&format!("Orders: {{{limit}}}"), None, None).expect("limits");
    let store = MemoryStore::new(Some(max)).with_overflow(overflow);
    Limiter::new(registry, store, ManualClock::new(at(1_700_000_000_000_000_000)))
}

fn decide(limiter: &Limiter<MemoryStore, ManualClock>, verb: Verb, ids: &[&str]) -> Decision {
    let snapshot = limiter.snapshot();
    let limit = snapshot.limit("Orders").expect("a limit");
    let part = |&id| Transaction::new(limit, id, 1, Kind::Spend);
    match *ids {
        [id] => limiter.decide(limit, Call::new(verb, id, 1)).expect("an answer").decision,
        _ => {
            let parts: Vec<_> = ids.iter().map(part).collect();
            limiter.decide_all(verb, &parts).expect("an answer").decision
        }
    }
}

const HOURLY: [&str; 4] = [
    "burst: 2, count: 2, period: 1h",
    "algorithm: leaky-bucket, size: 2, drip_rate: 30m",
    "algorithm: fixed-window, count: 2, period: 1h",
    "algorithm: fixed-rate-window, count: 1, burst: 1, period: 1h",
];

#[test]
fn a_waiter_is_due_when_a_full_store_has_space_for_its_bucket() {
    for limit in HOURLY {
        let limiter = limiter(1, Overflow::Deny, limit);
        assert!(decide(&limiter, Verb::Spend, &["a"]).allowed);
        let refusal = decide(&limiter, Verb::Check, &["b"]);
        assert!(!refusal.allowed);
        let snapshot = limiter.snapshot();
        let bound = snapshot.limit("Orders").expect("a limit");
        let estimate = limiter.estimate(bound, "b", &[(1, 0)], None).expect("an answer");
        assert_eq!(estimate.expect("a limit").wait(), refusal.retry_after, "{limit}");
    }
}

#[test]
fn a_batch_of_new_ids_uses_separate_shared_buckets() {
    let limiter = limiter(2, Overflow::Share, HOURLY[0]);
    assert!(decide(&limiter, Verb::Spend, &["a", "b"]).allowed);
    // "c" and "d" use two shared buckets, and "e" uses the first of them.
    assert!(decide(&limiter, Verb::Spend, &["c", "d"]).allowed);
    assert!(decide(&limiter, Verb::Spend, &["e"]).allowed);
    assert!(!decide(&limiter, Verb::Spend, &["c", "d"]).allowed);
    assert!(!decide(&limiter, Verb::Spend, &["f"]).allowed);
    // A batch with a known id is all or nothing too.
    assert!(
        !decide(&limiter, Verb::Spend, &["a", "g"]).allowed,
        "the first shared bucket is empty"
    );
    assert!(decide(&limiter, Verb::Spend, &["a"]).allowed);
    assert_eq!(limiter.stats().expect("stats").buckets, Some(2));
}
