//! Loads limits from files and strings into a registry.
//!
//! Only this module reads files. It does not use stores, clocks or limiters.

mod document;
mod duration;
mod error;
mod fields;
mod file;
mod limits;
mod suggest;
mod text;
mod write;
mod yaml;

use std::path::Path;
use std::sync::Arc;

pub use duration::{DurationError, duration};
pub use error::{ConfigError, Fault, Problem};
pub use fields::word;
pub use limits::{docs, is_shadow};
pub use text::{TextError, TextFault, limit_text};
pub use write::{overrides_to_yaml, to_yaml};

use document::Loader;
use error::Diagnostics;
use file::File;

use crate::engine::id::IdFormat;
use crate::engine::key::LimitName;
use crate::engine::limit::Limit;
use crate::engine::registry::{Builder, Origin, Registry, RegistryError, Rule};

/// The names and numbers of limits, from an enumeration in code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The name of the enumeration, for messages.
    pub class: String,
    /// Each name with its number and id format; with `any`, the files determine the format.
    pub members: Vec<(String, u64, IdFormat)>,
}

/// Loads limits from a file, and overrides from a second one.
///
/// With `names`, limits with other names are refused, and names without a limit are unlimited.
///
/// # Errors
/// [`ConfigError`] with all problems of the first file that has any.
pub fn load(
    defaults: &Path,
    overrides: Option<&Path>,
    names: Option<&Names>,
) -> Result<Registry, ConfigError> {
    let defaults = File::read(defaults)?;
    let overrides = overrides.map(File::read).transpose()?;
    registry(&defaults, overrides.as_ref(), names)
}

/// Loads limits from YAML text, and overrides from a second text.
///
/// Messages call them `<defaults>` and `<overrides>`.
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

/// Loads overrides from a file for existing limits. The overrides of `defaults` are dropped.
///
/// # Errors
/// As [`load`].
pub fn load_overrides(defaults: &Registry, overrides: &Path) -> Result<Registry, ConfigError> {
    let mut loader = Loader::of_defaults(defaults);
    loader.overrides(&File::read(overrides)?)?;
    Ok(loader.finish())
}

/// Loads overrides row by row. An invalid row does not affect the others.
#[derive(Debug)]
pub struct Rows {
    builder: Builder,
    file: Arc<str>,
}

impl Rows {
    /// Returns a loader for the limits of `defaults`, whose overrides are dropped.
    pub fn new(defaults: &Registry) -> Rows {
        let mut builder = Builder::of_defaults(defaults);
        builder.close();
        Rows { builder, file: "<rows>".into() }
    }

    /// Adds the row at `index`: the override `rule` for `id` under `name`.
    ///
    /// Its origin is `<rows>` with the number of the row, from 1.
    ///
    /// # Errors
    /// [`RegistryError`] if the name or the id is invalid, or if an earlier row has the same id.
    /// The row is then skipped.
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

    /// Returns the limits with the added rows.
    pub fn finish(self) -> Registry {
        self.builder.build()
    }
}

/// Returns a registry of defaults by name.
///
/// # Errors
/// [`ConfigError`] if a name is invalid or occurs twice.
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
