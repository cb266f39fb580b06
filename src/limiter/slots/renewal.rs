//! Slots are renewed until they are returned, and ends that a store has not executed are tried again.

use smallvec::smallvec;

use crate::clock::Clock;
use crate::engine::operation::Operation;
use crate::engine::state::Lease;
use crate::engine::time::{Nanos, Timeline, Timestamp};
use crate::engine::verb::Verb;
use crate::limiter::slots::{Ending, FIRST_PAUSE, HeldSlotKey, MAX_PAUSE, OpenSlots};
use crate::limiter::{BoundLimit, Limiter};
use crate::store::{Bucket, Store, StoreError, Wait};

/// The number of slots that are renewed or returned at a time.
const BLOCK: usize = 64;

/// How many endings a store has executed, and how many it has not.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    executed: usize,
    failed: usize,
}

/// An ending or a renewal that a store has executed.
#[derive(Clone, Copy, Debug)]
struct Executed<'a> {
    bound: &'a BoundLimit,
    /// The lease of slots that were renewed.
    lease: Option<Lease>,
    /// Whether what it ends or renews was found.
    is_found: bool,
}

/// What has become of the slots of a limiter that ends.
#[derive(Clone, Copy, Debug)]
pub struct Returned {
    /// The number of those that the store has not taken back. They expire.
    pub lost: i64,
    /// Whether these were all; if not, others are being renewed, and can be returned after that.
    pub is_complete: bool,
}

impl OpenSlots {
    /// Returns the slots that are due, in an order that differs from time to time: those for which a part
    /// of a store does not answer must not keep back the others.
    fn due(&self, now: Timestamp) -> Vec<HeldSlotKey> {
        let mut open = self.open();
        let due = open.iter().filter(|(_, slot)| slot.due <= now);
        let mut due: Vec<_> = due.map(|(key, _)| key).collect();
        open.rounds = open.rounds.wrapping_add(1);
        if !due.is_empty() {
            let first = open.rounds % due.len();
            due.rotate_left(first);
        }
        due
    }

    /// Begins to renew slots. Returns a copy; `None` if they were given back or are being renewed.
    fn begin_renewal(&self, key: HeldSlotKey) -> Option<Ending> {
        let mut open = self.open();
        let is_closed = open.is_closed;
        let slot = open.held(key)?;
        if is_closed || slot.is_ended || std::mem::replace(&mut slot.is_renewing, true) {
            return None;
        }
        let Verb::Release(lease) = slot.release.verb else { return None };
        Some(Ending { verb: Verb::Renew(lease), ..slot.release.clone() })
    }

    /// Stores the lease after a renewal, or keeps the previous one. Returns the release if they were
    /// given back meanwhile.
    fn end_renewal(&self, key: HeldSlotKey, renewed: Option<(Lease, Timestamp)>) -> Option<Ending> {
        let mut open = self.open();
        let slot = open.held(key)?;
        slot.is_renewing = false;
        if let Some((lease, since)) = renewed {
            slot.release.verb = Verb::Release(lease);
            // Else the lease has changed meanwhile.
            if slot.due <= since {
                slot.due = slot.terms.next(slot.taken, since);
            }
        }
        if slot.is_ended { open.remove(key.index) } else { None }
    }

    /// Begins or ends the pause of a store that does not answer.
    fn pause(&self, tally: Tally, now: Timestamp) {
        let mut open = self.open();
        if tally.failed == 0 {
            (open.pause, open.paused_until) = (Nanos::ZERO, Timestamp::ORIGIN);
        } else {
            open.pause = open.pause.saturating_mul(2).clamp(FIRST_PAUSE, MAX_PAUSE);
            open.paused_until = now.saturating_add(open.pause);
        }
    }

