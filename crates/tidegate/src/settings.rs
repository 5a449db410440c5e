//! `tidegate.toml`: what `tidegate up` runs.
//!
//! The file becomes domain types here, once; nothing downstream checks again. Every key has a default, so that an empty
//! file works; `tidegate.example.toml` lists them all with their reasons.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use tidegate_broker::config::{Address, Config, Host, Options, TlsVersion};
use tidegate_broker::io::admin::{Reach, Target, reach_of};
use tidegate_broker::machine::limiter::{Contract, Discipline, Mode, Unit};
use tidegate_control::config as control;
use tidegate_control::io::hop::config as steer;
use tidegate_core::limit::Limit;
use tidegate_proxy::config as proxy;
use tidegate_runtime::config::units::{Bytes, Span};
use tidegate_runtime::config::{ConfigError, Document};
use tidegate_runtime::telemetry::Format;
use tidegate_shaper::config as shaper;
use tidegate_wire::nsq::{ChannelName, TopicName};

use crate::store_section::{StorePlace, StoreSection};
use crate::words::{self, RateText};

/// Where to look when an option is wrong.
pub(crate) const OPTIONS_HELP: &str = "`tidegate broker -help` lists every option with its default";

/// The file, as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    broker: Options,
    admin: AdminSection,
    console: ConsoleSection,
    store: StoreSection,
    log: LogSection,
    topic: Vec<TopicSection>,
    proxy: Option<proxy::Section>,
    steer: Option<steer::Section>,
    control: Option<control::Section>,
    shaper: Option<shaper::Section>,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct AdminSection {
    address: String,
    token_file: Option<PathBuf>,
}

