//! Columns of events and decisions, in arrays that Python owns.
//!
//! Python may write to an array while it is read here, so all numbers are atomic. Nothing is ordered by them.

use std::ops::Range;

use crate::engine::decision::Decision;
use crate::sync::counting::{AtomicI64, AtomicU8, AtomicU32, Ordering};

/// Events in order of time, as columns of the same length.
#[derive(Clone, Copy, Debug)]
pub struct Events<'a> {
    /// The times in nanoseconds since the clock's origin, ascending.
    pub times: &'a [AtomicI64],
    /// The client numbers; `None` if all events belong to the first client.
    pub clients: Option<&'a [AtomicU32]>,
    /// The costs in tokens; `None` for 1 each.
    pub costs: Option<&'a [AtomicI64]>,
    /// The durations of the requests in nanoseconds; `None` if they are not known.
    pub durations: Option<&'a [AtomicI64]>,
}

impl Events<'_> {
    /// Returns the number of events.
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// Returns whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// Returns a range of the events.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        Events {
            times: &self.times[range.clone()],
            clients: self.clients.map(|clients| &clients[range.clone()]),
            costs: self.costs.map(|costs| &costs[range.clone()]),
            durations: self.durations.map(|durations| &durations[range]),
        }
    }

    #[inline(always)]
    pub(super) fn time(&self, index: usize) -> i64 {
        self.times[index].load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn client(&self, index: usize) -> u32 {
        self.clients.map_or(0, |clients| clients[index].load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(super) fn cost(&self, index: usize) -> i64 {
        self.costs.map_or(1, |costs| costs[index].load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(super) fn duration(&self, index: usize) -> i64 {
        self.durations.map_or(0, |durations| durations[index].load(Ordering::Relaxed))
    }
}

/// The requested columns of the decisions, with the same length as the events.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// 1 for each allowed event, otherwise 0.
    pub allowed: &'a [AtomicU8],
    /// Tokens left after each event.
    pub remaining: Option<&'a [AtomicI64]>,
    /// Nanoseconds until the same cost could be allowed.
    pub retry_after: Option<&'a [AtomicI64]>,
    /// Nanoseconds until the bucket is full.
    pub reset_after: Option<&'a [AtomicI64]>,
}

impl Columns<'_> {
    /// Returns a range of the columns.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        Columns {
            allowed: &self.allowed[range.clone()],
            remaining: self.remaining.map(|column| &column[range.clone()]),
            retry_after: self.retry_after.map(|column| &column[range.clone()]),
            reset_after: self.reset_after.map(|column| &column[range]),
        }
    }

    /// Returns whether more is requested than whether each event is allowed.
    #[inline(always)]
    pub(super) fn has_numbers(&self) -> bool {
        self.remaining.is_some() || self.retry_after.is_some() || self.reset_after.is_some()
    }

    #[inline(always)]
    pub(super) fn put(&self, index: usize, decision: &Decision) {
        self.allowed[index].store(decision.allowed.into(), Ordering::Relaxed);
        let put = |column: Option<&[AtomicI64]>, number| {
            if let Some(column) = column {
                column[index].store(number, Ordering::Relaxed);
            }
        };
        put(self.remaining, decision.remaining);
        put(self.retry_after, decision.retry_after.get());
        put(self.reset_after, decision.reset_after.get());
    }
}
