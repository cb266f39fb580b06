//! Windows: what the fixed window, the fixed-rate window and the calendar window share.

use sha2::{Digest, Sha256};

use crate::engine::algorithm::description::{Description, FieldValue, part, times};
use crate::engine::algorithm::parameter::{Parameter, ParameterKind, Values};
use crate::engine::algorithm::{Algorithm, Overdraft, RateAlgorithm};
use crate::engine::cost::Cost;
use crate::engine::decision::Decision;
use crate::engine::limit_error::{LimitError, MAX_PERIOD};
use crate::engine::state::{Lifetime, State, Write};
use crate::engine::time::{Nanos, Timeline, Timestamp};
use crate::engine::verb::{Effect, Verb};

/// Where a window starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Anchor {
    /// At a bucket's first request, so that windows do not all start at the same instant.
    First,
    /// At multiples of the period since the clock's origin, plus a phase.
    Aligned(Phase),
}

/// The phase of aligned windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// A time below the period, the same for all buckets.
    Fixed(Nanos),
    /// A time that depends on the bucket's key, so that the windows of different buckets are spread
    /// out.
    PerKey,
}

impl Anchor {
    pub(super) const PARAMETER: Parameter =
        Parameter::optional("anchor", ParameterKind::Word(&["first", "aligned"]));

    /// Returns the anchor with this phase, from the values of a limit.
    pub(super) fn build(values: &Values) -> Result<Anchor, LimitError> {
        let phase = values.get("phase").map(|phase| match phase {
            FieldValue::Time(phase) => Phase::Fixed(phase),
            _ => Phase::PerKey,
        });
        match (values.get("anchor"), phase) {
            (Some("aligned"), phase) => {
                Ok(Anchor::Aligned(phase.unwrap_or(Phase::Fixed(Nanos::ZERO))))
            }
            (_, None) => Ok(Anchor::First),
            (_, Some(_)) => Err(LimitError::PhaseWithoutAlignment),
        }
    }
}

impl Phase {
    pub(super) const PARAMETER: Parameter =
        Parameter::optional("phase", ParameterKind::TimeOr("per-key"));
}

/// The period of the windows and where they start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    period: Nanos,
    anchor: Anchor,
    lifetime: Lifetime,
}

/// The open window of a bucket at one instant.
pub(crate) struct OpenWindow {
    /// Identifies it in a state: its start in nanoseconds (negative only for an aligned window around the
    /// clock's origin), or the end of a calendar window in seconds.
    pub mark: i64,
    /// Tokens used in it.
    pub used: i64,
    /// Time since its start; negative if the clock went back. Only slots need it.
    pub elapsed: i64,
    /// Time until its end.
    pub left: Nanos,
}

/// When windows begin and end, and how a state stores one with the tokens used in it.
pub(crate) trait WindowSeries {
    /// The latest instant to which time advances.
    const LATEST: Timestamp;
    /// The most tokens in a state.
    const MAX_USED: i64;

    /// Returns the window of a call at `now`: the stored one, or a new one if that has ended.
    fn open(&self, found: Option<State>, now: Timestamp) -> OpenWindow;

    /// Returns the state that stores a window.
    fn state(mark: i64, used: i64) -> State;

    /// Returns the mark of a stored window, and the tokens used in it.
    fn mark_and_used(state: State) -> (i64, i64);

    /// Returns how long a store must keep a state.
    fn lifetime(&self) -> Lifetime;
}

/// The rules of one kind of window.
///
/// A window may have slots, which open one after the other. A slot that is forfeited when the next
/// one opens counts as used.
pub(crate) trait WindowRules: Description {
    type Series: WindowSeries;

    fn series(&self) -> &Self::Series;

    /// Returns the number of requests admitted at one instant, not counting forfeited slots.
    fn at_once(&self) -> i64;

    /// See [`Algorithm::keeping`].
    fn keeping(self, keep: i64) -> Self
    where
        Self: Sized;

    /// Returns the index of the open slot, which is the number of forfeited slots.
    fn slot(&self, _window: &OpenWindow) -> i64 {
        0
    }

