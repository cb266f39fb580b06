//! The class `Limit`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU32;

use pyo3::exceptions::{PyAttributeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyString, PyTuple};

use crate::bindings::arguments::{self, Argument, seconds};
use crate::bindings::errors::{limit_error, raise_with, shown};
use crate::config;
use crate::engine::algorithm::calendar_window::CalendarWindow;
use crate::engine::algorithm::description::FieldValue;
use crate::engine::algorithm::fixed_rate_window::FixedRateWindow;
use crate::engine::algorithm::fixed_window::FixedWindow;
use crate::engine::algorithm::gcra::TokenBucket;
use crate::engine::algorithm::in_flight::InFlight;
use crate::engine::algorithm::leaky_bucket::LeakyBucket;
use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::algorithm::parameter::{LimitForm, Parameter, ParameterKind};
use crate::engine::algorithm::window::{Anchor, Phase, Window};
use crate::engine::limit::{self, Rate};
use crate::engine::limit_error::LimitError;
use crate::engine::time::Nanos;

#[doc = doc!(Limit)]
#[pyclass(frozen, module = "penstock")]
#[derive(Debug)]
pub(crate) struct Limit {
    pub(crate) limit: limit::Limit,
}

impl From<limit::Limit> for Limit {
    fn from(limit: limit::Limit) -> Limit {
        Limit { limit }
    }
}

fn to_python(limit: Result<limit::Limit, LimitError>) -> PyResult<Limit> {
    limit.map(Limit::from).map_err(PyErr::from)
}

/// Converts an integer parameter.
fn number(field: &str, given: &Bound<'_, PyAny>) -> PyResult<i64> {
    arguments::int64(field, given).map_err(|error| out_of_range(error, field, given))
}

/// Converts a duration parameter, which must not be negative.
fn time(field: &str, given: &Bound<'_, PyAny>) -> PyResult<Nanos> {
    let nanos = arguments::signed_nanos(field, given);
    let nanos = nanos.map_err(|error| out_of_range(error, field, given))?;
    Nanos::new(nanos).ok_or_else(|| {
        let message = format!("{field} must not be negative, found {}", shown(given));
        limit_error(&message, Some(field))
    })
}

/// Turns the `ValueError` of a number out of range into a `LimitError`. Other errors stay as they are.
fn out_of_range(error: PyErr, field: &str, given: &Bound<'_, PyAny>) -> PyErr {
    let py = given.py();
    if error.get_type(py).is(py.get_type::<PyValueError>()) {
        limit_error(&error.value(py).to_string(), Some(field))
    } else {
        error
    }
}

/// Converts the value of a parameter.
fn value_of(parameter: &Parameter, given: &Bound<'_, PyAny>) -> PyResult<FieldValue> {
    let name = parameter.name;
    Ok(match parameter.kind {
        ParameterKind::Whole => FieldValue::Whole(number(name, given)?),
        ParameterKind::TimeOr(word) if given.eq(word)? => FieldValue::Word(word),
        ParameterKind::Time | ParameterKind::TimeOr(_) => FieldValue::Time(time(name, given)?),
        ParameterKind::Word(_) | ParameterKind::Zone => {
            let text = arguments::utf8("LimitError", name, arguments::string(name, given)?)?;
            config::word(parameter, text)?
        }
    })
}

