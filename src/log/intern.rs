//! Texts as numbers.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

/// Texts, each once, numbered in order of appearance.
#[derive(Clone, Debug, Default)]
pub(super) struct Interner {
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
    text: String,
    /// Where each text ends in `text`.
    ends: Vec<usize>,
}

impl Interner {
    /// The number of a text, which is a new one for a new text.
    #[inline]
    pub fn code(&mut self, wanted: &str) -> u32 {
        let Interner { table, hasher, text, ends } = self;
        let hash = hasher.hash_one(wanted);
        if let Some(&code) = table.find(hash, |&code| at(text, ends, code) == wanted) {
            return code;
        }
        // Ids of 2^32 clients would fill any memory long before their number did not fit.
        let code = u32::try_from(ends.len()).unwrap_or(u32::MAX);
        text.push_str(wanted);
        ends.push(text.len());
        table.insert_unique(hash, code, |&code| hasher.hash_one(at(text, ends, code)));
        code
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The texts from number `first` on.
    pub fn from(&self, first: usize) -> impl Iterator<Item = &str> {
        (first..self.ends.len()).map(|place| at(&self.text, &self.ends, place as u32))
    }

    pub fn clear(&mut self) {
        self.table.clear();
        self.text.clear();
        self.ends.clear();
    }
}

fn at<'a>(text: &'a str, ends: &[usize], code: u32) -> &'a str {
    let place = code as usize;
    let start = if place == 0 { 0 } else { ends[place - 1] };
    &text[start..ends[place]]
}
