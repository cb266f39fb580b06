//! Loads the defaults file and the overrides file.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::config::Names;
use crate::config::error::{ConfigError, Diagnostics, Fault, Problem};
use crate::config::fields::{self, pairs, unknown};
use crate::config::file::File;
use crate::config::limits::{self, FaultSink, Inherited, Place};
use crate::config::suggest::suggest;
use crate::config::yaml::{self, Node, ScalarKind, Value};
use crate::engine::id::{Excerpt, IdFormat};
use crate::engine::key::LimitName;
use crate::engine::registry::{Builder, Registry, RegistryError, Rule};

/// Builds a registry and collects the problems found on the way.
pub(super) struct Loader<'n> {
    names: Option<&'n Names>,
    builder: Builder,
    report: Diagnostics,
    inherited: HashMap<LimitName, Inherited>,
    /// The limits with tiers, with the name of the first one.
    tiered: HashMap<String, String>,
}

/// An override as parsed: a limit and the ids it applies to.
struct Item<'n> {
    name: LimitName,
    line: u32,
    rule: Rule,
    id_format: Option<(IdFormat, u32)>,
    ids: Vec<WrittenId<'n>>,
}

impl<'n> Loader<'n> {
    /// Returns a loader for the names of an enumeration, or for any names.
    pub(super) fn new(names: Option<&'n Names>) -> Result<Loader<'n>, ConfigError> {
        let mut loader = Loader {
            names,
            builder: Builder::new(),
            report: Diagnostics::default(),
            inherited: HashMap::new(),
            tiered: HashMap::new(),
        };
        for (name, number, id_format) in names.iter().flat_map(|names| &names.members) {
            let id_format = Some(*id_format).filter(|&format| format != IdFormat::Any);
            let declared = LimitName::new(name)
                .map_err(Fault::from)
                .and_then(|name| Ok(loader.builder.declare(&name, Some(*number), id_format)?));
            if let Err(fault) = declared {
                let limit = Some(name.clone());
                loader.report.add(Problem { file: None, line: None, limit, fault });
            }
        }
        if names.is_some() {
            loader.builder.close();
        }
        loader.report.finish()?;
        Ok(loader)
    }

    /// Returns a loader of overrides for the limits of a registry.
    pub(super) fn of_defaults(registry: &Registry) -> Loader<'static> {
        let inherited =
            registry.entries().iter().filter(|entry| entry.has_default()).map(|entry| {
                let rule = entry.default_rule().clone();
                (entry.name().clone(), Inherited { algorithm: rule.limit.algorithm(), rule })
            });
        Loader {
            names: None,
            inherited: inherited.collect(),
            tiered: HashMap::new(),
            builder: Builder::of_defaults(registry),
            report: Diagnostics::default(),
        }
    }

    /// Loads the defaults.
    pub(super) fn defaults(&mut self, file: &File) -> Result<(), ConfigError> {
        if let Some(root) = self.root(file) {
            match &root.value {
                Value::Map(map) => {
                    for (text, line, node) in self.pairs(file, map) {
                        self.default(file, text, line, node);
                    }
                }
                _ => {
                    let expected = "a mapping of names to limits";
                    self.sink(file, "").refuse_kind("a limits file", expected, &root);
                }
            }
        }
        self.report.finish()
    }

    fn default(&mut self, file: &File, text: &str, line: u32, node: &Node<'_>) {
        match limits::tiers(node) {
            Some(tiers) => self.tiers(file, text, line, node, tiers),
            None => self.one_default(file, text, line, node, None, None),
        }
    }

    /// Loads the tiers of a limit. Each is a separate limit, named `Name_tier`.
    fn tiers(&mut self, file: &File, text: &str, line: u32, node: &Node<'_>, tiers: &Node<'_>) {
        let Value::Map(map) = &tiers.value else {
            let expected = "a mapping of tiers to limits";
            return self.sink(file, text).refuse_kind("tiers", expected, tiers);
        };
        let common = limits::read_common(node, line, &mut self.sink(file, text));
        let Some((inherited, id_format)) = common else { return };
        for (tier, line, node) in self.pairs(file, map) {
            let name = format!("{text}_{tier}");
            self.tiered.entry(text.to_owned()).or_insert_with(|| name.clone());
            self.one_default(file, &name, line, node, Some(&inherited), id_format);
        }
    }

