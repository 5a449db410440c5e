//! What brokers lend each other, as each tells of itself.

use std::sync::{Mutex, PoisonError};

use futures_util::future::join_all;
use serde::Serialize;
use serde_json::Value;
use tidegate_runtime::causes::with_causes;
use tokio::sync::watch;

use crate::admin_client::AdminClient;
use crate::config::BrokerSource;

/// The admin APIs of the brokers that control places topics on.
#[derive(Debug)]
pub(crate) struct Lenders {
    sources: watch::Receiver<Vec<BrokerSource>>,
    /// As they were when they were asked last, by name. One is kept with its connections as long as it is declared alike.
    known: Mutex<Vec<(BrokerSource, AdminClient)>>,
}

impl Lenders {
    pub(crate) fn new(sources: watch::Receiver<Vec<BrokerSource>>) -> Self {
        Self { sources, known: Mutex::default() }
    }

    /// Those that are declared now.
    fn now(&self) -> Vec<(String, AdminClient)> {
        let sources = self.sources.borrow().clone();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let client = |source: BrokerSource| {
            let before = known.iter().find(|(known, _)| *known == source).map(|(_, client)| client.clone());
            let client = before.unwrap_or_else(|| AdminClient::new(&source.admin_url, source.token.as_deref()));
            (source, client)
        };
        let now: Vec<_> = sources.into_iter().map(client).collect();
        known.clone_from(&now);
        now.into_iter().map(|(source, client)| (source.name, client)).collect()
    }

    /// Asks all at once; each answers within the client's own bound of time. In the order of the sources.
    pub(crate) async fn ask(&self) -> Vec<Told> {
        ask(&self.now()).await
    }
}

/// One broker's answer.
#[derive(Debug, Serialize)]
pub(crate) struct Told {
    broker: String,
    /// `GET /api/v1/lending` of the broker; `null` if it does not say.
    lending: Option<Value>,
    /// Why not.
    error: Option<String>,
}

async fn ask(brokers: &[(String, AdminClient)]) -> Vec<Told> {
    let one = async |(broker, client): &(String, AdminClient)| {
        let (lending, error) = match client.read("/api/v1/lending").await {
            Ok(lending) => (Some(lending), None),
            Err(error) => (None, Some(with_causes(&error))),
        };
        Told { broker: broker.clone(), lending, error }
    };
    join_all(brokers.iter().map(one)).await
}
