//! Lines of fields with fixed signs between them, as nginx and Apache write them.

use std::borrow::Cow;

use memchr::{memchr, memchr_iter, memmem, memrchr};

use crate::log::fault::Fault;
use crate::log::record::Record;

/// What a field may hold.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// Anything.
    Text,
    /// Digits, or `-` for none.
    Number,
}

/// What of a field is wanted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FieldPart {
    /// All of it.
    Whole,
    /// The method of a request line.
    Method,
    /// What a request line asks for, with its query.
    Target,
    /// What a request line asks for, without its query.
    Path,
}

/// A field, and the text before it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Field {
    /// The signs before it.
    pub before: Vec<u8>,
    /// What messages call it.
    pub name: String,
    /// What it may hold.
    pub kind: Kind,
    /// Where it is wanted, and what of it.
    pub wanted: Vec<(usize, FieldPart)>,
}

impl Field {
    /// Whether this field may begin so.
    fn may_begin(&self, rest: &[u8]) -> bool {
        let is_digit = |first: &u8| first.is_ascii_digit() || *first == b'-';
        self.kind == Kind::Text || rest.first().is_some_and(is_digit)
    }
}

/// How a line is made of fields.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LineFormat {
    /// The fields, in order.
    pub fields: Vec<Field>,
    /// The signs after the last.
    pub tail: Vec<u8>,
    /// Whether more may follow after a space.
    pub is_open: bool,
}

impl LineFormat {
    pub(super) fn read<'a>(&self, line: &'a [u8], record: &mut Record<'a>) -> Result<(), Fault> {
        let mut rest = line;
        for (place, field) in self.fields.iter().enumerate() {
            rest = rest.strip_prefix(&field.before[..]).ok_or_else(|| Fault::Before {
                before: field.before.clone(),
                field: field.name.clone(),
            })?;
            let next = self.fields.get(place + 1);
            let after = next.map_or(&self.tail[..], |next| &next.before[..]);
            let end = match next {
                Some(next) => end(rest, field, after, |rest| next.may_begin(rest))
                    .or_else(|| end(rest, field, after, |_| true)),
                // The last field, with nothing behind it.
                None if self.tail.is_empty() && self.is_open => {
                    Some(memchr(b' ', rest).unwrap_or(rest.len()))
                }
                None if self.tail.is_empty() => Some(rest.len()),
                None => {
                    let mut quotes = Quotes { behind: rest, count: None };
                    end(rest, field, after, |rest| self.may_end(rest, &mut quotes))
                }
            };
            let end = end
                .ok_or_else(|| Fault::After { after: after.to_vec(), field: field.name.clone() })?;
            let (text, after_field) = rest.split_at(end);
            if field.kind == Kind::Number && text != b"-" && !is_number(text) {
                let (field, found) = (field.name.clone(), text.to_vec());
                return Err(Fault::NotANumber { field, found });
            }
            for &(slot, part) in &field.wanted {
                record.slots[slot] = part_of(text, part).map(Cow::Borrowed);
            }
            rest = after_field;
        }
        rest = rest.strip_prefix(&self.tail[..]).unwrap_or(rest);
        if self.may_end(rest, &mut Quotes { behind: rest, count: None }) {
            return Ok(());
        }
        let field = self.fields.last().map_or_else(String::new, |field| field.name.clone());
        Err(Fault::Rest { field, found: rest.to_vec() })
    }

    fn may_end<'a>(&self, rest: &'a [u8], quotes: &mut Quotes<'a>) -> bool {
        // What follows has its own quotes in pairs, or a quote of the field itself was taken for
        // its end.
        rest.is_empty() || (self.is_open && rest[0] == b' ' && quotes.are_paired_in(rest))
    }
}

/// Counts the quotes in what is left of a line, each once, however often it is asked.
struct Quotes<'a> {
    /// What was left when it was asked last.
    behind: &'a [u8],
    /// How many there are in it; `None` if it was not asked yet.
    count: Option<usize>,
}

impl<'a> Quotes<'a> {
    /// Whether there are two, or four, and so on, in `rest`, with which `behind` ends.
    fn are_paired_in(&mut self, rest: &'a [u8]) -> bool {
        let passed = &self.behind[..self.behind.len().saturating_sub(rest.len())];
        let count = match self.count {
            None => memchr_iter(b'"', rest).count(),
            Some(count) => count - memchr_iter(b'"', passed).count(),
        };
        (self.behind, self.count) = (rest, Some(count));
        count.is_multiple_of(2)
    }
}

/// Where a field ends: before the signs that follow it, unless those stand inside its quotes.
fn end<'a>(
    rest: &'a [u8],
    field: &Field,
    after: &[u8],
    mut goes_on: impl FnMut(&'a [u8]) -> bool,
) -> Option<usize> {
    // Two fields with nothing between them: the first ends with its word.
    let Some(&first) = after.first() else { return Some(memchr(b' ', rest).unwrap_or(rest.len())) };
    let is_quoted = first == b'"' && field.before.ends_with(b"\"");
    let mut from = 0;
    loop {
        let at = from + memchr(first, &rest[from..])?;
        // A quote that is escaped, or after which the line does not go on as it should, belongs to
        // the field: clients put both into what they send.
        if rest[at..].starts_with(after)
            && goes_on(&rest[at + after.len()..])
            && !(is_quoted && is_escaped(rest, at))
        {
            return Some(at);
        }
        from = at + 1;
    }
}

fn is_escaped(rest: &[u8], at: usize) -> bool {
    rest[..at].iter().rev().take_while(|&&sign| sign == b'\\').count() % 2 == 1
}

fn is_number(field: &[u8]) -> bool {
    !field.is_empty() && field.iter().all(u8::is_ascii_digit)
}

/// The wanted part of a field; `None` where a request line has no such part.
fn part_of(field: &[u8], part: FieldPart) -> Option<&[u8]> {
    if part == FieldPart::Whole {
        return Some(field);
    }
    let space = memchr(b' ', field)?;
    let (method, rest) = (&field[..space], &field[space + 1..]);
    if part == FieldPart::Method {
        return Some(method);
    }
    // The protocol is the last word, where there is one: what is asked for may have spaces in it.
    let target = match memrchr(b' ', rest) {
        Some(space) if rest[space + 1..].starts_with(b"HTTP/") => &rest[..space],
        _ => rest,
    };
    // Balancers and proxies log the whole URL.
    let target = match memmem::find(target, b"://") {
        Some(scheme) if target[..scheme].iter().all(u8::is_ascii_alphabetic) => {
            let host = &target[scheme + 3..];
            memchr(b'/', host).map_or(&b"/"[..], |path| &host[path..])
        }
        _ => target,
    };
    if part == FieldPart::Target {
        return Some(target);
    }
    Some(memchr(b'?', target).map_or(target, |query| &target[..query]))
}
