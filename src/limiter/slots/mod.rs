//! The slots that this process holds: taken, renewed until they are returned, and returned.

mod endings;
mod renewal;
mod sharing;

use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::clock::Clock;
use crate::engine::algorithm::in_flight::InFlight;
use crate::engine::batch::Kind;
use crate::engine::state::Lease;
use crate::engine::time::{Nanos, Timestamp};
use crate::engine::verb::Verb;
use crate::limiter::bound::Resolved;
use crate::limiter::error::store_failed;
use crate::limiter::{
    Answered, AnsweredAll, BoundLimit, Call, Failure, Limiter, Snapshot, Transaction,
};
use crate::store::{Store, StoreError, Wait};
use crate::sync::{TryLock, TryLockGuard, forks};

pub use endings::{Ending, Endings, count_endings};
pub use renewal::Returned;
pub(super) use sharing::Releases;

/// The first pause after a store has not answered a renewal, which doubles up to the longest.
const FIRST_PAUSE: Nanos = Nanos::from_millis(100);
const MAX_PAUSE: Nanos = Nanos::from_millis(1000);

/// The longest id whose memory the next slots use. Clients may choose ids, and how many slots are held.
const MAX_KEPT_ID: usize = 128;

/// Slots of one bucket that this process holds.
#[derive(Debug)]
struct HeldSlot {
    release: Ending,
    /// When they were taken, on the limiter's clock.
    taken: Timestamp,
    /// When they are renewed; [`Timestamp::MAX`] for never.
    due: Timestamp,
    terms: Terms,
    /// Whether a renewal is under way. The release then follows it, under the new lease.
    is_renewing: bool,
    is_ended: bool,
}

/// What a limit says about the renewal of its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Terms {
    /// Half the lease: the age at which they are renewed.
    renewed_every: Nanos,
    /// The time from which they are not renewed any more.
    max_hold: Nanos,
}

impl Terms {
    fn of(slots: Option<&InFlight>) -> Terms {
        let lease = slots.map_or(InFlight::MIN_LEASE, InFlight::lease);
        let max_hold = slots.and_then(InFlight::max_hold).unwrap_or(Nanos::MAX);
        Terms { renewed_every: Nanos::clamped(lease.get() / 2), max_hold }
    }

    /// Returns when slots that were taken at `taken` are renewed, if the lease makes that `due`.
    fn renewal(self, taken: Timestamp, due: Timestamp) -> Timestamp {
        if due < taken.saturating_add(self.max_hold) { due } else { Timestamp::MAX }
    }

    /// Returns when slots that were taken at `taken` are renewed next, after a renewal at `since`.
    fn next(self, taken: Timestamp, since: Timestamp) -> Timestamp {
        self.renewal(taken, since.saturating_add(self.renewed_every))
    }
}

/// The place of held slots in the list. It is never that of others, in this process or its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldSlotKey {
    index: usize,
    turn: u64,
}

impl HeldSlot {
    fn new(limit: &Arc<BoundLimit>, id: &str, terms: Terms) -> HeldSlot {
        let (limit, id, adjustment) = (Arc::clone(limit), id.into(), None);
        let verb = Verb::Release(Lease::NONE);
        let release = Ending { limit, id, id_hash: None, adjustment, verb, cost: 0 };
        let (taken, due) = (Timestamp::ORIGIN, Timestamp::MAX);
        HeldSlot { release, taken, due, terms, is_renewing: false, is_ended: false }
    }
}

/// A place in the list of held slots.
#[derive(Debug, Default)]
struct SlotPlace {
    /// The turn of its key.
    turn: u64,
    is_held: bool,
    /// The slots that are held, or the last that were returned here: the next ones use their memory, and
    /// the reference to their limit.
    slot: Option<HeldSlot>,
}

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
    /// Whether the renewal must look at them earlier than it has planned.
    pub is_earlier: bool,
}

/// Held slots. A place without any is in `free`.
#[derive(Debug, Default)]
struct SlotList {
    places: Vec<SlotPlace>,
    free: Vec<usize>,
    /// The turn of the next key.
    next_turn: u64,
    /// The forks of the process that holds them. Those of a parent are not this process's.
    forks: u32,
    /// When the renewal looks at them next; `None` if it has not begun.
    planned: Option<Timestamp>,
    /// The pause since the store has not answered; zero if it has.
    pause: Nanos,
    /// The end of the pause.
    paused_until: Timestamp,
    /// The number of renewals so far.
    rounds: usize,
    is_closed: bool,
}

