//! A list that only grows.

use std::iter;

use once_cell::race::OnceBox;

/// A list to whose end values are added, and from which none is removed.
///
/// No operation takes a lock, so a child process may use it that was forked off while another thread added a
/// value.
#[derive(Debug)]
pub(crate) struct AppendList<T>(OnceBox<(T, AppendList<T>)>);

impl<T> AppendList<T> {
    /// Creates an empty list.
    pub(crate) const fn new() -> AppendList<T> {
        AppendList(OnceBox::new())
    }

    /// Returns the values in the order in which they were added.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        iter::successors(self.0.get(), |(_, rest)| rest.0.get()).map(|(value, _)| value)
    }

    /// Returns the first value that `is_it`, or the result of `make` after adding it. Of the values that
    /// threads make at the same time, one is added.
    ///
    /// # Errors
    /// That of `make`.
    pub(crate) fn find_or_push<E>(
        &self,
        is_it: impl Fn(&T) -> bool,
        make: impl Fn() -> Result<T, E>,
    ) -> Result<&T, E> {
        let mut end = self;
        loop {
            let link = || make().map(|value| Box::new((value, AppendList::new())));
            let (value, rest) = end.0.get_or_try_init(link)?;
            if is_it(value) {
                return Ok(value);
            }
            end = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::thread;

    use super::*;

    #[test]
    fn a_value_is_found_or_added_once() {
        let list = AppendList::new();
        let find =
            |number| list.find_or_push(|&found| found == number, || Ok::<_, Infallible>(number));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|number| assert_eq!(find(number), Ok(&number))));
            }
        });
        assert!(list.iter().copied().eq(0..100));
    }
}
