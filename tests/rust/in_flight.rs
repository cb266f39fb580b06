//! Limits on requests in flight on every store, compared with a list of the holders.

use std::collections::HashMap;

use penstock::clock::{Clock, ManualClock};
use penstock::config;
use penstock::engine::algorithm::in_flight::InFlight;
use penstock::engine::algorithm::name::AlgorithmName;
use penstock::engine::batch::Kind;
use penstock::engine::decision::Decision;
use penstock::engine::limit::Limit;
use penstock::engine::operation::Operation;
use penstock::engine::state::{Lease, Slots};
use penstock::engine::time::{Nanos, Timestamp};
use penstock::engine::verb::Verb;
use penstock::limiter::{Call, CallError, Limiter, Transaction};
use penstock::store::{Bucket, Keyspace, Store, Wait};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::stores::{at, on_every_store};
use crate::strategies::nanos;

on_every_store!(
    slots_are_those_of_the_holders,
    a_holder_that_cannot_be_counted_has_no_lease,
    a_bucket_in_which_nothing_is_held_is_no_bucket,
    calls_that_would_never_return_their_slots_are_refused,
);

const START: i64 = 1_700_000_000_000_000_000;
const SECOND: i64 = 1_000_000_000;

/// An action on one of two buckets; numbers select a holder, a cost and a time.
#[derive(Clone, Copy, Debug)]
enum Action {
    Take {
        cost: i64,
    },
    Give(usize),
    Renew(usize),
    /// A release of slots that have expired or were given back, which must not return those of others.
    GiveAgain(usize),
    Forget,
    Pass(i64),
    /// The next calls are those of a process with another count.
    Recount(i64),
}

fn any_action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => (0..4_i64).prop_map(|cost| Action::Take { cost }),
        4 => any::<usize>().prop_map(Action::Give),
        3 => any::<usize>().prop_map(Action::Renew),
        1 => any::<usize>().prop_map(Action::GiveAgain),
        1 => Just(Action::Forget),
        1 => (1..7_i64).prop_map(Action::Recount),
        3 => (0..SECOND).prop_map(Action::Pass),
        2 => (0..8 * SECOND).prop_map(Action::Pass),
        1 => (0..70 * SECOND).prop_map(Action::Pass),
        // Threads may reach the store in a different order from their clock readings.
        1 => (-SECOND..0).prop_map(Action::Pass),
    ]
}

/// Slots that were taken.
struct Holder {
    id: &'static str,
    lease: Lease,
    cost: i64,
    is_given_back: bool,
}

impl Holder {
    fn end(&self) -> Timestamp {
        at((self.lease.start() + 2 * self.lease.epoch()) * Slots::UNIT.get())
    }
}

fn in_flight(count: i64, lease: Nanos) -> InFlight {
    let limit = Limit::in_flight(count, lease, InFlight::RETRY_AFTER, None).expect("a limit");
    *limit.slots().expect("slots")
}

struct Bench<S: Store> {
    store: S,
    keyspace: Keyspace,
    clock: ManualClock,
    slots: InFlight,
    holders: Vec<Holder>,
    /// The latest instant that a bucket has seen. A state never goes back.
    seen: Timestamp,
    /// The latest epoch in which slots of each bucket were returned.
    began: HashMap<String, i64>,
}

impl<S: Store> Bench<S> {
    fn new(store: S, slots: InFlight) -> Bench<S> {
        let keyspace = store.keyspace(AlgorithmName::InFlight, "Slots");
        let clock = ManualClock::new(at(START));
        Bench {
            store,
            keyspace,
            clock,
            slots,
            holders: Vec::new(),
            seen: at(START),
            began: HashMap::new(),
        }
    }

    fn bucket<'a>(&'a self, id: &'a str) -> Bucket<'a> {
        Bucket::new(&self.keyspace, id)
    }

    /// Makes a call. Also returns the instant by which slots have expired: a stored epoch never goes
    /// back, so what a write has dropped stays so for a late thread.
    fn call(&mut self, verb: Verb, id: &str, cost: i64) -> (Decision, Option<Lease>, Timestamp) {
        let limit = Limit::from(self.slots);
        let cost = Limit::Unlimited.cost(cost).expect("a cost");
        let operation = Operation { verb, limit: &limit, cost };
        let (bucket, now) = (self.bucket(id), self.clock.now());
        let answer = self.store.update(bucket, &operation, now.into(), Wait::Allowed);
        let answer = answer.map_err(Into::into).expect("an answer");
        let decision = operation.numbers(&answer);
        self.seen = self.seen.max(decision.now);
        let began = self.began.entry(id.to_owned()).or_default();
        *began = answer.found.map_or(*began, |state| state.slots().start.max(*began));
        let now = decision.now.max(at(*began * Slots::UNIT.get()));
        // A server takes a value that has just expired for none, and leaves it.
        let is_empty = answer.found.is_some() && decision.reset_after == Nanos::ZERO;
        let is_written = decision.allowed || is_empty;
        if matches!(verb, Verb::Release(_)) && is_written {
            *began = self.slots.lease_at(answer.found, answer.now).start();
        }
        (decision, operation.lease(&answer), now)
    }

