//! Builds a limit from its fields.

use std::sync::Arc;

use crate::config::error::{Diagnostics, Fault, Problem};
use crate::config::fields::{self, not_a, pairs, unknown};
use crate::config::text::limit_text;
use crate::config::yaml::{Node, ScalarKind, Value};
use crate::engine::algorithm::Definition;
use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::algorithm::parameter::LimitForm;
use crate::engine::id::{Excerpt, IdFormat};
use crate::engine::limit::Limit;
use crate::engine::limit_error::LimitError;
use crate::engine::registry::{Origin, Rule};

/// Returns the names of an algorithm's parameters, in all forms.
fn parameters(algorithm: AlgorithmName) -> Vec<&'static str> {
    let forms = algorithm.definition().forms();
    forms.flat_map(|form| form.parameters).map(|parameter| parameter.name).collect()
}

/// The fields that every limit may have.
const GENERAL: [&str; 6] = ["algorithm", "id_format", "id", "mode", "description", "docs"];

/// Where a limit is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the defaults.
    Default,
    /// Under a key `Name:id`.
    UnderKey,
    /// In a list, with its ids.
    InList,
}

/// The values that an override inherits from its default.
#[derive(Clone)]
pub(super) struct Inherited {
    pub algorithm: AlgorithmName,
    pub rule: Rule,
}

/// A limit as parsed.
pub(super) struct Read<'n, 't> {
    pub algorithm: AlgorithmName,
    pub rule: Rule,
    pub id_format: Option<(IdFormat, u32)>,
    pub number: Option<(u64, u32)>,
    pub ids: Option<&'n Node<'t>>,
}

/// Receives the faults of one limit.
pub(super) struct FaultSink<'r> {
    pub report: &'r mut Diagnostics,
    pub file: &'r Arc<str>,
    pub limit: &'r str,
}

impl FaultSink<'_> {
    pub(super) fn refuse(&mut self, line: u32, fault: impl Into<Fault>) {
        self.refuse_at(Some(line), fault);
    }

    pub(super) fn refuse_at(&mut self, line: Option<u32>, fault: impl Into<Fault>) {
        self.report.add(Problem {
            file: Some(Arc::clone(self.file)),
            line,
            limit: Some(self.limit.to_owned()).filter(|limit| !limit.is_empty()),
            fault: fault.into(),
        });
    }

    /// Refuses a value of another kind than the expected one.
    pub(super) fn refuse_kind(
        &mut self,
        what: &'static str,
        expected: &'static str,
        found: &Node<'_>,
    ) {
        self.refuse(found.line, not_a(what, expected, found));
    }

    fn accept<T, E: Into<Fault>>(&mut self, line: u32, result: Result<T, E>) -> Option<T> {
        result.map_err(|fault| self.refuse(line, fault)).ok()
    }
}

/// Parses the limit whose name is on `line`; returns `None` if it has a fault.
pub(super) fn read<'n, 't>(
    node: &'n Node<'t>,
    line: u32,
    place: Place,
    inherited: Option<&Inherited>,
    sink: &mut FaultSink<'_>,
) -> Option<Read<'n, 't>> {
    let map = match &node.value {
        Value::Map(map) => map,
        Value::Scalar(ScalarKind::Text, text) => return read_text(text, line, inherited, sink),
        _ => {
            sink.refuse_kind(
                "a limit",
                "a mapping of its fields or a rate string such as 100/minute",
                node,
            );
            return None;
        }
    };
    let before = sink.report.len();
    let mut reader = LimitReader::new(map, line, sink);
    let algorithm = reader.algorithm(inherited)?;
    reader.refuse_others(algorithm, place);
    let limit = reader.limit(algorithm);
    reader.refuse_missing(algorithm);
    let id_format = reader.id_format();
    let number = reader.number();
    let inherited = inherited.map(|inherited| &inherited.rule);
    let shadow = reader.shadow().or(inherited.map(|rule| rule.shadow));
    let description = reader.text("description").map(Arc::from);
    let docs = reader.parsed("docs", docs).map(|(docs, _)| docs);
    let rule = Rule {
        shadow: shadow.unwrap_or(false),
        description: description.or_else(|| inherited?.description.clone()),
        docs: docs.or_else(|| inherited?.docs.clone()),
        origin: Some(Origin { file: Arc::clone(reader.sink.file), line }),
        ..Rule::plain(limit?)
    };
    let ids = reader.get("ids").map(|(_, node)| node);
    let is_whole = reader.sink.report.len() == before;
    is_whole.then_some(Read { algorithm, rule, id_format, number, ids })
}

/// Returns the mapping of the tiers of a limit, if it has any.
pub(super) fn tiers<'n, 't>(node: &'n Node<'t>) -> Option<&'n Node<'t>> {
    let Value::Map(map) = &node.value else { return None };
    let is_tiers = |node: &Node<'_>| matches!(&node.value, Value::Scalar(ScalarKind::Text, text) if text == "tiers");
    map.iter().find_map(|(key, value)| is_tiers(key).then_some(value))
}