impl Default for AdminSection {
    fn default() -> Self {
        // The port after nsqd's three; 4160 and 4161 are nsqlookupd's.
        Self { address: "127.0.0.1:4153".to_owned(), token_file: None }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ConsoleSection {
    address: String,
    allowed_hosts: Vec<String>,
    poll_interval: Span,
}

impl Default for ConsoleSection {
    fn default() -> Self {
        // Four times a second: the eye follows it, and an edited limit is seen in force well within a second.
        let poll_interval = Span(Duration::from_millis(250));
        Self { address: "127.0.0.1:7070".to_owned(), allowed_hosts: Vec::new(), poll_interval }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LogSection {
    format: LogFormat,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum LogFormat {
    #[default]
    Human,
    Json,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TopicSection {
    name: String,
    rate: Option<RateText>,
    burst: Option<Bytes>,
    #[serde(default)]
    unit: words::UnitWord,
    #[serde(default)]
    discipline: words::DisciplineWord,
    #[serde(default)]
    mode: words::ModeWord,
    #[serde(default)]
    channel: Vec<ChannelSection>,
}

/// Without a discipline: a channel always waits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChannelSection {
    name: String,
    rate: RateText,
    burst: Bytes,
    #[serde(default)]
    unit: words::UnitWord,
    #[serde(default)]
    mode: words::ModeWord,
}

/// What `tidegate up` runs, checked.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Settings {
    /// With the admin API's address.
    pub(crate) broker: Config,
    /// The contracts of the file, in its order.
    pub(crate) limits: Vec<(Target, Contract)>,
    pub(crate) token_file: PathBuf,
    /// `None` if its address is empty.
    pub(crate) console: Option<Console>,
    pub(crate) store: StorePlace,
    pub(crate) log_format: Format,
    /// If there is such a section.
    pub(crate) proxy: Option<proxy::Config>,
    /// If there is such a section.
    pub(crate) steer: Option<steer::Config>,
    /// If there is such a section.
    pub(crate) control: Option<control::Config>,
    /// If there is such a section.
    pub(crate) shaper: Option<shaper::Config>,
    /// What works, and is probably not meant.
    pub(crate) warnings: Vec<String>,
}

/// The web console.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Console {
    pub(crate) address: Address,
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) poll_interval: Duration,
}

impl Settings {
    /// What `document` says; one that leaves everything out gives the defaults.
    pub(crate) fn from_document(document: &Document, host: &Host) -> Result<Self, ConfigError> {
        let File { broker, admin, console, store, log, topic, proxy, steer, control, shaper } = document.parse()?;
        if broker.admin_address.is_some() {
            let remedy = "here the address is admin.address; the option is for `tidegate broker`";
            return Err(document.problem("broker.admin_address", "set in the wrong section", remedy));
        }
        let broker = Options { admin_address: Some(admin.address), ..broker }.over(loopback_defaults());
        let broker = Config::from_options(broker, host).map_err(|error| {
            let key = match error.key() {
                "admin_address" => "admin.address".to_owned(),
                key => format!("broker.{key}"),
            };
            document.problem(&key, error, "`tidegate broker -help` lists every option with its default")
        })?;
        if matches!(log.format, LogFormat::Json) && !broker.log_prefix.is_empty() {
            let found = format_args!("found {:?}, but log.format is \"json\"", broker.log_prefix);
            let remedy = "a line with a prefix is no JSON: remove the prefix, or set log.format to \"human\"";
            return Err(document.problem("broker.log_prefix", found, remedy));
        }
        let console = console.check(document, &broker)?;
        let store = store.check(document, &broker.data_path)?;
        let mut limits = Vec::new();
        for (index, topic) in topic.into_iter().enumerate() {
            topic.check(&Place { document, key: format!("topic[{index}]") }, &mut limits)?;
        }
        let proxy = proxy.map(|section| proxy::Config::from_section(section, document, host.cpus)).transpose()?;
        let steer = steer.map(|section| steer::Config::from_section(section, document, host.cpus)).transpose()?;
        let control = control.map(|section| control::Config::from_section(section, document)).transpose()?;
        let shaper = shaper.map(|section| shaper::Config::from_section(section, document)).transpose()?;
        Ok(Self {
            warnings: warnings(&broker, console.as_ref(), &limits).into_iter().chain(store.warning()).collect(),
            token_file: admin.token_file.unwrap_or_else(|| broker.data_path.join("admin.token")),
            store,
            log_format: match log.format {
                LogFormat::Human => Format::Human,
                LogFormat::Json => Format::Json,
            },
            console,
            limits,
            broker,
            proxy,
            steer,
            control,
            shaper,
        })
    }
}

/// The options of `[broker]` in `document`, over the defaults of `tidegate up`.
pub(crate) fn options_of(document: &Document) -> Result<Options, ConfigError> {
    let File { broker, admin, .. } = document.parse()?;
    Ok(Options { admin_address: Some(admin.address), ..broker }.over(loopback_defaults()))
}

/// This machine, as far as defaults depend on it.
pub(crate) fn host() -> Host {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Host { name, cpus: tidegate_runtime::cpu::cores() }
}

/// Where `up` departs from nsqd's defaults: nothing beyond this machine can connect unless the file says so, and files
/// go into a folder of their own.
fn loopback_defaults() -> Options {
    Options {
        tcp_address: Some("127.0.0.1:4150".to_owned()),
        http_address: Some("127.0.0.1:4151".to_owned()),
        https_address: Some("127.0.0.1:4152".to_owned()),
        // A page in a browser of this machine reaches loopback; its name for it gives it away.
        http_allowed_hosts: Some(Vec::new()),
        data_path: Some("tidegate-data".into()),
        log_prefix: Some(String::new()),
        // nsqd's is older, and below this nothing is spoken in any case.
        tls_min_version: Some(TlsVersion::Tls12),
        ..Options::default()
    }
}

impl ConsoleSection {
    fn check(self, document: &Document, broker: &Config) -> Result<Option<Console>, ConfigError> {
        if self.address.is_empty() {
            return Ok(None);
        }
        let Some((host, port)) = self.address.rsplit_once(':') else {
            let remedy = "expected address:port such as \"127.0.0.1:7070\", or \"\" for no console";
            return Err(document.problem("console.address", format_args!("found {:?}", self.address), remedy));
        };
        let Ok(port) = port.parse() else {
            let remedy = "expected a port from 0 to 65535, 0 for one that the system picks";
            return Err(document.problem("console.address", format_args!("found port {port:?}"), remedy));
        };
        if !matches!(broker.admin_address, Some(Address::Tcp { .. })) {
            let remedy = "give admin.address as address:port, or set console.address to \"\"";
            return Err(document.problem("admin.address", "the console reads the admin API over TCP", remedy));
        }
        let Span(poll_interval) = self.poll_interval;
        if poll_interval < Duration::from_millis(50) {
            let found = format_args!("found {poll_interval:?}");
            return Err(document.problem("console.poll_interval", found, "expected 50ms or longer"));
        }
        let address = Address::Tcp { host: host.trim_matches(['[', ']']).to_owned(), port };
        Ok(Some(Console { address, allowed_hosts: self.allowed_hosts, poll_interval }))
    }
}

/// A section of the file, for errors in it.
struct Place<'a> {
    document: &'a Document,
    key: String,
}

impl Place<'_> {
    fn problem(&self, key: &str, found: impl fmt::Display, remedy: impl fmt::Display) -> ConfigError {
        self.document.problem(&format!("{}.{key}", self.key), found, remedy)
    }

