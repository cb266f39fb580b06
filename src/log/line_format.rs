//! Lines with text between their fields, such as those of nginx and Apache.

use std::collections::BTreeMap;

use memchr::{memchr, memchr_iter, memchr2};
use regex::bytes::{CaptureLocations, Regex, RegexBuilder};
use smallvec::SmallVec;

use crate::log::fault::LineFault;
use crate::log::record::Record;

/// The text that may follow an open format: a blank, and text with its quotes in pairs.
const REST: &str = r#"(?: [^"]*(?:"[^"]*"[^"]*)*)?"#;

/// A field of a line.
#[derive(Clone, Debug)]
pub struct LineField {
    /// The text before the field.
    pub before: String,
    /// The values that the field may have.
    pub kind: FieldKind,
    /// The names that select the field. Of two fields with one name, the first is meant.
    pub names: Vec<String>,
}

/// The text of each field of a line.
type Texts<'a> = SmallVec<[&'a [u8]; 16]>;

/// The values that a field may have.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FieldKind {
    /// Digits, or `-`.
    Number,
    /// Text up to the text after the field. If that is a quote, backslashes escape quotes.
    Text,
    /// Text up to the next delimiter, or in quotes.
    Cell,
}

/// The format of lines.
#[derive(Clone, Debug)]
pub struct LineFormat {
    fields: Vec<LineField>,
    tail: String,
    is_open: bool,
    /// The indexes of the selected fields, each with its slot.
    slots: Vec<(usize, usize)>,
    /// For lines with fields that contain the text after them: clients send quotes, and users have
    /// blanks in their names. It has a group for each field.
    lenient: Option<(Regex, CaptureLocations)>,
}

impl LineFormat {
    /// Creates a format of these fields, and the text after the last one. The lines of an open format
    /// may continue after a blank. `slots` are the names of the selected fields, each with its slot.
    ///
    /// # Errors
    /// The text between the fields is too long.
    pub fn new(
        fields: Vec<LineField>,
        tail: String,
        is_open: bool,
        slots: &[(String, usize)],
    ) -> Result<LineFormat, regex::Error> {
        let index = |name| fields.iter().position(|field| field.names.contains(name));
        let slots = slots.iter().filter_map(|(name, slot)| Some((index(name)?, *slot))).collect();
        let mut format = LineFormat { fields, tail, is_open, slots, lenient: None };
        if format.fields.iter().all(|field| field.kind != FieldKind::Cell) {
            let regex = RegexBuilder::new(&format.lenient_pattern()).unicode(false).build()?;
            let groups = regex.capture_locations();
            format.lenient = Some((regex, groups));
        }
        Ok(format)
    }

    fn lenient_pattern(&self) -> String {
        let mut pattern = "^".to_owned();
        for (index, field) in self.fields.iter().enumerate() {
            let after = self.after(index);
            let text = match field.kind {
                FieldKind::Number => "[0-9]+|-",
                _ if after.is_empty() && self.is_open => "[^ ]*",
                _ if after.is_empty() => ".*",
                _ if is_quoted(field, after) => r"(?:[^\\]|\\.)*?",
                _ if after == " " => "(?:[^ ]*, )*[^ ]*",
                _ => ".*?",
            };
            pattern.push_str(&format!("{}({text})", literal(&field.before)));
        }
        format!("{pattern}{}{}$", literal(&self.tail), if self.is_open { REST } else { "" })
    }

    /// Returns the text after a field.
    fn after(&self, index: usize) -> &str {
        self.fields.get(index + 1).map_or(&self.tail, |next| &next.before)
    }

