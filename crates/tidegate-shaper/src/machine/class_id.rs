//! How the kernel names a class: a qdisc's handle and a number below it.

use core::fmt;
use core::str::FromStr;

use serde::{Serialize, Serializer};

/// `major:minor` of a qdisc or class, 16 bits each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClassId(pub u32);

impl ClassId {
    /// The parent of what hangs on the device itself.
    pub const ROOT: Self = Self(u32::MAX);

    /// `major:minor`.
    #[must_use]
    pub const fn new(major: u16, minor: u16) -> Self {
        Self((major as u32) << 16 | minor as u32)
    }

    /// The qdisc's part.
    #[must_use]
    pub const fn major(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The number below the qdisc; 0 for the qdisc itself.
    #[must_use]
    pub const fn minor(self) -> u16 {
        (self.0 & 0xffff) as u16
    }
}

impl fmt::Display for ClassId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self, self.minor()) {
            (Self::ROOT, _) => f.write_str("root"),
            (_, 0) => write!(f, "{:x}:", self.major()),
            (_, minor) => write!(f, "{:x}:{minor:x}", self.major()),
        }
    }
}

impl Serialize for ClassId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// A text that names no class.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{found}` is not a class such as \"1:10\", two hexadecimal numbers up to ffff")]
pub struct NotAClassId {
    /// The text.
    pub found: String,
}

impl FromStr for ClassId {
    type Err = NotAClassId;

    fn from_str(text: &str) -> Result<Self, NotAClassId> {
        let read = || {
            let (major, minor) = text.split_once(':')?;
            let (major, minor) = (u16::from_str_radix(major, 16).ok()?, u16::from_str_radix(minor, 16).ok()?);
            (major > 0 && minor > 0).then_some(Self::new(major, minor))
        };
        read().ok_or_else(|| NotAClassId { found: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_as_tc_writes_them() {
        let id: ClassId = "71de:20".parse().unwrap();
        assert_eq!((id.major(), id.minor(), id.to_string()), (0x71de, 0x20, "71de:20".to_owned()));
        assert_eq!(ClassId::new(0x71de, 0).to_string(), "71de:");
        for text in ["", "1", "1:", ":1", "0:1", "1:0", "10000:1", "1:g", "1:1:1"] {
            assert!(text.parse::<ClassId>().is_err(), "{text}");
        }
    }
}
