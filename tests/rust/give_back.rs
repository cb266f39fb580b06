//! Batches on a store that cannot lock several buckets. It charges one bucket after another, and returns
//! the charges if one denies.
//!
//! - A bucket never admits more than its burst and the tokens added since.
//! - Until the charge of a denied batch is returned, a bucket has at most this one charge too many.
//!   Afterwards it is exact.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use penstock::clock::{Clock, ManualClock};
use penstock::config;
use penstock::engine::algorithm::window::Anchor;
use penstock::engine::batch::Kind;
use penstock::engine::limit::Limit;
use penstock::engine::operation::Verb;
use penstock::limiter::{Call, Limiter, Transaction};
use proptest::prelude::*;

use crate::stores::{Rerun, at};
use crate::strategies::nanos;

const IDS: [&str; 3] = ["a", "b", "c"];
const SECOND: i64 = 1_000_000_000;

type RerunLimiter = Limiter<Rerun, ManualClock>;

fn limiter(limit: Limit) -> RerunLimiter {
    let registry = config::from_limits([("Orders".to_owned(), limit)]).expect("limits");
    Limiter::new(registry, Rerun::new(), ManualClock::new(at(1_000_000 * SECOND)))
}

fn spend(limiter: &RerunLimiter, id: &str) -> bool {
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit("Orders").expect("a limit");
    limiter.decide(bound, Call::spend(id, 1)).expect("an answer").decision.allowed
}

fn spend_all(limiter: &RerunLimiter, ids: &[&str]) -> bool {
    let snapshot = limiter.snapshot();
    let limit = snapshot.limit("Orders").expect("a limit");
    let part = |&id| Transaction { limit, id, cost: 1, kind: Kind::Spend, factor: None };
    let parts: Vec<_> = ids.iter().map(part).collect();
    limiter.decide_all(Verb::Spend, &parts).expect("an answer").decision.allowed
}

fn remaining(limiter: &RerunLimiter, id: &str) -> i64 {
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
        let limiter = Arc::new(limiter(limit));
        let admitted = Arc::new(std::sync::Mutex::new(BTreeMap::<&str, i64>::new()));
        let count = |id: &'static str, allowed: bool| {
            *admitted.lock().expect("a lock").entry(id).or_default() += i64::from(allowed);
        };
        for bucket in before {
            count(IDS[bucket], spend(&limiter, IDS[bucket]));
        }
        // Each element of `between` is a call on a bucket before the n-th swap of the batch.
        let (weak, counted, mut swaps) = (Arc::downgrade(&limiter), Arc::clone(&admitted), 0);
        limiter.store().before_swap(move |_| {
            let limiter = weak.upgrade().expect("the test keeps the limiter alive");
            for &(_, bucket) in between.iter().filter(|(swap, _)| *swap == swaps) {
                let id = IDS[bucket];
                let mut admitted = counted.lock().expect("a lock");
                let admitted = admitted.entry(id).or_default();
                *admitted += i64::from(spend(&limiter, id));
                // At most the charge of the batch exceeds the admitted tokens.
                assert!((0..=1).contains(&(4 - *admitted - remaining(&limiter, id))), "{id}");
            }
            swaps += 1;
        });
        let allowed = spend_all(&limiter, &IDS);
        limiter.store().before_swap(|_| {});
        for id in IDS {
            count(id, allowed);
            let admitted = admitted.lock().expect("a lock")[id];
            prop_assert!(admitted <= 4);
            prop_assert_eq!(remaining(&limiter, id), 4 - admitted, "{}", id);
        }
    }
}

/// A charge is returned late, after its tokens were refilled and taken by another request. A plain
/// refund would return the tokens of that request.
#[test]
fn a_refilled_charge_is_not_returned() {
    let limit = Limit::token_bucket(1, 1, nanos(SECOND)).expect("a limit");
    let limiter = Arc::new(limiter(limit));
    let (weak, mut swaps) = (Arc::downgrade(&limiter), 0);
    limiter.store().before_swap(move |_| {
        let limiter = weak.upgrade().expect("the test keeps the limiter alive");
        swaps += 1;
        match swaps {
            // After "a" is charged, "b" is emptied, so that the batch is denied.
            2 => assert!(spend(&limiter, "b")),
            // Before the charge of "a" is returned, it is refilled and another request is admitted.
            3 => {
                limiter.clock().advance(SECOND).expect("a time");
                assert!(spend(&limiter, "a"));
            }
            _ => {}
        }
    });
    assert!(!spend_all(&limiter, &["a", "b"]));
    assert!(!spend(&limiter, "a"), "the admitted request still counts");
}

#[test]
fn threads_with_opposite_orders_admit_exactly_the_limit() {
    let limit = Limit::token_bucket(500, 1, nanos(86_400 * SECOND)).expect("a limit");
    let limiter = limiter(limit);
    let orders = [["a", "b"], ["b", "a"]];
    let admitted: usize = thread::scope(|scope| {
        let threads = orders.map(|ids| {
            scope.spawn({
                let limiter = &limiter;
                move || (0..1000).filter(|_| spend_all(limiter, &ids)).count()
            })
        });
        threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
    });
    // A charge that is about to be returned may deny the last requests of the other thread, but it
    // never admits one.
    assert!(admitted <= 500, "{admitted}");
    let more = (0..500).take_while(|_| spend_all(&limiter, &["a", "b"])).count();
    assert_eq!(admitted + more, 500);
    assert!(limiter.clock().now() > at(0));
}
