//! What operators, deployments and bad luck do to a broker, drawn from a seed, with a log of when.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::{Value, json};

use super::judge::{Contract, Edit};
use super::plan::{Ends, Plan, Setting};
use crate::clock::{self, monotonic_ns};
use crate::http;
use crate::measure::bench::Bench;
use crate::measure::broker::{Addresses, Broker, Kind, pinned};
use crate::process::Group;
use crate::rng::Rng;

/// What the names of the topics begin with; their numbers follow.
pub(super) const TOPIC: &str = "law";
/// A topic's own limit, and those of its channels, in the order of the witness's numbers.
pub(super) const TARGETS: [&str; 3] = ["", "/part", "/brief%23ephemeral"];
/// The witness answers `quiet` within 3 s.
const QUIET_LIMIT: Duration = Duration::from_secs(10);
/// From the end of the script to the end of the witness: it waits for what is outstanding.
const END_LIMIT: Duration = Duration::from_mins(2);

/// One limit's life.
#[derive(Clone, Debug)]
pub(super) struct Life {
    pub(super) first: Contract,
    pub(super) edits: Vec<Edit>,
}

impl Life {
    fn now(&self) -> Contract {
        self.edits.iter().rev().find_map(|edit| edit.after).unwrap_or(self.first)
    }
}

/// The broker was away.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outage {
    pub(super) is_kill: bool,
    /// It was known to have ended.
    pub(super) died_ns: i128,
    /// It was started again.
    pub(super) started_ns: i128,
}

/// A topic was deleted and created.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deletion {
    pub(super) topic: usize,
    pub(super) to_ns: i128,
}

/// What was done, and when.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    /// For each topic, its own limit and those of its channels.
    pub(super) limits: Vec<[Option<Life>; 3]>,
    pub(super) outages: Vec<Outage>,
    pub(super) deletions: Vec<Deletion>,
    /// Everything in words.
    pub(super) lines: Vec<(i128, String)>,
}

/// A broker, a witness beside it, and the log.
pub(super) struct Operator<'a> {
    bench: &'a Bench<'a>,
    setting: Setting,
    plan: Plan,
    data: PathBuf,
    addresses: Addresses,
    admin: String,
    flags: Vec<String>,
    token: String,
    broker: Option<Broker>,
    witness: Option<Witness>,
    rng: Rng,
    log: Log,
}

struct Witness {
    group: Group,
    lines: Receiver<String>,
    file: PathBuf,
}

impl<'a> Operator<'a> {
    /// Starts the broker, sets the limits and lets the witness look.
    pub(super) fn start(bench: &'a Bench, setting: Setting, plan: Plan) -> Result<Self> {
        let data = bench.folder(&format!("law-{}", setting.file_name()))?;
        let addresses = Addresses::with_admin()?;
        let admin = addresses.admin.clone().unwrap_or_default();
        let mut flags = vec![format!("-shards={}", setting.shards)];
        flags.extend(plan.flags.iter().map(|flag| (*flag).to_owned()));
        let mut operator = Self {
            bench,
            setting,
            plan,
            data,
            addresses,
            admin,
            flags,
            token: String::new(),
            broker: None,
            witness: None,
            rng: Rng::new(setting.seed),
            log: Log::default(),
        };
        operator.start_broker()?;
        let token = std::fs::read_to_string(operator.data.join("admin.token")).into_diagnostic();
        token.wrap_err("the admin token")?.trim().clone_into(&mut operator.token);
        for topic in 0..plan.topics {
            let mut lives = [const { None }; 3];
            for (target, life) in lives.iter_mut().enumerate() {
                let first = plan.contracts[target][0];
                operator.put(topic, target, first)?;
                *life = Some(Life { first, edits: Vec::new() });
            }
            operator.log.limits.push(lives);
        }
        operator.start_witness()?;
        Ok(operator)
    }

    /// Does things until `length` is over, then ends the witness; returns the log and the witness's file.
    pub(super) fn work(mut self, length: Duration) -> Result<(Log, PathBuf)> {
        let watch = clock::Stopwatch::start();
        while watch.elapsed() < length {
            let pause = 100 + self.rng.below(500);
            clock::rest(Duration::from_millis(pause));
            self.act().wrap_err_with(|| self.latest())?;
        }
        let mut witness = self.witness.take().ok_or_else(|| miette::miette!("there is no witness"))?;
        say(&mut witness, "end")?;
        let status = witness.group.wait(END_LIMIT)?;
        if status.is_none_or(|status| !status.success()) {
            let said: Vec<String> = witness.lines.try_iter().collect();
            miette::bail!("the witness ended with {status:?}: {}", said.join("\n"));
        }
        self.note("end".to_owned());
        if let Some(broker) = self.broker.take() {
            broker.stop()?;
        }
        Ok((self.log, witness.file))
    }

