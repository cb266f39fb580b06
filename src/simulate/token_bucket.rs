//! Vectorized evaluation of token buckets. The only dependency between spends in the loop is the TAT.

use std::hint::select_unpredictable;
use std::ops::Range;

use crate::engine::algorithm::gcra::TokenBucket;
use crate::engine::divisor::Divisor;
use crate::prefetch::prefetch;
use crate::simulate::{
    BLOCK, Columns, Events, PREFETCH_DISTANCE, PREFETCH_THRESHOLD, Sink, Source,
};

/// Returns whether a spend at `now` cannot overflow. The engine saturates such sums, but this file does
/// not check for them.
pub(super) fn is_in_time(bucket: &TokenBucket, now: i64) -> bool {
    let offset = bucket.burst_offset().get();
    now <= i64::MAX - offset - offset
}

/// The parameters that all spends of one limit share.
pub(super) struct Spends {
    burst: u64,
    interval: i64,
    offset: i64,
    divisor: Divisor,
    /// The time of the previous event.
    last: i64,
}

/// The number of events that are decided together.
const GROUP: usize = 8;

/// The number of events by which the prefetch of the columns precedes their use. The processor also
/// prefetches, but stops at every page boundary.
const COLUMNS_AHEAD: usize = 512;

/// The TATs of the events' buckets, in the order of the events.
trait Tats {
    /// Returns the TAT of the next event's bucket, or `None` if the bucket does not exist.
    fn next(&mut self) -> Option<&mut u64>;

    /// Spends for the next events, and passes the index, outcome and TAT of each to `each`. Returns
    /// whether all have a bucket.
    #[inline(always)]
    fn spend<const N: usize>(
        &mut self,
        spends: &Spends,
        nows: &[i64; N],
        increments: &[i64; N],
        mut each: impl FnMut(usize, bool, i64),
    ) -> bool {
        for index in 0..N {
            let Some(word) = self.next() else { return false };
            let (allowed, tat) = spends.spend(nows[index], *word as i64, increments[index]);
            *word = tat as u64;
            each(index, allowed, tat);
        }
        true
    }
}

/// A single bucket, in a register.
struct One(u64);

impl Tats for One {
    #[inline(always)]
    fn next(&mut self) -> Option<&mut u64> {
        Some(&mut self.0)
    }

    // Each spend depends on the previous one. If the bucket stays in the same condition for all events
    // of a group, the chain of dependent operations is shorter. Traffic rarely changes between these
    // cases, so the branches are predictable.
    #[inline(always)]
    fn spend<const N: usize>(
        &mut self,
        spends: &Spends,
        nows: &[i64; N],
        increments: &[i64; N],
        mut each: impl FnMut(usize, bool, i64),
    ) -> bool {
        let mut tat = self.0 as i64;
        let total = increments.iter().fold(0_i64, |sum, increment| sum.saturating_add(*increment));
        let is_room = total <= spends.offset
            && tat.wrapping_add(total) <= nows[0].wrapping_add(spends.offset);
        if tat > nows[N - 1] {
            // The bucket is never full, so the TAT does not depend on the times.
            for index in 0..N {
                let allowed = tat <= spends.latest(nows[index], increments[index]);
                tat = select_unpredictable(allowed, tat.wrapping_add(increments[index]), tat);
                each(index, allowed, tat);
            }
        } else if is_room {
            // All spends are allowed. The TAT is the larger of two: that of a bucket that was full at
            // some event, and that of a bucket that never was.
            let mut since_full = i64::MIN;
            for index in 0..N {
                since_full = since_full.max(nows[index]).wrapping_add(increments[index]);
                tat = tat.wrapping_add(increments[index]);
                each(index, true, tat.max(since_full));
            }
            tat = tat.max(since_full);
        } else {
            for index in 0..N {
                let (allowed, after) = spends.spend(nows[index], tat, increments[index]);
                tat = after;
                each(index, allowed, tat);
            }
        }
        self.0 = tat as u64;
        true
    }
}

