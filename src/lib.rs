//! Rate limits for Python programs, decided in Rust.
//!
//! A request falls through once: `limiter` reads the clock, `engine::registry` says which limit
//! applies to the id, a `store` hands the bucket's state to the engine's step, and the [`Decision`]
//! rises again with every number in it.
//!
//! [`Decision`]: engine::decision::Decision

pub mod clock;
pub mod config;
pub mod engine;
pub mod limiter;
pub mod log;
pub(crate) mod prefetch;
pub mod rate_limit_fields;
pub mod simulate;
pub mod store;
mod sync;

#[cfg(feature = "python")]
mod bindings;
