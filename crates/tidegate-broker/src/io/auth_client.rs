//! Asking AUTH servers what a client may do.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_runtime::clock;

use super::http::client::{HttpClient, HttpError};
use super::http::query::escape;
use crate::machine::auth::{AuthError, AuthState};

/// Largest answer of an AUTH server; a few thousand grants are less.
const MOST_ANSWER_BYTES: usize = 1 << 20;

/// Asks one AUTH server after the other until one answers.
#[derive(Debug)]
pub struct AuthClient {
    /// Where to ask: URLs that lack the query.
    servers: Vec<String>,
    http: HttpClient,
    /// The server to begin with, so that all share the work.
    next: AtomicUsize,
}

/// What a server is told about a client.
#[derive(Clone, Copy, Debug)]
pub struct Applicant<'a> {
    /// The client's address without the port; empty on a unix socket.
    pub remote_ip: &'a str,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// What the client sent with AUTH.
    pub secret: &'a [u8],
    /// The common name in its certificate, if it showed one.
    pub common_name: &'a str,
}

/// Why one server did not authorize.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthFailure {
    /// It did not answer.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// It answered something else.
    #[error(transparent)]
    Answer(#[from] AuthError),
}

/// No server authorized. The client is told nothing of this.
#[derive(Debug, thiserror::Error)]
#[error("no AUTH server authorized the client: {}", list(.failures))]
pub struct Unauthorized {
    /// Each server that was asked, in order, and what went wrong.
    pub failures: Vec<(String, AuthFailure)>,
}

/// Bytes of [`Unauthorized`] as text. It is logged at each attempt, and quotes patterns of up to a mebibyte.
const SHOWN_BYTES: usize = 1_024;

fn list(failures: &[(String, AuthFailure)]) -> String {
    let mut text = String::new();
    for (index, (server, failure)) in failures.iter().enumerate() {
        let separator = if index == 0 { "" } else { "; " };
        write!(text, "{separator}{server}: {failure}").expect("writing to a string does not fail");
        if text.len() > SHOWN_BYTES {
            text.truncate(text.floor_char_boundary(SHOWN_BYTES));
            return text + " (cut)";
        }
    }
    text
}

impl AuthClient {
    /// Asks `servers`, each `host:port` or a URL.
    #[must_use]
    pub fn new(servers: &[String], http: HttpClient) -> Self {
        let url = |server: &String| {
            if server.contains("://") { server.clone() } else { format!("http://{server}/auth") }
        };
        Self { servers: servers.iter().map(url).collect(), http, next: AtomicUsize::new(0) }
    }

    /// What `applicant` may do, as the first server that answers says.
    ///
    /// # Errors
    /// If none does.
    pub async fn authorize(&self, applicant: Applicant<'_>) -> Result<AuthState, Unauthorized> {
        let query = applicant.query();
        // Any order of the servers will do, so nothing depends on the memory order.
        let start = self.next.fetch_add(1, Ordering::Relaxed);
        let mut failures = Vec::new();
        for i in 0..self.servers.len() {
            let server = &self.servers[start.wrapping_add(i) % self.servers.len()];
            match self.ask(server, &query).await {
                Ok(state) => return Ok(state),
                Err(failure) => failures.push((server.clone(), failure)),
            }
        }
        Err(Unauthorized { failures })
    }

    async fn ask(&self, server: &str, query: &str) -> Result<AuthState, AuthFailure> {
        let answer = self.http.get(&format!("{server}?{query}"), MOST_ANSWER_BYTES).await?;
        Ok(AuthState::from_json(&answer, clock::now())?)
    }
}

