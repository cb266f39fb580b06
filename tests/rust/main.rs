//! Tests of the crate's public interface, in one binary.

#![expect(clippy::disallowed_methods, reason = "the tests read files")]

mod boulder;
mod concurrency;
mod config;
mod config_meaning;
mod config_properties;
mod counters;
mod describe;
mod give_back;
mod id_properties;
mod ids;
mod log;
mod memory_store;
mod oracle;
mod properties;
mod real_limits;
#[cfg(feature = "redis")]
mod redis_store;
mod shared;
mod simulate;
mod spec_examples;
mod store_contract;
mod stores;
mod strategies;
mod structure;
mod submission;
mod two_limits;
mod vectors;
