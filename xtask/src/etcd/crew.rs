//! What runs on the etcd: brokers and controls, as an operator starts them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use rustix::process::Signal;
use serde_json::Value;

use super::nodes::Nodes;
use crate::http;
use crate::process::Group;
use crate::{clock, nsq};

/// Starting takes milliseconds; a debug build on a busy machine takes longer.
const START_LIMIT: Duration = Duration::from_mins(1);
/// A broker saves its messages, and ends.
const STOP_LIMIT: Duration = Duration::from_mins(1);
/// What a broker logs for each limit that another one changed, before the limit's name.
const FOLLOWED: &str = "a limit was changed by another node target=";

/// Where everything of a run is: the binary, which has the feature `etcd`, and room for files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'a> {
    pub(super) binary: &'a Path,
    pub(super) folder: &'a Path,
}

/// A process of Tidegate.
#[derive(Debug)]
struct Process {
    group: Group,
    said: PathBuf,
    log: PathBuf,
}

impl Process {
    /// Starts `tidegate ARGUMENTS -c NAME.toml` with that configuration, and waits for the line that begins with `word`.
    fn start(site: Site, verb: &str, name: &str, config: &str, word: &str) -> Result<(Self, String)> {
        let file = |suffix: &str| site.folder.join(format!("{name}.{suffix}"));
        fs::write(file("toml"), config).into_diagnostic()?;
        let (said, log) = (file("out"), file("log"));
        let errors = File::options().create(true).append(true).open(&log).into_diagnostic()?;
        let mut command = Command::new(site.binary);
        command.args([verb, "--log", "info", "-c"]).arg(file("toml")).current_dir(site.folder);
        command.stdin(Stdio::null()).stdout(File::create(&said).into_diagnostic()?).stderr(errors);
        let mut process = Self { group: Group::spawn(&mut command)?, said, log };
        let line = clock::poll(START_LIMIT, || match process.group.wait(Duration::ZERO) {
            Ok(None) => process.line(word).map(Some),
            Ok(Some(_)) | Err(_) => Some(None),
        });
        match line.flatten() {
            Some(line) => Ok((process, line)),
            None => miette::bail!("{name} does not start; it said:\n{}", process.logged()),
        }
    }

    /// What stands behind `word` on its line, without the scheme.
    fn line(&self, word: &str) -> Option<String> {
        let text = fs::read_to_string(&self.said).ok()?;
        let whole = text.rsplit_once('\n')?.0;
        let rest = whole.lines().find_map(|line| line.strip_prefix(word))?;
        Some(rest.trim().trim_start_matches("http://").to_owned())
    }

    fn logged(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn stop(mut self) -> Result<()> {
        let status = self.group.terminate(STOP_LIMIT)?;
        let ended_well = status.is_some_and(|status| status.success());
        if ended_well { Ok(()) } else { miette::bail!("it ended with {status:?}; it said:\n{}", self.logged()) }
    }
}

/// A broker with its admin API.
#[derive(Debug)]
pub(super) struct Broker {
    process: Process,
    pub(super) name: String,
    pub(super) nsq: String,
    pub(super) admin: String,
    token: String,
}

impl Broker {
    /// Starts `tidegate up` with its limits in the etcd.
    pub(super) fn start(site: Site, name: &str, etcd: &Nodes) -> Result<Self> {
        let config = format!(
            "[broker]\ntcp_address = \"127.0.0.1:0\"\nhttp_address = \"\"\ndata_path = \"{name}\"\nshards = 1\n[admin]\naddress \
             = \"127.0.0.1:0\"\n[console]\naddress = \"\"\n{}",
            store(etcd)
        );
        let (process, admin) = Process::start(site, "up", name, &config, "admin")?;
        let nsq = process.line("NSQ").ok_or_else(|| miette::miette!("{name} does not say where it listens"))?;
        let token = fs::read_to_string(site.folder.join(name).join("admin.token")).into_diagnostic()?;
        Ok(Self { process, name: name.to_owned(), nsq, admin, token })
    }

    /// Asks its admin API.
    pub(super) fn ask(&self, method: &str, path: &str, body: &str) -> Result<http::Answer> {
        http::send_with_token(&self.admin, method, path, &self.token, body.as_bytes())
    }

    /// The limits in force here, by target, each with its burst.
    pub(super) fn limits(&self) -> Result<Vec<(String, u64)>> {
        let answer = read(&self.admin, "/api/v1/limits")?;
        let limit = |limit: &Value| Some((limit["target"].as_str()?.to_owned(), limit["burst"].as_u64()?));
        Ok(answer["limits"].as_array().into_iter().flatten().filter_map(limit).collect())
    }

    /// Its parts of limits.
    pub(super) fn parts(&self) -> Result<Vec<Part>> {
        let answer = read(&self.admin, "/api/v1/parts")?;
        answer["parts"].as_array().into_iter().flatten().map(Part::read).collect()
    }

    /// The limits that it followed when another node changed them, one for each time.
    pub(super) fn followed(&self) -> Vec<String> {
        let log = self.process.logged();
        log.lines().filter_map(|line| line.split_once(FOLLOWED)).map(|(_, name)| name.to_owned()).collect()
    }

