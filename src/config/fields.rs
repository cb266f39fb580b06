//! Converts YAML nodes to the values of fields.

use hashbrown::HashMap;

use crate::config::duration::duration;
use crate::config::error::Fault;
use crate::config::suggest::suggest;
use crate::config::yaml::{Node, ScalarKind, Value};
use crate::engine::algorithm::calendar::Zone;
use crate::engine::algorithm::description::FieldValue;
use crate::engine::algorithm::parameter::{Parameter, ParameterKind};
use crate::engine::id::Excerpt;
use crate::engine::limit_error::LimitError;
use crate::engine::time::Nanos;

/// Describes a node for an error message.
pub(super) fn described(node: &Node<'_>) -> String {
    match &node.value {
        Value::Scalar(ScalarKind::Nothing, _) => "nothing".to_owned(),
        Value::Scalar(ScalarKind::Text, text) => format!("the string {}", Excerpt::new(text)),
        Value::Scalar(_, spelling) => spelling.chars().take(60).collect(),
        Value::List(_) => "a list".to_owned(),
        Value::Map(_) => "a mapping".to_owned(),
    }
}

/// Returns the fault of a value of another kind than the expected one.
pub(super) fn not_a(what: &'static str, expected: &'static str, node: &Node<'_>) -> Fault {
    Fault::NotA { what, expected, found: described(node) }
}

/// Returns the fault of a value that is a string only in quotes.
fn unquoted(what: &'static str, node: &Node<'_>) -> Fault {
    let found = format!("{}; put it in quotes", described(node));
    Fault::NotA { what, expected: "a string", found }
}

/// Returns a key of a mapping as text.
pub(super) fn key<'n>(node: &'n Node<'_>) -> Result<&'n str, Fault> {
    match &node.value {
        Value::Scalar(ScalarKind::Text, text) if text == "<<" => Err(Fault::MergeKey),
        Value::Scalar(ScalarKind::Text, text) => Ok(text),
        Value::Scalar(..) => Err(unquoted("a key", node)),
        _ => Err(not_a("a key", "a string", node)),
    }
}

/// Parses a whole number in decimal digits.
pub(super) fn whole(field: &'static str, node: &Node<'_>) -> Result<i64, Fault> {
    let expected = match &node.value {
        Value::Scalar(ScalarKind::Whole, spelling) => match spelling.parse() {
            Ok(number) => return Ok(number),
            Err(_) if is_decimal(spelling) => "within 64 bits",
            Err(_) => "a whole number in decimal digits",
        },
        Value::Scalar(ScalarKind::Fraction, spelling) if is_decimal(spelling) => "within 64 bits",
        _ => "a whole number",
    };
    Err(not_a(field, expected, node))
}

fn is_decimal(spelling: &str) -> bool {
    let digits = spelling.strip_prefix(['+', '-']).unwrap_or(spelling);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns a string.
pub(super) fn text<'n>(field: &'static str, node: &'n Node<'_>) -> Result<&'n str, Fault> {
    match &node.value {
        Value::Scalar(ScalarKind::Text, text) => Ok(text),
        Value::Scalar(kind, _) if *kind != ScalarKind::Nothing => Err(unquoted(field, node)),
        _ => Err(not_a(field, "a string", node)),
    }
}

/// Parses a duration with units.
pub(super) fn time(field: &'static str, node: &Node<'_>) -> Result<Nanos, Fault> {
    match &node.value {
        // For a number without a unit, the parser of durations has the right message.
        Value::Scalar(ScalarKind::Text | ScalarKind::Whole | ScalarKind::Fraction, spelling) => {
            duration(spelling).map_err(|error| Fault::Duration { field, error })
        }
        _ => Err(not_a(field, "a time with its unit, such as 1s or 180m", node)),
    }
}

/// Parses the value of a parameter.
pub(super) fn value(parameter: &Parameter, node: &Node<'_>) -> Result<FieldValue, Fault> {
    let name = parameter.name;
    match parameter.kind {
        ParameterKind::Whole => whole(name, node).map(FieldValue::Whole),
        ParameterKind::TimeOr(word) if matches!(text(name, node), Ok(text) if text == word) => {
            Ok(FieldValue::Word(word))
        }
        ParameterKind::Time | ParameterKind::TimeOr(_) => time(name, node).map(FieldValue::Time),
        ParameterKind::Word(_) | ParameterKind::Zone => Ok(word(parameter, text(name, node)?)?),
    }
}

