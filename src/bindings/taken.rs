//! Tokens and slots that a call has taken, and the operations that return them.

use std::sync::Arc;

use pyo3::prelude::*;
use smallvec::SmallVec;

use crate::bindings::id_text::id_text;
use crate::bindings::limit_entry::LimitEntry;
use crate::engine::factor::Adjustment;
use crate::engine::verb::Verb;
use crate::limiter::{self, Ending, HeldSlotKey, OpenSlots};
use crate::sync::Mutex;

/// What was taken from each bucket of a call.
pub(crate) type Parts = SmallVec<[ReservedPart; 1]>;

/// Tokens or slots of one bucket.
#[derive(Debug)]
pub(crate) struct ReservedPart {
    pub(crate) entry: Py<LimitEntry>,
    pub(crate) cost: i64,
    pub(crate) taken: Taken,
}

/// What was taken from a bucket.
#[derive(Debug)]
pub(crate) enum Taken {
    Slots(HeldSlotKey),
    Tokens(TakenTokens),
}

/// Tokens that were taken from a bucket.
#[derive(Debug)]
pub(crate) struct TakenTokens {
    /// The limit at the time of the charge. A refund uses it even after a reload.
    pub(crate) bound: Arc<limiter::BoundLimit>,
    pub(crate) id: Py<PyAny>,
    pub(crate) adjustment: Option<Adjustment>,
    /// The actual cost, to be charged at the end; `None` before it is known.
    pub(crate) actual: Mutex<Option<i64>>,
}

impl Taken {
    #[inline(always)]
    pub(crate) fn new(
        slot: Option<HeldSlotKey>,
        bound: &Arc<limiter::BoundLimit>,
        id: &Bound<'_, PyAny>,
        adjustment: Option<&Adjustment>,
    ) -> Taken {
        slot.map_or_else(
            || {
                let adjustment = adjustment.cloned().and_then(Adjustment::after_spend);
                let (bound, id) = (Arc::clone(bound), id.clone().unbind());
                Taken::Tokens(TakenTokens { bound, id, adjustment, actual: Mutex::new(None) })
            },
            Taken::Slots,
        )
    }
}

impl ReservedPart {
    /// Returns the operation that ends this part; `None` if nothing changes.
    pub(crate) fn ending(
        &self,
        py: Python<'_>,
        slots: &OpenSlots,
        is_cancelled: bool,
    ) -> Option<Ending> {
        match &self.taken {
            Taken::Slots(slot) => slots.end(*slot),
            Taken::Tokens(tokens) => tokens.ending(py, self.cost, is_cancelled),
        }
    }

    pub(crate) fn slot(&self) -> Option<HeldSlotKey> {
        if let Taken::Slots(slot) = self.taken { Some(slot) } else { None }
    }
}

impl TakenTokens {
    #[inline(never)]
    fn ending(&self, py: Python<'_>, estimate: i64, is_cancelled: bool) -> Option<Ending> {
        let actual = self.actual.lock().unwrap_or(if is_cancelled { 0 } else { estimate });
        let (verb, cost) = match actual.saturating_sub(estimate) {
            0 => return None,
            more @ 1.. => (Verb::ChargePartial, more),
            less => (Verb::Refund, -less),
        };
        let id = id_text(self.id.bind(py)).ok()?.into();
        Some(Ending {
            limit: Arc::clone(&self.bound),
            id,
            adjustment: self.adjustment.clone(),
            verb,
            cost,
        })
    }
}
