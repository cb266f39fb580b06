//! Patterns: conditions on fields, and values that only matter by the patterns that they match.

use std::collections::HashMap;

/// The maximum number of patterns of a field.
pub const MAX_PATTERNS: usize = 64;

/// Fields of an id of which only the matching patterns matter, such as a path that routes select by.
///
/// Values that match the same patterns are replaced by the first of them, so that the number of ids grows
/// with the patterns and not with the values.
#[derive(Clone, Debug, Default)]
pub struct Classes {
    fields: Vec<(usize, Vec<String>)>,
    /// For each field, the first value that matches a set of patterns, as bits.
    first: Vec<HashMap<u64, String>>,
}

impl Classes {
    /// Creates the classes of fields, each with its index in the id and its patterns, in which `*` stands for
    /// any text and `?` for any character.
    #[must_use]
    pub fn new(fields: Vec<(usize, Vec<String>)>) -> Classes {
        let first = fields.iter().map(|_| HashMap::new()).collect();
        Classes { fields, first }
    }

    /// Returns whether a field has classes.
    #[must_use]
    pub fn has(&self, field: usize) -> bool {
        self.fields.iter().any(|(index, _)| *index == field)
    }

    /// Returns the first value of the same class; the value itself if the field has no classes.
    pub fn representative<'a>(&'a mut self, field: usize, value: &'a str) -> &'a str {
        let Some(at) = self.fields.iter().position(|(index, _)| *index == field) else {
            return value;
        };
        let patterns = &self.fields[at].1;
        let bits = patterns.iter().enumerate().fold(0_u64, |bits, (index, pattern)| {
            bits | u64::from(matches(value, pattern)) << index
        });
        self.first[at].entry(bits).or_insert_with(|| value.to_owned())
    }
}

/// A condition on a field.
#[derive(Clone, Debug)]
pub struct Condition {
    /// The index of the field after those of the id.
    pub field: usize,
    /// Whether no pattern may match.
    pub is_negated: bool,
    /// The patterns, one of which must match.
    pub patterns: Vec<String>,
}

impl Condition {
    /// Returns whether the condition holds for a value.
    #[must_use]
    pub fn holds(&self, value: &str) -> bool {
        self.is_negated != self.patterns.iter().any(|pattern| matches(value, pattern))
    }
}

/// Returns whether a text matches a pattern, in which `*` stands for any text and `?` for any character.
#[must_use]
pub fn matches(text: &str, pattern: &str) -> bool {
    let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
    let (mut at, mut next) = (0, 0);
    // The last star, and the text that was left when it was found.
    let mut star: Option<(usize, usize)> = None;
    while at < text.len() {
        match pattern.get(next) {
            Some(b'*') => {
                star = Some((next, at));
                next += 1;
            }
            Some(b'?') => {
                at += width(text, at);
                next += 1;
            }
            Some(byte) if *byte == text[at] => {
                at += 1;
                next += 1;
            }
            _ => {
                // The last star takes one more character.
                let Some((position, begin)) = star else { return false };
                let begin = begin + width(text, begin);
                star = Some((position, begin));
                (at, next) = (begin, position + 1);
            }
        }
    }
    pattern[next..].iter().all(|&byte| byte == b'*')
}

/// Returns the number of bytes of the character at a position.
fn width(text: &[u8], at: usize) -> usize {
    let rest = text[at + 1..].iter().take_while(|&&byte| byte & 0xc0 == 0x80).count();
    1 + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_stand_for_text_and_characters() {
        for (text, pattern, expected) in [
            ("/order/7", "/order/*", true),
            ("/orders", "/order/*", false),
            ("/a/b/c", "/*/c", true),
            ("/a/b/cd", "/*/c", false),
            ("é", "?", true),
            ("éé", "?", false),
            ("aXbXc", "a*X?", true),
            ("", "*", true),
            ("", "", true),
            ("a", "", false),
            ("[ab]", "[ab]", true),
            ("a", "[ab]", false),
        ] {
            assert_eq!(matches(text, pattern), expected, "{text} {pattern}");
        }
    }

    #[test]
    fn values_that_match_the_same_patterns_are_one() {
        let mut classes = Classes::new(vec![(1, vec!["/order/*".into(), "*.css".into()])]);
        let found = ["/order/1", "/order/2", "/order/x.css", "/", "/y"]
            .map(|value| classes.representative(1, value).to_owned());
        assert_eq!(found, ["/order/1", "/order/1", "/order/x.css", "/", "/"]);
        assert_eq!(classes.representative(0, "/order/2"), "/order/2");
    }
}
