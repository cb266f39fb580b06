//! The parameters of algorithms as data. The fields of limits files and the arguments in Python are read by
//! these tables.

use crate::engine::algorithm::Limit;
use crate::engine::algorithm::description::{FieldValue, Fields};
use crate::engine::limit_error::LimitError;
use crate::engine::time::Nanos;

/// One parameter of an algorithm.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Its name in limits files and in Python.
    pub name: &'static str,
    /// What its values are.
    pub kind: ParameterKind,
    /// Whether it must be given.
    pub is_required: bool,
}

/// What the values of a parameter are.
#[derive(Clone, Copy, Debug)]
pub enum ParameterKind {
    /// A whole number.
    Whole,
    /// A duration.
    Time,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A duration, or this word.
    TimeOr(&'static str),
    /// The name of a time zone.
    Zone,
}

impl Parameter {
    /// Returns a parameter that must be given.
    pub(super) const fn required(name: &'static str, kind: ParameterKind) -> Parameter {
        Parameter { name, kind, is_required: true }
    }

    /// Returns a parameter that may be missing.
    pub(super) const fn optional(name: &'static str, kind: ParameterKind) -> Parameter {
        Parameter { name, kind, is_required: false }
    }
}

/// A way to write the limits of an algorithm.
#[derive(Debug)]
pub struct LimitForm {
    /// The parameters, in the order in which messages list them and functions take them.
    pub parameters: &'static [Parameter],
    /// Returns the limit with these values.
    pub(super) build: fn(&Values) -> Result<Limit, LimitError>,
}

impl LimitForm {
    /// Returns the limit with these values, which are of the kinds in the table.
    ///
    /// # Errors
    /// [`LimitError`] if the values are invalid.
    pub fn limit(&self, given: Fields) -> Result<Limit, LimitError> {
        (self.build)(&Values(given))
    }
}

/// The parameters of which a recommendation finds the values.
#[derive(Debug)]
pub struct Shape {
    /// That for tokens at once; `None` if there is none.
    pub burst: Option<&'static str>,
    /// That for tokens per period.
    pub rate: &'static str,
    /// That for the period; `None` if it stays as it is.
    pub period: Option<&'static str>,
}

/// The values of the parameters that were given.
pub(super) struct Values(Fields);

impl Values {
    /// Returns the value of an optional parameter; `None` if it is missing.
    pub(super) fn get<T: TryFrom<FieldValue>>(&self, name: &str) -> Option<T> {
        let (_, value) = self.0.iter().find(|(other, _)| *other == name)?;
        T::try_from(*value).ok()
    }

    /// Returns the value of a required parameter.
    pub(super) fn required<T: TryFrom<FieldValue>>(
        &self,
        field: &'static str,
    ) -> Result<T, LimitError> {
        self.get(field).ok_or(LimitError::Missing { field })
    }
}

macro_rules! from_value {
    ($($Variant:ident => $Type:ty),+) => {$(
        impl TryFrom<FieldValue> for $Type {
            type Error = FieldValue;

            fn try_from(value: FieldValue) -> Result<$Type, FieldValue> {
                if let FieldValue::$Variant(value) = value { Ok(value) } else { Err(value) }
            }
        }
    )+};
}
from_value!(Whole => i64, Time => Nanos, Word => &'static str);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithm::{AlgorithmName, Definition};

    /// Returns a value that is no default.
    fn value_of(kind: ParameterKind) -> FieldValue {
        match kind {
            ParameterKind::Whole => FieldValue::Whole(3),
            ParameterKind::Time => FieldValue::Time(Nanos::from_millis(2000)),
            ParameterKind::Word(words) => FieldValue::Word(words.last().expect("a word")),
            ParameterKind::TimeOr(word) => FieldValue::Word(word),
            ParameterKind::Zone => FieldValue::Word("Europe/Berlin"),
        }
    }

    #[test]
    fn every_table_has_the_parameters_that_its_algorithm_reads() {
        for algorithm in AlgorithmName::ALL {
            let Definition { form, older, .. } = algorithm.definition();
            let given: Fields =
                form.parameters.iter().map(|one| (one.name, value_of(one.kind))).collect();
            let limit = form.limit(given.clone()).expect("a limit");
            assert_eq!(limit.algorithm(), algorithm);
            assert_eq!(limit.fields(), given, "{algorithm}");
            for (index, parameter) in form.parameters.iter().enumerate() {
                let mut others = given.clone();
                others.remove(index);
                let missing = LimitError::Missing { field: parameter.name };
                let limit = form.limit(others);
                match parameter.is_required {
                    true => assert_eq!(limit, Err(missing), "{algorithm}"),
                    // Another one may be valid only together with this one.
                    false => assert_ne!(limit, Err(missing), "{algorithm}"),
                }
            }
            for parameter in older.iter().flat_map(|older| older.parameters) {
                let given = vec![(parameter.name, value_of(parameter.kind))];
                let built = older.as_ref().map(|older| older.limit(given));
                assert!(built.is_some_and(|built| built.is_ok()), "{}", parameter.name);
            }
        }
    }
}
