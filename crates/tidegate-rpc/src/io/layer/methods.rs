//! The methods that calls are told apart by.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// Methods told apart; calls of further ones are of none.
const METHODS: u8 = 63;
/// A longer name is none.
const NAME_BYTES: usize = 256;

/// Numbers of methods, in the order in which they were first answered.
#[derive(Default, Debug)]
pub(super) struct Methods(HashMap<Box<str>, u8, RandomState>);

impl Methods {
    /// The number of the method of that name, from 1 on; 0 if it has none and will get none, since it has no name or too many
    /// others came first; `None` if [`Methods::name`] is due once a call of it was answered.
    pub(super) fn number(&self, name: Option<&str>) -> Option<u8> {
        let Some(name) = name.filter(|name| name.len() <= NAME_BYTES) else { return Some(0) };
        let number = self.0.get(name).copied();
        if number.is_none() && self.0.len() >= METHODS.into() { Some(0) } else { number }
    }

    /// There is such a method. Names that callers invent shall not take the places of those that there are.
    pub(super) fn name(&mut self, name: &str) {
        if self.number(Some(name)).is_none() {
            let next = u8::try_from(self.0.len() + 1).expect("at most METHODS");
            self.0.insert(name.into(), next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_numbered_as_they_are_answered_and_are_bounded() {
        let mut methods = Methods::default();
        assert_eq!((methods.number(Some("/a/B")), methods.number(None)), (None, Some(0)));
        for name in ["/a/B", "/a/C", "/a/B"] {
            methods.name(name);
        }
        assert_eq!(["/a/B", "/a/C"].map(|name| methods.number(Some(name))), [Some(1), Some(2)]);
        assert_eq!(methods.number(Some(&"x".repeat(257))), Some(0));
        (0..100).for_each(|i| methods.name(&format!("/m/{i}")));
        let numbers: Vec<Option<u8>> = (0..100).map(|i| methods.number(Some(&format!("/m/{i}")))).collect();
        assert_eq!((numbers[60], numbers[61], numbers[99]), (Some(63), Some(0), Some(0)));
        assert_eq!(methods.number(Some("/a/C")), Some(2));
    }
}
