//! Requests in flight: at most `count` slots are held at once.
//!
//! A holder gives its slots back, or renews them. Those of a holder that died expire after at most two
//! epochs; an epoch is the lease, rounded up to units of 1024 ms. The state is the start of the current
//! epoch, and the slots taken in it and in the previous one. A release names the epoch in which its
//! slots were taken, so it never returns those of another holder.

use crate::engine::algorithm::description::{Description, FieldValue, Fields, Refill, part};
use crate::engine::algorithm::parameter::{LimitForm, Parameter, ParameterKind, Shape};
use crate::engine::algorithm::{Algorithm, Definition, Limit};
use crate::engine::cost::Cost;
use crate::engine::decision::Decision;
use crate::engine::limit_error::LimitError;
use crate::engine::state::{Lease, Lifetime, Slots, State, StateKind, Write};
use crate::engine::time::{Nanos, Timestamp};
use crate::engine::verb::Verb;

/// At most `count` slots held at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InFlight {
    count: i64,
    lease: Nanos,
    retry_after: Nanos,
    max_hold: Option<Nanos>,
    /// Units per epoch.
    epoch: i64,
    lifetime: Lifetime,
}

impl InFlight {
    /// The highest count: half of what an epoch holds. The rest is for renewals of expired slots, which
    /// need no room.
    pub const MAX_COUNT: i64 = Slots::MAX / 2;
    /// The shortest lease. The start of an epoch is rounded down by up to a unit.
    pub const MIN_LEASE: Nanos = Nanos::from_millis(2000);
    /// The longest lease.
    pub const MAX_LEASE: Nanos = Nanos::from_millis(24 * 3_600_000);
    /// The default lease.
    pub const LEASE: Nanos = Nanos::from_millis(30_000);
    /// The default hint for clients that are denied.
    pub const RETRY_AFTER: Nanos = Nanos::SECOND;

    /// The algorithm as data.
    pub(crate) const DEFINITION: Definition = Definition {
        form: LimitForm {
            parameters: &[
                Parameter::required("count", ParameterKind::Whole),
                Parameter::optional("lease", ParameterKind::Time),
                Parameter::optional("retry_after", ParameterKind::Time),
                Parameter::optional("max_hold", ParameterKind::Time),
            ],
            build: |values| {
                let (count, max_hold) = (values.required("count")?, values.get("max_hold"));
                let lease = values.get("lease").unwrap_or(InFlight::LEASE);
                let retry_after = values.get("retry_after").unwrap_or(InFlight::RETRY_AFTER);
                InFlight::new(count, lease, retry_after, max_hold).map(Limit::from)
            },
        },
        older: None,
        shape: Some(Shape { burst: None, rate: "count", period: None }),
        state: StateKind::Slots,
    };

    pub(crate) fn new(
        count: i64,
        lease: Nanos,
        retry_after: Nanos,
        max_hold: Option<Nanos>,
    ) -> Result<InFlight, LimitError> {
        if count < 1 {
            return Err(LimitError::TooSmall { field: "count", least: 1, found: count });
        }
        if count > InFlight::MAX_COUNT {
            return Err(LimitError::TooManySlots { found: count, most: InFlight::MAX_COUNT });
        }
        let (least, most) = (InFlight::MIN_LEASE, InFlight::MAX_LEASE);
        if !(least..=most).contains(&lease) {
            return Err(LimitError::LeaseOutOfRange { found: lease, least, most });
        }
        if retry_after == Nanos::ZERO {
            return Err(LimitError::NoTime { field: "retry_after" });
        }
        if let Some(found) = max_hold.filter(|&max_hold| max_hold < lease) {
            return Err(LimitError::MaxHoldBelowLease { found, lease });
        }
        let unit = Slots::UNIT.get();
        let epoch = (lease.get() - 1) / unit + 1;
        let lifetime = Lifetime::of_tally(Nanos::clamped(2 * epoch * unit));
        Ok(InFlight { count, lease, retry_after, max_hold, epoch, lifetime })
    }

    /// Number of slots.
    pub const fn count(&self) -> i64 {
        self.count
    }

    /// The time for which slots are kept at least.
    pub const fn lease(&self) -> Nanos {
        self.lease
    }

    /// The age from which a slot is not renewed; `None` if slots are renewed until they are returned.
    pub const fn max_hold(&self) -> Option<Nanos> {
        self.max_hold
    }

    /// Units per epoch.
    pub const fn epoch(&self) -> i64 {
        self.epoch
    }

    /// The time after which the slots of a holder that died are free at the latest.
    pub const fn longest(&self) -> Nanos {
        Nanos::clamped(2 * self.epoch * Slots::UNIT.get())
    }

    /// Returns the lease of slots after a renewal that wrote `after`. Slots for which the current epoch has
    /// no space stay in the previous one until they expire.
    pub fn lease_renewed(&self, kept: Lease, is_held: bool, after: Option<State>) -> Lease {
        match after {
            Some(after) => self.lease_of(after),
            None if is_held => kept,
            None => Lease::NONE,
        }
    }

