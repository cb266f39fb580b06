//! What can be wrong with a limits file: where it is, what was found, what to write instead.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::config::duration::DurationError;
use crate::config::text::TextFault;
use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::id::{Excerpt, UnknownFormat};
use crate::engine::key::NameError;
use crate::engine::limit_error::LimitError;
use crate::engine::registry::RegistryError;

/// The most problems that are kept of one loading.
const KEPT: usize = 100;

/// Characters of a limit's name that a message shows.
const LONGEST_NAME: usize = 100;

/// Limits that cannot be loaded: everything that was found wrong, one line each.
#[derive(Debug)]
pub struct ConfigError {
    problems: Vec<Problem>,
    left_out: usize,
}

impl ConfigError {
    /// The error of a file as a whole.
    pub(super) fn one(file: Arc<str>, line: Option<u32>, fault: Fault) -> ConfigError {
        let problem = Problem { file: Some(file), line, limit: None, fault };
        ConfigError { problems: vec![problem], left_out: 0 }
    }

    /// What was found wrong, in the order of the file; at least one, and no more than a person
    /// would read.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, problem) in self.problems.iter().enumerate() {
            let separator = if place > 0 { "\n" } else { "" };
            write!(f, "{separator}{problem}")?;
        }
        if self.left_out > 0 {
            write!(f, "\nand {} more", self.left_out)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.problems.first().and_then(|problem| std::error::Error::source(&problem.fault))
    }
}

