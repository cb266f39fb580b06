//! Columns of events and decisions, independent of where they are stored.

use crate::prefetch::prefetch;

/// A readable column.
pub trait Source<T> {
    /// Returns the number of values.
    fn len(&self) -> usize;

    /// Returns whether the column is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the value at an index below [`Source::len`].
    fn get(&self, index: usize) -> T;

    /// Returns a function that reads the values of a group of `N` by their index within the group.
    fn group<const N: usize>(&self, number: usize) -> impl Fn(usize) -> T;

    /// Prefetches the value at an index, which may be beyond the end.
    fn prefetch(&self, index: usize);
}

impl<T: Copy> Source<T> for &[T] {
    fn len(&self) -> usize {
        <[T]>::len(self)
    }

    #[inline(always)]
    fn get(&self, index: usize) -> T {
        self[index]
    }

    #[inline(always)]
    fn group<const N: usize>(&self, number: usize) -> impl Fn(usize) -> T {
        let group = &self.as_chunks::<N>().0[number];
        move |index| group[index]
    }

    #[inline(always)]
    fn prefetch(&self, index: usize) {
        prefetch(self.as_ptr().wrapping_add(index));
    }
}

/// A writable column.
pub trait Sink<T> {
    /// Writes a value.
    fn put(&mut self, index: usize, value: T);

    /// Returns a function that writes the values of a group of `N` by their index within the group.
    fn group<const N: usize>(&mut self, number: usize) -> impl FnMut(usize, T);
}

impl<T> Sink<T> for &mut [T] {
    #[inline(always)]
    fn put(&mut self, index: usize, value: T) {
        self[index] = value;
    }

    #[inline(always)]
    fn group<const N: usize>(&mut self, number: usize) -> impl FnMut(usize, T) {
        let group = &mut self.as_chunks_mut::<N>().0[number];
        move |index, value| group[index] = value
    }
}

/// Events in order of time, as columns of the same length.
#[derive(Clone, Copy, Debug)]
pub struct Events<T, N, C> {
    /// The times in nanoseconds since the clock's origin, ascending.
    pub times: T,
    /// The client numbers; `None` if all events belong to the first client.
    pub clients: Option<N>,
    /// The costs in tokens; `None` for 1 each.
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

/// The requested columns of the decisions, with the same length as the events.
#[derive(Debug)]
pub struct Columns<A, S> {
    /// Whether each event is allowed.
    pub allowed: A,
    /// Tokens left after each event.
    pub remaining: Option<S>,
    /// Nanoseconds until the same cost could be allowed.
    pub retry_after: Option<S>,
    /// Nanoseconds until the bucket is full.
    pub reset_after: Option<S>,
}
