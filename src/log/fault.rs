//! Errors of log lines.

use std::fmt;

/// The number of bytes of a field that a message shows.
const SHOWN: usize = 40;

/// The reason why a line cannot be parsed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LineFault {
    /// The line does not have the format.
    #[error("does not have the format")]
    Format,
    /// The cost is not a number.
    #[error("cost must be a whole number, found {}", Quoted(.found))]
    Cost {
        /// The text.
        found: Vec<u8>,
    },
    /// The duration is not a number, or is longer than a hundred days.
    #[error("duration must be a number below a hundred days, found {}; is its unit right?", Quoted(.found))]
    Duration {
        /// The text.
        found: Vec<u8>,
    },
    /// The client is not an address, as those of other lines are.
    #[error("the client must be an address, found {}", Quoted(.found))]
    Client {
        /// The text.
        found: Vec<u8>,
    },
    /// A required field is missing or empty.
    #[error("no {field}")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// The time is not valid.
    #[error("{} is not a time", Quoted(.found))]
    Time {
        /// The text.
        found: Vec<u8>,
    },
    /// The time is before 1970 or after 2262, which timestamps cannot represent.
    #[error("{} is not between 1970 and 2262", Quoted(.found))]
    Beyond {
        /// The text.
        found: Vec<u8>,
    },
    /// The line is not a JSON object.
    #[error("not a JSON object: {problem}")]
    Json {
        /// The error of the JSON parser.
        problem: String,
    },
    /// The line is too long.
    #[error("longer than {max} bytes")]
    TooLong {
        /// The maximum length.
        max: usize,
    },
}

/// Bytes for an error message: quoted, truncated, and without control characters.
struct Quoted<'a>(&'a [u8]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = &self.0[..self.0.len().min(SHOWN)];
        let more = if cut.len() < self.0.len() { "…" } else { "" };
        write!(
            f,
            "'{}{more}'",
            cut.escape_ascii().to_string().replace("\\\"", "\"").replace("\\'", "'")
        )
    }
}