/// Returns the value of a parameter that is a word.
///
/// # Errors
/// [`LimitError`] if it does not have this value. For a time zone, it names the most similar one.
pub fn word(parameter: &Parameter, text: &str) -> Result<FieldValue, LimitError> {
    let words = match parameter.kind {
        ParameterKind::Word(words) => words,
        _ => return zone(text).map(|zone| FieldValue::Word(zone.name())),
    };
    let found = || Excerpt::new(text);
    let word = words.iter().find(|word| **word == text).map(|word| FieldValue::Word(word));
    word.ok_or_else(|| LimitError::UnknownWord { field: parameter.name, words, found: found() })
}

/// Returns the time zone with this name; case is ignored.
pub(super) fn zone(name: &str) -> Result<Zone, LimitError> {
    Zone::named(name).ok_or_else(|| {
        let city = |zone: &&str| {
            zone.rsplit('/').next().is_some_and(|city| city.eq_ignore_ascii_case(name))
        };
        let nearest = Zone::names().find(city).or_else(|| suggest(name, Zone::names()));
        LimitError::UnknownZone { found: Excerpt::new(name), nearest }
    })
}

/// Returns an id as written: `0123`, `1e5` and `null` are strings here.
pub(super) fn id<'n>(node: &'n Node<'_>) -> Result<&'n str, Fault> {
    match &node.value {
        Value::Scalar(kind, spelling)
            if *kind != ScalarKind::Nothing || !matches!(&**spelling, "" | "~") =>
        {
            Ok(spelling)
        }
        _ => Err(not_a("an id", "a string or a number", node)),
    }
}

/// Returns the keys of a mapping with their lines and values. Duplicate and invalid keys are passed
/// to `refuse` with their line.
pub(super) fn pairs<'n, 't>(
    map: &'n [(Node<'t>, Node<'t>)],
    mut refuse: impl FnMut(u32, &str, Fault),
) -> Vec<(&'n str, u32, &'n Node<'t>)> {
    let mut lines = HashMap::with_capacity(map.len());
    let mut pairs = Vec::with_capacity(map.len());
    for (key_node, value) in map {
        match key(key_node) {
            Err(fault) => refuse(key_node.line, "", fault),
            Ok(key) => match lines.insert(key, key_node.line) {
                None => pairs.push((key, key_node.line, value)),
                Some(first) => {
                    refuse(key_node.line, key, Fault::KeyTwice { key: Excerpt::new(key), first });
                }
            },
        }
    }
    pairs
}

/// Returns the fault of an unknown field, with the most similar known one.
pub(super) fn unknown(field: &str, known: &[&'static str]) -> Fault {
    let words = known.iter().copied();
    let meant = MEANT.iter().find(|(others, ours)| others.contains(&field) && known.contains(ours));
    let nearest = meant.map(|(_, ours)| *ours).or_else(|| suggest(field, words));
    Fault::UnknownField { field: Excerpt::new(field), nearest }
}

/// The fields of other programs' limits, with ours.
const MEANT: [(&[&str], &str); 3] = [
    (&["limit", "rate", "requests", "requests_per_unit", "quota", "max_requests"], "count"),
    (&["capacity", "bucket_size", "max_burst"], "burst"),
    (&["unit", "window", "interval", "per", "seconds"], "period"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_zone_is_named() {
        for (found, expected) in [
            ("Europe/Berln", Some("Europe/Berlin")),
            ("Berlin", Some("Europe/Berlin")),
            ("america/new york", Some("America/New_York")),
            ("Asia/Calcuta", Some("Asia/Calcutta")),
            ("Mars/Olympus", None),
            ("", None),
        ] {
            let Err(LimitError::UnknownZone { nearest, .. }) = zone(found) else {
                panic!("{found} is a zone")
            };
            assert_eq!(nearest, expected, "{found}");
        }
        assert_eq!(zone("europe/berlin").map(Zone::name), Ok("Europe/Berlin"));
    }
}
