//! Columns of events and decisions, independent of where they are stored.

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
}

impl<T: Copy> Source<T> for &[T] {
    fn len(&self) -> usize {
        <[T]>::len(self)
    }

    #[inline(always)]
    fn get(&self, index: usize) -> T {
        self[index]
    }
}

/// A writable column.
pub trait Sink<T> {
    /// Writes a value.
    fn put(&mut self, index: usize, value: T);
}

impl<T> Sink<T> for &mut [T] {
    #[inline(always)]
    fn put(&mut self, index: usize, value: T) {
        self[index] = value;
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
