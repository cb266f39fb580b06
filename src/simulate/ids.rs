//! Numbering of ids in order of first occurrence.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

/// A set of ids, numbered from 0 in order of insertion.
#[derive(Clone, Debug, Default)]
pub struct Ids {
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// All ids, concatenated.
    bytes: Vec<u8>,
    /// The end of each id in `bytes`.
    ends: Vec<usize>,
}

impl Ids {
    /// Returns the number of an id, or `None` if it was not added.
    pub fn find(&self, id: &[u8]) -> Option<u32> {
        let is_id = |&number: &u32| stored(&self.bytes, &self.ends, number) == id;
        self.table.find(self.hasher.hash_one(id), is_id).copied()
    }

    /// Returns the number of an id and adds the id if it is new. `None` if no number is left.
    pub fn number(&mut self, id: &[u8]) -> Option<u32> {
        let hash = self.hasher.hash_one(id);
        let (bytes, ends) = (&self.bytes, &self.ends);
        if let Some(&number) = self.table.find(hash, |&number| stored(bytes, ends, number) == id) {
            return Some(number);
        }
        let number = u32::try_from(self.ends.len()).ok().filter(|&number| number < u32::MAX)?;
        self.bytes.extend_from_slice(id);
        self.ends.push(self.bytes.len());
        let (bytes, ends, hasher) = (&self.bytes, &self.ends, &self.hasher);
        self.table
            .insert_unique(hash, number, |&number| hasher.hash_one(stored(bytes, ends, number)));
        Some(number)
    }

    /// Returns the id with a number, or `None` if there is none.
    pub fn get(&self, number: usize) -> Option<&[u8]> {
        (number < self.ends.len()).then(|| stored(&self.bytes, &self.ends, number as u32))
    }

    /// Returns the number of ids.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are no ids.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Removes all ids, and keeps the allocated memory.
    pub fn clear(&mut self) {
        self.table.clear();
        self.bytes.clear();
        self.ends.clear();
    }

    /// Iterates over the ids by number.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.ends.len() as u32).map(|number| stored(&self.bytes, &self.ends, number))
    }
}

#[inline(always)]
fn stored<'a>(bytes: &'a [u8], ends: &[usize], number: u32) -> &'a [u8] {
    let number = number as usize;
    let start = if number == 0 { 0 } else { ends[number - 1] };
    &bytes[start..ends[number]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_numbered_in_order_of_first_occurrence() {
        let mut ids = Ids::default();
        let numbers =
            [&b"ada"[..], b"grace", b"ada", b"", b"gra", b"ce", b""].map(|id| ids.number(id));
        assert_eq!(numbers, [0, 1, 0, 2, 3, 4, 2].map(Some));
        assert_eq!(ids.iter().collect::<Vec<_>>(), [&b"ada"[..], b"grace", b"", b"gra", b"ce"]);
    }

    #[test]
    fn numbers_are_kept_as_the_table_grows() {
        let mut ids = Ids::default();
        for round in 0..2 {
            for number in 0..10_000_u32 {
                assert_eq!(ids.number(&number.to_le_bytes()), Some(number), "round {round}");
            }
        }
        assert_eq!(ids.len(), 10_000);
    }
}
