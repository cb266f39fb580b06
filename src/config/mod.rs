//! Text to registry: the limits file, the overrides file, and limits as one line of text.
//!
//! LAW: the one reader of files; knows no store, no clock and no limiter.

mod document;
mod duration;
mod error;
mod fields;
mod file;
mod limits;
mod routes;
mod suggest;
mod text;
mod write;
mod yaml;

use std::path::Path;
use std::sync::Arc;

pub use duration::{DurationError, duration};
pub use error::{ConfigError, Fault, Problem};
pub use limits::{docs, is_shadow};
pub use routes::{Route, Spend, load_routes};
pub use text::{TextError, TextFault, limit_text};
pub use write::{overrides_to_yaml, to_yaml};

use document::Loader;
use error::Diagnostics;
use file::File;

use crate::engine::id::IdFormat;
use crate::engine::key::LimitName;
use crate::engine::limit::Limit;
use crate::engine::registry::{Builder, Origin, Registry, RegistryError, Rule};

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

/// Reads overrides from a file for limits that there are; `defaults` keeps none of its own.
///
/// # Errors
/// As [`load`].
pub fn load_overrides(defaults: &Registry, overrides: &Path) -> Result<Registry, ConfigError> {
    let mut loader = Loader::of_defaults(defaults);
    loader.overrides(&File::read(overrides)?)?;
    Ok(loader.finish())
}

/// Collects overrides row by row, where an invalid row costs that row only.
#[derive(Debug)]
pub struct Rows {
    builder: Builder,
    file: Arc<str>,
}

impl Rows {
    /// No rows yet, on top of the limits of `defaults` and in place of its overrides.
    pub fn new(defaults: &Registry) -> Rows {
        let mut builder = Builder::of_defaults(defaults);
        builder.close();
        Rows { builder, file: "<rows>".into() }
    }

    /// Adds the row `index`, counted from 0: the override `rule` for `id` under `name`.
    ///
    /// In the registry and in messages its origin is `<rows>` and the number of the row, from 1.
    ///
    /// # Errors
    /// [`RegistryError`] if the name, the id or the combination is refused. The row is left out, and
    /// of two rows for one id the first is kept.
    pub fn add(
        &mut self,
        index: usize,
        name: &str,
        id: &str,
        rule: Rule,
    ) -> Result<(), RegistryError> {
        let line = u32::try_from(index + 1).unwrap_or(u32::MAX);
        let rule = Rule { origin: Some(Origin { file: Arc::clone(&self.file), line }), ..rule };
        self.builder.add_override(&LimitName::new(name)?, id, Some(line), rule)
    }

    /// The limits with the rows that were added.
    pub fn finish(self) -> Registry {
        self.builder.build()
    }
}

/// Takes limits for everyone, by name.
///
/// # Errors
/// [`ConfigError`] if a text is no name, or a name is there twice.
pub fn from_limits(
    limits: impl IntoIterator<Item = (String, Limit)>,
) -> Result<Registry, ConfigError> {
    let mut builder = Builder::new();
    let mut report = Diagnostics::default();
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