    pub(super) fn read<'a>(
        &mut self,
        line: &'a [u8],
        record: &mut Record<'a>,
    ) -> Result<(), LineFault> {
        let mut texts = Texts::new();
        self.split(line, &mut texts).ok_or(LineFault::Format)?;
        for &(index, slot) in &self.slots {
            record.fill(slot, texts[index]);
        }
        Ok(())
    }

    /// Returns the values of all fields by their names.
    pub(super) fn fields(&mut self, line: &[u8]) -> Option<BTreeMap<String, String>> {
        let mut texts = Texts::new();
        self.split(line, &mut texts)?;
        let mut found = BTreeMap::new();
        for (field, text) in self.fields.iter().zip(texts) {
            for name in &field.names {
                let text = String::from_utf8_lossy(text);
                found.entry(name.clone()).or_insert_with(|| text.into_owned());
            }
        }
        Some(found)
    }

    fn split<'a>(&mut self, line: &'a [u8], texts: &mut Texts<'a>) -> Option<()> {
        if self.scan(line, texts).is_some() {
            return Some(());
        }
        texts.clear();
        let (regex, groups) = self.lenient.as_mut()?;
        regex.captures_read(groups, line)?;
        let text = |index| groups.get(index).map_or(&[][..], |(start, end)| &line[start..end]);
        texts.extend((1..=self.fields.len()).map(text));
        Some(())
    }

    /// Splits a line in which no field contains the text after it. A blank between fields may be a run of
    /// blanks, as in columns of equal width: servers write empty fields as `-`.
    fn scan<'a>(&self, line: &'a [u8], texts: &mut Texts<'a>) -> Option<()> {
        let mut rest = line;
        for (index, field) in self.fields.iter().enumerate() {
            rest = strip(rest, &field.before)?;
            let after = self.after(index);
            let (text, end) = match field.kind {
                FieldKind::Number => number(rest)?,
                FieldKind::Cell => cell(rest, after.as_bytes().first().copied()),
                FieldKind::Text => match after.as_bytes() {
                    [] if self.is_open => until(rest, memchr(b' ', rest)),
                    [] => until(rest, None),
                    [b'"', ..] if is_quoted(field, after) => until(rest, Some(quote(rest)?)),
                    b" " => words(rest),
                    [first, ..] => until(rest, memchr(*first, rest)),
                },
            };
            texts.push(text);
            rest = &rest[end..];
        }
        rest = strip(rest, &self.tail)?;
        let is_end = if self.is_open {
            rest.is_empty()
                || (rest[0] == b' ' && memchr_iter(b'"', rest).count().is_multiple_of(2))
        } else {
            rest.iter().all(|&byte| byte == b' ')
        };
        is_end.then_some(())
    }
}

fn is_quoted(field: &LineField, after: &str) -> bool {
    field.before.ends_with('"') && after.starts_with('"')
}

/// Returns the pattern of the text between two fields, in which a blank is a run of blanks.
fn literal(text: &str) -> String {
    let mut pattern = regex::escape(text);
    while pattern.contains("  ") {
        pattern = pattern.replace("  ", " ");
    }
    pattern.replace(' ', " +")
}

/// Returns the rest of a string that begins with a literal.
fn strip<'a>(text: &'a [u8], literal: &str) -> Option<&'a [u8]> {
    let mut rest = text;
    for byte in literal.bytes() {
        rest = rest.strip_prefix(&[byte])?;
        if byte == b' ' {
            let blanks = rest.iter().take_while(|&&next| next == b' ').count();
            rest = &rest[blanks..];
        }
    }
    Some(rest)
}

/// Returns the text before an end, or all of it, and its length.
fn until(text: &[u8], end: Option<usize>) -> (&[u8], usize) {
    let end = end.unwrap_or(text.len());
    (&text[..end], end)
}

/// Returns a word, and the words after it if they are a list such as `192.0.2.1, 10.0.0.1`.
fn words(text: &[u8]) -> (&[u8], usize) {
    let mut end = memchr(b' ', text).unwrap_or(text.len());
    while end > 0 && text[end - 1] == b',' && end < text.len() {
        end += 1 + memchr(b' ', &text[end + 1..]).unwrap_or(text.len() - end - 1);
    }
    until(text, Some(end))
}

fn number(text: &[u8]) -> Option<(&[u8], usize)> {
    let digits = text.iter().take_while(|digit| digit.is_ascii_digit()).count();
    let end = if digits == 0 && text.starts_with(b"-") { 1 } else { digits };
    (end > 0).then(|| until(text, Some(end)))
}

/// Returns the index of the first quote that is not escaped.
pub(super) fn quote(text: &[u8]) -> Option<usize> {
    let mut start = 0;
    loop {
        let found = start + memchr2(b'"', b'\\', text.get(start..)?)?;
        if text[found] == b'"' {
            return Some(found);
        }
        start = found + 2;
    }
}

/// Returns a cell without its quotes, and its length with them.
fn cell(text: &[u8], delimiter: Option<u8>) -> (&[u8], usize) {
    if let Some(inner) = text.strip_prefix(b"\"")
        && let Some(end) = memchr(b'"', inner)
        && inner.get(end + 1).is_none_or(|&next| Some(next) == delimiter || next == b' ')
    {
        return (&inner[..end], end + 2);
    }
    until(text, memchr(delimiter.unwrap_or(b' '), text))
}