/// Parses the fields that all tiers of a limit share, and their id format.
pub(super) fn read_common(
    node: &Node<'_>,
    line: u32,
    sink: &mut FaultSink<'_>,
) -> Option<(Inherited, Option<(IdFormat, u32)>)> {
    let Value::Map(map) = &node.value else { return None };
    let before = sink.report.len();
    let mut reader = LimitReader::new(map, line, sink);
    let known = ["tiers", "id_format", "id", "mode", "description", "docs"];
    for &(field, line, _) in &reader.pairs {
        if !known.contains(&field) {
            reader.sink.refuse(line, unknown(field, &known));
        }
    }
    let id_format = reader.id_format();
    let rule = Rule {
        shadow: reader.shadow().unwrap_or(false),
        description: reader.text("description").map(Arc::from),
        docs: reader.parsed("docs", docs).map(|(docs, _)| docs),
        ..Rule::plain(Limit::Unlimited)
    };
    let inherited = Inherited { algorithm: AlgorithmName::Unlimited, rule };
    (reader.sink.report.len() == before).then_some((inherited, id_format))
}

/// Parses a limit that is one text, such as `100/minute, burst 20`.
fn read_text<'n, 't>(
    text: &str,
    line: u32,
    inherited: Option<&Inherited>,
    sink: &mut FaultSink<'_>,
) -> Option<Read<'n, 't>> {
    let limit = limit_text(text)
        .map_err(|error| Fault::Text { text: Excerpt::new(text), fault: error.fault });
    let limit = sink.accept(line, limit)?;
    let plain = Rule::plain(limit);
    let rule = inherited.map_or(plain, |inherited| Rule { limit, ..inherited.rule.clone() });
    let origin = Some(Origin { file: Arc::clone(sink.file), line });
    let rule = Rule { origin, ..rule };
    Some(Read { algorithm: limit.algorithm(), rule, id_format: None, number: None, ids: None })
}

struct LimitReader<'n, 't, 's, 'r> {
    pairs: Vec<(&'n str, u32, &'n Node<'t>)>,
    /// The line of the limit's name.
    line: u32,
    /// Whether a field was refused. Another one may then be missing only because of a typo.
    slipped: bool,
    missing: Vec<&'static str>,
    sink: &'s mut FaultSink<'r>,
}

impl<'n, 't, 's, 'r> LimitReader<'n, 't, 's, 'r> {
    fn new(map: &'n [(Node<'t>, Node<'t>)], line: u32, sink: &'s mut FaultSink<'r>) -> Self {
        let before = sink.report.len();
        let pairs = pairs(map, |line, _, fault| sink.refuse(line, fault));
        let slipped = sink.report.len() > before;
        LimitReader { pairs, line, slipped, missing: Vec::new(), sink }
    }

    fn get(&self, field: &str) -> Option<(u32, &'n Node<'t>)> {
        let &(_, line, node) = self.pairs.iter().find(|(other, ..)| *other == field)?;
        Some((line, node))
    }

    fn has(&self, field: &str) -> bool {
        self.get(field).is_some()
    }