    fn contract(&self, limit: Limit, rest: Contract) -> Result<Contract, ConfigError> {
        if limit.burst == 0 {
            return Err(self.problem("burst", "found 0", "expected 1 or more: nothing passes a bucket without depth"));
        }
        if limit.rate.is_zero() {
            let remedy = "expected more than 0: to stop a topic or channel for a while, pause it";
            return Err(self.problem("rate", "found 0", remedy));
        }
        Ok(Contract { limit, ..rest })
    }

    fn add(&self, limits: &mut Vec<(Target, Contract)>, target: Target, contract: Contract) -> Result<(), ConfigError> {
        if limits.iter().any(|(other, _)| *other == target) {
            return Err(self.problem("name", format_args!("{target} has two limits"), "keep one of them"));
        }
        limits.push((target, contract));
        Ok(())
    }
}

impl TopicSection {
    fn check(self, place: &Place<'_>, limits: &mut Vec<(Target, Contract)>) -> Result<(), ConfigError> {
        let topic = TopicName::new(&self.name)
            .map_err(|error| place.problem("name", format_args!("found {:?}", self.name), error))?;
        let target = Target { topic: topic.clone(), channel: None };
        match (self.rate, self.burst) {
            (Some(RateText(rate)), Some(Bytes(burst))) => {
                let (unit, discipline, mode) = (self.unit.into(), self.discipline.into(), self.mode.into());
                let limit = Limit::new(rate, burst);
                place.add(limits, target, place.contract(limit, Contract { limit, unit, discipline, mode })?)?;
            }
            (Some(_), None) => {
                let remedy = "add burst: how many may come at once";
                return Err(place.problem("rate", "a rate without a burst is no limit", remedy));
            }
            (None, Some(_)) => {
                let remedy = "add rate, such as \"1000/s\"";
                return Err(place.problem("burst", "a burst without a rate is no limit", remedy));
            }
            (None, None) if self.channel.is_empty() => {
                let remedy = "add rate and burst, or a [[topic.channel]] with its own";
                return Err(place.problem("name", format_args!("topic {topic} has no limit"), remedy));
            }
            (None, None) => {}
        }
        for (index, channel) in self.channel.into_iter().enumerate() {
            let place = Place { document: place.document, key: format!("{}.channel[{index}]", place.key) };
            channel.check(&topic, &place, limits)?;
        }
        Ok(())
    }
}

impl ChannelSection {
    fn check(
        self,
        topic: &TopicName,
        place: &Place<'_>,
        limits: &mut Vec<(Target, Contract)>,
    ) -> Result<(), ConfigError> {
        let channel = ChannelName::new(&self.name)
            .map_err(|error| place.problem("name", format_args!("found {:?}", self.name), error))?;
        let limit = Limit::new(self.rate.0, self.burst.0);
        let (unit, mode): (Unit, Mode) = (self.unit.into(), self.mode.into());
        let contract = place.contract(limit, Contract { limit, unit, discipline: Discipline::Wait, mode })?;
        place.add(limits, Target { topic: topic.clone(), channel: Some(channel) }, contract)
    }
}

