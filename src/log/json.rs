//! Lines that are JSON objects.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use memchr::memchr;
use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::log::fault::LineFault;
use crate::log::record::Record;

/// Fills the slots of the fields with these names from the object in a line, before which may be other
/// text. A dot in a name refers to a field of a nested object.
pub(super) fn read<'a>(
    line: &'a [u8],
    names: &[(impl AsRef<str>, usize)],
    record: &mut Record<'a>,
) -> Result<(), LineFault> {
    let line = &line[memchr(b'{', line).ok_or(LineFault::Format)?..];
    match std::str::from_utf8(line) {
        Ok(text) => object(text, names, record),
        Err(_) => {
            let (text, mut found) = (String::from_utf8_lossy(line), Record::default());
            object(&text, names, &mut found)?;
            record.slots = found.slots.map(|field| Some(Cow::Owned(field?.into_owned())));
            Ok(())
        }
    }
}

/// Returns the values of all fields of the object in a line, by their names.
pub(super) fn fields(line: &str) -> Option<BTreeMap<String, String>> {
    let Ok(Value::Object(object)) = serde_json::from_str(&line[line.find('{')?..]) else {
        return None;
    };
    let mut found = BTreeMap::new();
    for (name, value) in object {
        flatten(name, value, &mut found);
    }
    Some(found)
}

fn flatten(name: String, value: Value, found: &mut BTreeMap<String, String>) {
    let text = match value {
        Value::Object(fields) => {
            for (inner, value) in fields {
                flatten(format!("{name}.{inner}"), value, found);
            }
            return;
        }
        Value::String(text) => text,
        Value::Null => String::new(),
        Value::Array(_) => String::from_utf8_lossy(&list(&value.to_string())).into_owned(),
        other => other.to_string(),
    };
    found.insert(name, text);
}

fn object<'a>(
    text: &'a str,
    names: &[(impl AsRef<str>, usize)],
    record: &mut Record<'a>,
) -> Result<(), LineFault> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let read = reader.deserialize_map(Object { names, record });
    // The caller that counts lines adds the line number.
    read.and_then(|()| reader.end())
        .map_err(|error| LineFault::Json { problem: error.to_string().replace(" line 1 ", " ") })
}

/// Visitor that extracts the selected fields of an object.
struct Object<'a, 'n, 'r, N> {
    names: &'n [(N, usize)],
    record: &'r mut Record<'a>,
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a, N: AsRef<str>> Visitor<'a> for Object<'a, '_, '_, N> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'a>>(self, mut map: M) -> Result<(), M::Error> {
        let Object { names, record } = self;
        while let Some(Key(key)) = map.next_key()? {
            // Most keys match no name, which their lengths show without a comparison.
            let rests = names.iter().filter_map(|(name, slot)| {
                let (begin, rest) = name.as_ref().split_at_checked(key.len())?;
                (rest.is_empty() || rest.starts_with('.')).then_some((begin, rest, *slot))
            });
            let mut rests = rests.filter(|&(begin, ..)| begin == key).peekable();
            if rests.peek().is_none() {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = map.next_value::<&'a RawValue>()?.get();
            for (_, rest, slot) in rests {
                match rest.strip_prefix('.') {
                    None if value.starts_with('[') => record.slots[slot] = Some(list(value)),
                    None => record.slots[slot] = scalar(value),
                    Some(inner) if value.starts_with('{') => {
                        object(value, &[(inner, slot)], record).map_err(M::Error::custom)?;
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }
}

/// Returns the texts of a list, between commas, as in a field of a header; the source text of a list with
/// other values.
fn list(value: &str) -> Cow<'_, [u8]> {
    match serde_json::from_str::<Vec<Cow<'_, str>>>(value) {
        Ok(texts) => Cow::Owned(texts.join(", ").into_bytes()),
        Err(_) => Cow::Borrowed(value.as_bytes()),
    }
}

/// Returns the text of a value: the content of a string, `None` for `null`, and the source text of anything
/// else.
fn scalar(value: &str) -> Option<Cow<'_, [u8]>> {
    if value == "null" {
        return None;
    }
    let Some(inner) = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')) else {
        return Some(Cow::Borrowed(value.as_bytes()));
    };
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner.as_bytes()));
    }
    match serde_json::from_str::<String>(value) {
        Ok(text) => Some(Cow::Owned(text.into_bytes())),
        // A lone surrogate cannot be decoded and is kept as escaped.
        Err(_) => Some(Cow::Borrowed(inner.as_bytes())),
    }
}
