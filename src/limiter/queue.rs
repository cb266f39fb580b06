//! Wait queues without I/O, one per bucket: in order of arrival, but a waiter that must leave tokens in
//! the bucket comes after those that need not.
//!
//! A waiter is *queued* until the store has charged its cost, and *placed* afterwards. The turn of a
//! placed waiter is fixed: it comes when the bucket is out of debt. The driver of a queue asks the
//! store on behalf of the first queued waiter, without holding a lock, and reports the answer.
//!
//! It is unknown when a slot of a request in flight is returned, so a waiter for one has no turn: the
//! store is asked again after a release in this process, after [`ask_interval`] if other processes share
//! the slots, and when the slots expire.
//!
//! All instants are on the local clock. A turn is the instant at which the answer arrived plus the
//! wait in the answer, so the store may use a different clock.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::state::{Lease, State};
use crate::engine::time::{Nanos, Timestamp};
use crate::limiter::Decided;

/// For how long a process hands all slots that it returns to its own waiters.
const HANDOFF_TIME: Nanos = Nanos::from_millis(200);

/// Returns the time after which the first waiter for a slot asks again, because another process may have
/// returned one: 50 ms, give or take a quarter so that processes do not ask in lockstep.
pub fn ask_interval(now: Timestamp) -> Nanos {
    const MIN: i64 = 37_500_000;
    const SPREAD: i64 = 25_000_000;
    // The golden ratio spreads the digits of the instant.
    let digits = now.get().cast_unsigned().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    Nanos::clamped(MIN + digits.cast_signed() % SPREAD)
}

/// The store's answer to charging a waiter's cost.
#[derive(Debug)]
pub struct Placing {
    /// The decision; allowed if the cost was charged.
    pub decided: Decided,
    /// The time until the turn or, if nothing was charged, until the next attempt.
    pub wait: Nanos,
    /// The speed at which later waiters move up if this one leaves.
    pub pace: Pace,
    /// The lease of the slots that were taken, if it was slots.
    pub lease: Option<Lease>,
    /// Whether other processes may return slots, so that the store must be asked again and again.
    pub is_polled: bool,
}

/// How much sooner later waiters are served per returned token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The algorithm, because different algorithms have separate buckets.
    pub algorithm: AlgorithmName,
    /// The time per token; `None` if the gain is not proportional to the tokens.
    pub interval: Option<Nanos>,
}

impl Pace {
    /// Returns whether slots are waited for. A wait is then only the latest, if no slot is returned.
    fn is_unknown(self) -> bool {
        self.algorithm == AlgorithmName::InFlight
    }

    /// Returns the part of a gain at this pace that applies to a waiter with the pace `other`.
    fn usable(self, gain: i64, other: Pace) -> i64 {
        match (self.interval, other.interval) {
            (Some(own), Some(others)) if self.algorithm == other.algorithm && others < own => {
                let part = i128::from(gain) * i128::from(others.get()) / i128::from(own.get());
                i64::try_from(part).unwrap_or(gain)
            }
            (Some(_), Some(_)) if self.algorithm == other.algorithm => gain,
            _ => 0,
        }
    }
}

/// The estimated turn of a waiter at the end of a queue, on the store's clock.
#[derive(Clone, Copy, Debug)]
pub struct Estimate {
    /// The instant at which the bucket was read.
    pub(super) now: Timestamp,
    /// The waiter's turn, and the bucket's state after it.
    pub(super) turn: (Timestamp, Option<State>),
}

impl Estimate {
    /// Returns the time from reading the bucket to the turn.
    pub fn wait(&self) -> Nanos {
        Nanos::clamped(self.turn.0.get() - self.now.get())
    }
}

/// The cost of a waiter, and the tokens that it must leave.
pub type Demand = (i64, i64);

/// The place of a waiter: those that keep fewer tokens come first, then in order of arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    keep: i64,
    number: u64,
}

