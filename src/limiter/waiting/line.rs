//! The queues of a limiter, without I/O: the order of the calls, and when the store is asked next.
//!
//! All instants are on the local clock. A turn is the instant at which an answer arrived plus the wait in
//! it, so the store may use a different clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::engine::time::{Nanos, Timestamp};
use crate::limiter::slots::Releases;
use crate::limiter::waiting::turn::{Demand, Estimate};
use crate::limiter::waiting::{Acquired, Driven, WaitOutcome, WaitingCall};

/// By how much a turn may be later than estimated before the later estimates are computed again.
const SLACK: i64 = 1_000_000;

/// By how much later than its turn a caller may wake by itself.
const LATENESS: i64 = 100_000;

/// How many calls of a queue are charged ahead at most.
const AHEAD: usize = 32;

/// The name of a limit, and a canonical id.
pub(super) type BucketKey = (Box<str>, Box<str>);

/// The order in a queue: who keeps fewer tokens comes first, then who has arrived first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket {
    pub(super) keep: i64,
    pub(super) number: u64,
}

/// The queues, and the calls that wait in them or have an outcome for their caller.
#[derive(Debug)]
pub(super) struct Line<W> {
    calls: BTreeMap<u64, Caller<W>>,
    queues: BTreeMap<BucketKey, Queue>,
    deadlines: BTreeSet<(Timestamp, u64)>,
    /// Charges that belong to no call any more, to be returned to the store.
    pub(super) unused: Vec<Acquired>,
    /// Whether other processes return slots, too.
    is_shared: bool,
}

/// A call that waits, and how to wake its caller.
#[derive(Debug)]
struct Caller<W> {
    call: Arc<WaitingCall>,
    waker: W,
    arrived_at: Timestamp,
    deadline: Option<Timestamp>,
    /// The transactions in whose queues it waits.
    places: SmallVec<[(usize, BucketKey); 1]>,
    /// Whether a thread asks the store for it.
    is_asked: bool,
    /// When it looks whether those before it are late. At first its estimated turn.
    check_at: Option<Timestamp>,
    /// When the caller wakes by itself.
    wakes_at: Option<Timestamp>,
    outcome: Option<WaitOutcome>,
}

/// The calls that wait for one bucket.
#[derive(Debug)]
struct Queue {
    /// Their transactions on this bucket, and its cost.
    tickets: BTreeMap<Ticket, QueuedPart>,
    /// The charges of the first calls, in order: each belongs to the call at its rank.
    charges: VecDeque<Charge>,
    /// Whether the turns of the charges may come earlier than known, because tokens were returned.
    is_early: bool,
    /// When the store is asked for the first without a charge.
    ask_at: Timestamp,
    /// Whether the answer to a question in progress may be outdated.
    is_changed: bool,
    /// The estimated turn of the last, and the instant at which the bucket was read; `None` if unknown.
    tail: Option<(Estimate, Timestamp)>,
    slots: Releases,
}

/// A call in a queue.
#[derive(Clone, Copy, Debug)]
struct QueuedPart {
    /// Its transaction on this bucket.
    index: usize,
    cost: i64,
    /// Whether its cost may be charged before its turn.
    may_owe: bool,
}

/// The cost of a call, which was taken from the bucket before its tokens were there.
#[derive(Debug)]
pub(super) struct Charge {
    /// When the bucket is out of debt, so that the call may be served.
    pub(super) turn: Timestamp,
    pub(super) cost: i64,
    pub(super) taken: Acquired,
}

/// What is due in a queue.
#[derive(Debug)]
pub(super) enum Task {
    /// Ask the store.
    Ask(Question),
    /// Serve a call whose turn has come.
    Serve(u64, Charge),
    /// Ask how long the bucket is in debt.
    Reckon,
}

