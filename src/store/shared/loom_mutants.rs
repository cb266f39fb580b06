//! Deliberate bugs in the protocol, each of which a loom model must detect. The code calls `has`,
//! which is false and compiled away outside the models.

/// A bug: one step of the protocol is missing or wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// An eviction frees a slot by a store instead of a compare-and-swap.
    FreesByStore,
    /// A slot gets its new key before its state is freed.
    RenamesFirst,
    /// A state is stored as it is, without the mask of its key.
    NoMask,
    /// The number of a tenancy is not part of the key.
    NoTenancy,
    /// A call on a new bucket is decided at an instant before that of a forgotten bucket.
    NoFloor,
    /// The full cost of a charge is given back, including refilled tokens.
    GivesBackAll,
    /// All reads and writes of slots are Relaxed.
    Relaxed,
}

#[cfg(loom)]
thread_local! {
    // loom runs all threads of a model on one thread of the operating system.
    static PRESENT: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Adds a bug to all models that this thread runs from now on.
#[cfg(loom)]
pub fn introduce(flaw: Mutant) {
    PRESENT.set(Some(flaw));
}

/// Returns whether the models of this thread have this bug.
#[cfg(loom)]
pub(super) fn has(flaw: Mutant) -> bool {
    PRESENT.get() == Some(flaw)
}

/// Returns false: only models have bugs.
#[cfg(not(loom))]
#[inline(always)]
pub(super) const fn has(_: Mutant) -> bool {
    false
}
