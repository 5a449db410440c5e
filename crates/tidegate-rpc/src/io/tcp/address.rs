//! Where a server listens: a port, or a file.

use core::fmt;
use core::str::FromStr;
use std::io;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Before the path of a Unix socket.
const UNIX: &str = "unix:";
/// Bytes of such a path, at most: the 107 that the kernel has room for, less what a server appends until its socket is ready.
const PATH_BYTES_MAX: usize = 96;

/// Where a server listens: `127.0.0.1:4160`, or `unix:/run/work.sock` for callers of the same machine.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Address {
    /// A port of an IP address; port 0 is one that the system picks.
    Tcp(SocketAddr),
    /// A Unix socket, by its path.
    Unix(PathBuf),
}

/// A text that is no [`Address`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotAnAddress {
    /// It is neither.
    #[error("`{text}` is no address; write IP:PORT, as in 127.0.0.1:4160, or unix:PATH, as in unix:/run/work.sock")]
    Neither {
        /// The text.
        text: String,
    },
    /// No socket can have so long a path.
    #[error("the path of a Unix socket has at most {PATH_BYTES_MAX} bytes, this one has {bytes}; choose a shorter one")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
}

impl Address {
    /// The port, if it is one.
    #[must_use]
    pub const fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }

    /// What to do about an error of connecting or listening here, where more can be said than the system does.
    pub(super) fn explain(&self, error: io::Error) -> io::Error {
        use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied};
        let advice = match (self, error.kind()) {
            (Self::Unix(_), NotFound) => {
                "there is no such socket or folder; start the server first, or correct the path"
            }
            (Self::Unix(_), ConnectionRefused) => "the server that made the socket has gone; start it again",
            (Self::Unix(_), PermissionDenied) => {
                "the socket or its folder belongs to others; run as its owner, or set the server's unix_mode"
            }
            _ => return error,
        };
        io::Error::new(error.kind(), advice)
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl From<&Self> for Address {
    fn from(address: &Self) -> Self {
        address.clone()
    }
}

impl FromStr for Address {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        let neither = || NotAnAddress::Neither { text: text.to_owned() };
        match text.strip_prefix(UNIX) {
            Some(path) if path.is_empty() || path.contains('\0') => Err(neither()),
            Some(path) if path.len() > PATH_BYTES_MAX => Err(NotAnAddress::TooLong { bytes: path.len() }),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp).map_err(|_| neither()),
        }
    }
}

impl TryFrom<String> for Address {
    type Error = NotAnAddress;

    fn try_from(text: String) -> Result<Self, NotAnAddress> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", String::from_utf8_lossy(path.as_os_str().as_bytes())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        for text in ["127.0.0.1:4160", "[::1]:0", "unix:/run/work.sock", "unix:work.sock"] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            let json = serde_json::to_string(&address).unwrap();
            assert_eq!(serde_json::from_str::<Address>(&json).unwrap(), address);
        }
    }

    #[test]
    fn what_is_no_address_says_what_is() {
        for text in ["", "localhost:80", "/run/work.sock", "unix:"] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("unix:/run/work.sock"), "{error}");
        }
        let long = format!("unix:/{}", "x".repeat(PATH_BYTES_MAX));
        assert_eq!(long.parse::<Address>(), Err(NotAnAddress::TooLong { bytes: PATH_BYTES_MAX + 1 }));
    }
}
