//! Tests of the crate's public interface, in one binary.

#![expect(clippy::disallowed_methods, reason = "the tests read files")]

mod concurrency;
mod config_properties;
mod counters;
mod describe;
mod give_back;
mod id_properties;
mod in_flight;
mod log;
mod memory_store;
mod properties;
mod real_limits;
#[cfg(feature = "redis")]
mod redis_store;
mod shared;
mod store_contract;
mod stores;
mod strategies;
mod structure;
mod stub_docs;
mod submission;
mod two_limits;
mod waiting;
