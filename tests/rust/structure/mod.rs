//! Architecture rules for every file of `src/`: what each part may use, and where `unsafe` is allowed.

mod paths;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use paths::Source;

/// A part of the crate, and what its files may use.
struct Room {
    /// The folder (ending in `/`) or the file, below `src/`.
    place: &'static str,
    /// Other modules of this crate, by path; a path includes everything below it.
    ours: &'static [&'static str],
    /// Crates, and paths of the standard library other than the common ones.
    outside: &'static [&'static str],
}

/// The import table. A file belongs to the first part that matches.
const HOUSE: &[Room] = &[
    Room {
        place: "engine/",
        ours: &[],
        outside: &["ipnet", "psl2", "sha2", "hashbrown", "thiserror"],
    },
    Room { place: "rate_limit_fields.rs", ours: &["engine"], outside: &[] },
    Room { place: "prefetch.rs", ours: &[], outside: &["std::arch"] },
    Room { place: "sync.rs", ours: &[], outside: &["parking_lot", "loom", "std::sync"] },
    Room {
        place: "clock.rs",
        ours: &["engine::time", "sync"],
        outside: &["std::time", "thiserror"],
    },
    Room { place: "clock/", ours: &["sync"], outside: &["std::arch", "std::fs", "std::sync"] },
    Room { place: "latencies.rs", ours: &["clock::Stopwatch", "sync"], outside: &[] },
    Room {
        place: "store/any.rs",
        ours: &[
            "clock::AnyClock",
            "clock::Clock",
            "engine::algorithm",
            "engine::state",
            "engine::time",
            "store",
        ],
        outside: &["thiserror"],
    },
    Room {
        place: "store/redis/",
        ours: &[
            "clock::Clock",
            "clock::Stopwatch",
            "engine::algorithm::name::AlgorithmName",
            "engine::key",
            "engine::named_enum",
            "engine::state",
            "engine::time",
            "latencies",
            "store",
            "sync",
        ],
        outside: &[
            "crc16",
            "futures_util",
            "hashbrown",
            "humantime",
            "percent_encoding",
            "redis",
            "std::fs",
            "std::future",
            "std::process",
            "std::sync::LazyLock",
            "std::sync::OnceLock",
            "std::thread",
            "std::time::Duration",
            "tokio",
        ],
    },
    Room {
        place: "store/shared/",
        ours: &[
            "clock",
            "engine::algorithm::name::AlgorithmName",
            "engine::state",
            "engine::time",
            "store",
            "sync",
        ],
        outside: &[
            "libc",
            "memmap2",
            "rustix",
            "siphasher",
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
    Room {
        place: "store/memory/slots.rs",
        ours: &["store::memory", "sync"],
        outside: &["memmap2", "rustix::param", "std::sync::Weak"],
    },
    Room {
        place: "store/",
        ours: &[
            "clock::Clock",
            "engine::algorithm::name",
            "engine::key",
            "engine::state",
            "engine::time",
            "prefetch",
            "sync",
        ],
        outside: &["hashbrown", "siphasher", "smallvec", "thiserror"],
    },
    Room {
        place: "config/",
        ours: &["engine"],
        outside: &[
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
    Room {
        place: "limiter/",
        ours: &[
            "engine",
            "clock::Clock",
            "clock::Stopwatch",
            "latencies",
            "sync",
            "store::Batch",
            "store::Bucket",
            "store::Keyspace",
            "store::remote",
            "store::Stats",
            "store::Step",
            "store::Store",
            "store::StoreError",
            "store::Write",
            "prefetch",
        ],
        outside: &["hashbrown", "smallvec", "thiserror"],
    },
    Room {
        place: "simulate/",
        ours: &["engine", "limiter::CallError", "limiter::invalid_id", "prefetch"],
        outside: &["hashbrown", "thiserror"],
    },
    Room {
        place: "log/",
        ours: &["engine::id::client_address", "simulate::Ids"],
        outside: &[
            "csv_core",
            "memchr",
            "regex",
            "serde",
            "serde_json",
            "std::thread",
            "thiserror",
        ],
    },
    Room {
        place: "bindings/replies.rs",
        ours: &["engine", "store", "bindings", "limiter", "sync"],
        outside: &["hashbrown", "pyo3", "std::io", "std::os", "std::sync::mpsc", "std::thread"],
    },
    Room {
        place: "bindings/",
        ours: &[
            "engine",
            "rate_limit_fields",
            "config",
            "store",
            "clock",
            "latencies",
            "limiter",
            "log",
            "prefetch",
            "simulate",
            "sync",
        ],
        outside: &[
            "pyo3",
            "arrow_array",
            "arrow_buffer",
            "arrow_schema",
            "std::ffi",
            "std::panic",
            "std::process",
        ],
    },
    Room {
        place: "lib.rs",
        ours: &[
            "engine",
            "rate_limit_fields",
            "config",
            "store",
            "clock",
            "latencies",
            "limiter",
            "log",
            "prefetch",
            "simulate",
            "sync",
        ],
        outside: &[],
    },
];

/// The parts of the standard library that all parts may use: data types, formatting, comparison and conversion.
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
    "std::vec",
];

/// Where `unsafe` is allowed, with the reason.
const UNSAFE: &[(&str, &str)] = &[
    ("bindings/array.rs", "reads the arrays of NumPy where they stand, by the buffer protocol"),
    ("bindings/column.rs", "hands columns to NumPy by the buffer protocol, which is C"),
    ("bindings/fastcall.rs", "the hot methods are written against the C calling convention"),
    ("bindings/id_text.rs", "the text of a `str` is read without copying it"),
    ("bindings/interpreter.rs", "asks which interpreter imports the module"),
    ("bindings/pool.rs", "a decision is put into memory that an earlier one has left"),
    ("store/memory/shard.rs", "skips the lock where the caller promises that calls are serialized"),
    ("store/memory/slots.rs", "each table owns a part of a region of huge pages"),
    ("store/shared/bus_error.rs", "handles a signal of the kernel, in C"),
    ("store/shared/file.rs", "slots are atomic words in a mapped file"),
    ("store/shared/header.rs", "asks macOS which boot this is, in C"),
    ("store/shared/lock.rs", "asks the kernel for record locks, in C"),
    ("clock/recent.rs", "asks the processor for its counter"),
    ("prefetch.rs", "asks the processor for a slot ahead of its use"),
];

#[test]
fn every_file_names_only_what_its_room_may_name() {
    let files = sources();
    assert!(files.len() >= 20, "saw only {} files of src/", files.len());
    let breaches: Vec<String> =
        files.iter().flat_map(|(file, source)| breaches(file, source)).collect();
    assert!(breaches.is_empty(), "\n{}", breaches.join("\n"));

    let named: usize = files.iter().map(|(_, source)| source.paths().len()).sum();
    assert!(named >= 200, "saw only {named} paths: the reader of paths is blind");
    for room in HOUSE {
        assert!(files.iter().any(|(file, _)| fits(room, file)), "no file in {}", room.place);
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
        face.code().contains("#![forbid(unsafe_code)]"),
        "engine/mod.rs forbids no unsafe code"
    );
    for (file, source) in &engine {
        assert!(!source.has_word("f32") && !source.has_word("f64"), "{file} names a float");
    }
}

#[test]
fn a_breach_is_seen_in_each_form_it_may_take() {
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
            "{file} may not say {text:?}"
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
            "{file} may say {text:?}"
        );
    }
}

fn breaches(file: &str, source: &Source) -> Vec<String> {
    let Some(room) = HOUSE.iter().find(|room| fits(room, file)) else {
        return vec![format!("src/{file} is in no room of the table")];
    };
    source
        .paths()
        .iter()
        .filter(|path| !may_name(room, path))
        .map(|path| format!("src/{file} names {path}, which {} may not", room.place))
        .collect()
}

fn fits(room: &Room, file: &str) -> bool {
    file == room.place || (room.place.ends_with('/') && file.starts_with(room.place))
}

fn may_name(room: &Room, path: &str) -> bool {
    match path.strip_prefix("crate::") {
        Some(ours) => {
            let itself = room.place.trim_end_matches(".rs").trim_end_matches('/');
            below(ours, &[itself]) || below(ours, room.ours)
        }
        None => below(path, room.outside) || below(path, COMMON),
    }
}

fn below(path: &str, roots: &[&str]) -> bool {
    roots.iter().any(|root| {
        path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    })
}

/// All files of `src/`, by relative path, in order.
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
