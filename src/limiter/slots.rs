//! The slots that this process holds, and the ends of reservations.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::clock::Clock;
use crate::engine::algorithm::in_flight::{InFlight, Lease};
use crate::engine::answer::Answer;
use crate::engine::batch::{Kind, Member};
use crate::engine::cost::Cost;
use crate::engine::factor::Adjustment;
use crate::engine::operation::{Operation, Verb};
use crate::engine::time::{Nanos, Timestamp};
use crate::limiter::bound::Resolved;
use crate::limiter::error::store_failed;
use crate::limiter::store_ops::Members;
use crate::limiter::{BatchVec, BoundLimit, Call, CallError, Failure, Limiter, Snapshot};
use crate::store::remote::{RemoteBatch, RemoteCall};
use crate::store::{Answers, Bucket, Store, StoreError, Wait};
use crate::sync::{Mutex, TryLock, TryLockGuard, forks};

/// The number of slots that are renewed at a time.
const BLOCK: usize = 64;

/// Slots of one bucket that this process holds.
#[derive(Debug)]
pub struct HeldSlot {
    limit: Arc<BoundLimit>,
    id: Box<str>,
    cost: i64,
    state: Mutex<SlotState>,
}

#[derive(Debug)]
struct SlotState {
    lease: Lease,
    /// When they were taken or renewed, on the limiter's clock.
    since: Timestamp,
    /// Half the lease: the age at which they are renewed.
    renewed_every: Nanos,
    /// Whether a renewal is under way. The release then follows it, under the new lease.
    is_renewing: bool,
    is_ended: bool,
}

impl HeldSlot {
    fn due(&self) -> Timestamp {
        let state = self.state.lock();
        state.since.saturating_add(state.renewed_every)
    }

    fn release(self: &Arc<Self>, lease: Lease) -> Ending {
        let (limit, id) = (Arc::clone(&self.limit), self.id.clone());
        Ending { limit, id, adjustment: None, verb: Verb::Release(lease), cost: self.cost }
    }

    /// Returns the lease to renew; `None` if they were given back.
    fn begin_renewal(&self) -> Option<Lease> {
        let mut state = self.state.lock();
        if state.is_ended {
            return None;
        }
        state.is_renewing = true;
        Some(state.lease)
    }

