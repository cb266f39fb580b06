//! The class `Limit`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU32;

use pyo3::exceptions::{PyAttributeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyString, PyTuple};

use crate::bindings::arguments::{self, Argument, seconds};
use crate::bindings::errors::{limit_error, raise_with, shown};
use crate::config;
use crate::engine::algorithm::calendar::Zone;
use crate::engine::algorithm::description::FieldValue;
use crate::engine::algorithm::gcra::TokenBucket;
use crate::engine::algorithm::in_flight::InFlight;
use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::algorithm::window::{Anchor, Phase, Window};
use crate::engine::limit::{self};
use crate::engine::limit_error::LimitError;
use crate::engine::time::Nanos;

/// Rate limit: an algorithm and its parameters.
///
/// Limits are immutable, hashable, picklable and always valid.
///
/// Examples:
///     >>> penstock.Limit.parse("100/minute, burst 20")
///     Limit.token_bucket(burst=20, count=100, period='1m')
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
    let nanos = signed_time(field, given)?;
    Nanos::new(nanos).ok_or_else(|| {
        let message = format!("{field} must not be negative, found {}", shown(given));
        limit_error(&message, Some(field))
    })
}

fn signed_time(field: &str, given: &Bound<'_, PyAny>) -> PyResult<i64> {
    arguments::signed_nanos(field, given).map_err(|error| out_of_range(error, field, given))
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

fn anchor_of(anchor: &Bound<'_, PyAny>, phase: Option<&Bound<'_, PyAny>>) -> PyResult<Anchor> {
    match arguments::string("anchor", anchor)?.to_str()? {
        "first" if phase.is_some() => Err(LimitError::PhaseWithoutAlignment.into()),
        "first" => Ok(Anchor::First),
        "aligned" => Ok(Anchor::Aligned(match phase {
            None => Phase::Fixed(Nanos::ZERO),
            Some(phase) if phase.eq("per-key")? => Phase::PerKey,
            Some(phase) => Phase::Fixed(time("phase", phase)?),
        })),
        _ => {
            let message = format!("anchor must be 'first' or 'aligned', found {}", shown(anchor));
            Err(limit_error(&message, Some("anchor")))
        }
    }
}

#[pymethods]
impl Limit {
    /// Create a token bucket: at most `burst` tokens, refilled with `count` per `period`.
    ///
    /// Args:
    ///     burst: Tokens in a full bucket, at least 1.
    ///     count: Tokens added per period, at least 1.
    ///     period: A text with units, seconds, or a `timedelta`.
    ///
    /// Raises:
    ///     LimitError: A number is below 1, the rate cannot be expressed in whole nanoseconds
    ///         within 0.1 %, or the bucket would take longer than 2**62 ns to fill.
    ///
    /// Examples:
    ///     >>> penstock.Limit.token_bucket(burst=20, count=10, period="1m")
    ///     Limit.token_bucket(burst=20, count=10, period='1m')
    #[staticmethod]
    #[pyo3(signature = (*, burst, count, period))]
    fn token_bucket(
        burst: &Bound<'_, PyAny>,
        count: &Bound<'_, PyAny>,
        period: &Bound<'_, PyAny>,
    ) -> PyResult<Limit> {
        to_python(limit::Limit::token_bucket(
            number("burst", burst)?,
            number("count", count)?,
            time("period", period)?,
        ))
    }

    /// Create a leaky bucket of `size` requests, which drains `drip_size` per `drip_rate`.
    ///
    /// Args:
    ///     size: Requests that the bucket holds, 1 to 1,048,575.
    ///     drip_rate: Time between drips, in whole milliseconds.
    ///     drip_size: Requests that leave with each drip, at least 1.
    ///
    /// Raises:
    ///     LimitError: A number is out of range, or the time is not a whole number of milliseconds.
    ///
    /// Examples:
    ///     >>> penstock.Limit.leaky_bucket(size=30, drip_rate="2s")
    ///     Limit.leaky_bucket(size=30, drip_rate='2s', drip_size=1)
    #[staticmethod]
    #[pyo3(signature = (*, size, drip_rate = Argument::Missing, drip_size = Argument::Missing))]
    #[pyo3(text_signature = "(*, size, drip_rate=1.0, drip_size=1)")]
    fn leaky_bucket(
        size: &Bound<'_, PyAny>,
        drip_rate: Argument<'_>,
        drip_size: Argument<'_>,
    ) -> PyResult<Limit> {
        let drip_rate = drip_rate.given();
        let drip_rate = drip_rate.map_or(Ok(Nanos::SECOND), |rate| time("drip_rate", rate))?;
        let drip_size = drip_size.given().map_or(Ok(1), |size| number("drip_size", size))?;
        to_python(limit::Limit::leaky_bucket(number("size", size)?, drip_rate, drip_size))
    }

    /// Create a leaky bucket from `max` requests per `duration`, `min_interval` apart.
    ///
    /// At least one argument is required. The result is unlimited if the arguments do not determine
    /// a rate: only `max` or only `duration`, a `duration` of 0, or only a `min_interval` of 0.
    ///
    /// Raises:
    ///     LimitError: No argument is given, `max` is below 1, or a time is negative.
    ///
    /// Examples:
    ///     >>> penstock.Limit.leaky_bucket_from(max=300, duration="1h", min_interval="1s")
    ///     Limit.leaky_bucket(size=300, drip_rate='12s', drip_size=1)
    #[staticmethod]
    #[pyo3(signature = (*, max = None, duration = None, min_interval = None))]
    fn leaky_bucket_from(
        max: Option<&Bound<'_, PyAny>>,
        duration: Option<&Bound<'_, PyAny>>,
        min_interval: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Limit> {
        let max = max.map(|max| number("max", max)).transpose()?;
        let duration = duration.map(|duration| signed_time("duration", duration)).transpose()?;
        let min_interval =
            min_interval.map(|interval| signed_time("min_interval", interval)).transpose()?;
        to_python(limit::Limit::leaky_bucket_from(max, duration, min_interval))
    }

    /// Create a fixed window: `count` tokens in each `period`.
    ///
    /// Args:
    ///     count: Tokens per window, 1 to 1,048,575.
    ///     period: Length of a window, in whole milliseconds.
    ///     anchor: `"first"` starts a window at a bucket's first request, `"aligned"` at multiples
    ///         of the period since 1970.
    ///     phase: Offset of an aligned window, less than the period; `"per-key"` derives it from
    ///         the bucket key, so that windows do not all end at the same time.
    ///
    /// Raises:
    ///     LimitError: A number is out of range, a time is not a whole number of milliseconds, or
    ///         `phase` is given without `anchor="aligned"`.
    ///
    /// Examples:
    ///     >>> penstock.Limit.fixed_window(count=100, period="1h")
    ///     Limit.fixed_window(count=100, period='1h')
    #[staticmethod]
    #[pyo3(signature = (*, count, period, anchor = Argument::Missing, phase = None))]
    #[pyo3(text_signature = "(*, count, period, anchor='first', phase=None)")]
    fn fixed_window(
        count: &Bound<'_, PyAny>,
        period: &Bound<'_, PyAny>,
        anchor: Argument<'_>,
        phase: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Limit> {
        let first = PyString::intern(count.py(), "first").into_any();
        let anchor = anchor_of(anchor.given().unwrap_or(&first), phase)?;
        to_python(limit::Limit::fixed_window(
            number("count", count)?,
            time("period", period)?,
            anchor,
        ))
    }

    /// Create a fixed window that spaces requests evenly and allows `burst` of them early.
    ///
    /// Args:
    ///     count: Requests per window, at least 1; `count + burst` at most 1,048,575.
    ///     period: Length of a window, in whole milliseconds.
    ///     burst: Requests allowed before their time, at least 0.
    ///     anchor: As in `fixed_window`.
    ///     phase: As in `fixed_window`.
    ///
    /// Raises:
    ///     LimitError: As in `fixed_window`.
    ///
    /// Examples:
    ///     >>> penstock.Limit.fixed_rate_window(count=5, period=1)
    ///     Limit.fixed_rate_window(count=5, period='1s', burst=0)
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
        let first = PyString::intern(count.py(), "first").into_any();
        let anchor = anchor_of(anchor.given().unwrap_or(&first), phase)?;
        let burst = burst.given().map_or(Ok(0), |burst| number("burst", burst))?;
        to_python(limit::Limit::fixed_rate_window(
            number("count", count)?,
            time("period", period)?,
            burst,
            anchor,
        ))
    }

    /// Create a limit of `count` requests in flight, whose slots are given back.
    ///
    /// `Limiter.reserve` takes a slot. One that is held for longer is renewed, so the lease is only
    /// the time after which the slots of a killed process are free again: one to two leases.
    ///
    /// Args:
    ///     count: Slots, 1 to 16,383.
    ///     lease: A time from 2 seconds to 24 hours.
    ///     retry_after: The `Retry-After` of a denied client; it is unknown when a slot is free.
    ///
    /// Raises:
    ///     LimitError: A number or a time is out of range.
    ///
    /// Examples:
    ///     >>> penstock.Limit.in_flight(5)
    ///     Limit.in_flight(count=5, lease='30s', retry_after='1s')
    #[staticmethod]
    #[pyo3(signature = (count, lease = Argument::Missing, retry_after = Argument::Missing))]
    #[pyo3(text_signature = "(count, lease=30, retry_after=1)")]
    fn in_flight(
        count: &Bound<'_, PyAny>,
        lease: Argument<'_>,
        retry_after: Argument<'_>,
    ) -> PyResult<Limit> {
        let lease = lease.given().map_or(Ok(InFlight::LEASE), |lease| time("lease", lease))?;
        let retry_after = retry_after.given();
        let retry_after =
            retry_after.map_or(Ok(InFlight::RETRY_AFTER), |wait| time("retry_after", wait))?;
        to_python(limit::Limit::in_flight(number("count", count)?, lease, retry_after))
    }

    /// Create a calendar window: `count` tokens in each day, week, month or year of a time zone.
    ///
    /// A window begins with the first instant of a local day, so a day may have 23 or 25 hours.
    ///
    /// Args:
    ///     count: Tokens per window, 1 to 999,999,999.
    ///     period: `"day"`, `"week"` (from Monday on), `"month"` or `"year"`.
    ///     zone: Name of the time zone, such as `"Europe/Berlin"`. The time zone data are those of
    ///         this package, not of the machine.
    ///
    /// Raises:
    ///     LimitError: The count is out of range, or the period or zone is unknown.
    ///
    /// Examples:
    ///     >>> penstock.Limit.calendar_window(count=10_000, period="month")
    ///     Limit.calendar_window(count=10000, period='month', zone='UTC')
    #[staticmethod]
    #[pyo3(signature = (*, count, period, zone = Argument::Missing))]
    #[pyo3(text_signature = "(*, count, period, zone='UTC')")]
    fn calendar_window(
        count: &Bound<'_, PyAny>,
        period: &Bound<'_, PyAny>,
        zone: Argument<'_>,
    ) -> PyResult<Limit> {
        let count = number("count", count)?;
        let unit = config::unit(arguments::string("period", period)?.to_str()?)?;
        let zone = match zone.given() {
            None => Zone::utc(),
            Some(zone) => config::zone(arguments::string("zone", zone)?.to_str()?)?,
        };
        to_python(limit::Limit::calendar_window(count, unit, zone))
    }

    /// Create a limit that allows every request.
    #[staticmethod]
    fn unlimited() -> Limit {
        Limit { limit: limit::Limit::Unlimited }
    }

    /// Create a limit from a text such as `100/minute` or `10 per 5 minutes, burst 20`.
    ///
    /// The result is a token bucket, whose burst equals the count unless given. With
    /// `, fixed window` or `, fixed-rate window` it is a window, which `, aligned` aligns. Units
    /// are second, minute, hour, day and week, with their plurals and short forms. `5 in flight`
    /// limits requests in flight; `, lease 2m` sets the lease. `1000 per calendar month,
    /// Europe/Berlin` is a calendar window: per day, week, month or year of a time zone, by default
    /// UTC.
    ///
    /// Raises:
    ///     LimitError: The text is not a valid rate. The message marks the error.
    ///
    /// Examples:
    ///     >>> penstock.Limit.parse("10 per 5 minutes, burst 20")
    ///     Limit.token_bucket(burst=20, count=10, period='5m')
    #[staticmethod]
    fn parse(text: &Bound<'_, PyAny>) -> PyResult<Limit> {
        limit_or_text("text", arguments::string("text", text)?, None).map(Limit::from)
    }

    /// The name of the algorithm in limits files.
    #[getter]
    fn algorithm(&self) -> &'static str {
        self.limit.algorithm().as_str()
    }

    /// Tokens in a full bucket; for a fixed-rate window, requests allowed early.
    #[getter]
    fn burst(&self) -> PyResult<i64> {
        self.integer("burst")
    }

    /// Tokens added per period; for a limit on requests in flight, slots.
    #[getter]
    fn count(&self) -> PyResult<i64> {
        self.integer("count")
    }

    /// The period in which `count` tokens are added, in seconds; a calendar window's word.
    #[getter]
    fn period<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.limit.calendar() {
            Some(calendar) => Ok(PyString::intern(py, calendar.unit.as_str()).into_any()),
            None => {
                let period = self.nanos("period", "period").map(seconds)?;
                Ok(period.into_pyobject(py)?.into_any())
            }
        }
    }

    /// The time zone of a calendar window.
    #[getter]
    fn zone(&self) -> PyResult<&'static str> {
        let calendar = self.limit.calendar().ok_or_else(|| self.missing_field("zone"))?;
        Ok(calendar.zone.name())
    }

    /// The period in which `count` tokens are added, in nanoseconds.
    #[getter]
    fn period_ns(&self) -> PyResult<i64> {
        self.nanos("period", "period_ns")
    }

    /// Seconds between two tokens of a token bucket.
    #[getter]
    fn emission_interval(&self) -> PyResult<f64> {
        self.token_bucket_for("emission_interval")
            .map(|bucket| seconds(bucket.emission_interval().get()))
    }

    /// Nanoseconds between two tokens of a token bucket.
    #[getter]
    fn emission_interval_ns(&self) -> PyResult<i64> {
        self.token_bucket_for("emission_interval_ns").map(|bucket| bucket.emission_interval().get())
    }

    /// Seconds until an empty token bucket is full.
    #[getter]
    fn burst_offset(&self) -> PyResult<f64> {
        self.token_bucket_for("burst_offset").map(|bucket| seconds(bucket.burst_offset().get()))
    }

    /// Nanoseconds until an empty token bucket is full.
    #[getter]
    fn burst_offset_ns(&self) -> PyResult<i64> {
        self.token_bucket_for("burst_offset_ns").map(|bucket| bucket.burst_offset().get())
    }

    /// Requests that a leaky bucket holds.
    #[getter]
    fn size(&self) -> PyResult<i64> {
        self.integer("size")
    }

    /// Seconds between a leaky bucket's drips.
    #[getter]
    fn drip_rate(&self) -> PyResult<f64> {
        self.nanos("drip_rate", "drip_rate").map(seconds)
    }

    /// Nanoseconds between a leaky bucket's drips.
    #[getter]
    fn drip_rate_ns(&self) -> PyResult<i64> {
        self.nanos("drip_rate", "drip_rate_ns")
    }

    /// Requests that a leaky bucket drains with each drip.
    #[getter]
    fn drip_size(&self) -> PyResult<i64> {
        self.integer("drip_size")
    }

    /// The time for which a slot is kept at least, in seconds.
    #[getter]
    fn lease(&self) -> PyResult<f64> {
        self.nanos("lease", "lease").map(seconds)
    }

    /// The time for which a slot is kept at least, in nanoseconds.
    #[getter]
    fn lease_ns(&self) -> PyResult<i64> {
        self.nanos("lease", "lease_ns")
    }

    /// The `Retry-After` of a client that is denied a slot, in seconds.
    #[getter]
    fn retry_after(&self) -> PyResult<f64> {
        self.nanos("retry_after", "retry_after").map(seconds)
    }

    /// The `Retry-After` of a client that is denied a slot, in nanoseconds.
    #[getter]
    fn retry_after_ns(&self) -> PyResult<i64> {
        self.nanos("retry_after", "retry_after_ns")
    }

    /// Start of a window: `"first"` (first request) or `"aligned"` (multiples of period).
    #[getter]
    fn anchor(&self) -> PyResult<&'static str> {
        self.window("anchor").map(|window| match window.anchor() {
            Anchor::First => "first",
            Anchor::Aligned(_) => "aligned",
        })
    }

    /// The offset of an aligned window, in seconds or `"per-key"`; `None` if there is none.
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

    /// The highest cost that can ever be allowed, in tokens; 2**63 - 1 if unlimited.
    #[getter]
    fn max_cost(&self) -> i64 {
        self.limit.max_cost()
    }

    /// Return the parameters by name, as in a limits file.
    ///
    /// Durations are texts with units. An anchor of `first` is omitted. `Limit.from_fields` creates
    /// an equal limit from the result.
    ///
    /// >>> penstock.Limit.parse("100/minute").fields()
    /// {'burst': 100, 'count': 100, 'period': '1m'}
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

    /// Create a limit of any algorithm from its parameters.
    ///
    /// Args:
    ///     algorithm: Name of the algorithm in limits files, such as `"token-bucket"`.
    ///     fields: The arguments of the constructor for that algorithm.
    ///
    /// Raises:
    ///     LimitError: The algorithm is unknown, or a value is invalid.
    ///     TypeError: A parameter is missing, unknown or of the wrong type.
    ///
    /// >>> penstock.Limit.from_fields("fixed-window", {"count": 5, "period": "1s"})
    /// Limit.fixed_window(count=5, period='1s')
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

    /// Summary of the limit in English, with the names of its fields in braces.
    ///
    /// Fill in the values to get a text for users, or look up a translation first.
    ///
    /// >>> penstock.Limit.parse("100/minute, burst 20").summary_template
    /// '{count} per {period}, {burst} at once'
    #[getter]
    fn summary_template(&self) -> &'static str {
        self.limit.summary()
    }

    /// Return how much the limit admits, or `None` if it is unlimited or on requests in flight.
    ///
    /// Returns:
    ///     A dict with stable keys: `at_once`, the tokens that a full bucket allows at one instant;
    ///     `refill_count`, the tokens added per `refill_interval_ns`, one by one if
    ///     `evenly_spaced`; `per_day`, the long-term average per day, rounded down;
    ///     `interval_ns`, a typical interval for the limit (its period, or the time in which a full
    ///     leaky bucket drains); and `worst_in_interval`, the result of `worst_in` for it.
    ///
    /// >>> facts = penstock.Limit.parse("100/minute, burst 20").describe()
    /// >>> facts["at_once"], facts["per_day"], facts["worst_in_interval"]
    /// (20, 144000, 120)
    fn describe<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(facts) = self.limit.facts() else { return Ok(None) };
        let description = PyDict::new(py);
        description.set_item("at_once", facts.at_once)?;
        description.set_item("refill_count", facts.refill.count)?;
        description.set_item("refill_interval_ns", facts.refill.interval.get())?;
        description.set_item("evenly_spaced", facts.refill.is_evenly_spaced)?;
        description.set_item("per_day", facts.per_day)?;
        description.set_item("interval_ns", facts.interval.get())?;
        description.set_item("worst_in_interval", facts.worst_in_interval)?;
        Ok(Some(description))
    }

    /// Return the maximum number of tokens that one client can take within any `interval`.
    ///
    /// The result is exact: a greedy client reaches it, and no client exceeds it. Both ends of the
    /// interval are included. Refunds and overdrafts are not. 2**63 - 1 if unlimited.
    ///
    /// Args:
    ///     interval: A text with units, seconds, or a `timedelta`.
    ///
    /// Raises:
    ///     LimitError: `interval` is negative or not a duration.
    ///
    /// >>> penstock.Limit.fixed_window(count=100, period="1m").worst_in("2s")
    /// 199
    fn worst_in(&self, interval: &Bound<'_, PyAny>) -> PyResult<i64> {
        time("interval", interval).map(|interval| self.limit.worst_in(interval))
    }

    /// Return the limit for each of several processes that together admit as much as this limit.
    ///
    /// The result always allows at least one request at a time. An unlimited limit stays unlimited.
    ///
    /// Args:
    ///     processes: Number of processes, at least 1.
    ///
    /// Raises:
    ///     LimitError: `processes` is below 1, or the share is too slow for a limit.
    ///
    /// >>> penstock.Limit.parse("100/minute").share(4)
    /// Limit.token_bucket(burst=25, count=100, period='4m')
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
        slf.py().import("penstock.display")?.call_method1("limit_html", (slf,))
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
            limit::Limit::TokenBucket(bucket) => Ok(bucket),
            _ => Err(self.missing_field(field)),
        }
    }

    fn integer(&self, field: &str) -> PyResult<i64> {
        match self.field(field)? {
            FieldValue::Whole(number) => Ok(number),
            _ => Err(self.missing_field(field)),
        }
    }

    /// Returns a duration field in nanoseconds. `property` is its name in errors.
    fn nanos(&self, field: &str, property: &str) -> PyResult<i64> {
        match self.field(field) {
            Ok(FieldValue::Time(time)) => Ok(time.get()),
            _ => Err(self.missing_field(property)),
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

/// Converts a `Limit`, or a text that describes one. Errors in the text begin with `limit_name`.
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
            "a Limit, such as Limit.from_fields('token-bucket', {...}), or a text such as '100/minute'"
        } else {
            "a Limit or a text such as '100/minute'"
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

/// Convert a duration to nanoseconds.
///
/// Args:
///     duration: A text such as `1h30m`, seconds, or a `timedelta`; at least 0.
///     name: Name of the argument in error messages.
///
/// Raises:
///     LimitError: The text is not a duration, or the duration is out of range.
///     TypeError: The type is not supported.
///
/// >>> penstock._core.parse_duration("250ms")
/// 250000000
#[pyfunction]
#[pyo3(signature = (duration, name = "duration"))]
pub(crate) fn parse_duration(duration: &Bound<'_, PyAny>, name: &str) -> PyResult<i64> {
    time(name, duration).map(Nanos::get)
}
