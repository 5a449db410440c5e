//! `[shaper]` as it is written; [`super::check`] makes a [`Config`](super::Config) of it.

use std::path::PathBuf;

use serde::Deserialize;
use tidegate_runtime::config::units::Span;

use super::words::{MarkText, Ports, PrefixText};
use crate::machine::device::{Control, Hook, Mode, Occupancy, Protocol};
use crate::machine::line_rate::LineRate;

/// `[shaper]`: every key may be left out.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    pub(super) admin_address: Option<String>,
    pub(super) batch_timers: bool,
    pub(super) device: Vec<DeviceSection>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeviceSection {
    pub(super) name: String,
    pub(super) namespace: Option<PathBuf>,
    #[serde(default)]
    pub(super) mode: Mode,
    pub(super) rate: Option<LineRate>,
    #[serde(default)]
    pub(super) control: Control,
    #[serde(default)]
    pub(super) isolation: bool,
    pub(super) delay: Option<Span>,
    #[serde(default)]
    pub(super) ecn: bool,
    #[serde(default)]
    pub(super) hook: Hook,
    #[serde(default)]
    pub(super) occupancy: Occupancy,
    pub(super) default_class: Option<String>,
    #[serde(default)]
    pub(super) class: Vec<ClassSection>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClassSection {
    pub(super) name: String,
    pub(super) rate: Option<LineRate>,
    pub(super) ceil: Option<LineRate>,
    pub(super) parent: Option<String>,
    pub(super) classid: Option<String>,
    #[serde(default, rename = "match")]
    pub(super) matches: Vec<MatchSection>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct MatchSection {
    pub(super) cgroup: Option<PathBuf>,
    pub(super) mark: Option<MarkText>,
    pub(super) source: Option<PrefixText>,
    pub(super) destination: Option<PrefixText>,
    pub(super) protocol: Option<Protocol>,
    pub(super) port: Option<Ports>,
    pub(super) vlan: Option<u16>,
}
