//! Properties of every algorithm, for any limit, any state and any instant.
//!
//! 1. A denied spend changes nothing, except that it repairs a TAT that no call of the limit can
//!    have written.
//! 2. One nanosecond before `retry_after` the same call is denied; at `retry_after` it is allowed.
//!    After an allowed call, this holds for an identical next call.
//! 3. A bucket never admits more than its burst at one instant.
//! 4. A check has the same decision as a spend, and writes nothing. A cost of 0 never writes.
//! 5. From the end of its lifetime on, a state is equivalent to no state. The same holds from
//!    `reset_after` on.
//! 6. A clock that goes backwards never adds tokens: a call that is allowed earlier is also allowed
//!    later, and a spend at an earlier time does not increase the tokens left later.
//! 7. No call panics, overflows or returns a number out of range, for any limit, word and instant.
//! 8. A refund undoes a spend, unless the bucket is full first. It never fills a bucket beyond full,
//!    and never creates one. Returning a charge later, after other spends, returns at most the
//!    tokens that have not been refilled: the bucket then admits no more than if the spend had never
//!    happened, and exactly as much if there was no other call.
//! 9. Up to one nanosecond before `next_token_after` no token has been added; at `next_token_after`
//!    one has. A fixed window returns all tokens at its end; in a fixed-rate window, the next slot
//!    opens.
//! 10. Batches: if denied, nothing is written; if allowed, each member is written as it would
//!     be alone; checks never write. A member in shadow mode never decides. Refunds of a batch are
//!     independent.
//! 11. A charge equals a spend if the bucket has enough. Otherwise the bucket is overdrawn by at
//!     most one burst, and no spend is allowed, not even of 0 tokens, until `retry_after`. A charge
//!     that exceeds the possible debt takes nothing and succeeds at `retry_after`, but not before; a
//!     partial charge takes as much as possible. A refund undoes a charge.
//! 12. The strictest decision is the denied one, then the one with the longest wait, then the one
//!     with the fewest remaining tokens, then the last.
//!
//! Cases that are specific to one algorithm (a phase per key, the three anchors, a size after its
//! factor) are covered because limits are generated with all of them: see `strategies`.

use penstock::engine::algorithm::Step;
use penstock::engine::batch::{self, Kind, Member};
use penstock::engine::decision::Decision;
use penstock::engine::limit::{Limit, Rate};
use penstock::engine::operation::Operation;
use penstock::engine::state::{Lifetime, State};
use penstock::engine::time::{Nanos, Timestamp};
use penstock::engine::verb::Verb;
use proptest::prelude::*;

use crate::stores::at;
use crate::strategies::{
    Scene, any_instant, any_limit, any_scene, any_verb, any_wait, nanos, reached,
};

const SECOND: i64 = 1_000_000_000;

/// Returns the latest instant that a limit can represent. Words with a tally end in the year 2248, the
/// TAT of a token bucket must stay below 2^63 ns, and so must the end of a calendar window and a second.
fn max_instant(limit: &Limit) -> i64 {
    match limit {
        Limit::Rate(Rate::TokenBucket(bucket)) => i64::MAX - bucket.burst_offset().get(),
        Limit::Rate(Rate::CalendarWindow(_)) => (i64::MAX / SECOND - 1) * SECOND - 1,
        _ => State::MAX_INSTANT.get(),
    }
}

/// Returns the scene if its limit can represent its time.
fn in_time(scene: Scene) -> Option<Scene> {
    (scene.now.get() <= max_instant(&scene.limit)).then_some(scene)
}

/// Returns the scene after the time `by`, if its limit can represent that instant.
fn later(scene: Scene, by: Nanos) -> Option<Scene> {
    in_time(scene.at(at(scene.now.get().checked_add(by.get())?)))
}

/// Returns the scene if its limit can represent the time at which twice the maximum debt is repaid.
fn in_time_for_debt(scene: Scene) -> Option<Scene> {
    let all = scene.limit.cost_in_parts(i64::MAX).get();
    let owed = Scene { state: None, ..scene }.step(Verb::ChargePartial, all).decision.reset_after;
    later(later(scene, owed)?, owed).map(|_| scene)
}

