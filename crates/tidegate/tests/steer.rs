//! `tidegate steer` in front of two brokers: moved under load, a broker killed, drained.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_wire::nsq::client::{self, Frame};

/// A broker that keeps its messages in memory, whose order is that of their arrival.
const BROKER: &str = r#"
[broker]
tcp_address = "127.0.0.1:0"
http_address = ""
mem_queue_size = 1000000
max_queue_bytes = 1000000000
[admin]
address = "127.0.0.1:0"
[console]
address = ""
"#;
/// What takes longer is not coming.
const PATIENCE: Duration = Duration::from_mins(1);
/// Publishes that are sent before the answers of those before them are read.
const WINDOW: usize = 32;

/// An empty folder of this test's own, gone when it ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = Self(std::env::temp_dir().join(format!("tidegate-steer-{name}-{}", std::process::id())));
        let _ = fs::remove_dir_all(&folder.0);
        fs::create_dir_all(&folder.0).expect("a folder for temporary files");
        folder
    }

    /// Writes a file as a whole: whoever reads it sees the old text or the new one.
    fn write(&self, name: &str, text: &str) {
        let fresh = self.0.join("fresh");
        fs::write(&fresh, text).expect("the folder is ours");
        fs::rename(fresh, self.0.join(name)).expect("the folder is ours");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process, ended by force if a test gives up on it.
struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn start(folder: &Folder, name: &str, verb: &str, config: &str) -> Self {
        let home = folder.0.join(name);
        fs::create_dir_all(&home).expect("the folder is ours");
        fs::write(home.join("tidegate.toml"), config).expect("the folder is ours");
        let log = fs::File::create(home.join("log")).expect("the folder is ours");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args([verb, "--log", "debug"]).current_dir(home).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("the binary starts");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, lines }
    }

    /// The address that it says under this name.
    fn address(&mut self, name: &str) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line of text");
        let rest = line.strip_prefix(name).unwrap_or_else(|| panic!("{line:?} is no line about {name}"));
        rest.trim().trim_start_matches("http://").to_owned()
    }

    fn end(mut self) -> Option<i32> {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), rustix::process::Signal::TERM)
            .expect("it runs");
        self.child.wait().expect("it ends").code()
    }

    fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A GET: the status and the body.
fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers in text");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status line");
    (status, answer.split_once("\r\n\r\n").expect("a head and a body").1.to_owned())
}

/// What a client was told, without heartbeats.
#[derive(Clone, PartialEq, Debug)]
enum Told {
    Response(String),
    Error(String),
    /// Its time, and the number in its body.
    Message(i64, usize),
}

/// A client that speaks NSQ with its own hands.
struct Client {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Client {
    fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream.set_nodelay(true).expect("a socket");
        let mut client = Self { stream, input: Vec::new() };
        client.send(client::MAGIC);
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("it reads");
    }

    /// The next thing that it is told; `None` if the connection is closed.
    fn told(&mut self) -> Option<Told> {
        loop {
            if let Some((frame, used)) = client::frame(&self.input, 1 << 24).expect("frames") {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let told = match frame {
                    Frame::Response(bytes) => Told::Response(text(bytes)),
                    Frame::Error(bytes) => Told::Error(text(bytes)),
                    Frame::Message(header, body) => {
                        let mut fin = Vec::new();
                        client::put_fin(&mut fin, &header.id);
                        let number = text(body).parse().expect("bodies are numbers");
                        let told = Told::Message(header.timestamp, number);
                        self.input.drain(..used);
                        self.send(&fin);
                        return Some(told);
                    }
                };
                self.input.drain(..used);
                if told == Told::Response("_heartbeat_".to_owned()) {
                    self.send(b"NOP\n");
                    continue;
                }
                return Some(told);
            }
            let mut piece = [0; 8_192];
            let bytes = self.stream.read(&mut piece).expect("it answers in time");
            if bytes == 0 {
                return None;
            }
            self.input.extend_from_slice(&piece[..bytes]);
        }
    }
}

/// A producer through the hop that numbers what it publishes.
struct Producer {
    client: Client,
    sent: usize,
    /// The answer to each publish: whether it is OK.
    answers: Vec<bool>,
}

impl Producer {
    fn connect(address: &str) -> Self {
        let mut client = Client::connect(address);
        let mut bytes = Vec::new();
        client::put_identify(
            &mut bytes,
            br#"{"client_id":"svc","hostname":"h","feature_negotiation":true,"tls_v1":true}"#,
        );
        client.send(&bytes);
        let Some(Told::Response(answer)) = client.told() else { panic!("IDENTIFY is answered") };
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(
            (&answer["tls_v1"], &answer["snappy"], &answer["deflate"]),
            (&false.into(), &false.into(), &false.into())
        );
        Self { client, sent: 0, answers: Vec::new() }
    }