/// A question to the store: may this call have all that it wants?
#[derive(Debug)]
pub(super) struct Question {
    pub(super) number: u64,
    pub(super) call: Arc<WaitingCall>,
    /// The transaction in whose queue it is first; `None` if it is in no queue.
    pub(super) own: Option<(usize, BucketKey)>,
    /// Whether its cost may be charged before its turn.
    pub(super) may_owe: bool,
    /// Whether others are charged before their turn, so that its own has not come.
    pub(super) is_ahead: bool,
    pub(super) deadline: Option<Timestamp>,
}

/// A denial.
#[derive(Clone, Copy, Debug)]
pub(super) struct Denial {
    /// The transaction to wait for.
    pub(super) index: usize,
    pub(super) wait: DeniedWait,
    /// The shortest wait until all rates allow the call; `None` if only slots are waited for.
    pub(super) rates: Option<Nanos>,
}

/// What a denied transaction waits for, and how long.
#[derive(Clone, Copy, Debug)]
pub(super) enum DeniedWait {
    /// Others that wait for its bucket.
    Others,
    /// Tokens, which are there then.
    Tokens(Nanos),
    /// Slots, which are free then at the latest.
    Slots(Nanos),
}

/// What a call does after a denial.
#[derive(Debug)]
pub(super) enum Next {
    Stay,
    /// Wait in the queue of this transaction, too.
    Join(usize),
    /// Refuse it: its turn would come in this time, if that is known.
    Late(Option<Nanos>),
}

impl<W: Clone> Line<W> {
    pub(super) fn new(is_shared: bool) -> Line<W> {
        let (calls, queues) = (BTreeMap::new(), BTreeMap::new());
        Line { calls, queues, deadlines: BTreeSet::new(), unused: Vec::new(), is_shared }
    }

    /// Returns empty queues of the same limiter.
    pub(super) fn fresh(&self) -> Line<W> {
        Line::new(self.is_shared)
    }

    pub(super) fn queues(&self) -> usize {
        self.queues.len()
    }

    pub(super) fn keys(&self) -> Vec<BucketKey> {
        self.queues.keys().cloned().collect()
    }

    pub(super) fn places(&self, number: u64) -> Vec<BucketKey> {
        let places = self.calls.get(&number).into_iter().flat_map(|waiter| &waiter.places);
        places.map(|(_, key)| key.clone()).collect()
    }

    /// Adds a call, which is in no queue yet.
    pub(super) fn admit(
        &mut self,
        (number, arrived_at): (u64, Timestamp),
        call: Arc<WaitingCall>,
        waker: W,
    ) {
        let deadline = call.timeout.map(|timeout| arrived_at.saturating_add(timeout));
        self.deadlines.extend(deadline.map(|deadline| (deadline, number)));
        let (places, is_asked, check_at) = (SmallVec::new(), false, None);
        let (wakes_at, outcome) = (None, None);
        self.calls.insert(
            number,
            Caller {
                call,
                waker,
                arrived_at,
                deadline,
                places,
                is_asked,
                check_at,
                wakes_at,
                outcome,
            },
        );
    }

    /// Returns whether others are before `ticket`.
    pub(super) fn has_before(&self, key: &BucketKey, ticket: Ticket) -> bool {
        self.queues.get(key).is_some_and(|queue| queue.tickets.range(..ticket).next().is_some())
    }

    /// Returns the demands of those up to `last`, and the estimate after which they come.
    pub(super) fn demands_to(
        &self,
        key: &BucketKey,
        last: Ticket,
        cost: i64,
    ) -> Option<(Vec<Demand>, Option<Estimate>)> {
        let queue = self.queues.get(key).filter(|_| self.has_before(key, last))?;
        Some(match queue.tail_before(last) {
            Some((estimate, _)) => (vec![(cost, last.keep)], Some(estimate)),
            None => {
                let before = queue.tickets.range(..last).skip(queue.charges.len());
                let before = before.map(|(ticket, place)| (place.cost, ticket.keep));
                (before.chain([(cost, last.keep)]).collect(), None)
            }
        })
    }

