//! Where the datagrams of lending come in.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::checked::ConfigError;
use crate::machine::lending::split::LENDING_SHARDS_MAX;

/// Where a broker takes the datagrams of lending.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LendAddress {
    /// The UDP address of the first shard. The next shards have the ports after it; with port 0 the system picks each
    /// shard's port. Never all interfaces, because other brokers send to this address.
    pub address: SocketAddr,
    /// With the keys. `None` on loopback alone.
    pub key_file: Option<PathBuf>,
}

/// Without the option, loopback at ports that the system picks: several brokers run on one machine.
const DEFAULT: &str = "127.0.0.1:0";

/// What the options say, for so many shards.
pub(super) fn lend_address(
    text: Option<&str>,
    key_file: Option<PathBuf>,
    shards: usize,
) -> Result<Option<LendAddress>, ConfigError> {
    let (key, key_file) = ("lend_address", key_file.filter(|path| !path.as_os_str().is_empty()));
    let given = text.unwrap_or(DEFAULT);
    if given.is_empty() || (text.is_none() && shards > LENDING_SHARDS_MAX) {
        return Ok(None);
    }
    let incomplete = |needs| ConfigError::Incomplete { key, found: given.to_owned(), needs };
    let accepted = "the IP:port of one interface, or empty for none";
    let address: Option<SocketAddr> = given.parse().ok();
    let address = address.filter(|address| !address.ip().is_unspecified());
    let address = address.ok_or_else(|| ConfigError::Address { key, found: given.to_owned(), accepted })?;
    if shards > LENDING_SHARDS_MAX {
        return Err(incomplete("at most 64 shards"));
    }
    if address.port() != 0 && usize::from(u16::MAX - address.port()) + 1 < shards {
        return Err(incomplete("a port for each shard, up to 65535"));
    }
    if key_file.is_none() && !address.ip().is_loopback() {
        return Err(incomplete("lend_key_file: whoever reaches that address could take all tokens"));
    }
    Ok(Some(LendAddress { address, key_file }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_need_a_key_and_everybody_an_address_that_others_reach() {
        let of = |text, key: Option<&str>, shards| lend_address(text, key.map(PathBuf::from), shards);
        let default = of(None, None, 2).unwrap().unwrap();
        assert!(default.address.ip().is_loopback() && default.address.port() == 0);
        assert_eq!((of(None, None, 65), of(Some(""), None, 1)), (Ok(None), Ok(None)));
        assert!(of(Some("10.0.0.1:4160"), Some("key"), 2).unwrap().is_some());
        for (text, key, shards, said) in [
            ("10.0.0.1:4160", None, 1, "needs lend_key_file"),
            ("0.0.0.0:4160", Some("key"), 1, "one interface"),
            ("localhost:4160", None, 1, "one interface"),
            ("127.0.0.1:4160", None, 65, "at most 64 shards"),
            ("127.0.0.1:65535", None, 2, "a port for each shard"),
        ] {
            let error = of(Some(text), key, shards).unwrap_err();
            assert!(error.to_string().contains(said) && error.key() == "lend_address", "{text}: {error}");
        }
    }
}
