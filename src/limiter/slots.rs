//! The slots that this process holds, and the ends of reservations.

use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::{SmallVec, smallvec};

use crate::clock::Clock;
use crate::engine::algorithm::in_flight::InFlight;
use crate::engine::answer::Answer;
use crate::engine::batch::{Kind, Member};
use crate::engine::cost::Cost;
use crate::engine::factor::Adjustment;
use crate::engine::state::Lease;
use crate::engine::time::{Nanos, Timeline, Timestamp};
use crate::engine::verb::Verb;
use crate::limiter::batch::BatchVec;
use crate::limiter::bound::Resolved;
use crate::limiter::error::store_failed;
use crate::limiter::store_ops::Members;
use crate::limiter::{Answered, BoundLimit, Call, CallError, Failure, Limiter, Snapshot};
use crate::store::remote::RemoteCall;
use crate::store::{Answers, Batch, Bucket, Store, StoreError, Wait};
use crate::sync::{TryLock, TryLockGuard, forks};

/// The number of slots that are renewed at a time.
const BLOCK: usize = 64;

/// Slots of one bucket that this process holds.
#[derive(Debug)]
struct HeldSlot {
    limit: Arc<BoundLimit>,
    id: Box<str>,
    cost: i64,
    lease: Lease,
    /// When they were taken or renewed, on the limiter's clock.
    since: Timestamp,
    /// Half the lease: the age at which they are renewed.
    renewed_every: Nanos,
    /// Whether a renewal is under way. The release then follows it, under the new lease.
    is_renewing: bool,
    is_ended: bool,
}

/// The place of held slots in the list. It is never that of others, in this process or its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldSlotKey {
    index: usize,
    turn: u64,
}

impl HeldSlot {
    fn due(&self) -> Timestamp {
        self.since.saturating_add(self.renewed_every)
    }

    #[inline(always)]
    fn release(self) -> Ending {
        let HeldSlot { limit, id, cost, lease, .. } = self;
        Ending { limit, id, adjustment: None, verb: Verb::Release(lease), cost }
    }
}

/// An operation that ends a part of a reservation, independent of the others.
#[derive(Clone, Debug)]
pub struct Ending {
    /// The limit at the time of the reservation.
    pub limit: Arc<BoundLimit>,
    /// The client's id.
    pub id: Box<str>,
    /// What the call changes in its limit.
    pub adjustment: Option<Adjustment>,
    /// A release, a refund or a partial charge.
    pub verb: Verb,
    /// Tokens or slots.
    pub cost: i64,
}

impl Ending {
    /// Returns the limit under which it is executed: slots are given back and renewed under the active one,
    /// if there is one.
    fn bound<'a>(&'a self, snapshot: &'a Snapshot) -> &'a BoundLimit {
        match self.verb {
            Verb::Release(_) | Verb::Renew(_) => {
                snapshot.limit(self.limit.entry().name().as_str()).unwrap_or(&self.limit)
            }
            _ => &self.limit,
        }
    }

    // Inlined into every end of a slot: what it returns is large.
    #[inline(always)]
    fn resolve<'a>(&'a self, bound: &'a BoundLimit) -> Result<Resolved<'a>, Failure> {
        let Ending { id, adjustment, verb, cost, .. } = self;
        let call = Call { verb: *verb, id, cost: 0, adjustment: adjustment.as_ref() };
        let mut resolved = bound.resolve(call)?;
        resolved.cost = match verb {
            Verb::ChargePartial => resolved.limit().cost_in_parts(*cost),
            // More than a lower limit allows since a reload.
            _ => Cost::new(*cost, i64::MAX).unwrap_or(Cost::ZERO),
        };
        Ok(resolved)
    }
}

/// The endings of a reservation, which almost always has one part.
pub type Endings = SmallVec<[Ending; 1]>;

/// Endings that a store has not executed, to be tried again until an instant.
type Failed = Vec<(Timestamp, Endings)>;

/// The slots that a limiter of this process holds.
#[derive(Debug, Default)]
pub struct OpenSlots {
    open: TryLock<SlotList>,
    failed: TryLock<Failed>,
}

