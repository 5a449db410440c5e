//! Several `tidegate up` that keep their limits in one etcd.

#[expect(dead_code, reason = "the tests of the store itself use more of it")]
#[path = "../../tidegate-runtime/tests/etcd_nodes/mod.rs"]
mod etcd_nodes;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use serde_json::Value;
use tidegate_runtime::clock;

use self::etcd_nodes::EtcdNodes;
use self::etcd_nodes::relay::Relay;

/// A folder of this test's own, gone when it ends.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-shared-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("the temporary folder is writable");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running `tidegate up`; ended by force if a test gives up on it.
struct Up {
    child: Child,
    admin: String,
    /// nsqd's API.
    http: String,
    token: String,
}

impl Up {
    /// A broker `name` on ports that the system picks, with its limits in an etcd.
    fn start(folder: &Folder, name: &str, etcd: &EtcdNodes) -> Self {
        Self::start_at(folder, name, &store_at(etcd.options().endpoints()))
    }

    /// The same with any section `[store]`.
    fn start_at(folder: &Folder, name: &str, store: &str) -> Self {
        let config = format!(
            "[broker]\ntcp_address = \"127.0.0.1:0\"\nhttp_address = \"127.0.0.1:0\"\ndata_path = \"{name}\"\n[admin]\naddress = \
             \"127.0.0.1:0\"\n[console]\naddress = \"\"\n{store}"
        );
        let (file, log) = (folder.0.join(format!("{name}.toml")), folder.0.join(format!("{name}.log")));
        fs::write(&file, config).expect("the folder is ours");
        let log = fs::File::options().create(true).append(true).open(log).expect("the folder is ours");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["up", "--log", "debug", "-c"]).arg(&file).current_dir(&folder.0);
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().expect("the binary starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        let mut address = |word: &str| {
            lines.find_map(|line| {
                line.strip_prefix(word).map(|rest| rest.trim().trim_start_matches("http://").to_owned())
            })
        };
        let (http, admin) = (address("HTTP").unwrap_or_default(), address("admin"));
        let said = || fs::read_to_string(folder.0.join(format!("{name}.log"))).unwrap_or_default();
        let admin = admin.unwrap_or_else(|| panic!("{name} does not start: {}", said()));
        let token = fs::read_to_string(folder.0.join(name).join("admin.token")).expect("the file is there");
        Self { child, admin, http, token }
    }

    /// The status and the whole answer to one request to the admin API.
    fn ask(&self, request: &str, body: &str) -> (u16, String) {
        self.ask_at(&self.admin, request, body)
    }

    /// The same, to any of its addresses.
    fn ask_at(&self, address: &str, request: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(address).expect("it listens");
        write!(
            stream,
            "{request} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAuthorization: Bearer {}\r\nContent-Length: \
             {}\r\n\r\n{body}",
            self.token,
            body.len()
        )
        .expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers in text");
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status line");
        (status, answer)
    }

    /// How long it takes until the answer holds `wanted`.
    fn until(&self, request: &str, wanted: &str) -> Duration {
        let asked = clock::now();
        loop {
            let (_, answer) = self.ask(request, "");
            let took = clock::now().since(asked);
            if answer.contains(wanted) {
                return took;
            }
            assert!(took < Duration::from_secs(30), "{request} never answers {wanted}: {answer}");
        }
    }
}

impl Up {
    /// Ends it as an operator does; its messages are saved.
    fn stop(mut self) {
        rustix::process::kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
        assert!(self.child.wait().expect("it ends").success());
    }
}

/// The section for an etcd at `endpoints`.
fn store_at(endpoints: &[String]) -> String {
    format!("[store]\nkind = \"etcd\"\nendpoints = {endpoints:?}\n")
}

/// The changes of the limit of `topic` that are in the history, as bursts, newest first.
fn history(up: &Up, topic: &str) -> Vec<u64> {
    let (status, answer) = up.ask("GET /api/v1/limits/history", "");
    assert_eq!(status, 200, "{answer}");
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    let history: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"));
    history
        .as_array()
        .expect("a list")
        .iter()
        .filter(|change| change["target"] == topic)
        .filter_map(|change| change["after"]["burst"].as_u64())
        .collect()
}

