//! Vectorized evaluation of token buckets. The only dependency between spends in the loop is the TAT.

use std::array;
use std::hint::select_unpredictable;
use std::ops::Range;

use crate::engine::algorithm::gcra::TokenBucket;
use crate::engine::divisor::Divisor;
use crate::prefetch::{self, prefetch};
use crate::simulate::{Columns, Events, PREFETCH_THRESHOLD, Sink, Source};

/// The number of events that are decided together.
pub(super) const GROUP: usize = 8;

/// The number of events by which the prefetch of the columns precedes their use. The processor also
/// prefetches, but stops at every page boundary.
const COLUMNS_AHEAD: usize = 512;

/// The number of groups by which the prefetch of the buckets precedes their use.
const GROUPS_AHEAD: usize = prefetch::DISTANCE / GROUP;

/// Returns whether a spend at `now` cannot overflow. The engine saturates such sums, but this file does
/// not check for them.
pub(super) fn is_in_time(bucket: &TokenBucket, now: i64) -> bool {
    let offset = bucket.burst_offset().get();
    now <= i64::MAX - offset - offset
}

/// A group of events.
struct Group {
    /// The number of the group, counted from the first event.
    number: usize,
    nows: [i64; GROUP],
    increments: [i64; GROUP],
    /// The latest TATs at which the spends are allowed.
    latest: [i64; GROUP],
}

/// The TATs of the events' buckets.
trait Tats {
    /// Spends for a group, and passes the index within the group, the outcome and the TAT of each event
    /// to `each`. Returns whether all have a bucket.
    fn spend(&mut self, group: &Group, each: impl FnMut(usize, bool, i64)) -> bool;
}

/// A single bucket, in a register.
struct One<'a> {
    spends: &'a Spends,
    /// The earliest time at which a spend of one token is allowed. Unlike the TAT, it is compared with
    /// the time of an event without an addition.
    ready: i64,
}

impl Tats for One<'_> {
    // Each spend depends on the previous one. If the bucket stays in the same condition for all events
    // of a group, the chain of dependent operations is shorter. Traffic rarely changes between these
    // cases, so the branches are predictable.
    #[inline(always)]
    fn spend(&mut self, group: &Group, mut each: impl FnMut(usize, bool, i64)) -> bool {
        let Group { nows, increments, .. } = group;
        let &Spends { interval, offset, offset_for_one, .. } = self.spends;
        if self.ready > nows[GROUP - 1].wrapping_sub(offset_for_one) {
            // The bucket is never full, so the TAT does not depend on the times.
            let mut sums = 0;
            for index in 0..GROUP {
                let beyond_one = increments[index].wrapping_sub(interval);
                let allowed = self.ready <= nows[index].wrapping_sub(beyond_one);
                let sum = self.ready.wrapping_add(increments[index]);
                sums |= sum;
                self.ready = select_unpredictable(allowed, sum, self.ready);
                each(index, allowed, self.ready.wrapping_add(offset_for_one));
            }
            // Always true, as no sum is that small. A sum with a second use is computed beside the
            // comparison; otherwise the compiler adds after it, which makes the chain longer by a half.
            return sums != i64::MIN;
        }
        let total = increments.iter().fold(0_i64, |sum, increment| sum.saturating_add(*increment));
        let mut tat = self.ready.wrapping_add(offset_for_one);
        if total <= offset && tat.wrapping_add(total) <= nows[0].wrapping_add(offset) {
            // All spends are allowed. The TAT is the larger of two: that of a bucket that was full at
            // some event, and that of a bucket that never was.
            let mut since_full = i64::MIN;
            for index in 0..GROUP {
                since_full = since_full.max(nows[index]).wrapping_add(increments[index]);
                tat = tat.wrapping_add(increments[index]);
                each(index, true, tat.max(since_full));
            }
            tat = tat.max(since_full);
        } else {
            for index in 0..GROUP {
                let (allowed, after) = group.spend(index, tat);
                tat = after;
                each(index, allowed, tat);
            }
        }
        self.ready = tat.wrapping_sub(offset_for_one);
        true
    }
}

/// Several buckets, in memory.
struct Many<'a, N, B> {
    words: &'a mut [u64],
    clients: &'a N,
    /// Returns the bucket of a client, out of range for an unknown client.
    bucket: B,
}

impl<N: Source<u32>, B: Fn(u32) -> usize> Tats for Many<'_, N, B> {
    #[inline(always)]
    fn spend(&mut self, group: &Group, mut each: impl FnMut(usize, bool, i64)) -> bool {
        let ahead = group.number + GROUPS_AHEAD;
        if self.words.len() >= PREFETCH_THRESHOLD && (ahead + 1) * GROUP <= self.clients.len() {
            let client = self.clients.group::<GROUP>(ahead);
            for index in 0..GROUP {
                prefetch(self.words.as_ptr().wrapping_add((self.bucket)(client(index))));
            }
        }
        let client = self.clients.group::<GROUP>(group.number);
        for index in 0..GROUP {
            let Some(word) = self.words.get_mut((self.bucket)(client(index))) else { return false };
            let (allowed, tat) = group.spend(index, *word as i64);
            *word = tat as u64;
            each(index, allowed, tat);
        }
        true
    }
}

