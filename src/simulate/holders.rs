//! Requests that hold slots until they end.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::engine::algorithm::Step;
use crate::engine::algorithm::in_flight::InFlight;
use crate::engine::decision::Decision;
use crate::engine::limit::Limit;
use crate::engine::operation::Operation;
use crate::engine::state::{Lease, State};
use crate::engine::time::{Nanos, Timestamp};
use crate::engine::verb::Verb;
use crate::simulate::{Columns, Events, FaultAt, Simulator, advance, excess, for_each};

/// The slots that one request holds in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Holder {
    /// When it ends or renews its lease, whichever is first.
    at: i64,
    end: i64,
    /// When it is not renewed any more.
    last: i64,
    bucket: usize,
    tokens: i64,
    lease: Lease,
}

impl Holder {
    /// Returns the holder after it has taken or renewed its slots, until it acts next.
    fn next(self, slots: &InFlight) -> Holder {
        let renewed = self.at.saturating_add(slots.lease().get() / 2);
        let renewed = if renewed < self.last { renewed } else { i64::MAX };
        Holder { at: self.end.min(renewed), ..self }
    }
}

/// The holders of the buckets of one limit, the next one to act first.
pub(super) type Holders = BinaryHeap<Reverse<Holder>>;

impl Simulator {
    /// Returns whether a limit of the clients so far is one on requests in flight.
    pub fn has_slots(&self) -> bool {
        self.limits.iter().any(|limit| matches!(limit, Limit::Slots(_)))
    }

    /// Spends for each event as [`run`](Simulator::run) does. An allowed event holds its slots until its
    /// duration has passed, and renews them as a process does.
    pub(super) fn run_held(
        &mut self,
        events: &Events<'_>,
        columns: &Columns<'_>,
    ) -> Result<(), FaultAt> {
        for_each(events, |index| {
            let now = advance(&mut self.last, events.time(index))?;
            self.end_until(now.get());
            let tokens = events.cost(index);
            let Some((bucket, limit, cost)) = self.resolve(events.client(index), tokens)? else {
                columns.put(index, &excess().0);
                return Ok(());
            };
            let state = State::from_word(self.words[bucket]);
            let mut step = Operation { verb: Verb::Reserve, limit, cost }.step(state, now);
            self.wait_for_slots(bucket, tokens, now.get(), &mut step.decision);
            if let Some(after) = step.after {
                self.words[bucket] = after.word();
                self.hold(bucket, tokens, after, now.get(), events.duration(index));
            }
            columns.put(index, &step.decision);
            Ok(())
        })
    }

    /// Keeps the slots of a request that was just allowed, if its limit has any.
    pub(super) fn hold(
        &mut self,
        bucket: usize,
        tokens: i64,
        after: State,
        now: i64,
        duration: i64,
    ) {
        let Limit::Slots(slots) = self.limit_of_bucket(bucket) else { return };
        let last = now.saturating_add(slots.max_hold().map_or(i64::MAX, Nanos::get));
        let (lease, end) = (slots.lease_of(after), now.saturating_add(duration));
        let holder = Holder { at: now, end, last, bucket, tokens, lease };
        let holder = holder.next(slots);
        // Slots that are not renewed any more expire within two leases.
        let end = end.min(last.saturating_add(slots.lease().get().saturating_mul(2)));
        let ends = self.ends.entry(bucket).or_default();
        ends.drain(..ends.partition_point(|&(end, _)| end <= now));
        ends.insert(ends.partition_point(|&(other, _)| other <= end), (end, tokens));
        self.holders.push(Reverse(holder));
    }

    /// Replaces the wait of a denied request by the time until enough slots come back, which is known here;
    /// a limiter knows only when leases end.
    pub(super) fn wait_for_slots(
        &self,
        bucket: usize,
        tokens: i64,
        now: i64,
        decision: &mut Decision,
    ) {
        let Some(ends) = self.ends.get(&bucket).filter(|_| !decision.allowed) else { return };
        let mut missing = tokens - decision.remaining;
        for &(end, returned) in ends.iter().filter(|&&(end, _)| end > now) {
            missing -= returned;
            if missing <= 0 {
                decision.retry_after = Nanos::clamped(end - now);
                return;
            }
        }
    }

    /// Returns the slots of requests that end until `now`, and renews those of the others in time.
    pub(super) fn end_until(&mut self, now: i64) {
        while let Some(&Reverse(holder)) = self.holders.peek()
            && holder.at <= now
        {
            self.holders.pop();
            let limit = *self.limit_of_bucket(holder.bucket);
            let (Limit::Slots(slots), Ok(cost)) = (limit, limit.cost(holder.tokens)) else {
                continue;
            };
            let is_over = holder.at >= holder.end;
            let verb =
                if is_over { Verb::Release(holder.lease) } else { Verb::Renew(holder.lease) };
            let state = State::from_word(self.words[holder.bucket]);
            let operation = Operation { verb, limit: &limit, cost };
            let Step { decision, after, .. } = operation.step(state, Timestamp::clamped(holder.at));
            if let Some(after) = after {
                self.words[holder.bucket] = after.word();
            }
            if !is_over {
                let lease = slots.lease_renewed(holder.lease, decision.allowed, after);
                self.holders.push(Reverse(Holder { lease, ..holder }.next(&slots)));
            }
        }
    }
}
