//! The Python API.
//!
//! LAW: convert, call, convert. Only this folder uses pyo3, and it contains no logic of its own. All
//! `unsafe` code of the Python side is in `arguments.rs`, `arrays.rs`, `fastcall.rs`, `guarded_calls.rs`,
//! `id_text.rs`, `once.rs` and `pool.rs`.

// `doc!(Limiter.spend)` is the docstring of that item in `python/penstock/_core.pyi`.
include!(concat!(env!("OUT_DIR"), "/docs.rs"));

/// Creates a dictionary. Returns early with the error of a value that cannot be converted.
macro_rules! dict {
    ($py:expr, $($key:literal: $value:expr),* $(,)?) => {{
        let dict = pyo3::types::PyDict::new($py);
        $(dict.set_item($key, $value)?;)*
        dict
    }};
}

mod arguments;
mod arrays;
mod bound_limit;
mod clock;
mod decision;
mod decision_data;
mod errors;
mod fastcall;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod guarded_calls;
mod headers;
mod id_text;
mod limit;
mod limit_entry;
mod limiter;
mod limiter_handle;
mod limits;
mod log;
mod once;
mod pool;
mod replies;
mod reservation;
mod simulator;
mod slot_leases;
mod spend_each;
mod stats;
mod transaction;
mod waiter;

use pyo3::prelude::*;

/// Rust core of penstock. Times are float seconds unless a name ends in `_ns`.
#[pymodule(gil_used = false)]
mod _core {
    use super::*;

    #[pymodule_export]
    use super::arguments::{reserve_timeout_ns, timeout_ns};
    #[pymodule_export]
    use super::arrays::{factorise, factorise_fixed};
    #[pymodule_export]
    use super::bound_limit::{BoundLimit, try_spend, waiter};
    #[pymodule_export]
    use super::clock::{ManualClock, SystemClock, set_default_clock};
    #[pymodule_export]
    use super::decision::unlimited_decision;
    #[pymodule_export]
    use super::decision::{_unpickled_decision, Decision};
    #[pymodule_export]
    use super::headers::{encoded_header_fields, header_fields, header_values};
    #[pymodule_export]
    use super::id_text::canonical_address;
    #[pymodule_export]
    use super::limit::{Limit, limit_shapes, parse_duration};
    #[pymodule_export]
    use super::limit_entry::LimitEntry;
    #[pymodule_export]
    use super::limiter::{Limiter, open_existing, restore_limit, waiter_of_several};
    #[pymodule_export]
    use super::limits::Limits;
    #[pymodule_export]
    use super::log::{LogParser, matches_pattern};
    #[pymodule_export]
    use super::replies::Replies;
    #[pymodule_export]
    use super::reservation::Reservation;
    #[pymodule_export]
    use super::simulator::{Simulator, busiest};
    #[pymodule_export]
    use super::spend_each::arrow;
    #[pymodule_export]
    use super::transaction::check_transaction;
    #[pymodule_export]
    use super::waiter::{Waiter, rate_limited_error};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::once::check_main_interpreter(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("IPV6_PREFIX", crate::engine::id::IPV6_PREFIX)?;
        #[cfg(unix)]
        crate::sync::count_forks();
        super::fastcall::attach(module.py())?;
        super::limits::Limits::attach_methods(module.py())?;
        let names = [
            "BoundLimit",
            "Decision",
            "Limit",
            "Limiter",
            "Limits",
            "ManualClock",
            "Reservation",
            "SystemClock",
            "__version__",
        ];
        module.add("__all__", names)
    }
}
