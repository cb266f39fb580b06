//! When it is whose turn, of those who wait for one bucket.

use crate::clock::Clock;
use crate::engine::limit::Limit;
use crate::engine::operation::Verb;
use crate::engine::state::State;
use crate::engine::time::{Nanos, Timestamp};
use crate::limiter::{BoundLimit, Decided, Failure, Limiter};
use crate::store::Store;

/// A place in a bucket's line, or a denial.
#[derive(Debug)]
pub struct Place {
    /// Whether the place was taken.
    pub decided: Decided,
    /// The wait for the turn; if no place was taken, until one could be.
    pub wait: Nanos,
    /// How much earlier others' turns come for each token that someone before them gives back;
    /// `None` where that depends on more than the tokens.
    pub interval: Option<Nanos>,
}

/// An instant, and what a bucket remembers then.
pub type Turn = (Timestamp, State);

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Takes `cost` for somebody who waits until it is there, so that nobody else gets it.
    ///
    /// A bucket of tokens or drips is charged, as far as it can owe and remembers it. A window is
    /// not, as it would forget what it is owed: it is spent from once it has room.
    ///
    /// # Errors
    /// As [`Limiter::decide`].
    pub fn place(&self, bound: &BoundLimit, id: &str, cost: i64) -> Result<Place, Failure> {
        let canonical = bound.canonical(id)?;
        let (verb, interval) = match &bound.entry().rule_for(&canonical).limit {
            Limit::TokenBucket(bucket) => (Verb::Charge, Some(bucket.emission_interval())),
            // A drip that lets out more than was in the bucket before would let out some of the
            // charge as well: it would be had twice. So much is spent once there is room.
            Limit::LeakyBucket(bucket)
                if cost.saturating_add(bucket.drip_size()) <= bucket.size().saturating_add(1) =>
            {
                (Verb::Charge, Some(bucket.drip_rate()).filter(|_| bucket.drip_size() == 1))
            }
            Limit::LeakyBucket(_)
            | Limit::FixedWindow(_)
            | Limit::FixedRateWindow(_)
            | Limit::Unlimited => (Verb::Spend, None),
        };
        let decided = self.decide(bound, verb, &canonical, cost, None)?;
        // What is spent is had at once; its `retry_after` is that of the next one.
        // And a limit that only watches makes nobody wait.
        let is_had = decided.shadow || verb == Verb::Spend && decided.decision.allowed;
        let wait = if is_had { Nanos::ZERO } else { decided.decision.retry_after };
        Ok(Place { decided, wait, interval })
    }

    /// The turn of the last of `costs`, if each is spent as soon as it can be and nobody else
    /// spends: after the turn `after`, or from now on. `None` where no limit applies.
    ///
    /// # Errors
    /// As [`Limiter::decide`].
    pub fn turn(
        &self,
        bound: &BoundLimit,
        id: &str,
        costs: &[i64],
        after: Option<Turn>,
    ) -> Result<Option<Turn>, Failure> {
        let resolved = bound.resolve(id, 0, None)?;
        let limit = resolved.limit();
        let start = match after {
            Some(turn) => Some(turn),
            None => {
                let peek = self.decide(bound, Verb::Check, &resolved.id, 0, None)?.decision;
                limit.state_of(&peek).map(|state| (peek.now, state))
            }
        };
        Ok(start.map(|start| costs.iter().fold(start, |turn, &cost| next(limit, turn, cost))))
    }
}

/// The turn of somebody who comes after `turn`.
fn next(limit: &Limit, (now, state): Turn, cost: i64) -> Turn {
    // A limit that was lowered since may never allow what somebody waits for.
    let Ok(cost) = limit.cost(cost.clamp(0, limit.max_cost())) else { return (now, state) };
    let step = limit.spend(cost, Some(state), now);
    if step.decision.allowed {
        return (now, step.after.unwrap_or(state));
    }
    let now = now.saturating_add(step.decision.retry_after);
    let step = limit.spend(cost, step.mended.or(Some(state)), now);
    // Denied still: at the end of time, where no turn comes.
    (if step.decision.allowed { now } else { Timestamp::MAX }, step.after.unwrap_or(state))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithm::window::Anchor;
    use crate::engine::limit::Cost;

    const SECOND: i64 = Nanos::SECOND.get();

    /// The turns, in seconds, of waiters that come when all is used up at second 100.
    fn turns(limit: &Limit, costs: &[i64]) -> Vec<i64> {
        let now = Timestamp::clamped(100 * SECOND);
        let all = limit.cost(limit.max_cost()).expect("a cost");
        let state = limit.spend(all, None, now).after.expect("a state");
        let peek = limit.spend(Cost::ZERO, Some(state), now).decision;
        let mut turn = (now, limit.state_of(&peek).expect("a state"));
        let each = costs.iter().map(|&cost| {
            turn = next(limit, turn, cost);
            turn.0.get() / SECOND - 100
        });
        each.collect()
    }

    #[test]
    fn turns_come_as_the_tokens_do() {
        let tokens = Limit::token_bucket(5, 1, Nanos::from_millis(2000)).expect("a limit");
        assert_eq!(turns(&tokens, &[1, 1, 3, 5, 1]), [2, 4, 10, 20, 22]);
        let drips = Limit::leaky_bucket(4, Nanos::SECOND, 3).expect("a limit");
        assert_eq!(turns(&drips, &[1, 1, 1, 1, 3, 4]), [1, 1, 1, 2, 3, 4]);
        let window = Limit::fixed_window(3, Nanos::from_millis(10_000), Anchor::First);
        assert_eq!(turns(&window.expect("a limit"), &[1, 2, 2, 2, 1]), [10, 10, 20, 30, 30]);
        let slots = Limit::fixed_rate_window(5, Nanos::from_millis(10_000), 0, Anchor::First);
        assert_eq!(turns(&slots.expect("a limit"), &[1, 1, 1, 1, 1]), [2, 4, 6, 8, 10]);
    }
}