    /// Makes a limit change by the command line, as a person does.
    pub(super) fn set_by_verb(&self, site: Site, target: &str, burst: u64) -> Result<()> {
        let token = format!("{}/admin.token", self.name);
        let mut command = Command::new(site.binary);
        command.args(["limits", "set", target, "7/s", &burst.to_string()]);
        command.args(["--admin", &self.admin, "--token-file", &token]).current_dir(site.folder);
        crate::process::output(&mut command).map(|_| ())
    }

    pub(super) fn stop(self) -> Result<()> {
        self.process.stop().wrap_err(self.name)
    }
}

/// A broker's part of a topic.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) topic: String,
    pub(super) revision: u64,
    /// What rules: rate and burst.
    pub(super) in_force: Option<(f64, u64)>,
    /// Until its lease ends; `None` if it has.
    pub(super) lapses_in: Option<Duration>,
}

impl Part {
    fn read(part: &Value) -> Result<Self> {
        let topic = part["topic"].as_str().ok_or_else(|| miette::miette!("a part without a topic: {part}"))?;
        Ok(Self {
            topic: topic.to_owned(),
            revision: part["revision"].as_u64().unwrap_or(0),
            in_force: part["rate_per_s"].as_f64().zip(part["burst"].as_u64()),
            lapses_in: part["lapses_in_ms"].as_u64().map(Duration::from_millis),
        })
    }
}

/// A topic that control places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) name: &'static str,
    pub(super) rate_per_s: u32,
    pub(super) burst: u32,
    pub(super) on_store_loss: &'static str,
}

/// A process that may lead.
#[derive(Debug)]
pub(super) struct Control {
    process: Process,
    pub(super) name: String,
    pub(super) admin: String,
}

impl Control {
    /// Starts `tidegate control` over `brokers`, with leases of `lease` seconds.
    pub(super) fn start(
        site: Site,
        name: &str,
        etcd: &Nodes,
        brokers: &[Arc<Broker>],
        topics: &[Placed],
        lease: Duration,
    ) -> Result<Self> {
        let node = |broker: &Arc<Broker>| {
            let Broker { name, admin, nsq, .. } = &**broker;
            format!(
                "{{ name = \"{name}\", admin = \"http://{admin}\", nsq = \"{nsq}\", mcap = \"2k/s\", token_file = \"{name}/admin.token\" }}"
            )
        };
        let topic = |topic: &Placed| {
            format!(
                "[[control.topic]]\nname = \"{}\"\nrate = \"{}/s\"\nburst = {}\nslo = \"p99 <= 2s\"\nplanner = \
                 \"paper\"\nround = \"2s\"\nadapt = {{ period = \"1s\", window = \"3s\" }}\non_store_loss = \"{}\"\n",
                topic.name, topic.rate_per_s, topic.burst, topic.on_store_loss
            )
        };
        let nodes: Vec<String> = brokers.iter().map(node).collect();
        let topics: String = topics.iter().map(topic).collect();
        let config = format!(
            "[control]\nlisten = \"127.0.0.1:0\"\nname = \"{name}\"\nlease = \"{}ms\"\ntoken_file = \"control.token\"\nnodes \
             = [ {} ]\n{topics}{}",
            lease.as_millis(),
            nodes.join(", "),
            store(etcd)
        );
        let (process, admin) = Process::start(site, "control", name, &config, "control")?;
        Ok(Self { process, name: name.to_owned(), admin })
    }

    /// What it says of itself and of the topics.
    pub(super) fn state(&self) -> Result<Value> {
        read(&self.admin, "/api/v1/control")
    }

    /// Sends it a signal.
    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        self.process.group.signal(signal)
    }

    pub(super) fn stop(self) -> Result<()> {
        self.process.stop().wrap_err(self.name)
    }
}

/// Two brokers, whose limits are in the etcd.
pub(super) fn start_brokers(site: Site, etcd: &Nodes) -> Result<Vec<Arc<Broker>>> {
    ["a", "b"].into_iter().map(|name| Broker::start(site, name, etcd).map(Arc::new)).collect()
}

/// Ends them; nothing else holds them any more.
pub(super) fn stop_brokers(brokers: Vec<Arc<Broker>>) -> Result<()> {
    brokers.into_iter().try_for_each(|broker| Arc::into_inner(broker).expect("whoever used it has ended").stop())
}

fn store(etcd: &Nodes) -> String {
    format!("[store]\nkind = \"etcd\"\nendpoints = [ {} ]\n", etcd.endpoints())
}

pub(super) fn read(address: &str, path: &str) -> Result<Value> {
    let answer = http::request(address, "GET", path, b"")?;
    if answer.status != 200 {
        miette::bail!("GET {path} is answered {}: {}", answer.status, answer.body);
    }
    serde_json::from_str(&answer.body).into_diagnostic()
}

/// Waits for something that takes its time.
pub(super) fn until<T>(what: &str, limit: Duration, look: impl FnMut() -> Option<T>) -> Result<T> {
    clock::poll(limit, look).ok_or_else(|| miette::miette!("within {limit:?} it did not come to pass that {what}"))
}

/// Connects to a broker as a client that waits `patience` for an answer.
pub(super) fn connect(broker: &Broker, patience: Duration) -> Result<nsq::Client> {
    nsq::Client::connect(&broker.nsq, patience).wrap_err_with(|| broker.name.clone())
}