impl Group {
    /// Returns whether a spend is allowed, and the TAT after it.
    ///
    /// Both possible results are computed, so that only the selection depends on the previous spend. Sums
    /// wrap only for invalid events, whose results are not used.
    #[inline(always)]
    fn spend(&self, index: usize, tat: i64) -> (bool, i64) {
        let (now, increment) = (self.nows[index], self.increments[index]);
        // A denied bucket is not full, so its TAT is not before `now`.
        let allowed = tat <= self.latest[index];
        let taken = select_unpredictable(allowed, tat.wrapping_add(increment), tat);
        (allowed, select_unpredictable(tat <= now, now.wrapping_add(increment), taken))
    }
}

/// The parameters that all spends of one limit share.
pub(super) struct Spends {
    burst: u64,
    interval: i64,
    offset: i64,
    /// The burst offset less one interval.
    offset_for_one: i64,
    divisor: Divisor,
    /// The time of the previous event.
    last: i64,
}

impl Spends {
    pub(super) fn of(bucket: &TokenBucket, last: i64) -> Spends {
        let interval = bucket.emission_interval().get();
        let offset = bucket.burst_offset().get();
        let divisor = Divisor::new(interval);
        let offset_for_one = offset - interval;
        Spends { burst: bucket.burst() as u64, interval, offset, offset_for_one, divisor, last }
    }

    /// Spends for each event of a block of whole groups. Returns whether all are valid; otherwise the
    /// written results are unspecified.
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
        match (&events.clients, map) {
            (None, _) => {
                let Some(word) = words.first_mut() else { return false };
                let ready = (*word as i64).wrapping_sub(self.offset_for_one);
                let mut one = One { spends: self, ready };
                let is_valid = self.with_costs(events, block, &mut one, columns);
                *word = one.ready.wrapping_add(self.offset_for_one) as u64;
                is_valid
            }
            (Some(clients), None) => {
                let bucket = |client| client as usize;
                self.with_costs(events, block, &mut Many { words, clients, bucket }, columns)
            }
            (Some(clients), Some(map)) => {
                let bucket =
                    |client| map.get(client as usize).map_or(usize::MAX, |&bucket| bucket as usize);
                self.with_costs(events, block, &mut Many { words, clients, bucket }, columns)
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
            None => self.with_numbers(events, |_| None, block, tats, columns),
            Some(costs) => self.with_numbers(
                events,
                |number| Some(array::from_fn(costs.group::<GROUP>(number))),
                block,
                tats,
                columns,
            ),
        }
    }

    #[inline(always)]
    fn with_numbers<T, N, C, A, S>(
        &self,
        events: &Events<T, N, C>,
        costs: impl Fn(usize) -> Option<[i64; GROUP]>,
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
        let Columns { allowed, remaining, retry_after, reset_after } = columns;
        if remaining.is_none() && retry_after.is_none() && reset_after.is_none() {
            return self.spend_each(events, costs, block, tats, |group, tats| {
                let mut allowed = allowed.group::<GROUP>(group.number);
                tats.spend(group, |index, is_allowed, _| allowed(index, is_allowed))
            });
        }
        self.spend_each(events, costs, block, tats, |group, tats| {
            let mut missing = [0; GROUP];
            let mut allowed = allowed.group::<GROUP>(group.number);
            let is_valid = tats.spend(group, |index, is_allowed, tat| {
                allowed(index, is_allowed);
                missing[index] = tat.wrapping_sub(group.nows[index]);
            });
            fill(remaining, group, |index| {
                self.divisor.divide(self.offset.wrapping_sub(missing[index]))
            });
            fill(retry_after, group, |index| {
                let needed = missing[index].wrapping_add(group.increments[index]);
                needed.wrapping_sub(self.offset).max(0)
            });
            fill(reset_after, group, |index| missing[index]);
            is_valid
        })
    }

    /// Calls `spend` for each group of a block. Everything except the TAT is independent of the previous
    /// event, so the processor computes it in parallel.
    #[inline(always)]
    fn spend_each<T, N, C, B>(
        &self,
        events: &Events<T, N, C>,
        costs: impl Fn(usize) -> Option<[i64; GROUP]>,
        block: Range<usize>,
        tats: &mut B,
        mut spend: impl FnMut(&Group, &mut B) -> bool,
    ) -> bool
    where
        T: Source<i64>,
        N: Source<u32>,
        C: Source<i64>,
    {
        let mut last = self.last;
        for number in block.start / GROUP..block.end / GROUP {
            events.prefetch(number * GROUP + COLUMNS_AHEAD);
            let nows: [i64; GROUP] = array::from_fn(events.times.group::<GROUP>(number));
            for now in nows {
                if now < last {
                    return false;
                }
                last = now;
            }
            let (mut increments, mut offsets) =
                ([self.interval; GROUP], [self.offset_for_one; GROUP]);
            if let Some(costs) = costs(number) {
                for (index, cost) in costs.into_iter().enumerate() {
                    // As an unsigned number, a negative cost exceeds every burst.
                    if cost as u64 > self.burst {
                        return false;
                    }
                    increments[index] = self.interval.wrapping_mul(cost);
                    offsets[index] = self.offset.wrapping_sub(increments[index]);
                }
            }
            let latest = array::from_fn(|index| nows[index].wrapping_add(offsets[index]));
            if !spend(&Group { number, nows, increments, latest }, tats) {
                return false;
            }
        }
        true
    }
}

/// Writes the values of a group into a column, if it is requested.
#[inline(always)]
fn fill<S: Sink<i64>>(column: &mut Option<S>, group: &Group, value: impl Fn(usize) -> i64) {
    if let Some(column) = column {
        let mut put = column.group::<GROUP>(group.number);
        (0..GROUP).for_each(|index| put(index, value(index)));
    }
}
