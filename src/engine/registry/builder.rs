//! Making a registry, entry by entry, so that what contradicts itself is never made.

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

/// A registry in the making.
///
/// Everything that is said about a limit must agree with what was said before; the order is free,
/// but that an id is read in the format that is known when it comes.
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
    /// A registry with nothing in it yet.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// A registry with the limits of another one and their defaults, without its overrides.
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

    /// Declares a limit of this name, and what its number and id format are, where that
    /// is known.
    ///
    /// # Errors
    /// [`RegistryError`] if the names were closed without this one, the number is another
    /// limit's, or number or format contradict what was said of this limit before.
    pub fn declare(
        &mut self,
        name: &LimitName,
        number: Option<u64>,
        id_format: Option<IdFormat>,
    ) -> Result<(), RegistryError> {
        self.declared(name, number, id_format).map(|_| ())
    }

    /// Closes the set of names.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Sets the limit for everyone under a name.
    ///
    /// # Errors
    /// As [`Builder::declare`]; also if the name has a default already.
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

    /// Adds an override under a name, for the id, account or network that `id` spells, written on
    /// `line`.
    ///
    /// # Errors
    /// As [`Builder::declare`]; also if `id` does not fit the limit's format, or has an override
    /// already.
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

    /// The registry.
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
        let place = self.by_name.get(name).copied();
        if place.is_none() && self.closed {
            return Err(RegistryError::UnknownName);
        }
        if let Some(number) = number
            && let Some(other) = self.numbers.get(&number).filter(|&other| other != name)
        {
            return Err(RegistryError::NumberTwice { number, other: other.clone() });
        }
        let place = place.unwrap_or_else(|| {
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
        let draft = &mut self.drafts[place];
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
