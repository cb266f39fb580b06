//! Columns of simulated events and of their results.

use std::ops::Range;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::bindings::array::{Array, Number, Part, Writable, WritablePart};
use crate::simulate::{self, Columns, Events};

/// An optional column argument.
type ColumnArgument<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

/// The columns of the events.
pub(crate) struct EventColumns {
    times: Array<i64>,
    clients: Option<Array<u32>>,
    costs: Option<Array<i64>>,
}

impl EventColumns {
    pub(crate) fn of(
        times: &Bound<'_, PyAny>,
        clients: ColumnArgument<'_, '_>,
        costs: ColumnArgument<'_, '_>,
    ) -> PyResult<EventColumns> {
        let times: Array<i64> = Array::of("times", times)?;
        let clients = clients.map(|clients| Array::of("clients", clients)).transpose()?;
        let costs = costs.map(|costs| Array::of("costs", costs)).transpose()?;
        let events = EventColumns { times, clients, costs };
        events.check_length("clients", events.clients.as_ref().map(Array::len))?;
        events.check_length("costs", events.costs.as_ref().map(Array::len))?;
        Ok(events)
    }

    /// Returns the number of events.
    pub(crate) fn len(&self) -> usize {
        self.times.len()
    }

    fn check_length(&self, name: &str, found: Option<usize>) -> PyResult<()> {
        let expected = self.len();
        let Some(found) = found.filter(|&found| found != expected) else { return Ok(()) };
        let message = format!("{name} must be as long as times, found {found} for {expected}");
        Err(PyValueError::new_err(message))
    }

    /// Acquires an array with one number per event.
    pub(crate) fn column<T: Number>(
        &self,
        name: &str,
        given: &Bound<'_, PyAny>,
    ) -> PyResult<Array<T>> {
        let column: Array<T> = Array::of(name, given)?;
        self.check_length(name, Some(column.len())).map(|()| column)
    }

    /// Acquires an array that receives one number per event.
    pub(crate) fn result<T: Number>(
        &self,
        name: &str,
        given: &Bound<'_, PyAny>,
    ) -> PyResult<Writable<T>> {
        let column = Array::writable(name, given)?;
        self.check_length(name, Some(column.len())).map(|()| column)
    }

    pub(crate) fn part(
        &self,
        range: Range<usize>,
    ) -> Events<Part<'_, i64>, Part<'_, u32>, Part<'_, i64>> {
        Events {
            times: self.times.part(range.clone()),
            clients: self.clients.as_ref().map(|clients| clients.part(range.clone())),
            costs: self.costs.as_ref().map(|costs| costs.part(range)),
        }
    }
}

/// The requested columns of the results.
pub(crate) struct ResultColumns {
    allowed: Writable<u8>,
    remaining: Option<Writable<i64>>,
    retry_after: Option<Writable<i64>>,
    reset_after: Option<Writable<i64>>,
}

impl ResultColumns {
    pub(crate) fn of<'py>(
        events: &EventColumns,
        allowed: &Bound<'py, PyAny>,
        remaining: ColumnArgument<'_, 'py>,
        retry_after_ns: ColumnArgument<'_, 'py>,
        reset_after_ns: ColumnArgument<'_, 'py>,
    ) -> PyResult<ResultColumns> {
        let column = |name: &str, given: ColumnArgument<'_, 'py>| {
            given.map(|given| events.result(name, given)).transpose()
        };
        Ok(ResultColumns {
            allowed: events.result("allowed", allowed)?,
            remaining: column("remaining", remaining)?,
            retry_after: column("retry_after_ns", retry_after_ns)?,
            reset_after: column("reset_after_ns", reset_after_ns)?,
        })
    }

    pub(crate) fn part(
        &self,
        range: Range<usize>,
    ) -> Columns<WritablePart<'_, u8>, WritablePart<'_, i64>> {
        Columns {
            allowed: self.allowed.part(range.clone()),
            remaining: self.remaining.as_ref().map(|column| column.part(range.clone())),
            retry_after: self.retry_after.as_ref().map(|column| column.part(range.clone())),
            reset_after: self.reset_after.as_ref().map(|column| column.part(range.clone())),
        }
    }
}

/// Return the maximum weight within any interval, and the index of its first event.
///
/// Args:
///     times: Nanoseconds, in ascending order.
///     kept: 0 for events to ignore.
///     costs: The weight of each event; `None` for 1 each.
///     width_ns: The length of the interval, which excludes its end.
#[pyfunction]
#[pyo3(signature = (times, kept, costs, width_ns))]
pub(crate) fn largest_within(
    times: &Bound<'_, PyAny>,
    kept: &Bound<'_, PyAny>,
    costs: Option<&Bound<'_, PyAny>>,
    width_ns: i64,
) -> PyResult<(i64, usize)> {
    let py = times.py();
    let events = EventColumns::of(times, None, costs)?;
    let kept: Array<u8> = events.column("kept", kept)?;
    Ok(py.detach(|| {
        let times = events.times.shared();
        let kept = kept.shared();
        let costs = events.costs.as_ref().map(Array::shared);
        let weight = |index: usize| match costs {
            _ if u8::read(&kept[index]) == 0 => 0,
            Some(costs) => i64::read(&costs[index]),
            None => 1,
        };
        simulate::largest_within(events.len(), width_ns, |index| {
            (i64::read(&times[index]), weight(index))
        })
    }))
}
