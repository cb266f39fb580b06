//! What was perhaps meant.

/// The word nearest to `found`, if one is near enough to have been meant: a third of its letters
/// apart, at most.
pub(super) fn nearest<'w>(
    found: &str,
    words: impl IntoIterator<Item = &'w str>,
) -> Option<&'w str> {
    // Beyond this no word of ours is near, and the time grows with the product of the lengths.
    if found.len() > 100 {
        return None;
    }
    let found: Vec<char> = found.chars().flat_map(char::to_lowercase).collect();
    let near = |word: &'w str| {
        let letters: Vec<char> = word.chars().flat_map(char::to_lowercase).collect();
        let apart = distance(&found, &letters);
        (apart <= letters.len().max(3) / 3).then_some((apart, word))
    };
    words.into_iter().filter_map(near).min_by_key(|&(apart, _)| apart).map(|(_, word)| word)
}

/// How many letters must be put in, taken out or replaced, two neighbours in wrong order counting
/// once.
fn distance(one: &[char], other: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (row, letter) in one.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, same) in other.iter().enumerate() {
            let replaced = last[column] + usize::from(letter != same);
            let mut least = replaced.min(last[column + 1] + 1).min(current[column] + 1);
            if row > 0 && column > 0 && one[row - 1] == *same && *letter == other[column - 1] {
                least = least.min(before[column - 1] + 1);
            }
            current.push(least);
        }
        before = std::mem::replace(&mut last, current);
    }
    last[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_word_and_nothing_else_does() {
        let words = ["burst", "count", "period", "drip_rate", "drip_size"];
        for (found, meant) in [
            ("bursts", Some("burst")),
            ("brust", Some("burst")),
            ("Count", Some("count")),
            ("perod", Some("period")),
            ("drip_rat", Some("drip_rate")),
            ("driprate", Some("drip_rate")),
            ("rate", None),
            ("", None),
            ("limit", None),
        ] {
            assert_eq!(nearest(found, words), meant, "{found}");
        }
        assert_eq!(nearest(&"burst".repeat(1_000_000), words), None);
    }
}
