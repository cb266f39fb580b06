//! The class `Limits`.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyIterator, PyList, PyMapping, PyString, PyTuple};

use crate::bindings::arguments;
use crate::bindings::errors::{raise, raise_with, shown};
use crate::bindings::id_text::id_text;
use crate::bindings::limit::{Limit, limit_or_text};
use crate::config::{self, Names};
use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::id::{IPV6_PREFIX, IdFormat};
use crate::engine::limit;
use crate::engine::registry::{Entry, Registry, Rule};
use crate::limiter;

#[doc = doc!(Limits)]
#[pyclass(frozen, module = "penstock", mapping)]
#[derive(Debug)]
pub(crate) struct Limits {
    registry: Registry,
}

impl From<Registry> for Limits {
    fn from(registry: Registry) -> Limits {
        Limits { registry }
    }
}

impl Limits {
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Adds the methods that a mapping has from `collections.abc`.
    pub(crate) fn attach_methods(py: Python<'_>) -> PyResult<()> {
        let (class, mapping) =
            (py.get_type::<Limits>(), py.import("collections.abc")?.getattr("Mapping")?);
        for name in ["get", "keys", "values", "items"] {
            class.setattr(name, mapping.getattr(name)?)?;
        }
        PyMapping::register::<Limits>(py)
    }

    /// Merges two registries. `later` replaces limits of the same name.
    fn merged(earlier: &Registry, later: &Registry) -> PyResult<Limits> {
        let merged = earlier.merged(later).map_err(|(name, error)| {
            let message = format!("{name}: {error}");
            raise_with("ConfigError", &message, |raised| raised.setattr("limit_name", name))
        });
        merged.map(Limits::from)
    }

    /// Returns the registry of a `Limits`, or of a mapping of names to limits.
    pub(crate) fn registry_of(given: &Bound<'_, PyAny>) -> PyResult<Registry> {
        if let Ok(limits) = given.cast::<Limits>() {
            return Ok(limits.get().registry.clone());
        }
        let expected = "a Limits or a dict such as {'Orders': '100/minute'}";
        let Ok(mapping) = given.cast::<PyMapping>() else {
            return Err(arguments::wrong_type("limits", expected, given));
        };
        let mut limits = Vec::new();
        for item in mapping.items()?.iter() {
            let (name, limit): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
            let name = arguments::string("name", &name)?;
            let name = arguments::utf8("ConfigError", "name", name)?;
            let limit = limit_or_text(name, &limit, Some(name))?;
            limits.push((name.to_owned(), limit));
        }
        config::from_limits(limits).map_err(PyErr::from)
    }

    /// Returns the registry of a limits file, or as [`Limits::registry_of`].
    pub(crate) fn registry_or_file(given: &Bound<'_, PyAny>) -> PyResult<Registry> {
        let is_text = given.is_instance_of::<PyString>();
        if is_text && limit_or_text("limits", given, None).is_ok() {
            let message = format!(
                "limits must be a limits file or a dict, found the limit {}; name it: \
                 {{'Orders': {0}}}",
                shown(given)
            );
            return Err(raise("ConfigError", &message));
        }
        if is_text || given.hasattr("__fspath__")? {
            return Limits::load(given.py(), given, None, None).map(|limits| limits.registry);
        }
        Limits::registry_of(given)
    }

    fn add_row(
        &self,
        overrides: &mut config::Rows,
        index: usize,
        row: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let expected = "a tuple (name, id, limit) or (name, id, limit, comment)";
        let row = row.cast::<PyTuple>().map_err(|_| arguments::wrong_type("row", expected, row))?;
        if !matches!(row.len(), 3 | 4) {
            return Err(arguments::wrong_type("row", expected, row));
        }
        let (name, given) = (row.get_item(0)?, row.get_item(2)?);
        let name = arguments::limit_name(&name)?;
        let id = row.get_item(1)?;
        let id = id_text(&id)?;
        let comment = match row.get_item(3) {
            Ok(comment) if !comment.is_none() => Some(text("comment", &comment)?),
            _ => None,
        };
        let default = self.registry.entry(name).map(|entry| entry.default_rule().clone());
        let default = default.unwrap_or_else(|| Rule::plain(limit::Limit::Unlimited));
        let rule = Rule { comment, ..override_rule(&given, default)? };
        overrides
            .add(index, name, &id, rule)
            .map_err(|error| raise("ConfigError", &error.to_string()))
    }