/// Returns whether no call of the limit, now or earlier, can have written the state.
fn is_impossible(scene: &Scene) -> bool {
    match (&scene.limit, scene.state) {
        (Limit::Rate(Rate::TokenBucket(bucket)), Some(state)) => {
            let max = i128::from(scene.now.get()) + 2 * i128::from(bucket.burst_offset().get());
            i128::from(state.instant().get()) > max
        }
        _ => false,
    }
}

/// Doubles the configured number of cases, because several algorithms are generated.
fn double_cases() -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig { cases: 2 * config.cases, ..config }
}

/// Returns whether the windows or ticks of two states of one bucket began at the same instant.
fn has_same_origin(one: &Scene, other: &Scene) -> bool {
    let origin = |scene: &Scene| match (scene.state, scene.limit) {
        (None, _) => None,
        (Some(state), Limit::Rate(Rate::LeakyBucket(bucket))) => {
            Some(state.tally_instant().get() % bucket.drip_rate().get())
        }
        (Some(state), Limit::Rate(Rate::CalendarWindow(_))) => Some(state.instant().get() / SECOND),
        (
            Some(state),
            Limit::Rate(Rate::FixedWindow(_) | Rate::FixedRateWindow(_)) | Limit::Slots(_),
        ) => Some(state.tally_instant().get()),
        // No tokens are added together.
        (Some(_), Limit::Rate(Rate::TokenBucket(_)) | Limit::Unlimited) => None,
    };
    origin(one) == origin(other)
}

/// Returns the steps of a spend, a check and a refund.
fn steps(scene: &Scene, cost: i64) -> [Step; 3] {
    [Verb::Spend, Verb::Check, Verb::Refund].map(|verb| scene.step(verb, cost))
}

/// Returns the decisions of the same calls, and what each writes. The lifetime of a state that is not
/// written has no effect.
fn effects(scene: &Scene, cost: i64) -> [(Decision, Option<(State, Lifetime)>); 3] {
    steps(scene, cost).map(|step| {
        let Step { decision, after, lifetime } = step;
        (decision, after.map(|state| (state, lifetime)))
    })
}

/// Returns whether the limit has tokens, which refill, can be charged and can be refunded without a
/// lease.
fn has_tokens(scene: &Scene) -> bool {
    scene.limit.slots().is_none()
}