/// Returns the limit with the values of all parameters of a form, in their order.
fn made<const N: usize>(
    form: &LimitForm,
    given: [Option<&Bound<'_, PyAny>>; N],
) -> PyResult<Limit> {
    debug_assert_eq!(form.parameters.len(), N, "a function takes all parameters");
    let mut values = Vec::with_capacity(N);
    for (parameter, given) in form.parameters.iter().zip(given) {
        if let Some(given) = given {
            values.push((parameter.name, value_of(parameter, given)?));
        }
    }
    to_python(form.limit(values))
}

#[pymethods]
impl Limit {
    #[doc = doc!(Limit.token_bucket)]
    #[staticmethod]
    #[pyo3(signature = (*, burst, count, period))]
    fn token_bucket(
        burst: &Bound<'_, PyAny>,
        count: &Bound<'_, PyAny>,
        period: &Bound<'_, PyAny>,
    ) -> PyResult<Limit> {
        made(&TokenBucket::DEFINITION.form, [Some(burst), Some(count), Some(period)])
    }

    #[doc = doc!(Limit.leaky_bucket)]
    #[staticmethod]
    #[pyo3(signature = (*, size, drip_rate = Argument::Missing, drip_size = Argument::Missing))]
    #[pyo3(text_signature = "(*, size, drip_rate=1.0, drip_size=1)")]
    fn leaky_bucket(
        size: &Bound<'_, PyAny>,
        drip_rate: Argument<'_>,
        drip_size: Argument<'_>,
    ) -> PyResult<Limit> {
        made(&LeakyBucket::DEFINITION.form, [Some(size), drip_rate.given(), drip_size.given()])
    }

    #[doc = doc!(Limit.leaky_bucket_from)]
    #[staticmethod]
    #[pyo3(signature = (*, max = None, duration = None, min_interval = None))]
    fn leaky_bucket_from(
        max: Option<&Bound<'_, PyAny>>,
        duration: Option<&Bound<'_, PyAny>>,
        min_interval: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Limit> {
        made(&LeakyBucket::OLDER, [max, duration, min_interval])
    }

    #[doc = doc!(Limit.fixed_window)]
    #[staticmethod]
    #[pyo3(signature = (*, count, period, anchor = Argument::Missing, phase = None))]
    #[pyo3(text_signature = "(*, count, period, anchor='first', phase=None)")]
    fn fixed_window(
        count: &Bound<'_, PyAny>,
        period: &Bound<'_, PyAny>,
        anchor: Argument<'_>,
        phase: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Limit> {
        made(&FixedWindow::DEFINITION.form, [Some(count), Some(period), anchor.given(), phase])
    }

    #[doc = doc!(Limit.fixed_rate_window)]
    #[staticmethod]
    #[pyo3(signature = (*, count, period, burst = Argument::Missing, anchor = Argument::Missing, phase = None))]
    #[pyo3(text_signature = "(*, count, period, burst=0, anchor='first', phase=None)")]
    fn fixed_rate_window(
        count: &Bound<'_, PyAny>,
        period: &Bound<'_, PyAny>,
        burst: Argument<'_>,
        anchor: Argument<'_>,
        phase: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Limit> {
        let given = [Some(count), Some(period), burst.given(), anchor.given(), phase];
        made(&FixedRateWindow::DEFINITION.form, given)
    }

    #[doc = doc!(Limit.in_flight)]
    #[staticmethod]
    #[pyo3(signature = (count, *, lease = Argument::Missing, retry_after = Argument::Missing, max_hold = None))]
    #[pyo3(text_signature = "(count, *, lease=30, retry_after=1, max_hold=None)")]
    fn in_flight(
        count: &Bound<'_, PyAny>,
        lease: Argument<'_>,
        retry_after: Argument<'_>,
        max_hold: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Limit> {
        let given = [Some(count), lease.given(), retry_after.given(), max_hold];
        made(&InFlight::DEFINITION.form, given)
    }

    #[doc = doc!(Limit.calendar_window)]
    #[staticmethod]
    #[pyo3(signature = (*, count, period, zone = Argument::Missing))]
    #[pyo3(text_signature = "(*, count, period, zone='UTC')")]
    fn calendar_window(
        count: &Bound<'_, PyAny>,
        period: &Bound<'_, PyAny>,
        zone: Argument<'_>,
    ) -> PyResult<Limit> {
        made(&CalendarWindow::DEFINITION.form, [Some(count), Some(period), zone.given()])
    }

    #[doc = doc!(Limit.unlimited)]
    #[staticmethod]
    fn unlimited() -> Limit {
        Limit { limit: limit::Limit::Unlimited }
    }

    /// Names the functions that create a limit.
    #[new]
    #[pyo3(signature = (*given, **fields))]
    fn new(given: &Bound<'_, PyTuple>, fields: Option<&Bound<'_, PyDict>>) -> PyResult<Limit> {
        let _ = fields;
        let text = given.get_item(0).map_or_else(|_| "'10/minute'".to_owned(), |text| shown(&text));
        let hint = format!("use Limit.parse({text}), or a method such as Limit.token_bucket(...)");
        Err(PyTypeError::new_err(format!("a Limit cannot be created like this; {hint}")))
    }

    #[doc = doc!(Limit.parse)]
    #[staticmethod]
    fn parse(text: &Bound<'_, PyAny>) -> PyResult<Limit> {
        limit_or_text("text", arguments::string("text", text)?, None).map(Limit::from)
    }

    #[doc = doc!(Limit.algorithm)]
    #[getter]
    fn algorithm(&self) -> &'static str {
        self.limit.algorithm().as_str()
    }

    #[doc = doc!(Limit.burst)]
    #[getter]
    fn burst(&self) -> PyResult<i64> {
        self.integer("burst")
    }

    #[doc = doc!(Limit.count)]
    #[getter]
    fn count(&self) -> PyResult<i64> {
        self.integer("count")
    }

    #[doc = doc!(Limit.period)]
    #[getter]
    fn period<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.limit.calendar() {
            Some(calendar) => Ok(PyString::intern(py, calendar.unit.as_str()).into_any()),
            None => Ok(self.seconds("period")?.into_pyobject(py)?.into_any()),
        }
    }

    #[doc = doc!(Limit.zone)]
    #[getter]
    fn zone(&self) -> PyResult<&'static str> {
        let calendar = self.limit.calendar().ok_or_else(|| self.missing_field("zone"))?;
        Ok(calendar.zone.name())
    }

    #[doc = doc!(Limit.period_ns)]
    #[getter]
    fn period_ns(&self) -> PyResult<i64> {
        match self.field("period") {
            Ok(FieldValue::Time(period)) => Ok(period.get()),
            _ => Err(self.missing_field("period_ns")),
        }
    }

    #[doc = doc!(Limit.emission_interval)]
    #[getter]
    fn emission_interval(&self) -> PyResult<f64> {
        let bucket = self.token_bucket_for("emission_interval")?;
        Ok(seconds(bucket.emission_interval().get()))
    }

    #[doc = doc!(Limit.burst_offset)]
    #[getter]
    fn burst_offset(&self) -> PyResult<f64> {
        let bucket = self.token_bucket_for("burst_offset")?;
        Ok(seconds(bucket.burst_offset().get()))
    }

    #[doc = doc!(Limit.size)]
    #[getter]
    fn size(&self) -> PyResult<i64> {
        self.integer("size")
    }

    #[doc = doc!(Limit.drip_rate)]
    #[getter]
    fn drip_rate(&self) -> PyResult<f64> {
        self.seconds("drip_rate")
    }

    #[doc = doc!(Limit.drip_size)]
    #[getter]
    fn drip_size(&self) -> PyResult<i64> {
        self.integer("drip_size")
    }

    #[doc = doc!(Limit.lease)]
    #[getter]
    fn lease(&self) -> PyResult<f64> {
        self.seconds("lease")
    }

    #[doc = doc!(Limit.retry_after)]
    #[getter]
    fn retry_after(&self) -> PyResult<f64> {
        self.seconds("retry_after")
    }

    #[doc = doc!(Limit.max_hold)]
    #[getter]
    fn max_hold(&self) -> PyResult<Option<f64>> {
        let slots = self.limit.slots().ok_or_else(|| self.missing_field("max_hold"))?;
        Ok(slots.max_hold().map(|time| seconds(time.get())))
    }

    #[doc = doc!(Limit.anchor)]
    #[getter]
    fn anchor(&self) -> PyResult<&'static str> {
        self.window("anchor").map(|window| match window.anchor() {
            Anchor::First => "first",
            Anchor::Aligned(_) => "aligned",
        })
    }

    #[doc = doc!(Limit.phase)]
    #[getter]
    fn phase<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.window("phase")?.anchor() {
            Anchor::First => Ok(None),
            Anchor::Aligned(Phase::Fixed(Nanos::ZERO)) => Ok(None),
            Anchor::Aligned(Phase::Fixed(phase)) => {
                Ok(Some(seconds(phase.get()).into_pyobject(py)?.into_any()))
            }
            Anchor::Aligned(Phase::PerKey) => Ok(Some(PyString::intern(py, "per-key").into_any())),
        }
    }

    #[doc = doc!(Limit.max_cost)]
    #[getter]
    fn max_cost(&self) -> i64 {
        self.limit.max_cost()
    }

    #[doc = doc!(Limit.fields)]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let fields = PyDict::new(py);
        for (name, value) in self.limit.fields() {
            match value {
                FieldValue::Whole(number) => fields.set_item(name, number)?,
                FieldValue::Time(time) => fields.set_item(name, time.to_string())?,
                FieldValue::Word(word) => fields.set_item(name, word)?,
            }
        }
        Ok(fields)
    }

    #[doc = doc!(Limit.from_fields)]
    #[staticmethod]
    fn from_fields<'py>(
        algorithm: &Bound<'py, PyAny>,
        fields: &Bound<'py, PyMapping>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = algorithm.py();
        let name = arguments::string("algorithm", algorithm)?.to_str()?.parse::<AlgorithmName>();
        let name = name.map_err(|error| limit_error(&error.to_string(), Some("algorithm")))?;
        let arguments = PyDict::new(py);
        arguments.update(fields)?;
        py.get_type::<Limit>().call_method(constructor(name), (), Some(&arguments))
    }

    #[doc = doc!(Limit.summary_template)]
    #[getter]
    fn summary_template(&self) -> &'static str {
        self.limit.summary()
    }

    #[doc = doc!(Limit.describe)]
    fn describe<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(facts) = self.limit.facts() else { return Ok(None) };
        Ok(Some(dict! {
            py,
            "at_once": facts.at_once,
            "refill_count": facts.refill.count,
            "refill_interval_ns": facts.refill.interval.get(),
            "evenly_spaced": facts.refill.is_evenly_spaced,
            "per_day": facts.per_day,
            "interval_ns": facts.interval.get(),
            "worst_in_interval": facts.worst_in_interval,
        }))
    }

    #[doc = doc!(Limit.worst_in)]
    fn worst_in(&self, interval: &Bound<'_, PyAny>) -> PyResult<i64> {
        time("interval", interval).map(|interval| self.limit.worst_in(interval))
    }

    #[doc = doc!(Limit.share)]
    fn share(&self, processes: &Bound<'_, PyAny>) -> PyResult<Limit> {
        let found = number("processes", processes)?;
        let processes = u32::try_from(found.min(i64::from(u32::MAX))).ok();
        let Some(processes) = processes.and_then(NonZeroU32::new) else {
            return to_python(Err(LimitError::TooSmall { field: "processes", least: 1, found }));
        };
        to_python(self.limit.share(processes))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Limit>().is_ok_and(|other| other.get().limit == self.limit)
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.limit.hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        let fields = self.limit.fields().into_iter().map(|(name, value)| match value {
            FieldValue::Whole(number) => format!("{name}={number}"),
            FieldValue::Time(time) => format!("{name}='{time}'"),
            FieldValue::Word(word) => format!("{name}='{word}'"),
        });
        let fields = fields.collect::<Vec<_>>().join(", ");
        format!("Limit.{}({fields})", constructor(self.limit.algorithm()))
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("penstock._display")?.call_method1("limit_html", (slf,))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let rebuild = py.get_type::<Limit>().getattr("from_fields")?;
        (rebuild, (self.algorithm(), self.fields(py)?)).into_pyobject(py)
    }
}