    /// Returns the entry of a name and the canonical form of an id.
    fn bucket(&self, name: &Bound<'_, PyAny>, id: &Bound<'_, PyAny>) -> PyResult<(&Entry, String)> {
        let entry = self.entry(arguments::limit_name(name)?)?;
        let id = entry.canonical(&id_text(id)?).map(Cow::into_owned);
        Ok((entry, id.map_err(|error| limiter::invalid_id(entry, error))?))
    }

    fn entry(&self, name: &str) -> PyResult<&Entry> {
        let entry = self.registry.entry(name);
        entry
            .map(|entry| &**entry)
            .ok_or_else(|| limiter::unknown_limit(&self.registry, name).into())
    }
}

/// Returns the explanation for an id in canonical form.
fn explanation<'py>(py: Python<'py>, entry: &Entry, id: &str) -> PyResult<Bound<'py, PyAny>> {
    let Rule { limit, shadow, description, docs, comment, origin, scope } = entry.rule_for(id);
    let facts = dict! {
        py,
        "name": entry.name().as_str(),
        "id": id,
        "bucket_key": entry.bucket_key(id),
        "limit": Limit::from(*limit),
        "rule": scope.to_string(),
        "file": origin.as_ref().map(|origin| &*origin.file),
        "line": origin.as_ref().map(|origin| origin.line),
        "shadow": *shadow,
        "description": description.as_deref(),
        "docs": docs.as_deref(),
        "comment": comment.as_deref(),
    };
    py.import("penstock._explanation")?.getattr("Explanation")?.call1((facts,))
}

/// Returns the names of an `IntEnum` class, whose members may have an `id_format`.
fn names_of(class: &Bound<'_, PyAny>) -> PyResult<Names> {
    let py = class.py();
    let int_enum = py.import("enum")?.getattr("IntEnum")?;
    let is_class = class.is_instance(&py.get_type::<pyo3::types::PyType>())?;
    if !is_class || !class.cast::<pyo3::types::PyType>()?.is_subclass(&int_enum)? {
        return Err(arguments::wrong_type("names", "an enum.IntEnum class", class));
    }
    let mut members = Vec::new();
    for member in class.try_iter()? {
        let member = member?;
        let name: String = member.getattr("name")?.extract()?;
        let value = member.getattr("value")?;
        let Ok(number) = value.extract::<u64>() else {
            let found = shown(&value);
            let message = format!(
                "names: the number of {name} must be at least 0 and below 2**64, found {found}"
            );
            return Err(raise("ConfigError", &message));
        };
        let format = match member.getattr("id_format") {
            Err(_) => IdFormat::Any,
            Ok(format) => format.extract::<String>()?.parse().map_err(|error| {
                let message = format!("names: the id_format of {name}: {error}");
                raise("ConfigError", &message)
            })?,
        };
        members.push((name, number, format));
    }
    let class: String = class.getattr("__name__")?.extract()?;
    Ok(Names { class, members })
}

fn text(name: &str, given: &Bound<'_, PyAny>) -> PyResult<Arc<str>> {
    Ok(arguments::utf8("ConfigError", name, arguments::string(name, given)?)?.into())
}

/// Converts the limit of an override to a rule. The limit is a `Limit`, a string or the fields of an
/// overrides file; the rest comes from the default rule.
fn override_rule(given: &Bound<'_, PyAny>, default: Rule) -> PyResult<Rule> {
    let py = given.py();
    if given.is_instance_of::<Limit>() || given.is_instance_of::<PyString>() {
        return Ok(Rule { limit: limit_or_text("limit", given, None)?, ..default });
    }
    let expected = "a Limit, a rate string such as '100/minute' or a mapping of fields";
    let Ok(mapping) = given.cast::<PyMapping>() else {
        return Err(arguments::wrong_type("limit", expected, given));
    };
    let fields = PyDict::new(py);
    fields.update(mapping)?;
    let take = |field: &str| -> PyResult<Option<Arc<str>>> {
        let value = fields.get_item(field)?.map(|value| text(field, &value)).transpose()?;
        if value.is_some() {
            fields.del_item(field)?;
        }
        Ok(value)
    };
    let config_error = |fault: config::Fault| raise("ConfigError", &fault.to_string());
    let (algorithm, mode) = (take("algorithm")?, take("mode")?);
    let (description, docs) = (take("description")?, take("docs")?);
    let mut rule = default;
    if let Some(mode) = mode {
        rule.shadow = config::is_shadow(&mode).map_err(config_error)?;
    }
    if let Some(docs) = docs {
        rule.docs = Some(config::docs(&docs).map_err(config_error)?);
    }
    rule.description = description.or(rule.description);
    let inherited = match rule.limit.algorithm() {
        AlgorithmName::Unlimited => AlgorithmName::TokenBucket,
        algorithm => algorithm,
    };
    let algorithm = PyString::new(py, algorithm.as_deref().unwrap_or(inherited.as_str()));
    let limit = py.get_type::<Limit>().call_method1("from_fields", (algorithm, fields))?;
    Ok(Rule { limit: limit.cast::<Limit>()?.get().limit, ..rule })
}

