//! A device and its classes as an operator wants them; already checked.

use core::net::IpAddr;
use core::ops::RangeInclusive;
use core::time::Duration;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::class_id::ClassId;
use super::line_rate::LineRate;

/// Classes of a device at most.
pub const CLASSES_MAX: usize = 256;

/// Owner of a device's tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Ours: built, changed and cleared by us.
    #[default]
    Own,
    /// Somebody else's: its classes are only read, and their queues are kept short.
    Attach,
}

/// What keeps the queues of classes short.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Control {
    /// The window of a class follows the integral of its queue's error.
    #[default]
    Integral,
    /// The window of a class is cut by the share of packets that met a queue.
    Dctcp,
    /// Nothing.
    Off,
}

/// Where programs are attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Hook {
    /// At tcx where the kernel has it, else at clsact.
    #[default]
    Auto,
    /// At tcx or not at all.
    Tcx,
    /// At clsact, as before Linux 6.6.
    Clsact,
}

/// Where the queue of a class is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Occupancy {
    /// The first of the others that the kernel lets us have.
    #[default]
    Auto,
    /// From the kernel's own structures.
    Direct,
    /// Counted as packets enter and leave it.
    Tracepoint,
    /// Computed from the rate: the queue that a class would have.
    Virtual,
}

/// A device whose traffic is shaped as it leaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// As in `ip link`.
    pub name: String,
    /// File of its network namespace. `None`: our own.
    pub namespace: Option<PathBuf>,
    /// Owner of the tree.
    pub mode: Mode,
    /// Rate of all classes together.
    pub rate: Option<LineRate>,
    /// Control of all classes.
    pub control: Control,
    /// Whether each class sends sparse flows ahead of the others.
    pub isolation: bool,
    /// How long a packet may wait; the setpoint of the control.
    pub delay: Duration,
    /// Whether marks of the network are taken as congestion too.
    pub ecn: bool,
    /// Whether HTB sends a whole burst at each timer, on all devices of the host.
    pub batch_timers: bool,
    /// Where programs are attached.
    pub hook: Hook,
    /// Where queues are read.
    pub occupancy: Occupancy,
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
    /// Class that it borrows from; an index into the device's classes.
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

    /// Whether class `index` has something to borrow from.
    #[must_use]
    pub fn can_borrow(&self, index: usize) -> bool {
        self.rate.is_some() || self.classes[index].parent.is_some()
    }

    /// The device with other rates of a class. Without a `ceil` it stays if it was above the rate and still is; else it is the
    /// rate.
    ///
    /// # Errors
    /// If there is no such class of ours, or it could not send so.
    pub fn changed(&self, class: &str, rate: LineRate, ceil: Option<LineRate>) -> Result<Self, Unchangeable> {
        if self.mode == Mode::Attach {
            return Err(Unchangeable::NotOurs { device: self.name.clone() });
        }
        let index = self.classes.iter().position(|other| other.name == class);
        let no_class = || Unchangeable::NoClass { device: self.name.clone(), class: class.to_owned() };
        let index = index.ok_or_else(no_class)?;
        let before = &self.classes[index];
        let kept = before.ceil.filter(|ceil| Some(*ceil) > before.rate && *ceil >= rate);
        let ceil = ceil.or(kept).unwrap_or(rate);
        if ceil < rate {
            return Err(Unchangeable::CeilBelowRate { rate, ceil });
        }
        if ceil > rate && !self.can_borrow(index) {
            return Err(Unchangeable::NothingToBorrow);
        }
        let mut changed = self.clone();
        (changed.classes[index].rate, changed.classes[index].ceil) = (Some(rate), Some(ceil));
        Ok(changed)
    }
}

/// Why a device cannot be changed so.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unchangeable {
    /// There is no such class.
    #[error("{device} has no class `{class}`")]
    NoClass {
        /// The device.
        device: String,
        /// As asked.
        class: String,
    },
    /// The tree is somebody else's.
    #[error("the tree of {device} is not ours: its mode is \"attach\"")]
    NotOurs {
        /// The device.
        device: String,
    },
    /// The ceil is below the rate.
    #[error("the ceil {ceil} is below the rate {rate}")]
    CeilBelowRate {
        /// As asked.
        rate: LineRate,
        /// As asked.
        ceil: LineRate,
    },
    /// There is nothing to borrow from.
    #[error("a ceil above the rate needs a device with a rate, or a parent, to borrow from")]
    NothingToBorrow,
}

/// What packets go into a class; all that is given must hold.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Match {
    /// Cgroup of the socket, or one above it.
    pub cgroup: Option<PathBuf>,
    /// `skb->mark`.
    pub mark: Option<Mark>,
    /// Where it comes from.
    pub source: Option<Prefix>,
    /// Where it goes.
    pub destination: Option<Prefix>,
    /// Transport protocol.
    pub protocol: Option<Protocol>,
    /// Its own or the peer's port.
    pub ports: Option<RangeInclusive<u16>>,
    /// The outermost VLAN.
    pub vlan: Option<u16>,
}

/// A mark and the bits of it that count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Mark {
    /// Only bits of the mask.
    pub value: u32,
    /// Which bits count.
    pub mask: u32,
}

/// A transport.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Held by its window.
    Tcp,
    /// Shaped only.
    Udp,
}

/// Addresses with the same first bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
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
    fn a_class_changes_within_what_it_can_borrow() {
        use crate::machine::tree::tests::{class, device};
        let rate = |text: &str| text.parse::<LineRate>().unwrap();
        let alone = device(vec![class("a", "1 Gbit/s")]);
        let changed = alone.changed("a", rate("2 Gbit/s"), None).unwrap();
        assert_eq!(
            (changed.classes[0].rate, changed.classes[0].ceil),
            (Some(rate("2 Gbit/s")), Some(rate("2 Gbit/s")))
        );
        let more = Some(rate("3 Gbit/s"));
        assert_eq!(alone.changed("a", rate("2 Gbit/s"), more), Err(Unchangeable::NothingToBorrow));
        assert!(matches!(alone.changed("b", rate("2 Gbit/s"), None), Err(Unchangeable::NoClass { .. })));
        assert!(matches!(alone.changed("a", rate("4 Gbit/s"), more), Err(Unchangeable::CeilBelowRate { .. })));
        let borrowing = Device { rate: Some(rate("10 Gbit/s")), ..alone }.changed("a", rate("1 Gbit/s"), more).unwrap();
        let kept = |text| borrowing.changed("a", rate(text), None).unwrap().classes[0].ceil;
        assert_eq!([kept("2 Gbit/s"), kept("4 Gbit/s")], [more, Some(rate("4 Gbit/s"))]);
        let theirs = Device { mode: Mode::Attach, ..borrowing };
        assert!(matches!(theirs.changed("a", rate("1 Gbit/s"), None), Err(Unchangeable::NotOurs { .. })));
    }

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