    /// One thing, drawn.
    fn act(&mut self) -> Result<()> {
        let topic = self.rng.index(self.plan.topics);
        if self.setting.ends == Ends::Never {
            return Ok(());
        }
        match self.rng.below(20) {
            0..2 => self.restart(false),
            2..4 => self.restart(self.setting.ends != Ends::Terminate),
            4..8 => self.brief(topic),
            8..10 => self.delete_and_create(topic),
            10..13 => self.put_another(topic).map(drop),
            13..15 => self.remove_and_put(topic),
            15..17 => self.put_and_undo(topic),
            _ => self.pause(topic),
        }
    }

    fn restart(&mut self, is_kill: bool) -> Result<()> {
        self.note(if is_kill { "SIGKILL" } else { "SIGTERM" }.to_owned());
        let Some(broker) = self.broker.take() else { miette::bail!("the broker is not running") };
        if is_kill {
            broker.kill();
        } else {
            broker.stop()?;
        }
        let died_ns = monotonic_ns();
        // Downtime that the bucket may or may not be credited for.
        let away = self.rng.pick(&[0, 0, 50, 400]);
        clock::rest(Duration::from_millis(away));
        let started_ns = monotonic_ns();
        self.log.outages.push(Outage { is_kill, died_ns, started_ns });
        self.start_broker()?;
        self.note("up again".to_owned());
        Ok(())
    }

    fn brief(&mut self, topic: usize) -> Result<()> {
        self.note(format!("{TOPIC}{topic}: the consumer of the ephemeral channel connects again"));
        self.tell(&format!("brief {topic}"))
    }

    fn delete_and_create(&mut self, topic: usize) -> Result<()> {
        self.note(format!("{TOPIC}{topic}: delete, create"));
        let name = format!("{TOPIC}{topic}");
        self.nsqd_api(&format!("/topic/delete?topic={name}"))?;
        self.nsqd_api(&format!("/topic/create?topic={name}"))?;
        self.nsqd_api(&format!("/channel/create?topic={name}&channel=all"))?;
        self.log.deletions.push(Deletion { topic, to_ns: monotonic_ns() });
        Ok(())
    }

    /// Sets a limit to another one of the plan's.
    fn put_another(&mut self, topic: usize) -> Result<usize> {
        let target = self.rng.index(TARGETS.len());
        let now = self.life(topic, target)?.now();
        let others: Vec<Contract> =
            self.plan.contracts[target].iter().copied().filter(|contract| *contract != now).collect();
        let contract = self.rng.pick(&others);
        self.note(format!(
            "{TOPIC}{topic}{}: PUT {}/s, burst {}",
            TARGETS[target], contract.rate_per_s, contract.burst
        ));
        self.edit(topic, target, |operator| operator.put(topic, target, contract).map(|()| Some(contract)))?;
        Ok(target)
    }

    fn put_and_undo(&mut self, topic: usize) -> Result<()> {
        let target = self.put_another(topic)?;
        clock::rest(Duration::from_millis(self.rng.below(300)));
        for verb in ["undo", "redo"] {
            let path = format!("/api/v1/limits/{verb}");
            // A broker without redo is tried without it.
            if verb == "redo" && (self.rng.below(2) == 0 || !self.knows(&path)?) {
                continue;
            }
            self.note(format!("{TOPIC}{topic}{}: {verb}", TARGETS[target]));
            self.edit(topic, target, |operator| {
                let answer = operator.admin("POST", &path, b"")?;
                contract_in(&answer["limit"]).map(Some)
            })?;
        }
        Ok(())
    }

    /// True if something is there: an unknown path is 404, and so is one that has nothing to do, which no caller is in.
    fn knows(&self, path: &str) -> Result<bool> {
        let answer = http::request_with_token(&self.admin, "GET", path, &self.token)?;
        // A path for POST alone is known and refuses GET, unless it is read as the name of a topic.
        Ok(answer.status == 405)
    }

    /// Removes the limit while nothing waits, and sets it again: its bucket is then as empty as before.
    fn remove_and_put(&mut self, topic: usize) -> Result<()> {
        let target = self.rng.index(TARGETS.len());
        let contract = self.life(topic, target)?.now();
        self.tell(&format!("quiet {topic}"))?;
        let witness = self.witness.as_ref().ok_or_else(|| miette::miette!("there is no witness"))?;
        let answer = witness.lines.recv_timeout(QUIET_LIMIT).into_diagnostic().wrap_err("quiet")?;
        self.note(format!("{TOPIC}{topic}{}: DELETE, PUT the same ({answer})", TARGETS[target]));
        let path = limit_path(topic, target);
        self.edit(topic, target, |operator| operator.admin("DELETE", &path, b"").map(|_| None))?;
        self.edit(topic, target, |operator| operator.put(topic, target, contract).map(|()| Some(contract)))?;
        // What came without a limit is at the witness before the next message is published.
        clock::rest(Duration::from_millis(10));
        self.tell(&format!("go {topic}"))
    }

    fn pause(&mut self, topic: usize) -> Result<()> {
        let (what, arguments) = self.rng.pick(&[
            ("topic", ""),
            ("topic", ""),
            ("channel", "&channel=part"),
            ("channel", "&channel=brief%23ephemeral"),
        ]);
        let span = 100 + self.rng.below(500);
        self.note(format!("{TOPIC}{topic}{arguments}: pause for {span} ms"));
        self.nsqd_api(&format!("/{what}/pause?topic={TOPIC}{topic}{arguments}"))?;
        clock::rest(Duration::from_millis(span));
        self.nsqd_api(&format!("/{what}/unpause?topic={TOPIC}{topic}{arguments}"))
    }

