//! What a decision is: values in, values out.
//!
//! LAW: no I/O, no clock, no locks, no threads, no environment, no Python, no `unsafe`; nothing of
//! ours from outside this folder. Time is a value that someone passes in. `tests/rust/structure`
//! holds the law.
#![forbid(unsafe_code)]

pub mod algorithm;
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