impl SlotList {
    #[inline]
    fn insert(
        &mut self,
        limit: &Arc<BoundLimit>,
        (id, id_hash): (&str, Option<u64>),
        cost: i64,
        lease: Lease,
        taken: Timestamp,
        terms: Terms,
    ) -> AddedSlot {
        let due = terms.next(taken, taken);
        let is_earlier = self.plan(due);
        let turn = self.next_turn;
        self.next_turn += 1;
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(SlotPlace::default());
            self.places.len() - 1
        });
        let place = &mut self.places[index];
        (place.turn, place.is_held) = (turn, true);
        let slot = match &mut place.slot {
            Some(slot) if Arc::ptr_eq(&slot.release.limit, limit) => {
                slot.release.id.clear();
                slot.release.id.push_str(id);
                slot
            }
            slot => slot.insert(HeldSlot::new(limit, id, terms)),
        };
        (slot.release.id_hash, slot.release.cost) = (id_hash, cost);
        slot.release.verb = Verb::Release(lease);
        (slot.taken, slot.due, slot.terms) = (taken, due, terms);
        (slot.is_renewing, slot.is_ended) = (false, false);
        AddedSlot { key: HeldSlotKey { index, turn }, is_earlier }
    }

    /// Plans to look at the slots by an instant. Returns whether that is earlier than planned.
    #[inline(always)]
    fn plan(&mut self, by: Timestamp) -> bool {
        let is_earlier = self.planned.is_none_or(|planned| by < planned);
        if is_earlier {
            self.planned = Some(by);
        }
        is_earlier
    }

    /// Returns the slots of a key, if they were not given back.
    fn held(&mut self, key: HeldSlotKey) -> Option<&mut HeldSlot> {
        let place = self.places.get_mut(key.index)?;
        let is_held = place.is_held && place.turn == key.turn;
        place.slot.as_mut().filter(|_| is_held)
    }

    /// Removes the slots of a place, which must be held.
    fn remove(&mut self, index: usize) -> Option<Ending> {
        self.free(index);
        self.places[index].slot.take().map(|slot| slot.release)
    }

    /// Frees a place, which must be held. It keeps what the slots have allocated, unless that is much.
    fn free(&mut self, index: usize) {
        let place = &mut self.places[index];
        place.is_held = false;
        place.slot.take_if(|slot| slot.release.id.capacity() > MAX_KEPT_ID);
        self.free.push(index);
    }

    /// Returns the slots that were not given back.
    fn iter(&self) -> impl Iterator<Item = (HeldSlotKey, &HeldSlot)> {
        let places = self.places.iter().enumerate().filter(|(_, place)| place.is_held);
        places.filter_map(|(index, place)| {
            let slot = place.slot.as_ref().filter(|slot| !slot.is_ended)?;
            Some((HeldSlotKey { index, turn: place.turn }, slot))
        })
    }
}

