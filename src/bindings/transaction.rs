//! Conversion of transactions, which are tuples.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::bindings::arguments;
use crate::bindings::errors::shown;
use crate::bindings::id_text::id_text;
use crate::engine::batch::Kind;
use crate::engine::factor::Adjustment;

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
    /// Converts a tuple `(name, id[, cost[, kind[, factor[, keep]]]])`, such as a `Transaction`.
    pub(crate) fn of(given: &Bound<'py, PyAny>) -> PyResult<CallArgs<'py>> {
        let expected = "a Transaction, or a tuple of its first fields, such as (name, id, cost)";
        let tuple = given.cast::<PyTuple>().ok().filter(|tuple| (2..=6).contains(&tuple.len()));
        let tuple = tuple.ok_or_else(|| arguments::wrong_type("transaction", expected, given))?;
        let item = |index| (index < tuple.len()).then(|| tuple.get_item(index)).transpose();
        Ok(CallArgs {
            name: arguments::string("name", &tuple.get_item(0)?)?.clone(),
            id: tuple.get_item(1)?,
            cost: item(2)?,
            kind: item(3)?.map_or(Ok(Kind::Spend), |kind| kind_of(&kind))?,
            adjustment: arguments::adjustment(item(4)?.as_ref(), item(5)?.as_ref())?,
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

#[doc = doc!(check_transaction)]
#[pyfunction]
pub(crate) fn check_transaction(transaction: &Bound<'_, PyAny>) -> PyResult<()> {
    let CallArgs { id, cost, .. } = CallArgs::of(transaction)?;
    id_text(&id)?;
    cost.map_or(Ok(()), |cost| arguments::saturating("cost", &cost).map(drop))
}
