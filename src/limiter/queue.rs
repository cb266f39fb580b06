//! FIFO wait queues without I/O: one per bucket.
//!
//! A waiter is *queued* until the store has charged its cost, then *placed*: its turn is then
//! fixed, and it comes when the bucket is out of debt. The driver of a queue asks the store on
//! behalf of the first queued waiter, with no lock held, and reports the answer. Instants are those
//! of the local clock: a turn is the instant at which the answer arrived plus the wait that it
//! carries, so a store may have another clock.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::state::State;
use crate::engine::time::{Nanos, Timestamp};
use crate::limiter::Decided;

/// The answer of a store that was asked to charge a waiter's cost.
#[derive(Debug)]
pub struct Placing {
    /// The decision; allowed if the cost was charged.
    pub decided: Decided,
    /// The wait for the turn; if nothing was charged, for the next attempt.
    pub wait: Nanos,
    /// How fast waiters behind move up if this one leaves.
    pub pace: Pace,
}

/// How much sooner the waiters behind are served per token returned; `None` if not proportional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Buckets of another algorithm are other buckets.
    pub algorithm: AlgorithmName,
    /// Time per token.
    pub interval: Option<Nanos>,
}

impl Pace {
    /// The part of a gain at this pace that a waiter with the pace `other` can use.
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

/// When a waiter at the end of a queue is expected to be served, on the store's clock.
#[derive(Clone, Copy, Debug)]
pub struct Estimate {
    /// The store's instant at which the bucket was read.
    pub(super) now: Timestamp,
    /// The waiter's turn, and the bucket after it.
    pub(super) turn: (Timestamp, State),
}

impl Estimate {
    /// The wait for the turn, from the instant at which the bucket was read.
    pub fn wait(&self) -> Nanos {
        Nanos::clamped(self.turn.0.get() - self.now.get())
    }
}

/// The number of a waiter, in order of arrival.
pub type Ticket = u64;

/// The waiters of one bucket. `W` is a handle to a waiter, `P` what returns its charge.
#[derive(Debug)]
pub struct WaitQueue<W, P> {
    queued: BTreeMap<Ticket, Queued<W>>,
    placed: BTreeMap<Ticket, Placed<W, P>>,
    last_ticket: Ticket,
    /// When the store may be asked for the first queued waiter.
    ask_at: Timestamp,
    /// Whether a caller is asking the store.
    is_asked: bool,
    /// The expected turn of the last queued waiter, and when the bucket was read; `None` if
    /// unknown.
    tail: Option<(Estimate, Timestamp)>,
    /// A queued waiter that wakes with the first, because its own turn passed without one.
    deputy: Option<Ticket>,
    /// The sum of all gains.
    gains: i64,
    /// Waiters whose wake-up may have become earlier.
    touched: Vec<Ticket>,
}

/// A waiter that nothing was charged for.
#[derive(Debug)]
struct Queued<W> {
    waiter: W,
    cost: i64,
    arrived_at: Timestamp,
    /// The latest acceptable turn.
    deadline: Option<Timestamp>,
    /// When to look whether the waiters before are still awake: the expected turn.
    look_at: Option<Timestamp>,
    /// Until when the waiter sleeps, as far as it knows.
    wakes_at: Option<Timestamp>,
}

/// A waiter whose cost is charged.
#[derive(Debug)]
struct Placed<W, P> {
    queued: Queued<W>,
    charge: P,
    pace: Pace,
    turn: Timestamp,
    /// By how much the turn comes earlier, because waiters before it left. The first hands its gain
    /// on to the second, and so on; what is yet to be handed on when a waiter is placed counts as
    /// negative.
    gain: i64,
}

/// What a waiter does next.
#[derive(Debug)]
pub enum Step<W, P> {
    /// Ask the store to charge `cost` for the waiter `ticket`, and report with
    /// [`WaitQueue::on_answer`].
    Ask {
        /// The waiter, which need not be the one that steps.
        ticket: Ticket,
        /// Its handle.
        waiter: W,
        /// Its cost.
        cost: i64,
    },
    /// The turn of a waiter has come; the waiter is no longer in the queue.
    Serve {
        /// The waiter, which need not be the one that steps.
        waiter: W,
        /// What was charged for it.
        charge: P,
    },
    /// The waiter has waited until its deadline; it is no longer in the queue. It would be the last
    /// of `costs`.
    Overdue {
        /// The costs of the waiters before it, and its own.
        costs: Vec<i64>,
    },
    /// Nothing to do.
    Sleep,
}

/// A waiter that leaves the queue on an answer, or a charge that is no longer needed.
#[derive(Debug)]
pub enum Rejected<W, P> {
    /// The waiter left while the store was asked.
    Unwanted(P),
    /// The turn would come after the deadline, after this wait.
    TooLate(W, Nanos, Option<P>),
}

impl<W, P> Default for WaitQueue<W, P> {
    /// A queue without waiters.
    fn default() -> WaitQueue<W, P> {
        WaitQueue {
            queued: BTreeMap::new(),
            placed: BTreeMap::new(),
            last_ticket: 0,
            ask_at: Timestamp::ORIGIN,
            is_asked: false,
            tail: None,
            deputy: None,
            gains: 0,
            touched: Vec::new(),
        }
    }
}

impl<W: Clone, P> WaitQueue<W, P> {
    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.queued.is_empty() && self.placed.is_empty()
    }

