//! What the lines of a log look like, and how they are read.

use std::borrow::Cow;

use jiff::tz::TimeZone;
use memchr::memchr;
use serde::Deserialize;

use crate::log::condition::Condition;
use crate::log::fault::LineFault;
use crate::log::json::FieldNames;
use crate::log::line_format::LineFormat;
use crate::log::record::RequestPart;

/// The format of a log.
#[derive(Clone, Debug)]
pub enum Format {
    /// Lines with text between their fields, as nginx and Apache write them.
    LineFormat(LineFormat),
    /// A JSON object on each line.
    Json(FieldNames),
}

/// The options of a parser.
#[derive(Clone, Debug)]
pub struct ParseOptions {
    /// Whether lines have a cost.
    pub has_cost: bool,
    /// The unit of durations that do not state one, in nanoseconds; `None` if durations are not read.
    pub duration_unit: Option<i64>,
    /// The number of fields of an id, at most [`MAX_ID_FIELDS`](crate::log::MAX_ID_FIELDS); 0 if all
    /// events belong to one client.
    pub id_fields: usize,
    /// The field of the id with the client, by its index. A line without it has no id.
    pub client: Option<usize>,
    /// Whether the client must be an address.
    pub is_address: bool,
    /// The zone of times without a zone.
    pub zone: TimeZone,
    /// The maximum time by which a line may be earlier than a previous one, in nanoseconds; `None` for no
    /// maximum.
    pub window: Option<i64>,
    /// The envelope of each line.
    pub envelope: Envelope,
    /// The number of leading bits that identify an IPv6 client, 1 to 128.
    pub ipv6_prefix: u8,
    /// The directive that names the fields of a W3C log. In such a log, lines that begin with `#` are no
    /// events.
    pub directive: Option<Vec<u8>>,
    /// Slots of which only a part of the request is used.
    pub parts: Vec<(usize, RequestPart)>,
    /// The conditions of which all must hold; other events are only counted.
    pub conditions: Vec<Condition>,
}

/// The text that a container runtime or log shipper adds to each line.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Envelope {
    /// Whether each line is a JSON object with the original line in its field `log`, as Docker writes it.
    pub is_json: bool,
    /// The number of words before the line.
    pub words: usize,
}

impl Envelope {
    /// Returns the line inside.
    pub(super) fn open<'a>(self, line: &'a [u8]) -> Result<Cow<'a, [u8]>, LineFault> {
        let mut inner = Cow::Borrowed(line);
        if self.is_json {
            let found: Wrapped<'_> = serde_json::from_slice(line).map_err(|error| {
                LineFault::Json { problem: error.to_string().replace(" line 1 ", " ") }
            })?;
            let text = found.log.trim_end_matches(['\n', '\r']);
            inner = Cow::Owned(text.as_bytes().to_vec());
        }
        for _ in 0..self.words {
            let end = memchr(b' ', &inner).unwrap_or(inner.len());
            let blanks = inner[end..].iter().take_while(|&&byte| byte == b' ').count();
            inner = match inner {
                Cow::Borrowed(text) => Cow::Borrowed(&text[end + blanks..]),
                Cow::Owned(text) => Cow::Owned(text[end + blanks..].to_vec()),
            };
        }
        Ok(inner)
    }
}

#[derive(Deserialize)]
struct Wrapped<'a> {
    #[serde(borrow)]
    log: Cow<'a, str>,
}
