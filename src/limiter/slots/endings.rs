//! The ends of reservations: releases of slots, refunds and charges.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::clock::Clock;
use crate::engine::answer::{Answer, Outcome};
use crate::engine::batch::{Kind, Member};
use crate::engine::cost::Cost;
use crate::engine::factor::Adjustment;
use crate::engine::limit::Limit;
use crate::engine::operation::Operation;
use crate::engine::time::{Now, Timeline};
use crate::engine::verb::Verb;
use crate::limiter::batch::BatchVec;
use crate::limiter::bound::Resolved;
use crate::limiter::error::store_failed;
use crate::limiter::slots::{HeldSlotKey, OpenSlots};
use crate::limiter::store_ops::Members;
use crate::limiter::{BoundLimit, Call, CallError, Failure, Limiter, Snapshot};
use crate::store::remote::RemoteCall;
use crate::store::{Answers, Batch, Bucket, Store, StoreError, Wait};

/// An operation that ends a part of a reservation, independent of the others.
#[derive(Clone, Debug)]
pub struct Ending {
    /// The limit at the time of the reservation.
    pub limit: Arc<BoundLimit>,
    /// The client's id.
    pub id: String,
    /// Its hash, if the taking has computed it.
    pub id_hash: Option<u64>,
    /// What the call changes in its limit.
    pub adjustment: Option<Adjustment>,
    /// A release, a refund or a partial charge.
    pub verb: Verb,
    /// Tokens or slots.
    pub cost: i64,
}