    /// Any of the waiters.
    pub fn any(&self) -> Option<&W> {
        let placed = self.placed.values().map(|placed| &placed.queued);
        placed.chain(self.queued.values()).map(|queued| &queued.waiter).next()
    }

    /// What `Limiter::estimate` needs for a waiter that arrives; `None` if the store will be asked for
    /// it at once.
    pub fn behind(&self, cost: i64, now: Timestamp) -> Option<(Vec<i64>, Option<Estimate>)> {
        if self.queued.is_empty() && self.blocked_until().is_none_or(|until| until <= now) {
            return None;
        }
        Some(match self.tail {
            Some((estimate, _)) => (vec![cost], Some(estimate)),
            None => (self.queued.values().map(|one| one.cost).chain([cost]).collect(), None),
        })
    }

    /// Adds a waiter at the end. With an `estimate` (see [`behind`](Self::behind)) that comes after
    /// the deadline the waiter is not added, and its wait is the error.
    pub fn on_arrival(
        &mut self,
        waiter: W,
        cost: i64,
        timeout: Option<Nanos>,
        estimate: Option<Estimate>,
        now: Timestamp,
    ) -> Result<Ticket, Nanos> {
        let deadline = timeout.map(|timeout| now.saturating_add(timeout));
        let read_at = self.tail.map_or(now, |(_, read_at)| read_at);
        let look_at = estimate.map(|estimate| read_at.saturating_add(estimate.wait()));
        if let (Some(look_at), Some(deadline)) = (look_at, deadline)
            && look_at > deadline
        {
            return Err(Nanos::clamped(look_at.get() - now.get()));
        }
        self.tail = estimate.map(|estimate| (estimate, read_at));
        if self.queued.is_empty() {
            self.ask_at = now;
        }
        self.last_ticket += 1;
        let queued = Queued { waiter, cost, arrived_at: now, deadline, look_at, wakes_at: None };
        self.queued.insert(self.last_ticket, queued);
        Ok(self.last_ticket)
    }

    /// Returns what is to be done at `now` by the waiter `ticket`, or by anybody with [`None`].
    pub fn step(&mut self, ticket: Option<Ticket>, now: Timestamp) -> Step<W, P> {
        if let Some(ask) = self.ask(now) {
            return ask;
        }
        let first = self.placed.first_key_value().map(|(&ticket, _)| ticket);
        for one in [first, ticket].into_iter().flatten() {
            if self.placed.get(&one).is_some_and(|placed| placed.due() <= now) {
                return self.serve(one);
            }
        }
        let Some(ticket) = ticket else { return Step::Sleep };
        let Some(queued) = self.queued.get(&ticket) else { return Step::Sleep };
        if queued.deadline.is_some_and(|deadline| deadline <= now) {
            let costs = self.queued.range(..=ticket).map(|(_, one)| one.cost).collect();
            self.take_queued(ticket, now);
            return Step::Overdue { costs };
        }
        if queued.look_at.is_some_and(|look_at| look_at <= now) {
            self.look_again(ticket, now);
        }
        Step::Sleep
    }

