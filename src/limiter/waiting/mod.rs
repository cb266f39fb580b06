//! Waiting: calls that wait for their turn.
//!
//! There is one queue per bucket, in order of arrival; only a call that must leave tokens in the bucket is
//! behind those that need not. The store is asked for the first of a queue, by an ordinary spend or
//! reservation of everything that it wants, and again when it may be allowed. The others know their place:
//! the sum of the demands before them gives their turn.
//!
//! A token or leaky bucket charges a call that is denied, and the next ones, before their turn: it goes into
//! debt, up to one burst. So no other call takes their tokens, and a caller that wakes late delays only itself. A
//! charge belongs to a place in the queue. If a call leaves, those behind it take over the charges before
//! theirs, and the last charge is returned.
//!
//! A call about several limits is one decision, too. It waits in the queue of the limit that denies it. If
//! it is first there and another limit denies it, it also takes a place in that limit's queue, where its
//! arrival counts, and holds up those behind it for at most as long as it has already waited.
//!
//! Any awake caller asks for the first: its own thread or event loop, a caller whose turn has passed, a
//! release. No lock is held while the store is asked. The functions return whom to wake, so that this
//! module knows neither threads nor event loops.

mod line;
mod turn;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::clock::Clock;
use crate::engine::answer::Outcome as Found;
use crate::engine::batch::Kind;
use crate::engine::factor::Adjustment;
use crate::engine::time::{Nanos, Timestamp};
use crate::engine::verb::Verb;
use crate::limiter::batch::with_batch;
use crate::limiter::{
    AnsweredAll, BoundLimit, Call, CallError, Decided, Ending, Endings, Failure, HeldSlotKey,
    Limiter, OpenSlots, Snapshot, Transaction,
};
use crate::store::{Store, StoreError};
use crate::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, forks};

use line::{BucketKey, Charge, Denial, DeniedWait, Line, Next, Question, Task, Ticket};
pub use turn::{Demand, Estimate};

/// A call that waits for one limit or several, which decide together.
#[derive(Debug)]
pub struct WaitingCall {
    /// A spend or a reservation.
    pub verb: Verb,
    /// What it wants.
    pub wants: Vec<Want>,
    /// The longest acceptable wait.
    pub timeout: Option<Nanos>,
    /// Whether nothing is taken before all its limits allow it.
    pub is_joint: bool,
}

/// A transaction of a call that waits, under whatever limits are active when it is decided.
#[derive(Debug)]
pub struct Want {
    /// The limit.
    pub name: Box<str>,
    /// The client's id.
    pub id: Box<str>,
    /// Tokens or slots.
    pub cost: i64,
    /// The role in the decision.
    pub kind: Kind,
    /// The tokens that must be left.
    pub keep: i64,
}

/// What a call that waits ends with.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "most are served, and a box would be an allocation")]
pub enum WaitOutcome {
    /// It is served.
    Taken(Acquired),
    /// Its turn did not come in time, or would come in this time.
    Late(Option<Nanos>),
    /// The call is invalid since a reload, or the store does not answer.
    Failed(Failure),
}

/// What was taken for a call.
#[derive(Debug)]
pub struct Acquired {
    /// The transactions, with the limits that have decided.
    pub transactions: Vec<Transaction>,
    /// The answers.
    pub answered: AnsweredAll,
    /// The slots of each transaction, which are held.
    pub slots: SmallVec<[Option<HeldSlotKey>; 1]>,
    /// The numbers at the turn of a call that was charged before it.
    pub decided: Option<Decided>,
}

/// What has happened to a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketChange {
    /// Tokens were returned.
    Refund,
    /// Slots were returned.
    Release,
    /// It was reset, charges included.
    Reset,
    /// The limits were replaced.
    Reload,
}

/// The consequences of driving queues, for the caller to execute: whom to wake, in order of service.
#[derive(Debug)]
pub struct Driven<W> {
    /// The numbers of calls that have an outcome, and how to wake their callers.
    pub woken: Vec<(u64, W)>,
    /// Calls that must step earlier than they know. A timer at [`WaitingRoom::next_instant`] does the same.
    pub moved: Vec<(u64, W)>,
    /// Whether the renewal of slots must be planned again.
    pub plans_renewal: bool,
}

/// The calls of a limiter that wait. `W` wakes a caller.
#[derive(Debug)]
pub struct WaitingRoom<W> {
    /// The number of queues, to be read without the lock.
    queues: AtomicUsize,
    arrivals: AtomicU64,
    line: Mutex<(u32, Line<W>)>,
    slots: Arc<OpenSlots>,
}

