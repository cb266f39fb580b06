//! Extracts the paths that a Rust file uses. It parses enough of the language to find every path.

/// A file's code without comments, strings and its test module, and the paths used in it.
pub struct Source {
    code: String,
    paths: Vec<String>,
}

impl Source {
    /// Reads `text`, the contents of `file` (its path below `src/`).
    pub fn new(file: &str, text: &str) -> Self {
        let mut code = without_comments_and_texts(text);
        if let Some(tests) = code.find("#[cfg(test)]\nmod tests") {
            code.truncate(tests);
        }
        let module = module_of(file);
        let named = named_in(&code, &module);
        let mut paths: Vec<String> =
            named.iter().filter_map(|(module, path)| resolve(module, path)).collect();
        paths.sort();
        paths.dedup();
        Self { code, paths }
    }

    pub fn code(&self) -> &str {
        &self.code
    }

    /// Paths of this crate as `crate::…`, all others starting with their crate's name; without duplicates.
    pub fn paths(&self) -> &[String] {
        &self.paths
    }

    pub fn has_word(&self, word: &str) -> bool {
        words(&self.code).contains(&word)
    }
}

/// The crates that a path can begin with. Any other first word is a name within the file.
const CRATES: &[&str] = &[
    "alloc",
    "arrow_array",
    "arrow_buffer",
    "arrow_schema",
    "core",
    "csv_core",
    "getrandom",
    "hashbrown",
    "humantime",
    "ipnet",
    "loom",
    "memchr",
    "parking_lot",
    "psl2",
    "pyo3",
    "regex",
    "serde",
    "serde_json",
    "saphyr_parser",
    "serde_yaml",
    "sha2",
    "siphasher",
    "std",
    "thiserror",
];

/// Returns the module of a file: `engine/algorithm/gcra.rs` is `["engine", "algorithm", "gcra"]`, and a
/// `mod.rs` is its folder.
fn module_of(file: &str) -> Vec<String> {
    let path = file.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let path = if path == "lib" { "" } else { path };
    path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Resolves a path from the crate's root or another crate's name; `None` if it starts within the file.
fn resolve(module: &[String], path: &[String]) -> Option<String> {
    let first = path.first()?.as_str();
    if CRATES.contains(&first) {
        // A single word can also be a variable.
        let first = if matches!(first, "core" | "alloc") { "std" } else { first };
        let path = std::iter::once(first).chain(path[1..].iter().map(String::as_str));
        let path = path.collect::<Vec<_>>().join("::");
        return path.contains("::").then_some(path);
    }
    let ups = path.iter().take_while(|part| *part == "super").count();
    let rest = match first {
        "crate" => path[1..].to_vec(),
        "self" => [module, &path[1..]].concat(),
        "super" => [&module[..module.len().saturating_sub(ups)], &path[ups..]].concat(),
        _ => return None,
    };
    // A bare `super` or `crate` before a glob names the module itself.
    (!rest.is_empty()).then(|| format!("crate::{}", rest.join("::")))
}

/// All paths in the code of `module`, each with the module that contains it, with `use` trees expanded.
fn named_in(code: &str, module: &[String]) -> Vec<(Vec<String>, Vec<String>)> {
    let words = words(code);
    let mut named = Vec::new();
    // Inline modules, each with the number of open braces before its own.
    let mut within: Vec<(usize, String)> = Vec::new();
    let (mut at, mut braces) = (0, 0_usize);
    while at < words.len() {
        match words[at..] {
            ["mod", name, "{", ..] => {
                within.push((braces, name.to_owned()));
                braces += 1;
                at += 3;
            }
            ["{", ..] => {
                braces += 1;
                at += 1;
            }
            ["}", ..] => {
                braces = braces.saturating_sub(1);
                within.retain(|(outside, _)| *outside < braces);
                at += 1;
            }
            [word, ..] if is_name(word) => {
                let mut paths = Vec::new();
                at = spread(&words, at, &[], &mut paths);
                let here: Vec<String> =
                    module.iter().chain(within.iter().map(|(_, name)| name)).cloned().collect();
                named.extend(paths.into_iter().map(|path| (here.clone(), path)));
            }
            _ => at += 1,
        }
    }
    named
}

/// Parses one path or one tree of paths, starting at `words[at]`. Returns its end.
fn spread(words: &[&str], mut at: usize, stem: &[String], paths: &mut Vec<Vec<String>>) -> usize {
    let mut path = stem.to_vec();
    loop {
        match words.get(at) {
            Some(&"{") if path.len() > stem.len() || !stem.is_empty() => {
                at += 1;
                while words.get(at).is_some_and(|word| *word != "}") {
                    at = if *words[at] == *"," { at + 1 } else { spread(words, at, &path, paths) };
                }
                return at + 1;
            }
            Some(&"self") if !stem.is_empty() && path.len() == stem.len() => at += 1,
            Some(word) if is_name(word) => {
                path.push((*word).to_owned());
                at += 1;
            }
            // A glob, or not a path; skip one word.
            _ => at += 1,
        }
        if words.get(at) != Some(&"::") {
            break;
        }
        at += 1;
    }
    // `as name` renames the path.
    if words.get(at) == Some(&"as") && !stem.is_empty() {
        at += 2;
    }
    paths.push(path);
    at
}

fn is_name(word: &str) -> bool {
    word.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Splits code into names, `::` and other single characters.
fn words(code: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = if first.is_alphanumeric() || first == '_' {
            rest.find(|sign: char| !sign.is_alphanumeric() && sign != '_').unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        words.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    words
}

fn without_comments_and_texts(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(hashes) = raw_text(rest) {
            let end = format!("\"{}", "#".repeat(hashes));
            let from = hashes + 2;
            rest[from..].find(&end).map_or(rest.len(), |at| from + at + end.len())
        } else if first == '"' {
            end_of_text(rest)
        } else if rest.starts_with("'\"'") || rest.starts_with("b'\"'") {
            rest.find("'\"'").map_or(rest.len(), |at| at + 3)
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        code.push(' ');
        rest = &rest[skipped..];
    }
    code
}

/// The number of hashes if a raw string begins here. A name that ends in `r` is not followed by a quote.
fn raw_text(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix('r')?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    after[hashes..].starts_with('"').then_some(hashes)
}

fn end_of_text(rest: &str) -> usize {
    let mut escaped = false;
    for (at, sign) in rest.char_indices().skip(1) {
        match sign {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    rest.len()
}
