//! `[steer]` of `tidegate.toml`.

use std::path::PathBuf;
use std::time::Duration;

use axum::http::Uri;
use serde::Deserialize;
use tidegate_runtime::config::units::{Bytes, Span};
use tidegate_runtime::config::{ConfigError, Document};

use crate::machine::hop::placement::{PLACEMENT_NODES_MAX, PlacedNode, is_authority};
use crate::machine::hop::{HopConfig, OUTSTANDING_BYTES_MAX};

/// Most threads of a hop.
const THREADS_MAX: usize = 256;
/// Most producers at a time that can be asked for.
const PRODUCERS_MAX: usize = 1_000_000;
/// What brokers take as an interval of heartbeats: nsqd's bounds.
const HEARTBEAT: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_mins(1);

/// `[steer]` as it is written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    listen: Option<String>,
    admin_address: Option<String>,
    nodes: Vec<NodeSection>,
    control: Option<String>,
    token_file: Option<PathBuf>,
    placement: Option<PathBuf>,
    threads: Option<usize>,
    max_producers: Option<usize>,
    max_body_size: Option<Bytes>,
    node_heartbeat: Option<Span>,
    drain_timeout: Option<Span>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeSection {
    name: String,
    nsq: String,
}

/// Where placements come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// Nowhere: every topic goes to all nodes of the configuration, publishers spread over them.
    Nodes,
    /// From a file.
    File(PathBuf),
    /// From the control plane, at `http://host:port`.
    Control(String),
}

/// A hop, checked.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Where producers connect, `host:port`; port 0 for one that the system picks.
    pub listen: String,
    /// Where the admin API listens, `host:port`; `None` for none.
    pub admin_address: Option<String>,
    /// The brokers of topics without a placement, and of producers that have not published yet. One at least.
    pub nodes: Vec<PlacedNode>,
    /// Where placements come from.
    pub source: Source,
    /// The file with the token that the control plane asks for.
    pub token_file: Option<PathBuf>,
    /// Threads that serve producers, 1 to 256.
    pub threads: usize,
    /// Producers at a time; further ones are turned away.
    pub max_producers: usize,
    /// Of each connection.
    pub hop: HopConfig,
    /// How long open commands may take at the end.
    pub drain_timeout: Duration,
}

impl Config {
    /// Checks `section` of `document`; `cpus` processors are there.
    ///
    /// # Errors
    /// What is wrong, with its place in the file and what to write.
    pub fn from_section(section: Section, document: &Document, cpus: usize) -> Result<Self, ConfigError> {
        let nodes = nodes(&section, document)?;
        let source = source(&section, document)?;
        let defaults = HopConfig::default();
        // nsqd's port: what producers dial now may go on.
        let listen = section.listen.unwrap_or_else(|| "127.0.0.1:4150".to_owned());
        // 4153 and 4154 are the broker's and the proxy's.
        let admin_address = section.admin_address.unwrap_or_else(|| "127.0.0.1:4156".to_owned());
        for (key, text) in [("listen", &listen), ("admin_address", &admin_address)] {
            let is_none = key == "admin_address" && text.is_empty();
            let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
            if !is_none && !matches!(port, Some(Ok(_))) {
                let remedy = "expected address:port, such as \"127.0.0.1:4150\"";
                return Err(document.problem(&format!("steer.{key}"), format_args!("found {text:?}"), remedy));
            }
        }
        let threads = section.threads.unwrap_or(cpus);
        check(document, "threads", threads, (1..=THREADS_MAX).contains(&threads), "expected 1 to 256")?;
        let max_producers = section.max_producers.unwrap_or(10_000);
        let fits = (1..=PRODUCERS_MAX).contains(&max_producers);
        check(document, "max_producers", max_producers, fits, "expected 1 to 1000000")?;
        let body = section.max_body_size.map_or(Ok(defaults.max_body_size), |Bytes(bytes)| usize::try_from(bytes));
        let max_body_size = body.unwrap_or(usize::MAX);
        let fits = (1..=OUTSTANDING_BYTES_MAX).contains(&max_body_size);
        check(document, "max_body_size", max_body_size, fits, "expected 1 byte to 8MiB")?;
        let node_heartbeat = section.node_heartbeat.map_or(defaults.node_heartbeat, |Span(span)| span);
        let found = format!("{node_heartbeat:?}");
        check(document, "node_heartbeat", found, HEARTBEAT.contains(&node_heartbeat), "expected \"1s\" to \"60s\"")?;
        Ok(Self {
            listen,
            admin_address: Some(admin_address).filter(|address| !address.is_empty()),
            nodes,
            source,
            token_file: section.token_file,
            threads,
            max_producers,
            hop: HopConfig { max_body_size, node_heartbeat },
            // As long as supervisors wait with some to spare: systemd's limit is 90 s.
            drain_timeout: section.drain_timeout.map_or(Duration::from_secs(30), |Span(span)| span),
        })
    }
}