    /// Adds a call to the queue of its transaction `index`. `estimate` is its turn, if known.
    ///
    /// # Errors
    /// The wait, if its turn would come after its deadline. It is then in no queue.
    pub(super) fn join(
        &mut self,
        number: u64,
        index: usize,
        key: BucketKey,
        estimate: Option<Estimate>,
        now: Timestamp,
    ) -> Result<(), Nanos> {
        let Some(waiter) = self.calls.get_mut(&number) else { return Ok(()) };
        if waiter.outcome.is_some() || waiter.places.iter().any(|(at, _)| *at == index) {
            return Ok(());
        }
        let want = &waiter.call.wants[index];
        let ticket = Ticket { keep: want.keep, number };
        let tail = self.queues.get(&key).and_then(|queue| queue.tail_before(ticket));
        let read_at = tail.map_or(now, |(_, read_at)| read_at);
        let turn = estimate.map(|estimate| read_at.saturating_add(estimate.wait()));
        if let (Some(turn), Some(deadline)) = (turn, waiter.deadline)
            && turn > deadline
        {
            return Err(Nanos::clamped(turn.get() - now.get()));
        }
        let queue =
            self.queues.entry(key.clone()).or_insert_with(|| Queue::new(self.is_shared, now));
        let place = QueuedPart { index, cost: want.cost, may_owe: waiter.call.may_owe() };
        queue.tickets.insert(ticket, place);
        self.unused.extend(queue.unfit());
        let is_last = queue.tickets.last_key_value().is_some_and(|(&last, _)| last == ticket);
        queue.tail = estimate.map(|estimate| (estimate, read_at)).filter(|_| is_last);
        if queue.is_next(ticket) {
            queue.ask_at = now;
        }
        waiter.check_at = turn;
        waiter.places.push((index, key));
        Ok(())
    }

    /// Returns what is due in a queue.
    pub(super) fn task(&mut self, key: &BucketKey, now: Timestamp) -> Option<Task> {
        let queue = self.queues.get_mut(key)?;
        if std::mem::take(&mut queue.is_early) && !queue.charges.is_empty() {
            return Some(Task::Reckon);
        }
        if queue.charges.front().is_some_and(|charge| charge.turn <= now) {
            let (charge, first) = (queue.charges.pop_front()?, queue.tickets.pop_first()?);
            if queue.tickets.is_empty() {
                self.queues.remove(key);
            }
            let (Ticket { number, .. }, QueuedPart { index, .. }) = first;
            self.calls.get_mut(&number)?.places.retain(|(at, _)| *at != index);
            return Some(Task::Serve(number, charge));
        }
        let (ticket, QueuedPart { index, may_owe, .. }) = queue.next()?;
        let waiter = self.calls.get_mut(&ticket.number)?;
        if now < queue.ask_at || std::mem::replace(&mut waiter.is_asked, true) {
            return None;
        }
        queue.is_changed = false;
        queue.slots.ask(now);
        let (call, own) = (Arc::clone(&waiter.call), Some((index, key.clone())));
        let (is_ahead, deadline) = (!queue.charges.is_empty(), waiter.deadline);
        let number = ticket.number;
        Some(Task::Ask(Question { number, call, own, may_owe, is_ahead, deadline }))
    }

    /// Keeps the charge of a call until its turn. It is unused if the call has left meanwhile.
    pub(super) fn keep_charge(
        &mut self,
        question: &Question,
        charge: Charge,
        now: Timestamp,
        driven: &mut Driven<W>,
    ) {
        let Some((_, key)) = &question.own else { return };
        let ticket = Ticket { keep: 0, number: question.number };
        match self.queues.get_mut(key) {
            Some(queue) if queue.is_next(ticket) => {
                queue.charges.push_back(charge);
                queue.ask_at = now;
                self.wake(question.number, driven);
            }
            _ => self.unused.push(charge.taken),
        }
    }

