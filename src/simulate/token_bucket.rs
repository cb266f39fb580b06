//! Spends of token buckets, with nothing in the loop but what one spend needs of the one before.

use std::hint::select_unpredictable;
use std::ops::Range;

use crate::engine::algorithm::gcra::TokenBucket;
use crate::engine::divisor::Divisor;
use crate::prefetch::prefetch;
use crate::simulate::{AHEAD, BLOCK, Columns, Events, MANY, Sink, Source};

/// Whether no instant that a spend at `now` computes with is beyond the end of time.
///
/// The engine lets such sums stand at the end; here they are not looked at.
pub(super) fn is_in_time(bucket: &TokenBucket, now: i64) -> bool {
    let offset = bucket.burst_offset().get();
    now <= i64::MAX - offset - offset
}

/// What all spends of one limit have in common.
pub(super) struct Spends {
    burst: u64,
    interval: i64,
    offset: i64,
    divisor: Divisor,
    /// The time of the event before.
    last: i64,
}

/// The TATs of buckets, asked for event by event: one in a register, or many in memory.
trait Tats {
    /// The TAT of the next event's bucket; `None` if there is none.
    fn next(&mut self) -> Option<&mut u64>;
}

struct One(u64);

impl Tats for One {
    #[inline(always)]
    fn next(&mut self) -> Option<&mut u64> {
        Some(&mut self.0)
    }
}

struct Many<'a, B, F> {
    words: &'a mut [u64],
    /// The bucket of each event; none of them where there is none.
    buckets: B,
    /// The same from some events ahead on, where it is worth while.
    ahead: F,
}

impl<B: Iterator<Item = usize>, F: Iterator<Item = usize>> Tats for Many<'_, B, F> {
    #[inline(always)]
    fn next(&mut self) -> Option<&mut u64> {
        if let Some(bucket) = self.ahead.next() {
            prefetch(self.words.as_ptr().wrapping_add(bucket));
        }
        self.words.get_mut(self.buckets.next()?)
    }
}

impl Spends {
    pub(super) fn of(bucket: &TokenBucket, last: i64) -> Spends {
        let interval = bucket.emission_interval().get();
        let offset = bucket.burst_offset().get();
        let divisor = Divisor::new(interval);
        Spends { burst: bucket.burst() as u64, interval, offset, divisor, last }
    }

    /// Spends for each event of a block; whether all of them can be. If not, nothing that was
    /// written means anything.
    ///
    /// No word may have been left by another limit.
    pub(super) fn run<T, N, C, A, S>(
        &self,
        events: &Events<T, N, C>,
        map: Option<&[u32]>,
        block: Range<usize>,
        words: &mut [u64],
        columns: &mut Columns<A, S>,
    ) -> bool
    where
        T: Source<i64>,
        N: Source<u32>,
        C: Source<i64>,
        A: Sink<bool>,
        S: Sink<i64>,
    {
        let lie_far = words.len() >= MANY;
        let first_ahead = if lie_far { block.end.min(block.start + AHEAD) } else { block.end };
        let ahead = first_ahead..block.end;
        match (&events.clients, map) {
            (None, _) => {
                let Some(&word) = words.first() else { return false };
                let mut one = One(word);
                let evaluated = self.with_costs(events, block, &mut one, columns);
                words[0] = one.0;
                evaluated
            }
            (Some(clients), None) => {
                let bucket = |client| client as usize;
                let buckets = clients.walk(block.clone()).map(bucket);
                let mut many = Many { words, buckets, ahead: clients.walk(ahead).map(bucket) };
                self.with_costs(events, block, &mut many, columns)
            }
            (Some(clients), Some(map)) => {
                let bucket =
                    |client| map.get(client as usize).map_or(usize::MAX, |&bucket| bucket as usize);
                let buckets = clients.walk(block.clone()).map(bucket);
                let mut many = Many { words, buckets, ahead: clients.walk(ahead).map(bucket) };
                self.with_costs(events, block, &mut many, columns)
            }
        }
    }