/// Slots that were added to the list.
#[derive(Clone, Copy, Debug)]
pub struct AddedSlot {
    /// Their place in the list.
    pub key: HeldSlotKey,
    /// Whether the renewal must be started for them.
    pub starts_renewal: bool,
}

/// Held slots, each with the turn of its key. A place without slots is in `free`.
#[derive(Debug, Default)]
struct SlotList {
    places: Vec<(u64, Option<HeldSlot>)>,
    free: Vec<usize>,
    /// The turn of the next key.
    next_turn: u64,
    /// The forks of the process that holds them. Those of a parent are not this process's.
    forks: u32,
    /// Whether a thread or a timer renews them.
    is_renewed: bool,
}

impl SlotList {
    #[inline(always)]
    fn insert(&mut self, slot: HeldSlot) -> AddedSlot {
        let turn = self.next_turn;
        self.next_turn += 1;
        let index = match self.free.pop() {
            Some(index) => {
                self.places[index] = (turn, Some(slot));
                index
            }
            None => {
                self.places.push((turn, Some(slot)));
                self.places.len() - 1
            }
        };
        let key = HeldSlotKey { index, turn };
        AddedSlot { key, starts_renewal: self.starts_renewal() }
    }

    fn starts_renewal(&mut self) -> bool {
        !std::mem::replace(&mut self.is_renewed, true)
    }

    fn place(&mut self, key: HeldSlotKey) -> Option<&mut Option<HeldSlot>> {
        let (turn, slot) = self.places.get_mut(key.index)?;
        (*turn == key.turn).then_some(slot)
    }

    fn remove(&mut self, key: HeldSlotKey) -> Option<HeldSlot> {
        let slot = self.place(key)?.take()?;
        self.free.push(key.index);
        Some(slot)
    }

    /// Returns the slots that were not given back.
    fn iter(&self) -> impl Iterator<Item = (HeldSlotKey, &HeldSlot)> {
        let places = self.places.iter().enumerate();
        places.filter_map(|(index, (turn, slot))| {
            let slot = slot.as_ref().filter(|slot| !slot.is_ended)?;
            Some((HeldSlotKey { index, turn: *turn }, slot))
        })
    }
}

fn half(lease: Nanos) -> Nanos {
    Nanos::clamped(lease.get() / 2)
}

/// Returns half the lease of a client's slots.
fn half_lease(limit: &BoundLimit, id: &str) -> Nanos {
    let rule = limit.entry().rule_for(id);
    half(rule.limit.slots().map_or(InFlight::MIN_LEASE, InFlight::lease))
}

impl OpenSlots {
    /// Adds slots that were taken at `now`.
    pub fn add(
        &self,
        limit: &Arc<BoundLimit>,
        id: &str,
        cost: i64,
        lease: Lease,
        now: Timestamp,
    ) -> AddedSlot {
        self.insert(limit, id, cost, lease, now, half_lease(limit, id))
    }

    #[inline]
    fn insert(
        &self,
        limit: &Arc<BoundLimit>,
        id: &str,
        cost: i64,
        lease: Lease,
        since: Timestamp,
        renewed_every: Nanos,
    ) -> AddedSlot {
        let (limit, id) = (Arc::clone(limit), id.into());
        let (is_renewing, is_ended) = (false, false);
        self.open().insert(HeldSlot {
            limit,
            id,
            cost,
            lease,
            since,
            renewed_every,
            is_renewing,
            is_ended,
        })
    }

