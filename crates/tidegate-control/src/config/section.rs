//! `[control]` as it is written; [`super::check`] makes a [`Config`](super::Config) of it.

use std::path::PathBuf;

use serde::Deserialize;
use tidegate_core::Rate;
use tidegate_runtime::config::units::{Bytes, Span};

use super::words::{Lend, OnStoreLoss, Planner, Policy, SloText, Unit};

/// `[control]`: every key may be left out.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    pub(super) listen: Option<String>,
    pub(super) name: Option<String>,
    pub(super) token_file: Option<PathBuf>,
    pub(super) store: Option<PathBuf>,
    pub(super) lease: Option<Span>,
    pub(super) ready_timeout: Option<Span>,
    pub(super) on_out_of_brokers: Option<HookSection>,
    pub(super) nodes: Vec<NodeSection>,
    pub(super) topic: Vec<TopicSection>,
    pub(super) proxies: Vec<ProxySection>,
    pub(super) limit: Vec<LimitSection>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeSection {
    pub(super) name: String,
    pub(super) admin: String,
    pub(super) nsq: String,
    pub(super) mcap: Option<Rate>,
    pub(super) token_file: Option<PathBuf>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProxySection {
    pub(super) name: String,
    pub(super) admin: String,
    pub(super) lend: Option<String>,
    pub(super) token_file: Option<PathBuf>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitSection {
    pub(super) route: Option<String>,
    pub(super) sni: Option<String>,
    pub(super) rate: Rate,
    pub(super) burst: u64,
    #[serde(default)]
    pub(super) adapt: AdaptSection,
    #[serde(default)]
    pub(super) lend: Lend,
    #[serde(default)]
    pub(super) on_store_loss: OnStoreLoss,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct HookSection {
    pub(super) command: Vec<String>,
    pub(super) webhook: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TopicSection {
    pub(super) name: String,
    pub(super) rate: Rate,
    pub(super) burst: Bytes,
    #[serde(default)]
    pub(super) unit: Unit,
    pub(super) slo: Option<SloText>,
    #[serde(default)]
    pub(super) channels: Vec<String>,
    #[serde(default)]
    pub(super) planner: Planner,
    #[serde(default)]
    pub(super) model: ModelSection,
    #[serde(default)]
    pub(super) principles: Policy,
    #[serde(default)]
    pub(super) correlation: Vec<CorrelationSection>,
    #[serde(default)]
    pub(super) adapt: AdaptSection,
    pub(super) round: Option<Span>,
    #[serde(default)]
    pub(super) lend: Lend,
    #[serde(default)]
    pub(super) on_store_loss: OnStoreLoss,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CorrelationSection {
    pub(super) client: Option<String>,
    pub(super) host: Option<String>,
    pub(super) key: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ModelSection {
    pub(super) record: Option<Span>,
    pub(super) confirm: Option<Span>,
    pub(super) margin: Option<f64>,
    pub(super) cores: Option<u16>,
    pub(super) batch: Option<Span>,
    pub(super) message: Option<Span>,
    pub(super) way: Option<Span>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AdaptSection {
    pub(super) period: Option<Span>,
    pub(super) window: Option<Span>,
}
