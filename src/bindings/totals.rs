//! The class `Totals`.

use pyo3::prelude::*;

use crate::bindings::arguments::Items;
use crate::bindings::arrays::{Array, EventColumns};
use crate::bindings::column::Column;
use crate::simulate::{self, ClientTotals};
use crate::sync::Mutex;

/// Totals of decisions in order of time, added part by part; used by `penstock.simulate`.
///
/// Args:
///     bounds: The upper bounds of the ranges of waits, in nanoseconds.
///     widths: The widths of the intervals whose most admitted tokens are wanted, in nanoseconds.
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

    /// Add decisions, none of them earlier than those before.
    ///
    /// Args:
    ///     times: Nanoseconds, in ascending order.
    ///     clients: Client numbers; `None` for the first client.
    ///     costs: Tokens; `None` for 1 each.
    ///     allowed: 0 for each denied event.
    ///     retry_after_ns: The wait of each denied event.
    ///     durations: How long each request takes, in nanoseconds; `None` if not known.
    ///
    /// Raises:
    ///     ValueError: Lengths differ.
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
        let events = EventColumns::of(times, clients, costs)?;
        let allowed: Array<u8> = events.column("allowed", allowed)?;
        let waits: Array<i64> = events.column("retry_after_ns", retry_after_ns)?;
        let durations: Option<Array<i64>> =
            durations.map(|given| events.column("durations", given)).transpose()?;
        py.detach(|| {
            let all = 0..events.len();
            let (allowed, waits) = (allowed.part(all.clone()), waits.part(all.clone()));
            let durations = durations.as_ref().map(|durations| durations.part(all.clone()));
            self.totals.lock().add(&events.part(all), &allowed, &waits, durations.as_ref());
        });
        Ok(())
    }

    /// Return columns of clients: events, denied events, longest wait, most in flight.
    fn clients(&self) -> [Column; 4] {
        let totals = self.totals.lock();
        let column = |number: fn(&ClientTotals) -> i64| {
            Column::from(totals.clients().iter().map(number).collect::<Vec<_>>())
        };
        [
            Column::from(totals.events().to_vec()),
            column(|client| client.denied),
            column(|client| client.longest),
            column(|client| client.most_in_flight),
        ]
    }

    /// The number of denied events by range of their wait; the last range has no bound.
    #[getter]
    fn waits(&self) -> Vec<i64> {
        self.totals.lock().waits().to_vec()
    }

    /// The most tokens admitted within any interval of each width, which excludes its end.
    #[getter]
    fn peaks(&self) -> Vec<i64> {
        self.totals.lock().peaks().collect()
    }

    /// The most requests in flight at once, of all clients together; 0 without durations.
    #[getter]
    fn most_in_flight(&self) -> i64 {
        self.totals.lock().most_in_flight()
    }
}
