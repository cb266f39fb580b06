//! Ids as numbers: each is given its own at its first event.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

/// A table of ids, each once, in the order of their first events.
#[derive(Clone, Debug, Default)]
pub struct Ids {
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// All ids, one behind the other, and where each ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Ids {
    /// The number of an id; `None` if it was not added.
    pub fn find(&self, id: &[u8]) -> Option<u32> {
        let is_id = |&number: &u32| stored(&self.bytes, &self.ends, number) == id;
        self.table.find(self.hasher.hash_one(id), is_id).copied()
    }

    /// The number of an id, which is added if it is new; `None` if there are 2^32 already.
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

    /// The id with a number; `None` if there is none.
    pub fn get(&self, number: usize) -> Option<&[u8]> {
        (number < self.ends.len()).then(|| stored(&self.bytes, &self.ends, number as u32))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Forgets all ids, and keeps their memory.
    pub fn clear(&mut self) {
        self.table.clear();
        self.bytes.clear();
        self.ends.clear();
    }

    /// The ids, by their numbers.
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
    fn each_id_is_numbered_at_its_first_event() {
        let mut ids = Ids::default();
        let numbers =
            [&b"ada"[..], b"grace", b"ada", b"", b"gra", b"ce", b""].map(|id| ids.number(id));
        assert_eq!(numbers, [0, 1, 0, 2, 3, 4, 2].map(Some));
        assert_eq!(ids.iter().collect::<Vec<_>>(), [&b"ada"[..], b"grace", b"", b"gra", b"ce"]);
    }

    #[test]
    fn a_table_that_grows_forgets_none() {
        let mut ids = Ids::default();
        for round in 0..2 {
            for number in 0..10_000_u32 {
                assert_eq!(ids.number(&number.to_le_bytes()), Some(number), "round {round}");
            }
        }
        assert_eq!(ids.len(), 10_000);
    }
}