fn warnings(broker: &Config, console: Option<&Console>, limits: &[(Target, Contract)]) -> Vec<String> {
    let mut warnings: Vec<String> = broker.warnings.iter().map(|warning| format!("broker: {warning}")).collect();
    let mut open = |key: &str, address: Option<&Address>, so: &str| {
        if let Some(address) = address.filter(|address| !is_loopback(address)) {
            warnings.push(format!("{key} is {address}, which other machines may reach: {so}"));
        }
    };
    open("admin.address", broker.admin_address.as_ref(), "the token travels there unencrypted");
    let so = "whoever does sees all topics' figures, and the token travels there unencrypted";
    open("console.address", console.map(|console| &console.address), so);
    if !limits.is_empty() && !broker.lookupd_tcp_addresses.is_empty() {
        warnings.push(
            "consumers find this broker and its peers through nsqlookupd, and each broker with the same limit admits all of it: \
             divide rate and burst by the number of brokers"
                .to_owned(),
        );
    }
    for (target, contract) in limits {
        if contract.unit == Unit::Bytes && contract.limit.burst < u64::from(broker.max_msg_size) {
            warnings.push(format!(
                "{target} has a burst of {} bytes: larger messages are refused, although broker.max_msg_size is {}",
                contract.limit.burst, broker.max_msg_size
            ));
        }
    }
    warnings
}