    /// Stores the lease after a renewal, or keeps the previous one. Returns the release if they were
    /// given back meanwhile.
    fn end_renewal(self: &Arc<Self>, renewed: Option<(Lease, Timestamp)>) -> Option<Ending> {
        let mut state = self.state.lock();
        state.is_renewing = false;
        if let Some((lease, since)) = renewed {
            (state.lease, state.since) = (lease, since);
        }
        state.is_ended.then(|| self.release(state.lease))
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

/// Endings that a store has not executed, to be tried again until an instant.
type Failed = Vec<(Timestamp, Vec<Ending>)>;

/// The slots that a limiter of this process holds.
#[derive(Debug, Default)]
pub struct OpenSlots {
    open: TryLock<SlotList>,
    failed: TryLock<Failed>,
}

#[derive(Debug, Default)]
struct SlotList {
    slots: HashMap<usize, Arc<HeldSlot>>,
    /// The forks of the process that holds them. Those of a parent are not this process's.
    forks: u32,
    /// Whether a thread or a timer renews them.
    is_renewed: bool,
}

/// Returns half the lease of a client's slots.
fn half_lease(limit: &BoundLimit, id: &str) -> Nanos {
    let rule = limit.entry().rule_for(id);
    let lease = rule.limit.slots().map_or(InFlight::MIN_LEASE, InFlight::lease);
    Nanos::clamped(lease.get() / 2)
}

fn address(slot: &Arc<HeldSlot>) -> usize {
    Arc::as_ptr(slot).addr()
}

impl OpenSlots {
    /// Adds slots that were taken at `now`. Returns them, and whether their renewal must be started.
    pub fn add(
        &self,
        limit: &Arc<BoundLimit>,
        id: &str,
        cost: i64,
        lease: Lease,
        now: Timestamp,
    ) -> (Arc<HeldSlot>, bool) {
        let slot = Arc::new(HeldSlot {
            limit: Arc::clone(limit),
            id: id.into(),
            cost,
            state: Mutex::new(SlotState {
                lease,
                since: now,
                renewed_every: half_lease(limit, id),
                is_renewing: false,
                is_ended: false,
            }),
        });
        let mut open = self.open();
        open.slots.insert(address(&slot), Arc::clone(&slot));
        let is_first = !std::mem::replace(&mut open.is_renewed, true);
        (slot, is_first)
    }

    fn open(&self) -> TryLockGuard<'_, SlotList> {
        let mut open = self.open.lock();
        let forks = forks();
        if open.forks != forks {
            *open = SlotList { forks, ..SlotList::default() };
            self.failed.lock().clear();
        }
        open
    }

    /// Ends the holding of slots. Returns the release to execute; `None` if they were given back, belong to
    /// another process, or are being renewed and are released after that.
    pub fn end(&self, slot: &Arc<HeldSlot>) -> Option<Ending> {
        self.open().slots.remove(&address(slot))?;
        let mut state = slot.state.lock();
        let is_over = std::mem::replace(&mut state.is_ended, true) || state.is_renewing;
        (!is_over).then(|| slot.release(state.lease))
    }

    /// Forgets slots without giving them back, as a process that is killed does.
    pub fn abandon(&self, slot: &Arc<HeldSlot>) {
        if self.open().slots.remove(&address(slot)).is_some() {
            let mut state = slot.state.lock();
            // A renewal that is under way must not release them.
            state.is_ended = !state.is_renewing;
        }
    }

    /// Tries `endings` again with the next renewal, unless they may have been executed.
    pub fn retry(&self, endings: Vec<Ending>, error: &StoreError, now: Timestamp) {
        if error.is_outcome_unknown() || *error == StoreError::Closed {
            return;
        }
        self.retry_later(endings, now);
    }

    /// Tries `endings` with the next renewal.
    pub fn retry_later(&self, endings: Vec<Ending>, now: Timestamp) {
        let lasts = endings.iter().filter_map(|ending| {
            ending.limit.entry().rule_for(&ending.id).limit.slots().map(|slots| slots.lease())
        });
        let until = now.saturating_add(lasts.max().unwrap_or(Nanos::from_millis(30_000)));
        self.failed.lock().push((until, endings));
    }

    /// Returns whether the renewal must be started.
    pub fn starts_renewal(&self) -> bool {
        !std::mem::replace(&mut self.open().is_renewed, true)
    }

    /// Applies the leases of new limits.
    fn on_reload(&self, snapshot: &Snapshot) {
        for slot in self.open().slots.values() {
            if let Ok(limit) = snapshot.limit(slot.limit.entry().name().as_str()) {
                slot.state.lock().renewed_every = half_lease(limit, &slot.id);
            }
        }
    }

    /// Returns when the next slots are due, or endings are to be tried again; `None`, and the renewal ends,
    /// if there are none.
    pub fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let mut open = self.open();
        let has_failed = !self.failed.lock().is_empty();
        let retry = has_failed.then(|| now.saturating_add(Nanos::SECOND));
        let next = open.slots.values().map(|slot| slot.due()).chain(retry).min();
        open.is_renewed = next.is_some();
        next
    }

