//! A device and its classes as an operator wants them; already checked.

use core::net::IpAddr;
use core::ops::RangeInclusive;
use core::time::Duration;
use std::path::PathBuf;

use serde::Serialize;

use super::class_id::ClassId;
use super::line_rate::LineRate;

/// Classes of a device at most.
pub const CLASSES_MAX: usize = 256;

/// Whose the tree is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Ours: built, changed and cleared by us.
    Own,
    /// Somebody else's: its classes are only read, and their queues are kept short.
    Attach,
}

/// What keeps the queues of classes short.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Control {
    /// Nothing.
    Off,
    /// The window of a class follows the integral of its queue's error.
    Integral,
    /// The window of a class is cut by the share of packets that met a queue.
    Dctcp,
}

/// A device whose traffic is shaped as it leaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// As in `ip link`.
    pub name: String,
    /// File of its network namespace. `None`: our own.
    pub namespace: Option<PathBuf>,
    /// Whose the tree is.
    pub mode: Mode,
    /// Of all classes together.
    pub rate: Option<LineRate>,
    /// Of all classes.
    pub control: Control,
    /// Whether each class sends sparse flows ahead of the others.
    pub isolation: bool,
    /// How long a packet may wait; the setpoint of the control.
    pub delay: Duration,
    /// Whether marks of the network are taken as congestion too.
    pub ecn: bool,
    /// Where packets go that no class matches; an index into `classes`. `None`: they are not shaped.
    pub default_class: Option<usize>,
    /// At most [`CLASSES_MAX`].
    pub classes: Vec<Class>,
}

/// A class of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Class {
    /// Unique on its device.
    pub name: String,
    /// Guaranteed. In a tree of somebody else `None` means: what the kernel says.
    pub rate: Option<LineRate>,
    /// With what others leave. At least `rate`.
    pub ceil: Option<LineRate>,
    /// Whose rest it may use; an index into the device's classes.
    pub parent: Option<usize>,
    /// In a tree of somebody else.
    pub classid: Option<ClassId>,
    /// Any of these puts a packet here.
    pub matches: Vec<Match>,
}

impl Device {
    /// Whether other classes use the rest of class `index`: such a class carries no packets itself.
    #[must_use]
    pub fn has_children(&self, index: usize) -> bool {
        self.classes.iter().any(|class| class.parent == Some(index))
    }
}

/// What packets go into a class; all that is given must hold.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Match {
    /// Of the socket: this cgroup, or one below it.
    pub cgroup: Option<PathBuf>,
    /// `skb->mark`.
    pub mark: Option<Mark>,
    /// Where it comes from.
    pub source: Option<Prefix>,
    /// Where it goes.
    pub destination: Option<Prefix>,
    /// Of its transport.
    pub protocol: Option<Protocol>,
    /// Its own or the peer's port.
    pub ports: Option<RangeInclusive<u16>>,
    /// The outermost VLAN.
    pub vlan: Option<u16>,
}

/// A mark and the bits of it that count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// Only bits of the mask.
    pub value: u32,
    /// Which bits count.
    pub mask: u32,
}

/// A transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// Held by its window.
    Tcp,
    /// Shaped only.
    Udp,
}

/// Addresses with the same first bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    /// Its first one.
    pub address: IpAddr,
    /// Bits that are the same.
    pub length: u8,
}

impl Prefix {
    /// From `10.0.0.0/8` or an address; `None` for what is neither, or has bits beyond its length.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address.parse().ok()?, Some(length.parse().ok()?)),
            None => (text.parse().ok()?, None),
        };
        let (bits, most) = match address {
            IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
            IpAddr::V6(address) => (address.to_bits(), 128),
        };
        let length: u8 = length.unwrap_or(most);
        let beyond = bits.checked_shl(length.into()).unwrap_or(0);
        (length <= most && beyond == 0).then_some(Self { address, length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_have_no_bits_beyond_their_length() {
        let read = |text: &str| Prefix::parse(text).map(|prefix| (prefix.address.to_string(), prefix.length));
        assert_eq!(read("10.0.0.0/8"), Some(("10.0.0.0".to_owned(), 8)));
        assert_eq!(read("10.1.2.3"), Some(("10.1.2.3".to_owned(), 32)));
        assert_eq!(read("0.0.0.0/0"), Some(("0.0.0.0".to_owned(), 0)));
        assert_eq!(read("fd00::/16"), Some(("fd00::".to_owned(), 16)));
        assert_eq!(read("::1"), Some(("::1".to_owned(), 128)));
        for text in ["10.0.0.1/8", "10.0.0.0/33", "fd00::1/64", "x", "10.0.0.0/", "10.0.0.0/-1"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
