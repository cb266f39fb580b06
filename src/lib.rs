//! A rate limiter for Python: the Rust core.
//!
//! A request passes down through the layers once: `limiter` reads the clock, `engine::registry` finds
//! the limit that applies to the id, and a `store` passes the bucket's state to an operation of the
//! engine. Its [`Answer`] tells what was found and done; the numbers of a [`Decision`] are computed from
//! it when they are read.
//!
//! [`Answer`]: engine::answer::Answer
//! [`Decision`]: engine::decision::Decision

pub mod clock;
pub mod config;
pub mod engine;
pub mod hash;
pub mod latencies;
pub mod limiter;
pub mod log;
pub(crate) mod prefetch;
pub mod rate_limit_fields;
pub mod renewer;
pub mod simulate;
pub mod store;
mod sync;

#[cfg(feature = "python")]
mod bindings;
