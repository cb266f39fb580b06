//! Numbering of ids in order of first occurrence.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

/// The bytes of an id that are kept in its slot: any IPv4 address, and the network of an IPv6 address.
const HEAD: usize = 24;

/// A set of ids, numbered from 0 in order of insertion.
#[derive(Clone, Debug, Default)]
pub struct Ids {
    table: HashTable<Slot>,
    hasher: DefaultHashBuilder,
    /// All ids, concatenated.
    bytes: Vec<u8>,
    /// The end of each id in `bytes`.
    ends: Vec<usize>,
}

/// An id in the table. A short id is found without a look at the ids themselves, which are not in the
/// cache if there are many.
#[derive(Clone, Debug)]
struct Slot {
    number: u32,
    /// The length of the id, or a larger number than `HEAD`.
    len: u32,
    /// The first bytes of the id, followed by zeros.
    head: [u8; HEAD],
}

impl Slot {
    fn new(number: u32, id: &[u8]) -> Slot {
        let mut head = [0; HEAD];
        let len = id.len().min(HEAD);
        head[..len].copy_from_slice(&id[..len]);
        Slot { number, len: u32::try_from(id.len()).unwrap_or(u32::MAX), head }
    }

    fn has_id_of(&self, other: &Slot) -> bool {
        self.len == other.len && self.head == other.head
    }
}

impl Ids {
    /// Returns the number of an id, or `None` if it was not added.
    pub fn find(&self, id: &[u8]) -> Option<u32> {
        self.find_slot(self.hasher.hash_one(id), &Slot::new(0, id), id)
    }

    fn find_slot(&self, hash: u64, wanted: &Slot, id: &[u8]) -> Option<u32> {
        let (bytes, ends) = (&self.bytes, &self.ends);
        let is_id = |slot: &Slot| {
            slot.has_id_of(wanted) && (id.len() <= HEAD || stored(bytes, ends, slot.number) == id)
        };
        self.table.find(hash, is_id).map(|slot| slot.number)
    }

    /// Returns the number of an id and adds the id if it is new. `None` if no number is left.
    pub fn number(&mut self, id: &[u8]) -> Option<u32> {
        let hash = self.hasher.hash_one(id);
        let mut slot = Slot::new(0, id);
        if let Some(number) = self.find_slot(hash, &slot, id) {
            return Some(number);
        }
        slot.number = u32::try_from(self.ends.len()).ok().filter(|&number| number < u32::MAX)?;
        let number = slot.number;
        self.bytes.extend_from_slice(id);
        self.ends.push(self.bytes.len());
        let (bytes, ends, hasher) = (&self.bytes, &self.ends, &self.hasher);
        self.table
            .insert_unique(hash, slot, |slot| hasher.hash_one(stored(bytes, ends, slot.number)));
        Some(number)
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
    fn ids_that_begin_alike_are_different() {
        let long = [b'a'; 3 * HEAD];
        let mut other = long;
        other[3 * HEAD - 1] = b'b';
        let mut ids = Ids::default();
        // The prefixes have every length around the one that fits into a slot.
        let all = (0..long.len()).map(|len| &long[..len]).chain([&long[..], &other[..], b"a\0"]);
        for (number, id) in all.clone().enumerate() {
            assert_eq!((ids.find(id), ids.number(id)), (None, Some(number as u32)));
        }
        assert!(all.enumerate().all(|(number, id)| ids.find(id) == Some(number as u32)));
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
