//! From the section as it is written to [`Config`].

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;
use tidegate_core::limit::Limit;
use tidegate_core::replay::{ServiceModel, Spread};
use tidegate_runtime::config::units::{Bytes, Span};
use tidegate_runtime::config::{ConfigError, Document};
use tidegate_wire::nsq::{ChannelName, TopicName};

use crate::machine::modelled::ModelConfig;

use super::divided::{limits, proxies};
use super::section::{AdaptSection, CorrelationSection, HookSection, ModelSection, NodeSection, Section, TopicSection};
use super::{
    Adapt, CHANNELS_MAX, CORRELATIONS_MAX, Config, Correlation, Hook, Lend, Model, NODES_MAX, Node, OnStoreLoss,
    Pattern, TOPICS_MAX, Topic,
};

/// The port after the ones of broker and proxy would be 4155; control is no part of a broker's block.
const LISTEN: &str = "127.0.0.1:4190";
const LEASE: Duration = Duration::from_secs(10);
const READY: Duration = Duration::from_secs(30);
/// Tidegate's broker as `lab/calibration.toml` has it, where the numbers are explained.
const SERVICE: ServiceModel =
    ServiceModel { cores: 2, batch_ns: 8_500, message_ns: 6_400, way_ns: 60_000, spread: Spread::Exponential };
const ROUND: Duration = Duration::from_mins(1);
/// Longest name of a publisher, and longest correlation key, in bytes.
const KEY_BYTES_MAX: usize = 128;
/// Words of a command at most.
const COMMAND_WORDS_MAX: usize = 64;

/// The part of a file that is control's.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    control: Section,
}

/// A section of the file, for errors in it.
pub(super) struct Place<'a> {
    document: &'a Document,
    key: String,
}

impl<'a> Place<'a> {
    pub(super) fn below(&self, key: impl Display) -> Place<'a> {
        Place { document: self.document, key: format!("{}.{key}", self.key) }
    }

    pub(super) fn problem(&self, key: &str, found: impl Display, remedy: impl Display) -> ConfigError {
        self.document.problem(&format!("{}.{key}", self.key), found, remedy)
    }

    /// `given`, or `default`, if it is in the bounds.
    fn span(
        &self,
        key: &str,
        given: Option<Span>,
        default: Duration,
        (least, most): (Duration, Duration),
    ) -> Result<Duration, ConfigError> {
        let span = given.map_or(default, |Span(span)| span);
        if span < least || span > most {
            let remedy = format!("expected a duration from {least:?} to {most:?}");
            return Err(self.problem(key, format_args!("found {span:?}"), remedy));
        }
        Ok(span)
    }

    pub(super) fn at_most(&self, key: &str, found: usize, most: usize) -> Result<(), ConfigError> {
        if found > most {
            return Err(self.problem(key, format_args!("found {found} entries"), format!("expected at most {most}")));
        }
        Ok(())
    }

    /// A name of our own: what fits a log line, a metric and a path.
    pub(super) fn name(&self, key: &str, name: &str) -> Result<(), ConfigError> {
        let plain = |c: u8| c.is_ascii_alphanumeric() || b"._-:".contains(&c);
        if !name.is_empty() && name.len() <= 64 && name.bytes().all(plain) {
            return Ok(());
        }
        let remedy = "expected 1 to 64 of letters, digits, `.`, `_`, `-` and `:`";
        Err(self.problem(key, format_args!("found {name:?}"), remedy))
    }

    /// `host:port`.
    fn authority(&self, key: &str, text: &str) -> Result<String, ConfigError> {
        is_authority(text).then(|| text.to_owned()).ok_or_else(|| {
            let remedy = "expected host:port such as \"127.0.0.1:4150\" or \"broker-a:4150\"";
            self.problem(key, format_args!("found {text:?}"), remedy)
        })
    }

    /// `host:port` of `http://host:port`.
    pub(super) fn base(&self, key: &str, text: &str) -> Result<String, ConfigError> {
        let authority = text.strip_prefix("http://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
        authority.filter(|authority| is_authority(authority)).map(str::to_owned).ok_or_else(|| {
            let remedy = "expected http://host:port such as \"http://127.0.0.1:4153\", without a path";
            self.problem(key, format_args!("found {text:?}"), remedy)
        })
    }
}

fn is_authority(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let plain = |c: u8| c.is_ascii_alphanumeric() || b".-_:".contains(&c);
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    !host.is_empty() && host.len() <= 253 && host.bytes().all(plain) && is_port
}

