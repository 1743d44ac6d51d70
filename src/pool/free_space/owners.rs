//! Sets of owners, and maps from them. An owner's number is small and serves again, so a set is a bit for each number.

use super::Owner;

/// A set of owners. A change costs the same for any number of owners, and a loop looks at 64 of them together.
#[derive(Debug, Clone, Default)]
pub struct OwnerSet(Vec<u64>);

impl OwnerSet {
    /// Adds an owner, or takes it out.
    #[inline]
    pub fn set(&mut self, owner: Owner, is_in: bool) {
        let (word, bit) = (owner.0 as usize / 64, 1 << (owner.0 % 64));
        match self.0.get_mut(word) {
            Some(bits) if is_in => *bits |= bit,
            Some(bits) => *bits &= !bit,
            None if is_in => {
                self.0.resize(word + 1, 0);
                self.0[word] = bit;
            }
            None => {}
        }
    }

    /// Whether the owner is in the set.
    #[inline]
    pub fn has(&self, owner: Owner) -> bool {
        let bits = self.0.get(owner.0 as usize / 64);
        bits.is_some_and(|bits| bits & 1 << (owner.0 % 64) != 0)
    }

    /// The owner with the lowest number of at least `from`.
    #[inline]
    fn at_or_after(&self, from: u32) -> Option<Owner> {
        let mut word = from as usize / 64;
        let mut bits = self.0.get(word)? & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            bits = *self.0.get(word)?;
        }
        Some(Owner(word as u32 * 64 + bits.trailing_zeros()))
    }

    /// The owner whose turn comes after that of `last`, the first one after the last.
    pub fn next_after(&self, last: Option<Owner>) -> Option<Owner> {
        let after = last.map_or(0, |owner| owner.0 + 1);
        self.at_or_after(after).or_else(|| self.at_or_after(0))
    }

    /// All of them, by number.
    pub fn iter(&self) -> impl Iterator<Item = Owner> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let owner = self.at_or_after(from)?;
            from = owner.0 + 1;
            Some(owner)
        })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.iter().map(|bits| bits.count_ones() as usize).sum()
    }
}

/// Something for each of some owners.
pub struct OwnerMap<T> {
    slots: Vec<Option<T>>,
    owners: OwnerSet,
}

impl<T> Default for OwnerMap<T> {
    fn default() -> OwnerMap<T> {
        OwnerMap {
            slots: Vec::new(),
            owners: OwnerSet::default(),
        }
    }
}

impl<T> OwnerMap<T> {
    /// Sets what an owner has.
    pub fn insert(&mut self, owner: Owner, value: T) {
        let at = owner.0 as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        self.slots[at] = Some(value);
        self.owners.set(owner, true);
    }

    /// Takes out what an owner has.
    pub fn remove(&mut self, owner: Owner) -> Option<T> {
        self.owners.set(owner, false);
        self.slots.get_mut(owner.0 as usize)?.take()
    }

    /// What an owner has.
    #[inline]
    pub fn get(&self, owner: Owner) -> Option<&T> {
        self.slots.get(owner.0 as usize)?.as_ref()
    }

    /// What an owner has.
    #[inline]
    pub fn get_mut(&mut self, owner: Owner) -> Option<&mut T> {
        self.slots.get_mut(owner.0 as usize)?.as_mut()
    }

    /// The owners that have something, by number.
    pub fn owners(&self) -> impl Iterator<Item = Owner> {
        self.owners.iter()
    }

    /// How many owners have something.
    pub fn count(&self) -> usize {
        self.owners.count()
    }

    /// What each owner has.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::trace::random::Random;

    #[test]
    fn set_agrees_with_a_tree() {
        let (mut set, mut tree, mut random) = (OwnerSet::default(), BTreeSet::new(), Random::new(1));
        for _ in 0..5_000 {
            let owner = Owner(random.below(300) as u32);
            let is_in = random.below(3) == 0;
            set.set(owner, is_in);
            match is_in {
                true => tree.insert(owner),
                false => tree.remove(&owner),
            };
            assert_eq!(set.has(owner), is_in);
            let last = Owner(random.below(300) as u32);
            let after = tree.iter().copied().find(|owner| *owner > last);
            assert_eq!(set.next_after(Some(last)), after.or(tree.first().copied()));
            assert_eq!(set.next_after(None), tree.first().copied());
        }
        assert!(set.iter().eq(tree.iter().copied()));
        assert_eq!(set.count(), tree.len());
    }
}
