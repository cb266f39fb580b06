//! `AnyLimiter`, the core's limiter as Python uses it.

use crate::clock::AnyClock;
use crate::limiter::Limiter;
use crate::store::any::AnyStore;

/// A limiter whose store and clock are chosen at run time.
pub(crate) type AnyLimiter = Limiter<AnyStore, AnyClock>;