    fn open(&self) -> TryLockGuard<'_, SlotList> {
        let mut open = self.open.lock();
        let forks = forks();
        if open.forks != forks {
            *open = SlotList { forks, next_turn: open.next_turn, ..SlotList::default() };
            self.failed.lock().clear();
        }
        open
    }

    /// Ends the holding of slots. Returns the release to execute; `None` if they were given back, belong to
    /// another process, or are being renewed and are released after that.
    #[inline(always)]
    pub fn end(&self, key: HeldSlotKey) -> Option<Ending> {
        let mut open = self.open();
        let place = open.place(key)?;
        if let Some(slot) = place
            && slot.is_renewing
        {
            slot.is_ended = true;
            return None;
        }
        let slot = place.take()?;
        open.free.push(key.index);
        drop(open);
        Some(slot.release())
    }

    /// Forgets slots without giving them back, as a process that is killed does. A renewal that is under
    /// way does not release them either.
    pub fn abandon(&self, key: HeldSlotKey) {
        let slot = self.open().remove(key);
        drop(slot);
    }

    /// Begins to renew slots. Returns a copy; `None` if they were given back or are being renewed.
    fn begin_renewal(&self, key: HeldSlotKey) -> Option<Ending> {
        let mut open = self.open();
        let slot = open.place(key)?.as_mut()?;
        if slot.is_ended || std::mem::replace(&mut slot.is_renewing, true) {
            return None;
        }
        let (limit, id, verb) = (Arc::clone(&slot.limit), slot.id.clone(), Verb::Renew(slot.lease));
        Some(Ending { limit, id, adjustment: None, verb, cost: slot.cost })
    }

    /// Stores the lease after a renewal, or keeps the previous one. Returns the release if they were
    /// given back meanwhile.
    fn end_renewal(&self, key: HeldSlotKey, renewed: Option<(Lease, Timestamp)>) -> Option<Ending> {
        let mut open = self.open();
        let slot = open.place(key)?.as_mut()?;
        slot.is_renewing = false;
        if let Some((lease, since)) = renewed {
            (slot.lease, slot.since) = (lease, since);
        }
        if slot.is_ended { open.remove(key).map(HeldSlot::release) } else { None }
    }

    /// Tries `endings` again with the next renewal, unless they may have been executed.
    pub fn retry(&self, endings: Endings, error: &StoreError, now: Timestamp) {
        if error.is_outcome_unknown() || *error == StoreError::Closed {
            return;
        }
        self.retry_later(endings, now);
    }

    /// Tries `endings` with the next renewal.
    pub fn retry_later(&self, endings: Endings, now: Timestamp) {
        let lasts = endings.iter().filter_map(|ending| {
            ending.limit.entry().rule_for(&ending.id).limit.slots().map(|slots| slots.lease())
        });
        let until = now.saturating_add(lasts.max().unwrap_or(Nanos::from_millis(30_000)));
        self.failed.lock().push((until, endings));
    }

    /// Returns whether the renewal must be started.
    pub fn starts_renewal(&self) -> bool {
        self.open().starts_renewal()
    }

    /// Applies the leases of new limits.
    fn on_reload(&self, snapshot: &Snapshot) {
        for slot in self.open().places.iter_mut().filter_map(|(_, slot)| slot.as_mut()) {
            if let Ok(limit) = snapshot.limit(slot.limit.entry().name().as_str()) {
                slot.renewed_every = half_lease(limit, &slot.id);
            }
        }
    }

    /// Returns when the next slots are due, or endings are to be tried again; `None`, and the renewal ends,
    /// if there are none.
    pub fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let mut open = self.open();
        let has_failed = !self.failed.lock().is_empty();
        let retry = has_failed.then(|| now.saturating_add(Nanos::SECOND));
        let next = open.iter().map(|(_, slot)| slot.due()).chain(retry).min();
        open.is_renewed = next.is_some();
        next
    }

    /// Returns the number of slots that are held under each limit.
    pub fn held(&self) -> Vec<(String, i64)> {
        let mut held: HashMap<String, i64> = HashMap::new();
        for (_, slot) in self.open().iter() {
            *held.entry(slot.limit.entry().name().to_string()).or_default() += slot.cost;
        }
        let mut held: Vec<_> = held.into_iter().collect();
        held.sort_unstable();
        held
    }
}

