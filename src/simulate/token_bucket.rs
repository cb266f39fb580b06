//! Spends of token buckets, with nothing in the loop but what one spend needs of the one before.

use crate::engine::algorithm::gcra::TokenBucket;
use crate::simulate::divisor::Divisor;
use crate::simulate::{BLOCK, Columns, Events};
use crate::store::prefetch::prefetch;

/// So many events ahead a bucket is asked for.
const AHEAD: usize = 32;
/// Fewer buckets than this lie close at hand as they are.
const MANY: usize = 1 << 15;

/// Whether no instant that a spend at `now` computes with is beyond the end of time.
///
/// The engine lets such sums stand at the end; here they are not looked at.
pub(super) fn is_in_time(bucket: &TokenBucket, now: i64) -> bool {
    let offset = bucket.burst_offset().get();
    now <= i64::MAX - offset - offset
}

/// What all spends of one limit have in common.
pub(super) struct Spends {
    interval: i64,
    offset: i64,
    divisor: Divisor,
}

impl Spends {
    pub(super) fn of(bucket: &TokenBucket) -> Spends {
        let interval = bucket.emission_interval().get();
        let offset = bucket.burst_offset().get();
        Spends { interval, offset, divisor: Divisor::new(interval) }
    }

    /// Spends for each event of a block. No time may be before the one before, no cost above the
    /// burst, and no word have been left by another limit.
    pub(super) fn run(&self, events: Events<'_>, words: &mut [u64], columns: &mut Columns<'_>) {
        let mut missing = [0; BLOCK];
        let missing = &mut missing[..events.times.len()];
        let wants_numbers = columns.remaining.is_some()
            || columns.retry_after.is_some()
            || columns.reset_after.is_some();
        let Events { times, clients, costs } = events;
        let allowed = &mut *columns.allowed;
        match (clients, costs, wants_numbers) {
            (None, None, false) => self.one::<false>(times, |_| 1, words, allowed, missing),
            (None, None, true) => self.one::<true>(times, |_| 1, words, allowed, missing),
            (None, Some(costs), false) => {
                self.one::<false>(times, |place| costs[place], words, allowed, missing)
            }
            (None, Some(costs), true) => {
                self.one::<true>(times, |place| costs[place], words, allowed, missing)
            }
            (Some(clients), None, false) => {
                self.many::<false>(times, clients, |_| 1, words, allowed, missing)
            }
            (Some(clients), None, true) => {
                self.many::<true>(times, clients, |_| 1, words, allowed, missing)
            }
            (Some(clients), Some(costs), false) => {
                self.many::<false>(times, clients, |place| costs[place], words, allowed, missing)
            }
            (Some(clients), Some(costs), true) => {
                self.many::<true>(times, clients, |place| costs[place], words, allowed, missing)
            }
        }
        if wants_numbers {
            self.tell(missing, costs, columns);
        }
    }

    /// One bucket, whose word stays in a register.
    #[inline(always)]
    fn one<const NUMBERS: bool>(
        &self,
        times: &[i64],
        cost: impl Fn(usize) -> i64,
        words: &mut [u64],
        allowed: &mut [bool],
        missing: &mut [i64],
    ) {
        let mut tat = words[0] as i64;
        let told = times.iter().zip(allowed).zip(missing).enumerate();
        for (place, ((&now, allowed), missing)) in told {
            (*allowed, tat) = self.spend(now, tat, cost(place));
            if NUMBERS {
                *missing = tat - now;
            }
        }
        words[0] = tat as u64;
    }

    #[inline(always)]
    fn many<const NUMBERS: bool>(
        &self,
        times: &[i64],
        buckets: &[u32],
        cost: impl Fn(usize) -> i64,
        words: &mut [u64],
        allowed: &mut [bool],
        missing: &mut [i64],
    ) {
        let lie_far = words.len() >= MANY;
        let told = times.iter().zip(buckets).zip(allowed).zip(missing).enumerate();
        for (place, (((&now, &bucket), allowed), missing)) in told {
            if lie_far && let Some(&next) = buckets.get(place + AHEAD) {
                prefetch(words.as_ptr().wrapping_add(next as usize));
            }
            let word = &mut words[bucket as usize];
            let tat;
            (*allowed, tat) = self.spend(now, *word as i64, cost(place));
            *word = tat as u64;
            if NUMBERS {
                *missing = tat - now;
            }
        }
    }

    /// Whether a spend is allowed, and the TAT after it.
    ///
    /// Both TATs that there may be are computed before it is known which: only choosing between
    /// them has to wait for the spend before.
    #[inline(always)]
    fn spend(&self, now: i64, tat: i64, cost: i64) -> (bool, i64) {
        let increment = self.interval * cost;
        let latest = now + (self.offset - increment);
        let taken = if tat > now { tat + increment } else { now + increment };
        // A denied bucket is not full, so its TAT is not before `now`.
        let allowed = tat <= latest;
        (allowed, if allowed { taken } else { tat })
    }

    /// Tells the numbers of a block from how much each bucket lacks of being full.
    fn tell(&self, missing: &[i64], costs: Option<&[i64]>, columns: &mut Columns<'_>) {
        if let Some(remaining) = &mut columns.remaining {
            for (remaining, missing) in remaining.iter_mut().zip(missing) {
                *remaining = self.divisor.divides(self.offset - missing);
            }
        }
        if let Some(retry_after) = &mut columns.retry_after {
            let full = self.offset;
            match costs {
                None => {
                    for (retry_after, missing) in retry_after.iter_mut().zip(missing) {
                        *retry_after = (missing + self.interval - full).max(0);
                    }
                }
                Some(costs) => {
                    for ((retry_after, missing), cost) in
                        retry_after.iter_mut().zip(missing).zip(costs)
                    {
                        *retry_after = (missing + self.interval * cost - full).max(0);
                    }
                }
            }
        }
        if let Some(reset_after) = &mut columns.reset_after {
            reset_after.copy_from_slice(missing);
        }
    }
}
