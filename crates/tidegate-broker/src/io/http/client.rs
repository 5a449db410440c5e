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
    /// The address is none.
    #[error("{address:?} is not the address of an HTTP server")]
    BadAddress {
        /// As given.
        address: String,
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
            Trust::System => builder.with_provider_and_native_roots(rustls::crypto::ring::default_provider())?,
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
        let bad_address = || HttpError::BadAddress { address: address.to_owned() };
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