    /// Sends a window of publishes, and reads answers until no more than that window is open.
    fn publish(&mut self) {
        let mut bytes = Vec::new();
        for _ in 0..WINDOW {
            client::put_pub(&mut bytes, "orders", self.sent.to_string().as_bytes());
            self.sent += 1;
        }
        self.client.send(&bytes);
        self.read(self.sent - WINDOW);
    }

    /// Reads answers until there are so many.
    fn read(&mut self, answers: usize) {
        while self.answers.len() < answers {
            match self.client.told() {
                Some(Told::Response(text)) => {
                    assert_eq!(text, "OK");
                    self.answers.push(true);
                }
                Some(Told::Error(text)) => {
                    assert!(text.starts_with("E_PUB_FAILED"), "{text}");
                    self.answers.push(false);
                }
                other => panic!("a publish is told {other:?}"),
            }
        }
    }

    fn read_all(&mut self) {
        self.read(self.sent);
    }
}

/// The first `count` messages that a broker has: their times and numbers, in its order.
fn consume(address: &str, count: usize) -> Vec<(i64, usize)> {
    let mut client = Client::connect(address);
    let mut bytes = Vec::new();
    client::put_sub(&mut bytes, "orders", "c");
    client::put_rdy(&mut bytes, 2_500);
    client.send(&bytes);
    assert_eq!(client.told(), Some(Told::Response("OK".to_owned())));
    let mut messages = Vec::new();
    while messages.len() < count {
        match client.told() {
            Some(Told::Message(time, number)) => messages.push((time, number)),
            other => panic!("a consumer is told {other:?}"),
        }
    }
    messages
}

/// Messages that a broker holds, by its own count, before anybody consumes them.
fn depth(admin: &str) -> usize {
    let (status, body) = get(admin, "/api/v1/snapshot?topic=orders");
    assert_eq!(status, 200, "{body}");
    let snapshot: Value = serde_json::from_str(&body).expect("JSON");
    snapshot["topics"][0]["depth"].as_u64().and_then(|depth| usize::try_from(depth).ok()).unwrap_or(0)
}

/// Two brokers, and a hop in front of them.
struct Stage {
    folder: Folder,
    brokers: BTreeMap<&'static str, (Running, String, String)>,
    steer: Running,
    nsq: String,
    admin: String,
}

impl Stage {
    /// Everything goes to broker `a` at first.
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        let brokers: BTreeMap<_, _> = ["a", "b"]
            .into_iter()
            .map(|name| {
                let mut broker = Running::start(&folder, name, "up", BROKER);
                let (nsq, admin) = (broker.address("NSQ"), broker.address("admin"));
                (name, (broker, nsq, admin))
            })
            .collect();
        let node = |name: &str| format!("{{ name = \"{name}\", nsq = \"{}\" }}", brokers[name].1);
        let config = format!(
            "[steer]\nlisten = \"127.0.0.1:0\"\nadmin_address = \"127.0.0.1:0\"\nnodes = [ {}, {} ]\n\
             placement = \"../placement.json\"\nthreads = 2\n",
            node("a"),
            node("b")
        );
        place(&folder, &brokers, "a");
        let mut steer = Running::start(&folder, "steer", "steer", &config);
        let (nsq, admin) = (steer.address("NSQ"), steer.address("admin"));
        Self { folder, brokers, steer, nsq, admin }
    }

    fn place(&self, at: &str) {
        place(&self.folder, &self.brokers, at);
    }

    fn report(&self) -> Value {
        let (status, body) = get(&self.admin, "/api/v1/steer");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).expect("JSON")
    }

    fn total(&self, name: &str) -> u64 {
        self.report()["totals"][name].as_u64().expect("a count")
    }
}

/// Places the publisher `svc@h` of `orders` on a broker; the other one is there for the case that it fails.
fn place(folder: &Folder, brokers: &BTreeMap<&'static str, (Running, String, String)>, at: &str) {
    let nodes: Vec<Value> = brokers.iter().map(|(name, broker)| json!({ "name": name, "nsq": broker.1 })).collect();
    let place = brokers.keys().position(|name| *name == at).expect("it is a broker");
    let topic = json!({ "topic": "orders", "nodes": nodes, "publishers": { "svc@h": place } });
    folder.write("placement.json", &json!({ "topics": [topic] }).to_string());
}