    /// Returns the value of a field. The outer `None` means a fault, the inner one a missing field.
    fn optional<T>(
        &mut self,
        field: &'static str,
        read: impl Fn(&'static str, &'n Node<'t>) -> Result<T, Fault>,
    ) -> Option<Option<T>> {
        match self.get(field) {
            None => Some(None),
            Some((line, node)) => self.sink.accept(line, read(field, node)).map(Some),
        }
    }

    fn refuse_missing(&mut self, algorithm: AlgorithmName) {
        if !self.missing.is_empty() && !self.slipped {
            let missing = std::mem::take(&mut self.missing);
            let fields = parameters(algorithm);
            self.sink.refuse(self.line, Fault::Missing { missing, algorithm, fields });
        }
    }

    fn text(&mut self, field: &'static str) -> Option<&'n str> {
        self.optional(field, fields::text).flatten()
    }

    fn parsed<T, E: Into<Fault>>(
        &mut self,
        field: &'static str,
        parse: impl Fn(&'n str) -> Result<T, E>,
    ) -> Option<(T, u32)> {
        let (line, _) = self.get(field)?;
        let text = self.text(field)?;
        self.sink.accept(line, parse(text)).map(|value| (value, line))
    }

    /// Parses the format of ids; `id` is its name in the files of the certificate authority.
    fn id_format(&mut self) -> Option<(IdFormat, u32)> {
        if let (Some((line, _)), Some((first, _))) = (self.get("id"), self.get("id_format")) {
            self.sink.refuse(line, Fault::KeyTwice { key: Excerpt::new("id_format"), first });
        }
        let field = if self.has("id_format") { "id_format" } else { "id" };
        self.parsed(field, |text| text.parse::<IdFormat>())
    }

    fn algorithm(&mut self, inherited: Option<&Inherited>) -> Option<AlgorithmName> {
        if self.has("algorithm") {
            let named = self.parsed("algorithm", |text| text.parse::<AlgorithmName>());
            return named.map(|(name, _)| name);
        }
        // An unlimited default has no algorithm to inherit.
        let inherited = inherited.map(|inherited| inherited.algorithm);
        let inherited = inherited.filter(|&algorithm| algorithm != AlgorithmName::Unlimited);
        Some(inherited.unwrap_or(AlgorithmName::TokenBucket))
    }

    /// Refuses fields that this algorithm does not have in this place.
    fn refuse_others(&mut self, algorithm: AlgorithmName, place: Place) {
        let own = parameters(algorithm);
        let here = match place {
            Place::Default => Some("number"),
            Place::InList => Some("ids"),
            Place::UnderKey => None,
        };
        let known: Vec<&'static str> = own.into_iter().chain(GENERAL).chain(here).collect();
        for &(field, line, _) in &self.pairs {
            if known.contains(&field) {
                continue;
            }
            self.slipped = true;
            // The value is not needed to describe the fault.
            let guessed = if self.sink.report.is_full() { &[][..] } else { &known };
            let fault = elsewhere(field, algorithm).unwrap_or_else(|| unknown(field, guessed));
            self.sink.refuse(line, fault);
        }
    }

    fn number(&mut self) -> Option<(u64, u32)> {
        let (line, _) = self.get("number")?;
        let number = self.optional("number", fields::whole).flatten()?;
        let negative = LimitError::TooSmall { field: "number", least: 0, found: number };
        let number = self.sink.accept(line, u64::try_from(number).map_err(|_| negative))?;
        Some((number, line))
    }

    fn shadow(&mut self) -> Option<bool> {
        self.parsed("mode", is_shadow).map(|(shadow, _)| shadow)
    }

    /// Reads the parameters, in the form in which they are written.
    fn limit(&mut self, algorithm: AlgorithmName) -> Option<Limit> {
        let Definition { form, older, .. } = algorithm.definition();
        let first =
            |form: &'static LimitForm| form.parameters.iter().find(|one| self.has(one.name));
        let form = match (first(form), older.as_ref().and_then(first)) {
            (Some(one), Some(other)) => {
                let (one, other) = (one.name, other.name);
                let line = self.get(other).map_or(self.line, |(line, _)| line);
                self.sink.refuse(line, Fault::MixedForms { one, other, algorithm });
                return None;
            }
            (None, Some(_)) => older.as_ref()?,
            (_, None) => form,
        };
        let before = self.sink.report.len();
        let mut values = Vec::with_capacity(form.parameters.len());
        for parameter in form.parameters {
            let value = self.optional(parameter.name, |_, node| fields::value(parameter, node));
            match value {
                Some(Some(value)) => values.push((parameter.name, value)),
                Some(None) if parameter.is_required => self.missing.push(parameter.name),
                _ => {}
            }
        }
        let is_whole = self.missing.is_empty() && self.sink.report.len() == before;
        if is_whole { self.made(form.limit(values)) } else { None }
    }

    /// Returns the limit. An error is reported on the line of the invalid field, if there is one.
    fn made(&mut self, limit: Result<Limit, LimitError>) -> Option<Limit> {
        limit
            .map_err(|error| {
                // `count + burst` is reported on the line of `count`.
                let field = error.field().and_then(|field| field.split(' ').next());
                let line =
                    field.and_then(|field| self.get(field)).map_or(self.line, |(line, _)| line);
                self.sink.refuse(line, error);
            })
            .ok()
    }
}

/// Returns the fault of a field that belongs in another place or to another algorithm.
fn elsewhere(field: &str, algorithm: AlgorithmName) -> Option<Fault> {
    let places = [
        ("ids", "overrides in a list, as in `- Name: {…, ids: […]}`"),
        ("number", "the default; its overrides have it from there"),
        ("tiers", "the default; an override names one tier, as in `Orders_pro`"),
        ("comment", "an id in a list, as in `ids: [{id: …, comment: …}]`"),
    ];
    if let Some((field, place)) = places.into_iter().find(|(other, _)| *other == field) {
        return Some(Fault::FieldElsewhere { field, place });
    }
    let mut others = AlgorithmName::ALL.into_iter().flat_map(parameters);
    let field = others.find(|other| *other == field)?;
    Some(Fault::FieldOfOther { field, algorithm, fields: parameters(algorithm) })
}

fn word(field: &'static str, expected: &'static str, found: &str) -> Fault {
    Fault::Word { field, expected, found: Excerpt::new(found) }
}

/// Returns whether a limit's `mode` is shadow mode.
///
/// # Errors
/// [`Fault::Word`] if it is neither `shadow` nor `enforce`.
pub fn is_shadow(text: &str) -> Result<bool, Fault> {
    match text {
        "shadow" => Ok(true),
        "enforce" => Ok(false),
        _ => Err(word("mode", "shadow or enforce", text)),
    }
}

/// Checks a limit's `docs`, a URL that can be written between angle brackets in a header.
///
/// # Errors
/// [`Fault::Docs`] if it is not.
pub fn docs(text: &str) -> Result<Arc<str>, Fault> {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && !b"<>\"".contains(&byte));
    match host {
        Some(host) if is_plain && !host.is_empty() && !host.starts_with('/') => Ok(text.into()),
        _ => Err(Fault::Docs { found: Excerpt::new(text) }),
    }
}
