//! Parses YAML into a tree with line numbers.
//!
//! Two parsers read the text. saphyr-parser returns each scalar as written and its line, so that
//! an id such as `0123` or `1e5` is kept. serde_yaml, which has neither, determines whether a
//! scalar is a number, a string or null. If they disagree, the text is refused, because other
//! programs may also read it differently.

mod kinds;
mod spelling;

use std::borrow::Cow;

use crate::config::error::Fault;
use crate::engine::id::Excerpt;

/// The maximum depth of nested lists and mappings; a limits file needs five.
const DEEPEST: usize = 16;

/// A scalar, a list or a mapping, with its line.
#[derive(Debug)]
pub(super) struct Node<'t> {
    /// The line, from 1.
    pub line: u32,
    pub value: Value<'t>,
}

#[derive(Debug)]
pub(super) enum Value<'t> {
    /// Its kind and its text, without quotes and escapes.
    Scalar(ScalarKind, Cow<'t, str>),
    List(Vec<Node<'t>>),
    /// The keys and their values in order; a key may occur twice.
    Map(Vec<(Node<'t>, Node<'t>)>),
}

/// The kind of a scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScalarKind {
    Nothing,
    Truth,
    Whole,
    Fraction,
    Text,
}

/// A fault and its line, if it has one.
type Refusal = (Option<u32>, Fault);

/// Parses one YAML document.
///
/// # Errors
/// The line and the fault if the text is invalid YAML or not exactly one document, or if it uses
/// anchors, aliases, tags, control characters or deep nesting, which limits files do not need.
pub(super) fn read(text: &str) -> Result<Node<'_>, Refusal> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let is_control = |letter: char| match letter {
        '\t' | '\n' | '\r' => false,
        // In some versions of YAML these end a line, and therefore a comment.
        '\u{2028}' | '\u{2029}' | '\u{feff}' => true,
        _ => letter.is_control(),
    };
    if let Some((place, found)) = text.char_indices().find(|&(_, letter)| is_control(letter)) {
        let line = 1 + text[..place].bytes().filter(|&byte| byte == b'\n').count();
        let found = Excerpt::new(found.encode_utf8(&mut [0; 4]));
        return Err((Some(line as u32), Fault::ControlCharacter { found }));
    }
    let is_content =
        |line: &str| !matches!(line.trim(), "" | "---" | "...") && !line.trim().starts_with('#');
    if !text.lines().any(is_content) {
        return Err((None, Fault::Empty));
    }
    // In this order, because the second parser follows aliases, and its time grows with the
    // square of the depth.
    let mut tree = spelling::read(text)?;
    kinds::read(text, &mut tree)?;
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> (Option<u32>, Fault) {
        read(text).unwrap_err()
    }

    #[test]
    fn scalars_keep_their_text_and_line() {
        let text =
            "a: 0123\r\nb: [1e5,\n  0x10, true]\nc: \"0123\"\n\n# note\nd: 12:30\ne:\nf: ~\n";
        let Node { line: 1, value: Value::Map(pairs) } = read(text).unwrap() else {
            panic!("no mapping")
        };
        let mut scalars = Vec::new();
        for (key, value) in pairs {
            for node in [key, value] {
                let nodes = match node.value {
                    Value::List(nodes) => nodes,
                    _ => vec![node],
                };
                for node in nodes {
                    let Value::Scalar(kind, text) = node.value else { panic!("no scalar") };
                    scalars.push((node.line, kind, text.into_owned()));
                }
            }
        }
        let expected = [
            (1, ScalarKind::Text, "a"),
            (1, ScalarKind::Text, "0123"),
            (2, ScalarKind::Text, "b"),
            (2, ScalarKind::Fraction, "1e5"),
            (3, ScalarKind::Whole, "0x10"),
            (3, ScalarKind::Truth, "true"),
            (4, ScalarKind::Text, "c"),
            (4, ScalarKind::Text, "0123"),
            (7, ScalarKind::Text, "d"),
            (7, ScalarKind::Text, "12:30"),
            (8, ScalarKind::Text, "e"),
            (8, ScalarKind::Nothing, ""),
            (9, ScalarKind::Text, "f"),
            (9, ScalarKind::Nothing, "~"),
        ];
        assert_eq!(scalars, expected.map(|(line, kind, text)| (line, kind, text.to_owned())));
    }

    #[test]
    fn unsupported_syntax_is_refused_with_its_line() {
        assert!(matches!(fault("a: &x 1\nb: *x\n"), (Some(1), Fault::Alias)));
        assert!(matches!(fault("a: 1\nb: &x [1]\n"), (Some(2), Fault::Alias)));
        assert!(matches!(fault("a: 1\nb: !!str 1\n"), (Some(2), Fault::Tag)));
        assert!(matches!(fault("a: 1\nb: !mine 1\n"), (Some(2), Fault::Tag)));
        assert!(matches!(fault("a: 1\n---\nb: 1\n"), (Some(2), Fault::SecondDocument)));
        assert!(matches!(fault("a: 1\n...\n---\nb: 1\n"), (Some(3), Fault::SecondDocument)));
        assert!(matches!(fault("a: 1\nb: \"x\0\"\n"), (Some(2), Fault::ControlCharacter { .. })));
        for letter in ['\0', '\u{1b}', '\u{7f}', '\u{85}', '\u{2028}', '\u{2029}', '\u{feff}'] {
            let text = format!("a: 1\n# note{letter}b: 1\n");
            assert!(matches!(fault(&text), (Some(2), Fault::ControlCharacter { .. })), "{text:?}");
        }
        assert!(matches!(fault("a: 1\nb: [1\n"), (Some(_), Fault::Spelling { .. })));
        assert!(matches!(fault("a: b: c\n"), (Some(1), Fault::Spelling { .. })));
        assert!(matches!(fault(">\n,"), (Some(_), Fault::TwoReadings)));
        for text in ["", " \n", "# only this\n", "---\n", "---\n# note\n...\n", "\u{feff}"] {
            assert!(matches!(fault(text), (None, Fault::Empty)), "{text:?}");
        }
    }

    #[test]
    fn exponential_aliases_are_refused() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let alias = format!("*a{}, ", level - 1).repeat(9);
            bomb.push_str(&format!("a{level}: &a{level} [{alias}]\n"));
        }
        assert!(matches!(fault(&bomb), (_, Fault::Alias)));
        for (open, close) in [("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", ""), ("{", "}")] {
            for depth in [20, 900, 100_000] {
                let text = format!("{}x{}", open.repeat(depth), close.repeat(depth));
                assert!(read(&text).is_err(), "{open} {depth}");
            }
        }
    }
}