    fn one_default(
        &mut self,
        file: &File,
        text: &str,
        line: u32,
        node: &Node<'_>,
        common: Option<&Inherited>,
        id_format: Option<(IdFormat, u32)>,
    ) {
        let Some(name) = self.name(file, text, line) else { return };
        let mut sink = self.sink(file, text);
        let Some(read) = limits::read(node, line, Place::Default, common, &mut sink) else {
            return;
        };
        let inherited = Inherited { algorithm: read.algorithm, rule: read.rule.clone() };
        let (number, number_line) = read.number.unzip();
        let (format, format_line) = read.id_format.or(id_format).unzip();
        if let Err(error) = self.builder.set_default(&name, number, format, read.rule) {
            let at = match error {
                RegistryError::FormatDiffers { .. } => format_line,
                _ => number_line,
            };
            return self.refuse(file, &name, at.unwrap_or(line), error);
        }
        self.inherited.insert(name, inherited);
    }

    /// Parses a limit name; returns `None` if it is invalid.
    fn name(&mut self, file: &File, text: &str, line: u32) -> Option<LimitName> {
        match LimitName::new(text) {
            Ok(name) => match self.builder.declare(&name, None, None) {
                Ok(()) => Some(name),
                Err(error) => {
                    self.refuse(file, &name, line, error);
                    None
                }
            },
            Err(error) => {
                self.sink(file, "").refuse(line, error);
                None
            }
        }
    }

    /// Loads the overrides, after the defaults.
    pub(super) fn overrides(&mut self, file: &File) -> Result<(), ConfigError> {
        if let Some(root) = self.root(file) {
            let items = match &root.value {
                Value::Map(map) => self.keyed(file, map),
                Value::List(list) => self.listed(file, list),
                Value::Scalar(..) => {
                    let expected = "a list or a mapping";
                    self.sink(file, "").refuse_kind("an overrides file", expected, &root);
                    Vec::new()
                }
            };
            self.add(file, items);
        }
        self.report.finish()
    }