/// Several buckets, in memory.
struct Many<'a, B, F> {
    words: &'a mut [u64],
    /// The bucket of each event, out of range for an unknown client.
    buckets: B,
    /// The buckets to prefetch, or nothing if all buckets are in the cache.
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

    /// Spends for each event of a block. Returns whether all are valid; otherwise the written results are
    /// unspecified.
    ///
    /// All words must have been written under this limit.
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
        let needs_prefetch = words.len() >= PREFETCH_THRESHOLD;
        let first_ahead =
            if needs_prefetch { block.end.min(block.start + PREFETCH_DISTANCE) } else { block.end };
        let ahead = first_ahead..block.end;
        match (&events.clients, map) {
            (None, _) => {
                let Some(&word) = words.first() else { return false };
                let mut single = One(word);
                let is_valid = self.with_costs(events, block, &mut single, columns);
                words[0] = single.0;
                is_valid
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
        N: Source<u32>,
        C: Source<i64>,
        A: Sink<bool>,
        S: Sink<i64>,
    {
        match &events.costs {
            None => self.with_numbers(events, |_| 1, block, tats, columns),
            Some(costs) => {
                self.with_numbers(events, |index| costs.get(index), block, tats, columns)
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
        N: Source<u32>,
        C: Source<i64>,
        A: Sink<bool>,
        S: Sink<i64>,
    {
        let allowed = &mut columns.allowed;
        let wants_numbers = columns.remaining.is_some()
            || columns.retry_after.is_some()
            || columns.reset_after.is_some();
        if !wants_numbers {
            return self.spend_each(events, &cost, block, tats, allowed, |_, _| {});
        }
        let mut missing = [0; BLOCK];
        let first = block.start;
        let is_valid =
            self.spend_each(events, &cost, block.clone(), tats, allowed, |index, lacking| {
                missing[index - first] = lacking;
            });
        self.write_numbers(&missing[..block.len()], first, &cost, columns);
        is_valid
    }

    /// Runs the loop. Everything except the TAT is independent of the previous event, so the processor
    /// computes it in parallel.
    #[inline(always)]
    fn spend_each<T, N, C>(
        &self,
        events: &Events<T, N, C>,
        cost: &impl Fn(usize) -> i64,
        block: Range<usize>,
        tats: &mut impl Tats,
        allowed: &mut impl Sink<bool>,
        mut lacking: impl FnMut(usize, i64),
    ) -> bool
    where
        T: Source<i64>,
        N: Source<u32>,
        C: Source<i64>,
    {
        let mut group = Group { last: self.last, valid: true };
        let rest = block.end - block.len() % GROUP;
        for first in (block.start..rest).step_by(GROUP) {
            events.prefetch(first + COLUMNS_AHEAD);
            allowed.prefetch(first + COLUMNS_AHEAD);
            if !group.spend::<GROUP>(self, first, &events.times, cost, tats, allowed, &mut lacking)
            {
                return false;
            }
        }
        for first in rest..block.end {
            if !group.spend::<1>(self, first, &events.times, cost, tats, allowed, &mut lacking) {
                return false;
            }
        }
        group.valid
    }

    /// Returns the latest TAT at which a spend is allowed.
    #[inline(always)]
    fn latest(&self, now: i64, increment: i64) -> i64 {
        now.wrapping_add(self.offset.wrapping_sub(increment))
    }

    /// Returns whether a spend is allowed, and the TAT after it.
    ///
    /// Both possible results are computed, so that only the selection depends on the previous spend. Sums
    /// wrap only for invalid events, whose results are not used.
    #[inline(always)]
    fn spend(&self, now: i64, tat: i64, increment: i64) -> (bool, i64) {
        // A denied bucket is not full, so its TAT is not before `now`.
        let allowed = tat <= self.latest(now, increment);
        let taken = select_unpredictable(allowed, tat.wrapping_add(increment), tat);
        (allowed, select_unpredictable(tat <= now, now.wrapping_add(increment), taken))
    }

    /// Computes the numbers of a block from the time until each bucket is full.
    #[inline(always)]
    fn write_numbers<A, S: Sink<i64>>(
        &self,
        missing: &[i64],
        first: usize,
        cost: &impl Fn(usize) -> i64,
        columns: &mut Columns<A, S>,
    ) {
        if let Some(remaining) = &mut columns.remaining {
            for (index, missing) in missing.iter().enumerate() {
                let left = self.offset.wrapping_sub(*missing);
                remaining.put(first + index, self.divisor.divide(left));
            }
        }
        if let Some(retry_after) = &mut columns.retry_after {
            for (index, missing) in missing.iter().enumerate() {
                let increment = self.interval.wrapping_mul(cost(first + index));
                let needed = missing.wrapping_add(increment);
                retry_after.put(first + index, needed.wrapping_sub(self.offset).max(0));
            }
        }
        if let Some(reset_after) = &mut columns.reset_after {
            for (index, missing) in missing.iter().enumerate() {
                reset_after.put(first + index, *missing);
            }
        }
    }
}

/// The validity of the events so far, and the time of the last one.
struct Group {
    last: i64,
    valid: bool,
}

impl Group {
    /// Spends for `N` events. Returns whether all have a bucket.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "the columns of the events and of the decisions")]
    fn spend<const N: usize>(
        &mut self,
        spends: &Spends,
        first: usize,
        times: &impl Source<i64>,
        cost: &impl Fn(usize) -> i64,
        tats: &mut impl Tats,
        allowed: &mut impl Sink<bool>,
        lacking: &mut impl FnMut(usize, i64),
    ) -> bool {
        let nows: [i64; N] = std::array::from_fn(|index| times.get(first + index));
        let increments: [i64; N] = std::array::from_fn(|index| {
            let cost = cost(first + index);
            // As an unsigned number, a negative cost exceeds every burst.
            self.valid &= (nows[index] >= self.last) & (cost as u64 <= spends.burst);
            self.last = nows[index];
            spends.interval.wrapping_mul(cost)
        });
        tats.spend(spends, &nows, &increments, |index, is_allowed, tat| {
            allowed.put(first + index, is_allowed);
            lacking(first + index, tat.wrapping_sub(nows[index]));
        })
    }
}
