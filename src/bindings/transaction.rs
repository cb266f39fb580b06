//! Conversion of transactions, which are tuples.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::bindings::arguments;
use crate::bindings::decision::DecisionPart;
use crate::bindings::errors::shown;
use crate::bindings::id_text::{id_text, kept_id};
use crate::bindings::limiter::Limiter;
use crate::engine::batch::Kind;
use crate::engine::factor::Adjustment;
use crate::engine::verb::Verb;
use crate::limiter::{Call, Transaction};

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

impl Limiter {
    /// Converts transactions of a call. All use the limits that are active after the last conversion.
    pub(crate) fn transactions(
        &self,
        verb: Verb,
        given: &Bound<'_, PyAny>,
    ) -> PyResult<(Vec<Transaction>, Vec<DecisionPart>)> {
        let py = given.py();
        self.handle().check_open()?;
        let converted = given
            .try_iter()?
            .map(|transaction| {
                let CallArgs { name, id, cost, kind, adjustment } = CallArgs::of(&transaction?)?;
                if kind == Kind::Charge && verb == Verb::Reserve {
                    let message = "a charge neither waits nor is reserved; use spend_all for it";
                    return Err(PyValueError::new_err(message));
                }
                let bound = self.bound(name.as_any())?;
                let text = id_text(&id)?;
                let given = cost.as_ref();
                let tokens = given.map_or(Ok(1), |cost| arguments::saturating("cost", cost))?;
                let shown = kept_id(&id, &text).unbind();
                Ok((bound, shown, text.into_owned(), (tokens, cost), kind, adjustment))
            })
            .collect::<PyResult<Vec<_>>>()?;
        // After all conversions, which may run Python code that reloads or closes.
        self.handle().check_open()?;
        let active = self.handle().core.snapshot();
        let transactions =
            converted.into_iter().map(|(bound, shown, id, cost, kind, adjustment)| {
                let (limit, entry) = bound.get().snapshot_of(py, &active)?;
                let (cost, given) = cost;
                let (verb, adjusted) = (kind.verb(verb), adjustment.as_ref());
                let call = Call { verb, id: &id, cost, adjustment: adjusted };
                self.handle().check_cost(&limit, call, given.as_ref())?;
                Ok((Transaction { limit, id, cost, kind, adjustment }, (shown, cost, entry)))
            });
        transactions.collect()
    }
}

fn kind_of(given: &Bound<'_, PyAny>) -> PyResult<Kind> {
    match arguments::string("kind", given)?.to_str()? {
        "spend" => Ok(Kind::Spend),
        "check" => Ok(Kind::Check),
        "spend_only" => Ok(Kind::SpendOnly),
        "charge" => Ok(Kind::Charge),
        _ => {
            let found = shown(given);
            Err(PyValueError::new_err(format!(
                "kind must be 'spend', 'check', 'spend_only' or 'charge', found {found}"
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
