//! Why a line does not parse.

use std::fmt;

/// Signs of a field that a message shows.
const SHOWN: usize = 40;

/// A line that does not parse, and why.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Fault {
    /// The line has another format.
    #[error("does not have the format")]
    Format,
    /// A field that is a number has another text.
    #[error("{field} must be a whole number, found {}", Quoted(.found))]
    NotANumber {
        /// The field.
        field: String,
        /// Its text.
        found: Vec<u8>,
    },
    /// A field that must be there is not, or says nothing.
    #[error("no {field}")]
    Missing {
        /// The field.
        field: String,
    },
    /// A text that is no time.
    #[error("{} is no time", Quoted(.found))]
    Time {
        /// The text.
        found: Vec<u8>,
    },
    /// A time before 1970 or after 2262, which no clock of ours shows.
    #[error("{} is not between 1970 and 2262", Quoted(.found))]
    Beyond {
        /// The text.
        found: Vec<u8>,
    },
    /// A line that is no JSON object.
    #[error("no JSON object: {}", Cut(.problem))]
    Json {
        /// What the JSON reader says.
        problem: String,
    },
    /// A row with more or fewer columns than the header.
    #[error("{found} columns, expected {expected}")]
    Columns {
        /// How many the row has.
        found: usize,
        /// How many the header has.
        expected: usize,
    },
    /// A line whose time is too much earlier than that of a line before it.
    #[error("{} s earlier than a line before it", .earlier / 1_000_000_000)]
    Late {
        /// How much, in nanoseconds.
        earlier: i64,
    },
    /// A line beyond the longest.
    #[error("longer than {most} bytes")]
    TooLong {
        /// The longest.
        most: usize,
    },
}

/// What another's message says, which may have a whole line in it: cut in the middle, as it says
/// what it expected at its end.
struct Cut<'a>(&'a str);

impl fmt::Display for Cut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0;
        if text.len() <= 4 * SHOWN {
            return f.write_str(text);
        }
        let begin = text.floor_char_boundary(2 * SHOWN);
        let end = text.ceil_char_boundary(text.len() - 2 * SHOWN);
        write!(f, "{}…{}", &text[..begin], &text[end..])
    }
}

/// Bytes as a message shows them: quoted, cut, and without signs that a terminal obeys.
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