impl Ticket {
    /// Creates the ticket of a waiter that must leave `keep` tokens, and was the `number`th to arrive.
    pub fn new(keep: i64, number: u64) -> Ticket {
        Ticket { keep, number }
    }
}

/// The waiters of one bucket. `W` is a handle to a waiter, and `P` a handle that refunds its charge.
#[derive(Debug)]
pub struct WaitQueue<W, P> {
    queued: BTreeMap<Ticket, Queued<W>>,
    placed: BTreeMap<Ticket, Placed<W, P>>,
    /// The earliest instant at which the store may be asked for the first queued waiter.
    ask_at: Timestamp,
    /// Whether a call to the store is in progress.
    is_asked: bool,
    /// Whether something has changed during that call, so that its answer may be outdated.
    is_outdated: bool,
    /// When the first waiter asks without a release, because other processes return slots, too.
    poll_at: Timestamp,
    /// The number of releases for which the store was not asked yet.
    releases: u32,
    /// Whether a release was handed to the waiters since the last such question.
    is_handed: bool,
    /// When a release was last left to other processes, or the queue began.
    left_at: Timestamp,
    /// The estimated turn of the last queued waiter, and the local instant at which the bucket was
    /// read; `None` if unknown.
    tail: Option<(Estimate, Timestamp)>,
    /// A queued waiter that also wakes when the store may be asked, because its estimated turn passed
    /// unserved. It asks in case the first waiter is late.
    deputy: Option<Ticket>,
    /// The sum of the gains of all placed waiters.
    gains: i64,
    /// Waiters whose wake-up time may have moved forward.
    touched: Vec<Ticket>,
}

/// A waiter whose cost is not charged yet.
#[derive(Debug)]
struct Queued<W> {
    waiter: W,
    cost: i64,
    arrived_at: Timestamp,
    /// The latest acceptable turn.
    deadline: Option<Timestamp>,
    /// The time to check that earlier waiters are still active. Initially the estimated turn.
    check_at: Option<Timestamp>,
    /// The wake-up time that the waiter was last given.
    wakes_at: Option<Timestamp>,
}

/// A waiter whose cost is charged.
#[derive(Debug)]
struct Placed<W, P> {
    queued: Queued<W>,
    charge: P,
    pace: Pace,
    turn: Timestamp,
    /// How much earlier the turn comes because earlier waiters have left, in nanoseconds. When a waiter
    /// leaves, its gain passes to the next one. A new waiter starts with minus the gains of the waiters
    /// before it, because its turn already accounts for them.
    gain: i64,
}

/// The next action of a waiter.
#[derive(Debug)]
pub enum QueueStep<W, P> {
    /// Ask the store to charge `cost` for the waiter `ticket`, and report the answer with
    /// [`WaitQueue::on_answer`].
    Ask {
        /// The waiter to charge, not necessarily the one that called.
        ticket: Ticket,
        /// Its handle.
        waiter: W,
        /// Its cost.
        cost: i64,
    },
    /// Serve a waiter whose turn has come. It has been removed from the queue.
    Serve {
        /// The waiter to serve, not necessarily the one that called.
        waiter: W,
        /// Its charge.
        charge: P,
    },
    /// Report a timeout. The waiter has been removed from the queue at its deadline.
    Overdue {
        /// The demands of the waiters before it, followed by its own.
        demands: Vec<Demand>,
    },
    /// Sleep.
    Sleep,
}

/// A waiter that an answer removes from the queue, or a charge that is no longer needed.
#[derive(Debug)]
pub enum Rejected<W, P> {
    /// The charge of a waiter that left while the store was asked.
    Unwanted(P),
    /// A waiter whose turn would come after its deadline, its wait, and its charge if there is one.
    TooLate(W, Nanos, Option<P>),
}

