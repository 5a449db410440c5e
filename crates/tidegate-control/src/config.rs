//! `[control]` of `tidegate.toml`, checked once.
//!
//! | module | its one job |
//! |---|---|
//! | [`words`] | the words and small values of the section |
//! | [`pattern`] | correlation keys by the names of publishers |
//! | `section` | the section as it is written |
//! | `divided` | the limits that proxies divide, checked |
//! | `check` | from one to the other, with errors that name file, line, key, value and remedy |
//! | [`reread`] | what of it can change while control runs |
//!
//! ```
//! use tidegate_control::config::Config;
//! use tidegate_runtime::config::Document;
//!
//! let text = r#"
//! [control]
//! nodes = [ { name = "a", admin = "http://127.0.0.1:4153", nsq = "127.0.0.1:4150" } ]
//! [[control.topic]]
//! name = "orders"
//! rate = "11k/s"
//! burst = 26
//! "#;
//! let config = Config::from_document(&Document::new("tidegate.toml", text))?;
//! assert_eq!(config.topics[0].slo.to_string(), "p99 <= 1ms");
//! # Ok::<(), tidegate_runtime::config::ConfigError>(())
//! ```

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tidegate_core::limit::Limit;
use tidegate_core::replay::ServiceModel;

mod check;
mod divided;
pub mod pattern;
pub mod reread;
mod section;
pub mod words;

pub use self::pattern::{Correlation, Pattern};
pub use self::section::Section;
pub use self::words::{Lend, OnStoreLoss, Planner, Policy, SloText, Unit};

/// Nodes at most.
pub const NODES_MAX: usize = crate::machine::types::NODES_MAX;
/// Topics at most.
pub const TOPICS_MAX: usize = 1_000;
/// Limits that proxies divide at most.
pub const LIMITS_MAX: usize = 1_000;
/// Proxies that lend each other tokens at most.
pub const LENDERS_MAX: usize = tidegate_core::lend::PEERS_MAX + 1;
/// Channels of a topic at most.
pub const CHANNELS_MAX: usize = 100;
/// Patterns of a topic at most.
pub const CORRELATIONS_MAX: usize = 1_000;

/// What `tidegate control` runs with: every default applied, every bound checked.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Where its admin API listens.
    pub listen: SocketAddr,
    /// How it is called among the processes that may lead; unique. `None`: by host name and port.
    pub name: Option<String>,
    /// The token that changes need, and that nodes are shown that name none of their own.
    pub token_file: Option<PathBuf>,
    /// The embedded store, where no cluster's store is configured.
    pub store: Option<PathBuf>,
    /// How long a part, and leadership, holds without being renewed.
    pub lease: Duration,
    /// How long a node has to become ready for a topic.
    pub ready_timeout: Duration,
    /// What is called when a topic cannot be placed.
    pub on_out_of_brokers: Option<Hook>,
    /// At most [`NODES_MAX`].
    pub nodes: Vec<Node>,
    /// At most [`TOPICS_MAX`].
    pub topics: Vec<Topic>,
    /// At most [`NODES_MAX`].
    pub proxies: Vec<Proxy>,
    /// At most [`LIMITS_MAX`].
    pub limits: Vec<DividedLimit>,
    /// What works, and is probably not meant.
    pub warnings: Vec<String>,
}

/// A broker that topics may be placed on.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    /// Unique.
    pub name: String,
    /// Its admin API, as `host:port`.
    pub admin: String,
    /// Where publishers reach it, as `host:port`.
    pub nsq: String,
    /// Messages per second that it takes within the objectives. `None`: what it says of itself.
    pub mcap_per_s: Option<f64>,
    /// Its token.
    pub token_file: Option<PathBuf>,
}

/// A proxy that has a part of each limit in [`Config::limits`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proxy {
    /// Unique.
    pub name: String,
    /// Its admin API, as `host:port`.
    pub admin: String,
    /// Where other proxies' datagrams reach it.
    pub lend: Option<SocketAddr>,
    /// Its token.
    pub token_file: Option<PathBuf>,
}

/// A limit of requests that all proxies keep together.
#[derive(Clone, PartialEq, Debug)]
pub struct DividedLimit {
    /// As proxies call it: `route NAME` or `sni NAME`. Unique.
    pub name: String,
    /// The whole limit.
    pub limit: Limit,
    /// How the parts follow the demand.
    pub adapt: Adapt,
    /// Whether proxies lend each other tokens.
    pub lend: Lend,
    /// What a part becomes whose lease has ended.
    pub on_store_loss: OnStoreLoss,
}

/// A topic that is placed.
#[derive(Clone, PartialEq, Debug)]
pub struct Topic {
    /// Unique.
    pub name: String,
    /// The whole limit.
    pub limit: Limit,
    /// What a token buys.
    pub unit: Unit,
    /// What is promised.
    pub slo: SloText,
    /// A node takes publishers once each of these has a consumer there; at most [`CHANNELS_MAX`].
    pub channels: Vec<String>,
    /// How the placement is found.
    pub planner: Planner,
    /// How the model is asked, where it plans.
    pub model: Model,
    /// By which principles.
    pub policy: Policy,
    /// Keys of publishers that send none; at most [`CORRELATIONS_MAX`].
    pub correlation: Vec<Correlation>,
    /// How the parts are fitted.
    pub adapt: Adapt,
    /// Length of a measurement.
    pub round: Duration,
    /// Whether nodes lend each other tokens.
    pub lend: Lend,
    /// What a part becomes whose lease has ended.
    pub on_store_loss: OnStoreLoss,
}

/// How a topic's parts follow its load. Source: §7.7 of the specification, §4.3 of the paper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Adapt {
    /// From one fit to the next.
    pub period: Duration,
    /// Over how long the load is looked at; whole seconds, at most 60.
    pub window: Duration,
}

/// How a model plans, and when it is given up.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Model {
    /// Arrivals are recorded for so long.
    pub record: Duration,
    /// A measurement is watched at least for so long.
    pub confirm: Duration,
    /// Model and measurement disagree if one p99 is above the other by more than this share.
    pub margin: f64,
    /// What a broker does with a message.
    pub service: ServiceModel,
}

/// What is called with the shortfall as JSON.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Hook {
    /// A program with its arguments, which reads it from standard input.
    Command(Vec<String>),
    /// It is posted to `http://host:port/path`.
    Webhook {
        /// `host:port`.
        authority: String,
        /// With its slash.
        path: String,
    },
}