/// The store's answer to a call.
enum Verdict {
    Taken(Acquired),
    /// Charged, and how long the bucket is in debt.
    Charged(Acquired, Nanos),
    Denied(Denial),
}

impl WaitingCall {
    /// Returns whether its cost may be charged before its turn, if the algorithm allows it. A debt would take
    /// tokens that must be left.
    fn may_owe(&self) -> bool {
        !self.is_joint && self.wants.iter().all(|want| want.keep == 0)
    }

    /// Returns its transactions, under the limits in `active`.
    ///
    /// # Errors
    /// A limit is not there any more.
    pub fn transactions(&self, active: &Snapshot) -> Result<Vec<Transaction>, Failure> {
        let wants = self.wants.iter().map(|want| {
            let limit = Arc::clone(active.limit(&want.name)?);
            let (id, adjustment) = (want.id.to_string(), Adjustment::keeping(want.keep));
            Ok(Transaction { limit, id, cost: want.cost, kind: want.kind, adjustment })
        });
        wants.collect()
    }
}

impl Acquired {
    /// Returns the parts of which something was taken: their indices, and the slots.
    pub fn parts(&self) -> impl Iterator<Item = (usize, Option<HeldSlotKey>)> {
        let parts = self.transactions.iter().zip(&self.answered.parts).zip(&self.slots).enumerate();
        parts.filter_map(|(index, ((transaction, part), slot))| {
            let is_taken = part.answer.outcome == Found::Allowed && transaction.kind != Kind::Check;
            is_taken.then_some((index, *slot))
        })
    }

    /// Returns the operations that undo it.
    fn endings(&self, slots: &OpenSlots) -> Endings {
        let endings = self.parts().filter_map(|(index, slot)| match slot {
            Some(slot) => slots.end(slot),
            None => {
                let Transaction { limit, id, cost, adjustment, .. } = &self.transactions[index];
                let (limit, id, id_hash) = (Arc::clone(limit), id.as_str().into(), None);
                let adjustment = adjustment.clone().and_then(Adjustment::after_spend);
                Some(Ending { limit, id, id_hash, adjustment, verb: Verb::Refund, cost: *cost })
            }
        });
        endings.collect()
    }
}

impl<W> Default for Driven<W> {
    fn default() -> Driven<W> {
        Driven { woken: Vec::new(), moved: Vec::new(), plans_renewal: false }
    }
}

impl<W: Clone> WaitingRoom<W> {
    /// Creates an empty waiting room. `slots` are those that the limiter holds; if it `is_shared`, other
    /// processes return slots, too.
    pub fn new(slots: &Arc<OpenSlots>, is_shared: bool) -> WaitingRoom<W> {
        let (queues, arrivals) = (AtomicUsize::new(0), AtomicU64::new(0));
        let line = Mutex::new((forks(), Line::new(is_shared)));
        WaitingRoom { queues, arrivals, line, slots: Arc::clone(slots) }
    }

