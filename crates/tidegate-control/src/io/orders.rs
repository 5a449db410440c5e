//! How an order of a director is carried out: one request to a node, and its answer as an event.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::broker_api::{PartBody, PartsBody, PublishersAnswer, SplitBody, SplitNodeBody};
use super::nodes::{Members, Nodes};
use super::sensed::reading_of;
use super::trace;
use crate::config::Topic;
use crate::error::{NodeError, with_causes};
use crate::machine::director::{Ask, Event, Grant, Recording, Split};
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
    /// The generation of a split that the node has left.
    pub(super) left: Option<u64>,
}

/// The nodes, as orders need to know them.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) members: Members,
    pub(super) nodes: Nodes,
}

/// Carries out `what`, which is none of those that control does itself.
pub(super) async fn carry_out(topic: Arc<Topic>, known: Known, no: u64, what: Ask) -> Carried {
    let node = match &what {
        Ask::Sense { node, .. }
        | Ask::Prepare { node }
        | Ask::Put { node, .. }
        | Ask::Withdraw { node, .. }
        | Ask::Record { node, .. }
        | Ask::Disconnect { node, .. } => node.clone(),
        Ask::Place(_) | Ask::Report(_) => return Carried::default(),
    };
    let Some(member) = known.members.get(node.as_str()) else {
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
        Ask::Put { grant, .. } => client.put_parts(&parts_of(&topic, &known, &node, &grant)).await.map(|answer| {
            // It was in that split, and joins another one only.
            let left = answer.in_force.iter().any(|part| part.lends.as_deref() == Some("left"));
            let generation = grant.split.as_ref().map(|split| split.generation);
            Carried { left: generation.filter(|_| left), ..put(no) }
        }),
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
fn parts_of<'a>(topic: &'a Topic, known: &'a Known, node: &Name, grant: &'a Grant) -> PartsBody<PartBody<'a>> {
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
            lend: grant.split.as_ref().and_then(|split| split_of(split, known, node)),
        }],
    }
}

/// How the burst is split, as `node` is told it; `None` if one of the nodes does not lend, or is not one of the split.
fn split_of<'a>(split: &'a Split, known: &Known, node: &Name) -> Option<SplitBody<'a>> {
    let number = |name: &Name| u16::try_from(known.members.keys().position(|other| other == name)?).ok();
    let told = |(name, burst): &'a (Name, u64)| {
        let addresses = known.nodes.get(name)?.lend_addresses.clone();
        let body = SplitNodeBody { number: number(name)?, name: name.as_str(), burst: *burst, addresses };
        Some(body).filter(|body| !body.addresses.is_empty())
    };
    let own = number(node)?;
    let nodes = split.nodes.iter().map(told).collect::<Option<Vec<_>>>()?;
    let is_in = nodes.iter().any(|node| node.number == own);
    is_in.then_some(SplitBody { generation: split.generation, own, nodes })
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::super::client::NodeClient;
    use super::super::nodes::{McapFrom, Member, NodeNow};
    use super::*;
    use crate::config;
    use crate::machine::roster::NodeState;

    fn known(lending: &[&str]) -> Known {
        let names = ["a", "b", "c"];
        let member = |name: &str| {
            let node = config::Node {
                name: name.to_owned(),
                admin: "h:1".to_owned(),
                nsq: "h:2".to_owned(),
                mcap_per_s: None,
                token_file: None,
            };
            (Name::from(name), Member { node, client: NodeClient::new("h:1", None) })
        };
        let now = |name: &str| {
            let port = u16::from(name.as_bytes()[0]);
            let addresses = lending.contains(&name).then_some(SocketAddr::from(([10, 0, 0, 1], port)));
            let now = NodeNow {
                state: NodeState::Ready,
                mcap_per_s: 1.0,
                mcap_from: McapFrom::Assumed,
                shards: 1,
                lend_addresses: addresses.into_iter().collect(),
            };
            (Name::from(name), now)
        };
        Known { members: Arc::new(names.map(member).into()), nodes: Arc::new(names.map(now).into()) }
    }

    #[test]
    fn a_split_is_told_to_its_nodes_if_all_of_them_lend() {
        let split = Split { generation: 7, nodes: vec![(Name::from("a"), 5), (Name::from("c"), 6)] };
        let all = known(&["a", "c"]);
        let told = |node: &str| split_of(&split, &all, &Name::from(node));
        let [a, c] = ["a", "c"].map(|node| told(node).unwrap());
        assert_eq!((a.own, c.own, a.generation), (0, 2, 7));
        assert_eq!(a.nodes, c.nodes, "all are told the same");
        let nodes: Vec<_> = a.nodes.iter().map(|node| (node.number, node.name, node.burst)).collect();
        assert_eq!(nodes, [(0, "a", 5), (2, "c", 6)]);
        // One that has no part of it, and a split with a node that has no address.
        assert_eq!(told("b"), None);
        assert_eq!(split_of(&split, &known(&["a"]), &Name::from("a")), None);
    }
}
