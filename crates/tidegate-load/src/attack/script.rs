//! What scripts there are.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::LoadError;

/// A script.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Script {
    /// Streams opened and cancelled at once.
    RapidReset,
    /// A header block without end.
    ContinuationFlood,
    /// SETTINGS that must all be answered.
    SettingsFlood,
    /// PINGs that must all be answered.
    PingFlood,
    /// Windows opened by a byte at a time.
    WindowUpdateFlood,
    /// DATA frames without data.
    ZeroLengthData,
    /// Small header blocks that unpack to large ones.
    HeaderBomb,
    /// Requests that never end.
    Slowloris,
    /// Answers that are hardly read.
    SlowRead,
    /// TLS handshakes that are not finished.
    HandshakeFlood,
    /// What is nearly a TLS handshake.
    HelloGarbage,
    /// Connections that say nothing, until the target has no files left.
    FdExhaustion,
    /// Requests that two servers may read differently.
    Smuggling,
}

impl Script {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::RapidReset,
        Self::ContinuationFlood,
        Self::SettingsFlood,
        Self::PingFlood,
        Self::WindowUpdateFlood,
        Self::ZeroLengthData,
        Self::HeaderBomb,
        Self::Slowloris,
        Self::SlowRead,
        Self::HandshakeFlood,
        Self::HelloGarbage,
        Self::FdExhaustion,
        Self::Smuggling,
    ];

    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RapidReset => "rapid-reset",
            Self::ContinuationFlood => "continuation-flood",
            Self::SettingsFlood => "settings-flood",
            Self::PingFlood => "ping-flood",
            Self::WindowUpdateFlood => "window-update-flood",
            Self::ZeroLengthData => "zero-length-data",
            Self::HeaderBomb => "header-bomb",
            Self::Slowloris => "slowloris",
            Self::SlowRead => "slow-read",
            Self::HandshakeFlood => "handshake-flood",
            Self::HelloGarbage => "hello-garbage",
            Self::FdExhaustion => "fd-exhaustion",
            Self::Smuggling => "smuggling",
        }
    }

    /// What it does, what a proxy should do about it, and where it is from.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::RapidReset => {
                "HTTP/2 streams, each opened and cancelled at once, so that no bound on open streams is met \
                 (CVE-2023-44487). Expected: the connection ends with ENHANCE_YOUR_CALM, or its tenant is held back."
            }
            Self::ContinuationFlood => {
                "One HTTP/2 header block in CONTINUATION frames without end, every other connection with empty ones \
                 (CVE-2024-27316). Expected: the connection ends at the bound of a header block."
            }
            Self::SettingsFlood => {
                "SETTINGS frames as fast as they go; every other connection does not read the answers \
                 (CVE-2019-9515). Expected: answers are not queued without bound."
            }
            Self::PingFlood => {
                "PING frames as fast as they go; every other connection does not read the answers \
                 (CVE-2019-9512). Expected: answers are not queued without bound."
            }
            Self::WindowUpdateFlood => {
                "WINDOW_UPDATE frames of one byte for a connection and a stream. Expected: no other tenant notices."
            }
            Self::ZeroLengthData => {
                "DATA frames without data and without end on an open request (CVE-2019-9518). \
                 Expected: the connection ends, or no other tenant notices."
            }
            Self::HeaderBomb => {
                "A header of 3.9 KB put into HPACK's table, then named 12,000 times by one byte each (CVE-2016-6581). \
                 Expected: 431, or the connection ends; memory does not follow."
            }
            Self::Slowloris => {
                "Requests whose headers come a line a second. Expected: 408 or a closed connection after the header \
                 timer; connections of other tenants are accepted."
            }
            Self::SlowRead => {
                "Requests whose answers are read ten bytes a second, half of them by HTTP/2 windows of one byte. \
                 Best with --path of a large answer. Expected: what is buffered for them is bounded."
            }
            Self::HandshakeFlood => {
                "ClientHellos that ask for a whole TLS handshake and leave at its first answer. \
                 Expected: the noisy tenant's are refused before any cryptography."
            }
            Self::HelloGarbage => {
                "Broken, truncated and lying ClientHellos, random bytes, byte by byte. Expected: an alert or a closed \
                 connection."
            }
            Self::FdExhaustion => {
                "Connections that say nothing, as many as this machine allows. Expected: they end by a timer or make \
                 room; the target survives having no files left (EMFILE)."
            }
            Self::Smuggling => {
                "The corpus of requests that two servers may read differently, over and over. Expected: 400; \
                 with --record each case is judged by what an upstream saw."
            }
        }
    }

    /// What an attempt is.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::RapidReset => "streams",
            Self::ContinuationFlood => "CONTINUATION frames",
            Self::SettingsFlood => "SETTINGS frames",
            Self::PingFlood => "PING frames",
            Self::WindowUpdateFlood => "WINDOW_UPDATE frames",
            Self::ZeroLengthData => "DATA frames",
            Self::HeaderBomb | Self::SlowRead => "requests",
            Self::Slowloris => "header lines",
            Self::HandshakeFlood | Self::HelloGarbage => "hellos",
            Self::FdExhaustion => "connections",
            Self::Smuggling => "cases",
        }
    }

    /// Connections at once.
    #[must_use]
    pub fn connections(self) -> usize {
        match self {
            Self::Slowloris => 10_000,
            Self::SlowRead => 500,
            Self::HandshakeFlood | Self::HelloGarbage => 64,
            // Beyond the usual limit of open files of a service, which is 1,024 to 16,384.
            Self::FdExhaustion => 19_000,
            _ => 8,
        }
    }

    /// It is about TLS.
    #[must_use]
    pub fn needs_tls(self) -> bool {
        matches!(self, Self::HandshakeFlood)
    }

    /// Its connections are kept for as long as the target lets them.
    pub(super) fn holds(self) -> bool {
        matches!(self, Self::Slowloris | Self::SlowRead | Self::FdExhaustion)
    }

    /// Its connections last a round trip.
    pub(super) fn is_quick(self) -> bool {
        matches!(self, Self::HandshakeFlood | Self::HelloGarbage | Self::Smuggling)
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Script {
    type Err = LoadError;

    fn from_str(name: &str) -> Result<Self, LoadError> {
        Self::ALL.into_iter().find(|script| script.name() == name).ok_or_else(|| LoadError::Config {
            key: "name",
            value: name.to_owned(),
            expected: "one of those that `tidegate attack --list` shows",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_found_by_its_name() {
        for script in Script::ALL {
            assert_eq!(script.name().parse::<Script>().unwrap(), script);
            assert_eq!(serde_json::to_value(script).unwrap(), script.name());
        }
        assert!("rapid".parse::<Script>().is_err());
    }
}