/// Returns the name of the constructor for limits of an algorithm.
fn constructor(algorithm: AlgorithmName) -> String {
    algorithm.as_str().replace('-', "_")
}

impl Limit {
    fn missing_field(&self, field: &str) -> PyErr {
        PyAttributeError::new_err(format!(
            "a limit of the algorithm {} has no {field}",
            self.limit.algorithm()
        ))
    }

    fn token_bucket_for(&self, field: &str) -> PyResult<&TokenBucket> {
        match &self.limit {
            limit::Limit::Rate(Rate::TokenBucket(bucket)) => Ok(bucket),
            _ => Err(self.missing_field(field)),
        }
    }

    fn integer(&self, field: &str) -> PyResult<i64> {
        match self.field(field)? {
            FieldValue::Whole(number) => Ok(number),
            _ => Err(self.missing_field(field)),
        }
    }

    fn seconds(&self, field: &str) -> PyResult<f64> {
        match self.field(field)? {
            FieldValue::Time(time) => Ok(seconds(time.get())),
            _ => Err(self.missing_field(field)),
        }
    }

    fn field(&self, name: &str) -> PyResult<FieldValue> {
        let fields = self.limit.fields();
        let found = fields.into_iter().find(|(other, _)| *other == name);
        found.map(|(_, value)| value).ok_or_else(|| self.missing_field(name))
    }

