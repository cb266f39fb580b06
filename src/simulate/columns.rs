//! Columns that are read and written wherever they are kept: in Rust, or in another's arrays.

use std::ops::Range;

use crate::prefetch::prefetch;

/// A column that is read, wherever it is kept.
pub trait Source<T> {
    /// How many there are.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The one at a place below [`Source::len`].
    fn get(&self, place: usize) -> T;

    /// Those at some places, one after the other.
    fn walk(&self, places: Range<usize>) -> impl Iterator<Item = T>;

    /// Prefetches the one at an index, which may be beyond the end.
    fn prefetch(&self, index: usize);
}

impl<T: Copy> Source<T> for &[T] {
    fn len(&self) -> usize {
        <[T]>::len(self)
    }

    #[inline(always)]
    fn get(&self, place: usize) -> T {
        self[place]
    }

    #[inline(always)]
    fn walk(&self, places: Range<usize>) -> impl Iterator<Item = T> {
        self[places].iter().copied()
    }

    #[inline(always)]
    fn prefetch(&self, index: usize) {
        prefetch(self.as_ptr().wrapping_add(index));
    }
}

/// A column that is written, wherever it is kept.
pub trait Sink<T> {
    /// Puts one at a place.
    fn put(&mut self, place: usize, value: T);

    /// Prefetches the place of an index, which may be beyond the end.
    fn prefetch(&self, index: usize);
}

impl<T> Sink<T> for &mut [T] {
    #[inline(always)]
    fn put(&mut self, place: usize, value: T) {
        self[place] = value;
    }

    #[inline(always)]
    fn prefetch(&self, index: usize) {
        prefetch(self.as_ptr().wrapping_add(index));
    }
}

/// Events in the order of their times, as columns of one length.
#[derive(Clone, Copy, Debug)]
pub struct Events<T, N, C> {
    /// When, in nanoseconds since the clock's origin; never earlier than the one before.
    pub times: T,
    /// Whose, as numbers of clients in the order in which they were added; `None`: all are the
    /// first client's.
    pub clients: Option<N>,
    /// Tokens; `None`: 1 each.
    pub costs: Option<C>,
}

impl<T: Source<i64>, N: Source<u32>, C: Source<i64>> Events<T, N, C> {
    /// Prefetches the event at an index, which may be beyond the end.
    #[inline(always)]
    pub(super) fn prefetch(&self, index: usize) {
        self.times.prefetch(index);
        if let Some(clients) = &self.clients {
            clients.prefetch(index);
        }
        if let Some(costs) = &self.costs {
            costs.prefetch(index);
        }
    }
}

/// Where the decisions go, as columns of the length of the events; `None`: nowhere.
#[derive(Debug)]
pub struct Columns<A, S> {
    /// Whether each was allowed.
    pub allowed: A,
    /// Tokens left after each.
    pub remaining: Option<S>,
    /// Nanoseconds until the same cost could be allowed.
    pub retry_after: Option<S>,
    /// Nanoseconds until the bucket is full.
    pub reset_after: Option<S>,
}