    /// Asks for the first queued waiter, if it is time.
    fn ask(&mut self, now: Timestamp) -> Option<Step<W, P>> {
        let (&ticket, queued) = self.queued.first_key_value()?;
        if self.is_asked || now < self.ask_at() {
            return None;
        }
        self.is_asked = true;
        Some(Step::Ask { ticket, waiter: queued.waiter.clone(), cost: queued.cost })
    }

    /// When the store may be asked for the first queued waiter.
    fn ask_at(&self) -> Timestamp {
        self.blocked_until().map_or(self.ask_at, |until| self.ask_at.max(until))
    }

    /// The turn of the last placed waiter, if it is not known how much sooner others would be
    /// served without it.
    fn blocked_until(&self) -> Option<Timestamp> {
        let (_, last) = self.placed.last_key_value()?;
        if last.pace.interval.is_none() { Some(last.due()) } else { None }
    }

    fn serve(&mut self, ticket: Ticket) -> Step<W, P> {
        let Some(placed) = self.take_placed(ticket) else { return Step::Sleep };
        Step::Serve { waiter: placed.queued.waiter, charge: placed.charge }
    }

    /// The expected turn of a queued waiter has passed: the first waiter is late, or others spent
    /// between. One such waiter wakes with the first from now on, the others look again after as
    /// long as they have waited.
    fn look_again(&mut self, ticket: Ticket, now: Timestamp) {
        let is_deputy =
            self.deputy.is_none_or(|deputy| deputy == ticket || !self.queued.contains_key(&deputy));
        if is_deputy {
            self.deputy = Some(ticket);
        }
        let ask_at = self.ask_at();
        if let Some(queued) = self.queued.get_mut(&ticket) {
            let waited = Nanos::clamped((now.get() - queued.arrived_at.get()).max(1));
            let later = now.saturating_add(waited).max(ask_at);
            queued.look_at = Some(if is_deputy && ask_at > now { ask_at } else { later });
        }
    }

    /// Takes the store's answer about the waiter `ticket`, which arrived at `received_at`.
    pub fn on_answer(
        &mut self,
        ticket: Ticket,
        answer: Placing,
        charge: impl FnOnce(Decided) -> P,
        received_at: Timestamp,
    ) -> Option<Rejected<W, P>> {
        self.is_asked = false;
        let Placing { decided, wait, pace } = answer;
        let is_placed = decided.decision.allowed || decided.shadow;
        // Never immediately: that would be an endless loop.
        let wait = if is_placed { wait } else { wait.max(Nanos::clamped(1)) };
        let turn = received_at.saturating_add(wait);
        self.ask_at = if is_placed { received_at } else { turn };
        let Some(queued) = self.queued.get_mut(&ticket) else {
            self.ask_at = received_at;
            return is_placed.then(|| Rejected::Unwanted(charge(decided)));
        };
        // A cost that is available is taken, although the clock may have passed the deadline.
        if wait > Nanos::ZERO && queued.deadline.is_some_and(|deadline| deadline < turn) {
            let charge = is_placed.then(|| charge(decided));
            let queued = self.take_queued(ticket, received_at)?;
            return Some(Rejected::TooLate(queued.waiter, wait, charge));
        }
        self.touched.push(ticket);
        if is_placed {
            let queued = self.queued.remove(&ticket)?;
            if self.queued.is_empty() {
                self.tail = None;
            }
            let gain = -std::mem::take(&mut self.gains);
            let placed = Placed { queued, charge: charge(decided), pace, turn, gain };
            self.placed.insert(ticket, placed);
        }
        None
    }

    /// The store could not be asked for the waiter `ticket`; returns the waiter, which is no longer
    /// in the queue.
    pub fn on_failure(&mut self, ticket: Ticket, now: Timestamp) -> Option<W> {
        (self.is_asked, self.ask_at) = (false, now);
        self.take_queued(ticket, now).map(|queued| queued.waiter)
    }