    /// Applies the time for which a bucket is still in debt: the turns of all charges come earlier.
    pub(super) fn reckon(&mut self, key: &BucketKey, wait: Nanos, now: Timestamp) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        let last = queue.charges.back().map_or(0, |charge| charge.turn.get());
        let gain = (last - now.saturating_add(wait).get()).max(0);
        for charge in &mut queue.charges {
            charge.turn = Timestamp::clamped(charge.turn.get() - gain);
        }
    }

    /// Removes the charges of a bucket, whose calls are then asked for again; `is_gone`, if the bucket was
    /// reset. Keeps them if `is_kept` returns true for one.
    pub(super) fn drop_charges(
        &mut self,
        key: &BucketKey,
        is_gone: bool,
        is_kept: impl Fn(&Acquired) -> bool,
    ) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        if queue.charges.front().is_some_and(|charge| !is_kept(&charge.taken)) {
            let charges = std::mem::take(&mut queue.charges).into_iter();
            self.unused.extend(charges.map(|charge| charge.taken).filter(|_| !is_gone));
        }
    }

    /// Handles a denial: lets the first of a queue wait there, or give its place up.
    ///
    /// It holds up those behind it for a limit of another queue only for as long as it has already waited.
    pub(super) fn deny(&mut self, question: &Question, denial: Denial, now: Timestamp) -> Next {
        let Denial { index, wait, rates } = denial;
        let Some(waiter) = self.calls.get_mut(&question.number) else { return Next::Stay };
        // Another thread asks for a caller that has not woken.
        waiter.wakes_at = waiter.wakes_at.filter(|at| *at > now);
        let deadline = waiter.deadline;
        let ready_at = rates.map_or(now, |wait| now.saturating_add(wait));
        if deadline.is_some_and(|deadline| ready_at > deadline) {
            return Next::Late(rates.map(|wait| wait.max(Nanos::clamped(1))));
        }
        let waited = now.get() - waiter.arrived_at.get();
        let Some((own, key)) = &question.own else { return Next::Join(index) };
        let is_own = *own == index;
        let stays = match wait {
            DeniedWait::Slots(wait) if is_own => Some((wait, deadline.or(Some(Timestamp::MAX)))),
            DeniedWait::Tokens(wait) | DeniedWait::Slots(wait)
                if is_own || wait.get() <= waited =>
            {
                Some((wait, None))
            }
            DeniedWait::Others | DeniedWait::Tokens(_) | DeniedWait::Slots(_) => None,
        };
        let ticket = Ticket { keep: waiter.call.wants[*own].keep, number: question.number };
        let check_at = waiter.check_at;
        match stays {
            Some((wait, slots_by)) => {
                if let Some(queue) = self.queues.get_mut(key) {
                    queue.put_off(ticket, wait, slots_by, now);
                    if check_at.is_none_or(|at| queue.ask_at.get() - at.get() > SLACK) {
                        queue.tail = None;
                    }
                }
            }
            None => self.give_up(question.number, Some(*own), now),
        }
        if is_own { Next::Stay } else { Next::Join(index) }
    }

    /// Ends a call. Returns its queues, and what was taken if the caller has left.
    pub(super) fn finish(
        &mut self,
        number: u64,
        outcome: WaitOutcome,
        now: Timestamp,
        driven: &mut Driven<W>,
    ) -> (Vec<BucketKey>, Option<Acquired>) {
        let keys = self.places(number);
        self.give_up(number, None, now);
        match self.calls.get_mut(&number).filter(|waiter| waiter.outcome.is_none()) {
            Some(waiter) => {
                if let Some(deadline) = waiter.deadline {
                    self.deadlines.remove(&(deadline, number));
                }
                waiter.outcome = Some(outcome);
                driven.woken.push((number, waiter.waker.clone()));
                (keys, None)
            }
            None => {
                (keys, if let WaitOutcome::Taken(taken) = outcome { Some(taken) } else { None })
            }
        }
    }

    /// Takes the first, who was served, out of its queue.
    pub(super) fn served(&mut self, number: u64, index: usize, key: &BucketKey, now: Timestamp) {
        let Some(waiter) = self.calls.get_mut(&number) else { return };
        waiter.places.retain(|(at, _)| *at != index);
        let ticket = Ticket { keep: waiter.call.wants[index].keep, number };
        if let Some(queue) = self.queues.get_mut(key) {
            let is_changed = queue.has_changed(ticket);
            queue.tickets.remove(&ticket);
            queue.ask_at = if is_changed { now } else { now.max(queue.slots.poll_at()) };
            if queue.tickets.is_empty() {
                self.queues.remove(key);
            }
        }
    }

    /// Takes a call out of the queue of `only` this transaction, or out of all. Those behind move up.
    fn give_up(&mut self, number: u64, only: Option<usize>, now: Timestamp) {
        let Some(waiter) = self.calls.get_mut(&number) else { return };
        let places = std::mem::take(&mut waiter.places);
        for (index, key) in places {
            if only.is_some_and(|only| only != index) {
                waiter.places.push((index, key));
                continue;
            }
            let ticket = Ticket { keep: waiter.call.wants[index].keep, number };
            let Some(queue) = self.queues.get_mut(&key) else { continue };
            if queue.is_next(ticket) {
                // The next one may cost less.
                queue.poke(now);
            }
            queue.tickets.remove(&ticket);
            let unfit = queue.unfit();
            if !unfit.is_empty() {
                queue.ask_at = now;
                self.unused.extend(unfit);
            }
            queue.tail = None;
            if queue.tickets.is_empty() {
                self.queues.remove(&key);
            }
        }
    }

    /// Ends the question for a call. Returns its queues.
    pub(super) fn answered(&mut self, number: u64) -> Vec<BucketKey> {
        if let Some(waiter) = self.calls.get_mut(&number) {
            waiter.is_asked = false;
        }
        self.places(number)
    }

    /// Removes a call whose caller leaves. Returns its outcome, unless the caller has it.
    /// Also returns its waker, to be dropped without the lock.
    pub(super) fn remove(
        &mut self,
        number: u64,
        now: Timestamp,
    ) -> (Option<WaitOutcome>, Option<W>) {
        self.give_up(number, None, now);
        let Some(waiter) = self.calls.remove(&number) else { return (None, None) };
        if let Some(deadline) = waiter.deadline {
            self.deadlines.remove(&(deadline, number));
        }
        (waiter.outcome, Some(waiter.waker))
    }

    /// Returns the outcome of a call, for its caller, if it is like this.
    pub(super) fn take_outcome(
        &mut self,
        number: u64,
        is_wanted: impl FnOnce(&WaitOutcome) -> bool,
    ) -> Option<WaitOutcome> {
        self.calls.get_mut(&number)?.outcome.take_if(|outcome| is_wanted(outcome))
    }

    pub(super) fn has_outcome(&self, number: u64) -> bool {
        self.calls.get(&number).is_none_or(|waiter| waiter.outcome.is_some())
    }

    /// Asks for the first of a queue now: something was returned to the bucket, or its limit has changed.
    pub(super) fn poke(&mut self, key: &BucketKey, now: Timestamp) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.poke(now);
            (queue.tail, queue.is_early) = (None, true);
        }
    }

    /// Asks for the first of a queue after a release of slots.
    pub(super) fn on_release(&mut self, key: &BucketKey, now: Timestamp) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        if queue.slots.add(now) {
            (queue.ask_at, queue.is_changed) = (now, true);
        }
    }

    /// Returns the first call whose deadline has passed, and has no outcome.
    pub(super) fn overdue(&self, now: Timestamp) -> Option<u64> {
        let (deadline, number) = self.deadlines.first()?;
        (*deadline <= now).then_some(*number)
    }

    pub(super) fn is_overdue(&self, number: u64, now: Timestamp) -> bool {
        let waiter = self.calls.get(&number).filter(|waiter| waiter.outcome.is_none());
        waiter.and_then(|waiter| waiter.deadline).is_some_and(|deadline| deadline <= now)
    }

    /// Returns a place of a call, with its ticket there.
    pub(super) fn place(&self, number: u64) -> Option<(usize, BucketKey, Ticket)> {
        let waiter = self.calls.get(&number)?;
        let (index, key) = waiter.places.first()?.clone();
        Some((index, key, Ticket { keep: waiter.call.wants[index].keep, number }))
    }

    pub(super) fn call(&self, number: u64) -> Option<Arc<WaitingCall>> {
        self.calls.get(&number).map(|waiter| Arc::clone(&waiter.call))
    }

    /// Chooses when a call looks again whether those before it are late. If it `has_asked` for them, they
    /// are: it then asks in their place. Otherwise other callers have spent tokens.
    pub(super) fn look_later(&mut self, number: u64, has_asked: bool, now: Timestamp) {
        let Some(waiter) = self.calls.get_mut(&number) else { return };
        if waiter.check_at.is_none_or(|check_at| check_at > now) {
            return;
        }
        let queue = waiter.places.first().and_then(|(_, key)| self.queues.get(key));
        let ask_at = queue.map_or(now, |queue| queue.ask_at);
        let waited = Nanos::clamped((now.get() - waiter.arrived_at.get()).max(1));
        let later = now.saturating_add(waited).max(ask_at);
        waiter.check_at = Some(if has_asked && ask_at > now { ask_at } else { later });
    }

    /// Returns when the caller must step next, and remembers it; `None` to sleep until it is woken.
    pub(super) fn sleep(&mut self, number: u64) -> Option<Timestamp> {
        let until = self.step_at(number);
        if let Some(waiter) = self.calls.get_mut(&number) {
            waiter.wakes_at = until;
        }
        until
    }

    fn step_at(&self, number: u64) -> Option<Timestamp> {
        let waiter = self.calls.get(&number)?;
        let mut has_turn = false;
        let asks = waiter.places.iter().filter_map(|(index, key)| {
            let queue = self.queues.get(key)?;
            let ticket = Ticket { keep: waiter.call.wants[*index].keep, number };
            let turn = queue.turn(ticket);
            let is_first = queue.tickets.first_key_value().is_some_and(|(one, _)| *one == ticket);
            has_turn |= turn.is_some() || is_first;
            // Charged callers ask for the next one.
            turn.or((is_first && !waiter.is_asked).then_some(queue.ask_at))
        });
        let ask_at = asks.min();
        let check_at = waiter.check_at.filter(|_| !has_turn);
        [ask_at, check_at, waiter.deadline].into_iter().flatten().min()
    }

    /// Wakes the first of a queue if it would sleep for too long.
    pub(super) fn wake_first(&mut self, key: &BucketKey, driven: &mut Driven<W>) {
        let first = self.queues.get(key).and_then(|queue| queue.tickets.first_key_value());
        if let Some(number) = first.map(|(ticket, _)| ticket.number) {
            self.wake(number, driven);
        }
    }

    /// Wakes a caller if it would sleep for too long.
    fn wake(&mut self, number: u64, driven: &mut Driven<W>) {
        let until = self.step_at(number);
        let Some(waiter) = self.calls.get_mut(&number) else { return };
        let is_before = |until: Timestamp, at: Timestamp| until.get() < at.get() - LATENESS;
        if until.is_some_and(|until| waiter.wakes_at.is_none_or(|at| is_before(until, at))) {
            waiter.wakes_at = until;
            driven.moved.push((number, waiter.waker.clone()));
        }
    }

    /// Returns the first instant at which something is due in a queue, or a deadline ends.
    pub(super) fn next_instant(&self) -> Option<Timestamp> {
        let asks = self.queues.values().filter_map(|queue| self.due_at(queue));
        asks.chain(self.deadlines.first().map(|(deadline, _)| *deadline)).min()
    }

    fn due_at(&self, queue: &Queue) -> Option<Timestamp> {
        let is_asked = |number: &u64| self.calls.get(number).is_none_or(|waiter| waiter.is_asked);
        let next = queue.next().filter(|(ticket, _)| !is_asked(&ticket.number));
        let turn = queue.charges.front().map(|charge| charge.turn);
        next.map(|_| queue.ask_at).into_iter().chain(turn).min()
    }

    pub(super) fn due(&self, now: Timestamp) -> Vec<BucketKey> {
        let due = self.queues.iter().filter(|(_, queue)| {
            queue.is_early || self.due_at(queue).is_some_and(|due| due <= now)
        });
        due.map(|(key, _)| key.clone()).collect()
    }

    pub(super) fn numbers(&self) -> Vec<u64> {
        self.calls.keys().copied().collect()
    }
}

