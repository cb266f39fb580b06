//! The class `RouteSimulator`.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::bindings::arguments::Items;
use crate::bindings::arrays::{Array, EventColumns, ResultColumns};
use crate::bindings::simulator::{entry_of, event_error};
use crate::config;
use crate::simulate::{PlannedSpend, Together};
use crate::sync::Mutex;

#[doc = doc!(RouteSimulator)]
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
pub(crate) struct RouteSimulator {
    core: Mutex<Together>,
}

#[pymethods]
impl RouteSimulator {
    #[new]
    fn new(limits: &Bound<'_, PyAny>, names: Items<String>) -> PyResult<RouteSimulator> {
        let entries = names.0.iter().map(|name| entry_of(limits, Some(name)));
        let core = Together::new(entries.collect::<PyResult<_>>()?);
        Ok(RouteSimulator { core: Mutex::new(core) })
    }

    #[doc = doc!(RouteSimulator.add_plan)]
    fn add_plan(&self, parts: Items<PlannedSpend>) -> PyResult<usize> {
        Ok(self.core.lock().add_plan(&parts.0)?)
    }

    #[doc = doc!(RouteSimulator.feed)]
    #[expect(clippy::too_many_arguments, reason = "up to four input and five output columns")]
    #[pyo3(signature = (
        times, plans, costs, allowed, remaining = None, retry_after_ns = None,
        reset_after_ns = None, durations = None, *, denied_by
    ))]
    fn feed<'py>(
        &self,
        times: &Bound<'py, PyAny>,
        plans: &Bound<'py, PyAny>,
        costs: Option<&Bound<'py, PyAny>>,
        allowed: &Bound<'py, PyAny>,
        remaining: Option<&Bound<'py, PyAny>>,
        retry_after_ns: Option<&Bound<'py, PyAny>>,
        reset_after_ns: Option<&Bound<'py, PyAny>>,
        durations: Option<&Bound<'py, PyAny>>,
        denied_by: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let py = times.py();
        let events = EventColumns::of(times, Some(plans), costs, durations)?;
        let denied_by: Array<u32> = events.result("denied_by", denied_by)?;
        let results =
            ResultColumns::of(&events, allowed, remaining, retry_after_ns, reset_after_ns)?;
        if self.core.lock().has_slots() {
            events.need_durations()?;
        }
        let outcome = py.detach(|| {
            self.core.lock().run(&events.events(), &results.columns(), denied_by.shared())
        });
        outcome.map_err(|fault| event_error(py, fault))
    }
}

#[doc = doc!(load_routes)]
#[pyfunction]
pub(crate) fn load_routes<'py>(py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyList>> {
    let routes = py.detach(|| config::load_routes(&path))?;
    let list = PyList::empty(py);
    for route in routes {
        let limits = PyDict::new(py);
        for spend in route.limits {
            let options = PyDict::new(py);
            if let Some(id) = spend.id {
                options.set_item("id", id)?;
            }
            if let Some(cost) = spend.cost {
                options.set_item("cost", cost)?;
            }
            if spend.keep > 0 {
                options.set_item("keep", spend.keep)?;
            }
            limits.set_item(spend.limit, options)?;
        }
        list.append(dict! { py, "path": route.path, "method": route.methods, "limits": limits })?;
    }
    Ok(list)
}