/// Counts endings that a store has executed.
pub fn count_endings(endings: &[Ending], answers: &[Answer]) {
    for (ending, answer) in endings.iter().zip(answers) {
        if matches!(ending.verb, Verb::Release(_)) && !answer.allowed() {
            ending.limit.counters.count_expired();
        }
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    fn with_endings<T>(
        &self,
        endings: &[Ending],
        then: impl FnOnce(&[Bucket<'_>], &[Member<'_>]) -> T,
    ) -> Result<T, Failure> {
        let snapshot = self.snapshot();
        let resolved = endings.iter().map(|ending| ending.resolve(ending.bound(&snapshot)));
        let resolved: BatchVec<Resolved<'_>> = resolved.collect::<Result<_, Failure>>()?;
        let (mut buckets, mut members) = (BatchVec::new(), BatchVec::new());
        for (ending, one) in endings.iter().zip(&resolved) {
            let Some((bucket, operation)) = one.operation(ending.verb) else { continue };
            members.push(Member { operation, kind: Kind::Spend, shadow: false });
            buckets.push(bucket);
        }
        Ok(then(&buckets, &members))
    }

    /// Takes tokens before the cost is known, or slots, which are added to `slots` and returned.
    ///
    /// Writes to `answered`, because moving an answer costs as much as deciding.
    ///
    /// # Errors
    /// As [`Limiter::answer`]; [`StoreError::WouldWait`] if `wait` does not allow it.
    #[inline(always)]
    pub fn reserve(
        &self,
        bound: &Arc<BoundLimit>,
        call: Call<'_>,
        slots: &OpenSlots,
        wait: Wait,
        answered: &mut Answered,
    ) -> Result<Option<AddedSlot>, Failure> {
        let cost = call.cost;
        let call = bound.prepare(call)?;
        // Due by the limiter's clock, which may differ from the store's.
        let now = self.clock().now();
        let answer = self.ask_within(&call, wait).map_err(|error| match wait {
            Wait::Allowed => bound.store_failed(error),
            // An error is counted by the call that follows and may wait.
            Wait::Never => store_failed(error),
        })?;
        let lease = call.operation().and_then(|(_, operation)| operation.lease(&answer));
        let slot = lease.map(|lease| {
            let every = call.resolved.limit().slots().map_or(InFlight::MIN_LEASE, InFlight::lease);
            slots.insert(bound, &call.resolved.id, cost, lease, now, half(every))
        });
        self.conclude(call, answer, answered);
        Ok(slot)
    }

    /// Executes the ends of a reservation in one call. May wait.
    ///
    /// # Errors
    /// [`CallError::Store`].
    pub fn end_all(&self, endings: &[Ending]) -> Result<(), Failure> {
        self.end_all_within(endings, Wait::Allowed)
    }

    /// Does the same as [`Limiter::end_all`] if the store can answer without waiting. Otherwise writes
    /// nothing and returns false.
    ///
    /// # Errors
    /// As [`Limiter::end_all`].
    pub fn try_end_all(&self, endings: &[Ending]) -> Result<bool, Failure> {
        match self.end_all_within(endings, Wait::Never) {
            Err(error) if *error == CallError::Store(StoreError::WouldWait) => Ok(false),
            ended => ended.map(|()| true),
        }
    }

    fn end_all_within(&self, endings: &[Ending], wait: Wait) -> Result<(), Failure> {
        if let [ending] = endings {
            return self.end_one(ending, wait);
        }
        let answers = self.with_endings(endings, |buckets, members| {
            let now = self.clock().read(Timeline::Wall);
            match buckets {
                [] => Ok(Answers::new()),
                _ => self.store().update_all(buckets, &Members(members), now, self.clock(), wait),
            }
        })?;
        let answers: Answers = answers.map_err(|error: S::Error| store_failed(error))?;
        if answers.len() == endings.len() {
            count_endings(endings, &answers);
        }
        Ok(())
    }

    /// Executes the end of a reservation on one bucket, as almost all are.
    fn end_one(&self, ending: &Ending, wait: Wait) -> Result<(), Failure> {
        // Few limits are replaced while slots are held; the others need no look-up.
        let is_active = ending.limit.generation == self.generation();
        let snapshot = (!is_active).then(|| self.snapshot());
        let bound = snapshot.as_ref().map_or(&*ending.limit, |snapshot| ending.bound(snapshot));
        let resolved = ending.resolve(bound)?;
        if let Some((bucket, operation)) = resolved.operation(ending.verb) {
            let now = self.clock().read(bucket.timeline);
            let answer = self.store().update(bucket, &operation, now, wait);
            let answer = answer.map_err(store_failed)?;
            count_endings(std::slice::from_ref(ending), &[answer]);
        }
        Ok(())
    }

    /// Prepares the ends of a reservation for a server.
    ///
    /// # Errors
    /// [`CallError`] if an id is invalid since a reload.
    pub fn submission_of_endings(&self, endings: &[Ending]) -> Result<RemoteCall, Failure> {
        let ops = self.with_endings(endings, |buckets, members| {
            let texts = buckets.iter().map(|bucket| (bucket.keyspace.text(), bucket.id));
            let ops = texts.zip(Members(members).calls());
            ops.map(|((text, id), op)| (text.into(), id.into(), op)).collect()
        })?;
        Ok(RemoteCall { ops, now: Some(self.clock().read(Timeline::Wall).wall) })
    }

    /// Renews the slots that are due, and executes what has failed before. May wait. Returns when to call
    /// it again; `None` if nothing is held.
    pub fn renew(&self, slots: &OpenSlots) -> Option<Timestamp> {
        let now = self.clock().now();
        let open = slots.open();
        let due = open.iter().map(|(key, slot)| (slot.due(), key));
        let mut due: Vec<_> = due.filter(|(due, _)| *due <= now).collect();
        drop(open);
        due.sort_by_key(|(due, _)| *due);
        for block in due.chunks(BLOCK) {
            if !self.renew_block(block, slots) {
                // The store does not answer.
                break;
            }
        }
        let failed = std::mem::take(&mut *slots.failed.lock());
        for (until, endings) in failed {
            if until <= now {
                continue;
            }
            if let Err(error) = self.end_all(&endings)
                && let CallError::Store(error) = *error
                && !error.is_outcome_unknown()
            {
                slots.failed.lock().push((until, endings));
            }
        }
        let now = self.clock().now();
        // Not in a loop if the store does not answer.
        slots.next_due(now).map(|next| next.max(now.saturating_add(Nanos::from_millis(100))))
    }

    /// Renews slots under the leases of new limits. May wait.
    pub fn renew_after_reload(&self, slots: &OpenSlots) -> Option<Timestamp> {
        slots.on_reload(&self.snapshot());
        self.renew(slots)
    }

    /// Renews some slots. Returns whether the store has answered.
    fn renew_block(&self, block: &[(Timestamp, HeldSlotKey)], slots: &OpenSlots) -> bool {
        let snapshot = self.snapshot();
        let now = self.clock().now();
        let begun = block.iter().filter_map(|(_, key)| Some((*key, slots.begin_renewal(*key)?)));
        let begun: Vec<_> = begun.collect();
        let resolved = begun.iter().map(|(_, slot)| slot.resolve(slot.bound(&snapshot)).ok());
        let resolved: Vec<_> = resolved.collect();
        let mut renewed = vec![None; begun.len()];
        let calls =
            begun.iter().zip(&resolved).enumerate().filter_map(|(index, ((_, slot), one))| {
                let one = one.as_ref()?;
                let (bucket, operation) = one.operation(slot.verb)?;
                Some((index, one.bound, bucket, operation))
            });
        let calls: Vec<_> = calls.collect();
        let mut has_answered = true;
        self.store().update_each(
            calls.len(),
            |at| (calls[at].2, calls[at].3),
            self.clock().read(Timeline::Steady),
            |at, answer| {
                let (index, bound, _, operation) = &calls[at];
                match answer {
                    Ok(answer) => {
                        renewed[*index] = operation.lease(answer);
                        if !answer.allowed() {
                            bound.counters.count_renewed_late();
                        }
                    }
                    Err(_) => has_answered = false,
                }
            },
        );
        for ((key, _), lease) in begun.iter().zip(renewed) {
            if let Some(release) = slots.end_renewal(*key, lease.map(|lease| (lease, now))) {
                slots.retry_later(smallvec![release], now);
            }
        }
        has_answered
    }
}
