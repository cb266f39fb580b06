//! Errors in limits files: their location, what was found, and what to write instead.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::config::duration::DurationError;
use crate::config::suggest::suggest;
use crate::config::text::TextFault;
use crate::engine::algorithm::name::{AlgorithmName, UnknownAlgorithm};
use crate::engine::id::{Excerpt, IdFormat, UnknownFormat};
use crate::engine::key::NameError;
use crate::engine::limit_error::LimitError;
use crate::engine::named_enum::listed;
use crate::engine::registry::RegistryError;

/// The maximum number of problems that are reported; further ones are only counted.
const MAX_PROBLEMS: usize = 100;

/// The maximum number of characters of a limit name in a message.
const MAX_NAME_LENGTH: usize = 100;

/// Limits that cannot be loaded. The message has one line per problem.
#[derive(Debug)]
pub struct ConfigError {
    problems: Vec<Problem>,
    left_out: usize,
}

impl ConfigError {
    /// Returns an error with one problem, not about a single limit.
    pub(super) fn one(file: Arc<str>, line: Option<u32>, fault: Fault) -> ConfigError {
        let problem = Problem { file: Some(file), line, limit: None, fault };
        ConfigError { problems: vec![problem], left_out: 0 }
    }

    /// Returns the error for a string that is not valid UTF-8.
    pub fn not_utf8(file: &str) -> ConfigError {
        ConfigError::one(file.into(), None, Fault::NotUtf8)
    }

    /// The first problems in the order of the file, at least one.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let separator = if index > 0 { "\n" } else { "" };
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

/// A problem in a limits file, shown as `file:line: limit: fault` without the unknown parts.
#[derive(Debug)]
pub struct Problem {
    /// The file's path, or a description of another source, if known.
    pub file: Option<Arc<str>>,
    /// The line, from 1, if the problem is on one line.
    pub line: Option<u32>,
    /// The limit's name, if the problem concerns a limit.
    pub limit: Option<String>,
    /// The problem itself.
    pub fault: Fault,
}

impl Problem {
    /// Returns the path of the file; `None` if the text came from elsewhere, such as `<defaults>`.
    pub fn path(&self) -> Option<&str> {
        self.file.as_deref().filter(|file| !(file.starts_with('<') && file.ends_with('>')))
    }
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
            match limit.char_indices().nth(MAX_NAME_LENGTH) {
                // In quotes, to separate the name from the rest of the line.
                None if limit.is_empty() || limit.contains(':') => write!(f, "{limit:?}: ")?,
                None => write!(f, "{limit}: ")?,
                Some((end, _)) => write!(f, "{}…: ", &limit[..end])?,
            }
        }
        write!(f, "{}", self.fault)
    }
}

