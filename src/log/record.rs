//! The fields of one line.

use std::borrow::Cow;

use memchr::{memchr, memmem, memrchr};

/// The maximum number of selected fields: a time, a cost, the fields of the id, and a duration.
pub const MAX_SLOTS: usize = 9;
/// The maximum number of fields of an id.
pub const MAX_ID_FIELDS: usize = DURATION - ID;
/// The slot of the time.
pub(super) const TIME: usize = 0;
/// The slot of the cost.
pub(super) const COST: usize = 1;
/// The first slot of the id.
pub(super) const ID: usize = 2;
/// The slot of the duration, after those of the id.
pub(super) const DURATION: usize = MAX_SLOTS - 1;

/// The selected fields of one line, each in its slot.
#[derive(Debug, Default)]
pub(super) struct Record<'a> {
    pub slots: [Option<Cow<'a, [u8]>>; MAX_SLOTS],
}

impl<'a> Record<'a> {
    /// Stores a field in its slot. Two fields for the time are a date and a time of day; several durations
    /// are added.
    pub fn fill(&mut self, slot: usize, field: &'a [u8]) {
        self.slots[slot] = Some(match self.slots[slot].take() {
            Some(before) if slot == TIME || slot == DURATION => {
                Cow::Owned([&before, &b" "[..], field].concat())
            }
            _ => Cow::Borrowed(field),
        });
    }

    /// Replaces a field by a part of it.
    pub fn keep_part(&mut self, slot: usize, part: RequestPart) {
        self.slots[slot] = match self.slots[slot].take() {
            Some(Cow::Borrowed(field)) => part.of(field).map(Cow::Borrowed),
            Some(Cow::Owned(field)) => part.of(&field).map(|part| Cow::Owned(part.to_vec())),
            None => None,
        };
    }
}

/// A part of a request line such as `GET /a?b HTTP/1.1`, or of a URL.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RequestPart {
    /// The method.
    Method,
    /// The target with its query.
    Target,
    /// The target without its query.
    Path,
}

impl RequestPart {
    /// Returns this part of a request, or `None` if it has no such part, as in `-`.
    fn of(self, text: &[u8]) -> Option<&[u8]> {
        let (method, rest) = match memchr(b' ', text) {
            Some(blank) if text[0] != b'/' => (Some(&text[..blank]), &text[blank + 1..]),
            // Not a request, such as bytes of another protocol, which servers escape.
            _ if text.is_empty() || text == b"-" || text[0] == b'\\' => return None,
            _ => (None, text),
        };
        if self == RequestPart::Method {
            return method;
        }
        // The protocol, if there is one, is the last word. The target may contain spaces.
        let target = match memrchr(b' ', rest) {
            Some(space) if is_protocol(&rest[space + 1..]) => rest[..space].trim_ascii_end(),
            _ => rest,
        };
        // Load balancers and proxies log the whole URL.
        let target = match memmem::find(target, b"://") {
            Some(scheme) if target[..scheme].iter().all(u8::is_ascii_alphabetic) => {
                let host = &target[scheme + 3..];
                memchr(b'/', host).map_or(&b"/"[..], |path| &host[path..])
            }
            _ => target,
        };
        if self == RequestPart::Target {
            return Some(target);
        }
        Some(memchr(b'?', target).map_or(target, |query| &target[..query]))
    }
}

/// Returns whether a word is the protocol of a request; Hypercorn writes only its version.
fn is_protocol(word: &[u8]) -> bool {
    word.starts_with(b"HTTP/") || matches!(word, b"1.0" | b"1.1" | b"2" | b"3")
}