fn is_ascending(numbers: &[usize]) -> bool {
    numbers.is_sorted_by(|a, b| a < b)
}

#[test]
fn a_topic_that_moves_under_load_loses_doubles_and_reorders_nothing() {
    let stage = Stage::new("moves");
    let mut producer = Producer::connect(&stage.nsq);
    for (moves, at) in [(1, "b"), (2, "a"), (3, "b")] {
        producer.publish();
        stage.place(at);
        while stage.total("moves_total") < moves {
            producer.publish();
        }
        producer.publish();
    }
    producer.read_all();
    assert!(producer.answers.iter().all(|is_ok| *is_ok));
    assert_eq!(stage.total("accepted_total"), producer.sent as u64);
    let report = stage.report();
    assert_eq!(report["publishers"][0]["identity"], "svc@h");
    assert_eq!(report["publishers"][0]["topics"], json!([{ "topic": "orders", "node": "b" }]));

    let mut all = Vec::new();
    for (_, nsq, admin) in stage.brokers.values() {
        let here = consume(nsq, depth(admin));
        assert!(is_ascending(&here.iter().map(|(_, number)| *number).collect::<Vec<_>>()), "in order at one broker");
        assert!(!here.is_empty());
        all.extend(here);
    }
    // By the times at which the brokers accepted them; both read one clock.
    all.sort_by_key(|(time, _)| *time);
    let numbers: Vec<usize> = all.into_iter().map(|(_, number)| number).collect();
    assert_eq!(numbers, (0..producer.sent).collect::<Vec<_>>(), "each once, in order over both brokers");
}

#[test]
fn when_a_broker_is_killed_its_publishes_fail_in_order_and_later_ones_go_elsewhere() {
    let mut stage = Stage::new("killed");
    let mut producer = Producer::connect(&stage.nsq);
    producer.publish();
    producer.publish();
    stage.brokers.get_mut("a").expect("it is there").0.kill();
    while stage.total("broker_failures_total") == 0 || !producer.answers.ends_with(&[true; WINDOW]) {
        producer.publish();
    }
    producer.read_all();
    let ok: Vec<usize> = (0..producer.sent).filter(|number| producer.answers[*number]).collect();
    let (_, nsq, admin) = &stage.brokers["b"];
    let here: Vec<usize> = consume(nsq, depth(admin)).into_iter().map(|(_, number)| number).collect();
    // What `a` had accepted died with it; from the first publish on that went to `b`, each that was answered OK is there.
    let first = here[0];
    assert_eq!(here, ok.into_iter().filter(|number| *number >= first).collect::<Vec<_>>());
    assert!(first >= WINDOW);

    let (status, page) = get(&stage.admin, "/metrics");
    assert_eq!(status, 200);
    assert!(page.contains("tidegate_steer_publishes_total{result=\"accepted\"}"), "{page}");
    assert_eq!(get(&stage.admin, "/healthz").0, 200);
}

#[test]
fn told_to_end_a_hop_answers_what_is_open_and_ends() {
    let stage = Stage::new("drained");
    let mut producer = Producer::connect(&stage.nsq);
    producer.publish();
    let mut consumer = Client::connect(&stage.nsq);
    consumer.send(b"SUB orders c\n");
    let Some(Told::Error(text)) = consumer.told() else { panic!("it is refused") };
    assert!(text.starts_with("E_INVALID cannot SUB at tidegate steer, which serves producers"), "{text}");
    assert_eq!(consumer.told(), None);
    producer.read_all();
    let Stage { steer, brokers, folder, .. } = stage;
    assert_eq!(steer.end(), Some(0));
    assert_eq!(producer.client.told(), None);
    assert_eq!(producer.answers, [true; WINDOW]);
    drop((brokers, folder));
}

#[test]
fn check_reads_the_section_and_the_file_of_placements() {
    let folder = Folder::new("check");
    let check = |config: &str| {
        folder.write("tidegate.toml", config);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.args(["check", "tidegate.toml"]).current_dir(&folder.0).env("NO_COLOR", "1").output();
        let output = output.expect("the binary starts");
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).expect("text"))
    };
    let config = "[steer]\nnodes = [ { name = \"a\", nsq = \"x:1\" } ]\nplacement = \"p.json\"\n";
    let (code, said) = check(config);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("steers to 1 broker") && said.contains("steer.placement: cannot read p.json"), "{said}");
    folder.write("p.json", r#"{"topics":[{"topic":"t","nodes":[]}]}"#);
    let (code, said) = check(config);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("tidegate.toml:3: steer.placement"), "{said}");
    assert_eq!(check("[steer]\n").0, Some(3));
}
