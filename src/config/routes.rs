//! Loads routes files, which map the paths and methods of requests to limits.

use std::path::Path;

use crate::config::error::{ConfigError, Diagnostics, Fault};
use crate::config::fields::{self, not_a, pairs, unknown};
use crate::config::file::File;
use crate::config::limits::FaultSink;
use crate::config::yaml::{self, Node, Value};

/// A pattern of requests, and their limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// A pattern for the path, with `*` and `?`.
    pub path: String,
    /// The methods; empty for all methods.
    pub methods: Vec<String>,
    /// The limits, which are spent all or nothing.
    pub limits: Vec<Spend>,
}

/// One limit of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spend {
    /// The name of the limit.
    pub limit: String,
    /// The log field of the id; `None` for the client.
    pub id: Option<String>,
    /// The cost; `None` for that of the request.
    pub cost: Option<i64>,
    /// The tokens that a request must leave.
    pub keep: i64,
}

impl Spend {
    fn new(limit: &str) -> Spend {
        Spend { limit: limit.to_owned(), id: None, cost: None, keep: 0 }
    }
}

/// Loads a routes file: a list of mappings with `path`, `method` and `limits`.
///
/// # Errors
/// [`ConfigError`] with all problems of the file.
pub fn load_routes(path: &Path) -> Result<Vec<Route>, ConfigError> {
    let file = File::read(path)?;
    let mut report = Diagnostics::default();
    let mut sink = FaultSink { report: &mut report, file: &file.name, limit: "" };
    let routes = match yaml::read(&file.text) {
        Ok(root) => routes(&root, &mut sink),
        Err((line, fault)) => {
            sink.refuse_at(line, fault);
            Vec::new()
        }
    };
    report.finish()?;
    Ok(routes)
}

fn routes(root: &Node<'_>, sink: &mut FaultSink<'_>) -> Vec<Route> {
    match &root.value {
        Value::List(list) => list.iter().filter_map(|node| route(node, sink)).collect(),
        _ => {
            sink.refuse_kind("a routes file", "a list of routes", root);
            Vec::new()
        }
    }
}

fn route(node: &Node<'_>, sink: &mut FaultSink<'_>) -> Option<Route> {
    let Value::Map(map) = &node.value else {
        sink.refuse_kind("a route", "a mapping with path, method and limits", node);
        return None;
    };
    let mut route = Route { path: "*".to_owned(), methods: Vec::new(), limits: Vec::new() };
    let mut has_limits = false;
    for (key, line, node) in pairs(map, |line, _, fault| sink.refuse(line, fault)) {
        let read = match key {
            "path" => fields::text("path", node).map(|path| path.clone_into(&mut route.path)),
            "method" => methods(node).map(|methods| route.methods = methods),
            "limits" => {
                has_limits = true;
                route.limits = spends(node, sink);
                Ok(())
            }
            _ => Err(unknown(key, &["path", "method", "limits"])),
        };
        if let Err(fault) = read {
            sink.refuse(line, fault);
        }
    }
    if !has_limits {
        let (what, expected) = ("limits", "a list or a mapping of limits, or [] for none");
        sink.refuse(node.line, Fault::NotA { what, expected, found: "nothing".to_owned() });
    }
    Some(route)
}

fn methods(node: &Node<'_>) -> Result<Vec<String>, Fault> {
    match &node.value {
        Value::List(list) => {
            list.iter().map(|node| Ok(fields::text("method", node)?.to_owned())).collect()
        }
        _ => Ok(vec![fields::text("method", node)?.to_owned()]),
    }
}

/// Parses the limits of a route: a list of names, or a mapping of names to options.
fn spends(node: &Node<'_>, sink: &mut FaultSink<'_>) -> Vec<Spend> {
    match &node.value {
        Value::List(list) => {
            let names = list.iter().filter_map(|node| match fields::text("a limit", node) {
                Ok(name) => Some(Spend::new(name)),
                Err(fault) => {
                    sink.refuse(node.line, fault);
                    None
                }
            });
            names.collect()
        }
        Value::Map(map) => {
            let named = pairs(map, |line, key, fault| {
                FaultSink { limit: key, ..reborrowed(sink) }.refuse(line, fault);
            });
            named.into_iter().map(|(name, _, node)| spend(name, node, sink)).collect()
        }
        _ => {
            sink.refuse_kind("limits", "a list of names or a mapping of names to options", node);
            Vec::new()
        }
    }
}

fn spend(name: &str, node: &Node<'_>, sink: &mut FaultSink<'_>) -> Spend {
    let mut spend = Spend::new(name);
    let mut sink = FaultSink { limit: name, ..reborrowed(sink) };
    match &node.value {
        Value::Map(map) => {
            for (key, line, node) in pairs(map, |line, _, fault| sink.refuse(line, fault)) {
                let read = match key {
                    "id" => fields::text("id", node).map(|id| spend.id = Some(id.to_owned())),
                    "cost" => tokens("cost", node).map(|cost| spend.cost = Some(cost)),
                    "keep" => tokens("keep", node).map(|keep| spend.keep = keep),
                    _ => Err(unknown(key, &["id", "cost", "keep"])),
                };
                if let Err(fault) = read {
                    sink.refuse(line, fault);
                }
            }
        }
        Value::Scalar(yaml::ScalarKind::Nothing, _) => {}
        _ => sink.refuse_kind("the limit of a route", "a mapping with id, cost and keep", node),
    }
    spend
}

fn tokens(field: &'static str, node: &Node<'_>) -> Result<i64, Fault> {
    match fields::whole(field, node)? {
        tokens @ 0.. => Ok(tokens),
        _ => Err(not_a(field, "at least 0", node)),
    }
}

fn reborrowed<'r>(sink: &'r mut FaultSink<'_>) -> FaultSink<'r> {
    FaultSink { report: sink.report, file: sink.file, limit: sink.limit }
}
