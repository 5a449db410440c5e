//! The methods that calls are told apart by.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// Methods told apart; calls of further ones are of none.
const METHODS: u8 = 63;
/// A longer name is none.
const NAME_BYTES: usize = 256;

/// Numbers of methods, in the order in which they were first called.
#[derive(Default, Debug)]
pub(super) struct Methods(HashMap<Box<str>, u8, RandomState>);

impl Methods {
    /// The number of the method of that name, from 1 on; 0 if it has none, or if too many others came first.
    pub(super) fn number(&mut self, name: Option<&str>) -> u8 {
        let Some(name) = name.filter(|name| name.len() <= NAME_BYTES) else { return 0 };
        if let Some(number) = self.0.get(name) {
            return *number;
        }
        let next = u8::try_from(self.0.len()).map_or(u8::MAX, |known| known + 1);
        if next > METHODS {
            return 0;
        }
        self.0.insert(name.into(), next);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_numbered_as_they_come_and_are_bounded() {
        let mut methods = Methods::default();
        assert_eq!([Some("/a/B"), Some("/a/C"), Some("/a/B"), None].map(|name| methods.number(name)), [1, 2, 1, 0]);
        assert_eq!(methods.number(Some(&"x".repeat(257))), 0);
        let numbers: Vec<u8> = (0..100).map(|i| methods.number(Some(&format!("/m/{i}")))).collect();
        assert_eq!((numbers[60], numbers[61], numbers[99]), (63, 0, 0));
        assert_eq!(methods.number(Some("/a/C")), 2);
    }
}