    /// Returns the slots that are held and have not expired at `now`.
    fn held(&self, id: &str, now: Timestamp) -> i64 {
        let holders = self.holders.iter();
        let held = holders.filter(|one| one.id == id && !one.is_given_back && one.end() > now);
        held.map(|one| one.cost).sum()
    }

    fn act(&mut self, id: &'static str, action: Action) -> Result<(), TestCaseError> {
        let running: Vec<usize> = (0..self.holders.len())
            .filter(|&index| self.holders[index].id == id && !self.holders[index].is_given_back)
            .collect();
        let chosen = |index: usize| running.get(index % running.len().max(1)).copied();
        let count = self.slots.count();
        match action {
            Action::Pass(time) => {
                let to = (self.clock.now().get() + time).max(START);
                self.clock.set(to, true).expect("a time");
                // Late threads are at most a second late.
                let earliest = Timestamp::clamped(self.seen.get() - SECOND);
                let now = self.clock.now().max(earliest);
                self.clock.set(now.get(), true).expect("a time");
            }
            Action::Take { cost } => {
                let cost = cost.min(count);
                let (decision, lease, now) = self.call(Verb::Reserve, id, cost);
                let held = self.held(id, now);
                prop_assert_eq!(decision.allowed, held + cost <= count, "{} held", held);
                let taken = if decision.allowed { cost } else { 0 };
                prop_assert_eq!(decision.remaining, (count - held - taken).max(0));
                prop_assert_eq!(lease.is_some(), taken > 0);
                if let Some(lease) = lease {
                    let holder = Holder { id, lease, cost, is_given_back: false };
                    let kept = holder.end().get() - decision.now.get();
                    prop_assert!(kept >= self.slots.lease().get());
                    prop_assert!(kept <= self.slots.longest().get() + SECOND);
                    self.holders.push(holder);
                } else if !decision.allowed {
                    let retry = decision.retry_after.get();
                    prop_assert!(retry > 0);
                    let later = now.max(at(decision.now.get() + retry));
                    prop_assert!(self.held(id, later) + cost <= count, "after retry_after");
                }
            }
            Action::Give(index) => {
                let Some(index) = chosen(index) else { return Ok(()) };
                let Holder { lease, cost, .. } = self.holders[index];
                let (decision, _, now) = self.call(Verb::Release(lease), id, cost);
                let is_live = self.holders[index].end() > now;
                prop_assert_eq!(decision.allowed, is_live);
                self.holders[index].is_given_back = is_live;
            }
            Action::GiveAgain(index) => {
                // Also for a late thread.
                let now = Timestamp::clamped(self.seen.get() - SECOND);
                let ended = self.holders.iter().filter(|one| one.id == id && one.end() <= now);
                let ended: Vec<_> = ended.map(|one| (one.lease, one.cost)).collect();
                if let Some(&(lease, cost)) = ended.get(index % ended.len().max(1)) {
                    let (decision, ..) = self.call(Verb::Release(lease), id, cost);
                    prop_assert!(!decision.allowed, "slots of another holder were returned");
                }
            }
            Action::Renew(index) => {
                let Some(index) = chosen(index) else { return Ok(()) };
                let Holder { lease, cost, .. } = self.holders[index];
                let (decision, renewed, now) = self.call(Verb::Renew(lease), id, cost);
                let was_live = self.holders[index].end() > now;
                prop_assert_eq!(decision.allowed, was_live);
                // However many there are: a holder that runs is counted.
                self.holders[index].lease = renewed.expect("a lease");
                let kept = self.holders[index].end().get() - decision.now.get();
                prop_assert!(kept >= self.slots.lease().get());
            }
            Action::Forget => {
                self.store.forget(self.bucket(id)).map_err(Into::into).expect("an answer");
                // A lease of this epoch would match slots that are taken in it later.
                self.holders.retain(|one| one.id != id);
            }
            Action::Recount(count) => {
                self.slots = in_flight(count, self.slots.lease());
            }
        }
        let (peek, _, now) = self.call(Verb::Check, id, 0);
        let (count, held) = (self.slots.count(), self.held(id, now));
        prop_assert_eq!(peek.remaining, (count - held).max(0));
        prop_assert_eq!(peek.allowed, held <= count);
        Ok(())
    }
}

