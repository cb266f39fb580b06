//! Batches in a shared table, which charges one bucket after another, and returns the charges if one
//! denies. Other calls are made between the charges.
//!
//! - A bucket never admits more than its burst and the tokens added since.
//! - Until the charge of a denied batch is returned, a bucket has at most this one charge too many.
//!   Afterwards it is exact.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use penstock::clock::{Clock, ManualClock};
use penstock::config;
use penstock::engine::algorithm::window::Anchor;
use penstock::engine::batch::Kind;
use penstock::engine::limit::Limit;
use penstock::engine::time::Timestamp;
use penstock::engine::verb::Verb;
use penstock::limiter::{Call, Limiter, Transaction};
use penstock::store::memory::Overflow;
use penstock::store::shared::{FaultPoint, Faults, MappedFile, SharedStore};
use proptest::prelude::*;

use crate::shared::fresh_path;
use crate::stores::at;
use crate::strategies::nanos;

const IDS: [&str; 3] = ["a", "b", "c"];
const SECOND: i64 = 1_000_000_000;

/// Called by a batch after each charge and before each one is returned.
#[derive(Clone)]
struct Hook(Arc<Mutex<Box<dyn FnMut() + Send>>>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

impl Faults for Hook {
    fn reached(&self, point: FaultPoint) {
        let is_batch = matches!(point, FaultPoint::BetweenCharges | FaultPoint::BeforeGiveBack);
        // Calls within the hook do not call it.
        if is_batch && let Ok(mut hook) = self.0.try_lock() {
            hook();
        }
    }
}

/// A clock whose `now` may be behind.
struct LateClock {
    now: ManualClock,
    read: ManualClock,
}

impl Clock for LateClock {
    fn now(&self) -> Timestamp {
        self.read.now()
    }
}

type SharedLimiter = Limiter<SharedStore<MappedFile<Hook>>, LateClock>;

/// Creates a limiter, and the hook of its batches.
fn limiter(limit: Limit) -> (Arc<SharedLimiter>, Hook) {
    let registry = config::from_limits([("Orders".to_owned(), limit)]).expect("limits");
    let hook = Hook(Arc::new(Mutex::new(Box::new(|| {}))));
    let memory = MappedFile::open_reporting(&fresh_path("table"), Some(10), hook.clone());
    let store = SharedStore::in_file(memory.expect("a new table"), Overflow::Deny);
    let clock = || ManualClock::new(at(1_000_000 * SECOND));
    let clock = LateClock { now: clock(), read: clock() };
    (Arc::new(Limiter::new(registry, store, clock)), hook)
}

impl Hook {
    fn set(&self, hook: impl FnMut() + Send + 'static) {
        *self.0.lock().expect("a lock") = Box::new(hook);
    }
}

fn spend(limiter: &SharedLimiter, id: &str) -> bool {
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit("Orders").expect("a limit");
    limiter.decide(bound, Call::spend(id, 1)).expect("an answer").decision.allowed
}

fn spend_all(limiter: &SharedLimiter, ids: &[&str]) -> bool {
    let snapshot = limiter.snapshot();
    let limit = snapshot.limit("Orders").expect("a limit");
    let part = |&id| Transaction::new(limit, id, 1, Kind::Spend);
    let parts: Vec<_> = ids.iter().map(part).collect();
    limiter.decide_all(Verb::Spend, &parts).expect("an answer").decision.allowed
}

fn remaining(limiter: &SharedLimiter, id: &str) -> i64 {
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit("Orders").expect("a limit");
    limiter.decide(bound, Call::check(id, 0)).expect("an answer").decision.remaining
}

fn limits() -> [Limit; 4] {
    let hour = nanos(3600 * SECOND);
    [
        Limit::token_bucket(4, 1, hour),
        Limit::leaky_bucket(4, hour, 1),
        Limit::fixed_window(4, hour, Anchor::First),
        Limit::fixed_rate_window(1, hour, 3, Anchor::First),
    ]
    .map(|limit| limit.expect("a limit"))
}

proptest! {
    /// A batch over all buckets with other calls between its charges is exact when it is over.
    #[test]
    fn a_denied_batch_leaves_no_charges(
        limit in prop::sample::select(limits().to_vec()),
        before in prop::collection::vec(0..3_usize, 0..8),
        between in prop::collection::vec((0..6_usize, 0..3_usize), 0..6),
    ) {
        let (limiter, hook) = limiter(limit);
        let admitted = Arc::new(Mutex::new(BTreeMap::<&str, i64>::new()));
        let count = |id: &'static str, allowed: bool| {
            *admitted.lock().expect("a lock").entry(id).or_default() += i64::from(allowed);
        };
        for bucket in before {
            count(IDS[bucket], spend(&limiter, IDS[bucket]));
        }
        // Each element of `between` is a call on a bucket at the n-th call of the hook.
        let (weak, counted, mut times) = (Arc::downgrade(&limiter), Arc::clone(&admitted), 0);
        hook.set(move || {
            let limiter = weak.upgrade().expect("the test keeps the limiter alive");
            for &(_, bucket) in between.iter().filter(|(time, _)| *time == times) {
                let id = IDS[bucket];
                let mut admitted = counted.lock().expect("a lock");
                let admitted = admitted.entry(id).or_default();
                *admitted += i64::from(spend(&limiter, id));
                // At most the charge of the batch exceeds the admitted tokens.
                assert!((0..=1).contains(&(4 - *admitted - remaining(&limiter, id))), "{id}");
            }
            times += 1;
        });
        let allowed = spend_all(&limiter, &IDS);
        hook.set(|| {});
        for id in IDS {
            count(id, allowed);
            let admitted = admitted.lock().expect("a lock")[id];
            prop_assert!(admitted <= 4);
            prop_assert_eq!(remaining(&limiter, id), 4 - admitted, "{}", id);
        }
    }
}

/// A charge is returned late, after its tokens were refilled and taken by another request. A plain
/// refund would return the tokens of that request, and so would one at an earlier reading of the clock.
#[test]
fn a_refilled_charge_is_not_returned() {
    let limit = Limit::token_bucket(1, 1, nanos(SECOND)).expect("a limit");
    let (limiter, hook) = limiter(limit);
    let (weak, mut times) = (Arc::downgrade(&limiter), 0);
    hook.set(move || {
        let limiter = weak.upgrade().expect("the test keeps the limiter alive");
        times += 1;
        match times {
            // After "a" is charged, "b" is emptied, so that the batch is denied.
            1 => assert!(spend(&limiter, "b")),
            // Before the charge of "a" is returned, it is refilled and another request is admitted.
            2 => {
                let LateClock { now, read } = limiter.clock();
                read.advance(SECOND).expect("a time");
                now.advance(SECOND).expect("a time");
                assert!(spend(&limiter, "a"));
                now.set(1_000_000 * SECOND, true).expect("a time");
            }
            _ => {}
        }
    });
    assert!(!spend_all(&limiter, &["a", "b"]));
    limiter.clock().now.advance(SECOND).expect("a time");
    assert!(!spend(&limiter, "a"), "the admitted request still counts");
}
