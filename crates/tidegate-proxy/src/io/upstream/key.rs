//! What requests have in common that should meet the same server.

use std::net::IpAddr;

use http::request::Parts;

use crate::config::HashBy;
use crate::io::request::host::host_of;
use crate::machine::upstream::Key;

/// The key of a request to be asked for as `target`; `None` if it has not got what tells.
pub(crate) fn key_of(by: &HashBy, client: IpAddr, target: &str, parts: &Parts) -> Option<Key> {
    match by {
        HashBy::Source => Some(match client.to_canonical() {
            IpAddr::V4(address) => Key::of(&address.octets()),
            IpAddr::V6(address) => Key::of(&address.octets()),
        }),
        HashBy::Host => Some(Key::of(host_of(parts).as_bytes())),
        HashBy::Path => Some(Key::of(target.split_once('?').map_or(target, |(path, _)| path).as_bytes())),
        HashBy::Header(name) => parts.headers.get(name).map(|value| Key::of(value.as_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_of_what_the_configuration_names_alone() {
        let request = |uri: &str| {
            let request = http::Request::builder().uri(uri).header("host", "Shop.Example:80").header("x-user", "7");
            request.body(()).unwrap().into_parts().0
        };
        let (one, other) = (request("/a?b"), request("/c"));
        let key = |by: &HashBy, client: &str, parts: &Parts| {
            let target = parts.uri.path_and_query().unwrap().as_str();
            key_of(by, client.parse().unwrap(), target, parts)
        };
        assert_eq!(key(&HashBy::Source, "192.0.2.1", &one), key(&HashBy::Source, "::ffff:192.0.2.1", &other));
        assert_ne!(key(&HashBy::Source, "192.0.2.1", &one), key(&HashBy::Source, "192.0.2.2", &one));
        assert_eq!(key(&HashBy::Host, "::1", &one), Some(Key::of(b"shop.example")));
        assert_eq!(key(&HashBy::Path, "::1", &one), Some(Key::of(b"/a")));
        let header = |name: &'static str| HashBy::Header(http::HeaderName::from_static(name));
        assert_eq!(key(&header("x-user"), "::1", &other), Some(Key::of(b"7")));
        assert_eq!(key(&header("x-shop"), "::1", &other), None);
    }
}