impl Config {
    /// The section `[control]` of `document`, whatever else is in it.
    ///
    /// # Errors
    /// What is wrong, with file, line, key, value and remedy.
    pub fn from_document(document: &Document) -> Result<Self, ConfigError> {
        let File { control } = document.parse()?;
        Self::from_section(control, document)
    }

    /// `section` of `document`, checked.
    ///
    /// # Errors
    /// As [`Self::from_document`].
    pub fn from_section(section: Section, document: &Document) -> Result<Self, ConfigError> {
        let place = Place { document, key: "control".to_owned() };
        if let Some(name) = &section.name {
            place.name("name", name)?;
        }
        let lease_bounds = (Duration::from_secs(1), Duration::from_mins(10));
        let nodes = nodes(&place, section.nodes)?;
        let topics = topics(&place, section.topic)?;
        let proxies = proxies(&place, section.proxies)?;
        let limits = limits(&place, section.limit, &proxies)?;
        let mut config = Self {
            listen: listen(&place, section.listen.as_deref().unwrap_or(LISTEN))?,
            name: section.name,
            token_file: section.token_file,
            store: section.store,
            lease: place.span("lease", section.lease, LEASE, lease_bounds)?,
            ready_timeout: place.span("ready_timeout", section.ready_timeout, READY, lease_bounds)?,
            on_out_of_brokers: section.on_out_of_brokers.map(|hook| hook_of(&place, hook)).transpose()?,
            nodes,
            topics,
            proxies,
            limits,
            warnings: Vec::new(),
        };
        config.warnings = warnings(&config);
        Ok(config)
    }
}

fn listen(place: &Place<'_>, text: &str) -> Result<SocketAddr, ConfigError> {
    let numbers = text.strip_prefix("localhost:").map_or_else(|| text.to_owned(), |port| format!("127.0.0.1:{port}"));
    numbers.parse().map_err(|_| {
        let remedy = "expected address:port such as \"127.0.0.1:4190\" or \"0.0.0.0:4190\"";
        place.problem("listen", format_args!("found {text:?}"), remedy)
    })
}

fn nodes(place: &Place<'_>, sections: Vec<NodeSection>) -> Result<Vec<Node>, ConfigError> {
    place.at_most("nodes", sections.len(), NODES_MAX)?;
    let (mut names, mut admins) = (BTreeSet::new(), BTreeSet::new());
    let mut nodes = Vec::with_capacity(sections.len());
    for (index, section) in sections.into_iter().enumerate() {
        let place = place.below(format_args!("nodes[{index}]"));
        let NodeSection { name, admin, nsq, mcap, token_file } = section;
        place.name("name", &name)?;
        let admin = place.base("admin", &admin)?;
        if !names.insert(name.clone()) {
            return Err(place.problem("name", format_args!("{name} is there twice"), "give each node its own name"));
        }
        if !admins.insert(admin.clone()) {
            let remedy = "name each broker once: its parts would be counted twice";
            return Err(place.problem("admin", format_args!("{admin} is there twice"), remedy));
        }
        if mcap.is_some_and(tidegate_core::Rate::is_zero) {
            let remedy = "expected more than 0: to place nothing on a node, drain it or leave it out";
            return Err(place.problem("mcap", "found 0", remedy));
        }
        let nsq = place.authority("nsq", &nsq)?;
        nodes.push(Node { name, admin, nsq, mcap_per_s: mcap.map(tidegate_core::Rate::as_per_s), token_file });
    }
    Ok(nodes)
}

fn topics(place: &Place<'_>, sections: Vec<TopicSection>) -> Result<Vec<Topic>, ConfigError> {
    place.at_most("topic", sections.len(), TOPICS_MAX)?;
    let mut names = BTreeSet::new();
    let mut topics = Vec::with_capacity(sections.len());
    for (index, section) in sections.into_iter().enumerate() {
        let place = place.below(format_args!("topic[{index}]"));
        let topic = topic(&place, section)?;
        if !names.insert(topic.name.clone()) {
            let found = format_args!("{} is there twice", topic.name);
            return Err(place.problem("name", found, "keep one of them"));
        }
        topics.push(topic);
    }
    Ok(topics)
}

