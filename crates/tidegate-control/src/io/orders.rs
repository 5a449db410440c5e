//! How an order of a director is carried out: one request to a node, and its answer as an event.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::broker_api::{PartBody, PartsBody, PublishersAnswer};
use super::nodes::Members;
use super::sensed::reading_of;
use super::trace;
use crate::config::Topic;
use crate::error::{NodeError, with_causes};
use crate::machine::director::{Ask, Event, Grant, Recording};
use crate::machine::name::Name;

/// Publishers of one request to disconnect.
const DISCONNECTED_MAX: usize = 1_000;
/// A trace is there so long after its end: the broker writes it in the background.
const TRACE_SETTLES: Duration = Duration::from_millis(500);

/// What came of an order.
#[derive(Debug, Default)]
pub(super) struct Carried {
    /// For the director.
    pub(super) event: Option<Event>,
    /// What the sensors of a node say, as it came.
    pub(super) sensed: Option<(Name, PublishersAnswer)>,
    /// Channels of a node without a consumer.
    pub(super) missing: Option<(Name, Vec<String>)>,
    /// Why a node did not do it.
    pub(super) failed: Option<(Name, String)>,
    /// What the node holds that is newer than the order.
    pub(super) fenced: Option<u64>,
}

/// Carries out `what`, which is none of those that control does itself.
pub(super) async fn carry_out(topic: Arc<Topic>, members: Members, no: u64, what: Ask) -> Carried {
    let node = match &what {
        Ask::Sense { node, .. }
        | Ask::Prepare { node }
        | Ask::Put { node, .. }
        | Ask::Withdraw { node, .. }
        | Ask::Record { node, .. }
        | Ask::Disconnect { node, .. } => node.clone(),
        Ask::Place(_) | Ask::Report(_) => return Carried::default(),
    };
    let Some(member) = members.get(node.as_str()) else {
        return Carried { event: Some(Event::Failed { order: no }), ..Carried::default() };
    };
    let client = &member.client;
    let name = topic.name.as_str();
    let done = match what {
        Ask::Sense { seconds, slo, .. } => {
            let answer = match client.publishers(name, seconds, slo).await {
                // A node without the topic has nothing to say of it but its clock.
                Err(error) if error.is_not_found() => {
                    client.clock_us().await.map(|now_us| PublishersAnswer { now_us, ..PublishersAnswer::default() })
                }
                answer => answer,
            };
            answer.map(|answer| Carried {
                event: Some(Event::Sensed { order: no, reading: reading_of(&topic, &answer) }),
                sensed: Some((node.clone(), answer)),
                ..Carried::default()
            })
        }
        Ask::Prepare { .. } => client.prepare(name, &topic.channels).await.map(|answer| Carried {
            event: Some(if answer.ready || !answer.missing.is_empty() {
                Event::Prepared { order: no, missing: answer.missing.clone() }
            } else {
                // It takes no publishers, whatever consumers it has.
                Event::Failed { order: no }
            }),
            missing: Some((node.clone(), answer.missing)),
            ..Carried::default()
        }),
        Ask::Put { grant, .. } => client.put_parts(&parts_of(&topic, grant)).await.map(|()| put(no)),
        Ask::Withdraw { revision, .. } => match client.delete_part(name, revision).await {
            // It is not there any more, which is what is wanted.
            Err(error) if error.is_not_found() => Ok(put(no)),
            answer => answer.map(|()| put(no)),
        },
        Ask::Record { span, .. } => record(name, client, span)
            .await
            .map(|recording| Carried { event: Some(Event::Recorded { order: no, recording }), ..Carried::default() }),
        Ask::Disconnect { identities, .. } => {
            let identities = identities.iter().take(DISCONNECTED_MAX).map(ToString::to_string).collect();
            client.disconnect(name, identities).await.map(|()| Carried::default())
        }
        Ask::Place(_) | Ask::Report(_) => Ok(Carried::default()),
    };
    done.unwrap_or_else(|error| refused(no, node, &error))
}

fn put(order: u64) -> Carried {
    Carried { event: Some(Event::Put { order }), ..Carried::default() }
}

fn refused(order: u64, node: Name, error: &NodeError) -> Carried {
    if let Some(holds) = error.fenced_by() {
        return Carried { event: Some(Event::Fenced { order, holds }), fenced: Some(holds), ..Carried::default() };
    }
    let said = with_causes(error);
    tracing::debug!(%node, error = said, "an order was not carried out");
    Carried { event: Some(Event::Failed { order }), failed: Some((node, said)), ..Carried::default() }
}

/// The request that puts a part in force.
fn parts_of(topic: &Topic, grant: Grant) -> PartsBody<PartBody<'_>> {
    PartsBody {
        revision: grant.revision,
        lease_ms: u64::try_from(grant.lease.as_millis()).unwrap_or(u64::MAX),
        until_us: grant.until_us,
        on_lapse: topic.on_store_loss.word(),
        parts: vec![PartBody {
            topic: &topic.name,
            rate_per_s: grant.limit.rate,
            burst: grant.limit.burst,
            unit: topic.unit.word(),
        }],
    }
}

async fn record(topic: &str, client: &super::client::NodeClient, span: Duration) -> Result<Recording, NodeError> {
    let seconds = span.as_secs().max(1) + u64::from(span.subsec_nanos() > 0);
    client.record(topic, seconds).await?;
    sleep(Duration::from_secs(seconds) + TRACE_SETTLES).await;
    let text = client.trace(topic).await?;
    let address = client.address().to_owned();
    // Four million lines take a second or two.
    let parsed = tokio::task::spawn_blocking(move || trace::parse(&text));
    let parsed = parsed.await.expect("it returns its errors");
    parsed.map_err(|line| NodeError::Trace { address, line })
}
