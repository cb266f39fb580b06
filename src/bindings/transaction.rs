//! The class `Transaction`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::bindings::arguments::{self, Argument};
use crate::bindings::errors::shown;
use crate::bindings::id_text::id_text;
use crate::engine::batch::Kind;
use crate::engine::factor::Adjustment;

#[doc = doc!(Transaction)]
#[pyclass(frozen, module = "penstock")]
#[derive(Debug)]
pub(crate) struct Transaction {
    name: Py<PyString>,
    id: Py<PyAny>,
    cost: Py<PyAny>,
    kind: Kind,
    /// The factor as given.
    factor: Option<Py<PyAny>>,
    adjustment: Option<Adjustment>,
}

/// The parts of a transaction, as passed.
#[derive(Debug)]
pub(crate) struct CallArgs<'py> {
    pub(crate) name: Bound<'py, PyString>,
    pub(crate) id: Bound<'py, PyAny>,
    pub(crate) cost: Option<Bound<'py, PyAny>>,
    pub(crate) kind: Kind,
    pub(crate) adjustment: Option<Adjustment>,
}

impl<'py> CallArgs<'py> {
    /// Converts a `Transaction` or a tuple `(name, id[, cost[, kind]])`.
    pub(crate) fn of(given: &Bound<'py, PyAny>) -> PyResult<CallArgs<'py>> {
        let py = given.py();
        if let Ok(transaction) = given.cast::<Transaction>() {
            let transaction = transaction.get();
            return Ok(CallArgs {
                name: transaction.name.bind(py).clone(),
                id: transaction.id.bind(py).clone(),
                cost: Some(transaction.cost.bind(py).clone()),
                kind: transaction.kind,
                adjustment: transaction.adjustment.clone(),
            });
        }
        let expected = "a Transaction or a tuple (name, id[, cost[, kind]])";
        let Ok(tuple) = given.cast::<PyTuple>() else {
            return Err(arguments::wrong_type("transaction", expected, given));
        };
        if !(2..=4).contains(&tuple.len()) {
            return Err(arguments::wrong_type("transaction", expected, given));
        }
        let item =
            |index| if index < tuple.len() { tuple.get_item(index).map(Some) } else { Ok(None) };
        Ok(CallArgs {
            name: arguments::string("name", &tuple.get_item(0)?)?.clone(),
            id: tuple.get_item(1)?,
            cost: item(2)?,
            kind: item(3)?.map_or(Ok(Kind::Spend), |kind| kind_of(&kind))?,
            adjustment: None,
        })
    }
}

fn kind_of(given: &Bound<'_, PyAny>) -> PyResult<Kind> {
    match arguments::string("kind", given)?.to_str()? {
        "spend" => Ok(Kind::Spend),
        "check" => Ok(Kind::Check),
        "spend_only" => Ok(Kind::SpendOnly),
        _ => {
            let found = shown(given);
            Err(PyValueError::new_err(format!(
                "kind must be 'spend', 'check' or 'spend_only', found {found}"
            )))
        }
    }
}

#[pymethods]
impl Transaction {
    #[new]
    #[pyo3(signature = (name, id, cost = Argument::Missing, kind = Argument::Missing, factor = None, keep = Argument::Missing))]
    #[pyo3(text_signature = "(name, id, cost=1, kind='spend', factor=None, keep=0)")]
    fn new(
        name: &Bound<'_, PyAny>,
        id: &Bound<'_, PyAny>,
        cost: Argument<'_>,
        kind: Argument<'_>,
        factor: Option<&Bound<'_, PyAny>>,
        keep: Argument<'_>,
    ) -> PyResult<Transaction> {
        let py = name.py();
        // Arguments that no limit accepts raise here, close to the mistake.
        id_text(id)?;
        let adjustment = arguments::adjustment(factor, keep.given())?;
        let cost = match cost.given() {
            None => 1_i64.into_pyobject(py)?.into_any().unbind(),
            Some(cost) => {
                arguments::saturating("cost", cost)?;
                cost.clone().unbind()
            }
        };
        let kind = kind.given().map_or(Ok(Kind::Spend), kind_of)?;
        let (name, id) = (arguments::string("name", name)?.clone().unbind(), id.clone().unbind());
        Ok(Transaction {
            name,
            id,
            cost,
            kind,
            factor: factor.map(|factor| factor.clone().unbind()),
            adjustment,
        })
    }

    #[doc = doc!(Transaction.name)]
    #[getter]
    fn name(&self, py: Python<'_>) -> Py<PyString> {
        self.name.clone_ref(py)
    }

    #[doc = doc!(Transaction.id)]
    #[getter]
    fn id(&self, py: Python<'_>) -> Py<PyAny> {
        self.id.clone_ref(py)
    }

    #[doc = doc!(Transaction.cost)]
    #[getter]
    fn cost(&self, py: Python<'_>) -> Py<PyAny> {
        self.cost.clone_ref(py)
    }

    #[doc = doc!(Transaction.kind)]
    #[getter]
    fn kind(&self) -> &'static str {
        match self.kind {
            Kind::Spend => "spend",
            Kind::Check => "check",
            Kind::SpendOnly => "spend_only",
        }
    }

    #[doc = doc!(Transaction.factor)]
    #[getter]
    fn factor(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.factor.as_ref().map(|factor| factor.clone_ref(py))
    }

    #[doc = doc!(Transaction.keep)]
    #[getter]
    fn keep(&self) -> i64 {
        self.adjustment.as_ref().map_or(0, |adjustment| adjustment.keep)
    }

    fn __eq__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        if !other.is_instance_of::<Transaction>() {
            return Ok(false);
        }
        slf.get().key(slf.py())?.eq(other.cast::<Transaction>()?.get().key(slf.py())?)
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        self.key(py)?.hash()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        (slf.get_type(), slf.get().key(slf.py())?).into_pyobject(slf.py())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let shown = |value: &Bound<'_, PyAny>| value.repr().map(|text| text.to_string());
        let (name, id) = (shown(self.name.bind(py))?, shown(self.id.bind(py))?);
        let (cost, kind) = (shown(self.cost.bind(py))?, self.kind());
        let factor = match &self.factor {
            None => String::new(),
            Some(factor) => format!(", factor={}", shown(factor.bind(py))?),
        };
        let keep = match self.keep() {
            0 => String::new(),
            keep => format!(", keep={keep}"),
        };
        Ok(format!("Transaction({name}, {id}, cost={cost}, kind='{kind}'{factor}{keep})"))
    }
}

impl Transaction {
    fn key<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let (cost, factor, keep) = (self.cost(py), self.factor(py), self.keep());
        (self.name(py), self.id(py), cost, self.kind(), factor, keep).into_pyobject(py)
    }
}