    /// Returns the number of slots that are held under each limit.
    pub fn held(&self) -> Vec<(String, i64)> {
        let mut held: HashMap<String, i64> = HashMap::new();
        for slot in self.open().slots.values() {
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

/// Returns the limit under which slots are given back or renewed: the active one, if there is one.
fn active<'a>(snapshot: &'a Snapshot, limit: &'a Arc<BoundLimit>, verb: Verb) -> &'a BoundLimit {
    match verb {
        Verb::Release(_) | Verb::Renew(_) => {
            snapshot.limit(limit.entry().name().as_str()).unwrap_or(limit)
        }
        _ => limit,
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    fn with_endings<T>(
        &self,
        endings: &[Ending],
        then: impl FnOnce(&[Bucket<'_>], &[Member<'_>]) -> T,
    ) -> Result<T, Failure> {
        let snapshot = self.snapshot();
        let resolved = endings.iter().map(|ending| {
            let Ending { limit, id, adjustment, verb, .. } = ending;
            let limit = active(&snapshot, limit, *verb);
            let call = Call { verb: *verb, id, cost: 0, adjustment: adjustment.as_ref() };
            Ok((limit, limit.resolve(call)?))
        });
        let resolved: BatchVec<(&BoundLimit, Resolved<'_>)> =
            resolved.collect::<Result<_, Failure>>()?;
        let (mut buckets, mut members) = (BatchVec::new(), BatchVec::new());
        for (ending, (bound, one)) in endings.iter().zip(&resolved) {
            let (limit, verb) = (one.limit(), ending.verb);
            let Some(keyspace) = bound.keyspace(limit) else { continue };
            let cost = match verb {
                Verb::ChargePartial => limit.cost_in_parts(ending.cost),
                // More than a lower limit allows since a reload.
                _ => Cost::new(ending.cost, i64::MAX).unwrap_or(Cost::ZERO),
            };
            let operation = Operation { verb, limit, cost };
            members.push(Member { operation, kind: Kind::Spend, shadow: false });
            buckets.push(Bucket::of_hashed(keyspace, &one.id, one.id_hash));
        }
        Ok(then(&buckets, &members))
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
        let answers = self.with_endings(endings, |buckets, members| {
            let now = self.clock().now();
            match (buckets, members) {
                ([], _) => Ok(Answers::new()),
                ([bucket], [member]) => {
                    let answer = self.store().update(*bucket, &member.operation, now, wait)?;
                    Ok([answer].into_iter().collect())
                }
                _ => self.store().update_all(buckets, &Members(members), now, self.clock(), wait),
            }
        })?;
        let answers: Answers = answers.map_err(|error: S::Error| store_failed(error))?;
        if answers.len() == endings.len() {
            count_endings(endings, &answers);
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
        Ok(RemoteCall { ops, now: Some(self.clock().now()) })
    }

    /// Renews the slots that are due, and executes what has failed before. May wait. Returns when to call
    /// it again; `None` if nothing is held.
    pub fn renew(&self, slots: &OpenSlots) -> Option<Timestamp> {
        let now = self.clock().now();
        let open: Vec<_> = slots.open().slots.values().cloned().collect();
        let mut due: Vec<_> = open.into_iter().filter(|slot| slot.due() <= now).collect();
        due.sort_by_key(|slot| slot.due());
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
    fn renew_block(&self, block: &[Arc<HeldSlot>], slots: &OpenSlots) -> bool {
        let snapshot = self.snapshot();
        let now = self.clock().now();
        let renewals = block.iter().filter_map(|slot| {
            let verb = Verb::Renew(slot.begin_renewal()?);
            let bound = active(&snapshot, &slot.limit, verb);
            let resolved = bound.resolve(Call::new(verb, &slot.id, 0)).ok();
            Some((slot, verb, bound, resolved))
        });
        let renewals: Vec<_> = renewals.collect();
        let mut renewed = vec![None; renewals.len()];
        let calls = renewals.iter().enumerate().filter_map(|(index, (slot, verb, bound, one))| {
            let one = one.as_ref()?;
            let keyspace = bound.keyspace(one.limit())?;
            let cost = Cost::new(slot.cost, i64::MAX).ok()?;
            let operation = Operation { verb: *verb, limit: one.limit(), cost };
            Some((index, Bucket::of_hashed(keyspace, &one.id, one.id_hash), operation))
        });
        let calls: Vec<_> = calls.collect();
        let mut has_answered = true;
        self.store().update_each(
            calls.len(),
            |at| (calls[at].1, calls[at].2),
            now,
            |at, answer| {
                let (index, _, operation) = &calls[at];
                match answer {
                    Ok(answer) => {
                        renewed[*index] = operation.lease(answer);
                        if !answer.allowed() {
                            renewals[*index].2.counters.count_renewed_late();
                        }
                    }
                    Err(_) => has_answered = false,
                }
            },
        );
        let mut releases = Vec::new();
        for ((slot, ..), lease) in renewals.iter().zip(renewed) {
            releases.extend(slot.end_renewal(lease.map(|lease| (lease, now))));
        }
        for release in releases {
            slots.retry_later(vec![release], now);
        }
        has_answered
    }
}