    /// Returns the wait until `slot` opens, 0 if it is open, or the time until the window's end if
    /// it has no such slot.
    fn wait_for(&self, _slot: i64, window: &OpenWindow) -> Nanos {
        window.left
    }

    /// Returns the window of a call, with forfeited slots counted as used, and the open slot.
    #[inline]
    fn open(&self, state: Option<State>, now: Timestamp) -> (OpenWindow, i64) {
        let mut window = self.series().open(state, now.min(Self::Series::LATEST));
        let slot = self.slot(&window);
        window.used = window.used.max(slot);
        (window, slot)
    }

    /// Returns the write of a window if something changes.
    #[inline]
    fn put_if(&self, changes: bool, window: &OpenWindow) -> Write {
        if !changes {
            return Write::Keep;
        }
        let after = Self::Series::state(window.mark, window.used);
        Write::Put(after, self.series().lifetime())
    }
}

impl<W: WindowRules> Algorithm for W {
    #[inline]
    fn max_cost(&self) -> i64 {
        self.at_once()
    }

    fn keeping(self, keep: i64) -> W {
        WindowRules::keeping(self, keep)
    }

    #[inline]
    fn spend(&self, cost: Cost, found: Option<State>, now: Timestamp) -> (bool, Write) {
        let (mut window, slot) = self.open(found, now);
        window.used += cost.get();
        let allowed = window.used <= slot + self.at_once();
        (allowed, self.put_if(allowed && cost > Cost::ZERO, &window))
    }

    fn numbers(
        &self,
        verb: Verb,
        cost: Cost,
        allowed: bool,
        after: Option<State>,
        now: Timestamp,
    ) -> Decision {
        let now = now.min(W::Series::LATEST);
        let (window, slot) = self.open(after, now);
        let wait = |used: i64| match used <= slot + self.at_once() {
            true => Nanos::ZERO,
            false => self.wait_for(used - self.at_once(), &window),
        };
        Decision {
            allowed,
            unlimited: false,
            remaining: (self.capacity() - window.used).max(0),
            retry_after: match verb.effect() {
                Effect::Take | Effect::Look => wait(window.used + cost.get()),
                Effect::Return => Nanos::ZERO,
                Effect::Charge if verb == Verb::Charge && !allowed => window.left,
                Effect::Charge => wait(window.used),
            },
            reset_after: window.left,
            next_token_after: self.wait_for(slot + 1, &window),
            now,
        }
    }

    fn lifetime(&self, _: State) -> Lifetime {
        self.series().lifetime()
    }
}

impl<W: WindowRules> RateAlgorithm for W {
    fn refund(&self, cost: Cost, found: Option<State>, now: Timestamp) -> (bool, Write) {
        let (mut window, slot) = self.open(found, now);
        // A refund does not return forfeited slots.
        let given_back = cost.get().min(window.used - slot);
        window.used -= given_back;
        (given_back > 0, self.put_if(given_back > 0, &window))
    }

    fn charge(
        &self,
        cost: Cost,
        overdraft: Overdraft,
        found: Option<State>,
        now: Timestamp,
    ) -> (bool, Write) {
        let (mut window, _) = self.open(found, now);
        let most = self.capacity().saturating_mul(2).min(W::Series::MAX_USED);
        let taken = overdraft.taken(cost.get(), most - window.used);
        window.used += taken;
        (taken == cost.get(), self.put_if(taken > 0, &window))
    }

    fn give_back(&self, cost: Cost, charged: State, found: State, now: Timestamp) -> Option<State> {
        let window = self.series().open(Some(found), now.min(W::Series::LATEST));
        let (mark, used) = W::Series::mark_and_used(charged);
        // Without the spend, slots that have opened since would have been forfeited.
        let left = cost.get().min(used - self.slot(&window)).max(0);
        let after = W::Series::state(window.mark, (window.used - left).max(0));
        let is_same = W::Series::mark_and_used(after).0 == mark;
        Some(after).filter(|&after| is_same && after != found)
    }
}