/// Whether only this machine can connect to `address`.
pub(crate) fn is_loopback(address: &Address) -> bool {
    reach_of(address) != Reach::Network
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tidegate_core::Rate;

    use super::*;

    fn host() -> Host {
        Host { name: "test".to_owned(), cpus: 2 }
    }

    fn read(text: &str) -> Result<Settings, ConfigError> {
        Settings::from_document(&Document::new("tidegate.toml", text), &host())
    }

    fn error(text: &str) -> String {
        read(text).unwrap_err().to_string()
    }

    #[test]
    fn without_a_word_nothing_beyond_this_machine_is_reachable() {
        let settings = read("").unwrap();
        for address in [Some(settings.broker.tcp_address), settings.broker.http_address, settings.broker.admin_address]
        {
            assert!(is_loopback(&address.unwrap()));
        }
        assert!(is_loopback(&settings.console.unwrap().address));
        assert!(settings.broker.http_allowed_hosts.is_empty(), "writes by an unknown Host are refused");
        assert_eq!(settings.store, StorePlace::Embedded("tidegate-data/control.redb".into()));
        assert_eq!(settings.token_file, Path::new("tidegate-data/admin.token"));
        assert!(settings.warnings.is_empty());
    }

    #[test]
    fn the_example_lists_every_default() {
        let text = include_str!("../../../tidegate.example.toml");
        let example = read(text).unwrap();
        assert_eq!(example, read("").unwrap());
        // Every option of the broker has its line, commented out where its default depends on the machine.
        for flag in tidegate_broker::config::FLAGS.iter().filter(|flag| !matches!(flag.key, "" | "admin_address")) {
            let named = |line: &str| line.trim_start_matches("# ").starts_with(&format!("{} = ", flag.key));
            assert!(text.lines().any(named), "tidegate.example.toml does not mention broker.{}", flag.key);
        }
        // So are the proxy's keys, which begin with # and no space.
        let keys = text.lines().filter_map(|line| line.strip_prefix('#')).filter(|line| !line.starts_with(' '));
        let keys = keys.collect::<Vec<_>>().join("\n");
        let named = "[[proxy.upstream]]\nname = \"shop\"\nservers = [\"127.0.0.1:9000\"]\n[[proxy.route]]\nupstream = \
                     \"shop\"\n";
        assert_eq!(read(&keys).unwrap().proxy, read(named).unwrap().proxy);
        let one = "[steer]\nnodes = [ { name = \"a\", nsq = \"10.0.0.1:4150\" } ]\n";
        assert_eq!(read(&keys).unwrap().steer, read(one).unwrap().steer);
        // And those of control.
        assert_eq!(read(&keys).unwrap().control, read("[control]\n").unwrap().control);
        // And those of the shaper, which has a device and a class as an example.
        let one =
            "[[shaper.device]]\nname = \"eth0\"\n[[shaper.device.class]]\nname = \"tenant-a\"\nrate = \"1 Gbit/s\"\n";
        assert_eq!(read(&keys).unwrap().shaper, read(one).unwrap().shaper);
        // The commented [[topic]] blocks are real ones.
        let uncommented: String = text
            .lines()
            .skip_while(|line| !line.starts_with("# [[topic]]"))
            .map(|line| line.trim_start_matches("# ").to_owned() + "\n")
            .collect();
        assert_eq!(read(&uncommented).unwrap().limits.len(), 2);
    }

    #[test]
    fn topics_and_channels_get_their_contracts() {
        let settings = read(
            r#"
            [[topic]]
            name = "sensors"
            rate = "11k/s"
            burst = 26
            discipline = "refuse"
            [[topic.channel]]
            name = "archive"
            rate = 5000
            burst = "2MiB"
            unit = "bytes"
            mode = "shadow"
            "#,
        )
        .unwrap();
        let [(topic, a), (channel, b)] = &settings.limits[..] else { panic!("two limits") };
        assert_eq!((topic.to_string(), channel.to_string()), ("sensors".into(), "sensors/archive".into()));
        assert_eq!(a.limit, Limit::new(Rate::per_s(11_000), 26));
        assert_eq!((a.unit, a.discipline, a.mode), (Unit::Messages, Discipline::Refuse, Mode::Enforce));
        assert_eq!(b.limit, Limit::new(Rate::per_s(5_000), 2 << 20));
        assert_eq!((b.unit, b.discipline, b.mode), (Unit::Bytes, Discipline::Wait, Mode::Shadow));
    }

    #[test]
    fn errors_across_keys_keep_their_place() {
        assert_eq!(
            error("[broker]\nmax_deflate_level = 12\n"),
            "tidegate.toml:2: broker.max_deflate_level: max_deflate_level is 12; it must be from 1 to 9; `tidegate broker \
             -help` lists every option with its default"
        );
        assert_eq!(
            error("[[topic]]\nname = \"a\"\nrate = \"1/s\"\nburst = 1\n[[topic]]\nname = \"a\"\nrate = 1\nburst = 1\n"),
            "tidegate.toml:6: topic[1].name: a has two limits; keep one of them"
        );
        assert_eq!(
            error("[[topic]]\nname = \"a b\"\nrate = 1\nburst = 1"),
            "tidegate.toml:2: topic[0].name: found \"a b\"; a name is 1 to 64 of the characters . a-z A-Z 0-9 _ - and \
             may end in #ephemeral"
        );
        assert!(
            error("[[topic]]\nname = \"a\"\nrate = 1").starts_with("tidegate.toml:3: topic[0].rate: a rate without")
        );
        assert!(
            error("[[topic]]\nname = \"a\"\nrate = 1\nburst = 0")
                .starts_with("tidegate.toml:4: topic[0].burst: found 0")
        );
        assert!(error("[console]\naddress = \"7070\"").starts_with("tidegate.toml:2: console.address: found \"7070\""));
        assert!(
            error("[broker]\nadmin_address = \"127.0.0.1:1\"").starts_with("tidegate.toml:2: broker.admin_address")
        );
        assert!(
            error("[broker]\nlog_prefix = \"x\"\n[log]\nformat = \"json\"\n")
                .starts_with("tidegate.toml:2: broker.log_prefix: found \"x\", but log.format is \"json\"")
        );
        assert!(error("[admin]\naddress = \"/run/tidegate.sock\"").contains("admin.address: the console reads"));
    }

    #[test]
    fn what_is_probably_not_meant_is_said() {
        let settings = read(
            "[admin]\naddress = \"0.0.0.0:4153\"\n[[topic]]\nname = \"a\"\nrate = 1\nburst = 10\nunit = \"bytes\"\n",
        )
        .unwrap();
        assert_eq!(settings.warnings.len(), 2, "{:?}", settings.warnings);
        assert!(settings.warnings[0].starts_with("admin.address is 0.0.0.0:4153"));
        assert!(settings.warnings[1].starts_with("a has a burst of 10 bytes"));
        let shared = "[broker]\nnsqlookupd_tcp_addresses = [\"10.0.0.5:4160\"]\n";
        assert!(read(shared).unwrap().warnings.is_empty());
        let limited = format!("{shared}[[topic]]\nname = \"a\"\nrate = 1\nburst = 10\n");
        assert!(read(&limited).unwrap().warnings[0].contains("each broker with the same limit admits all of it"));
    }
}
