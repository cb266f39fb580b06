//! The second parser: serde_yaml, which determines the kind of each scalar.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::config::error::Fault;
use crate::config::yaml::{Node, Refusal, ScalarKind, Value};

/// Sets the kinds of all scalars in a tree. This parser must find the same tree in the text.
pub(super) fn read(text: &str, tree: &mut Node<'_>) -> Result<(), Refusal> {
    let mut differs = None;
    let Some(document) = serde_yaml::Deserializer::from_str(text).next() else {
        return Err((None, Fault::Empty));
    };
    match (Compare { node: tree, differs: &mut differs }).deserialize(document) {
        Ok(()) => Ok(()),
        Err(_) if differs.is_some() => Err((differs, Fault::TwoReadings)),
        Err(error) => {
            let line = error.location().map(|location| location.line() as u32);
            Err((line, Fault::Kinds(error)))
        }
    }
}

/// Visits a node of the tree, and all nodes inside it.
struct Compare<'n, 't> {
    node: &'n mut Node<'t>,
    /// The line of a node on which the parsers disagree.
    differs: &'n mut Option<u32>,
}

impl Compare<'_, '_> {
    fn differs<E: de::Error>(self) -> Result<(), E> {
        let line = self.node.line;
        differs(self.differs, line)
    }

    fn scalar<E: de::Error>(self, kind: ScalarKind) -> Result<(), E> {
        match &mut self.node.value {
            Value::Scalar(known, _) => {
                *known = kind;
                Ok(())
            }
            _ => self.differs(),
        }
    }
}

fn differs<E: de::Error>(found: &mut Option<u32>, line: u32) -> Result<(), E> {
    *found = Some(line);
    Err(E::custom(Fault::TwoReadings))
}

impl<'de> DeserializeSeed<'de> for Compare<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Compare<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping, a list or a scalar")
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        self.scalar(ScalarKind::Nothing)
    }

    fn visit_none<E: de::Error>(self) -> Result<(), E> {
        self.scalar(ScalarKind::Nothing)
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<(), E> {
        self.scalar(ScalarKind::Truth)
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<(), E> {
        self.scalar(ScalarKind::Whole)
    }

    fn visit_i128<E: de::Error>(self, _: i128) -> Result<(), E> {
        self.scalar(ScalarKind::Whole)
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<(), E> {
        self.scalar(ScalarKind::Whole)
    }

    fn visit_u128<E: de::Error>(self, _: u128) -> Result<(), E> {
        self.scalar(ScalarKind::Whole)
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<(), E> {
        self.scalar(ScalarKind::Fraction)
    }

    fn visit_str<E: de::Error>(self, seen: &str) -> Result<(), E> {
        match &self.node.value {
            Value::Scalar(ScalarKind::Text, text) if text == seen => Ok(()),
            _ => self.differs(),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seen: A) -> Result<(), A::Error> {
        let Value::List(list) = &mut self.node.value else { return self.differs() };
        for node in list {
            let line = node.line;
            let compare = Compare { node, differs: &mut *self.differs };
            if seen.next_element_seed(compare)?.is_none() {
                return differs(self.differs, line);
            }
        }
        // Extra nodes are reported as a separate error.
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut seen: A) -> Result<(), A::Error> {
        let Value::Map(map) = &mut self.node.value else { return self.differs() };
        for (key, value) in map {
            let line = key.line;
            let compare = Compare { node: key, differs: &mut *self.differs };
            if seen.next_key_seed(compare)?.is_none() {
                return differs(self.differs, line);
            }
            seen.next_value_seed(Compare { node: value, differs: &mut *self.differs })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::yaml::spelling;

    #[test]
    fn both_parsers_must_find_the_same_tree() {
        for (here, there) in [
            ("[a]", "[a, b]"),
            ("[a, b]", "[a]"),
            ("{a: 1}", "{a: 1, b: 2}"),
            ("{a: 1, b: 2}", "{a: 1}"),
            ("{a: 1}", "{b: 1}"),
            ("a", "b"),
            ("[a]", "a"),
            ("a", "[a]"),
            ("1", "[1]"),
            ("{a: 1}", "[a, 1]"),
            ("[a, 1]", "{a: 1}"),
        ] {
            let mut tree = spelling::read(there).unwrap();
            assert!(read(here, &mut tree).is_err(), "{here} and {there}");
            let mut tree = spelling::read(here).unwrap();
            assert!(read(here, &mut tree).is_ok(), "{here}");
        }
    }
}