fn slots_are_those_of_the_holders<S: Store>(fresh: fn() -> S) {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let config = ProptestConfig { cases: config.cases / 4, ..config };
    let slots = (1..7_i64, prop_oneof![Just(2), Just(5), Just(30)], 0..SECOND);
    let actions = prop::collection::vec((any::<bool>(), any_action()), 1..150);
    let run = TestRunner::new(config).run(&(slots, actions), |((count, lease, more), actions)| {
        let slots = in_flight(count, nanos(lease * SECOND + more));
        let mut bench = Bench::new(fresh(), slots);
        for (is_first, action) in actions {
            bench.act(if is_first { "ada" } else { "grace" }, action)?;
        }
        // Nothing is left after two epochs.
        let end = bench.seen.get() + slots.longest().get();
        bench.clock.set(end, true).expect("a time");
        let count = bench.slots.count();
        for id in ["ada", "grace"] {
            prop_assert_eq!(bench.call(Verb::Check, id, count).0.allowed, true);
        }
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}

/// The word counts 32767 slots of an epoch. Those of more holders are not counted, so the end of these
/// holders returns no slot of others.
fn a_holder_that_cannot_be_counted_has_no_lease<S: Store>(fresh: fn() -> S) {
    const MOST: i64 = InFlight::MAX_COUNT;
    let slots = in_flight(MOST, InFlight::LEASE);
    let mut bench = Bench::new(fresh(), slots);
    let mut leases = Vec::new();
    for index in 0..3 {
        let time = START + index * slots.longest().get();
        bench.clock.set(time, false).expect("a time");
        leases.push(bench.call(Verb::Reserve, "ada", MOST).1.expect("a lease"));
    }
    let mut renew = |lease| bench.call(Verb::Renew(lease), "ada", MOST).1.expect("a lease");
    // The last one is held in this epoch.
    let leases = [renew(leases[2]), renew(leases[1]), renew(leases[0])];
    assert_eq!(leases.map(|lease| lease == Lease::NONE), [false, false, true]);
    let mut release = |lease| bench.call(Verb::Release(lease), "ada", MOST).0;
    assert!(!release(leases[2]).allowed, "slots of another holder were returned");
    let left: Vec<_> = leases[..2].iter().map(|&lease| release(lease).remaining).collect();
    assert_eq!(left, [0, MOST]);
}

fn a_bucket_in_which_nothing_is_held_is_no_bucket<S: Store>(fresh: fn() -> S) {
    let slots = in_flight(5, InFlight::LEASE);
    let mut bench = Bench::new(fresh(), slots);
    let buckets = |bench: &Bench<S>| {
        let stats = bench.store.stats(bench.clock.now().into());
        stats.map_err(Into::into).expect("statistics").buckets
    };
    let before = buckets(&bench);
    let ids: Vec<String> = (0..100).map(|number| format!("client-{number}")).collect();
    // Slots of one epoch, of two, and of expired ones that were taken again.
    for pause in [0, slots.lease().get(), slots.longest().get()] {
        let mut held = Vec::new();
        for (id, verb) in ids.iter().flat_map(|id| [(id, false), (id, true)]) {
            let lease = bench.call(Verb::Reserve, id, 2).1.expect("a lease");
            held.push((id, lease, verb));
        }
        let now = bench.clock.now().get() + pause;
        bench.clock.set(now, false).expect("a time");
        for (id, lease, renews) in held {
            let lease = match renews {
                true => bench.call(Verb::Renew(lease), id, 2).1.expect("a lease"),
                false => lease,
            };
            bench.call(Verb::Release(lease), id, 2);
        }
        assert_eq!(buckets(&bench), before, "after a pause of {pause} ns");
    }
    for id in &ids {
        assert_eq!(bench.call(Verb::Check, id, 0).0.remaining, 5);
    }
}

fn calls_that_would_never_return_their_slots_are_refused<S: Store>(fresh: fn() -> S) {
    let limit = ("Slots".to_owned(), in_flight(2, InFlight::LEASE).into());
    let registry = config::from_limits([limit]).expect("limits");
    let limiter = Limiter::new(registry, fresh(), ManualClock::new(at(START)));
    let snapshot = limiter.snapshot();
    let bound = snapshot.limit("Slots").expect("a limit");
    for verb in [Verb::Spend, Verb::Refund, Verb::Charge, Verb::ChargePartial, Verb::ChargeAfter] {
        let error = limiter.answer(bound, Call::new(verb, "ada", 1)).expect_err("refused");
        assert_eq!(*error, CallError::Slots { limit: "Slots".to_owned() });
        assert!(error.to_string().contains("reserve"));
    }
    let each =
        limiter.decide_each(bound, &["ada"][..], &[1], None, |_, _, _| panic!("nothing is taken"));
    assert!(matches!(*each.expect_err("refused").1, CallError::Slots { .. }));
    assert!(matches!(
        *limiter.answer(bound, Call::spend("ada", 1)).expect_err("refused"),
        CallError::Slots { .. }
    ));
    let transaction = [Transaction::new(bound, "ada", 1, Kind::Spend)];
    let error = limiter.answer_all(Verb::Spend, &transaction).expect_err("refused");
    assert!(matches!(*error, CallError::Slots { .. }));
    assert_eq!(
        limiter.decide(bound, Call::check("ada", 0)).expect("an answer").decision.remaining,
        2
    );
}