impl Applicant<'_> {
    /// In the order in which Go sorts it.
    fn query(self) -> String {
        format!(
            "common_name={}&remote_ip={}&secret={}&tls={}",
            escape(self.common_name.as_bytes()),
            escape(self.remote_ip.as_bytes()),
            escape(self.secret),
            self.tls,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use axum::Router;
    use axum::http::{StatusCode, Uri};
    use tokio::net::TcpListener;

    use super::*;
    use crate::io::http::client::Trust;
    use crate::io::http::serve::{Bounds, Listener, serve};

    /// An AUTH server that answers `body`, and the URIs it was asked for.
    async fn server(status: u16, body: &'static str) -> (String, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let router = Router::new().fallback(move |uri: Uri| async move {
            seen.lock().unwrap().push(uri.to_string());
            (StatusCode::from_u16(status).unwrap(), body)
        });
        tokio::spawn(serve(Listener::Tcp(listener), None, router, Bounds::default(), std::future::pending()));
        (address, asked)
    }

    fn client(servers: &[String]) -> AuthClient {
        // Nothing here is https, so the system's authorities need not be there.
        let roots = rustls::RootCertStore::empty();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let tls = Box::new(tls.with_root_certificates(roots).with_no_client_auth());
        let patience = Duration::from_secs(10);
        AuthClient::new(servers, HttpClient::new(patience, patience, Trust::Configured(tls)).unwrap())
    }

    const ADA: Applicant<'static> =
        Applicant { remote_ip: "10.0.0.1", tls: true, secret: b"a&b \xff", common_name: "ada l" };
    const GRANT: &str = r#"{"ttl":60,"identity":"ada","authorizations":[
        {"topic":".*","channels":[".*"],"permissions":["publish"]}]}"#;

    #[tokio::test]
    async fn a_server_is_told_who_asks() {
        let (address, asked) = server(200, GRANT).await;
        let state = client(std::slice::from_ref(&address)).authorize(ADA).await.unwrap();
        assert_eq!((state.identity.as_str(), state.permission_count()), ("ada", 1));
        let url = client(&[format!("http://{address}/elsewhere")]);
        url.authorize(Applicant { tls: false, ..ADA }).await.unwrap();
        let query = "common_name=ada%20l&remote_ip=10.0.0.1&secret=a%26b%20%FF&tls=";
        assert_eq!(*asked.lock().unwrap(), [format!("/auth?{query}true"), format!("/elsewhere?{query}false")]);
    }

    #[tokio::test]
    async fn the_next_server_is_asked_when_one_fails() {
        let (refusing, refused) = server(403, "no").await;
        let (broken, _) = server(200, "{").await;
        let (granting, _) = server(200, GRANT).await;
        let all = client(&[refusing.clone(), broken.clone(), granting]);
        for _ in 0..3 {
            assert_eq!(all.authorize(ADA).await.unwrap().identity, "ada");
        }
        assert_eq!(refused.lock().unwrap().len(), 1, "each server is the first in its turn");
        let failed = client(&[refusing, broken]).authorize(ADA).await.unwrap_err();
        assert!(failed.to_string().contains("403"), "{failed}");
        assert!(matches!(failed.failures[1].1, AuthFailure::Answer(AuthError::Json(_))));
    }

    #[tokio::test]
    async fn what_is_logged_has_no_secret_and_a_bound() {
        let secret = "s3cret".repeat(100_000);
        let failed = client(&["127.0.0.1:1".to_owned(), "bad address".to_owned()]);
        let failed = failed.authorize(Applicant { secret: secret.as_bytes(), ..ADA }).await.unwrap_err();
        let text = format!("{failed} {failed:?}");
        assert!(!text.contains("s3cret") && text.len() < 1_000, "{text}");
        let pattern = "(".repeat(100_000);
        let grant = format!(r#"{{"ttl":60,"authorizations":[{{"topic":"{pattern}","permissions":["publish"]}}]}}"#);
        let (address, _) = server(200, grant.leak()).await;
        let text = client(&[address]).authorize(ADA).await.unwrap_err().to_string();
        assert!(text.len() < 2 * SHOWN_BYTES && text.ends_with("(cut)"), "{text}");
    }

    #[tokio::test]
    async fn an_endless_answer_is_cut_off() {
        let huge = "x".repeat(MOST_ANSWER_BYTES + 1).leak();
        let (address, _) = server(200, huge).await;
        let failed = client(&[address]).authorize(ADA).await.unwrap_err();
        assert!(matches!(failed.failures[0].1, AuthFailure::Http(HttpError::TooLarge { .. })));
    }
}
