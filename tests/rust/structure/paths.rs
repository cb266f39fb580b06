//! Extracts the paths that a Rust file uses and the types that it defines, from its tokens.

use std::collections::BTreeSet;

use proc_macro2::TokenTree::{self, Group, Ident, Punct};
use proc_macro2::{Spacing, TokenStream};

/// The words of a file's code without its test module, and the paths used in it.
#[derive(Default)]
pub struct Source {
    words: BTreeSet<String>,
    paths: BTreeSet<String>,
    types: BTreeSet<String>,
}

impl Source {
    /// Reads `text`, the contents of `file` (its path below `src/`).
    pub fn new(file: &str, text: &str) -> Self {
        let mut source = Self::default();
        source.read(text.parse().expect("the tokens of a Rust file"), &module_of(file));
        source
    }

    /// Paths of this crate as `crate::…`, all others starting with their crate's name.
    pub fn paths(&self) -> &BTreeSet<String> {
        &self.paths
    }

    /// The names of the types and traits that the file defines.
    pub fn types(&self) -> &BTreeSet<String> {
        &self.types
    }

    pub fn has_word(&self, word: &str) -> bool {
        self.words.contains(word)
    }

    /// Reads `tokens`, a part of `module`.
    fn read(&mut self, tokens: TokenStream, module: &[String]) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut rest = tokens.as_slice();
        while !rest.is_empty() {
            rest = match rest {
                [Ident(word), Ident(name), Group(inner), after @ ..] if word == "mod" => {
                    if name != "tests" {
                        self.read(inner.stream(), &[module, &[name.to_string()]].concat());
                    }
                    after
                }
                [Ident(word), Ident(name), after @ ..]
                    if word == "struct" || word == "enum" || word == "trait" =>
                {
                    self.types.insert(name.to_string());
                    after
                }
                [Ident(_), ..] => self.read_path(rest, module, &[]),
                [Group(inner), after @ ..] => {
                    self.read(inner.stream(), module);
                    after
                }
                [_, after @ ..] => after,
                [] => break,
            };
        }
    }

    /// Reads one path or one tree of paths, at the beginning of `rest`. Returns what follows it.
    fn read_path<'a>(
        &mut self,
        mut rest: &'a [TokenTree],
        module: &[String],
        stem: &[String],
    ) -> &'a [TokenTree] {
        let mut path = stem.to_vec();
        loop {
            rest = match rest {
                [Ident(word), after @ ..] => {
                    self.words.insert(word.to_string());
                    if stem.is_empty() || word != "self" {
                        path.push(word.to_string());
                    }
                    after
                }
                [Group(tree), after @ ..] => {
                    let tree: Vec<TokenTree> = tree.stream().into_iter().collect();
                    for branch in tree.split(|token| is_sign(token, ',')) {
                        self.read_path(branch, module, &path);
                    }
                    return after;
                }
                // A glob, or not a path; skip one token.
                [_, after @ ..] => after,
                [] => break,
            };
            match rest {
                [first @ Punct(colon), second, after @ ..]
                    if colon.spacing() == Spacing::Joint
                        && is_sign(first, ':')
                        && is_sign(second, ':') =>
                {
                    rest = after;
                }
                _ => break,
            }
        }
        self.paths.extend(resolve(module, &path));
        rest
    }
}

fn is_sign(token: &TokenTree, sign: char) -> bool {
    matches!(token, Punct(found) if found.as_char() == sign)
}

/// The crates that a path can begin with. Any other first word is a name within the file.
const CRATES: &[&str] = &[
    "alloc",
    "arrow_array",
    "arrow_buffer",
    "arrow_schema",
    "core",
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