impl Ending {
    /// Returns what is executed: slots are returned and renewed under the active limit, if it still has
    /// slots for the client; else under that of the reservation, because a reload to a rate must not
    /// lose what is held.
    pub(super) fn resolve_active<'a>(
        &'a self,
        snapshot: &'a Snapshot,
    ) -> Result<Resolved<'a>, Failure> {
        if matches!(self.verb, Verb::Release(_) | Verb::Renew(_))
            && let Some(active) = snapshot.limit_with_buckets_of(self.limit.entry())
            && let Ok(resolved) = self.resolve(active)
            && matches!(resolved.limit(), Limit::Slots(_))
        {
            return Ok(resolved);
        }
        self.resolve(&self.limit)
    }

    /// Counts an ending that a store has executed. It has found what to return, or not.
    pub(super) fn count(&self, is_found: bool) {
        if matches!(self.verb, Verb::Release(_)) && !is_found {
            self.limit.counters.count_expired();
        }
    }

    // Inlined into every end of a slot: what it returns is large.
    #[inline(always)]
    fn resolve<'a>(&'a self, bound: &'a BoundLimit) -> Result<Resolved<'a>, Failure> {
        let Ending { id, id_hash, adjustment, verb, cost, .. } = self;
        let call = Call { verb: *verb, id, cost: 0, adjustment: adjustment.as_ref() };
        let mut resolved = bound.resolve(call)?;
        // Unless the limit spells ids in another way since a reload.
        if matches!(resolved.id, Cow::Borrowed(same) if same.len() == id.len()) {
            resolved.id_hash = resolved.id_hash.or(*id_hash);
        }
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

/// Counts endings that a store has executed.
pub fn count_endings(endings: &[Ending], answers: &[Answer]) {
    for (ending, answer) in endings.iter().zip(answers) {
        ending.count(answer.allowed());
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    fn with_endings<T>(
        &self,
        endings: &[Ending],
        then: impl FnOnce(&[Bucket<'_>], &[Member<'_>]) -> T,
    ) -> Result<T, Failure> {
        let snapshot = self.snapshot();
        let resolved = endings.iter().map(|ending| ending.resolve_active(&snapshot));
        let resolved: BatchVec<Resolved<'_>> = resolved.collect::<Result<_, Failure>>()?;
        let (mut buckets, mut members) = (BatchVec::new(), BatchVec::new());
        for (ending, one) in endings.iter().zip(&resolved) {
            let Some((bucket, operation)) = one.operation(ending.verb) else { continue };
            members.push(Member { operation, kind: Kind::Spend, shadow: false });
            buckets.push(bucket);
        }
        Ok(then(&buckets, &members))
    }

    /// Looks for slots that `answer` did not find in their bucket where ids share some while the store is
    /// full, and returns them there. Returns whether any were found.
    ///
    /// They were taken there, and their bucket has had room since, or those of a batch have other shared
    /// buckets. A renewal has then taken them again in their own.
    ///
    /// # Errors
    /// As [`Store::update`].
    #[inline]
    pub(super) fn return_shared(
        &self,
        bucket: Bucket<'_>,
        operation: &Operation<'_>,
        answer: &Answer,
        now: Now,
        wait: Wait,
    ) -> Result<bool, StoreError> {
        let (Verb::Release(lease) | Verb::Renew(lease)) = operation.verb else {
            return Ok(answer.allowed());
        };
        let (verb, cost) = (Verb::Release(lease), operation.missing(answer));
        let mut release = Operation { verb, cost, ..*operation };
        for nth in 0.. {
            if release.cost == Cost::ZERO {
                break;
            }
            let answer = self.store().update_shared(bucket, nth, &release, now, wait);
            let Some(answer) = answer.map_err(Into::into)? else { break };
            release.cost = release.missing(&answer);
        }
        Ok(answer.allowed() || release.cost < operation.cost)
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
            if buckets.is_empty() {
                return Ok(Answers::new());
            }
            let now = self.clock().read(Timeline::Wall);
            let answers =
                self.store().update_all(buckets, &Members(members), now, self.clock(), wait);
            answers.map(|mut answers| {
                for ((answer, bucket), member) in answers.iter_mut().zip(buckets).zip(members) {
                    // An error here leaves slots until they expire: the others must not be returned again.
                    let operation = &member.operation;
                    if let Ok(true) = self.return_shared(*bucket, operation, answer, now, wait) {
                        answer.outcome = Outcome::Allowed;
                    }
                }
                answers
            })
        })?;
        let answers: Answers = answers.map_err(|error: S::Error| store_failed(error))?;
        if answers.len() == endings.len() {
            count_endings(endings, &answers);
        }
        Ok(())
    }

    /// Returns slots that are held, if the store can answer without waiting. They stay in their place
    /// meanwhile, which costs less than to take them out. Returns their release if `is_awaited`, which is
    /// called after it.
    ///
    /// # Errors
    /// As [`Limiter::end_all`]. The slots are then still held.
    pub fn try_return(
        &self,
        slots: &OpenSlots,
        key: HeldSlotKey,
        is_awaited: impl FnOnce() -> bool,
    ) -> Result<Option<Ending>, Failure> {
        let mut open = slots.open();
        let Some(slot) = open.held(key) else { return Ok(None) };
        slot.is_ended = slot.is_renewing;
        if slot.is_ended {
            return Ok(None);
        }
        self.end_one(&slot.release, Wait::Never)?;
        if is_awaited() {
            return Ok(open.remove(key.index));
        }
        open.free(key.index);
        Ok(None)
    }

    /// Executes the end of a reservation on one bucket, as almost all are.
    fn end_one(&self, ending: &Ending, wait: Wait) -> Result<(), Failure> {
        // Few limits are replaced while slots are held; the others need no look-up.
        let is_active = ending.limit.generation == self.generation();
        let snapshot = (!is_active).then(|| self.snapshot());
        let now = self.clock().read(ending.limit.timeline);
        let resolved = match &snapshot {
            None => ending.resolve(&ending.limit),
            Some(snapshot) => ending.resolve_active(snapshot),
        }?;
        if let Some((bucket, operation)) = resolved.operation(ending.verb) {
            let answer =
                self.store().update(bucket, &operation, now, wait).map_err(store_failed)?;
            let is_found = self.return_shared(bucket, &operation, &answer, now, wait);
            ending.count(is_found.map_err(store_failed)?);
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
}