    /// Loads the oldest layout, a mapping with keys `Name:id`.
    fn keyed<'d>(&mut self, file: &File, map: &'d [(Node<'_>, Node<'_>)]) -> Vec<Item<'d>> {
        let pairs = self.pairs(file, map);
        let read = |(key, line, node): (&'d str, u32, &'d Node<'_>)| {
            let Some((text, id)) = key.split_once(':') else {
                let fault = Fault::KeyWithoutId { found: Excerpt::new(key) };
                self.sink(file, "").refuse(line, fault);
                return None;
            };
            let mut item = self.item(file, text, line, node, Place::UnderKey)?;
            item.ids.push((id, line, None));
            Some(item)
        };
        pairs.into_iter().filter_map(read).collect()
    }

    /// Loads the later layouts, a list of `Name: {…, ids: […]}`.
    fn listed<'d>(&mut self, file: &File, list: &'d [Node<'_>]) -> Vec<Item<'d>> {
        let mut items = Vec::new();
        for node in list {
            let Value::Map(map) = &node.value else {
                let expected = "a mapping of names to limits";
                self.sink(file, "").refuse_kind("an entry of the list", expected, node);
                continue;
            };
            for (text, line, node) in self.pairs(file, map) {
                items.extend(self.item(file, text, line, node, Place::InList));
            }
        }
        items
    }

    fn item<'d>(
        &mut self,
        file: &File,
        text: &str,
        line: u32,
        node: &'d Node<'_>,
        place: Place,
    ) -> Option<Item<'d>> {
        if let Some(first) = self.tiered.get(text).cloned() {
            self.sink(file, text).refuse(line, Fault::TierNotNamed { first });
            return None;
        }
        let name = self.name(file, text, line)?;
        let mut sink = FaultSink { report: &mut self.report, file: &file.name, limit: text };
        let inherited = self.inherited.get(&name);
        let read = limits::read(node, line, place, inherited, &mut sink)?;
        let ids = match (place, read.ids) {
            (Place::InList, Some(node)) => ids(node, &mut sink)?,
            (Place::InList, None) => {
                sink.refuse(line, Fault::NoIds);
                return None;
            }
            _ => Vec::new(),
        };
        Some(Item { name, line, rule: read.rule, id_format: read.id_format, ids })
    }

    fn add(&mut self, file: &File, items: Vec<Item<'_>>) {
        // Declare all formats before parsing ids, because a later entry of the limit may declare
        // its format. If two formats differ, no id can be parsed.
        let before = self.report.len();
        for item in &items {
            let (format, line) = item.id_format.unzip();
            if let Err(error) = self.builder.declare(&item.name, None, format) {
                self.refuse(file, &item.name, line.unwrap_or(item.line), error);
            }
        }
        if self.report.len() > before {
            return;
        }
        for item in items {
            for (id, line, comment) in item.ids {
                let rule = Rule { comment, ..item.rule.clone() };
                if let Err(error) = self.builder.add_override(&item.name, id, Some(line), rule) {
                    self.refuse(file, &item.name, line, error);
                }
            }
        }
    }

    /// Returns the registry.
    pub(super) fn finish(self) -> Registry {
        self.builder.build()
    }

    fn root<'d>(&mut self, file: &'d File) -> Option<Node<'d>> {
        let refusal = match yaml::read(&file.text) {
            Ok(root) if matches!(root.value, Value::Scalar(ScalarKind::Nothing, _)) => {
                (None, Fault::Empty)
            }
            Ok(root) => return Some(root),
            Err(refusal) => refusal,
        };
        let (line, fault) = refusal;
        self.sink(file, "").refuse_at(line, fault);
        None
    }

    fn sink<'r>(&'r mut self, file: &'r File, limit: &'r str) -> FaultSink<'r> {
        FaultSink { report: &mut self.report, file: &file.name, limit }
    }

    /// Returns the pairs of a mapping of names.
    fn pairs<'d, 't>(
        &mut self,
        file: &File,
        map: &'d [(Node<'t>, Node<'t>)],
    ) -> Vec<(&'d str, u32, &'d Node<'t>)> {
        pairs(map, |line, key, fault| self.sink(file, key).refuse(line, fault))
    }

    fn refuse(&mut self, file: &File, name: &LimitName, line: u32, error: RegistryError) {
        let fault = match (error, self.names) {
            (RegistryError::UnknownName, Some(names)) => {
                let words = names.members.iter().map(|(name, ..)| name.as_str());
                let nearest = suggest(name.as_str(), words).map(str::to_owned);
                Fault::NotAMember { class: names.class.clone(), nearest }
            }
            (error, _) => Fault::Registry(error),
        };
        self.sink(file, name.as_str()).refuse(line, fault);
    }
}

/// An id, its line, and its comment.
type WrittenId<'n> = (&'n str, u32, Option<Arc<str>>);

/// Returns the ids of an override in a list, with their lines and comments.
fn ids<'d>(node: &'d Node<'_>, sink: &mut FaultSink<'_>) -> Option<Vec<WrittenId<'d>>> {
    let Value::List(list) = &node.value else {
        sink.refuse_kind("ids", "a list", node);
        return None;
    };
    if list.is_empty() {
        sink.refuse(node.line, Fault::NoIds);
        return None;
    }
    let mut ids = Vec::with_capacity(list.len());
    for node in list {
        match &node.value {
            Value::Map(map) => ids.extend(commented(node.line, map, sink)),
            _ => match fields::id(node) {
                Ok(id) => ids.push((id, node.line, None)),
                Err(fault) => sink.refuse(node.line, fault),
            },
        }
    }
    Some(ids)
}

/// Returns an id with its comment.
fn commented<'d>(
    line: u32,
    map: &'d [(Node<'_>, Node<'_>)],
    sink: &mut FaultSink<'_>,
) -> Option<WrittenId<'d>> {
    let (mut id, mut comment) = (None, None);
    for (key, line, node) in pairs(map, |line, _, fault| sink.refuse(line, fault)) {
        let read = match key {
            "id" => fields::id(node).map(|text| id = Some((text, node.line))),
            "comment" => fields::text("comment", node).map(|text| comment = Some(text.into())),
            _ => Err(unknown(key, &["id", "comment"])),
        };
        if let Err(fault) = read {
            sink.refuse(line, fault);
            return None;
        }
    }
    match id {
        Some((id, line)) => Some((id, line, comment)),
        None => {
            sink.refuse(line, Fault::NoId);
            None
        }
    }
}
