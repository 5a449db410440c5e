//! Names of topics and channels.

use std::fmt;
use std::sync::Arc;

/// Longest name, with its suffix.
const LONGEST: usize = 64;
const EPHEMERAL: &str = "#ephemeral";

/// A name that is not 1 to 64 of `.a-zA-Z0-9_-`, optionally ending in `#ephemeral`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a name is 1 to 64 of the characters . a-z A-Z 0-9 _ - and may end in #ephemeral")]
pub struct BadName;

fn is_valid(name: &str) -> bool {
    let stem = name.strip_suffix(EPHEMERAL).unwrap_or(name);
    !stem.is_empty()
        && name.len() <= LONGEST
        && stem.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks `name` against the protocol's rule.
            ///
            /// # Errors
            /// [`BadName`] if it breaks it.
            pub fn new(name: &str) -> Result<Self, BadName> {
                if is_valid(name) { Ok(Self(name.into())) } else { Err(BadName) }
            }

            /// The same, from bytes as they came.
            ///
            /// # Errors
            /// [`BadName`] if it breaks the rule.
            pub fn from_bytes(name: &[u8]) -> Result<Self, BadName> {
                std::str::from_utf8(name).map_err(|_| BadName).and_then(Self::new)
            }

            /// The name.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// True if it lives only as long as somebody uses it.
            #[must_use]
            pub fn is_ephemeral(&self) -> bool {
                self.0.ends_with(EPHEMERAL)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name_type! {
    /// The name of a topic.
    TopicName
}
name_type! {
    /// The name of a channel.
    ChannelName
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_protocol() {
        for good in ["a", "a.b_c-D9", "x#ephemeral", &"n".repeat(64)] {
            assert!(TopicName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "#ephemeral", "a b", "a#eph", "é", &"n".repeat(65), &format!("{}#ephemeral", "n".repeat(55))] {
            assert!(TopicName::new(bad).is_err(), "{bad}");
        }
    }
}