impl<W, P> Default for WaitQueue<W, P> {
    /// Returns an empty queue.
    fn default() -> WaitQueue<W, P> {
        WaitQueue {
            queued: BTreeMap::new(),
            placed: BTreeMap::new(),
            ask_at: Timestamp::ORIGIN,
            is_asked: false,
            is_outdated: false,
            poll_at: Timestamp::ORIGIN,
            releases: 0,
            is_handed: false,
            left_at: Timestamp::ORIGIN,
            tail: None,
            deputy: None,
            gains: 0,
            touched: Vec::new(),
        }
    }
}

impl<W: Clone, P> WaitQueue<W, P> {
    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.queued.is_empty() && self.placed.is_empty()
    }

    /// Returns the charges of the placed waiters, in order.
    pub fn charges(&self) -> impl Iterator<Item = &P> {
        self.placed.values().map(|placed| &placed.charge)
    }

    /// Returns any one of the waiters.
    pub fn any(&self) -> Option<&W> {
        let placed = self.placed.values().map(|placed| &placed.queued);
        placed.chain(self.queued.values()).map(|queued| &queued.waiter).next()
    }

    /// Returns the arguments of `Limiter::estimate` for an arriving waiter, or `None` if the store will
    /// be asked for it immediately.
    pub fn estimate_arguments(
        &self,
        ticket: Ticket,
        cost: i64,
        now: Timestamp,
    ) -> Option<(Vec<Demand>, Option<Estimate>)> {
        if !self.has_before(ticket) && self.blocked_until().is_none_or(|until| until <= now) {
            return None;
        }
        let own = (cost, ticket.keep);
        Some(match self.tail_before(ticket) {
            Some((estimate, _)) => (vec![own], Some(estimate)),
            None => (self.demands(ticket).chain([own]).collect(), None),
        })
    }

    /// Returns whether the store must be asked for other waiters before `ticket`.
    pub fn has_before(&self, ticket: Ticket) -> bool {
        self.queued.range(..ticket).next().is_some()
    }

    /// Returns the demands of the queued waiters up to `last`.
    fn demands(&self, last: Ticket) -> impl Iterator<Item = Demand> {
        self.queued.range(..=last).map(|(ticket, queued)| (queued.cost, ticket.keep))
    }

    /// Returns the tail if all queued waiters come before `ticket`.
    fn tail_before(&self, ticket: Ticket) -> Option<(Estimate, Timestamp)> {
        let last = self.queued.last_key_value().map(|(&last, _)| last);
        self.tail.filter(|_| last.is_none_or(|last| last < ticket))
    }

    /// Adds a waiter. `estimate` is its estimated turn, if known; see
    /// [`estimate_arguments`](Self::estimate_arguments).
    ///
    /// # Errors
    /// The estimated wait, if it ends after the deadline. The waiter is then not added.
    pub fn on_arrival(
        &mut self,
        waiter: W,
        ticket: Ticket,
        cost: i64,
        timeout: Option<Nanos>,
        estimate: Option<Estimate>,
        now: Timestamp,
    ) -> Result<(), Nanos> {
        let deadline = timeout.map(|timeout| now.saturating_add(timeout));
        let read_at = self.tail_before(ticket).map_or(now, |(_, read_at)| read_at);
        let check_at = estimate.map(|estimate| read_at.saturating_add(estimate.wait()));
        if let (Some(turn), Some(deadline)) = (check_at, deadline)
            && turn > deadline
        {
            return Err(Nanos::clamped(turn.get() - now.get()));
        }
        let queued = Queued { waiter, cost, arrived_at: now, deadline, check_at, wakes_at: None };
        if self.queued.is_empty() {
            (self.poll_at, self.left_at, self.releases) = (now, now, 0);
        }
        self.queued.insert(ticket, queued);
        let is_last = self.queued.last_key_value().is_some_and(|(&last, _)| last == ticket);
        self.tail = estimate.map(|estimate| (estimate, read_at)).filter(|_| is_last);
        if self.is_first(ticket) {
            self.ask_at = now;
        }
        Ok(())
    }

    /// Returns whether the store is asked for this waiter next.
    fn is_first(&self, ticket: Ticket) -> bool {
        self.queued.first_key_value().is_some_and(|(&first, _)| first == ticket)
    }

    /// Returns what the caller must do at `now`. `ticket` is its own waiter, if it has one.
    pub fn step(&mut self, ticket: Option<Ticket>, now: Timestamp) -> QueueStep<W, P> {
        if let Some(ask) = self.ask(now) {
            return ask;
        }
        let first = self.placed.first_key_value().map(|(&ticket, _)| ticket);
        for candidate in [first, ticket].into_iter().flatten() {
            if self.placed.get(&candidate).is_some_and(|placed| placed.due() <= now) {
                return self.serve(candidate);
            }
        }
        let Some(ticket) = ticket else { return QueueStep::Sleep };
        let Some(queued) = self.queued.get(&ticket) else { return QueueStep::Sleep };
        if queued.deadline.is_some_and(|deadline| deadline <= now) {
            let demands = self.demands(ticket).collect();
            self.take_queued(ticket, now);
            return QueueStep::Overdue { demands };
        }
        if queued.check_at.is_some_and(|check_at| check_at <= now) {
            self.check_earlier_waiters(ticket, now);
        }
        QueueStep::Sleep
    }

    /// Returns the step that asks the store for the first queued waiter, if it is due.
    fn ask(&mut self, now: Timestamp) -> Option<QueueStep<W, P>> {
        let (&ticket, queued) = self.queued.first_key_value()?;
        if self.is_asked || now < self.ask_at() {
            return None;
        }
        (self.is_asked, self.is_outdated) = (true, false);
        self.releases = self.releases.saturating_sub(1);
        self.is_handed &= now < self.poll_at;
        Some(QueueStep::Ask { ticket, waiter: queued.waiter.clone(), cost: queued.cost })
    }

    /// Returns when the store may be asked for the first queued waiter.
    fn ask_at(&self) -> Timestamp {
        self.blocked_until().map_or(self.ask_at, |until| self.ask_at.max(until))
    }

    /// Returns the turn of the last placed waiter if its pace is unknown. Later waiters must not be
    /// charged before it, because they could not move up if it left.
    fn blocked_until(&self) -> Option<Timestamp> {
        let (_, last) = self.placed.last_key_value()?;
        if last.pace.interval.is_none() { Some(last.due()) } else { None }
    }

    fn serve(&mut self, ticket: Ticket) -> QueueStep<W, P> {
        let Some(placed) = self.take_placed(ticket) else { return QueueStep::Sleep };
        QueueStep::Serve { waiter: placed.queued.waiter, charge: placed.charge }
    }

    /// Handles a queued waiter whose estimated turn has passed: the first waiter is late, or other
    /// calls have spent tokens. One such waiter becomes the deputy. The others check again after as
    /// long as they have already waited.
    fn check_earlier_waiters(&mut self, ticket: Ticket, now: Timestamp) {
        let is_deputy =
            self.deputy.is_none_or(|deputy| deputy == ticket || !self.queued.contains_key(&deputy));
        if is_deputy {
            self.deputy = Some(ticket);
        }
        let ask_at = self.ask_at();
        if let Some(queued) = self.queued.get_mut(&ticket) {
            let waited = Nanos::clamped((now.get() - queued.arrived_at.get()).max(1));
            let later = now.saturating_add(waited).max(ask_at);
            queued.check_at = Some(if is_deputy && ask_at > now { ask_at } else { later });
        }
    }

    /// Handles the store's answer for the waiter `ticket`, received at `received_at`.
    pub fn on_answer(
        &mut self,
        ticket: Ticket,
        answer: Placing,
        charge: impl FnOnce(Decided) -> P,
        received_at: Timestamp,
    ) -> Option<Rejected<W, P>> {
        let Placing { decided, wait, pace, is_polled, .. } = answer;
        if !decided.decision.allowed && !decided.shadow {
            let is_unknown = pace.is_unknown();
            let late = self.on_denial(ticket, wait, is_unknown, is_polled, received_at);
            return late.map(|(waiter, wait)| Rejected::TooLate(waiter, wait, None));
        }
        let turn = received_at.saturating_add(wait);
        let deadline = self.queued.get(&ticket).and_then(|queued| queued.deadline);
        // Tokens that are available now are taken even if the deadline has just passed.
        if wait > Nanos::ZERO && deadline.is_some_and(|deadline| deadline < turn) {
            (self.is_asked, self.ask_at) = (false, received_at);
            let queued = self.take_queued(ticket, received_at)?;
            return Some(Rejected::TooLate(queued.waiter, wait, Some(charge(decided))));
        }
        let Some(queued) = self.take_allowed(ticket, is_polled, received_at) else {
            return Some(Rejected::Unwanted(charge(decided)));
        };
        self.touched.push(ticket);
        let gain = -std::mem::take(&mut self.gains);
        let placed = Placed { queued, charge: charge(decided), pace, turn, gain };
        self.placed.insert(ticket, placed);
        None
    }

    /// Handles an answer that has taken everything that the waiter `ticket` needs, in this bucket and in
    /// others: removes it from the queue and returns it.
    pub fn on_taken(&mut self, ticket: Ticket, is_polled: bool, now: Timestamp) -> Option<W> {
        self.take_allowed(ticket, is_polled, now).map(|queued| queued.waiter)
    }

    fn take_allowed(
        &mut self,
        ticket: Ticket,
        is_polled: bool,
        now: Timestamp,
    ) -> Option<Queued<W>> {
        self.is_asked = false;
        // The answer says nothing about a waiter that has come before this one meanwhile.
        self.ask_at = match is_polled {
            true if !self.is_changed(ticket) => now.max(self.poll_at),
            _ => now,
        };
        let queued = self.queued.remove(&ticket)?;
        if self.queued.is_empty() {
            self.tail = None;
        }
        Some(queued)
    }

    /// Handles an answer that charged nothing for the waiter `ticket`: asks again after `wait`. If that is
    /// unknown, it is the latest instant at which slots expire. Returns the waiter and the wait if it ends
    /// after the waiter's deadline.
    pub fn on_denial(
        &mut self,
        ticket: Ticket,
        wait: Nanos,
        is_unknown: bool,
        is_polled: bool,
        received_at: Timestamp,
    ) -> Option<(W, Nanos)> {
        self.is_asked = false;
        // A wait of zero without a charge would be a busy loop.
        let wait = wait.max(Nanos::clamped(1));
        let turn = received_at.saturating_add(wait);
        self.releases = 0;
        if is_polled && self.poll_at <= received_at {
            self.poll_at = received_at.saturating_add(ask_interval(received_at));
        }
        self.ask_at = match is_polled {
            _ if self.is_changed(ticket) => received_at,
            true => turn.min(self.poll_at),
            false => turn,
        };
        let queued = self.queued.get(&ticket)?;
        if is_unknown {
            // For the last time at the deadline.
            let last = queued.deadline.filter(|&deadline| deadline > received_at);
            self.ask_at = last.map_or(self.ask_at, |last| self.ask_at.min(last));
        } else if queued.deadline.is_some_and(|deadline| deadline < turn) {
            let queued = self.take_queued(ticket, received_at)?;
            return Some((queued.waiter, wait));
        }
        self.touched.push(ticket);
        None
    }

    /// Returns whether an answer for the waiter `ticket` may be outdated.
    fn is_changed(&self, ticket: Ticket) -> bool {
        self.is_outdated || self.releases > 0 || !self.is_first(ticket)
    }

    /// Ends the question for the waiter `ticket` without placing it: removes it from the queue and returns
    /// it. The store has failed, or the waiter waits for another bucket.
    pub fn on_end(&mut self, ticket: Ticket, now: Timestamp) -> Option<W> {
        (self.is_asked, self.ask_at) = (false, now);
        self.take_queued(ticket, now).map(|queued| queued.waiter)
    }

    /// Asks for the first waiter again: the question was not put to the store, because another thread
    /// was asking for the same waiter.
    pub fn on_busy(&mut self, now: Timestamp) {
        (self.is_asked, self.ask_at) = (false, now);
    }

    /// Removes a waiter. Returns it and its charge, if there is one. After the charge is refunded, call
    /// [`on_returned`](Self::on_returned).
    pub fn on_departure(&mut self, ticket: Ticket, now: Timestamp) -> Option<(W, Option<P>)> {
        if let Some(queued) = self.take_queued(ticket, now) {
            return Some((queued.waiter, None));
        }
        let placed = self.take_placed(ticket)?;
        Some((placed.queued.waiter, Some(placed.charge)))
    }

    fn take_placed(&mut self, ticket: Ticket) -> Option<Placed<W, P>> {
        let placed = self.placed.remove(&ticket)?;
        self.gains = self.gains.saturating_sub(placed.gain);
        self.pass_on(ticket, placed.gain, placed.pace);
        Some(placed)
    }

    fn take_queued(&mut self, ticket: Ticket, now: Timestamp) -> Option<Queued<W>> {
        let queued = self.queued.remove(&ticket)?;
        self.tail = None;
        if self.queued.first_key_value().is_none_or(|(&first, _)| first > ticket) {
            // The new first waiter may cost less.
            self.ask_soon(now);
        }
        Some(queued)
    }

    /// Moves the later waiters up, after the charge of a waiter that left was refunded.
    pub fn on_returned(&mut self, ticket: Ticket, cost: i64, pace: Pace, now: Timestamp) {
        if let Some(interval) = pace.interval {
            self.pass_on(ticket, interval.get().saturating_mul(cost), pace);
        }
        self.ask_soon(now);
    }

    /// Asks for the first waiter at `now`, again if it is being asked for.
    fn ask_soon(&mut self, now: Timestamp) {
        (self.ask_at, self.poll_at, self.is_outdated) = (now, now, true);
    }

    /// Asks for the first waiter after a release of slots. If `is_polled`, one release is left to the
    /// waiters of other processes now and then: the next one after another, and after `HANDOFF_TIME`.
    pub fn on_release(&mut self, is_polled: bool, now: Timestamp) {
        if is_polled && self.is_handed && now >= self.left_at.saturating_add(HANDOFF_TIME) {
            self.left_at = now;
            return;
        }
        self.is_handed = true;
        self.releases = self.releases.saturating_add(1);
        (self.ask_at, self.is_outdated) = (now, true);
    }

    /// Moves waiters up after a refund to the bucket. `wait` is how long the bucket is in debt now.
    pub fn on_refund(&mut self, wait: Nanos, now: Timestamp) {
        if let Some((_, last)) = self.placed.last_key_value() {
            let turn = last.turn.get().saturating_sub(self.gains);
            let gain = turn.saturating_sub(now.saturating_add(wait).get()).max(0);
            let pace = last.pace;
            self.pass_on(Ticket::default(), gain, pace);
        }
        self.tail = None;
        self.ask_soon(now);
    }

    /// Handles a replacement of the limits that does not change the one of these waiters, or removes it.
    /// Placed waiters keep their turns, or are due immediately if the id is no longer limited.
    pub fn on_reload(&mut self, is_limited: bool, now: Timestamp) {
        if !is_limited {
            for placed in self.placed.values_mut() {
                placed.turn = placed.turn.min(now);
            }
            self.touched.extend(self.placed.keys());
        }
        self.tail = None;
        self.ask_soon(now);
    }

    /// Queues every waiter again, in the same order, because the bucket was reset or its limit has
    /// changed. Returns the charges. A reset has removed them from the bucket; under a new limit they
    /// must be refunded, because debts under the former limit would fix the wrong turns.
    pub fn queue_again(&mut self, now: Timestamp) -> Vec<P> {
        self.tail = None;
        self.ask_soon(now);
        let mut charges = Vec::with_capacity(self.placed.len());
        let last_turn = self.placed.last_key_value().map(|(_, placed)| placed.turn);
        for queued in self.queued.values_mut() {
            queued.check_at = queued.check_at.or(last_turn);
        }
        self.gains = 0;
        for (ticket, placed) in std::mem::take(&mut self.placed) {
            let queued = Queued { check_at: Some(placed.turn), ..placed.queued };
            self.queued.insert(ticket, queued);
            charges.push(placed.charge);
        }
        charges
    }

    /// Removes all waiters because the limiter is closed. Returns the waiters and their charges.
    pub fn on_close(&mut self) -> (Vec<W>, Vec<P>) {
        let mut waiters = Vec::new();
        let mut charges = Vec::new();
        for placed in std::mem::take(&mut self.placed).into_values() {
            waiters.push(placed.queued.waiter);
            charges.push(placed.charge);
        }
        waiters.extend(std::mem::take(&mut self.queued).into_values().map(|queued| queued.waiter));
        (waiters, charges)
    }

    /// Adds a gain to the next placed waiter after `ticket`, and thereby to all later ones.
    fn pass_on(&mut self, ticket: Ticket, gain: i64, pace: Pace) {
        if let Some((&next, placed)) = self.placed.range_mut((Excluded(ticket), Unbounded)).next() {
            let gain = if gain > 0 { pace.usable(gain, placed.pace) } else { gain };
            placed.gain = placed.gain.saturating_add(gain);
            self.gains = self.gains.saturating_add(gain);
            self.touched.push(next);
        }
    }

    /// Returns the instant until which the waiter must sleep, or `None` to sleep until notified.
    pub fn sleep(&mut self, ticket: Ticket) -> Option<Timestamp> {
        let until = self.wake_time(ticket);
        if let Some(queued) = self.entry(ticket) {
            queued.wakes_at = until;
        }
        until
    }

    fn wake_time(&self, ticket: Ticket) -> Option<Timestamp> {
        if let Some(placed) = self.placed.get(&ticket) {
            return Some(placed.due());
        }
        let queued = self.queued.get(&ticket)?;
        let until = match self.is_first(ticket) {
            // The caller that is asking the store will notify the first waiter.
            true if self.is_asked => None,
            true => Some(self.ask_at()),
            false => queued.check_at,
        };
        match (until, queued.deadline) {
            (Some(until), Some(deadline)) => Some(until.min(deadline)),
            (until, deadline) => until.or(deadline),
        }
    }

    fn entry(&mut self, ticket: Ticket) -> Option<&mut Queued<W>> {
        let placed = self.placed.get_mut(&ticket).map(|placed| &mut placed.queued);
        placed.or_else(|| self.queued.get_mut(&ticket))
    }

    /// Returns the waiters to notify because their wake-up time has moved forward.
    ///
    /// Of the waiters that moved up, only the first are notified: notifying all would make n departures
    /// cost n squared wake-ups.
    pub fn waiters_to_notify(&mut self) -> Vec<W> {
        let firsts = [self.queued.first_key_value().map(|(&ticket, _)| ticket), self.deputy];
        let mut touched = std::mem::take(&mut self.touched);
        touched.extend(firsts.into_iter().flatten());
        touched.extend(self.placed.first_key_value().map(|(&ticket, _)| ticket));
        touched.sort_unstable();
        touched.dedup();
        let mut waiters = Vec::new();
        for ticket in touched {
            let until = self.wake_time(ticket);
            let Some(queued) = self.entry(ticket) else { continue };
            if until.is_some_and(|until| queued.wakes_at.is_none_or(|wakes_at| until < wakes_at)) {
                queued.wakes_at = until;
                waiters.push(queued.waiter.clone());
            }
        }
        waiters
    }
}

impl<W, P> Placed<W, P> {
    fn due(&self) -> Timestamp {
        Timestamp::clamped(self.turn.get().saturating_sub(self.gain.max(0)))
    }
}
