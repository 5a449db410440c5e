//! What tenants use of a machine.

use serde::{Deserialize, Serialize};
pub use tidegate_core::share::Kind;

/// Something of which a tenant can take so much that others feel it.
///
/// Source: Koshiba, "Resource Constraints: Can you mute noisy neighbors?" (ATS Summit 2021), "Target Metrics".
/// Departures: requests and the processor time of handshakes are resources of their own; the time that the event loop
/// is held is added up, and so a counter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Resource {
    /// TLS handshakes begun.
    Handshakes,
    /// Connections that are open.
    Connections,
    /// HTTP requests.
    Requests,
    /// Bytes read from and written to the network, both directions and both sides.
    NetworkBytes,
    /// Bytes read from and written to the disk.
    DiskBytes,
    /// Nanoseconds for which a tenant's work holds the event loop, handshakes apart.
    EventTime,
    /// Bytes buffered for a tenant.
    Memory,
    /// Nanoseconds of processor time that a tenant's handshakes take.
    HandshakeTime,
}

impl Resource {
    /// All of them, in the order of their indices.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Handshakes,
        Self::Connections,
        Self::Requests,
        Self::NetworkBytes,
        Self::DiskBytes,
        Self::EventTime,
        Self::Memory,
        Self::HandshakeTime,
    ];

    /// How many there are.
    pub const COUNT: usize = 8;

    /// Its place in [`ALL`](Self::ALL).
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name in settings, metrics and headers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Handshakes => "handshakes",
            Self::Connections => "connections",
            Self::Requests => "requests",
            Self::NetworkBytes => "network_bytes",
            Self::DiskBytes => "disk_bytes",
            Self::EventTime => "event_time",
            Self::Memory => "memory",
            Self::HandshakeTime => "handshake_time",
        }
    }

    /// The resource of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|resource| resource.name() == name)
    }

    /// Whether it is used up or given back.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            Self::Connections | Self::Memory => Kind::Gauge,
            _ => Kind::Counter,
        }
    }

    /// Work that uses more of it than this is charged in parts, as it goes on; the rest is charged when it is done.
    #[must_use]
    pub const fn part_max(self) -> u64 {
        match self {
            Self::NetworkBytes | Self::DiskBytes => 256 * 1024,
            Self::EventTime => 2_000_000,
            _ => u64::MAX,
        }
    }

    /// True if it is time of a core: these share one capacity, the core's.
    #[must_use]
    pub const fn is_time(self) -> bool {
        matches!(self, Self::EventTime | Self::HandshakeTime)
    }
}

/// Parts of a unit in which shares are counted: where units are few, shares below one per second must be possible.
pub(super) fn grains(resource: Resource) -> u64 {
    match resource {
        Resource::Handshakes | Resource::Requests => 1_000,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_and_names_belong_to_one_resource_each() {
        for (index, resource) in Resource::ALL.into_iter().enumerate() {
            assert_eq!(resource.index(), index);
            assert_eq!(Resource::named(resource.name()), Some(resource));
            let text = serde_json::to_string(&resource).unwrap();
            assert_eq!(text, format!("\"{}\"", resource.name()), "serde says the same");
        }
        assert_eq!(Resource::named("nothing"), None);
    }
}
