//! A control node, and the address that producers dial.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_console::{ConsoleConfig, ControlSource};
use tidegate_control::config::Config;
use tidegate_control::io::hop::Steer;
use tidegate_control::io::hop::config::{Config as SteerConfig, Source};
use tidegate_control::io::kept::Leader;
use tidegate_control::io::view::{ControlView, TopicView};
use tidegate_control::io::{Control, Setup, admin};
use tidegate_control::machine::hop::HopConfig;
use tidegate_control::machine::hop::placement::PlacedNode;
use tidegate_runtime::access::{self, Guard, Reach};
use tidegate_runtime::config::Document;
use tidegate_runtime::store::{self, EmbeddedStore};
use tokio::sync::watch;

use super::brokers::Brokers;
use super::plan::{CHANNEL, Plan, TOPIC};
use crate::demo::theatre;
use crate::failure::Failure;
use crate::scratch::Folder;
use crate::servers::{Bound, Servers};
use crate::token::Token;

/// How long a measurement of the planner is. The paper's are a minute, of brokers that may be under way to full.
const ROUND_S: u32 = 5;
/// Open commands are answered within it at the end.
const DRAIN: Duration = Duration::from_secs(5);

/// Control and its hop, which run.
pub(super) struct Plane {
    control: Control,
    steer: Steer,
    servers: Servers,
    admin_url: String,
    /// Where producers connect.
    pub(super) door: SocketAddr,
}

impl Plane {
    pub(super) async fn start(plan: &Plan, brokers: &Brokers, folder: &Folder, token: &Token) -> Result<Self, Failure> {
        let config = Arc::new(config(plan, &brokers.declared())?);
        let bound = Bound::bind(&theatre::anywhere()).await?;
        let authority = bound.local_authority().ok_or_else(|| Failure::new("control has no address"))?;
        let kept = EmbeddedStore::open(folder.path().join("placement.redb"), store::Options::default())?;
        let control = Control::start(Setup {
            tokens: config.nodes.iter().map(|_| Some(token.reveal().to_owned())).collect(),
            config: Arc::clone(&config),
            store: Arc::new(kept),
            me: Leader { name: "demo".to_owned(), admin: authority.clone() },
        });
        let mut servers = Servers::new();
        let guard = Guard { token: Some(access::Token::new(token.reveal())), reach: Reach::Loopback };
        servers.serve(bound, None, admin::router(control.shared(), guard));
        let admin_url = format!("http://{authority}");
        let steer = SteerConfig {
            listen: theatre::anywhere().to_string(),
            admin_address: None,
            nodes: config
                .nodes
                .iter()
                .map(|node| PlacedNode { name: node.name.clone(), nsq: node.nsq.clone() })
                .collect(),
            source: Source::Control(admin_url.clone()),
            token_file: None,
            threads: 1,
            max_producers: 2 * plan.producers as usize,
            hop: HopConfig::default(),
            drain_timeout: DRAIN,
        };
        let steer = Steer::start(steer, Some(token.reveal())).await;
        let steer = steer.map_err(|error| Failure::new("the producers' address cannot be opened").because(error))?;
        let door = steer.address();
        Ok(Self { control, steer, servers, admin_url, door })
    }

    /// The topic as control sees it.
    pub(super) fn topic(&self) -> Option<TopicView> {
        ControlView::of(&self.control.shared()).topics.into_iter().find(|topic| topic.name == TOPIC)
    }

    /// Serves a console of control and the brokers, and says where. The token in its address is the demo's alone.
    pub(super) fn serve_console(&mut self, bound: Bound, brokers: &Brokers, token: &Token) -> String {
        let authority = bound.local_authority().unwrap_or_default();
        let console = ConsoleConfig {
            brokers: brokers.sources(token),
            control: Some(ControlSource {
                admin_url: self.admin_url.clone(),
                token: Some(token.reveal().to_owned()),
                brokers: watch::Sender::new(brokers.sources(token)).subscribe(),
            }),
            write_token: token.reveal().to_owned(),
            stop: Some(self.servers.stopping()),
            ..ConsoleConfig::default()
        };
        self.servers.serve(bound, None, tidegate_console::router(console));
        format!("http://{authority}/placement#token={}", token.reveal())
    }

    pub(super) async fn stop(self) {
        let Self { control, steer, servers, .. } = self;
        // What is cut off is a command without an answer; producers have ended.
        let _ = steer.drain().await;
        let ((), ()) = tokio::join!(control.stop(), servers.stop());
    }
}

/// What `tidegate control` would read from a file.
fn config(plan: &Plan, nodes: &str) -> Result<Config, Failure> {
    let (rate, burst, slo_ms) = (plan.limit.rate, plan.limit.burst, plan.slo.as_millis());
    let text = format!(
        r#"
        [control]
        listen = "127.0.0.1:0"
        nodes = [ {nodes} ]
        [[control.topic]]
        name = "{TOPIC}"
        rate = "{rate}"
        burst = {burst}
        slo = "p99 <= {slo_ms}ms"
        channels = ["{CHANNEL}"]
        planner = "paper"
        round = "{ROUND_S}s"
        "#
    );
    Ok(Config::from_document(&Document::new("(the demo's control)", text))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_good() {
        let node = "{ name = \"a\", admin = \"http://127.0.0.1:4153\", nsq = \"127.0.0.1:4150\", mcap = \"500/s\" }";
        let plan = Plan::default();
        let config = config(&plan, node).unwrap();
        assert_eq!((config.topics[0].limit, config.topics[0].slo.0.within), (plan.limit, plan.slo));
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    }
}