impl OpenSlots {
    fn open(&self) -> TryLockGuard<'_, SlotList> {
        let mut open = self.open.lock();
        let forks = forks();
        if open.forks != forks {
            let next_turn = open.next_turn;
            *open = SlotList { forks, next_turn, ..SlotList::default() };
            self.failed.lock().clear();
        }
        open
    }

    /// Ends the holding of slots. Returns the release to execute; `None` if they were given back, belong to
    /// another process, or are being renewed and are released after that.
    pub fn end(&self, key: HeldSlotKey) -> Option<Ending> {
        let mut open = self.open();
        let slot = open.held(key)?;
        slot.is_ended = slot.is_renewing;
        if slot.is_ended { None } else { open.remove(key.index) }
    }

    /// Forgets slots without giving them back, as a process that is killed does. A renewal that is under
    /// way does not release them either.
    pub fn abandon(&self, key: HeldSlotKey) {
        let mut open = self.open();
        if open.held(key).is_some() {
            open.remove(key.index);
        }
    }

    /// Tries `endings` again with the next renewal, unless they may have been executed.
    pub fn retry(&self, endings: Endings, error: &StoreError, now: Timestamp) {
        if error.is_outcome_unknown() || *error == StoreError::Closed {
            return;
        }
        self.retry_later(endings, now);
    }

    /// Tries `endings` with a renewal that follows soon.
    pub fn retry_later(&self, endings: Endings, now: Timestamp) {
        let slots = endings.iter().filter_map(|ending| ending.limit.slots_for(&ending.id));
        let lasts = slots.map(InFlight::lease);
        let until = now.saturating_add(lasts.max().unwrap_or(Nanos::from_millis(30_000)));
        self.failed.lock().push((until, endings));
        self.open().plan(now.saturating_add(FIRST_PAUSE));
    }

    /// Forgets what places without slots have kept. They would keep limits that are replaced.
    #[cold]
    pub fn forget_returned(&self) {
        for place in &mut self.open().places {
            let is_held = place.is_held;
            place.slot.take_if(|_| !is_held);
        }
    }

    /// Applies new limits. Slots whose lease has changed are due: under a shorter one, their epoch may be
    /// over.
    #[cold]
    fn on_reload(&self, snapshot: &Snapshot, now: Timestamp) {
        for place in &mut self.open().places {
            let Some(slot) = place.slot.as_mut().filter(|_| place.is_held) else { continue };
            let Ending { limit, id, .. } = &mut slot.release;
            let active = snapshot.limit_with_buckets_of(limit.entry());
            let Some(active) = active else { continue };
            let Some(slots) = active.slots_for(id) else { continue };
            // All slots of a bucket are held under one limit, also after a reload to a rate.
            if active.canonical(id).is_ok_and(|canonical| *canonical == **id) {
                *limit = Arc::clone(active);
            }
            let terms = Terms::of(Some(slots));
            if terms != slot.terms {
                (slot.terms, slot.due) = (terms, terms.renewal(slot.taken, now));
            }
        }
    }

    /// Returns when the next slots are due, or endings are to be tried again; `None`, and the renewal ends,
    /// if there are none.
    pub fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let mut open = self.open();
        let has_failed = !self.failed.lock().is_empty();
        let retry = has_failed.then(|| now.saturating_add(FIRST_PAUSE));
        let due = open.iter().map(|(_, slot)| slot.due).filter(|&due| due < Timestamp::MAX);
        // A clock may have been set back.
        let paused_until = open.paused_until.min(now.saturating_add(MAX_PAUSE));
        open.planned = due.chain(retry).min().map(|next| next.max(paused_until));
        open.planned
    }

    /// Returns the number of slots that are held under each limit.
    pub fn held(&self) -> Vec<(String, i64)> {
        let mut held: HashMap<String, i64> = HashMap::new();
        for (_, slot) in self.open().iter() {
            let Ending { limit, cost, .. } = &slot.release;
            *held.entry(limit.entry().name().to_string()).or_default() += cost;
        }
        let mut held: Vec<_> = held.into_iter().collect();
        held.sort_unstable();
        held
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
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
        let now = self.clock().read(bound.timeline);
        let mut call = bound.prepare(call)?;
        let Resolved { id, id_hash, .. } = &call.resolved;
        // Once for the taking and the return.
        let id_hash = id_hash.or_else(|| bound.keyspace(call.resolved.limit())?.id_hash(id));
        call.resolved.id_hash = id_hash;
        let answer = self.ask_within(&call, now, wait).map_err(|error| match wait {
            Wait::Allowed => bound.store_failed(error),
            // An error is counted by the call that follows and may wait.
            Wait::Never => store_failed(error),
        })?;
        let lease = call.operation().and_then(|(_, operation)| operation.lease(&answer));
        let slot = lease.map(|lease| {
            let terms = Terms::of(call.resolved.limit().slots());
            // Due by the limiter's clock, which may differ from the store's.
            let id = (&*call.resolved.id, id_hash);
            let added = slots.open().insert(bound, id, cost, lease, now.steady, terms);
            self.with_active_terms(added, bound, slots)
        });
        self.conclude(call, answer, answered);
        Ok(slot)
    }

    /// Adds slots that were taken at `now` to `slots`.
    pub fn hold(
        &self,
        slots: &OpenSlots,
        limit: &Arc<BoundLimit>,
        id: &str,
        cost: i64,
        lease: Lease,
        now: Timestamp,
    ) -> AddedSlot {
        let terms = Terms::of(limit.slots_for(id));
        let added = slots.open().insert(limit, (id, None), cost, lease, now, terms);
        self.with_active_terms(added, limit, slots)
    }

    /// Adds the slots that a reservation of several transactions has taken to `slots`; `None` for each
    /// other transaction.
    pub fn hold_all(
        &self,
        slots: &OpenSlots,
        transactions: &[Transaction],
        answered: &AnsweredAll,
        now: Timestamp,
    ) -> SmallVec<[Option<AddedSlot>; 1]> {
        let parts = transactions.iter().zip(&answered.parts).map(|(one, part)| {
            let lease = one.limit.entry().lease(Verb::Reserve, &one.id, one.cost, &part.answer);
            let lease = lease.filter(|_| part.answer.allowed() && one.kind != Kind::Check)?;
            let id = one.limit.canonical(&one.id).ok()?;
            Some(self.hold(slots, &one.limit, &id, one.cost, lease, now))
        });
        parts.collect()
    }

    /// Applies the lease of the active limit to slots that were added under `limit`, which a reload may have
    /// replaced while the store was asked.
    #[inline(always)]
    fn with_active_terms(
        &self,
        mut added: AddedSlot,
        limit: &BoundLimit,
        slots: &OpenSlots,
    ) -> AddedSlot {
        if limit.generation != self.generation() {
            slots.on_reload(&self.snapshot(), self.clock().now());
            added.is_earlier = true;
        }
        added
    }
}