impl Window {
    pub(crate) fn new(period: Nanos, anchor: Anchor) -> Result<Window, LimitError> {
        let whole = |field, found: Nanos| {
            if found.is_whole_millis() {
                Ok(())
            } else {
                Err(LimitError::PartOfMillisecond { field, found })
            }
        };
        if period == Nanos::ZERO {
            return Err(LimitError::NoTime { field: "period" });
        }
        whole("period", period)?;
        if period > MAX_PERIOD {
            return Err(LimitError::TooLong { field: "period", found: period });
        }
        if let Anchor::Aligned(Phase::Fixed(phase)) = anchor {
            whole("phase", phase)?;
            if phase >= period {
                return Err(LimitError::PhaseTooLong { found: phase, period });
            }
        }
        let timeline = match anchor {
            Anchor::First => Timeline::Steady,
            Anchor::Aligned(_) => Timeline::Wall,
        };
        Ok(Window { period, anchor, lifetime: Lifetime::of_tally(period).on(timeline) })
    }

    /// The length of a window.
    pub const fn period(&self) -> Nanos {
        self.period
    }

    /// Where windows start.
    pub const fn anchor(&self) -> Anchor {
        self.anchor
    }

    /// The clock that the windows follow.
    #[inline(always)]
    pub const fn timeline(&self) -> Timeline {
        self.lifetime.timeline()
    }

    #[inline]
    pub(crate) fn is_per_key(&self) -> bool {
        self.anchor == Anchor::Aligned(Phase::PerKey)
    }

    pub(crate) fn for_key(&self, key: &str) -> Window {
        if !self.is_per_key() {
            return *self;
        }
        let digest = Sha256::digest(key.as_bytes());
        let first =
            digest.iter().take(8).fold(0, |number: u64, &byte| number << 8 | u64::from(byte));
        let phase = Nanos::from_millis(first % self.period.millis());
        Window { anchor: Anchor::Aligned(Phase::Fixed(phase)), ..*self }
    }

    fn phase(&self) -> Option<i64> {
        match self.anchor {
            Anchor::First => None,
            Anchor::Aligned(Phase::Fixed(phase)) => Some(phase.get()),
            // Callers replace it with `for_key` first; without a key there is no phase.
            Anchor::Aligned(Phase::PerKey) => Some(0),
        }
    }

    /// Returns the period and, unless it is the default, the anchor, as in a limits file.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&'static str, FieldValue)> {
        let (aligned, phase) = match self.anchor {
            Anchor::First => (None, None),
            Anchor::Aligned(Phase::Fixed(Nanos::ZERO)) => (Some("aligned"), None),
            Anchor::Aligned(Phase::Fixed(phase)) => {
                (Some("aligned"), Some(FieldValue::Time(phase)))
            }
            Anchor::Aligned(Phase::PerKey) => (Some("aligned"), Some(FieldValue::Word("per-key"))),
        };
        let anchor = aligned.map(|word| ("anchor", FieldValue::Word(word)));
        let phase = phase.map(|phase| ("phase", phase));
        [Some(("period", FieldValue::Time(self.period))), anchor, phase].into_iter().flatten()
    }

    /// Returns the period and the phase in milliseconds for a script: the phase is below 0 if windows
    /// start at the first request.
    pub(super) fn period_and_phase(&self) -> (i64, i64) {
        let phase = self.phase().map_or(-1, |phase| phase / 1_000_000);
        (self.period.millis().cast_signed(), phase)
    }

    /// Returns how many windows fit into an interval, and the rest.
    pub(super) fn divide(&self, interval: Nanos) -> (i64, i64) {
        (interval.get() / self.period.get(), interval.get() % self.period.get())
    }

    /// Returns whether an interval with this rest can only begin in a window that an earlier
    /// request opened. Windows start at whole milliseconds, so one that is opened within the
    /// interval may have started up to 1 ms before it.
    pub(super) fn is_opened_before(&self, rest: i64) -> bool {
        self.anchor == Anchor::First && self.period.get() - rest >= 1_000_000
    }

    /// Returns the count and period of a share: fewer requests, or one per longer window.
    pub(super) fn share(&self, count: i64, processes: i64) -> Result<(i64, Nanos), LimitError> {
        if count >= processes {
            return Ok((part(count, processes), self.period));
        }
        let longer = times("period", self.period, processes, count)?;
        let millis = longer.get().saturating_add(999_999) / 1_000_000;
        Ok((1, Nanos::from_millis(millis.unsigned_abs())))
    }
}

