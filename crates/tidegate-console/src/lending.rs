//! What brokers lend each other, as each tells of itself.

use futures_util::future::join_all;
use serde::Serialize;
use serde_json::Value;
use tidegate_runtime::causes::with_causes;

use crate::admin_client::AdminClient;

/// One broker's answer.
#[derive(Debug, Serialize)]
pub(crate) struct Told {
    broker: String,
    /// `GET /api/v1/lending` of the broker; `null` if it does not say.
    lending: Option<Value>,
    /// Why not.
    error: Option<String>,
}

/// Asks all at once; each answers within the client's own bound of time. In the order of `brokers`.
pub(crate) async fn ask(brokers: &[(String, AdminClient)]) -> Vec<Told> {
    let one = async |(broker, client): &(String, AdminClient)| {
        let (lending, error) = match client.read("/api/v1/lending").await {
            Ok(lending) => (Some(lending), None),
            Err(error) => (None, Some(with_causes(&error))),
        };
        Told { broker: broker.clone(), lending, error }
    };
    join_all(brokers.iter().map(one)).await
}
