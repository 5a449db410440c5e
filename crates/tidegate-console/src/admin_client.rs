//! Requests to brokers and to the demo, bounded in time and size.

use std::time::Duration;

use axum::http::{HeaderValue, Method, Request, Response, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::config::{ConfigError, base_address};

/// An admin API answers from memory; one that takes longer than this is shown as down.
const TIMEOUT: Duration = Duration::from_secs(1);
/// A snapshot of 5,000 topics and channels is about 6 MiB.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum AdminError {
    #[error(transparent)]
    Address(#[from] ConfigError),
    #[error("`{path}` is no path")]
    Path {
        path: String,
        #[source]
        source: axum::http::Error,
    },
    #[error("cannot be reached at {address}")]
    Unreachable {
        address: String,
        #[source]
        source: hyper_util::client::legacy::Error,
    },
    #[error("{address} did not answer within {} ms", TIMEOUT.as_millis())]
    TimedOut { address: String },
    #[error("{address} broke off its answer, or sent more than {MAX_ANSWER_BYTES} bytes")]
    Body {
        address: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{address} answered {status} to {path}")]
    Status { address: String, path: String, status: StatusCode },
    #[error("{address} sent something else than a snapshot")]
    Json {
        address: String,
        #[source]
        source: serde_json::Error,
    },
}

/// An HTTP client for one address.
#[derive(Clone, Debug)]
pub(crate) struct AdminClient {
    address: Result<String, ConfigError>,
    authorization: Option<HeaderValue>,
    http: Client<HttpConnector, Full<Bytes>>,
}

impl AdminClient {
    /// A client for `base`, which sends `token` with each request. A bad address is an error of each request.
    pub(crate) fn new(base: &str, token: Option<&str>) -> Self {
        let authorization = token.and_then(|token| {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        let http = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(4).build(HttpConnector::new());
        Self { address: base_address(base), authorization, http }
    }

    /// Sends a request and reads the whole answer, whatever its status.
    pub(crate) async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Bytes>, AdminError> {
        let address = self.address.clone()?;
        let mut request = Request::builder().method(method).uri(format!("{address}{path}"));
        // A broker's history of limits tells by what they were changed.
        request = request.header(header::USER_AGENT, "tidegate console");
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request =
            request.body(Full::new(body)).map_err(|source| AdminError::Path { path: path.to_owned(), source })?;
        let exchange = async {
            let answer = self.http.request(request).await;
            let answer = answer.map_err(|source| AdminError::Unreachable { address: address.clone(), source })?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
            let body = body.map_err(|source| AdminError::Body { address: address.clone(), source })?;
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        match tokio::time::timeout(TIMEOUT, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(AdminError::TimedOut { address }),
        }
    }

    /// GETs `path` and reads its JSON.
    pub(crate) async fn read<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, AdminError> {
        let answer = self.send(Method::GET, path, Bytes::new()).await?;
        let address = self.address.clone()?;
        if answer.status() != StatusCode::OK {
            return Err(AdminError::Status { address, path: path.to_owned(), status: answer.status() });
        }
        serde_json::from_slice(answer.body()).map_err(|source| AdminError::Json { address, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_bad_address_is_reported_by_each_request() {
        let client = AdminClient::new("localhost:4160", None);
        let error = client.read::<serde_json::Value>("/x").await.expect_err("no address");
        assert_eq!(error.to_string(), "address `localhost:4160` is not of the form http://host:port");
    }
}
