//! The host that a request is for.

use std::borrow::Cow;

use http::header::HOST;
use http::request::Parts;

/// The host that a request is for, in lower case, without port and trailing dot; empty if it names none.
pub(crate) fn host_of(parts: &Parts) -> Cow<'_, str> {
    let named = parts.uri.authority().map(http::uri::Authority::as_str);
    bare(named.or_else(|| parts.headers.get(HOST).and_then(|host| host.to_str().ok())).unwrap_or(""))
}

/// A host in lower case, without port and trailing dot.
pub(crate) fn bare(named: &str) -> Cow<'_, str> {
    let end = match named.rfind(']') {
        Some(bracket) => bracket + 1,
        None => named.find(':').unwrap_or(named.len()),
    };
    let host = named[..end].strip_suffix('.').unwrap_or(&named[..end]);
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(host.to_ascii_lowercase())
    } else {
        Cow::Borrowed(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(uri: &str, host: Option<&str>) -> String {
        let mut request = http::Request::builder().uri(uri);
        if let Some(host) = host {
            request = request.header(HOST, host);
        }
        host_of(&request.body(()).unwrap().into_parts().0).into_owned()
    }

    #[test]
    fn hosts_lose_port_case_and_dot() {
        assert_eq!(host("/", Some("Shop.Example:8443")), "shop.example");
        assert_eq!(host("/", Some("shop.example.")), "shop.example");
        assert_eq!(host("/", Some("[2001:DB8::1]:80")), "[2001:db8::1]");
        assert_eq!(host("http://a.example:1/x", Some("a.example:1")), "a.example");
        assert_eq!(host("/", None), "");
    }
}