impl Queue {
    fn new(is_shared: bool, now: Timestamp) -> Queue {
        let slots = Releases::new(is_shared, now);
        let (tickets, charges, tail) = (BTreeMap::new(), VecDeque::new(), None);
        let (is_early, is_changed) = (false, false);
        Queue { tickets, charges, is_early, ask_at: now, is_changed, tail, slots }
    }

    /// Returns the call for which the store is asked next: the first without a charge.
    fn next(&self) -> Option<(Ticket, QueuedPart)> {
        let rank = self.charges.len();
        let (&ticket, &place) = self.tickets.iter().nth(rank).filter(|_| rank < AHEAD)?;
        (rank == 0 || place.may_owe).then_some((ticket, place))
    }

    fn is_next(&self, ticket: Ticket) -> bool {
        self.next().is_some_and(|(next, _)| next == ticket)
    }

    /// Returns the turn of a call that is charged; now, if it may come earlier than known.
    fn turn(&self, ticket: Ticket) -> Option<Timestamp> {
        let mut charged = self.tickets.keys().zip(&self.charges);
        let (_, charge) = charged.find(|(one, _)| **one == ticket)?;
        Some(if self.is_early { Timestamp::ORIGIN } else { charge.turn })
    }

    /// Removes the charges from the first that does not fit the call at its rank.
    fn unfit(&mut self) -> Vec<Acquired> {
        let mut ranks = self.charges.iter().zip(self.tickets.values());
        let unfit = ranks.position(|(one, place)| one.cost != place.cost || !place.may_owe);
        let fit = unfit.unwrap_or(self.tickets.len()).min(self.charges.len());
        self.charges.split_off(fit).into_iter().map(|charge| charge.taken).collect()
    }

