//! What Python sees, as a list of exports.
//!
//! LAW: convert, call, convert. This is the one folder that names pyo3; if something here computes,
//! it is in the wrong place. `array.rs`, `column.rs`, `fastcall.rs`, `id_text.rs`,
//! `interpreter.rs` and `pool.rs` hold all the `unsafe` of the crate's Python side, with their reasons.

mod address;
mod arguments;
mod array;
mod bound_limit;
mod clock;
mod column;
mod decision;
mod decision_data;
mod decisions;
mod default_clock;
mod errors;
mod event_columns;
mod existing_store;
mod explanation;
mod fastcall;
mod hints;
mod id_numbers;
mod id_text;
mod interpreter;
mod limit;
mod limit_entry;
mod limiter;
mod limiter_handle;
mod limits;
mod log;
mod pickled_decision;
mod pool;
mod replies;
mod reservation;
mod route_simulator;
mod simulator;
mod stats;
mod store_log;
mod transaction;
mod wait_queues;
mod waiter;
mod waiting;

use pyo3::prelude::*;
use pyo3::types::PyMapping;

/// The Rust core, typed. Times are float seconds unless a name ends in `_ns`.
#[pymodule(gil_used = false)]
mod _core {
    use super::*;

    #[pymodule_export]
    use super::address::canonical_address;
    #[pymodule_export]
    use super::arguments::timeout_ns;
    #[pymodule_export]
    use super::bound_limit::BoundLimit;
    #[pymodule_export]
    use super::clock::{ManualClock, SystemClock};
    #[pymodule_export]
    use super::decision::{_unpickled_decision, Decision};
    #[pymodule_export]
    use super::decisions::{_unpickled_decisions, Decisions};
    #[pymodule_export]
    use super::default_clock::set_default_clock;
    #[pymodule_export]
    use super::event_columns::largest_within;
    #[pymodule_export]
    use super::existing_store::ExistingStore;
    #[pymodule_export]
    use super::explanation::{_unpickled_explanation, Explanation};
    #[pymodule_export]
    use super::hints::attach_hints;
    #[pymodule_export]
    use super::id_numbers::{factorise, factorise_fixed};
    #[pymodule_export]
    use super::limit::{Limit, parse_duration};
    #[pymodule_export]
    use super::limiter::Limiter;
    #[pymodule_export]
    use super::limits::Limits;
    #[pymodule_export]
    use super::log::LogParser;
    #[pymodule_export]
    use super::replies::Replies;
    #[pymodule_export]
    use super::reservation::Reservation;
    #[pymodule_export]
    use super::route_simulator::{RouteSimulator, load_routes};
    #[pymodule_export]
    use super::simulator::Simulator;
    #[pymodule_export]
    use super::transaction::Transaction;
    #[pymodule_export]
    use super::waiter::Waiter;
    #[pymodule_export]
    use super::waiting::rate_limited_error;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::interpreter::refuse_sub_interpreter(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("IPV6_PREFIX", crate::engine::id::IPV6_PREFIX)?;
        super::fastcall::attach(module.py())?;
        PyMapping::register::<super::limits::Limits>(module.py())?;
        attach_hints(&module.py().get_type::<Limiter>())?;
        attach_hints(&module.py().get_type::<BoundLimit>())?;
        let names = [
            "BoundLimit",
            "Decision",
            "Decisions",
            "Explanation",
            "Limit",
            "Limiter",
            "Limits",
            "ManualClock",
            "Reservation",
            "SystemClock",
            "Transaction",
            "__version__",
        ];
        module.add("__all__", names)
    }
}
