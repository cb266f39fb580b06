//! Builds registries, and refuses contradictory entries.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::engine::id::{Excerpt, IdError, IdFormat};
use crate::engine::key::{LimitName, NameError};
use crate::engine::registry::Registry;
use crate::engine::registry::entry::Entry;
use crate::engine::registry::overrides::Overrides;
use crate::engine::registry::rule::{Origin, Rule, Scope};

/// An entry that conflicts with the registry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum RegistryError {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    Id(#[from] IdError),
    #[error("no limit has this name")]
    UnknownName,
    #[error("duplicate limit name{}", at(first))]
    NameTwice { first: Option<Origin> },
    #[error(
        "it has no default any more, so ids without an override would be unlimited; add one, or \
         {{algorithm: unlimited}}"
    )]
    DefaultRemoved,
    #[error("number {number} is already the number of {other}")]
    NumberTwice { number: u64, other: LimitName },
    #[error("the number of this limit is {known}, found {found}")]
    NumberDiffers { found: u64, known: u64 },
    #[error("the id format of this limit is {known}, found {found}")]
    FormatDiffers { found: IdFormat, known: IdFormat },
    #[error("duplicate override for {id}{}", at(first))]
    OverrideTwice {
        /// The id as given.
        id: Excerpt,
        first: Option<Origin>,
    },
}

fn at(first: &Option<Origin>) -> String {
    match first {
        Some(Origin { file, line }) => format!("; the first is at {file}:{line}"),
        None => String::new(),
    }
}

/// Builder of a registry.
///
/// Each entry must agree with the earlier ones of the same limit. Entries can be added in any
/// order, but ids are parsed in the format that is known at that point.
#[derive(Debug, Default)]
pub struct Builder {
    drafts: Vec<Draft>,
    by_name: HashMap<LimitName, usize>,
    numbers: HashMap<u64, LimitName>,
    closed: bool,
}

#[derive(Debug)]
struct Draft {
    name: LimitName,
    number: Option<u64>,
    id_format: Option<IdFormat>,
    default: Rule,
    overrides: Option<Overrides>,
}

impl Builder {
    /// Returns an empty builder.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Returns a builder with the limits of a registry and their defaults, without its overrides.
    pub fn of_defaults(registry: &Registry) -> Builder {
        let mut builder = Builder::new();
        for (index, entry) in registry.entries().iter().enumerate() {
            builder.drafts.push(Draft {
                name: entry.name().clone(),
                number: entry.number(),
                id_format: Some(entry.id_format()),
                default: entry.default_rule().clone(),
                overrides: None,
            });
            builder.by_name.insert(entry.name().clone(), index);
            if let Some(number) = entry.number() {
                builder.numbers.insert(number, entry.name().clone());
            }
        }
        builder
    }

    /// Declares a limit, and its number and id format if known.
    ///
    /// # Errors
    /// [`RegistryError`] if the names were closed without this one, if another limit has the
    /// number, or if the number or the format differ from an earlier declaration.
    pub fn declare(
        &mut self,
        name: &LimitName,
        number: Option<u64>,
        id_format: Option<IdFormat>,
    ) -> Result<(), RegistryError> {
        self.declared(name, number, id_format).map(|_| ())
    }

    /// Refuses further names.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Sets the default of a limit.
    ///
    /// # Errors
    /// As [`Builder::declare`]; also if the limit already has a default.
    pub fn set_default(
        &mut self,
        name: &LimitName,
        number: Option<u64>,
        id_format: Option<IdFormat>,
        rule: Rule,
    ) -> Result<(), RegistryError> {
        let draft = self.declared(name, number, id_format)?;
        if draft.default.scope == Scope::Default {
            return Err(RegistryError::NameTwice { first: draft.default.origin.clone() });
        }
        draft.default = Rule { scope: Scope::Default, ..rule };
        Ok(())
    }

    /// Adds an override for the id, account or network `id`, which is on line `line` of the file.
    ///
    /// # Errors
    /// As [`Builder::declare`]; also if `id` is not valid in the limit's format or already has an
    /// override.
    pub fn add_override(
        &mut self,
        name: &LimitName,
        id: &str,
        line: Option<u32>,
        rule: Rule,
    ) -> Result<(), RegistryError> {
        let draft = self.declared(name, None, None)?;
        let target = draft.id_format.unwrap_or_default().target(id)?;
        let overrides = draft.overrides.get_or_insert_default();
        overrides.insert(target, id.into(), line, rule).map_err(|former| {
            let first = former
                .rule
                .origin
                .clone()
                .map(|origin| Origin { line: former.line.unwrap_or(origin.line), ..origin });
            RegistryError::OverrideTwice { id: Excerpt::new(id), first }
        })
    }

    /// Returns the registry.
    pub fn build(self) -> Registry {
        let entries = self.drafts.into_iter().map(|draft| {
            let id_format = draft.id_format.unwrap_or_default();
            Arc::new(Entry::new(
                draft.name,
                draft.number,
                id_format,
                draft.default,
                draft.overrides,
            ))
        });
        Registry::new(entries.collect())
    }

    fn declared(
        &mut self,
        name: &LimitName,
        number: Option<u64>,
        id_format: Option<IdFormat>,
    ) -> Result<&mut Draft, RegistryError> {
        let index = self.by_name.get(name).copied();
        if index.is_none() && self.closed {
            return Err(RegistryError::UnknownName);
        }
        if let Some(number) = number
            && let Some(other) = self.numbers.get(&number).filter(|&other| other != name)
        {
            return Err(RegistryError::NumberTwice { number, other: other.clone() });
        }
        let index = index.unwrap_or_else(|| {
            self.drafts.push(Draft {
                name: name.clone(),
                number: None,
                id_format: None,
                default: Rule::none(),
                overrides: None,
            });
            self.by_name.insert(name.clone(), self.drafts.len() - 1);
            self.drafts.len() - 1
        });
        let draft = &mut self.drafts[index];
        if let (Some(known), Some(found)) = (draft.number, number)
            && known != found
        {
            return Err(RegistryError::NumberDiffers { found, known });
        }
        if let (Some(known), Some(found)) = (draft.id_format, id_format)
            && known != found
        {
            return Err(RegistryError::FormatDiffers { found, known });
        }
        if let Some(number) = number {
            draft.number = Some(number);
            self.numbers.insert(number, name.clone());
        }
        draft.id_format = draft.id_format.or(id_format);
        Ok(draft)
    }
}