proptest! {
    #![proptest_config(double_cases())]

    #[test]
    fn a_denied_spend_changes_nothing(scene in any_scene(), share in 0.0..1.0) {
        let cost = scene.share(share);
        let step = scene.step(Verb::Spend, cost);
        if !step.decision.allowed {
            prop_assert_eq!(step.after, None);
        } else {
            prop_assert!(!is_impossible(&scene));
        }
    }

    #[test]
    fn a_retry_is_denied_before_retry_after_and_allowed_then(
        scene in any_scene(),
        share in 0.0..1.0,
        one in any::<bool>(),
    ) {
        let cost = if one { scene.share(share).min(1) } else { scene.share(share) };
        let step = scene.step(Verb::Spend, cost);
        let left = scene.after(&step);
        let wait = step.decision.retry_after;
        prop_assert!(step.decision.allowed || wait > Nanos::ZERO);
        if let Some(on_time) = later(left, wait) {
            prop_assert!(
                on_time.step(Verb::Spend, cost).decision.allowed,
                "on time: {:?}",
                on_time
            );
        }
        if let Some(early) = Nanos::new(wait.get() - 1).and_then(|wait| later(left, wait)) {
            let early = early.step(Verb::Spend, cost).decision;
            prop_assert!(!early.allowed);
            prop_assert_eq!(early.retry_after, nanos(1));
        }
    }

    #[test]
    fn a_bucket_admits_at_most_its_burst_at_one_instant(
        scene in any_scene(),
        shares in prop::collection::vec(0.0..1.0, 1..20),
    ) {
        prop_assume!(in_time(scene).is_some());
        let mut scene = scene;
        let mut taken: i64 = 0;
        for share in shares {
            let cost = scene.share(share);
            let step = scene.step(Verb::Spend, cost);
            scene = scene.after(&step);
            taken += if step.decision.allowed { cost } else { 0 };
            prop_assert!(taken <= scene.limit.max_cost());
            // Take all remaining tokens, so that the burst is reached exactly.
            while scene.limit.max_cost() < 50 && scene.step(Verb::Spend, 1).decision.allowed {
                scene = scene.after(&scene.step(Verb::Spend, 1));
                taken += 1;
            }
        }
        prop_assert!(taken <= scene.limit.max_cost());
    }

    #[test]
    fn an_unused_bucket_has_exactly_its_burst(
        scene in reached(crate::strategies::any_limit()),
        share in 0.0..1.0,
    ) {
        prop_assume!(in_time(scene).is_some());
        let mut scene = Scene { state: None, ..scene };
        let (first, max) = (scene.share(share), scene.limit.max_cost());
        for cost in [first, max - first] {
            let step = scene.step(Verb::Spend, cost);
            prop_assert!(step.decision.allowed);
            scene = scene.after(&step);
        }
        prop_assert!(!scene.step(Verb::Spend, 1).decision.allowed);
    }

    #[test]
    fn a_check_agrees_with_a_spend_and_writes_nothing(scene in any_scene(), share in 0.0..1.0) {
        let [spend, check, _] = steps(&scene, scene.share(share));
        prop_assert_eq!(spend.decision, check.decision);
        prop_assert_eq!(check.after, None);
    }

    #[test]
    fn a_cost_of_zero_never_writes(scene in any_scene()) {
        for step in steps(&scene, 0) {
            prop_assert_eq!(step.after, None);
        }
    }

    #[test]
    fn an_allowed_spend_is_stored(scene in any_scene(), share in 0.0..1.0) {
        let cost = scene.share(share);
        let step = scene.step(Verb::Spend, cost);
        prop_assert_eq!(step.after.is_some(), step.decision.allowed && cost > 0);
        // The decision describes the stored state.
        let peek = scene.after(&step).step(Verb::Check, 0).decision;
        if step.decision.allowed && later(scene, nanos(1)).is_some() {
            prop_assert_eq!(
                (peek.remaining, peek.reset_after, peek.next_token_after),
                (
                    step.decision.remaining,
                    step.decision.reset_after,
                    step.decision.next_token_after
                )
            );
        }
    }

    #[test]
    fn a_state_is_equivalent_to_none_after_its_lifetime(
        scene in reached(crate::strategies::any_limit()),
        shares in (0.0..1.0, 0.0..1.0),
        later_by in 0..1_000_000_000_i64,
    ) {
        let step = scene.step(Verb::Spend, scene.share(shares.0));
        let left = scene.after(&step);
        // A state that was written earlier, and may be overdrawn, has its own lifetime.
        if let Some(state) = step.after {
            let end = step.lifetime.end_of(state);
            for now in [end, end.saturating_add(nanos(later_by)), at(max_instant(&scene.limit))] {
                let Some(used) = in_time(left.at(now.max(left.now).max(end))) else { continue };
                let none = Scene { state: None, ..used };
                let cost = scene.share(shares.1);
                prop_assert_eq!(effects(&used, cost), effects(&none, cost));
            }
        }
    }

    #[test]
    fn a_bucket_is_full_after_reset_after(
        scene in reached(crate::strategies::any_limit()),
        shares in (0.0..1.0, 0.0..1.0),
    ) {
        let step = scene.step(Verb::Spend, scene.share(shares.0));
        if let Some(used) = later(scene.after(&step), step.decision.reset_after) {
            let none = Scene { state: None, ..used };
            let cost = scene.share(shares.1);
            prop_assert_eq!(effects(&used, cost), effects(&none, cost));
        }
    }

    #[test]
    fn a_call_that_is_allowed_earlier_is_allowed_later(
        scene in any_scene(),
        earlier in any_instant(),
        share in 0.0..1.0,
    ) {
        let cost = scene.share(share);
        let (earlier, now) = (earlier.min(scene.now), earlier.max(scene.now));
        if scene.at(earlier).step(Verb::Check, cost).decision.allowed {
            prop_assert!(scene.at(now).step(Verb::Check, cost).decision.allowed);
        }
    }

    #[test]
    fn a_spend_after_the_clock_went_back_adds_no_tokens(
        scene in any_scene(),
        back in 0.0..1.0,
        far in any::<bool>(),
        share in 0.0..1.0,
    ) {
        let reach = if far {
            scene.now
        } else {
            Timestamp::clamped(scene.step(Verb::Check, 0).decision.reset_after.get())
        };
        let earlier = Timestamp::clamped(scene.now.get() - (reach.get() as f64 * back) as i64);
        let back = scene.at(earlier);
        let with = back.after(&back.step(Verb::Spend, scene.share(share))).at(scene.now);
        let (with, without) = (with.step(Verb::Check, 0), scene.step(Verb::Check, 0));
        prop_assert!(with.decision.remaining <= without.decision.remaining);
        prop_assert!(!with.decision.allowed || without.decision.allowed);
    }

    #[test]
    fn all_numbers_are_in_range(scene in any_scene(), share in 0.0..1.0) {
        for cost in [0, 1, scene.share(share), scene.limit.max_cost()] {
            for step in steps(&scene, cost) {
                let max = match scene.limit {
                    Limit::Rate(Rate::FixedRateWindow(window)) => window.count() + window.burst(),
                    limit => limit.max_cost(),
                };
                prop_assert!((0..=max).contains(&step.decision.remaining));
                prop_assert!(!step.decision.unlimited);
                if let Some(state) = step.after {
                    prop_assert!(state.word() < 1 << 63);
                    // Later calls read the stored state, at any time.
                    for now in [Timestamp::ORIGIN, step.lifetime.end_of(state), Timestamp::MAX] {
                        steps(&Scene { state: Some(state), now, ..scene }, cost);
                    }
                }
            }
        }
    }

    #[test]
    fn a_refund_undoes_a_spend(
        scene in any_scene(),
        shares in (0.0..1.0, 0.0..1.0),
        wait in 0..10_000_000_000_i64,
    ) {
        prop_assume!(has_tokens(&scene));
        let cost = scene.share(shares.0);
        let spend = scene.step(Verb::Spend, cost);
        prop_assume!(
            spend.decision.allowed
                && spend.after.is_none_or(|state| state.instant() < Timestamp::MAX)
        );
        let spent = scene.after(&spend);
        let refund = spent.step(Verb::Refund, cost);
        let back = spent.after(&refund);
        prop_assert_eq!(refund.decision.allowed, cost > 0);
        let other = scene.share(shares.1);
        let decided = |scene: &Scene| scene.step(Verb::Spend, other).decision;
        prop_assert_eq!(decided(&back), decided(&scene));
        // The spend stays undone later, except that a window that began with it continues.
        let is_window = matches!(scene.limit, Limit::Rate(Rate::FixedWindow(_)) | Limit::Rate(Rate::FixedRateWindow(_)));
        let began = spent.state.map(State::tally_instant) != scene.state.map(State::tally_instant);
        if !(is_window && began)
            && let (Some(back), Some(scene)) = (later(back, nanos(wait)), later(scene, nanos(wait)))
        {
            prop_assert_eq!(decided(&back), decided(&scene));
        }
    }

    #[test]
    fn returning_a_charge_leaves_at_most_the_tokens_without_the_charge(
        scene in reached(any_limit()),
        shares in (0.0..1.0, 0.0..1.0),
        others in prop::collection::vec((0.0..1.0, any_wait()), 0..6),
        far in any::<bool>(),
    ) {
        // Cubed, so that other spends are often allowed too.
        let cost = scene.share(if far { shares.0 } else { shares.0 * shares.0 * shares.0 });
        let spend = scene.step(Verb::Spend, cost);
        let Some(charged) = spend.after else { return Ok(()) };
        let is_alone = others.is_empty();
        let (mut with, mut without) = (scene.after(&spend), scene);
        for (share, wait) in others {
            let cost = with.share(share * share * share);
            let step = with.step(Verb::Spend, cost);
            if step.decision.allowed {
                let other = without.step(Verb::Spend, cost);
                // The ticks that the spend started may be earlier than those without it.
                prop_assume!(other.decision.allowed || has_same_origin(&with, &without));
                prop_assert!(other.decision.allowed);
                without = without.after(&other);
            }
            with = with.after(&step);
            let now = with.now.saturating_add(wait.after(&step.decision));
            (with, without) = (with.at(now), without.at(now));
        }
        let found = with.state.expect("a state was written");
        let after = with.limit.give_back(with.cost(cost), charged, found, with.now);
        let after = after.state().map(|(state, _)| state);
        let back = Scene { state: after.or(with.state), ..with };
        // The window or the ticks that the spend started continue.
        prop_assume!(has_same_origin(&back, &without));
        let other = scene.share(shares.1);
        let peek = back.step(Verb::Check, 0).decision;
        for wait in [Nanos::ZERO, nanos(1), peek.next_token_after, peek.retry_after] {
            let (Some(back), Some(without)) = (later(back, wait), later(without, wait)) else {
                continue;
            };
            for cost in [1, other, scene.limit.max_cost()] {
                let decided = |scene: &Scene| scene.step(Verb::Check, cost).decision;
                if is_alone {
                    prop_assert_eq!(decided(&back), decided(&without));
                } else {
                    prop_assert!(!decided(&back).allowed || decided(&without).allowed);
                }
            }
        }
    }

    #[test]
    fn a_refund_never_overfills_a_bucket(scene in any_scene(), share in 0.0..1.0) {
        let cost = scene.share(share);
        let refund = scene.step(Verb::Refund, cost);
        let before = scene.step(Verb::Check, 0).decision;
        let after = scene.after(&refund).step(Verb::Check, 0).decision;
        let none = Scene { state: None, ..scene };
        prop_assert!(after.remaining >= before.remaining);
        if !matches!(scene.limit, Limit::Rate(Rate::FixedRateWindow(_))) {
            // In a fixed-rate window, `remaining` also counts past slots, of which a new window may
            // have more.
            prop_assert!(after.remaining <= none.step(Verb::Check, 0).decision.remaining);
        }
        prop_assert_eq!(refund.decision.allowed, refund.after.is_some());
        prop_assert_eq!(refund.decision.retry_after, Nanos::ZERO);
        prop_assert_eq!(
            (
                refund.decision.remaining,
                refund.decision.reset_after,
                refund.decision.next_token_after
            ),
            (after.remaining, after.reset_after, after.next_token_after)
        );
        let unused = none.step(Verb::Refund, cost);
        prop_assert_eq!((unused.after, unused.decision.allowed), (None, false));
    }

    #[test]
    fn the_next_token_is_added_at_next_token_after(
        scene in any_scene(),
        verb in any_verb(),
        share in 0.0..1.0,
    ) {
        prop_assume!(!is_impossible(&scene));
        let step = scene.step(verb, scene.share(share));
        let left = scene.after(&step);
        prop_assume!(left.state.is_none_or(|state| state.instant() < Timestamp::MAX));
        let wait = step.decision.next_token_after;
        let remaining = |scene: Scene| match scene.limit {
            Limit::Rate(Rate::FixedRateWindow(_)) => None,
            _ => Some(scene.step(Verb::Check, 0).decision.remaining),
        };
        let has_token = |scene: Scene| scene.step(Verb::Check, 1).decision.allowed;
        if wait == Nanos::ZERO {
            prop_assert_eq!(remaining(left), Some(left.limit.max_cost()), "the bucket is full");
            return Ok(());
        }
        let (early, on_time) = (later(left, nanos(wait.get() - 1)), later(left, wait));
        match scene.limit {
            Limit::Rate(Rate::TokenBucket(_)) | Limit::Rate(Rate::LeakyBucket(_)) | Limit::Slots(_) => {
                prop_assert!(early.is_none_or(|early| remaining(early) == remaining(left)));
                prop_assert!(on_time.is_none_or(|on_time| remaining(on_time) > remaining(left)));
            }
            Limit::Rate(Rate::FixedWindow(window)) => {
                prop_assert_eq!(wait, step.decision.reset_after);
                prop_assert!(early.is_none_or(|early| remaining(early) == remaining(left)));
                prop_assert!(on_time.is_none_or(|on_time| remaining(on_time) == Some(window.count())));
            }
            Limit::Rate(Rate::CalendarWindow(window)) => {
                prop_assert_eq!(wait, step.decision.reset_after);
                prop_assert!(early.is_none_or(|early| remaining(early) == remaining(left)));
                prop_assert!(on_time.is_none_or(|on_time| remaining(on_time) == Some(window.count())));
            }
            Limit::Rate(Rate::FixedRateWindow(window)) => {
                // The number of tokens that can be spent now grows by one when the slot opens, and not
                // before.
                let at_once = |scene: Scene| {
                    (0..=window.burst() + 1)
                        .rev()
                        .find(|&cost| scene.step(Verb::Check, cost).decision.allowed)
                };
                if window.burst() < 20 && has_token(left) {
                    let now = at_once(left).expect("at least one token");
                    prop_assert!(early.is_none_or(|early| at_once(early) == Some(now)));
                    let more = (now + 1).min(window.burst() + 1);
                    prop_assert!(on_time.is_none_or(|on_time| at_once(on_time) >= Some(more)));
                }
            }
            Limit::Unlimited => unreachable!("only limited limits are generated"),
        }
    }
}