    /// Returns the tail if all are before `ticket`.
    fn tail_before(&self, ticket: Ticket) -> Option<(Estimate, Timestamp)> {
        let last = self.tickets.last_key_value().map(|(&last, _)| last);
        self.tail.filter(|_| last.is_none_or(|last| last < ticket))
    }

    fn poke(&mut self, now: Timestamp) {
        self.slots.poke(now);
        (self.ask_at, self.is_changed) = (now, true);
    }

    /// Returns whether an answer for `ticket` may be outdated.
    fn has_changed(&self, ticket: Ticket) -> bool {
        self.is_changed || self.slots.is_open() || !self.is_next(ticket)
    }

    /// Asks for the first again after `wait`. Slots may be returned in between; the last question for them is
    /// at `slots_by`.
    fn put_off(
        &mut self,
        ticket: Ticket,
        wait: Nanos,
        slots_by: Option<Timestamp>,
        now: Timestamp,
    ) {
        let has_changed = self.has_changed(ticket);
        self.slots.deny();
        // A wait of zero without a charge would be a busy loop.
        let mut turn = now.saturating_add(wait.max(Nanos::clamped(1)));
        if let Some(last) = slots_by {
            let polls = [self.slots.poll(now), Some(last).filter(|&last| last > now)];
            turn = polls.into_iter().flatten().fold(turn, Timestamp::min);
        }
        self.ask_at = if has_changed { now } else { turn };
    }
}
