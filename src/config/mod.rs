//! Text to registry: the limits file, the overrides file, and limits as one line of text.
//!
//! LAW: the one reader of files; knows no store, no clock and no limiter.

mod document;
mod duration;
mod error;
mod fields;
mod file;
mod limits;
mod nearest;
mod text;
mod write;
mod yaml;

use std::path::Path;

pub use duration::{DurationError, duration};
pub use error::{ConfigError, Fault, Problem};
pub use text::{TextError, TextFault, limit_text};
pub use write::{overrides_to_yaml, to_yaml};

use document::Loader;
use error::Report;
use file::File;

use crate::engine::id::IdFormat;
use crate::engine::key::LimitName;
use crate::engine::limit::Limit;
use crate::engine::registry::{Builder, Registry, Rule};

/// The names that limits may have, with their numbers, as an enumeration in code gives them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The enumeration, for messages.
    pub class: String,
    /// Each name with its number and what its ids are; `any` leaves that to the files.
    pub members: Vec<(String, u64, IdFormat)>,
}

/// Reads limits from a file, and overrides from a second one.
///
/// With `names`, no limit may have another name, and each of the names is a limit, if only an
/// unlimited one.
///
/// # Errors
/// [`ConfigError`] with everything that is wrong in the first of the files with a fault. Nothing
/// half-loads.
pub fn load(
    defaults: &Path,
    overrides: Option<&Path>,
    names: Option<&Names>,
) -> Result<Registry, ConfigError> {
    let defaults = File::read(defaults)?;
    let overrides = overrides.map(File::read).transpose()?;
    registry(&defaults, overrides.as_ref(), names)
}

/// Reads limits from YAML text, and overrides from a second one.
///
/// In messages `<defaults>` and `<overrides>` stand for their files.
///
/// # Errors
/// As [`load`].
pub fn parse(
    defaults: &str,
    overrides: Option<&str>,
    names: Option<&Names>,
) -> Result<Registry, ConfigError> {
    let defaults = File::of("<defaults>", defaults)?;
    let overrides = overrides.map(|text| File::of("<overrides>", text)).transpose()?;
    registry(&defaults, overrides.as_ref(), names)
}

/// Takes limits for everyone, by name.
///
/// # Errors
/// [`ConfigError`] if a text is no name, or a name is there twice.
pub fn from_limits(
    limits: impl IntoIterator<Item = (String, Limit)>,
) -> Result<Registry, ConfigError> {
    let mut builder = Builder::new();
    let mut report = Report::default();
    for (text, limit) in limits {
        let set = LimitName::new(&text)
            .map_err(Fault::from)
            .and_then(|name| Ok(builder.set_default(&name, None, None, Rule::plain(limit))?));
        if let Err(fault) = set {
            report.add(Problem { file: None, line: None, limit: Some(text), fault });
        }
    }
    report.finish()?;
    Ok(builder.build())
}

fn registry(
    defaults: &File,
    overrides: Option<&File>,
    names: Option<&Names>,
) -> Result<Registry, ConfigError> {
    let mut loader = Loader::new(names)?;
    loader.defaults(defaults)?;
    if let Some(overrides) = overrides {
        loader.overrides(overrides)?;
    }
    Ok(loader.finish())
}