proptest! {
    #![proptest_config(double_cases())]

    #[test]
    fn a_charge_equals_a_spend_if_the_tokens_are_available(scene in any_scene(), share in 0.0..1.0) {
        prop_assume!(has_tokens(&scene));
        let cost = scene.share(share);
        let spend = scene.step(Verb::Spend, cost);
        if !spend.decision.allowed || in_time(scene).is_none() {
            return Ok(());
        }
        for verb in [Verb::Charge, Verb::ChargePartial, Verb::ChargeAfter] {
            let charge = scene.step(verb, cost);
            prop_assert_eq!(charge.after, spend.after);
            let decision = Decision { retry_after: Nanos::ZERO, ..spend.decision };
            prop_assert_eq!(charge.decision, decision);
        }
    }

    #[test]
    fn an_overdrawn_bucket_denies_until_the_debt_is_repaid(
        scene in any_scene(),
        is_partial in any::<bool>(),
        share in 0.0..1.0,
    ) {
        prop_assume!(has_tokens(&scene));
        if in_time_for_debt(scene).is_none() {
            return Ok(());
        }
        let verb = if is_partial { Verb::ChargePartial } else { Verb::Charge };
        let cost = scene.share(share);
        let cost = if is_partial { cost.saturating_mul(2) } else { cost };
        let step = scene.step(verb, cost);
        if !step.decision.allowed && !is_partial || is_impossible(&scene) {
            return Ok(());
        }
        let left = scene.after(&step);
        let wait = step.decision.retry_after;
        if let Some(on_time) = later(left, wait) {
            prop_assert!(on_time.step(Verb::Check, 0).decision.allowed, "on time: {:?}", on_time);
        }
        if let Some(early) = Nanos::new(wait.get() - 1).and_then(|wait| later(left, wait)) {
            prop_assert_eq!(early.step(Verb::Check, 0).decision.retry_after, nanos(1));
            prop_assert!(!early.step(Verb::Spend, 1).decision.allowed);
        }
        let refund = left.step(Verb::Refund, cost.min(scene.limit.max_cost()));
        prop_assert!(refund.decision.allowed || step.after.is_none());
    }

    #[test]
    fn a_charge_after_the_fact_takes_nothing_from_an_overdrawn_bucket(
        scene in any_scene(),
        tokens in 0..i64::MAX,
    ) {
        prop_assume!(has_tokens(&scene));
        let charge = scene.step(Verb::ChargeAfter, tokens);
        if scene.step(Verb::Spend, 0).decision.allowed {
            prop_assert_eq!(charge, scene.step(Verb::ChargePartial, tokens));
        } else {
            prop_assert_eq!((charge.after, charge.decision.allowed), (None, false));
            let wait = scene.step(Verb::Check, 0).decision.retry_after;
            prop_assert_eq!(charge.decision.retry_after, wait);
        }
    }

    #[test]
    fn a_charge_beyond_the_maximum_debt_takes_nothing(
        scene in reached(crate::strategies::any_limit()),
        share in 0.0..1.0,
    ) {
        prop_assume!(has_tokens(&scene));
        if in_time_for_debt(scene).is_none() {
            return Ok(());
        }
        let cost = scene.share(share);
        // Charge up to the maximum debt, then charge more.
        let all = scene.limit.cost_in_parts(i64::MAX).get();
        let owing = scene.after(&scene.step(Verb::ChargePartial, all));
        let more = owing.step(Verb::ChargePartial, 1);
        prop_assert_eq!((more.after, more.decision.allowed), (None, false));
        prop_assert!(!owing.step(Verb::Check, 1).decision.allowed);
        let step = owing.step(Verb::Charge, cost);
        prop_assert_eq!(step.decision.allowed, cost == 0);
        prop_assert_eq!(step.after, None);
        if cost > 0 {
            let wait = step.decision.retry_after;
            if let Some(on_time) = later(owing, wait) {
                prop_assert!(on_time.step(Verb::Charge, cost).decision.allowed);
            }
            if let Some(early) = later(owing, nanos(wait.get() - 1)) {
                prop_assert!(!early.step(Verb::Charge, cost).decision.allowed);
            }
        }
        // The time to repay the debt corresponds to at most one burst of debt.
        let peek = owing.step(Verb::Check, 0).decision;
        let full = Scene { state: None, ..scene };
        let full = full.step(Verb::ChargePartial, all);
        prop_assert!(peek.reset_after <= full.decision.reset_after);
    }

    #[test]
    fn a_refund_undoes_a_charge(
        scene in any_scene(),
        shares in (0.0..1.0, 0.0..1.0),
    ) {
        let cost = scene.share(shares.0);
        let charge = scene.step(Verb::Charge, cost);
        if !charge.decision.allowed
            || is_impossible(&scene)
            || charge.after.is_some_and(|state| state.instant() == Timestamp::MAX)
        {
            return Ok(());
        }
        let charged = scene.after(&charge);
        let back = charged.after(&charged.step(Verb::Refund, cost));
        let other = scene.share(shares.1);
        let decided = |scene: &Scene| scene.step(Verb::Spend, other).decision;
        prop_assert_eq!(decided(&back), decided(&scene));
    }
}