/// One thing wrong in a limits file. Shown as `file:line: limit: what`, less what is not known.
#[derive(Debug)]
pub struct Problem {
    /// The file's path, or what stands for it where a text came from elsewhere; `None` where there
    /// is neither.
    pub file: Option<Arc<str>>,
    /// The line, from 1; `None` where no line is at fault.
    pub line: Option<u32>,
    /// The limit's name; `None` where the fault lies outside any limit.
    pub limit: Option<String>,
    /// What is wrong.
    pub fault: Fault,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            f.write_str(file)?;
            if let Some(line) = self.line {
                write!(f, ":{line}")?;
            }
            f.write_str(": ")?;
        }
        if let Some(limit) = &self.limit {
            match limit.char_indices().nth(LONGEST_NAME) {
                None => write!(f, "{limit}: ")?,
                Some((end, _)) => write!(f, "{}…: ", &limit[..end])?,
            }
        }
        write!(f, "{}", self.fault)
    }
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A file that cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(#[source] io::Error),
    /// A named pipe, which could keep its reader waiting forever.
    #[error("is a named pipe; pass its text to parse instead")]
    Pipe,
    /// A file beyond what is read.
    #[error("a limits file must be at most {most} bytes long")]
    TooLarge {
        /// The longest text that is read.
        most: usize,
    },
    /// Bytes that are no UTF-8.
    #[error("a limits file must be UTF-8")]
    NotUtf8,
    /// A character that does not print.
    #[error("a limits file must not contain control characters, found {found}")]
    ControlCharacter {
        /// What was found.
        found: Excerpt,
    },
    /// No YAML to the reader that knows the spelling.
    #[error("invalid YAML: {found}")]
    Spelling {
        /// What it says.
        found: String,
    },
    /// No YAML to the reader that knows the kinds.
    #[error("invalid YAML: {0}")]
    Kinds(#[source] serde_yaml::Error),
    /// A text that is no limit.
    #[error("{fault}, in {text}")]
    Text {
        /// The text.
        text: Excerpt,
        /// What is wrong with it.
        #[source]
        fault: TextFault,
    },
    /// YAML that two readers take for two different things.
    #[error("YAML parsers disagree on this value; put it in quotes")]
    TwoReadings,
    /// Nothing in the file.
    #[error("the file is empty; write {{}} for no limits")]
    Empty,
    /// A second document.
    #[error("the file must be one YAML document, found a second")]
    SecondDocument,
    /// An anchor or an alias.
    #[error("anchors and aliases are not supported; write the text in full")]
    Alias,
    /// A tag.
    #[error("tags such as !!str are not supported; put the text in quotes")]
    Tag,
    /// A merge key.
    #[error("merge keys (<<) are not supported; write the fields in full")]
    MergeKey,
    /// Lists and mappings in one another, beyond any limits file.
    #[error("lists and mappings must be nested at most {most} deep")]
    TooDeep {
        /// The most that is read.
        most: usize,
    },
    /// Something else than a mapping, a list or a text.
    #[error("{what} must be {expected}, found {found}")]
    NotA {
        /// What should be something else.
        what: &'static str,
        /// What is expected.
        expected: &'static str,
        /// What was given.
        found: String,
    },
    /// The same key twice in one mapping.
    #[error("duplicate key {key}, first on line {first}")]
    KeyTwice {
        /// The key.
        key: Excerpt,
        /// The line of the first.
        first: u32,
    },
    /// A field that there is not.
    #[error("unknown field {field}{}", suggestion(nearest))]
    UnknownField {
        /// What was given.
        field: Excerpt,
        /// What was perhaps meant.
        nearest: Option<&'static str>,
    },
    /// A field that another algorithm has.
    #[error("{field} is not a field of {algorithm}, {}", fields_of(fields))]
    FieldOfOther {
        /// What was given.
        field: &'static str,
        /// The limit's algorithm.
        algorithm: AlgorithmName,
        /// The algorithm's fields.
        fields: &'static [&'static str],
    },
    /// A field that belongs elsewhere.
    #[error("{field} is for {place}")]
    FieldElsewhere {
        /// What was given.
        field: &'static str,
        /// Where it may stand.
        place: &'static str,
    },
    /// Fields that are not there.
    #[error("{} missing; the fields of {algorithm} are {}", missing.join(", "), fields.join(", "))]
    Missing {
        /// The fields.
        missing: Vec<&'static str>,
        /// The limit's algorithm.
        algorithm: AlgorithmName,
        /// The algorithm's fields.
        fields: &'static [&'static str],
    },
    /// Both forms of a leaky bucket.
    #[error(
        "a leaky-bucket has size, drip_rate and drip_size, or max, duration and min_interval, \
         found {one} and {other}"
    )]
    MixedForms {
        /// A field of the one.
        one: &'static str,
        /// A field of the other.
        other: &'static str,
    },
    /// An invalid time.
    #[error("{field}: {error}")]
    Duration {
        /// The parameter.
        field: &'static str,
        /// What is wrong with it.
        #[source]
        error: DurationError,
    },
    /// A word that the field does not take.
    #[error("{field} must be {expected}, found {found}")]
    Word {
        /// The parameter.
        field: &'static str,
        /// What is expected.
        expected: &'static str,
        /// What was given.
        found: Excerpt,
    },
    /// A URL that a header cannot contain.
    #[error(
        "docs must be an address such as https://example.com/limits, without blanks, quotes and \
         angle brackets, found {found}"
    )]
    Docs {
        /// What was given.
        found: Excerpt,
    },
    /// An override's key without an id.
    #[error("an override's key must be a limit's name, a colon and an id, found {found}")]
    KeyWithoutId {
        /// What was given.
        found: Excerpt,
    },
    /// An override without ids.
    #[error("ids must be a list of at least one id, found none")]
    NoIds,
    /// A comment on nothing.
    #[error("an entry with a comment must have an id")]
    NoId,
    /// A name that is no member of the class that was given.
    #[error("{class} has no member of this name{}", suggestion(nearest))]
    NotAMember {
        /// The class.
        class: String,
        /// The member that was perhaps meant.
        nearest: Option<String>,
    },
    /// No id format.
    #[error(transparent)]
    Format(#[from] UnknownFormat),
    /// No name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A limit that cannot be.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A contradiction of another entry.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

fn suggestion(nearest: &Option<impl fmt::Display>) -> String {
    nearest.as_ref().map_or_else(String::new, |nearest| format!("; use {nearest}"))
}

fn fields_of(fields: &[&str]) -> String {
    if fields.is_empty() {
        return "which has no fields".to_owned();
    }
    format!("whose fields are {}", fields.join(", "))
}

/// The problems of one loading, as they are found.
#[derive(Debug, Default)]
pub(super) struct Diagnostics {
    problems: Vec<Problem>,
    left_out: usize,
}

impl Diagnostics {
    pub(super) fn add(&mut self, problem: Problem) {
        if self.problems.len() < KEPT {
            self.problems.push(problem);
        } else {
            self.left_out += 1;
        }
    }

    /// Whether further problems are only counted.
    pub(super) fn is_full(&self) -> bool {
        self.problems.len() == KEPT
    }

    pub(super) fn len(&self) -> usize {
        self.problems.len() + self.left_out
    }

    /// The error, if there is anything wrong; all problems are in one file.
    pub(super) fn finish(&mut self) -> Result<(), ConfigError> {
        if self.problems.is_empty() {
            return Ok(());
        }
        self.problems.sort_by_key(|problem| problem.line);
        Err(ConfigError {
            problems: std::mem::take(&mut self.problems),
            left_out: std::mem::take(&mut self.left_out),
        })
    }
}
