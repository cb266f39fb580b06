//! The kinds of operations.

use crate::engine::state::Lease;

/// The kind of an operation.
// As wide as the other fields of a call, for the same reason as `Outcome`.
#[repr(u64)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Take tokens.
    #[default]
    Spend,
    /// Take tokens or slots for a reservation.
    Reserve,
    /// Ask without taking tokens.
    Check,
    /// Return tokens.
    Refund,
    /// Take tokens that the bucket may not have yet, all or nothing.
    Charge,
    /// Take tokens that the bucket may not have yet, as many as possible.
    ChargePartial,
    /// Take tokens that were used already: as many as possible, and none from an overdrawn bucket.
    ChargeAfter,
    /// Return slots that were taken under a lease.
    Release(Lease),
    /// Keep slots for another lease.
    Renew(Lease),
}

/// What operations do that differ only in their form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Take tokens or slots if they are there.
    Take,
    /// Look whether they are.
    Look,
    /// Return them.
    Return,
    /// Take them although they may not be there.
    Charge,
}

impl Verb {
    /// Returns what the operation does.
    #[inline(always)]
    pub const fn effect(self) -> Effect {
        match self {
            Verb::Spend | Verb::Reserve => Effect::Take,
            Verb::Check => Effect::Look,
            Verb::Refund | Verb::Release(_) => Effect::Return,
            Verb::Charge | Verb::ChargePartial | Verb::ChargeAfter | Verb::Renew(_) => {
                Effect::Charge
            }
        }
    }

    /// Returns whether a denial of this operation denies the others of its batch. The other verbs are
    /// independent of each other.
    #[inline(always)]
    pub const fn decides(self) -> bool {
        matches!(self.effect(), Effect::Take | Effect::Look)
    }

    /// Returns whether the operation takes as many tokens as possible, and may be denied nevertheless.
    #[inline(always)]
    pub const fn is_partial(self) -> bool {
        matches!(self, Verb::ChargePartial | Verb::ChargeAfter)
    }

    /// Returns whether the operation is one on slots, which their holder returns.
    #[inline(always)]
    pub const fn fits_slots(self) -> bool {
        match self {
            Verb::Reserve | Verb::Check | Verb::Release(_) | Verb::Renew(_) => true,
            Verb::Spend | Verb::Refund => false,
            Verb::Charge | Verb::ChargePartial | Verb::ChargeAfter => false,
        }
    }

    /// Returns whether the operation returns tokens or slots. Such an operation denies nothing.
    #[inline(always)]
    pub const fn returns(self) -> bool {
        matches!(self.effect(), Effect::Return)
    }
}
