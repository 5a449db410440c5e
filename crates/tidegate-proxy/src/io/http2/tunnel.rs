//! WebSocket on a stream of HTTP/2: an extended CONNECT (RFC 8441), which goes on as the upgrade that HTTP/1 has for it.

use std::io;
use std::rc::Rc;

use bytes::BytesMut;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY};
use http::header::{SEC_WEBSOCKET_VERSION, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use hyper::ext::Protocol;
use hyper::upgrade::OnUpgrade;
use tokio::task::spawn_local;

use super::queue::Queue;
use crate::io::conn::account::{Account, Bill};
use crate::io::conn::meter::Metered;
use crate::io::conn::pace::Pace;
use crate::io::conn::websocket::{self, Far, Sending, Stream};
use crate::io::listen::thread::Connection;
use crate::io::request::forward::Answer;
use crate::io::request::headers::Unsound;
use crate::io::request::refuse;
use crate::io::request::response::ResponseBody;

/// Another version of WebSocket. RFC 6455 would answer 426, which HTTP/2 cannot: that needs `Upgrade`.
const OTHER_VERSION: Unsound =
    Unsound { status: StatusCode::BAD_REQUEST, detail: "WebSocket is spoken here in version 13 only." };
/// What else CONNECT may ask for.
const OTHER_PROTOCOL: Unsound =
    Unsound { status: StatusCode::NOT_IMPLEMENTED, detail: "CONNECT opens nothing here but a WebSocket." };

/// A client asked for a WebSocket.
pub(super) struct Asked {
    stream: OnUpgrade,
    key: HeaderValue,
}

/// A WebSocket that the upstream opened.
pub(super) struct Open {
    stream: OnUpgrade,
    server: Far,
    to_client: BytesMut,
}

/// What a request of CONNECT asks for. One for a WebSocket is turned into the GET that routes and HTTP/1 know; see
/// [`Asked::add_fields`].
pub(super) fn ask(parts: &mut Parts) -> Result<Asked, Unsound> {
    let protocol = parts.extensions.remove::<Protocol>();
    let stream = parts.extensions.remove::<OnUpgrade>();
    let is_websocket = protocol.is_some_and(|protocol| protocol.as_str().eq_ignore_ascii_case("websocket"));
    let (Some(stream), true) = (stream, is_websocket) else { return Err(OTHER_PROTOCOL) };
    let mut versions = parts.headers.get_all(SEC_WEBSOCKET_VERSION).iter();
    if !matches!((versions.next(), versions.next()), (Some(version), None) if *version == websocket::VERSION) {
        return Err(OTHER_VERSION);
    }
    parts.method = Method::GET;
    Ok(Asked { stream, key: websocket::key() })
}

/// Says which version is spoken, in the answer to a request for another one.
pub(super) fn tell_version(unsound: Option<Unsound>, headers: &mut HeaderMap) {
    if unsound == Some(OTHER_VERSION) {
        headers.insert(SEC_WEBSOCKET_VERSION, websocket::VERSION);
    }
}

impl Asked {
    /// Adds what such a request has in HTTP/1 only, to a head that was found sound.
    pub(super) fn add_fields(&self, parts: &mut Parts) {
        // hyper has seen to it that there is no content.
        parts.headers.remove(CONTENT_LENGTH);
        parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        parts.headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        parts.headers.insert(SEC_WEBSOCKET_KEY, self.key.clone());
    }

    /// The answer to it: 200 if the upstream opened the tunnel, for `account`, which is then to be [carried](carry). To
    /// CONNECT every 2xx opens a tunnel, so no other answer may say that.
    pub(super) fn answered(self, answer: Answer, account: &Rc<Account>) -> (Answer, Option<Open>) {
        let Answer { response, pass, story } = answer;
        let (mut head, body) = response.into_parts();
        let no = |detail| refuse::plain(StatusCode::BAD_GATEWAY, "http_upgrade_failed", detail);
        let (response, open) = match head.status {
            StatusCode::SWITCHING_PROTOCOLS => {
                let accepted = websocket::is_accepted(&head.headers, &self.key).then_some(body);
                match accepted.and_then(|body| Far::of(body, account)) {
                    Some((server, to_client)) => {
                        head.status = StatusCode::OK;
                        for name in [CONNECTION, UPGRADE, SEC_WEBSOCKET_ACCEPT, CONTENT_LENGTH, TRANSFER_ENCODING] {
                            head.headers.remove(name);
                        }
                        let response = Response::from_parts(head, ResponseBody::Empty);
                        (response, Some(Open { stream: self.stream, server, to_client }))
                    }
                    None => (no("The upstream's answer does not accept the WebSocket that was asked for."), None),
                }
            }
            status if status.is_success() => (no("The upstream opens no WebSocket there."), None),
            _ => (Response::from_parts(head, body), None),
        };
        (Answer { response, pass, story }, open)
    }
}

/// Carries what moves through `open` until it ends, in a task for which the stream's tenant pays; keeps `held` as long. To
/// be called in the step in which the stream is answered.
pub(super) fn carry(
    connection: &Rc<Connection>,
    queue: &Queue,
    bill: &Bill,
    open: Open,
    paces: [Pace; 2],
    held: impl Sized + 'static,
) {
    let Open { stream, mut server, to_client } = open;
    let sending = Sending::new(bill.stream());
    queue.expect(&sending);
    let (connection, bill) = (Rc::clone(connection), bill.clone());
    let idle = connection.thread.settings().config.timeouts.upgraded_idle;
    let account = Rc::clone(bill.stream());
    let task = async move {
        // Without it the client went away meanwhile.
        if let Ok(stream) = stream.await {
            let account = Rc::clone(bill.stream());
            let mut client = Stream::of_client(stream, bill, sending);
            let (to, from) = ((&mut client, to_client), (&mut server, BytesMut::new()));
            if let Err(error) = websocket::tunnel(&connection, &account, to, from, paces, idle).await {
                client.reset();
                if error.kind() != io::ErrorKind::TimedOut {
                    server.reset();
                }
            }
        }
        drop(held);
    };
    // In a box: the runtime's place for a task is as large as the task.
    spawn_local(Metered::new(account, Box::pin(task)));
}
