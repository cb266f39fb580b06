//! What every algorithm promises, for any limit, any state and any instant.
//!
//! 1. Denied changes nothing, but that a spend mends a TAT that no call of the limit can have left.
//! 2. One nanosecond before `retry_after` the same call is denied; at it, allowed. So after a
//!    denial, and so after an allowed call, where it says when the next one like it is.
//! 3. Never more than the stated burst at one instant.
//! 4. A check agrees with a spend, and writes nothing. A cost of 0 never writes.
//! 5. From the end of its lifetime on, a state decides as none does; and so it does from
//!    `reset_after` on.
//! 6. A clock that goes back never gives tokens: what is allowed earlier would be allowed later,
//!    and a spend made earlier leaves no more for later.
//! 7. Nothing panics, passes an end or answers out of range, whatever the limit, the word and the
//!    instant.
//! 8. A refund undoes a spend, unless the bucket is full first; it never fills beyond full, and
//!    makes no bucket.
//!    Giving back a spend later, when others have spent too, returns at most what the spend still
//!    occupies: the bucket then admits no more than if the spend had never happened, and exactly as
//!    much if nothing else did.
//! 9. Up to one nanosecond before `next_token_after` nothing has come back, at it something has. A
//!    fixed window gives all back at its end; in a fixed-rate window it is the next slot.
//! 10. Several in one decision: denied, nothing is written but mended words; allowed, each is
//!     written as it would be alone; checks never. A watched limit never decides. The refunds of a
//!     batch are each on their own.
//! 11. A charge is as a spend where the bucket has it. It owes at most what a full bucket holds, and
//!     no spend is allowed, not even of nothing, until what `retry_after` says. One that cannot be
//!     owed takes nothing, and can be owed at `retry_after` and not before; in parts it takes the
//!     most that can be. A refund undoes it.
//! 12. What a peek tells of a bucket is enough to decide as it does; of one that is overdrawn, at
//!     least as strictly.
//! 13. The strictest is the denied one, then that with the longest wait, then the fewest remaining,
//!     then the last.
//!
//! What is true of each algorithm at an instant of its own (a phase per key, the three anchors, a
//! size after its factor) holds because limits are drawn with all of them: `strategies` says how.

use penstock::engine::algorithm::Step;
use penstock::engine::batch::{self, Kind, Member};
use penstock::engine::decision::Decision;
use penstock::engine::limit::Limit;
use penstock::engine::operation::{Operation, Verb};
use penstock::engine::state::State;
use penstock::engine::time::{Nanos, Timestamp};
use proptest::prelude::*;

use crate::stores::at;
use crate::strategies::{
    Scene, any_instant, any_limit, any_scene, any_verb, any_wait, nanos, reached,
};

/// The end of the time that a limit can tell: words with a tally end in the year 2248, and a token
/// bucket's TAT must stay below 2^63 ns.
fn end_of_time(limit: &Limit) -> i64 {
    match limit {
        Limit::TokenBucket(bucket) => i64::MAX - bucket.burst_offset().get(),
        _ => State::MAX_INSTANT.get(),
    }
}

/// A bucket at a time that its limit can tell.
fn in_time(scene: Scene) -> Option<Scene> {
    (scene.now.get() <= end_of_time(&scene.limit)).then_some(scene)
}

/// Later by so much, where the limit still follows the clock then.
fn later(scene: Scene, by: Nanos) -> Option<Scene> {
    in_time(scene.at(at(scene.now.get().checked_add(by.get())?)))
}

/// A bucket that has the time to make good all that it can owe, and as much again.
fn in_time_to_owe(scene: Scene) -> Option<Scene> {
    let all = scene.limit.cost_in_parts(i64::MAX).get();
    let owed = Scene { state: None, ..scene }.step(Verb::ChargePartly, all).decision.reset_after;
    later(later(scene, owed)?, owed).map(|_| scene)
}

/// Whether the state is one that no call of the limit at this instant, or before, can have left.
fn is_beyond_belief(scene: &Scene) -> bool {
    match (&scene.limit, scene.state) {
        (Limit::TokenBucket(bucket), Some(state)) => {
            let believed =
                i128::from(scene.now.get()) + 2 * i128::from(bucket.burst_offset().get());
            i128::from(state.instant().get()) > believed
        }
        _ => false,
    }
}

/// Twice the cases that the environment asks for: there are several algorithms to draw from.
fn twice_as_many() -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig { cases: 2 * config.cases, ..config }
}