    /// Returns whether no call waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // Relaxed: a call that arrives concurrently is ordered either way.
        self.queues.load(Ordering::Relaxed) == 0
    }

    /// Returns the number of a call that arrives. They are served in the order of these numbers.
    pub fn next_number(&self) -> u64 {
        // Relaxed: it orders no other access.
        self.arrivals.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn with<T>(&self, act: impl FnOnce(&mut Line<W>) -> T) -> T {
        let mut stale = None;
        let mut guard: MutexGuard<'_, (u32, Line<W>)> = self.line.lock();
        let (process, line) = &mut *guard;
        if *process != forks() {
            // After a fork, the callers exist only in the parent.
            let fresh = line.fresh();
            (*process, stale) = (forks(), Some(std::mem::replace(line, fresh)));
        }
        let result = act(line);
        self.queues.store(line.queues(), Ordering::Relaxed);
        drop(guard);
        drop(stale);
        result
    }

    /// Serves a call, or lets it wait. Its caller must then [`step`](Self::step) when it is woken, or after
    /// [`sleep`](Self::sleep), take the outcome, and [`leave`](Self::leave) in the end.
    ///
    /// # Errors
    /// The call is invalid.
    pub fn arrive<S: Store, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        arrival: (u64, Timestamp),
        call: &Arc<WaitingCall>,
        waker: W,
        driven: &mut Driven<W>,
    ) -> Result<(), Failure> {
        let transactions = call.transactions(&limiter.snapshot())?;
        with_batch(call.verb, &transactions, |_, _, _, _| Ok(()))?;
        self.with(|line| line.admit(arrival, Arc::clone(call), waker));
        let first = transactions.iter().position(|one| one.kind.decides());
        let (number, _) = arrival;
        let keys = match first {
            Some(index) => self.join(limiter, number, call, index, driven),
            None => {
                let (call, own, deadline) = (Arc::clone(call), None, None);
                let (may_owe, is_ahead) = (false, false);
                let question = Question { number, call, own, may_owe, is_ahead, deadline };
                self.ask(limiter, &question, driven)
            }
        };
        self.drive(limiter, keys, driven);
        Ok(())
    }

    /// Does what is due in the queues of a call.
    pub fn step<S: Store, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        number: u64,
        driven: &mut Driven<W>,
    ) {
        let has_asked = self.drive(limiter, self.with(|line| line.places(number)), driven);
        let now = limiter.clock().now();
        if self.with(|line| line.is_overdue(number, now)) {
            self.refuse_overdue(limiter, number, driven);
        } else {
            self.with(|line| line.look_later(number, has_asked, now));
        }
    }

    /// Does everything that is due, as a clock passes an instant.
    pub fn step_all<S: Store, C: Clock>(&self, limiter: &Limiter<S, C>, driven: &mut Driven<W>) {
        let now = limiter.clock().now();
        self.drive(limiter, self.with(|line| line.due(now)), driven);
        while let Some(number) = self.with(|line| line.overdue(now)) {
            self.refuse_overdue(limiter, number, driven);
        }
    }

    /// Returns when the caller of a call must step next; `None` to sleep until it is woken.
    pub fn sleep(&self, number: u64) -> Option<Timestamp> {
        self.with(|line| line.sleep(number))
    }

    /// Returns the first instant at which a call must step, for a timer.
    pub fn next_instant(&self) -> Option<Timestamp> {
        if self.is_empty() { None } else { self.with(|line| line.next_instant()) }
    }

    /// Returns whether a call has an outcome, or has left.
    pub fn is_done(&self, number: u64) -> bool {
        self.with(|line| line.has_outcome(number))
    }

    /// Takes the outcome of a call over for its caller.
    pub fn take_taken(&self, number: u64) -> Option<Acquired> {
        let taken = |outcome: &WaitOutcome| matches!(outcome, WaitOutcome::Taken(_));
        match self.with(|line| line.take_outcome(number, taken)) {
            Some(WaitOutcome::Taken(taken)) => Some(taken),
            _ => None,
        }
    }

    /// Takes an outcome without what was wanted.
    pub fn take_refusal(&self, number: u64) -> Option<WaitOutcome> {
        self.with(|line| line.take_outcome(number, |one| !matches!(one, WaitOutcome::Taken(_))))
    }

    /// Removes a call whose caller leaves, and undoes what was taken for it unless the caller has it.
    pub fn leave<S: Store, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        number: u64,
        driven: &mut Driven<W>,
    ) {
        let now = limiter.clock().now();
        let (mut keys, (outcome, _waker)) =
            self.with(|line| (line.places(number), line.remove(number, now)));
        if let Some(WaitOutcome::Taken(taken)) = outcome {
            keys.extend(self.undo(limiter, &taken, driven));
        }
        self.drive(limiter, keys, driven);
    }

    /// Asks again for the first calls of a bucket, or of all without `bucket`, because of a change. If the
    /// store may wait, their callers ask.
    pub fn change<S: Store, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        bucket: Option<(&BoundLimit, &str)>,
        change: BucketChange,
        driven: &mut Driven<W>,
    ) {
        if self.is_empty() {
            return;
        }
        let keys = match bucket {
            Some((bound, id)) => bucket_key(limiter, bound, id).into_iter().collect(),
            None => self.with(|line| line.keys()),
        };
        keys.iter().for_each(|key| self.apply(limiter, key, change));
        if limiter.store().may_wait() {
            // This may be an event loop.
            keys.iter().for_each(|key| self.with(|line| line.wake_first(key, driven)));
        } else {
            self.drive(limiter, keys, driven);
        }
    }

    fn apply<S: Store, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        key: &BucketKey,
        change: BucketChange,
    ) {
        let (now, active) = (limiter.clock().now(), limiter.snapshot());
        // The charges of a limit that was removed keep their turns.
        let is_unchanged = |taken: &Acquired| {
            let before =
                taken.transactions.first().map(|one| one.limit.entry().rule_for(&key.1).limit);
            active.limit(&key.0).map_or(true, |bound| {
                let rule = bound.entry().rule_for(&key.1);
                Some(rule.limit) == before && !rule.shadow
            })
        };
        self.with(|line| match change {
            BucketChange::Release => line.on_release(key, now),
            BucketChange::Refund => line.poke(key, now),
            BucketChange::Reset => {
                line.drop_charges(key, true, |_| false);
                line.poke(key, now);
            }
            BucketChange::Reload => {
                line.drop_charges(key, false, is_unchanged);
                line.poke(key, now);
            }
        });
    }

    /// Ends all calls, because the limiter is closed.
    pub fn close(&self, now: Timestamp, driven: &mut Driven<W>) {
        self.with(|line| {
            for number in line.numbers() {
                let closed = WaitOutcome::Failed(Box::new(CallError::Store(StoreError::Closed)));
                line.finish(number, closed, now, driven);
            }
            // The store is closed, too.
            line.unused.clear();
        });
    }

    /// Does what is due in queues, and returns unused charges. Returns whether the store was asked for a call.
    fn drive<S: Store, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        mut keys: Vec<BucketKey>,
        driven: &mut Driven<W>,
    ) -> bool {
        let mut has_asked = false;
        while let Some(key) = keys.last() {
            let now = limiter.clock().now();
            let (unused, task) =
                self.with(|line| (std::mem::take(&mut line.unused), line.task(key, now)));
            match task {
                Some(Task::Ask(question)) => {
                    has_asked = true;
                    keys.extend(self.ask(limiter, &question, driven));
                }
                Some(Task::Serve(number, charge)) => {
                    let outcome = WaitOutcome::Taken(self.serve(limiter, key, charge));
                    keys.extend(self.finish(limiter, number, outcome, driven));
                }
                Some(Task::Reckon) => {
                    let wait = limiter
                        .snapshot()
                        .limit(&key.0)
                        .and_then(|bound| limiter.estimate(bound, &key.1, &[(0, 0)], None));
                    if let Ok(Some(estimate)) = wait {
                        let now = limiter.clock().now();
                        self.with(|line| line.reckon(key, estimate.wait(), now));
                    }
                }
                None => {
                    self.with(|line| line.wake_first(key, driven));
                    keys.pop();
                }
            }
            for taken in unused {
                keys.extend(self.undo(limiter, &taken, driven));
            }
        }
        has_asked
    }

    /// Counts a call whose turn has come. Returns its charge with the bucket's current numbers.
    fn serve<S: Store, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        (name, id): &BucketKey,
        Charge { cost, mut taken, .. }: Charge,
    ) -> Acquired {
        let active = limiter.snapshot();
        let decided = active.limit(name).and_then(|one| limiter.served(one, Call::check(id, cost)));
        if let Some(one) = taken.transactions.first() {
            limiter.count_served(&one.limit, id);
            // If the limit was removed or the store does not answer, the numbers of the charge are used.
            taken.decided = Some(decided.unwrap_or_else(|_| {
                let answered = taken.answered.clone();
                let mut decided = answered.decided(&taken.transactions).parts.remove(0);
                (decided.decision.allowed, decided.decision.retry_after) = (true, Nanos::ZERO);
                decided
            }));
        }
        taken
    }

    /// Asks the store for a call, and handles the answer. Returns the queues to drive next.
    fn ask<S: Store, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        question: &Question,
        driven: &mut Driven<W>,
    ) -> Vec<BucketKey> {
        let Question { number, call, own, deadline, .. } = question;
        let verdict = self.decide(limiter, question, driven);
        let now = limiter.clock().now();
        let mut keys = match verdict {
            Ok(Verdict::Taken(taken)) => {
                if let Some((index, key)) = own {
                    self.with(|line| line.served(*number, *index, key, now));
                }
                self.finish(limiter, *number, WaitOutcome::Taken(taken), driven)
            }
            Ok(Verdict::Charged(taken, wait)) => {
                let turn = now.saturating_add(wait);
                if deadline.is_some_and(|deadline| turn > deadline) {
                    let mut keys = self.undo(limiter, &taken, driven);
                    let late = WaitOutcome::Late(Some(wait));
                    keys.extend(self.finish(limiter, *number, late, driven));
                    keys
                } else {
                    let cost = call.wants[0].cost;
                    let is_outdated =
                        taken.transactions[0].limit.generation != limiter.generation();
                    let charge = Charge { turn, cost, taken };
                    self.with(|line| line.keep_charge(question, charge, now, driven));
                    if let Some((_, key)) = own.as_ref().filter(|_| is_outdated) {
                        // The reload has not seen this charge.
                        self.apply(limiter, key, BucketChange::Reload);
                    }
                    Vec::new()
                }
            }
            Ok(Verdict::Denied(denial)) => {
                match self.with(|line| line.deny(question, denial, now)) {
                    Next::Stay => Vec::new(),
                    Next::Join(index) => self.join(limiter, *number, call, index, driven),
                    Next::Late(wait) => {
                        self.finish(limiter, *number, WaitOutcome::Late(wait), driven)
                    }
                }
            }
            Err(failure) => self.finish(limiter, *number, WaitOutcome::Failed(failure), driven),
        };
        keys.extend(self.with(|line| line.answered(*number)));
        keys
    }

    fn finish<S: Store, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        number: u64,
        outcome: WaitOutcome,
        driven: &mut Driven<W>,
    ) -> Vec<BucketKey> {
        let now = limiter.clock().now();
        let finish = |line: &mut Line<W>| line.finish(number, outcome, now, driven);
        let (mut keys, unclaimed) = self.with(finish);
        if let Some(taken) = unclaimed {
            keys.extend(self.undo(limiter, &taken, driven));
        }
        keys
    }

    /// Decides all that a call wants, unless others have waited longer for a part of it.
    fn decide<S: Store, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        Question { number, call, own, may_owe, is_ahead, deadline }: &Question,
        driven: &mut Driven<W>,
    ) -> Result<Verdict, Failure> {
        let transactions = call.transactions(&limiter.snapshot())?;
        if *is_ahead && let Some(charged) = self.charge(limiter, &transactions)? {
            return Ok(charged);
        }
        let own = own.as_ref().map(|(index, _)| *index);
        let is_behind_others = |(index, one): &(usize, &Transaction)| {
            let key = bucket_key(limiter, &one.limit, &one.id);
            let ticket = Ticket { keep: call.wants[*index].keep, number: *number };
            Some(*index) != own
                && one.kind.decides()
                && key.is_some_and(|key| self.with(|line| line.has_before(&key, ticket)))
        };
        if let Some((index, _)) = transactions.iter().enumerate().find(is_behind_others) {
            return Ok(Verdict::Denied(Denial { index, wait: DeniedWait::Others, rates: None }));
        }
        let answered = limiter.place_all(call.verb, &transactions)?;
        let decided = answered.clone().decided(&transactions);
        let Some(index) = decided.binding.filter(|_| !decided.decision.allowed) else {
            let now = limiter.clock().now();
            let slots = limiter.hold_all(&self.slots, &transactions, &answered, now);
            driven.plans_renewal |= slots.iter().flatten().any(|added| added.is_earlier);
            let slots = slots.into_iter().map(|added| added.map(|added| added.key)).collect();
            return Ok(Verdict::Taken(Acquired { transactions, answered, slots, decided: None }));
        };
        let wait_for = |index: usize| {
            let (one, wait) = (&transactions[index], decided.parts[index].decision.retry_after);
            let key = bucket_key(limiter, &one.limit, &one.id);
            match key.and_then(|(_, id)| one.limit.slots_for(&id)) {
                Some(_) => DeniedWait::Slots(wait),
                None => DeniedWait::Tokens(wait),
            }
        };
        let parts = transactions.iter().zip(&decided.parts).enumerate();
        let denied = parts.filter(|(_, (one, part))| one.kind.decides() && !part.allowed());
        let rates = denied.filter_map(|(index, _)| match wait_for(index) {
            DeniedWait::Tokens(wait) => Some(wait),
            DeniedWait::Slots(_) | DeniedWait::Others => None,
        });
        let rates = rates.max();
        let turn = limiter.clock().now().saturating_add(decided.decision.retry_after);
        if *may_owe
            && deadline.is_none_or(|deadline| turn <= deadline)
            && let Some(charged) = self.charge(limiter, &transactions)?
        {
            return Ok(charged);
        }
        Ok(Verdict::Denied(Denial { index, wait: wait_for(index), rates }))
    }

    /// Charges the cost of a call before its turn; `None` if the algorithm does not allow it.
    fn charge<S: Store, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        transactions: &[Transaction],
    ) -> Result<Option<Verdict>, Failure> {
        let [one] = transactions else { return Ok(None) };
        let id = one.limit.canonical(&one.id)?;
        if one.limit.entry().rule_for(&id).limit.repayment(one.cost).is_none() {
            return Ok(None);
        }
        let answered = limiter.charge(transactions)?;
        let decision = answered.clone().decided(transactions).decision;
        let wait = decision.retry_after;
        if !decision.allowed {
            let denial = Denial { index: 0, wait: DeniedWait::Tokens(wait), rates: Some(wait) };
            return Ok(Some(Verdict::Denied(denial)));
        }
        let transaction = Transaction {
            limit: Arc::clone(&one.limit),
            id: one.id.clone(),
            adjustment: None,
            ..*one
        };
        let (transactions, slots) = (vec![transaction], SmallVec::from_elem(None, 1));
        Ok(Some(Verdict::Charged(Acquired { transactions, answered, slots, decided: None }, wait)))
    }

    /// Adds a call to the queue of one of its transactions, or refuses it because its turn there would
    /// come too late. Returns the queues to drive next.
    fn join<S: Store, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        number: u64,
        call: &WaitingCall,
        index: usize,
        driven: &mut Driven<W>,
    ) -> Vec<BucketKey> {
        let join = || -> Result<Result<BucketKey, Nanos>, Failure> {
            let (active, want) = (limiter.snapshot(), &call.wants[index]);
            let bound = active.limit(&want.name)?;
            let id = limiter.waiter_id(bound, Call::check(&want.id, 0))?.into_boxed_str();
            let key = (want.name.clone(), id);
            let ticket = Ticket { keep: want.keep, number };
            let demands = self.with(|line| line.demands_to(&key, ticket, want.cost));
            let estimate = match demands.filter(|_| bound.slots_for(&key.1).is_none()) {
                Some((demands, after)) => limiter.estimate(bound, &key.1, &demands, after)?,
                None => None,
            };
            let now = limiter.clock().now();
            let joined = self.with(|line| line.join(number, index, key.clone(), estimate, now));
            Ok(joined.map(|()| key))
        };
        match join() {
            Ok(Ok(key)) => vec![key],
            Ok(Err(wait)) => self.finish(limiter, number, WaitOutcome::Late(Some(wait)), driven),
            Err(failure) => self.finish(limiter, number, WaitOutcome::Failed(failure), driven),
        }
    }

    /// Refuses a call whose deadline has passed.
    fn refuse_overdue<S: Store, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        number: u64,
        driven: &mut Driven<W>,
    ) {
        let found = self.with(|line| Some((line.call(number)?, line.place(number))));
        let Some((call, place)) = found else { return };
        let wait = place.and_then(|(index, key, ticket)| {
            let (active, cost) = (limiter.snapshot(), call.wants[index].cost);
            let bound =
                active.limit(&key.0).ok().filter(|bound| bound.slots_for(&key.1).is_none())?;
            let demands = self.with(|line| line.demands_to(&key, ticket, cost));
            let (demands, after) = demands.unwrap_or((vec![(cost, ticket.keep)], None));
            let estimate = limiter.estimate(bound, &key.1, &demands, after).ok().flatten();
            Some(estimate.map_or(Nanos::ZERO, |estimate| estimate.wait()))
        });
        let keys = self.finish(limiter, number, WaitOutcome::Late(wait), driven);
        self.drive(limiter, keys, driven);
    }

    /// Returns to the store what was taken for a call that its caller has left. Returns the queues that
    /// move up. If the store fails, tokens come back with time.
    fn undo<S: Store, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        taken: &Acquired,
        driven: &mut Driven<W>,
    ) -> Vec<BucketKey> {
        let endings = taken.endings(&self.slots);
        let now = limiter.clock().now();
        if let Err(error) = limiter.end_all(&endings)
            && let CallError::Store(error) = *error
        {
            self.slots.retry(endings, &error, now);
            driven.plans_renewal = true;
            return Vec::new();
        }
        let keys = endings.iter().filter_map(|end| bucket_key(limiter, &end.limit, &end.id));
        let keys: Vec<_> = keys.collect();
        keys.iter().for_each(|key| self.with(|line| line.poke(key, now)));
        keys
    }
}

/// Returns the queue of a bucket; `None` if its id is invalid since a reload.
fn bucket_key<S: Store, C: Clock>(
    limiter: &Limiter<S, C>,
    bound: &BoundLimit,
    id: &str,
) -> Option<BucketKey> {
    let id = limiter.waiter_id(bound, Call::check(id, 0)).ok()?;
    Some((bound.entry().name().as_str().into(), id.into_boxed_str()))
}
