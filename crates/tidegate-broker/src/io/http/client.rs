//! GET, for nsqlookupd and AUTH servers.

use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::ACCEPT;
use axum::http::{Request, StatusCode, Uri};
use http_body_util::BodyExt;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

/// Connections to one server that are kept for the next request.
const IDLE_CONNECTIONS: usize = 4;
/// How long they are kept; servers written in Go keep them for longer.
const IDLE_FOR: Duration = Duration::from_secs(30);

/// Bytes of an address that an error shows. Configured addresses are shorter.
const SHOWN_BYTES: usize = 256;

/// Sends GET requests over http and https, each within bounds. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HttpClient {
    client: Client<HttpsConnector<HttpConnector>, Body>,
    patience: Duration,
}

/// Whose certificates an https server can have.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Those that the system's authorities vouch for.
    System,
    /// What this configuration accepts.
    Configured(Box<rustls::ClientConfig>),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The address is none, or so long that no server takes it.
    #[error("{address:?}, with a query of {query_bytes} bytes, is not an address that HTTP can ask")]
    BadAddress {
        /// As given, cut at 256 bytes and without its query: for an AUTH server that holds a client's secret.
        address: String,
        /// Bytes of the query.
        query_bytes: usize,
    },
    /// The server could not be reached, or did not speak HTTP.
    #[error("no answer")]
    Failed(#[from] hyper_util::client::legacy::Error),
    /// It took too long.
    #[error("no answer within {patience:?}")]
    TimedOut {
        /// What we waited.
        patience: Duration,
    },
    /// The answer was cut off.
    #[error("the answer was cut off")]
    CutOff(#[source] hyper::Error),
    /// The answer is larger than any should be.
    #[error("the answer exceeds {limit} bytes")]
    TooLarge {
        /// The bound.
        limit: usize,
    },
    /// The server refused.
    #[error("the server answered {status}")]
    Status {
        /// Its answer.
        status: StatusCode,
    },
}

impl HttpClient {
    /// A client that waits `connect` for a connection and `answer` for all of an answer.
    ///
    /// # Errors
    /// If the system's authorities are asked for and cannot be read.
    pub fn new(connect: Duration, answer: Duration, trust: Trust) -> io::Result<Self> {
        let mut http = HttpConnector::new();
        http.set_connect_timeout(Some(connect));
        http.enforce_http(false);
        let builder = HttpsConnectorBuilder::new();
        let builder = match trust {
            Trust::System => builder.with_provider_and_native_roots(rustls::crypto::aws_lc_rs::default_provider())?,
            Trust::Configured(config) => builder.with_tls_config(*config),
        };
        let https = builder.https_or_http().enable_http1().wrap_connector(http);
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_FOR)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .build(https);
        Ok(Self { client, patience: answer })
    }

    /// The body that `address` answers with, of at most `limit` bytes, if its status is 200.
    pub async fn get(&self, address: &str, limit: usize) -> Result<Vec<u8>, HttpError> {
        tokio::time::timeout(self.patience, self.answer(address, limit))
            .await
            .unwrap_or(Err(HttpError::TimedOut { patience: self.patience }))
    }

    async fn answer(&self, address: &str, limit: usize) -> Result<Vec<u8>, HttpError> {
        let bad_address = || bad_address(address);
        let uri: Uri = address.parse().map_err(|_| bad_address())?;
        // nsqd asks for this version of its peers' API.
        let request = Request::get(uri).header(ACCEPT, "application/vnd.nsq; version=1.0").body(Body::empty());
        let response = self.client.request(request.map_err(|_| bad_address())?).await?;
        if response.status() != StatusCode::OK {
            return Err(HttpError::Status { status: response.status() });
        }
        let mut body = response.into_body();
        let mut answer = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(HttpError::CutOff)?;
            let part = frame.data_ref().map_or(&[][..], |part| part);
            if answer.len() + part.len() > limit {
                return Err(HttpError::TooLarge { limit });
            }
            answer.extend_from_slice(part);
        }
        Ok(answer)
    }
}

/// Errors are logged, and queries are secret.
fn bad_address(address: &str) -> HttpError {
    let (shown, query) = address.split_once('?').unwrap_or((address, ""));
    let end = shown.floor_char_boundary(SHOWN_BYTES);
    HttpError::BadAddress { address: shown[..end].to_owned(), query_bytes: query.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_bad_address_is_named_without_its_query_and_within_a_bound() {
        let patience = Duration::from_secs(10);
        let roots = rustls::RootCertStore::empty();
        let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let tls = Box::new(tls.with_root_certificates(roots).with_no_client_auth());
        let client = HttpClient::new(patience, patience, Trust::Configured(tls)).unwrap();
        let text = async |address: &str| client.get(address, 1).await.unwrap_err().to_string();
        let bad = text("http://a b/auth?secret=s3cret").await;
        assert!(bad.starts_with("\"http://a b/auth\", with a query of 13 bytes,"), "{bad}");
        // http takes no URI of 64 KiB or more; a secret may have megabytes.
        let long = text(&format!("http://127.0.0.1:1/auth?secret={}", "s3cret".repeat(20_000))).await;
        assert!(long.len() < 200 && !long.contains("s3cret"), "{long}");
        assert!(text(&"x y".repeat(20_000)).await.len() < 400);
    }
}
