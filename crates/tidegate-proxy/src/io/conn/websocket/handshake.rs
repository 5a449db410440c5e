//! The fields of a WebSocket handshake (RFC 6455, section 4) that the proxy writes and checks where one side of a tunnel
//! speaks HTTP/1 and the other HTTP/2, which has none of them (RFC 8441, section 5).

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{CONNECTION, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::ext::Protocol;
use hyper::upgrade::Upgraded;

/// The one version there is; the handshake here is this version's.
pub(crate) const VERSION: HeaderValue = HeaderValue::from_static("13");
/// RFC 6455, section 1.3.
const SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The value of a new `Sec-WebSocket-Key`.
pub(crate) fn key() -> HeaderValue {
    let mut nonce = [0; 16];
    SystemRandom::new().fill(&mut nonce).expect("the kernel gives random bytes once it has started");
    HeaderValue::try_from(STANDARD.encode(nonce)).expect("base64 is letters, digits and three signs")
}

/// The `Sec-WebSocket-Accept` that answers `key`.
pub(super) fn accept(key: &HeaderValue) -> HeaderValue {
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key.as_bytes(), SUFFIX].concat());
    HeaderValue::try_from(STANDARD.encode(hash)).expect("base64 is letters, digits and three signs")
}

/// Whether an answer of 101 with these fields accepts the request that had `key`.
pub(crate) fn is_accepted(headers: &HeaderMap, key: &HeaderValue) -> bool {
    let mut accepts = headers.get_all(SEC_WEBSOCKET_ACCEPT).iter();
    let one = (accepts.next(), accepts.next());
    let is_websocket = headers.get(UPGRADE).is_some_and(|to| to.as_bytes().eq_ignore_ascii_case(b"websocket"));
    is_websocket && matches!(one, (Some(told), None) if *told == accept(key))
}

/// Turns the head of a GET that asks for a WebSocket, without what only HTTP/1 says, into an extended CONNECT.
pub(crate) fn make_connect(head: &mut Request<()>) {
    *head.method_mut() = Method::CONNECT;
    head.headers_mut().remove(SEC_WEBSOCKET_KEY);
    head.extensions_mut().insert(Protocol::from_static("websocket"));
}

/// The tunnel that a 2xx to an extended CONNECT opened, and its head as a server of HTTP/1 would say it to `asked`, the
/// fields of the request. An error says what is wrong with it.
pub(crate) async fn opened_tunnel(
    mut answer: Response<Incoming>,
    asked: &HeaderMap,
) -> Result<(Response<()>, Upgraded), &'static str> {
    let upgraded =
        hyper::upgrade::on(&mut answer).await.map_err(|_| "it opens a tunnel with another status than 200")?;
    let mut head = answer.map(|_none| ());
    *head.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = head.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    if let Some(key) = asked.get(SEC_WEBSOCKET_KEY) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept(key));
    }
    Ok((head, upgraded))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6455, section 1.3.
    const KEY: HeaderValue = HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==");

    fn answer(upgrade: &'static str, accepts: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(UPGRADE, HeaderValue::from_static(upgrade));
        for accept in accepts {
            headers.append(SEC_WEBSOCKET_ACCEPT, HeaderValue::from_static(accept));
        }
        headers
    }

    #[test]
    fn an_answer_is_held_to_the_key_that_it_answers() {
        let right = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
        assert_eq!(accept(&KEY), right);
        assert!(is_accepted(&answer("WebSocket", &[right]), &KEY));
        for wrong in [
            answer("websocket", &[]),
            answer("websocket", &["s3pPLMBiTxaQ9kYGzzhZRbK+xOo"]),
            answer("websocket", &[right, right]),
            answer("h2c", &[right]),
        ] {
            assert!(!is_accepted(&wrong, &KEY), "{wrong:?}");
        }
        assert!(!is_accepted(&answer("websocket", &[right]), &key()));
    }

    #[test]
    fn keys_are_16_bytes_and_differ() {
        let (one, other) = (key(), key());
        assert_eq!(STANDARD.decode(one.as_bytes()).unwrap().len(), 16);
        assert_ne!(one, other);
    }
}
