//! Two processes with different limits on one bucket, as during a rolling deploy: together they never
//! admit more than the larger limit does.

use std::thread;

use penstock::engine::algorithm::window::Anchor;
use penstock::engine::limit::{Limit, Rate};
use penstock::engine::operation::Operation;
use penstock::engine::state::{Lifetime, State};
use penstock::engine::time::{Nanos, Timestamp};
use penstock::engine::verb::Verb;
use penstock::store::remote::RemoteOp;
use penstock::store::{Bucket, Keyspace, Store, StoreStep, Wait, Write};

use crate::stores::{at, memory, on_every_store};
use crate::strategies::nanos;

on_every_store!(
    alternating_calls_admit_no_more_than_the_larger_limit,
    threads_admit_no_more_than_the_larger_limit,
);

const MILLI: i64 = 1_000_000;
const START: i64 = 1_700_000_000_000 * MILLI;
/// The number of calls, a millisecond apart.
const CALLS: i64 = 600;

/// Returns pairs of a smaller and a larger limit of each algorithm.
fn pairs() -> Vec<[Limit; 2]> {
    let minute = nanos(60_000 * MILLI);
    let tokens = |burst, count| Limit::token_bucket(burst, count, minute);
    let drips = |size| Limit::leaky_bucket(size, nanos(1000 * MILLI), 1);
    let window = |count| Limit::fixed_window(count, minute, Anchor::First);
    let spaced = |burst| Limit::fixed_rate_window(60, minute, burst, Anchor::First);
    let pairs = [
        [tokens(10, 100), tokens(300, 100)],
        [tokens(3, 3), tokens(50, 50)],
        [drips(5), drips(50)],
        [window(5), window(40)],
        [spaced(3), spaced(30)],
    ];
    pairs.map(|pair| pair.map(|limit| limit.expect("a limit"))).to_vec()
}

fn spend(limit: &Limit) -> Operation<'_> {
    Operation { verb: Verb::Spend, limit, cost: limit.cost(1).expect("a cost") }
}

/// Which of two limits decides a call.
type Turns = fn(i64) -> usize;

/// The orders of calls: in turn, and after the limit was lowered or raised in one of two processes.
const ORDERS: [(&str, Turns); 4] = [
    ("in turn", |call| (call % 2) as usize),
    ("nine of the smaller for one of the larger", |call| usize::from(call % 10 == 0)),
    ("lowered", |call| if call < 200 { 1 } else { (call % 2) as usize }),
    ("raised", |call| if call < 200 { 0 } else { (call % 2) as usize }),
];

/// Counts the calls that are admitted under each limit.
fn admitted<S: Store, T: StoreStep>(
    store: &S,
    keyspace: &Keyspace,
    id: &str,
    calls: impl Iterator<Item = (usize, T, Timestamp)>,
) -> [i64; 2] {
    let mut admitted = [0; 2];
    for (which, step, now) in calls {
        let answer = store
            .update(Bucket::new(keyspace, id), &step, now.into(), Wait::Allowed)
            .map_err(Into::into);
        admitted[which] += i64::from(answer.expect("the store answers").allowed());
    }
    admitted
}

fn check_all_orders<'a, S: Store, T: StoreStep>(
    store: &S,
    limits: &'a [[Limit; 2]],
    step: fn(&'a Limit) -> T,
) {
    for (index, pair) in limits.iter().enumerate() {
        let keyspace = store.keyspace(pair[0].algorithm(), "Orders");
        for (name, turn) in ORDERS {
            let calls = (0..CALLS).map(|call| {
                let which = turn(call);
                (which, step(&pair[which]), at(START + call * MILLI))
            });
            let id = format!("{name} {index}");
            let [small, large] = admitted(store, &keyspace, &id, calls);
            let most = pair[1].worst_in(nanos(CALLS * MILLI));
            assert!(
                small + large <= most,
                "{small} and {large} admitted of {most}, {name}: {pair:?}"
            );
        }
    }
}

fn alternating_calls_admit_no_more_than_the_larger_limit<S: Store>(fresh: fn() -> S) {
    check_all_orders(&fresh(), &pairs(), spend);
}

fn threads_admit_no_more_than_the_larger_limit<S: Store>(fresh: fn() -> S) {
    const THREADS: usize = 4;
    let store = fresh();
    for (index, pair) in pairs().iter().enumerate() {
        let keyspace = store.keyspace(pair[0].algorithm(), "Orders");
        let id = index.to_string();
        let calls = |thread: usize| {
            let calls = (0..150).map(|_| (thread % 2, spend(&pair[thread % 2]), at(START)));
            admitted(&store, &keyspace, &id, calls).iter().sum::<i64>()
        };
        let sum: i64 = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|one| scope.spawn(move || calls(one))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
        });
        let most = pair[1].worst_in(Nanos::ZERO);
        assert!(sum <= most, "{sum} admitted of {most}: {pair:?}");
    }
}

/// A spend that brings a late TAT forward to two bursts from now, and writes that even if it is denied.
struct Clamped<'a>(Operation<'a>);

impl StoreStep for Clamped<'_> {
    fn apply(&self, found: Option<State>, now: Timestamp) -> (bool, Write) {
        let Limit::Rate(Rate::TokenBucket(bucket)) = self.0.limit else {
            return self.0.apply(found, now);
        };
        let latest = now.saturating_add(bucket.burst_offset().saturating_mul(2));
        let clamped = found.map(|state| State::from_instant(state.instant().min(latest)));
        match self.0.apply(clamped, now) {
            (false, _) if clamped != found => {
                (false, clamped.map_or(Write::Keep, |state| Write::Put(state, Lifetime::INSTANT)))
            }
            decided => decided,
        }
    }

    fn call(&self) -> RemoteOp {
        self.0.call()
    }
}

#[test]
#[should_panic(expected = "admitted of")]
fn a_denied_call_that_writes_is_detected() {
    check_all_orders(&memory(), &pairs(), |limit| Clamped(spend(limit)));
}