fn etcdctl(etcd: &EtcdNodes, args: &[&str]) -> String {
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", etcd.options().endpoints().join(","))).args(args);
    let output = command.output().expect("`etcdctl` is missing: install Debian's package etcd-client");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it is text")
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_is_set_at_one_broker_holds_at_all_of_them() {
    let mut etcd = EtcdNodes::start("shared", 3).await;
    let folder = Folder::new("limits");
    let (a, b) = (Up::start(&folder, "a", &etcd), Up::start(&folder, "b", &etcd));

    let put = "PUT /api/v1/limits/orders";
    let mut slowest = Duration::ZERO;
    for burst in 1..=20 {
        let (from, at) = if burst % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let (status, answer) = from.ask(put, &format!(r#"{{"rate": "7/s", "burst": {burst}}}"#));
        assert_eq!(status, 200, "{answer}");
        slowest = slowest.max(at.until("GET /api/v1/limits/orders", &format!("\"burst\":{burst},")));
    }
    eprintln!("a limit that is set at one broker is in force at another within {slowest:?}");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");

    // Undone at the other one, by the history that both have.
    let (status, answer) = b.ask("POST /api/v1/limits/undo", "");
    assert_eq!(status, 200, "{answer}");
    a.until("GET /api/v1/limits/orders", "\"burst\":19,");

    // A broker that comes later has it from the start.
    let c = Up::start(&folder, "c", &etcd);
    assert!(c.ask("GET /api/v1/limits/orders", "").1.contains("\"burst\":19,"));
    drop(c);

    // Without the store limits stay in force, and changes are refused with the reason.
    for n in 0..etcd.count() {
        etcd.kill(n);
    }
    let (status, answer) = a.ask(put, r#"{"rate": "9/s", "burst": 90}"#);
    assert!(status == 503 && answer.contains("store-unavailable"), "{status} {answer}");
    for up in [&a, &b] {
        assert!(up.ask("GET /api/v1/limits/orders", "").1.contains("\"burst\":19,"));
    }
    // With it, all goes on where it was.
    for n in 0..etcd.count() {
        etcd.spawn(n);
    }
    let asked = clock::now();
    while a.ask(put, r#"{"rate": "9/s", "burst": 91}"#).0 != 200 {
        assert!(clock::now().since(asked) < Duration::from_mins(1), "changes are never taken again");
    }
    b.until("GET /api/v1/limits/orders", "\"burst\":91,");
}

#[tokio::test]
async fn without_its_etcd_a_broker_does_not_start_and_says_what_to_check() {
    let folder = Folder::new("nothing");
    fs::write(
        folder.0.join("tidegate.toml"),
        // A port that nothing listens on: it is reserved.
        "[console]\naddress = \"\"\n[store]\nkind = \"etcd\"\nendpoints = [\"http://127.0.0.1:1\"]\nanswer_within = \"50ms\"\n",
    )
    .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = command.args(["up"]).current_dir(&folder.0).env("NO_COLOR", "1").output().unwrap();
    // Reports are wrapped, with a rule in front of each line.
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let said = said.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("http://127.0.0.1:1 cannot be reached") && said.contains("store.endpoints"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_answer_is_lost_or_late_is_made_once() {
    let etcd = EtcdNodes::start("shared-lost", 1).await;
    let relay = Relay::to(etcd.client_port(0)).await;
    let folder = Folder::new("lost");
    let through = store_at(&[format!("http://127.0.0.1:{}", relay.port)]);
    let (a, b) = (Up::start_at(&folder, "a", &through), Up::start(&folder, "b", &etcd));
    let put = |burst: u64| a.ask("PUT /api/v1/limits/orders", &format!(r#"{{"rate": "7/s", "burst": {burst}}}"#));

    // A change reads the history and the limit, and writes: each of the three answers is lost, before and in its midst.
    for number in 1..=6 {
        relay.lose(number);
        let (status, answer) = put(number);
        assert_eq!(status, 200, "{number}: {answer}");
        assert!(relay.has_lost(), "answer {number} was lost");
    }
    b.until("GET /api/v1/limits/orders", "\"burst\":6,");
    assert_eq!(history(&b, "orders"), [6, 5, 4, 3, 2, 1]);

    // Answers that come late, and are waited for.
    relay.delay(Duration::from_millis(50));
    assert_eq!(put(7).0, 200);
    // Answers that come too late: the change is refused, or it is not known what became of it. It is made once at most.
    relay.delay(Duration::from_secs(2));
    let (status, answer) = put(8);
    assert_eq!(status, 503, "{answer}");
    relay.delay(Duration::ZERO);
    let asked = clock::now();
    while put(9).0 != 200 {
        assert!(clock::now().since(asked) < Duration::from_mins(1), "changes are never taken again");
    }
    b.until("GET /api/v1/limits/orders", "\"burst\":9,");
    let made: Vec<u64> = history(&b, "orders").into_iter().filter(|burst| *burst >= 7).collect();
    let eighth = made.iter().filter(|burst| **burst == 8).count();
    assert!(made.first() == Some(&9) && made.last() == Some(&7) && eighth <= 1, "{made:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_was_cut_off_reads_again_what_history_has_forgotten() {
    let etcd = EtcdNodes::start("shared-compacted", 1).await;
    let relay = Relay::to(etcd.client_port(0)).await;
    let folder = Folder::new("compacted");
    let through = store_at(&[format!("http://127.0.0.1:{}", relay.port)]);
    let (a, b) = (Up::start(&folder, "a", &etcd), Up::start_at(&folder, "b", &through));
    let put = |topic: &str, burst: u64| {
        let body = format!(r#"{{"rate": "7/s", "burst": {burst}}}"#);
        let (status, answer) = a.ask(&format!("PUT /api/v1/limits/{topic}"), &body);
        assert_eq!(status, 200, "{answer}");
    };
    put("changed", 1);
    put("removed", 1);
    b.until("GET /api/v1/limits/removed", "\"burst\":1,");

    relay.cut();
    put("changed", 2);
    put("changed", 3);
    put("new", 4);
    let (status, answer) = a.ask("DELETE /api/v1/limits/removed", "");
    assert_eq!(status, 200, "{answer}");
    let said: Value = serde_json::from_str(&etcdctl(&etcd, &["get", "x", "--write-out=json"])).expect("it is JSON");
    etcdctl(&etcd, &["compact", &said["header"]["revision"].to_string()]);
    assert!(b.ask("GET /api/v1/limits/changed", "").1.contains("\"burst\":1,"), "it is cut off");

    relay.join();
    b.until("GET /api/v1/limits/changed", "\"burst\":3,");
    b.until("GET /api/v1/limits/new", "\"burst\":4,");
    b.until("GET /api/v1/limits/removed", "404");
    // And it follows on.
    put("new", 5);
    b.until("GET /api/v1/limits/new", "\"burst\":5,");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_broker_becomes_three_with_its_messages_limits_and_history() {
    const MESSAGES: u64 = 200;
    let etcd = EtcdNodes::start("shared-grown", 3).await;
    let folder = Folder::new("grown");
    let alone = Up::start_at(&folder, "a", "");
    for burst in 1..=3 {
        let body = format!(r#"{{"rate": "7/s", "burst": {burst}}}"#);
        assert_eq!(alone.ask("PUT /api/v1/limits/orders", &body).0, 200);
    }
    for number in 0..MESSAGES {
        let (status, answer) = alone.ask_at(&alone.http, "POST /pub?topic=stock", &number.to_string());
        assert_eq!(status, 200, "{answer}");
    }
    let copy = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.args(["store", "copy", "a/control.redb", "cluster.toml"]).current_dir(&folder.0).output();
        let output = output.expect("the binary starts");
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), said)
    };
    let shared = store_at(etcd.options().endpoints());
    fs::write(folder.0.join("cluster.toml"), &shared).expect("the folder is ours");
    // The broker has its store for itself as long as it runs.
    let (code, said) = copy();
    assert!(code == Some(1) && said.contains("in use by another process"), "{said}");
    alone.stop();
    let (code, said) = copy();
    assert!(code == Some(0) && said.starts_with("4 entries copied, 0 were there"), "{said}");
    let (code, said) = copy();
    assert!(code == Some(0) && said.starts_with("0 entries copied, 4 were there"), "{said}");

    let brokers = ["a", "b", "c"].map(|name| Up::start_at(&folder, name, &shared));
    for up in &brokers {
        assert!(up.ask("GET /api/v1/limits/orders", "").1.contains("\"burst\":3,"));
        assert_eq!(history(up, "orders"), [3, 2, 1]);
    }
    let (_, stats) = brokers[0].ask_at(&brokers[0].http, "GET /stats?format=json&topic=stock", "");
    assert!(stats.contains(&format!("\"depth\":{MESSAGES},")), "{stats}");
    // What was set before can be undone, at any of them.
    assert_eq!(brokers[2].ask("POST /api/v1/limits/undo", "").0, 200);
    for up in &brokers {
        up.until("GET /api/v1/limits/orders", "\"burst\":2,");
    }
}
