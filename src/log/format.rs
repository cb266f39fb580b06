//! What the lines of a log look like, and how they are read.

use std::ops::Range;

use jiff::tz::TimeZone;

use crate::log::condition::Condition;
use crate::log::line_format::LineFormat;
use crate::log::record::RequestPart;

/// The format of a log.
#[derive(Clone, Debug)]
pub enum Format {
    /// Lines with text between their fields, as nginx and Apache write them.
    LineFormat(LineFormat),
    /// A JSON object on each line, after any text.
    Json,
}

/// The options of a parser.
#[derive(Clone, Debug)]
pub struct ParseOptions {
    /// The names of the selected fields, each with its slot.
    pub slots: Vec<(String, usize)>,
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
    /// Whether the time of a line is the end of its request, whose duration is subtracted.
    pub ended: bool,
    /// The times of the events to keep, in nanoseconds since 1970; other events are only counted.
    pub times: Range<i64>,
    /// Whether each line is a JSON object with the original line in its field `log`, as Docker writes it.
    pub is_json_wrapped: bool,
    /// The number of words before each line.
    pub prefix_words: usize,
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
