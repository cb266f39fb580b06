//! Suggests the intended word for a typo.

/// Returns the word most similar to `found`, if at most a third of its letters differ.
pub(super) fn suggest<'w>(
    found: &str,
    words: impl IntoIterator<Item = &'w str>,
) -> Option<&'w str> {
    // No known word is that long, and the time grows with the product of the lengths.
    if found.len() > 100 {
        return None;
    }
    let found = found.to_lowercase();
    let distance = |word: &'w str| {
        let distance = strsim::osa_distance(&found, &word.to_lowercase());
        (distance <= word.chars().count().max(3) / 3).then_some((distance, word))
    };
    words
        .into_iter()
        .filter_map(distance)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_words_are_suggested() {
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
            assert_eq!(suggest(found, words), meant, "{found}");
        }
        assert_eq!(suggest(&"burst".repeat(1_000_000), words), None);
    }
}
