//! Lines that are JSON objects.

use std::borrow::Cow;
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use smallvec::SmallVec;

use crate::log::fault::LineFault;
use crate::log::id;
use crate::log::record::Record;

/// The names of the selected fields. A dot refers to a field of a nested object.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FieldNames {
    /// Each name with its slot.
    pub wanted: Vec<(String, usize)>,
}

impl FieldNames {
    pub(super) fn read<'a>(
        &self,
        line: &'a [u8],
        record: &mut Record<'a>,
    ) -> Result<(), LineFault> {
        match std::str::from_utf8(line) {
            Ok(text) => object(text, &self.wanted, record),
            Err(_) => {
                let text = id::escape_invalid_utf8(line);
                let mut borrowed = Record::default();
                object(&text, &self.wanted, &mut borrowed)?;
                for (slot, found) in borrowed.slots.into_iter().enumerate() {
                    record.slots[slot] = found.map(|found| Cow::Owned(found.into_owned()));
                }
                record.is_escaped = true;
                Ok(())
            }
        }
    }
}

fn object<'a>(
    text: &'a str,
    names: &[(impl AsRef<str>, usize)],
    record: &mut Record<'a>,
) -> Result<(), LineFault> {
    let mut reader = serde_json::Deserializer::from_str(text);
    Object { names, record }
        .deserialize(&mut reader)
        .and_then(|()| reader.end())
        // The caller that counts lines adds the line number.
        .map_err(|error| LineFault::Json { problem: error.to_string().replace(" line 1 ", " ") })
}

/// Visitor that extracts the selected fields of an object.
struct Object<'a, 'n, 'r, N> {
    names: &'n [(N, usize)],
    record: &'r mut Record<'a>,
}

impl<'a, N: AsRef<str>> DeserializeSeed<'a> for Object<'a, '_, '_, N> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'a, N: AsRef<str>> Visitor<'a> for Object<'a, '_, '_, N> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'a>>(self, mut map: M) -> Result<(), M::Error> {
        let Object { names, record } = self;
        while let Some(wanted) = map.next_key_seed(Key { names })? {
            if wanted.is_empty() {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value: &'a RawValue = map.next_value()?;
            for (rest, slot) in wanted {
                if rest.is_empty() {
                    record.slots[slot] = match value.get().starts_with('[') {
                        true => list(value),
                        false => scalar(value.get()),
                    };
                } else if value.get().starts_with('{') {
                    object(value.get(), &[(rest, slot)], record).map_err(M::Error::custom)?;
                }
            }
        }
        Ok(())
    }
}

/// The remaining parts of names, each with its slot.
type Rests<'n> = SmallVec<[(&'n str, usize); 2]>;

/// Visitor of a key, which returns the remaining part of each matching name.
struct Key<'n, N> {
    names: &'n [(N, usize)],
}

impl<'de, 'n, N: AsRef<str>> DeserializeSeed<'de> for Key<'n, N> {
    type Value = Rests<'n>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_str(self)
    }
}

impl<'n, N: AsRef<str>> Visitor<'_> for Key<'n, N> {
    type Value = Rests<'n>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        // Most keys match no name, which their lengths show without a comparison.
        let left = |(name, slot): &'n (N, usize)| match name.as_ref().split_at_checked(key.len())? {
            (begin, "") => (begin == key).then_some(("", *slot)),
            (begin, rest) => Some((rest.strip_prefix('.').filter(|_| begin == key)?, *slot)),
        };
        Ok(self.names.iter().filter_map(left).collect())
    }
}

/// Returns the texts of a list, between commas, as in a field of a header; the source text of a list with
/// other values.
fn list(value: &RawValue) -> Option<Cow<'_, [u8]>> {
    match serde_json::from_str::<Vec<Cow<'_, str>>>(value.get()) {
        Ok(texts) => Some(Cow::Owned(texts.join(", ").into_bytes())),
        Err(_) => Some(Cow::Borrowed(value.get().as_bytes())),
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
