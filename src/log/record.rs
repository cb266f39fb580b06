//! One line, taken apart.

use std::borrow::Cow;

/// Fields that one reading may want: a time, a cost, and what an id is made of.
pub const MOST_SLOTS: usize = 8;
/// The slot of the time.
pub(super) const TIME: usize = 0;
/// The slot of the cost.
pub(super) const COST: usize = 1;
/// The first slot of the id; the others follow.
pub(super) const ID: usize = 2;

/// The wanted fields of one line, each in its slot.
#[derive(Debug, Default)]
pub(super) struct Record<'a> {
    pub slots: [Option<Cow<'a, [u8]>>; MOST_SLOTS],
    /// Whether bytes that are no UTF-8 are escaped already.
    pub is_escaped: bool,
}