    /// Ends the holding of all slots, for good. Returns the releases to execute, and whether these are all:
    /// not if a renewal is under way.
    fn close(&self) -> (Vec<Ending>, bool) {
        let mut open = self.open();
        open.is_closed = true;
        let (mut releases, mut is_complete) = (Vec::new(), true);
        for index in 0..open.places.len() {
            let place = &mut open.places[index];
            match &mut place.slot {
                _ if !place.is_held => {}
                Some(slot) if slot.is_renewing => (slot.is_ended, is_complete) = (true, false),
                _ => releases.extend(open.remove(index)),
            }
        }
        drop(open);
        let failed = std::mem::take(&mut *self.failed.lock());
        releases.extend(failed.into_iter().flat_map(|(_, endings)| endings));
        (releases, is_complete)
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Renews the slots that are due, and executes what has failed before. May wait. Returns when to call
    /// it again; `None` if nothing is held.
    ///
    /// While the store does not answer, the calls are apart by a pause that grows.
    pub fn renew(&self, slots: &OpenSlots) -> Option<Timestamp> {
        let now = self.clock().now();
        let mut tally = Tally::default();
        for block in slots.due(now).chunks(BLOCK) {
            self.renew_block(block, slots, &mut tally);
            if tally.executed == 0 && tally.failed > 0 {
                // Nothing answers.
                break;
            }
        }
        self.retry_failed(slots, now, &mut tally);
        let now = self.clock().now();
        slots.pause(tally, now);
        slots.next_due(now)
    }

    /// Renews slots under the leases of new limits. May wait.
    pub fn renew_after_reload(&self, slots: &OpenSlots) -> Option<Timestamp> {
        slots.on_reload(&self.snapshot(), self.clock().now());
        self.renew(slots)
    }

    /// Returns all slots that are held, for good. May wait.
    pub fn return_all(&self, slots: &OpenSlots) -> Returned {
        let (releases, is_complete) = slots.close();
        let mut lost = 0;
        for block in releases.chunks(BLOCK) {
            self.execute_each(block, |index, executed| {
                if executed.is_err() {
                    lost += block[index].cost;
                }
            });
        }
        Returned { lost, is_complete }
    }

    fn renew_block(&self, block: &[HeldSlotKey], slots: &OpenSlots, tally: &mut Tally) {
        let now = self.clock().now();
        let begun = block.iter().filter_map(|&key| Some((key, slots.begin_renewal(key)?)));
        let (keys, renewals): (Vec<_>, Vec<_>) = begun.unzip();
        let mut renewed = vec![None; keys.len()];
        self.execute_each(&renewals, |index, executed| match executed {
            Ok(Executed { bound, lease, is_found }) => {
                tally.executed += 1;
                renewed[index] = lease;
                if !is_found {
                    bound.counters.count_renewed_late();
                }
            }
            Err(_) => tally.failed += 1,
        });
        for (key, lease) in keys.into_iter().zip(renewed) {
            if let Some(release) = slots.end_renewal(key, lease.map(|lease| (lease, now))) {
                slots.retry_later(smallvec![release], now);
            }
        }
    }

    /// Executes endings that have failed before, each on its own.
    fn retry_failed(&self, slots: &OpenSlots, now: Timestamp, tally: &mut Tally) {
        let failed = std::mem::take(&mut *slots.failed.lock());
        let endings = failed.into_iter().filter(|(until, _)| *until > now);
        let endings = endings
            .flat_map(|(until, endings)| endings.into_iter().map(move |ending| (until, ending)));
        let (untils, endings): (Vec<_>, Vec<_>) = endings.unzip();
        // Of those behind one that fails in vain, nothing is known.
        let mut is_open = vec![true; endings.len()];
        for (block, is_open) in endings.chunks(BLOCK).zip(is_open.chunks_mut(BLOCK)) {
            self.execute_each(block, |index, executed| match executed {
                Ok(Executed { is_found, .. }) => {
                    tally.executed += 1;
                    block[index].count(is_found);
                    is_open[index] = false;
                }
                Err(error) => {
                    tally.failed += 1;
                    is_open[index] = !error.is_outcome_unknown();
                }
            });
            if tally.executed == 0 && tally.failed > 0 {
                break;
            }
        }
        let left = untils.into_iter().zip(endings).zip(is_open).filter(|(_, is_open)| *is_open);
        slots.failed.lock().extend(left.map(|((until, ending), _)| (until, smallvec![ending])));
    }

    /// Executes endings and renewals independently of each other, also after one that fails. May wait.
    fn execute_each(
        &self,
        endings: &[Ending],
        mut then: impl FnMut(usize, Result<Executed<'_>, StoreError>),
    ) {
        let (snapshot, now) = (self.snapshot(), self.clock().read(Timeline::Wall));
        let resolved = endings.iter().map(|ending| ending.resolve_active(&snapshot).ok());
        let resolved: Vec<_> = resolved.collect();
        let calls =
            endings.iter().zip(&resolved).enumerate().filter_map(|(index, (ending, one))| {
                let one = one.as_ref()?;
                let (bucket, operation) = one.operation(ending.verb)?;
                Some((index, one.bound, bucket, operation))
            });
        let mut calls: Vec<(usize, &BoundLimit, Bucket<'_>, Operation<'_>)> = calls.collect();
        while !calls.is_empty() {
            // A store makes no further calls after one that fails.
            let mut is_done = vec![false; calls.len()];
            self.store().update_each(
                calls.len(),
                |at| (calls[at].2, calls[at].3),
                now,
                |at, answer| {
                    let (index, bound, bucket, operation) = calls[at];
                    is_done[at] = true;
                    let executed = answer.and_then(|answer| {
                        let (operation, wait) = (&operation, Wait::Allowed);
                        let is_found = self.return_shared(bucket, operation, answer, now, wait)?;
                        Ok(Executed { bound, lease: operation.lease(answer), is_found })
                    });
                    then(index, executed);
                },
            );
            if !is_done.contains(&true) {
                break;
            }
            let mut is_done = is_done.into_iter();
            calls.retain(|_| !is_done.next().unwrap_or(true));
        }
    }
}
