//! From where an admin API can be reached.

use tidegate_runtime::access::Reach;

use crate::config::Address;

/// From where `address` can be reached.
#[must_use]
pub fn reach_of(address: &Address) -> Reach {
    match address {
        Address::Unix(_) => Reach::Socket,
        Address::Tcp { host, .. } => Reach::of_host(host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_says_from_where() {
        let tcp = |host: &str| reach_of(&Address::Tcp { host: host.to_owned(), port: 7070 });
        assert_eq!([tcp("127.0.0.1"), tcp("localhost"), tcp("::1")], [Reach::Loopback; 3]);
        assert_eq!([tcp(""), tcp("0.0.0.0"), tcp("::"), tcp("10.0.0.1")], [Reach::Network; 4]);
        assert_eq!(reach_of(&Address::Unix("/run/x".into())), Reach::Socket);
    }
}