fn check(
    document: &Document,
    key: &str,
    found: impl std::fmt::Display,
    fits: bool,
    remedy: &str,
) -> Result<(), ConfigError> {
    if fits {
        return Ok(());
    }
    Err(document.problem(&format!("steer.{key}"), format_args!("found {found}"), remedy))
}

fn nodes(section: &Section, document: &Document) -> Result<Vec<PlacedNode>, ConfigError> {
    let problem = |found: String, remedy| Err(document.problem("steer.nodes", found, remedy));
    let count = section.nodes.len();
    if !(1..=PLACEMENT_NODES_MAX).contains(&count) {
        let remedy = "name a broker at least: nodes = [ { name = \"a\", nsq = \"10.0.0.1:4150\" } ]";
        return problem(format!("found {count} brokers"), remedy);
    }
    for (place, node) in section.nodes.iter().enumerate() {
        if !is_authority(&node.nsq) {
            return problem(format!("{:?} is at {:?}", node.name, node.nsq), "expected host:port of its NSQ protocol");
        }
        if section.nodes[..place].iter().any(|other| other.name == node.name || other.nsq == node.nsq) {
            return problem(format!("{:?} is there twice", node.name), "name each broker once");
        }
    }
    Ok(section.nodes.iter().map(|node| PlacedNode { name: node.name.clone(), nsq: node.nsq.clone() }).collect())
}

fn source(section: &Section, document: &Document) -> Result<Source, ConfigError> {
    match (&section.control, &section.placement) {
        (Some(_), Some(_)) => {
            let remedy = "a placement comes from control or from a file: remove one of the two keys";
            Err(document.problem("steer.placement", "there is steer.control as well", remedy))
        }
        (None, Some(file)) => Ok(Source::File(file.clone())),
        (Some(url), None) => base_address(url).map(Source::Control).ok_or_else(|| {
            let remedy = "expected http://host:port, without a path";
            document.problem("steer.control", format_args!("found {url:?}"), remedy)
        }),
        (None, None) => Ok(Source::Nodes),
    }
}

/// `http://host:port` of a base address, without a slash at its end.
fn base_address(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    let is_plain = uri.scheme_str() == Some("http") && matches!(uri.path(), "" | "/") && uri.query().is_none();
    let authority = uri.authority().filter(|authority| is_plain && !authority.as_str().contains('@'))?;
    Some(format!("http://{authority}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct File {
        steer: Section,
    }

    fn read(text: &str) -> Result<Config, String> {
        let document = Document::new("t.toml", text);
        let File { steer } = document.parse().map_err(|error| error.to_string())?;
        Config::from_section(steer, &document, 2).map_err(|error| error.to_string())
    }

    const NODES: &str = "[steer]\nnodes = [ { name = \"a\", nsq = \"10.0.0.1:4150\" } ]\n";

    #[test]
    fn one_broker_is_enough() {
        let config = read(NODES).unwrap();
        assert_eq!((config.listen.as_str(), config.threads), ("127.0.0.1:4150", 2));
        assert_eq!(config.admin_address.as_deref(), Some("127.0.0.1:4156"));
        assert_eq!(config.source, Source::Nodes);
        assert_eq!(config.hop, HopConfig::default());
        let config = read(&format!("{NODES}control = \"http://c:4190/\"\nadmin_address = \"\"\n")).unwrap();
        assert_eq!((config.source, config.admin_address), (Source::Control("http://c:4190".to_owned()), None));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let error = |more: &str| read(&format!("{NODES}{more}\n")).unwrap_err();
        assert!(read("[steer]\n").unwrap_err().starts_with("t.toml:1: steer.nodes: found 0 brokers; name a broker"));
        assert!(
            error("listen = \"4150\"").starts_with("t.toml:3: steer.listen: found \"4150\"; expected address:port")
        );
        assert!(error("control = \"c:4190\"").starts_with("t.toml:3: steer.control: found \"c:4190\""));
        let both = error("control = \"http://c:1\"\nplacement = \"p.json\"");
        assert!(both.starts_with("t.toml:4: steer.placement: there is steer.control as well"), "{both}");
        assert!(error("node_heartbeat = \"90s\"").contains("found 90s; expected \"1s\" to \"60s\""));
        assert!(error("max_body_size = \"9MiB\"").contains("expected 1 byte to 8MiB"));
        assert!(error("threads = 0").contains("expected 1 to 256"));
        assert!(error("topics = \"all\"").contains("unknown key"));
        let twice = "[steer]\nnodes = [ { name = \"a\", nsq = \"x:1\" }, { name = \"b\", nsq = \"x:1\" } ]\n";
        assert!(read(twice).unwrap_err().contains("\"b\" is there twice"));
    }
}