    #[inline(always)]
    fn with_costs<T, N, C, A, S>(
        &self,
        events: &Events<T, N, C>,
        block: Range<usize>,
        tats: &mut impl Tats,
        columns: &mut Columns<A, S>,
    ) -> bool
    where
        T: Source<i64>,
        C: Source<i64>,
        A: Sink<bool>,
        S: Sink<i64>,
    {
        match &events.costs {
            None => self.with_numbers(events, |_| 1, block, tats, columns),
            Some(costs) => {
                self.with_numbers(events, |place| costs.get(place), block, tats, columns)
            }
        }
    }

    #[inline(always)]
    fn with_numbers<T, N, C, A, S>(
        &self,
        events: &Events<T, N, C>,
        cost: impl Fn(usize) -> i64,
        block: Range<usize>,
        tats: &mut impl Tats,
        columns: &mut Columns<A, S>,
    ) -> bool
    where
        T: Source<i64>,
        A: Sink<bool>,
        S: Sink<i64>,
    {
        let (times, allowed) = (&events.times, &mut columns.allowed);
        let wants_numbers = columns.remaining.is_some()
            || columns.retry_after.is_some()
            || columns.reset_after.is_some();
        if !wants_numbers {
            return self.spend_each(times, &cost, block, tats, allowed, |_, _| {});
        }
        let mut missing = [0; BLOCK];
        let first = block.start;
        let evaluated =
            self.spend_each(times, &cost, block.clone(), tats, allowed, |place, lacks| {
                missing[place - first] = lacks;
            });
        self.tell(&missing[..block.len()], first, &cost, columns);
        evaluated
    }

    /// The loop. All but the TATs is independent of the event before, and done while waiting.
    #[inline(always)]
    fn spend_each(
        &self,
        times: &impl Source<i64>,
        cost: &impl Fn(usize) -> i64,
        block: Range<usize>,
        tats: &mut impl Tats,
        allowed: &mut impl Sink<bool>,
        mut lacking: impl FnMut(usize, i64),
    ) -> bool {
        let (mut last, mut can_be) = (self.last, true);
        for (place, now) in block.clone().zip(times.walk(block)) {
            let cost = cost(place);
            // A negative cost is a vast one without a sign.
            can_be &= (now >= last) & (cost as u64 <= self.burst);
            last = now;
            let Some(word) = tats.next() else { return false };
            let (is_allowed, tat) = self.spend(now, *word as i64, cost);
            *word = tat as u64;
            allowed.put(place, is_allowed);
            lacking(place, tat.wrapping_sub(now));
        }
        can_be
    }

    /// Whether a spend is allowed, and the TAT after it.
    ///
    /// Both TATs that there may be are computed before it is known which: only choosing between
    /// them has to wait for the spend before. Sums wrap only where an event cannot be, and then
    /// mean nothing.
    #[inline(always)]
    fn spend(&self, now: i64, tat: i64, cost: i64) -> (bool, i64) {
        let increment = self.interval.wrapping_mul(cost);
        let latest = now.wrapping_add(self.offset.wrapping_sub(increment));
        let taken = select_unpredictable(
            tat > now,
            tat.wrapping_add(increment),
            now.wrapping_add(increment),
        );
        // A denied bucket is not full, so its TAT is not before `now`.
        let allowed = tat <= latest;
        (allowed, select_unpredictable(allowed, taken, tat))
    }

    /// Computes the numbers of a block from how much each bucket lacks of being full.
    #[inline(always)]
    fn tell<A, S: Sink<i64>>(
        &self,
        missing: &[i64],
        first: usize,
        cost: &impl Fn(usize) -> i64,
        columns: &mut Columns<A, S>,
    ) {
        if let Some(remaining) = &mut columns.remaining {
            for (place, missing) in missing.iter().enumerate() {
                let left = self.offset.wrapping_sub(*missing);
                remaining.put(first + place, self.divisor.divides(left));
            }
        }
        if let Some(retry_after) = &mut columns.retry_after {
            for (place, missing) in missing.iter().enumerate() {
                let increment = self.interval.wrapping_mul(cost(first + place));
                let needed = missing.wrapping_add(increment);
                retry_after.put(first + place, needed.wrapping_sub(self.offset).max(0));
            }
        }
        if let Some(reset_after) = &mut columns.reset_after {
            for (place, missing) in missing.iter().enumerate() {
                reset_after.put(first + place, *missing);
            }
        }
    }
}
