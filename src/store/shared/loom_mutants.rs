//! Deliberate bugs in the protocol, each of which a loom model must detect.

/// One step of the protocol that is left out or done wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// An eviction frees a slot by a store instead of a compare-and-swap.
    FreesByStore,
    /// A slot gets its new key before the former state is freed.
    RenamesFirst,
    /// A state is stored as it is, without the mask of its key.
    NoMask,
    /// The number of a tenancy is not part of the key.
    NoTenancy,
    /// A new bucket is decided by a reading of the clock from before others were forgotten.
    NoFloor,
    /// A charge that is given back pays the full cost, whatever has drained since.
    GivesBackAll,
    /// All reads and writes of slots are Relaxed.
    Relaxed,
    /// A key is added to a table although a larger one has replaced it.
    AddsToRetired,
    /// A bucket is copied to a larger table before it is sealed in the older one.
    CopiesUnsealed,
    /// A bucket of an older table is freed before it is copied.
    FreesBeforeCopy,
    /// A lifetime is raised without announcing how late a state may now end that a call with an
    /// older reading of the key is about to write.
    AnnouncesFoundOnly,
}

#[cfg(loom)]
thread_local! {
    // loom runs all threads of a model on one thread of the system.
    static PRESENT: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Breaks the protocol in all models that this thread runs from now on.
#[cfg(loom)]
pub fn introduce(flaw: Mutant) {
    PRESENT.set(Some(flaw));
}

#[cfg(loom)]
pub(super) fn has(flaw: Mutant) -> bool {
    PRESENT.get() == Some(flaw)
}

/// Outside the models there is none.
#[cfg(not(loom))]
#[inline(always)]
pub(super) const fn has(_: Mutant) -> bool {
    false
}