/// Converts a path, which is a `str` or an `os.PathLike`.
fn path_of(name: &str, given: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    given.extract().map_err(|_| arguments::wrong_type(name, "a path", given))
}

#[pymethods]
impl Limits {
    #[new]
    #[pyo3(signature = (limits = None, /), text_signature = "(limits={}, /)")]
    fn new(limits: Option<&Bound<'_, PyAny>>) -> PyResult<Limits> {
        limits.map_or(Ok(Registry::default()), Limits::registry_of).map(Limits::from)
    }

    #[doc = doc!(Limits.load)]
    #[staticmethod]
    #[pyo3(signature = (defaults, overrides = None, names = None))]
    fn load(
        py: Python<'_>,
        defaults: &Bound<'_, PyAny>,
        overrides: Option<&Bound<'_, PyAny>>,
        names: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Limits> {
        if let Ok(limits) = defaults.cast::<Limits>() {
            if names.is_some() {
                return Err(PyTypeError::new_err(
                    "names must be given with the path of a limits file",
                ));
            }
            let Some(overrides) = overrides else {
                return Ok(Limits::from(config::Rows::new(&limits.get().registry).finish()));
            };
            let (registry, path) = (&limits.get().registry, path_of("overrides", overrides)?);
            let loaded = py.detach(|| config::load_overrides(registry, &path));
            return loaded.map(Limits::from).map_err(PyErr::from);
        }
        let defaults = path_of("defaults", defaults)?;
        let overrides = overrides.map(|overrides| path_of("overrides", overrides)).transpose()?;
        let names = names.map(names_of).transpose()?;
        // Detached, because reading a large file takes long and does not need the interpreter.
        let registry = py.detach(|| config::load(&defaults, overrides.as_deref(), names.as_ref()));
        registry.map(Limits::from).map_err(PyErr::from)
    }

    #[doc = doc!(Limits.parse)]
    #[staticmethod]
    #[pyo3(signature = (defaults, overrides = None, names = None))]
    fn parse(
        py: Python<'_>,
        defaults: &Bound<'_, PyAny>,
        overrides: Option<&Bound<'_, PyAny>>,
        names: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Limits> {
        let yaml = |name: &str, given: &Bound<'_, PyAny>| -> PyResult<String> {
            let text = arguments::string(name, given)?.to_str();
            let text = text.map_err(|_| config::ConfigError::not_utf8(&format!("<{name}>")))?;
            Ok(text.to_owned())
        };
        let defaults = yaml("defaults", defaults)?;
        let overrides = overrides.map(|overrides| yaml("overrides", overrides)).transpose()?;
        let names = names.map(names_of).transpose()?;
        // Detached, because parsing many overrides takes long and does not need the interpreter.
        let registry = py.detach(|| config::parse(&defaults, overrides.as_deref(), names.as_ref()));
        registry.map(Limits::from).map_err(PyErr::from)
    }

    #[doc = doc!(Limits.resolve)]
    fn resolve(&self, name: &Bound<'_, PyAny>, id: &Bound<'_, PyAny>) -> PyResult<Limit> {
        let (entry, id) = self.bucket(name, id)?;
        Ok(Limit::from(entry.rule_for(&id).limit))
    }

    #[doc = doc!(Limits.explain)]
    fn explain<'py>(
        &self,
        name: &Bound<'py, PyAny>,
        id: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (entry, id) = self.bucket(name, id)?;
        explanation(name.py(), entry, &id)
    }