/// The kinds of problems.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Fault {
    #[error("cannot be read: {0}")]
    Unreadable(#[source] io::Error),
    /// A named pipe, which could block the reader forever.
    #[error("is a named pipe; pass its content to parse instead")]
    Pipe,
    #[error("a limits file must be at most {most} bytes long")]
    TooLarge { most: usize },
    #[error("a limits file must be UTF-8")]
    NotUtf8,
    #[error("a limits file must not contain control characters, found {found}")]
    ControlCharacter { found: Excerpt },
    /// Invalid YAML for the first parser.
    #[error("invalid YAML: {found}")]
    Spelling { found: String },
    /// Invalid YAML for the second parser.
    #[error("invalid YAML: {0}")]
    Kinds(#[source] serde_yaml::Error),
    #[error("{fault}, in {text}")]
    Text {
        text: Excerpt,
        #[source]
        fault: TextFault,
    },
    #[error("YAML parsers disagree on this value; put it in quotes")]
    TwoReadings,
    #[error("the file is empty; write {{}} for no limits")]
    Empty,
    #[error("the file must be one YAML document, found a second")]
    SecondDocument,
    #[error("anchors and aliases are not supported; write the value in full")]
    Alias,
    #[error("tags such as !!str are not supported; put the value in quotes")]
    Tag,
    #[error("merge keys (<<) are not supported; write the fields in full")]
    MergeKey,
    #[error("lists and mappings must be nested at most {most} deep")]
    TooDeep { most: usize },
    #[error("{what} must be {expected}, found {found}")]
    NotA { what: &'static str, expected: &'static str, found: String },
    #[error("duplicate key {key}, first on line {first}")]
    KeyTwice { key: Excerpt, first: u32 },
    #[error("unknown field {field}{}", suggestion(nearest))]
    UnknownField { field: Excerpt, nearest: Option<&'static str> },
    #[error("{field} is not a field of {algorithm}, {}", fields_of(fields))]
    FieldOfOther { field: &'static str, algorithm: AlgorithmName, fields: Vec<&'static str> },
    #[error("{field} is for {place}")]
    FieldElsewhere { field: &'static str, place: &'static str },
    #[error("{} missing; the fields of {algorithm} are {}", missing.join(", "), fields.join(", "))]
    Missing { missing: Vec<&'static str>, algorithm: AlgorithmName, fields: Vec<&'static str> },
    #[error("a {algorithm} has {}, found {one} and {other}", forms_of(*algorithm))]
    MixedForms { one: &'static str, other: &'static str, algorithm: AlgorithmName },
    #[error("{field}: {error}")]
    Duration {
        field: &'static str,
        #[source]
        error: DurationError,
    },
    #[error("{field} must be {expected}, found {found}")]
    Word { field: &'static str, expected: &'static str, found: Excerpt },
    #[error(
        "docs must be an address such as https://example.com/limits, without blanks, quotes and \
         angle brackets, found {found}"
    )]
    Docs { found: Excerpt },
    #[error("an override's key must be a limit's name, a colon and an id, found {found}")]
    KeyWithoutId { found: Excerpt },
    #[error("ids must be a list of at least one id, found none")]
    NoIds,
    /// An override of a limit that is a limit for each tier.
    #[error("the limit has tiers; an override names one of them, as in {first}")]
    TierNotNamed { first: String },
    #[error("an entry with a comment must have an id")]
    NoId,
    /// A name that is not a member of the given enumeration.
    #[error("{class} has no member of this name{}", suggestion(nearest))]
    NotAMember { class: String, nearest: Option<String> },
    #[error("{}{}", .0, nearest(&.0.found, AlgorithmName::ALL.map(AlgorithmName::as_str)))]
    Algorithm(#[from] UnknownAlgorithm),
    #[error("{}{}", .0, nearest(&.0.found, IdFormat::ALL.map(IdFormat::as_str)))]
    Format(#[from] UnknownFormat),
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    Limit(#[from] LimitError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

fn suggestion(nearest: &Option<impl fmt::Display>) -> String {
    nearest.as_ref().map_or_else(String::new, |nearest| format!("; use {nearest}"))
}

/// Returns the fix for a misspelled word.
fn nearest<'w>(found: &Excerpt, words: impl IntoIterator<Item = &'w str>) -> String {
    suggestion(&suggest(found.to_string().trim_matches('"'), words))
}

fn fields_of(fields: &[&str]) -> String {
    if fields.is_empty() {
        return "which has no fields".to_owned();
    }
    format!("whose fields are {}", fields.join(", "))
}

fn forms_of(algorithm: AlgorithmName) -> String {
    let names = algorithm.definition().forms().map(|form| {
        let names: Vec<&str> = form.parameters.iter().map(|parameter| parameter.name).collect();
        listed(&names, "and")
    });
    names.collect::<Vec<_>>().join(", or ")
}

/// Collects the problems of one file.
#[derive(Debug, Default)]
pub(super) struct Diagnostics {
    problems: Vec<Problem>,
    left_out: usize,
}

impl Diagnostics {
    pub(super) fn add(&mut self, problem: Problem) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        } else {
            self.left_out += 1;
        }
    }

    /// Returns whether further problems are only counted.
    pub(super) fn is_full(&self) -> bool {
        self.problems.len() == MAX_PROBLEMS
    }

    pub(super) fn len(&self) -> usize {
        self.problems.len() + self.left_out
    }

    /// Returns the collected problems as an error, if there are any.
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
