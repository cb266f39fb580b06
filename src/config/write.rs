//! Writes registries as files that load back.

use std::fmt::Write;

use crate::engine::algorithm::description::FieldValue;
use crate::engine::algorithm::name::AlgorithmName;
use crate::engine::id::IdFormat;
use crate::engine::limit::Limit;
use crate::engine::registry::{Entry, Override, Registry, Rule};

/// Returns the defaults of a registry as a limits file.
///
/// Together with [`overrides_to_yaml`] it loads back to an equal registry, with or without the
/// enumeration of names. A limit without a default is written as unlimited, unless its overrides
/// fully describe it.
pub fn to_yaml(registry: &Registry) -> String {
    let mut yaml = String::new();
    for entry in registry.entries().iter().filter(|entry| is_in_defaults(entry)) {
        let rule = entry.default_rule();
        line(&mut yaml, 0, &quoted(entry.name().as_str()), "");
        if rule.limit.algorithm() != AlgorithmName::TokenBucket {
            line(&mut yaml, 2, "algorithm", rule.limit.algorithm().as_str());
        }
        parameters(&mut yaml, 2, &rule.limit);
        format(&mut yaml, 2, entry.id_format());
        if let Some(number) = entry.number() {
            line(&mut yaml, 2, "number", &number.to_string());
        }
        if rule.shadow {
            line(&mut yaml, 2, "mode", "shadow");
        }
        texts(&mut yaml, 2, rule, None);
    }
    if yaml.is_empty() { "{}\n".to_owned() } else { yaml }
}

/// Returns the overrides of a registry as an overrides file; `None` if there are none.
///
/// Ids are written as they were given. Consecutive ids with the same rule share an entry.
pub fn overrides_to_yaml(registry: &Registry) -> Option<String> {
    let mut yaml = String::new();
    for entry in registry.entries() {
        for same in entry.overrides().chunk_by(|left, right| alike(&left.rule, &right.rule)) {
            if let [first, ..] = same {
                item(&mut yaml, entry, &first.rule);
                ids(&mut yaml, same);
            }
        }
    }
    Some(yaml).filter(|yaml| !yaml.is_empty())
}

fn is_in_defaults(entry: &Entry) -> bool {
    entry.has_default() || entry.number().is_some() || entry.overrides().is_empty()
}

/// Returns whether two overrides differ only in their targets.
fn alike(left: &Rule, right: &Rule) -> bool {
    left.limit == right.limit
        && left.shadow == right.shadow
        && left.description == right.description
        && left.docs == right.docs
}

fn item(yaml: &mut String, entry: &Entry, rule: &Rule) {
    let default = Some(entry.default_rule()).filter(|_| is_in_defaults(entry));
    yaml.push_str("- ");
    line(yaml, 0, &quoted(entry.name().as_str()), "");
    // Without the algorithm, that of the default would apply, or a token bucket if that is
    // unlimited.
    let is_token_bucket = |limit: &Limit| limit.algorithm() == AlgorithmName::TokenBucket;
    if !is_token_bucket(&rule.limit) || default.is_some_and(|rule| !is_token_bucket(&rule.limit)) {
        line(yaml, 4, "algorithm", rule.limit.algorithm().as_str());
    }
    parameters(yaml, 4, &rule.limit);
    if default.is_none() {
        format(yaml, 4, entry.id_format());
    }
    if rule.shadow != default.is_some_and(|default| default.shadow) {
        line(yaml, 4, "mode", if rule.shadow { "shadow" } else { "enforce" });
    }
    texts(yaml, 4, rule, default);
}

fn ids(yaml: &mut String, overrides: &[Override]) {
    line(yaml, 4, "ids", "");
    for entry in overrides {
        let id = quoted(&entry.written);
        match &entry.rule.comment {
            None => put(yaml, 6, format_args!("- {id}")),
            Some(comment) => {
                put(yaml, 6, format_args!("- id: {id}"));
                line(yaml, 8, "comment", &quoted(comment));
            }
        }
    }
}

fn parameters(yaml: &mut String, indent: usize, limit: &Limit) {
    for (name, value) in limit.fields() {
        match value {
            FieldValue::Whole(number) => line(yaml, indent, name, &number.to_string()),
            FieldValue::Time(time) => line(yaml, indent, name, &time.to_string()),
            FieldValue::Word(word) => line(yaml, indent, name, word),
        }
    }
}

fn format(yaml: &mut String, indent: usize, format: IdFormat) {
    if format != IdFormat::Any {
        line(yaml, indent, "id_format", &quoted(&format.to_string()));
    }
}

/// Writes description and docs, if they differ from the default's.
fn texts(yaml: &mut String, indent: usize, rule: &Rule, default: Option<&Rule>) {
    let fields = [
        ("description", &rule.description, default.map(|default| &default.description)),
        ("docs", &rule.docs, default.map(|default| &default.docs)),
    ];
    for (field, text, known) in fields {
        if let Some(text) = text
            && known != Some(&Some(text.clone()))
        {
            line(yaml, indent, field, &quoted(text));
        }
    }
}

fn line(yaml: &mut String, indent: usize, field: &str, value: &str) {
    let separator = if value.is_empty() { "" } else { " " };
    put(yaml, indent, format_args!("{field}:{separator}{value}"));
}

fn put(yaml: &mut String, indent: usize, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(yaml, "{:indent$}{text}", "");
}

/// Writes a string so that all versions of YAML agree on it: a word is plain, others are quoted.
fn quoted(text: &str) -> String {
    // Some parsers take these for a boolean, null or a number.
    const TAKEN: [&str; 14] = [
        "true", "false", "yes", "no", "on", "off", "y", "n", "null", "none", "nan", "inf",
        "infinity", "e",
    ];
    let is_word = text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        && !TAKEN.iter().any(|taken| taken.eq_ignore_ascii_case(text));
    if is_word {
        return text.to_owned();
    }
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            // Others are written as they are, unless they are invisible, break the line or
            // change the direction of text.
            ' '..='~' => quoted.push(letter),
            _ if letter.is_alphanumeric() => quoted.push(letter),
            _ => {
                let _ = write!(quoted, "\\U{:08x}", u32::from(letter));
            }
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_other_than_words_are_quoted() {
        for (text, yaml) in [
            ("NewOrders", "NewOrders"),
            ("example.com", "example.com"),
            ("le1.wtf", "le1.wtf"),
            ("new orders", "\"new orders\""),
            ("10.0.0.1", "\"10.0.0.1\""),
            ("2001:db8::1", "\"2001:db8::1\""),
            ("", "\"\""),
            ("Yes", "\"Yes\""),
            ("a\"\\\n", "\"a\\\"\\\\\\U0000000a\""),
            ("größe", "\"größe\""),
            ("\u{2028}\u{feff}", "\"\\U00002028\\U0000feff\""),
            ("-", "\"-\""),
            ("<<", "\"<<\""),
        ] {
            assert_eq!(quoted(text), yaml, "{text:?}");
        }
    }
}
