//! Which limiter a client falls under, if any.

use std::net::IpAddr;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::prefixes::PrefixSet;

/// Whom a limiter stands before.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    /// The name that clients ask for; case does not matter.
    pub name: String,
    /// Other names that share the limiter.
    pub aliases: Vec<String>,
    /// Takes everybody whose name no selector has, and those who name none. The plugin writes `*` or `default`.
    pub default: bool,
}

/// Addresses that a limiter treats apart from all others.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lists {
    /// Clients that pass without being counted.
    pub allow: PrefixSet,
    /// Clients that are always refused.
    pub deny: PrefixSet,
}

/// What the lists say of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The limiter decides.
    Limited,
    /// It passes and is not counted.
    Exempt,
    /// It is refused.
    Denied,
}

impl Lists {
    /// What the lists say of `address`. An address on both lists is refused: an allowed range may have a hole.
    #[must_use]
    pub fn access(&self, address: IpAddr) -> Access {
        if self.deny.contains(address) {
            Access::Denied
        } else if self.allow.contains(address) {
            Access::Exempt
        } else {
            Access::Limited
        }
    }
}

/// Selectors by the names they answer to.
#[derive(Clone, Debug)]
pub struct Selectors {
    all: Vec<Selector>,
    /// Names in lower case. Keyed per process: clients choose what is looked up.
    by_name: HashMap<Box<str>, usize, RandomState>,
    default: Option<usize>,
}

impl Selectors {
    /// Of two selectors with one name, or two that take everybody else, the first stands; a configuration has no such.
    #[must_use]
    pub fn new(selectors: Vec<Selector>) -> Self {
        let mut by_name = HashMap::with_hasher(RandomState::default());
        for (place, selector) in selectors.iter().enumerate() {
            for name in core::iter::once(&selector.name).chain(&selector.aliases).filter(|name| !name.is_empty()) {
                by_name.entry(name.to_ascii_lowercase().into_boxed_str()).or_insert(place);
            }
        }
        let default = selectors.iter().position(|selector| selector.default);
        Self { all: selectors, by_name, default }
    }

    /// The place of the selector for the name that a client asked for; `None` if there is none for it.
    ///
    /// A trailing dot does not make another name, nor does case: both would be ways around a limit.
    #[must_use]
    pub fn find(&self, name: Option<&str>) -> Option<usize> {
        let own = name.and_then(|name| {
            let name = name.strip_suffix('.').unwrap_or(name);
            let found = self.by_name.get(name);
            // Most clients write small letters: only others pay for a copy.
            found.or_else(|| self.by_name.get(name.to_ascii_lowercase().as_str()))
        });
        own.copied().or(self.default)
    }

    /// The selectors, in the order given.
    #[must_use]
    pub fn all(&self) -> &[Selector] {
        &self.all
    }
}

#[cfg(test)]
mod tests {
    use super::super::prefixes::Prefix;
    use super::*;

    fn named(name: &str, aliases: &[&str]) -> Selector {
        Selector {
            name: name.to_owned(),
            aliases: aliases.iter().map(|&alias| alias.to_owned()).collect(),
            ..Selector::default()
        }
    }

    #[test]
    fn aliases_share_a_limiter_and_others_fall_to_the_default() {
        let default = Selector { default: true, ..Selector::default() };
        let selectors = Selectors::new(vec![named("a.example", &["www.a.example"]), named("b.example", &[]), default]);
        for (name, place) in [
            (Some("a.example"), 0),
            (Some("www.a.example"), 0),
            (Some("B.Example"), 1),
            (Some("b.example."), 1),
            (Some("c.example"), 2),
            (Some(""), 2),
            (None, 2),
        ] {
            assert_eq!(selectors.find(name), Some(place), "{name:?}");
        }
    }

    #[test]
    fn without_a_default_other_names_are_not_limited() {
        let selectors = Selectors::new(vec![named("a.example", &[])]);
        assert_eq!((selectors.find(Some("b.example")), selectors.find(None)), (None, None));
    }

    #[test]
    fn a_hole_in_an_allowed_range_is_refused() {
        let range = |network: &str, bits| Prefix::new(network.parse().unwrap(), bits).unwrap();
        let lists = Lists {
            allow: [range("10.0.0.0", 8)].into_iter().collect(),
            deny: [range("10.6.6.6", 32)].into_iter().collect(),
        };
        assert_eq!(lists.access("10.1.1.1".parse().unwrap()), Access::Exempt);
        assert_eq!(lists.access("10.6.6.6".parse().unwrap()), Access::Denied);
        assert_eq!(lists.access("11.0.0.1".parse().unwrap()), Access::Limited);
    }
}
