//! The rules of rate limiting as pure functions.
//!
//! No I/O, clock, locks, threads, environment, Python or `unsafe`, and no imports from other
//! modules of this crate. Time is an argument. `tests/rust/structure` enforces this.
#![forbid(unsafe_code)]

pub mod algorithm;
pub mod answer;
pub mod batch;
pub mod cost;
pub mod decision;
pub mod describe;
pub(crate) mod divisor;
pub mod factor;
pub mod id;
pub mod key;
pub mod limit;
pub mod limit_error;
pub(crate) mod named_enum;
pub mod operation;
pub mod registry;
pub mod state;
pub mod time;
pub mod verb;