    /// Returns the lease of slots that were just taken or renewed, and left this state.
    pub fn lease_of(&self, after: State) -> Lease {
        Lease::new(after.slots().start, self.epoch)
    }

    /// Returns the lease of slots that are taken at `now`.
    #[inline]
    pub fn lease_at(&self, found: Option<State>, now: Timestamp) -> Lease {
        Lease::new(self.advance(found, now).start, self.epoch)
    }

    /// Returns the slots at `now`. An earlier `now` changes nothing.
    #[inline]
    fn advance(&self, state: Option<State>, now: Timestamp) -> Slots {
        let at = now.min(State::MAX_INSTANT).get() / Slots::UNIT.get();
        let Some(slots) = state.map(State::slots) else {
            return Slots { start: at, current: 0, previous: 0 };
        };
        let age = at - slots.start;
        if age < self.epoch {
            slots
        } else if age < 2 * self.epoch {
            Slots { start: slots.start + self.epoch, current: 0, previous: slots.current }
        } else {
            Slots { start: at, current: 0, previous: 0 }
        }
    }

    /// Returns the waits until the slots of the previous and of the current epoch expire.
    fn ends(&self, slots: &Slots, now: Timestamp) -> [Nanos; 2] {
        [1, 2].map(|epochs| {
            let end = (slots.start + epochs * self.epoch).saturating_mul(Slots::UNIT.get());
            Nanos::clamped(end.saturating_sub(now.min(State::MAX_INSTANT).get()))
        })
    }

    /// Writes slots, of which at least one is held.
    #[inline]
    fn put_if(&self, changes: bool, slots: Slots) -> Write {
        Write::put_if(changes, State::from_slots(slots), self.lifetime)
    }

    /// Writes what is left of the slots that were found.
    fn put_rest(&self, slots: Slots) -> Write {
        let Slots { start, current, previous } = slots;
        match (current, previous) {
            (0, 0) => Write::Clear,
            // As in the epoch in which they were taken: the state ends when they expire.
            (0, _) => {
                let start = start - self.epoch;
                self.put_if(true, Slots { start, current: previous, previous: 0 })
            }
            _ => self.put_if(true, slots),
        }
    }

    /// Returns the part of the slots with those of a lease; `None` if they have expired.
    fn held_in<'s>(&self, lease: Lease, slots: &'s mut Slots) -> Option<&'s mut i64> {
        if lease.start() == slots.start {
            Some(&mut slots.current)
        } else if lease.start() == slots.start - self.epoch && lease.epoch() == self.epoch {
            Some(&mut slots.previous)
        } else {
            None
        }
    }

    /// Returns slots that were taken under `lease`. Allowed if they have not expired. A bucket in which
    /// nothing is held then has no state.
    fn release(
        &self,
        cost: Cost,
        lease: Lease,
        found: Option<State>,
        now: Timestamp,
    ) -> (bool, Write) {
        if found.is_none() {
            return (false, Write::Keep);
        }
        let mut slots = self.advance(found, now);
        // Fewer than the cost after a reset, or where ids share buckets for lack of room.
        let returned = self.held_in(lease, &mut slots).map_or(0, |held| {
            let returned = cost.get().min(*held);
            *held -= returned;
            returned
        });
        let changes = returned > 0 || slots.current + slots.previous == 0;
        (returned > 0, if changes { self.put_rest(slots) } else { Write::Keep })
    }

    /// Returns how many of the slots of a release are not there.
    pub(crate) fn missing(
        &self,
        cost: Cost,
        lease: Lease,
        found: Option<State>,
        now: Timestamp,
    ) -> Cost {
        let mut slots = self.advance(found, now);
        let held = self.held_in(lease, &mut slots).map_or(0, |held| *held);
        Cost((cost.get() - held).max(0))
    }

    /// Keeps slots for another lease, whatever the count is, because their holder runs. Allowed if they
    /// have not expired; those that have are taken again.
    fn renew(
        &self,
        cost: Cost,
        lease: Lease,
        found: Option<State>,
        now: Timestamp,
    ) -> (bool, Write) {
        let mut slots = self.advance(found, now);
        if found.is_some() && lease.start() == slots.start {
            return (true, Write::Keep);
        }
        let held = found.and_then(|_| self.held_in(lease, &mut slots));
        let is_held = held.is_some();
        if let Some(held) = held {
            *held -= cost.get().min(*held);
        }
        slots.current += cost.get();
        // Only the word bounds them: a process with a higher count may have admitted them.
        (is_held, self.put_if(slots.current <= Slots::MAX, slots))
    }

    /// Applies an operation to a state. A check returns the write of a spend.
    #[inline]
    pub(crate) fn apply(
        &self,
        verb: Verb,
        cost: Cost,
        found: Option<State>,
        now: Timestamp,
    ) -> (bool, Write) {
        match verb {
            Verb::Spend | Verb::Reserve | Verb::Check => self.spend(cost, found, now),
            Verb::Release(lease) => self.release(cost, lease, found, now),
            Verb::Renew(lease) => self.renew(cost, lease, found, now),
            // Without a lease it is unknown which slots to return, and none are taken in advance.
            Verb::Refund | Verb::Charge | Verb::ChargePartial | Verb::ChargeAfter => {
                (false, Write::Keep)
            }
        }
    }

    /// Undoes a reservation of `cost` that wrote `charged`, in a bucket whose state is now `found`.
    pub(crate) fn give_back(
        &self,
        cost: Cost,
        charged: State,
        found: State,
        now: Timestamp,
    ) -> Write {
        self.release(cost, self.lease_of(charged), Some(found), now).1
    }
}