fn topic(place: &Place<'_>, section: TopicSection) -> Result<Topic, ConfigError> {
    let TopicSection { name, rate, burst: Bytes(burst), unit, slo, channels, planner, principles, .. } = section;
    TopicName::new(&name).map_err(|error| place.problem("name", format_args!("found {name:?}"), error))?;
    if rate.is_zero() {
        return Err(place.problem("rate", "found 0", "expected more than 0: to stop a topic for a while, pause it"));
    }
    if burst == 0 {
        return Err(place.problem("burst", "found 0", "expected 1 or more: nothing passes a bucket without depth"));
    }
    place.at_most("channels", channels.len(), CHANNELS_MAX)?;
    for (index, channel) in channels.iter().enumerate() {
        let key = format!("channels[{index}]");
        ChannelName::new(channel).map_err(|error| place.problem(&key, format_args!("found {channel:?}"), error))?;
    }
    // Brokers keep no more seconds.
    let round_bounds = (Duration::from_secs(1), Duration::from_mins(1));
    Ok(Topic {
        name,
        limit: Limit::new(rate, burst),
        unit,
        slo: slo.unwrap_or_default(),
        channels,
        planner,
        model: model(&place.below("model"), &section.model)?,
        policy: principles,
        correlation: correlation(place, section.correlation)?,
        adapt: adapt(&place.below("adapt"), &section.adapt)?,
        round: place.span("round", section.round, ROUND, round_bounds)?,
        lend: section.lend,
        on_store_loss: section.on_store_loss,
    })
}

fn correlation(place: &Place<'_>, sections: Vec<CorrelationSection>) -> Result<Vec<Correlation>, ConfigError> {
    place.at_most("correlation", sections.len(), CORRELATIONS_MAX)?;
    let one = |(index, section): (usize, CorrelationSection)| {
        let place = place.below(format_args!("correlation[{index}]"));
        let CorrelationSection { client, host, key } = section;
        if client.is_none() && host.is_none() {
            let remedy = "add client or host, a pattern such as \"sensor-*\"";
            return Err(place.problem("key", "a key for every publisher is a key for none", remedy));
        }
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            let remedy = format!("expected 1 to {KEY_BYTES_MAX} bytes");
            return Err(place.problem("key", format_args!("found {} bytes", key.len()), remedy));
        }
        let pattern = |name: &str, text: Option<String>| {
            let Some(text) = text else { return Ok(None) };
            Pattern::new(&text).map(Some).ok_or_else(|| {
                let remedy = format!("expected 1 to {} bytes, * for any characters", Pattern::BYTES_MAX);
                place.problem(name, format_args!("found {} bytes", text.len()), remedy)
            })
        };
        Ok(Correlation { client: pattern("client", client)?, host: pattern("host", host)?, key })
    };
    sections.into_iter().enumerate().map(one).collect()
}

pub(super) fn adapt(place: &Place<'_>, section: &AdaptSection) -> Result<Adapt, ConfigError> {
    let second = Duration::from_secs(1);
    let period = place.span("period", section.period, second, (second, Duration::from_mins(1)))?;
    let window = place.span("window", section.window, 10 * second, (second, Duration::from_mins(1)))?;
    if window.subsec_nanos() != 0 {
        let remedy = "expected whole seconds: brokers count by the second";
        return Err(place.problem("window", format_args!("found {window:?}"), remedy));
    }
    Ok(Adapt { period, window })
}

fn model(place: &Place<'_>, section: &ModelSection) -> Result<Model, ConfigError> {
    let default = ModelConfig::default();
    let second = Duration::from_secs(1);
    let margin = section.margin.unwrap_or(default.margin);
    if !(0.01..=10.0).contains(&margin) {
        return Err(place.problem("margin", format_args!("found {margin}"), "expected a share from 0.01 to 10"));
    }
    let cores = section.cores.unwrap_or(SERVICE.cores);
    if cores == 0 {
        return Err(place.problem("cores", "found 0", "expected 1 or more: those that serve a broker's messages"));
    }
    let step = |key: &str, given: Option<Span>, default_ns: u32| {
        let default = Duration::from_nanos(default_ns.into());
        let span = place.span(key, given, default, (Duration::ZERO, second))?;
        Ok(u32::try_from(span.as_nanos()).expect("it is at most a second"))
    };
    let service = ServiceModel {
        cores,
        batch_ns: step("batch", section.batch, SERVICE.batch_ns)?,
        message_ns: step("message", section.message, SERVICE.message_ns)?,
        way_ns: step("way", section.way, SERVICE.way_ns)?,
        spread: SERVICE.spread,
    };
    // A broker is watched for no longer than one measurement lasts.
    let longest = default.confirm.span;
    Ok(Model {
        record: place.span("record", section.record, default.record, (second, Duration::from_mins(1)))?,
        confirm: place.span("confirm", section.confirm, default.confirm.least, (second, longest))?,
        margin,
        service,
    })
}

