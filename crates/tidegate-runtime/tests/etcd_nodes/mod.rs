//! Real etcd servers on loopback ports that nobody else has, gone when dropped.

pub(crate) mod relay;
pub(crate) mod secured;

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tidegate_runtime::store::{ControlStore, EtcdOptions, EtcdStore, NodeState};
use tokio::time::{sleep, timeout};

use self::secured::Certificates;

/// How long nodes have for their first election, on a machine with other things to do.
const START: Duration = Duration::from_mins(1);
/// Between two looks at something that takes its time.
const LOOK: Duration = Duration::from_millis(50);
/// Ports are free when they are picked; somebody else may take one before etcd does.
const TRIES: u32 = 5;

/// The nodes of one etcd.
pub(crate) struct EtcdNodes {
    folder: PathBuf,
    nodes: Vec<Node>,
    certificates: Option<Certificates>,
}

struct Node {
    name: String,
    client_port: u16,
    peer_port: u16,
    process: Option<Child>,
}

impl EtcdNodes {
    /// `count` nodes that have elected a leader.
    pub(crate) async fn start(test: &str, count: usize) -> Self {
        Self::start_with(test, count, None).await
    }

    async fn start_with(test: &str, count: usize, certificates: Option<Certificates>) -> Self {
        for _ in 0..TRIES {
            let mut nodes = Self::spawned(test, count, certificates.clone());
            if nodes.are_up().await {
                return nodes;
            }
        }
        panic!("etcd does not start; what it said last is above");
    }

    fn spawned(test: &str, count: usize, certificates: Option<Certificates>) -> Self {
        let folder = std::env::temp_dir().join(format!("tidegate-etcd-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("the temporary folder is writable");
        let ports = free_ports(2 * count);
        let node = |(n, ports): (usize, &[u16])| Node {
            name: format!("n{n}"),
            client_port: ports[0],
            peer_port: ports[1],
            process: None,
        };
        let nodes = ports.chunks(2).enumerate().map(node).collect();
        let mut started = Self { folder, nodes, certificates };
        for n in 0..count {
            started.spawn(n);
        }
        started
    }

    /// Starts node `n`, on the data it had.
    pub(crate) fn spawn(&mut self, n: usize) {
        let peers: Vec<String> =
            self.nodes.iter().map(|node| format!("{}=http://127.0.0.1:{}", node.name, node.peer_port)).collect();
        let client = self.endpoint(n);
        let node = &mut self.nodes[n];
        let peer = format!("http://127.0.0.1:{}", node.peer_port);
        let log = File::options().create(true).append(true).open(self.folder.join(format!("{}.log", node.name)));
        let log = log.expect("the folder is writable");
        let mut command = Command::new("etcd");
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.args(["--name", &node.name, "--data-dir"]).arg(self.folder.join(&node.name));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &peers.join(","), "--initial-cluster-token", "tidegate-test"]);
        if let Some(certificates) = &self.certificates {
            certificates.demand(&mut command);
        }
        if cfg!(target_arch = "aarch64") {
            // etcd 3.4 refuses processors that its authors do not test on, unless it is told.
            command.env("ETCD_UNSUPPORTED_ARCH", "arm64");
        }
        command.stdin(Stdio::null()).stderr(log.try_clone().expect("a file can be shared")).stdout(log);
        let started = command.spawn();
        node.process = Some(started.expect("`etcd` is missing: install Debian's package etcd-server, 3.4 or later"));
    }

    /// Whether they elect a leader in time; if a node ends early, what it said is printed.
    async fn are_up(&mut self) -> bool {
        let options = self.options();
        let elected = timeout(START, async {
            loop {
                if self.nodes.iter_mut().any(Node::has_ended) {
                    return false;
                }
                if let Ok(store) = EtcdStore::connect(&options).await {
                    let states = store.nodes().await.expect("their state is asked for, whatever it is");
                    if states.iter().all(|node| matches!(node.state, NodeState::Leads | NodeState::Follows)) {
                        return true;
                    }
                }
                sleep(LOOK).await;
            }
        });
        if elected.await == Ok(true) {
            return true;
        }
        for node in &self.nodes {
            eprintln!("{}: {}", node.name, tail(&self.folder.join(format!("{}.log", node.name))));
        }
        false
    }

    /// Options for all nodes, in order.
    pub(crate) fn options(&self) -> EtcdOptions {
        let options = EtcdOptions::new((0..self.count()).map(|n| self.endpoint(n))).expect("they are addresses");
        match &self.certificates {
            Some(certificates) => options.tls(certificates.of_client()).expect("they are https"),
            None => options,
        }
    }

    fn endpoint(&self, n: usize) -> String {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.nodes[n].client_port)
    }

    /// The port that clients of node `n` connect to.
    pub(crate) fn client_port(&self, n: usize) -> u16 {
        self.nodes[n].client_port
    }

    /// The number of the leader.
    pub(crate) async fn leader(&self) -> usize {
        let store = EtcdStore::connect(&self.options()).await.expect("most nodes are up");
        let states = store.nodes().await.expect("their state is asked for, whatever it is");
        states.iter().position(|node| node.state == NodeState::Leads).expect("they have a leader")
    }

    /// Sends a signal to node `n`.
    pub(crate) fn signal(&self, n: usize, signal: Signal) {
        let process = self.nodes[n].process.as_ref().expect("it runs");
        kill_process(Pid::from_child(process), signal).expect("it is ours");
    }

    /// Kills node `n`, and waits until it is gone.
    pub(crate) fn kill(&mut self, n: usize) {
        if let Some(mut process) = self.nodes[n].process.take() {
            // One that ended by itself cannot be killed, and is waited for all the same.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// How many nodes there are.
    pub(crate) fn count(&self) -> usize {
        self.nodes.len()
    }
}

impl Drop for EtcdNodes {
    fn drop(&mut self) {
        for n in 0..self.nodes.len() {
            self.kill(n);
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Node {
    fn has_ended(&mut self) -> bool {
        self.process.as_mut().is_none_or(|process| process.try_wait().is_ok_and(|ended| ended.is_some()))
    }
}

/// Ports that were free a moment ago, all different.
fn free_ports(count: usize) -> Vec<u16> {
    let sockets: Vec<_> =
        (0..count).map(|_| TcpListener::bind(("127.0.0.1", 0)).expect("a port of loopback is free")).collect();
    sockets.iter().map(|socket| socket.local_addr().expect("it is bound").port()).collect()
}

/// The last lines of a log.
fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
