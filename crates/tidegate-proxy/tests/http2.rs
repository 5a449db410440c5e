//! HTTP/2 without TLS, by hyper's client.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::{Running, Upstream};
use tokio::net::TcpStream;

async fn connect(proxy: &Running) -> SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(proxy.address()).await.unwrap();
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn request(path: &str, body: &'static str) -> Request<Full<Bytes>> {
    let uri = format!("http://shop.example{path}");
    Request::builder().method("POST").uri(uri).body(Full::new(Bytes::from_static(body.as_bytes()))).unwrap()
}

#[tokio::test]
async fn many_requests_share_a_connection() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "");
    let sender = connect(&proxy).await;
    let mut answers = Vec::new();
    for turn in 0..20 {
        let mut sender = sender.clone();
        answers.push(tokio::spawn(async move {
            let answer = sender.send_request(request(&format!("/{turn}"), "hello")).await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            let text = answer.into_body().collect().await.unwrap().to_bytes();
            let text = str::from_utf8(&text).unwrap().to_owned();
            assert!(text.starts_with(&format!("POST /{turn} HTTP/1.1\r\n")), "{text}");
            assert!(text.contains("host: shop.example\r\n"), "{text}");
            assert!(text.ends_with("\r\n\r\nhello"), "{text}");
        }));
    }
    for answer in answers {
        answer.await.unwrap();
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "[proxy.http]\nmax_body = 4\n");
    let mut sender = connect(&proxy).await;
    let answer = sender.send_request(request("/", "hello")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
}
