//! Conditions on fields.

/// A condition on a field.
#[derive(Clone, Debug)]
pub struct Condition {
    /// The slot of the field.
    pub slot: usize,
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

/// Returns whether a value matches a pattern, in which `*` stands for any characters and `?` for one.
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
}