/// Whether the windows, or the ticks, of two states of one bucket began at the same instant.
fn has_same_origin(one: &Scene, other: &Scene) -> bool {
    let origin = |scene: &Scene| match (scene.state, scene.limit) {
        (None, _) => None,
        (Some(state), Limit::LeakyBucket(bucket)) => {
            Some(state.tally_instant().get() % bucket.drip_rate().get())
        }
        (Some(state), _) => Some(state.tally_instant().get()),
    };
    origin(one) == origin(other) || matches!(one.limit, Limit::TokenBucket(_))
}

/// All verbs with a cost, on a bucket.
fn answers(scene: &Scene, cost: i64) -> [Step; 3] {
    [Verb::Spend, Verb::Check, Verb::Refund].map(|verb| scene.step(verb, cost))
}

proptest! {
    #![proptest_config(twice_as_many())]

    #[test]
    fn denied_changes_nothing(scene in any_scene(), share in 0.0..1.0) {
        let cost = scene.share(share);
        let step = scene.step(Verb::Spend, cost);
        if !step.decision.allowed {
            prop_assert_eq!(step.after, None);
            prop_assert_eq!(step.mended.is_some(), is_beyond_belief(&scene) && cost > 0);
        } else {
            prop_assert_eq!(step.mended, None);
            prop_assert!(!is_beyond_belief(&scene));
        }
    }

    #[test]
    fn early_is_denied_and_on_time_is_allowed(
        scene in any_scene(),
        share in 0.0..1.0,
        one in any::<bool>(),
    ) {
        let cost = if one { scene.share(share).min(1) } else { scene.share(share) };
        // A peek mends nothing, so nothing can be promised after a word beyond belief.
        prop_assume!(cost > 0 || !is_beyond_belief(&scene));
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
    fn never_more_than_the_burst_at_one_instant(
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
            // Whatever is left is taken, so that the limit itself is met.
            while scene.limit.max_cost() < 50 && scene.step(Verb::Spend, 1).decision.allowed {
                scene = scene.after(&scene.step(Verb::Spend, 1));
                taken += 1;
            }
        }
        prop_assert!(taken <= scene.limit.max_cost());
    }

    #[test]
    fn a_bucket_never_used_holds_exactly_the_burst(
        scene in reached(crate::strategies::any_limit()),
        share in 0.0..1.0,
    ) {
        prop_assume!(in_time(scene).is_some());
        let mut scene = Scene { state: None, ..scene };
        let (first, most) = (scene.share(share), scene.limit.max_cost());
        for cost in [first, most - first] {
            let step = scene.step(Verb::Spend, cost);
            prop_assert!(step.decision.allowed);
            scene = scene.after(&step);
        }
        prop_assert!(!scene.step(Verb::Spend, 1).decision.allowed);
    }

    #[test]
    fn a_check_agrees_with_a_spend_and_writes_nothing(scene in any_scene(), share in 0.0..1.0) {
        let [spend, check, _] = answers(&scene, scene.share(share));
        prop_assert_eq!(spend.decision, check.decision);
        prop_assert_eq!((check.after, check.mended), (None, None));
    }

    #[test]
    fn a_cost_of_nothing_never_writes(scene in any_scene()) {
        for step in answers(&scene, 0) {
            prop_assert_eq!((step.after, step.mended), (None, None));
        }
    }

    #[test]
    fn a_spend_of_something_is_kept(scene in any_scene(), share in 0.0..1.0) {
        let cost = scene.share(share);
        let step = scene.step(Verb::Spend, cost);
        prop_assert_eq!(step.after.is_some(), step.decision.allowed && cost > 0);
        // The numbers of the answer are those of what is kept.
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
    fn from_the_end_of_its_lifetime_a_state_decides_as_none(
        scene in reached(crate::strategies::any_limit()),
        shares in (0.0..1.0, 0.0..1.0),
        after_that in 0..1_000_000_000_i64,
    ) {
        let step = scene.step(Verb::Spend, scene.share(shares.0));
        let left = scene.after(&step);
        // What was written before, and may be overdrawn, was written with a lifetime of its own.
        if let Some(state) = step.after.or(step.mended) {
            let end = step.lifetime.end_of(state);
            for now in [end, end.saturating_add(nanos(after_that)), at(end_of_time(&scene.limit))] {
                let Some(used) = in_time(left.at(now.max(left.now).max(end))) else { continue };
                let none = Scene { state: None, ..used };
                let cost = scene.share(shares.1);
                prop_assert_eq!(answers(&used, cost), answers(&none, cost));
            }
        }
    }

    #[test]
    fn from_reset_after_on_a_bucket_is_as_never_used(
        scene in reached(crate::strategies::any_limit()),
        shares in (0.0..1.0, 0.0..1.0),
    ) {
        let step = scene.step(Verb::Spend, scene.share(shares.0));
        if let Some(used) = later(scene.after(&step), step.decision.reset_after) {
            let none = Scene { state: None, ..used };
            let cost = scene.share(shares.1);
            prop_assert_eq!(answers(&used, cost), answers(&none, cost));
        }
    }

    #[test]
    fn what_is_allowed_earlier_would_be_allowed_later(
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
    fn a_spend_with_the_clock_set_back_leaves_no_more_for_later(
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
        // A TAT so far ahead of the earlier clock is not believed, so that a stepped clock locks
        // nobody out.
        prop_assume!(!is_beyond_belief(&back));
        let with = back.after(&back.step(Verb::Spend, scene.share(share))).at(scene.now);
        let (with, without) = (with.step(Verb::Check, 0), scene.step(Verb::Check, 0));
        prop_assert!(with.decision.remaining <= without.decision.remaining);
        prop_assert!(!with.decision.allowed || without.decision.allowed);
    }

    #[test]
    fn no_answer_is_out_of_range(scene in any_scene(), share in 0.0..1.0) {
        for cost in [0, 1, scene.share(share), scene.limit.max_cost()] {
            for step in answers(&scene, cost) {
                let most = match scene.limit {
                    Limit::FixedRateWindow(window) => window.count() + window.burst(),
                    limit => limit.max_cost(),
                };
                prop_assert!((0..=most).contains(&step.decision.remaining));
                prop_assert!(!step.decision.unlimited);
                for state in [step.after, step.mended].into_iter().flatten() {
                    prop_assert!(state.word() < 1 << 63);
                    // Later calls meet what is kept, at any time.
                    for now in [Timestamp::ORIGIN, step.lifetime.end_of(state), Timestamp::MAX] {
                        answers(&Scene { state: Some(state), now, ..scene }, cost);
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
        // And so it stays; but a window that began with the spend goes on.
        let is_window = matches!(scene.limit, Limit::FixedWindow(_) | Limit::FixedRateWindow(_));
        let began = spent.state.map(State::tally_instant) != scene.state.map(State::tally_instant);
        if !(is_window && began)
            && let (Some(back), Some(scene)) = (later(back, nanos(wait)), later(scene, nanos(wait)))
        {
            prop_assert_eq!(decided(&back), decided(&scene));
        }
    }

    #[test]
    fn a_spend_given_back_leaves_no_more_than_if_it_had_not_happened(
        scene in reached(any_limit()),
        shares in (0.0..1.0, 0.0..1.0),
        others in prop::collection::vec((0.0..1.0, any_wait()), 0..6),
        far in any::<bool>(),
    ) {
        // Cubed, so that the spends of others often fit beside it.
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
                prop_assert!(other.decision.allowed);
                without = without.after(&other);
            }
            with = with.after(&step);
            let now = with.now.saturating_add(wait.after(&step.decision));
            (with, without) = (with.at(now), without.at(now));
        }
        let found = with.state.expect("a state was written");
        let after = with.limit.give_back(with.cost(cost), charged, found, with.now);
        let back = Scene { state: after.or(with.state), ..with };
        // The window or the ticks that the spend started stay.
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
    fn a_refund_never_fills_beyond_full(scene in any_scene(), share in 0.0..1.0) {
        let cost = scene.share(share);
        let refund = scene.step(Verb::Refund, cost);
        let before = scene.step(Verb::Check, 0).decision;
        let after = scene.after(&refund).step(Verb::Check, 0).decision;
        let none = Scene { state: None, ..scene };
        prop_assert!(after.remaining >= before.remaining);
        if !matches!(scene.limit, Limit::FixedRateWindow(_)) {
            // (In a fixed-rate window `remaining` also counts the slots that went by, of which a
            // new window may have more.)
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
    fn the_next_token_comes_when_it_is_told(
        scene in any_scene(),
        verb in any_verb(),
        share in 0.0..1.0,
    ) {
        prop_assume!(!is_beyond_belief(&scene));
        let step = scene.step(verb, scene.share(share));
        let left = scene.after(&step);
        prop_assume!(left.state.is_none_or(|state| state.instant() < Timestamp::MAX));
        let told = step.decision.next_token_after;
        let holds = |scene: Scene| match scene.limit {
            Limit::FixedRateWindow(_) => None,
            _ => Some(scene.step(Verb::Check, 0).decision.remaining),
        };
        let first_that_fits = |scene: Scene| scene.step(Verb::Check, 1).decision.allowed;
        if told == Nanos::ZERO {
            prop_assert_eq!(holds(left), Some(left.limit.max_cost()), "none is to come");
            return Ok(());
        }
        let (early, on_time) = (later(left, nanos(told.get() - 1)), later(left, told));
        match scene.limit {
            Limit::TokenBucket(_) | Limit::LeakyBucket(_) => {
                prop_assert!(early.is_none_or(|early| holds(early) == holds(left)));
                prop_assert!(on_time.is_none_or(|on_time| holds(on_time) > holds(left)));
            }
            Limit::FixedWindow(window) => {
                prop_assert_eq!(told, step.decision.reset_after);
                prop_assert!(early.is_none_or(|early| holds(early) == holds(left)));
                prop_assert!(on_time.is_none_or(|on_time| holds(on_time) == Some(window.count())));
            }
            Limit::FixedRateWindow(window) => {
                // What can be spent at once, if less than all of it, grows by one as the slot
                // opens, and not before.
                let at_once = |scene: Scene| {
                    (0..=window.burst() + 1)
                        .rev()
                        .find(|&cost| scene.step(Verb::Check, cost).decision.allowed)
                };
                if window.burst() < 20 && first_that_fits(left) {
                    let now = at_once(left).expect("one fits");
                    prop_assert!(early.is_none_or(|early| at_once(early) == Some(now)));
                    let more = (now + 1).min(window.burst() + 1);
                    prop_assert!(on_time.is_none_or(|on_time| at_once(on_time) >= Some(more)));
                }
            }
            Limit::Unlimited => unreachable!("a limit is drawn"),
        }
    }
}

proptest! {
    #![proptest_config(twice_as_many())]

    #[test]
    fn a_charge_is_as_a_spend_where_the_bucket_has_it(scene in any_scene(), share in 0.0..1.0) {
        let cost = scene.share(share);
        let spend = scene.step(Verb::Spend, cost);
        if !spend.decision.allowed || in_time(scene).is_none() {
            return Ok(());
        }
        for verb in [Verb::Charge, Verb::ChargePartly] {
            let charge = scene.step(verb, cost);
            prop_assert_eq!((charge.after, charge.mended), (spend.after, None));
            let decision = Decision { retry_after: Nanos::ZERO, ..spend.decision };
            prop_assert_eq!(charge.decision, decision);
        }
    }

    #[test]
    fn an_overdrawn_bucket_denies_until_the_charge_is_made_good(
        scene in any_scene(),
        partly in any::<bool>(),
        share in 0.0..1.0,
    ) {
        if in_time_to_owe(scene).is_none() {
            return Ok(());
        }
        let verb = if partly { Verb::ChargePartly } else { Verb::Charge };
        let cost = if partly { scene.share(share).saturating_mul(2) } else { scene.share(share) };
        let step = scene.step(verb, cost);
        if !step.decision.allowed && !partly || is_beyond_belief(&scene) {
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
    fn a_charge_that_cannot_be_owed_takes_nothing_until_it_can(
        scene in reached(crate::strategies::any_limit()),
        share in 0.0..1.0,
    ) {
        if in_time_to_owe(scene).is_none() {
            return Ok(());
        }
        let cost = scene.share(share);
        // Owe as much as can be, then ask for more.
        let all = scene.limit.cost_in_parts(i64::MAX).get();
        let owing = scene.after(&scene.step(Verb::ChargePartly, all));
        let more = owing.step(Verb::ChargePartly, 1);
        prop_assert_eq!((more.after, more.decision.allowed), (None, false));
        prop_assert!(!owing.step(Verb::Check, 1).decision.allowed);
        let step = owing.step(Verb::Charge, cost);
        prop_assert_eq!(step.decision.allowed, cost == 0);
        prop_assert_eq!((step.after, step.mended), (None, None));
        if cost > 0 {
            let wait = step.decision.retry_after;
            if let Some(on_time) = later(owing, wait) {
                prop_assert!(on_time.step(Verb::Charge, cost).decision.allowed);
            }
            if let Some(early) = later(owing, nanos(wait.get() - 1)) {
                prop_assert!(!early.step(Verb::Charge, cost).decision.allowed);
            }
        }
        // What it owes is at most what a full one holds: so long does it take to be made good.
        let peek = owing.step(Verb::Check, 0).decision;
        let full = Scene { state: None, ..scene };
        let full = full.step(Verb::ChargePartly, all);
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
            || is_beyond_belief(&scene)
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

    #[test]
    fn a_peek_tells_enough_to_decide(
        scene in reached(crate::strategies::any_limit()),
        wait in 0..10_000_000_000_i64,
        shares in (0.0..1.0, 0.0..1.0),
    ) {
        let peek = scene.step(Verb::Check, 0).decision;
        prop_assume!(later(scene, peek.reset_after).is_some());
        let told = Scene { state: scene.limit.state_of(&peek), ..scene };
        // A window that begins with the first request has not begun: that it will, no peek tells.
        let unused = peek == Scene { state: None, ..scene }.step(Verb::Check, 0).decision;
        for wait in [0, wait, peek.retry_after.get(), peek.next_token_after.get()] {
            let (Some(scene), Some(told)) = (later(scene, nanos(wait)), later(told, nanos(wait)))
            else {
                continue;
            };
            if unused && wait > 0 {
                continue;
            }
            let cost = scene.share(shares.0 * shares.1);
            let decided = |scene: Scene| scene.step(Verb::Spend, cost).decision;
            if peek.allowed {
                prop_assert_eq!(decided(told), decided(scene));
            } else {
                prop_assert!(decided(told).retry_after >= decided(scene).retry_after);
                prop_assert!(decided(told).allowed <= decided(scene).allowed);
            }
        }
    }
}

/// A member of a batch: a bucket, a share of its most, its kind, whether it is watched.
type Drawn = (Scene, f64, Kind, bool);

fn any_members() -> impl Strategy<Value = Vec<Drawn>> {
    let kind =
        prop_oneof![4 => Just(Kind::Spend), 1 => Just(Kind::Check), 1 => Just(Kind::SpendOnly)];
    prop::collection::vec((any_scene(), 0.0..1.0, kind, prop::bool::weighted(0.15)), 0..6)
}

/// The members, their states and what each would do alone, all at the instant of the first.
fn together(
    drawn: &[Drawn],
    verb: Verb,
) -> (Vec<Member<'_>>, Vec<Option<State>>, Vec<Step>, Timestamp) {
    let now = drawn.first().map_or(Timestamp::ORIGIN, |(scene, ..)| scene.now);
    let members = drawn.iter().map(|(scene, share, kind, shadow)| {
        let cost = scene.cost(scene.share(*share));
        Member {
            operation: Operation { verb, limit: &scene.limit, cost },
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
    #![proptest_config(twice_as_many())]

    #[test]
    fn several_are_spent_all_or_nothing(drawn in any_members()) {
        let (members, states, alone, now) = together(&drawn, Verb::Spend);
        let mut steps = Vec::new();
        let allowed = batch::spend(&members, &states, now, &mut steps);
        let denies = |(member, step): (&Member<'_>, &Step)| {
            member.kind != Kind::SpendOnly && !member.shadow && !step.decision.allowed
        };
        prop_assert_eq!(allowed, !members.iter().zip(&alone).any(denies));
        for ((member, step), (alone, state)) in
            members.iter().zip(&steps).zip(alone.iter().zip(&states))
        {
            let writes = (step.after, step.mended);
            if member.kind == Kind::Check {
                prop_assert_eq!(writes, (None, None));
            } else if allowed {
                prop_assert_eq!(writes, (alone.after, alone.mended));
            } else {
                prop_assert_eq!(writes, (None, alone.mended));
            }
            if allowed || !alone.decision.allowed {
                prop_assert_eq!(step.decision, alone.decision);
            } else if member.kind != Kind::Check {
                // Skipped because another was denied: its bucket as it stands, and it could be
                // asked again at once.
                let stands =
                    Operation { cost: penstock::engine::limit::Cost::ZERO, ..member.operation }
                        .step(*state, now);
                let expected =
                    Decision { allowed: true, retry_after: Nanos::ZERO, ..stands.decision };
                prop_assert_eq!(step.decision, expected);
            }
        }
    }

    #[test]
    fn several_are_refunded_each_on_its_own(drawn in any_members()) {
        let (members, states, alone, now) = together(&drawn, Verb::Refund);
        let mut steps = Vec::new();
        batch::refund(&members, &states, now, &mut steps);
        prop_assert_eq!(steps, alone);
    }

    #[test]
    fn the_strictest_is_first_of_all_denied(
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
            batch::strictest(decisions.iter().map(|(decides, decision)| (*decides, decision)));
        // Written differently: sort the deciding ones by each rule in turn, the last rule first.
        let mut places: Vec<usize> =
            (0..decisions.len()).filter(|&place| decisions[place].0).collect();
        places.reverse();
        places.sort_by_key(|&place| decisions[place].1.remaining);
        places.sort_by_key(|&place| std::cmp::Reverse(decisions[place].1.retry_after));
        places.sort_by_key(|&place| decisions[place].1.allowed);
        prop_assert_eq!(found, places.first().copied());
    }
}