/// A member of a batch: a bucket, a share of its maximum cost, its kind, and whether it is in
/// shadow mode.
type Drawn = (Scene, f64, Kind, bool);

fn any_members() -> impl Strategy<Value = Vec<Drawn>> {
    let kind = prop_oneof![
        4 => Just(Kind::Spend),
        1 => Just(Kind::Check),
        1 => Just(Kind::SpendOnly),
        1 => Just(Kind::Charge),
    ];
    prop::collection::vec((any_scene(), 0.0..1.0, kind, prop::bool::weighted(0.15)), 0..6)
}

/// Returns the members, their states and the step of each one alone, all at the instant of the first.
fn batch_of(
    drawn: &[Drawn],
    verb: Verb,
) -> (Vec<Member<'_>>, Vec<Option<State>>, Vec<Step>, Timestamp) {
    let now = drawn.first().map_or(Timestamp::ORIGIN, |(scene, ..)| scene.now);
    let members = drawn.iter().map(|(scene, share, kind, shadow)| {
        let cost = scene.cost(scene.share(*share));
        Member {
            operation: Operation { verb: kind.verb(verb), limit: &scene.limit, cost },
            kind: *kind,
            shadow: *shadow,
        }
    });
    let members: Vec<_> = members.collect();
    let states: Vec<_> = drawn.iter().map(|(scene, ..)| scene.state).collect();
    let alone =
        members.iter().zip(&states).map(|(member, &state)| member.operation.step(state, now));
    let alone = alone.collect();
    (members, states, alone, now)
}