impl Limit {
    /// Returns a limit of `count` requests in flight. A slot is kept for at least `lease` after it was
    /// taken or renewed. `retry_after` is the `Retry-After` of denied clients. A slot that has been held
    /// for `max_hold` is not renewed.
    ///
    /// # Errors
    /// [`LimitError`] if `count` is below 1 or above [`InFlight::MAX_COUNT`], `lease` is out of range,
    /// `retry_after` is 0, or `max_hold` is shorter than the lease.
    pub fn in_flight(
        count: i64,
        lease: Nanos,
        retry_after: Nanos,
        max_hold: Option<Nanos>,
    ) -> Result<Limit, LimitError> {
        InFlight::new(count, lease, retry_after, max_hold).map(Limit::from)
    }
}

impl Description for InFlight {
    fn fields(&self) -> Fields {
        let mut fields = vec![
            ("count", FieldValue::Whole(self.count)),
            ("lease", FieldValue::Time(self.lease)),
            ("retry_after", FieldValue::Time(self.retry_after)),
        ];
        fields.extend(self.max_hold.map(|max_hold| ("max_hold", FieldValue::Time(max_hold))));
        fields
    }

    fn wire(&self, verb: Verb, cost: i64, _: Timestamp) -> [i64; 6] {
        let (start, epoch) = match verb {
            Verb::Release(lease) | Verb::Renew(lease) => (lease.start(), lease.epoch()),
            _ => (0, 0),
        };
        [cost, self.count, self.epoch, start, epoch, 0]
    }

    fn summary(&self) -> &'static str {
        "{count} in flight"
    }

    fn capacity(&self) -> i64 {
        self.count
    }

    fn time_to_refill(&self) -> Nanos {
        self.longest()
    }

    /// If no slot is given back.
    fn refill(&self) -> Refill {
        Refill { count: self.count, interval: self.longest(), is_evenly_spaced: false }
    }

    /// Slots are given back at any rate.
    fn worst_in(&self, _: Nanos) -> i64 {
        i64::MAX
    }

    fn share(&self, processes: i64) -> Result<InFlight, LimitError> {
        let InFlight { count, lease, retry_after, max_hold, .. } = *self;
        InFlight::new(part(count, processes), lease, retry_after, max_hold)
    }

    /// It is unknown when a slot is given back.
    fn shown_wait(&self, _: &Decision) -> Nanos {
        Nanos::ZERO
    }

    fn shown_retry(&self, decision: &Decision) -> Nanos {
        if decision.allowed { Nanos::ZERO } else { self.retry_after }
    }

    fn shown_reset(&self, _: &Decision) -> Nanos {
        self.retry_after
    }
}

impl Algorithm for InFlight {
    fn max_cost(&self) -> i64 {
        self.count
    }

    fn keeping(self, keep: i64) -> InFlight {
        InFlight { count: self.count - keep, ..self }
    }

    #[inline]
    fn spend(&self, cost: Cost, found: Option<State>, now: Timestamp) -> (bool, Write) {
        let mut slots = self.advance(found, now);
        let allowed = slots.current + slots.previous + cost.get() <= self.count;
        slots.current += cost.get();
        (allowed, self.put_if(allowed && cost != Cost::ZERO, slots))
    }

    fn numbers(
        &self,
        verb: Verb,
        cost: Cost,
        allowed: bool,
        after: Option<State>,
        now: Timestamp,
    ) -> Decision {
        let slots = self.advance(after, now);
        let used = slots.current + slots.previous;
        let [first, second] = self.ends(&slots, now);
        let wait_for = |over: i64| match over {
            ..=0 => Nanos::ZERO,
            over if over <= slots.previous => first,
            _ => second,
        };
        Decision {
            allowed,
            unlimited: false,
            remaining: (self.count - used).max(0),
            retry_after: match verb.decides() {
                true => wait_for(used + cost.get() - self.count),
                false => Nanos::ZERO,
            },
            reset_after: match (slots.current, slots.previous) {
                (0, 0) => Nanos::ZERO,
                (0, _) => first,
                _ => second,
            },
            next_token_after: wait_for((used - self.count + 1).max(used.min(1))),
            now,
        }
    }

    #[inline]
    fn lifetime(&self, _: State) -> Lifetime {
        self.lifetime
    }
}