    /// Removes a waiter. Returns what was charged for it; report with
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
            // The next one may cost less.
            self.ask_at = now;
        }
        Some(queued)
    }

    /// The charge of a waiter that has left was returned to the store: the waiters behind move up.
    pub fn on_returned(&mut self, ticket: Ticket, cost: i64, pace: Pace, now: Timestamp) {
        if let Some(interval) = pace.interval {
            self.pass_on(ticket, interval.get().saturating_mul(cost), pace);
        }
        self.ask_at = now;
    }

    /// Tokens were returned to the bucket. `wait` is how long it is in debt now.
    pub fn on_refund(&mut self, wait: Nanos, now: Timestamp) {
        if let Some((_, last)) = self.placed.last_key_value() {
            let turn = last.turn.get().saturating_sub(self.gains);
            let gain = turn.saturating_sub(now.saturating_add(wait).get()).max(0);
            let pace = last.pace;
            self.pass_on(0, gain, pace);
        }
        (self.ask_at, self.tail) = (now, None);
    }

    /// The limits were replaced. Placed waiters keep their turn, unless the bucket `is_limited` no
    /// longer.
    pub fn on_reload(&mut self, is_limited: bool, now: Timestamp) {
        if !is_limited {
            for placed in self.placed.values_mut() {
                placed.turn = placed.turn.min(now);
            }
            self.touched.extend(self.placed.keys());
        }
        (self.ask_at, self.tail) = (now, None);
    }

    /// The bucket was forgotten, with all charges: every waiter is queued again.
    pub fn on_reset(&mut self, now: Timestamp) -> Vec<P> {
        (self.ask_at, self.tail) = (now, None);
        let mut charges = Vec::with_capacity(self.placed.len());
        let last_turn = self.placed.last_key_value().map(|(_, placed)| placed.turn);
        for queued in self.queued.values_mut() {
            queued.look_at = queued.look_at.or(last_turn);
        }
        self.gains = 0;
        for (ticket, placed) in std::mem::take(&mut self.placed) {
            let queued = Queued { look_at: Some(placed.turn), ..placed.queued };
            self.queued.insert(ticket, queued);
            charges.push(placed.charge);
        }
        charges
    }

    /// Removes all waiters: the limiter is closed.
    pub fn on_close(&mut self) -> (Vec<W>, Vec<P>) {
        let mut waiters = Vec::new();
        let mut charges = Vec::new();
        for placed in std::mem::take(&mut self.placed).into_values() {
            waiters.push(placed.queued.waiter);
            charges.push(placed.charge);
        }
        waiters.extend(std::mem::take(&mut self.queued).into_values().map(|one| one.waiter));
        (waiters, charges)
    }

    /// The next placed waiter behind `ticket` comes earlier, and those behind it.
    fn pass_on(&mut self, ticket: Ticket, gain: i64, pace: Pace) {
        if let Some((&next, placed)) = self.placed.range_mut((Excluded(ticket), Unbounded)).next() {
            let gain = if gain > 0 { pace.usable(gain, placed.pace) } else { gain };
            placed.gain = placed.gain.saturating_add(gain);
            self.gains = self.gains.saturating_add(gain);
            self.touched.push(next);
        }
    }

    /// Until when the waiter sleeps; `None` until it is woken.
    pub fn sleep(&mut self, ticket: Ticket) -> Option<Timestamp> {
        let until = self.until(ticket);
        if let Some(queued) = self.entry(ticket) {
            queued.wakes_at = until;
        }
        until
    }

    fn until(&self, ticket: Ticket) -> Option<Timestamp> {
        if let Some(placed) = self.placed.get(&ticket) {
            return Some(placed.due());
        }
        let queued = self.queued.get(&ticket)?;
        let is_first = self.queued.first_key_value().is_some_and(|(&first, _)| first == ticket);
        let until = match is_first {
            // The caller that asks the store wakes the first.
            true if self.is_asked => None,
            true => Some(self.ask_at()),
            false => queued.look_at,
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

    /// Returns the waiters that sleep longer than they should.
    ///
    /// Only the first waiters are notified that they come earlier: notifying all would make n departures
    /// cost n squared wake-ups.
    pub fn oversleepers(&mut self) -> Vec<W> {
        let firsts = [self.queued.first_key_value().map(|(&ticket, _)| ticket), self.deputy];
        let mut touched = std::mem::take(&mut self.touched);
        touched.extend(firsts.into_iter().flatten());
        touched.extend(self.placed.first_key_value().map(|(&ticket, _)| ticket));
        touched.sort_unstable();
        touched.dedup();
        let mut waiters = Vec::new();
        for ticket in touched {
            let until = self.until(ticket);
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