proptest! {
    #![proptest_config(double_cases())]

    #[test]
    fn a_batch_spends_all_or_nothing(drawn in any_members()) {
        let (members, states, alone, now) = batch_of(&drawn, Verb::Spend);
        let mut steps = Vec::new();
        let allowed = batch::steps(&members, &states, now.into(), &mut steps);
        let denies = |(member, step): (&Member<'_>, &Step)| {
            let decides = matches!(member.kind, Kind::Spend | Kind::Check);
            decides && !member.shadow && !step.decision.allowed
        };
        prop_assert_eq!(allowed, !members.iter().zip(&alone).any(denies));
        for ((member, step), (alone, state)) in
            members.iter().zip(&steps).zip(alone.iter().zip(&states))
        {
            let writes = step.after;
            if member.kind == Kind::Check {
                prop_assert_eq!(writes, None);
            } else if allowed || member.kind == Kind::Charge {
                prop_assert_eq!(writes, alone.after);
            } else {
                prop_assert_eq!(writes, None);
            }
            if allowed || member.kind == Kind::Charge || !alone.decision.allowed {
                prop_assert_eq!(step.decision, alone.decision);
            } else if member.kind != Kind::Check {
                // Another member was denied: this bucket is unchanged, and could be spent
                // immediately.
                let unchanged =
                    Operation { cost: penstock::engine::cost::Cost::ZERO, ..member.operation }
                        .step(*state, now);
                let expected =
                    Decision { allowed: true, retry_after: Nanos::ZERO, ..unchanged.decision };
                prop_assert_eq!(step.decision, expected);
            }
        }
    }

    #[test]
    fn refunds_of_a_batch_are_independent(drawn in any_members()) {
        let (members, states, alone, now) = batch_of(&drawn, Verb::Refund);
        let mut steps = Vec::new();
        prop_assert!(batch::steps(&members, &states, now.into(), &mut steps));
        prop_assert_eq!(steps, alone);
    }

    #[test]
    fn the_strictest_decision_follows_the_documented_order(
        decisions in prop::collection::vec((any::<[bool; 2]>(), 0..3_i64, 0..3_i64), 0..8),
    ) {
        let decisions: Vec<(bool, Decision)> = decisions
            .into_iter()
            .map(|([decides, allowed], wait, remaining)| {
                let base = Decision::unlimited(Timestamp::ORIGIN);
                (decides, Decision { allowed, remaining, retry_after: nanos(wait), ..base })
            })
            .collect();
        let found =
            batch::strictest(decisions.iter().map(|(decides, decision)| (*decides, *decision)));
        // Computed differently: sort the deciding members by each rule, beginning with the last rule.
        let mut indexes: Vec<usize> =
            (0..decisions.len()).filter(|&index| decisions[index].0).collect();
        indexes.reverse();
        indexes.sort_by_key(|&index| decisions[index].1.remaining);
        indexes.sort_by_key(|&index| std::cmp::Reverse(decisions[index].1.retry_after));
        indexes.sort_by_key(|&index| decisions[index].1.allowed);
        prop_assert_eq!(found, indexes.first().copied());
    }
}