fn hook_of(place: &Place<'_>, section: HookSection) -> Result<Hook, ConfigError> {
    let place = place.below("on_out_of_brokers");
    let HookSection { command, webhook } = section;
    match (command.is_empty(), webhook) {
        (false, None) if command.len() <= COMMAND_WORDS_MAX => Ok(Hook::Command(command)),
        (false, None) => {
            let remedy = format!("expected at most {COMMAND_WORDS_MAX}");
            Err(place.problem("command", format_args!("found {} words", command.len()), remedy))
        }
        (true, Some(url)) => {
            let (authority, path) = url
                .strip_prefix("http://")
                .map(|rest| rest.find('/').map_or((rest, "/"), |at| rest.split_at(at)))
                .unwrap_or_default();
            let plain = path.bytes().all(|byte| byte.is_ascii_graphic());
            if is_authority(authority) && plain {
                return Ok(Hook::Webhook { authority: authority.to_owned(), path: path.to_owned() });
            }
            let remedy = "expected http://host:port/path";
            Err(place.problem("webhook", format_args!("found {url:?}"), remedy))
        }
        _ => {
            let remedy = "give either command = [\"program\", \"argument\"] or webhook = \"http://host:port/path\"";
            Err(place.document.problem(&place.key, "not one of command and webhook", remedy))
        }
    }
}

fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    if config.nodes.is_empty() && config.limits.is_empty() {
        warnings.push("control.nodes is empty: no topic can be placed".to_owned());
    }
    if !config.listen.ip().is_loopback() {
        warnings.push(format!(
            "control.listen is {}, which other machines may reach: the token travels there unencrypted",
            config.listen
        ));
    }
    for topic in &config.topics {
        let Topic { name, limit, .. } = topic;
        if topic.channels.is_empty() {
            warnings.push(format!(
                "topic {name} names no channels: a broker takes its publishers before it has a consumer"
            ));
        }
        if limit.burst < config.nodes.len() as u64 {
            warnings.push(format!("topic {name} has a burst of {}: on no more brokers can it be placed", limit.burst));
        }
        if topic.on_store_loss == OnStoreLoss::Open && topic.lend == Lend::On {
            warnings.push(format!("topic {name} lends tokens, but a node that lost the store admits the whole limit"));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use tidegate_core::Rate;

    use super::*;
    use crate::config::{Planner, Policy, Unit};

    fn read(text: &str) -> Result<Config, ConfigError> {
        Config::from_document(&Document::new("t.toml", text))
    }

    fn error(text: &str) -> String {
        read(text).unwrap_err().to_string()
    }

    const NODE: &str = "[control]\nnodes = [ { name = \"a\", admin = \"http://h:1\", nsq = \"h:2\" } ]\n";

    #[test]
    fn a_section_of_the_least_has_every_default() {
        let config = read("[control]\n").unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:4190");
        assert_eq!((config.lease, config.ready_timeout), (LEASE, READY));
        assert_eq!(config.warnings, ["control.nodes is empty: no topic can be placed"]);
        let topic = "[[control.topic]]\nname = \"orders\"\nrate = \"11k/s\"\nburst = 26\n";
        let config = read(&format!("{NODE}{topic}")).unwrap();
        let [topic] = &config.topics[..] else { panic!("one topic") };
        assert_eq!(topic.limit, Limit::new(Rate::per_s(11_000), 26));
        assert_eq!((topic.unit, topic.planner, topic.policy), (Unit::Messages, Planner::Model, Policy::Srtm));
        assert_eq!(topic.adapt, Adapt { period: Duration::from_secs(1), window: Duration::from_secs(10) });
        assert_eq!(topic.round, ROUND);
        assert_eq!((topic.model.record, topic.model.service), (Duration::from_secs(5), SERVICE));
        assert_eq!((topic.lend, topic.on_store_loss), (Lend::Off, OnStoreLoss::Local));
        assert_eq!(config.nodes[0].mcap_per_s, None);
        assert_eq!(config.warnings.len(), 1, "without channels: {:?}", config.warnings);
    }

    #[test]
    fn everything_can_be_said() {
        let config = read(
            r#"
            [control]
            listen = "localhost:5000"
            name = "control-1"
            token_file = "t"
            store = "s"
            lease = "3s"
            ready_timeout = "5s"
            on_out_of_brokers = { webhook = "http://pager:80/hook" }
            nodes = [
                { name = "a", admin = "http://127.0.0.1:4180/", nsq = "127.0.0.1:4150", mcap = "80k/s" },
                { name = "b", admin = "http://[::1]:4181", nsq = "b.example:4150", token_file = "b.token" },
            ]
            [[control.topic]]
            name = "orders"
            rate = "11k/s"
            burst = "2KiB"
            unit = "bytes"
            slo = "p99.9 <= 5ms"
            channels = ["billing"]
            planner = "paper"
            principles = "max-min"
            correlation = [ { client = "sensor-*", key = "sensors" }, { host = "*.eu", key = "eu" } ]
            adapt = { period = "2s", window = "20s" }
            round = "30s"
            lend = "on"
            on_store_loss = "open"
            "#,
        )
        .unwrap();
        assert_eq!(config.nodes[0].admin, "127.0.0.1:4180");
        assert_eq!(config.nodes[0].mcap_per_s, Some(80_000.0));
        assert_eq!(config.nodes[1].admin, "[::1]:4181");
        let hook = Hook::Webhook { authority: "pager:80".to_owned(), path: "/hook".to_owned() };
        assert_eq!(config.on_out_of_brokers, Some(hook));
        let topic = &config.topics[0];
        assert_eq!((topic.limit.burst, topic.policy, topic.correlation.len()), (2_048, Policy::MaxMin, 2));
        assert_eq!(config.warnings.len(), 1, "{:?}", config.warnings);
    }

    #[test]
    fn errors_name_file_line_key_value_and_remedy() {
        assert_eq!(
            error("[control]\nnodes = [ { name = \"a\", admin = \"h:1\", nsq = \"h:2\" } ]\n"),
            "t.toml:2: control.nodes[0].admin: found \"h:1\"; expected http://host:port such as \
             \"http://127.0.0.1:4153\", without a path"
        );
        assert_eq!(
            error(&format!("{NODE}[[control.topic]]\nname = \"a\"\nrate = \"1/s\"\nburst = 1\nslo = \"fast\"\n")),
            "t.toml:7: control.topic[0].slo: invalid value: string \"fast\"; expected an objective such as \
             \"p99 <= 1ms\" or \"p99.9 <= 20ms\""
        );
        assert_eq!(
            error("[control]\nlease = \"1ms\"\n"),
            "t.toml:2: control.lease: found 1ms; expected a duration from 1s to 600s"
        );
        assert!(error("[control]\nlisen = \"x\"\n").contains("did you mean `listen`?"));
        assert!(error("[control]\nlisten = \"4190\"\n").starts_with("t.toml:2: control.listen: found \"4190\""));
    }

    #[test]
    fn what_stands_twice_or_beyond_its_bounds_is_found() {
        let two = |a: &str, b: &str| format!("[control]\nnodes = [\n{a},\n{b},\n]\n");
        let node =
            |name: &str, port: u16| format!("{{ name = \"{name}\", admin = \"http://h:{port}\", nsq = \"h:9\" }}");
        assert!(
            error(&two(&node("a", 1), &node("a", 2))).starts_with("t.toml:4: control.nodes[1].name: a is there twice")
        );
        assert!(
            error(&two(&node("a", 1), &node("b", 1))).starts_with("t.toml:4: control.nodes[1].admin: h:1 is there")
        );
        let many: Vec<String> = (1..=1_001_u16).map(|at| node(&format!("n{at}"), at)).collect();
        assert!(
            error(&format!("[control]\nnodes = [{}]\n", many.join(",")))
                .contains("found 1001 entries; expected at most 1000")
        );
        let topic = |more: &str| format!("{NODE}[[control.topic]]\nname = \"a\"\nrate = \"1/s\"\nburst = 1\n{more}\n");
        assert!(error(&topic("adapt = { window = \"1500ms\" }")).contains("expected whole seconds"));
        assert!(error(&topic("model = { margin = 0.0 }")).contains("control.topic[0].model.margin: found 0"));
        assert!(error(&topic("model = { confirm = \"2m\" }")).contains("control.topic[0].model.confirm: found 120s"));
        assert!(error(&topic("model = { batch = \"2s\" }")).contains("control.topic[0].model.batch: found 2s"));
        assert!(error(&topic("channels = [\"a b\"]")).contains("control.topic[0].channels[0]: found \"a b\""));
        assert!(error(&topic("correlation = [ { key = \"k\" } ]")).contains("add client or host"));
        let again = "[[control.topic]]\nname = \"a\"\nrate = 1\nburst = 1\n";
        assert!(error(&topic(again)).contains("control.topic[1].name: a is there twice"));
        assert!(error("[control]\non_out_of_brokers = {}\n").contains("give either command"));
        assert!(
            error("[control]\non_out_of_brokers = { webhook = \"https://x\" }\n").contains("http://host:port/path")
        );
    }
}