    /// Notes between which instants a limit changed.
    fn edit(
        &mut self,
        topic: usize,
        target: usize,
        change: impl FnOnce(&Self) -> Result<Option<Contract>>,
    ) -> Result<()> {
        let from_ns = monotonic_ns();
        let after = change(self)?;
        let edit = Edit { from_ns, to_ns: monotonic_ns(), after };
        if let Some(life) = &mut self.log.limits[topic][target] {
            life.edits.push(edit);
        }
        Ok(())
    }

    fn life(&self, topic: usize, target: usize) -> Result<&Life> {
        self.log.limits[topic][target].as_ref().ok_or_else(|| miette::miette!("{TOPIC}{topic} has no such limit"))
    }

    fn put(&self, topic: usize, target: usize, contract: Contract) -> Result<()> {
        // A channel has nobody to refuse.
        let discipline = if target == 0 { self.setting.discipline } else { "wait" };
        let Contract { rate_per_s, burst } = contract;
        let body = json!({ "rate": format!("{rate_per_s}/s"), "burst": burst, "discipline": discipline });
        self.admin("PUT", &limit_path(topic, target), body.to_string().as_bytes()).map(drop)
    }

    fn admin(&self, method: &str, path: &str, body: &[u8]) -> Result<Value> {
        let answer = http::send_with_token(&self.admin, method, path, &self.token, body)?;
        if answer.status / 100 != 2 {
            miette::bail!("{method} {path}: {} {}", answer.status, answer.body);
        }
        serde_json::from_str(&answer.body).into_diagnostic()
    }

    fn nsqd_api(&self, path: &str) -> Result<()> {
        let answer = http::request(&self.addresses.http, "POST", path, b"")?;
        // The ephemeral channel may be away for a moment.
        if answer.status == 200 || (answer.status == 404 && path.contains("ephemeral")) {
            return Ok(());
        }
        miette::bail!("POST {path}: {} {}", answer.status, answer.body)
    }

    fn start_broker(&mut self) -> Result<()> {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        self.broker = Some(Broker::start_at(self.bench, Kind::Ours, &self.data, &self.addresses, &flags)?);
        Ok(())
    }

    fn start_witness(&mut self) -> Result<()> {
        let file = self.data.with_extension("witness");
        let (reader, writer) = std::io::pipe().into_diagnostic()?;
        let mut command = pinned("0,1");
        command.arg(self.bench.places.tidegate()).args(["bench", "nsq", "witness"]).args([
            format!("address={}", self.addresses.tcp),
            format!("topic={TOPIC}"),
            format!("topics={}", self.plan.topics),
            format!("offered_per_s={}", self.plan.offered_per_s),
            format!("backlog_max={}", self.plan.backlog_max),
            format!("seed={}", self.setting.seed),
            "cpu=1".to_owned(),
            "probes=[0,1]".to_owned(),
        ]);
        command.arg(format!("out={}", quoted(&file)));
        command.stdin(Stdio::piped()).stdout(writer.try_clone().into_diagnostic()?).stderr(writer);
        let group = Group::spawn(&mut command)?;
        let (heard, lines) = mpsc::sync_channel(1_024);
        std::thread::spawn(move || {
            BufReader::new(reader).lines().map_while(std::result::Result::ok).try_for_each(|line| heard.send(line))
        });
        self.witness = Some(Witness { group, lines, file });
        Ok(())
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        let mut witness = self.witness.take().ok_or_else(|| miette::miette!("there is no witness"))?;
        let told = say(&mut witness, line);
        self.witness = Some(witness);
        told
    }

    fn note(&mut self, line: String) {
        self.log.lines.push((monotonic_ns(), line));
    }

    fn latest(&self) -> String {
        self.log.lines.last().map(|(_, line)| line.clone()).unwrap_or_default()
    }
}

fn say(witness: &mut Witness, line: &str) -> Result<()> {
    let Some(stdin) = witness.group.stdin_mut() else { miette::bail!("the witness does not listen") };
    let told = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
    told.into_diagnostic().wrap_err_with(|| {
        let said: Vec<String> = witness.lines.try_iter().collect();
        format!("the witness is gone: {}", said.join("\n"))
    })
}

fn limit_path(topic: usize, target: usize) -> String {
    format!("/api/v1/limits/{TOPIC}{topic}{}", TARGETS[target])
}

/// The limit in an answer of the admin API.
fn contract_in(limit: &Value) -> Result<Contract> {
    let number = |key: &str| limit[key].as_f64().ok_or_else(|| miette::miette!("the answer has no limit: {limit}"));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole numbers that this script set")]
    Ok(Contract { rate_per_s: number("rate_per_s")? as u32, burst: number("burst")? as u32 })
}

/// A text of JSON, so that no path is taken for a number.
fn quoted(path: &Path) -> String {
    Value::String(path.display().to_string()).to_string()
}
