//! The class `Totals`.

use pyo3::prelude::*;

use crate::bindings::arguments::Items;
use crate::bindings::arrays::{Array, Column, EventColumns, column};
use crate::simulate::{self, ClientTotals};
use crate::sync::Mutex;

#[doc = doc!(Totals)]
#[pyclass(frozen, module = "penstock._core")]
#[derive(Debug)]
pub(crate) struct Totals {
    totals: Mutex<simulate::Totals>,
}

#[pymethods]
impl Totals {
    #[new]
    fn new(bounds: Items<i64>, widths: Items<i64>) -> Totals {
        Totals { totals: Mutex::new(simulate::Totals::new(bounds.0, &widths.0)) }
    }

    #[doc = doc!(Totals.add)]
    fn add<'py>(
        &self,
        times: &Bound<'py, PyAny>,
        clients: Option<&Bound<'py, PyAny>>,
        costs: Option<&Bound<'py, PyAny>>,
        allowed: &Bound<'py, PyAny>,
        retry_after_ns: &Bound<'py, PyAny>,
        durations: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let py = times.py();
        let events = EventColumns::of(times, clients, costs, durations)?;
        let allowed: Array<u8> = events.column("allowed", allowed)?;
        let waits: Array<i64> = events.column("retry_after_ns", retry_after_ns)?;
        py.detach(|| {
            self.totals.lock().add(&events.events(), allowed.shared(), waits.shared());
        });
        Ok(())
    }

    #[doc = doc!(Totals.clients)]
    fn clients<'py>(&self, py: Python<'py>) -> PyResult<[Column<'py>; 4]> {
        let totals = self.totals.lock();
        let of_clients = |number: fn(&ClientTotals) -> i64| {
            column(py, &totals.clients().iter().map(number).collect::<Vec<_>>())
        };
        Ok([
            column(py, totals.events())?,
            of_clients(|client| client.denied)?,
            of_clients(|client| client.longest)?,
            column(py, &totals.most_in_flight_by_client().collect::<Vec<_>>())?,
        ])
    }

    #[doc = doc!(Totals.waits)]
    #[getter]
    fn waits(&self) -> Vec<i64> {
        self.totals.lock().waits().to_vec()
    }

    #[doc = doc!(Totals.peaks)]
    #[getter]
    fn peaks(&self) -> Vec<i64> {
        self.totals.lock().peaks().collect()
    }

    #[doc = doc!(Totals.most_in_flight)]
    #[getter]
    fn most_in_flight(&self) -> i64 {
        self.totals.lock().most_in_flight()
    }
}