impl WindowSeries for Window {
    const LATEST: Timestamp = State::MAX_INSTANT;
    const MAX_USED: i64 = State::MAX_TALLY as i64;

    #[inline]
    fn open(&self, found: Option<State>, now: Timestamp) -> OpenWindow {
        let period = self.period.get();
        if let Some(state) = found {
            let stored = state.tally_instant().get();
            let start = match self.phase() {
                // A window that started before the clock's origin is stored as starting at it. No
                // other window with a phase can start there.
                Some(phase) if stored == 0 && phase > 0 => phase - period,
                _ => stored,
            };
            // Computed from the elapsed time, because the end may exceed the maximum timestamp.
            let elapsed = now.get().saturating_sub(start);
            let left = period.saturating_sub(elapsed);
            if left > 0 {
                let used = state.tally() as i64;
                return OpenWindow { mark: start, used, elapsed, left: Nanos::clamped(left) };
            }
        }
        let elapsed = match self.phase() {
            None => now.get() % 1_000_000,
            Some(phase) => (now.get() - phase).rem_euclid(period),
        };
        OpenWindow {
            mark: now.get() - elapsed,
            used: 0,
            elapsed,
            left: Nanos::clamped(period - elapsed),
        }
    }

    fn state(mark: i64, used: i64) -> State {
        State::from_tally(Timestamp::clamped(mark), used as u64)
    }

    fn mark_and_used(state: State) -> (i64, i64) {
        (state.tally_instant().get(), state.tally() as i64)
    }

    #[inline]
    fn lifetime(&self) -> Lifetime {
        self.lifetime
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: i64 = 1_000_000;

    fn window(millis: u64, anchor: Anchor) -> Window {
        Window::new(Nanos::from_millis(millis), anchor).expect("a window")
    }

    #[test]
    fn a_phase_per_key_depends_only_on_the_key() {
        let window = window(60_000, Anchor::Aligned(Phase::PerKey));
        // The first 8 bytes of the key's SHA-256, modulo 60,000.
        for (key, millis) in [("Calls:someone", 12_034), ("6:12345678", 57_091)] {
            let phase = Phase::Fixed(Nanos::from_millis(millis));
            assert_eq!(window.for_key(key).anchor(), Anchor::Aligned(phase), "{key}");
        }
        let first = self::window(60_000, Anchor::First);
        assert_eq!(first.for_key("6:12345678"), first);
    }

    #[test]
    fn a_phase_is_below_the_period_and_in_whole_milliseconds() {
        let made = |phase: i64| {
            let phase = Nanos::clamped(phase);
            Window::new(Nanos::SECOND, Anchor::Aligned(Phase::Fixed(phase)))
        };
        assert!(made(999 * MILLI).is_ok());
        assert!(matches!(made(1000 * MILLI), Err(LimitError::PhaseTooLong { .. })));
        assert!(matches!(made(MILLI + 1), Err(LimitError::PartOfMillisecond { .. })));
    }

    #[test]
    fn a_window_around_the_origin_is_stored() {
        let phase = Phase::Fixed(Nanos::from_millis(300));
        let window = window(1000, Anchor::Aligned(phase));
        let new = window.open(None, Timestamp::clamped(100 * MILLI));
        assert_eq!((new.mark, new.elapsed), (-700 * MILLI, 800 * MILLI));
        let kept = Some(Window::state(new.mark, 5));
        for (millis, used, start) in [(100, 5, -700), (299, 5, -700), (300, 0, 300)] {
            let found = window.open(kept, Timestamp::clamped(millis * MILLI));
            assert_eq!((found.used, found.mark), (used, start * MILLI), "at {millis} ms");
        }
    }

    #[test]
    fn a_window_that_ends_after_the_maximum_timestamp_has_its_full_length() {
        let window = window(86_400_000, Anchor::First);
        let end = Timestamp::clamped(State::MAX_INSTANT.get());
        let new = window.open(None, end);
        let kept = window.open(Some(Window::state(new.mark, 1)), end);
        assert_eq!(kept.left, new.left);
    }
}