    #[doc = doc!(Limits.address_id)]
    #[pyo3(signature = (name, address, ipv6_prefix=IPV6_PREFIX))]
    fn address_id(
        &self,
        name: &Bound<'_, PyAny>,
        address: &Bound<'_, PyString>,
        ipv6_prefix: u8,
    ) -> PyResult<Option<String>> {
        let entry = self.entry(arguments::limit_name(name)?)?;
        let Ok(address) = address.to_str() else { return Ok(None) };
        Ok(entry.address_id(address, ipv6_prefix).map(Cow::into_owned))
    }

    #[doc = doc!(Limits.with_overrides)]
    fn with_overrides(&self, rows: &Bound<'_, PyAny>) -> PyResult<(Limits, Vec<(usize, String)>)> {
        let py = rows.py();
        let mut overrides = config::Rows::new(&self.registry);
        let mut problems = Vec::new();
        for (index, row) in rows.try_iter()?.enumerate() {
            let row = row?;
            if row.is_none() {
                continue;
            }
            let Err(error) = self.add_row(&mut overrides, index, &row) else { continue };
            if !error.is_instance_of::<PyTypeError>(py) && !error.is_instance_of::<PyValueError>(py)
            {
                return Err(error);
            }
            // Only the first line: the other lines mark the position of the error in the text.
            let message = error.value(py).to_string();
            problems.push((index, message.lines().next().unwrap_or_default().to_owned()));
        }
        Ok((Limits::from(overrides.finish()), problems))
    }

    #[doc = doc!(Limits.without)]
    fn without(&self, name: &Bound<'_, PyAny>) -> PyResult<Limits> {
        let name = arguments::limit_name(name)?;
        self.entry(name)?;
        Ok(Limits::from(self.registry.without(name)))
    }

    #[doc = doc!(Limits.to_yaml)]
    fn to_yaml(&self) -> String {
        config::to_yaml(&self.registry)
    }

    #[doc = doc!(Limits.overrides_to_yaml)]
    fn overrides_to_yaml(&self) -> Option<String> {
        config::overrides_to_yaml(&self.registry)
    }

    #[doc = doc!(Limits.override_counts)]
    fn override_counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let entries = self.registry.entries().iter();
        entries.map(|entry| (entry.name().as_str(), entry.overrides().len())).into_py_dict(py)
    }

    #[doc = doc!(Limits.default)]
    fn default(&self, name: &Bound<'_, PyAny>) -> PyResult<Option<Limit>> {
        let entry = self.entry(arguments::limit_name(name)?)?;
        Ok(entry.has_default().then(|| Limit::from(entry.default_rule().limit)))
    }

    fn __getitem__(&self, name: &Bound<'_, PyAny>) -> PyResult<Limit> {
        Ok(Limit::from(self.entry(arguments::limit_name(name)?)?.default_rule().limit))
    }

    fn __or__(&self, other: &Bound<'_, PyMapping>) -> PyResult<Limits> {
        Limits::merged(&self.registry, &Limits::registry_of(other)?)
    }

    fn __ror__(&self, other: &Bound<'_, PyMapping>) -> PyResult<Limits> {
        Limits::merged(&Limits::registry_of(other)?, &self.registry)
    }

    fn __contains__(&self, name: &Bound<'_, PyAny>) -> bool {
        let name = name.cast::<PyString>().ok().and_then(|name| name.to_str().ok());
        name.is_some_and(|name| self.registry.entry(name).is_some())
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        let names = self.registry.entries().iter().map(|entry| entry.name().as_str());
        PyList::new(py, names.collect::<Vec<_>>())?.try_iter()
    }

    fn __len__(&self) -> usize {
        self.registry.entries().len()
    }

    fn __bool__(&self) -> bool {
        !self.registry.entries().is_empty()
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Limits>().is_ok_and(|other| other.get().registry == self.registry)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        // The origins of the entries are lost, because they would not match the pickled text.
        let parse = slf.get_type().getattr("parse")?;
        (parse, (slf.get().to_yaml(), slf.get().overrides_to_yaml())).into_pyobject(slf.py())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let overrides: usize =
            self.registry.entries().iter().map(|entry| entry.overrides().len()).sum();
        let names = self.registry.entries().iter().map(|entry| entry.name().as_str());
        let names = PyList::new(py, names.take(10).collect::<Vec<_>>())?;
        let more = if self.registry.entries().len() > 10 { " …" } else { "" };
        Ok(format!("<Limits {}{more}, {overrides} overrides>", names.repr()?))
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let counts = slf.get().override_counts(py)?;
        py.import("penstock._display")?.call_method1("limits_html", (slf, counts))
    }
}
