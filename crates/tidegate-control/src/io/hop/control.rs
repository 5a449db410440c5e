//! Asks the control plane where topics go, and waits for what it says next.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderValue, Method, Request, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tidegate_runtime::clock;
use tidegate_wire::nsq::TopicName;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::book::Book;
use super::figures::Figures;
use crate::machine::hop::placement::Placement;

/// How long the control plane may wait with an answer until there is news.
const LONG_POLL: Duration = Duration::from_secs(30);
/// How much longer than asked for an answer may take. The first one is not to wait, and publishers wait for it.
const PATIENCE: Duration = Duration::from_secs(2);
/// After a failure: at first, and at most.
const REST_MIN: Duration = Duration::from_millis(200);
const REST_MAX: Duration = Duration::from_secs(5);
/// Between two questions about a topic that has no placement, and after an answer that came at once with nothing new.
const PAUSE: Duration = Duration::from_secs(1);
/// A placement with 100,000 publishers is about 6 MiB.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ControlError {
    #[error("the control plane cannot be reached")]
    Unreachable(#[source] hyper_util::client::legacy::Error),
    #[error("the control plane did not answer in time")]
    TimedOut,
    #[error("the control plane broke off its answer, or sent more than {ANSWER_BYTES_MAX} bytes")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the control plane answered {0}")]
    Status(StatusCode),
    #[error("the control plane sent something else than a placement")]
    Json(#[from] serde_json::Error),
    #[error("the topic cannot be asked for")]
    Request(#[from] http::Error),
}

/// What the control plane says of a topic.
#[derive(Debug)]
enum Said {
    Placed(Placement),
    /// Nothing new.
    Same,
    Unplaced,
}

/// Asks one control plane.
#[derive(Clone, Debug)]
pub(super) struct ControlClient {
    base: String,
    authorization: Option<HeaderValue>,
    http: Client<HttpConnector, Full<Bytes>>,
}

impl ControlClient {
    /// Of the control plane at `base`, which is `http://host:port`. A token that cannot stand in a header is not sent.
    pub(super) fn new(base: &str, token: Option<&str>) -> Self {
        let authorization = token.and_then(|token| {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(PATIENCE));
        connector.set_keepalive(Some(LONG_POLL));
        let http = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(4).build(connector);
        Self { base: base.to_owned(), authorization, http }
    }

    async fn ask(&self, topic: &TopicName, after: u64, wait: Duration) -> Result<Said, ControlError> {
        // Of the characters of a name only this one means something else in an address.
        let name = topic.as_str().replace('#', "%23");
        let wait_ms = wait.as_millis();
        let uri = format!("{}/api/v1/placement/{name}?after={after}&wait_ms={wait_ms}", self.base);
        let mut request = Request::builder().method(Method::GET).uri(uri).header(header::USER_AGENT, "tidegate steer");
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(Full::default())?;
        let exchange = async {
            let answer = self.http.request(request).await.map_err(ControlError::Unreachable)?;
            let status = answer.status();
            let body =
                Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(ControlError::Body)?;
            match status {
                StatusCode::OK => Ok(Said::Placed(serde_json::from_slice(&body.to_bytes())?)),
                StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED => Ok(Said::Same),
                StatusCode::NOT_FOUND => Ok(Said::Unplaced),
                status => Err(ControlError::Status(status)),
            }
        };
        timeout(wait + PATIENCE, exchange).await.unwrap_or(Err(ControlError::TimedOut))
    }
}

/// Follows each topic that is wanted, until nobody can want one any more.
pub(super) async fn follow(
    book: Arc<Book>,
    client: ControlClient,
    figures: Arc<Figures>,
    mut wanted: mpsc::Receiver<TopicName>,
) {
    let mut topics = JoinSet::new();
    loop {
        tokio::select! {
            topic = wanted.recv() => match topic {
                Some(topic) => {
                    let (book, client, figures) = (Arc::clone(&book), client.clone(), Arc::clone(&figures));
                    topics.spawn(follow_topic(book, client, figures, topic));
                }
                None => return,
            },
            Some(_) = topics.join_next() => {}
        }
    }
}

/// Asks for one topic again and again, until nobody publishes to it and it has no placement.
async fn follow_topic(book: Arc<Book>, client: ControlClient, figures: Arc<Figures>, topic: TopicName) {
    let (mut after, mut wait, mut rest) = (0, Duration::ZERO, REST_MIN);
    loop {
        let asked = clock::now();
        let said = client.ask(&topic, after, wait).await;
        let pause = match said {
            Ok(said) => {
                figures.placement_answers.add(1);
                rest = REST_MIN;
                (after, wait) = match &said {
                    Said::Placed(placement) => (placement.revision, LONG_POLL),
                    Said::Same => (after, LONG_POLL),
                    Said::Unplaced => (0, Duration::ZERO),
                };
                match heed(&book, &figures, &topic, said) {
                    Heeded::Forgotten => return,
                    Heeded::News => Duration::ZERO,
                    Heeded::Nothing if clock::now().since(asked) >= PAUSE => Duration::ZERO,
                    Heeded::Nothing => PAUSE,
                }
            }
            Err(error) => {
                figures.placement_failures.add(1);
                tracing::debug!(%topic, %error, "the last placement stays in force");
                // Another control node, or one that was restarted, may count otherwise: it is asked for what it has.
                (after, wait) = (0, Duration::ZERO);
                if !book.give_up(&topic) {
                    return;
                }
                let pause = rest;
                rest = (rest * 2).min(REST_MAX);
                pause
            }
        };
        if !pause.is_zero() {
            sleep(pause).await;
        }
    }
}

/// What came of an answer.
enum Heeded {
    /// A placement is in force that was not before.
    News,
    Nothing,
    /// Nobody publishes to the topic, and it has no placement.
    Forgotten,
}

/// Puts in force what the control plane says. A placement without nodes is none yet.
fn heed(book: &Book, figures: &Figures, topic: &TopicName, said: Said) -> Heeded {
    let is_wanted = match said {
        Said::Same => true,
        Said::Placed(placement) if !placement.nodes.is_empty() => {
            let revision = placement.revision;
            match book.place(topic, placement) {
                Ok(true) => {
                    tracing::info!(%topic, revision, "the topic is placed");
                    return Heeded::News;
                }
                Ok(false) => true,
                Err(error) => {
                    figures.placement_failures.add(1);
                    tracing::warn!(%topic, %error, "the placement is not followed");
                    book.give_up(topic)
                }
            }
        }
        Said::Placed(_) | Said::Unplaced => book.unplace(topic),
    };
    if is_wanted { Heeded::Nothing } else { Heeded::Forgotten }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::io::hop::book::Authority;
    use crate::machine::hop::placement::PlacedNode;

    #[test]
    fn a_placement_without_nodes_is_none_yet_and_an_older_one_is_not_followed() {
        let (wanted, _asked) = mpsc::channel(1);
        let node = |name: &str| PlacedNode { name: name.to_owned(), nsq: format!("{name}:1") };
        let book = Book::new(&[node("a")], Authority::Control(wanted)).unwrap();
        let (figures, topic) = (Figures::default(), TopicName::new("t").unwrap());
        book.join(&topic);
        let placed = |revision: u64, nodes: &[&str]| {
            let nodes = nodes.iter().map(|name| node(name)).collect();
            let publishers = std::collections::BTreeMap::new();
            Said::Placed(Placement { topic: "t".to_owned(), revision, nodes, publishers, default: Vec::new() })
        };
        assert!(matches!(heed(&book, &figures, &topic, placed(0, &[])), Heeded::Nothing));
        assert_eq!(book.look(&topic, "p").unwrap().candidates, book.home("p"));
        assert!(matches!(heed(&book, &figures, &topic, placed(2, &["b"])), Heeded::News));
        assert!(matches!(heed(&book, &figures, &topic, placed(1, &["a"])), Heeded::Nothing));
        assert_ne!(book.look(&topic, "p").unwrap().candidates, book.home("p"));
        book.leave(&topic);
        assert!(matches!(heed(&book, &figures, &topic, Said::Unplaced), Heeded::Forgotten));
    }
}
