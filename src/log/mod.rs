//! Parsing of log text to columns of events.
//!
//! LAW: bytes in, columns out. No file, no clock, no Python. The caller passes bytes in blocks of any
//! size, and block boundaries do not affect the result.

mod condition;
mod duration;
mod fault;
mod format;
mod id;
mod json;
mod line_format;
mod parser;
mod record;
mod skipped;
mod time;
mod worker;

pub use condition::{Condition, matches};
pub use duration::duration;
pub use fault::LineFault;
pub use format::{Format, ParseOptions};
pub use id::{address, canonical};
pub use jiff::tz::TimeZone;
pub use line_format::{FieldKind, LineField, LineFormat};
pub use parser::Parser;
pub use record::{MAX_ID_FIELDS, MAX_SLOTS, RequestPart};
pub use skipped::{Example, ParsedEvents};
pub use time::timestamp;

/// The maximum length of a line, in bytes: 1 MiB. A line without an end must not fill the memory.
pub const MAX_LINE: usize = 1 << 20;