    fn window(&self, field: &str) -> PyResult<&Window> {
        self.limit.window().ok_or_else(|| self.missing_field(field))
    }
}

/// Converts a `Limit`, or a rate string. Errors in the string begin with `limit_name`.
pub(crate) fn limit_or_text(
    name: &str,
    given: &Bound<'_, PyAny>,
    limit_name: Option<&str>,
) -> PyResult<limit::Limit> {
    if let Ok(limit) = given.cast::<Limit>() {
        return Ok(limit.get().limit);
    }
    let Ok(text) = given.cast::<PyString>() else {
        let expected = if given.is_instance_of::<PyDict>() {
            "a Limit, such as Limit.from_fields('token-bucket', {...}), or a rate string such as \
             '100/minute'"
        } else {
            "a Limit or a rate string such as '100/minute'"
        };
        return Err(arguments::wrong_type(name, expected, given));
    };
    let prefix = limit_name.map_or_else(String::new, |name| format!("{name}: "));
    let refuse = |message: String| {
        raise_with("LimitError", &format!("{prefix}{message}"), |error| {
            error.setattr("limit_name", limit_name)
        })
    };
    let text = text.to_str().map_err(|_| {
        refuse(format!("a rate must be encodable as UTF-8, found {}", shown(given)))
    })?;
    config::limit_text(text).map_err(|error| refuse(error.to_string()))
}

#[doc = doc!(limit_shapes)]
#[pyfunction]
pub(crate) fn limit_shapes(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let shapes = PyDict::new(py);
    for algorithm in AlgorithmName::ALL {
        if let Some(shape) = &algorithm.definition().shape {
            shapes.set_item(algorithm.as_str(), (shape.burst, shape.rate, shape.period))?;
        }
    }
    Ok(shapes)
}

#[doc = doc!(parse_duration)]
#[pyfunction]
#[pyo3(signature = (duration, name = "duration"))]
pub(crate) fn parse_duration(duration: &Bound<'_, PyAny>, name: &str) -> PyResult<i64> {
    time(name, duration).map(Nanos::get)
}
