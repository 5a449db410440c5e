//! Three real etcd servers on loopback ports that nobody else has.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use rustix::process::Signal;
use serde_json::Value;

use crate::clock;
use crate::process::{self, Group};

/// How long an election has, on a machine with other things to do.
const ELECTION: Duration = Duration::from_mins(1);
/// Ports are free when they are picked; somebody else may take one before etcd does.
const TRIES: u32 = 5;
/// A raft that keeps going after one loss.
const COUNT: usize = 3;

/// The servers.
#[derive(Debug)]
pub(super) struct Nodes {
    folder: PathBuf,
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    client: String,
    peer: String,
    process: Option<Group>,
}

impl Nodes {
    /// Three that have elected a leader, with their files in `folder`.
    pub(super) fn start(folder: &Path) -> Result<Self> {
        for attempt in 0..TRIES {
            let folder = folder.join(format!("etcd-{attempt}"));
            fs::create_dir_all(&folder).into_diagnostic()?;
            let addresses = free_addresses(2 * COUNT)?;
            let node = |pair: &[String]| Node { client: pair[0].clone(), peer: pair[1].clone(), process: None };
            let mut nodes = Self { folder, nodes: addresses.chunks(2).map(node).collect() };
            nodes.start_all()?;
            if nodes.leader().is_ok() {
                return Ok(nodes);
            }
        }
        miette::bail!("three etcd servers elect no leader; their logs are in {}", folder.display())
    }

    /// Starts those that do not run, on the data they had.
    pub(super) fn start_all(&mut self) -> Result<()> {
        let peers: Vec<String> =
            self.nodes.iter().enumerate().map(|(n, node)| format!("n{n}=http://{}", node.peer)).collect();
        for (n, node) in self.nodes.iter_mut().enumerate().filter(|(_, node)| node.process.is_none()) {
            let (client, peer) = (format!("http://{}", node.client), format!("http://{}", node.peer));
            let log = self.folder.join(format!("n{n}.log"));
            let log = File::options().create(true).append(true).open(log).into_diagnostic()?;
            let mut command = Command::new("etcd");
            command.args(["--name", &format!("n{n}"), "--data-dir"]).arg(self.folder.join(format!("n{n}")));
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.args(["--initial-cluster", &peers.join(","), "--initial-cluster-token", "tidegate-xtask"]);
            if cfg!(target_arch = "aarch64") {
                // etcd 3.4 refuses processors that its authors do not test on, unless it is told.
                command.env("ETCD_UNSUPPORTED_ARCH", "arm64");
            }
            command.stdin(Stdio::null()).stderr(log.try_clone().into_diagnostic()?).stdout(log);
            node.process = Some(Group::spawn(&mut command)?);
        }
        Ok(())
    }

    /// The number of the leader, once all three agree on one.
    pub(super) fn leader(&self) -> Result<usize> {
        let agreed = clock::poll(ELECTION, || {
            let said = self.etcdctl(&["endpoint", "status", "--write-out=json"]).ok()?;
            leader_in(&serde_json::from_str(&said).ok()?)
        });
        agreed.ok_or_else(|| miette::miette!("the etcd servers do not agree on a leader"))
    }

    /// What `etcdctl` prints, asked with `arguments` of all three.
    pub(super) fn etcdctl(&self, arguments: &[&str]) -> Result<String> {
        let endpoints: Vec<&str> = self.nodes.iter().map(|node| node.client.as_str()).collect();
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", endpoints.join(","))).args(arguments);
        process::output(&mut command)
    }

    /// All keys that begin with `prefix`.
    pub(super) fn keys(&self, prefix: &str) -> Result<Vec<String>> {
        let said = self.etcdctl(&["get", "--prefix", "--keys-only", prefix])?;
        Ok(said.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
    }

    /// Sends `signal` to server `n`.
    pub(super) fn signal(&self, n: usize, signal: Signal) -> Result<()> {
        let process = self.nodes[n].process.as_ref();
        process.ok_or_else(|| miette::miette!("etcd server {n} does not run"))?.signal(signal)
    }

    /// Kills server `n`.
    pub(super) fn kill(&mut self, n: usize) {
        self.nodes[n].process = None;
    }

    /// Kills all three.
    pub(super) fn kill_all(&mut self) {
        (0..COUNT).for_each(|n| self.kill(n));
    }

    /// For `[store]`: each server as a quoted URL.
    pub(super) fn endpoints(&self) -> String {
        let quoted: Vec<String> = self.nodes.iter().map(|node| format!("\"http://{}\"", node.client)).collect();
        quoted.join(", ")
    }
}

/// Which of the servers in the answers of all of them leads; `None` if they do not agree.
fn leader_in(answers: &Value) -> Option<usize> {
    let answers = answers.as_array().filter(|answers| answers.len() == COUNT)?;
    let leader = answers[0]["Status"]["leader"].as_u64().filter(|leader| *leader > 0)?;
    let agrees = |answer: &Value| answer["Status"]["leader"].as_u64() == Some(leader);
    if !answers.iter().all(agrees) {
        return None;
    }
    answers.iter().position(|answer| answer["Status"]["header"]["member_id"].as_u64() == Some(leader))
}

/// Addresses on which nobody listens now, all different.
fn free_addresses(count: usize) -> Result<Vec<String>> {
    let bound = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>();
    let bound = bound.into_diagnostic().wrap_err("ports of loopback")?;
    bound.iter().map(|socket| socket.local_addr().map(|at| at.to_string()).into_diagnostic()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_leader_is_one_that_all_agree_on() {
        let status = |id: u64, leader: u64| json!({ "Status": { "header": { "member_id": id }, "leader": leader } });
        assert_eq!(leader_in(&json!([status(7, 9), status(9, 9), status(u64::MAX, 9)])), Some(1));
        assert_eq!(leader_in(&json!([status(7, 9), status(9, 9), status(8, 7)])), None);
        assert_eq!(leader_in(&json!([status(7, 0), status(9, 0), status(8, 0)])), None);
        assert_eq!(leader_in(&json!([status(9, 9), status(7, 9)])), None, "one did not answer");
    }
}
