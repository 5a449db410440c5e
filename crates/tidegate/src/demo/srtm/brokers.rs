//! Six brokers, alike, and what their sensors say.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_broker::config::Options;
use tidegate_broker::io::admin::Target;
use tidegate_console::BrokerSource;
use tidegate_control::error::NodeError;
use tidegate_control::io::broker_api::{DelayAnswer, PartBody, PartsBody, SplitBody, SplitNodeBody};
use tidegate_control::io::client::NodeClient;
use tidegate_runtime::causes::with_causes;
use tidegate_runtime::clock;
use tidegate_wire::nsq::TopicName;
use tokio::time::sleep;

use super::plan::{CHANNEL, LENT_TOPIC, Plan, TOPIC};
use crate::demo;
use crate::failure::Failure;
use crate::running::Running;
use crate::scratch::Folder;
use crate::token::Token;

/// Parts that lend hold longer than any demo lasts.
const LEASE: Duration = Duration::from_hours(1);
/// Brokers that are to lend have met within it; a busy machine may lose some of their datagrams.
const MET_WITHIN: Duration = Duration::from_secs(20);
/// How often it is looked whether they have.
const LOOK: Duration = Duration::from_millis(100);

/// Brokers that run; dropping them does not save their messages.
pub(super) struct Brokers {
    running: Vec<Running>,
    clients: Vec<NodeClient>,
    plan: Plan,
    /// Where clients connect.
    pub(super) doors: Vec<SocketAddr>,
}

/// What a broker saw of the topic.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) name: String,
    pub(super) producers: usize,
    pub(super) delay: DelayAnswer,
}

/// `a`, `b`, ...
fn name(number: usize) -> String {
    ('a'..='z').nth(number).map_or_else(|| format!("n{number}"), String::from)
}

impl Brokers {
    pub(super) async fn start(plan: &Plan, folder: &Folder, token: &Token) -> Result<Self, Failure> {
        let mut brokers = Self { running: Vec::new(), clients: Vec::new(), plan: *plan, doors: Vec::new() };
        for number in 0..plan.brokers as usize {
            let running =
                demo::broker(&folder.path().join(name(number)), Options::default(), Vec::new(), token).await?;
            let admin = running.admin.as_ref().ok_or_else(|| Failure::new("a broker has no admin API"))?;
            brokers.clients.push(NodeClient::new(&admin.here, Some(token.reveal())));
            brokers.doors.push(demo::socket_address(&running.tcp)?);
            brokers.running.push(running);
        }
        Ok(brokers)
    }

    /// Each with its name and its admin API.
    fn admins(&self) -> impl Iterator<Item = (String, &str)> {
        self.clients.iter().enumerate().map(|(number, client)| (name(number), client.address()))
    }

    /// As control's file declares them.
    pub(super) fn declared(&self) -> String {
        let node = |((name, admin), nsq): ((String, &str), &SocketAddr)| {
            let mcap = self.plan.mcap_per_s;
            format!("{{ name = \"{name}\", admin = \"http://{admin}\", nsq = \"{nsq}\", mcap = \"{mcap}/s\" }}")
        };
        let nodes: Vec<String> = self.admins().zip(&self.doors).map(node).collect();
        nodes.join(", ")
    }

    /// As the console asks them.
    pub(super) fn sources(&self, token: &Token) -> Vec<BrokerSource> {
        let source = |(name, admin): (String, &str)| BrokerSource {
            name,
            admin_url: format!("http://{admin}"),
            token: Some(token.reveal().to_owned()),
        };
        self.admins().map(source).collect()
    }

    /// Puts a static part of the limit in force on each broker, or takes it away.
    pub(super) async fn limit(&self, is_split: bool) -> Result<(), Failure> {
        let topic = TopicName::new(TOPIC).expect("a plain word is a name");
        let target = Target { topic, channel: None };
        let limits = is_split.then(|| (target, self.plan.contract()));
        for broker in &self.running {
            let set = broker.limits.set_file(limits.clone()).await;
            set.map_err(|error| Failure::new("a broker does not take its limit").because(error))?;
        }
        Ok(())
    }

    /// Gives each broker the same part, of a limit whose parts lend each other tokens; ends when all lend.
    pub(super) async fn lend(&self) -> Result<(), Failure> {
        let refused = |number: usize, error: &NodeError| {
            Failure::new(format!("broker {} does not lend: {}", name(number), with_causes(error)))
        };
        let part = self.plan.part();
        let names: Vec<String> = (0..self.clients.len()).map(name).collect();
        let mut nodes = Vec::new();
        for ((at, own), (number, client)) in names.iter().enumerate().zip((0..).zip(&self.clients)) {
            let addresses = client.node().await.map_err(|error| refused(at, &error))?.lend_addresses;
            nodes.push(SplitNodeBody { number, name: own, burst: part.burst, addresses });
        }
        for (at, (own, client)) in (0..).zip(&self.clients).enumerate() {
            let put = async {
                let until_us = client.clock_us().await? + u64::try_from(LEASE.as_micros()).unwrap_or(u64::MAX);
                let part = PartBody {
                    topic: LENT_TOPIC,
                    rate_per_s: part.rate,
                    burst: part.burst,
                    unit: "messages",
                    lend: Some(SplitBody { generation: 1, own, nodes: nodes.clone() }),
                };
                let lease_ms = u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX);
                let body = PartsBody { revision: 1, lease_ms, until_us, on_lapse: "closed", parts: vec![part] };
                client.prepare(LENT_TOPIC, &[CHANNEL.to_owned()]).await?;
                client.put_parts(&body).await
            };
            put.await.map_err(|error| refused(at, &error))?;
        }
        let until = clock::now() + MET_WITHIN;
        for (at, client) in self.clients.iter().enumerate() {
            loop {
                let lending = client.lending().await.map_err(|error| refused(at, &error))?;
                let topic = lending.topics.iter().find(|topic| topic.topic == LENT_TOPIC);
                if topic.is_some_and(|topic| topic.state == "lends" && topic.withheld == 0) {
                    break;
                }
                if clock::now() >= until {
                    return Err(Failure::new(format!("broker {} did not meet the others", name(at))));
                }
                sleep(LOOK).await;
            }
        }
        Ok(())
    }

    /// Datagrams of lending that all of them sent until now.
    pub(super) async fn frames(&self) -> Result<u64, Failure> {
        let mut all = 0;
        for (number, client) in self.clients.iter().enumerate() {
            all += client.lending().await.map_err(|error| silent(number, &error))?.frames_sent;
        }
        Ok(all)
    }

    /// What each saw of `topic` over the last `seconds` whole seconds.
    pub(super) async fn seen(&self, topic: &str, seconds: u32, slo: Duration) -> Result<Vec<Seen>, Failure> {
        let mut all = Vec::new();
        for (number, client) in self.clients.iter().enumerate() {
            let answer = client.publishers(topic, seconds, slo).await.map_err(|error| silent(number, &error))?;
            let producers = answer.publishers.iter().filter(|publisher| publisher.messages > 0).count();
            all.push(Seen { name: name(number), producers, delay: answer.delay });
        }
        Ok(all)
    }

    pub(super) async fn stop(self) -> Result<(), Failure> {
        let mut ended = Ok(());
        for broker in self.running {
            ended = ended.and(broker.stop().await);
        }
        ended
    }
}

fn silent(number: usize, error: &NodeError) -> Failure {
    Failure::new(format!("broker {} does not say what it saw: {}", name(number), with_causes(error)))
}
